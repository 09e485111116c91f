//! Images made to hurt: no panic, no endless loop, whatever the bytes.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_base::Prng;
use extant_block::{
    BlockDevice, DeviceError, DeviceFault, MemoryDevice, Operation, OperationKind, Pending,
};
use extant_check::{CheckError, CheckOptions, Problem, check};
use extant_testkit::{image, oracle, require, tempdir};

fn damage(good: &MemoryDevice, used: &[u64], random: &mut Prng, changes: u64) -> MemoryDevice {
    let device = good.snapshot();
    for _ in 0..changes {
        let block = used[random.below(used.len() as u64) as usize];
        let mut value = [0; 8];
        random.fill(&mut value);
        if random.one_in(3) {
            // Small numbers are more often believed.
            value = (random.below(4000)).to_le_bytes();
        }
        let len = 1 << random.below(4);
        let at = block * 1024 + random.below(1024 / len as u64) * len as u64;
        device.write_at(at, &value[..len]).unwrap();
    }
    device
}

/// What is found, and in which order, does not depend on the number of threads.
fn same_with_any_threads(device: &MemoryDevice, what: &str) {
    let found = [1, 2, 8].map(|threads| {
        let threads = NonZeroUsize::new(threads);
        let options = CheckOptions { threads, max_problems: usize::MAX, ..CheckOptions::default() };
        check(device, &options).map_err(|error| error.to_string())
    });
    assert_eq!(found[0], found[1], "{what}: 2 threads");
    assert_eq!(found[0], found[2], "{what}: 8 threads");
}

fn run(features: &[&str], rounds: u64, seed: u64) {
    let dir = tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("d/e")).unwrap();
    for number in 0..60 {
        fs::write(source.join(format!("d/{number:0100}")), []).unwrap();
    }
    fs::write(source.join("big"), vec![3; 300_000]).unwrap();
    let path = dir.path().join("good.img");
    let from = source.display().to_string();
    let arguments: Vec<&str> = features.iter().copied().chain(["-N128", "-d", &from]).collect();
    require!(oracle::mke2fs(&path, "2M", &arguments));
    let good = image::load(&path);
    let mut bytes = vec![0; good.size_bytes() as usize];
    good.read_at(0, &mut bytes).unwrap();
    let is_used = |block: &[u8]| block.iter().any(|byte| *byte != 0) && block[..9] != [3; 9];
    let blocks = bytes.chunks(1024).enumerate().filter(|(_, block)| is_used(block));
    let used: Vec<u64> = blocks.map(|(number, _)| number as u64).collect();
    let mut random = Prng::new(seed);
    let mut unclean = 0;
    for round in 0..rounds {
        let changes = 1 + random.below(60);
        let device = damage(&good, &used, &mut random, changes);
        if round % 3 == 0 {
            same_with_any_threads(&device, &format!("{features:?} {seed} {round}"));
        }
        match check(&device, &CheckOptions::default()) {
            Ok(report) => unclean += u64::from(!report.is_clean()),
            Err(CheckError::Device(e)) => panic!("{features:?} {seed} {round}: {e}"),
            Err(_) => unclean += 1,
        }
    }
    assert!(unclean > rounds / 2, "{unclean} of {rounds} unclean");
}

#[test]
fn nothing_panics() {
    run(&["-text2", "-b1024"], 300, 1);
    run(&["-text4", "-b1024", "-O^metadata_csum"], 300, 2);
    run(&["-text4", "-b1024", "-Oquota,inline_data"], 300, 3);
    // Eight groups, so that threads meet.
    run(&["-text4", "-b1024", "-g256", "-O^metadata_csum,^resize_inode"], 300, 4);
}

/// A device that cannot read some blocks.
struct Failing {
    below: MemoryDevice,
    blocks: Vec<u64>,
}

impl BlockDevice for Failing {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        self.below.submit(batch)
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn describe(&self) -> Arc<str> {
        self.below.describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let end = offset + out.len() as u64;
        if self.blocks.iter().any(|block| offset < (block + 1) * 1024 && block * 1024 < end) {
            let fault = DeviceFault::Io(std::io::Error::from_raw_os_error(5));
            let (kind, len) = (OperationKind::Read, out.len() as u64);
            return Err(DeviceError::new(self.describe(), kind, offset, len, fault));
        }
        self.below.read_at(offset, out)
    }
}

