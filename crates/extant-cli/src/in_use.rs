//! Who else has an image that a command wants to change.

use std::path::{Path, PathBuf};

use extant_block::loop_device_over;

use crate::mount_table as table;

/// The loop device that the kernel has over `file`.
pub(crate) fn loop_device_of(file: &Path) -> Option<String> {
    loop_device_over(file)
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
