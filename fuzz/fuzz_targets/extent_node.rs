//! Extent nodes: decode, walk, look up; what decodes must encode to something that decodes alike.
#![no_main]
use extant_base::FileBlock;
use extant_format::extent::{self, Expect, Extent, Node};
use libfuzzer_sys::fuzz_target;

fn exercise(node: &Node<'_>) {
    let extents: Vec<Extent> = node.extents().collect();
    for extent in &extents {
        assert_eq!(node.find(extent.file_start), Some(*extent));
        assert!(extent.encode().is_ok());
    }
    for pair in extents.windows(2) {
        assert!(pair[0].file_end() <= pair[1].file_start);
    }
    for (position, (index, expect)) in node.children().enumerate() {
        assert_eq!(node.find_child(index.file_start), Some(position));
        assert!(expect.depth < node.depth() && expect.file_start <= expect.file_limit);
    }
    let _ = node.at_or_before(FileBlock(7));
}

fuzz_target!(|bytes: &[u8]| {
    if let Some(root) = bytes.first_chunk::<60>() {
        if let Ok(node) = Node::decode_root(root) {
            exercise(&node);
        }
    }
    let Some((head, block)) = bytes.split_first_chunk::<10>() else { return };
    let number =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let expect = Expect {
        depth: u16::from(head[0] % 7),
        file_start: FileBlock(number(1)),
        file_limit: FileBlock(number(5)),
    };
    let _ = extent::verify(number(1), block);
    if let Ok(node) = Node::decode_block(block, expect) {
        exercise(&node);
    }
});
