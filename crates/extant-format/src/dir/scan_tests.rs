//! The places that one pass finds are those of the slower functions, and what is stored there is equal.

use super::scan::{Hit, Room, Scan};
use super::scan::{
    entry_area, insert_at, remove_at, same_name, scan, scan_for_name, scan_for_room, set_target_at,
};
use super::*;
use extant_base::Prng;
use std::vec;
use std::vec::Vec;

fn layouts() -> Vec<DirLayout> {
    let layout = |bytes, filetype, checksum, stored_hash| DirLayout {
        block_size: BlockSize::new(bytes).unwrap(),
        filetype,
        checksum,
        stored_hash,
        encrypted: false,
    };
    vec![
        layout(1024, true, true, false),
        layout(1024, true, false, false),
        layout(1024, false, true, false),
        layout(4096, true, true, true),
        layout(65536, true, false, false),
    ]
}

fn new_block(layout: DirLayout) -> Vec<u8> {
    let mut block = vec![0; layout.block_size.len()];
    first_block(&mut block, layout, Ino(11), Ino(2), Some(1)).unwrap();
    block
}

fn entry(name: &[u8], ino: u32) -> NewEntry<'_> {
    let hash = Some(crate::hash::NameHash { major: ino * 2, minor: 9 });
    NewEntry { ino: Ino(ino), name, file_type: FileType::Regular, hash }
}

fn hit(block: &[u8], layout: DirLayout, name: &[u8]) -> Option<Hit> {
    match scan_for_name(block, layout, name).unwrap() {
        Scan::Hit(hit) => Some(hit),
        Scan::Miss { .. } => None,
    }
}

/// A hit with what is before it, and the bytes that used entries need, by a walk over all records.
fn slowly(block: &[u8], layout: DirLayout, name: &[u8]) -> (Option<Hit>, u32) {
    let (mut found, mut before, mut used) = (None, None, 0);
    for record in Records::of_block(block, layout).unwrap() {
        let record = record.unwrap();
        let (offset, ino, file_type) = (record.offset, record.ino, record.file_type);
        if record.is_used() && record.name == name {
            found = Some(Hit { offset, before, ino, file_type });
        }
        if record.is_used() {
            let is_dots = record.name == b"." || record.name == b"..";
            let len = record.name.len();
            let needs = if is_dots { DirLayout::dots_need(len) } else { layout.needs(len) };
            used += needs as u32;
        }
        before = Some(offset);
    }
    (found, used)
}

#[test]
fn one_pass_finds_and_changes_what_the_slower_functions_do() {
    for (seed, layout) in (1u64..).zip(layouts()) {
        let mut random = Prng::new(seed);
        let mut block = new_block(layout);
        let mut other = block.clone();
        for step in 0..400u32 {
            let len = 1 + random.below(if seed == 5 { 200 } else { 30 }) as usize;
            let name: Vec<u8> = (0..len).map(|_| b'a' + random.below(2) as u8).collect();
            let new = entry(&name, step + 20);
            let (wanted, used) = slowly(&block, layout, &name);
            assert_eq!(hit(&block, layout, &name), wanted, "step {step} of {layout:?}");
            let area = entry_area(&block, layout).unwrap();
            let scanned = scan(area, layout, new.needs(layout), same_name(&name)).unwrap();
            match (wanted, scanned) {
                (Some(wanted), Scan::Hit(hit)) => {
                    assert_eq!(hit, wanted);
                    if random.one_in(3) {
                        let to = (Ino(step + 20), FileType::Fifo);
                        set_target_at(&mut block, layout, &hit, to.0, to.1).unwrap();
                        set_target(&mut other, layout, hit.offset, to.0, to.1).unwrap();
                    } else {
                        remove_at(&mut block, layout, &hit).unwrap();
                        remove(&mut other, layout, hit.offset).unwrap();
                        let record = &block[hit.offset as usize..][..12];
                        let is_wiped = record[8..].iter().all(|byte| *byte == 0);
                        assert!(is_wiped, "the name stays in the block");
                    }
                }
                (None, Scan::Miss { room, used: counted }) => {
                    assert_eq!(counted, used);
                    let first = scan_for_room(area, layout, new.needs(layout)).unwrap();
                    assert!(matches!(first, Scan::Miss { room: same, .. } if same == room));
                    let inserted = insert(&mut other, layout, &new).unwrap();
                    let at = room.map(|room| room.offset + room.kept);
                    assert_eq!(at, inserted, "the same room");
                    if let Some(room) = room {
                        insert_at(&mut block, layout, room, &new).unwrap();
                    }
                }
                (wanted, scanned) => panic!("{scanned:?} instead of {wanted:?}"),
            }
            assert_eq!(block, other, "step {step} of {layout:?}");
            check(&block, layout).unwrap();
        }
    }
}

