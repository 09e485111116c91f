//! Gives ext2/3/4 images other features and settings that need more than a field of the superblock.
//!
//! # Place
//!
//! Above `extant-change`, which changes structures in a draft and brings them to the device, above the checker,
//! and above `extant-repair`, which writes directories anew in the draft.
//!
//! # Shape
//!
//! ```text
//! tune       steps, planned one over the other, and then done
//!   bits       features that are a bit, and their conditions
//!   checksums  metadata_csum, its seed, the UUID, uninit_bg, settings
//!   files      journal, orphan file, quota, multi-mount block
//!   wide       64bit
//!   inodes     inodes of another size
//! work       one step while it is planned
//! space      free clusters and inodes
//! request    what is asked for, and the order in which it is done
//! ```
//!
//! # Invariants
//!
//! - U1. Nothing is written before every step is known, and each leads from a file system in order to one in
//!   order.
//! - U2. What is written before a step switches over lies on blocks that nothing used, or where the file
//!   system before does not look.
//! - U3. What a conversion cannot do is refused by name, with the reason.
//! - U4. Nothing on the image makes it panic, or loop or allocate without bound: memory is the changed
//!   blocks, the descriptors, one group's inode table, and what the checker keeps.
#![forbid(unsafe_code)]

mod bits;
mod checksums;
mod error;
mod files;
mod inodes;
mod request;
mod space;
mod tune;
mod wide;
mod work;

pub use error::TuneError;
pub use request::Request;
pub use tune::{BeforeWriting, Done, Plan, plan, tune};
