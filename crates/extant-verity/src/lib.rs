//! Hash trees of sealed files (fs-verity): their format, and making them from contents.
//!
//! # Place
//!
//! Below `extant`, which reads and writes sealed files, and `extant-image`, which builds them: bytes
//! in, bytes out. It knows no devices, no inodes and no maps of files.
//!
//! # Shape
//!
//! ```text
//! hash         hash algorithms, salted, and their results
//! shape        where the blocks of a tree lie
//! descriptor   what is sealed: parameters, size, root hash; its hash is the digest of the file
//! build        a tree and its root from contents, as a stream
//! place        where ext4 keeps tree and descriptor: behind the end of the file
//! ```
//!
//! # Invariants
//!
//! - S1. A descriptor comes from an image and may have any value: none makes a function panic, loop
//!   or allocate more than its own length.
//! - S2. A tree has at most [`LEVELS_MAX`] levels, as in Linux.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/fsverity.rst`, sections "File digest computation" and
//! "Filesystem support". The tests compare with `fsverity digest`.
#![forbid(unsafe_code)]

mod build;
mod descriptor;
mod hash;
mod place;
mod shape;

pub use build::{Builder, Unfinished};
pub use descriptor::{
    DESCRIPTOR_BYTES, DESCRIPTOR_BYTES_MAX, Descriptor, DescriptorFault, SALT_BYTES_MAX,
    SIGNATURE_BYTES_MAX,
};
pub use hash::{Algorithm, DIGEST_BYTES_MAX, Hash, Hasher};
pub use place::{DescriptorPlace, Place, SIZE_FIELD_BYTES, metadata_start};
pub use shape::{BLOCK_LOG2_MIN, LEVELS_MAX, Level, Shape, TooDeep};
