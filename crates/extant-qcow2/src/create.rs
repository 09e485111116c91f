//! New images.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::chain::Format;
use crate::error::Qcow2Error;
use crate::header::{Compression, Header};

/// As qemu makes them.
const CLUSTER_BITS: u32 = 16;
const REFCOUNT_ORDER: u32 = 4;

/// Makes an empty image of `size_bytes` zeros at `path`, where there must be nothing.
///
/// # Errors
///
/// [`Qcow2Error::Io`]; of kind `AlreadyExists` if there is something.
pub fn create(path: &Path, size_bytes: u64) -> Result<(), Qcow2Error> {
    write_new(path, size_bytes, None, None)
}

/// Makes an image of `size_bytes` at `path` that lies over the image `base`. The name is stored as it is
/// given: from the directory of `path` on, unless it is absolute.
///
/// # Errors
///
/// As [`create`].
pub fn create_over(
    path: &Path,
    size_bytes: u64,
    base: &Path,
    format: Format,
) -> Result<(), Qcow2Error> {
    write_new(path, size_bytes, Some((base, format)), None)
}

/// A header for a disk, and the clusters that it and its tables take.
pub(crate) fn empty_header(
    size: u64,
    base: Option<(&Path, Format)>,
    version: Option<&str>,
) -> (Header, u64) {
    let cluster = 1u64 << CLUSTER_BITS;
    let mut header = Header {
        version: 3,
        cluster_bits: CLUSTER_BITS,
        size,
        l1_offset: 3 * cluster,
        l1_entries: 0,
        reftable_offset: cluster,
        reftable_clusters: 1,
        snapshots: 0,
        snapshots_offset: 0,
        incompatible: 0,
        autoclear: 0,
        refcount_order: REFCOUNT_ORDER,
        compression: Compression::Deflate,
        backing: base.map(|(path, _)| path.as_os_str().as_bytes().to_vec()),
        backing_format: base.map(|(_, format)| format.name().to_owned()),
        backing_version: version.map(str::to_owned),
    };
    header.l1_entries = header.l1_needed().max(1) as u32;
    let l1_clusters = (u64::from(header.l1_entries) * 8).div_ceil(cluster);
    (header, 3 + l1_clusters)
}

pub(crate) fn write_new(
    path: &Path,
    size: u64,
    base: Option<(&Path, Format)>,
    version: Option<&str>,
) -> Result<(), Qcow2Error> {
    let failed = |source| Qcow2Error::Io { action: "create", path: path.to_owned(), source };
    let too_large = || failed(io::Error::from(io::ErrorKind::FileTooLarge));
    // One table of counts of one cluster, and the first table in one block of counts.
    if size > 1 << 43 {
        return Err(too_large());
    }
    if base.is_some_and(|(base, _)| base.as_os_str().len() > 1023) {
        return Err(failed(io::ErrorKind::InvalidFilename.into()));
    }
    let (temporary, file) = beside(path).map_err(failed)?;
    let written = fill(&file, size, base, version).and_then(|()| {
        // A link instead of a rename: a file created by another program meanwhile stays.
        std::fs::hard_link(&temporary, path)
    });
    // The file has its final name now, or is not wanted.
    let _ = std::fs::remove_file(&temporary);
    written.map_err(failed)?;
    sync_directory(path).map_err(failed)
}

/// A new file with a name of its own beside `path`.
pub(crate) fn beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy();
    for number in 0..100 {
        let process = std::process::id();
        let temporary = path.with_file_name(format!(".{name}.extant-{process}-{number}"));
        match File::create_new(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Writes an empty image.
pub(crate) fn fill(
    file: &File,
    size: u64,
    base: Option<(&Path, Format)>,
    version: Option<&str>,
) -> io::Result<()> {
    let (header, clusters) = empty_header(size, base, version);
    let cluster = header.cluster_bytes();
    file.set_len(clusters * cluster)?;
    file.write_all_at(&header.encode(), 0)?;
    file.write_all_at(&(2 * cluster).to_be_bytes(), cluster)?;
    let counts: Vec<u8> = (0..clusters).flat_map(|_| 1u16.to_be_bytes()).collect();
    file.write_all_at(&counts, 2 * cluster)?;
    file.sync_all()
}
