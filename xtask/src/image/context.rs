//! The folder an image is built from: a small root file system, the libraries, the program.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::shell::{output, root, run};

/// Root, and the user of the pods, who owns nothing.
const USERS: &str = "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/job:/sbin/nologin\n";
const GROUPS: &str = "root:x:0:\nnonroot:x:65532:\n";

/// Fills `context` with `base/`, `libtorch/` and `program/`.
pub(super) fn assemble(context: &Path, runtime: &Path, cuda: bool, with_base: bool) -> Result<()> {
    let [base, libtorch, program] = ["base", "libtorch", "program"].map(|name| context.join(name));
    for folder in [&base, &libtorch, &program] {
        fs::create_dir_all(folder)?;
    }
    if with_base {
        unpack_base(&base, context)?;
    }
    for folder in ["work", "models", "program", "worker"] {
        fs::create_dir_all(base.join(folder))?;
    }
    let given = given_libtorch()?;
    let found = libraries(runtime, &given, cuda)?;
    for library in found {
        strip(&library, &libtorch.join(library.file_name().context("a library has a name")?))?;
    }
    strip(runtime, &program.join("gym-runtime"))
}

fn given_libtorch() -> Result<PathBuf> {
    let folder = std::env::var_os("LIBTORCH").map_or_else(|| root().join(".gym/libtorch/torch"), PathBuf::from);
    fs::canonicalize(&folder).with_context(|| format!("no libtorch in {}: `cargo xtask setup`", folder.display()))
}

/// The shared libraries of libtorch that the program needs, by what each says it needs.
///
/// With `cuda` the library of CUDA kernels too, which a program loads only when it is asked to, and
/// NVIDIA's libraries, which lie in packages beside PyTorch's.
fn libraries(program: &Path, libtorch: &Path, cuda: bool) -> Result<Vec<PathBuf>> {
    let mut folders = vec![libtorch.join("lib")];
    if cuda {
        let beside = libtorch.parent().unwrap_or(libtorch).join("nvidia");
        let packages = fs::read_dir(&beside).with_context(|| {
            format!(
                "{} is not there: for --cuda, set LIBTORCH to the folder `torch` of a PyTorch that was installed with its \
                 NVIDIA packages",
                beside.display()
            )
        })?;
        folders.extend(packages.flatten().map(|entry| entry.path().join("lib")).filter(|folder| folder.is_dir()));
    }
    let find = |name: &str| folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    let mut found = BTreeSet::new();
    let mut open = vec![program.to_path_buf()];
    if cuda {
        let kernels = "libtorch_cuda.so";
        let path = find(kernels).with_context(|| format!("LIBTORCH has no {kernels}: it is a build for CPUs alone"))?;
        found.insert(path.clone());
        open.push(path);
    }
    while let Some(path) = open.pop() {
        for name in needed(&path)? {
            if let Some(library) = find(&name)
                && found.insert(library.clone())
            {
                open.push(library);
            }
        }
    }
    ensure!(!found.is_empty(), "{} links no library of {}", program.display(), libtorch.display());
    Ok(found.into_iter().collect())
}

fn needed(path: &Path) -> Result<Vec<String>> {
    let said = output(Command::new("readelf").arg("--dynamic").arg("--wide").arg(path))?;
    Ok(said
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split_once('[')?.1.split_once(']'))
        .map(|(name, _)| name.to_owned())
        .collect())
}

fn strip(from: &Path, to: &Path) -> Result<()> {
    output(Command::new("strip").args(["--strip-unneeded", "-o"]).arg(to).arg(from))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// The files of the packages in `images/runtime/base-packages`, without documents and locales.
fn unpack_base(base: &Path, context: &Path) -> Result<()> {
    let list = fs::read_to_string(root().join("images/runtime/base-packages"))?;
    let packages: Vec<&str> =
        list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().next()).collect();
    let archives = context.join("archives");
    fs::create_dir_all(&archives)?;
    // The unprivileged user of apt could not write here: the download is root's.
    let mut download = Command::new("apt-get");
    download.args(["download", "--quiet", "-o", "APT::Sandbox::User=root"]).args(&packages).current_dir(&archives);
    if run(download.stdout(Stdio::null())).is_err() {
        run(Command::new("apt-get").args(["update", "--quiet"]).stdout(Stdio::null()))?;
        run(&mut download)?;
    }
    // One tree for programs and libraries, as Debian has it: packages still name the old folders.
    for (name, folder) in [("lib", "usr/lib"), ("lib64", "usr/lib64"), ("bin", "usr/bin"), ("sbin", "usr/sbin")] {
        fs::create_dir_all(base.join(folder))?;
        symlink(folder, base.join(name))?;
    }
    for entry in fs::read_dir(&archives)? {
        let archive = entry?.path();
        let files = output_bytes(Command::new("dpkg-deb").arg("--fsys-tarfile").arg(&archive))?;
        let tar = context.join("files.tar");
        fs::write(&tar, files)?;
        run(Command::new("tar")
            .args(["--extract", "--keep-directory-symlink", "--file"])
            .arg(&tar)
            .arg("-C")
            .arg(base))?;
        fs::remove_file(tar)?;
    }
    fs::remove_dir_all(&archives)?;
    let mut certificates = Vec::new();
    for entry in sorted(&base.join("usr/share/ca-certificates/mozilla"))? {
        certificates.extend(fs::read(entry)?);
        certificates.push(b'\n');
    }
    ensure!(!certificates.is_empty(), "the package ca-certificates has no certificates");
    for folder in [
        "usr/share/doc",
        "usr/share/man",
        "usr/share/locale",
        "usr/share/lintian",
        "usr/share/ca-certificates",
        "usr/lib/x86_64-linux-gnu/gconv",
        "usr/lib/x86_64-linux-gnu/audit",
        "usr/share/gdb",
        "var",
        "usr/sbin",
        "usr/bin",
    ] {
        let path = base.join(folder);
        if path.exists() {
            fs::remove_dir_all(path)?;
        }
    }
    for folder in ["etc/ssl/certs", "tmp", "proc", "sys", "dev", "run", "usr/bin", "usr/sbin", "var/tmp"] {
        fs::create_dir_all(base.join(folder))?;
    }
    fs::write(base.join("etc/ssl/certs/ca-certificates.crt"), certificates)?;
    fs::write(base.join("etc/passwd"), USERS)?;
    fs::write(base.join("etc/group"), GROUPS)?;
    fs::write(base.join("etc/nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files dns\n")?;
    for folder in ["tmp", "var/tmp"] {
        fs::set_permissions(base.join(folder), fs::Permissions::from_mode(0o1777))?;
    }
    Ok(())
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn output_bytes(command: &mut Command) -> Result<Vec<u8>> {
    let done = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start dpkg-deb")?;
    if !done.status.success() {
        bail!("dpkg-deb ended with {}", done.status);
    }
    Ok(done.stdout)
}
