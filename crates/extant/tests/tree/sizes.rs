//! Sizes of files that the kernel made, changed here: what is left, what is zero, what is freed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use extant::{Fs, MappingKind, MountOptions};
use extant_block::BlockDevice;
use extant_testkit::oracle::{LoopMount, e2fsck, mke2fs};
use extant_testkit::{image, require};

const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext4", "-b", "1024", "-J", "size=1"],
    &["-t", "ext3", "-b", "1024"],
    &["-t", "ext2", "-b", "2048"],
    &["-t", "ext4", "-b", "4096", "-O", "inline_data"],
    &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"],
];

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13) as u8 | 1
}

/// Files by the kernel: what is in them.
fn make(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for (name, len) in [("tiny", 40), ("small", 120), ("odd", 5000), ("dense", 700_000)] {
        let bytes: Vec<u8> = (0..len).map(byte).collect();
        fs::write(root.join(name), &bytes).unwrap();
        files.insert(name.to_owned(), bytes);
    }
    // Thousands of runs: every other KiB, and one far out behind three levels of pointers.
    let mut bytes = vec![0; 6 << 20];
    let file = fs::File::create(root.join("holes")).unwrap();
    for start in (0..bytes.len()).step_by(2048) {
        for (at, place) in (start..).zip(&mut bytes[start..start + 1024]) {
            *place = byte(at as u64);
        }
        file.write_all_at(&bytes[start..start + 1024], start as u64).unwrap();
    }
    file.set_len(bytes.len() as u64).unwrap();
    files.insert("holes".to_owned(), bytes);
    files
}

/// The rest of the block that the file ends in, as the device has it, and where that is.
fn tail_on_device(fs: &Fs, name: &str) -> Option<(u64, Vec<u8>)> {
    let file = fs.resolve(name).unwrap();
    let block_bytes = u64::from(fs.block_size().bytes());
    let (last, into) = (file.size() / block_bytes, file.size() % block_bytes);
    let run = file.map(last..last + 1).next()?.unwrap();
    let MappingKind::Mapped(block) = run.kind else { return None };
    let mut tail = vec![0; (block_bytes - into) as usize];
    let at = block.0 * block_bytes + into;
    fs.device().read_at(at, &mut tail).unwrap();
    Some((at, tail)).filter(|_| into > 0)
}

#[test]
fn what_lies_behind_the_end_is_zeroed_on_the_device() {
    for layout in LAYOUTS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        require!(mke2fs(&path, "16M", layout));
        let mount = require!(LoopMount::read_write(&path));
        fs::write(mount.path().join("file"), vec![7; 50_000]).unwrap();
        drop(mount);
        let device = Arc::new(image::load(&path));
        let options = MountOptions::new().read_only(false).seed(1);
        let fs = options.open_shared(Arc::clone(&device) as _).unwrap();
        let file = fs.resolve("/file").unwrap();
        for size in [49_999, 33_333, 12_001, 77] {
            file.truncate(size).unwrap();
            let (at, tail) = tail_on_device(&fs, "/file").expect("a mapped block");
            assert!(tail.iter().all(|byte| *byte == 0), "{layout:?}: {size}");
            // Another driver may leave what it likes there; growth must not show it.
            fs.device().write_at(at, &vec![9; tail.len()]).unwrap();
            file.truncate(size + 3).unwrap();
            let grown = fs.resolve("/file").unwrap().read_all().unwrap();
            assert_eq!(grown[size as usize..], [0; 3], "{layout:?}: {size}");
        }
    }
}

#[test]
fn files_of_the_kernel_shrink_and_grow_and_show_nothing_old() {
    for layout in LAYOUTS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        require!(mke2fs(&path, "64M", layout));
        let mount = require!(LoopMount::read_write(&path));
        let mut files = make(mount.path());
        drop(mount);
        // Down within the last block, to its edge, to a hole, to nearly nothing; up in between.
        let turns: [(&str, &[usize]); 5] = [
            ("tiny", &[30, 45, 2, 50]),
            ("small", &[100, 130, 61, 59, 110]),
            ("odd", &[4097, 4999, 1024, 4000, 1]),
            ("dense", &[699_999, 700_100, 300_000, 290_816, 291_000, 12_000, 12_288, 0]),
            ("holes", &[6_000_001, 3_001_000, 3_002_000, 1_000_448, 200_000, 10_240, 700]),
        ];
        let device = Arc::new(image::load(&path));
        for step in 0..8 {
            let options = MountOptions::new().read_only(false).seed(1);
            let fs = options.open_shared(Arc::clone(&device) as _).unwrap();
            for (name, sizes) in turns {
                let Some(size) = sizes.get(step).copied() else { continue };
                let file = fs.resolve(format!("/{name}")).unwrap();
                file.truncate(size as u64).unwrap();
                let bytes = files.get_mut(name).unwrap();
                bytes.resize(size, 0);
                let read = fs.resolve(format!("/{name}")).unwrap().read_all().unwrap();
                assert!(read == *bytes, "{layout:?}: {name} at {size}");
            }
            fs.unmount().unwrap();
            let result = dir.path().join("result");
            image::save(&device, &result);
            e2fsck(&result).unwrap().assert_clean();
            let mount = require!(LoopMount::read_write(&result));
            for (name, bytes) in &files {
                let path = mount.path().join(name);
                let read = fs::read(&path).unwrap();
                assert!(read == *bytes, "{layout:?}: {name} at {} by the kernel", bytes.len());
                // Grown by the kernel, nothing old shows either.
                let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(bytes.len() as u64 + 9000).unwrap();
                drop(file);
                let read = fs::read(&path).unwrap();
                let (head, tail) = read.split_at(bytes.len());
                let at = tail.iter().position(|byte| *byte != 0);
                assert!(head == bytes, "{layout:?}: {name}");
                assert_eq!(at, None, "{layout:?}: {name} grown by the kernel from {}", head.len());
            }
            drop(mount);
            e2fsck(&result).unwrap().assert_clean();
            fs::remove_file(&result).unwrap();
        }
        let fs =
            MountOptions::new().read_only(false).open_shared(Arc::clone(&device) as _).unwrap();
        let root = fs.root().unwrap();
        for name in files.keys() {
            root.unlink(name).unwrap();
        }
        drop(root);
        fs.unmount().unwrap();
        let result = dir.path().join("result");
        image::save(&device, &result);
        e2fsck(&result).unwrap().assert_clean();
    }
}
