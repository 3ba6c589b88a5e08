//! The `ramfold` command.
fn main() {}
