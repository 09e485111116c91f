//! Inodes of every size under every combination of features.
#![no_main]
use extant_base::{BlockSize, Ino};
use extant_format::inode::{Inode, InodeLayout};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, u32, &[u8])| {
    let (features, sizes, seed, bytes) = input;
    let layout = InodeLayout {
        inode_size: 128 << (sizes & 7),
        block_size: BlockSize::from_log_kib(u32::from(sizes >> 3) % 7).expect("0..=6"),
        huge_file: features & 1 != 0,
        large_dir: features & 2 != 0,
        wide: features & 4 != 0,
        checksum_seed: (features & 8 != 0).then_some(seed),
    };
    let mut bytes = bytes.to_vec();
    bytes.resize(usize::from(layout.inode_size), 0);
    let _ = Inode::verify_checksum(&layout, Ino(seed), &bytes);
    let Ok(first) = Inode::decode(&layout, &bytes) else { return };
    let _ = (first.kind(), first.device(), first.is_fast_symlink(), first.next_orphan());
    let mut stored = bytes.clone();
    first.encode(&layout, Ino(seed), &mut stored).expect("what was decoded fits");
    Inode::verify_checksum(&layout, Ino(seed), &stored).expect("just made");
    assert_eq!(Inode::decode(&layout, &stored), Ok(first));
    // Nothing but the checksum changes.
    for (at, (old, new)) in bytes.iter().zip(&stored).enumerate() {
        assert!(old == new || matches!(at, 0x7c | 0x7d | 0x82 | 0x83), "byte {at:#x}");
    }
});