#[test]
fn the_first_entry_becomes_free_space_and_its_name_is_wiped() {
    for layout in layouts() {
        let mut block = vec![0; layout.block_size.len()];
        let mut writer = BlockWriter::new(&mut block, layout).unwrap();
        assert!(writer.push(&entry(b"first", 12)).unwrap());
        assert!(writer.push(&entry(b"second", 13)).unwrap());
        writer.finish(Some(1));
        let first = hit(&block, layout, b"first").unwrap();
        assert_eq!((first.offset, first.before), (0, None));
        let size = decode_entry(&block, 0, layout).unwrap().rec_len as usize;
        let mut other = block.clone();
        remove_at(&mut block, layout, &first).unwrap();
        remove(&mut other, layout, 0).unwrap();
        for block in [&block, &other] {
            assert!(block[6..size].iter().all(|byte| *byte == 0), "{layout:?}");
            let records: Vec<_> = Records::of_block(block, layout).unwrap().collect();
            let first = records[0].unwrap();
            assert_eq!((first.ino, first.rec_len as usize), (Ino(0), size));
            assert_eq!(records[1].unwrap().name, b"second");
        }
    }
}

#[test]
fn a_hit_or_a_room_that_is_no_longer_there_is_refused_and_nothing_changes() {
    for layout in layouts() {
        let mut block = new_block(layout);
        for (name, ino) in [(b"one".as_slice(), 21), (b"two", 22), (b"three", 23)] {
            insert(&mut block, layout, &entry(name, ino)).unwrap().unwrap();
        }
        let two = hit(&block, layout, b"two").unwrap();
        let area = entry_area(&block, layout).unwrap();
        let Scan::Miss { room: Some(room), .. } = scan_for_room(area, layout, 16).unwrap() else {
            panic!("there is room");
        };
        let good = block.clone();
        let mut refused = |what: &str, run: &dyn Fn(&mut [u8]) -> Result<(), DirFault>| {
            let fault = run(&mut block).unwrap_err();
            assert_eq!(block, good, "{what}");
            fault
        };
        let no_entry = DirFault::NoEntry { offset: two.offset };
        let one = hit(&good, layout, b"one").unwrap().offset;
        for hit in [
            Hit { ino: Ino(99), ..two },
            Hit { ino: Ino(0), ..two },
            // A record, and not the one before it.
            Hit { before: Some(one - 12), ..two },
            Hit { before: Some(two.offset), ..two },
        ] {
            assert_eq!(refused("remove", &|block| remove_at(block, layout, &hit)), no_entry);
            if hit.ino != two.ino {
                let kind = FileType::Fifo;
                let set = |block: &mut [u8]| set_target_at(block, layout, &hit, Ino(5), kind);
                assert_eq!(refused("set", &set), no_entry);
            }
        }
        let set = |block: &mut [u8]| set_target_at(block, layout, &two, Ino(0), FileType::Fifo);
        assert_eq!(refused("inode 0", &set), DirFault::NoInode);
        let set = |block: &mut [u8]| set_target(block, layout, two.offset, Ino(0), FileType::Fifo);
        assert_eq!(refused("inode 0", &set), DirFault::NoInode);
        let set =
            |block: &mut [u8]| set_target(block, layout, two.offset + 4, Ino(5), FileType::Fifo);
        assert_eq!(refused("no entry", &set), DirFault::NoEntry { offset: two.offset + 4 });
        let no_room = DirFault::NoEntry { offset: room.offset };
        let long = [b'x'; 255];
        let shorter = Room { rec_len: room.kept + 264, ..room };
        for (name, room) in [
            (b"four".as_slice(), Room { rec_len: room.rec_len - 4, ..room }),
            (b"four", Room { kept: room.rec_len - 8, ..room }),
            (&long[..], shorter),
        ] {
            let new = entry(name, 24);
            assert_eq!(refused("room", &|block| insert_at(block, layout, room, &new)), no_room);
        }
        let bad = entry(b"a/b", 24);
        assert_eq!(refused("name", &|block| insert_at(block, layout, room, &bad)), DirFault::Name);
        let slow = |block: &mut [u8]| insert(block, layout, &bad).map(drop);
        assert_eq!(refused("name", &slow), DirFault::Name);
    }
}

