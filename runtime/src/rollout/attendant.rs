//! The engine's thread: takes commands, scores, decodes, and tells whoever asked.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};
use training_gym_core::ids::WeightVersion;

use super::admission::Place;
use super::engine::Engine;
use super::request::{EngineStats, Event, Refusal, ReplaceError, Request, RequestId, ScoreRequest, TokenScore};
use super::scoring::Scoring;
use crate::model::Model;

pub(super) type Scores = Result<Vec<Vec<TokenScore>>, Refusal>;
type Taken = Result<mpsc::UnboundedReceiver<Event>, Refusal>;

/// What is asked of the thread.
pub(super) enum Command {
    Generate { request: Box<Request>, place: Place, reply: oneshot::Sender<Taken> },
    Score { sequences: Vec<ScoreRequest>, place: Place, reply: oneshot::Sender<Scores> },
    Replace { model: Box<Model>, version: WeightVersion, reply: oneshot::Sender<Result<(), ReplaceError>> },
}

/// What the thread died of; closed without a value if it ended well.
pub(super) type Failure = Option<Arc<str>>;

/// Who waits for a request's events, and the place it holds.
struct Listener {
    events: mpsc::UnboundedSender<Event>,
    place: Option<Place>,
}

type Listeners = HashMap<RequestId, Listener>;

/// A scoring request under way.
struct Asked {
    scoring: Scoring,
    reply: oneshot::Sender<Scores>,
    place: Place,
}

/// Runs the thread; a panic becomes an error of everyone who waits.
pub(super) fn attend(
    mut engine: Engine,
    commands: Receiver<Command>,
    stats: &Mutex<EngineStats>,
    died: &watch::Sender<Failure>,
) {
    let mut listeners = Listeners::new();
    let mut attendant =
        Attendant { engine: &mut engine, listeners: &mut listeners, scoring: VecDeque::new(), next_id: 0, stats };
    let run = AssertUnwindSafe(|| attendant.run(&commands));
    let Err(panic) = catch_unwind(run) else { return };
    drop(attendant);
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let cause: Arc<str> = text.unwrap_or("a panic without a message").into();
    died.send_replace(Some(Arc::clone(&cause)));
    for (id, listener) in listeners {
        let _ = listener.events.send(Event::Failed { id, cause: Arc::clone(&cause) });
    }
}

struct Attendant<'a> {
    engine: &'a mut Engine,
    listeners: &'a mut Listeners,
    /// In order of asking; the first is at work.
    scoring: VecDeque<Asked>,
    next_id: u64,
    stats: &'a Mutex<EngineStats>,
}

impl Attendant<'_> {
    /// Until the last handle is gone and what runs is complete. Scoring and decoding take turns: a
    /// pass, a step.
    fn run(&mut self, commands: &Receiver<Command>) {
        loop {
            if self.engine.is_idle() && self.scoring.is_empty() {
                self.publish();
                let Ok(command) = commands.recv() else { return };
                self.take(command);
            }
            while let Ok(command) = commands.try_recv() {
                self.take(command);
            }
            self.forget_the_abandoned();
            self.score();
            if !self.engine.is_idle() {
                self.step();
            }
        }
    }

    fn publish(&self) {
        let stats = EngineStats { scoring: self.scoring.len(), ..self.engine.stats() };
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Generate { request, place, reply } => {
                self.next_id += 1;
                let id = RequestId(self.next_id);
                let (listener, events) = mpsc::unbounded_channel();
                let taken = self.engine.submit(id, *request).map(|()| events);
                let refused = taken.is_err();
                if reply.send(taken).is_ok() && !refused {
                    self.listeners.insert(id, Listener { events: listener, place: Some(place) });
                } else {
                    self.engine.abort(id);
                }
            }
            Command::Score { sequences, place, reply } => match self.engine.begin_scoring(sequences) {
                Ok(scoring) => self.scoring.push_back(Asked { scoring, reply, place }),
                Err(refusal) => drop(reply.send(Err(refusal))),
            },
            Command::Replace { model, version, reply } => {
                let replaced = self.engine.replace_weights(*model, version);
                if replaced.is_ok() {
                    // An answer is of one model's weights.
                    self.scoring.iter_mut().for_each(|asked| asked.scoring.begin_again());
                }
                // Whoever has the answer sees the version.
                self.publish();
                let _ = reply.send(replaced);
            }
        }
    }

    fn forget_the_abandoned(&mut self) {
        for (&id, _) in self.listeners.iter().filter(|(_, listener)| listener.events.is_closed()) {
            self.engine.abort(id);
        }
        self.scoring.retain(|asked| !asked.reply.is_closed());
    }

    /// One pass of the first scoring request.
    fn score(&mut self) {
        let Some(first) = self.scoring.front_mut() else { return };
        let complete = self.engine.score_pass(&mut first.scoring);
        let done = if complete { self.scoring.pop_front() } else { None };
        self.publish();
        if let Some(Asked { scoring, reply, place }) = done {
            // Free before the answer is there: who has it may ask again at once.
            drop(place);
            let _ = reply.send(Ok(scoring.into_scores()));
        }
    }

    fn step(&mut self) {
        let events = self.engine.step();
        for event in &events {
            if let (id, true) = subject(event)
                && let Some(listener) = self.listeners.get_mut(&id)
            {
                listener.place = None;
            }
        }
        self.publish();
        for event in events {
            let (id, last) = subject(&event);
            // A closed channel is found, and its request given up, before the next step.
            let _ = self.listeners.get(&id).map(|listener| listener.events.send(event));
            if last {
                self.listeners.remove(&id);
            }
        }
    }
}

/// Whose event it is, and whether it is the last one.
fn subject(event: &Event) -> (RequestId, bool) {
    match event {
        Event::Token { id, .. } => (*id, false),
        Event::Finished { id, .. } | Event::Failed { id, .. } => (*id, true),
    }
}
