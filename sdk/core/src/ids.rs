//! Names that are made once and carried: a getter never makes a new one.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A name that does not fit where it is used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{kind} `{given}` is not a valid name: {rule}")]
pub struct InvalidName {
    kind: &'static str,
    given: String,
    rule: &'static str,
}

const RULE: &str = "use 1 to 63 lower-case letters, digits, `-` and `.`, beginning and ending with a letter or digit";

fn check(kind: &'static str, text: &str) -> Result<(), InvalidName> {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = text.as_bytes();
    let ok = (1..=63).contains(&bytes.len())
        && inner(bytes[0])
        && inner(bytes[bytes.len() - 1])
        && bytes.iter().all(|&c| inner(c) || c == b'-' || c == b'.')
        && !text.contains("..");
    if ok { Ok(()) } else { Err(InvalidName { kind, given: text.to_owned(), rule: RULE }) }
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(String);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = InvalidName;
            fn from_str(text: &str) -> Result<Self, InvalidName> {
                check($kind, text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $type {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }
    };
}

name!(
    /// A training run. It names a folder in the store and, later, objects in a cluster.
    RunId,
    "run id"
);
name!(
    /// The name of a deployment: one live deployment has it at a time.
    AppName,
    "app name"
);

impl RunId {
    /// A fresh id: the UTC second, then 32 random bits, so that ids sort by age and never meet.
    pub fn generate() -> Self {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Self(format!("run-{}-{:08x}", compact_utc(seconds), rand::random::<u32>()))
    }
}

impl AppName {
    /// The nearest valid name to `text`: lower case, other characters become `-`, cut to 63.
    ///
    /// Two different texts may give the same name; the caller decides whether that is an adoption.
    pub fn slug(text: &str) -> Self {
        let mut slug: String = text
            .to_ascii_lowercase()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
            .take(63)
            .collect();
        while slug.contains("..") {
            slug = slug.replace("..", ".");
        }
        let slug = slug.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        Self(if slug.is_empty() { "app".to_owned() } else { slug.to_owned() })
    }
}

/// `YYYYMMDD-HHMMSS` of a Unix time in UTC.
fn compact_utc(seconds: u64) -> String {
    // Days to civil date: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}-{:02}{:02}{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

/// A sha256 in lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContentHash(String);

impl ContentHash {
    /// Hashes `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::finish(Sha256::new_with_prefix(bytes))
    }

    /// The hash of everything fed to `hasher`.
    pub fn finish(hasher: Sha256) -> Self {
        Self(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Hashes a file in blocks of 1 MiB.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of_file(path: &std::path::Path) -> std::io::Result<Self> {
        use std::io::Read;
        let mut file = std::fs::File::open(path)?;
        let mut hasher = Sha256::new();
        let mut block = vec![0; 1 << 20];
        loop {
            let count = file.read(&mut block)?;
            if count == 0 {
                return Ok(Self::finish(hasher));
            }
            hasher.update(&block[..count]);
        }
    }

    /// 64 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// How many updates the weights have seen since the run began: 0 is the model it started from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WeightVersion(pub u64);

impl fmt::Display for WeightVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_generated_ones_pass() {
        assert!("qwen3.5-9b-teacher".parse::<AppName>().is_ok());
        for bad in ["", "-a", "a-", "A", "a_b", "a/b", "..", "a..b", &"a".repeat(64)] {
            assert!(bad.parse::<AppName>().is_err(), "{bad:?} should be refused");
        }
        let id = RunId::generate();
        assert_eq!(id.as_str().parse::<RunId>().unwrap(), id);
        assert_ne!(id, RunId::generate());
    }

    #[test]
    fn slugs_are_valid_names() {
        for text in ["Qwen/Qwen3.5-4B", "___", "", "é", &"x/".repeat(80), "a..b"] {
            let slug = AppName::slug(text);
            assert!(slug.as_str().parse::<AppName>().is_ok(), "{text:?} became {slug}");
        }
    }

    #[test]
    fn dates_and_hashes_match_known_values() {
        assert_eq!(compact_utc(0), "19700101-000000");
        assert_eq!(compact_utc(951_782_400), "20000229-000000");
        assert_eq!(compact_utc(1_796_048_983), "20261130-142943");
        assert_eq!(
            ContentHash::of(b"abc").as_str(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
