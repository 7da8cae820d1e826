//! What a job computes with, and where a cluster may put it.

mod checks;
mod toleration;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use training_gym_core::spec::{Dtype, NodeSpec};

use super::Share;

pub use checks::InvalidResources;
#[cfg(feature = "kubernetes")]
pub(crate) use checks::is_object_name;
pub use toleration::{Toleration, TolerationEffect};

/// What a launch asks for; what is unset is the backend's to choose.
///
/// `device`, `dtype`, `threads` and `gpus` mean the same everywhere. The rest is for a cluster; a
/// backend that cannot apply one of them says so in a note and goes on, so that one program runs on
/// both.
///
/// ```
/// use training_gym::backend::Resources;
/// let _ = Resources {
///     gpu_type: Some("NVIDIA-L4".to_owned()),
///     cpu: Some(8.0),
///     memory: Some("32Gi".to_owned()),
///     ..Resources::default()
/// };
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    /// `cpu` or `cuda:N`. Unset: `cuda:0` where `gpus` or `gpu_type` asks for one, else `cpu`.
    pub device: Option<String>,
    /// The compute type. Unset: bfloat16 for a model stored in it, otherwise 32-bit floats. On a CPU
    /// without AMX's bfloat16, or one that is not known before the start, always 32-bit floats: there
    /// bfloat16 is about ten times slower.
    pub dtype: Option<Dtype>,
    /// CPU threads, ≥ 1. Unset: `cpu` rounded down, else the backend's share (see [`super::local`]).
    pub threads: Option<usize>,
    /// Whole GPUs (`nvidia.com/gpu`). Unset: one where `device` or `gpu_type` asks for one, else none.
    pub gpus: Option<u32>,
    /// The GPU's kind: a value of the node label `nvidia.com/gpu.product`, or another label with its
    /// value, such as `cloud.google.com/gke-accelerator=nvidia-l4`.
    pub gpu_type: Option<String>,
    /// CPU cores that are reserved, such as 0.5 or 8. Unset: half a core. Threads may use idle ones.
    pub cpu: Option<f64>,
    /// Memory that is reserved and never exceeded, such as `16Gi` or `512Mi`. Unset: no limit.
    pub memory: Option<String>,
    /// Space on the node's disk (model files, temporary files) that is reserved and never exceeded.
    /// Unset: no limit.
    pub disk: Option<String>,
    /// Size of `/dev/shm`; it counts as memory. Unset: `1Gi`.
    pub shared_memory: Option<String>,
    /// Labels a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints of a node that do not matter. With a GPU, `nvidia.com/gpu` is always among them.
    pub tolerations: Vec<Toleration>,
    /// Name of the cluster's priority class.
    pub priority_class: Option<String>,
    /// Name of the Kueue local queue that decides when the job starts.
    pub queue: Option<String>,
    /// How often a training job that died is started again by the cluster; it then goes on from its
    /// last published state. Being evicted or preempted does not count. Unset: 3.
    pub max_retries: Option<u32>,
    /// How long a training job may run in all, retries included. Unset: for ever.
    pub deadline: Option<Duration>,
    /// How long a job may take to save what it has when it is told to end. Unset: two minutes for a
    /// training job, half a minute for a deployment.
    pub grace: Option<Duration>,
}

impl Resources {
    /// What a job gets, for the model in `folder` (of this machine). `fast_bfloat16`: whether the CPU
    /// it will run on is known to multiply such matrices in hardware.
    ///
    /// # Errors
    /// Where a value cannot be.
    pub(crate) fn node(&self, share: &Share, folder: &Path, fast_bfloat16: bool) -> Result<NodeSpec, InvalidResources> {
        self.check()?;
        let device = self.device();
        let cores = self.cpu.map(|cores| (cores as usize).max(1));
        Ok(NodeSpec {
            dtype: self.dtype.unwrap_or_else(|| default_dtype(stored_dtype(folder), device == "cpu" && !fast_bfloat16)),
            threads: self.threads.or(cores).unwrap_or(share.threads()),
            device,
        })
    }

    /// Where it computes.
    pub(crate) fn device(&self) -> String {
        let asked = self.gpus.map_or(self.gpu_type.is_some(), |gpus| gpus > 0);
        self.device.clone().unwrap_or_else(|| if asked { "cuda:0" } else { "cpu" }.to_owned())
    }

    /// Whole GPUs.
    pub(crate) fn gpu_count(&self) -> u32 {
        self.gpus.unwrap_or(u32::from(self.device() != "cpu"))
    }

    /// What of it is not in a spec: where a cluster may put the job, and what it reserves.
    pub(crate) fn placement(&self) -> Self {
        Self { device: None, dtype: None, threads: None, gpus: Some(self.gpu_count()), ..self.clone() }
    }

