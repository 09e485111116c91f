//! Images as they are made: features, layout, layers.
//!
//! One program for all of them: each has to be linked with everything it tests.

#[path = "../common/mod.rs"]
mod common;

mod copied;
mod features;
mod hashes;
mod images;
mod layers;
mod mke2fs_geometry;
