//! Files from a Hugging Face hub, through the cache that Python's `huggingface_hub` uses.
//!
//! A small client on `reqwest`, and not the `hf-hub` crate, for three reasons: a download that was
//! cut is resumed with `Range` (also by a later process), `Retry-After` is obeyed, and neither a
//! second HTTP stack nor progress bars come along.
//!
//! The layout is `models--org--name/{blobs,refs,snapshots}` with locks beside, so what Python has
//! downloaded is found here and the other way round. [`Hub::from_env`] is the only reader of
//! `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_ENDPOINT` and `HF_HUB_OFFLINE`.
//!
//! ```no_run
//! # async fn example() -> Result<(), training_gym_hub::Error> {
//! use training_gym_hub::Hub;
//! let snapshot = Hub::from_env()?.snapshot("Qwen/Qwen3-0.6B", "main").await?;
//! println!("{} is commit {}", snapshot.folder.display(), snapshot.commit);
//! # Ok(())
//! # }
//! ```

#![warn(unnameable_types)]

mod cache;
mod download;
mod error;
mod http;
mod listing;
mod options;
mod progress;
mod repo;
mod snapshot;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod who;

use std::fmt;
use std::sync::Arc;

pub use cache::walk;
pub use error::Error;
pub use listing::{Listing, RemoteFile};
pub use options::{HubOptions, Patience, Token};
pub use repo::{Repo, RepoKind};
pub use snapshot::{Snapshot, local_model};
pub use who::Who;

/// How far one file has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The repository.
    pub repo: String,
    /// The file's path in its repository.
    pub file: String,
    /// Bytes on disk so far, those of an earlier, cut download included.
    pub received: u64,
    /// Bytes in all, where the hub said so.
    pub total: Option<u64>,
}

type Watcher = Arc<dyn Fn(&Progress) + Send + Sync>;

/// A client of one hub. Clones share their connections.
#[derive(Clone)]
pub struct Hub {
    client: http::Client,
    options: Arc<HubOptions>,
    watcher: Option<Watcher>,
}

impl fmt::Debug for Hub {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Hub").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Hub {
    /// The hub that the environment names; see the module's text for the variables. Large files are
    /// shown on their way, on standard error.
    ///
    /// # Errors
    /// When a variable's value cannot be used, or neither `HF_HOME` nor `HOME` is set.
    pub fn from_env() -> Result<Self, Error> {
        let hub = Self::new(HubOptions::from_variables(|name| std::env::var(name).ok())?)?;
        Ok(Self { watcher: Some(progress::on_standard_error()), ..hub })
    }

    /// A hub by its options, which shows nothing by itself.
    ///
    /// # Errors
    /// When the endpoint is not an `http` or `https` URL.
    pub fn new(options: HubOptions) -> Result<Self, Error> {
        Ok(Self { client: http::Client::new(&options)?, options: Arc::new(options), watcher: None })
    }

    /// Calls `watcher` when a file begins to arrive, then at most every 1 MiB of it, and at its end;
    /// instead of showing progress.
    #[must_use]
    pub fn on_progress(mut self, watcher: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        self.watcher = Some(Arc::new(watcher));
        self
    }

    /// The options it was made with.
    pub fn options(&self) -> &HubOptions {
        &self.options
    }
}
