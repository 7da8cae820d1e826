//! The run a person asks for, and the only road from it to a [`RunSpec`].

use training_gym_core::ids::RunId;
use training_gym_core::spec::{
    DataSpec, DistillSpec, EvalSpec, ModelSpec, NodeSpec, ProgramRef, RewardSpec, RowsRef, RunSpec,
};

use super::model::context_length;
use super::settle::{BY_NAME, Settled, settle};
use super::{Error, Explanation, Model, ModelSource, Problem, Recipe};
use crate::dataset::HuggingFaceDataset;

/// A training run: the student, its prompts, and how it trains.
#[derive(Clone, Debug)]
pub struct TrainConfig {
    /// The student as it starts.
    pub model: Model,
    /// The prompts.
    pub dataset: HuggingFaceDataset,
    /// How it trains.
    pub recipe: Recipe,
}

/// What is known of a launch beside the configuration; `None` is unknown, and not checked against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// GPUs of the machine; 0 is a CPU.
    pub gpus: Option<usize>,
    /// Whether the launch has rows to evaluate on.
    pub eval: Option<bool>,
    /// Training rows.
    pub rows: Option<u64>,
    /// The longest sequence the model allows, in tokens.
    pub context_length: Option<usize>,
    /// Whether prompts go through the chat template.
    pub chat_template: Option<bool>,
}

impl TrainConfig {
    /// Verifies the values alone, at once and without network, runtime or reading the dataset: bounds,
    /// and fields that contradict each other. [`check`](Self::check) verifies everything.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn check_values(&self) -> Result<(), Error> {
        self.check_with(&Facts::default())
    }

    /// [`check_values`](Self::check_values), with what is known of the launch.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn check_with(&self, facts: &Facts) -> Result<(), Error> {
        let mut problems = self.model.problems();
        problems.extend(self.dataset.check().err().map(|error| Problem {
            field: "dataset".to_owned(),
            value: None,
            bound: error.to_string(),
            remedy: String::new(),
        }));
        problems.extend(settle(&self.recipe, &self.facts(facts)).problems);
        refused(problems)
    }

    /// Each value the run would have, and where it came from.
    pub fn explain(&self) -> Explanation {
        let mut explanation = settle(&self.recipe, &self.facts(&Facts::default())).explanation;
        if let Some(preset) = self.recipe.preset.filter(|preset| *preset != self.model) {
            explanation.notes.push(format!("the recipe began as the preset of {preset}; the model is {}", self.model));
        }
        explanation
    }

    /// `facts`, and what the configuration itself says.
    fn facts(&self, facts: &Facts) -> Facts {
        let local = match self.model.source() {
            ModelSource::Folder(folder) => context_length(folder),
            ModelSource::Hub { .. } | ModelSource::Stored(_) => None,
        };
        Facts {
            context_length: facts.context_length.or(local),
            chat_template: Some(self.dataset.applies_chat_template()),
            ..*facts
        }
    }
}

fn refused(problems: Vec<Problem>) -> Result<(), Error> {
    if problems.is_empty() { Ok(()) } else { Err(Error::Refused(problems)) }
}

/// What a launch adds to a configuration.
#[derive(Clone, Debug)]
pub struct Resolve<'a> {
    /// What the person typed.
    pub config: &'a TrainConfig,
    /// The run's name.
    pub run_id: RunId,
    /// The student on this machine.
    pub model: ModelSpec,
    /// The co-resident teacher on this machine; needed where the recipe names one.
    pub co_teacher: Option<ModelSpec>,
    /// The training rows in the store.
    pub train: RowsRef,
    /// The held-out rows in the store, if any.
    pub eval: Option<RowsRef>,
    /// The person's program in the store; needed where there is a reward function.
    pub program: Option<ProgramRef>,
    /// Where it computes; the recipe's `device` and `dtype` go before it.
    pub node: NodeSpec,
}

/// Makes the complete spec of a run.
///
/// # Errors
/// Everything that is wrong, at once.
pub fn resolve(launch: Resolve<'_>) -> Result<RunSpec, Error> {
    let Resolve { config, run_id, model, co_teacher, train, eval, program, node } = launch;
    let device = config.recipe.device.clone().unwrap_or_else(|| node.device.clone());
    let facts = config.facts(&Facts {
        gpus: (device == "cpu").then_some(0),
        eval: Some(eval.is_some()),
        rows: Some(train.rows),
        context_length: context_length(&model.folder),
        chat_template: None,
    });
    let settled = settle(&config.recipe, &facts);
    let mut problems = settled.problems;
    if settled.reward.is_some() && program.is_none() {
        problems.push(Problem {
            field: "recipe.custom_rm_function".to_owned(),
            value: settled.reward.as_ref().map(|reward| reward.function.clone()),
            bound: "the program that holds the function is not in the store".to_owned(),
            remedy: "launch from a program started by #[training_gym::main]".to_owned(),
        });
    }
    if let Some(teacher) = settled.teacher.as_ref().filter(|teacher| teacher.url.starts_with(&format!("{BY_NAME}://")))
    {
        problems.push(Problem {
            field: "recipe.opd.teacher.url".to_owned(),
            value: Some(teacher.url.clone()),
            bound: "the deployment has no address yet".to_owned(),
            remedy: "wait until it is ready".to_owned(),
        });
    }
    if settled.distill.is_some() && co_teacher.is_none() {
        problems.push(Problem {
            field: "recipe.opd.co_resident.model".to_owned(),
            value: None,
            bound: "the teacher's files are not on this machine yet".to_owned(),
            remedy: "launch it, which fetches them".to_owned(),
        });
    }
    refused(problems)?;
    let Settled {
        num_rollout,
        rollout,
        max_prompt_len,
        reward,
        environment: rollout_environment,
        teacher,
        distill,
        advantage,
        update,
        save,
        eval: shape,
        job,
        responses,
        memory,
        ..
    } = settled;
    let reward = reward.zip(program).map(|(reward, program)| RewardSpec {
        function: reward.function,
        post_process: reward.post_process,
        program,
        timeout_secs: reward.timeout_secs,
        max_concurrency: reward.max_concurrency,
        max_ungraded_fraction: reward.max_ungraded_fraction,
        grade_truncated: reward.grade_truncated,
        egress: reward.egress,
        files: reward.files,
    });
    let eval = eval.map(|rows| EvalSpec {
        rows,
        eval_interval: shape.eval_interval,
        n_samples_per_eval_prompt: shape.n_samples_per_eval_prompt,
        sampling: shape.sampling,
        eval_max_response_len: shape.eval_max_response_len,
    });
    Ok(RunSpec {
        run_id,
        model,
        data: DataSpec {
            train,
            apply_chat_template: config.dataset.applies_chat_template(),
            chat_template_kwargs: job.chat_template_kwargs,
            shuffle: job.shuffle,
            max_prompt_len,
        },
        rollout,
        reward,
        teacher,
        distill: distill.zip(co_teacher).map(|(distilled, teacher)| DistillSpec {
            teacher,
            divergence: distilled.divergence,
            switch: distilled.switch,
            coef: distilled.coef,
            selection: distilled.selection,
        }),
        advantage,
        update,
        eval,
        save,
        node: NodeSpec { device, dtype: job.dtype.unwrap_or(node.dtype), ..node },
        environment: job.environment,
        memory,
        num_rollout,
        seed: job.seed,
        responses,
        rollout_environment,
    })
}
