//! Names, attributes, room, and what a mount keeps of them.
//!
//! One program for all of them: each has to be linked with everything it tests.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/patch.rs"]
mod patch;

mod attributes;
mod dirs;
mod full;
mod layer;
mod life;
mod limits;
mod memory;
mod sizes;
mod space;
mod state;
mod times;
