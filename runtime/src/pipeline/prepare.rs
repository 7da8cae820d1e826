//! From a spec to a [`Trainer`] that stands where the run's last published state left it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use training_gym_core::checkpoint::{self, Manifest};
use training_gym_core::ids::{ContentHash, WeightVersion};
use training_gym_core::record::{Cause, keys};
use training_gym_core::spec::{AdvantageEstimator, Divergence, ProgramRef, RunSpec};
use training_gym_core::store::Store;
use training_gym_core::wire::ModelInfo;
use training_gym_core::wire::teacher::PROBE_TOKENS;

use super::evaluate::Evaluation;
use super::failure::Stop;
use super::memory;
use super::playing;
use super::replay::Replay;
use super::signal::StopSignal;
use super::source::{Recordings, check_column};
use super::step::Trainer;
use crate::data::{self, Order, PromptSource};
use crate::model::{LoadOptions, Model};
use crate::publish::{CURSOR, Publisher};
use crate::rollout::Engine;
use crate::sandbox::Launcher;
use crate::sandbox::remote::Remote;
use crate::score::reward::Grader;
use crate::score::teacher::Teacher;
use crate::score::worker::Worker;
use crate::settings;
use crate::text::{Conversation, TextPipeline, Tokenizer};
use crate::update::{CoTeacher, Distillation, Updater};

/// A run, ready to step.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Steps.
    pub(super) trainer: Trainer,
    /// Publishes.
    pub(super) publisher: Publisher,
    /// Where this attempt goes on.
    pub(super) cursor: Cursor,
    /// What a person should know.
    pub(super) notes: Vec<String>,
}

/// Where a resumed run goes on, and what its end is judged by: the whole run, whichever attempt did
/// its steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cursor {
    /// Steps done.
    pub(super) step: u64,
    /// Bytes of metrics that belong to them.
    pub(super) metrics_offset: u64,
    /// Whether one of them had a gradient other than 0.
    pub(super) learned: bool,
    /// [`fingerprint`] of the weights the run began with.
    pub(super) start_weights: String,
}

/// What a run runs in.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    /// Where everything is read and written.
    pub(super) store: Arc<dyn Store>,
    /// Where the asynchronous parts run.
    pub(super) runtime: Handle,
    /// Whether someone asked to stop.
    pub(super) stop: StopSignal,
    /// Which attempt of the run this is.
    pub(super) attempt: u64,
    /// Where temporary files go, until the run ends.
    pub(super) scratch: PathBuf,
    /// Who starts the reward worker.
    pub(super) workers: Workers,
}

/// Who starts the person's program as the reward worker.
#[derive(Clone, Debug)]
pub enum Workers {
    /// This process, by a program that confines it.
    Here(Launcher),
    /// The supervisor whose control socket is in this folder.
    Sidecar(PathBuf),
    /// The supervisor in another pod.
    Remote(Remote),
}

