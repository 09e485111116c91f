//! What the tests of repairs share: repairing in memory, and what can be read of an image.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use extant::{Fs, MountOptions};
use extant_base::{Ino, Prng};
use extant_block::{BlockDevice, MemoryDevice, SharedDevice};
use extant_check::{CheckOptions, check};
use extant_format::inode::FileKind;
use extant_repair::{Outcome, RepairError, RepairOptions, Yes, repair};
use extant_testkit::{image, oracle};

/// The time of all repairs: later than that of all images.
pub(crate) const NOW: i64 = 1_900_000_000;

/// The time of all that is in a sample.
const MADE: u32 = 1_750_000_000;

/// Contents that are compared, in bytes: the rest of a file counts by its size only.
const COMPARED_BYTES: usize = 1 << 20;

/// Feature sets of mke2fs, all with small blocks, so that every kind of structure is there.
pub(crate) const SETS: &[&[&str]] = &[
    &["-text2", "-b1024"],
    &["-text3", "-b1024", "-Jsize=1"],
    &["-text4", "-b1024", "-O^metadata_csum,uninit_bg", "-Jsize=1"],
    &["-text4", "-b1024", "-Oquota,project,inline_data,ea_inode", "-Jsize=1"],
    &["-text4", "-b1024", "-Obigalloc,^has_journal,^resize_inode", "-C4096"],
    &["-text4", "-b2048", "-Ometa_bg,^resize_inode,^flex_bg", "-Jsize=2"],
    &["-text4", "-b4096", "-Oorphan_file,metadata_csum_seed,large_dir", "-Jsize=4"],
    &["-text4", "-b1024", "-g1024", "-Osparse_super2,mmp", "-Jsize=1"],
];

pub(crate) fn sample(dir: &Path, features: &[&str]) -> Result<MemoryDevice, String> {
    let source = dir.join("source");
    if !source.exists() {
        use std::os::unix::fs::{FileExt, symlink};
        fs::create_dir_all(source.join("d/e/f")).unwrap();
        fs::create_dir(source.join("many")).unwrap();
        for number in 0..150 {
            let name = format!("many/a long name so that there are many blocks {number:040}");
            fs::write(source.join(name), []).unwrap();
        }
        for number in 0..20 {
            fs::write(
                source.join(format!("d/file{number}")),
                vec![number as u8 + 1; number * 3000],
            )
            .unwrap();
        }
        fs::hard_link(source.join("d/file3"), source.join("d/e/again")).unwrap();
        symlink("x".repeat(40), source.join("d/fast")).unwrap();
        symlink("x".repeat(140), source.join("d/slow")).unwrap();
        let sparse = fs::File::create(source.join("sparse")).unwrap();
        for hole in 0..40 {
            sparse.write_all_at(&[1; 512], hole * 9000).unwrap();
        }
    }
    let path = dir.join("sample.img");
    let from = source.display().to_string();
    let arguments: Vec<&str> = features.iter().copied().chain(["-N512", "-d", &from]).collect();
    let _removed = fs::remove_file(&path);
    oracle::mke2fs_at(&path, "12M", &arguments, MADE)?;
    // What mke2fs copies it does not count for quota.
    oracle::e2fsck_as(&path, "-fy", &[])?;
    // Which bytes of a record are zero depends on its times, and which bytes are damaged on that: with those of the
    // clock, a failure would not come again.
    let mut commands = String::new();
    // Those of quota as well, which have no names.
    let quotas = arguments.iter().any(|one| one.contains("quota")).then_some([3, 4, 12]);
    let named: Vec<u32> = seen_with(&image::load(&path), true).into_keys().collect();
    for ino in named.into_iter().chain(quotas.into_iter().flatten()) {
        for field in ["atime", "ctime", "mtime", "crtime"] {
            let _infallible = writeln!(commands, "sif <{ino}> {field} @{MADE}");
        }
    }
    oracle::debugfs(&path, true, &commands)?;
    Ok(image::load(&path))
}

