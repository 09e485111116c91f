//! Waiting for nobody: images of tests are on one machine, whose tests are their only users.
//!
//! Whoever opens a file system with the feature `mmp` for writing waits 11 s or more, to see whether another
//! machine has it. e2fsprogs do so at each start; hundreds of starts are minutes in which nothing happens.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use extant_sync::{Clock, SystemClock};

/// The system's clock, on which sleeping takes no time.
#[derive(Clone, Copy, Debug, Default)]
pub struct HastyClock;

impl Clock for HastyClock {
    fn now(&self) -> (i64, u32) {
        SystemClock.now()
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }

    fn sleep(&self, _time: Duration) {}
}

/// Programs of e2fsprogs that open images for writing.
const WAITING: [&str; 5] = ["debugfs", "e2fsck", "mke2fs", "resize2fs", "tune2fs"];

/// A library for `LD_PRELOAD` in which `sleep` returns at once.
const SOURCE: &str = "unsigned sleep(unsigned seconds) { (void)seconds; return 0; }\n";

/// Keeps `program`, if it is one of e2fsprogs, from sleeping. Without a C compiler it sleeps, which is slower.
pub(crate) fn hurry(command: &mut Command, program: &Path) {
    let is_waiting = |name: &str| program.file_name().is_some_and(|found| found == name);
    if WAITING.into_iter().any(is_waiting)
        && let Some(library) = library()
    {
        command.env("LD_PRELOAD", library);
    }
}

/// The library, made once beside the test program.
fn library() -> Option<&'static Path> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    MADE.get_or_init(|| make().ok()).as_deref()
}

fn make() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let dir = program.parent().ok_or(io::ErrorKind::NotFound)?;
    let library = dir.join("libextant-testkit-hurry.so");
    if library.is_file() {
        return Ok(library);
    }
    // Other test programs may make it at the same time: it gets its name when it is whole.
    let work = tempfile::tempdir_in(dir)?;
    let (source, made) = (work.path().join("hurry.c"), work.path().join("hurry.so"));
    std::fs::write(&source, SOURCE)?;
    let mut compiler = Command::new("cc");
    let done = compiler.args(["-shared", "-fPIC", "-o"]).arg(&made).arg(&source).output()?;
    if !done.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned()));
    }
    std::fs::rename(&made, &library)?;
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{oracle, require, tempdir};

    #[test]
    fn nobody_waits_for_an_image_of_a_test() {
        require!(oracle::Tool::find("cc"));
        let dir = tempdir().unwrap();
        let image = dir.path().join("image");
        require!(oracle::mke2fs(&image, "16M", &["-t", "ext4", "-O", "mmp"]));
        let start = SystemClock.monotonic();
        require!(oracle::e2fsck_as(&image, "-fy", &[])).assert_clean();
        require!(oracle::debugfs(&image, true, "mkdir d\n"));
        let took = SystemClock.monotonic() - start;
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
}
