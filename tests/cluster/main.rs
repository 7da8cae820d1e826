//! The cluster suite: the product on a real API server, scheduler, kubelet and S3 server.
//!
//! `cargo xtask cluster test` starts those, says where they are in the environment, and runs this.

mod doctor;
mod egress;
mod escape;
mod explained;
mod failures;
mod kubectl;
mod logs;
mod manifests;
mod node;
mod person;
mod runs;
mod secrets;
mod tutorial;
