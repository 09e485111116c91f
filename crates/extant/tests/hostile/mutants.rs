//! Damaged images: no panic, no hang, no unbounded memory; and what is intact stays readable.

use std::time::Duration;

use crate::common;
use common::{read_everything, work_dir};
use extant::MountOptions;
use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice};
use extant_sync::{Clock, SystemClock};
use extant_testkit::oracle::{LoopMount, mke2fs};
use extant_testkit::require;

/// Mutants per image; `EXTANT_MUTANTS` asks for more, `EXTANT_SEED` for others.
const MUTANTS: u64 = 300;

const IMAGES: &[(&str, &[&str])] = &[
    ("ext2", &["-t", "ext2", "-b", "1024"]),
    ("ext4", &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]),
    ("ext4-no-csum", &["-t", "ext4", "-b", "1024", "-O", "^has_journal,^metadata_csum"]),
    ("inline", &["-t", "ext4", "-b", "1024", "-O", "^has_journal,^metadata_csum,inline_data"]),
    ("ea_inode", &["-t", "ext4", "-b", "1024", "-O", "^has_journal,^metadata_csum,ea_inode"]),
    ("journal", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum", "-J", "size=1"]),
    ("casefold", &["-t", "ext4", "-b", "1024", "-O", "^has_journal,casefold,^metadata_csum"]),
];

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// A small tree with something of everything.
fn source() -> extant_testkit::TempDir {
    let dir = work_dir();
    let root = dir.path().join("source");
    std::fs::create_dir_all(root.join("a/b/c")).unwrap();
    std::fs::create_dir_all(root.join("big")).unwrap();
    for index in 0..150 {
        std::fs::write(root.join(format!("big/file with a long name number {index}")), "x")
            .unwrap();
    }
    for (name, len) in [("tiny", 20), ("small", 130), ("block", 1024), ("large", 300_000)] {
        std::fs::write(root.join("a").join(name), vec![7u8; len]).unwrap();
    }
    let sparse = std::fs::File::create(root.join("a/b/sparse")).unwrap();
    for at in [0u64, 40_000, 9_000_000] {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[9; 3000], at).unwrap();
    }
    std::os::unix::fs::symlink("../a/tiny", root.join("a/link")).unwrap();
    std::os::unix::fs::symlink("y".repeat(200), root.join("a/long-link")).unwrap();
    for (name, value) in [("user.a", vec![1u8; 30]), ("user.b", vec![2; 400])] {
        let flags = rustix::fs::XattrFlags::empty();
        if let Err(errno) = rustix::fs::setxattr(root.join("a/small"), name, &value, flags) {
            println!("no attributes here: {errno}");
        }
    }
    dir
}

/// Goal: whatever bytes are wrong, opening, walking and reading end, without a panic, within
/// bounded time; and now and then something is still readable.
#[test]
fn random_corruptions_end_in_answers_or_errors() {
    let tree = source();
    let path = tree.path().join("source");
    for (name, options) in IMAGES {
        let image = tree.path().join(format!("{name}.img"));
        let mut arguments = options.to_vec();
        arguments.extend(["-N", "256", "-d", path.to_str().unwrap()]);
        require!(mke2fs(&image, "6M", &arguments));
        try_mutants(name, &extant_testkit::image::load(&image));
    }
}

/// Goal: the same for images with a dirty journal and fast commits, whose blocks are damaged too.
#[test]
fn random_corruptions_of_unclean_images_end_in_answers_or_errors() {
    let tree = source();
    let path = tree.path().join("source");
    for (name, options) in [
        ("dirty", ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]),
        ("dirty-fast-commit", ["-t", "ext4", "-b", "1024", "-O", "fast_commit"]),
    ] {
        let image = tree.path().join(format!("{name}.img"));
        let mut arguments = options.to_vec();
        arguments.extend(["-N", "256", "-J", "size=4", "-d", path.to_str().unwrap()]);
        require!(mke2fs(&image, "12M", &arguments));
        let flags = rustix::mount::MountFlags::empty();
        let mount = require!(LoopMount::new(&image, flags, "commit=3600"));
        for index in 0..20 {
            let file = mount.path().join(format!("a/new-{index}"));
            std::fs::write(&file, [index; 3000]).unwrap();
            std::fs::File::open(&file).unwrap().sync_all().unwrap();
        }
        std::fs::File::open(mount.device()).unwrap().sync_all().unwrap();
        let whole = extant_testkit::image::load(&image);
        drop(mount);
        let summary = MountOptions::new().open(whole.snapshot()).unwrap().replayed().cloned();
        let summary = summary.expect("a dirty journal");
        assert_eq!(summary.fast_commits > 0, name == "dirty-fast-commit", "{summary:?}");
        try_mutants(name, &whole);
    }
}

