//! The geometry that mke2fs chooses for a file system of a given size.
//!
//! # Place
//!
//! Pure arithmetic: from [`MkfsOptions`] and a size to group counts, inode counts and descriptor
//! blocks. No I/O. The result, a [`Geometry`], is of `extant-layout`, which computes the place of
//! each piece. The planner (`plan`) adds what depends on contents; the writer (`write`) asks
//! [`Geometry::group`] for locations.
//!
//! # Shape
//!
//! `solve` finds the counts, `journal` and `empty` the files of an empty file system.
//!
//! # Source
//!
//! As of `extant-layout`; `tests/images/mke2fs_geometry.rs` compares with mke2fs 1.47.

mod empty;
mod error;
mod journal;
mod solve;

pub use empty::EmptyFs;
pub use error::GeometryError;
pub use extant_layout::{
    FixedRuns, Geometry, GroupLayout, Groups, JournalGeometry, NoRoomForTables,
};

use crate::options::MkfsOptions;

/// How big the file system is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeRequest {
    /// A device of that many bytes, rounded down to whole blocks, as `mke2fs FILE` sees it: the
    /// last group is dropped when it would hold little but its own metadata.
    Device {
        /// Size in bytes.
        bytes: u64,
    },
    /// A number of blocks, as `mke2fs FILE BLOCKS` takes it: not rounded to pages, and the last
    /// group may be dropped as above.
    Blocks {
        /// Size in blocks of [`MkfsOptions::block_size`], which is 4 KiB unless set.
        blocks: u64,
    },
    /// Exactly that many blocks, for a builder that computed them. The last group is dropped only
    /// when it cannot hold its own metadata: where `flex_bg` puts bitmaps and table elsewhere,
    /// that is a backup and one block.
    Exact {
        /// Size in blocks of [`MkfsOptions::block_size`], which is 4 KiB unless set.
        blocks: u64,
        /// At least that many inodes, reserved ones included; `None`: by bytes per inode.
        inodes: Option<u64>,
    },
}

/// Computes what mke2fs would decide for a file system of that size.
///
/// Costs no memory that grows with the size, and time for the groups that have backups.
///
/// # Errors
///
/// [`GeometryError::Options`] when the options contradict each other; the other variants when
/// the size allows no file system with these options. Each says what to change.
///
/// ```
/// use extant_image::geometry::{SizeRequest, compute};
/// use extant_image::options::MkfsOptions;
/// let two_gib = SizeRequest::Device { bytes: 2 << 30 };
/// let geometry = compute(&MkfsOptions::default(), two_gib).unwrap();
/// assert_eq!((geometry.group_count, geometry.inodes_per_group), (16, 8192));
/// assert_eq!(geometry.journal.unwrap().total_blocks(), 16384);
/// ```
pub fn compute(options: &MkfsOptions, size: SizeRequest) -> Result<Geometry, GeometryError> {
    solve::solve(options, size)
}
