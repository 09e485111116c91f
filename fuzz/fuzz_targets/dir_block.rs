//! Directory blocks: list any bytes; change what is sound, and it stays sound.
#![no_main]
use extant_base::{BlockSize, Ino};
use extant_format::dir::{self, DirFault, DirLayout, FileType, NewEntry, Records};
use extant_format::hash::NameHash;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((flags, rest)) = bytes.split_first() else { return };
    let log = if flags & 0x80 == 0 { 0 } else { 6 };
    let layout = DirLayout {
        block_size: BlockSize::from_log_kib(log).unwrap(),
        filetype: flags & 1 != 0,
        checksum: flags & 2 != 0,
        stored_hash: flags & 4 != 0,
        encrypted: flags & 16 != 0,
    };
    let mut area = rest.to_vec();
    if flags & 8 != 0 {
        area.resize(layout.block_size.len(), 0);
    }
    let _ = (dir::verify(1, &area), dir::check(&area, layout));
    let entries = || Records::of_area(&area, layout).collect::<Result<Vec<_>, _>>();
    let Ok(before) = entries() else { return };
    let used: Vec<_> = before.iter().filter(|entry| entry.is_used()).collect();
    let first = used.first().map(|entry| entry.offset);
    let count = used.len();
    let name = b"a-new-name".as_slice();
    let hash = Some(NameHash { major: 2, minor: 3 });
    let entry = NewEntry { ino: Ino(77), name, file_type: FileType::Regular, hash };
    let added = match dir::insert(&mut area, layout, &entry) {
        Err(DirFault::NoTail) => return,
        added => added.unwrap(),
    };
    let after: Vec<_> = Records::of_area(&area, layout).used().map(Result::unwrap).collect();
    assert_eq!(after.len(), count + usize::from(added.is_some()));
    if let Some(at) = added {
        assert!(after.iter().any(|entry| entry.offset == at && entry.name == name));
    }
    if let Some(at) = added.or(first) {
        dir::set_target(&mut area, layout, at, Ino(78), FileType::Socket).unwrap();
        dir::remove(&mut area, layout, at).unwrap();
        let after = Records::of_area(&area, layout).used().map(Result::unwrap).count();
        assert_eq!(after + 1, count + usize::from(added.is_some()));
    }
});
