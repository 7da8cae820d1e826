//! One row: its runs, and how many held-out problems what came of them gets right.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use training_gym::prelude::*;
use training_gym::scorers::score_answer;

use crate::rows::{self, Last, Method, Row, STAGE_STEPS, STEPS, Stages, recipe, rewarded};

/// Models as they are before anything is learnt.
pub(crate) const STARTS: [&str; 3] = ["student", "teacher", "early-teacher"];

/// What was measured of one row and seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The row, or one of [`STARTS`].
    pub(crate) row: String,
    /// Its seed; 0 for a start.
    pub(crate) seed: u64,
    /// Share of the held-out problems answered rightly, greedily.
    pub(crate) accuracy: f64,
    /// The same of the teacher that was trained on the way, where one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) teacher: Option<f64>,
    /// Seconds of the row's slowest run, by its own steps.
    pub(crate) slowest_run_seconds: f64,
    /// Seconds of all of it, loading and evaluation included.
    pub(crate) seconds: f64,
    /// Response tokens learnt from, the teacher's own stage apart.
    pub(crate) tokens: u64,
}

impl Line {
    pub(crate) fn start(name: &str, accuracy: f64) -> Self {
        let row = name.to_owned();
        Self { row, seed: 0, accuracy, teacher: None, slowest_run_seconds: 0.0, seconds: 0.0, tokens: 0 }
    }
}

/// `measured.jsonl`: a line for whatever was measured.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    lines: Vec<Line>,
}

impl Ledger {
    /// Reads what is there. A last line that was torn is measured again.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        if whole.len() < text.len() {
            File::options().write(true).open(path)?.set_len(whole.len() as u64)?;
        }
        let lines = whole.lines().enumerate().map(|(index, line)| {
            serde_json::from_str(line).with_context(|| format!("line {} of {}", index + 1, path.display()))
        });
        Ok(Self { path: path.to_owned(), lines: lines.collect::<Result<_>>()? })
    }

    pub(crate) fn has(&self, row: &str, seed: u64) -> bool {
        self.lines.iter().any(|line| line.row == row && line.seed == seed)
    }

    pub(crate) fn of(&self, row: &str) -> Vec<&Line> {
        self.lines.iter().filter(|line| line.row == row).collect()
    }

    pub(crate) fn add(&mut self, line: Line) -> Result<()> {
        let text = serde_json::to_string(&line)? + "\n";
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))?;
        file.sync_all()?;
        self.lines.push(line);
        Ok(())
    }
}

/// The demo's models and problems.
#[derive(Debug)]
pub(crate) struct Assets {
    folder: PathBuf,
}

impl Assets {
    pub(crate) fn of(root: &Path) -> Self {
        Self { folder: root.join("examples/assets/tiny") }
    }

    pub(crate) fn start(&self, name: &str) -> Model {
        Model::folder(self.folder.join(name))
    }

    fn problems(&self, name: &str) -> HuggingFaceDataset {
        let file = HuggingFaceDataset::file(self.folder.join(name));
        file.input_key("prompt").label_key("label").apply_chat_template(true)
    }
}

/// What a row's runs left.
struct Trained {
    student: Model,
    teacher: Option<Model>,
    results: Vec<TrainResult>,
    tokens: u64,
}

/// Measures a row with a seed.
pub(crate) async fn row(gym: &Gym, row: &Row, (seed, assets): (u64, &Assets)) -> Result<Line> {
    let began = Instant::now();
    let trained = match row.method {
        Method::Sampled => sampled(gym, row, (seed, assets)).await?,
        Method::Whole { divergence, selection, weighting } => {
            let mut opd = Opd::co_resident(assets.start("teacher")).divergence(divergence);
            if let Some((rule, ratio)) = selection {
                opd = opd.select(rule, ratio);
            }
            let graded = weighting.is_some();
            let recipe = Recipe {
                opd: Some(opd),
                weighting,
                custom_rm_function: graded.then_some(rows::RIGHT),
                advantage: graded.then_some(AdvantageEstimator::Ignored),
                ..recipe(STEPS, seed)
            };
            one_run(gym, row, recipe, (seed, assets)).await?
        }
        Method::Stages(stages) => staged(gym, row, stages, (seed, assets)).await?,
    };
    let seconds = |result: &TrainResult| result.metrics().iter().map(|step| step.step_seconds).sum::<f64>();
    let teacher = match trained.teacher {
        Some(teacher) => Some(accuracy(gym, teacher, assets).await?),
        None => None,
    };
    Ok(Line {
        row: row.name.to_owned(),
        seed,
        accuracy: accuracy(gym, trained.student, assets).await?,
        teacher,
        slowest_run_seconds: trained.results.iter().map(seconds).fold(0.0, f64::max),
        seconds: began.elapsed().as_secs_f64(),
        tokens: trained.tokens,
    })
}

