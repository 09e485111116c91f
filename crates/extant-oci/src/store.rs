//! Access to the files of an image.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::de::DeserializeOwned;

use crate::digest::Digest;
use crate::error::{Kind, OciError};
use crate::limits::DOCUMENT_MAX;
use crate::source::Source;

/// A file of an image, open.
pub struct Stored<'s> {
    /// Length of the file in bytes.
    pub size: u64,
    /// Reader of its bytes, from the start.
    pub reader: Box<dyn Source + 's>,
}

/// The files of an image: a directory, or an archive.
pub trait Store: Sync {
    /// Returns how messages call it.
    fn name(&self) -> &str;

    /// The regular file `path`, relative and without `..`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// What the system says when it cannot be opened. An [`OciError`] inside is passed on as it is.
    fn open(&self, path: &str) -> io::Result<Option<Stored<'_>>>;

    /// As [`open`](Store::open), for a manifest or an index, which registries keep apart from other blobs.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Store::open).
    fn open_manifest(&self, path: &str) -> io::Result<Option<Stored<'_>>> {
        self.open(path)
    }

    /// Returns whether a file is opened at no cost, so that a layer which is missing is noticed before any is read.
    fn is_near(&self) -> bool {
        true
    }
}

/// Files below a directory of the host.
pub struct DirStore {
    path: PathBuf,
    name: String,
}

impl DirStore {
    /// Files below `path`.
    pub fn new(path: &Path) -> DirStore {
        DirStore { path: path.to_owned(), name: path.to_string_lossy().into_owned() }
    }
}

impl Store for DirStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, path: &str) -> io::Result<Option<Stored<'_>>> {
        // With NONBLOCK, opening a fifo in the place of a file does not wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file: File = match openat(CWD, self.path.join(path), flags, Mode::empty()) {
            Ok(file) => file.into(),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
            Err(cause) => return Err(cause.into()),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        Ok(Some(Stored { size: metadata.len(), reader: Box::new(file) }))
    }
}

/// Opens `path`, which has to be there; `what` it is, for the message.
pub(crate) fn find<'s>(
    store: &'s dyn Store,
    path: &str,
    what: &str,
) -> Result<Stored<'s>, OciError> {
    found(store, store.open(path), path, what)
}

fn found<'s>(
    store: &'s dyn Store,
    opened: io::Result<Option<Stored<'s>>>,
    path: &str,
    what: &str,
) -> Result<Stored<'s>, OciError> {
    match opened {
        Ok(Some(stored)) => Ok(stored),
        Ok(None) => {
            let text = format!("{what} is not in it: there is no file \"{path}\"");
            Err(OciError::new(Kind::Missing, store.name(), text)
                .advise("fetch the image whole: skopeo copy docker://NAME oci:DIR"))
        }
        Err(cause) => Err(OciError::io(store.name(), "open", path, cause)),
    }
}

/// Compares the size of a file with what the image says of it.
pub(crate) fn check_size(
    store: &dyn Store,
    path: &str,
    size: u64,
    wanted: u64,
) -> Result<(), OciError> {
    if size == wanted {
        return Ok(());
    }
    let what = format!("\"{path}\" has {size} bytes, and the image says {wanted}");
    Err(OciError::damaged(store.name(), what))
}

/// Reads a document whole, and checks size and digest where the image says some.
pub(crate) fn document(
    store: &dyn Store,
    path: &str,
    what: &str,
    size: Option<u64>,
    digest: Option<&Digest>,
) -> Result<Vec<u8>, OciError> {
    read(store, find(store, path, what)?, (path, what), size, digest)
}

/// As [`document`], for a manifest or an index.
pub(crate) fn manifest(
    store: &dyn Store,
    path: &str,
    what: &str,
    size: u64,
    digest: &Digest,
) -> Result<Vec<u8>, OciError> {
    let stored = found(store, store.open_manifest(path), path, what)?;
    read(store, stored, (path, what), Some(size), Some(digest))
}

fn read(
    store: &dyn Store,
    mut stored: Stored<'_>,
    (path, what): (&str, &str),
    size: Option<u64>,
    digest: Option<&Digest>,
) -> Result<Vec<u8>, OciError> {
    if let Some(size) = size {
        check_size(store, path, stored.size, size)?;
    }
    if stored.size > DOCUMENT_MAX {
        let size = stored.size;
        let text =
            format!("{what} (\"{path}\") has {size} bytes, and at most {DOCUMENT_MAX} are read");
        return Err(OciError::damaged(store.name(), text));
    }
    let mut bytes = Vec::new();
    let read = (&mut stored.reader).take(DOCUMENT_MAX).read_to_end(&mut bytes);
    read.map_err(|cause| OciError::io(store.name(), "read", path, cause))?;
    if let Some(digest) = digest
        && let Err(found) = digest.check(&bytes)
    {
        let text = format!("the digest of \"{path}\" is {found}, and the image says {digest}");
        return Err(OciError::damaged(store.name(), text));
    }
    if digest.is_some() {
        stored.reader.proven();
    }
    Ok(bytes)
}

/// Reads a document as JSON.
pub(crate) fn parse<T: DeserializeOwned>(
    store: &dyn Store,
    path: &str,
    bytes: &[u8],
) -> Result<T, OciError> {
    serde_json::from_slice(bytes).map_err(|error| {
        OciError::damaged(store.name(), format!("\"{path}\" cannot be understood: {error}"))
    })
}
