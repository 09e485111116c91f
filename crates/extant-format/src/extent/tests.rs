use super::*;
use extant_base::{BlockSize, Prng};
use proptest::prelude::*;
use std::vec::Vec;

fn sample() -> RawExtent {
    RawExtent {
        ee_block: U32::new(5),
        ee_len: U16::new(1),
        ee_start_hi: U16::new(1),
        ee_start_lo: U32::new(2),
    }
}

#[test]
fn every_stored_length_has_one_meaning() {
    for raw in 0..=u16::MAX {
        let extent = RawExtent { ee_len: U16::new(raw), ..sample() }.decode();
        let Ok(extent) = extent else {
            assert_eq!(extent, Err(ExtentFault::Empty { file_start: FileBlock(5) }));
            assert_eq!(raw, 0);
            continue;
        };
        let (len, state) = match raw {
            0..=32768 => (raw, ExtentState::Written),
            _ => (raw - 32768, ExtentState::Unwritten),
        };
        assert_eq!((extent.len.0, extent.state), (u32::from(len), state));
        assert_eq!(extent.device_start, FsBlock((1 << 32) + 2));
        assert_eq!(
            extent.encode().unwrap().as_bytes(),
            RawExtent { ee_len: U16::new(raw), ..sample() }.as_bytes()
        );
    }
}

fn extent(file: u32, device: u64, len: u32) -> Extent {
    Extent {
        file_start: FileBlock(file),
        device_start: FsBlock(device),
        len: BlockCount(len),
        state: ExtentState::Written,
    }
}

#[test]
fn values_no_record_can_hold_are_refused() {
    assert!(matches!(extent(0, 1, 0).encode(), Err(ExtentFault::Empty { .. })));
    assert!(matches!(extent(0, 1, 32769).encode(), Err(ExtentFault::Long { .. })));
    let unwritten = Extent { state: ExtentState::Unwritten, ..extent(0, 1, 32768) };
    assert!(matches!(unwritten.encode(), Err(ExtentFault::Long { .. })));
    assert!(extent(u32::MAX - 8, 1, 8).encode().is_ok());
    assert!(matches!(
        extent(u32::MAX - 7, 1, 8).encode(),
        Err(ExtentFault::PastLastFileBlock { .. })
    ));
    assert!(extent(0, DEVICE_BLOCK_END - 2, 2).encode().is_ok());
    assert!(matches!(
        extent(0, DEVICE_BLOCK_END - 1, 2).encode(),
        Err(ExtentFault::DeviceBlock { .. })
    ));
    assert!(matches!(extent(0, u64::MAX, 2).encode(), Err(ExtentFault::DeviceBlock { .. })));
}

/// A root of depth 0 with the given extents, not checked by the encoder.
fn root(extents: &[Extent]) -> [u8; 60] {
    let mut bytes = encode_root(0, &[], &[]).unwrap();
    bytes[2] = extents.len() as u8;
    for (place, extent) in bytes[12..].chunks_exact_mut(12).zip(extents) {
        place.copy_from_slice(extent.encode().unwrap().as_bytes());
    }
    bytes
}

#[test]
fn the_last_extent_gets_longer_up_to_what_a_record_can_say() {
    let unwritten = |extent: Extent| Extent { state: ExtentState::Unwritten, ..extent };
    let first = extent(0, 1000, 10);
    let mut node = root(&[first, unwritten(extent(50, 5000, 100))]);
    assert_eq!(last_extent(&node), Some(unwritten(extent(50, 5000, 100))));
    lengthen_last(&mut node, BlockCount(23)).unwrap();
    assert_eq!(node, root(&[first, unwritten(extent(50, 5000, 123))]));
    let before = node;
    let fault = lengthen_last(&mut node, BlockCount(UNWRITTEN_LEN_MAX)).unwrap_err();
    assert!(matches!(fault, ExtentFault::Long { .. }), "{fault}");
    lengthen_last(&mut node, BlockCount(UNWRITTEN_LEN_MAX - 124)).unwrap_or_default();
    assert_ne!(node, before, "32,766 blocks fit");
    assert_eq!(last_child(&node), None);
    // No extent, no leaf, no node.
    let mut empty = root(&[]);
    assert_eq!(last_extent(&empty), None);
    assert!(lengthen_last(&mut empty, BlockCount(1)).is_err());
    for len in 0..60 {
        let _ = last_extent(&node[..len]);
        let _ = last_child(&node[..len]);
        let mut cut = node;
        let _ = lengthen_last(&mut cut[..len], BlockCount(1));
    }
    let (index, child) = (Index { file_start: FileBlock(7), child: FsBlock(99) }, [0u8; 60]);
    let mut parent = child;
    let mut record = RecordBytes::default();
    record.copy_from_slice(index.encode().unwrap().as_bytes());
    init_node(&mut parent, 1, 4, &[record]).unwrap();
    assert_eq!((last_child(&parent), last_extent(&parent)), (Some(FsBlock(99)), None));
    assert!(lengthen_last(&mut parent, BlockCount(1)).is_err());
}

