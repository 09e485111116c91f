//! Changes the structures of ext2/3/4 images that nobody has mounted: in memory first, then on the device.
//!
//! # Place
//!
//! Above the formats, the layout and the journal, and below the crates that give a file system another size
//! or other features. Of `extant` it uses one thing: an image that was not unmounted is opened and closed
//! first, so that its journal is replayed and its orphans are gone.
//!
//! # Shape
//!
//! ```text
//! commit     a step reaches the device: one transaction, or marked as in need of a check
//! marks      clusters and inodes that become used or free
//! map        maps of files, read whole and built anew
//!   walk       what of a map can be believed; repairs read by it, too
//! image      superblock, descriptors, bitmaps and inodes, changed in a draft
//! reserve    the resize inode
//! settle     replay of the journal
//! guard      multi-mount protection
//! draft      changed blocks over a device
//! blocks     blocks by number, in memory and in a file
//! ```
//!
//! # Invariants
//!
//! - X1. Nothing on the image makes it panic, or loop or allocate without bound: memory is the descriptors, and of the
//!   changed blocks 32 MiB for each draft and step; more of them are in a temporary file.
//! - X2. What [`Committer`] says of cuts (C1 to C4 in its module) holds for each step.
#![forbid(unsafe_code)]

mod blocks;
mod commit;
mod draft;
mod error;
mod guard;
mod image;
mod map;
mod marks;
mod reserve;
mod settle;
mod walk;

pub use blocks::Blocks;
pub use commit::{Committer, Step};
pub use draft::Draft;
pub use error::{ChangeError, Result};
pub use guard::{Guard, Seen, Tell, Through, WAIT_MAX};
pub use image::{Image, Records, superblock};
pub use map::set_sectors;
pub use marks::{Marks, cluster_of, first_of};
pub use reserve::{double_of, write_resize_inode};
pub use settle::{is_unsettled, settle, settled_view};
pub use walk::{FileMap, end_of, is_extent_node, joined, walk};
