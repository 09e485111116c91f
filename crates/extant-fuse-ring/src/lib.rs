//! FUSE over io_uring: requests of the kernel that come over rings instead of reads of `/dev/fuse`.
//!
//! # Place
//!
//! Below `extant-fuse`, which interprets the requests. This crate manages their memory, who owns it
//! at each moment, and how it returns to the kernel.
//!
//! # Shape
//!
//! ```text
//! ring     one thread's ring and its slots, the only unsafe code     bell     wakes that thread
//! machine  support by the kernel and the machine
//! ```
#![deny(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

mod bell;
mod machine;
mod ring;

pub use bell::Bell;
pub use machine::{Obstacle, obstacle, pin, processors, processors_allowed};
pub use ring::{Event, HEADER_BYTES, Message, OP_BYTES, Ring, SlotId};