#[test]
fn one_pass_names_the_fault_that_the_decoder_names() {
    for layout in layouts() {
        let mut good = new_block(layout);
        insert(&mut good, layout, &entry(b"a", 12)).unwrap().unwrap();
        insert(&mut good, layout, &entry(b"bb", 13)).unwrap().unwrap();
        let tail = if layout.checksum { 12 } else { 0 };
        let third = hit(&good, layout, b"a").unwrap().offset as usize;
        let end = good.len() - tail;
        // Lengths of a record in the middle: too short, no multiple of 4, past the end, almost to it.
        let left = end - third;
        let lengths = [0, 4, 8, 11, 13, 14, left + 4, left - 4, left - 8, left - 11];
        for len in lengths.into_iter().filter(|len| *len < 65535) {
            let mut bad = good.clone();
            bad[third + 4..third + 6].copy_from_slice(&(len as u16).to_le_bytes());
            let area = &bad[..end];
            let wanted = Records::of_area(area, layout).find_map(Result::err);
            if len == 0 && layout.block_size.bytes() == 65536 {
                continue; // All of the block: past its end as well, with other words.
            }
            let wanted = wanted.unwrap_or_else(|| panic!("length {len} of {layout:?}"));
            assert_eq!(scan(area, layout, 4000, same_name(b"bb")), Err(wanted), "{len}");
            assert_eq!(scan_for_name(area, layout, b"bb"), Err(wanted), "{len}");
            assert_eq!(scan_for_room(area, layout, usize::MAX), Err(wanted), "{len}");
        }
        // A name that is longer than its record, and a header that is cut off.
        let mut bad = good.clone();
        bad[third + 6] = 200;
        let wanted = Records::of_area(&bad[..end], layout).find_map(Result::err).unwrap();
        assert_eq!(scan_for_name(&bad[..end], layout, b"bb"), Err(wanted));
        assert_eq!(scan(&bad[..end], layout, 4000, same_name(b"bb")), Err(wanted));
        let short = &good[..third + 4];
        let is_fault =
            |scan: Result<Scan, DirFault>| matches!(scan, Err(DirFault::PastBlock { .. }));
        assert!(is_fault(scan_for_name(short, layout, b"bb")));
        assert!(is_fault(scan_for_room(short, layout, usize::MAX)));
        // What lies behind a hit stays unseen.
        let mut bad = good.clone();
        let second = hit(&good, layout, b"bb").unwrap().offset as usize;
        bad[second + 4] = 13;
        assert_eq!(hit(&bad[..end], layout, b"a"), hit(&good, layout, b"a"));
    }
}

#[test]
fn a_block_gives_its_entries_only_with_the_tail_that_it_should_have() {
    let layout = layouts()[0];
    let block = new_block(layout);
    assert_eq!(entry_area(&block, layout).unwrap().len(), 1012);
    assert_eq!(
        entry_area(&block[..1020], layout),
        Err(DirFault::Length { found: 1020, wanted: 1024 })
    );
    let plain = DirLayout { checksum: false, ..layout };
    assert_eq!(entry_area(&block, plain).unwrap().len(), 1024);
    // The inode, the length, the name's length and the type of a tail.
    for byte in [0, 3, 4, 6, 7] {
        let mut bad = block.clone();
        bad[1012 + byte] ^= 1;
        assert_eq!(entry_area(&bad, layout), Err(DirFault::NoTail), "byte {byte}");
        if byte != 4 {
            let inserted = insert(&mut bad, layout, &entry(b"n", 12));
            assert_eq!(inserted, Err(DirFault::NoTail), "byte {byte}");
        }
    }
}
