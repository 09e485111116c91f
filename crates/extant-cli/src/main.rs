//! The `extant` command.
#![forbid(unsafe_code)]
fn main() {}
