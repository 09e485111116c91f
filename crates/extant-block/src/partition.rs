//! Finds partitions in a GPT or MBR table.
//!
//! # Shape
//!
//! ```text
//! GPT   sector 1 header -> entry array        last sector: a second header with its own array
//! MBR   sector 0: 4 entries, one may be "extended" -> chain of records in it, one logical
//!       partition each, numbered from 5
//! ```
//!
//! A device with a protective MBR (type 0xee) has a GPT, and its MBR is not consulted.
//!
//! # Hostile tables
//!
//! The `gpt` crate decodes headers and entries, but it trusts their counts: it asserts on the size
//! of an entry and allocates as many entries as the count says. So it gets bytes, never a device:
//! one header sector at a time, and an entry array whose size was checked. The MBR, two fields in
//! four records, is decoded here; the usual crate for it adds sector numbers without overflow
//! checks and follows a chain of any length.
//!
//! # Source
//!
//! UEFI Specification 2.10, sections 5.2 (MBR) and 5.3 (GPT).

use std::fmt;
use std::io::Cursor;

use gpt::disk::LogicalBlockSize;
use gpt::header::{Header, read_header_from_arbitrary_device};

use crate::device::BlockDevice;
use crate::error::DeviceError;
use crate::window::WindowDevice;

/// Limit of the GPT entries that are read; tools make 128.
const GPT_ENTRIES_MAX: u32 = 4096;
/// Size of a GPT entry, in bytes. The specification allows larger ones; no tool makes them.
const GPT_ENTRY_BYTES: u32 = 128;
/// Limit of the logical partitions that are read. Linux shows at most 251 of one disk.
const LOGICAL_MAX: u32 = 256;
/// Offset of the four entries of an MBR, in bytes.
const MBR_ENTRIES_AT: usize = 446;

/// Kind of a partition table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TableKind {
    /// GUID partition table.
    Gpt,
    /// DOS partition table.
    Mbr,
}

/// A partition, checked to lie on its device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Number of the partition as in Linux: 1 for `sda1`.
    pub number: u32,
    /// Kind of the table that holds it.
    pub table: TableKind,
    /// Offset of its first byte on the device.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
    /// Name from a GPT; empty in an MBR. It may hold control characters.
    pub name: String,
    /// Type: a GUID in a GPT, one byte in hexadecimal (`0x83`) in an MBR.
    pub type_code: String,
}

impl Partition {
    /// Returns the name of the type, for types common on Linux machines; `None` for others. The
    /// type tells the purpose of a partition, not its contents.
    pub fn type_name(&self) -> Option<&'static str> {
        let code = self.type_code.to_ascii_lowercase();
        let found = TYPES.iter().find(|(table, known, _)| *table == self.table && *known == code);
        found.map(|(_, _, name)| *name)
    }
}

