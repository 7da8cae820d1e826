//! `cargo xtask image`: the image of training-gym's pods, built without a daemon and without a registry.

mod context;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::commands::{build_runtime, setup, target};
use crate::shell::{cache, output, root};

/// The CPU variant's name; the archive carries it.
pub(crate) const NAME: &str = "localhost/training-gym-runtime:cpu";
const NAME_CUDA: &str = "localhost/training-gym-runtime:cuda";

/// A file larger than this is printed with its reason.
const LARGE: u64 = 10_000_000;

struct Options {
    cuda: bool,
    base: Option<String>,
    runtime: Option<PathBuf>,
}

/// `image [--cuda] [--base NAME@sha256:…] [--runtime FILE]`.
pub(crate) fn image(arguments: &[String]) -> Result<()> {
    build(&options(arguments)?).map(|_| ())
}

fn options(arguments: &[String]) -> Result<Options> {
    let mut options = Options { cuda: false, base: None, runtime: None };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().cloned().with_context(|| format!("{argument}: needs a value"));
        match argument.as_str() {
            "--cuda" => options.cuda = true,
            "--base" => options.base = Some(value()?),
            "--runtime" => options.runtime = Some(value()?.into()),
            other => bail!("image {other}: known are --cuda, --base NAME@sha256:…, --runtime FILE"),
        }
    }
    if let Some(base) = &options.base {
        let digest = base.rsplit_once("@sha256:").map(|(_, digest)| digest);
        if !digest.is_some_and(|digest| digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            bail!("--base {base}: name the image by digest (NAME@sha256:…), so that each build has the same base");
        }
    }
    Ok(options)
}

/// The CPU variant's archive, where one was built.
pub(crate) fn built() -> Option<PathBuf> {
    let archive = archive(false);
    archive.is_file().then_some(archive)
}

fn archive(cuda: bool) -> PathBuf {
    target().join(if cuda { "image/training-gym-runtime-cuda.tar" } else { "image/training-gym-runtime-cpu.tar" })
}

/// The CPU variant, built anew where the runtime changed.
pub(crate) fn ensure() -> Result<PathBuf> {
    build(&Options { cuda: false, base: None, runtime: None })
}

fn build(options: &Options) -> Result<PathBuf> {
    setup()?;
    let runtime = match &options.runtime {
        Some(runtime) => runtime.clone(),
        None => build_runtime()?,
    };
    let archive = archive(options.cuda);
    let ingredients = ingredients(options, &runtime)?;
    let stamp = archive.with_extension("ingredients");
    if archive.is_file() && fs::read_to_string(&stamp).is_ok_and(|made_of| made_of == ingredients) {
        println!("image: {} is as the runtime is", archive.display());
        return Ok(archive);
    }
    super::cluster::install_packages()?;
    let started = Instant::now();
    let folder = archive.parent().context("a file has a folder")?;
    fs::create_dir_all(folder)?;
    let context = tempfile::tempdir_in(folder)?;
    context::assemble(context.path(), &runtime, options.cuda, options.base.is_none())?;
    println!("image: context assembled ({:.1} s)", started.elapsed().as_secs_f64());
    let name = if options.cuda { NAME_CUDA } else { NAME };
    bud(options, context.path(), name, &archive)?;
    fs::write(&stamp, ingredients)?;
    println!("image: {name} in {} ({:.1} s)", archive.display(), started.elapsed().as_secs_f64());
    report(context.path(), &archive)?;
    Ok(archive)
}

