use super::*;
use extant_base::Prng;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

const FIRST_NODE: u64 = 3_000_000_000;

struct Memory {
    root: [u8; ROOT_BYTES],
    nodes: BTreeMap<FsBlock, Vec<u8>>,
    next: u64,
    room: usize,
}

#[derive(Debug, PartialEq)]
enum Failure {
    Full,
    NotThere,
    Fault(IndirectFault),
}

fn size() -> BlockSize {
    BlockSize::new(1024).unwrap()
}

impl PointerStore for Memory {
    type Error = Failure;
    type Bytes = Vec<u8>;

    fn root(&mut self) -> Result<[u8; ROOT_BYTES], Failure> {
        Ok(self.root)
    }
    fn set_root(&mut self, root: &[u8; ROOT_BYTES]) -> Result<(), Failure> {
        self.root = *root;
        Ok(())
    }
    fn read(&mut self, block: FsBlock) -> Result<Vec<u8>, Failure> {
        self.nodes.get(&block).cloned().ok_or(Failure::NotThere)
    }
    fn edit(&mut self, block: FsBlock, change: impl FnOnce(&mut [u8])) -> Result<(), Failure> {
        change(self.nodes.get_mut(&block).unwrap());
        Ok(())
    }
    fn create(&mut self, block: FsBlock) -> Result<(), Failure> {
        assert!(self.nodes.insert(block, vec![0; 1024]).is_none());
        Ok(())
    }
    fn reserve(&mut self, count: usize) -> Result<Vec<FsBlock>, Failure> {
        if count > self.room {
            return Err(Failure::Full);
        }
        let blocks = (0..count as u64).map(|i| FsBlock(self.next + i)).collect();
        self.next += count as u64;
        Ok(blocks)
    }
    fn free(&mut self, block: FsBlock) -> Result<(), Failure> {
        assert!(self.nodes.remove(&block).is_some(), "freed twice");
        Ok(())
    }
    fn size(&self) -> BlockSize {
        size()
    }
    fn fault(&self, fault: IndirectFault) -> Failure {
        Failure::Fault(fault)
    }
}

impl Memory {
    fn new() -> Memory {
        let (root, nodes) = ([0; ROOT_BYTES], BTreeMap::new());
        Memory { root, nodes, next: FIRST_NODE, room: usize::MAX }
    }

    fn lookup(&self, block: u32) -> Option<u64> {
        let way = path(FileBlock(block), size())?;
        let mut bytes = self.root.as_slice();
        let (last, upper) = way.steps().split_last().unwrap();
        for slot in upper {
            bytes = &self.nodes[&block_at(bytes, *slot).block()?];
        }
        block_at(bytes, *last).block().map(|block| block.0)
    }

    /// Every mapped block; no pointer block is empty, shared or lost.
    fn blocks(&self) -> BTreeMap<u32, u64> {
        let mut all = BTreeMap::new();
        let mut nodes = 0;
        for slot in 0..15 {
            let Some(block) = block_at(&self.root, slot).block() else { continue };
            match slot {
                0..12 => {
                    all.insert(slot, block.0);
                }
                _ => {
                    let depth = slot as u8 - 11;
                    let base = 12 + (1..depth).map(|level| span(level, size())).sum::<u64>();
                    self.collect(block, depth, base, &mut all, &mut nodes);
                }
            }
        }
        assert_eq!(nodes, self.nodes.len(), "lost pointer blocks");
        all
    }

    fn collect(
        &self,
        node: FsBlock,
        depth: u8,
        base: u64,
        all: &mut BTreeMap<u32, u64>,
        nodes: &mut usize,
    ) {
        *nodes += 1;
        let bytes = &self.nodes[&node];
        assert!(bytes.iter().any(|byte| *byte != 0), "an empty pointer block");
        for slot in 0..256 {
            let Some(child) = block_at(bytes, slot).block() else { continue };
            let at = base + u64::from(slot) * span(depth - 1, size());
            if depth == 1 {
                all.insert(at as u32, child.0);
            } else {
                self.collect(child, depth - 1, at, all, nodes);
            }
        }
    }
}

fn run(file: u32, device: u64, len: u32) -> Extent {
    Extent {
        file_start: FileBlock(file),
        device_start: FsBlock(device),
        len: BlockCount(len),
        state: ExtentState::Written,
    }
}

fn remove(map: &mut Memory, start: u64, end: u64, most: usize) -> BTreeMap<u32, u64> {
    let mut all = BTreeMap::new();
    let mut end = end;
    loop {
        let step = remove_step(map, (start, end), most).unwrap();
        assert!(step.extents.len() <= most);
        assert!(step.done || step.end < end, "no progress");
        end = step.end;
        for extent in &step.extents {
            for into in 0..extent.len.0 {
                let device = extent.device_start.0 + u64::from(into);
                assert_eq!(all.insert(extent.file_start.0 + into, device), None);
            }
        }
        map.blocks();
        if step.done {
            assert_eq!(remove_step(map, (start, end), most).unwrap().extents, []);
            return all;
        }
    }
}

/// Starts of the regions of a map with blocks of 1 KiB, and a little before.
const EDGES: [u32; 7] = [0, 8, 12, 12 + 250, 12 + 256, 12 + 256 + 65536 - 4, 12 + 256 + 65536 * 3];