/// Types by table, code and name. Sources: UEFI Specification 2.10, table 5.7; the Discoverable
/// Partitions Specification; `sfdisk --list-types`.
const TYPES: &[(TableKind, &str, &str)] = &[
    (TableKind::Gpt, "c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "EFI system"),
    (TableKind::Gpt, "21686148-6449-6e6f-744e-656564454649", "BIOS boot"),
    (TableKind::Gpt, "bc13c2ff-59e6-4262-a352-b275fd6f7172", "Linux extended boot"),
    (TableKind::Gpt, "0fc63daf-8483-4772-8e79-3d69d8477de4", "Linux file system"),
    (TableKind::Gpt, "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f", "Linux swap"),
    (TableKind::Gpt, "e6d6d379-f507-44c2-a23c-238f2a3df928", "Linux LVM"),
    (TableKind::Gpt, "a19d880f-05fc-4d3b-a006-743f0f84911e", "Linux RAID"),
    (TableKind::Gpt, "ca7d7ccb-63ed-4c53-861c-1742536059cc", "LUKS"),
    (TableKind::Gpt, "933ac7e1-2eb4-4f13-b844-0e14e2aef915", "Linux /home"),
    (TableKind::Gpt, "3b8f8425-20e0-4f3b-907f-1a25a76f98e8", "Linux /srv"),
    (TableKind::Gpt, "4d21b016-b534-45c2-a9fb-5c16e091fd2d", "Linux /var"),
    (TableKind::Gpt, "4f68bce3-e8cd-4db1-96e7-fbcaf984b709", "Linux root, x86-64"),
    (TableKind::Gpt, "b921b045-1df0-41c3-af44-4c6f280d3fae", "Linux root, ARM64"),
    (TableKind::Gpt, "44479540-f297-41b2-9af7-d131d5f0458a", "Linux root, x86"),
    (TableKind::Gpt, "69dad710-2ce4-4e3c-b16c-21a1d49abed3", "Linux root, ARM"),
    (TableKind::Gpt, "72ec70a6-cf74-40e6-bd49-4bda08e8f224", "Linux root, RISC-V 64"),
    (TableKind::Gpt, "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7", "Windows data"),
    (TableKind::Gpt, "e3c9e316-0b5c-4db8-817d-f92df00215ae", "Windows reserved"),
    (TableKind::Gpt, "de94bba4-06d1-4d40-a16a-bfd50179d6ac", "Windows recovery"),
    (TableKind::Gpt, "7c3457ef-0000-11aa-aa11-00306543ecac", "APFS"),
    (TableKind::Gpt, "48465300-0000-11aa-aa11-00306543ecac", "HFS+"),
    (TableKind::Gpt, "fe3a2a5d-4f32-41a7-b725-accc3285a309", "ChromeOS kernel"),
    (TableKind::Gpt, "3cb8e202-3b7e-47dd-8a3c-7ff2a13cfcec", "ChromeOS root"),
    (TableKind::Mbr, "0x01", "FAT12"),
    (TableKind::Mbr, "0x04", "FAT16"),
    (TableKind::Mbr, "0x06", "FAT16"),
    (TableKind::Mbr, "0x07", "NTFS or exFAT"),
    (TableKind::Mbr, "0x0b", "FAT32"),
    (TableKind::Mbr, "0x0c", "FAT32"),
    (TableKind::Mbr, "0x0e", "FAT16"),
    (TableKind::Mbr, "0x82", "Linux swap"),
    (TableKind::Mbr, "0x83", "Linux"),
    (TableKind::Mbr, "0x8e", "Linux LVM"),
    (TableKind::Mbr, "0xa5", "FreeBSD"),
    (TableKind::Mbr, "0xaf", "HFS+"),
    (TableKind::Mbr, "0xef", "EFI system"),
    (TableKind::Mbr, "0xfd", "Linux RAID"),
];

/// Reason why a partition was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// The device has neither a GPT nor an MBR.
    #[error("{device}: no partition table found")]
    NoTable {
        /// Name of the device.
        device: String,
    },
    /// The table does not have this partition.
    #[error("{device}: partition {number} does not exist; {}", Existing(existing))]
    NoSuchPartition {
        /// Name of the device.
        device: String,
        /// Number that was asked for.
        number: u32,
        /// Partitions of the table.
        existing: Vec<Partition>,
    },
    /// The table violates a rule of its format.
    #[error("{device}: damaged partition table: {what}")]
    Damaged {
        /// Name of the device.
        device: String,
        /// The rule and the numbers.
        what: String,
    },
    /// The table could not be read.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Prints partitions as "there are 1 (512 MiB), 2 (7 GiB)".
struct Existing<'a>(&'a [Partition]);

impl fmt::Display for Existing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("the table is empty");
        }
        f.write_str("there are ")?;
        for (index, partition) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{} ({})", partition.number, Size(partition.len))?;
        }
        Ok(())
    }
}

