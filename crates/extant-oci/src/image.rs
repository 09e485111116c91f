//! An image, and where its layers are.

use crate::digest::{Digest, Verified};
use crate::error::OciError;
use crate::platform::Platform;
use crate::store::{Store, check_size, find};

/// Which image of several is meant.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Choice {
    /// Name of the image: `org.opencontainers.image.ref.name` in a layout, one of `RepoTags` in an
    /// archive.
    pub tag: Option<String>,
    /// The digest of its manifest or index.
    pub digest: Option<Digest>,
    /// Platform of the image. Default, where several match: this machine's architecture.
    pub platform: Option<Platform>,
}

/// An image: what it says about itself, and where its layers are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// The image's configuration, JSON as stored.
    pub config: Vec<u8>,
    /// From the lowest to the topmost.
    pub layers: Vec<Layer>,
}

/// One layer of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer {
    /// How messages call it: its digest, or its name in an archive.
    pub name: String,
    /// Path of the file in the store.
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
    /// [`Kind::Missing`](crate::Kind::Missing) when the store does not have it, [`Kind::Damaged`](crate::Kind::Damaged) when its size is another,
    /// [`Kind::Io`](crate::Kind::Io) when it cannot be opened.
    pub fn open<'s>(&self, store: &'s dyn Store) -> Result<Verified<'s>, OciError> {
        let stored = find(store, &self.path, &format!("layer {}", self.name))?;
        check_size(store, &self.path, stored.size, self.size)?;
        Ok(Verified::new(stored.reader, self.size, self.digest.clone()))
    }
}
