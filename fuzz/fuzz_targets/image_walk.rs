//! Opens a damaged image, walks it and reads everything, within bounds.
//!
//! The input is a list of changes to one of two small valid images, eight bytes each: block,
//! offset, and a word to store there. Byte 0 chooses the image and whether checksums are looked at;
//! without them the changes reach further.
//!
//! The images are in `fuzz/seeds` as their non-zero blocks: the length of the image (le32), then
//! number (le16), length (le16) and bytes of each block of 1 KiB. They come from `mke2fs -b 1024 -N
//! 128 -d TREE IMAGE 2M`, one with `-t ext2`, one with `-t ext4 -O inline_data,ea_inode,large_dir,
//! ^has_journal,^resize_inode`, and `e2fsck -fyD` for an index.
#![no_main]

use std::sync::OnceLock;

use extant::{FileKind, Fs, MountOptions};
use extant_block::{BlockDevice, MemoryDevice};
use libfuzzer_sys::fuzz_target;

const EXT4: &[u8] = include_bytes!("../seeds/image_walk_ext4.blocks");
const EXT2: &[u8] = include_bytes!("../seeds/image_walk_ext2.blocks");

/// A packed image, unpacked, and the numbers of its blocks that are not all zero.
struct Seed {
    device: MemoryDevice,
    blocks: Vec<u64>,
}

fn unpack(packed: &[u8]) -> Seed {
    let (len, mut rest) = packed.split_first_chunk::<4>().expect("a packed image");
    let device = MemoryDevice::new(u64::from(u32::from_le_bytes(*len)));
    let mut blocks = Vec::new();
    while let Some(([a, b, c, d], behind)) = rest.split_first_chunk::<4>() {
        let block = u64::from(u16::from_le_bytes([*a, *b]));
        let (bytes, next) = behind.split_at(usize::from(u16::from_le_bytes([*c, *d])));
        device.write_at(block * 1024, bytes).expect("a block of the image");
        blocks.push(block);
        rest = next;
    }
    Seed { device, blocks }
}

fn seeds() -> &'static [Seed; 2] {
    static SEEDS: OnceLock<[Seed; 2]> = OnceLock::new();
    SEEDS.get_or_init(|| {
        let seeds = [unpack(EXT4), unpack(EXT2)];
        for seed in &seeds {
            let fs = MountOptions::new().open(seed.device.snapshot()).expect("a valid image");
            assert!(walk(&fs) > 60, "the images themselves must be read whole");
        }
        seeds
    })
}

/// Reads everything once; the number of files met.
fn walk(fs: &Fs) -> usize {
    let mut buffer = vec![0; 16 << 10];
    let Ok(walk) = fs.walk("/") else { return 0 };
    let mut met = 0;
    for entry in walk.take(500).flatten() {
        met += 1;
        let inode = entry.inode();
        let _ = inode.metadata();
        let _ = inode.xattrs();
        let _ = inode.acl(extant::AclKind::Access);
        for run in inode.map(0..1 << 32).take(64) {
            let _ = run;
        }
        match inode.kind() {
            FileKind::Directory => {
                let _ = inode.lookup(b"a name of some length number 7");
                let _ = inode.lookup(b"..");
            }
            FileKind::Symlink => drop(inode.read_link()),
            _ => {
                for offset in [0, inode.size() / 2, inode.size().saturating_sub(9)] {
                    let _ = inode.read_at(&mut buffer, offset);
                }
            }
        }
    }
    let _ = fs.statfs();
    met
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, changes)) = input.split_first() else { return };
    let seed = &seeds()[usize::from(choice & 1)];
    let device = seed.device.snapshot();
    for change in changes.chunks_exact(8).take(32) {
        let [a, b, c, d, value @ ..] = change else { return };
        let chosen = usize::from(u16::from_le_bytes([*a, *b])) % seed.blocks.len();
        let offset = u64::from(u16::from_le_bytes([*c, *d])) % 1021;
        // How much of the word: one, two or four bytes.
        let width = [1, 2, 4, 4][usize::from(*d >> 6)];
        device.write_at(seed.blocks[chosen] * 1024 + offset, &value[..width]).expect("in range");
    }
    let verify = choice & 2 != 0;
    let options = MountOptions::new().verify_checksums(verify).cache_bytes(1 << 18);
    if let Ok(fs) = options.open(device) {
        walk(&fs);
    }
});
