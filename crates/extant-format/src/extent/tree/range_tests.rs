//! Conversions and moves, against a map of blocks.

use super::tests::{Failure, Memory, Model, blocks_of, extent};
use super::*;
use extant_base::Prng;

const WRITTEN: ExtentState = ExtentState::Written;
const UNWRITTEN: ExtentState = ExtentState::Unwritten;

/// Converts as the file system does, the tree checked after every step; the model follows, so a
/// step that fails is compared as well. Returns whether all of it was done.
fn convert(
    tree: &mut Memory,
    model: &mut Model,
    (start, end): (u64, u64),
    to: ExtentState,
    most: usize,
) -> bool {
    let mut at = start;
    for _ in 0..=2 * (end - start) {
        let before = tree.snapshot();
        let step = match convert_step(tree, (at, end), to, most) {
            Ok(step) => step,
            Err(Failure::Full) => {
                assert_eq!(before, tree.snapshot(), "X5");
                return false;
            }
            Err(other) => panic!("{other:?}"),
        };
        assert!(step.done || step.end > at, "no progress at {at}");
        assert!(step.end <= end.min(u64::from(u32::MAX)));
        let mut changed = 0;
        for (block, (_, state)) in model.iter_mut() {
            let is_in_step = u64::from(*block) >= at && u64::from(*block) < step.end;
            if is_in_step && *state != to {
                *state = to;
                changed += 1;
            }
        }
        assert_eq!(step.blocks, changed);
        assert_eq!(&blocks_of(&tree.extents()), model);
        if step.done {
            assert_eq!(step.end, end.min(u64::from(u32::MAX)));
            return true;
        }
        at = step.end;
    }
    panic!("no end");
}

/// A file with pieces of all kinds in `0..span`.
fn random_tree(random: &mut Prng, max: u16, span: u32, longest: u32) -> (Memory, Model) {
    let mut tree = Memory::new(max);
    let mut model = Model::new();
    let mut at = 0;
    while at < span {
        let len = 1 + random.below(u64::from(longest)) as u32;
        let state = if random.one_in(2) { WRITTEN } else { UNWRITTEN };
        let device = 1_000_000 + u64::from(at) + 500_000 * random.below(2);
        if !random.one_in(4) {
            let new = extent(at, device, len, state);
            insert(&mut tree, new).unwrap();
            model.extend(blocks_of(&[new]));
        }
        at += len;
    }
    (tree, model)
}

#[test]
fn random_conversions_equal_a_map_of_blocks() {
    let mut deepest = 0;
    for seed in 0..20 {
        let mut random = Prng::new(seed);
        let longest = if seed < 4 { 1 } else { 12 };
        let (mut tree, mut model) = random_tree(&mut random, 8, 900, longest);
        for _ in 0..150 {
            let start = random.below(900);
            let end = start + 1 + random.below(60);
            let to = if random.one_in(2) { WRITTEN } else { UNWRITTEN };
            tree.room = if random.one_in(6) { random.below(3) as usize } else { usize::MAX };
            let most = 1 + random.below(6) as usize;
            convert(&mut tree, &mut model, (start, end), to, most);
            deepest = deepest.max(tree.depth());
        }
        tree.room = usize::MAX;
        assert!(convert(&mut tree, &mut model, (0, 1 << 32), WRITTEN, 5));
        assert!(tree.extents().iter().all(|extent| extent.state == WRITTEN));
    }
    assert!(deepest >= 3, "{deepest}");
}

#[test]
fn the_middle_of_an_extent_becomes_a_record_of_its_own_and_comes_back() {
    let mut tree = Memory::new(8);
    insert(&mut tree, extent(0, 100, 10, UNWRITTEN)).unwrap();
    let step = convert_step(&mut tree, (3, 5), WRITTEN, 4).unwrap();
    assert_eq!((step.blocks, step.end, step.done), (2, 5, true));
    let cut =
        [extent(0, 100, 3, UNWRITTEN), extent(3, 103, 2, WRITTEN), extent(5, 105, 5, UNWRITTEN)];
    assert_eq!(tree.extents(), cut);
    convert_step(&mut tree, (0, 3), WRITTEN, 4).unwrap();
    assert_eq!(tree.extents(), [extent(0, 100, 5, WRITTEN), extent(5, 105, 5, UNWRITTEN)]);
    convert_step(&mut tree, (5, 100), WRITTEN, 4).unwrap();
    assert_eq!(tree.extents(), [extent(0, 100, 10, WRITTEN)]);
}

