use super::*;
use extant_base::{FsBlock, Ino};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

fn user<'a>(name: &'a str, value: &'a [u8]) -> NewXattr<'a> {
    NewXattr { index: NameIndex::USER, name: name.as_bytes(), value }
}

const SPACE: Space = Space { inode: 96, block: 1024, ea_inode: false };

#[test]
fn every_prefix_splits_and_joins() {
    for raw in 0..=u8::MAX {
        let index = NameIndex(raw);
        let Some((_, whole)) = index.prefix() else { continue };
        let name: &[u8] = if whole { b"" } else { b"some.name" };
        let full = join(index, name).unwrap();
        assert_eq!(split(&full).is_some(), index != NameIndex::NONE, "{raw}");
        if index != NameIndex::NONE {
            assert_eq!(split(&full), Some((index, name)));
        }
    }
    assert_eq!(
        split(b"system.posix_acl_accessx"),
        Some((NameIndex::SYSTEM, b"posix_acl_accessx".as_slice()))
    );
}

#[test]
fn attributes_go_to_the_inode_then_the_block_then_to_inodes() {
    let large = vec![1; 2000];
    // 96 - 4 - 4 = 88 bytes: an entry of 20 and a value of 68 fit exactly.
    let exact = [user("a", &large[..68])];
    let placement = place(&exact, SPACE).unwrap();
    assert!(!placement.needs_block());
    let over = [user("a", &large[..69])];
    assert!(place(&over, SPACE).unwrap().needs_block());
    let fault = place(&[user("a", &large)], SPACE).unwrap_err();
    assert_eq!(fault, XattrFault::NoRoom { wanted: 2020, inode: 88, block: 988 });
    let placement = place(&[user("a", &large)], Space { ea_inode: true, ..SPACE }).unwrap();
    assert_eq!(placement.values_in_inodes().collect::<Vec<_>>(), [0]);
    let mut space = [0; 96];
    let missing = encode_inode(&mut space, &[user("a", &large)], &placement, |_| None);
    assert_eq!(missing, Err(XattrFault::NoValueInode { xattr: 0 }));
    assert_eq!(place(&[user("a", b""), user("a", b"")], SPACE), Err(XattrFault::Duplicate));
    // In name order "a" would take the inode and leave too much for the block.
    let pair = [user("a", &large[..40]), user("b", &large[..68]), user("c", &large[..908])];
    assert!(place(&pair, SPACE).is_ok());
}

#[test]
fn inline_data_is_first_in_the_inode() {
    let data = NewXattr { index: NameIndex::SYSTEM, name: b"data", value: &[7; 60] };
    let all = [user("a", &[1; 30]), data];
    let placement = place(&all, SPACE).unwrap();
    assert_eq!(placement.placed()[0].xattr, 1);
    assert_eq!(placement.placed()[0].home, Home::Inode);
    assert!(place(&[NewXattr { value: &[7; 80], ..data }], SPACE).is_err());
}

/// A block with one attribute of 5 bytes.
fn block() -> Vec<u8> {
    let all = [user("name", b"value")];
    let placement = place(&all, Space { inode: 0, ..SPACE }).unwrap();
    let mut block = vec![0; 1024];
    encode_block(&mut block, (FsBlock(77), 1), Some(3), &all, &placement, |_| None).unwrap();
    block
}

