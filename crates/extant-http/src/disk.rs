//! Pages on a disk, which processes share.
//!
//! A page is a file whose name stands for the version of what it is a page of, and its number. It begins with a digest of
//! both and of its bytes, so that a page which is damaged, cut short or another one is none.
//!
//! A file beside them has their number of bytes. Pages get their names under a lock of it, after it was written: whoever
//! is killed in between leaves a number that is too large, and never one that is too small.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use extant_sync::{Clock, SystemClock};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use sha2::{Digest, Sha256};

use crate::error::HttpError;
use crate::shelf::Shelf;

/// Bytes of a digest.
const DIGEST: usize = 32;

/// The file with the number of bytes.
const COUNT: &str = ".bytes";

/// Number of tries of a lock that somebody else has, and the time between two. Pages are not kept after the last.
const LOCK_TRIES: u32 = 20;
const LOCK_WAIT: Duration = Duration::from_millis(1);

/// Time within which one use of a page counts for all.
const FRESH: Duration = Duration::from_secs(60);

/// A cache on a disk, for files behind servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskCache {
    /// The directory; it is made for this user alone.
    pub dir: PathBuf,
    /// Bytes that the pages in it have at most.
    pub most_bytes: u64,
}

/// Pages of one version of one file.
pub(crate) struct DiskPages {
    shelf: Shelf,
    most: u64,
    /// Stands for the file and its version.
    of: [u8; DIGEST],
}

impl DiskPages {
    /// The pages of the file and version that `identity` stands for.
    pub(crate) fn open(cache: &DiskCache, identity: &str) -> Result<DiskPages, HttpError> {
        let shelf = Shelf::new(cache.dir.join("pages"));
        shelf.make().map_err(|source| HttpError::Cache { dir: cache.dir.clone(), source })?;
        let of = Sha256::digest(identity.as_bytes()).into();
        Ok(DiskPages { shelf, most: cache.most_bytes, of })
    }

    fn name(&self, number: u64) -> String {
        let of = u128::from_be_bytes(self.of[..16].try_into().unwrap_or_default());
        format!("{of:032x}-{number:x}")
    }

    fn digest(&self, number: u64, bytes: &[u8]) -> [u8; DIGEST] {
        let mut digest = Sha256::new();
        digest.update(self.of);
        digest.update(number.to_be_bytes());
        digest.update(bytes);
        digest.finalize().into()
    }