/// What a repair of `device` would do; yes to everything.
pub(crate) fn planned(device: &MemoryDevice) -> Result<Outcome, RepairError> {
    let shared: SharedDevice = Arc::new(device.snapshot());
    repair(shared, &RepairOptions { now: NOW }, &mut Yes)
}

/// Repairs `device`.
pub(crate) fn repaired(device: &MemoryDevice) -> Result<Outcome, RepairError> {
    let outcome = planned(device)?;
    outcome.plan.apply(device).unwrap();
    Ok(outcome)
}

/// What is wrong with `device` by our checker, as text.
pub(crate) fn problems(device: &MemoryDevice) -> Vec<String> {
    match check(device, &CheckOptions::default()) {
        Ok(report) => report.problems.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

/// What e2fsck -fn finds wrong with `device`; empty: nothing. `optimize`: proposals count, too.
pub(crate) fn e2fsck(device: &MemoryDevice, dir: &Path, optimize: bool) -> Result<String, String> {
    let path = dir.join("fsck.img");
    let _removed = std::fs::remove_file(&path);
    image::save(device, &path);
    let report = oracle::e2fsck(&path)?;
    let proposes = optimize && report.text.contains("Optimize? no");
    // Which years are likely is not for us to say.
    let odd = report.text.matches("likely pre-1970").count();
    let only_years = report.status == Some(0) && report.text.matches("? no").count() == odd;
    Ok(if (report.is_clean() || only_years) && !proposes { String::new() } else { report.text })
}

/// A file that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) kind: FileKind,
    pub(crate) size: u64,
    /// Of the first bytes.
    pub(crate) hash: u64,
}

/// The first bytes of a file, up to `len`.
fn hash_of(inode: &extant::Inode, len: u64) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    if inode.kind() == FileKind::Symlink {
        inode.read_link().ok()?.hash(&mut hasher);
        return Some(hasher.finish());
    }
    let mut bytes = vec![0; (len as usize).min(COMPARED_BYTES)];
    let mut at = 0;
    while at < bytes.len() {
        match inode.read_at(&mut bytes[at..], at as u64) {
            Ok(0) => break,
            Ok(read) => at += read,
            Err(_) => return None,
        }
    }
    bytes.hash(&mut hasher);
    Some(hasher.finish())
}

fn open(device: &MemoryDevice) -> Option<Fs> {
    MountOptions::new().ignore_journal(true).open(device.snapshot()).ok()
}

/// Returns whether the image can be mounted, without its journal.
pub(crate) fn opens(device: &MemoryDevice) -> bool {
    open(device).is_some()
}

/// Everything that has a name and can be read, by inode number; without lost+found.
pub(crate) fn seen(device: &MemoryDevice) -> BTreeMap<u32, Seen> {
    seen_with(device, false)
}

fn seen_with(device: &MemoryDevice, with_lost: bool) -> BTreeMap<u32, Seen> {
    let mut all = BTreeMap::new();
    let Some(fs) = open(device) else { return all };
    let Ok(walk) = fs.walk("/") else { return all };
    for entry in walk.flatten() {
        let inode = entry.inode();
        // Which inode it has is for who makes it.
        if entry.path() == b"/lost+found" && !with_lost {
            continue;
        }
        // Reserved inodes have no names: one that leads there is damage.
        if inode.ino().0 < 11 && inode.ino() != Ino::ROOT {
            continue;
        }
        let (kind, size) = (inode.kind(), inode.size());
        let hash = match kind {
            FileKind::Regular | FileKind::Symlink => hash_of(inode, size),
            _ => Some(0),
        };
        if let Some(hash) = hash {
            all.insert(inode.ino().0, Seen { kind, size, hash });
        }
    }
    all
}

