use super::*;
use extant_base::Prng;
use std::{collections::BTreeSet, vec, vec::Vec};

fn entry(id: u32, random: &mut Prng) -> QuotaEntry {
    QuotaEntry {
        id,
        space_bytes: random.below(3) * 4096,
        inodes: random.below(3),
        space_hard_limit: random.next_u64(),
        space_soft_limit: random.below(2),
        inode_hard_limit: random.below(2),
        inode_soft_limit: random.next_u64(),
        space_grace_end: random.below(2),
        inode_grace_end: random.below(2),
    }
}

#[test]
fn any_set_of_ids_reads_back() {
    let mut random = Prng::new(5);
    for count in [0u64, 1, 2, 13, 14, 15, 28, 29, 300, 3000] {
        for spread in [16u64, 1000, 1 << 20, 1 << 32] {
            let mut ids: BTreeSet<u32> = (0..count).map(|_| random.below(spread) as u32).collect();
            if count > 100 {
                ids.extend([0, 255, 256, 65_535, 65_536, u32::MAX]);
            }
            let entries: Vec<_> = ids.into_iter().map(|id| entry(id, &mut random)).collect();
            let file = QuotaFile { entries, ..QuotaFile::empty(QuotaKind::Project) };
            let bytes = file.encode().unwrap();
            assert_eq!(QuotaFile::decode(&bytes).as_ref(), Ok(&file));
        }
    }
}

#[test]
fn root_with_nothing_is_not_a_free_record() {
    let nothing = QuotaEntry::default();
    let file = QuotaFile { entries: vec![nothing], ..QuotaFile::empty(QuotaKind::User) };
    let bytes = file.encode().unwrap();
    assert_eq!(bytes.len(), 6 * 1024, "header, four levels, one leaf");
    assert_eq!(bytes[5 * 1024 + 16 + 64], 1, "the mark");
    assert_eq!(QuotaFile::decode(&bytes).as_ref(), Ok(&file));
}

#[test]
fn loops_and_wild_pointers_are_named() {
    let file = QuotaFile {
        entries: vec![QuotaEntry { id: 7, inodes: 1, ..QuotaEntry::default() }],
        ..QuotaFile::empty(QuotaKind::Group)
    };
    let good = file.encode().unwrap();
    let with = |at: usize, value: u32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        QuotaFile::decode(&bytes)
    };
    assert_eq!(with(0, 5), Err(QuotaError::Magic { found: 5 }));
    assert_eq!(with(4, 0), Err(QuotaError::Version { found: 0 }));
    assert!(matches!(with(0x14, 7), Err(QuotaError::Short { wanted: 7168, .. })));
    assert!(matches!(with(0x14, 0), Err(QuotaError::Short { .. })));
    assert_eq!(with(1024, 6), Err(QuotaError::OutOfRange { block: 1, to: 6, blocks: 6 }));
    assert_eq!(with(1024, 1), Err(QuotaError::OutOfRange { block: 1, to: 1, blocks: 6 }));
    assert_eq!(with(3 * 1024, 2), Err(QuotaError::Loop { block: 2 }));
    assert_eq!(with(1028, 2), Err(QuotaError::Loop { block: 2 }));
    assert_eq!(with(4 * 1024, 5), Err(QuotaError::Missing { block: 5, id: 0 }));
    for len in [0, 31, 32, 2047] {
        assert!(matches!(QuotaFile::decode(&good[..len]), Err(QuotaError::Short { .. })));
    }
}

#[test]
fn ids_must_ascend() {
    for (first, second) in [(3, 3), (4, 3)] {
        let entries = [first, second].map(|id| QuotaEntry { id, ..QuotaEntry::default() }).to_vec();
        let file = QuotaFile { entries, ..QuotaFile::empty(QuotaKind::User) };
        assert_eq!(file.encode(), Err(QuotaError::Order { id: second, after: first }));
    }
}

#[test]
fn parts_agree_with_the_whole_file() {
    let mut random = Prng::new(8);
    let ids = [0, 1, 255, 256, 70_000, u32::MAX];
    let entries: Vec<_> = ids.iter().map(|id| entry(*id, &mut random)).collect();
    let file = QuotaFile { entries: entries.clone(), ..QuotaFile::empty(QuotaKind::Group) };
    let bytes = file.encode().unwrap();
    let header = QuotaHeader::decode(&bytes).unwrap();
    assert_eq!(
        (header.kind, usize::try_from(header.blocks).unwrap()),
        (file.kind, bytes.len() / 1024)
    );
    assert_eq!(header.encode(), bytes[..HEADER_BYTES]);
    let block = |number: u32| &bytes[number as usize * 1024..][..1024];
    for entry in &entries {
        let mut at = ROOT_BLOCK;
        for level in 0..LEVELS {
            let slot = tree_slot(entry.id, level);
            at = u32::from_le_bytes(block(at)[slot..slot + 4].try_into().unwrap());
        }
        let (index, found) = QuotaLeaf::find(block(at), entry.id).unwrap();
        assert_eq!(found, *entry);
        assert_eq!(block(at)[record_offset(index)..][..RECORD_BYTES], entry.encode());
        assert_eq!(QuotaLeaf::free_record(block(at)), Some(ids.len()));
        let leaf = QuotaLeaf::decode(block(at)).unwrap();
        assert_eq!(usize::from(leaf.entries), ids.len());
        let mut again = [7; 16];
        assert!(leaf.encode(&mut again) && again == block(at)[..16] && !leaf.encode(&mut [0; 15]));
    }
    let mut bad = bytes.clone();
    bad[0x1c..0x20].copy_from_slice(&header.blocks.to_le_bytes());
    assert!(matches!(QuotaHeader::decode(&bad), Err(QuotaError::OutOfRange { .. })));
    assert!(QuotaEntry::decode(&[0; RECORD_BYTES]).is_none());
}

#[test]
fn a_record_to_which_nothing_leads_is_named() {
    let mut random = Prng::new(9);
    let entries: Vec<_> = [0, 5, 1000].iter().map(|id| entry(*id, &mut random)).collect();
    let file = QuotaFile { entries, ..QuotaFile::empty(QuotaKind::User) };
    let bytes = file.encode().unwrap();
    assert_eq!(QuotaFile::check_records(&bytes), Ok(()));
    let leaf = bytes.chunks(1024).position(|block| QuotaLeaf::find(block, 1000).is_some()).unwrap();
    // A second record of an id that is there, and one of an id that is not, in a place that is free.
    for id in [0, 1000, 77] {
        let mut stray = bytes.clone();
        let at = leaf * 1024 + record_offset(9);
        stray[at..at + RECORD_BYTES].copy_from_slice(&entry(id, &mut random).encode());
        assert_eq!(QuotaFile::decode(&stray).unwrap(), file, "{id}");
        let found = QuotaError::Stray { block: leaf as u32, id };
        assert_eq!(QuotaFile::check_records(&stray), Err(found));
    }
}
