//! rollout
