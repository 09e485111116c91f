//! Damages images where it matters: one field, one block, one link at a time, of each kind of
//! metadata as often as of any other.

use std::collections::BTreeSet;

use extant::{FileKind, GroupIndex, Ino, MappingKind, MountOptions};
use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice};

/// A range of bytes that holds one kind of metadata.
#[allow(dead_code, reason = "each test binary uses a part")]
pub(crate) struct Place {
    pub(crate) what: &'static str,
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// Fields here say nothing about the owners of blocks.
    pub(crate) is_local: bool,
    /// The inode that it belongs to; 0 for none.
    pub(crate) ino: u32,
}

/// The metadata of an image, but for what belongs to the inodes `kept`.
pub(crate) fn places(device: &MemoryDevice, kept: &BTreeSet<u32>) -> Vec<Place> {
    let fs = MountOptions::new().open(device.snapshot()).unwrap();
    let superblock = fs.superblock().clone();
    let block = u64::from(superblock.block_size.bytes());
    let mut found = Vec::new();
    let owner = std::cell::Cell::new(0);
    let mut add = |what, at: u64, len, is_local| {
        found.push(Place { what, at, len, is_local, ino: owner.get() });
    };
    add("superblock", 1024, 1024, false);
    add("first orphan", 1024 + 0xe8, 4, true);
    let journal = fs.inode(superblock.journal_inode).ok();
    let first = journal.and_then(|inode| inode.map(0..1).next()?.ok());
    if let Some(MappingKind::Mapped(first)) = first.map(|run| run.kind) {
        add("journal superblock", first.0 * block, 96, false);
    }
    add("group descriptors", 2048, u64::from(superblock.desc_size.max(32)), false);
    let group = fs.group(GroupIndex(0)).unwrap();
    add("block bitmap", group.block_bitmap.0 * block, 1024, false);
    add("inode bitmap", group.inode_bitmap.0 * block, 32, false);
    if superblock.mmp_block.0 != 0 {
        add("mmp", superblock.mmp_block.0 * block, 256, true);
    }
    let inode_size = u64::from(superblock.inode_size);
    for ino in 1..=superblock.inodes_count {
        owner.set(ino);
        let at = group.inode_table.0 * block + u64::from(ino - 1) * inode_size;
        let raw = read(device, at, 128);
        if raw[0..2] != [0; 2] && raw[26..28] == [0; 2] && ino >= superblock.first_inode.0 {
            // Without names: its time of deletion is the next of the orphans.
            add("orphan", at, 128, false);
            add("orphan link", at + 20, 4, true);
        }
        let Ok(inode) = fs.inode(Ino(ino)) else { continue };
        if kept.contains(&ino) {
            continue;
        }
        let inner = [superblock.user_quota_inode, superblock.group_quota_inode];
        let is_file = ino >= superblock.first_inode.0 && !inner.contains(&Ino(ino));
        // Size, times, deletion, group, links, blocks; then generation; then what is behind block
        // numbers; then attributes, which may name inodes.
        let local: &[(u64, u64)] = &[(4, 28), (100, 4), (116, 12), (128, 32)];
        for (offset, len) in local {
            if offset + len <= inode_size && is_file {
                add("inode", at + offset, *len, true);
            }
        }
        add("inode", at, 4, false);
        add("inode flags", at + 32, 4, false);
        add("map in an inode", at + 40, 60, false);
        add("attributes in an inode", at + 104, inode_size - 104, false);
        let record = inode.record();
        if record.file_acl.0 != 0 {
            add("attribute block", record.file_acl.0 * block, 1024, true);
            add("attribute header", record.file_acl.0 * block, 32, true);
            add("attribute entry", record.file_acl.0 * block + 32, 40, true);
        }
        let what = match inode.kind() {
            FileKind::Directory => Some(("directory", true)),
            _ if ino == superblock.journal_inode.0 => Some(("journal", false)),
            _ if ino == superblock.orphan_file_inode.0 => Some(("orphan file", true)),
            _ if inner.contains(&Ino(ino)) => Some(("quota", true)),
            _ => None,
        };
        // Index blocks of maps: named by the first words of the map.
        if inode.uses_extents() {
            let map = read(device, at + 40, 60);
            let word = |from: usize| {
                u64::from(u32::from_le_bytes(map[from..from + 4].try_into().unwrap()))
            };
            if map[6] > 0 {
                add("extents", word(16) * block, 1024, false);
                add("extent header", word(16) * block, 12, false);
            }
        } else if !inode.is_inline() && is_file {
            let map = read(device, at + 40, 60);
            for slot in 12..15 {
                let word = u32::from_le_bytes(map[slot * 4..slot * 4 + 4].try_into().unwrap());
                if word != 0 && inode.kind() == FileKind::Regular {
                    add("pointers", u64::from(word) * block, 1024, false);
                }
            }
        }
        let Some((what, is_local)) = what else { continue };
        let runs = inode.map(0..inode.block_len());
        for (number, run) in runs.filter_map(Result::ok).enumerate() {
            let MappingKind::Mapped(start) = run.kind else { continue };
            for index in 0..run.len.min(64) {
                add(what, (start.0 + index) * block, 1024, is_local);
                match what {
                    "directory" => add("directory head", (start.0 + index) * block, 64, true),
                    "journal" => add("journal head", (start.0 + index) * block, 48, false),
                    "quota" => add("quota head", (start.0 + index) * block, 48, true),
                    _ => {}
                }
            }
            assert!(number < 1000);
        }
    }
    found
}

