//! The program of a training-gym image: rollouts, teacher queries, rewards, updates,
//! checkpoints and serving, on libtorch.
//!
//! ```text
//! main -> pipeline -> { data, rollout, score, advantage, update, publish } -> { batch, text, model }
//!     \-> serve ----------> rollout
//! ```
//!
//! | room | what it does |
//! |---|---|
//! | [`settings`] | the only reader of environment and files named on the command line |
//! | [`pipeline`] | wires the stages; the only room that sees two at once; resume and stop |
//! | [`data`] | rows to prompts, in an order that resumes |
//! | [`rollout`] | sampling, scheduling, the engine |
//! | [`score`] | the reward worker, the teacher |
//! | [`sandbox`] | what the person's program may do, and how it is started and ended |
//! | [`advantage`] | pure functions from rewards and log-probabilities to advantages |
//! | [`update`] | losses, optimizer, the step |
//! | [`publish`] | weights and optimizer state to the store: checkpoints, resume states |
//! | [`pretrain`] | supervised training from random weights: how the demo's models are made |
//! | [`batch`] | the boundary types and the shape glossary |
//! | [`text`] | tokenizer, chat template, stops |
//! | [`model`] | families, layers, key-value cache, weights |
//! | [`serve`] | OpenAI's and SGLang's HTTP on the same engine |
//! | [`fetch`] | a job's model and program, brought to its machine |
//! | [`check`] | what a launch asks before it computes |
//! | [`convert`] | other tools' checkpoints to Hugging Face folders |
//! | [`inspect`] | what a model's folder holds, and whether it is sound |
//! | [`supervise`] | the parent of a local job |
//! | [`telemetry`], [`memory`] | logs; the allocator |
//!
//! Stages never import each other; `tests/rooms.rs` checks the edges.
//!
//! **Panics.** Inside `model`, `rollout`, `advantage` and `update` shapes are checked at the door
//! and tch's plain (panicking) operations are used; what reads files, networks or a person's input
//! returns `Result`.

pub mod advantage;
pub mod batch;
pub mod check;
pub mod convert;
pub mod data;
pub mod fetch;
pub mod inspect;
pub mod memory;
pub mod model;
pub mod pipeline;
pub mod pretrain;
pub mod publish;
pub mod rollout;
pub mod sandbox;
pub mod score;
pub mod serve;
pub mod settings;
pub mod supervise;
pub mod telemetry;
pub mod text;
pub mod update;
