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
mod layout;
mod model;
mod platform;
mod store;

pub use archive::open_docker_archive;
pub use digest::{Digest, Hashing, Verified};
pub use error::{Kind, OciError};
pub use layout::open_layout;
pub use platform::Platform;
pub use store::{DirStore, Store, Stored};

/// Longest index, manifest or configuration, in bytes. Registries refuse manifests of more than 4 MiB.
pub const DOCUMENT_MAX: u64 = 16 << 20;

/// Deepest nesting of indexes, the first one included.
pub const NESTING_MAX: usize = 4;

/// Most layers of one image. Docker refuses more than 127.
pub const LAYERS_MAX: usize = 1024;

/// Most entries of all indexes that are looked at for one image.
pub const ENTRIES_MAX: usize = 65_536;

/// Which image of several is meant.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Choice {
    /// Its name: `org.opencontainers.image.ref.name` in a layout, one of `RepoTags` in an archive.
    pub tag: Option<String>,
    /// The digest of its manifest or index.
    pub digest: Option<Digest>,
    /// What it is to run on. Where several would do, this machine's architecture unless set.
    pub platform: Option<Platform>,
}

/// An image: what it says about itself, and where its layers are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// Its configuration, JSON as stored.
    pub config: Vec<u8>,
    /// From the lowest to the topmost.
    pub layers: Vec<Layer>,
}

/// One layer of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer {
    /// How messages call it: its digest, or its name in an archive.
    pub name: String,
    /// Where the store has it.
    pub path: String,
    /// Bytes as stored, packed or not.
    pub size: u64,
    /// Digest of the bytes as stored, where the image says it.
    pub digest: Option<Digest>,
    /// Digest of the archive when it is unpacked.
    pub diff_id: Digest,
}

impl Layer {
    /// Opens the layer in `store`. The reader checks digest and size, and reports at the end of the stream when
    /// they are others.
    ///
    /// # Errors
    ///
    /// [`Kind::Missing`] when the store does not have it, [`Kind::Damaged`] when its size is another,
    /// [`Kind::Io`] when it cannot be opened.
    pub fn open<'s>(&self, store: &'s dyn Store) -> Result<Verified<'s>, OciError> {
        let stored = store::find(store, &self.path, &format!("layer {}", self.name))?;
        store::check_size(store, &self.path, stored.size, self.size)?;
        Ok(Verified::new(stored.reader, self.size, self.digest.clone()))
    }
}
