//! Who else has an image that a command wants to change.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::mount_table as table;

/// The loop device that the kernel has over `file`. Nothing locks the file for it, and what it
/// keeps in memory would be written over our changes.
pub(crate) fn loop_device_of(file: &Path) -> Option<String> {
    let ours = std::fs::metadata(file).ok().filter(std::fs::Metadata::is_file)?;
    for device in std::fs::read_dir("/sys/block").ok()?.flatten() {
        let Ok(backing) = std::fs::read(device.path().join("loop/backing_file")) else { continue };
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        let Ok(theirs) = std::fs::metadata(Path::new(OsStr::from_bytes(backing))) else { continue };
        if (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()) {
            return Some(format!("/dev/{}", device.file_name().display()));
        }
    }
    None
}

/// Returns where extant has mounted the file system in `file`, or in a part of it.
pub(crate) fn mounted_on(
    file: &Path,
    partition: Option<u32>,
    offset: Option<u64>,
) -> Option<PathBuf> {
    let mut source = file.canonicalize().ok()?.into_os_string();
    match (partition, offset) {
        (Some(number), _) => source.push(format!("#{number}")),
        (None, Some(offset)) => source.push(format!("@{offset}")),
        (None, None) => {}
    }
    table::mounts_of(&source).into_iter().next()
}
