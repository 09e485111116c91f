//! Directories for the files of tests.

use std::io;
use std::path::Path;

use tempfile::TempDir;

/// Where files are memory.
const SHM: &str = "/dev/shm";

/// Bytes that have to be free there: images are sparse, and several tests run at once.
const FREE_MIN: u64 = 4 << 30;

/// Makes a directory that is removed when the value is dropped.
///
/// It is in memory where `/dev/shm` has at least 4 GiB free, and in the directory for temporary files elsewhere or
/// where `TMPDIR` names one: images that the kernel mounts are synced dozens of times in a test, and a disk makes the
/// test wait five times as long as it works.
/// What is about files on a disk asks the crate `tempfile` instead.
///
/// # Errors
///
/// The system's, of making a directory.
pub fn tempdir() -> io::Result<TempDir> {
    prefixed(".tmp")
}

/// Makes a directory like [`tempdir`] whose name starts with `prefix`.
///
/// # Errors
///
/// The system's, of making a directory.
pub(crate) fn prefixed(prefix: &str) -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    // A process without privileges may be kept out of it.
    if has_room()
        && let Ok(dir) = builder.tempdir_in(SHM)
    {
        return Ok(dir);
    }
    builder.tempdir()
}

fn has_room() -> bool {
    if std::env::var_os("TMPDIR").is_some_and(|dir| !dir.is_empty()) {
        return false;
    }
    rustix::fs::statvfs(Path::new(SHM))
        .is_ok_and(|system| system.f_bavail.saturating_mul(system.f_frsize) >= FREE_MIN)
}
