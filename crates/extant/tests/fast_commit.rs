//! Images cut off under a kernel mount with fast commits, mounted for writing.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{ALL, Keeps, differences, open, work_dir};
use extant::MountOptions;
use extant_block::FileDevice;
use extant_testkit::oracle::{LoopMount, e2fsck, mke2fs, root};
use extant_testkit::require;
use rustix::fs::FallocateFlags;

/// Copies the image of a mounted file system as a power failure would leave it.
fn crash_copy(mount: &LoopMount, image: &Path, copy: &Path) {
    let device = File::open(mount.device()).unwrap();
    device.sync_all().unwrap();
    fs::copy(image, copy).unwrap();
}

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
            crash_copy(&mount, &image, &ours);
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