fn read(device: &MemoryDevice, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(at, &mut bytes).unwrap();
    bytes
}

/// Does one damage, and says which.
#[allow(dead_code, reason = "each test binary uses a part")]
pub(crate) fn damage(device: &MemoryDevice, places: &[Place], random: &mut Prng) -> String {
    damage_one(device, places, random).0
}

/// The same, and says where.
pub(crate) fn damage_one<'a>(
    device: &MemoryDevice,
    places: &'a [Place],
    random: &mut Prng,
) -> (String, &'a Place) {
    // Each kind as often as any other, however many places it has.
    let mut kinds: Vec<&str> = places.iter().map(|place| place.what).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let kind = kinds[random.below(kinds.len() as u64) as usize];
    let of_kind: Vec<&Place> = places.iter().filter(|place| place.what == kind).collect();
    let place = of_kind[random.below(of_kind.len() as u64) as usize];
    let old = read(device, place.at, place.len as usize);
    // Where there is something, mostly.
    let mut from = random.below(place.len);
    for _ in 0..8 {
        if old[from as usize] != 0 {
            break;
        }
        from = random.below(place.len);
    }
    // Orphans lead to each other, in circles, too.
    let value_of = |place: &&Place| {
        let link = read(device, place.at, 4);
        u32::from_le_bytes(link.try_into().unwrap())
    };
    let links: Vec<u32> = places
        .iter()
        .filter(|place| matches!(place.what, "first orphan" | "orphan link"))
        .map(|place| value_of(&place))
        .collect();
    let inos = match links.get(random.below(1 + 2 * links.len() as u64) as usize) {
        Some(link) => *link,
        None => random.below(300) as u32,
    };
    let telling = [
        0,
        1,
        2,
        3,
        7,
        8,
        11,
        12,
        0x7fff,
        0x8000,
        0xffff,
        1 << 31,
        u32::MAX,
        0xf30a,
        0xea02_0000,
        inos,
        random.below(6144) as u32,
        random.next_u64() as u32,
    ];
    let value = telling[random.below(telling.len() as u64) as usize];
    let (at, bytes) = match random.below(8) {
        0 => (from, vec![old[from as usize] ^ (1 << random.below(8))]),
        1 => (from, vec![old[from as usize].wrapping_add(1)]),
        2 => (from & !1, (value as u16).to_le_bytes().to_vec()),
        3 | 4 => (from & !3, value.to_le_bytes().to_vec()),
        5 => (from & !3, value.to_be_bytes().to_vec()),
        6 => {
            let other = of_kind[random.below(of_kind.len() as u64) as usize];
            (0, read(device, other.at, other.len.min(place.len) as usize))
        }
        _ => {
            let mut noise = vec![0; random.below(24) as usize + 1];
            random.fill(&mut noise);
            (from, noise)
        }
    };
    let len = (bytes.len() as u64).min(place.len - at);
    device.write_at(place.at + at, &bytes[..len as usize]).unwrap();
    let story =
        format!("{kind} at byte {}: {:02x?}", place.at + at, &bytes[..len.min(24) as usize]);
    (story, place)
}
