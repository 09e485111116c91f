//! Images in Ceph clusters: RADOS block devices (RBD), through the system's own libraries.
//!
//! # Place
//!
//! Below: `extant-block` has the trait. Above: the command, and any program that opens a file
//! system in a cluster. This crate knows neither formats nor ext4, and of Ceph's protocols nothing:
//! `librbd` and `librados` speak them, and are looked up when the first image is opened.
//!
//! # Shape
//!
//! ```text
//! Address      rbd:POOL/[NAMESPACE/]IMAGE[@SNAP][:OPTION=VALUE...]
//! RbdDevice    the device; opening: configuration, connection, image, lock
//!  +- RbdQueue a queue of one thread
//!  +- Runner   operations as requests: cut, started, put together again, judged
//!      +- Shared   an open image, and what is known of its loss
//!      +- Board    where requests of one runner arrive; Flights counts those of all
//! ffi          the functions of the two libraries; the one module with unsafe code
//! ```
//!
//! # Invariants
//!
//! - R1. Memory that a request reads or writes belongs to the request until the library has
//!   completed it, whoever has given up waiting meanwhile.
//! - R2. At most [`FLIGHTS_MAX`] requests, and [`FLIGHT_BYTES_MAX`] bytes of them, are under way;
//!   one request alone may be longer.
//! - R3. Nobody waits for a request longer than the limit of the image ([`Settings::limit`]).
//! - R4. After a flush that failed, a change that nobody answered, or the loss of the image to
//!   another client, every further change and flush fails: what was acknowledged may be lost, and
//!   nothing old may come after anything new.
//! - R5. An image with the feature `exclusive-lock` is written by the holder of its lock alone. A
//!   lock is never taken from a client that its cluster calls alive.
#![deny(unsafe_code)]

mod address;
mod board;
mod device;
mod error;
mod ffi;
mod queue;
mod runner;
mod shared;

pub use address::Address;
pub use board::{FLIGHT_BYTES_MAX, FLIGHTS_MAX};
pub use device::{RbdDevice, Settings};
pub use error::RbdError;
