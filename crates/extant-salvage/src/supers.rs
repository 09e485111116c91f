//! The superblock: the primary one, or a backup.

use extant_base::{FsBlock, GroupIndex};
use extant_block::{BlockDevice, DeviceError};
use extant_format::features::Features;
use extant_format::record::{u16_at, u32_at};
use extant_format::superblock::{MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_layout::Heads;
use extant_layout::support::CHECKABLE;

use crate::error::SalvageError;

/// Bytes of the device that are searched for backups when none is where they usually are.
const SEARCH_BYTES: u64 = 1 << 30;
/// Bytes searched at once.
const SEARCH_CHUNK: usize = 1 << 20;
/// Groups where backups usually are.
const BACKUPS: [u64; 9] = [1, 3, 5, 7, 9, 25, 27, 49, 81];

/// A superblock, and where it was.
pub(crate) struct FoundSuper {
    pub(crate) sb: Superblock,
    /// The group of the backup; `None`: it is the primary one.
    pub(crate) backup: Option<u32>,
    /// The primary one has a wrong checksum.
    pub(crate) is_doubtful: bool,
}

/// Finds a superblock: the primary one where it can be believed, else a backup, else the primary one if it is one
/// at all. `Ok(None)`: there is none.
pub(crate) fn find(device: &dyn BlockDevice) -> Result<Option<FoundSuper>, SalvageError> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    // A device too short for a superblock, or one that fails at once, is that error.
    let read = device.read_at(SUPERBLOCK_OFFSET, &mut bytes);
    let primary = read.as_ref().ok().and_then(|()| Superblock::decode_unverified(&bytes).ok());
    let unknown = |sb: &Superblock| sb.features.without(&CHECKABLE);
    if let Some(sb) = primary.as_ref().filter(|sb| sb.verify_checksum().is_ok()) {
        if sb.features.metadata_csum() && !unknown(sb).is_empty() {
            return Err(SalvageError::Features { names: unknown(sb).names().join(", ") });
        }
        if sb.features.metadata_csum() {
            return Ok(Some(FoundSuper { sb: sb.clone(), backup: None, is_doubtful: false }));
        }
    }
    let other = backup(device);
    match (primary, other) {
        // Without a checksum, or with a wrong one, it has to agree with its own backup.
        (Some(sb), Some(other)) if !same_shape(&sb, &other) => Ok(Some(of_backup(other))),
        (Some(sb), _) if unknown(&sb).is_empty() => {
            let is_doubtful = sb.verify_checksum().is_err();
            Ok(Some(FoundSuper { sb, backup: None, is_doubtful }))
        }
        (_, Some(other)) => Ok(Some(of_backup(other))),
        (Some(sb), None) => Err(SalvageError::Features { names: unknown(&sb).names().join(", ") }),
        (None, None) => match read {
            Err(error) if nothing_reads(device) => Err(error.into()),
            _ => Ok(None),
        },
    }
}

/// Returns whether not even the second megabyte can be read.
fn nothing_reads(device: &dyn BlockDevice) -> bool {
    let mut bytes = [0; 512];
    [0, 1 << 12, 1 << 20, 1 << 24].iter().all(|at| device.read_at(*at, &mut bytes).is_err())
}

fn of_backup(sb: Superblock) -> FoundSuper {
    let group = u32::from(sb.block_group);
    FoundSuper { sb, backup: Some(group), is_doubtful: false }
}

fn same_shape(a: &Superblock, b: &Superblock) -> bool {
    let shape = |sb: &Superblock| {
        let numbers = [
            u64::from(sb.inodes_count),
            sb.blocks_count,
            u64::from(sb.block_size.bytes()),
            u64::from(sb.blocks_per_group),
            u64::from(sb.inodes_per_group),
            u64::from(sb.inode_size),
            u64::from(sb.desc_size),
            u64::from(sb.first_meta_bg),
            u64::from(sb.reserved_gdt_blocks),
        ];
        // Bits that change while a file system is in use.
        let often = Features::from_words(0, 0x4, 0x1_0000 | 0x2);
        (numbers, sb.features.without(&often), sb.uuid)
    };
    shape(a) == shape(b)
}

/// Returns a backup: from where they usually are for each block size, else wherever there is one.
fn backup(device: &dyn BlockDevice) -> Option<Superblock> {
    for log in 0..=6u32 {
        let size = 1024u64 << log;
        let first = u64::from(log == 0);
        for group in BACKUPS {
            let at = (first + group * size * 8).saturating_mul(size);
            if let Some(sb) = candidate(device, at) {
                return Some(sb);
            }
        }
    }
    let end = device.size_bytes().min(SEARCH_BYTES);
    let mut chunk = vec![0; SEARCH_CHUNK];
    let mut at = 0;
    while at < end {
        let take = (end - at).min(SEARCH_CHUNK as u64) as usize;
        let bytes = chunk.get_mut(..take)?;
        if read_in_parts(device, at, bytes).is_ok() {
            for within in (0..take).step_by(1024) {
                let place = at + within as u64;
                if place > SUPERBLOCK_OFFSET
                    && u16_at(bytes, within + 0x38) == MAGIC
                    && let Some(sb) = candidate(device, place)
                {
                    return Some(sb);
                }
            }
        }
        at += take as u64;
    }
    None
}

/// Reads bytes; parts that cannot be read are zeros. The error is that of a range in which nothing can be read.
fn read_in_parts(device: &dyn BlockDevice, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
    let Err(error) = device.read_at(at, out) else { return Ok(()) };
    let mut is_any = false;
    for (number, part) in out.chunks_mut(4096).enumerate() {
        match device.read_at(at + number as u64 * 4096, part) {
            Ok(()) => is_any = true,
            Err(_) => part.fill(0),
        }
    }
    if is_any { Ok(()) } else { Err(error) }
}

/// Returns the superblock at byte `at`, if it is a backup that belongs there.
fn candidate(device: &dyn BlockDevice, at: u64) -> Option<Superblock> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    if at.checked_add(SUPERBLOCK_BYTES as u64)? > device.size_bytes() {
        return None;
    }
    device.read_at(at, &mut bytes).ok()?;
    if u16_at(&bytes, 0x38) != MAGIC || u32_at(&bytes, 4) == 0 {
        return None;
    }
    let mut sb = Superblock::decode(&bytes).ok()?;
    // Old programs did not write the number of the group into copies.
    let block = at / u64::from(sb.block_size.bytes());
    let found = sb.group_of_block(FsBlock(block)).filter(|(_, within)| *within == 0);
    let group = found.map_or(GroupIndex(0), |(group, _)| group);
    let is_home =
        at.is_multiple_of(u64::from(sb.block_size.bytes())) && Heads::of(&sb).has_superblock(group);
    let known = sb.features.without(&CHECKABLE).is_empty();
    sb.block_group = u16::try_from(group.0).unwrap_or(u16::MAX);
    (group.0 != 0 && known && is_home).then_some(sb)
}
