//! FAT32 of files that are all known: every directory and file in one piece, every byte written once.
//!
//! # Source
//!
//! Microsoft, "FAT: General Overview of On-Disk Format" 1.03: "Boot Sector and BPB", "FAT Data Structure", "FAT Directory
//! Structure", "FAT Long Directory Entries".

use extant_block::{BlockDevice, DeviceError};
use hashbrown::HashSet;

/// The number of the first cluster there is.
pub(super) const FIRST_CLUSTER: u32 = 2;

/// Bytes of a record in a directory.
pub(super) const RECORD_BYTES: u64 = 32;

/// Fewer clusters than that make another kind of FAT, more do not fit its numbers.
const CLUSTERS_MIN: u64 = 65_525;
const CLUSTERS_MAX: u64 = 0x0fff_fff5;

/// Sectors before the tables, and how many tables there are.
const RESERVED: u64 = 32;
const TABLES: u64 = 2;

/// Sector of the copies of the first sectors.
const BACKUP: u64 = 6;

const END: u32 = 0x0fff_ffff;

const IS_DIR: u8 = 0x10;
const IS_FILE: u8 = 0x20;
const IS_LABEL: u8 = 0x08;
const IS_LONG: u8 = 0x0f;

/// UTF-16 units of a long name in one record.
const UNITS: usize = 13;

/// The smallest partition, in bytes: some more than the fewest clusters of one sector, and their tables.
pub(super) fn smallest(sector: u64) -> u64 {
    (CLUSTERS_MIN * sector + TABLES * CLUSTERS_MIN * 4 + RESERVED * sector) * 11 / 10 / (4 << 20)
        * (4 << 20)
        + (4 << 20)
}

/// Sizes of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Geometry {
    /// Bytes of a sector.
    pub(super) sector: u64,
    sectors: u64,
    /// Sectors of a cluster.
    cluster: u64,
    /// Sectors of one table.
    table: u64,
    clusters: u64,
}

impl Geometry {
    /// Bytes of a cluster in a partition of `bytes`, as other tools choose them.
    pub(super) fn cluster_bytes(bytes: u64, sector: u64) -> u32 {
        const GIB: u64 = 1 << 30;
        let usual: u64 = match bytes {
            ..=272_629_760 => 512,
            _ if bytes <= 8 * GIB => 4 << 10,
            _ if bytes <= 16 * GIB => 8 << 10,
            _ if bytes <= 32 * GIB => 16 << 10,
            _ => 32 << 10,
        };
        usual.max(sector) as u32
    }

    /// Returns the geometry of a partition of `bytes`; `None` if it is too small or too large.
    pub(super) fn of(bytes: u64, sector: u64) -> Option<Geometry> {
        let sectors = u64::from(u32::try_from(bytes / sector).ok()?);
        let cluster = u64::from(Geometry::cluster_bytes(bytes, sector)) / sector;
        // Clusters that the rest of the partition has, if the tables took nothing: the tables are a little too long.
        let most = sectors.checked_sub(RESERVED)? / cluster + u64::from(FIRST_CLUSTER);
        let table = (most * 4).div_ceil(sector);
        let clusters = sectors.checked_sub(RESERVED + TABLES * table)? / cluster;
        let fits = (CLUSTERS_MIN..=CLUSTERS_MAX).contains(&clusters);
        fits.then_some(Geometry { sector, sectors, cluster, table, clusters })
    }

    /// Bytes for files and directories.
    pub(super) fn data_bytes(&self) -> u64 {
        self.clusters * self.cluster * self.sector
    }

    /// Returns how many clusters `bytes` need.
    pub(super) fn clusters_for(&self, bytes: u64) -> u32 {
        bytes.div_ceil(self.cluster * self.sector) as u32
    }

    /// Returns where a cluster begins, in bytes.
    pub(super) fn offset(&self, cluster: u32) -> u64 {
        let before = u64::from(cluster.saturating_sub(FIRST_CLUSTER)) * self.cluster;
        (RESERVED + TABLES * self.table + before) * self.sector
    }
}