#[test]
fn blocks_that_cannot_be_read_are_named_and_the_rest_is_checked() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("d")).unwrap();
    for number in 0..60 {
        fs::write(source.join(format!("d/{number:0100}")), []).unwrap();
    }
    let from = source.display().to_string();
    let features = ["-text4", "-b1024", "-O^metadata_csum,^has_journal", "-N128", "-d", &from];
    require!(oracle::mke2fs(&path, "2M", &features));
    let blocks_of = |file: &str| -> Vec<u64> {
        let text = oracle::debugfs(&path, false, &format!("blocks {file}")).unwrap();
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let directory = blocks_of("/d")[3];
    let text = oracle::debugfs(&path, false, "imap /d").unwrap();
    let table = text.split("located at block ").nth(1).unwrap();
    let table: u64 = table.split([',', ' ']).next().unwrap().parse().unwrap();
    let good = image::load(&path);
    // Something else that is wrong: the state.
    good.write_at(1024 + 0x3a, &[0]).unwrap();
    for (block, what) in [(directory, "directory 12"), (table, "the inode table of group 0")] {
        let device = Failing { below: good.snapshot(), blocks: vec![block] };
        let strict = check(&device, &CheckOptions::default());
        assert!(matches!(strict, Err(CheckError::Device(_))), "{strict:?}");
        for threads in [1, 2] {
            let options = CheckOptions {
                threads: NonZeroUsize::new(threads),
                skip_unreadable: true,
                ..CheckOptions::default()
            };
            let report = check(&device, &options).unwrap();
            assert!(report.is_partial);
            let unread: Vec<_> = report.problems.iter().filter_map(unread).collect();
            assert_eq!(unread, [(block, what)], "{:?}", report.problems);
            assert!(report.problems.iter().any(|p| matches!(p, Problem::State { .. })));
            let is_count = |p: &Problem| matches!(p, Problem::GroupCount { .. });
            assert!(!report.problems.iter().any(is_count), "{:?}", report.problems);
        }
    }
}

/// Each block that a check reads, of an image that has everything: without it the check fails, or goes on and names it.
#[test]
fn no_block_that_cannot_be_read_goes_unnoticed() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("d")).unwrap();
    for number in 0..40 {
        fs::write(source.join(format!("d/{number:0100}")), []).unwrap();
    }
    std::os::unix::fs::symlink("t".repeat(100), source.join("link")).unwrap();
    let sparse = fs::File::create(source.join("sparse")).unwrap();
    for hole in 0..12 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[1; 512], hole * 9000).unwrap();
    }
    let from = source.display().to_string();
    let features = "-Oquota,orphan_file,ea_inode,mmp,^metadata_csum,^uninit_bg,^flex_bg";
    let words = ["-text4", "-b1024", features, "-g1024", "-Jsize=1", "-N256", "-d", &from];
    require!(oracle::mke2fs(&path, "3M", &words));
    for (name, len) in [("value", 400), ("large", 3000)] {
        fs::write(dir.path().join(name), vec![b'v'; len]).unwrap();
    }
    let place = dir.path().display();
    let attributes = format!(
        "ea_set -f {place}/value /sparse user.value\nea_set -f {place}/large /sparse user.large"
    );
    oracle::debugfs(&path, true, &attributes).unwrap();
    oracle::e2fsck_as(&path, "-fyD", &[]).unwrap();
    let good = image::load(&path);
    assert_eq!(check(&good, &CheckOptions::default()).unwrap().problems, []);
    let lenient = CheckOptions { skip_unreadable: true, ..CheckOptions::default() };
    let mut named = std::collections::BTreeSet::new();
    let mut said = Vec::new();
    // The superblock itself is in block 1.
    for block in 2..3072 {
        let device = Failing { below: good.snapshot(), blocks: vec![block] };
        // It may be one that is not needed: contents, copies of what has been read, free space.
        let error = match check(&device, &CheckOptions::default()) {
            Ok(report) => {
                assert!(!report.is_partial && report.is_clean(), "block {block}: {report:?}");
                continue;
            }
            Err(error) => error,
        };
        assert!(matches!(error, CheckError::Device(_)), "block {block}: {error}");
        let report = match check(&device, &lenient) {
            // Nothing can be said without descriptors.
            Err(CheckError::Device(_)) if block == 2 => continue,
            report => report.unwrap(),
        };
        assert!(report.is_partial, "block {block}");
        let unread: Vec<_> = report.problems.iter().filter_map(unread).collect();
        assert!(unread.iter().any(|(at, _)| *at == block), "block {block}: {unread:?}");
        if unread.len() != report.problems.len() {
            said.push((block, report.problems.clone()));
        }
        let kind = |what: &str| what.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
        named.extend(unread.iter().map(|(_, what)| kind(what)));
    }
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    assert_eq!(named, UNREADABLE);
    assert_eq!(said, [], "what was not read is not damaged, nor is what only leads there");
}

