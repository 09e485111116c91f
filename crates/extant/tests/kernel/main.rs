//! The kernel and e2fsprogs beside extant: each reads what the others wrote.
//!
//! One program for all of them: each has to be linked with everything it tests.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/patch.rs"]
mod patch;
#[path = "../crash/target.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the crash tests")]
mod target;

mod defrag;
mod encrypted;
mod flags;
mod interop;
mod kernel;
mod machine;
mod mke2fs;
mod mount_checks;
mod mutated;
mod probe;
mod sealed;
mod sealing;
mod two_mounts;
mod wide;
