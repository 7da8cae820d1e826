//! Whose responses a run learns from.

use serde::{Deserialize, Serialize};

use crate::ids::RunId;

/// Whose responses a run learns from. All but the student's own are *off-policy*: no importance ratio
/// corrects for who drew them, so what is learnt of them is a divergence or a likelihood; recorded
/// ones alone know what they were drawn with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ResponseSource {
    /// The student's, drawn in each step with the weights of that step: on-policy.
    #[default]
    Student,
    /// The co-resident teacher's, drawn in each step: sparse-to-dense's warm-up.
    Teacher,
    /// The dataset's: the column of this name holds each prompt's response.
    Column {
        /// The column.
        name: String,
    },
    /// Those that another run of the same store recorded, step by step and again from its first step
    /// when they are used up, with their rewards: nobody is asked for a grade.
    Recorded {
        /// The run, which has succeeded.
        run_id: RunId,
    },
}

impl ResponseSource {
    /// The dataset's own responses, in the column `name`: supervised fine-tuning, or off-policy
    /// distillation where there is a co-resident teacher.
    pub fn column(name: impl Into<String>) -> Self {
        Self::Column { name: name.into() }
    }

    /// Whether the student draws them.
    pub fn is_student(&self) -> bool {
        *self == Self::Student
    }

    /// Whether another run recorded them, and their grades.
    pub fn is_recorded(&self) -> bool {
        matches!(self, Self::Recorded { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_written_by_its_name() {
        let written = |source: &ResponseSource| serde_json::to_string(source).unwrap();
        assert_eq!(written(&ResponseSource::Teacher), r#""teacher""#);
        let column = ResponseSource::column("solution");
        assert_eq!(written(&column), r#"{"column":{"name":"solution"}}"#);
        assert_eq!(serde_json::from_str::<ResponseSource>(&written(&column)).unwrap(), column);
        assert!(ResponseSource::default().is_student() && !column.is_recorded());
    }
}
