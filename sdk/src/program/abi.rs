//! Whether an executable runs on another machine: its kind of processor, its glibc, its libraries.
//!
//! A program that is linked on a newer system needs symbols that an older glibc does not have; it then
//! ends before its first line, in a job that has waited for its machine. The file says so beforehand.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};

/// A version of glibc, such as 2.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Glibc {
    /// The number before the point.
    pub major: u16,
    /// The one after it.
    pub minor: u16,
}

impl fmt::Display for Glibc {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Glibc {
    type Err = String;

    /// Reads `2.36`; a third number is ignored.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => Ok(Self { major, minor }),
            _ => Err(format!("`{text}` is no version of glibc; write it like 2.36")),
        }
    }
}

/// A kind of processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Machine {
    /// Intel's and AMD's, 64 bits.
    X86_64,
    /// Arm's, 64 bits.
    Aarch64,
}

impl Machine {
    /// As rustc's targets begin.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }
}

/// What an image has for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its kind of processor.
    pub machine: Machine,
    /// Its glibc.
    pub glibc: Glibc,
}

impl Image {
    /// The image of this release: Debian 12, for x86_64. Its label `org.training-gym.glibc` says the same.
    pub const RELEASED: Self = Self { machine: Machine::X86_64, glibc: Glibc { major: 2, minor: 36 } };
}

/// Libraries that the image has: glibc's own, and those of the compilers.
const LIBRARIES: [&str; 13] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
    "libresolv.so.2",
    "libanl.so.1",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
    "linux-vdso.so.1",
];

/// What an executable needs of its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The kind of processor it is for; `None` is one we do not know.
    pub machine: Option<Machine>,
    /// The newest glibc it needs a symbol of; `None` where it needs none.
    pub glibc: Option<Glibc>,
    /// The loader that starts it; `None` for a static program.
    pub interpreter: Option<String>,
    /// The libraries it names, but not those that they name.
    pub libraries: BTreeSet<String>,
}

/// Why a program does not run on an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is no executable of Linux.
    #[error("{} is {what}, not a Linux program: launch from a program that cargo built for Linux", path.display())]
    NotAProgram {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It is for another processor.
    #[error(
        "this program is for {found} and the image is for {wanted}: build it for that one: {}",
        commands(*.remedy, .name)
    )]
    Machine {
        /// What it is for.
        found: String,
        /// What the image is for.
        wanted: &'static str,
        /// The image's processor.
        remedy: Machine,
        /// The program's name.
        name: String,
    },
    /// It needs a newer glibc.
    #[error(
        "this program needs glibc {needed} and the image has {has}: build it for the musl target, which needs none: {}",
        commands(*.remedy, .name)
    )]
    Glibc {
        /// What it needs.
        needed: Glibc,
        /// What there is.
        has: Glibc,
        /// The image's processor.
        remedy: Machine,
        /// The program's name.
        name: String,
    },
    /// It needs libraries that are not there.
    #[error(
        "this program needs {}, which the image does not have: link them statically (a crate's feature `vendored` or \
         `rustls`), or build it for the musl target: {}",
        .libraries.join(", "),
        commands(*.remedy, .name)
    )]
    Libraries {
        /// The libraries, or the loader.
        libraries: Vec<String>,
        /// The image's processor.
        remedy: Machine,
        /// The program's name.
        name: String,
    },
}

/// What to type for a program that needs nothing.
fn commands(machine: Machine, name: &str) -> String {
    let target = format!("{}-unknown-linux-musl", machine.name());
    format!(
        "`rustup target add {target}`, then `cargo build --release --target {target}`, then run \
         `target/{target}/release/{name}`"
    )
}

/// What the executable at `path` needs. Reads a few pages of it, however long it is.
///
/// # Errors
/// [`Error::Unreadable`], [`Error::NotAProgram`].
pub fn needs(path: &Path) -> Result<Needs, Error> {
    let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
    let not = |what| Error::NotAProgram { path: path.to_owned(), what };
    let file = File::open(path).map_err(unreadable)?;
    let mut first = [0; 4];
    let read = std::io::Read::read(&mut &file, &mut first).map_err(unreadable)?;
    match &first[..read] {
        b"\x7fELF" => {}
        [b'#', b'!', ..] => return Err(not("a script")),
        [0xcf | 0xce, 0xfa, 0xed, 0xfe] => return Err(not("a macOS program")),
        [b'M', b'Z', ..] => return Err(not("a Windows program")),
        _ => return Err(not("a file of another kind")),
    }
    let data = ReadCache::new(file);
    parse(&data).map_err(|_| not("a damaged or 32-bit ELF file"))
}

fn parse(data: &ReadCache<File>) -> object::read::Result<Needs> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let machine = match header.e_machine(endian) {
        elf::EM_X86_64 => Some(Machine::X86_64),
        elf::EM_AARCH64 => Some(Machine::Aarch64),
        _ => None,
    };
    let mut interpreter = None;
    for segment in header.program_headers(endian, data)? {
        if let Some(name) = segment.interpreter(endian, data)? {
            interpreter = Some(String::from_utf8_lossy(name).into_owned());
        }
    }
    let sections = header.sections(endian, data)?;
    let mut libraries = BTreeSet::new();
    if let Some((entries, strings)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, strings)?;
        for entry in entries.iter().filter(|entry| entry.d_tag(endian) == elf::DT_NEEDED) {
            let name = u32::try_from(entry.d_val(endian)).ok().and_then(|offset| strings.get(offset).ok());
            libraries.extend(name.map(|name| String::from_utf8_lossy(name).into_owned()));
        }
    }
    let mut glibc = None;
    if let Some((mut needed, strings)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, strings)?;
        while let Some((_, mut versions)) = needed.next()? {
            while let Some(version) = versions.next()? {
                let name = version.name(endian, strings)?;
                let version = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix("GLIBC_"));
                glibc = glibc.max(version.and_then(|version| version.parse::<Glibc>().ok()));
            }
        }
    }
    Ok(Needs { machine, glibc, interpreter, libraries })
}

