//! What is got out of images that do not mount.
//!
//! One program for all of them: each has to be linked with everything it tests.

#[path = "../common/mod.rs"]
mod common;

mod metadata;
mod salvage;
mod silent;
