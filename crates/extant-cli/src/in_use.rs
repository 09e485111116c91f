//! Who else has an image that a command wants to change.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use extant_block::loop_device_over;

use crate::exit::Failure;
use crate::mount_table as table;
use crate::text::escape;

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

/// Returns the failure to open `file` for changes with a hint about the mount that has it, if one by extant has: `advice`
/// says what to do with its directory.
pub(crate) fn with_mount(
    failure: Failure,
    (file, partition, offset): (&Path, Option<u32>, Option<u64>),
    advice: impl FnOnce(&str) -> String,
) -> Failure {
    let Some(dir) = mounted_on(file, partition, offset) else { return failure };
    let dir = escape(dir.as_os_str().as_bytes());
    let advice = advice(&dir);
    failure.hint(format!("it is mounted on {dir}: {advice}"))
}
