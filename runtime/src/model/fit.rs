//! Whether tensors are those of an architecture.

use std::collections::{BTreeMap, HashMap};

use safetensors::Dtype;

use super::config::ModelConfig;
use super::error::Error;
use super::layout;
use super::shard::stored_kind;

/// Missing names are looked for up to this many: a config may ask for any number.
const MISSING_LISTED: usize = 1000;

/// What tensors hold beside those that are computed with.
#[derive(Debug)]
pub(crate) struct Fit<'n> {
    /// A copy of the tied output projection.
    pub(super) tied_head: bool,
    /// Tensors that belong to the model and are not computed, in order.
    pub(super) carried: Vec<&'n str>,
}

/// Compares names, types and shapes with the architecture's.
///
/// # Errors
/// By name: [`Error::Missing`], [`Error::Surplus`], [`Error::StoredType`], [`Error::Shape`].
pub(crate) fn fit<'n>(config: &ModelConfig, found: &HashMap<&'n str, (Dtype, &[usize])>) -> Result<Fit<'n>, Error> {
    let mut missing = Vec::new();
    let mut expected = BTreeMap::new();
    for wanted in layout::tensors(config) {
        if found.contains_key(wanted.name.as_str()) {
            expected.insert(wanted.name, wanted.shape);
        } else if missing.len() < MISSING_LISTED {
            missing.push(wanted.name);
        } else {
            break;
        }
    }
    if !missing.is_empty() {
        missing.sort();
        return Err(Error::Missing { names: missing });
    }
    let tied_head = config.tie_word_embeddings && found.contains_key(layout::HEAD);
    let (mut surplus, mut carried) = (Vec::new(), Vec::new());
    for &name in found.keys().filter(|name| !expected.contains_key(**name)) {
        if config.architecture.carried().iter().any(|beginning| name.starts_with(beginning)) {
            carried.push(name);
        } else if !(layout::is_ignored(name) || (tied_head && name == layout::HEAD)) {
            surplus.push(name.to_owned());
        }
    }
    if !surplus.is_empty() {
        surplus.sort();
        return Err(Error::Surplus { names: surplus });
    }
    for (name, shape) in expected {
        let (dtype, size) = found[name.as_str()];
        stored_kind(&name, dtype)?;
        let found: Vec<i64> = size.iter().map(|&size| size as i64).collect();
        if found != shape {
            return Err(Error::Shape { name, found, expected: shape });
        }
    }
    carried.sort_unstable();
    Ok(Fit { tied_head, carried })
}