#[test]
fn converting_piece_by_piece_keeps_one_written_and_one_unwritten_extent() {
    let mut tree = Memory::new(8);
    insert(&mut tree, extent(0, 100, 1000, UNWRITTEN)).unwrap();
    for at in 0..999 {
        convert_step(&mut tree, (at, at + 1), WRITTEN, 16).unwrap();
        assert_eq!(tree.extents().len(), 2);
    }
}

#[test]
fn a_tree_of_converted_extents_gets_small_again() {
    let mut tree = Memory::new(8);
    insert(&mut tree, extent(0, 100, 400, UNWRITTEN)).unwrap();
    for at in 0..100 {
        convert_step(&mut tree, (4 * at, 4 * at + 1), WRITTEN, 16).unwrap();
    }
    assert!(tree.depth() >= 2);
    let mut at = 0;
    loop {
        let step = convert_step(&mut tree, (at, 400), WRITTEN, 3).unwrap();
        at = step.end;
        if step.done {
            break;
        }
    }
    // Extents of different leaves stay apart.
    assert_eq!(blocks_of(&tree.extents()).len(), 400);
    let extents = tree.extents().len();
    assert!(extents <= 50, "{extents}");
}

#[test]
fn a_full_length_written_extent_becomes_unwritten() {
    let mut tree = Memory::new(8);
    for at in 0..12u32 {
        let start = at * WRITTEN_LEN_MAX;
        insert(&mut tree, extent(start, 100 + u64::from(start), WRITTEN_LEN_MAX, WRITTEN)).unwrap();
    }
    let (mut at, mut blocks) = (0, 0);
    loop {
        let step = convert_step(&mut tree, (at, 1 << 32), UNWRITTEN, 16).unwrap();
        (at, blocks) = (step.end, blocks + step.blocks);
        tree.extents();
        if step.done {
            break;
        }
    }
    assert_eq!(blocks, 12 * u64::from(WRITTEN_LEN_MAX));
    let extents = tree.extents();
    assert!(extents.iter().all(|extent| extent.state == UNWRITTEN));
    assert_eq!(extents.iter().map(|extent| u64::from(extent.len.0)).sum::<u64>(), blocks);
}

#[test]
fn without_room_a_conversion_leaves_the_tree_as_it_was() {
    // Every node full: the cut needs a block on each level.
    let mut tree = Memory::new(8);
    let mut at = 0;
    while tree.depth() < 3 {
        insert(&mut tree, extent(at, 1000 + u64::from(at) * 2, 3, UNWRITTEN)).unwrap();
        at += 4;
    }
    for block in (0..at).step_by(4) {
        for room in 0..4 {
            let before = tree.snapshot();
            tree.room = room;
            let block = u64::from(block);
            match convert_step(&mut tree, (block + 1, block + 2), WRITTEN, 4) {
                Ok(step) => {
                    assert!(step.done);
                    break;
                }
                Err(error) => {
                    assert_eq!(error, Failure::Full);
                    assert_eq!(before, tree.snapshot(), "X5");
                }
            }
        }
    }
    tree.extents();
}

/// Moves as the file system does; the tree is checked after every step.
fn shift_down(tree: &mut Memory, from: u32, by: u32) {
    let mut at = u64::from(from);
    for _ in 0..10_000 {
        let step = shift_down_step(tree, at, BlockCount(by)).unwrap();
        tree.extents();
        if step.done {
            return;
        }
        assert!(step.at > at);
        at = step.at;
    }
    panic!("no end");
}

fn shift_up(tree: &mut Memory, from: u32, by: u32) {
    let mut end = 1 << 32;
    for _ in 0..10_000 {
        let step = shift_up_step(tree, (u64::from(from), end), BlockCount(by)).unwrap();
        tree.extents();
        if step.done {
            return;
        }
        assert!(step.at < end);
        end = step.at;
    }
    panic!("no end");
}

