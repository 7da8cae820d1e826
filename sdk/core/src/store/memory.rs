//! Objects in memory.

/// A map as a store.
#[derive(Debug, Default)]
pub struct MemoryStore;
