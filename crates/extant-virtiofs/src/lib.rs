//! An ext4 tree for virtual machines: a virtiofs device, which a program that runs machines (qemu,
//! cloud-hypervisor) is connected to by a socket (vhost-user).
//!
//! # Place
//!
//! A transport for [`extant_fuse::Exchange`], which has the answers. Below: the crates of rust-vmm, which know the
//! socket's protocol and the layout of queues. Above: `extant serve virtiofs`.
//!
//! # Shape
//!
//! ```text
//! serve     a socket, one machine after the other
//! device    what the machine's owner says: queues, memory; a thread takes requests from them
//! pool      requests that were taken, and the threads that answer them
//! ```
//!
//! # Invariants
//!
//! - V1. What a guest writes to its memory and its queues is never believed: a request that lies outside of the
//!   memory, is cut short or too long has an answer of an error or of nothing, and its place goes back to the
//!   guest. A queue whose counters make no sense rests until the guest says more.
//! - V2. Memory of the guest is only copied from and to. No reference to it exists; no length is read twice.
//! - V3. At most [`QUEUE_LEN_MAX`] requests wait, each by reference; a thread has one buffer of the largest request.
//! - V4. What was taken from a queue is answered before the queue is given back, and before the next machine comes.
//! - V5. When a machine is gone, all that it wrote is made durable.
//!
//! Whoever runs the machine is trusted as far as a debugger would be: the socket is for its owner alone, and a
//! program that makes the memory smaller which it has given away ends this process, as it could by a signal.
#![forbid(unsafe_code)]

mod device;
mod pool;
mod serve;

pub use device::QUEUE_LEN_MAX;
pub use serve::{Options, ServeError, serve};
