//! The bytes of ext4: every on-disk structure decoded into checked values and encoded back.
//!
//! # Place
//!
//! Above only `extant-base`. No I/O, no clock, no threads, no `unsafe`; `no_std` with `alloc`, so
//! that a fuzzer or a boot loader can use it as it is. What needs two structures at once (is this
//! block allocated? does this inode's tree loop?) is checked by the crates above.
//!
//! # Shape
//!
//! One module per structure. Each has the bytes as stored (`Raw…`, kernel field names), a decoded
//! value in plain words, `decode` from a slice, and `encode` back into one. A decoded value obeys
//! every rule that the record can tell about itself; its module says which.
//!
//! # Rules
//!
//! - F1. Nothing read from a slice makes this crate panic, overflow, loop without bound or
//!   allocate more than a small multiple of the slice's length.
//! - F2. Decoding then encoding an untouched record gives the same bytes, unless the module says
//!   which bits are normalised.
//! - F3. Checksums are verified by a call of their own, so that a caller may look at a damaged
//!   record on purpose; encoding always writes the right checksum.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/`; each module names the file and section it follows.
#![no_std]
#![forbid(unsafe_code)]
#![warn(clippy::arithmetic_side_effects, clippy::as_conversions, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::arithmetic_side_effects, clippy::as_conversions, clippy::indexing_slicing)
)]

extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

pub mod acl;
pub mod bitmap;
pub mod checksum;
pub mod dir;
pub mod error;
pub mod extent;
pub mod features;
pub mod fold;
pub mod group;
pub mod hash;
pub mod htree;
pub mod indirect;
pub mod inline;
pub mod inode;
pub mod jbd2;
mod le;
pub mod mmp;
pub mod orphan;
pub mod quota;
pub mod record;
pub mod superblock;
pub mod time;
pub mod xattr;
