//! From a spec to a [`Trainer`] that stands where the run's last published state left it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use training_gym_core::checkpoint::{self, Kind};
use training_gym_core::ids::{ContentHash, WeightVersion};
use training_gym_core::record::Cause;
use training_gym_core::spec::{ProgramRef, RunSpec};
use training_gym_core::store::Store;
use training_gym_core::wire::ModelInfo;
use training_gym_core::wire::teacher::PROBE_TOKENS;

use super::evaluate::Evaluation;
use super::failure::Stop;
use super::journal::Journal;
use super::replay::Replay;
use super::step::Trainer;
use crate::data::{self, Order, PromptSource};
use crate::model::{LoadOptions, Model};
use crate::publish::Publisher;
use crate::rollout::Engine;
use crate::score::reward::Grader;
use crate::score::teacher::Teacher;
use crate::score::worker::Worker;
use crate::settings;
use crate::text::TextPipeline;
use crate::update::Updater;

/// A run, ready to step.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Steps.
    pub(super) trainer: Trainer,
    /// Publishes.
    pub(super) publisher: Publisher,
    /// Steps done before this attempt.
    pub(super) done: u64,
    /// [`fingerprint`] of the weights as this attempt begins.
    pub(super) start_weights: String,
    /// Holds the reward program while the run lasts.
    pub(super) scratch: tempfile::TempDir,
}

/// Where a resumed run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cursor {
    /// Steps done.
    pub(super) step: u64,
    /// Bytes of metrics that belong to them.
    pub(super) metrics_offset: u64,
}

/// Prepares everything a step needs; what can fail early fails here, before any step.
///
/// # Errors
/// A [`Stop`] naming what does not fit.
pub(super) fn prepare(
    spec: RunSpec,
    store: &Arc<dyn Store>,
    runtime: &Handle,
    (journal, stop): (&mut Journal, &Arc<AtomicBool>),
) -> Result<Prepared, Stop> {
    let invalid = |error: &dyn std::error::Error| Stop::new(Cause::InvalidInput, error);
    settings::use_threads(&spec.node);
    let (device, dtype) = settings::device(&spec.node).map_err(|error| invalid(&error))?;
    let scratch = tempfile::Builder::new().prefix("gym-train-").tempdir().map_err(|error| invalid(&error))?;
    let text = Arc::new(TextPipeline::from_folder(&spec.model.folder).map_err(|error| invalid(&error))?);
    let data = prompts(&spec, store, (runtime, &text), &spec.data.train)?;
    if data.too_long() > 0 {
        journal.note(format!(
            "{} of {} prompts have more than {} tokens and are left out (recipe.rollout_max_prompt_len)",
            data.too_long(),
            data.too_long() + data.prompts().len(),
            spec.data.max_prompt_len
        ));
    }
    let evaluation = match &spec.eval {
        None => None,
        Some(eval) => {
            Some(Evaluation { spec: eval.clone(), data: prompts(&spec, store, (runtime, &text), &eval.rows)? })
        }
    };

    // The starting weights: a KL penalty refers to them. A resumed run's own come with its state.
    let model = Model::load(&spec.model.folder, LoadOptions { device, dtype }).map_err(|error| invalid(&error))?;
    let mut updater = Updater::new(model.share(), spec.update.clone(), spec.rollout.sampling.temperature)
        .map_err(|error| invalid(&error))?;
    let mut cursor = Cursor { step: 0, metrics_offset: 0 };
    let resume = runtime
        .block_on(checkpoint::latest(&**store, Kind::ResumeState, &spec.run_id))
        .map_err(|error| Stop::new(Cause::Store, &error))?;
    if let Some(resume) = &resume {
        let folder = scratch.path().join("resume");
        runtime
            .block_on(checkpoint::fetch(&**store, resume, &folder))
            .map_err(|error| Stop::new(Cause::Store, &error))?;
        cursor = load_cursor(&folder, resume.step)?;
        updater.load_state(&folder).map_err(|error| Stop::new(Cause::Store, &error))?;
        tracing::info!("resuming run {} after step {}", spec.run_id, cursor.step);
    }
    journal.resume_metrics_at(cursor.metrics_offset);
    let replay = runtime.block_on(Replay::load(&**store, &spec.run_id, cursor.step))?;
    let mut engine = Engine::new(model, &spec.rollout.engine).map_err(|error| invalid(&error))?;
    engine.weights_changed(WeightVersion(cursor.step));

    let grader = grader(&spec, &**store, runtime, scratch.path())?;
    let teacher = teacher(&spec, runtime, (&text, &data), journal)?;
    let publisher = Publisher::new(Arc::clone(store), &spec, runtime.clone());
    let start_weights = fingerprint(&updater);
    let trainer = Trainer {
        spec,
        runtime: runtime.clone(),
        text,
        data,
        engine,
        updater,
        grader,
        teacher,
        replay,
        evaluation,
        stop: Arc::clone(stop),
    };
    Ok(Prepared { trainer, publisher, done: cursor.step, start_weights, scratch })
}

