//! The checker on clean, damaged and hostile images.
//!
//! One program for all of them: each has to be linked with everything it tests.

#[path = "../common/mod.rs"]
mod common;

mod built;
mod clean;
mod fields;
mod hostile;
mod kernel;
mod problems;
mod rules;
mod sweep;
