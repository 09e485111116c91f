//! Gives ext2/3/4 images another size.
//!
//! # Place
//!
//! Above the formats, the layout and the journal. Of `extant` it uses one thing: an image that was not
//! unmounted is opened and closed first, so that its journal is replayed and its orphans are gone.
//!
//! # Shape
//!
//! ```text
//! resize     what is asked for, what it comes to, and the steps of it
//!   grow       shape of the larger file system, places of new metadata
//!   shrink     obstacles, what moves in front of the new end, the new end
//!   commit     a step reaches the device: one transaction, or marked as in need of a check
//!   image map  superblock, descriptors, bitmaps, inodes and maps, changed in a draft
//!   draft      changed blocks in memory over a device
//! ```
//!
//! # Invariants
//!
//! - Z1. Nothing is written before the whole step is known, and each step leads from a file system in
//!   order to one in order; cut in between, the journal or a check leads to one of the two, and no file
//!   is lost.
//! - Z2. New groups are initialised and durable before the superblock counts them.
//! - Z3. What a layout cannot do is refused with the size that it can reach.
//! - Z4. Nothing on the image makes it panic, or loop or allocate without bound: memory is the changed
//!   blocks and the descriptors.
#![forbid(unsafe_code)]

mod commit;
mod draft;
mod error;
mod grow;
mod image;
mod map;
mod resize;
mod shrink;

pub use error::ResizeError;
pub use resize::{Goal, Plan, Sizes, plan, resize, sizes};
