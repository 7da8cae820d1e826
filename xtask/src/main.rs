//! ok
fn main() {}