/// Everything that an image has and that a check reads.
const UNREADABLE: [&str; 13] = [
    "a quota file",
    "directory ",
    "inode ",
    "the attributes of inode ",
    "the block bitmap of group ",
    "the block for multiple-mount protection",
    "the extents of inode ",
    "the index of directory ",
    "the inode bitmap of group ",
    "the inode table of group ",
    "the journal",
    "the orphan file",
    "the resize inode",
];

fn unread(problem: &Problem) -> Option<(u64, &str)> {
    match problem {
        Problem::Unreadable { what, block, .. } => Some((block.0, what)),
        _ => None,
    }
}

/// A file system without checksums in one group, and where its inodes are. What an image is made of
/// here is written by hand: no tool writes such things.
struct Raw {
    device: MemoryDevice,
    table: u64,
    inode_bytes: u64,
}

impl Raw {
    fn new(dir: &Path, size: &str, arguments: &[&str]) -> Result<Raw, String> {
        let path = dir.join("raw.img");
        let _removed = fs::remove_file(&path);
        let common = ["-b1024", "-E", "lazy_itable_init=0"];
        let arguments: Vec<&str> = arguments.iter().chain(&common).copied().collect();
        oracle::mke2fs(&path, size, &arguments)?;
        let device = image::load(&path);
        let mut raw = Raw { device, table: 0, inode_bytes: 0 };
        raw.table = u64::from(raw.u32(2048 + 8)) * 1024;
        raw.inode_bytes = u64::from(raw.u32(1024 + 0x58) & 0xffff);
        Ok(raw)
    }

