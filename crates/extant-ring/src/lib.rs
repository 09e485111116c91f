//! The kernel's second way of asking a FUSE server: rings of io_uring instead of reads of `/dev/fuse`.
//!
//! # Place
//!
//! Below `extant-fuse`, which knows what requests mean. This knows where they lie, whose they are at the
//! moment, and how they are given back.
//!
//! # Shape
//!
//! ```text
//! ring     one thread's ring and its slots, the only unsafe code     bell     wakes that thread
//! machine  what this kernel and this machine offer
//! ```
#![deny(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

mod bell;
mod machine;
mod ring;

pub use bell::Bell;
pub use machine::{Obstacle, obstacle, pin, processors, processors_allowed};
pub use ring::{Event, HEADER_BYTES, Message, OP_BYTES, Ring, SlotId};
