//! What is durable when, what replays, and what a device that fails leaves.
//!
//! One program for all of them: each has to be linked with everything it tests.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/patch.rs"]
mod patch;

mod cut_off;
mod damage;
mod durable;
mod failing;
mod fast_commit;
mod freeze;
mod log;
mod recovery;
mod unmount;
mod zones;
