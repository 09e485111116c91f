//! Damage of one structure: whatever e2fsck calls unclean, we call unclean, and the other way
//! round.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice};
use extant_check::{CheckError, CheckOptions, check};
use extant_testkit::oracle::LoopMount;
use extant_testkit::tree::{self, TreeOptions};
use extant_testkit::{TempDir, image, oracle, require, tempdir};

/// A small image with a bit of everything.
fn sample(dir: &TempDir, features: &[&str]) -> Result<PathBuf, String> {
    let source = dir.path().join("source");
    if !source.exists() {
        fs::create_dir_all(source.join("d/e")).unwrap();
        fs::create_dir(source.join("many")).unwrap();
        for number in 0..120 {
            fs::write(source.join(format!("many/a long name for many blocks {number:040}")), [])
                .unwrap();
        }
        for number in 0..12 {
            fs::write(source.join(format!("d/file{number}")), vec![3; number * 3000]).unwrap();
        }
        fs::hard_link(source.join("d/file1"), source.join("d/e/again")).unwrap();
        symlink("x".repeat(40), source.join("d/fast")).unwrap();
        symlink("x".repeat(140), source.join("d/slow")).unwrap();
        use std::os::unix::fs::FileExt;
        let sparse = fs::File::create(source.join("sparse")).unwrap();
        for hole in 0..12 {
            sparse.write_all_at(&[1; 512], hole * 9000).unwrap();
        }
    }
    let path = dir.path().join("sample.img");
    let from = source.display().to_string();
    let arguments: Vec<&str> = features.iter().copied().chain(["-N256", "-d", &from]).collect();
    let _removed = fs::remove_file(&path);
    oracle::mke2fs(&path, "2M", &arguments)?;
    Ok(path)
}

/// A larger one, written by the kernel: with an index, attributes in blocks and removed files.
fn kernel_sample(dir: &TempDir, features: &[&str]) -> Result<PathBuf, String> {
    oracle::root("mounts an image")?;
    let path = dir.path().join("kernel.img");
    let arguments: Vec<&str> = features.iter().copied().chain(["-N1024"]).collect();
    oracle::mke2fs(&path, "6M", &arguments)?;
    let mount = LoopMount::read_write(&path)?;
    let root = mount.path();
    for name in ["all", "many"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    let options = TreeOptions { files: 12, big_directory_entries: 40, ..TreeOptions::default() };
    tree::make(&root.join("all"), &options);
    for number in 0..300 {
        fs::write(root.join(format!("many/a long name for many blocks {number:060}")), []).unwrap();
    }
    for number in (0..300).step_by(4) {
        fs::remove_file(root.join(format!("many/a long name for many blocks {number:060}")))
            .unwrap();
    }
    Ok(path)
}

/// Bytes that are metadata: all blocks that are not zero, and not file contents of threes.
fn targets(device: &MemoryDevice) -> Vec<u64> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    let mut list = Vec::new();
    for (number, block) in bytes.chunks(1024).enumerate() {
        if number < 1 || block.iter().all(|byte| *byte == 0) || block[..64] == [3; 64] {
            continue;
        }
        list.extend(
            (0..block.len())
                .filter(|at| {
                    // In the neighbourhood of something.
                    let from = at.saturating_sub(8);
                    block[from..(at + 8).min(block.len())].iter().any(|byte| *byte != 0)
                })
                .map(|at| (number * 1024 + at) as u64),
        );
    }
    list
}

/// Where we are stricter: each of these is damage that e2fsck does not look for.
const ONLY_OURS: [&str; 13] = [
    // The kernel refuses an index without records; to it, the tree could be shorter.
    "has no records",
    // It compares the names of one block only.
    "is there twice",
    "without huge_file",
    "without verity",
    "what an inode of a value may be",
    // It looks at the first number of each list.
    "the resize inode: its lists",
    // It follows neither the orphan list nor the log when it may not write.
    "orphan ",
    "journal log starts",
    // In inline directories a missing type, in attributes what it does not need itself.
    "says Unknown",
    "has a NUL in its name",
    "has another size",
    "has no name",
    // It looks at fewer words behind a device number.
    "its number is followed",
];

