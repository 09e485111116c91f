use super::super::{Entries, build};
use super::*;
use extant_base::{BlockSize, Prng};
use std::collections::{BTreeMap, BTreeSet};
use std::vec;
use std::vec::Vec;

const FIRST_NODE: u64 = 1 << 40;

/// A tree in memory, with nodes of few records, that can run out of space.
pub(super) struct Memory {
    root: [u8; ROOT_BYTES],
    nodes: BTreeMap<FsBlock, Vec<u8>>,
    reserved: BTreeSet<FsBlock>,
    next: u64,
    pub(super) room: usize,
    max: u16,
    writes: usize,
}

#[derive(Debug, PartialEq)]
pub(super) enum Failure {
    Full,
    Fault(Option<FsBlock>, ExtentFault),
}

impl Memory {
    pub(super) fn new(max: u16) -> Memory {
        let mut root = [0; ROOT_BYTES];
        init_node(&mut root, 0, ROOT_RECORDS, &[]).unwrap();
        let (nodes, reserved) = (BTreeMap::new(), BTreeSet::new());
        Memory { root, nodes, reserved, next: FIRST_NODE, room: usize::MAX, max, writes: 0 }
    }

    /// Every extent, X1 to X4 checked by decoding, X6 and the absence of leaks by counting.
    pub(super) fn extents(&self) -> Vec<Extent> {
        let mut all = Vec::new();
        let mut seen = BTreeSet::new();
        let root = Node::decode_root(&self.root).unwrap();
        self.collect(&root, &mut all, &mut seen);
        assert_eq!(seen, self.nodes.keys().copied().collect(), "nodes without a parent");
        assert!(self.reserved.is_empty(), "reserved and not used: {:?}", self.reserved);
        for pair in all.windows(2) {
            assert!(pair[0].file_end() <= pair[1].file_start, "{pair:?}");
        }
        all
    }

    fn collect(&self, node: &Node<'_>, all: &mut Vec<Extent>, seen: &mut BTreeSet<FsBlock>) {
        match node.entries() {
            Entries::Extents(_) => all.extend(node.extents()),
            Entries::Indexes(_) => {
                for (index, expect) in node.children() {
                    assert!(seen.insert(index.child), "two parents");
                    let child = Node::decode_block(&self.nodes[&index.child], expect).unwrap();
                    assert!(child.header().entries > 0, "an empty node");
                    self.collect(&child, all, seen);
                }
            }
        }
    }

    /// All that is stored, for comparing.
    pub(super) fn snapshot(&self) -> ([u8; ROOT_BYTES], BTreeMap<FsBlock, Vec<u8>>) {
        (self.root, self.nodes.clone())
    }

    pub(super) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn depth(&self) -> u16 {
        Node::decode_root(&self.root).unwrap().depth()
    }
}

impl TreeStore for Memory {
    type Error = Failure;
    type Bytes = Vec<u8>;

    fn root(&mut self) -> Result<[u8; ROOT_BYTES], Failure> {
        Ok(self.root)
    }
    fn set_root(&mut self, root: &[u8; ROOT_BYTES]) -> Result<(), Failure> {
        self.writes += 1;
        self.root = *root;
        Ok(())
    }
    fn read(&mut self, block: FsBlock) -> Result<Vec<u8>, Failure> {
        Ok(self.nodes[&block].clone())
    }
    fn edit(
        &mut self,
        block: FsBlock,
        change: impl FnOnce(&mut [u8]) -> Result<(), ExtentFault>,
    ) -> Result<(), Failure> {
        self.writes += 1;
        change(self.nodes.get_mut(&block).unwrap()).map_err(|f| Failure::Fault(Some(block), f))
    }
    fn create(
        &mut self,
        block: FsBlock,
        fill: impl FnOnce(&mut [u8]) -> Result<(), ExtentFault>,
    ) -> Result<(), Failure> {
        self.writes += 1;
        assert!(self.reserved.remove(&block));
        let mut bytes = vec![0; 1024];
        fill(&mut bytes).map_err(|f| Failure::Fault(Some(block), f))?;
        assert!(self.nodes.insert(block, bytes).is_none());
        Ok(())
    }
    fn reserve(&mut self, count: usize) -> Result<Vec<FsBlock>, Failure> {
        if count > self.room {
            return Err(Failure::Full);
        }
        let blocks: Vec<_> = (0..count as u64).map(|i| FsBlock(self.next + i)).collect();
        self.next += count as u64;
        self.reserved.extend(&blocks);
        Ok(blocks)
    }
    fn free(&mut self, block: FsBlock) -> Result<(), Failure> {
        self.writes += 1;
        assert!(self.nodes.remove(&block).is_some(), "freed twice");
        Ok(())
    }
    fn node_max(&self) -> u16 {
        self.max
    }
    fn fault(&self, block: Option<FsBlock>, fault: ExtentFault) -> Failure {
        Failure::Fault(block, fault)
    }
}

