//! The server with the kernel as its client.
//!
//! One program for all of them: each has to be linked with everything it tests.

#[path = "../common/mod.rs"]
mod common;

mod coherence;
mod full;
mod kept;
mod keys;
mod many;
mod odd;
mod owners;
mod past;
mod privileges;
mod server;
mod unwritten;
