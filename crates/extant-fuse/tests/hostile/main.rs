//! Damaged images and storms behind the server, memory watched: a program of its own.
//!
//! One program for all of them: each has to be linked with everything it tests.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../extant/tests/common/damage.rs"]
mod damage;
#[path = "../common/look.rs"]
mod look;
#[path = "../common/reseal.rs"]
mod reseal;

mod hostile;
mod mutants;
mod storm;