/// Prepares everything a step needs; what can fail early fails here, before any step. `None`
/// means it was asked to stop. Writes nothing to the store: who asked to stop may have left this
/// behind.
///
/// # Errors
/// A [`Stop`] naming what does not fit.
pub(super) fn prepare(
    spec: RunSpec,
    resume: Option<Manifest>,
    around: &Surroundings,
) -> Result<Option<Prepared>, Stop> {
    let Surroundings { store, runtime, stop, .. } = around;
    let invalid = |error: &(dyn std::error::Error + 'static)| Stop::new(Cause::InvalidInput, error);
    settings::use_threads_here(&spec.node);
    let (device, dtype) = settings::device(&spec.node).map_err(|error| invalid(&error))?;
    let mut notes = Vec::new();
    notes.extend(replicas(spec.rollout.rollout_num_gpus, device, settings::cuda_devices())?);
    let scratch = around.scratch.as_path();
    let text = Arc::new(TextPipeline::from_folder(&spec.model.folder).map_err(|error| invalid(&error))?);
    let data = prompts(&spec, around, &text, &spec.data.train)?;
    notes.extend(too_long("prompts", &data, &spec));
    check_column(&spec, &data)?;
    let evaluation = match &spec.eval {
        None => None,
        Some(eval) => {
            let data = prompts(&spec, around, &text, &eval.rows)?;
            notes.extend(too_long("held-out prompts", &data, &spec));
            Some(Evaluation { spec: eval.clone(), data })
        }
    };
    if stop.is_set() {
        return Ok(None);
    }

    // The starting weights: a KL penalty refers to them. A resumed run's own come with its state.
    let model = Model::load(&spec.model.folder, LoadOptions { device, dtype }).map_err(|error| invalid(&error))?;
    let mut updater = Updater::new(model.share(), spec.update.clone(), spec.rollout.sampling.temperature)
        .map_err(|error| invalid(&error))?;
    if spec.advantage.kl_reward.is_some() {
        updater = updater.with_reference();
    }
    updater = updater.sparing(spec.memory);
    let co_teacher = co_teacher(&spec, &text, &model)?.map(|(teacher, said)| {
        notes.extend(said);
        teacher
    });
    if let Some(distillation) = distillation(&spec, &text)? {
        let rewarded = spec.reward.is_some() && spec.advantage.estimator != AdvantageEstimator::Ignored;
        updater = updater.distilling(distillation, rewarded);
    }
    let mut cursor = match &resume {
        None => Cursor { step: 0, metrics_offset: 0, learned: false, start_weights: fingerprint(&updater) },
        Some(resume) => {
            let folder = scratch.join("resume");
            let Some(fetched) = stop.or(runtime, checkpoint::fetch(&**store, resume, &folder)) else { return Ok(None) };
            fetched.map_err(|error| unusable(&error, resume))?;
            let cursor = load_cursor(&folder, resume)?;
            updater.load_state(&folder).map_err(|error| Stop::new(Cause::Store, &error))?;
            tracing::info!("resuming run {} after step {}", spec.run_id, cursor.step);
            cursor
        }
    };
    let written = runtime.block_on(metrics_size(&**store, &spec))?;
    if written < cursor.metrics_offset {
        let lost =
            "metrics.jsonl lost lines of finished steps since they were written; the run goes on behind the rest";
        notes.push(lost.to_owned());
    }
    cursor.metrics_offset = cursor.metrics_offset.min(written);
    let replay = runtime.block_on(Replay::open(Arc::clone(store), spec.run_id.clone()))?;
    let mut engine = Engine::new(model, &spec.rollout.engine).map_err(|error| invalid(&error))?;
    notes.extend(memory::spare(&spec, &mut engine, &updater)?);
    engine.weights_changed(WeightVersion(cursor.step));

    let recordings = stop.or(runtime, Recordings::open(Arc::clone(store), &spec)).transpose()?;
    let Some(recordings) = recordings else { return Ok(None) };
    let Some(grader) = stop.or(runtime, grader(&spec, around)) else { return Ok(None) };
    let grader = grader?;
    let Some(teacher) = stop.or(runtime, teacher(&spec, &text, &data)) else { return Ok(None) };
    let teacher = teacher?.map(|(teacher, said)| {
        notes.extend(said);
        teacher
    });
    let publisher = Publisher::new(Arc::clone(store), &spec, around.attempt, runtime.clone(), scratch.to_owned());
    let trainer = Trainer {
        spec,
        runtime: runtime.clone(),
        text,
        data,
        engine,
        updater,
        grader,
        teacher,
        co_teacher,
        replay,
        recordings,
        evaluation,
        stop: stop.clone(),
    };
    Ok(Some(Prepared { trainer, publisher, cursor, notes }))
}

/// What is learnt in the loss itself: from a co-resident teacher, or from a server's likeliest tokens.
fn distillation(spec: &RunSpec, text: &TextPipeline) -> Result<Option<Distillation>, Stop> {
    let seed = spec.seed;
    if let Some(distill) = &spec.distill {
        let (divergence, coef, selection) = (distill.divergence, distill.coef, distill.selection);
        return Ok(Some(Distillation { divergence, coef, selection, seed }));
    }
    let Some((teacher, top)) = spec.teacher.as_ref().and_then(|teacher| Some((teacher, teacher.top_k?))) else {
        return Ok(None);
    };
    let refuse = |what: String| Err(Stop::say(Cause::InvalidInput, format!("opd.top_k: {what}")));
    let tokens = text.tokenizer().vocab_size();
    if top.k == 0 || top.k >= tokens {
        return refuse(format!("k = {} must be ≥ 1 and less than the vocabulary's {tokens} tokens", top.k));
    }
    if !top.tail && top.divergence != Divergence::ForwardKl {
        return refuse("without a tail only the forward KL is computed".to_owned());
    }
    let temperature = spec.rollout.sampling.temperature;
    if temperature != 1.0 {
        return refuse(format!("the teacher's tokens are those of temperature 1, the student's of {temperature}"));
    }
    Ok(Some(Distillation { divergence: top.divergence, coef: teacher.opd_kl_coef, selection: None, seed }))
}

/// A note, where prompts were left out.
fn too_long(what: &str, data: &PromptSource, spec: &RunSpec) -> Option<String> {
    (data.too_long() > 0).then(|| {
        format!(
            "{} of {} {what} have more than {} tokens and are left out (recipe.rollout_max_prompt_len)",
            data.too_long(),
            data.too_long() + data.prompts().len(),
            spec.data.max_prompt_len
        )
    })
}

/// Whether this runtime can do with `wanted` engine replicas; a note where that means fewer.
fn replicas(wanted: usize, device: tch::Device, devices: usize) -> Result<Option<String>, Stop> {
    let refuse = |why: String| Stop::say(Cause::InvalidInput, format!("rollout_num_gpus = {wanted}: {why}"));
    match (device, wanted) {
        (_, 0) => Err(refuse("must be ≥ 1".to_owned())),
        (_, 1) => Ok(None),
        (tch::Device::Cpu, _) => Ok(Some(format!("rollout_num_gpus = {wanted} on a CPU: one engine replica is used"))),
        _ if wanted > devices => {
            Err(refuse(format!("each replica needs its own device, and this machine has {devices}")))
        }
        _ => Err(refuse(format!(
            "this machine has {devices} devices, but rollouts and the update still share one; set it to 1"
        ))),
    }
}

fn prompts(
    spec: &RunSpec,
    around: &Surroundings,
    text: &TextPipeline,
    rows: &training_gym_core::spec::RowsRef,
) -> Result<PromptSource, Stop> {
    let stop = |error: data::Error| {
        let cause = if matches!(error, data::Error::Store { .. }) { Cause::Store } else { Cause::InvalidInput };
        Stop::new(cause, &error)
    };
    let rows = around.runtime.block_on(data::read_rows(&*around.store, rows)).map_err(stop)?;
    let order = Order { max_prompt_len: spec.data.max_prompt_len, shuffle: spec.data.shuffle, seed: spec.seed };
    let kwargs = &spec.data.chat_template_kwargs;
    let source = PromptSource::new(rows, order, |prompt| match &spec.rollout_environment {
        None => text.prompt_ids(prompt, spec.data.apply_chat_template, kwargs),
        Some(environment) => Conversation::begin(text, prompt, (kwargs, &environment.tools))?.prompt_ids(),
    })
    .map_err(stop)?;
    if let (Some(turns), Some(prompt)) = (playing::turns(spec), source.prompts().first()) {
        playing::check_template(text, prompt, &turns).map_err(|error| playing::unplayable(&error))?;
    }
    Ok(source)
}

/// The cursor of a resume state that was fetched into `folder`. One that another version wrote, with
/// other fields, is as unusable as a damaged one.
fn load_cursor(folder: &Path, resume: &Manifest) -> Result<Cursor, Stop> {
    let bad = |why: String| {
        let damage = format!("its {CURSOR} cannot be used: {why}");
        unusable(&checkpoint::Error::Damaged { folder: resume.folder(), damage }, resume)
    };
    let text = std::fs::read(folder.join(CURSOR)).map_err(|error| bad(error.to_string()))?;
    let cursor: Cursor = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    if cursor.step != resume.step {
        return Err(bad(format!("it says step {}", cursor.step)));
    }
    Ok(cursor)
}

impl Cursor {
    /// As JSON.
    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and texts")
    }
}

