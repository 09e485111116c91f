use super::*;
use crate::dir::{
    BlockWriter, DirFault, DirLayout, FileType, NewEntry, Records, Room, Scan, entry_area,
    insert_at, remove_at, scan, set_target_at,
};
use crate::hash::{HashSeed, HashVersion, NameHash, name_hash};
use crate::htree::{compact, seal, split_leaf, verify};
use extant_base::{BlockSize, Prng};
use std::collections::BTreeMap;
use std::vec;

const HASH: HashVersion = HashVersion::HalfMd4;

fn place(at: FileBlock) -> NodePlace {
    if at.0 == 0 { NodePlace::Root } else { NodePlace::Inner }
}

/// A directory in memory: blocks, and nothing but the functions of this crate to change them.
struct Dir {
    layout: IndexLayout,
    blocks: Vec<Vec<u8>>,
}

/// Hashes with few values, so that leaves of one hash occur.
fn hash(name: &[u8]) -> NameHash {
    let full = name_hash(HASH, &HashSeed::default(), name).unwrap();
    NameHash { major: full.major % 600 * 0x0040_0000, minor: full.minor }
}

impl Dir {
    fn new(layout: IndexLayout) -> Dir {
        let size = layout.dir.block_size.len();
        let mut leaf = vec![0; size];
        BlockWriter::new(&mut leaf, layout.dir).unwrap().finish(None);
        let mut root = vec![0; size];
        let first = Record { hash: 0, continued: false, block: FileBlock(1) };
        let records = [first].into_iter();
        let dots = (Ino(11), Ino(2));
        Index::encode_root(&mut root, &layout, dots, HASH, 0, records, None).unwrap();
        Dir { layout, blocks: vec![root, leaf] }
    }

