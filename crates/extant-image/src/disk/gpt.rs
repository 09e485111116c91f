//! Writes a GUID partition table.

use extant_block::{BlockDevice, DeviceError};
use uuid::Uuid;

use super::Place;

/// Entries of a table, and bytes of one: what all tools make.
const ENTRIES: u64 = 128;
const ENTRY_BYTES: u64 = 128;

const HEADER_BYTES: usize = 92;

/// Longest name of a partition, in UTF-16 units.
const NAME_UNITS: usize = 36;

/// A partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Type of the partition.
    pub kind: Uuid,
    /// UUID of the partition.
    pub uuid: Uuid,
    /// Place of the partition.
    pub place: Place,
    /// Attributes; the meaning of the upper 16 bits depends on the type.
    pub flags: u64,
    /// Name of at most 36 UTF-16 units.
    pub name: String,
}

/// A table of at most 128 partitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// The UUID of the disk.
    pub uuid: Uuid,
    /// Bytes of the disk.
    pub bytes: u64,
    /// Bytes of a sector.
    pub sector: u64,
    /// Partitions, numbered from 1.
    pub entries: Vec<Entry>,
}

/// Bytes of the second table, at the end of a disk.
pub(super) fn tail_bytes(sector: u64) -> u64 {
    ENTRIES * ENTRY_BYTES + sector
}

impl Table {
    /// Writes the table to both ends of `device`: the copy at the end first, and the protective MBR last, so that what an
    /// interrupted run leaves is no disk with partitions.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn write(&self, device: &dyn BlockDevice) -> Result<(), DeviceError> {
        let sectors = self.bytes / self.sector;
        let array_sectors = ENTRIES * ENTRY_BYTES / self.sector;
        let array = self.array();
        let end = sectors - 1;
        device.write_at((end - array_sectors) * self.sector, &array)?;
        device.write_at(end * self.sector, &self.header(&array, end, 1, end - array_sectors))?;
        device.flush()?;
        device.write_at(2 * self.sector, &array)?;
        device.write_at(self.sector, &self.header(&array, 1, end, 2))?;
        device.write_at(0, &self.protective_mbr())
    }

    fn array(&self) -> Vec<u8> {
        let mut array = vec![0; (ENTRIES * ENTRY_BYTES) as usize];
        for (entry, out) in self.entries.iter().zip(array.chunks_exact_mut(ENTRY_BYTES as usize)) {
            let mut out = Fields(out);
            out.put(0, &entry.kind.to_bytes_le());
            out.put(16, &entry.uuid.to_bytes_le());
            out.put(32, &(entry.place.offset / self.sector).to_le_bytes());
            out.put(40, &(entry.place.end() / self.sector - 1).to_le_bytes());
            out.put(48, &entry.flags.to_le_bytes());
            for (at, unit) in entry.name.encode_utf16().take(NAME_UNITS).enumerate() {
                out.put(56 + at * 2, &unit.to_le_bytes());
            }
        }
        array
    }

    /// The header that lies in sector `own`, its copy in `other`, and the array of both from `array_at` on.
    fn header(&self, array: &[u8], own: u64, other: u64, array_at: u64) -> Vec<u8> {
        let array_sectors = ENTRIES * ENTRY_BYTES / self.sector;
        let sectors = self.bytes / self.sector;
        let mut sector = vec![0; self.sector as usize];
        let mut out = Fields(&mut sector);
        out.put(0, b"EFI PART");
        out.put(8, &0x0001_0000u32.to_le_bytes());
        out.put(12, &(HEADER_BYTES as u32).to_le_bytes());
        out.put(24, &own.to_le_bytes());
        out.put(32, &other.to_le_bytes());
        out.put(40, &(2 + array_sectors).to_le_bytes());
        out.put(48, &(sectors - 2 - array_sectors).to_le_bytes());
        out.put(56, &self.uuid.to_bytes_le());
        out.put(72, &array_at.to_le_bytes());
        out.put(80, &(ENTRIES as u32).to_le_bytes());
        out.put(84, &(ENTRY_BYTES as u32).to_le_bytes());
        out.put(88, &crc32(array).to_le_bytes());
        let sum = crc32(sector.get(..HEADER_BYTES).unwrap_or_default());
        Fields(&mut sector).put(16, &sum.to_le_bytes());
        sector
    }

    /// Returns an MBR with one partition over the whole disk, of a type that keeps old tools away.
    fn protective_mbr(&self) -> Vec<u8> {
        let mut sector = vec![0; self.sector as usize];
        let mut out = Fields(&mut sector);
        let sectors = u32::try_from(self.bytes / self.sector - 1).unwrap_or(u32::MAX);
        // First sector in the old way of counting: head 0, track 0, sector 2.
        out.put(446, &[0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff]);
        out.put(454, &1u32.to_le_bytes());
        out.put(458, &sectors.to_le_bytes());
        out.put(510, &[0x55, 0xaa]);
        sector
    }
}

/// Bytes with fields at fixed places.
struct Fields<'a>(&'a mut [u8]);

impl Fields<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(field) = self.0.get_mut(at..at + bytes.len()) {
            field.copy_from_slice(bytes);
        }
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Architecture, DiskLayout, Parts};
    use extant_block::{MemoryDevice, partition};

    #[test]
    fn the_reader_finds_what_was_written_also_without_the_first_copy() {
        for sector in [512, 4096] {
            let parts = Parts { esp: Some(1 << 20), root: 3 << 20, verity: Some(40960) };
            let layout = DiskLayout::of(&parts, None, sector).unwrap();
            let table = layout.table(Architecture::find("arm64").unwrap(), &[1; 16], None);
            let device = MemoryDevice::new(layout.bytes);
            table.write(&device).unwrap();
            for _ in 0..2 {
                let found = partition::list(&device).unwrap();
                let found: Vec<_> =
                    found.iter().map(|p| (p.offset, p.len, p.name.clone())).collect();
                let wanted = [
                    (1 << 20, 1 << 20, "esp".to_owned()),
                    (2 << 20, 3 << 20, "root-arm64".to_owned()),
                    (5 << 20, 40960, "root-arm64-verity".to_owned()),
                ];
                assert_eq!(found, wanted);
                device.write_at(sector, &[0; 512]).unwrap();
            }
        }
    }
}
