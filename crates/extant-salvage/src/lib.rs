//! Reads ext2/3/4 images that are too damaged for anybody else: whatever can still be found is handed to a
//! [`Target`], and what is missing of it is said.
//!
//! # Place
//!
//! Above the formats, the layout and the journal, beside `extant`, whose reader obeys the rules: that one refuses what
//! is wrong, and this one reads on as far as anything can be believed. It never writes.
//!
//! # Shape
//!
//! ```text
//! salvage    the walk: names from the root on, then what nothing leads to
//! metadata   a copy without the contents of files; scramble: with other names and values
//!   seal shared           contents beside the seal of their file, and beside the blocks of others
//!   dirs content attrs    entries, bytes and attributes, as far as they can be read
//!     open                superblock, backups, what follows from descriptors; the journal's latest copies
//!       supers guess replay
//!         map             where a file's blocks are
//!           image         the image: its numbers, its blocks, its inodes
//!             tables      where each inode table is
//! report     what is missing of a file, and why
//! ```
//!
//! # Invariants
//!
//! - S1. Nothing in an image makes it panic, hang, or use memory without bound: a directory is entered once, nodes of
//!   maps and bytes of contents are counted against what the image can hold ([`Limits`](limits)), and contents
//!   are handed on in pieces.
//! - S2. A name is given to the target only if it is a name: neither empty nor `.` or `..`, without `/` and NUL.
//! - S3. What is not handed on is counted: every byte of a file is data, a hole that the file has, or missing.
#![forbid(unsafe_code)]

mod attrs;
mod content;
mod dirs;
mod error;
mod guess;
mod image;
pub mod limits;
mod map;
mod metadata;
mod open;
mod replay;
mod report;
mod salvage;
mod scramble;
mod seal;
mod shared;
mod supers;
mod tables;

pub use attrs::{Found, Xattr};
pub use error::SalvageError;
pub use image::Image;
pub use metadata::{Copied, CopyOptions, copy_metadata};
pub use open::Options;
pub use report::{Damage, Summary, Unverified, Why};
pub use salvage::{Refusal, Target, salvage};
