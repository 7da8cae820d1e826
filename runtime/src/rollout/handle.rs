//! An engine on its own thread; others talk to it by channel.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};
use training_gym_core::ids::WeightVersion;

use super::engine::Engine;
use super::request::{EngineStats, Event, Refusal, Request, RequestId, ScoreRequest, TokenScore};
use crate::model::{self, LoadOptions, Model};

type Scores = Result<Vec<Vec<TokenScore>>, Refusal>;

enum Command {
    Generate { request: Box<Request>, reply: oneshot::Sender<Result<mpsc::UnboundedReceiver<Event>, Refusal>> },
    Score { sequences: Vec<ScoreRequest>, reply: oneshot::Sender<Scores> },
    Replace { model: Box<Model>, version: WeightVersion, reply: oneshot::Sender<Result<(), model::Error>> },
}

/// What the thread died of; closed without a value if it ended well.
type Failure = Option<Arc<str>>;

/// Talks to an engine that runs on a thread of its own. The thread sleeps while there is nothing
/// to do and ends with the last handle, once what runs is complete. If it dies, every caller gets
/// an error: [`Refusal::EngineStopped`], [`Event::Failed`] or [`model::Error::EngineStopped`].
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: Sender<Command>,
    stats: Arc<Mutex<EngineStats>>,
    failure: watch::Receiver<Failure>,
    options: LoadOptions,
    context_length: usize,
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
        let (options, context_length) = (engine.model().options(), engine.context_length());
        let threads = tch::get_num_threads();
        let shown = Arc::clone(&stats);
        let body = move || {
            tch::set_num_threads(threads);
            let _guard = tch::no_grad_guard();
            attended(engine, receiver, &shown, &died);
        };
        std::thread::Builder::new().name("engine".to_owned()).spawn(body).expect("a thread for the engine");
        Self { commands, stats, failure, options, context_length }
    }

    /// Submits a request. The channel gives its events, [`Event::Finished`] or [`Event::Failed`]
    /// last; dropping it aborts the request.
    ///
    /// # Errors
    /// As [`Engine::submit`], and [`Refusal::EngineStopped`].
    pub async fn generate(&self, request: Request) -> Result<mpsc::UnboundedReceiver<Event>, Refusal> {
        let request = Box::new(request);
        self.ask(|reply| Command::Generate { request, reply }).await.map_err(stopped)?
    }

    /// Scores sequences between two decode steps, in passes of their own.
    ///
    /// # Errors
    /// As [`Engine::score`], and [`Refusal::EngineStopped`].
    pub async fn score(&self, sequences: Vec<ScoreRequest>) -> Scores {
        self.ask(|reply| Command::Score { sequences, reply }).await.map_err(stopped)?
    }

    /// Reads new weights of the same architecture while the old ones go on, then puts them in
    /// place between two decode steps. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// As [`Model::load`] and [`Engine::replace_weights`] (the old weights go on), and
    /// [`model::Error::EngineStopped`].
    pub async fn replace_weights(&self, folder: PathBuf, version: WeightVersion) -> Result<(), model::Error> {
        let options = self.options;
        let loaded = tokio::task::spawn_blocking(move || Model::load(&folder, options)).await;
        let model = loaded.map_err(|error| model::Error::EngineStopped { cause: error.to_string() })??;
        let model = Box::new(model);
        let reply = self.ask(|reply| Command::Replace { model, version, reply }).await;
        reply.map_err(|cause| model::Error::EngineStopped { cause })?
    }

    /// As of the last step.
    pub fn stats(&self) -> EngineStats {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tokens a sequence may have, prompt and response together.
    pub fn context_length(&self) -> usize {
        self.context_length
    }

    /// What the thread died of, if it did.
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().as_deref().map(str::to_owned)
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

fn stopped(cause: String) -> Refusal {
    Refusal::EngineStopped { cause }
}

/// Where the events of live requests go.
type Listeners = HashMap<RequestId, mpsc::UnboundedSender<Event>>;

/// Runs the thread; a panic becomes an error of everyone who waits.
fn attended(
    mut engine: Engine,
    commands: Receiver<Command>,
    stats: &Mutex<EngineStats>,
    died: &watch::Sender<Failure>,
) {
    let mut listeners = Listeners::new();
    let run = AssertUnwindSafe(|| attend(&mut engine, &commands, &mut listeners, stats));
    let Err(panic) = catch_unwind(run) else { return };
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let cause: Arc<str> = text.unwrap_or("a panic without a message").into();
    died.send_replace(Some(Arc::clone(&cause)));
    for (id, listener) in listeners {
        let _ = listener.send(Event::Failed { id, cause: Arc::clone(&cause) });
    }
}

fn attend(engine: &mut Engine, commands: &Receiver<Command>, listeners: &mut Listeners, stats: &Mutex<EngineStats>) {
    let publish = |engine: &Engine| *stats.lock().unwrap_or_else(PoisonError::into_inner) = engine.stats();
    let mut next_id = 0;
    let mut take = |engine: &mut Engine, listeners: &mut Listeners, command| match command {
        Command::Generate { request, reply } => {
            next_id += 1;
            let (listener, events) = mpsc::unbounded_channel();
            let taken = engine.submit(RequestId(next_id), *request).map(|()| events);
            let refused = taken.is_err();
            if reply.send(taken).is_ok() && !refused {
                listeners.insert(RequestId(next_id), listener);
            } else {
                engine.abort(RequestId(next_id));
            }
        }
        Command::Score { sequences, reply } => drop(reply.send(engine.score(&sequences))),
        Command::Replace { model, version, reply } => drop(reply.send(engine.replace_weights(*model, version))),
    };
    loop {
        if engine.is_idle() {
            publish(engine);
            let Ok(command) = commands.recv() else { return };
            take(engine, listeners, command);
        }
        while let Ok(command) = commands.try_recv() {
            take(engine, listeners, command);
        }
        for (&id, _) in listeners.iter().filter(|(_, listener)| listener.is_closed()) {
            engine.abort(id);
        }
        let events = engine.step();
        publish(engine);
        for event in events {
            let (id, last) = match &event {
                Event::Token { id, .. } => (*id, false),
                Event::Finished { id, .. } | Event::Failed { id, .. } => (*id, true),
            };
            // A closed channel is found, and its request given up, before the next step.
            let _ = listeners.get(&id).map(|listener| listener.send(event));
            if last {
                listeners.remove(&id);
            }
        }
    }
}
