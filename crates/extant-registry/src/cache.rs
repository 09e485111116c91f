//! Blobs that were fetched before, by digest, in a directory that processes share: a [`Shelf`], whose files get their names
//! when their contents are proven.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_http::Shelf;
use extant_oci::{Digest, Hashing};

/// Bytes that are compared at once.
const CHUNK: usize = 256 << 10;

/// A directory of blobs.
pub(crate) struct Cache {
    shelf: Shelf,
    most: u64,
    grown: AtomicBool,
}

/// A blob on its way into the cache.
pub(crate) struct Coming<'c> {
    cache: &'c Cache,
    file: File,
    len: u64,
}

fn name(digest: &Digest) -> String {
    digest.to_string().replace(':', "-")
}

impl Cache {
    /// The cache in `dir`, which is made when there is something to keep.
    pub(crate) fn new(dir: &Path, most: u64) -> Cache {
        Cache { shelf: Shelf::new(dir.join("blobs")), most, grown: AtomicBool::new(false) }
    }

    /// The blob with this digest, which is computed again: a blob that is damaged is taken away (R3).
    pub(crate) fn find(&self, digest: &Digest) -> Option<(File, u64)> {
        let (mut file, len) = self.shelf.open(&name(digest))?;
        match digest_of(&mut file, digest) {
            Ok(found) if found == *digest => {}
            Ok(_) => {
                self.shelf.remove(&name(digest));
                return None;
            }
            Err(_) => return None,
        }
        file.rewind().ok()?;
        self.shelf.touch(&file);
        Some((file, len))
    }

    /// Begins a blob of `len` bytes; `None` if it is not to be kept, or cannot.
    pub(crate) fn begin(&self, len: u64) -> Option<Coming<'_>> {
        if len > self.most {
            return None;
        }
        Some(Coming { cache: self, file: self.shelf.begin()?, len: 0 })
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if self.grown.load(Ordering::Relaxed) {
            // What is too much now is taken away the next time.
            let _ = self.shelf.prune(self.most);
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
        // Another process may have been faster.
        if self.len == len && self.cache.shelf.keep(&self.file, &name(digest)) {
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
    use std::time::SystemTime;

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
        std::fs::write(cache.shelf.path(&name(&digest)), b"hallo").unwrap();
        assert!(cache.find(&digest).is_none());
        assert!(!cache.shelf.path(&name(&digest)).exists());
        let mut coming = cache.begin(5).unwrap();
        coming.write(b"hell").unwrap();
        coming.keep(&digest, 5);
        assert!(cache.find(&digest).is_none());
        assert!(cache.begin(1001).is_none());
        // Neither a link to elsewhere nor a pipe is a blob.
        std::os::unix::fs::symlink("/etc/passwd", cache.shelf.path(&name(&digest))).unwrap();
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
                .open(cache.shelf.path(&name(digest)))
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