#[test]
fn random_changes_equal_a_map_of_blocks() {
    for seed in 0..12 {
        let mut random = Prng::new(seed);
        let mut map = Memory::new();
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        for _ in 0..300 {
            let edge = EDGES[random.below(7) as usize];
            let start = edge + random.below(600) as u32;
            let len = 1 + random.below(300) as u32;
            map.room = if random.one_in(6) { random.below(3) as usize } else { usize::MAX };
            let before = (map.root, map.nodes.clone());
            if random.one_in(2) {
                let new = run(start, 100_000 + u64::from(start) + random.below(2), len);
                let taken = model.range(start..start + len).next().is_some();
                match insert(&mut map, new) {
                    Ok(()) => {
                        assert!(!taken);
                        for into in 0..len {
                            model.insert(start + into, new.device_start.0 + u64::from(into));
                        }
                    }
                    Err(failure) => {
                        assert!(taken || failure == Failure::Full, "{failure:?}");
                        assert_eq!(before, (map.root, map.nodes.clone()));
                    }
                }
            } else {
                let most = 1 + random.below(5) as usize;
                let expected: BTreeMap<u32, u64> =
                    model.range(start..start + len).map(|(block, to)| (*block, *to)).collect();
                let removed = remove(&mut map, u64::from(start), u64::from(start + len), most);
                assert_eq!(removed, expected, "seed {seed}");
                model.retain(|block, _| !(start..start + len).contains(block));
            }
            assert_eq!(map.blocks(), model, "seed {seed}");
        }
        assert_eq!(remove(&mut map, 0, 1 << 32, 3), model);
        assert_eq!((map.root, map.nodes.len()), ([0; ROOT_BYTES], 0));
    }
}

#[test]
fn a_block_behind_three_levels_takes_three_pointer_blocks() {
    let mut map = Memory::new();
    let last = max_file_blocks(size()) as u32 - 1;
    insert(&mut map, run(last, 5, 1)).unwrap();
    assert_eq!((map.nodes.len(), map.lookup(last)), (3, Some(5)));
    assert_eq!(
        insert(&mut map, run(last, 9, 2)),
        Err(Failure::Fault(IndirectFault::PastMap {
            block: u64::from(last) + 1,
            last: u64::from(last)
        }))
    );
    assert_eq!(remove(&mut map, u64::from(last), 1 << 32, 1).len(), 1);
    assert!(map.nodes.is_empty());
}

#[test]
fn numbers_beyond_32_bits_are_refused() {
    let mut map = Memory::new();
    for device in [0, (1 << 32) - 1] {
        let refused = insert(&mut map, run(0, device, 2));
        let wanted = Failure::Fault(IndirectFault::DeviceBlock { block: device });
        assert_eq!(refused, Err(wanted));
    }
    insert(&mut map, run(0, (1 << 32) - 2, 2)).unwrap();
}

#[test]
fn a_map_that_points_at_itself_is_left_in_bounded_steps() {
    let mut map = Memory::new();
    let node = FsBlock(7);
    let mut bytes = vec![0; 1024];
    for slot in 0..256 {
        put_block(&mut bytes, slot, Some(node));
    }
    map.nodes.insert(node, bytes);
    put_block(&mut map.root, 14, Some(node));
    let mut end = 1 << 32;
    for _ in 0..100 {
        // The second freeing of a block is for the store to refuse.
        let Ok(step) = remove_step(&mut map, (0, end), 4) else { return };
        assert!(step.done || step.end < end);
        end = step.end;
        if step.done {
            return;
        }
    }
    panic!("more steps than the block has pointers");
}

#[test]
fn blocks_get_other_places_and_holes_and_pointer_blocks_stay() {
    let mut map = Memory::new();
    // Direct, indirect, double and triple indirect.
    let places = [3u64, 10, 200, 268, 269, 300, 66_000, 66_500, 70_000, 16_843_019];
    for (at, place) in places.iter().enumerate() {
        let run = Extent {
            file_start: FileBlock(*place as u32),
            device_start: FsBlock(1000 + 100 * at as u64),
            len: BlockCount(1),
            state: ExtentState::Written,
        };
        insert(&mut map, run).unwrap();
    }
    let (before, count) = (map.root, map.nodes.len());
    map.room = 0;
    remap(&mut map, (4, 66_400), FsBlock(2_000_000)).unwrap();
    for (at, place) in places.iter().enumerate() {
        let moved = (4..66_400).contains(place);
        let expected = if moved { 2_000_000 + place - 4 } else { 1000 + 100 * at as u64 };
        assert_eq!(map.lookup(*place as u32), Some(expected), "{place}");
    }
    for hole in [4, 11, 201, 267, 301, 65_999, 66_001] {
        assert_eq!(map.lookup(hole), None, "{hole}");
    }
    assert_eq!(map.nodes.len(), count);
    assert_eq!(map.root[48..], before[48..], "pointer blocks stay where they are");
    let nodes = map.nodes.clone();
    let far = IndirectFault::DeviceBlock { block: u64::from(u32::MAX) };
    assert_eq!(remap(&mut map, (0, 9), FsBlock(u64::from(u32::MAX))), Err(Failure::Fault(far)));
    assert_eq!(map.nodes, nodes);
}