/// Writes boot sector, tables and their copies. `chains` has the lengths of all pieces in the order of their clusters.
pub(super) fn write_tables(
    device: &dyn BlockDevice,
    start: u64,
    geometry: &Geometry,
    chains: &[u32],
    (id, label, hidden): (u32, &[u8; 11], u64),
) -> Result<(), DeviceError> {
    // The first two entries are no clusters: the kind of medium, and that it was put away clean.
    let mut table: Vec<u8> = [0x0fff_fff8u32, END].iter().flat_map(|e| e.to_le_bytes()).collect();
    let mut next = FIRST_CLUSTER;
    for &count in chains {
        for into in 1..=count {
            let entry = if into == count { END } else { next + into };
            table.extend_from_slice(&entry.to_le_bytes());
        }
        next += count;
    }
    for copy in 0..TABLES {
        let at = (RESERVED + copy * geometry.table) * geometry.sector;
        device.write_at(start + at, &table)?;
    }
    let free = geometry.clusters as u32 - (next - FIRST_CLUSTER);
    let sectors = [boot(geometry, id, label, hidden), info(geometry, free, next)];
    for first in [BACKUP, 0] {
        for (at, sector) in (first..).zip(&sectors) {
            device.write_at(start + at * geometry.sector, sector)?;
        }
    }
    Ok(())
}

fn boot(geometry: &Geometry, id: u32, label: &[u8; 11], hidden: u64) -> Vec<u8> {
    let mut sector = vec![0; geometry.sector as usize];
    let mut put = |at: usize, bytes: &[u8]| put(&mut sector, at, bytes);
    put(0, &[0xeb, 0x58, 0x90]);
    put(3, b"extant  ");
    put(11, &(geometry.sector as u16).to_le_bytes());
    put(13, &[geometry.cluster as u8]);
    put(14, &(RESERVED as u16).to_le_bytes());
    put(16, &[TABLES as u8]);
    // A hard disk, with the usual fictitious geometry, which is not used.
    put(21, &[0xf8]);
    put(24, &32u16.to_le_bytes());
    put(26, &64u16.to_le_bytes());
    put(28, &u32::try_from(hidden).unwrap_or(0).to_le_bytes());
    put(32, &(geometry.sectors as u32).to_le_bytes());
    put(36, &(geometry.table as u32).to_le_bytes());
    put(44, &FIRST_CLUSTER.to_le_bytes());
    put(48, &1u16.to_le_bytes());
    put(50, &(BACKUP as u16).to_le_bytes());
    put(64, &[0x80, 0, 0x29]);
    put(67, &id.to_le_bytes());
    put(71, label);
    put(82, b"FAT32   ");
    put(510, &[0x55, 0xaa]);
    sector
}

fn info(geometry: &Geometry, free: u32, next: u32) -> Vec<u8> {
    let mut sector = vec![0; geometry.sector as usize];
    put(&mut sector, 0, b"RRaA");
    put(&mut sector, 484, b"rrAa");
    put(&mut sector, 488, &free.to_le_bytes());
    put(&mut sector, 492, &next.to_le_bytes());
    put(&mut sector, 508, &[0, 0, 0x55, 0xaa]);
    sector
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(field) = out.get_mut(at..at + bytes.len()) {
        field.copy_from_slice(bytes);
    }
}

/// Most records of a directory.
pub(super) const RECORDS_MAX: u64 = 65_536;

/// Returns how many records a name takes.
pub(super) fn records(name: &str) -> u64 {
    match short(name) {
        Some(_) => 1,
        None => 1 + name.encode_utf16().count().div_ceil(UNITS) as u64,
    }
}

