//! Builds ext4 images: `mkfs`, and images populated from a directory or a tar archive.
//!
//! [`Build`] does it in one call:
//!
//! ```no_run
//! use extant_image::Build;
//! let built = Build::from_dir("rootfs").free_percent(20).owner(0, 0).write_to("rootfs.img")?;
//! println!("{} files in {} bytes", built.summary.files, built.summary.size_bytes);
//! # Ok::<(), extant_image::BuildError>(())
//! ```
//!
//! # Place
//!
//! Above `extant-format` and `extant-block`; below the command line. This crate never mounts an
//! image: it plans the whole image, then streams it (see `plan` and `write`).
#![deny(unsafe_code)]

pub mod attributes;
pub mod base;
mod build;
pub mod disk;
pub mod encrypt;
pub mod geometry;
mod keys;
pub mod options;
pub mod output;
pub mod plan;
pub mod profile;
pub mod readers;
pub mod signature;
pub mod source;
mod superblock_template;
pub mod transform;
pub mod tree;
pub mod verity;
pub mod write;

pub use build::{Build, BuildError, Built};
pub use extant_block::{BlockDevice, MemoryDevice};
pub use extant_crypt::{
    ContentsMode, IvKind, KeySpec, MasterKey, NamesMode, Policy as EncryptionPolicy,
};
