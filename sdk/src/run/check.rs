//! `config.check()`: everything a launch does, but start.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use training_gym_core::spec::{RunSpec, TeacherDialect};

use super::{Error, TrainLaunch, runtime_check, spec_file, teacher_file};
use crate::config::TrainConfig;
use crate::dataset::HuggingFaceDataset;
use crate::gym::Gym;

/// A configuration about to be checked: `.await` it for what it would be, [`Checked`].
#[must_use = "nothing is checked until it is awaited"]
#[derive(Debug)]
pub struct TrainCheck(pub(super) TrainLaunch);

/// A run that could be launched.
#[derive(Clone, Debug)]
pub struct Checked {
    /// What would happen.
    pub spec: RunSpec,
    /// What a person should know although nothing is wrong.
    pub notes: Vec<String>,
}

impl TrainConfig {
    /// Verifies all that can be verified without computing: the values, the model's files and whether
    /// the runtime computes its family, the dataset's rows, and tokenizer and chat template on each
    /// of them. What it fetches and prepares is there for the launch; nothing is started, and no run
    /// is made.
    ///
    /// `config.check().await?` asks [`Gym::from_env`]; `.on(&gym)` names another client. With the
    /// other options of a launch: `config.launch().run_id(…).check().await?`.
    ///
    /// ```no_run
    /// # async fn example(config: training_gym::config::TrainConfig) -> Result<(), training_gym::run::Error> {
    /// for note in config.check().await?.notes {
    ///     println!("{note}");
    /// }
    /// let run = config.launch().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self) -> TrainCheck {
        TrainCheck(self.clone().launch())
    }
}

impl TrainCheck {
    /// Checks with this client instead of [`Gym::from_env`].
    pub fn on(self, gym: &Gym) -> Self {
        Self(self.0.on(gym))
    }

    /// The rows the launch will evaluate on; see [`TrainLaunch::eval`].
    pub fn eval(self, dataset: HuggingFaceDataset) -> Self {
        Self(self.0.eval(dataset))
    }
}

impl IntoFuture for TrainCheck {
    type Output = Result<Checked, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.check())
    }
}

impl TrainLaunch {
    /// Does everything but start: see [`TrainConfig::check`]. Where `.run_id(…)` names a run there is,
    /// it must be the same run, with the same teacher.
    ///
    /// # Errors
    /// Those of the launch; [`Error::Check`] with the runtime's words.
    pub async fn check(self) -> Result<Checked, Error> {
        let prepared = self.prepare().await?;
        let (gym, spec) = (&prepared.gym, &prepared.spec);
        let mut notes = prepared.notes.clone();
        spec_file::compare(gym, spec).await?;
        notes.extend(runtime_check::check(gym, spec, &prepared.model_folder).await?);
        let found = teacher_file::ask(gym, spec, prepared.teacher_token()).await?;
        if let (Some(teacher), None) = (&spec.teacher, found)
            && teacher.dialect == TeacherDialect::Sglang
        {
            let url = &teacher.url;
            notes.push(format!(
                "the teacher at {url} does not say what it serves: is it there? The run's start asks again"
            ));
        }
        Ok(Checked { spec: prepared.spec, notes })
    }
}
