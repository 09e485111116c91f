//! Images written by the kernel read back as the kernel shows them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common;
use common::{ALL, differences, open, work_dir};
use extant::{MappingKind, MountOptions};
use extant_testkit::oracle::{LoopMount, mke2fs, root};
use extant_testkit::require;
use extant_testkit::tree::{TreeOptions, make};
use rustix::fs::{FallocateFlags, fallocate};

/// Files whose maps are large or odd.
fn make_maps(root: &Path) {
    let dir = root.join("maps");
    fs::create_dir(&dir).unwrap();
    // Every second block: as many extents as blocks, and so a tree of depth 2 with 1 KiB blocks.
    let comb = File::create(dir.join("comb")).unwrap();
    for index in 0..16_000u64 {
        comb.write_all_at(&index.to_le_bytes(), index * 8192).unwrap();
    }
    // Reserved, not written: reads as zeros, also where it was used before.
    let reserved = File::create(dir.join("reserved")).unwrap();
    fallocate(&reserved, FallocateFlags::empty(), 0, 3 << 20).unwrap();
    reserved.write_all_at(b"written in the middle", 1_500_000).unwrap();
    let past_end = File::create(dir.join("reserved-past-the-end")).unwrap();
    past_end.write_all_at(&[5; 10_000], 0).unwrap();
    fallocate(&past_end, FallocateFlags::KEEP_SIZE, 0, 2 << 20).unwrap();
    let punched = File::create(dir.join("punched")).unwrap();
    punched.write_all_at(&[6; 500_000], 0).unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // Files mapped by pointers can be punched but not reserved.
    fallocate(&punched, flags, 100_000, 200_000).unwrap();
    // Two files growing in turns, so that neither is contiguous.
    let pair = [File::create(dir.join("left")).unwrap(), File::create(dir.join("right")).unwrap()];
    for index in 0..300u64 {
        for file in &pair {
            file.write_all_at(&[index as u8; 5000], index * 5000).unwrap();
            file.sync_all().unwrap();
        }
    }
    let end = File::create(dir.join("far")).unwrap();
    end.write_all_at(b"end", (1 << 41) + 12_345).unwrap();
}

fn make_names(root: &Path, count: u32) {
    let dir = root.join("many-names");
    fs::create_dir(&dir).unwrap();
    for index in 0..count {
        File::create(dir.join(format!("{index}-{}", "n".repeat(index as usize % 60)))).unwrap();
    }
    for index in (0..count).step_by(3) {
        fs::remove_file(dir.join(format!("{index}-{}", "n".repeat(index as usize % 60)))).unwrap();
    }
}