pub(super) type Model = BTreeMap<u32, (u64, ExtentState)>;

pub(super) fn blocks_of(extents: &[Extent]) -> Model {
    let mut blocks = Model::new();
    for extent in extents {
        for into in 0..extent.len.0 {
            let device = extent.device_start.0 + u64::from(into);
            let was = blocks.insert(extent.file_start.0 + into, (device, extent.state));
            assert_eq!(was, None);
        }
    }
    blocks
}

pub(super) fn extent(file: u32, device: u64, len: u32, state: ExtentState) -> Extent {
    Extent {
        file_start: FileBlock(file),
        device_start: FsBlock(device),
        len: BlockCount(len),
        state,
    }
}

/// Removes a range as the file system does, and gives back what was mapped there.
fn remove(tree: &mut Memory, start: u64, end: u64, most: usize) -> Result<Vec<Extent>, Failure> {
    let mut all = Vec::new();
    let mut end = end;
    loop {
        let step = remove_step(tree, (start, end), most)?;
        assert!(step.extents.len() <= most);
        assert!(step.done || step.end < end);
        end = step.end;
        tree.extents();
        all.extend(step.extents);
        if step.done {
            assert_eq!(remove_step(tree, (start, end), most)?.extents, []);
            return Ok(all);
        }
    }
}

#[test]
fn a_tree_that_lost_most_of_its_extents_gives_its_levels_back() {
    let mut tree = Memory::new(8);
    for at in 0..200 {
        insert(&mut tree, extent(2 * at, 1000 + 5 * u64::from(at), 1, ExtentState::Written))
            .unwrap();
    }
    assert!(tree.depth() >= 2, "{}", tree.depth());
    remove(&mut tree, 2 * 4, 1 << 32, 5).unwrap();
    assert_eq!((tree.extents().len(), tree.depth(), tree.node_count()), (4, 0, 0));
}

