//! A model as a Hugging Face folder: our weights, and everything else as the source has it.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tch::Kind;

use super::{Error, local};
use crate::model::Model;

/// Endings of files that hold weights, in whatever format, and of their indices.
const WEIGHTS: [&str; 12] = [
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".onnx",
    ".h5",
    ".msgpack",
    ".tflite",
];
/// Folders beside the weights that belong to the tokenizer.
const SUBFOLDERS: [&str; 1] = ["additional_chat_templates"];
/// Written by whoever publishes the folder.
const MANIFEST: &str = training_gym_core::checkpoint::MANIFEST;

/// Writes `model` into the empty folder `to`: its weights under the names they were read by, and
/// every file of the Hugging Face folder `source` that holds no weights (config, generation
/// config, tokenizer, chat template, licence). `config.json` stays as it is, but for its number
/// type where the model computes in another.
///
/// # Errors
/// [`Error::Local`], [`Error::Config`], [`Error::Weights`].
pub fn write_model_folder(model: &Model, source: &Path, to: &Path) -> Result<(), Error> {
    copy_companions(source, to)?;
    set_dtype(to, model.options().dtype)?;
    model.save_weights(to).map_err(Error::Weights)
}

/// Copies every file of the Hugging Face folder `source` that holds no weights into the folder `to`.
///
/// # Errors
/// [`Error::Local`].
pub fn copy_companions(source: &Path, to: &Path) -> Result<(), Error> {
    copy_files(source, to, &|name| !WEIGHTS.iter().any(|ending| name.ends_with(ending)) && name != MANIFEST)?;
    for name in SUBFOLDERS {
        let (from, to) = (source.join(name), to.join(name));
        if from.is_dir() {
            fs::create_dir_all(&to).map_err(local("write", &to))?;
            copy_files(&from, &to, &|_| true)?;
        }
    }
    Ok(())
}

/// Copies the plain files of a folder (hub caches hold links to them), leaving hidden ones.
fn copy_files(from: &Path, to: &Path, keep: &dyn Fn(&str) -> bool) -> Result<(), Error> {
    for entry in fs::read_dir(from).map_err(local("read", from))? {
        let path = entry.map_err(local("read", from))?.path();
        let Some(name) = path.file_name().and_then(OsStr::to_str) else { continue };
        if path.is_file() && !name.starts_with('.') && keep(name) {
            let bytes = fs::read(&path).map_err(local("read", &path))?;
            let target = to.join(name);
            fs::write(&target, bytes).map_err(local("write", &target))?;
        }
    }
    Ok(())
}

/// Names the type of the weights in the folder's `config.json`, where that names one: loaders follow it.
///
/// # Errors
/// [`Error::Local`], [`Error::Config`].
pub fn set_dtype(folder: &Path, kind: Kind) -> Result<(), Error> {
    let path = &folder.join("config.json");
    let name = match kind {
        Kind::BFloat16 => "bfloat16",
        Kind::Half => "float16",
        _ => "float32",
    };
    let text = fs::read(path).map_err(local("read", path))?;
    let mut config: Value =
        serde_json::from_slice(&text).map_err(|source| Error::Config { path: path.to_owned(), source })?;
    let mut changed = false;
    for place in ["", "/text_config"] {
        let Some(settings) = config.pointer_mut(place).and_then(Value::as_object_mut) else { continue };
        for key in ["dtype", "torch_dtype"] {
            if let Some(value) = settings.get_mut(key).filter(|value| value.as_str() != Some(name)) {
                *value = name.into();
                changed = true;
            }
        }
    }
    if changed {
        let text =
            serde_json::to_vec_pretty(&config).map_err(|source| Error::Config { path: path.to_owned(), source })?;
        fs::write(path, text).map_err(local("write", path))?;
    }
    Ok(())
}
