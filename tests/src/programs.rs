//! Finding the real programs these suites drive.

use std::path::PathBuf;

/// A program of this workspace, built beside the running test.
///
/// # Panics
/// When it is not built: says what builds it.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let built = test.ancestors().skip(1).take(3).map(|folder| folder.join(name)).find(|path| path.is_file());
    built.unwrap_or_else(|| {
        panic!("`{name}` is not built: run `cargo xtask test`, or `cargo build --workspace --bins` first")
    })
}
