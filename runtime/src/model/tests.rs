//! Unit tests of the model room.
