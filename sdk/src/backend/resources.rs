//! What a job computes with.

use std::path::Path;

use training_gym_core::spec::{Dtype, NodeSpec};

use super::Share;

/// What a launch asks for; what is unset is the backend's to choose.
///
/// ```
/// use training_gym::backend::Resources;
/// let _ = Resources { threads: Some(2), ..Resources::default() };
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// `cpu` or `cuda:N`. Unset: `cpu`.
    pub device: Option<String>,
    /// The compute type. Unset: bfloat16 for a model stored in it, otherwise 32-bit floats. On a CPU
    /// without AMX's bfloat16 always 32-bit floats: there bfloat16 is about ten times slower.
    pub dtype: Option<Dtype>,
    /// CPU threads, ≥ 1. Unset: the backend's share (see [`super::local`]).
    pub threads: Option<usize>,
}

/// A resource that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("resources.{field} = {given}: {rule}")]
pub struct InvalidResources {
    field: &'static str,
    given: String,
    rule: &'static str,
}

impl Resources {
    /// What a job gets, for the model in `folder`.
    ///
    /// # Errors
    /// Where a value cannot be.
    pub(crate) fn node(&self, share: &Share, folder: &Path) -> Result<NodeSpec, InvalidResources> {
        let device = self.device.clone().unwrap_or_else(|| "cpu".to_owned());
        let number = device.strip_prefix("cuda:").map(str::parse::<u16>);
        if device != "cpu" && !matches!(number, Some(Ok(_))) {
            return Err(InvalidResources { field: "device", given: device, rule: "write `cpu` or `cuda:N`" });
        }
        if self.threads == Some(0) {
            return Err(InvalidResources { field: "threads", given: "0".to_owned(), rule: "must be ≥ 1" });
        }
        Ok(NodeSpec {
            dtype: self.dtype.unwrap_or_else(|| default_dtype(stored_dtype(folder), device == "cpu" && !has_amx())),
            threads: self.threads.unwrap_or(share.threads()),
            device,
        })
    }
}

/// The stored type, except where it would crawl.
fn default_dtype(stored: Dtype, slow_bfloat16: bool) -> Dtype {
    if slow_bfloat16 { Dtype::Float32 } else { stored }
}

/// Whether this machine's CPU multiplies matrices of bfloat16 in hardware.
fn has_amx() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.is_some_and(|(_, flags)| flags.split_ascii_whitespace().any(|flag| flag == "amx_bf16"))
}

/// The type a model's `config.json` says it is stored in.
fn stored_dtype(folder: &Path) -> Dtype {
    let config = std::fs::read(folder.join("config.json")).ok();
    let config: Option<serde_json::Value> = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let named = |value: &serde_json::Value| {
        ["dtype", "torch_dtype"].iter().find_map(|key| Some(value.get(key)?.as_str()?.to_owned()))
    };
    let dtype = config.and_then(|config| named(&config).or_else(|| named(config.get("text_config")?)));
    if dtype.as_deref() == Some("bfloat16") { Dtype::Bfloat16 } else { Dtype::Float32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unset_is_chosen_and_what_cannot_be_is_refused() {
        let share = Share::new(3, ());
        let folder = tempfile::tempdir().unwrap();
        let node = Resources::default().node(&share, folder.path()).unwrap();
        assert_eq!((node.device.as_str(), node.dtype), ("cpu", Dtype::Float32));
        assert_eq!(node.threads, 3);
        std::fs::write(folder.path().join("config.json"), r#"{"text_config": {"torch_dtype": "bfloat16"}}"#).unwrap();
        let cuda = Resources { device: Some("cuda:0".to_owned()), ..Resources::default() };
        assert_eq!(cuda.node(&share, folder.path()).unwrap().dtype, Dtype::Bfloat16);
        assert_eq!(default_dtype(stored_dtype(folder.path()), true), Dtype::Float32);
        assert_eq!(default_dtype(stored_dtype(folder.path()), false), Dtype::Bfloat16);
        let asked = Resources { dtype: Some(Dtype::Bfloat16), ..Resources::default() };
        assert_eq!(asked.node(&share, folder.path()).unwrap().dtype, Dtype::Bfloat16);

        for device in ["cuda", "cuda:x", "gpu"] {
            let asked = Resources { device: Some(device.to_owned()), ..Resources::default() };
            let error = asked.node(&share, folder.path()).unwrap_err().to_string();
            assert!(error.contains("resources.device") && error.contains(device), "{error}");
        }
        let asked = Resources { threads: Some(0), ..Resources::default() };
        assert!(asked.node(&share, folder.path()).is_err());
    }
}