/// A resume state that is not what its manifest says. Another attempt meets the same one, so a
/// person has to choose.
fn unusable(error: &checkpoint::Error, resume: &Manifest) -> Stop {
    let mut stop = Stop::new(Cause::Store, error);
    if matches!(error, checkpoint::Error::Damaged { .. }) {
        stop.0.retryable = false;
        stop = stop.then(format!(
            "remove the folder `{}` from the store and launch again with the same run id: the run then goes on from an \
             older state, or from its start",
            resume.folder()
        ));
    }
    stop
}

/// Bytes of the run's metrics, 0 where there are none.
async fn metrics_size(store: &dyn Store, spec: &RunSpec) -> Result<u64, Stop> {
    let key = keys::metrics(&spec.run_id);
    let listed = store.list(&key).await.map_err(|error| Stop::new(Cause::Store, &error))?;
    Ok(listed.iter().find(|object| object.key == key).map_or(0, |object| object.size))
}

async fn grader(spec: &RunSpec, around: &Surroundings) -> Result<Option<Arc<Grader>>, Stop> {
    // What was recorded has its grades.
    let unasked = spec.responses.is_recorded() && spec.eval.is_none();
    let Some(reward) = spec.reward.as_ref().filter(|_| !unasked) else { return Ok(None) };
    let stop = |error: crate::score::Error| Stop::new(error.cause(), &error);
    let worker = match &around.workers {
        Workers::Here(launcher) => {
            let program = fetch_program(&reward.program, &*around.store, &around.scratch).await?;
            Worker::here(launcher.clone(), &program, &around.scratch, reward)
        }
        Workers::Sidecar(sockets) => Worker::sidecar(sockets, reward),
        Workers::Remote(remote) => {
            let program = fetch_program(&reward.program, &*around.store, &around.scratch).await?;
            Worker::remote(remote.clone(), &program, &around.scratch, reward)
        }
    };
    let worker = worker.map_err(stop)?.with_environment(&spec.environment);
    let grader = match spec.rollout_environment {
        None => Grader::start(worker, reward.clone()).await,
        Some(_) => Grader::of_environment(worker, reward.clone()).await,
    };
    grader.map(|grader| Some(Arc::new(grader))).map_err(stop)
}

