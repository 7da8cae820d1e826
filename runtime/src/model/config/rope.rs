//! Rotary base and scaling, from `rope_parameters` or from `rope_theta` and `rope_scaling`.

use serde_json::{Map, Value};

use super::super::error::Error;
use super::settings::{Settings, bad, unsupported};

/// How rotary frequencies are stretched for contexts longer than those trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// As they are.
    None,
    /// Llama 3.1's: long wavelengths divided by `factor`, short ones kept, a blend between.
    Llama3 {
        /// How much longer the context became.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are stretched in full.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context length before stretching.
        original_max_position_embeddings: f64,
    },
}

pub(super) struct Rope {
    pub(super) theta: f64,
    pub(super) scaling: RopeScaling,
    /// The share of a head that is rotated.
    pub(super) rotated: f64,
}

impl Settings<'_> {
    /// `partial`: the family may rotate a part of each head (a quarter, unless it says otherwise).
    pub(super) fn rope(&self, partial: bool) -> Result<Rope, Error> {
        let empty = Value::Object(Map::new());
        let nested = self.get("rope_parameters").or_else(|| self.get("rope_scaling")).unwrap_or(&empty);
        let rope = Settings::of("rope_parameters", nested)?;
        let theta = rope.number("rope_theta", self.number("rope_theta", 10_000.0)?)?;
        let default = if partial { 0.25 } else { 1.0 };
        let rotated = rope.number("partial_rotary_factor", self.number("partial_rotary_factor", default)?)?;
        if !partial && rotated != 1.0 {
            let supported = "1 (all dimensions of a head are rotated)";
            return unsupported("partial_rotary_factor", &rotated.to_string(), supported);
        }
        if !(rotated > 0.0 && rotated <= 1.0) {
            return Err(bad("partial_rotary_factor", &format!("= {rotated}: must be above 0 and at most 1")));
        }
        let kind = rope.word("rope_type")?.or(rope.word("type")?).unwrap_or("default");
        let scaling = match kind {
            "default" => RopeScaling::None,
            "llama3" => rope.llama3()?,
            other => return unsupported("rope type", other, "default, llama3"),
        };
        Ok(Rope { theta, scaling, rotated })
    }

    fn llama3(&self) -> Result<RopeScaling, Error> {
        let required = |key: &str| match self.number(key, f64::NAN)? {
            number if number.is_finite() && number > 0.0 => Ok(number),
            _ => Err(bad(key, "must be a positive number for rope type `llama3`")),
        };
        let (low_freq_factor, high_freq_factor) = (required("low_freq_factor")?, required("high_freq_factor")?);
        if high_freq_factor <= low_freq_factor {
            return Err(bad(
                "high_freq_factor",
                &format!("= {high_freq_factor}: must be above low_freq_factor = {low_freq_factor}"),
            ));
        }
        Ok(RopeScaling::Llama3 {
            factor: required("factor")?,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: required("original_max_position_embeddings")?,
        })
    }
}