/// Random inserts and removals on a file of `span` blocks, compared with a map of blocks.
fn compare_with_model(seed: u64, span: u32, steps: usize, max: u16, longest: u32) -> u16 {
    let mut random = Prng::new(seed);
    let mut tree = Memory::new(max);
    let mut model = Model::new();
    let mut deepest = 0;
    for _ in 0..steps {
        let start = random.below(u64::from(span)) as u32;
        let len = 1 + random.below(u64::from(longest)) as u32;
        tree.room = if random.one_in(8) { random.below(3) as usize } else { usize::MAX };
        let before = (tree.root, tree.nodes.clone());
        // Waves of growth and of shrinking.
        let grows = (model.len() < span as usize / 2) != random.one_in(4);
        if grows {
            let state = match random.one_in(4) {
                true => ExtentState::Unwritten,
                false => ExtentState::Written,
            };
            // Device blocks that often continue the neighbour's.
            let device = 1_000_000 + u64::from(start) + 100_000 * random.below(2);
            let extent = extent(start, device, len, state);
            let free = (start..start + len).all(|block| !model.contains_key(&block));
            match insert(&mut tree, extent) {
                Ok(()) => {
                    assert!(free, "seed {seed}: an overlap was accepted");
                    model.extend(blocks_of(&[extent]));
                }
                Err(Failure::Full) => {
                    assert!(free);
                    assert_eq!(before, (tree.root, tree.nodes.clone()), "X5");
                }
                Err(Failure::Fault(_, ExtentFault::Overlap { .. })) => assert!(!free),
                Err(other) => panic!("seed {seed}: {other:?}"),
            }
        } else {
            let end = start + len * (1 + random.below(6) as u32);
            let most = 1 + random.below(5) as usize;
            match remove(&mut tree, u64::from(start), u64::from(end), most) {
                Ok(extents) => {
                    let removed = blocks_of(&extents);
                    let expected: Model =
                        model.range(start..end).map(|(block, to)| (*block, *to)).collect();
                    assert_eq!(removed, expected, "seed {seed}");
                    model.retain(|block, _| !(start..end).contains(block));
                }
                // Only the cut of one extent in two needs space, and that is one step.
                Err(Failure::Full) => {
                    assert_eq!(before, (tree.root, tree.nodes.clone()), "X5");
                }
                Err(other) => panic!("seed {seed}: {other:?}"),
            }
        }
        assert_eq!(blocks_of(&tree.extents()), model, "seed {seed}");
        deepest = deepest.max(tree.depth());
    }
    tree.room = usize::MAX;
    remove(&mut tree, 0, 1 << 32, 7).unwrap();
    assert_eq!((tree.depth(), tree.extents()), (0, Vec::new()));
    deepest
}

#[test]
fn random_changes_equal_a_map_of_blocks() {
    for seed in 0..24 {
        compare_with_model(seed, 400, 400, 8, 9);
    }
}

#[test]
fn single_blocks_make_deep_trees_that_stay_right() {
    let deepest = (0..3).map(|seed| compare_with_model(100 + seed, 4000, 1500, 8, 1)).max();
    assert!(deepest >= Some(3), "{deepest:?}");
}

#[test]
fn appending_leaves_full_nodes() {
    let mut tree = Memory::new(84);
    for block in 0..4 * 84 {
        insert(&mut tree, extent(block, 1000 + 2 * u64::from(block), 1, ExtentState::Written))
            .unwrap();
    }
    assert_eq!((tree.depth(), tree.nodes.len()), (1, 4));
    assert_eq!(tree.extents().len(), 4 * 84);
}

#[test]
fn an_append_that_continues_on_the_device_lengthens_the_last_extent() {
    let mut tree = Memory::new(8);
    for block in 0..40_000 {
        insert(&mut tree, extent(block, 1000 + u64::from(block), 1, ExtentState::Written)).unwrap();
    }
    let lens: Vec<u32> = tree.extents().iter().map(|extent| extent.len.0).collect();
    assert_eq!(lens, [WRITTEN_LEN_MAX, 40_000 - WRITTEN_LEN_MAX]);
}

#[test]
fn unwritten_extents_join_only_up_to_their_own_limit() {
    let mut tree = Memory::new(8);
    let long = extent(0, 1000, UNWRITTEN_LEN_MAX, ExtentState::Unwritten);
    insert(&mut tree, long).unwrap();
    let next = extent(UNWRITTEN_LEN_MAX, 1000 + u64::from(UNWRITTEN_LEN_MAX), 1, long.state);
    insert(&mut tree, next).unwrap();
    assert_eq!(tree.extents(), [long, next]);
}

#[test]
fn a_gap_filled_joins_both_neighbours() {
    let mut tree = Memory::new(8);
    for (file, len) in [(0, 2), (3, 5), (2, 1)] {
        let new = extent(file, 500 + u64::from(file), len, ExtentState::Written);
        insert(&mut tree, new).unwrap();
    }
    assert_eq!(tree.extents(), [extent(0, 500, 8, ExtentState::Written)]);
}

