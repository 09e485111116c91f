//! Which features extant can do what with, and where a file system keeps its fixed metadata.
//!
//! # Place
//!
//! Above `extant-format`, below everybody who asks where something lies: `extant-image` makes file
//! systems of this layout, `extant` reads, changes and grows them, and a program that repairs one
//! needs the same answers. Pure arithmetic: no devices, no options of a command, and no allocation
//! that grows with the file system but that of its [`NewGroups`].
//!
//! `extant-check` uses [`support`], the tables of features, and nothing else of this crate. It is
//! an oracle for what the others write, and a rule that both sides share cannot be found wrong by
//! comparing them: that groups 9 and 27 have backups, the checker works out for itself.
//!
//! # Shape
//!
//! [`support`] is one table of features and what can be done with each. [`Heads`] knows the start
//! of every group (superblock, descriptors, blocks reserved for more) for a file system that exists
//! ([`Heads::of`] a superblock) and for one that is being made ([`Geometry::heads`]).
//! [`Geometry`] adds bitmaps and inode tables, placed as mke2fs places them. [`Shape`] and
//! [`NewGroups`] are what a file system becomes that gets another size. [`mke2fs_geometry`],
//! [`table_score`] and [`TableSearch`] are for who has lost the descriptors of one.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/`: `blockgroup.rst` ("Layout", "Flexible Block Groups",
//! "Meta Block Groups"), `bigalloc.rst`, `super.rst`, `group_descr.rst`. The choices the format
//! leaves open are those mke2fs 1.47 makes, as observed; `extant-image/tests/images/mke2fs_geometry.rs`
//! compares.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod geometry;
mod grown;
mod heads;
mod placed;
mod search;
mod sizes;
pub mod support;

pub use geometry::{FixedRuns, Geometry, GroupLayout, Groups, JournalGeometry, NoRoomForTables};
pub use grown::{NewGroup, NewGroups, Shape, blocks_max, share_of};
pub use heads::{GroupHead, Heads};
pub use placed::{mke2fs_geometry, table_score};
pub use search::TableSearch;
pub use sizes::{
    JOURNAL_BLOCKS_MAX, JOURNAL_BLOCKS_MIN, ORPHAN_FILE_BLOCKS_MAX, default_fast_commit_blocks,
    default_journal_blocks, default_orphan_file_blocks,
};
