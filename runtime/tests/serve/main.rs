//! The server over real HTTP on loopback, with a model whose every answer is known: it has one
//! likely successor of each token.

#[path = "../byte_tokenizer/mod.rs"]
mod byte_tokenizer;
mod engine_limits;
pub mod held;
mod openai;
mod process;
mod server;
mod sglang;
