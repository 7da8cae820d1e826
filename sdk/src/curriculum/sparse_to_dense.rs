//! Sparse-to-dense (arXiv 2605.12483): scarce labels go to the teacher, which turns them into a dense
//! signal for the student.

use training_gym_core::spec::{AdvantageEstimator, Divergence, ResponseSource};

use super::{Curriculum, Error, StageResult};
use crate::config::{Model, Opd, Recipe, TrainConfig};
use crate::dataset::HuggingFaceDataset;
use crate::gym::Gym;

/// A stage: its prompts, and how it trains. What makes it the stage it is (who is trained, from whom,
/// on whose responses) is the program's to say.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The prompts.
    pub dataset: HuggingFaceDataset,
    /// Sizes, lengths, learning rate, reward.
    pub recipe: Recipe,
}

impl Stage {
    /// Training on `dataset` as `recipe` says.
    pub fn new(dataset: HuggingFaceDataset, recipe: Recipe) -> Self {
        Self { dataset, recipe }
    }
}

/// How the student ends.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a program has one, and a box would be in everybody's way")]
pub enum Finish {
    /// Reinforcement learning of the student on held-out labels: the stage's recipe has the reward.
    StudentRl(Stage),
    /// The control of that: as many rollout steps as given, no new labels. The last stage of the student
    /// is trained again, from where it ended, on the rollouts it recorded.
    Replay {
        /// Rollout steps.
        num_rollout: u64,
    },
}

/// The stages, in their order; each may be left out, which is how they are measured.
///
/// | stage, and its run | who learns | from what |
/// |---|---|---|
/// | `sft` | student | the likelihood of a dataset's responses (`recipe.responses`): a cold start, not of the paper |
/// | `teacher-rl` (1) | teacher | the reward alone |
/// | `warm-up` (2a) | student | forward KL to the teacher, on the teacher's responses |
/// | `opd` (2b) | student | reverse KL to the teacher, on its own responses |
/// | `student-rl` or `replay` (3) | student | the reward alone, on held-out labels; or the control |
///
/// In `warm-up` and `opd`, `recipe.opd` may say more (another divergence, a selection of tokens): the
/// model it names is replaced by the teacher as it was trained. Sources differ on whether this is a
/// program of three stages or of four; 2a and 2b are two here.
///
/// ```no_run
/// # use training_gym::prelude::*;
/// # async fn f(gym: &Gym, reward: RewardFn, labelled: HuggingFaceDataset, open: HuggingFaceDataset) -> anyhow::Result<()> {
/// let (student, teacher) = (models::QWEN3_1_7B, models::QWEN3_8B);
/// let program = SparseToDense {
///     teacher_rl: Some(Stage::new(labelled, Recipe { custom_rm_function: Some(reward), ..teacher.recipe() })),
///     warm_up: Some(Stage::new(open.clone(), student.recipe())),
///     opd: Some(Stage::new(open, student.recipe())),
///     ..SparseToDense::of(student, teacher)
/// };
/// let result = program.run(gym, "bridge-1").await?;
/// println!("{}", result.student().name());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SparseToDense {
    /// The student as it starts.
    pub student: Model,
    /// The teacher as it starts: a model with the student's tokenizer.
    pub teacher: Model,
    /// Supervised fine-tuning of the student before everything else.
    pub sft: Option<Stage>,
    /// Reinforcement learning of the teacher.
    pub teacher_rl: Option<Stage>,
    /// The student's first steps, on the teacher's responses.
    pub warm_up: Option<Stage>,
    /// On-policy distillation.
    pub opd: Option<Stage>,
    /// What comes after.
    pub finish: Option<Finish>,
}

/// What the program left.
#[derive(Clone, Debug)]
pub struct SparseToDenseResult {
    student: Model,
    teacher: Model,
    stages: Vec<StageResult>,
}

impl SparseToDenseResult {
    /// The student as it ended.
    pub fn student(&self) -> Model {
        self.student
    }

    /// The teacher it learnt from.
    pub fn teacher(&self) -> Model {
        self.teacher
    }

    /// The stages that ran, in order.
    pub fn stages(&self) -> &[StageResult] {
        &self.stages
    }
}

const SFT: &str = "sft";
const TEACHER_RL: &str = "teacher-rl";
const WARM_UP: &str = "warm-up";
const OPD: &str = "opd";
const STUDENT_RL: &str = "student-rl";
const REPLAY: &str = "replay";

impl SparseToDense {
    /// No stage yet; for the struct-update syntax.
    #[must_use]
    pub fn of(student: Model, teacher: Model) -> Self {
        Self { student, teacher, sft: None, teacher_rl: None, warm_up: None, opd: None, finish: None }
    }

