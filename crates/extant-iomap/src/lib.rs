//! File I/O through a cache of large folios, over any file system that answers mapping questions.
//!
//! # Place
//!
//! Below: `extant-block` (devices), `extant-sync` (locks). Above: a file system, which implements
//! [`Mapper`] for each of its files and decides who may read and write at the same time.
//! Knows nothing of ext4, of trees of extents and of journals.
//!
//! # Shape
//!
//! `docs/design/0007-io-core.md` has the picture, the locks and the reasons.
#![deny(unsafe_code)]

#[cfg_attr(not(test), expect(dead_code, reason = "the cache over it comes next"))]
mod arena;
#[cfg_attr(not(test), expect(dead_code, reason = "the cache over it comes next"))]
mod buddy;
#[cfg_attr(not(test), expect(dead_code, reason = "the cache over it comes next"))]
mod frames;
#[cfg_attr(not(test), expect(dead_code, reason = "the cache over it comes next"))]
mod hints;
mod mapping;
#[cfg_attr(not(test), expect(dead_code, reason = "the cache over it comes next"))]
mod states;

pub use mapping::{Cookie, Done, Intent, Kind, MapFlags, Mapper, Mapping, Placed, Placement};
