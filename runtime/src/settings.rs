//! The only reader of the command line, the environment, and the files they name.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tch::{Device, Kind};
use training_gym_core::ids::RunId;
use training_gym_core::spec::{Dtype, NodeSpec, SecretRef, ServeSpec, VersionedServeSpec};

/// What the image's program does.
#[derive(Debug, Parser)]
#[command(name = "gym-runtime", version, about = "Trains and serves for training-gym")]
pub struct Cli {
    /// The part it plays.
    #[command(subcommand)]
    pub role: Role,
}

/// The parts.
#[derive(Debug, Subcommand)]
pub enum Role {
    /// Run the training run whose spec is in the store
    Train {
        /// The store's URL, such as file:///srv/gym
        #[arg(long)]
        store: String,
        /// The run
        #[arg(long)]
        run: RunId,
        /// Have the reward worker started by `gym-runtime reward-worker`, whose sockets are in this folder
        #[arg(long, value_name = "FOLDER")]
        reward_sockets: Option<PathBuf>,
        /// Have it started by a `gym-runtime reward-worker` in another pod, which listens there
        #[arg(long, value_name = "HOST:PORT", conflicts_with = "reward_sockets", requires = "reward_token_file")]
        reward_address: Option<String>,
        /// The token of that one
        #[arg(long, value_name = "FILE", requires = "reward_address", conflicts_with = "reward_sockets")]
        reward_token_file: Option<PathBuf>,
    },
    /// Bring a job's model and program to this machine, before it starts
    Fetch(FetchOptions),
    /// Start reward workers, confined, for a trainer in another container
    RewardWorker(RewardWorkerOptions),
    /// Confine this process and become a reward worker (for gym-runtime itself)
    #[command(hide = true)]
    Confine {
        /// What to become, and with what (JSON)
        plan: String,
    },
    /// Serve a model over HTTP
    Serve {
        /// The deployment's spec (JSON)
        #[arg(long)]
        spec: PathBuf,
        /// Written once the server answers: {"port": N, "pid": N}
        #[arg(long)]
        ready: Option<PathBuf>,
    },
    /// Check that a model, its tokenizer and a dataset fit, without computing
    Check {
        /// The model's folder
        #[arg(long, required_unless_present = "config")]
        model: Option<PathBuf>,
        /// Only say whether the model of this config.json is one that is computed here
        #[arg(long, conflicts_with_all = ["model", "rows"])]
        config: Option<PathBuf>,
        /// Rows (JSON lines) to render and count
        #[arg(long)]
        rows: Option<PathBuf>,
        /// Treat prompts as raw text
        #[arg(long)]
        raw: bool,
        /// The chat template's variables (a JSON object)
        #[arg(long, default_value = "{}")]
        chat_template_kwargs: String,
        /// Count prompts of more tokens
        #[arg(long)]
        max_prompt_len: Option<usize>,
        /// Also say each row's tokens, and refuse none
        #[arg(long, requires = "rows")]
        each: bool,
    },
    /// Make a Hugging Face folder of a GGUF file, a sharded actor checkpoint, or another such folder
    Convert(ConvertOptions),
    /// Say what a model's folder or GGUF file holds, and whether it is sound
    Inspect(InspectOptions),
    /// Make a model's weights from nothing, by supervised training
    Pretrain(PretrainOptions),
    /// Start a local job and write down how it ends
    Supervise {
        /// The job's folder
        folder: PathBuf,
    },
}

/// What a job needs, and where it goes.
#[derive(Clone, Debug, Args)]
pub struct FetchOptions {
    /// The store's URL, such as file:///srv/gym
    #[arg(long)]
    pub store: String,
    /// The run whose model and program are fetched
    #[arg(long, required_unless_present = "spec")]
    pub run: Option<RunId>,
    /// The deployment's spec (JSON) whose model is fetched
    #[arg(long, conflicts_with = "run")]
    pub spec: Option<PathBuf>,
    /// Folder for the program, under its sha256; needed for a run with a reward function
    #[arg(long)]
    pub program_folder: Option<PathBuf>,
}

