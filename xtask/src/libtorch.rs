//! libtorch for the CPU, taken from PyPI's `torch` wheel without its GPU dependencies.
//!
//! The wheel is built for CUDA, so its `libtorch.so` wants the two small CUDA libraries below to
//! load; none of the large ones. The wheels are pinned by sha256, which pip and we both check.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::prerequisites;
use crate::shell::{cache, root, run};

const VERSION: &str = "2.13.0";

struct Wheel {
    requirement: &'static str,
    file: &'static str,
    sha256: &'static str,
}

/// The same files whatever Python is installed: none of its code runs, only its pip.
const WHEELS: [Wheel; 3] = [
    Wheel {
        requirement: "torch==2.13.0",
        file: "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        sha256: "60fcdcb2f3876e21146cb4524ef06397d727ca9ad5f020818547e25075fe3cb7",
    },
    Wheel {
        requirement: "nvidia-cuda-runtime==13.0.96",
        file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    },
    Wheel {
        requirement: "nvidia-cuda-cupti==13.0.85",
        file: "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl",
        sha256: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
    },
];

/// Written last: a folder without it is not trusted.
const COMPLETE: &str = "COMPLETE";

/// Makes `.gym/libtorch` name a verified libtorch, downloading it if the cache has none.
///
/// An own `LIBTORCH`, or `LIBTORCH_USE_PYTORCH=1`, is left alone.
pub(crate) fn ensure() -> Result<()> {
    let link = root().join(".gym/libtorch");
    let ours = link.join("torch");
    if std::env::var_os("LIBTORCH_USE_PYTORCH").is_some() {
        return Ok(());
    }
    if let Some(given) = std::env::var_os("LIBTORCH").map(PathBuf::from).filter(|given| *given != ours) {
        if !given.join("lib").is_dir() {
            bail!(
                "LIBTORCH = {}: has no lib folder; unset it to use the one `cargo xtask setup` makes",
                given.display()
            );
        }
        return Ok(());
    }
    let cache = cache()?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    // Two clones may set up at once; the second finds the work done.
    let lock = File::create(cache.join("libtorch.lock")).context("cannot make the cache's lock file")?;
    lock.lock().context("cannot lock the cache")?;
    let folder = cache.join(format!("libtorch-{VERSION}"));
    if !folder.join(COMPLETE).is_file() {
        download(&cache, &folder)?;
    }
    point(&link, &folder)
}

fn download(cache: &Path, folder: &Path) -> Result<()> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!(
            "there is no pinned libtorch for this platform: install libtorch {VERSION} and set LIBTORCH to its folder, \
             or set LIBTORCH_USE_PYTORCH=1 to use an installed PyTorch {VERSION}"
        );
    }
    prerequisites::pip()?;
    println!("setup: libtorch {VERSION} (540 MB download, 490 MB on disk, kept in {})", cache.display());
    let wheels = cache.join("wheels.partial");
    let fresh = cache.join(format!("libtorch-{VERSION}.partial"));
    for folder in [&wheels, &fresh, &folder.to_path_buf()] {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
    }
    fs::create_dir_all(&wheels)?;
    let requirements = wheels.join("requirements.txt");
    let lines: Vec<String> =
        WHEELS.iter().map(|wheel| format!("{} --hash=sha256:{}\n", wheel.requirement, wheel.sha256)).collect();
    fs::write(&requirements, lines.concat())?;
    run(Command::new("python3")
        .args(["-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--require-hashes"])
        .args(["--only-binary=:all:", "--implementation", "cp", "--python-version", "3.11", "--abi", "cp311"])
        .args(["--abi", "none", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_25_x86_64"])
        .args(["--platform", "manylinux_2_17_x86_64", "--platform", "manylinux2014_x86_64"])
        .arg("--dest")
        .arg(&wheels)
        .arg("--requirement")
        .arg(&requirements))
    .context("the download of libtorch failed; check that pip reaches a package index, then run this again")?;
    for wheel in &WHEELS {
        let path = wheels.join(wheel.file);
        let found = sha256(&path)?;
        if found != wheel.sha256 {
            bail!(
                "{} has sha256 {found}, not the pinned {}: remove it and run this again",
                path.display(),
                wheel.sha256
            );
        }
    }
    println!("setup: unpacking");
    fs::create_dir_all(&fresh)?;
    run(Command::new("python3").args(["-c", include_str!("unpack.py")]).arg(&wheels).arg(&fresh))?;
    for needed in ["libtorch_cpu.so", "libc10.so", "libcudart.so.13", "libcupti.so.13"] {
        if !fresh.join("torch/lib").join(needed).is_file() {
            bail!("the unpacked libtorch lacks {needed}: remove {} and run this again", cache.display());
        }
    }
    fs::write(fresh.join(COMPLETE), VERSION)?;
    fs::rename(&fresh, folder)?;
    fs::remove_dir_all(&wheels)?;
    Ok(())
}

/// Makes `link` a symbolic link to `folder`, replacing another.
fn point(link: &Path, folder: &Path) -> Result<()> {
    if fs::read_link(link).is_ok_and(|target| target == folder) {
        return Ok(());
    }
    fs::create_dir_all(link.parent().context("the link has a parent")?)?;
    if link.symlink_metadata().is_ok() {
        fs::remove_file(link).with_context(|| format!("cannot replace {}", link.display()))?;
    }
    std::os::unix::fs::symlink(folder, link).with_context(|| format!("cannot make {}", link.display()))?;
    println!("setup: .gym/libtorch -> {}", folder.display());
    Ok(())
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("pip did not bring {}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut block)?;
        if count == 0 {
            break;
        }
        hasher.update(&block[..count]);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
