use super::*;
use extant_base::Prng;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

fn layout(bytes: u64, checksum: bool, stored_hash: bool) -> DirLayout {
    DirLayout {
        block_size: BlockSize::new(bytes).unwrap(),
        filetype: true,
        checksum,
        stored_hash,
        encrypted: false,
    }
}

#[test]
fn every_stored_rec_len_has_one_meaning() {
    for bytes in [1024u64, 32768, 65536] {
        let size = BlockSize::new(bytes).unwrap();
        for raw in 0..=u16::MAX {
            let len = decode_rec_len(raw, size);
            let whole = bytes == 65536 && (raw == 0 || raw == u16::MAX);
            assert_eq!(len, if whole { 65536 } else { u32::from(raw) });
            assert_eq!(encode_rec_len(len, size), Some(if whole { u16::MAX } else { raw }));
        }
        assert_eq!(encode_rec_len(65536, size).is_some(), bytes == 65536);
        assert_eq!(encode_rec_len(65540, size), None);
    }
}

#[test]
fn types_match_modes() {
    for raw in 0..=u8::MAX {
        let kind = FileType::from_raw(raw);
        assert_eq!(kind.raw(), if raw < 8 { raw } else { 0 });
    }
    assert_eq!(FileType::from_mode(0o100_644), FileType::Regular);
    assert_eq!(FileType::from_mode(0o040_755), FileType::Directory);
    assert_eq!(FileType::from_mode(0o120_777), FileType::Symlink);
    assert_eq!(FileType::from_mode(0o644), FileType::Unknown);
}

#[test]
fn each_broken_record_has_its_fault() {
    let layout = layout(1024, false, false);
    let mut good = [0; 1024];
    first_block(&mut good, layout, Ino(11), Ino(2), None).unwrap();
    check(&good, layout).unwrap();
    let fault = |at: usize, value: u8| {
        let mut bad = good;
        bad[at] = value;
        check(&bad, layout).unwrap_err()
    };
    assert_eq!(fault(4, 8), DirFault::RecordLength { offset: 0, rec_len: 8, wanted: 12 });
    assert_eq!(fault(4, 13), DirFault::RecordLength { offset: 0, rec_len: 13, wanted: 12 });
    assert_eq!(fault(4, 0), DirFault::RecordLength { offset: 0, rec_len: 0, wanted: 12 });
    assert_eq!(fault(6, 5), DirFault::RecordLength { offset: 0, rec_len: 12, wanted: 16 });
    assert_eq!(fault(16, 0xf8), DirFault::PastBlock { offset: 12, rec_len: 1016, block: 1024 });
    assert_eq!(fault(16, 0xec), DirFault::PastBlock { offset: 12, rec_len: 1004, block: 1024 });
    assert_eq!(check(&good[..1000], layout), Err(DirFault::Length { found: 1000, wanted: 1024 }));
}

#[test]
fn without_the_feature_a_type_is_passed_over_and_goes_with_the_next_change() {
    let layout = layout(1024, true, false);
    let mut block = [0; 1024];
    let named = NewEntry { ino: Ino(12), name: b"n", file_type: FileType::Regular, hash: None };
    first_block(&mut block, layout, Ino(11), Ino(2), Some(5)).unwrap();
    insert(&mut block, layout, &named).unwrap();
    let old = DirLayout { filetype: false, ..layout };
    check(&block, old).unwrap();
    let entries = |block: &[u8]| -> Vec<_> {
        let used = Records::of_block(block, old).unwrap().used().map(Result::unwrap);
        used.map(|entry| (entry.name.to_vec(), entry.file_type, entry.stored_type)).collect()
    };
    let unknown = FileType::Unknown;
    let wanted =
        [(b".".to_vec(), unknown, 2), (b"..".to_vec(), unknown, 2), (b"n".to_vec(), unknown, 1)];
    assert_eq!(entries(&block), wanted);
    let offset = Records::of_block(&block, old).unwrap().flatten().nth(2).unwrap().offset;
    set_target(&mut block, old, offset, Ino(13), FileType::Regular).unwrap();
    assert_eq!(entries(&block)[2], (b"n".to_vec(), unknown, 0));
}