impl Needs {
    /// Whether a program with these needs, called `name`, runs on `image`.
    ///
    /// # Errors
    /// [`Error::Machine`], [`Error::Glibc`] or [`Error::Libraries`], with the commands that help.
    pub fn fit(&self, image: &Image, name: &str) -> Result<(), Error> {
        let (remedy, name) = (image.machine, name.to_owned());
        if self.machine != Some(image.machine) {
            let found = self.machine.map_or("another processor", Machine::name).to_owned();
            return Err(Error::Machine { found, wanted: image.machine.name(), remedy, name });
        }
        if let Some(needed) = self.glibc.filter(|needed| *needed > image.glibc) {
            return Err(Error::Glibc { needed, has: image.glibc, remedy, name });
        }
        let loader = self.interpreter.as_deref().map(|path| path.rsplit('/').next().unwrap_or(path));
        let missing: Vec<String> = self
            .libraries
            .iter()
            .map(String::as_str)
            .chain(loader)
            .filter(|library| !LIBRARIES.contains(library))
            .map(str::to_owned)
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(Error::Libraries { libraries: missing, remedy, name }) }
    }
}

impl super::Program {
    /// Whether this program would run on `image`: what a launch on a cluster checks first.
    ///
    /// # Errors
    /// [`Error`], which names what it needs and the commands that build one that needs nothing.
    pub fn check(&self, image: &Image) -> Result<(), Error> {
        let name = std::env::current_exe().ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        needs(self.path())?.fit(image, name.as_deref().unwrap_or("PROGRAM"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Glibc {
        text.parse().unwrap()
    }

    fn ours() -> Needs {
        Needs {
            machine: Some(Machine::X86_64),
            glibc: Some(version("2.34")),
            interpreter: Some("/lib64/ld-linux-x86-64.so.2".to_owned()),
            libraries: ["libc.so.6", "libgcc_s.so.1"].map(str::to_owned).into(),
        }
    }

    #[test]
    fn this_test_is_a_program_that_says_what_it_needs() {
        let found = needs(Path::new("/proc/self/exe")).unwrap();
        assert!(found.libraries.contains("libc.so.6") && found.libraries.contains("libgcc_s.so.1"), "{found:?}");
        assert!(found.glibc.unwrap() >= version("2.17"), "{found:?}");
        assert!(found.interpreter.as_deref().unwrap().contains("ld-linux"), "{found:?}");
        assert_eq!(found.machine.unwrap().name(), std::env::consts::ARCH);
        let newest = Image { machine: found.machine.unwrap(), glibc: version("2.99") };
        found.fit(&newest, "demo").unwrap();
        let oldest = Image { glibc: version("2.5"), ..newest };
        let error = found.fit(&oldest, "demo").unwrap_err().to_string();
        assert!(error.contains("the image has 2.5: build it for the musl target"), "{error}");
        assert!(error.contains("release/demo`") && error.contains("rustup target add"), "{error}");
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(version("2.9") < version("2.36") && version("2.2.5") < version("2.17"));
        for bad in ["", "2", "two", "2.x"] {
            assert!(bad.parse::<Glibc>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named_with_the_commands() {
        let image = Image::RELEASED;
        ours().fit(&image, "demo").unwrap();
        let refused = |needs: Needs| needs.fit(&image, "demo").unwrap_err().to_string();
        let arm = refused(Needs { machine: Some(Machine::Aarch64), ..ours() });
        assert!(arm.contains("is for aarch64 and the image is for x86_64") && arm.contains("cargo build"), "{arm}");
        let newer = refused(Needs { glibc: Some(version("2.39")), ..ours() });
        assert!(newer.contains("needs glibc 2.39 and the image has 2.36"), "{newer}");
        assert!(newer.contains("x86_64-unknown-linux-musl"), "{newer}");
        let mut needs = ours();
        needs.libraries.extend(["libssl.so.3".to_owned(), "libpq.so.5".to_owned()]);
        let lacking = refused(needs);
        assert!(lacking.contains("libpq.so.5, libssl.so.3"), "{lacking}");
        let musl = refused(Needs { interpreter: Some("/lib/ld-musl-x86_64.so.1".to_owned()), ..ours() });
        assert!(musl.contains("ld-musl-x86_64.so.1"), "{musl}");
        let alone = Needs { glibc: None, interpreter: None, libraries: BTreeSet::new(), ..ours() };
        alone.fit(&image, "demo").unwrap();
    }

    #[test]
    fn what_is_no_program_is_said() {
        let folder = tempfile::tempdir().unwrap();
        for (content, words) in [
            (&b"#!/bin/sh\n"[..], "a script"),
            (b"\xcf\xfa\xed\xfe rest", "a macOS program"),
            (b"MZ", "a Windows program"),
            (b"", "another kind"),
            (b"\x7fELF and then nothing", "damaged"),
        ] {
            let path = folder.path().join("program");
            std::fs::write(&path, content).unwrap();
            let error = needs(&path).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(matches!(needs(&folder.path().join("none")), Err(Error::Unreadable { .. })));
    }
}
