//! `gym-runtime`: the door.

fn main() {}
