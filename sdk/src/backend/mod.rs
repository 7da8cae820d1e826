//! Where jobs run: one trait, and behind it processes of this machine ([`local`], the embedded one) or
//! pods of a cluster (`kubernetes`).
//!
//! A backend starts `gym-runtime` with a spec, says how it is doing, streams its log and stops it.
//! It has no policy: it does not know what a rollout is. What a job reads is a spec; what it writes
//! is a log, and objects in the store.
//!
//! Two kinds of job: a *training job* ends by itself, a *service* answers on an address until it is
//! stopped. Jobs outlive the program that submitted them; any other program with the same backend
//! finds them by their [`JobId`].

pub(crate) mod difference;
mod error;
#[cfg(feature = "kubernetes")]
pub mod explain;
mod job;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod local;
mod logs;
mod question;
mod resources;
mod secret;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use training_gym_core::spec::SecretRef;

pub use error::Error;
pub use job::{Exit, IfExisting, Job, JobId, JobState, Orphan, Request, Share, Submitted, Workload};
pub use local::LocalBackend;
pub use logs::{LogOptions, Logs};
pub use question::{Answer, Question, RowsQuestion};
pub(crate) use resources::has_amx;
#[cfg(feature = "kubernetes")]
pub(crate) use resources::is_object_name;
pub use resources::{InvalidResources, Resources, Toleration, TolerationEffect};
pub use secret::Secret;

use crate::doctor::Finding;
use crate::program::abi::Image;

/// Name, among a job's secrets, of the token with which its pods fetch a model of the hub.
pub(crate) const HUB_TOKEN: &str = "hub-token";

/// Lines of a log that a message quotes.
pub(crate) const LAST_LINES: usize = 20;

/// A place where jobs run.
#[async_trait]
pub trait Backend: Send + Sync + fmt::Debug {
    /// What messages call it.
    fn name(&self) -> String;

    /// The address and port a service is told to listen on; a port of 0 takes a free one.
    fn listen_on(&self) -> (&str, u16);

    /// The folder below which jobs find models that were put into the store; `None` where jobs read
    /// this machine's folders.
    fn models(&self) -> Option<&str> {
        None
    }

    /// Whether jobs fetch models of the hub by themselves.
    fn fetches_from_hub(&self) -> bool {
        false
    }

    /// The URL under which jobs reach the store that this program knows as `store`.
    fn store_for_jobs(&self, store: &str) -> String {
        store.to_owned()
    }

    /// What jobs' image has for the person's program; `None` where jobs run on this machine.
    fn image(&self) -> Option<Image> {
        None
    }

    /// Whether the CPU that jobs get is known to multiply matrices of bfloat16 in hardware.
    fn fast_bfloat16(&self) -> bool {
        has_amx()
    }

    /// What it will not do of what is asked, for a note.
    fn not_applied(&self, resources: &Resources) -> Option<String> {
        resources.note_for_cluster(&self.name())
    }

    /// How often it makes sense to look at a job again.
    fn poll_interval(&self) -> Duration {
        Duration::from_millis(200)
    }

    /// Asks the very `gym-runtime` that jobs are started with: what a launch asks before it starts
    /// anything.
    ///
    /// # Errors
    /// [`Error::NoRuntime`], [`Error::NotRuntime`] or [`Error::Start`] when it cannot be asked. That
    /// it fails is an answer.
    async fn ask(&self, question: Question) -> Result<Answer, Error>;

    /// CPU threads that a job `id` gets which did not ask for a number: see [`local`] for the local
    /// rule; on a cluster it is one. Hold the answer until the job is submitted, so that the next launch counts it.
    ///
    /// # Errors
    /// [`Error::Io`] when the records cannot be read.
    async fn share(&self, id: &JobId) -> Result<Share, Error>;

    /// Where the job `id` will find its secret `name`. Pure: a spec can name it before it exists.
    fn secret_ref(&self, id: &JobId, name: &str) -> SecretRef;

    /// Reads a secret of a job back, for a handle on a service.
    ///
    /// # Errors
    /// [`Error::Io`] when it is not there or not ours to read.
    async fn secret(&self, id: &JobId, name: &str) -> Result<Secret, Error>;

    /// A secret that lies with another job, where `place` says, and must be given to a job that is to
    /// read it; `None` where the job finds it there itself.
    ///
    /// # Errors
    /// When it is such a secret and cannot be read.
    async fn carried_secret(&self, place: &SecretRef) -> Result<Option<Secret>, Error> {
        let _ = place;
        Ok(None)
    }

    /// The URL under which this program reaches what jobs reach at `url`.
    ///
    /// # Errors
    /// When `url` is a service of this backend that cannot be reached.
    async fn reachable(&self, url: &str) -> Result<String, Error> {
        Ok(url.to_owned())
    }

    /// Starts a job, or adopts a live one, as [`Request::if_existing`] says. Two submissions of the
    /// same id at once: one starts, the other sees it.
    ///
    /// # Errors
    /// [`Error::Different`] when a live job of this id does something else; [`Error::NoRuntime`],
    /// [`Error::Start`] or [`Error::Io`] when nothing was started.
    async fn submit(&self, request: Request) -> Result<Submitted, Error>;

    /// A job as it is now.
    ///
    /// # Errors
    /// [`Error::UnknownJob`].
    async fn job(&self, id: &JobId) -> Result<Job, Error>;

    /// A job's log.
    ///
    /// # Errors
    /// [`Error::UnknownJob`].
    async fn logs(&self, id: &JobId, options: LogOptions) -> Result<Logs, Error>;

    /// Asks a job to end, and makes it end after `grace`. A job that is over already is no error.
    ///
    /// # Errors
    /// [`Error::UnknownJob`]; [`Error::Unstoppable`].
    async fn cancel(&self, id: &JobId, grace: Duration) -> Result<(), Error>;

    /// Every job there is a record of, live or over, by id.
    ///
    /// # Errors
    /// [`Error::Io`] when the records cannot be read.
    async fn list(&self) -> Result<Vec<Job>, Error>;

    /// What was left behind and nobody needs any more: what `gym gc` removes.
    ///
    /// # Errors
    /// When it cannot be looked for.
    async fn orphans(&self) -> Result<Vec<Orphan>, Error> {
        Ok(Vec::new())
    }

    /// Removes one of [`Backend::orphans`].
    ///
    /// # Errors
    /// When it cannot be removed.
    async fn remove(&self, orphan: &Orphan) -> Result<(), Error> {
        let _ = orphan;
        Ok(())
    }

    /// Whether a job that asks for `resources` would find what it needs: the program, rights, room. It
    /// starts nothing, and a finding that cannot be made is one that says why.
    async fn doctor(&self, resources: &Resources) -> Vec<Finding> {
        let _ = resources;
        Vec::new()
    }
}