    fn u32(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.device.read_at(at, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.device.write_at(at, bytes).unwrap();
    }

    /// Writes mode, links, size, flags and `i_block` of an inode.
    fn inode(&self, ino: u32, mode: u16, size: u32, flags: u32, map: &[u32]) {
        let at = self.table + u64::from(ino - 1) * self.inode_bytes;
        let mut record = [0; 128];
        record[..2].copy_from_slice(&mode.to_le_bytes());
        record[4..8].copy_from_slice(&size.to_le_bytes());
        record[0x1a] = 2;
        record[0x20..0x24].copy_from_slice(&flags.to_le_bytes());
        for (slot, word) in record[0x28..0x64].as_chunks_mut::<4>().0.iter_mut().zip(map) {
            *slot = word.to_le_bytes();
        }
        self.write(at, &record);
    }
}

/// A directory block with `.`, `..` and one name.
fn dir_block(own: u32, parent: u32, child: u32) -> [u8; 1024] {
    let mut block = [0; 1024];
    let mut at = 0;
    for (ino, len, name) in [(own, 12u16, "."), (parent, 12, ".."), (child, 1000, "c")] {
        block[at..at + 4].copy_from_slice(&ino.to_le_bytes());
        block[at + 4..at + 6].copy_from_slice(&len.to_le_bytes());
        block[at + 6..at + 8].copy_from_slice(&[name.len() as u8, 2]);
        block[at + 8..at + 8 + name.len()].copy_from_slice(name.as_bytes());
        at += usize::from(len);
    }
    block
}

/// A device that counts what is read.
struct Counting {
    below: MemoryDevice,
    bytes: AtomicU64,
}

impl BlockDevice for Counting {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        self.below.submit(batch)
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn describe(&self) -> Arc<str> {
        self.below.describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.below.read_at(offset, out)
    }
}

#[test]
fn a_chain_of_thousands_of_directories_has_no_end_in_the_stack() {
    let dir = tempdir().unwrap();
    let features = ["-text4", "-O^metadata_csum,^uninit_bg,^has_journal,^resize_inode", "-N7900"];
    let raw = require!(Raw::new(dir.path(), "8M", &[&features[..], &["-I128"]].concat()));
    let root = u64::from(raw.u32(raw.table + raw.inode_bytes + 0x28 + 20));
    let (first, last, blocks) = (12u32, 6000u32, 2000u32);
    raw.write(root * 1024, &dir_block(2, 2, first));
    for ino in first..=last {
        let block = blocks + ino;
        let (parent, child) = (if ino == first { 2 } else { ino - 1 }, ino + 1);
        raw.inode(ino, 0o040_755, 1024, 0, &[block]);
        raw.write(u64::from(block) * 1024, &dir_block(ino, parent, child));
    }
    let is_about_ways =
        |p: &&Problem| matches!(p, Problem::Unreachable { .. } | Problem::Loop { .. });
    let ways = |device: &MemoryDevice| {
        let options = CheckOptions { max_problems: usize::MAX, ..CheckOptions::default() };
        let problems = check(device, &options).unwrap().problems;
        problems.iter().filter(is_about_ways).map(Problem::to_string).collect::<Vec<_>>()
    };
    // `lost+found` has no name any more.
    let lost = ways(&raw.device);
    assert_eq!(lost.len(), 1, "{lost:?}");
    same_with_any_threads(&raw.device, "chain");
    // Its end leads to its beginning, and nothing else does.
    raw.write(root * 1024, &dir_block(2, 2, 11));
    let end = dir_block(last, last - 1, first);
    raw.write(u64::from(blocks + last) * 1024, &end);
    let found = ways(&raw.device);
    assert_eq!(found.len(), 1, "{found:?}");
    same_with_any_threads(&raw.device, "loop");
}

#[test]
fn directories_that_claim_everything_are_not_read_without_end() {
    let dir = tempdir().unwrap();
    let features = ["-text4", "-O^metadata_csum,^uninit_bg,^has_journal,^resize_inode", "-N2000"];
    let raw = require!(Raw::new(dir.path(), "8M", &[&features[..], &["-I128"]].concat()));
    // Four extents each, all of the same 7000 blocks: 50 GiB of directories in 8 MiB.
    let header = [0x0004_f30a, 4, 0];
    let mut map = Vec::from(header);
    for number in 0..4 {
        map.extend([number * 7000, 7000, 1000]);
    }
    for ino in 12..1900 {
        raw.inode(ino, 0o040_755, 4 * 7000 * 1024, 0x8_0000, &map);
    }
    same_with_any_threads(&raw.device, "claims");
    for threads in [1, 8] {
        let device = Counting { below: raw.device.snapshot(), bytes: AtomicU64::new(0) };
        let threads = NonZeroUsize::new(threads);
        let report = check(&device, &CheckOptions { threads, ..CheckOptions::default() }).unwrap();
        assert!(report.dropped > 1888, "{}", report.dropped);
        let bytes = device.bytes.load(Ordering::Relaxed);
        assert!(bytes < 4 * device.size_bytes(), "{bytes} bytes read");
    }
}

#[test]
fn more_problems_than_are_held_are_told_in_the_same_order() {
    let dir = tempdir().unwrap();
    let features = ["-text2", "-O^resize_inode", "-N64", "-I128"];
    let raw = require!(Raw::new(dir.path(), "8M", &features));
    // Files whose blocks do not exist, each a problem of its own: 256 by 256 for each file.
    let mut next = 1000u32;
    for ino in 12..14 {
        let top = next;
        let leaves: Vec<u32> = (top + 1..top + 257).collect();
        next += 257;
        let mut map = [0; 15];
        map[13] = top;
        raw.inode(ino, 0o100_644, 0, 0, &map);
        let words =
            |list: &[u32]| list.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        raw.write(u64::from(top) * 1024, &words(&leaves));
        for leaf in leaves {
            let nowhere: Vec<u32> =
                (0..256).map(|slot| 0xf000_0000 - leaf * 512 - slot * 2).collect();
            raw.write(u64::from(leaf) * 1024, &words(&nowhere));
        }
    }
    let report = check(&raw.device, &CheckOptions::default()).unwrap();
    assert!(report.dropped > 3 << 15, "{}", report.dropped);
    same_with_any_threads(&raw.device, "problems");
}

#[test]
#[ignore = "minutes"]
fn nothing_panics_long() {
    run(&["-text2", "-b1024"], 20_000, 11);
    run(&["-text4", "-b1024", "-O^metadata_csum,quota"], 20_000, 12);
    run(&["-text4", "-b1024", "-Obigalloc,^has_journal,^metadata_csum"], 20_000, 13);
}