    /// What a note says of fields that a backend cannot apply; none where none is set.
    pub(crate) fn note_for_cluster(&self, backend: &str) -> Option<String> {
        let set = [
            ("gpu_type", self.gpu_type.is_some()),
            ("cpu", self.cpu.is_some()),
            ("memory", self.memory.is_some()),
            ("disk", self.disk.is_some()),
            ("shared_memory", self.shared_memory.is_some()),
            ("node_selector", !self.node_selector.is_empty()),
            ("tolerations", !self.tolerations.is_empty()),
            ("priority_class", self.priority_class.is_some()),
            ("queue", self.queue.is_some()),
            ("max_retries", self.max_retries.is_some()),
            ("deadline", self.deadline.is_some()),
            ("grace", self.grace.is_some()),
        ];
        let names: Vec<&str> = set.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect();
        let (last, first) = names.split_last()?;
        let names =
            if first.is_empty() { format!("{last} is") } else { format!("{} and {last} are", first.join(", ")) };
        Some(format!("resources: {names} for a cluster, and not applied by {backend}"))
    }
}

/// The stored type, except where it would crawl.
fn default_dtype(stored: Dtype, slow_bfloat16: bool) -> Dtype {
    if slow_bfloat16 { Dtype::Float32 } else { stored }
}

/// Whether this machine's CPU multiplies matrices of bfloat16 in hardware.
pub(crate) fn has_amx() -> bool {
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

    fn node(asked: &Resources, folder: &Path) -> Result<NodeSpec, InvalidResources> {
        asked.node(&Share::new(3, ()), folder, false)
    }

    #[test]
    fn what_is_unset_is_chosen_and_what_cannot_be_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let chosen = node(&Resources::default(), folder.path()).unwrap();
        assert_eq!((chosen.device.as_str(), chosen.dtype), ("cpu", Dtype::Float32));
        assert_eq!(chosen.threads, 3);
        std::fs::write(folder.path().join("config.json"), r#"{"text_config": {"torch_dtype": "bfloat16"}}"#).unwrap();
        let cuda = Resources { device: Some("cuda:0".to_owned()), ..Resources::default() };
        assert_eq!(node(&cuda, folder.path()).unwrap().dtype, Dtype::Bfloat16);
        assert_eq!(node(&Resources::default(), folder.path()).unwrap().dtype, Dtype::Float32);
        let share = Share::new(3, ());
        assert_eq!(Resources::default().node(&share, folder.path(), true).unwrap().dtype, Dtype::Bfloat16);
        let asked = Resources { dtype: Some(Dtype::Bfloat16), ..Resources::default() };
        assert_eq!(node(&asked, folder.path()).unwrap().dtype, Dtype::Bfloat16);

        for device in ["cuda", "cuda:x", "gpu"] {
            let asked = Resources { device: Some(device.to_owned()), ..Resources::default() };
            let error = node(&asked, folder.path()).unwrap_err().to_string();
            assert!(error.contains("resources.device") && error.contains(device), "{error}");
        }
        let asked = Resources { threads: Some(0), ..Resources::default() };
        assert!(node(&asked, folder.path()).is_err());
    }

    #[test]
    fn a_gpu_is_asked_for_in_each_way() {
        let by = |gpus, gpu_type: Option<&str>, device: Option<&str>| {
            let gpu_type = gpu_type.map(str::to_owned);
            let resources = Resources { gpus, gpu_type, device: device.map(str::to_owned), ..Resources::default() };
            (resources.device(), resources.gpu_count())
        };
        assert_eq!(by(None, None, None), ("cpu".to_owned(), 0));
        assert_eq!(by(Some(2), None, None), ("cuda:0".to_owned(), 2));
        assert_eq!(by(None, Some("NVIDIA-L4"), None), ("cuda:0".to_owned(), 1));
        assert_eq!(by(None, None, Some("cuda:0")), ("cuda:0".to_owned(), 1));
        assert_eq!(by(Some(0), Some("NVIDIA-L4"), None), ("cpu".to_owned(), 0));
        let cores = Resources { cpu: Some(2.5), ..Resources::default() };
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(node(&cores, folder.path()).unwrap().threads, 2);
        assert_eq!(node(&Resources { threads: Some(7), ..cores }, folder.path()).unwrap().threads, 7);
    }

    #[test]
    fn what_a_backend_cannot_apply_is_named() {
        assert_eq!(Resources { threads: Some(1), gpus: Some(1), ..Resources::default() }.note_for_cluster("b"), None);
        let one = Resources { queue: Some("q".to_owned()), ..Resources::default() };
        assert_eq!(one.note_for_cluster("b").unwrap(), "resources: queue is for a cluster, and not applied by b");
        let two = Resources { memory: Some("1Gi".to_owned()), ..one };
        assert!(two.note_for_cluster("b").unwrap().contains("memory and queue are"));
    }
}
