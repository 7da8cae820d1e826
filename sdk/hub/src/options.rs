//! Where a hub is, who asks, and how patiently.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Error;

/// The hub asked where nothing else is said.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// A secret that never prints itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Wraps a token; surrounding blanks are dropped, and nothing but blanks is no token.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// The token itself: for a header, or for a cluster's Secret.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(hidden)")
    }
}

/// How long a hub that fails is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Tries in a row that may bring nothing new, ≥ 1.
    pub attempts: u32,
    /// Wait before the second try; it doubles from try to try.
    pub first_wait: Duration,
    /// No single wait is longer; a hub that asks for more is an error.
    pub longest_wait: Duration,
    /// A connection that stays silent for this long counts as cut.
    pub silence: Duration,
}

impl Default for Patience {
    /// 6 tries, 0.5 s doubling, at the most 5 minutes, 60 s of silence.
    fn default() -> Self {
        Self {
            attempts: 6,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(300),
            silence: Duration::from_secs(60),
        }
    }
}

impl Patience {
    /// The wait after the `failures`-th failure in a row, or `None` when patience has ended.
    pub(super) fn wait(&self, failures: u32) -> Option<Duration> {
        (failures < self.attempts).then(|| {
            let doubled = self.first_wait.saturating_mul(1 << failures.saturating_sub(1).min(16));
            // Up to a quarter more, so that many clients do not come back in step.
            doubled.min(self.longest_wait).mul_f64(1.0 + 0.25 * rand::random::<f64>())
        })
    }
}

/// All a [`super::Hub`] depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubOptions {
    /// The hub's URL, without a path behind it or with one (a mirror).
    pub endpoint: String,
    /// The cache's folder: the one that holds `models--…` and `datasets--…`.
    pub cache: PathBuf,
    /// Who asks.
    pub token: Option<Token>,
    /// Only look into the cache.
    pub offline: bool,
    /// Files downloaded at once, ≥ 1.
    pub parallel: usize,
    /// How failures are met.
    pub patience: Patience,
}

impl HubOptions {
    /// `huggingface.co` with the cache in `cache`, no token, online, four files at once.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            cache: cache.into(),
            token: None,
            offline: false,
            parallel: 4,
            patience: Patience::default(),
        }
    }

    /// Reads the variables that `huggingface_hub` reads, through `variable`.
    pub(super) fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let user = variable("HOME");
        let folder = |text: String| match (text.strip_prefix("~/"), &user) {
            (Some(rest), Some(user)) => Path::new(user).join(rest),
            _ => PathBuf::from(text),
        };
        let home = match (variable("HF_HOME"), variable("XDG_CACHE_HOME"), &user) {
            (Some(home), _, _) => folder(home),
            (None, Some(cache), _) => folder(cache).join("huggingface"),
            (None, None, Some(user)) => Path::new(user).join(".cache/huggingface"),
            (None, None, None) => {
                let rule = "set it (or HOME) to the folder that shall hold downloaded models";
                return Err(Error::Setting { name: "HF_HOME", given: String::new(), rule });
            }
        };
        let cache = variable("HF_HUB_CACHE").map_or_else(|| home.join("hub"), folder);
        let token_file = variable("HF_TOKEN_PATH").map_or_else(|| home.join("token"), folder);
        let token = match variable("HF_TOKEN") {
            Some(token) => Token::new(&token),
            None => std::fs::read_to_string(token_file).ok().and_then(|text| Token::new(&text)),
        };
        let offline = match variable("HF_HUB_OFFLINE").map(|text| text.trim().to_ascii_uppercase()).as_deref() {
            Some("1" | "ON" | "YES" | "TRUE") => true,
            None | Some("0" | "OFF" | "NO" | "FALSE") => false,
            Some(given) => {
                let rule = "write 1 or 0";
                return Err(Error::Setting { name: "HF_HUB_OFFLINE", given: given.to_owned(), rule });
            }
        };
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        Ok(Self { endpoint, token, offline, ..Self::new(cache) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<HubOptions, Error> {
        HubOptions::from_variables(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned()))
    }

    #[test]
    fn variables_mean_what_they_mean_in_python() {
        let plain = read(&[("HOME", "/home/a")]).unwrap();
        assert_eq!(plain.cache, Path::new("/home/a/.cache/huggingface/hub"));
        assert_eq!(plain.endpoint, "https://huggingface.co");
        assert!(!plain.offline && plain.token.is_none());
        let moved = read(&[("HOME", "/h"), ("HF_HOME", "~/hf"), ("HF_ENDPOINT", "http://x"), ("HF_HUB_OFFLINE", "1")]);
        let moved = moved.unwrap();
        assert_eq!((moved.cache.as_path(), moved.endpoint.as_str()), (Path::new("/h/hf/hub"), "http://x"));
        assert!(moved.offline);
        assert_eq!(read(&[("HF_HOME", "/a"), ("HF_HUB_CACHE", "/b")]).unwrap().cache, Path::new("/b"));
        assert!(matches!(read(&[]), Err(Error::Setting { name: "HF_HOME", .. })));
        assert!(read(&[("HF_HOME", "/a"), ("HF_HUB_OFFLINE", "maybe")]).is_err());
    }

    #[test]
    fn the_token_comes_from_the_variable_or_the_file_and_never_prints() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let path = home.path().to_str().unwrap();
        let from_file = read(&[("HF_HOME", path)]).unwrap();
        assert_eq!(from_file.token.as_ref().unwrap().reveal(), "hf_file");
        let from_variable = read(&[("HF_HOME", path), ("HF_TOKEN", " hf_env ")]).unwrap();
        assert_eq!(from_variable.token.as_ref().unwrap().reveal(), "hf_env");
        assert!(!format!("{from_variable:?}").contains("hf_env"));
    }

    #[test]
    fn patience_ends() {
        let patience = Patience { attempts: 3, ..Patience::default() };
        assert!(patience.wait(1).unwrap() >= patience.first_wait);
        assert!(patience.wait(2).unwrap() >= patience.first_wait * 2);
        assert_eq!(patience.wait(3), None);
    }
}
