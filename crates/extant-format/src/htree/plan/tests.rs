use super::*;
use crate::dir::Records;
use crate::hash::{HashSeed, name_hash};
use crate::htree::{Root, verify};
use extant_base::{BlockSize, Prng};
use std::format;
use std::string::String;

fn options(block: u64, large_dir: bool, fill_percent: u8) -> IndexOptions {
    let dir = DirLayout {
        block_size: BlockSize::new(block).unwrap(),
        filetype: true,
        checksum: true,
        stored_hash: false,
        encrypted: false,
    };
    let layout = IndexLayout { dir, large_dir, unsigned_hash: false };
    IndexOptions { layout, hash: Some(HashVersion::HalfMd4), fill_percent }
}

/// Names with their hashes, sorted.
fn names(count: usize, len: usize) -> Vec<(NameHash, String)> {
    let mut names: Vec<_> = (0..count)
        .map(|number| {
            let name = format!("{number:0len$}");
            let hash = name_hash(HashVersion::HalfMd4, &HashSeed::default(), name.as_bytes());
            (hash.unwrap(), name)
        })
        .collect();
    names.sort();
    names
}

fn plan(options: IndexOptions, names: &[(NameHash, String)]) -> Result<HtreePlan, HtreeFault> {
    let entries =
        names.iter().map(|(hash, name)| PlannedEntry { name_len: name.len() as u8, hash: *hash });
    HtreePlan::new(options, entries)
}

fn blocks(plan: &HtreePlan, names: &[(NameHash, String)]) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let entries = names.iter().enumerate().map(|(number, (hash, name))| NewEntry {
        ino: Ino(number as u32 + 12),
        name: name.as_bytes(),
        file_type: FileType::Regular,
        hash: Some(*hash),
    });
    plan.emit((Ino(11), Ino(2)), Some(4), entries, |at, block| {
        assert_eq!(at.0 as usize, blocks.len());
        blocks.push(block.to_vec());
        Ok::<(), HtreeFault>(())
    })
    .unwrap();
    assert_eq!(blocks.len(), plan.block_count() as usize);
    blocks
}

/// Looks up a name from the root down, going on where the index says so.
fn lookup(blocks: &[Vec<u8>], layout: &IndexLayout, hash: NameHash, name: &[u8]) -> Option<u32> {
    fn below(
        blocks: &[Vec<u8>],
        layout: &IndexLayout,
        index: &Index<'_>,
        levels: u8,
        hash: u32,
        name: &[u8],
    ) -> Option<u32> {
        let mut position = index.find(hash);
        loop {
            let block = &blocks[index.get(position)?.block.0 as usize];
            let found = if levels == 0 {
                crate::dir::find(block, layout.dir, name).unwrap().map(|entry| entry.ino.0)
            } else {
                let inner = Index::decode_inner(block, layout, blocks.len() as u32).unwrap();
                verify(4, block, NodePlace::Inner).unwrap();
                below(blocks, layout, &inner, levels - 1, hash, name)
            };
            if found.is_some() || index.goes_on(position, hash) != Some(true) {
                return found;
            }
            position += 1;
        }
    }
    let root = Root::decode(&blocks[0], layout, blocks.len() as u32).unwrap();
    verify(4, &blocks[0], NodePlace::Root).unwrap();
    below(blocks, layout, &root.index, root.levels, hash.major, name)
}

#[test]
fn every_depth_finds_every_name() {
    // 1 KiB blocks, names of 248 bytes: 3 in a leaf, 123 records in a root, 126 in an inner node.
    for (count, large_dir, levels) in
        [(9, false, 0u8), (369, false, 0), (370, false, 1), (60_000, true, 2)]
    {
        let options = options(1024, large_dir, 100);
        let names = names(count, 248);
        let plan = plan(options, &names).unwrap();
        let blocks = blocks(&plan, &names);
        let root = Root::decode(&blocks[0], &options.layout, blocks.len() as u32).unwrap();
        assert_eq!((root.levels, root.parent, root.hash), (levels, Ino(2), HashVersion::HalfMd4));
        for (number, (hash, name)) in names.iter().enumerate().step_by(1 + count / 3000) {
            let found = lookup(&blocks, &options.layout, *hash, name.as_bytes());
            assert_eq!(found, Some(number as u32 + 12), "{name}");
        }
    }
}

#[test]
fn a_directory_too_large_for_its_index_is_refused() {
    let names = names(60_000, 248);
    let fault = plan(options(1024, false, 100), &names).unwrap_err();
    assert_eq!(fault, HtreeFault::TooLarge { leaves: 20_000, allowed: 1 });
}

#[test]
fn one_block_stays_linear_and_the_next_name_makes_an_index() {
    // 1024 - 12 (tail) - 24 (dots) = 988 bytes; 19 names of 52 bytes each.
    for (count, indexed, wanted) in [(0, false, 1), (1, false, 1), (19, false, 1), (20, true, 3)] {
        let names = names(count, 44);
        let plan = plan(options(1024, false, 100), &names).unwrap();
        assert_eq!((plan.is_indexed(), plan.block_count()), (indexed, wanted), "{count}");
        let blocks = blocks(&plan, &names);
        let listed = blocks
            .iter()
            .flat_map(|block| Records::of_block(block, plan.options.layout.dir).unwrap().used());
        assert_eq!(listed.count(), count + 2);
    }
    let linear = IndexOptions { hash: None, ..options(1024, false, 100) };
    let names = names(20, 44);
    let plan = plan(linear, &names).unwrap();
    assert_eq!((plan.is_indexed(), plan.block_count()), (false, 2));
}