#[test]
fn each_damaged_header_field_has_its_fault() {
    let good = root(&[extent(0, 100, 4), extent(4, 200, 4)]);
    assert_eq!(Node::decode_root(&good).unwrap().extents().count(), 2);
    let fault = |at: usize, value: u8| {
        let mut bad = good;
        bad[at] = value;
        Node::decode_root(&bad).unwrap_err()
    };
    assert_eq!(fault(0, 0), ExtentFault::Magic { found: 0xf300 });
    assert_eq!(fault(2, 5), ExtentFault::Entries { entries: 5, max: 4 });
    assert_eq!(fault(4, 0), ExtentFault::Max { max: 0, capacity: 4 });
    assert_eq!(fault(4, 5), ExtentFault::Max { max: 5, capacity: 4 });
    assert_eq!(fault(6, 6), ExtentFault::Depth { found: 6, wanted: 5 });
    let overlap = root(&[extent(0, 100, 5), extent(4, 200, 4)]);
    assert_eq!(
        Node::decode_root(&overlap).unwrap_err(),
        ExtentFault::Order { record: 1, found: FileBlock(4), limit: FileBlock(5) }
    );
    let mut empty_index = encode_root(0, &[], &[]).unwrap();
    empty_index[6] = 1;
    assert_eq!(Node::decode_root(&empty_index).unwrap_err(), ExtentFault::EmptyIndex { depth: 1 });
}

#[test]
fn a_child_must_be_what_its_parent_says() {
    let size = BlockSize::new(1024).unwrap();
    let mut block = [0; 1024];
    encode_block(&mut block, size, Some(9), 0, &[extent(10, 100, 5)], &[]).unwrap();
    verify(9, &block).unwrap();
    assert!(verify(8, &block).is_err());
    let expect = |depth, start, limit| Expect {
        depth,
        file_start: FileBlock(start),
        file_limit: FileBlock(limit),
    };
    assert!(Node::decode_block(&block, expect(0, 10, 15)).is_ok());
    assert!(matches!(
        Node::decode_block(&block, expect(1, 10, 15)),
        Err(ExtentFault::Depth { .. })
    ));
    assert!(matches!(
        Node::decode_block(&block, expect(0, 9, 15)),
        Err(ExtentFault::IndexStart { .. })
    ));
    assert!(matches!(
        Node::decode_block(&block, expect(0, 10, 14)),
        Err(ExtentFault::PastParent { .. })
    ));
    assert!(matches!(
        Node::decode_block(&block[..11], expect(0, 10, 15)),
        Err(ExtentFault::Short { .. })
    ));
}

#[test]
fn capacities_are_those_of_the_kernel() {
    let table = [
        (1024, 84),
        (2048, 169),
        (4096, 340),
        (8192, 681),
        (16384, 1364),
        (32768, 2729),
        (65536, 5460),
    ];
    for (bytes, wanted) in table {
        let size = BlockSize::new(bytes).unwrap();
        assert_eq!(max_in_block(size), wanted);
        assert!(12 + 12 * u64::from(wanted) + 4 <= bytes, "room for the checksum");
    }
}

/// Found by fuzzing: index records at the very last file block looked as if each started after
/// the one before.
#[test]
fn index_records_do_not_repeat_the_last_file_block() {
    let index = |start| Index { file_start: FileBlock(start), child: FsBlock(9) };
    assert!(index(u32::MAX).encode().is_err());
    let mut root = encode_root(1, &[], &[index(7), index(u32::MAX - 1)]).unwrap();
    assert!(Node::decode_root(&root).is_ok());
    root[24..28].fill(0xff);
    assert!(matches!(
        Node::decode_root(&root),
        Err(ExtentFault::PastLastFileBlock { file_start: FileBlock(u32::MAX), .. })
    ));
}

