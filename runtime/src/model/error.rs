//! What can be wrong with a model folder.

use std::path::PathBuf;

/// Why a model could not be read, made or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// What was read.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("cannot write `{}`", path.display())]
    Write {
        /// What was written.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A JSON file is not JSON.
    #[error("`{}` is not valid JSON", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where it breaks.
        source: serde_json::Error,
    },
    /// A setting of `config.json` is missing or cannot be.
    #[error("config.json: `{key}` {problem}")]
    Config {
        /// The setting.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The model is sound, but of a kind this runtime does not compute.
    #[error("config.json: {what} `{found}` is not supported; supported: {supported}")]
    Unsupported {
        /// What kind of setting.
        what: &'static str,
        /// What the model has.
        found: String,
        /// What would work.
        supported: String,
    },
    /// The folder holds no safetensors.
    #[error(
        "no weights in `{}`: `model.safetensors` or `model.safetensors.index.json` is needed \
         (convert other formats with transformers' `save_pretrained`)", folder.display()
    )]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// A weights file is truncated or not safetensors.
    #[error("`{}` is not a complete safetensors file: {problem}; download or copy it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The index of a sharded checkpoint cannot be used.
    #[error("`{}`: {problem}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Tensors the architecture needs are not in the checkpoint (the first thousand).
    #[error("the checkpoint lacks {} tensor(s) that config.json asks for: {}", names.len(), listed(names))]
    Missing {
        /// Their names.
        names: Vec<String>,
    },
    /// Tensors of the checkpoint have no place in the architecture.
    #[error("the checkpoint has {} tensor(s) that config.json has no place for: {}", names.len(), listed(names))]
    Surplus {
        /// Their names.
        names: Vec<String>,
    },
    /// A tensor has another shape than `config.json` implies.
    #[error("tensor `{name}` has shape {found:?}, config.json asks for {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape in the file.
        found: Vec<i64>,
        /// The shape it should have.
        expected: Vec<i64>,
    },
    /// A tensor is stored in a type that is not read.
    #[error("tensor `{name}` is stored as {found}; read are F32, F16 and BF16")]
    StoredType {
        /// The tensor.
        name: String,
        /// Its type in the file.
        found: String,
    },
    /// `config.json` ties the output projection to the embedding, the file has another one.
    #[error(
        "`{name}` differs from the embedding although config.json says `tie_word_embeddings`; \
         set it to false or remove the tensor"
    )]
    TiedHeadDiffers {
        /// The tensor.
        name: String,
    },
}

/// The first few of a list of names.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let mut text = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(", and {} more", names.len() - SHOWN));
    }
    text
}