#[test]
fn bad_names_are_not_stored() {
    let layout = layout(1024, true, true);
    let mut block = [0; 1024];
    let mut writer = BlockWriter::new(&mut block, layout).unwrap();
    let entry =
        |name, ino, hash| NewEntry { ino: Ino(ino), name, file_type: FileType::Regular, hash };
    let hash = Some(NameHash::default());
    assert_eq!(writer.push(&entry(b"", 12, hash)), Err(DirFault::Name));
    assert_eq!(writer.push(&entry(b"a/b", 12, hash)), Err(DirFault::Name));
    assert_eq!(writer.push(&entry(b"a\0", 12, hash)), Err(DirFault::Name));
    let mut cipher = [0; 1024];
    let encrypted = DirLayout { encrypted: true, ..layout };
    let mut other = BlockWriter::new(&mut cipher, encrypted).unwrap();
    assert_eq!(other.push(&entry(b"a/\0", 12, hash)), Ok(true));
    assert_eq!(other.push(&entry(b"", 12, hash)), Err(DirFault::Name));
    assert_eq!(writer.push(&entry(b"a", 0, hash)), Err(DirFault::NoInode));
    assert_eq!(writer.push(&entry(b"a", 12, None)), Err(DirFault::NoHash));
    let long = [b'x'; 256];
    assert_eq!(
        writer.push(&entry(&long, 12, hash)),
        Err(DirFault::NameLength { offset: 0, name_len: 256 })
    );
    assert_eq!(writer.push(&entry(&long[..255], 12, hash)), Ok(true));
}

#[test]
fn tails_verify_until_a_bit_changes() {
    let layout = layout(1024, true, false);
    let mut block = vec![0; 1024];
    first_block(&mut block, layout, Ino(11), Ino(2), Some(5)).unwrap();
    verify(5, &block).unwrap();
    for byte in (0..1024).step_by(7) {
        let mut bad = block.clone();
        bad[byte] ^= 0x10;
        assert!(verify(5, &bad).is_err(), "byte {byte}");
    }
    assert!(verify(5, &[0; 1024]).is_err(), "a block without a tail");
}

/// Random inserts and removals in one block, against a map.
#[test]
fn edits_agree_with_a_map() {
    for (seed, layout) in [
        (1, layout(1024, true, false)),
        (2, layout(4096, true, true)),
        (3, layout(65536, false, false)),
        (4, DirLayout { filetype: false, ..layout(1024, true, false) }),
    ] {
        let mut random = Prng::new(seed);
        let mut block = vec![0; layout.block_size.len()];
        first_block(&mut block, layout, Ino(11), Ino(2), Some(1)).unwrap();
        let mut model: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        model.insert(b".".to_vec(), 11);
        model.insert(b"..".to_vec(), 2);
        for step in 0..3000u32 {
            let len = 1 + random.below(40) as usize;
            let name: Vec<u8> = (0..len).map(|_| b'a' + random.below(3) as u8).collect();
            let found = find(&block, layout, &name).unwrap();
            assert_eq!(found.map(|entry| entry.ino.0), model.get(&name).copied());
            if let Some(found) = found {
                let offset = found.offset;
                if random.one_in(3) {
                    set_target(&mut block, layout, offset, Ino(step + 20), FileType::Fifo).unwrap();
                    model.insert(name, step + 20);
                } else {
                    remove(&mut block, layout, offset).unwrap();
                    assert!(matches!(
                        remove(&mut block, layout, offset),
                        Err(DirFault::NoEntry { .. })
                    ));
                    model.remove(&name);
                }
            } else if random.one_in(4) && model.len() > 3 {
                let nth = random.below(model.len() as u64) as usize;
                let victim = model.keys().nth(nth).unwrap().clone();
                if !is_dots(&victim) {
                    let offset = find(&block, layout, &victim).unwrap().unwrap().offset;
                    remove(&mut block, layout, offset).unwrap();
                    model.remove(&victim);
                }
            } else {
                let hash = Some(NameHash { major: step * 2, minor: 9 });
                let entry = NewEntry {
                    ino: Ino(step + 20),
                    name: &name,
                    file_type: FileType::Regular,
                    hash,
                };
                if let Some(at) = insert(&mut block, layout, &entry).unwrap() {
                    let stored = decode_entry(&block, at as usize, layout).unwrap();
                    assert_eq!(stored.name, name);
                    assert_eq!(stored.hash, if layout.stored_hash { hash } else { None });
                    model.insert(name, step + 20);
                }
            }
            seal(1, &mut block);
            verify(1, &block).unwrap();
            let listed: BTreeMap<Vec<u8>, u32> = Records::of_block(&block, layout)
                .unwrap()
                .used()
                .map(|entry| entry.map(|entry| (entry.name.to_vec(), entry.ino.0)).unwrap())
                .collect();
            assert_eq!(listed, model);
        }
    }
}

