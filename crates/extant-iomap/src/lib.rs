//! File I/O through a cache of large folios, over any file system that provides mappings.
//!
//! # Place
//!
//! Below: `extant-block` (devices), `extant-sync` (locks). Above: a file system, which implements
//! [`Mapper`] for each of its files and locks readers and writers against each other. This crate
//! does not know ext4, extent trees or journals.
//!
//! # Shape
//!
//! `docs/design/0007-io-core.md` has a picture, the locks and the reasons.
#![deny(unsafe_code)]

mod arena;
mod buddy;
mod cache;
mod contents;
mod direct;
mod drop_behind;
mod file;
mod fill;
mod first_touch;
mod frames;
mod hints;
mod index;
mod known;
mod mapping;
mod mmap;
mod nowait;
#[cfg(test)]
mod protocol_tests;
mod ranges;
mod read;
mod readahead;
mod seek;
mod states;
mod stats;
mod streams;
mod write;
mod writeback;
mod zero;

pub use cache::{Cache, CacheError, CacheOptions};
pub use contents::{Contents, Newer, Stage};
pub use direct::{
    Alone, DirectOptions, DirectOutcome, OverwritePart, OverwritePlan, Queued, QueuedFill,
};
pub use file::{FileCache, KeptOut};
pub use mapping::{
    Cookie, Done, Intent, Kind, MapFlags, Mapper, Mapping, Obstacle, Placed, Placement,
};
pub use mmap::MappedPages;
pub use ranges::{RangeLock, RangeLocks};
pub use stats::CacheStats;
