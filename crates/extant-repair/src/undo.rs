//! Undo files: the blocks that a repair or a conversion overwrites, kept to restore them.
//!
//! # Shape
//!
//! A header of 32 bytes, then a record for each piece, then, when the change came to its end, sums of what it left
//! there, all numbers little-endian:
//!
//! ```text
//! 0   "extant undo 2\n\0\0"      16 bytes
//! 16  bytes of the device         u64
//! 24  number of records           u32
//! 28  crc32c of all records       u32
//! 32  records: offset u64, length u32, the old bytes
//! ..  "left:\n\0\0"              8 bytes
//! ..  crc32c of the sums          u32
//! ..  crc32c of each sector of each record, in their order, as the change left it: u32 each
//! ```
//!
//! # Rule
//!
//! U1. What is put back replaces what the change left, and nothing that was written later: where a sector is
//! neither as it was before the change nor as the change left it, nothing is put back. Of a change that was cut
//! off nobody knows what it left; the file system must be the same then, and must not have been mounted since.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;

use extant_block::{BlockDevice, DeviceError};
use extant_format::checksum::{CRC32C_INIT, crc32c};
use extant_format::features::Feature;
use extant_format::record::u32_at;
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};

use crate::plan::Plan;

const MAGIC: &[u8; 16] = b"extant undo 2\n\0\0";
/// What begins the sums.
const LEFT: &[u8; 8] = b"left:\n\0\0";
/// Longest record that is believed.
const RECORD_BYTES_MAX: u32 = 1 << 20;
/// What a device writes as a whole.
const SECTOR_BYTES: usize = 512;

/// Why nothing could be undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UndoError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The undo file could not be read.
    #[error("the undo file: {0}")]
    File(#[from] io::Error),
    /// The file is no undo file.
    #[error("this is no undo file of extant")]
    Magic,
    /// The file is truncated or damaged.
    #[error("the undo file is damaged: nothing was changed")]
    Damaged,
    /// The file belongs to another device.
    #[error("the undo file is for a device of {wanted} bytes, this one has {found}")]
    Device2 {
        /// Bytes of its device.
        wanted: u64,
        /// Bytes of this one.
        found: u64,
    },
    /// Something else is on the device than what the change left there (U1).
    #[error(
        "the image is another one, or was changed since (at byte {offset}): what was written later would be lost, and \
         nothing was put back"
    )]
    Changed {
        /// The first place that differs, in bytes.
        offset: u64,
    },
}

impl Plan {
    /// Writes what `device` holds where the plan will write. To be made durable before
    /// [`apply`](Plan::apply).
    ///
    /// # Errors
    ///
    /// The device's or the file's.
    pub fn save_undo(
        &self,
        device: &dyn BlockDevice,
        out: &mut dyn Write,
    ) -> Result<(), UndoError> {
        let places = self.writes().map(|(offset, bytes)| (offset, bytes.len() as u64));
        save_undo(device, places, out)
    }
}

/// Writes what `device` holds at some places, each an offset and a length in bytes, so that [`undo`] puts it back.
///
/// # Errors
///
/// The device's or the file's.
pub fn save_undo(
    device: &dyn BlockDevice,
    places: impl Iterator<Item = (u64, u64)>,
    out: &mut dyn Write,
) -> Result<(), UndoError> {
    let mut records = Vec::new();
    let mut count = 0u32;
    let size = device.size_bytes();
    for (offset, len) in places {
        let end = offset.saturating_add(len).min(size);
        let mut at = offset;
        while at < end {
            let take = (end - at).min(u64::from(RECORD_BYTES_MAX));
            let mut old = vec![0; take as usize];
            device.read_at(at, &mut old)?;
            records.extend_from_slice(&at.to_le_bytes());
            records.extend_from_slice(&(take as u32).to_le_bytes());
            records.extend_from_slice(&old);
            count += 1;
            at += take;
        }
    }
    out.write_all(MAGIC)?;
    out.write_all(&size.to_le_bytes())?;
    out.write_all(&count.to_le_bytes())?;
    out.write_all(&crc32c(CRC32C_INIT, &records).to_le_bytes())?;
    out.write_all(&records)?;
    out.flush()?;
    Ok(())
}

/// Appends to an undo file what the change left on `device`, when it has come to its end. A file without it is one of
/// a change that was cut off.
///
/// # Errors
///
/// The device's or the file's.
pub fn finish_undo(
    device: &dyn BlockDevice,
    file: &mut (impl Read + Write + Seek),
) -> Result<(), UndoError> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    let kept = Kept::of(&bytes, device.size_bytes())?;
    let mut sums = Vec::new();
    for (offset, old) in &kept.records {
        let mut now = vec![0; old.len()];
        device.read_at(*offset, &mut now)?;
        for sector in now.chunks(SECTOR_BYTES) {
            sums.extend_from_slice(&crc32c(CRC32C_INIT, sector).to_le_bytes());
        }
    }
    file.seek(SeekFrom::Start(kept.bytes as u64))?;
    file.write_all(LEFT)?;
    file.write_all(&crc32c(CRC32C_INIT, &sums).to_le_bytes())?;
    file.write_all(&sums)?;
    Ok(file.flush()?)
}

/// An undo file.
struct Kept<'b> {
    records: Vec<(u64, &'b [u8])>,
    /// Bytes of header and records.
    bytes: usize,
    /// Sums of what the change left; `None`: it did not come to its end.
    left: Option<Vec<u32>>,
}