/// Where a supervisor of reward workers finds what it needs.
#[derive(Clone, Debug, Args)]
pub struct RewardWorkerOptions {
    /// Folder of programs, each under its sha256
    #[arg(long)]
    pub program_folder: PathBuf,
    /// Folder of sockets that the trainer sees too
    #[arg(long, required_unless_present = "listen")]
    pub sockets: Option<PathBuf>,
    /// Listen for the trainer here instead, such as 0.0.0.0:8001: it shows the token, and brings the program
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "sockets", requires = "token_file")]
    pub listen: Option<String>,
    /// File of that token
    #[arg(long, value_name = "FILE", requires = "listen", conflicts_with = "sockets")]
    pub token_file: Option<PathBuf>,
    /// Folder the workers may write to [default: one in the folder for temporary files]
    #[arg(long)]
    pub volume: Option<PathBuf>,
}

/// How a model's weights are made from nothing.
#[derive(Clone, Debug, Args)]
pub struct PretrainOptions {
    /// Folder with config.json, tokenizer and chat template; model.safetensors is written there
    #[arg(long)]
    pub model: PathBuf,
    /// JSON lines of {"prompt", "response", "unscored"}, each read once, in order
    #[arg(long)]
    pub rows: PathBuf,
    /// Rows of one optimizer step
    #[arg(long, default_value_t = 32)]
    pub batch_size: usize,
    /// Peak learning rate, reached after the warm-up; a cosine takes it to a fiftieth
    #[arg(long, default_value_t = 3e-3)]
    pub lr: f64,
    /// Steps from 0 to the peak
    #[arg(long, default_value_t = 50)]
    pub warmup: u64,
    /// Stop after this many steps; the learning rate follows the whole file's schedule all the same
    #[arg(long)]
    pub stop_after: Option<usize>,
    /// Decoupled weight decay of matrices
    #[arg(long, default_value_t = 0.05)]
    pub weight_decay: f64,
    /// Seed of the fresh weights
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Threads of libtorch
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
}

/// What is converted, and into what.
#[derive(Clone, Debug, Args)]
pub struct ConvertOptions {
    /// A .gguf file; a folder with safetensors; or global_step_N (or its actor/) with
    /// model_world_size_W_rank_R.pt
    pub source: PathBuf,
    /// The folder to make
    #[arg(long)]
    pub out: PathBuf,
    /// Number type of the weights; by default the source's (float32 where it is quantised)
    #[arg(long)]
    pub dtype: Option<Number>,
    /// Bytes of a file of weights, at most: a number with KB, MB or GB (10^3, 10^6, 10^9)
    #[arg(long, default_value = "5GB", value_parser = bytes)]
    pub max_shard_size: u64,
    /// Replace the folder if it is there
    #[arg(long)]
    pub overwrite: bool,
    /// GGUF: the pre-tokenizer, where the file names none or another
    #[arg(long, value_name = "KIND")]
    pub pre: Option<String>,
}

/// What is looked at.
#[derive(Clone, Debug, Args)]
pub struct InspectOptions {
    /// A model's folder, or a .gguf file
    pub source: PathBuf,
    /// Print one JSON object instead of lines
    #[arg(long)]
    pub json: bool,
}

/// A number type of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Number {
    /// float32
    #[value(alias = "float32")]
    F32,
    /// bfloat16
    #[value(alias = "bfloat16")]
    Bf16,
    /// float16
    #[value(alias = "float16")]
    F16,
}

