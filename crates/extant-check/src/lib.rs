//! Checks the structures of an ext2/3/4 image against each other.
//!
//! # Place
//!
//! Above `extant-format` and `extant-block`, beside `extant` and `extant-image`, which it does not
//! use: it is an oracle for what they write. For that it shares the decoders, which are tested
//! against e2fsprogs, and the table of features of `extant-layout`, so that it can check every
//! image that extant can write; but it shares no rule about places: it computes those of backups
//! and descriptors itself (`heads`). It reads metadata only and never writes. A repair uses its
//! findings ([`examine`]).
//!
//! # Shape
//!
//! ```text
//! groups    descriptors; fixed metadata claims its blocks
//! inodes    every inode in use, in order of number; its map and attributes claim theirs
//!   map       extents, indirect blocks      xattrs    attribute areas and blocks
//! dirs      every directory: blocks, names, index; counts links
//! links     reachability, link counts, orphans
//! special   journal, orphan file, quota files, resize inode
//! groups    bitmaps and counts against the claims
//! ```
//!
//! # Invariants
//!
//! - No image makes it panic, or loop or allocate without bound: a block that was claimed before is
//!   not descended into, so work is bounded by the blocks of the file system, and memory by a bit
//!   for each block, a byte for each inode of pages in use, and some words for each directory and each
//!   file that has another number of links than 1.
//! - An image is *clean* exactly when `e2fsck -fn` finds nothing to change; `docs/testing.md` lists
//!   the differences.
#![forbid(unsafe_code)]

mod base;
mod bitmaps;
mod checker;
mod claims;
mod code;
mod crew;
mod describe;
mod dir_scan;
mod dirs;
mod examination;
mod findings;
mod found;
mod groups;
mod heads;
mod htree;
mod inodes;
mod links;
mod map;
mod meet;
mod names;
mod part;
mod piece;
mod plain;
mod problem;
mod records;
mod report;
mod scan;
mod special;
mod states;
mod tables;
mod xattrs;

use extant_block::BlockDevice;

use checker::Checker;

pub use describe::{Objects, Severity};
pub use examination::{Examination, InodeView};
pub use meet::{Answer, Meet, ReportAll};
pub use problem::{FIRST_INODE, HOLDS_VALUE, NO_LINKS, Problem, VALUE_COUNT};
pub use report::{CheckError, CheckOptions, Counts, ImageState, Report};

/// Checks the whole image on `device`; reads all of its metadata and none of its data.
///
/// # Errors
///
/// [`CheckError`] when there is nothing to be checked, or the device fails. Everything that is
/// wrong with the image itself is in the report.
pub fn check(device: &dyn BlockDevice, options: &CheckOptions) -> Result<Report, CheckError> {
    check_with(device, options, &mut ReportAll)
}

/// Checks the whole image on `device` as [`check`] does, and calls `meet` at each broken rule and
/// with how far it is.
///
/// # Errors
///
/// As [`check`].
pub fn check_with(
    device: &dyn BlockDevice,
    options: &CheckOptions,
    meet: &mut dyn Meet,
) -> Result<Report, CheckError> {
    Ok(match run(device, options, meet, false)? {
        Ok(checker) => checker.findings.report,
        Err(report) => report,
    })
}

/// Checks the whole image on `device` as [`check`] does, calls `meet` at each broken rule, and
/// returns its findings about the image for a repair.
///
/// Memory: that of [`check`], and the problems that `meet` wants fixed.
///
/// # Errors
///
/// As [`check`].
pub fn examine(
    device: &dyn BlockDevice,
    options: &CheckOptions,
    meet: &mut dyn Meet,
) -> Result<Examination, CheckError> {
    Ok(match run(device, options, meet, true)? {
        Ok(checker) => Examination::of(checker),
        Err(report) => Examination::of_nothing(report),
    })
}

/// Runs all steps. The inner error is the report on an image where nothing can be looked at.
fn run<'a>(
    device: &'a dyn BlockDevice,
    options: &CheckOptions,
    meet: &'a mut dyn Meet,
    is_full: bool,
) -> Result<Result<Checker<'a>, Report>, CheckError> {
    let mut checker = match Checker::open(device, *options, meet, is_full)? {
        Ok(checker) => checker,
        Err(report) => return Ok(Err(report)),
    };
    run_all(&mut checker)?;
    Ok(Ok(checker))
}

/// Runs all steps of a check.
fn run_all(checker: &mut Checker<'_>) -> Result<(), CheckError> {
    type Step = fn(&mut Checker<'_>) -> Result<(), CheckError>;
    let steps: [Step; 8] = [
        |checker| checker.read_groups(),
        |checker| checker.read_inodes(),
        |checker| checker.check_special(),
        |checker| checker.check_directories(),
        // From here on everything depends on everything that was read.
        |checker| {
            if !checker.base.is_partial() {
                checker.check_links();
            }
            Ok(())
        },
        |checker| {
            if !checker.base.is_partial() {
                checker.check_values();
            }
            Ok(())
        },
        |checker| if checker.base.is_partial() { Ok(()) } else { checker.check_quota() },
        |checker| checker.check_bitmaps(),
    ];
    for step in steps {
        if checker.findings.is_stopped {
            break;
        }
        step(checker)?;
    }
    let is_cancelled = checker.findings.meet.is_cancelled();
    checker.findings.report.is_partial = is_cancelled || checker.base.is_partial();
    Ok(())
}
