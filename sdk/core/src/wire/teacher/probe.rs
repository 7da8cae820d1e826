//! Before the first step: does the teacher score at all, and does it speak the student's tokens?

use std::collections::BTreeSet;

use super::{Scored, Sequence, TeacherFault};
use crate::wire::ModelInfo;

/// Tokens of the probe: one of prompt, the rest of response.
pub const PROBE_TOKENS: usize = 8;

/// A teacher that answers the probe without scoring it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeFault {
    /// Not even the probe could be read.
    #[error("the teacher failed the start-up probe of {PROBE_TOKENS} tokens")]
    Fault(#[source] TeacherFault),
    /// Another number of log-probabilities than of response tokens.
    #[error("the teacher scored {received} of the probe's {expected} response tokens")]
    Count {
        /// Log-probabilities received.
        received: usize,
        /// Log-probabilities expected.
        expected: usize,
    },
    /// Every token is certain, which no model is.
    #[error(
        "the teacher gives each of the probe's tokens a log-probability of exactly 0; it does not score prompts: turn off speculative decoding, or use another server"
    )]
    AllZero,
}

/// The probe: one prompt token and seven of response. `tokens` should be ordinary text in the
/// student's vocabulary.
pub fn probe_sequence(tokens: &[i64; PROBE_TOKENS]) -> Sequence<'_> {
    Sequence { tokens, response_length: PROBE_TOKENS - 1 }
}

/// Checks the answer to [`probe_sequence`]: seven finite log-probabilities, not all of them 0.
///
/// # Errors
/// What is wrong with it.
pub fn check_probe(scored: Scored) -> Result<(), ProbeFault> {
    let logprobs = scored.map_err(ProbeFault::Fault)?;
    if logprobs.len() != PROBE_TOKENS - 1 {
        return Err(ProbeFault::Count { received: logprobs.len(), expected: PROBE_TOKENS - 1 });
    }
    if logprobs.iter().all(|&logprob| logprob == 0.0) {
        return Err(ProbeFault::AllZero);
    }
    Ok(())
}

/// A teacher that cannot teach this student.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelMismatch {
    /// Other ids for the same text.
    #[error(
        "teacher `{teacher}` and student `{student}` have different vocabularies (sha256 {teacher_hash} and {student_hash}): token-level distillation needs the same tokenizer; choose a teacher of the student's family"
    )]
    Vocabulary {
        /// The teacher's model.
        teacher: String,
        /// The student's model.
        student: String,
        /// The teacher's vocabulary.
        teacher_hash: String,
        /// The student's vocabulary.
        student_hash: String,
    },
    /// Other ends of a response.
    #[error(
        "teacher `{teacher}` ends a response with ids {teacher_ids:?}, student `{student}` with {student_ids:?}: the last token would be taught wrongly; make `eos_token_id` in both `generation_config.json` the same"
    )]
    EndTokens {
        /// The teacher's model.
        teacher: String,
        /// The student's model.
        student: String,
        /// The teacher's end ids.
        teacher_ids: BTreeSet<i64>,
        /// The student's end ids.
        student_ids: BTreeSet<i64>,
    },
}

/// Compares vocabulary and end tokens. What either side does not tell cannot be compared; each
/// such thing is a note for the run's status.
///
/// # Errors
/// Where both sides tell and differ.
pub fn compare_models(student: &ModelInfo, teacher: &ModelInfo) -> Result<Vec<String>, ModelMismatch> {
    let mut notes = Vec::new();
    let unknown =
        |what: &str| format!("the {what} of teacher and student could not be compared: a side does not tell its own");
    match (&student.vocab_sha256, &teacher.vocab_sha256) {
        (Some(ours), Some(theirs)) if ours != theirs => {
            return Err(ModelMismatch::Vocabulary {
                teacher: teacher.model_path.clone(),
                student: student.model_path.clone(),
                teacher_hash: theirs.clone(),
                student_hash: ours.clone(),
            });
        }
        (Some(_), Some(_)) => {}
        _ => notes.push(unknown("vocabularies")),
    }
    match (&student.eos_token_ids, &teacher.eos_token_ids) {
        (Some(ours), Some(theirs)) => {
            let (student_ids, teacher_ids): (BTreeSet<i64>, BTreeSet<i64>) =
                (ours.iter().copied().collect(), theirs.iter().copied().collect());
            if student_ids != teacher_ids {
                return Err(ModelMismatch::EndTokens {
                    teacher: teacher.model_path.clone(),
                    student: student.model_path.clone(),
                    teacher_ids,
                    student_ids,
                });
            }
        }
        _ => notes.push(unknown("end tokens")),
    }
    Ok(notes)
}
