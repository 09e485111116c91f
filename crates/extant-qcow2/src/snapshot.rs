//! Snapshots that lie inside an image.

use std::io;

use crate::error::damage;
use crate::header::{Header, u64_at};
use crate::store::Store;

/// Most snapshots, and bytes of their table: as in qemu.
const SNAPSHOTS_MAX: u32 = 65_536;
const TABLE_MAX_BYTES: u64 = 16 << 20;
/// Longest part of one entry: fixed fields, extra data, names.
const FIXED_BYTES: usize = 40;
const EXTRA_MAX: u32 = 1024;

/// A snapshot: the disk as it once was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Number of the snapshot, as text.
    pub id: String,
    /// Name of the snapshot.
    pub name: String,
    /// When it was taken, in seconds since 1970.
    pub seconds: u32,
    /// Size of the disk then, in bytes.
    pub size_bytes: u64,
    pub(crate) l1_offset: u64,
    pub(crate) l1_entries: u32,
}

/// Reads the table of snapshots.
pub(crate) fn read_all(store: &dyn Store, header: &Header) -> io::Result<Vec<Snapshot>> {
    if header.snapshots > SNAPSHOTS_MAX {
        return Err(damage(format!("{} snapshots, more than {SNAPSHOTS_MAX}", header.snapshots)));
    }
    let mut found = Vec::new();
    let mut at = header.snapshots_offset;
    let there = store.len()?;
    for _ in 0..header.snapshots {
        if at >= there {
            return Err(damage(format!(
                "{} snapshots, of which {} are in the file",
                header.snapshots,
                found.len()
            )));
        }
        if at - header.snapshots_offset > TABLE_MAX_BYTES {
            return Err(damage("a table of snapshots of more than 16 MiB"));
        }
        let mut fixed = [0; FIXED_BYTES];
        store.read_at(at, &mut fixed)?;
        let u16_at = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let u32_at = |at: usize| {
            u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]])
        };
        let (id_len, name_len) = (usize::from(u16_at(12)), usize::from(u16_at(14)));
        let extra = u32_at(36);
        if extra > EXTRA_MAX {
            return Err(damage(format!("{extra} bytes of extra data of a snapshot")));
        }
        let mut rest = vec![0; extra as usize + id_len + name_len];
        store.read_at(at + FIXED_BYTES as u64, &mut rest)?;
        let (extra, names) = rest.split_at(extra as usize);
        let (id, name) = names.split_at(id_len);
        found.push(Snapshot {
            id: String::from_utf8_lossy(id).into_owned(),
            name: String::from_utf8_lossy(name).into_owned(),
            seconds: u32_at(16),
            size_bytes: if extra.len() >= 16 { u64_at(extra, 8) } else { header.size },
            l1_offset: u64_at(&fixed, 0),
            l1_entries: u32_at(8),
        });
        at += (FIXED_BYTES + rest.len()).next_multiple_of(8) as u64;
    }
    Ok(found)
}
