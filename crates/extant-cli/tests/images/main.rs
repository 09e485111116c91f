//! The command builds images, and gets contents out of them.
//!
//! One program for all of them: each has to be linked with everything it tests.

#[path = "../support/mod.rs"]
mod support;

mod build_attributes;
mod build_encrypted;
mod build_folded;
mod contents;
mod disk;
mod holes;
mod layers_out;
mod newcomer;
mod readers;
mod seals;
mod sources;
