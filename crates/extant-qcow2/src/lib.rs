//! qcow2 images as block devices: read, written, and laid over other images.
//!
//! # Place
//!
//! Below: `extant-block`, whose devices hold an image, and whose trait it implements. Above: the
//! command, and any program that opens a file system in such an image. This crate does not know
//! ext4.
//!
//! # Shape
//!
//! ```text
//! probe       detects the format of a file
//! chain       opens an image by its name, with the images that it lies over
//!  +- Qcow2   the device: reads, writes, discards; its tables go to the file at a flush
//!  |   +- header, tables, refcounts, snapshots: the structures in the file
//!  |   +- Store: the file, which grows
//!  +- overlay makes, describes, commits and rebases images over others
//! ```
//!
//! # Invariants
//!
//! - Q1. The file refers only to clusters that are counted and were on stable storage before the
//!   reference was written. So a crash at any moment leaves, at worst, clusters that are counted
//!   and not used.
//! - Q2. A cluster that lost its last reference is reused only after its loss is on stable storage.
//! - Q3. A backing image is never written.
//! - Q4. Memory is bounded by the file's actual size and by constants, never by the value of a
//!   field.
//!
//! # Use
//!
//! ```no_run
//! use extant_qcow2::{How, open};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = open("debian.qcow2".as_ref(), &How::default())?.into_device();
//! // It can be used like any other device.
//! # drop(device);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod chain;
mod compressed;
mod create;
mod device;
mod error;
mod flush;
mod header;
mod image;
mod map;
pub mod overlay;
mod read;
mod refcount;
mod snapshot;
mod store;
mod table;
mod version;
mod write;

pub use chain::{
    Elsewhere, Format, How, Opened, backing_of, is_named_so, open, open_alone, open_on_device,
    probe,
};
pub use create::{create, create_over};
pub use error::Qcow2Error;
pub use image::{Facts, Qcow2};
pub use snapshot::Snapshot;
pub use store::{DeviceStore, FileStore, Store};