#[test]
fn a_record_past_what_can_be_numbered_is_refused_when_it_is_read() {
    let raw = |file: u32, device: u64, len: u16| RawExtent {
        ee_block: U32::new(file),
        ee_len: U16::new(len),
        ee_start_hi: U16::new((device >> 32) as u16),
        ee_start_lo: U32::new(device as u32),
    };
    assert!(raw(u32::MAX - 8, 1, 8).decode().is_ok());
    let past = raw(u32::MAX - 7, 1, 8).decode();
    assert!(matches!(past, Err(ExtentFault::PastLastFileBlock { .. })), "{past:?}");
    assert!(raw(0, DEVICE_BLOCK_END - 2, 2).decode().is_ok());
    let past = raw(0, DEVICE_BLOCK_END - 1, 2).decode();
    assert!(matches!(past, Err(ExtentFault::DeviceBlock { .. })), "{past:?}");
}

#[test]
fn an_extent_has_the_blocks_from_its_start_up_to_its_end() {
    let run = extent(5, 100, 3);
    let found: Vec<_> = (4..9).map(|block| run.device_block(FileBlock(block))).collect();
    assert_eq!(found, [None, Some(FsBlock(100)), Some(FsBlock(101)), Some(FsBlock(102)), None]);
    assert_eq!(run.file_end(), FileBlock(8));
}

#[test]
fn a_root_may_have_five_levels_below_it_and_no_more() {
    let index = Index { file_start: FileBlock(7), child: FsBlock(9) };
    let root = encode_root(DEPTH_MAX, &[], &[index]).unwrap();
    assert_eq!(Node::decode_root(&root).unwrap().depth(), 5);
    let deep = ExtentFault::Depth { found: 6, wanted: 5 };
    assert_eq!(encode_root(6, &[], &[index]), Err(deep));
    let mut bad = root;
    bad[6] = 6;
    assert_eq!(Node::decode_root(&bad).unwrap_err(), deep);
    assert_eq!(encode_root(1, &[], &[]), Err(ExtentFault::EmptyIndex { depth: 1 }));
}

/// The extents below a node, in order.
fn below(tree: &BuiltTree, node: Node<'_>, all: &mut Vec<Extent>) {
    all.extend(node.extents());
    for (index, expect) in node.children() {
        let (_, bytes) = tree.blocks.iter().find(|(block, _)| *block == index.child).unwrap();
        verify(9, bytes).unwrap();
        below(tree, Node::decode_block(bytes, expect).unwrap(), all);
    }
}

#[test]
fn a_built_tree_has_every_extent_and_as_many_nodes_as_were_announced() {
    let size = BlockSize::new(1024).unwrap();
    for (count, depth) in [(0u32, 0), (1, 0), (4, 0), (5, 1), (84, 1), (85, 1), (336, 1), (337, 2)]
    {
        let extents: Vec<_> =
            (0..count).map(|at| extent(3 * at, 1000 + 9 * u64::from(at), 2)).collect();
        let mut next = 50_000;
        let tree = build(&extents, size, Some(9), || {
            next += 1;
            Ok::<_, ExtentFault>(FsBlock(next))
        });
        let tree = tree.unwrap();
        let root = Node::decode_root(&tree.root).unwrap();
        assert_eq!(root.depth(), depth, "{count}");
        assert_eq!(Some(tree.blocks.len() as u64), tree_blocks(u64::from(count), size), "{count}");
        let mut all = Vec::new();
        below(&tree, root, &mut all);
        assert_eq!(all, extents);
    }
}

#[test]
fn what_overlaps_or_goes_back_is_no_tree_and_no_node() {
    let size = BlockSize::new(1024).unwrap();
    let none = || -> Result<FsBlock, ExtentFault> { Ok(FsBlock(9)) };
    // Inside a root, inside a leaf, and where one leaf ends and the next begins.
    for (count, at) in [(3, 1), (100, 50), (100, 84)] {
        let mut extents: Vec<_> = (0..count).map(|at| extent(4 * at, 100, 4)).collect();
        assert!(build(&extents, size, None, none).is_ok());
        extents[at as usize].file_start.0 -= 1;
        let fault = build(&extents, size, None, none).unwrap_err();
        assert!(matches!(fault, ExtentFault::Order { .. }), "{fault}");
    }
    let index = |start| Index { file_start: FileBlock(start), child: FsBlock(9) };
    assert!(encode_root(1, &[], &[index(4), index(5)]).is_ok());
    for second in [3, 4] {
        let fault = encode_root(1, &[], &[index(4), index(second)]).unwrap_err();
        assert!(matches!(fault, ExtentFault::Order { record: 1, .. }), "{fault}");
    }
    // The same when they are read.
    let mut bad = root(&[extent(0, 100, 4), extent(4, 200, 4)]);
    bad[24] = 3;
    assert!(matches!(Node::decode_root(&bad), Err(ExtentFault::Order { record: 1, .. })));
    let mut bad = encode_root(1, &[], &[index(4), index(5)]).unwrap();
    bad[24] = 4;
    assert!(matches!(Node::decode_root(&bad), Err(ExtentFault::Order { record: 1, .. })));
}

