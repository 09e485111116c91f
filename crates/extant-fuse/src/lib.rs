//! Mounts ext4: a server for the kernel's FUSE that answers with `extant`.
//!
//! # Place
//!
//! A front end: it translates requests and does not implement ext4. Below: `extant`. Above: the
//! command `extant mount`, and programs that mount by themselves.
//!
//! # Shape
//!
//! ```text
//! mount        mounting and unmounting
//! session      the first request, threads, negotiated features
//! connection   bytes in, bytes out             abi        the records in them
//! rings        the same over io_uring
//! dispatch     from a request to a call        operations the calls, for any transport
//! ext4         the implementation of the calls, independent of the transport (`kernel`)
//! serve        all of it together              events     events for the owner
//! exchange     the same for requests given as bytes, from another machine
//! gate         freezing
//! ids          mapping of owners               stats      counts and durations of requests
//! argument     arguments that the kernel does not pass
//! patience     polling for the next request before sleeping
//! relief       threads that take over while all others wait for a device
//! ```
//!
//! The kernel is the only way to the file system while it is mounted, so it may keep names,
//! attributes and contents for as long as it likes, and locks of programs stay with it.
//!
//! # Example
//!
//! ```no_run
//! use extant_fuse::{Events, Level, Settings};
//! struct Log;
//! impl Events for Log {
//!     fn ready(&self) {}
//!     fn log(&self, _: Level, text: &str) {
//!         eprintln!("{text}");
//!     }
//! }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # fn mounted(dir: &str) -> std::io::Result<std::os::fd::OwnedFd> { unimplemented!() }
//! let device = extant_block::FileDevice::open_read_write("disk.img")?;
//! let fs = extant::MountOptions::new().read_only(false).open(device)?;
//! let connection = mounted("/mnt")?;
//! extant_fuse::serve(connection, fs, &Settings::default(), &Log)?; // Until it is unmounted.
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod abi;
mod argument;
mod connection;
mod dispatch;
mod events;
mod exchange;
mod ext4;
mod gate;
mod ids;
mod kernel;
#[cfg(test)]
mod lies;
mod memory;
pub mod mount;
mod operations;
mod orders;
mod patience;
mod pipe;
mod relief;
mod rings;
mod serve;
mod session;
mod settings;
#[cfg(test)]
mod stalled;
mod stats;

pub use argument::Argument;
pub use events::{Brake, Events, Level, NotWritable, ServeError};
pub use exchange::{Answer, Exchange, exchange};
pub use extant_fuse_ring::Obstacle;
pub use gate::Gate;
pub use ids::{IdMap, UNMAPPED};
pub use operations::{
    Attributes, Bytes, Caller, DirAnswer, DurableWrite, Entry, Errno, Handle, Ioctl, New, NodeId,
    Opened, Operations, Position, ReadAnswer, Reply, SetAttr, SetTime, Sought, Time, Totals,
    WriteHow,
};
pub use orders::{CONTROL, DEFRAG, GROW, GROWTH, INFO, ORDER, PIECES, STATS, TUNE};
pub use rings::Rings;
pub use serve::{serve, serve_over};
pub use settings::{AccessTimes, Durable, RingUse, Settings};