fn try_mutants(name: &str, whole: &MemoryDevice) {
    let mutants = number("EXTANT_MUTANTS", MUTANTS);
    let seed = number("EXTANT_SEED", 1);
    let clean = MountOptions::new().open(whole.snapshot()).unwrap();
    assert_eq!(read_everything(&clean, u64::MAX), [""; 0], "{name}: the image itself");
    let hot = hot_blocks(whole);
    assert!(hot.len() > 20, "{name}");
    let (mut opened, mut damaged) = (0, 0);
    for mutant in 0..mutants {
        let mut random = Prng::new(seed.wrapping_mul(0x1_0000_0001).wrapping_add(mutant));
        let device = whole.snapshot();
        for _ in 0..=random.below(12) {
            corrupt(&device, &hot, &mut random);
        }
        let begin = SystemClock.monotonic();
        let verify = random.one_in(3);
        let options = MountOptions::new().verify_checksums(verify).cache_bytes(1 << 20);
        if let Ok(fs) = options.open(device) {
            opened += 1;
            damaged += u64::from(!read_everything(&fs, 64 << 20).is_empty());
            let _ = fs.statfs();
        }
        let taken = SystemClock.monotonic().saturating_sub(begin);
        assert!(taken < Duration::from_secs(20), "{name}: mutant {mutant} took {taken:?}");
    }
    println!("{name}: {opened} of {mutants} opened, {damaged} with damage seen");
    assert!(opened > mutants / 3, "{name}: hardly any mutant opens: the test tests little");
    assert!(damaged > mutants / 10, "{name}: hardly any damage is met");
}

/// Blocks of 1 KiB that hold metadata of some kind: not all zero, not all one byte.
fn hot_blocks(device: &MemoryDevice) -> Vec<u64> {
    let mut hot = Vec::new();
    let mut block = vec![0; 1024];
    for at in 0..device.size_bytes() / 1024 {
        device.read_at(at * 1024, &mut block).unwrap();
        if block.iter().any(|byte| *byte != block[0]) {
            hot.push(at);
        }
    }
    hot
}

/// One damage: a byte, a word of a telling value, a copied block, or a run of noise.
fn corrupt(device: &MemoryDevice, hot: &[u64], random: &mut Prng) {
    let pick = |random: &mut Prng| hot[random.below(hot.len() as u64) as usize] * 1024;
    let block = pick(random);
    let at = block + random.below(1024);
    match random.below(5) {
        0 => device.write_at(at, &[random.next_u64() as u8]).unwrap(),
        1 | 2 => {
            let telling =
                [0, 1, 2, 7, 8, 11, 12, 0x7fff, 0x8000, 0xffff, 1 << 31, u32::MAX, 0xf30a];
            let value = telling[random.below(telling.len() as u64) as usize];
            let at = block + random.below(255) * 4;
            device.write_at(at, &value.to_le_bytes()).unwrap();
        }
        3 => {
            let mut bytes = vec![0; 1024];
            device.read_at(pick(random), &mut bytes).unwrap();
            device.write_at(block, &bytes).unwrap();
        }
        _ => {
            let mut bytes = vec![0; random.below(40) as usize + 1];
            random.fill(&mut bytes);
            let at = at.min(device.size_bytes() - bytes.len() as u64);
            device.write_at(at, &bytes).unwrap();
        }
    }
}