    /// Reads a page of `len` bytes to the end of `out`; `false` if it is not there. One that is damaged is taken away.
    pub(crate) fn read(&self, number: u64, len: usize, out: &mut Vec<u8>) -> bool {
        let name = self.name(number);
        let Some((mut file, stored)) = self.shelf.open(&name) else { return false };
        let start = out.len();
        let mut digest = [0; DIGEST];
        let is_long = stored == (DIGEST + len) as u64;
        let done = is_long && file.read_exact(&mut digest).is_ok() && {
            out.resize(start + len, 0);
            file.read_exact(&mut out[start..]).is_ok()
        };
        if !done || self.digest(number, &out[start..]) != digest {
            out.truncate(start);
            self.shelf.remove(&name);
            return false;
        }
        let (now, _) = SystemClock.now();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(now).unwrap_or(0));
        let used = file.metadata().and_then(|metadata| metadata.modified());
        if used.is_ok_and(|used| now.duration_since(used).is_ok_and(|age| age >= FRESH)) {
            self.shelf.touch(&file);
        }
        true
    }

    /// Keeps the pages from `first` on, if there is room or can be made. A disk that is full or fails keeps none.
    pub(crate) fn keep(&self, first: u64, pages: &[&[u8]]) {
        let mut files = Vec::with_capacity(pages.len());
        for (number, page) in (first..).zip(pages) {
            let Some(mut file) = self.shelf.begin() else { return };
            let digest = self.digest(number, page);
            if file.write_all(&digest).and_then(|()| file.write_all(page)).is_err() {
                return;
            }
            files.push((file, self.name(number)));
        }
        let bytes = pages.iter().map(|page| (DIGEST + page.len()) as u64).sum();
        // Pages get their names under the lock: otherwise whoever counts them anew would miss these.
        let Ok(Some(_lock)) = self.reserve(bytes) else { return };
        for (file, name) in files {
            // Another process may have been faster; its page is as good.
            self.shelf.keep(&file, &name);
        }
    }

    /// Locks the count. The lock ends with the descriptor, and with its process.
    fn lock(&self) -> io::Result<File> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let count = File::from(rustix::fs::openat(CWD, self.shelf.path(COUNT), flags, mode)?);
        let mut tries = 0;
        while let Err(error) = rustix::fs::flock(&count, FlockOperation::NonBlockingLockExclusive) {
            tries += 1;
            if tries >= LOCK_TRIES {
                return Err(error.into());
            }
            SystemClock.sleep(LOCK_WAIT);
        }
        Ok(count)
    }

    /// Counts `bytes` more, after taking away what is too much, and returns the lock; `None` if there is no room for them.
    fn reserve(&self, bytes: u64) -> io::Result<Option<File>> {
        if bytes > self.most / 2 {
            return Ok(None);
        }
        let count = self.lock()?;
        let mut total = match read_count(&count) {
            Some(total) => total,
            None => self.shelf.prune(self.most)?,
        };
        if total.saturating_add(bytes) > self.most {
            // A part more than is needed, so that not every page looks through the directory.
            total = self.shelf.prune((self.most - self.most / 8).saturating_sub(bytes))?;
        }
        let after = total.saturating_add(bytes);
        let fits = after <= self.most;
        write_count(&count, if fits { after } else { total })?;
        Ok(fits.then_some(count))
    }
}

/// Reads the number of bytes; `None` if it is damaged: it is there twice, and the second time with all bits inverted.
fn read_count(file: &File) -> Option<u64> {
    let mut raw = [0; 16];
    file.read_exact_at(&mut raw, 0).ok()?;
    let (count, inverted) = raw.split_at(8);
    let count = u64::from_le_bytes(count.try_into().ok()?);
    (u64::from_le_bytes(inverted.try_into().ok()?) == !count).then_some(count)
}

fn write_count(file: &File, count: u64) -> io::Result<()> {
    let mut raw = [0; 16];
    raw[..8].copy_from_slice(&count.to_le_bytes());
    raw[8..].copy_from_slice(&(!count).to_le_bytes());
    file.write_all_at(&raw, 0)
}

#[cfg(test)]
mod tests {
    use extant_sync::threads;

    use super::*;

    fn pages(dir: &std::path::Path, most_bytes: u64, identity: &str) -> DiskPages {
        let cache = DiskCache { dir: dir.to_owned(), most_bytes };
        DiskPages::open(&cache, identity).unwrap()
    }

    fn stored(pages: &DiskPages) -> u64 {
        // Under the lock: a sum of what comes and goes meanwhile is none.
        let _lock = loop {
            if let Ok(lock) = pages.lock() {
                break lock;
            }
        };
        pages.shelf.prune(u64::MAX).unwrap()
    }