#[test]
fn each_damaged_field_has_its_fault() {
    let good = block();
    verify_block(3, FsBlock(77), &good).unwrap();
    assert!(verify_block(3, FsBlock(78), &good).is_err());
    assert!(verify_block(4, FsBlock(77), &good).is_err());
    let fault = |changes: &[(usize, u8)]| {
        let mut bad = good.clone();
        for (at, value) in changes {
            bad[*at] = *value;
        }
        assert!(verify_block(3, FsBlock(77), &bad).is_err());
        decode_block(&bad).unwrap_err()
    };
    assert_eq!(fault(&[(0, 1)]), XattrFault::Magic { found: 0xea02_0001 });
    assert_eq!(fault(&[(8, 2)]), XattrFault::Blocks { found: 2 });
    assert_eq!(fault(&[(49, 0)]), XattrFault::Name { offset: 32 });
    assert_eq!(fault(&[(34, 55), (35, 0)]), XattrFault::Value { offset: 32, at: 55, len: 5 });
    assert_eq!(fault(&[(34, 0xfc), (35, 3)]), XattrFault::Value { offset: 32, at: 1020, len: 5 });
    assert_eq!(fault(&[(43, 2)]), XattrFault::ValueLength { len: (2 << 24) + 5 });
    let mut full = vec![0xff; 1024];
    full[..32].copy_from_slice(&good[..32]);
    assert!(matches!(decode_block(&full), Err(XattrFault::PastArea { .. })));
    assert!(matches!(decode_block(&good[..31]), Err(XattrFault::Length { .. })));
}

#[test]
fn values_that_share_bytes_are_refused() {
    let all = [user("a", b"1234"), user("b", b"5678")];
    let placement = place(&all, Space { inode: 0, ..SPACE }).unwrap();
    let mut block = vec![0; 1024];
    encode_block(&mut block, (FsBlock(7), 1), None, &all, &placement, |_| None).unwrap();
    decode_block(&block).unwrap();
    let (first, second) = ([block[34], block[35]], 32 + 20 + 2);
    block[second..second + 2].copy_from_slice(&first);
    assert!(matches!(decode_block(&block), Err(XattrFault::Overlap { .. })));
}

#[test]
fn both_forms_of_the_entry_hash_are_taken() {
    assert_eq!(entry_hash(b"plain", b"v"), entry_hash_signed(b"plain", b"v"));
    let name = "ä".as_bytes();
    assert_ne!(entry_hash(name, b"v"), entry_hash_signed(name, b"v"));
    assert!(entry_hash_matches(entry_hash(name, b"v"), name, b"v"));
    assert!(entry_hash_matches(entry_hash_signed(name, b"v"), name, b"v"));
    assert!(!entry_hash_matches(1, name, b"v"));
    assert_eq!(block_hash([1, 0, 2]), 0);
    assert_eq!(block_hash([1, 2]), (1 << 16) ^ 2);
}

proptest! {
    #[test]
    fn what_is_encoded_reads_back(
        list in prop::collection::btree_map(
            (1u8..8, prop::collection::vec(1u8..=255, 1..40)),
            prop::collection::vec(any::<u8>(), 0..400),
            0..12,
        ),
        inode in 0usize..300,
        ea_inode: bool,
    ) {
        let all: Vec<NewXattr<'_>> = list
            .iter()
            .map(|((index, name), value)| NewXattr { index: NameIndex(*index), name, value })
            .collect();
        let space = Space { inode, block: 1024, ea_inode };
        let Ok(placement) = place(&all, space) else { return Ok(()) };
        let value_inode = |xattr: usize| Some((Ino(100 + xattr as u32), 5));
        let mut area = vec![0xee; inode];
        encode_inode(&mut area, &all, &placement, value_inode).unwrap();
        let mut block = vec![0xee; 1024];
        encode_block(&mut block, (FsBlock(9), 1), Some(1), &all, &placement, value_inode).unwrap();
        let inside = decode_inode(&area).unwrap();
        let (_, outside) = decode_block(&block).unwrap();
        let mut found = 0;
        for entry in inside.iter().flat_map(XattrArea::entries).chain(outside.entries()) {
            let position = all.iter().position(|x| (x.index, x.name) == (entry.index, entry.name)).unwrap();
            match entry.value {
                Value::Here(value) => prop_assert_eq!(value, all[position].value),
                Value::InInode { ino, len } => {
                    prop_assert!(ea_inode);
                    prop_assert_eq!(ino, Ino(100 + position as u32));
                    prop_assert_eq!(len as usize, all[position].value.len());
                }
            }
            found += 1;
        }
        prop_assert_eq!(found, all.len());
        let order: Vec<_> = outside.entries().map(|e| (e.index, e.name.len(), e.name)).collect();
        prop_assert!(order.is_sorted());
    }
}
