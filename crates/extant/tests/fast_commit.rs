//! Images cut off under a kernel mount with fast commits, mounted for writing.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{ALL, Keeps, differences, open, work_dir};
use extant::{Fs, MountOptions};
use extant_block::{FileDevice, RecordingDevice, SharedDevice};
use extant_testkit::crash::{self, Fate, History, Sampling};
use extant_testkit::oracle::{LoopMount, e2fsck, mke2fs, root};
use extant_testkit::require;
use rustix::fs::FallocateFlags;

/// Opens for writing, and unmounts.
fn replay(image: &Path) -> u32 {
    let device = FileDevice::open_read_write(image).unwrap();
    let fs = MountOptions::new().read_only(false).seed(1).open(device).unwrap();
    let commits = fs.replayed().map_or(0, |summary| summary.fast_commits);
    fs.unmount().unwrap();
    commits
}

fn sync(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

/// Changes of every kind, the last of them made durable by `fsync`.
fn change(tree: &Path, round: u64) {
    let new = tree.join(format!("new-{round}"));
    fs::write(&new, vec![round as u8; 30_000]).unwrap();
    sync(&new);
    let file = File::options().create(true).append(true).open(tree.join("grown")).unwrap();
    for piece in 0..12 {
        // With another file in between, so that its extents are many.
        std::io::Write::write_all(&mut &file, &vec![piece + 1; 9000]).unwrap();
        file.sync_all().unwrap();
        fs::write(tree.join(format!("between-{round}-{piece}")), [piece; 5000]).unwrap();
        sync(&tree.join(format!("between-{round}-{piece}")));
    }
    let cut =
        File::options().write(true).create(true).truncate(false).open(tree.join("cut")).unwrap();
    cut.write_all_at(&[3; 50_000], 0).unwrap();
    cut.sync_all().unwrap();
    cut.set_len(10_000 + round * 100).unwrap();
    cut.sync_all().unwrap();
    let sub = tree.join(format!("sub-{round}"));
    fs::create_dir(&sub).unwrap();
    fs::write(sub.join("inside"), "inside").unwrap();
    fs::hard_link(sub.join("inside"), tree.join(format!("link-{round}"))).unwrap();
    std::os::unix::fs::symlink("somewhere", sub.join("symlink")).unwrap();
    sync(&sub.join("inside"));
    if round > 0 {
        fs::remove_file(tree.join(format!("new-{}", round - 1))).unwrap();
        let link = tree.join(format!("link-{}", round - 1));
        fs::rename(link, tree.join(format!("moved-{round}"))).unwrap();
        fs::remove_file(tree.join(format!("between-{}-3", round - 1))).unwrap();
    }
    let kept = tree.join(format!("reserved-{round}"));
    let file = File::create(&kept).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 100_000).unwrap();
    file.write_all_at(b"here", 50_000).unwrap();
    file.sync_all().unwrap();
    // A name that changes hands, one of two names, an empty directory, a hole, and attributes.
    let (over, target) = (tree.join("over"), tree.join("target"));
    fs::write(&over, vec![4; 3000 + round as usize]).unwrap();
    fs::write(&target, vec![5; 12_000]).unwrap();
    fs::hard_link(&target, tree.join(format!("other-{round}"))).unwrap();
    sync(&target);
    fs::rename(&over, &target).unwrap();
    sync(&target);
    fs::create_dir(tree.join("empty")).unwrap();
    sync(&target);
    fs::remove_dir(tree.join("empty")).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&cut, punch, 4096, 8192).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600 + (round as u32 % 8));
    fs::set_permissions(tree.join(format!("other-{round}")), mode).unwrap();
    std::os::unix::fs::chown(&kept, Some(7), Some(round as u32)).unwrap();
    cut.sync_all().unwrap();
    sync(&tree.join(format!("other-{round}")));
    // Made and gone, between two fast commits.
    fs::write(tree.join("short"), "x").unwrap();
    sync(&tree.join("short"));
    fs::remove_file(tree.join("short")).unwrap();
    sync(&kept);
}

/// Fast commits are applied as the kernel applies them, and what they leave is clean.
#[test]
fn fast_commits_are_applied_as_the_kernel_does() {
    require!(root("mounts images"));
    let dir = work_dir();
    let table: &[(&str, &[&str])] = &[
        ("4k", &["-t", "ext4", "-b", "4096", "-O", "fast_commit"]),
        ("1k", &["-t", "ext4", "-b", "1024", "-O", "fast_commit"]),
        ("orphan-file", &["-t", "ext4", "-b", "4096", "-O", "fast_commit,orphan_file"]),
        ("inline", &["-t", "ext4", "-b", "4096", "-I", "256", "-O", "fast_commit,inline_data"]),
        ("bigalloc", &["-t", "ext4", "-b", "4096", "-O", "fast_commit,bigalloc"]),
    ];
    for (name, options) in table {
        let image = dir.path().join(format!("{name}.img"));
        require!(mke2fs(&image, "128M", options));
        let flags = rustix::mount::MountFlags::empty();
        let mount = require!(LoopMount::new(&image, flags, "commit=3600"));
        let tree = mount.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("before"), vec![9; 200_000]).unwrap();
        let top = File::open(mount.path()).unwrap();
        rustix::fs::syncfs(&top).unwrap();
        let mut fast_commits = 0;
        let mut step = 0;
        for round in 0..6u64 {
            change(&tree, step);
            step += 1;
            if round % 2 == 1 {
                rustix::fs::syncfs(&top).unwrap();
                change(&tree, step);
                step += 1;
            }
            let ours = dir.path().join("ours.img");
            mount.copy_as_cut(&image, &ours);
            let theirs = dir.path().join("theirs.img");
            fs::copy(&ours, &theirs).unwrap();
            fast_commits += replay(&ours);
            e2fsck(&ours).unwrap().assert_clean();
            // The first mount replays; what it then shows is the truth.
            drop(require!(LoopMount::read_write(&theirs)));
            let replayed = require!(LoopMount::read_only(&theirs));
            let keeps = Keeps { blocks: false, dir_times: false, ..ALL };
            let found = differences(replayed.path(), &open(&ours), keeps);
            assert!(found.is_empty(), "{name} {round}: {:#?}", &found[..found.len().min(12)]);
        }
        assert!(fast_commits > 0, "{name}: no fast commit was made");
        drop((top, mount));
        fs::remove_file(&image).unwrap();
    }
}

