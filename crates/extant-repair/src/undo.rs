//! Undo files: the blocks that a repair or a conversion overwrites, kept to restore them.
//!
//! # Shape
//!
//! A header of 32 bytes, then a record for each piece, all numbers little-endian:
//!
//! ```text
//! 0   "extant undo 1\n\0\0"      16 bytes
//! 16  bytes of the device         u64
//! 24  number of records           u32
//! 28  crc32c of all records       u32
//! 32  records: offset u64, length u32, the old bytes
//! ```

use std::io::{self, Read, Write};

use extant_block::{BlockDevice, DeviceError};
use extant_format::checksum::{CRC32C_INIT, crc32c};

use crate::plan::Plan;

const MAGIC: &[u8; 16] = b"extant undo 1\n\0\0";
/// Longest record that is believed.
const RECORD_BYTES_MAX: u32 = 1 << 20;

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

/// Puts back what was overwritten; how many bytes. All of the file is read and checked before anything is
/// written.
///
/// # Errors
///
/// [`UndoError`]; only [`UndoError::Device`] may leave something written.
pub fn undo(device: &dyn BlockDevice, file: &mut dyn Read) -> Result<u64, UndoError> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let (head, records) = bytes.split_at_checked(32).ok_or(UndoError::Magic)?;
    if !head.starts_with(MAGIC) {
        return Err(UndoError::Magic);
    }
    let word = |at: usize| extant_format::record::u32_at(head, at);
    let wanted = u64::from(word(16)) | (u64::from(word(20)) << 32);
    if crc32c(CRC32C_INIT, records) != word(28) {
        return Err(UndoError::Damaged);
    }
    let found = device.size_bytes();
    if wanted != found {
        return Err(UndoError::Device2 { wanted, found });
    }
    let mut list = Vec::new();
    let mut rest = records;
    for _record in 0..word(24) {
        let (head, tail) = rest.split_at_checked(12).ok_or(UndoError::Damaged)?;
        let word = |at: usize| extant_format::record::u32_at(head, at);
        let (offset, len) = (u64::from(word(0)) | (u64::from(word(4)) << 32), word(8));
        if len > RECORD_BYTES_MAX || offset.saturating_add(u64::from(len)) > found {
            return Err(UndoError::Damaged);
        }
        let (old, tail) = tail.split_at_checked(len as usize).ok_or(UndoError::Damaged)?;
        list.push((offset, old));
        rest = tail;
    }
    if !rest.is_empty() {
        return Err(UndoError::Damaged);
    }
    let mut total = 0;
    for (offset, old) in &list {
        device.write_at(*offset, old)?;
        total += old.len() as u64;
    }
    device.flush()?;
    Ok(total)
}
