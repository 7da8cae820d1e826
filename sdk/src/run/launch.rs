//! Launching a run: from a configuration to a spec in the store and a job of the backend.

use std::collections::BTreeMap;
use std::env;
use std::future::{Future, IntoFuture};
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use training_gym_core::ids::{AppName, InvalidName, RunId};
use training_gym_core::spec::{ModelSpec, NodeSpec, RowsRef, RunSpec, SecretRef};

use super::{Error, TrainRun, runtime_check, shipped, spec_file, status, teacher_file};
use crate::backend::{self, IfExisting, JobId, Request, Resources, Secret, Workload};
use crate::config::{self, Facts, Recipe, Resolve, Teacher, TrainConfig};
use crate::dataset::{HuggingFaceDataset, Materialised, refuse_shared_rows};
use crate::deploy::{self, CustomDeployment, Deployment};
use crate::gym::Gym;
use crate::program;

/// Name of the teacher's token among a job's secrets.
const TEACHER_TOKEN: &str = "teacher-token";
/// How long a launch waits for a teacher that was still starting when it was named.
const TEACHER_PATIENCE: Duration = Duration::from_secs(15 * 60);

/// A run about to be launched: `.await` it for a [`TrainRun`].
#[must_use = "nothing is launched until it is awaited"]
#[derive(Clone, Debug)]
pub struct TrainLaunch {
    pub(super) config: TrainConfig,
    run_id: Option<Result<RunId, InvalidName>>,
    pub(super) eval: Option<HuggingFaceDataset>,
    shared_rows: SharedRows,
    pub(super) resources: Resources,
    pub(super) gym: Option<Gym>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SharedRows {
    Refused,
    Allowed,
}

/// A spec and what its job needs beside it.
pub(super) struct Prepared {
    pub(super) gym: Gym,
    pub(super) spec: RunSpec,
    /// Where the model's files are on this machine.
    pub(super) model_folder: PathBuf,
    resources: Resources,
    /// Whether the launch names the number of threads.
    threads_asked: bool,
    pub(super) secrets: BTreeMap<String, Secret>,
    pub(super) notes: Vec<String>,
}

impl Prepared {
    pub(super) fn teacher_token(&self) -> Option<&Secret> {
        self.secrets.get(TEACHER_TOKEN)
    }
}

impl TrainConfig {
    /// Launches the run: `config.launch().await?`. See [`TrainLaunch`] for the options.
    pub fn launch(self) -> TrainLaunch {
        TrainLaunch {
            config: self,
            run_id: None,
            eval: None,
            shared_rows: SharedRows::Refused,
            resources: Resources::default(),
            gym: None,
        }
    }
}

impl TrainLaunch {
    /// Launches with this client instead of [`Gym::from_env`].
    pub fn on(mut self, gym: &Gym) -> Self {
        self.gym = Some(gym.clone());
        self
    }

    /// Names the run. A run of this name that stands still is continued from its last published
    /// state, one that runs is attached to, one that succeeded is returned as it is; in each case
    /// its spec must be the same. Unset: a new name.
    pub fn run_id(mut self, id: impl AsRef<str>) -> Self {
        self.run_id = Some(id.as_ref().parse());
        self
    }

    /// Evaluates on these rows as the recipe's `eval_interval` says. A row that is also a training
    /// row is refused.
    pub fn eval(mut self, dataset: HuggingFaceDataset) -> Self {
        self.eval = Some(dataset);
        self
    }

    /// Lets training and evaluation share rows.
    pub fn allow_shared_rows(mut self, yes: bool) -> Self {
        self.shared_rows = if yes { SharedRows::Allowed } else { SharedRows::Refused };
        self
    }

    /// What it computes with; the recipe's `device` and `dtype` go before it. What is unset stays, in
    /// a run that is continued, as it was.
    pub fn resources(mut self, resources: Resources) -> Self {
        self.resources = resources;
        self
    }

    pub(super) fn allows_shared_rows(&self) -> bool {
        self.shared_rows == SharedRows::Allowed
    }

