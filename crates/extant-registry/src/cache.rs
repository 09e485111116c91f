//! Blobs that were fetched before, by digest, in a directory that processes share.
//!
//! A file gets its name when its contents are proven, and until then it has none; so nothing is left of a fetch that ends
//! early, however it ends. Files are never changed, and whoever reads one keeps it open: anybody may take it away.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use extant_oci::{Digest, Hashing};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};

/// Bytes that are compared at once.
const CHUNK: usize = 256 << 10;

/// A directory of blobs.
pub(crate) struct Cache {
    dir: PathBuf,
    most: u64,
    grown: AtomicBool,
}

/// A blob on its way into the cache.
pub(crate) struct Coming<'c> {
    cache: &'c Cache,
    file: File,
    len: u64,
}

impl Cache {
    /// The cache in `dir`, which is made when there is something to keep.
    pub(crate) fn new(dir: &Path, most: u64) -> Cache {
        Cache { dir: dir.join("blobs"), most, grown: AtomicBool::new(false) }
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.dir.join(digest.to_string().replace(':', "-"))
    }

    /// The blob with this digest, which is computed again: a blob that is damaged is taken away (R3).
    pub(crate) fn find(&self, digest: &Digest) -> Option<(File, u64)> {
        let path = self.path(digest);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file: File = rustix::fs::openat(CWD, &path, flags, Mode::empty()).ok()?.into();
        let metadata = file.metadata().ok().filter(|metadata| metadata.is_file())?;
        match digest_of(&mut file, digest) {
            Ok(found) if found == *digest => {}
            Ok(_) => {
                let _ = std::fs::remove_file(&path);
                return None;
            }
            Err(_) => return None,
        }
        file.rewind().ok()?;
        // When it was of use last; a cache that cannot be written is used all the same.
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let _ = rustix::fs::futimens(&file, &times);
        Some((file, metadata.len()))
    }

    /// Begins a blob of `len` bytes; `None` if it is not to be kept, or cannot.
    pub(crate) fn begin(&self, len: u64) -> Option<Coming<'_>> {
        if len > self.most {
            return None;
        }
        let mut builder = std::fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.recursive(true).create(&self.dir).ok()?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        // File systems that know no files without a name have no cache.
        let file = rustix::fs::openat(CWD, &self.dir, flags, mode).ok()?.into();
        Some(Coming { cache: self, file, len: 0 })
    }

    /// Takes away what was of no use for the longest time, until the rest is within the bound.
    fn prune(&self) -> io::Result<()> {
        let mut all: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            // Others take files away, too.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_file() {
                all.push((metadata.modified()?, metadata.len(), entry.path()));
            }
        }
        all.sort();
        let mut total: u64 = all.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in all {
            if total <= self.most {
                break;
            }
            let _ = std::fs::remove_file(path);
            total -= len;
        }
        Ok(())
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if self.grown.load(Ordering::Relaxed) {
            // What is too much now is taken away the next time.
            let _ = self.prune();
        }
    }
}

impl Coming<'_> {
    /// Adds bytes.
    ///
    /// # Errors
    ///
    /// The disk is full, or fails; then the blob is not kept.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Gives the blob its name, now that it is proven to have this digest.
    pub(crate) fn keep(self, digest: &Digest, len: u64) {
        if self.len != len {
            return;
        }
        let this = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.file.as_fd()));
        let name = self.cache.path(digest);
        // Another process may have been faster.
        if rustix::fs::linkat(CWD, this, CWD, name, AtFlags::SYMLINK_FOLLOW).is_ok() {
            self.cache.grown.store(true, Ordering::Relaxed);
        }
    }
}

fn digest_of(file: &mut File, like: &Digest) -> io::Result<Digest> {
    let mut hashing = Hashing::like(like);
    let mut buffer = vec![0; CHUNK];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hashing.finish()),
            Ok(count) => hashing.update(buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(cache: &Cache, bytes: &[u8]) -> Digest {
        let digest = Digest::sha256(bytes);
        let mut coming = cache.begin(bytes.len() as u64).unwrap();
        coming.write(bytes).unwrap();
        coming.keep(&digest, bytes.len() as u64);
        digest
    }

    #[test]
    fn a_blob_that_was_changed_is_taken_away_and_one_that_is_short_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path(), 1000);
        let digest = put(&cache, b"hello");
        assert_eq!(cache.find(&digest).unwrap().1, 5);
        std::fs::write(cache.path(&digest), b"hallo").unwrap();
        assert!(cache.find(&digest).is_none());
        assert!(!cache.path(&digest).exists());
        let mut coming = cache.begin(5).unwrap();
        coming.write(b"hell").unwrap();
        coming.keep(&digest, 5);
        assert!(cache.find(&digest).is_none());
        assert!(cache.begin(1001).is_none());
        // Neither a link to elsewhere nor a pipe is a blob.
        std::os::unix::fs::symlink("/etc/passwd", cache.path(&digest)).unwrap();
        assert!(cache.find(&digest).is_none());
    }

    #[test]
    fn the_cache_keeps_what_was_used_last() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path(), 2000);
        let digests: Vec<Digest> = (0..4u8).map(|fill| put(&cache, &[fill; 900])).collect();
        for (age, digest) in digests.iter().enumerate() {
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 - age as u64);
            File::options()
                .write(true)
                .open(cache.path(digest))
                .unwrap()
                .set_modified(time)
                .unwrap();
        }
        // The oldest one is of use.
        assert!(cache.find(&digests[3]).is_some());
        drop(cache);
        let cache = Cache::new(dir.path(), 2000);
        let kept: Vec<bool> = digests.iter().map(|digest| cache.find(digest).is_some()).collect();
        assert_eq!(kept, [true, false, false, true]);
    }
}