    fn index(&self, at: FileBlock) -> Index<'_> {
        peek(&self.blocks[at.0 as usize], &self.layout, place(at)).unwrap()
    }

    fn checked_index(&self, at: FileBlock) -> Index<'_> {
        let block = &self.blocks[at.0 as usize];
        let blocks = self.blocks.len() as u32;
        match place(at) {
            NodePlace::Root => Root::decode(block, &self.layout, blocks).unwrap().index,
            NodePlace::Inner => Index::decode_inner(block, &self.layout, blocks).unwrap(),
        }
    }

    fn levels(&self) -> u8 {
        Root::peek(&self.blocks[0], &self.layout).unwrap().levels
    }

    /// The nodes with the positions taken, the leaf, and whether the hash goes on behind it.
    fn path(&self, hash: u32) -> (Vec<(FileBlock, usize)>, FileBlock, bool) {
        let (mut path, mut at, mut goes_on) = (Vec::new(), FileBlock(0), false);
        for _ in 0..=self.levels() {
            let index = self.index(at);
            let position = index.find(hash);
            goes_on = index.goes_on(position, hash).unwrap_or(goes_on);
            path.push((at, position));
            at = index.get(position).unwrap().block;
        }
        (path, at, goes_on)
    }

    fn leaves(&self) -> Vec<(Record, FileBlock)> {
        let root = Record { hash: 0, continued: false, block: FileBlock(0) };
        let mut nodes = vec![root];
        for _ in 0..=self.levels() {
            let below = nodes.iter().flat_map(|node| {
                let first = *node;
                self.checked_index(node.block).iter().enumerate().map(move |(position, record)| {
                    // The first record of a node stands for the one that led there.
                    let from = if position == 0 { first } else { record };
                    Record { block: record.block, ..from }
                })
            });
            nodes = below.collect();
        }
        nodes.into_iter().map(|record| (record, record.block)).collect()
    }

    fn fresh(&mut self) -> FileBlock {
        self.blocks.push(vec![0; self.layout.dir.block_size.len()]);
        FileBlock(self.blocks.len() as u32 - 1)
    }

    fn with_fresh<R>(
        &mut self,
        old: FileBlock,
        change: impl FnOnce(&mut [u8], &mut [u8], FileBlock) -> R,
    ) -> R {
        let at = self.fresh();
        let mut fresh = self.blocks.pop().unwrap();
        let result = change(&mut self.blocks[old.0 as usize], &mut fresh, at);
        self.blocks.push(fresh);
        result
    }

    /// `None` when the index is full.
    fn insert(&mut self, name: &[u8], ino: Ino) -> Option<()> {
        let layout = self.layout;
        let hash = hash(name).major;
        let needs = layout.dir.needs(name.len());
        loop {
            let (path, leaf, _) = self.path(hash);
            let block = &mut self.blocks[leaf.0 as usize];
            let area = entry_area(block, layout.dir).unwrap();
            let room = match scan(area, layout.dir, needs, |stored| stored == name).unwrap() {
                Scan::Hit(_) => panic!("inserted twice"),
                Scan::Miss { room: Some(room), .. } => room,
                Scan::Miss { used, .. } if used as usize + needs <= area.len() => {
                    *block = compact(block, layout.dir).unwrap();
                    continue;
                }
                Scan::Miss { .. } => {
                    self.grow(&path, leaf)?;
                    continue;
                }
            };
            let end = layout.dir.entry_bytes();
            let entry = NewEntry { ino, name, file_type: FileType::Regular, hash: None };
            insert_at(&mut block[..end], layout.dir, room, &entry).unwrap();
            return Some(());
        }
    }

    fn grow(&mut self, path: &[(FileBlock, usize)], leaf: FileBlock) -> Option<()> {
        let layout = self.layout;
        let full = path.iter().rev().take_while(|(at, _)| self.index(*at).is_full()).count();
        if full == path.len() {
            if self.levels() >= layout.levels_max() {
                let error = self.with_fresh(FileBlock(0), |root, node, at| {
                    grow_root(root, node, at, &layout).unwrap_err()
                });
                self.blocks.pop();
                assert!(matches!(error, HtreeFault::Levels { .. }));
                return None;
            }
            let grown = |root: &mut [u8], node: &mut [u8], at| grow_root(root, node, at, &layout);
            self.with_fresh(FileBlock(0), grown).unwrap();
        } else if full > 0 {
            let (node, _) = path[path.len() - full];
            let (parent, position) = path[path.len() - full - 1];
            let split =
                |node: &mut [u8], fresh: &mut [u8], at| split_node(node, fresh, at, &layout);
            let record = self.with_fresh(node, split).unwrap();
            self.put(parent, position + 1, record).unwrap();
        } else {
            let (parent, position) = path[path.len() - 1];
            let at = self.fresh();
            let block = &self.blocks[leaf.0 as usize];
            let split = split_leaf::<DirFault>(block, layout.dir, |entry| Ok(hash(entry.name)));
            let split = split.unwrap().unwrap();
            self.blocks[leaf.0 as usize] = split.lower;
            self.blocks[at.0 as usize] = split.upper;
            let record = Record { hash: split.hash, continued: split.continued, block: at };
            self.put(parent, position + 1, record).unwrap();
        }
        Some(())
    }

    fn put(&mut self, at: FileBlock, position: usize, record: Record) -> Result<(), HtreeFault> {
        insert_record(&mut self.blocks[at.0 as usize], &self.layout, place(at), position, record)
    }

    fn remove(&mut self, name: &[u8]) -> Option<Ino> {
        let layout = self.layout.dir;
        let hash = hash(name).major;
        let leaves = self.leaves();
        let (_, first, _) = self.path(hash);
        let start = leaves.iter().position(|(_, at)| *at == first).unwrap();
        for (number, (record, at)) in leaves[start..].iter().enumerate() {
            if number > 0 && !(record.continued && record.hash == hash) {
                break;
            }
            let block = &mut self.blocks[at.0 as usize];
            let area = entry_area(block, layout).unwrap();
            if let Scan::Hit(hit) = scan(area, layout, usize::MAX, |stored| stored == name).unwrap()
            {
                let end = layout.entry_bytes();
                set_target_at(&mut block[..end], layout, &hit, Ino(9), FileType::Fifo).unwrap();
                remove_at(&mut block[..end], layout, &hit).unwrap_err();
                let hit = crate::dir::Hit { ino: Ino(9), ..hit };
                remove_at(&mut block[..end], layout, &hit).unwrap();
                return Some(hit.ino);
            }
        }
        None
    }

    /// Every name is in a leaf that its hash leads to, and nothing else is anywhere.
    fn check(&self, model: &BTreeMap<Vec<u8>, u32>) {
        let leaves = self.leaves();
        let mut count = 0;
        for (number, (record, at)) in leaves.iter().enumerate() {
            let next = leaves.get(number + 1).map(|(next, _)| *next);
            for entry in
                Records::of_block(&self.blocks[at.0 as usize], self.layout.dir).unwrap().used()
            {
                let entry = entry.unwrap();
                assert_eq!(model.get(entry.name), Some(&entry.ino.0));
                let major = hash(entry.name).major;
                assert!(major >= record.hash);
                if let Some(next) = next {
                    let last = major == next.hash && next.continued;
                    assert!(major < next.hash || last, "{major:#x} before {next:?}");
                }
                count += 1;
            }
        }
        assert_eq!(count, model.len());
    }
}

