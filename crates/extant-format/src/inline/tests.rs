use super::*;
use crate::dir::FileType;
use extant_base::BlockSize;
use std::format;

fn layout() -> DirLayout {
    let block_size = BlockSize::new(65536).unwrap();
    DirLayout { block_size, filetype: true, checksum: true, stored_hash: false, encrypted: false }
}

#[test]
fn capacity_counts_header_entry_and_end_mark() {
    for free in 0..28 {
        assert_eq!(capacity(free), None, "{free}");
    }
    assert_eq!(capacity(28), Some(60));
    assert_eq!(capacity(31), Some(60));
    assert_eq!(capacity(32), Some(64));
    assert_eq!(capacity(96), Some(128));
}

#[test]
fn files_of_every_size_split_and_join() {
    let data: [u8; 200] = core::array::from_fn(|i| i as u8);
    for len in 0..=200 {
        let split = split(&data[..len], 128);
        let Ok((i_block, value)) = split else {
            assert_eq!(split, Err(InlineFault::NoRoom { size: len, room: 128 }));
            assert!(len > 128);
            continue;
        };
        let (head, tail) = parts(&i_block, value, len as u64).unwrap();
        assert_eq!([head, tail].concat(), data[..len]);
        if len >= 60 {
            assert!(parts(&i_block, value, len as u64 + 1).is_err());
        }
    }
}

#[test]
fn directories_of_every_size_come_back() {
    for count in 0..12 {
        let names: Vec<_> = (0..count).map(|n| format!("name{n}{}", "x".repeat(n))).collect();
        let entries = names.iter().enumerate().map(|(n, name)| NewEntry {
            ino: Ino(n as u32 + 12),
            name: name.as_bytes(),
            file_type: FileType::Regular,
            hash: None,
        });
        let built = build_dir(Ino(7), entries, layout(), 160);
        let Ok((i_block, value)) = built else {
            assert!(count > 6, "{count}: {built:?}");
            continue;
        };
        let dir = InlineDir::new(&i_block, &value, layout());
        assert_eq!(dir.parent(), Ino(7));
        let found: Vec<_> = dir.used().map(|entry| entry.unwrap().name.to_vec()).collect();
        assert_eq!(found.len(), names.len());
        for (n, name) in names.iter().enumerate() {
            let entry = dir.find(name.as_bytes()).unwrap().unwrap();
            assert_eq!(entry.ino, Ino(n as u32 + 12));
        }
        // No entry crosses from one area into the other, and both are filled.
        let bytes: u32 = dir.records().map(|entry| entry.unwrap().rec_len).sum();
        assert_eq!(bytes as usize, 56 + value.len());
    }
}

#[test]
fn a_fault_ends_the_listing() {
    let mut i_block = [0; 60];
    i_block[8] = 3;
    let dir = InlineDir::new(&i_block, &[0; 24], layout());
    let all: Vec<_> = dir.records().collect();
    assert_eq!(all.len(), 1);
    assert!(all[0].is_err());
    assert!(dir.find(b"x").is_err());
}
