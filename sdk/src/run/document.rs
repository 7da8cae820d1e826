//! A run's documents that cannot be read: which file, and what to do about it.

use training_gym_core::ids::RunId;

use super::Error;
use super::checkpoints::place;
use crate::gym::Gym;

/// One of the JSON documents in a run's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Document {
    Spec,
    Status,
    /// A line of it, from 1.
    Metrics(usize),
    Teacher,
}

impl Document {
    /// The error of the document under `key` that is none.
    pub(super) fn unreadable<'a>(
        self,
        gym: &'a Gym,
        run_id: &'a RunId,
        key: &'a str,
    ) -> impl FnOnce(serde_json::Error) -> Error + 'a {
        move |source| {
            let mut file = place(gym, key);
            if let Self::Metrics(line) = self {
                file = format!("{file}:{line}");
            }
            Error::Unreadable { file, remedy: self.remedy(run_id), source }
        }
    }

    fn remedy(self, run_id: &RunId) -> String {
        match self {
            Self::Spec => {
                "put back a copy of it; without one the run cannot be continued: launch without `.run_id(…)` \
                           (its checkpoints are in `checkpoints/` beside the file)"
                    .to_owned()
            }
            Self::Status => format!(
                "remove it, and launch again with `.run_id(\"{run_id}\")`: the run goes on from its last published state"
            ),
            Self::Metrics(_) => "remove that line".to_owned(),
            Self::Teacher => "remove it: the next launch writes down anew who the teacher is".to_owned(),
        }
    }
}