#[test]
fn nodes_are_zero_where_no_record_is() {
    let size = BlockSize::new(1024).unwrap();
    let index = Index { file_start: FileBlock(7), child: FsBlock(99) };
    for depth in [0, 1] {
        let (mut dirty, mut clean) = ([0xaa; 1024], [0; 1024]);
        for block in [&mut dirty, &mut clean] {
            encode_block(block, size, Some(9), depth, &[extent(7, 100, 5)], &[index]).unwrap();
            verify(9, block).unwrap();
        }
        assert_eq!(dirty, clean);
        let (file_start, file_limit) = (FileBlock(7), FileBlock(u32::MAX));
        let node = Node::decode_block(&clean, Expect { depth, file_start, file_limit }).unwrap();
        assert_eq!(
            (node.extents().count(), node.children().count()),
            [(1, 0), (0, 1)][depth as usize]
        );
    }
    let record = |start: u32| {
        let mut record = RecordBytes::default();
        record.copy_from_slice(extent(start, 100, 1).encode().unwrap().as_bytes());
        record
    };
    let mut node = [0xaa; 60];
    init_node(&mut node, 0, 4, &[record(1), record(2), record(3), record(4)]).unwrap();
    splice(&mut node, 1, 2, &[]).unwrap();
    let mut wanted = [0; 60];
    init_node(&mut wanted, 0, 4, &[record(1), record(4)]).unwrap();
    assert_eq!(node, wanted);
    assert!(node[36..].iter().all(|byte| *byte == 0));
    // A node that is shorter than its header says: nothing is changed.
    let mut short = wanted;
    let fault = splice(&mut short[..46], 0, 0, &[record(0)]);
    assert_eq!((fault, short), (Err(ExtentFault::Short { found: 46 }), wanted));
    let fault = splice(&mut short[..35], 0, 1, &[]);
    assert_eq!((fault, short), (Err(ExtentFault::Short { found: 35 }), wanted));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_built_reads_back(seed in any::<u64>(), count in 0usize..60_000) {
        let size = BlockSize::new(1024).unwrap();
        let mut random = Prng::new(seed);
        let mut at = 0u32;
        let extents: Vec<Extent> = (0..count).map(|_| {
            at += random.below(3) as u32;
            let len = 1 + random.below(20) as u32;
            let mut next = extent(at, random.below(DEVICE_BLOCK_END - 100), len);
            if random.one_in(4) {
                next.state = ExtentState::Unwritten;
            }
            at += len;
            next
        }).collect();
        let mut next = 0u64;
        let built = build(&extents, size, Some(77), || {
            next += 1;
            Ok::<_, ExtentFault>(FsBlock(next - 1))
        }).unwrap();
        prop_assert_eq!(Some(next), tree_blocks(count as u64, size));
        let root = Node::decode_root(&built.root).unwrap();
        let mut found = Vec::new();
        let mut todo: Vec<_> = root.children().collect();
        todo.reverse();
        found.extend(root.extents());
        while let Some((index, expect)) = todo.pop() {
            let (at, bytes) = &built.blocks[index.child.0 as usize];
            prop_assert_eq!(*at, index.child);
            verify(77, bytes).unwrap();
            let node = Node::decode_block(bytes, expect).unwrap();
            found.extend(node.extents());
            let mut children: Vec<_> = node.children().collect();
            children.reverse();
            todo.extend(children);
        }
        prop_assert_eq!(found, extents.clone());
        // The way down to a random extent.
        if let Some(wanted) = extents.get(random.below(count as u64) as usize) {
            let mut node = root;
            while node.depth() > 0 {
                let (index, expect) = node.child(node.find_child(wanted.file_start).unwrap()).unwrap();
                node = Node::decode_block(&built.blocks[index.child.0 as usize].1, expect).unwrap();
            }
            prop_assert_eq!(node.find(wanted.file_start), Some(*wanted));
            let last = FileBlock(wanted.file_end().0 - 1);
            prop_assert_eq!(node.find(last), Some(*wanted));
            prop_assert_ne!(node.find(wanted.file_end()), Some(*wanted));
        }
    }
}