fn is_excepted(ours: &[String], fsck: &str) -> bool {
    if ours.is_empty() {
        // We do not know the time, nor which years are likely.
        let is_time = ["is in the future", "are likely pre-1970"].iter().any(|t| fsck.contains(t));
        return is_time && fsck.matches("? no").count() == 1;
    }
    let follows = ["holds an attribute's value", "nothing leads to it", "has no value"];
    let known = |text: &String| ONLY_OURS.iter().chain(&follows).any(|part| text.contains(part));
    ours.iter().all(known) && ours.iter().any(|text| ONLY_OURS.iter().any(|p| text.contains(p)))
}

fn sweep(features: &[&str], rounds: u64, seed: u64) {
    let dir = tempdir().unwrap();
    let path = require!(match features.first() {
        Some(&"kernel") => kernel_sample(&dir, &features[1..]),
        _ => sample(&dir, features),
    });
    let good = image::load(&path);
    let report = check(&good, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{features:?}: {:?}", report.problems);
    let targets = targets(&good);
    let mut random = Prng::new(seed);
    let mutant = dir.path().join("mutant.img");
    let mut differences = Vec::new();
    for round in 0..rounds {
        let at = targets[random.below(targets.len() as u64) as usize];
        let device = good.snapshot();
        let mut byte = [0];
        device.read_at(at, &mut byte).unwrap();
        let old = byte[0];
        byte[0] = match random.below(3) {
            0 => old ^ (1 << random.below(8)),
            1 => old.wrapping_add(1),
            _ => random.below(256) as u8,
        };
        if byte[0] == old {
            continue;
        }
        device.write_at(at, &byte).unwrap();
        let ours: Vec<String> = match check(&device, &CheckOptions::default()) {
            Ok(report) => report.problems.iter().map(ToString::to_string).collect(),
            Err(CheckError::Device(e)) => panic!("{features:?} byte {at:#x}: {e}"),
            Err(e) => vec![e.to_string()],
        };
        write(&device, &mutant);
        let fsck = oracle::e2fsck(&mutant).unwrap();
        if fsck.is_clean() != ours.is_empty() && !is_excepted(&ours, &fsck.text) {
            differences.push(format!(
                "round {round}, byte {at:#x}: {old:#x} -> {:#x}\nwe: {ours:#?}\ne2fsck {:?}: {}",
                byte[0], fsck.status, fsck.text
            ));
        }
    }
    let all = differences.len();
    differences.truncate(12);
    assert!(all == 0, "{features:?}: {all} of {rounds}\n{}", differences.join("\n---\n"));
}

fn write(device: &MemoryDevice, path: &Path) {
    let _removed = fs::remove_file(path);
    image::save(device, path);
}

const PLAIN: &[&str] = &["-text4", "-b1024", "-O^metadata_csum,^uninit_bg"];
const EXT2: &[&str] = &["-text2", "-b1024"];
const CHECKSUMS: &[&str] = &["-text4", "-b1024", "-Oinline_data"];

/// Written by the kernel.
const KERNEL: &[&str] =
    &["kernel", "-text4", "-b1024", "-O^metadata_csum,^has_journal,inline_data,ea_inode"];
const BIGALLOC: &[&str] =
    &["kernel", "-text4", "-b1024", "-C4096", "-O^metadata_csum,^has_journal,bigalloc"];

#[test]
fn damage_seen_by_e2fsck_is_seen() {
    sweep(PLAIN, 60, 1);
    sweep(EXT2, 60, 2);
    sweep(CHECKSUMS, 60, 3);
    sweep(KERNEL, 60, 4);
}

fn rounds() -> u64 {
    std::env::var("EXTANT_CHECK_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2000)
}

#[test]
#[ignore = "minutes"]
fn long_sweep_without_checksums() {
    sweep(PLAIN, rounds(), 11);
}

#[test]
#[ignore = "minutes"]
fn long_sweep_of_ext2() {
    sweep(EXT2, rounds(), 12);
}

#[test]
#[ignore = "minutes"]
fn long_sweep_with_checksums() {
    sweep(CHECKSUMS, rounds(), 13);
}

#[test]
#[ignore = "minutes"]
fn long_sweep_of_a_kernel_image() {
    sweep(KERNEL, rounds(), 14);
}

#[test]
#[ignore = "minutes"]
fn long_sweep_of_clusters() {
    sweep(BIGALLOC, rounds(), 15);
}