/// The name in the old form, eight characters and three, if it is one.
fn short(name: &str) -> Option<[u8; 11]> {
    let (base, end) = name.split_once('.').unwrap_or((name, ""));
    let fine = |part: &str, most: usize| {
        let fine = |b: u8| {
            b.is_ascii_uppercase() || b.is_ascii_digit() || b"$%'-_@~`!(){}^#&".contains(&b)
        };
        part.len() <= most && part.bytes().all(fine)
    };
    if base.is_empty() || !fine(base, 8) || !fine(end, 3) || name.ends_with('.') {
        return None;
    }
    let mut short = [b' '; 11];
    put(&mut short, 0, base.as_bytes());
    put(&mut short, 8, end.as_bytes());
    Some(short)
}

/// The records of a directory.
pub(super) struct Directory {
    bytes: Vec<u8>,
    taken: HashSet<[u8; 11]>,
}

impl Directory {
    /// One that will have these names: those that are old ones already are not made up for others.
    pub(super) fn new<'n>(names: impl Iterator<Item = &'n str>) -> Directory {
        Directory { bytes: Vec::new(), taken: names.filter_map(short).collect() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The name of the file system, in the root.
    pub(super) fn label(&mut self, label: &[u8; 11]) {
        self.record(label, IS_LABEL, 0, 0, 0);
    }

    /// The directory itself and the one above it, which is 0 for the root.
    pub(super) fn dots(&mut self, own: u32, parent: u32, seconds: i64) {
        self.record(b".          ", IS_DIR, own, 0, seconds);
        self.record(b"..         ", IS_DIR, parent, 0, seconds);
    }

    /// A file of `size` bytes, or a directory if that is `None`.
    pub(super) fn add(&mut self, name: &str, cluster: u32, size: Option<u32>, seconds: i64) {
        let attributes = if size.is_some() { IS_FILE } else { IS_DIR };
        let short = match short(name) {
            Some(short) => short,
            None => {
                let short = self.made_up(name);
                self.long(name, &short);
                short
            }
        };
        self.taken.insert(short);
        self.record(&short, attributes, cluster, size.unwrap_or(0), seconds);
    }

    /// A name in the old form for one that has none: `NAME~1.EXT`.
    fn made_up(&self, name: &str) -> [u8; 11] {
        let plain = |text: &str, most: usize| -> Vec<u8> {
            let letters = text.chars().filter(|c| !matches!(c, ' ' | '.'));
            let letter = |c: char| match c.to_ascii_uppercase() {
                c if c.is_ascii_alphanumeric() || "$%'-_@!(){}^#&".contains(c) => c as u8,
                _ => b'_',
            };
            letters.map(letter).take(most).collect()
        };
        let (base, end) = name.rsplit_once('.').unwrap_or((name, ""));
        let (base, end) = (plain(base, 8), plain(end, 3));
        let mut number = 1u32;
        loop {
            let tail = format!("~{number}");
            let mut short = [b' '; 11];
            let keep = base.len().min(8 - tail.len());
            put(&mut short, 0, base.get(..keep).unwrap_or_default());
            put(&mut short, keep, tail.as_bytes());
            put(&mut short, 8, &end);
            // A directory has fewer names than seven digits count.
            if !self.taken.contains(&short) || number >= 999_999 {
                return short;
            }
            number += 1;
        }
    }

    /// The records of a long name, the last part first.
    fn long(&mut self, name: &str, short: &[u8; 11]) {
        let sum = short.iter().fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
        let mut units: Vec<u16> = name.encode_utf16().collect();
        let parts = units.len().div_ceil(UNITS);
        if !units.len().is_multiple_of(UNITS) {
            units.push(0);
        }
        units.resize(parts * UNITS, 0xffff);
        for (at, part) in units.chunks_exact(UNITS).enumerate().rev() {
            let mut record = [0; RECORD_BYTES as usize];
            let last = if at + 1 == parts { 0x40 } else { 0 };
            put(&mut record, 0, &[(at + 1) as u8 | last]);
            put(&mut record, 11, &[IS_LONG, 0, sum]);
            let places = (1..11).step_by(2).chain((14..26).step_by(2)).chain([28, 30]);
            for (unit, place) in part.iter().zip(places) {
                put(&mut record, place, &unit.to_le_bytes());
            }
            self.bytes.extend_from_slice(&record);
        }
    }

    fn record(&mut self, name: &[u8; 11], attributes: u8, cluster: u32, size: u32, seconds: i64) {
        let mut record = [0; RECORD_BYTES as usize];
        let (date, time) = date_time(seconds);
        let [low, high] = [cluster as u16, (cluster >> 16) as u16];
        put(&mut record, 0, name);
        put(&mut record, 11, &[attributes]);
        for (at, field) in [(14, time), (16, date), (18, date), (20, high)] {
            put(&mut record, at, &field.to_le_bytes());
        }
        for (at, field) in [(22, time), (24, date), (26, low)] {
            put(&mut record, at, &field.to_le_bytes());
        }
        put(&mut record, 28, &size.to_le_bytes());
        self.bytes.extend_from_slice(&record);
    }
}

/// A time of UTC as FAT has it: date and time, from 1980 to 2107, in steps of two seconds.
fn date_time(seconds: i64) -> (u16, u16) {
    const FIRST: i64 = 315_532_800;
    const LAST: i64 = 4_354_819_198;
    let seconds = seconds.clamp(FIRST, LAST);
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    while days >= 365 + i64::from(leap(year)) {
        days -= 365 + i64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for len in [31, 28 + i64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    let date = ((year - 1980) << 9) | (month << 5) | (days + 1);
    let time = ((second / 3600) << 11) | ((second / 60 % 60) << 5) | (second % 60 / 2);
    (date as u16, time as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let packed = |year: u16, month: u16, day: u16, hour: u16, min: u16, sec: u16| {
            (((year - 1980) << 9) | (month << 5) | day, (hour << 11) | (min << 5) | (sec / 2))
        };
        for (seconds, wanted) in [
            (0, packed(1980, 1, 1, 0, 0, 0)),
            (951_782_399, packed(2000, 2, 28, 23, 59, 59)),
            (951_782_400, packed(2000, 2, 29, 0, 0, 0)),
            (1_735_689_599, packed(2024, 12, 31, 23, 59, 59)),
            (i64::MAX, packed(2107, 12, 31, 23, 59, 58)),
        ] {
            assert_eq!(date_time(seconds), wanted, "{seconds}");
        }
    }

    #[test]
    fn old_names_are_their_own_and_others_get_one() {
        assert_eq!(short("BOOTX64.EFI"), Some(*b"BOOTX64 EFI"));
        assert_eq!(short("EFI"), Some(*b"EFI        "));
        for long in ["loader.conf", "A.B.C", "LONGERTHAN8", ".HIDDEN", "A.LONG", "ä"] {
            assert_eq!(short(long), None, "{long}");
        }
        let mut dir = Directory::new(["LOADER~1.CON", "loader.conf"].into_iter());
        dir.add("loader.conf", 4, Some(1), 0);
        dir.add("LOADER~1.CON", 3, Some(1), 0);
        dir.add("loader config.con", 5, Some(1), 0);
        let name = |at: usize| &dir.bytes()[at * 32..at * 32 + 11];
        assert_eq!((name(1), name(2)), (&b"LOADER~2CON"[..], &b"LOADER~1CON"[..]));
        assert_eq!(name(5), b"LOADER~3CON");
        assert_eq!(
            dir.bytes().len() as u64,
            32 * (1 + records("loader.conf") + records("loader config.con"))
        );
    }

    #[test]
    fn clusters_and_tables_fill_the_partition() {
        for sector in [512, 4096] {
            for bytes in [smallest(sector), 1 << 30, 9 << 30, 100 << 30] {
                let geometry = Geometry::of(bytes, sector).unwrap();
                let end = geometry.offset(FIRST_CLUSTER) + geometry.data_bytes();
                assert!(end <= bytes && bytes - end < geometry.cluster * sector, "{geometry:?}");
                assert!((geometry.clusters + 2) * 4 <= geometry.table * sector);
            }
            assert_eq!(Geometry::of(20 << 20, sector), None);
        }
    }
}
