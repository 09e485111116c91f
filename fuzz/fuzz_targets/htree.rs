//! Index blocks decode or are refused, and searches stay inside; any list of names plans and reads.
#![no_main]
use extant_base::{BlockSize, Ino};
use extant_format::dir::{DirLayout, FileType, NewEntry, Records};
use extant_format::hash::{HashSeed, HashVersion, name_hash};
use extant_format::htree::{
    HtreeFault, HtreePlan, Index, IndexLayout, IndexOptions, NodePlace, PlannedEntry, Root, verify,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(([flags, fill], rest)) = bytes.split_first_chunk::<2>() else { return };
    let layout = IndexLayout {
        dir: DirLayout {
            block_size: BlockSize::new(1024).unwrap(),
            filetype: true,
            checksum: flags & 1 != 0,
            stored_hash: false,
            encrypted: false,
        },
        large_dir: flags & 2 != 0,
        unsigned_hash: flags & 4 != 0,
    };
    let mut block = rest.to_vec();
    block.resize(1024, 0);
    if flags & 8 != 0 {
        // A disguise, so that the fuzzer reaches the records.
        block[..24]
            .copy_from_slice(b"\x02\0\0\0\x0c\0\x01\x02.\0\0\0\x02\0\0\0\xf4\x03\x02\x02..\0\0");
    }
    let _ = (verify(1, &block, NodePlace::Root), verify(1, &block, NodePlace::Inner));
    for index in [
        Root::decode(&block, &layout, 1000).map(|root| root.index),
        Index::decode_inner(&block, &layout, 1000),
    ]
    .into_iter()
    .flatten()
    {
        for hash in [0, 2, 0x8000_0000, u32::MAX] {
            let position = index.find(hash);
            assert!(index.get(position).is_some());
            let _ = index.goes_on(position, hash);
        }
    }
    let seed = HashSeed::default();
    let mut names: Vec<_> = rest
        .split(|byte| matches!(byte, 0 | b'/'))
        .filter(|name| (1..=255).contains(&name.len()))
        .map(|name| (name_hash(HashVersion::Tea, &seed, name).unwrap(), name))
        .collect();
    names.sort();
    let hash = (flags & 16 == 0).then_some(HashVersion::Tea);
    let options = IndexOptions { layout, hash, fill_percent: *fill };
    let planned =
        names.iter().map(|(hash, name)| PlannedEntry { name_len: name.len() as u8, hash: *hash });
    let plan = HtreePlan::new(options, planned).unwrap();
    let entries = names.iter().map(|(hash, name)| NewEntry {
        ino: Ino(12),
        name,
        file_type: FileType::Regular,
        hash: Some(*hash),
    });
    let mut found = 0;
    let mut blocks = 0;
    plan.emit((Ino(2), Ino(2)), Some(3), entries, |_, block| {
        blocks += 1;
        for entry in Records::of_block(block, layout.dir).unwrap().used() {
            found += usize::from(!entry.unwrap().is_dots());
        }
        Ok::<(), HtreeFault>(())
    })
    .unwrap();
    let dots = names.iter().filter(|(_, name)| matches!(*name, b"." | b"..")).count();
    assert_eq!((found + dots, blocks), (names.len(), plan.block_count()));
});