fn tokens(result: &TrainResult) -> u64 {
    result.metrics().iter().map(|step| step.tokens).sum()
}

async fn one_run(gym: &Gym, row: &Row, recipe: Recipe, (seed, assets): (u64, &Assets)) -> Result<Trained> {
    let config = TrainConfig { model: assets.start("student"), dataset: assets.problems("train.jsonl"), recipe };
    let result = config.launch().run_id(format!("{}-{seed}", row.name)).on(gym).await?.result().await?;
    let (student, tokens) = (result.checkpoints().last().trained(), tokens(&result));
    Ok(Trained { student, teacher: None, results: vec![result], tokens })
}

async fn sampled(gym: &Gym, row: &Row, (seed, assets): (u64, &Assets)) -> Result<Trained> {
    let launch = CustomDeployment::launch(assets.start("teacher")).app_name("results-teacher");
    let teacher = launch.recreate_if_existing(true).on(gym).await?;
    let trained = async {
        teacher.wait_until_ready(Duration::from_secs(300)).await?;
        let recipe = Recipe { opd: Some(Opd::from(&teacher)), normalize_advantages: Some(true), ..recipe(STEPS, seed) };
        one_run(gym, row, recipe, (seed, assets)).await
    };
    let trained = trained.await;
    teacher.stop().await?;
    trained
}

async fn staged(gym: &Gym, row: &Row, stages: Stages, (seed, assets): (u64, &Assets)) -> Result<Trained> {
    let [one, two_a, two_b, three] = STAGE_STEPS;
    let train = |split: &str| assets.problems("train.jsonl").split(split);
    let open = train("train[500:3500]")?;
    let finish = match stages.last {
        None => None,
        Some(Last::StudentRl) => {
            Some(Finish::StudentRl(Stage::new(train("train[3500:]")?, rewarded(recipe(three, seed)))))
        }
        Some(Last::Replay) => Some(Finish::Replay { num_rollout: three }),
    };
    let labelled = train("train[:500]")?;
    let program = SparseToDense {
        teacher_rl: stages.teacher_rl.then(|| Stage::new(labelled, rewarded(recipe(one, seed)))),
        warm_up: stages.warm_up.then(|| Stage::new(open.clone(), recipe(two_a, seed))),
        opd: stages.opd.then(|| Stage::new(open, recipe(two_b, seed))),
        finish,
        ..SparseToDense::of(assets.start("student"), assets.start("early-teacher"))
    };
    let done = program.run(gym, &format!("{}-{seed}", row.name)).await?;
    let of_student = done.stages().iter().filter(|stage| stage.name() != "teacher-rl");
    Ok(Trained {
        student: done.student(),
        teacher: stages.teacher_rl.then(|| done.teacher()),
        tokens: of_student.map(|stage| tokens(stage.result())).sum(),
        results: done.stages().iter().map(|stage| stage.result().clone()).collect(),
    })
}

/// Share of the held-out problems a model gets right, answering greedily.
pub(crate) async fn accuracy(gym: &Gym, model: Model, assets: &Assets) -> Result<f64> {
    let endpoint = Endpoint::launch(model).app_name("results").recreate_if_existing(true).on(gym).await?;
    let report = async {
        endpoint.wait_until_ready(Duration::from_secs(300)).await?;
        let options = ChatOptions { temperature: Some(0.0), max_tokens: Some(48), ..ChatOptions::default() };
        let score = |row: &training_gym::prelude::Row, reply: &ChatReply| score_answer(&reply.content, &row.label);
        let problems = assets.problems("eval.jsonl");
        anyhow::Ok(evaluate(&endpoint, &problems, score).options(options).max_concurrency(16).quiet().await?)
    };
    let report = report.await;
    endpoint.stop().await?;
    let report = report?;
    if report.failed() > 0 {
        bail!("{} of the problems were not answered", report.failed());
    }
    Ok(report.accuracy().value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_is_measured_again_and_a_whole_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.jsonl");
        let mut ledger = Ledger::open(&path).unwrap();
        ledger.add(Line::start("student", 0.5)).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{whole}{{\"row\":\"jsd\",")).unwrap();
        let mut ledger = Ledger::open(&path).unwrap();
        assert!(ledger.has("student", 0) && !ledger.has("jsd", 1));
        ledger.add(Line { seed: 1, ..Line::start("jsd", 0.25) }).unwrap();
        let again = Ledger::open(&path).unwrap();
        assert_eq!(again.of("jsd"), [&Line { seed: 1, ..Line::start("jsd", 0.25) }]);
        fs::write(&path, "{}\n").unwrap();
        assert!(Ledger::open(&path).unwrap_err().to_string().contains("line 1 of"));
    }
}
