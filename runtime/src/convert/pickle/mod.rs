//! PyTorch's files without Python: the zip around them, and a pickle machine that computes nothing.
//!
//! | module | what it holds |
//! |---|---|
//! | `archive` | entries of a zip by offset |
//! | `machine` | the opcodes `torch.save` writes, over plain values |
//! | `globals` | the names a pickle may mention |
//! | `tensor` | what those values say: tensors, their storages and placements |
//!
//! A pickle is a program, and Python's own reader runs what it names. Here a name is a word: a call
//! becomes a `machine::Node::Call` of that word on its arguments, and nothing is looked up or run.
//! Words outside `globals` are refused before anything else is read.

pub(crate) mod archive;
pub(crate) mod globals;
pub(crate) mod machine;
#[cfg(test)]
pub(crate) mod sample;
pub(crate) mod tensor;
