//! Other places for mapped blocks, and fewer nodes, against a map of blocks.

use super::tests::{Failure, Memory, Model, blocks_of, extent};
use super::*;
use extant_base::Prng;

const WRITTEN: ExtentState = ExtentState::Written;
const UNWRITTEN: ExtentState = ExtentState::Unwritten;

/// Many records, most of which continue none of their neighbours.
fn scattered(random: &mut Prng, span: u32) -> (Memory, Model) {
    let (mut tree, mut model) = (Memory::new(8), Model::new());
    let mut at = 0;
    while at < span {
        let len = 1 + random.below(4) as u32;
        let state = if random.one_in(4) { UNWRITTEN } else { WRITTEN };
        if !random.one_in(5) {
            let new = extent(at, 1_000_000 + random.below(1 << 20) * 8, len, state);
            insert(&mut tree, new).unwrap();
            model.extend(blocks_of(&[new]));
        }
        at += len;
    }
    (tree, model)
}

#[test]
fn random_moves_to_other_places_equal_a_map_of_blocks() {
    for seed in 0..12 {
        let mut random = Prng::new(seed);
        let (mut tree, mut model) = scattered(&mut random, 700);
        for round in 0..60u64 {
            let start = random.below(700);
            let end = start + 1 + random.below(150);
            let to = FsBlock(10_000_000 + round * 10_000);
            for edge in [start, end] {
                split_at(&mut tree, FileBlock(edge as u32)).unwrap();
            }
            // From here on no block is needed.
            tree.room = 0;
            let (mut at, mut steps) = (start, 0);
            loop {
                let most = 1 + random.below(9) as usize;
                let step = remap_step(&mut tree, (at, end), (start, to), most).unwrap();
                tree.extents();
                assert!(step.done || step.end > at, "no progress at {at}");
                at = step.end;
                steps += 1;
                if step.done {
                    break;
                }
            }
            assert!(steps <= 2 * (end - start) + 2);
            tree.room = usize::MAX;
            for (block, (device, _)) in &mut model {
                let at = u64::from(*block);
                if (start..end).contains(&at) {
                    *device = to.0 + at - start;
                }
            }
            assert_eq!(blocks_of(&tree.extents()), model);
        }
        // All of it behind one another: as few records as holes and states leave.
        let to = FsBlock(90_000_000);
        let mut at = 0;
        loop {
            let step = remap_step(&mut tree, (at, 1 << 32), (0, to), 5).unwrap();
            at = step.end;
            if step.done {
                break;
            }
        }
        assert!(
            tree.extents()
                .iter()
                .all(|extent| { extent.device_start.0 == to.0 + u64::from(extent.file_start.0) })
        );
    }
}

#[test]
fn an_extent_over_the_end_of_a_range_is_refused_before_anything_changes() {
    for range in [(2, 10), (0, 6), (3, 5)] {
        let mut tree = Memory::new(8);
        insert(&mut tree, extent(0, 100, 8, WRITTEN)).unwrap();
        insert(&mut tree, extent(9, 300, 1, WRITTEN)).unwrap();
        let before = tree.snapshot();
        let refused = remap_step(&mut tree, range, (range.0, FsBlock(500)), 9);
        let fault = ExtentFault::Overlap { file_start: FileBlock(0), len: BlockCount(8) };
        assert_eq!(refused, Err(Failure::Fault(None, fault)));
        assert_eq!(before, tree.snapshot());
    }
    // And a place that no extent can name.
    let mut tree = Memory::new(8);
    insert(&mut tree, extent(0, 100, 8, WRITTEN)).unwrap();
    let before = tree.snapshot();
    assert!(remap_step(&mut tree, (0, 8), (0, FsBlock((1 << 48) - 4)), 9).is_err());
    assert_eq!(before, tree.snapshot());
}

#[test]
fn blocks_that_come_together_become_one_record_whoever_was_there_first() {
    let mut tree = Memory::new(8);
    for at in 0..40 {
        insert(&mut tree, extent(at, 1000 + 10 * u64::from(at), 1, WRITTEN)).unwrap();
    }
    assert!(tree.depth() > 0);
    for at in (0..40).rev() {
        let to = FsBlock(5000 + at);
        let step = remap_step(&mut tree, (at, at + 1), (at, to), 1).unwrap();
        assert!(step.done);
    }
    let mut from = Packed::start();
    while !from.done {
        from = pack_step(&mut tree, from).unwrap();
    }
    // One for each leaf that there was: records of different leaves are not joined.
    assert!(tree.extents().len() <= 10, "{:?}", tree.extents());
    let model: Model = (0..40).map(|at| (at, (5000 + u64::from(at), WRITTEN))).collect();
    assert_eq!(blocks_of(&tree.extents()), model);
}

#[test]
fn half_empty_nodes_are_filled_until_there_are_as_few_as_there_can_be() {
    for seed in 0..10 {
        let mut random = Prng::new(100 + seed);
        let (mut tree, mut model) = scattered(&mut random, 1500);
        for _ in 0..120 {
            let start = random.below(1500);
            let end = start + 1 + random.below(16);
            loop {
                let removed = remove_step(&mut tree, (start, end), 4).unwrap();
                if removed.done || removed.extents.is_empty() {
                    break;
                }
            }
            model.retain(|block, _| !(start..end).contains(&u64::from(*block)));
        }
        let before = tree.node_count();
        // No block is needed, and each step is whole.
        tree.room = 0;
        let (mut from, mut freed, mut steps) = (Packed::start(), 0, 0);
        loop {
            let next = pack_step(&mut tree, from).unwrap();
            assert_eq!(blocks_of(&tree.extents()), model);
            freed += next.freed as usize;
            steps += 1;
            assert!(steps < 10_000, "no end");
            if next.done {
                break;
            }
            from = next;
        }
        // A root that takes its only child's place gives a node back, too.
        assert!(tree.node_count() + freed <= before);
        let (mut level, mut nodes) = (tree.extents().len(), 0);
        while level > usize::from(ROOT_RECORDS) {
            level = level.div_ceil(8);
            nodes += level;
        }
        assert!(before > nodes, "there was nothing to do");
        // A level may have one more below each node above.
        assert!(tree.node_count() <= nodes + nodes / 4 + 1, "{} of {nodes}", tree.node_count());
    }
}
