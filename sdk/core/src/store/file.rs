//! Objects as files.

/// A folder as a store.
#[derive(Debug)]
pub struct FileStore;