#[test]
fn the_last_block_of_a_file_can_be_mapped_and_removed() {
    let mut tree = Memory::new(8);
    let last = extent(u32::MAX - 1, 77, 1, ExtentState::Written);
    insert(&mut tree, last).unwrap();
    assert_eq!(remove(&mut tree, 0, 1 << 32, 4).unwrap(), [last]);
    let beyond = extent(u32::MAX, 77, 1, ExtentState::Written);
    assert!(matches!(
        insert(&mut tree, beyond),
        Err(Failure::Fault(None, ExtentFault::PastLastFileBlock { .. }))
    ));
}

#[test]
fn a_range_within_one_extent_is_cut_out_exactly() {
    for (start, end) in [(0, 10), (0, 4), (6, 10), (3, 7), (9, 10), (0, 1), (5, 5), (12, 20)] {
        let mut tree = Memory::new(8);
        insert(&mut tree, extent(0, 100, 10, ExtentState::Written)).unwrap();
        let removed = remove(&mut tree, start, end, 3).unwrap();
        let (start, end) = (start.min(10) as u32, end.min(10) as u32);
        let expected: Model = (start..end)
            .map(|block| (block, (100 + u64::from(block), ExtentState::Written)))
            .collect();
        assert_eq!(blocks_of(&removed), expected);
        assert_eq!(blocks_of(&tree.extents()).len() as u32, 10 - (end - start));
    }
}

#[test]
fn a_damaged_node_ends_a_change_before_it_starts() {
    let mut tree = Memory::new(8);
    for block in 0..60 {
        insert(&mut tree, extent(2 * block, 1000, 1, ExtentState::Written)).unwrap();
    }
    let nodes: Vec<FsBlock> = tree.nodes.keys().copied().collect();
    let mut random = Prng::new(9);
    for _ in 0..2000 {
        let mut copy = Memory::new(8);
        copy.root = tree.root;
        copy.nodes = tree.nodes.clone();
        copy.next = tree.next;
        let victim = nodes[random.below(nodes.len() as u64) as usize];
        let bytes = copy.nodes.get_mut(&victim).unwrap();
        bytes[random.below(120) as usize] ^= 1 << random.below(8);
        // A bad child pointer is for the store to refuse; here it would not exist.
        let root = Node::decode_root(&copy.root).unwrap();
        if !pointers_exist(&copy, &root) {
            continue;
        }
        copy.writes = 0;
        let at = random.below(130) as u32;
        if let Err(Failure::Fault(_, fault)) =
            insert(&mut copy, extent(at, 5000, 1, ExtentState::Written))
        {
            assert_eq!(copy.writes, 0, "{fault:?}");
        }
    }
}

fn pointers_exist(tree: &Memory, node: &Node<'_>) -> bool {
    node.children().all(|(index, expect)| match tree.nodes.get(&index.child) {
        Some(bytes) => match Node::decode_block(bytes, expect) {
            Ok(child) => pointers_exist(tree, &child),
            Err(_) => true,
        },
        None => false,
    })
}

#[test]
fn a_built_tree_can_be_changed() {
    let size = BlockSize::new(1024).unwrap();
    let extents: Vec<Extent> = (0..500)
        .map(|i| extent(3 * i, 10_000 + 7 * u64::from(i), 2, ExtentState::Written))
        .collect();
    let mut tree = Memory::new(84);
    let mut next = FIRST_NODE - 1000;
    let built = build(&extents, size, None, || {
        next += 1;
        Ok::<_, ExtentFault>(FsBlock(next))
    })
    .unwrap();
    tree.root = built.root;
    tree.nodes = built.blocks.into_iter().collect();
    // Every node is full: the first insert splits a leaf and everything above it.
    let new = extent(3 * 250 + 2, 90_000, 1, ExtentState::Written);
    insert(&mut tree, new).unwrap();
    let mut expected = blocks_of(&extents);
    expected.extend(blocks_of(&[new]));
    assert_eq!(blocks_of(&tree.extents()), expected);
}
