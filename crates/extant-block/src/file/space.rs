//! Disk space of a file: parts that have none get it before they are written, and zeros.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
#[cfg(test)]
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};

use super::FileDevice;

/// Length of the longest piece of explicit zeros, in bytes.
const ZERO_PIECE_BYTES: usize = 1 << 20;

impl FileDevice {
    /// Returns the whole sectors inside a range: a block device refuses to zero anything else, and
    /// a file has no such limit.
    pub(super) fn whole_sectors(&self, offset: u64, len: u64) -> (u64, u64) {
        if !self.is_block_device {
            return (offset, offset + len);
        }
        let sector = u64::from(self.logical_sector_bytes);
        let end = (offset + len) / sector * sector;
        let start = offset.div_ceil(sector).saturating_mul(sector).min(end);
        (start, end)
    }

    pub(super) fn fallocate(
        &self,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> Result<bool, io::Error> {
        if len == 0 {
            return Ok(true);
        }
        loop {
            match rustix::fs::fallocate(&self.file, mode, offset, len) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                // These are the answers of file systems and disks without the operation.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => {
                    return Ok(false);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Returns the first part without disk space from `range.start` on, as far as the host file
    /// system tells, if it starts in `range`; it may end behind it. Notes that the part in front
    /// has space.
    pub(super) fn next_hole(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        #[cfg(test)]
        self.asked.fetch_add(1, Ordering::Relaxed);
        // This does not depend on the position of the file.
        let seek = |to| retry_on_intr(|| rustix::fs::seek(&self.file, to));
        let asked = self.room.ask();
        let start = match seek(SeekFrom::Hole(range.start)) {
            Ok(start) => start,
            // The offset is behind the end, or the host file system does not tell.
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        self.room.note(asked, range.start..start);
        if start >= range.end {
            return Ok(None);
        }
        let end = match seek(SeekFrom::Data(start)) {
            Ok(end) => end,
            Err(Errno::NXIO) => self.size(),
            Err(errno) => return Err(errno.into()),
        };
        Ok((start < end).then_some(start..end))
    }

    /// Allocates disk space for every hole of a range, and for more behind it where holes are
    /// filled one piece after the other.
    pub(super) fn fill_holes(&self, range: Range<u64>) -> io::Result<()> {
        let mut at = range.start;
        loop {
            at = self.room.known_to(at);
            if at >= range.end {
                return Ok(());
            }
            let asked = self.room.ask();
            let remembered = self.room.hole_to(at);
            let hole = match remembered {
                Some(end) => at..end,
                None => match self.next_hole(at..range.end)? {
                    Some(hole) => hole,
                    None => return Ok(()),
                },
            };
            let needed = hole.start..hole.end.min(range.end);
            let ahead = self.room.stretch(&needed, hole.end);
            // What nobody asked for must not fail what was asked for.
            let end = match ahead > needed.end && matches!(self.fill(hole.start..ahead), Ok(true)) {
                true => ahead,
                false if self.fill(needed.clone())? => needed.end,
                // Zeros must not be written where there may be data since (R3).
                false if remembered.is_some() => {
                    self.room.note_hole(0..0);
                    continue;
                }
                false => {
                    self.write_explicit_zeros(needed.start, needed.end - needed.start)?;
                    self.room.note(asked, needed.clone());
                    at = needed.end;
                    continue;
                }
            };
            self.room.note_hole(end..hole.end);
            self.room.note_filled(hole.start..end);
            self.room.note(asked, hole.start..end);
            at = end;
        }
    }

    /// Asks the host file system for disk space; returns false if it cannot be asked.
    fn fill(&self, range: Range<u64>) -> io::Result<bool> {
        #[cfg(test)]
        {
            self.filled.fetch_add(1, Ordering::Relaxed);
            if self.cannot_fill.load(Ordering::Relaxed) {
                return Ok(false);
            }
        }
        self.fallocate(FallocateFlags::KEEP_SIZE, range.start, range.end - range.start)
    }

    pub(super) fn write_explicit_zeros(&self, offset: u64, len: u64) -> io::Result<()> {
        let zeros = vec![0; (ZERO_PIECE_BYTES as u64).min(len) as usize];
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let piece = (zeros.len() as u64).min(end - at) as usize;
            self.file.write_all_at(&zeros[..piece], at)?;
            at += piece as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::device::BlockDevice;

    const SIZE: u64 = 4 << 20;

    /// A file with a hole at its start, one in the middle, and data besides.
    fn holey(dir: &Path) -> FileDevice {
        let path = dir.join("image");
        std::fs::write(&path, vec![7; SIZE as usize]).unwrap();
        let device = FileDevice::open_read_write(&path).unwrap();
        device.discard(0, 65_536).unwrap();
        device.discard(2 << 20, 65_536).unwrap();
        // Opened anew, it knows nothing.
        drop(device);
        FileDevice::open_read_write(path).unwrap()
    }

    fn asked(device: &FileDevice) -> u64 {
        device.asked.swap(0, Ordering::Relaxed)
    }

    /// Bytes in holes, as the system tells. Nothing is noted.
    fn holes_bytes(device: &FileDevice) -> u64 {
        let (mut at, mut bytes) = (0, 0);
        while let Ok(hole) = rustix::fs::seek(&device.file, SeekFrom::Hole(at)) {
            at = rustix::fs::seek(&device.file, SeekFrom::Data(hole)).unwrap_or(SIZE);
            bytes += at - hole;
        }
        bytes
    }

    #[test]
    fn the_system_is_asked_once_for_each_part_between_holes() {
        let dir = tempfile::tempdir().unwrap();
        let device = holey(dir.path());
        if holes_bytes(&device) != 2 * 65_536 {
            println!("skipped: the file system of {} has no holes", dir.path().display());
            return;
        }
        asked(&device);
        for at in (0..SIZE).step_by(4096) {
            device.allocate(at, 4096).unwrap();
        }
        assert_eq!(holes_bytes(&device), 0);
        // Once for each hole and once for what follows; a hole of sixteen blocks is filled by 1, 2,
        // 4, 8 and the last one.
        assert_eq!((asked(&device), device.filled.swap(0, Ordering::Relaxed)), (4, 2 * 5));
        for at in (0..SIZE).step_by(4096) {
            device.allocate(at, 8192.min(SIZE - at)).unwrap();
        }
        assert_eq!(asked(&device), 0);
        // What has been given away since gets room again, and the rest is still known.
        device.discard(3 << 20, 8192).unwrap();
        device.write_zeroes(1 << 20, 4096).unwrap();
        assert_eq!(holes_bytes(&device), 12_288);
        device.allocate(0, 1 << 20).unwrap();
        assert_eq!(asked(&device), 0);
        device.allocate(0, SIZE).unwrap();
        assert_eq!((asked(&device), holes_bytes(&device)), (2, 0));
        let mut bytes = [0];
        device.read_at(1 << 20, &mut bytes).unwrap();
        assert_eq!(bytes, [0]);
        device.read_at((1 << 20) + 4096, &mut bytes).unwrap();
        assert_eq!(bytes, [7]);
    }

    #[test]
    fn what_was_written_to_a_remembered_hole_is_not_zeroed() {
        let dir = tempfile::tempdir().unwrap();
        let device = holey(dir.path());
        if holes_bytes(&device) != 2 * 65_536 {
            println!("skipped: the file system of {} has no holes", dir.path().display());
            return;
        }
        // The rest of the hole is remembered, and a write to it is not noted.
        device.allocate(0, 4096).unwrap();
        device.write_at(4096, &[9; 4096]).unwrap();
        device.cannot_fill.store(true, Ordering::Relaxed);
        device.allocate(0, 16_384).unwrap();
        let mut bytes = [1; 16_384];
        device.read_at(0, &mut bytes).unwrap();
        assert!(bytes[4096..8192].iter().all(|byte| *byte == 9), "data is gone");
        assert!(bytes[8192..].iter().all(|byte| *byte == 0));
        // What is a hole has room now all the same.
        assert_eq!(holes_bytes(&device), 2 * 65_536 - 16_384);
    }
}
