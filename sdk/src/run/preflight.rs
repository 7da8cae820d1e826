//! `config.check().report()`: each thing a run needs, looked at for itself, in one table.

use serde::Deserialize;
use training_gym_core::chain;
use training_gym_core::spec::{ModelSpec, RunSpec, TeacherDialect};
use training_gym_core::wire::ModelInfo;

use super::launch::{Prepared, materialise};
use super::{Error, TrainCheck, TrainLaunch, runtime_check, teacher_file};
use crate::config::Facts;
use crate::dataset::{self, HuggingFaceDataset, Materialised, refuse_shared_rows};
use crate::doctor::machine::size;
use crate::doctor::{Finding, Report};
use crate::gym::Gym;
use crate::program;

const EARLIER: &str = "something above has to be put right first";

impl TrainCheck {
    /// The same as awaiting it, as a table: each thing that a run needs with what was seen and what to do.
    /// It goes on after the first that is wrong; what depends on that is skipped.
    ///
    /// ```no_run
    /// # async fn example(config: training_gym::config::TrainConfig) {
    /// let report = config.check().report().await;
    /// println!("{report}");
    /// assert!(!report.has_failed());
    /// # }
    /// ```
    pub async fn report(self) -> Report {
        self.0.report().await
    }
}

impl TrainLaunch {
    /// See [`TrainCheck::report`]; with the other options of a launch.
    pub async fn report(self) -> Report {
        let mut report = Report::default();
        let gym = match self.gym.clone().map_or_else(Gym::from_env, Ok) {
            Ok(gym) => gym,
            Err(error) => {
                report.push(Finding::failed("client", chain(&error), error.hint().unwrap_or_default()));
                return report;
            }
        };
        let values = self.config.check_with(&Facts { eval: Some(self.eval.is_some()), ..Facts::default() });
        let in_order = values.is_ok();
        report.push(match values {
            Ok(()) => Finding::ok("configuration", "every value is within its bounds"),
            Err(error) => Finding::failed("configuration", chain(&error), "correct the fields that are named"),
        });
        report.push(self.program());
        let student = gym.model(self.config.model, self.config.model.name().to_owned(), None).await;
        report.push(match student.map_err(Error::from) {
            Ok(placed) => Finding::ok("student", of_model(&placed.spec)),
            Err(error) => {
                let remedy = "choose a family of `docs/models.md`, and see that its files can be had";
                Finding::failed("student", chain(&error), error.hint().unwrap_or(remedy))
            }
        });
        let train = rows(&mut report, &gym, "training rows", Some(self.config.dataset.clone())).await;
        let eval = rows(&mut report, &gym, "evaluation rows", self.eval.clone()).await;
        report.push(overlap(&self, train.as_ref(), eval.as_ref()));
        match in_order && !report.has_failed() {
            false => {
                for check in ["prompts", "teacher"] {
                    report.push(Finding::skipped(check, EARLIER));
                }
            }
            true => match self.clone().prepare().await {
                Ok(prepared) => prompts_and_teacher(&mut report, &gym, &prepared).await,
                Err(error) => {
                    report.push(Finding::skipped("prompts", EARLIER));
                    let check =
                        if matches!(error, Error::Teacher(_) | Error::NoToken { .. }) { "teacher" } else { "launch" };
                    report.push(Finding::failed(check, chain(&error), error.hint().unwrap_or_default()));
                }
            },
        }
        report.findings.extend(gym.doctor(&self.resources).await.findings);
        report
    }

    /// Whether this program can be shipped, where the run needs that.
    fn program(&self) -> Finding {
        if !self.config.recipe.needs_program() {
            return Finding::skipped("program", "no reward function of this program is used: nothing is shipped");
        }
        match program::current() {
            Err(error) => Finding::failed("program", chain(&error), ""),
            Ok(program) => match program.path().metadata() {
                Ok(file) => Finding::ok("program", format!("this executable is shipped: {}", size(file.len()))),
                Err(error) => {
                    Finding::failed("program", error.to_string(), "it was removed while it runs: build it anew")
                }
            },
        }
    }
}

fn of_model(model: &ModelSpec) -> String {
    match &model.hub {
        Some(hub) => format!("{} at commit {:.12}", hub.repo, hub.commit),
        None => model.folder.display().to_string(),
    }
}

async fn rows(
    report: &mut Report,
    gym: &Gym,
    check: &'static str,
    dataset: Option<HuggingFaceDataset>,
) -> Option<Materialised> {
    let Some(dataset) = dataset else {
        report.push(Finding::skipped(check, "none are given"));
        return None;
    };
    match materialise(gym, dataset, check.trim_end_matches(" rows")).await {
        Ok(rows) => {
            let notes: String = rows.notes.iter().map(|note| format!("\n{note}")).collect();
            report.push(Finding::ok(check, format!("{} rows{notes}", rows.row_hashes.len())));
            Some(rows)
        }
        Err(error) => {
            report.push(Finding::failed(check, chain(&error), "see `docs/guides/datasets.md`"));
            None
        }
    }
}