    async fn start(self) -> Result<TrainRun, Error> {
        let prepared = self.prepare().await?;
        let teacher_token = prepared.teacher_token().cloned();
        let Prepared { gym, mut spec, model_folder, resources, threads_asked, secrets, mut notes } = prepared;
        let run = TrainRun::new(&gym, spec.clone());
        if run.needs_no_start().await? {
            let spec = spec_file::settle(&gym, spec).await?;
            return Ok(TrainRun::new(&gym, spec).with_notes(notes));
        }
        notes.extend(runtime_check::check(&gym, &spec, &model_folder).await?);
        let teacher = teacher_file::ask(&gym, &spec, teacher_token.as_ref()).await?;
        // Held until the job is submitted.
        let share = gym.backend().share(&JobId::train(&spec.run_id)).await?;
        if !threads_asked {
            let before = spec_file::read(&gym, &spec.run_id).await?;
            spec.node.threads = before.map_or(share.threads(), |before| before.node.threads);
        }
        if run.is_live().await? && !run.needs_no_start().await? {
            // It has said its last word and its process is about to be gone: nothing to attach to.
            run.cancel().await?;
        }
        let spec = spec_file::settle(&gym, spec).await?;
        if let Some(teacher) = teacher {
            teacher_file::record(&gym, &spec.run_id, &teacher).await?;
        }
        let run = TrainRun::new(&gym, spec).with_notes(notes);
        // Another launch may have been faster.
        if !run.needs_no_start().await? {
            let attempts = run.stored_attempt().await?;
            let request = Request {
                environment: run.spec().environment.clone(),
                secrets,
                labels: BTreeMap::from([(status::ATTEMPTS_BEFORE.to_owned(), attempts.to_string())]),
                resources,
                reward_worker: asks_rewards(run.spec()),
                reward_egress: run.spec().reward.as_ref().map(|reward| reward.egress.clone()).unwrap_or_default(),
                if_existing: IfExisting::Adopt,
                ..Request::new(Workload::Train {
                    run_id: run.training_run_id().clone(),
                    store: gym.backend().store_for_jobs(&gym.store().url()),
                    threads: run.spec().node.threads,
                })
            };
            gym.backend().submit(request).await?;
        }
        drop(share);
        Ok(run)
    }

    /// Fetches model and rows and makes the spec.
    pub(super) async fn prepare(self) -> Result<Prepared, Error> {
        let Self { mut config, run_id, eval, shared_rows, resources, gym } = self;
        let run_id = run_id.unwrap_or_else(|| Ok(RunId::generate()))?;
        // What can be seen at once, before anything is fetched.
        config.check_with(&Facts { eval: Some(eval.is_some()), ..Facts::default() })?;
        let program = config.recipe.needs_program().then(program::current).transpose()?;
        let gym = gym.map_or_else(Gym::from_env, Ok)?;
        if let (Some(program), Some(image)) = (&program, gym.backend().image()) {
            shipped::check(program, &image, &config.recipe)?;
        }

        let mut secrets = BTreeMap::new();
        if let Some(opd) = config.recipe.opd.as_mut().filter(|opd| opd.co_resident.is_none()) {
            address(&gym, &mut opd.teacher).await?;
            secrets = take_token(&gym, &JobId::train(&run_id), &mut opd.teacher).await?;
        }
        // A run that is continued takes the commits it took before, whatever a branch is by now.
        let before = spec_file::read(&gym, &run_id).await?;
        let pin = before.as_ref().and_then(|spec| spec.model.hub.as_ref());
        let placed = gym.model(config.model, config.model.name().to_owned(), pin).await?;
        let co_teacher = match config.recipe.opd.as_ref().and_then(|opd| opd.co_resident) {
            Some(teacher) => {
                let pin = before.as_ref().and_then(|spec| spec.distill.as_ref()?.teacher.hub.as_ref());
                Some(gym.model(teacher.model, teacher.model.name().to_owned(), pin).await?.spec)
            }
            None => None,
        };
        let pin = before.as_ref().and_then(|spec| spec.data.train.hub.as_ref());
        let train = materialise(&gym, config.dataset.clone().pinned(pin), "training").await?;
        let mut notes = train.notes.clone();
        let eval = match eval {
            Some(eval) => {
                let pin = before.as_ref().and_then(|spec| spec.eval.as_ref()?.rows.hub.as_ref());
                let rows = materialise(&gym, eval.pinned(pin), "evaluation").await?;
                if shared_rows == SharedRows::Refused {
                    refuse_shared_rows(&train, &rows).map_err(Error::SharedRows)?;
                }
                notes.extend(rows.notes);
                Some(rows.rows)
            }
            None => None,
        };
        let program = match program {
            Some(program) => Some(program.upload(gym.store().as_ref()).await?),
            None => None,
        };
        // The recipe goes before the launch, and both before what a run that is continued had.
        let before = before.map(|spec| spec.node);
        let threads_asked = resources.threads.is_some() || resources.cpu.is_some();
        notes.extend(gym.backend().not_applied(&resources));
        let resources = settled(&config.recipe, resources, before.as_ref());
        let share = gym.backend().share(&JobId::train(&run_id)).await?;
        let node = resources.node(&share, &placed.folder, gym.backend().fast_bfloat16())?;
        drop(share);
        let train: RowsRef = train.rows;
        notes.extend(config.explain().notes);
        // What is settled by the model's files is settled by those here.
        let model = ModelSpec { folder: placed.folder.clone(), ..placed.spec.clone() };
        let mut spec =
            config::resolve(Resolve { config: &config, run_id, model, co_teacher, train, eval, program, node })?;
        spec.model = placed.spec;
        let resources = resources.placement();
        Ok(Prepared { gym, spec, model_folder: placed.folder, resources, threads_asked, secrets, notes })
    }
}

/// Whether the reward function is called: what was recorded has its grades.
fn asks_rewards(spec: &RunSpec) -> bool {
    spec.reward.is_some() && !(spec.responses.is_recorded() && spec.eval.is_none())
}

/// What a run computes with: the recipe's word goes before the launch's, and both before what the run
/// had, where it is continued.
fn settled(recipe: &Recipe, asked: Resources, before: Option<&NodeSpec>) -> Resources {
    let device = recipe.device.clone().or(asked.device.clone());
    let named = device.is_some() || asked.gpus.is_some() || asked.gpu_type.is_some();
    let mut settled = Resources {
        device: if named { device } else { before.map(|node| node.device.clone()) },
        dtype: recipe.dtype.or(asked.dtype).or(before.map(|node| node.dtype)),
        threads: asked.threads.or(before.filter(|_| asked.cpu.is_none()).map(|node| node.threads)),
        ..asked
    };
    if settled.device() != "cpu" {
        // One device an engine replica.
        let replicas = recipe.rollout_num_gpus.and_then(|replicas| u32::try_from(replicas).ok());
        settled.gpus = settled.gpus.or(replicas);
    }
    settled
}

impl IntoFuture for TrainLaunch {
    type Output = Result<TrainRun, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.start())
    }
}