fn layout(checksum: bool, large_dir: bool) -> IndexLayout {
    let block_size = BlockSize::new(1024).unwrap();
    let dir =
        DirLayout { block_size, filetype: true, checksum, stored_hash: false, encrypted: false };
    IndexLayout { dir, large_dir, unsigned_hash: false }
}

#[test]
fn a_growing_and_shrinking_index_agrees_with_a_map() {
    for (seed, checksum, large_dir, names) in
        [(1, true, false, 3000), (2, false, false, 3000), (3, true, true, 12_000)]
    {
        let mut random = Prng::new(seed);
        let mut dir = Dir::new(layout(checksum, large_dir));
        let mut model = BTreeMap::new();
        for step in 0..names {
            let len = 4 + random.below(if step % 5 == 0 { 251 } else { 30 }) as usize;
            let mut name = std::format!("{:x}", random.next_u64() >> 40).into_bytes();
            name.resize(len.max(name.len()), b'-');
            if model.contains_key(&name) {
                continue;
            }
            assert!(dir.insert(&name, Ino(step + 12)).is_some());
            model.insert(name, step + 12);
            if random.one_in(3) {
                let nth = random.below(model.len() as u64) as usize;
                let victim = model.keys().nth(nth).unwrap().clone();
                assert!(dir.remove(&victim).is_some());
                model.remove(&victim);
                assert!(dir.remove(&victim).is_none());
            }
            if step % 500 == 0 {
                dir.check(&model);
            }
        }
        dir.check(&model);
        assert!(dir.levels() >= 1, "{}", dir.blocks.len());
    }
}

#[test]
fn an_index_that_cannot_get_deeper_says_so() {
    let mut dir = Dir::new(layout(true, false));
    let mut model = BTreeMap::new();
    // One hash after the other fills each node before it is split: the index is full early.
    for number in 0..60_000u32 {
        let name = std::format!("{number:0255}").into_bytes();
        if dir.insert(&name, Ino(12)).is_none() {
            break;
        }
        model.insert(name, 12);
    }
    assert!(model.len() > 10_000 && model.len() < 60_000, "{}", model.len());
    dir.check(&model);
}

#[test]
fn refused_changes_change_nothing() {
    let layout = layout(true, false);
    let dir = Dir::new(layout);
    let mut root = dir.blocks[0].clone();
    seal(5, &mut root, NodePlace::Root);
    let before = root.clone();
    let record = Record { hash: 8, continued: false, block: FileBlock(1) };
    for position in [0, 2, 500] {
        let fault = insert_record(&mut root, &layout, NodePlace::Root, position, record);
        assert!(matches!(fault, Err(HtreeFault::Count { .. })), "{position}");
    }
    let fault = insert_record(&mut root, &layout, NodePlace::Inner, 1, record);
    assert!(matches!(fault, Err(HtreeFault::Disguise { .. })));
    let mut node = vec![0; 1024];
    assert!(split_node(&mut root, &mut node, FileBlock(2), &layout).is_err());
    assert!(grow_root(&mut root, &mut node[..512], FileBlock(2), &layout).is_err());
    assert_eq!(root, before);
    verify(5, &root, NodePlace::Root).unwrap();
    set_root_parent(&mut root, &layout, Ino(77)).unwrap();
    assert_eq!(Root::decode(&root, &layout, 2).unwrap().parent, Ino(77));
}

#[test]
fn stale_rooms_and_hits_are_refused() {
    let layout = layout(true, false).dir;
    let mut block = vec![0; 1024];
    BlockWriter::new(&mut block, layout).unwrap().finish(None);
    assert_eq!(entry_area(&[0; 1024], layout), Err(DirFault::NoTail));
    let area = &mut block[..1012];
    let name = b"name".as_slice();
    let entry = NewEntry { ino: Ino(12), name, file_type: FileType::Regular, hash: None };
    let Scan::Miss { room: Some(room), used: 0 } = scan(area, layout, 12, |_| true).unwrap() else {
        panic!("an empty block has room")
    };
    assert_eq!(room, Room { offset: 0, kept: 0, rec_len: 1012 });
    insert_at(area, layout, room, &entry).unwrap();
    let wrong = Room { rec_len: 1000, ..room };
    assert!(insert_at(area, layout, wrong, &entry).is_err());
    let Scan::Hit(hit) = scan(area, layout, usize::MAX, |stored| stored == name).unwrap() else {
        panic!("it was inserted")
    };
    remove_at(area, layout, &hit).unwrap();
    assert!(remove_at(area, layout, &hit).is_err());
    assert!(set_target_at(area, layout, &hit, Ino(3), FileType::Fifo).is_err());
}
