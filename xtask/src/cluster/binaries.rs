//! The programs that no Debian package brings: built from source, or downloaded, once for all clones.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use super::layout::Layout;
use crate::shell::{output, root, run};

/// Built in this order: what others need first comes first.
const PROGRAMS: [&str; 6] =
    ["kube-apiserver", "kubelet", "kube-controller-manager", "kube-scheduler", "kubectl", "kube-proxy"];

/// The module that names version and programs, included so that a changed version is another cache.
const MODULE: &str = include_str!("../../../tests/cluster/control-plane/go.mod");

/// The version of Kubernetes, such as `v1.34.4`.
fn version() -> &'static str {
    let words = MODULE.lines().map(|line| line.trim_start_matches("require").split_whitespace());
    words
        .filter_map(|mut words| Some((words.next()?, words.next()?)))
        .find(|(module, _)| *module == "k8s.io/kubernetes")
        .map_or("unknown", |(_, version)| version)
}

/// Where the built programs are.
pub(crate) fn folder(layout: &Layout) -> PathBuf {
    layout.cache.join(format!("kubernetes-{}", version()))
}

/// The kubectl of the same version.
pub(crate) fn kubectl(layout: &Layout) -> PathBuf {
    folder(layout).join("kubectl")
}

/// SeaweedFS.
pub(crate) fn weed(layout: &Layout) -> PathBuf {
    layout.cache.join("seaweedfs-4.48/weed")
}

/// The sandbox image, ready to be imported.
pub(crate) fn pause_image(layout: &Layout) -> PathBuf {
    folder(layout).join("pause.tar")
}

/// Builds and downloads what the cache lacks.
pub(crate) fn ensure(layout: &Layout) -> Result<()> {
    let folder = folder(layout);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Two clones may build at once; the second finds the work done.
    let lock = File::create(layout.cache.join("kubernetes.lock")).context("cannot make the cache's lock file")?;
    lock.lock().context("cannot lock the cache")?;
    let control_plane = root().join("tests/cluster/control-plane");
    let version = version();
    let mut parts = version.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or("0"), parts.next().unwrap_or("0"));
    let stamp: Vec<String> = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"]
        .iter()
        .map(|package| {
            format!("-X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}")
        })
        .collect();
    for name in PROGRAMS {
        build(&control_plane, &format!("k8s.io/kubernetes/cmd/{name}"), &folder.join(name), &stamp.join(" "))?;
    }
    build(&root().join("tests/cluster/dns"), ".", &folder.join("coredns"), "")?;
    if !pause_image(layout).is_file() {
        build(&control_plane, "./pause", &folder.join("pause"), "")?;
        make_pause_image(&folder, &pause_image(layout))?;
    }
    if !weed(layout).is_file() {
        crate::servers::seaweedfs()?;
    }
    Ok(())
}

/// One at a time, out of the way of other work; the result appears whole or not at all.
fn build(module: &Path, package: &str, program: &Path, stamp: &str) -> Result<()> {
    if program.is_file() {
        return Ok(());
    }
    let started = Instant::now();
    let partial = program.with_extension("partial");
    run(Command::new("nice")
        .args(["-n", "10", "go", "build", "-p", "2", "-trimpath", "-mod=readonly", "-ldflags"])
        .arg(format!("-s -w {stamp}"))
        .arg("-o")
        .arg(&partial)
        .arg(package)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-buildvcs=false")
        .current_dir(module))?;
    fs::rename(&partial, program)?;
    let size = fs::metadata(program)?.len() / 1_000_000;
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    println!("cluster: built {name} in {:.0} s ({size} MB)", started.elapsed().as_secs_f64());
    Ok(())
}

fn make_pause_image(folder: &Path, image: &Path) -> Result<()> {
    let context = tempfile::tempdir()?;
    fs::copy(folder.join("pause"), context.path().join("pause"))?;
    fs::write(context.path().join("Containerfile"), "FROM scratch\nCOPY pause /pause\nENTRYPOINT [\"/pause\"]\n")?;
    let storage = super::super::image::storage(&folder.join("images"))?;
    let mut bud = storage.buildah("bud");
    bud.args(["--quiet", "--isolation", "chroot", "--timestamp", "0", "--tag", super::configuration::PAUSE]);
    output(bud.arg(context.path()))?;
    let partial = image.with_extension("partial");
    let destination = format!("oci-archive:{}:{}", partial.display(), super::configuration::PAUSE);
    output(storage.buildah("push").args(["--quiet", super::configuration::PAUSE, &destination]))?;
    fs::rename(&partial, image)?;
    fs::remove_dir_all(folder.join("images"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_names_the_version_and_every_program() {
        let mut parts = version().strip_prefix('v').unwrap().split('.').map(|part| part.parse::<u32>().unwrap());
        assert!(parts.next() == Some(1) && parts.next().unwrap() >= 34, "{}", version());
        for program in PROGRAMS {
            assert!(MODULE.lines().any(|line| line.trim() == format!("k8s.io/kubernetes/cmd/{program}")), "{program}");
        }
    }
}