/// What an image is made of: another text is another image.
fn ingredients(options: &Options, runtime: &Path) -> Result<String> {
    let about = fs::metadata(runtime).with_context(|| format!("no gym-runtime at {}", runtime.display()))?;
    let files = ["Containerfile", "base-packages"].map(|name| root().join("images/runtime").join(name));
    let mut text = format!("{:?} {} {:?} {}\n", options.base, options.cuda, about.modified()?, about.len());
    for file in files {
        text.push_str(&fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    Ok(text)
}

fn bud(options: &Options, context: &Path, name: &str, archive: &Path) -> Result<()> {
    let storage = storage(&cache()?.join("images"))?;
    let base = options.base.clone().unwrap_or_else(|| "scratch".to_owned());
    let variant = if options.cuda { "cuda" } else { "cpu" };
    let revision = output(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()));
    let revision = revision.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned());
    let mut bud = storage.buildah("bud");
    // Chroot isolation: nothing is run in the build, and no network of the host is touched.
    bud.args(["--quiet", "--isolation", "chroot", "--layers", "--timestamp", "0", "--tag", name]);
    for argument in [
        format!("BASE={base}"),
        format!("VARIANT={variant}"),
        format!("VERSION={}", env!("CARGO_PKG_VERSION")),
        format!("REVISION={revision}"),
    ] {
        bud.args(["--build-arg", &argument]);
    }
    bud.arg("--file").arg(root().join("images/runtime/Containerfile")).arg(context);
    output(&mut bud)?;
    let partial = archive.with_extension("partial");
    let destination = format!("oci-archive:{}:{name}", partial.display());
    output(storage.buildah("push").args(["--quiet", "--disable-compression", name, &destination]))?;
    fs::rename(&partial, archive)?;
    // The archive is what counts: layers of earlier runtimes would pile up.
    let _ = output(storage.buildah("rmi").args(["--all", "--force"]));
    Ok(())
}

/// Prints the image's size, and of each large file why it is there.
fn report(context: &Path, archive: &Path) -> Result<()> {
    println!("image: {} MB as an archive", fs::metadata(archive)?.len() / 1_000_000);
    for (folder, what) in [("base", "Debian's files"), ("libtorch", "libtorch"), ("program", "gym-runtime")] {
        let size = output(Command::new("du").args(["--summarize", "--bytes"]).arg(context.join(folder)))?;
        let size: u64 = size.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
        println!("  {:>5} MB  {what}", size / 1_000_000);
    }
    let mut large = Vec::new();
    collect(&context.join("libtorch"), &mut large)?;
    collect(&context.join("program"), &mut large)?;
    for (name, size) in large {
        println!("  {:>5} MB  {name}: {}", size / 1_000_000, reason(&name));
    }
    Ok(())
}

fn collect(folder: &Path, large: &mut Vec<(String, u64)>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let size = entry.metadata()?.len();
        if size > LARGE {
            large.push((entry.file_name().to_string_lossy().into_owned(), size));
        }
    }
    Ok(())
}

fn reason(name: &str) -> &'static str {
    match name {
        "libtorch_cpu.so" => {
            "every operator for every data type, with the kernels of oneDNN and MKL; PyTorch ships it whole"
        }
        "gym-runtime" => "the runtime, tokenizers and the S3 client, linked statically",
        name if name.starts_with("libtorch_cuda") => "the kernels for each generation of GPU",
        name if name.starts_with("libcudnn") || name.starts_with("libcublas") => {
            "NVIDIA's kernels, which libtorch loads"
        }
        name if name.starts_with("libnccl") => "libtorch_cuda.so links it, though one GPU a job never calls it",
        _ => "libtorch links it",
    }
}

/// A place where the builder keeps layers, apart from the machine's own.
pub(crate) struct Storage {
    folder: PathBuf,
}

/// Makes the storage's folder and its policy.
pub(crate) fn storage(folder: &Path) -> Result<Storage> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(folder.join("policy.json"), r#"{"default": [{"type": "insecureAcceptAnything"}]}"#)?;
    Ok(Storage { folder: folder.to_path_buf() })
}

impl Storage {
    /// A command of the builder on this storage.
    pub(crate) fn buildah(&self, command: &str) -> Command {
        let mut buildah = Command::new("buildah");
        buildah.arg("--root").arg(self.folder.join("root")).arg("--runroot").arg(self.folder.join("run")).args([
            "--storage-driver",
            "overlay",
            command,
        ]);
        if matches!(command, "bud" | "push") {
            buildah.arg("--signature-policy").arg(self.folder.join("policy.json"));
        }
        buildah
    }
}
