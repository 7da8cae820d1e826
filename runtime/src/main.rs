//! ok
fn main(){}