/// Found by fuzzing: the room kept for a used entry without a name was 8 bytes, too short for a
/// record.
#[test]
fn an_entry_without_a_name_keeps_room_for_a_record() {
    let layout = layout(1024, false, false);
    let mut block = [0; 1024];
    block[..6].copy_from_slice(&[9, 0, 0, 0, 0, 4]);
    let entry = NewEntry { ino: Ino(12), name: b"n", file_type: FileType::Regular, hash: None };
    assert_eq!(insert(&mut block, layout, &entry), Ok(Some(12)));
    check(&block, layout).unwrap();
}

#[test]
fn a_block_that_lacks_its_tail_takes_no_entry() {
    let layout = layout(1024, true, false);
    let mut block = [0; 1024];
    block[..6].copy_from_slice(&[0, 0, 0, 0, 0, 4]);
    let entry = NewEntry { ino: Ino(12), name: b"n", file_type: FileType::Regular, hash: None };
    assert_eq!(insert(&mut block, layout, &entry), Err(DirFault::NoTail));
    // Bytes of a tail that belong to a longer entry do not make it one.
    seal(1, &mut block);
    assert_eq!(insert(&mut block, layout, &entry), Err(DirFault::NoTail));
}

#[test]
fn a_record_has_room_for_its_hash_unless_it_is_dots_or_free() {
    let layout = layout(1024, false, true);
    let mut block = [0; 1024];
    first_block(&mut block, layout, Ino(11), Ino(2), None).unwrap();
    // `.` and `..` in 12 bytes each, then a free record of 12 and one with a name.
    block[16] = 12;
    block[17] = 0;
    block[24 + 4] = 12;
    block[36..44].copy_from_slice(&[9, 0, 0, 0, 0xdc, 3, 3, 1]);
    block[44..47].copy_from_slice(b"abc");
    check(&block, layout).unwrap();
    let named = decode_entry(&block, 36, layout).unwrap();
    assert_eq!(named.hash, Some(NameHash::default()));
    let dots: Vec<_> = Records::of_block(&block, layout).unwrap().take(3).collect();
    assert!(dots.iter().all(|entry| entry.unwrap().hash.is_none()));
    assert!(dots[..2].iter().all(|entry| entry.unwrap().is_dots()) && !named.is_dots());
    for (len, fits) in [(12, false), (16, false), (20, true)] {
        block[40..42].copy_from_slice(&[len, 0]);
        let rec_len = u32::from(len);
        let wanted = DirFault::RecordLength { offset: 36, rec_len, wanted: 20 };
        let found = decode_entry(&block, 36, layout).map(drop);
        assert_eq!(found, if fits { Ok(()) } else { Err(wanted) });
    }
}

#[test]
fn a_writer_fills_a_block_up_to_its_tail_over_whatever_was_there() {
    for checksum in [true, false] {
        let layout = layout(1024, checksum, false);
        let (mut block, mut zeros) = ([0xaa; 1024], [0; 1024]);
        for block in [&mut block, &mut zeros] {
            let mut writer = BlockWriter::new(block, layout).unwrap();
            let mut count = 0;
            let entry =
                |ino| NewEntry { ino: Ino(ino), name: b"n", file_type: FileType::Fifo, hash: None };
            while writer.push(&entry(count + 12)).unwrap() {
                count += 1;
            }
            assert_eq!((count, writer.room()), if checksum { (84, 4) } else { (85, 4) });
            writer.finish(Some(5));
            check(block, layout).unwrap();
            assert_eq!(verify(5, block).is_ok(), checksum);
            let used = Records::of_block(block, layout).unwrap().used();
            assert!(used.map(|entry| entry.unwrap().ino.0).eq(12..12 + count));
        }
        assert_eq!(block, zeros);
    }
    assert_eq!(
        BlockWriter::new(&mut [0; 1000], layout(1024, true, false)).map(drop),
        Err(DirFault::Length { found: 1000, wanted: 1024 })
    );
}