/// Goal: contents, attributes to the nanosecond, extended attributes, block counts, inode numbers
/// and link counts of trees written by the kernel are what the kernel shows; every name of an
/// indexed directory is found.
#[test]
fn trees_written_by_the_kernel_read_back() {
    let dir = work_dir();
    let table: &[(&str, &[&str], &str)] = &[
        ("ext4-4k", &["-t", "ext4", "-b", "4096", "-O", "orphan_file,metadata_csum_seed"], ""),
        ("ext4-1k", &["-t", "ext4", "-b", "1024", "-N", "40000"], ""),
        ("bigalloc", &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-N", "30000"], ""),
        ("inline", &["-t", "ext4", "-b", "4096", "-O", "inline_data", "-I", "512"], ""),
        ("ea_inode", &["-t", "ext4", "-b", "4096", "-O", "ea_inode,large_dir"], ""),
        ("ext3", &["-t", "ext3", "-b", "1024", "-I", "128", "-N", "40000"], ""),
    ];
    for (name, options, mount_options) in table {
        let image = dir.path().join(format!("{name}.img"));
        require!(mke2fs(&image, "512M", options));
        let flags = rustix::mount::MountFlags::empty();
        let mount = require!(LoopMount::new(&image, flags, mount_options));
        let tree = mount.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let made = make(&tree, &TreeOptions { seed: 9, files: 100, big_directory_entries: 500 });
        println!("{name}: left out {:?}", made.left_out);
        if *name == "ext3" {
            let comb = File::create(tree.join("comb")).unwrap();
            for index in 0..3_000u64 {
                comb.write_all_at(&index.to_le_bytes(), index * 77_000).unwrap();
            }
        } else {
            make_maps(&tree);
        }
        make_names(&tree, 20_000);
        if *name == "ea_inode" {
            for (index, len) in [(0, 5000), (1, 20_000), (2, 60_000)] {
                let value = vec![index as u8; len];
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(&tree, format!("user.large-{index}"), &value, flags).unwrap();
            }
        }
        drop(mount);
        let image_fs = open(&image);
        assert_eq!(image_fs.replayed(), None, "{name}: unmounted images need no replay");
        let mount = require!(LoopMount::read_only(&image));
        let found = differences(mount.path(), &image_fs, ALL);
        assert!(found.is_empty(), "{name}: {} differences: {:#?}", found.len(), {
            &found[..found.len().min(12)]
        });
        compare_statfs(mount.path(), &image_fs, name);
        let names = image_fs.resolve("/tree/many-names").unwrap();
        let listed: Vec<_> = names.read_dir().unwrap().map(Result::unwrap).collect();
        assert_eq!(listed.len(), 20_000 - 6667);
        // A listing goes on where any cookie says.
        for at in [0, 1, 999, 10_000, listed.len() - 1] {
            let rest = names.read_dir().unwrap().seek(listed[at].cookie());
            assert_eq!(rest.count(), listed.len() - at - 1, "{name}: after entry {at}");
        }
        drop(mount);
        if *name == "ext4-1k" {
            let comb = image_fs.resolve("/tree/maps/comb").unwrap();
            let runs = comb.map(0..comb.block_len()).map(Result::unwrap);
            let mapped = runs.filter(|run| matches!(run.kind, MappingKind::Mapped(_))).count();
            assert!(mapped >= 16_000, "only {mapped} runs: the tree is not deep");
        }
        fs::remove_file(&image).unwrap();
    }
}

fn compare_statfs(path: &Path, fs: &extant::Fs, name: &str) {
    let theirs = rustix::fs::statfs(path).unwrap();
    let ours = fs.statfs().unwrap();
    assert_eq!(u64::from(ours.block_bytes), theirs.f_bsize as u64, "{name}");
    assert_eq!((ours.files, ours.files_free), (theirs.f_files, theirs.f_ffree), "{name}");
    assert_eq!(ours.blocks_free, theirs.f_bfree, "{name}");
    assert_eq!(ours.blocks, theirs.f_blocks, "{name}");
}

/// Goal: an image copied while it is mounted is shown as the kernel shows another copy after
/// mounting it; nothing is written; fast commits count.
#[test]
fn unclean_images_look_as_after_a_mount() {
    require!(root("mounts images"));
    let dir = work_dir();
    let table: &[(&str, &[&str], &str)] = &[
        ("journal", &["-t", "ext4", "-b", "4096"], "commit=3600"),
        ("journal-1k", &["-t", "ext4", "-b", "1024", "-J", "size=4"], "commit=3600"),
        ("data-journal", &["-t", "ext4", "-b", "4096"], "commit=3600,data=journal"),
        ("fast_commit", &["-t", "ext4", "-b", "4096", "-O", "fast_commit"], "commit=3600"),
        ("fast_commit-1k", &["-t", "ext4", "-b", "1024", "-O", "fast_commit"], "commit=3600"),
    ];
    for (name, options, mount_options) in table {
        let image = dir.path().join(format!("{name}.img"));
        require!(mke2fs(&image, "128M", options));
        let flags = rustix::mount::MountFlags::empty();
        let mount = require!(LoopMount::new(&image, flags, mount_options));
        let tree = mount.path().join("tree");
        fs::create_dir(&tree).unwrap();
        make(&tree, &TreeOptions { seed: 11, files: 60, big_directory_entries: 200 });
        let top = File::open(mount.path()).unwrap();
        rustix::fs::syncfs(&top).unwrap();
        drop(top);
        let mut fast_commits = 0;
        for round in 0..4u64 {
            change(&tree, round);
            // Things that are lost: not synced at all.
            fs::write(tree.join(format!("lost-{round}")), "x").unwrap();
            let copy = dir.path().join("copy.img");
            mount.copy_as_cut(&image, &copy);
            let before = fs::read(&copy).unwrap();
            let shown = open(&copy);
            let summary = shown.replayed().expect("a dirty journal").clone();
            fast_commits += summary.fast_commits;
            println!("{name} round {round}: {summary:?}");
            let second = dir.path().join("second.img");
            fs::copy(&copy, &second).unwrap();
            {
                // The first mount replays; what it then shows is the truth.
                drop(require!(LoopMount::read_write(&second)));
                let replayed = require!(LoopMount::read_only(&second));
                // A replay of fast commits counts blocks anew, and stamps directories with the
                // time of the replay.
                let exact = summary.fast_commits == 0;
                let keeps = common::Keeps { blocks: exact, dir_times: exact, ..ALL };
                let found = differences(replayed.path(), &shown, keeps);
                assert!(found.is_empty(), "{name}: {} differences: {:#?}", found.len(), {
                    &found[..found.len().min(12)]
                });
            }
            assert_eq!(fs::read(&copy).unwrap(), before, "{name}: reading changed the image");
            fs::remove_file(&copy).unwrap();
            fs::remove_file(&second).unwrap();
        }
        let wants_fast = name.starts_with("fast_commit");
        assert_eq!(fast_commits > 0, wants_fast, "{name}: {fast_commits} fast commits");
        // Without the journal, the image is what the last checkpoint left, and says nothing.
        let copy = dir.path().join("copy.img");
        mount.copy_as_cut(&image, &copy);
        let device = extant_block::FileDevice::open_read_only(&copy).unwrap();
        let shown = MountOptions::new().ignore_journal(true).open(device).unwrap();
        assert_eq!(shown.replayed(), None);
        drop(mount);
        fs::remove_file(&image).unwrap();
    }
}

/// Changes of every kind, each made durable by `fsync` of the file it is about.
fn change(tree: &Path, round: u64) {
    let sync = |path: &Path| File::open(path).unwrap().sync_all().unwrap();
    let new = tree.join(format!("new-{round}"));
    fs::write(&new, vec![round as u8; 30_000]).unwrap();
    sync(&new);
    let grown = tree.join("grown");
    let file = File::options().create(true).append(true).open(&grown).unwrap();
    std::io::Write::write_all(&mut &file, &vec![round as u8 + 1; 9000]).unwrap();
    file.sync_all().unwrap();
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
        fs::rename(tree.join(format!("link-{}", round - 1)), tree.join(format!("moved-{round}")))
            .unwrap();
    }
    sync(&grown);
    let kept = tree.join(format!("reserved-{round}"));
    let file = File::create(&kept).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 100_000).unwrap();
    file.write_all_at(b"here", 50_000).unwrap();
    file.sync_all().unwrap();
}