fn overlap(launch: &TrainLaunch, train: Option<&Materialised>, eval: Option<&Materialised>) -> Finding {
    let (Some(train), Some(eval)) = (train, eval) else {
        return Finding::skipped("overlap", "there are not both training and evaluation rows");
    };
    match refuse_shared_rows(train, eval) {
        Ok(()) => Finding::ok("overlap", "no evaluation row is a training row"),
        Err(error) if launch.allows_shared_rows() => Finding::warning(
            "overlap",
            chain(&error),
            "the evaluation says less than it seems; `.allow_shared_rows(true)` allows it",
        ),
        Err(error @ dataset::Error::SharedRows { .. }) => Finding::failed(
            "overlap",
            chain(&error),
            "choose other slices, or allow it with `.allow_shared_rows(true)`",
        ),
        Err(error) => Finding::failed("overlap", chain(&error), ""),
    }
}

/// What only the runtime can say: template, lengths, and whether teacher and student speak the same tokens.
async fn prompts_and_teacher(report: &mut Report, gym: &Gym, prepared: &Prepared) {
    let spec = &prepared.spec;
    let student = match runtime_check::findings(gym, prepared).await {
        Ok((findings, student)) => {
            report.findings.extend(findings);
            Some(student)
        }
        Err(error) => {
            report.push(Finding::failed("prompts", chain(&error), "correct the template, its variables or the rows"));
            None
        }
    };
    report.findings.extend(teacher(gym, prepared, student.as_ref()).await);
    report.push(match super::spec_file::compare(gym, spec).await {
        Ok(()) => Finding::ok("run id", format!("`{}` is free, or the same run", spec.run_id)),
        Err(error) => Finding::failed("run id", chain(&error), error.hint().unwrap_or_default()),
    });
}

/// What the runtime says of a model's tokenizer.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Student {
    #[serde(default)]
    pub(super) eos_token_ids: Vec<i64>,
    #[serde(default)]
    pub(super) vocab_sha256: Option<String>,
}

async fn teacher(gym: &Gym, prepared: &Prepared, student: Option<&Student>) -> Vec<Finding> {
    let spec: &RunSpec = &prepared.spec;
    let Some(teacher) = &spec.teacher else {
        return vec![Finding::skipped("teacher", "the run has none")];
    };
    let url = &teacher.url;
    if teacher.dialect != TeacherDialect::Sglang {
        return vec![Finding::skipped(
            "teacher",
            format!("{url} does not tell its vocabulary: the run's start probes it"),
        )];
    }
    if let Err(error) = teacher_file::ask(gym, spec, prepared.teacher_token()).await {
        return vec![Finding::failed("teacher", chain(&error), error.hint().unwrap_or_default())];
    }
    let Ok(Some(info)) = teacher_file::info(gym, teacher, prepared.teacher_token()).await else {
        let remedy = "see that it runs, that the URL ends in `/generate`, and that the token is right";
        return vec![Finding::failed("teacher", format!("{url} does not say what it serves"), remedy)];
    };
    let mut findings = vec![Finding::ok("teacher", format!("{url} serves `{}`", info.model_path))];
    findings.extend(student.map(|student| same_tokens(student, &info)).into_iter().flatten());
    findings
}

/// Whether vocabulary and end tokens are the same.
fn same_tokens(student: &Student, teacher: &ModelInfo) -> Vec<Finding> {
    let vocabulary = match (&student.vocab_sha256, &teacher.vocab_sha256) {
        (Some(ours), Some(theirs)) if ours == theirs => Finding::ok("vocabulary", "the same for student and teacher"),
        (Some(ours), Some(theirs)) => Finding::failed(
            "vocabulary",
            format!("the student's is {ours:.12}, the teacher's {theirs:.12}"),
            "token-level distillation needs the same tokenizer: choose a teacher of the student's family",
        ),
        _ => Finding::skipped("vocabulary", "the teacher does not tell its own"),
    };
    let ends = match &teacher.eos_token_ids {
        Some(theirs) => {
            let sorted = |ids: &[i64]| std::collections::BTreeSet::from_iter(ids.iter().copied());
            match sorted(&student.eos_token_ids) == sorted(theirs) {
                true => Finding::ok("end tokens", format!("{theirs:?} for both")),
                false => Finding::failed(
                    "end tokens",
                    format!(
                        "the student ends a response with {:?}, the teacher with {theirs:?}",
                        student.eos_token_ids
                    ),
                    "make `eos_token_id` in both `generation_config.json` the same",
                ),
            }
        }
        None => Finding::skipped("end tokens", "the teacher does not tell its own"),
    };
    vec![vocabulary, ends]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;

    #[test]
    fn teacher_and_student_must_speak_the_same_tokens() {
        let student = Student { eos_token_ids: vec![2, 3], vocab_sha256: Some("a".repeat(64)) };
        let info = |vocabulary: Option<&str>, ids: Option<Vec<i64>>| ModelInfo {
            model_path: "t".to_owned(),
            is_generation: true,
            eos_token_ids: ids,
            vocab_sha256: vocabulary.map(|c| c.repeat(64)),
            context_length: None,
            weight_version: None,
        };
        let outcomes =
            |info: &ModelInfo| same_tokens(&student, info).into_iter().map(|found| found.outcome).collect::<Vec<_>>();
        assert_eq!(outcomes(&info(Some("a"), Some(vec![3, 2]))), [Outcome::Ok, Outcome::Ok]);
        assert_eq!(outcomes(&info(Some("b"), Some(vec![2]))), [Outcome::Failed, Outcome::Failed]);
        assert_eq!(outcomes(&info(None, None)), [Outcome::Skipped, Outcome::Skipped]);
    }
}