/// What of `before` is not in `device`, or is shorter, or has other contents.
pub(crate) fn losses(before: &BTreeMap<u32, Seen>, device: &MemoryDevice) -> Vec<String> {
    // A second name of lost+found may have been all that was seen of it.
    let after = seen_with(device, true);
    let fs = open(device);
    let mut losses = Vec::new();
    for (ino, old) in before {
        let Some(new) = after.get(ino) else {
            // An empty file that lost its name is deleted, by e2fsck too.
            if old.kind != FileKind::Regular || old.size > 0 {
                losses.push(format!("inode {ino} is gone: {old:?}"));
            }
            continue;
        };
        if new.kind != old.kind {
            losses.push(format!("inode {ino} was {:?}, is {:?}", old.kind, new.kind));
        } else if matches!(old.kind, FileKind::Regular | FileKind::Symlink) {
            if new.size < old.size {
                losses.push(format!("inode {ino} had {} bytes, has {}", old.size, new.size));
            } else if new.hash != old.hash {
                let same = fs.as_ref().and_then(|fs| {
                    let inode = fs.inode(Ino(*ino)).ok()?;
                    Some(hash_of(&inode, old.size)? == old.hash)
                });
                if same != Some(true) {
                    losses.push(format!("inode {ino} has other contents"));
                }
            }
        }
    }
    losses
}

/// The writes of a plan, torn into pieces of 1 KiB.
pub(crate) fn pieces(outcome: &Outcome) -> Vec<(u64, &[u8])> {
    let torn = |(offset, bytes): (u64, &'_ [u8])| {
        let starts = (0..bytes.len()).step_by(1024);
        starts.map(|at| (offset + at as u64, at, bytes.len().min(at + 1024))).collect::<Vec<_>>()
    };
    outcome
        .plan
        .writes()
        .flat_map(|write| {
            torn(write).into_iter().map(move |(offset, from, to)| (offset, &write.1[from..to]))
        })
        .collect()
}

/// Writes the first `cut` pieces of a plan.
pub(crate) fn cut_at(device: &MemoryDevice, outcome: &Outcome, cut: usize) {
    for (offset, bytes) in pieces(outcome).into_iter().take(cut) {
        device.write_at(offset, bytes).unwrap();
    }
}

/// Blocks that hold metadata: all that are not zero and not contents of a file.
pub(crate) fn metadata(device: &MemoryDevice) -> Vec<u64> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    let mut list = Vec::new();
    for (number, block) in bytes.chunks(1024).enumerate() {
        let first = block[0];
        let is_filled = block.iter().take(512).all(|byte| *byte == first);
        // Block 1 is the superblock: a test of its own is on that.
        if number >= 2 && !(is_filled && first < 64) {
            list.push(number as u64);
        }
    }
    list
}

/// One damage: some bytes of one kilobyte.
pub(crate) fn damage(device: &MemoryDevice, blocks: &[u64], random: &mut Prng) {
    let block = blocks[random.below(blocks.len() as u64) as usize];
    let mut bytes = [0; 1024];
    device.read_at(block * 1024, &mut bytes).unwrap();
    match random.below(8) {
        // The whole of it: zeros, noise, or what lies somewhere else.
        0 => bytes.fill(0),
        1 => random.fill(&mut bytes),
        2 => {
            let other = blocks[random.below(blocks.len() as u64) as usize];
            device.read_at(other * 1024, &mut bytes).unwrap();
        }
        // A field: of one, two or four bytes, small numbers more often.
        _ => {
            for _field in 0..=random.below(3) {
                let len = 1 << random.below(3);
                let used: Vec<usize> =
                    (0..1024 / len).map(|at| at * len).filter(|at| bytes[*at] != 0).collect();
                let Some(at) = used.get(random.below(used.len().max(1) as u64) as usize) else {
                    continue;
                };
                let value = match random.below(3) {
                    0 => random.below(64) as u32,
                    1 => random.below(12_288) as u32,
                    _ => random.next_u64() as u32,
                };
                bytes[*at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
            }
        }
    }
    device.write_at(block * 1024, &bytes).unwrap();
}
