//! Contents that the system copies between files, without a way through this process's memory.
//!
//! On XFS and btrfs the image then shares the blocks of the source, until one of the two is written: no byte is
//! copied, and no space is taken. In memory (tmpfs) one copy is made instead of two. Elsewhere the system copies by
//! pages through a pipe, which is slower than reads and writes of a megabyte, and so nothing is asked for.

use std::os::fd::BorrowedFd;

use extant_block::BlockDevice;
use rustix::fs::{copy_file_range, fstatfs};
use rustix::io::Errno;

/// Fewest bytes that are copied so: less is read and written with its neighbours.
pub(super) const COPIED_BYTES_MIN: usize = 64 << 10;

/// File systems (`f_type` of statfs) that share blocks or copy once: tmpfs, XFS, btrfs.
const WHERE: [u64; 3] = [0x0102_1994, 0x5846_5342, 0x9123_683e];

/// The file that an image is written to, where copies pay.
pub(super) struct Copies<'d> {
    target: BorrowedFd<'d>,
    /// Where the image begins in the file, in bytes.
    start: u64,
}

impl<'d> Copies<'d> {
    /// Copies to `device`; `None` where they do not pay or cannot be.
    pub(super) fn to(device: &'d dyn BlockDevice) -> Option<Copies<'d>> {
        let (target, start) = device.as_file()?;
        let stat = fstatfs(target).ok()?;
        WHERE.contains(&(stat.f_type as u64)).then_some(Copies { target, start })
    }

    /// Copies `len` bytes of `source` from byte `from` to byte `to` of the image, as far as the system does; returns
    /// how many bytes it copied from the beginning of the range on. What is left is to be read and written, which
    /// tells why it was not copied.
    pub(super) fn copy(&self, source: BorrowedFd<'_>, from: u64, to: u64, len: usize) -> usize {
        let (mut from, mut to) = (from, self.start.saturating_add(to));
        let mut left = len;
        while left > 0 {
            match copy_file_range(source, Some(&mut from), self.target, Some(&mut to), left) {
                Ok(0) => break,
                Ok(count) => left -= count.min(left),
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        len - left
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use extant_block::FileDevice;

    use super::*;

    #[test]
    fn in_memory_all_is_copied_and_what_is_not_there_is_left() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
            println!("skipped: there is no /dev/shm");
            return;
        };
        let (source, target) = (dir.path().join("source"), dir.path().join("target"));
        let bytes: Vec<u8> = (0..300_000).map(|at| (at / 100) as u8).collect();
        std::fs::write(&source, &bytes).unwrap();
        File::create(&target).unwrap().set_len(1 << 20).unwrap();
        let device = FileDevice::open_read_write(&target).unwrap();
        let copies = Copies::to(&device).expect("/dev/shm is in memory");
        let source = File::open(&source).unwrap();
        assert_eq!(copies.copy(source.as_fd(), 1000, 5000, 200_000), 200_000);
        // The file ends before the range does.
        assert_eq!(copies.copy(source.as_fd(), 290_000, 400_000, 65_536), 10_000);
        let mut found = vec![0; 500_000];
        device.read_at(0, &mut found).unwrap();
        assert!(found[5000..205_000] == bytes[1000..201_000]);
        assert!(found[400_000..410_000] == bytes[290_000..]);
        assert!(found[..5000].iter().chain(&found[410_000..]).all(|byte| *byte == 0));
        // What cannot be read is copied by nobody.
        let writing = File::options().write(true).open(dir.path().join("target")).unwrap();
        assert_eq!(copies.copy(writing.as_fd(), 0, 600_000, 65_536), 0);
        assert!(Copies::to(&extant_block::MemoryDevice::new(4096)).is_none());
    }
}
