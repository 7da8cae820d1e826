//! A model as a Hugging Face folder: our weights, and everything else as the source has it.

use std::path::Path;

use super::Error;
use crate::model::{self, Model};

/// Writes `model` into the empty folder `to`: its weights under the names they were read by, and
/// every file of the Hugging Face folder `source` that holds no weights (config, generation
/// config, tokenizer, chat template, licence). `config.json` stays as it is, but for its number
/// type where the model computes in another.
///
/// # Errors
/// [`Error::Folder`].
pub fn write_model_folder(model: &Model, source: &Path, to: &Path) -> Result<(), Error> {
    let write = || {
        model::copy_companions(source, to)?;
        model::set_dtype(to, model.options().dtype)?;
        model.save_weights(to)
    };
    write().map_err(Error::Folder)
}