pub(super) async fn materialise(
    gym: &Gym,
    dataset: HuggingFaceDataset,
    rows: &'static str,
) -> Result<Materialised, Error> {
    dataset.materialise(gym.store().as_ref()).await.map_err(|source| Error::Dataset { rows, source })
}

/// Gives a teacher that was named as a deployment its address, once it answers.
async fn address(gym: &Gym, teacher: &mut Teacher) -> Result<(), Error> {
    let Some(name) = teacher.url.strip_prefix(deploy::BY_NAME) else { return Ok(()) };
    let name: AppName = name.parse()?;
    let wait = async {
        // Whatever it was launched as: here it is to give log-probabilities.
        let deployment = CustomDeployment::from(Deployment::find(gym.backend(), &name).await?);
        deployment.wait_until_ready(TEACHER_PATIENCE).await?;
        deployment.generate_url()
    };
    teacher.url = wait.await.map_err(|error| Error::Teacher(Box::new(error)))?;
    Ok(())
}

/// A token in a variable of this program, or one that lies with another job of a backend where jobs
/// do not see each other's files, becomes a secret of the job.
async fn take_token(gym: &Gym, id: &JobId, teacher: &mut Teacher) -> Result<BTreeMap<String, Secret>, Error> {
    let token = match &teacher.token {
        None => return Ok(BTreeMap::new()),
        Some(SecretRef::Env(variable)) => {
            let token = env::var(variable).ok().filter(|token| !token.trim().is_empty());
            Secret::new(token.ok_or_else(|| Error::NoToken { variable: variable.clone() })?.trim())
        }
        Some(place) => match gym.backend().carried_secret(place).await? {
            Some(token) => token,
            None => return Ok(BTreeMap::new()),
        },
    };
    teacher.token = Some(gym.backend().secret_ref(id, TEACHER_TOKEN));
    Ok(BTreeMap::from([(TEACHER_TOKEN.to_owned(), token)]))
}

/// A job that was never submitted is not an error here.
pub(super) fn known<T>(found: Result<T, backend::Error>) -> Result<Option<T>, backend::Error> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(backend::Error::UnknownJob { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
