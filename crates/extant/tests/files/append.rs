//! Space given to files a little at a time, behind their last blocks.

use std::fs;
use std::sync::Arc;

use extant::{Fallocate, Fs, Inode, MountOptions, NewInode};
use extant_base::Prng;
use extant_block::{MemoryDevice, SharedDevice};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

/// Name, block bytes, options of mke2fs.
type Layout = (&'static str, u64, &'static [&'static str]);

const LAYOUTS: &[Layout] = &[
    ("1K", 1024, &["-t", "ext4", "-b", "1024", "-J", "size=1"]),
    ("no log", 1024, &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]),
    ("4K", 4096, &["-t", "ext4", "-b", "4096"]),
    ("64K", 65536, &["-t", "ext4", "-b", "65536"]),
    ("inline", 1024, &["-t", "ext4", "-b", "1024", "-O", "inline_data"]),
    ("quota", 4096, &["-t", "ext4", "-b", "4096", "-O", "quota"]),
    ("no sums", 4096, &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum"]),
    ("bigalloc", 8192, &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"]),
];

/// An image full of bytes that must never show.
fn make(layout: &Layout, mib: usize) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    fs::write(&path, vec![0xa5; mib << 20]).map_err(|error| error.to_string())?;
    mke2fs(&path, &format!("{mib}M"), layout.2)?;
    Ok(Arc::new(image::load(&path)))
}

fn mount(device: &Arc<MemoryDevice>) -> Fs {
    let device: SharedDevice = Arc::clone(device) as SharedDevice;
    MountOptions::new().read_only(false).seed(3).open_shared(device).unwrap()
}

#[track_caller]
fn check(device: &MemoryDevice, what: &str) {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    let report = e2fsck(&path).unwrap();
    assert!(report.is_clean(), "{what}: {}", report.text);
}

fn create(fs: &Fs, name: &str) -> Inode {
    fs.root().unwrap().create(name, &NewInode::root(0o644)).unwrap()
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Prng::new(seed).fill(&mut bytes);
    // No zeros: a lost byte shows.
    bytes.iter_mut().for_each(|byte| *byte |= 1);
    bytes
}

#[track_caller]
fn same(read: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(read.len(), wanted.len(), "{what}: size");
    if let Some(bad) = (0..read.len()).find(|at| read[*at] != wanted[*at]) {
        panic!("{what}: byte {bad} is {:#x}, not {:#x}", read[bad], wanted[bad]);
    }
}

/// Gives a file `count` times 8 KiB at its end, but not less than a block.
fn append_space(inode: &Inode, unit: u64, count: u64) {
    let step = unit.max(8 << 10);
    for _ in 0..count {
        let end = inode.metadata().size.next_multiple_of(unit);
        inode.fallocate(Fallocate::Allocate { keep_size: false }, end..end + step).unwrap();
        assert_eq!(inode.metadata().size, end + step);
    }
}

#[test]
fn space_behind_the_end_is_had_without_a_search() {
    // With clusters, blocks of one that the file has already go another way.
    for layout in LAYOUTS.iter().filter(|layout| layout.0 != "bigalloc") {
        let device = require!(make(layout, 64));
        let fs = mount(&device);
        let inode = create(&fs, "file");
        append_space(&inode, layout.1, 1);
        let count = || fs.writer_stats().unwrap().allocator;
        let before = count();
        append_space(&inode, layout.1, 300);
        let (after, name) = (count(), layout.0);
        let searches = after.groups_searched - before.groups_searched;
        // At the end of a group it goes on elsewhere.
        assert!(after.extended - before.extended >= 290, "{name}: {before:?} to {after:?}");
        assert!(searches <= 20, "{name}: {searches} searches");
        assert!(inode.read_all().unwrap().iter().all(|byte| *byte == 0), "{name}");
        let pieces = inode.fiemap(0..u64::MAX, 1000, true).unwrap().len();
        assert!(pieces <= 8, "{name}: {pieces} pieces");
        drop(inode);
        fs.unmount().unwrap();
        check(&device, name);
    }
}

#[test]
fn space_behind_the_end_of_a_deep_tree_is_one_longer_record_of_its_last_leaf() {
    for layout in &LAYOUTS[..2] {
        let device = require!(make(layout, 64));
        let fs = mount(&device);
        let inode = create(&fs, "file");
        let (unit, mode) = (layout.1, Fallocate::Allocate { keep_size: false });
        // 1500 extents with holes between them: two levels of blocks of 1 KiB.
        for at in 0..1500 {
            inode.fallocate(mode, 2 * at * unit..(2 * at + 1) * unit).unwrap();
        }
        let runs = inode.fiemap(0..u64::MAX, 5000, true).unwrap().len();
        let extended = || fs.writer_stats().unwrap().allocator.extended;
        append_space(&inode, unit, 1);
        let before = extended();
        append_space(&inode, unit, 100);
        fs.sync().unwrap();
        append_space(&inode, unit, 100);
        assert!(extended() - before >= 190, "{}: {}", layout.0, extended() - before);
        let after = inode.fiemap(0..u64::MAX, 5000, true).unwrap();
        assert!(after.len() <= runs + 4, "{}: {} after {runs} pieces", layout.0, after.len());
        let space: u64 = after.iter().map(|run| run.len).sum();
        assert_eq!(space, 1499 * unit + unit + 201 * (8 << 10), "{}", layout.0);
        fs.sync().unwrap();
        if layout.0 != "no log" {
            // Without one the totals are told when it is unmounted.
            check(&device.snapshot(), layout.0);
        }
        // What is written there later is read, and what is behind it is still nothing.
        let end = inode.metadata().size;
        inode.write_at(&pattern(3000, 9), end - 5000).unwrap();
        inode.sync().unwrap();
        let mut read = vec![1; 5000];
        inode.read_at(&mut read, end - 5000).unwrap();
        same(&read[..3000], &pattern(3000, 9), layout.0);
        assert!(read[3000..].iter().all(|byte| *byte == 0));
        drop(inode);
        fs.unmount().unwrap();
        check(&device, layout.0);
    }
}

#[test]
fn files_that_are_given_space_in_turns_share_no_block() {
    for layout in LAYOUTS {
        let device = require!(make(layout, 64));
        let fs = mount(&device);
        let files: Vec<Inode> = (0..7).map(|at| create(&fs, &format!("f{at}"))).collect();
        let mut random = Prng::new(5);
        for _ in 0..400 {
            let file = &files[random.below(7) as usize];
            match random.below(20) {
                0 => file.truncate(random.below(file.metadata().size + 1)).unwrap(),
                1 => fs.sync().unwrap(),
                2 => {
                    let end = file.metadata().size;
                    file.write_at(&pattern(random.below(20_000) as usize + 1, end), end).unwrap();
                }
                3 => {
                    let end = file.metadata().size;
                    let mode = Fallocate::Allocate { keep_size: true };
                    file.fallocate(mode, end..end + random.below(50_000) + 1).unwrap();
                }
                _ => append_space(file, layout.1, 1 + random.below(4)),
            }
        }
        drop(files);
        fs.unmount().unwrap();
        check(&device, layout.0);
    }
}