impl<'b> Kept<'b> {
    /// The file that holds `bytes`, for a device of `found` bytes.
    fn of(bytes: &'b [u8], found: u64) -> Result<Kept<'b>, UndoError> {
        let (head, mut rest) = bytes.split_at_checked(32).ok_or(UndoError::Magic)?;
        if !head.starts_with(MAGIC) {
            return Err(UndoError::Magic);
        }
        let wide = |bytes: &[u8], at| {
            u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
        };
        let wanted = wide(head, 16);
        let mut records = Vec::new();
        for _record in 0..u32_at(head, 24) {
            let (head, tail) = rest.split_at_checked(12).ok_or(UndoError::Damaged)?;
            let (offset, len) = (wide(head, 0), u32_at(head, 8));
            if len > RECORD_BYTES_MAX || offset.saturating_add(u64::from(len)) > wanted {
                return Err(UndoError::Damaged);
            }
            let (old, tail) = tail.split_at_checked(len as usize).ok_or(UndoError::Damaged)?;
            records.push((offset, old));
            rest = tail;
        }
        let end = bytes.len() - rest.len();
        if crc32c(CRC32C_INIT, &bytes[32..end]) != u32_at(head, 28) {
            return Err(UndoError::Damaged);
        }
        if wanted != found {
            return Err(UndoError::Device2 { wanted, found });
        }
        let sectors = records.iter().map(|(_, old)| old.len().div_ceil(SECTOR_BYTES)).sum();
        Ok(Kept { records, bytes: end, left: sums(rest, sectors)? })
    }

    /// Compares what the device has with what the change left and with what was there before (U1).
    fn check(&self, device: &dyn BlockDevice) -> Result<(), UndoError> {
        let Some(left) = &self.left else { return self.check_identity(device) };
        // Who has the file system changes with each use.
        let holder = holder(device)?;
        let mut sums = left.iter();
        for (offset, old) in &self.records {
            let mut now = vec![0; old.len()];
            device.read_at(*offset, &mut now)?;
            let places = (*offset..).step_by(SECTOR_BYTES);
            let sectors = now.chunks(SECTOR_BYTES).zip(old.chunks(SECTOR_BYTES));
            for ((place, (now, old)), left) in places.zip(sectors).zip(&mut sums) {
                let is_known = now == old || crc32c(CRC32C_INIT, now) == *left;
                if !is_known && !holder.contains(&place) {
                    return Err(UndoError::Changed { offset: place });
                }
            }
        }
        Ok(())
    }

    /// Compares the superblock on the device with the one that was kept: the same file system, and no mount since.
    fn check_identity(&self, device: &dyn BlockDevice) -> Result<(), UndoError> {
        const MAGIC_AT: Range<usize> = 0x38..0x3a;
        const MTIME: Range<usize> = 0x2c..0x30;
        const UUID: Range<usize> = 0x68..0x78;
        let within = |(offset, old): &(u64, &'b [u8])| {
            let at = usize::try_from(SUPERBLOCK_OFFSET.checked_sub(*offset)?).ok()?;
            old.get(at..at.checked_add(SUPERBLOCK_BYTES)?)
        };
        let Some(old) = self.records.iter().find_map(within) else { return Ok(()) };
        let mut now = [0; SUPERBLOCK_BYTES];
        device.read_at(SUPERBLOCK_OFFSET, &mut now)?;
        let are_superblocks = [old, &now].iter().all(|sb| sb[MAGIC_AT] == [0x53, 0xef]);
        match are_superblocks && (now[UUID] != old[UUID] || now[MTIME] != old[MTIME]) {
            true => Err(UndoError::Changed { offset: SUPERBLOCK_OFFSET }),
            false => Ok(()),
        }
    }
}

/// The sums behind the records. Of a file that ends within them, the change came to its end, but nobody knows it.
fn sums(bytes: &[u8], sectors: usize) -> Result<Option<Vec<u32>>, UndoError> {
    let head = bytes.get(..LEFT.len().min(bytes.len())).unwrap_or(&[]);
    if !LEFT.starts_with(head) {
        return Err(UndoError::Damaged);
    }
    let Some((head, sums)) = bytes.split_at_checked(LEFT.len() + 4) else { return Ok(None) };
    if sums.len() < sectors * 4 {
        return Ok(None);
    }
    if sums.len() > sectors * 4 || crc32c(CRC32C_INIT, sums) != u32_at(head, LEFT.len()) {
        return Err(UndoError::Damaged);
    }
    Ok(Some(sums.chunks_exact(4).map(|sum| u32_at(sum, 0)).collect()))
}

/// The block that says who has the file system, in bytes; empty: there is none.
fn holder(device: &dyn BlockDevice) -> Result<Range<u64>, UndoError> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    let Ok(sb) = Superblock::decode_unverified(&bytes) else { return Ok(0..0) };
    let block = u64::from(sb.block_size.bytes());
    let start = sb.mmp_block.0.saturating_mul(block);
    Ok(if sb.features.has(Feature::MMP) { start..start.saturating_add(block) } else { 0..0 })
}

/// Puts back what was overwritten; how many bytes. All of the file is read and checked before anything is
/// written, and so is the device (U1), unless `force` says that it is to be written over whatever is on it.
///
/// # Errors
///
/// [`UndoError`]; only [`UndoError::Device`] may leave something written.
pub fn undo(device: &dyn BlockDevice, file: &mut dyn Read, force: bool) -> Result<u64, UndoError> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let kept = Kept::of(&bytes, device.size_bytes())?;
    if !force {
        kept.check(device)?;
    }
    let mut total = 0;
    for (offset, old) in &kept.records {
        device.write_at(*offset, old)?;
        total += old.len() as u64;
    }
    device.flush()?;
    Ok(total)
}
