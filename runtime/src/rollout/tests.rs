//! Unit tests of the rollout room.