/// Prints a number of bytes with the largest unit that leaves a whole number.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let fits = |shift: &u32| self.0 >> shift << shift == self.0 && self.0 != 0;
        match units.iter().find(|(shift, _)| fits(shift)) {
            Some((shift, unit)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// Returns the partitions of a device in order of their numbers.
///
/// Reads the first sectors, the entry array, and the last sector if the first header is damaged;
/// for an MBR one sector per logical partition, at most 256. The sector size of the device is tried
/// first, then 512 and 4096, because an image file of a disk does not record its sector size.
///
/// # Errors
///
/// [`PartitionError::NoTable`], [`PartitionError::Damaged`], [`PartitionError::Device`].
pub fn list(device: &(impl BlockDevice + ?Sized)) -> Result<Vec<Partition>, PartitionError> {
    let Some(mbr) = read_sector(device, 0, 512)? else { return Err(no_table(device)) };
    if mbr.get(510..512) != Some(&[0x55, 0xaa]) {
        // Some tools leave the protective MBR out.
        return gpt_partitions(device)?.ok_or_else(|| no_table(device));
    }
    let entries = mbr_entries(&mbr);
    if entries.iter().any(|entry| entry.kind == 0xee) {
        let damaged = || damaged(device, "a protective MBR, but no valid GPT header at either end");
        return gpt_partitions(device)?.ok_or_else(damaged);
    }
    // A boot sector of a FAT file system has the same signature. Its bytes at the place of the
    // table are code; a real table has only these two values in the first byte of an entry.
    if entries.iter().any(|entry| entry.status & 0x7f != 0)
        || entries.iter().all(|entry| entry.sectors == 0)
    {
        return Err(no_table(device));
    }
    mbr_partitions(device, &entries)
}

/// Returns a window on partition `number`, as numbered by [`list`].
pub fn open<D: BlockDevice>(device: D, number: u32) -> Result<WindowDevice<D>, PartitionError> {
    let partitions = list(&device)?;
    let Some(partition) = partitions.iter().find(|p| p.number == number) else {
        let device = device.describe().to_string();
        return Err(PartitionError::NoSuchPartition { device, number, existing: partitions });
    };
    let name = match partition.type_name() {
        Some(kind) => format!("{} partition {number} ({kind})", device.describe()),
        None => format!("{} partition {number}", device.describe()),
    };
    let fault = damaged(&device, "a partition past the end");
    // `list` checked the range, so this fails only if the device changed its size meanwhile.
    WindowDevice::named(device, partition.offset, partition.len, &name).map_err(|_| fault)
}

fn no_table(device: &(impl BlockDevice + ?Sized)) -> PartitionError {
    PartitionError::NoTable { device: device.describe().to_string() }
}

fn damaged(device: &(impl BlockDevice + ?Sized), what: impl Into<String>) -> PartitionError {
    PartitionError::Damaged { device: device.describe().to_string(), what: what.into() }
}

/// Reads one sector; `None` if the device ends before it does.
fn read_sector(
    device: &(impl BlockDevice + ?Sized),
    sector: u64,
    sector_bytes: u64,
) -> Result<Option<Vec<u8>>, DeviceError> {
    let range = sector.checked_mul(sector_bytes);
    let Some(offset) = range.filter(|offset| {
        offset.checked_add(sector_bytes).is_some_and(|end| end <= device.size_bytes())
    }) else {
        return Ok(None);
    };
    let mut bytes = vec![0; sector_bytes as usize];
    device.read_at(offset, &mut bytes)?;
    Ok(Some(bytes))
}

/// Returns the partitions of a GPT; `None` when neither header is valid for any sector size.
fn gpt_partitions(
    device: &(impl BlockDevice + ?Sized),
) -> Result<Option<Vec<Partition>>, PartitionError> {
    let own = match device.logical_sector_bytes() {
        4096 => LogicalBlockSize::Lb4096,
        _ => LogicalBlockSize::Lb512,
    };
    let mut fault = None;
    for sector_size in [own, LogicalBlockSize::Lb512, LogicalBlockSize::Lb4096] {
        let sector_bytes = sector_size.as_u64();
        let sectors = device.size_bytes() / sector_bytes;
        for at in [1, sectors.saturating_sub(1)] {
            let Some(header) = gpt_header(device, at, sector_size)? else { continue };
            match gpt_entries(device, &header, sector_size) {
                Ok(partitions) => return Ok(Some(partitions)),
                Err(error @ PartitionError::Device(_)) => return Err(error),
                // The second copy may be intact.
                Err(error) => fault = fault.or(Some(error)),
            }
        }
    }
    fault.map_or(Ok(None), Err)
}

/// Reads the header in sector `at`; `None` if its signature or checksum is wrong.
fn gpt_header(
    device: &(impl BlockDevice + ?Sized),
    at: u64,
    sector_size: LogicalBlockSize,
) -> Result<Option<Header>, DeviceError> {
    let Some(sector) = read_sector(device, at, sector_size.as_u64())? else { return Ok(None) };
    // The crate reads the header of a disk from its second sector.
    let mut disk = vec![0; sector.len()];
    disk.extend_from_slice(&sector);
    let header = read_header_from_arbitrary_device(&mut Cursor::new(disk), sector_size).ok();
    Ok(header.filter(|header| header.current_lba == at))
}

fn gpt_entries(
    device: &(impl BlockDevice + ?Sized),
    header: &Header,
    sector_size: LogicalBlockSize,
) -> Result<Vec<Partition>, PartitionError> {
    let (count, entry_bytes) = (header.num_parts, header.part_size);
    if entry_bytes != GPT_ENTRY_BYTES {
        let what = format!("GPT entries of {entry_bytes} bytes; only {GPT_ENTRY_BYTES} are known");
        return Err(damaged(device, what));
    }
    if count > GPT_ENTRIES_MAX {
        let what = format!("a GPT of {count} entries; at most {GPT_ENTRIES_MAX} are looked at");
        return Err(damaged(device, what));
    }
    let table_bytes = u64::from(count) * u64::from(entry_bytes);
    let range = header.part_start.checked_mul(sector_size.as_u64());
    let range = range.and_then(|start| Some((start, start.checked_add(table_bytes)?)));
    let Some((start, _)) = range.filter(|(_, end)| *end <= device.size_bytes()) else {
        let what = format!("GPT entries at sector {}, past the end", header.part_start);
        return Err(damaged(device, what));
    };
    let mut table = vec![0; table_bytes as usize];
    device.read_at(start, &mut table)?;

    let header = Header { part_start: 0, ..header.clone() };
    let entries =
        gpt::partition::file_read_partitions(&mut Cursor::new(table), &header, sector_size)
            .map_err(|error| damaged(device, format!("GPT entries: {error}")))?;
    let mut partitions = Vec::new();
    for (number, entry) in entries {
        if !entry.is_used() {
            continue;
        }
        let range = || {
            let offset = entry.bytes_start(sector_size).ok()?;
            let len = entry.bytes_len(sector_size).ok()?;
            (offset.checked_add(len)? <= device.size_bytes()).then_some((offset, len))
        };
        let Some((offset, len)) = range() else {
            let (first, last) = (entry.first_lba, entry.last_lba);
            let what = format!("GPT partition {number} has sectors {first} to {last}");
            return Err(damaged(device, what));
        };
        partitions.push(Partition {
            number,
            table: TableKind::Gpt,
            offset,
            len,
            name: entry.name,
            type_code: entry.part_type_guid.guid.to_string(),
        });
    }
    Ok(partitions)
}

/// The fields of a 16-byte entry of an MBR that this crate needs.
#[derive(Clone, Copy, Debug)]
struct MbrEntry {
    /// Status: 0x80 for the boot partition, else 0.
    status: u8,
    /// Type of the partition; 0 for an unused entry.
    kind: u8,
    /// First sector, relative to a sector that depends on the entry.
    start: u32,
    /// Length in sectors.
    sectors: u32,
}

impl MbrEntry {
    fn is_used(&self) -> bool {
        self.kind != 0 && self.sectors != 0
    }

    fn is_extended(&self) -> bool {
        self.is_used() && matches!(self.kind, 0x05 | 0x0f | 0x85)
    }
}

/// Returns the four entries of a boot record of at least 512 bytes; missing bytes count as zeros.
fn mbr_entries(sector: &[u8]) -> [MbrEntry; 4] {
    let byte = |at: usize| sector.get(at).copied().unwrap_or(0);
    let word = |at: usize| u32::from_le_bytes([byte(at), byte(at + 1), byte(at + 2), byte(at + 3)]);
    [0, 1, 2, 3].map(|index| {
        let at = MBR_ENTRIES_AT + 16 * index;
        MbrEntry {
            status: byte(at),
            kind: byte(at + 4),
            start: word(at + 8),
            sectors: word(at + 12),
        }
    })
}

fn mbr_partitions(
    device: &(impl BlockDevice + ?Sized),
    entries: &[MbrEntry; 4],
) -> Result<Vec<Partition>, PartitionError> {
    let sector_bytes = match device.logical_sector_bytes() {
        4096 => 4096,
        _ => 512,
    };
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(entries) {
        // An extended partition is a container; a file system is never in it directly.
        if entry.is_used() && !entry.is_extended() {
            partitions.push(mbr_partition(device, number, entry, 0, sector_bytes)?);
        }
    }
    if let Some(extended) = entries.iter().find(|entry| entry.is_extended()) {
        logical_partitions(device, extended, sector_bytes, &mut partitions)?;
    }
    Ok(partitions)
}

/// Follows the chain of records inside an extended partition.
///
/// Each record has up to one logical partition, counted from the record, and one link, counted
/// from the start of the extended partition. Links must rise, so a loop is damage, and there are
/// at most `LOGICAL_MAX` of them.
fn logical_partitions(
    device: &(impl BlockDevice + ?Sized),
    extended: &MbrEntry,
    sector_bytes: u64,
    partitions: &mut Vec<Partition>,
) -> Result<(), PartitionError> {
    let mut link = 0;
    let mut number = 5;
    for _ in 0..LOGICAL_MAX {
        let record_at = u64::from(extended.start) + u64::from(link);
        let record = read_sector(device, record_at, sector_bytes)?;
        let signed = record.filter(|sector| sector.get(510..512) == Some(&[0x55, 0xaa]));
        let Some(record) = signed else {
            // An extended partition that never held a partition may have no record at all.
            if link == 0 {
                return Ok(());
            }
            let what = format!("no record of a logical partition at sector {record_at}");
            return Err(damaged(device, what));
        };
        let entries = mbr_entries(&record);
        if let Some(entry) = entries.iter().find(|entry| entry.is_used() && !entry.is_extended()) {
            partitions.push(mbr_partition(device, number, entry, record_at, sector_bytes)?);
            number += 1;
        }
        let Some(next) = entries.iter().find(|entry| entry.is_extended()) else { return Ok(()) };
        if next.start <= link {
            let what = format!("the record at sector {record_at} links back to {}", next.start);
            return Err(damaged(device, what));
        }
        link = next.start;
    }
    Err(damaged(device, format!("more than {LOGICAL_MAX} logical partitions")))
}

/// Checks that an entry lies on the device; `base` is the sector its start is counted from.
fn mbr_partition(
    device: &(impl BlockDevice + ?Sized),
    number: u32,
    entry: &MbrEntry,
    base: u64,
    sector_bytes: u64,
) -> Result<Partition, PartitionError> {
    // Sums and products of numbers below 2^34 and 2^12: no overflow in 64 bits.
    let start = base + u64::from(entry.start);
    let (offset, len) = (start * sector_bytes, u64::from(entry.sectors) * sector_bytes);
    if offset + len > device.size_bytes() {
        let what = format!(
            "partition {number} has {} sectors from sector {start}, past the end",
            entry.sectors
        );
        return Err(damaged(device, what));
    }
    let type_code = format!("{:#04x}", entry.kind);
    Ok(Partition { number, table: TableKind::Mbr, offset, len, name: String::new(), type_code })
}
