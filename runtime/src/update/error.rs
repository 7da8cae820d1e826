//! What can go wrong with an update.

use std::path::PathBuf;

use training_gym_core::spec::UpdateSpec;

/// An update that cannot be done, or a state that cannot be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that no update can follow.
    #[error("update.{field} = {value}: must be {bound}")]
    Spec {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        bound: &'static str,
    },
    /// A token the model does not know.
    #[error(
        "sample {sample}: token id {id} is outside the model's vocabulary of {vocab_size}; \
         use the tokenizer of the model that is trained"
    )]
    Token {
        /// The id.
        id: i64,
        /// Entries of the vocabulary.
        vocab_size: i64,
        /// Which sample of the step.
        sample: u64,
    },
    /// A teacher that cannot be read.
    #[error("the co-resident teacher in {folder} cannot be used")]
    Teacher {
        /// Its folder.
        folder: PathBuf,
        /// Why.
        #[source]
        source: crate::model::Error,
    },
    /// A vocabulary that is too small for the tokenizer both sides share.
    #[error(
        "the tokenizer has {tokens} entries; the teacher in {folder} scores {teacher} and the student {student}: \
         both need an entry for each token"
    )]
    TeacherVocabulary {
        /// The teacher's folder.
        folder: PathBuf,
        /// Entries of its vocabulary.
        teacher: usize,
        /// Entries of the student's.
        student: usize,
        /// Entries of the tokenizer.
        tokens: usize,
    },
    /// A server that did not say which tokens it finds likeliest.
    #[error(
        "sample {sample}: the teacher's likeliest tokens (opd.top_k) are missing, or another number than asked for; \
         launch a new run: this one's records are of another version or another recipe"
    )]
    NoLikeliest {
        /// Which sample of the step.
        sample: u64,
    },
    /// A likeliest token that the student does not know.
    #[error(
        "sample {sample}: the teacher finds token id {id} likely, which is outside the student's vocabulary of \
         {vocab_size}; serve a teacher with the student's tokenizer"
    )]
    TeacherToken {
        /// The id.
        id: i64,
        /// Entries of the student's vocabulary.
        vocab_size: i64,
        /// Which sample of the step.
        sample: u64,
    },
    /// Nothing to condition the first response token on.
    #[error("sample {sample}: its prompt has no token; a prompt needs at least one")]
    EmptyPrompt {
        /// Which sample of the step.
        sample: u64,
    },
    /// The state could not be written.
    #[error("cannot write the optimizer state to {path}; check the disk's free space and permissions")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The state could not be read.
    #[error("cannot read the optimizer state in {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not what [`super::Updater::save_state`] writes.
    #[error("the optimizer state in {path} is damaged: {what}; resume from an older checkpoint")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A state of another model.
    #[error("the optimizer state in {path} is of another model: {what}; start a new run for this one")]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// The first difference.
        what: String,
    },
}

/// Refuses settings that no update can follow.
pub(super) fn check(spec: &UpdateSpec, temperature: f64) -> Result<(), Error> {
    let sizes = [
        ("global_batch_size", spec.global_batch_size),
        ("max_tokens_per_gpu", spec.max_tokens_per_gpu),
        ("logits_chunk_size", spec.logits_chunk_size),
    ];
    for (field, value) in sizes {
        if value == 0 {
            return Err(Error::Spec { field, value: value.to_string(), bound: "≥ 1" });
        }
    }
    if !(temperature.is_finite() && temperature >= 0.0) {
        return Err(Error::Spec { field: "temperature", value: temperature.to_string(), bound: "finite and ≥ 0" });
    }
    Ok(())
}
