//! The ground floor of training-gym: what the SDK and the runtime both need, and nothing else.
//!
//! | room | what it holds |
//! |---|---|
//! | [`ids`] | names that are made once: runs, deployments, content hashes, weight versions |
//! | [`spec`] | what *will* happen: [`spec::RunSpec`] and [`spec::ServeSpec`], the only things a job reads |
//! | [`sample`] | one scored response, as a reward function sees it |
//! | [`episode`] | a response of several turns: turns, observations |
//! | [`tool_call`] | tool calls as models write them, parsed in one place |
//! | [`record`] | what a run writes about itself: status, metrics, rollouts |
//! | [`wire`] | SGLang's `/generate` contract and the teacher's answer, parsed in one place |
//! | [`worker`] | the reward worker's protocol |
//! | [`store`] | artefacts by key: the trait, `file://`, `s3://`, memory |
//! | [`stored`] | a model's files in the store, and their manifest |
//! | [`checkpoint`] | layout, manifest, latest pointer, retention |
//! | [`splitmix`] | how seeds are spread |
//!
//! No libtorch, no Kubernetes, and no HTTP client without the feature `s3`: both sides can afford this crate.

#![warn(unnameable_types)]

mod chain;
pub mod checkpoint;
pub mod episode;
pub mod health;
pub mod ids;
pub mod record;
pub mod sample;
pub mod spec;
pub mod splitmix;
pub mod store;
pub mod stored;
pub mod tool_call;
pub mod wire;
pub mod worker;

pub use chain::chain;
