//! Finds the layers of a container image: in an OCI image layout, or in what `docker save` writes.
//!
//! # Place
//!
//! Below the builder, which turns layers into a tree. Nothing here knows tar archives or file systems: where the
//! files of a layout are is a [`Store`]'s business, and a layer is a stream of bytes with a digest.
//!
//! # Invariants
//!
//! - O1. Nothing that an image says is believed before its digest was computed, where there is one. Documents are
//!   read whole and checked before they are parsed; a layer is checked while it is read, and its reader gives an
//!   error in place of the end of the stream when digest or size are others ([`Verified`]).
//! - O2. Sizes, nesting and counts are bounded: [`DOCUMENT_MAX`], [`NESTING_MAX`], [`LAYERS_MAX`], [`ENTRIES_MAX`].
//! - O3. Every name under which a store is asked for a file is made of checked parts, and has no `..`.
//!
//! Sources: OCI Image Format Specification 1.1 (Image Layout, Image Index, Image Manifest, Image Configuration,
//! Descriptor), Docker Image Specification 1.2, "Combined Image JSON + Filesystem Changeset Format".
#![forbid(unsafe_code)]

mod archive;
mod digest;
mod error;
mod image;
mod layout;
mod limits;
mod model;
mod platform;
mod reference;
mod source;
mod store;

pub use archive::open_docker_archive;
pub use digest::{Digest, Hashing, Verified};
pub use error::{Kind, OciError};
pub use image::{Choice, Image, Layer};
pub use layout::open_layout;
pub use limits::{DOCUMENT_MAX, ENTRIES_MAX, LAYERS_MAX, NESTING_MAX};
pub use platform::Platform;
pub use reference::{Reference, is_loopback};
pub use source::Source;
pub use store::{DirStore, Store, Stored};
