//! The `tributary` binary.
fn main() {}