    /// Runs the stages, one after the other, as runs `PROGRAM-STAGE`. Started again under the same name, it
    /// takes what is done and goes on where it was cut.
    ///
    /// # Errors
    /// [`Error::Recipe`] before anything runs, where a recipe does not fit its stage; then those of
    /// [`Curriculum::stage`].
    pub async fn run(&self, gym: &Gym, program: &str) -> Result<SparseToDenseResult, Error> {
        self.run_in(Curriculum::new(gym, program)).await
    }

    /// As [`run`](Self::run), as stages of a curriculum that may have had others before.
    ///
    /// # Errors
    /// As there.
    pub async fn run_in(&self, mut curriculum: Curriculum) -> Result<SparseToDenseResult, Error> {
        self.check()?;
        let (mut student, mut teacher) = (self.student, self.teacher);
        let mut stages = Vec::new();
        // What a replay would train on again.
        let mut last = None;
        for stage in self.of_models() {
            let (of_teacher, config) = match stage {
                Planned::Sft(stage) => (false, config(student, stage, None)),
                Planned::TeacherRl(stage) => (true, config(teacher, stage, None)),
                Planned::WarmUp(stage) => {
                    let opd = taught(stage, teacher, Divergence::ForwardKl);
                    (false, config(student, stage, Some((opd, ResponseSource::Teacher))))
                }
                Planned::Opd(stage) => {
                    let opd = taught(stage, teacher, Divergence::ReverseKl);
                    (false, config(student, stage, Some((opd, ResponseSource::Student))))
                }
                Planned::StudentRl(stage) => (false, config(student, stage, None)),
                Planned::Replay(num_rollout) => {
                    let (run_id, before): (_, TrainConfig) = last.clone().ok_or(Error::Empty)?;
                    let responses = Some(ResponseSource::Recorded { run_id });
                    // A dataset's responses were one a prompt, unsaid.
                    let one = matches!(before.recipe.responses, Some(ResponseSource::Column { .. })).then_some(1);
                    let n_samples_per_prompt = before.recipe.n_samples_per_prompt.or(one);
                    let recipe =
                        Recipe { responses, num_rollout: Some(num_rollout), n_samples_per_prompt, ..before.recipe };
                    (false, TrainConfig { model: student, recipe, ..before })
                }
            };
            let name = stage.name();
            let done = curriculum.stage(name, config.clone()).await?;
            if of_teacher {
                teacher = done.model();
            } else {
                student = done.model();
                last = Some((done.result().training_run_id().clone(), config));
            }
            stages.push(done);
        }
        Ok(SparseToDenseResult { student, teacher, stages })
    }