/// The person's executable by its hash, never whatever lies in a build folder now.
async fn fetch_program(program: &ProgramRef, store: &dyn Store, scratch: &Path) -> Result<PathBuf, Stop> {
    use std::os::unix::fs::PermissionsExt;
    let path = scratch.join("reward-program");
    store.get_file(&program.key, &path).await.map_err(|error| Stop::new(Cause::Store, &error))?;
    let io = |error: std::io::Error| Stop::say(Cause::Store, format!("cannot use `{}`: {error}", program.key));
    let found = ContentHash::of_file(&path).map_err(io)?;
    if found != program.sha256 {
        let sentence = format!("the reward program `{}` has sha256 {found}, not {}", program.key, program.sha256);
        return Err(Stop::say(Cause::Store, sentence));
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o500)).map_err(io)?;
    Ok(path)
}

/// The teacher, probed, and what a person should know of it.
async fn teacher(
    spec: &RunSpec,
    text: &TextPipeline,
    data: &PromptSource,
) -> Result<Option<(Arc<Teacher>, Vec<String>)>, Stop> {
    let asked = !spec.responses.is_recorded();
    let Some(teacher) = spec.teacher.as_ref().filter(|_| asked) else { return Ok(None) };
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
    let notes = teacher.probe(&student, &probe_tokens(data)).await.map_err(stop)?;
    Ok(Some((Arc::new(teacher), notes)))
}