    #[test]
    fn a_page_is_there_for_its_version_and_number_alone_and_damage_is_a_miss() {
        let dir = tempfile::tempdir().unwrap();
        let one = pages(dir.path(), 1 << 20, "one");
        one.keep(7, &[&[1; 100], &[2; 50]]);
        let mut out = vec![9];
        assert!(one.read(7, 100, &mut out) && one.read(8, 50, &mut out));
        assert_eq!(out.len(), 151);
        assert!(out[1..101] == [1; 100] && out[101..] == [2; 50]);
        assert!(!pages(dir.path(), 1 << 20, "two").read(7, 100, &mut out));
        // Another page in its place, a bit, a cut, nothing, a link.
        let path = one.shelf.path(&one.name(7));
        let whole = std::fs::read(&path).unwrap();
        one.keep(9, &[&[3; 100]]);
        let other = std::fs::read(one.shelf.path(&one.name(9))).unwrap();
        let mut bit = whole.clone();
        bit[60] ^= 4;
        for wrong in
            [&other, &bit, &whole[..131].to_vec(), &Vec::new(), &[&whole[..], &[0]].concat()]
        {
            std::fs::write(&path, wrong).unwrap();
            assert!(!one.read(7, 100, &mut out));
            assert_eq!(out.len(), 151);
            assert!(!path.exists(), "it is taken away");
        }
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(!one.read(7, 100, &mut out));
        std::fs::remove_file(&path).unwrap();
        one.keep(7, &[&[1; 100]]);
        assert!(one.read(7, 100, &mut out));
    }

    #[test]
    fn the_pages_never_have_more_bytes_than_allowed_whoever_writes_and_whatever_happened() {
        const MOST: u64 = 40_000;
        let dir = tempfile::tempdir().unwrap();
        threads::workers("writer", 4, |index| {
            let mine = pages(dir.path(), MOST, &index.to_string());
            for number in 0..60 {
                mine.keep(number, &[&[index as u8; 1000]]);
                let now = stored(&mine);
                assert!(now <= MOST, "{now}");
            }
        })
        .unwrap();
        let mine = pages(dir.path(), MOST, "mine");
        assert!(stored(&mine) > MOST / 2);
        // A count that is damaged is made anew; one that is too large, by whoever was killed, heals.
        for count in [&b"short"[..], &[0; 16], &[0xff; 16]] {
            std::fs::write(mine.shelf.path(COUNT), count).unwrap();
            mine.keep(count.len() as u64, &[&[1; 1000]]);
            assert!(stored(&mine) <= MOST);
        }
        write_count(&File::create(mine.shelf.path(COUNT)).unwrap(), MOST * 100).unwrap();
        mine.keep(99, &[&[1; 1000]]);
        assert!(mine.read(99, 1000, &mut Vec::new()));
        // Too much for all of it is not begun.
        mine.keep(100, &[&[1; 30_000]]);
        assert!(!mine.read(100, 30_000, &mut Vec::new()));
        assert!(mine.read(99, 1000, &mut Vec::new()));
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let mine = pages(dir.path(), 10 * 1032, "mine");
        for number in 0..10 {
            mine.keep(number, &[&[1; 1000]]);
            let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + number);
            let path = mine.shelf.path(&mine.name(number));
            File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
        }
        assert!(mine.read(0, 1000, &mut Vec::new()));
        mine.keep(10, &[&[1; 1000]]);
        let kept = |number| mine.read(number, 1000, &mut Vec::new());
        assert_eq!([0, 1, 2, 9, 10].map(kept), [true, false, false, true, true]);
    }

    #[test]
    fn a_lock_that_is_held_on_to_costs_a_page_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let mine = pages(dir.path(), 1 << 20, "mine");
        mine.keep(1, &[&[1; 10]]);
        let held = File::open(mine.shelf.path(COUNT)).unwrap();
        rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
        mine.keep(2, &[&[1; 10]]);
        assert!(mine.read(1, 10, &mut Vec::new()) && !mine.read(2, 10, &mut Vec::new()));
        drop(held);
        mine.keep(2, &[&[1; 10]]);
        assert!(mine.read(2, 10, &mut Vec::new()));
    }

    #[test]
    fn a_directory_where_others_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let pages = dir.path().join("pages");
        std::fs::create_dir(&pages).unwrap();
        std::fs::set_permissions(&pages, std::fs::Permissions::from_mode(0o777)).unwrap();
        let cache = DiskCache { dir: dir.path().to_owned(), most_bytes: 1 << 20 };
        let error = DiskPages::open(&cache, "x").err().unwrap();
        assert!(matches!(error, HttpError::Cache { .. }), "{error}");
    }
}
