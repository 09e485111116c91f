//! Inline data: any bytes list without harm; what is packed comes back.
#![no_main]
use extant_base::{BlockSize, Ino};
use extant_format::dir::{DirLayout, FileType, NewEntry};
use extant_format::inline::{self, InlineDir};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let layout = DirLayout {
        block_size: BlockSize::new(4096).unwrap(),
        filetype: true,
        checksum: true,
        stored_hash: false,
        encrypted: false,
    };
    if let Some((i_block, value)) = bytes.split_first_chunk::<60>() {
        let dir = InlineDir::new(i_block, value, layout);
        let faults = dir.records().filter(Result::is_err).count();
        assert!(faults <= 1);
        let _ = dir.find(b"name");
        for size in [0, 1, 60, 61, value.len() as u64 + 60, u64::MAX] {
            if let Ok((head, tail)) = inline::parts(i_block, value, size) {
                assert_eq!((head.len() + tail.len()) as u64, size);
            }
        }
    }
    let names: Vec<_> = bytes
        .split(|byte| matches!(byte, 0 | b'/'))
        .filter(|name| (1..=255).contains(&name.len()))
        .collect();
    let entries = names.iter().map(|name| NewEntry {
        ino: Ino(12),
        name,
        file_type: FileType::Regular,
        hash: None,
    });
    if let Ok((i_block, value)) = inline::build_dir(Ino(2), entries, layout, 2000) {
        let dir = InlineDir::new(&i_block, &value, layout);
        assert_eq!(dir.used().map(Result::unwrap).count(), names.len());
        assert!(60 + value.len() <= 2000);
    }
});
