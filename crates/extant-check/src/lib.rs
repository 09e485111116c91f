//! Checks everything an ext2/3/4 image says against everything else it says.
//!
//! # Place
//!
//! Above `extant-format` and `extant-block`, beside `extant` and `extant-image`, which it does not
//! use: it is an oracle for what they write. For that it shares the decoders, which e2fsprogs
//! proves, and the table of features of `extant-layout`, so that what extant can write it can check;
//! but no rule of where things lie: it works out backups and descriptors itself (`heads`).
//! It reads metadata only, never writes, and repairs nothing.
//!
//! # Shape
//!
//! ```text
//! groups    descriptors; fixed metadata claims its blocks
//! inodes    every inode in use, in order of number; its map and attributes claim theirs
//!   map       extents, indirect blocks      xattrs    attribute areas and blocks
//! dirs      every directory: blocks, names, index; counts links
//! links     what is reachable, how many links, orphans
//! special   journal, orphan file, quota files, resize inode
//! groups    bitmaps and counts against what was claimed
//! ```
//!
//! # Invariants
//!
//! - Nothing on the image makes it panic, or loop or allocate without bound: a block that was
//!   claimed before is not descended into, so work is bounded by the blocks of the file system,
//!   and memory by a bit for each block and some words for each inode of groups in use.
//! - An image is *clean* exactly when `e2fsck -fn` finds nothing to change; where we differ,
//!   `docs/testing.md` says so.
#![forbid(unsafe_code)]

mod checker;
mod claims;
mod code;
mod dirs;
mod groups;
mod heads;
mod htree;
mod inodes;
mod links;
mod map;
mod problem;
mod report;
mod special;
mod xattrs;

use extant_block::BlockDevice;

pub use problem::Problem;
pub use report::{CheckError, CheckOptions, Counts, ImageState, Report};

/// Checks the whole image on `device`; reads all of its metadata and none of its data.
///
/// # Errors
///
/// [`CheckError`] when there is nothing to be checked, or the device fails. Everything that is
/// wrong with the image itself is in the report.
pub fn check(device: &dyn BlockDevice, options: &CheckOptions) -> Result<Report, CheckError> {
    let mut checker = match checker::Checker::open(device, *options)? {
        Ok(checker) => checker,
        Err(report) => return Ok(report),
    };
    checker.read_groups()?;
    checker.read_inodes()?;
    checker.check_special()?;
    checker.check_directories()?;
    checker.check_links();
    checker.check_values();
    checker.check_quota()?;
    checker.check_bitmaps()?;
    Ok(checker.finish())
}