fn prompts(
    spec: &RunSpec,
    store: &Arc<dyn Store>,
    (runtime, text): (&Handle, &TextPipeline),
    rows: &training_gym_core::spec::RowsRef,
) -> Result<PromptSource, Stop> {
    let stop = |error: data::Error| {
        let cause = if matches!(error, data::Error::Store { .. }) { Cause::Store } else { Cause::InvalidInput };
        Stop::new(cause, &error)
    };
    let rows = runtime.block_on(data::read_rows(&**store, rows)).map_err(stop)?;
    let order = Order { max_prompt_len: spec.data.max_prompt_len, shuffle: spec.data.shuffle, seed: spec.seed };
    PromptSource::new(rows, order, |prompt| {
        text.prompt_ids(prompt, spec.data.apply_chat_template, &spec.data.chat_template_kwargs)
    })
    .map_err(stop)
}

fn load_cursor(folder: &Path, step: u64) -> Result<Cursor, Stop> {
    let bad = |why: String| Stop::say(Cause::Store, format!("the resume state of step {step} is damaged: {why}"));
    let text = std::fs::read(folder.join(Cursor::FILE)).map_err(|error| bad(error.to_string()))?;
    let cursor: Cursor = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    if cursor.step != step {
        return Err(bad(format!("it says step {}", cursor.step)));
    }
    Ok(cursor)
}

impl Cursor {
    /// Its file in the resume state.
    pub(super) const FILE: &'static str = "cursor.json";

    /// As JSON.
    pub(super) fn to_json(self) -> Vec<u8> {
        serde_json::to_vec(&self).expect("two numbers")
    }
}

fn grader(spec: &RunSpec, store: &dyn Store, runtime: &Handle, scratch: &Path) -> Result<Option<Arc<Grader>>, Stop> {
    let Some(reward) = &spec.reward else { return Ok(None) };
    let program = fetch_program(&reward.program, store, runtime, scratch)?;
    let stop = |error: crate::score::Error| Stop::new(error.cause(), &error);
    let worker = Worker::new(&program).map_err(stop)?;
    runtime.block_on(Grader::start(worker, reward.clone())).map(|grader| Some(Arc::new(grader))).map_err(stop)
}

/// The person's executable by its hash, never whatever lies in a build folder now.
fn fetch_program(program: &ProgramRef, store: &dyn Store, runtime: &Handle, scratch: &Path) -> Result<PathBuf, Stop> {
    use std::os::unix::fs::PermissionsExt;
    let path = scratch.join("reward-program");
    runtime.block_on(store.get_file(&program.key, &path)).map_err(|error| Stop::new(Cause::Store, &error))?;
    let io = |error: std::io::Error| Stop::say(Cause::Store, format!("cannot use `{}`: {error}", program.key));
    let found = ContentHash::of_file(&path).map_err(io)?;
    if found != program.sha256 {
        let sentence = format!("the reward program `{}` has sha256 {found}, not {}", program.key, program.sha256);
        return Err(Stop::say(Cause::Store, sentence));
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o500)).map_err(io)?;
    Ok(path)
}

fn teacher(
    spec: &RunSpec,
    runtime: &Handle,
    (text, data): (&TextPipeline, &PromptSource),
    journal: &mut Journal,
) -> Result<Option<Arc<Teacher>>, Stop> {
    let Some(teacher) = &spec.teacher else { return Ok(None) };
    let token = teacher
        .token
        .as_ref()
        .map(settings::secret)
        .transpose()
        .map_err(|error| Stop::new(Cause::InvalidInput, &error))?;
    let stop = |error: crate::score::Error| Stop::new(error.cause(), &error);
    let teacher = Teacher::new(teacher.clone(), token).map_err(stop)?;
    let student = ModelInfo {
        model_path: spec.model.name.clone(),
        is_generation: true,
        eos_token_ids: Some(text.tokenizer().eos_token_ids().to_vec()),
        vocab_sha256: Some(text.tokenizer().vocab_sha256()),
        context_length: None,
        weight_version: None,
    };
    for note in runtime.block_on(teacher.probe(&student, &probe_tokens(data))).map_err(stop)? {
        journal.note(note);
    }
    Ok(Some(Arc::new(teacher)))
}

/// Eight ids of ordinary text: the first prompt's, repeated where it is shorter.
fn probe_tokens(data: &PromptSource) -> [i64; PROBE_TOKENS] {
    let ids = &data.prompts()[0].prompt_ids;
    std::array::from_fn(|position| ids[position % ids.len()])
}

/// A hash over all master weights, to tell whether any moved.
pub(super) fn fingerprint(updater: &Updater) -> String {
    let mut hasher = Sha256::new();
    updater.for_each_master_weight(|_, bytes| hasher.update(bytes));
    ContentHash::finish(hasher).to_string()
}