#[test]
fn equal_hashes_over_several_leaves_are_all_found() {
    let options = options(1024, true, 100);
    let mut random = Prng::new(3);
    let mut major = 0;
    let mut names: Vec<(NameHash, String)> = (0..5000)
        .map(|number| {
            // Runs of equal hashes, some longer than a leaf of three.
            if random.one_in(5) {
                major += 2;
            }
            (NameHash { major, minor: number }, format!("{number:0248}"))
        })
        .collect();
    names.sort();
    let plan = plan(options, &names).unwrap();
    let blocks = blocks(&plan, &names);
    for (number, (hash, name)) in names.iter().enumerate() {
        let found = lookup_across(&blocks, &options.layout, *hash, name.as_bytes());
        assert_eq!(found, Some(number as u32 + 12), "{name} {hash:x?}");
    }
}

/// As `lookup`, over the leaves in the order of the whole index: what goes on may do so in the
/// next inner node.
fn lookup_across(
    blocks: &[Vec<u8>],
    layout: &IndexLayout,
    hash: NameHash,
    name: &[u8],
) -> Option<u32> {
    let root = Root::decode(&blocks[0], layout, blocks.len() as u32).unwrap();
    let mut level: Vec<Record> = root.index.iter().collect();
    for _ in 0..root.levels {
        let mut below = Vec::new();
        for above in level {
            let block = &blocks[above.block.0 as usize];
            let index = Index::decode_inner(block, layout, blocks.len() as u32).unwrap();
            let mut records: Vec<Record> = index.iter().collect();
            // The first record's hash is with the parent.
            (records[0].hash, records[0].continued) = (above.hash, above.continued);
            below.extend(records);
        }
        level = below;
    }
    let raw = |record: &Record| record.hash | u32::from(record.continued);
    let mut at = level[1..].partition_point(|record| raw(record) <= hash.major);
    loop {
        let block = &blocks[level[at].block.0 as usize];
        if let Some(entry) = crate::dir::find(block, layout.dir, name).unwrap() {
            return Some(entry.ino.0);
        }
        at += 1;
        let next = level.get(at)?;
        if !(next.continued && next.hash == hash.major) {
            return None;
        }
    }
}

#[test]
fn entries_out_of_order_or_not_as_planned_are_refused() {
    let mut list = names(100, 44);
    let good = plan(options(1024, false, 100), &list).unwrap();
    let few = list[..99].iter().map(|(hash, name)| NewEntry {
        ino: Ino(12),
        name: name.as_bytes(),
        file_type: FileType::Regular,
        hash: Some(*hash),
    });
    let fault = good.emit((Ino(11), Ino(2)), None, few, |_, _| Ok::<(), HtreeFault>(()));
    assert_eq!(fault, Err(HtreeFault::NotAsPlanned { entry: 99 }));
    list.swap(10, 50);
    assert!(matches!(plan(options(1024, false, 100), &list), Err(HtreeFault::Order { .. })));
}

#[test]
fn less_fill_leaves_room() {
    let names = names(2000, 44);
    let full = plan(options(4096, false, 100), &names).unwrap().block_count();
    let half = plan(options(4096, false, 50), &names).unwrap().block_count();
    assert!((full * 2 - 4..=full * 2 + 4).contains(&half), "{full} {half}");
}

#[test]
fn damage_to_an_index_block_is_named() {
    let options = options(1024, false, 100);
    let names = names(370, 248);
    let plan = plan(options, &names).unwrap();
    let blocks = blocks(&plan, &names);
    let count = blocks.len() as u32;
    let root = |at: usize, value: u8| {
        let mut bad = blocks[0].clone();
        bad[at] = value;
        assert!(verify(4, &bad, NodePlace::Root).is_err());
        Root::decode(&bad, &options.layout, count).unwrap_err()
    };
    assert!(matches!(root(8, b'x'), HtreeFault::Disguise { .. }));
    assert!(matches!(root(24, 1), HtreeFault::Info { reserved: 1, .. }));
    assert_eq!(root(28, 3), HtreeFault::HashVersion { version: 3 });
    assert_eq!(root(28, 6), HtreeFault::HashVersion { version: 6 });
    assert!(matches!(root(29, 9), HtreeFault::Info { info_length: 9, .. }));
    assert_eq!(root(30, 2), HtreeFault::Levels { levels: 2, allowed: 1 });
    assert!(matches!(root(31, 1), HtreeFault::Info { flags: 1, .. }));
    assert_eq!(root(32, 1), HtreeFault::Limit { found: 1, wanted: 122 + 1 });
    assert_eq!(root(34, 124), HtreeFault::Count { count: 124, limit: 123 });
    assert_eq!(root(34, 0), HtreeFault::Count { count: 0, limit: 123 });
    assert!(matches!(root(36, 0), HtreeFault::Block { record: 0, .. }));
    assert!(matches!(root(37, 1), HtreeFault::Block { record: 0, .. }));
}
