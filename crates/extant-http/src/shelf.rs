//! A directory of files that processes share, with a bound.
//!
//! A file gets its name when it is whole, and until then it has none; so nothing is left of one that was under way,
//! however its maker ends. Files are never changed, and whoever reads one keeps it open: anybody may take it away.
//! What is in a file is for its reader to check.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};

/// A directory of files with a bound, by names without slashes.
///
/// ```
/// # let home = tempfile::tempdir()?;
/// use std::io::Write;
/// let shelf = extant_http::Shelf::new(home.path().join("kept"));
/// let mut file = shelf.begin().expect("a file system with unnamed files");
/// file.write_all(b"hello")?;
/// assert!(shelf.open("greeting").is_none());
/// assert!(shelf.keep(&file, "greeting"));
/// assert_eq!(shelf.open("greeting").unwrap().1, 5);
/// assert_eq!(shelf.prune(4)?, 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Shelf {
    dir: PathBuf,
}

impl Shelf {
    /// The files in `dir`, which is made when there is something to keep.
    pub fn new(dir: PathBuf) -> Shelf {
        Shelf { dir }
    }

    /// Returns where the file of a name is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes the directory, for this user alone, and checks that nobody else can put files there.
    ///
    /// # Errors
    ///
    /// It cannot be made, or is another user's, or others may write there.
    pub fn make(&self) -> io::Result<()> {
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.dir)?;
        let metadata = std::fs::metadata(&self.dir)?;
        let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
        if !is_own || metadata.mode() & 0o022 != 0 {
            let message = "other users can write there, so what is there cannot be believed";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(())
    }

    /// Opens the file of a name, and tells its length in bytes. Links and pipes are no files.
    pub fn open(&self, name: &str) -> Option<(File, u64)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, self.path(name), flags, Mode::empty()).ok()?;
        let file = File::from(file);
        let metadata = file.metadata().ok().filter(|metadata| metadata.is_file())?;
        Some((file, metadata.len()))
    }

    /// Takes a file away.
    pub fn remove(&self, name: &str) {
        // Another process may have been faster.
        let _ = std::fs::remove_file(self.path(name));
    }

    /// Notes that a file was of use now. Where nothing can be written, nothing is noted.
    pub fn touch(&self, file: &File) {
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let _ = rustix::fs::futimens(file, &times);
    }

    /// Begins a file without a name; `None` if the directory cannot be written, or its file system knows no such files.
    pub fn begin(&self) -> Option<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let begin = || rustix::fs::openat(CWD, &self.dir, flags, mode).ok();
        if let Some(file) = begin() {
            return Some(file.into());
        }
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.dir).ok()?;
        begin().map(File::from)
    }

    /// Gives a file its name; `false` if that has a file already, or cannot be given.
    pub fn keep(&self, file: &File, name: &str) -> bool {
        let this = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, this, CWD, self.path(name), AtFlags::SYMLINK_FOLLOW).is_ok()
    }

    /// Takes away what was of no use for the longest time, until the files have `most` bytes together; tells how many they
    /// have then. Files whose names begin with a dot are left and not counted.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub fn prune(&self, most: u64) -> io::Result<u64> {
        let mut all: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            // Others take files away, too.
            let Ok(metadata) = entry.metadata() else { continue };
            let is_hidden =
                Path::new(&entry.file_name()).as_os_str().as_encoded_bytes().first() == Some(&b'.');
            if metadata.is_file() && !is_hidden {
                all.push((metadata.modified()?, metadata.len(), entry.path()));
            }
        }
        all.sort();
        let mut total = all.iter().fold(0_u64, |total, (_, len, _)| total.saturating_add(*len));
        for (_, len, path) in all {
            if total <= most {
                break;
            }
            let gone = std::fs::remove_file(path);
            if gone.is_ok() || gone.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                total = total.saturating_sub(len);
            }
        }
        Ok(total)
    }
}
