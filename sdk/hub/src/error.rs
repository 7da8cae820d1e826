//! What can go wrong with a hub, in kinds a person can act on.

use std::path::PathBuf;

/// An error of the hub. No text in it ever holds the token or the query of a signed URL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An environment variable or an option that cannot be used.
    #[error("{name} = `{given}`: {rule}")]
    Setting {
        /// The variable or option.
        name: &'static str,
        /// As given.
        given: String,
        /// What is allowed.
        rule: &'static str,
    },
    /// Not the id of a repository.
    #[error("`{given}` is not a hub id: write `name` or `organisation/name`, of letters, digits, `-`, `_` and `.`")]
    RepoId {
        /// As given.
        given: String,
    },
    /// The repository asks for something of the person: a licence, a login.
    #[error("access to `{repo}` was refused ({status}): {remedy}")]
    Access {
        /// The repository.
        repo: String,
        /// The HTTP status, 401 or 403.
        status: u16,
        /// What to do, with the page to visit.
        remedy: String,
    },
    /// No such repository.
    #[error("no {kind} `{repo}` on {endpoint}: check the name")]
    NoRepo {
        /// `model` or `dataset`.
        kind: &'static str,
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
    },
    /// The repository is there, the revision is not.
    #[error("`{repo}` has no revision `{revision}`: name one of its branches, tags or commits")]
    NoRevision {
        /// The repository.
        repo: String,
        /// The revision.
        revision: String,
    },
    /// Repository and revision are there, the file is not.
    #[error("`{repo}` at `{revision}` has no file `{file}`")]
    NoFile {
        /// The repository.
        repo: String,
        /// The revision.
        revision: String,
        /// The file.
        file: String,
    },
    /// Offline, and not in the cache.
    #[error("HF_HUB_OFFLINE is set and {what} of `{repo}` is not in the cache {}: unset it, or download it once while online", cache.display())]
    Offline {
        /// The repository.
        repo: String,
        /// The file or revision.
        what: String,
        /// The cache's folder.
        cache: PathBuf,
    },
    /// The hub asks to slow down for longer than we wait.
    #[error(
        "{url} asks to come back in {seconds} s, and the limit is {limit} s: try again later, or set HF_TOKEN for a higher rate limit"
    )]
    RateLimited {
        /// What was asked for.
        url: String,
        /// Seconds the hub wants.
        seconds: u64,
        /// Seconds we would wait at the most.
        limit: u64,
    },
    /// An answer that is neither success nor any of the above.
    #[error("{url} answered {status}: {advice}")]
    Status {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What to try.
        advice: &'static str,
    },
    /// No answer, or one that broke off.
    #[error("cannot read {url}: check the network, or set HF_HUB_OFFLINE=1 to use only what the cache holds")]
    Network {
        /// What was asked for.
        url: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An answer we cannot understand.
    #[error("{url} did not answer as a Hugging Face hub does ({what}): check HF_ENDPOINT")]
    Answer {
        /// What was asked for.
        url: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file that is not what the hub said it would be.
    #[error(
        "`{file}` has {what} `{got}` where the hub promises `{promised}`: try again; if it stays so, the mirror is at fault"
    )]
    Integrity {
        /// The file, with its repository.
        file: String,
        /// `size`, `sha256`, `etag` or `range`.
        what: &'static str,
        /// What arrived.
        got: String,
        /// What the hub said.
        promised: String,
    },
    /// The cache's disk failed.
    #[error("cannot {action} {}", path.display())]
    Cache {
        /// `create`, `write`, …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A folder or repository that is no Hugging Face model.
    #[error("`{place}` is not a Hugging Face model: {lack}")]
    NotAModel {
        /// The folder or repository.
        place: String,
        /// What it lacks.
        lack: String,
    },
}

impl Error {
    pub(super) fn cache(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Cache { action, path, source }
    }
}
