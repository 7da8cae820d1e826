//! An engine on its own thread; others talk to it by channel.

use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};
use training_gym_core::ids::WeightVersion;

use super::admission::{Admission, Place};
use super::attendant::{Command, Failure, Scores, attend};
use super::engine::Engine;
use super::request::{EngineStats, Event, PromptBounds, Refusal, ReplaceError, Request, ScoreRequest};
use crate::model::{LoadOptions, Model};

/// Talks to an engine that runs on a thread of its own. The thread sleeps while there is nothing
/// to do and ends with the last handle, once what runs is complete. If it dies, every caller gets
/// an error: [`Refusal::EngineStopped`], [`Event::Failed`] or [`ReplaceError::EngineStopped`].
///
/// The queue is bounded: a single request that finds no place is refused; the members of a
/// [`Batch`] wait outside and come in as places become free. What a caller has given up (by
/// dropping the future or the receiver) is computed no further than the step or pass under way.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: Sender<Command>,
    admission: Admission,
    stats: Arc<Mutex<EngineStats>>,
    failure: watch::Receiver<Failure>,
    options: LoadOptions,
    bounds: PromptBounds,
}

impl EngineHandle {
    /// Starts the thread. It uses as many libtorch threads as the calling one.
    ///
    /// # Panics
    /// When the operating system has no thread left.
    pub fn spawn(engine: Engine) -> Self {
        let (commands, receiver) = channel();
        let stats = Arc::new(Mutex::new(engine.stats()));
        let (died, failure) = watch::channel(None);
        let (options, bounds) = (engine.model().options(), engine.bounds());
        let admission = Admission::new(&engine.limits);
        let threads = tch::get_num_threads();
        let shown = Arc::clone(&stats);
        let body = move || {
            tch::set_num_threads(threads);
            let _guard = tch::no_grad_guard();
            attend(engine, receiver, &shown, &died);
        };
        std::thread::Builder::new().name("engine".to_owned()).spawn(body).expect("a thread for the engine");
        Self { commands, admission, stats, failure, options, bounds }
    }

    /// Submits a request. The channel gives its events, [`Event::Finished`] or [`Event::Failed`]
    /// last; dropping it aborts the request.
    ///
    /// # Errors
    /// As [`Engine::submit`], and [`Refusal::EngineStopped`].
    pub async fn generate(&self, request: Request) -> Result<mpsc::UnboundedReceiver<Event>, Refusal> {
        // What can never be taken is said even when the queue is full.
        self.check(&request.prompt_ids, request.max_new_tokens)?;
        self.submit(request, self.admission.single()?).await
    }

    /// Announces requests that belong together and may wait for their turn.
    ///
    /// # Errors
    /// [`Refusal::QueueFull`] when 1,024 batches wait.
    pub fn batch(&self) -> Result<Batch, Refusal> {
        Ok(Batch { handle: self.clone(), _place: Arc::new(self.admission.batch()?) })
    }

    /// Scores sequences between decode steps, in passes of their own, which depend on the list
    /// alone. Requests are scored in order of asking.
    ///
    /// # Errors
    /// As [`Engine::score`], [`Refusal::ScoringFull`], and [`Refusal::EngineStopped`].
    pub async fn score(&self, sequences: Vec<ScoreRequest>) -> Scores {
        let place = self.admission.scoring()?;
        self.ask(|reply| Command::Score { sequences, place, reply }).await.map_err(stopped)?
    }

    /// Reads new weights of the same architecture while the old ones go on, then puts them in
    /// place between two decode steps; scoring requests under way begin again under them. Must be
    /// called within a tokio runtime.
    ///
    /// # Errors
    /// [`ReplaceError`]; the old weights go on.
    pub async fn replace_weights(&self, folder: PathBuf, version: WeightVersion) -> Result<(), ReplaceError> {
        let options = self.options;
        let loaded = tokio::task::spawn_blocking(move || Model::load(&folder, options)).await;
        let model = loaded.map_err(|error| ReplaceError::EngineStopped { cause: error.to_string() })??;
        let model = Box::new(model);
        let reply = self.ask(|reply| Command::Replace { model, version, reply }).await;
        reply.map_err(|cause| ReplaceError::EngineStopped { cause })?
    }

    /// Whether the engine could take a prompt at all.
    ///
    /// # Errors
    /// [`Refusal::EmptyPrompt`], [`Refusal::UnknownToken`], [`Refusal::TooLong`].
    pub fn check(&self, prompt_ids: &[i64], max_new_tokens: usize) -> Result<(), Refusal> {
        self.bounds.check(prompt_ids, max_new_tokens)
    }

    /// As of the last step.
    pub fn stats(&self) -> EngineStats {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tokens a sequence may have, prompt and response together.
    pub fn context_length(&self) -> usize {
        self.bounds.context_length
    }

    /// What the thread died of, if it did.
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().as_deref().map(str::to_owned)
    }

    async fn submit(&self, request: Request, place: Place) -> Result<mpsc::UnboundedReceiver<Event>, Refusal> {
        let request = Box::new(request);
        self.ask(|reply| Command::Generate { request, place, reply }).await.map_err(stopped)?
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, String> {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(command(reply)).is_ok()
            && let Ok(answer) = answer.await
        {
            return Ok(answer);
        }
        // The answer is lost while the thread unwinds, a moment before it says why.
        let mut failure = self.failure.clone();
        let cause = failure.wait_for(Option::is_some).await;
        Err(cause
            .ok()
            .and_then(|cause| cause.as_deref().map(str::to_owned))
            .unwrap_or("its thread has ended".to_owned()))
    }
}

/// Requests that belong together. Each waits for its turn; while they do, single requests find
/// places of their own. Clones are the same batch.
#[derive(Clone, Debug)]
pub struct Batch {
    handle: EngineHandle,
    _place: Arc<Place>,
}

impl Batch {
    /// Waits for a place, then submits what `request` makes, as [`EngineHandle::generate`]. Members
    /// come in in the order in which they began to wait.
    ///
    /// # Errors
    /// As [`EngineHandle::generate`], but never [`Refusal::QueueFull`].
    pub async fn generate(&self, request: impl FnOnce() -> Request) -> Result<mpsc::UnboundedReceiver<Event>, Refusal> {
        let place = self.handle.admission.member().await;
        self.handle.submit(request(), place).await
    }
}

fn stopped(cause: String) -> Refusal {
    Refusal::EngineStopped { cause }
}

#[cfg(test)]
mod tests;
