//! Damaged images, with the memory of this process watched: a program of its own.
//!
//! One program for all of them: each has to be linked with everything it tests.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/damage.rs"]
mod damage;

mod hostile_write;
mod mutants;