/// The teacher that shares the student's device, and what a person should know of it; one of another
/// tokenizer is refused.
fn co_teacher(
    spec: &RunSpec,
    text: &TextPipeline,
    student: &Model,
) -> Result<Option<(CoTeacher, Option<String>)>, Stop> {
    let Some(distill) = &spec.distill else { return Ok(None) };
    let invalid = |error: &(dyn std::error::Error + 'static)| Stop::new(Cause::InvalidInput, error);
    let theirs = Tokenizer::from_folder(&distill.teacher.folder).map_err(|error| invalid(&error))?;
    let ours = text.tokenizer();
    if theirs.vocab_sha256() != ours.vocab_sha256() {
        let sentence = format!(
            "the teacher `{}` has another tokenizer than the student `{}` ({} tokens and {}): their distributions are \
             over different vocabularies, and cannot be compared token by token",
            distill.teacher.name,
            spec.model.name,
            theirs.vocab_size(),
            ours.vocab_size()
        );
        return Err(Stop::say(Cause::InvalidInput, sentence)
            .then("choose a teacher of the student's own family, then launch a new run"));
    }
    let max_tokens = spec.update.max_tokens_per_gpu;
    let teacher =
        CoTeacher::new(&distill.teacher.folder, student.options(), student.config(), ours.vocab_size(), max_tokens)
            .map_err(|error| invalid(&error))?;
    let sorted = |tokenizer: &Tokenizer| {
        let mut ids = tokenizer.eos_token_ids().to_vec();
        ids.sort_unstable();
        ids
    };
    let (theirs, ours) = (sorted(&theirs), sorted(ours));
    let note = (theirs != ours).then(|| {
        format!(
            "the teacher `{}` ends with the tokens {theirs:?}, the student with {ours:?}: it may be taught never to stop",
            distill.teacher.name
        )
    });
    Ok(Some((teacher, note)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;
    use training_gym_core::checkpoint::Kind;

    #[test]
    fn a_cursor_is_what_was_written_or_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let resume = Manifest {
            kind: Kind::ResumeState,
            run_id: "r".parse().unwrap(),
            step: 3,
            model: "m".to_owned(),
            weight_version: WeightVersion(3),
            files: Vec::new(),
            created_at: 0.0,
        };
        let cursor = Cursor { step: 3, metrics_offset: 70, learned: true, start_weights: "a".repeat(64) };
        let read = |text: &[u8]| {
            std::fs::write(folder.path().join(CURSOR), text).unwrap();
            load_cursor(folder.path(), &resume)
        };
        assert_eq!(read(&cursor.to_json()).unwrap(), cursor);
        let earlier = Cursor { step: 2, ..cursor }.to_json();
        for (text, words) in [
            (&br#"{"step":3,"metrics_offset":70}"#[..], "missing field `learned`"),
            (&earlier, "it says step 2"),
            (b"{", "EOF"),
        ] {
            let Stop(failure) = read(text).unwrap_err();
            assert!(failure.sentence.contains(words), "{}", failure.sentence);
            assert!(failure.next_step.contains("remove the folder `runs/r/resume/step-3`"), "{}", failure.next_step);
            assert!(!failure.retryable);
        }
    }

    #[test]
    fn replicas_are_refused_with_numbers_or_noted() {
        assert_eq!(replicas(1, Device::Cuda(0), 1).unwrap(), None);
        assert!(replicas(8, Device::Cpu, 0).unwrap().unwrap().contains("one engine replica"));
        for (wanted, devices, words) in [(8, 4, "has 4"), (2, 4, "set it to 1"), (0, 4, "≥ 1")] {
            let Stop(failure) = replicas(wanted, Device::Cuda(0), devices).unwrap_err();
            assert_eq!(failure.cause, Cause::InvalidInput);
            assert!(failure.sentence.starts_with(&format!("rollout_num_gpus = {wanted}")), "{}", failure.sentence);
            assert!(failure.sentence.contains(words), "{}", failure.sentence);
        }
    }
}