/// Path, kind, size, links and contents of everything.
fn digest(fs: &Fs) -> Vec<(Vec<u8>, String)> {
    let mut all = Vec::new();
    for entry in fs.walk("/").unwrap() {
        let entry = entry.unwrap();
        let inode = entry.inode();
        let metadata = inode.metadata();
        let contents = if inode.is_file() { inode.read_all().unwrap() } else { Vec::new() };
        let sum = contents.iter().fold(0u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
        let words = format!(
            "{:?} {} {} {} {} {sum}",
            metadata.kind, metadata.size, metadata.links, metadata.blocks, metadata.permissions
        );
        all.push((entry.path().to_vec(), words));
    }
    all.sort();
    all
}

/// A power cut anywhere in a mount that applies fast commits, and deletes an orphan, changes
/// nothing: the next mount ends with the same.
#[test]
fn applying_fast_commits_survives_power_cuts() {
    require!(root("mounts images"));
    let dir = work_dir();
    for features in ["fast_commit", "fast_commit,orphan_file", "fast_commit,^metadata_csum"] {
        let image = dir.path().join("image");
        let options = ["-t", "ext4", "-b", "1024", "-O", features];
        require!(mke2fs(&image, "32M", &options));
        let flags = rustix::mount::MountFlags::empty();
        let mount = require!(LoopMount::new(&image, flags, "commit=3600"));
        let tree = mount.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let gone = File::create(tree.join("gone")).unwrap();
        gone.write_all_at(&[5; 20_000], 0).unwrap();
        fs::remove_file(tree.join("gone")).unwrap();
        change(&tree, 0);
        let top = File::open(mount.path()).unwrap();
        rustix::fs::syncfs(&top).unwrap();
        change(&tree, 1);
        change(&tree, 2);
        let copy = dir.path().join("copy");
        mount.copy_as_cut(&image, &copy);
        drop((gone, top, mount));

        let device = Arc::new(RecordingDevice::over(extant_testkit::image::load(&copy)));
        let mount =
            |device: SharedDevice| MountOptions::new().read_only(false).seed(1).open_shared(device);
        let fs = mount(Arc::clone(&device) as _).unwrap();
        assert!(fs.replayed().unwrap().fast_commits > 0);
        assert_eq!(fs.recovered_orphans().unwrap().damaged, 0);
        fs.unmount().unwrap();
        let read = |device: SharedDevice| MountOptions::new().open_shared(device).unwrap();
        let expected = digest(&read(Arc::clone(&device) as _));
        assert!(expected.len() > 30, "{}", expected.len());

        let history = History::of(&[&device]);
        let sampling = Sampling { samples: 6, whole: 1024..2048, ..Sampling::default() };
        let checked = AtomicU32::new(0);
        // Nor is a larger write torn that the superblock is part of: see `Sampling::whole`.
        let tears_superblock = |(place, fate): &(usize, Fate)| {
            let Some(event) = history.events().get(*place) else { return false };
            let (offset, len) = event.record.range();
            offset < 2048 && offset + len > 1024 && !matches!(fate, Fate::Kept | Fate::Lost)
        };
        let report = crash::run(&history, &sampling, 2, None, |state| {
            if state.fates.iter().any(tears_superblock) {
                return Ok(());
            }
            let device = Arc::new(state.devices[0].snapshot());
            let fs = mount(Arc::clone(&device) as _).map_err(|error| error.to_string())?;
            fs.unmount().map_err(|error| error.to_string())?;
            let found = digest(&read(Arc::clone(&device) as _));
            if found != expected {
                let differ = found.iter().zip(&expected).find(|(a, b)| a != b);
                return Err(format!("another tree: {differ:?}"));
            }
            if checked.fetch_add(1, Ordering::Relaxed).is_multiple_of(40) {
                let path = dir.path().join(state.name());
                extant_testkit::image::save(&device, &path);
                let report = e2fsck(&path).unwrap();
                fs::remove_file(&path).unwrap();
                if !report.is_clean() {
                    return Err(report.text);
                }
            }
            Ok(())
        });
        let states = checked.into_inner();
        println!("{features}: {states} states");
        assert!(report.failures.is_empty(), "{features}: {}", report.failures[0]);
        assert!(states > 50, "{features}: only {states} states");
    }
}