    fn of_models(&self) -> Vec<Planned<'_>> {
        let finish = self.finish.as_ref().map(|finish| match finish {
            Finish::StudentRl(stage) => Planned::StudentRl(stage),
            Finish::Replay { num_rollout } => Planned::Replay(*num_rollout),
        });
        let planned = [
            self.sft.as_ref().map(Planned::Sft),
            self.teacher_rl.as_ref().map(Planned::TeacherRl),
            self.warm_up.as_ref().map(Planned::WarmUp),
            self.opd.as_ref().map(Planned::Opd),
            finish,
        ];
        planned.into_iter().flatten().collect()
    }

    /// What can be seen to be wrong before anything runs.
    fn check(&self) -> Result<(), Error> {
        let planned = self.of_models();
        if planned.is_empty() {
            return Err(Error::Empty);
        }
        planned.iter().try_for_each(Planned::check)?;
        let replays = planned.iter().any(|stage| matches!(stage, Planned::Replay(_)));
        if replays && self.sft.is_none() && self.warm_up.is_none() && self.opd.is_none() {
            return Err(refused(REPLAY, "responses", "no stage of the student recorded any", "add warm_up or opd"));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Planned<'a> {
    Sft(&'a Stage),
    TeacherRl(&'a Stage),
    WarmUp(&'a Stage),
    Opd(&'a Stage),
    StudentRl(&'a Stage),
    Replay(u64),
}

impl Planned<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Sft(_) => SFT,
            Self::TeacherRl(_) => TEACHER_RL,
            Self::WarmUp(_) => WARM_UP,
            Self::Opd(_) => OPD,
            Self::StudentRl(_) => STUDENT_RL,
            Self::Replay(_) => REPLAY,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let name = self.name();
        let no_teacher = "this stage has no teacher";
        match self {
            Self::Replay(_) => Ok(()),
            Self::Sft(Stage { recipe, .. }) => match recipe {
                _ if recipe.opd.is_some() => Err(refused(name, "opd", no_teacher, "leave it unset")),
                _ if matches!(recipe.responses, Some(ResponseSource::Column { .. })) => Ok(()),
                _ => Err(refused(
                    name,
                    "responses",
                    "it is trained on a dataset's responses",
                    "set Some(ResponseSource::column(…))",
                )),
            },
            Self::TeacherRl(Stage { recipe, .. }) | Self::StudentRl(Stage { recipe, .. }) => match recipe {
                _ if recipe.opd.is_some() => Err(refused(name, "opd", no_teacher, "leave it unset")),
                _ if recipe.responses.is_some() => Err(program_says(name)),
                _ if !recipe.is_rewarded() => Err(refused(
                    name,
                    "custom_rm_function",
                    "it learns from a reward",
                    "set it, or rollout_environment",
                )),
                _ => Ok(()),
            },
            Self::WarmUp(Stage { recipe, .. }) | Self::Opd(Stage { recipe, .. }) => match recipe {
                _ if recipe.responses.is_some() => Err(program_says(name)),
                _ if recipe.opd.as_ref().is_some_and(|opd| opd.co_resident.is_none()) => Err(refused(
                    name,
                    "opd",
                    "the teacher is the one of the stage before, in the trainer itself",
                    "take Opd::co_resident, or leave it unset",
                )),
                _ if recipe.is_rewarded() && recipe.advantage != Some(AdvantageEstimator::Ignored) => Err(refused(
                    name,
                    "custom_rm_function",
                    "labels are for the stages of rewards; here a reward may only be reported",
                    "leave it unset, or set advantage: Some(AdvantageEstimator::Ignored)",
                )),
                _ => Ok(()),
            },
        }
    }
}

fn refused(stage: &'static str, field: &'static str, bound: &'static str, remedy: &'static str) -> Error {
    Error::Recipe { stage, field, bound, remedy }
}

fn program_says(stage: &'static str) -> Error {
    refused(stage, "responses", "whose they are is what makes the stage", "leave it unset")
}

/// Distillation from the teacher as it is now, by `divergence` unless the stage says more.
fn taught(stage: &Stage, teacher: Model, divergence: Divergence) -> Opd {
    let mut opd = stage.recipe.opd.clone().unwrap_or_else(|| Opd::co_resident(teacher).divergence(divergence));
    if let Some(co_resident) = &mut opd.co_resident {
        co_resident.model = teacher;
    }
    opd
}

fn config(model: Model, stage: &Stage, taught: Option<(Opd, ResponseSource)>) -> TrainConfig {
    let mut recipe = stage.recipe.clone();
    if let Some((opd, responses)) = taught {
        (recipe.opd, recipe.responses) = (Some(opd), Some(responses));
    }
    TrainConfig { model, dataset: stage.dataset.clone(), recipe }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::models;
    use crate::reward::{RewardError, Sample};

    #[training_gym::reward]
    fn right(_sample: &mut Sample) -> Result<f64, RewardError> {
        Ok(1.0)
    }

    fn stage(recipe: Recipe) -> Stage {
        Stage::new(HuggingFaceDataset::new("org/rows"), recipe)
    }

    fn none() -> SparseToDense {
        SparseToDense::of(models::QWEN3_0_6B, models::QWEN3_4B)
    }

    #[test]
    fn a_recipe_that_does_not_fit_its_stage_is_refused_by_name() {
        let plain = || Some(stage(Recipe::default()));
        let rewarded = || Recipe { custom_rm_function: Some(RIGHT), ..Recipe::default() };
        let opd = Recipe { opd: Some(Opd::to_url("http://127.0.0.1:1/generate")), ..rewarded() };
        let replay = Some(Finish::Replay { num_rollout: 3 });
        for (program, words) in [
            (none(), "without a stage"),
            (SparseToDense { teacher_rl: plain(), ..none() }, "`teacher-rl`: recipe.custom_rm_function"),
            (SparseToDense { teacher_rl: Some(stage(opd.clone())), ..none() }, "`teacher-rl`: recipe.opd"),
            (SparseToDense { sft: plain(), ..none() }, "`sft`: recipe.responses"),
            (SparseToDense { warm_up: Some(stage(rewarded())), ..none() }, "`warm-up`: recipe.custom_rm_function"),
            (
                SparseToDense { opd: Some(stage(Recipe { custom_rm_function: None, ..opd })), ..none() },
                "`opd`: recipe.opd",
            ),
            (SparseToDense { finish: replay.clone(), ..none() }, "`replay`: recipe.responses"),
        ] {
            let error = program.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let whole = SparseToDense {
            teacher_rl: Some(stage(rewarded())),
            warm_up: plain(),
            opd: plain(),
            finish: replay,
            ..none()
        };
        whole.check().unwrap();
        let names: Vec<&str> = whole.of_models().iter().map(Planned::name).collect();
        assert_eq!(names, ["teacher-rl", "warm-up", "opd", "replay"]);
    }

    #[test]
    fn the_teacher_as_it_was_trained_takes_the_place_of_the_one_a_recipe_names() {
        let chosen = Opd::co_resident(models::QWEN3_4B).divergence(Divergence::Jsd { beta: 0.5 });
        let stage = stage(Recipe { opd: Some(chosen), ..Recipe::default() });
        let opd = taught(&stage, models::QWEN3_8B, Divergence::ReverseKl).co_resident.unwrap();
        assert_eq!((opd.model, opd.divergence), (models::QWEN3_8B, Divergence::Jsd { beta: 0.5 }));
    }
}
