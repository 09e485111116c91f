//! The superblock: whatever decodes must encode to something that decodes to the same value.
#![no_main]
use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::superblock::Superblock;
use extant_layout::Heads;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // A random checksum never fits, so go past it; the magic is given away too.
    let mut bytes = bytes.to_vec();
    if let Some(magic) = bytes.get_mut(0x38..0x3a) {
        magic.copy_from_slice(&[0x53, 0xef]);
    }
    let Ok(first) = Superblock::decode_unverified(&bytes) else { return };
    let stored = first.encode();
    let second = Superblock::decode(&stored).expect("what was encoded decodes");
    let same = Superblock { raw: second.raw.clone(), ..first.clone() };
    assert_eq!(same, second);
    assert_eq!(second.encode(), stored);
    let heads = Heads::of(&first);
    let last = GroupIndex(first.group_count - 1);
    for group in [GroupIndex(0), GroupIndex(1), last, GroupIndex(u32::MAX)] {
        let _ = (heads.head(group).blocks(), heads.has_superblock(group), heads.next(group));
        assert_eq!(first.group_first_block(group).is_some(), group <= last);
        let _ = heads.descriptor_block_copy(group.0, group);
    }
    assert!(first.group_blocks(last) > 0);
    assert!(heads.descriptor_block(first.descriptor_blocks()).is_none());
    assert!(heads.descriptor_block(first.descriptor_blocks() - 1).is_some());
    assert_eq!(first.group_of_block(FsBlock(first.blocks_count - 1)).unwrap().0, last);
    assert_eq!(first.group_of_inode(Ino(first.inodes_count)).unwrap().0, last);
});
