//! What lies beside a model's weights: config, tokenizer, chat template, licence.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;

use serde_json::Value;
use tch::Kind;

use super::error::Error;
use super::file;

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

/// Copies every file of the Hugging Face folder `source` that holds no weights into the folder `to`.
///
/// # Errors
/// [`Error::Read`], [`Error::Write`].
pub(crate) fn copy_companions(source: &Path, to: &Path) -> Result<(), Error> {
    copy_files(source, to, &|name| !WEIGHTS.iter().any(|ending| name.ends_with(ending)) && name != MANIFEST)?;
    for name in SUBFOLDERS {
        let (from, to) = (source.join(name), to.join(name));
        if from.is_dir() {
            fs::create_dir_all(&to).map_err(writing(&to))?;
            copy_files(&from, &to, &|_| true)?;
        }
    }
    Ok(())
}

/// Copies the plain files of a folder (hub caches hold links to them), leaving hidden ones.
fn copy_files(from: &Path, to: &Path, keep: &dyn Fn(&str) -> bool) -> Result<(), Error> {
    for entry in fs::read_dir(from).map_err(reading(from))? {
        let path = entry.map_err(reading(from))?.path();
        let Some(name) = path.file_name().and_then(OsStr::to_str) else { continue };
        if path.is_file() && !name.starts_with('.') && keep(name) {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}

/// Not `fs::copy`: a source that may only be read would make a copy that cannot be written to.
fn copy(path: &Path, target: &Path) -> Result<(), Error> {
    let (mut from, _) = file::open(path)?;
    let mut to = File::create(target).map_err(writing(target))?;
    std::io::copy(&mut from, &mut to).map_err(writing(target))?;
    Ok(())
}

/// Names the type of the weights in the folder's `config.json`, where that names one: loaders follow it.
///
/// # Errors
/// [`Error::Read`], [`Error::Json`], [`Error::Write`].
pub(crate) fn set_dtype(folder: &Path, kind: Kind) -> Result<(), Error> {
    let path = &folder.join("config.json");
    let name = match kind {
        Kind::BFloat16 => "bfloat16",
        Kind::Half => "float16",
        _ => "float32",
    };
    let json = |source| Error::Json { path: path.to_owned(), source };
    let mut config: Value = serde_json::from_slice(&file::read_text(path)?).map_err(json)?;
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
        let text = serde_json::to_vec_pretty(&config).map_err(json)?;
        fs::write(path, text).map_err(writing(path))?;
    }
    Ok(())
}

fn reading(path: &Path) -> impl Fn(std::io::Error) -> Error {
    |source| Error::Read { path: path.to_owned(), source }
}

fn writing(path: &Path) -> impl Fn(std::io::Error) -> Error {
    |source| Error::Write { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_copy_of_a_file_that_may_only_be_read_can_be_written_to() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config = from.path().join("config.json");
        fs::write(&config, r#"{"dtype": "float32"}"#).unwrap();
        fs::set_permissions(&config, fs::Permissions::from_mode(0o444)).unwrap();
        copy_companions(from.path(), to.path()).unwrap();
        let copied = to.path().join("config.json");
        assert_eq!(fs::metadata(&copied).unwrap().permissions().mode() & 0o200, 0o200);
        set_dtype(to.path(), Kind::BFloat16).unwrap();
        let text: Value = serde_json::from_slice(&fs::read(&copied).unwrap()).unwrap();
        assert_eq!(text["dtype"], "bfloat16");
    }
}
