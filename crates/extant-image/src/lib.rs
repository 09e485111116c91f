//! Builds ext4 images: `mkfs`, and images populated from a directory or a tar archive.
//!
//! # Place
//!
//! Above `extant-format` and `extant-block`; below the command line. It never mounts what it
//! makes: it plans the whole image, then streams it (see `plan` and `write`).
#![forbid(unsafe_code)]

pub mod geometry;
pub mod options;
pub mod output;
pub mod plan;
pub mod profile;
pub mod signature;
pub mod source;
mod superblock_template;
pub mod transform;
pub mod tree;
pub mod write;
