//! GGUF files (versions 2 and 3), and what a Hugging Face folder needs of them.
//!
//! | module | what it holds |
//! |---|---|
//! | `reader` | the container: metadata and tensors, every count checked against the file's size |
//! | `encoding`, `k_quants` | numbers as blocks of scaled integers |
//! | `hyperparameters`, `rope` | metadata to `config.json` |
//! | `weights` | names, and the order of rows |
//! | `tokenizer`, `pre_tokenizer` | the vocabulary to `tokenizer.json` and its companions |
//!
//! The format: ggml's `docs/gguf.md`; the layout of blocks: ggml's `ggml-common.h`.

pub(crate) mod encoding;
pub(crate) mod hyperparameters;
mod k_quants;
mod pre_tokenizer;
pub(crate) mod reader;
mod rope;
#[cfg(test)]
pub(crate) mod sample;
pub(crate) mod tokenizer;
pub(crate) mod weights;

pub(crate) use reader::Gguf;