#[test]
fn random_moves_equal_a_map_of_blocks() {
    let mut deepest = 0;
    for seed in 0..40 {
        let mut random = Prng::new(1000 + seed);
        let longest = if seed < 10 { 1 } else { 9 };
        let (mut tree, mut model) = random_tree(&mut random, 8, 700, longest);
        for _ in 0..40 {
            let from = random.below(800) as u32;
            let by = 1 + random.below(50) as u32;
            if random.one_in(2) {
                // Collapse: a hole first.
                let mut end = u64::from(from + by);
                loop {
                    let step = remove_step(&mut tree, (u64::from(from), end), 3).unwrap();
                    end = step.end;
                    if step.done {
                        break;
                    }
                }
                shift_down(&mut tree, from + by, by);
                let mut moved = Model::new();
                for (block, to) in &model {
                    match *block {
                        block if block < from => moved.insert(block, *to),
                        block if block >= from + by => moved.insert(block - by, *to),
                        _ => None,
                    };
                }
                model = moved;
            } else {
                split_at(&mut tree, FileBlock(from)).unwrap();
                tree.extents();
                shift_up(&mut tree, from, by);
                let place = |block: u32| if block < from { block } else { block + by };
                model = model.iter().map(|(block, to)| (place(*block), *to)).collect();
            }
            assert_eq!(blocks_of(&tree.extents()), model, "seed {seed}");
            deepest = deepest.max(tree.depth());
        }
    }
    assert!(deepest >= 2, "{deepest}");
}

#[test]
fn moving_down_joins_what_continues_at_the_seam() {
    let mut tree = Memory::new(8);
    insert(&mut tree, extent(0, 100, 10, WRITTEN)).unwrap();
    insert(&mut tree, extent(15, 110, 4, WRITTEN)).unwrap();
    shift_down(&mut tree, 15, 5);
    assert_eq!(tree.extents(), [extent(0, 100, 14, WRITTEN)]);
}

#[test]
fn an_extent_in_the_way_of_a_move_is_refused() {
    let mut tree = Memory::new(8);
    insert(&mut tree, extent(0, 100, 10, WRITTEN)).unwrap();
    insert(&mut tree, extent(12, 300, 4, WRITTEN)).unwrap();
    let overlap = |result| matches!(result, Err(Failure::Fault(_, ExtentFault::Overlap { .. })));
    assert!(overlap(shift_down_step(&mut tree, 12, BlockCount(3))));
    assert!(overlap(shift_up_step(&mut tree, (5, 10), BlockCount(3))));
    assert!(overlap(shift_down_step(&mut tree, 12, BlockCount(13))));
}

#[test]
fn a_move_beyond_the_last_file_block_fails_before_it_starts() {
    let mut tree = Memory::new(8);
    for block in 0..40 {
        insert(&mut tree, extent(3 * block, 1000, 1, WRITTEN)).unwrap();
    }
    insert(&mut tree, extent(u32::MAX - 10, 5000, 4, WRITTEN)).unwrap();
    let before = tree.snapshot();
    let error = shift_up_step(&mut tree, (0, 1 << 32), BlockCount(7)).unwrap_err();
    assert!(matches!(error, Failure::Fault(_, ExtentFault::PastLastFileBlock { .. })), "{error:?}");
    assert_eq!(before, tree.snapshot());
    shift_up(&mut tree, 0, 6);
}

#[test]
fn without_room_a_split_leaves_the_tree_as_it_was() {
    let mut tree = Memory::new(8);
    let mut at = 0;
    while tree.depth() < 3 {
        insert(&mut tree, extent(at, 1000 + u64::from(at) * 2, 3, WRITTEN)).unwrap();
        at += 4;
    }
    let blocks = blocks_of(&tree.extents());
    let mut refused = 0;
    for block in (0..at).step_by(4) {
        for room in 0..=usize::from(DEPTH_MAX) {
            let before = tree.snapshot();
            tree.room = room;
            match split_at(&mut tree, FileBlock(block + 1)) {
                Ok(was_split) => {
                    assert!(was_split);
                    break;
                }
                Err(error) => {
                    assert_eq!(error, Failure::Full);
                    assert_eq!(before, tree.snapshot(), "X5");
                    refused += 1;
                }
            }
        }
        assert_eq!(split_at(&mut tree, FileBlock(block + 1)), Ok(false));
    }
    assert!(refused > 0);
    assert_eq!(blocks_of(&tree.extents()), blocks);
}