/// Bytes written as `5GB`.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        other => return Err(format!("`{other}` is no unit; use KB, MB or GB")),
    };
    match digits.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(unit)) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => Err("must be a whole number above 0, then KB, MB or GB".to_owned()),
    }
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device we do not know or do not have.
    #[error("node.device = `{given}`: {rule}")]
    Device {
        /// As given.
        given: String,
        /// What can be.
        rule: String,
    },
    /// A secret that is not where the spec says. The message never holds the secret.
    #[error("{place} holds no secret: {why}")]
    Secret {
        /// The file or variable.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// There is no place for temporary files.
    #[error("cannot make {}; check the disk's free space and permissions", path.display())]
    Scratch {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file that is no spec.
    #[error("{path} is not a deployment's spec: {why}; launch the deployment again, which writes it anew")]
    Spec {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
}

/// The device and number type a node spec names.
///
/// # Errors
/// [`Error::Device`] when there is no such device here.
pub fn device(node: &NodeSpec) -> Result<(Device, Kind), Error> {
    let refuse = |rule: String| Error::Device { given: node.device.clone(), rule };
    let kind = match node.dtype {
        Dtype::Float32 => Kind::Float,
        Dtype::Bfloat16 => Kind::BFloat16,
    };
    if node.device == "cpu" {
        return Ok((Device::Cpu, kind));
    }
    let index = node
        .device
        .strip_prefix("cuda:")
        .and_then(|index| usize::from_str(index).ok())
        .ok_or_else(|| refuse("use `cpu` or `cuda:N`".to_owned()))?;
    let count = cuda_devices();
    if index >= count {
        return Err(refuse(format!("this machine has {count} CUDA devices that libtorch can use")));
    }
    Ok((Device::Cuda(index), kind))
}

/// This program, as a local job's processes are started with it: also when its file was replaced.
pub fn this_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

/// The volume of reward workers, where none was named.
pub fn default_volume() -> PathBuf {
    std::env::temp_dir().join("reward-worker")
}

/// The folder of workers' sockets, where none was named.
pub fn default_sockets() -> PathBuf {
    std::env::temp_dir().join("reward-sockets")
}

/// CUDA devices that libtorch can use here.
pub fn cuda_devices() -> usize {
    usize::try_from(tch::Cuda::device_count()).unwrap_or(0)
}

/// Bytes of a device's memory: of a CPU the machine's, or less where a control group has less.
///
/// # Errors
/// Why nobody says.
pub fn memory_of(device: Device) -> Result<u64, String> {
    match device {
        Device::Cpu => host_memory(),
        Device::Cuda(index) => cuda_memory(index),
        other => Err(format!("{other:?} does not say")),
    }
}

fn host_memory() -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|error| format!("/proc/meminfo: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    let kib: u64 = line.and_then(|kib| kib.trim().parse().ok()).ok_or("/proc/meminfo has no MemTotal")?;
    // Version 2, then version 1; "max", and files that are not there, are no bound.
    let bounds = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let bound = bounds.iter().filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok()).min();
    Ok(bound.unwrap_or(u64::MAX).min(kib << 10))
}

/// libtorch's C interface does not tell; the driver's tool, which is where the driver is, does.
fn cuda_memory(index: usize) -> Result<u64, String> {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let name = visible.split(',').nth(index).map(str::trim).filter(|name| !name.is_empty());
    let name = name.map_or_else(|| index.to_string(), str::to_owned);
    let asked = ["--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", &name];
    let output = std::process::Command::new("nvidia-smi").args(asked).output();
    let output = output.map_err(|error| format!("nvidia-smi: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mib: Option<u64> = text.trim().parse().ok();
    mib.map(|mib| mib << 20).ok_or_else(|| format!("nvidia-smi says `{}`", text.trim()))
}

/// The folder below a local job's own in which its temporary files lie. Who supervises the job
/// removes it when the job has ended, killed or not.
pub const SCRATCH: &str = "scratch";

/// Where large temporary files and sockets go: a local job's [`SCRATCH`], which is made where it is
/// missing; else the system's folder for temporary files.
///
/// # Errors
/// [`Error::Scratch`] when it cannot be made.
pub fn scratch_base() -> Result<PathBuf, Error> {
    match std::env::current_dir() {
        Ok(folder) if folder.join("job.json").is_file() => {
            let path = folder.join(SCRATCH);
            let made = std::fs::create_dir_all(&path);
            made.map(|()| path.clone()).map_err(|source| Error::Scratch { path, source })
        }
        _ => Ok(std::env::temp_dir()),
    }
}

/// Gives libtorch its threads. Called once, before any tensor; it holds for the calling thread, see
/// [`use_threads_here`].
pub fn use_threads(node: &NodeSpec) {
    use_threads_here(node);
    tch::set_num_interop_threads(1);
}

/// Gives another thread that computes the same number.
pub fn use_threads_here(node: &NodeSpec) {
    tch::set_num_threads(i32::try_from(node.threads.max(1)).unwrap_or(1));
}

/// Reads a secret from where a spec says it is.
///
/// # Errors
/// [`Error::Secret`] when the file or variable is missing or empty.
pub fn secret(place: &SecretRef) -> Result<String, Error> {
    let (place, read) = match place {
        SecretRef::File(path) => (path.display().to_string(), std::fs::read_to_string(path).map_err(|e| e.to_string())),
        SecretRef::Env(name) => (format!("variable {name}"), std::env::var(name).map_err(|e| e.to_string())),
    };
    let text = read.map_err(|why| Error::Secret { place: place.clone(), why })?;
    let secret = text.lines().next().unwrap_or_default().trim();
    if secret.is_empty() {
        return Err(Error::Secret { place, why: "it is empty".to_owned() });
    }
    Ok(secret.to_owned())
}

/// Reads a deployment's spec.
///
/// # Errors
/// [`Error::Spec`].
pub fn serve_spec(path: &Path) -> Result<ServeSpec, Error> {
    let refuse = |why: String| Error::Spec { path: path.display().to_string(), why };
    let text = std::fs::read(path).map_err(|error| refuse(error.to_string()))?;
    let VersionedServeSpec::V1(spec) = serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_checked_by_name_and_count() {
        let node = |device: &str| NodeSpec { device: device.into(), dtype: Dtype::Float32, threads: 1 };
        assert_eq!(device(&node("cpu")).unwrap(), (Device::Cpu, Kind::Float));
        for bad in ["gpu", "cuda", "cuda:x", "cuda:99"] {
            assert!(device(&node(bad)).unwrap_err().to_string().starts_with(&format!("node.device = `{bad}`")));
        }
    }

    #[test]
    fn a_fetch_is_for_a_run_or_a_deployment() {
        let parse =
            |arguments: &str| Cli::try_parse_from(["gym-runtime", "fetch"].into_iter().chain(arguments.split(' ')));
        assert!(parse("--store file:///s --run run-1 --program-folder /program").is_ok());
        assert!(parse("--store file:///s --spec /spec.json").is_ok());
        assert!(parse("--store file:///s").is_err());
        assert!(parse("--store file:///s --run run-1 --spec /spec.json").is_err());
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn a_reward_worker_listens_in_a_folder_or_behind_a_token() {
        let parse = |arguments: &str| Cli::try_parse_from(["gym-runtime"].into_iter().chain(arguments.split(' ')));
        assert!(parse("reward-worker --program-folder /p --sockets /worker").is_ok());
        assert!(parse("reward-worker --program-folder /p --listen 0.0.0.0:8001 --token-file /t").is_ok());
        for bad in ["", " --listen 0.0.0.0:8001", " --sockets /w --token-file /t"] {
            assert!(parse(&format!("reward-worker --program-folder /p{bad}")).is_err(), "{bad}");
        }
        let train = "train --store file:///s --run run-1";
        assert!(parse(&format!("{train} --reward-address h:1 --reward-token-file /t")).is_ok());
        assert!(parse(&format!("{train} --reward-address h:1")).is_err());
        assert!(parse(&format!("{train} --reward-address h:1 --reward-token-file /t --reward-sockets /w")).is_err());
    }

    #[test]
    fn sizes_are_read_with_their_unit() {
        for (text, expected) in [("5GB", 5_000_000_000), ("300mb", 300_000_000), ("1000", 1_000), ("2 KB", 2_000)] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for bad in ["", "GB", "0MB", "-1GB", "5TBs", "99999999999GB", "é"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_the_first_line_and_never_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "s3cret\nmore\n").unwrap();
        assert_eq!(secret(&SecretRef::File(file.clone())).unwrap(), "s3cret");
        std::fs::write(&file, " \ns3cret\n").unwrap();
        let error = secret(&SecretRef::File(file)).unwrap_err().to_string();
        assert!(error.contains("it is empty") && !error.contains("s3cret"));
    }

    #[test]
    fn a_damaged_spec_is_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("spec.json");
        for damage in ["", "{\"version\": \"1\", \"app_na", "[]"] {
            std::fs::write(&file, damage).unwrap();
            let error = serve_spec(&file).unwrap_err().to_string();
            assert!(error.contains(file.to_str().unwrap()) && error.contains("launch the deployment again"), "{error}");
        }
    }
}
