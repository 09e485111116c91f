//! Contents of files: written, read, mapped, moved, by one thread and by many.
//!
//! One program for all of them: each has to be linked with everything it tests.

mod ahead;
mod append;
mod attempt;
mod batch_fill;
mod beside;
mod contended;
mod contents;
mod direct;
mod direct_io;
mod direct_queue;
mod fallocate;
mod fragments;
mod frozen;
mod mapped;
mod nowait;
mod order;
mod parts;
mod soak;
mod splits;
mod threads;
mod write;
