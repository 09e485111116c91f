//! Orphans, quotas and multi-mount protection, with the kernel and e2fsck as witnesses.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::common;
use common::work_dir;
use extant::{Fs, FsError, Inode, MountOptions, NewInode, QuotaKind, SetAttributes};
use extant_block::{FileDevice, RecordingDevice};
use extant_sync::{FixedClock, threads};
use extant_testkit::oracle::{LoopMount, Tool, debugfs, dumpe2fs, e2fsck, mke2fs, root};
use extant_testkit::require;

const QUOTAS: &str = "quotatype=usrquota:grpquota:prjquota";

fn options() -> MountOptions {
    MountOptions::new().read_only(false).seed(1)
}

fn writable(image: &Path) -> Fs {
    options().open(FileDevice::open_read_write(image).unwrap()).unwrap()
}

fn owned(uid: u32, gid: u32) -> NewInode {
    NewInode { permissions: 0o755, uid, gid }
}

fn free(image: &Path) -> [String; 2] {
    let facts = dumpe2fs(image).unwrap();
    ["Free blocks", "Free inodes"].map(|key| facts[key].clone())
}

/// Files that were open without names when the kernel's machine stopped are deleted as the kernel
/// deletes them.
#[test]
fn orphans_of_a_kernel_mount_are_deleted() {
    require!(root("mounts images"));
    let dir = work_dir();
    for feature in ["orphan_file", "^orphan_file"] {
        let image = dir.path().join("image");
        require!(mke2fs(&image, "64M", &["-t", "ext4", "-b", "4096", "-O", feature]));
        let mount = require!(LoopMount::read_write(&image));
        let path = mount.path().join("big");
        let big = File::create(&path).unwrap();
        for at in 0..300u64 {
            // Every second block: an extent tree with nodes.
            big.write_all_at(&[7; 4096], at * 8192).unwrap();
        }
        let held: Vec<File> = (0..60)
            .map(|number| {
                let path = mount.path().join(format!("f{number}"));
                fs::write(&path, vec![1; 5000]).unwrap();
                let file = File::open(&path).unwrap();
                fs::remove_file(&path).unwrap();
                file
            })
            .collect();
        fs::remove_file(&path).unwrap();
        rustix::fs::syncfs(&big).unwrap();
        let ours = dir.path().join("ours");
        File::open(mount.device()).unwrap().sync_all().unwrap();
        fs::copy(&image, &ours).unwrap();
        let theirs = dir.path().join("theirs");
        fs::copy(&ours, &theirs).unwrap();
        drop((held, big, mount));

        let fs = writable(&ours);
        let summary = fs.recovered_orphans().unwrap();
        assert_eq!((summary.deleted, summary.damaged), (61, 0), "{feature}: {summary:?}");
        fs.unmount().unwrap();
        e2fsck(&ours).unwrap().assert_clean();
        drop(require!(LoopMount::read_write(&theirs)));
        assert_eq!(free(&ours), free(&theirs), "{feature}");
    }
}

/// And the other way round.
#[test]
fn the_kernel_deletes_our_orphans() {
    require!(root("mounts images"));
    let dir = work_dir();
    for feature in ["orphan_file", "^orphan_file"] {
        let image = dir.path().join("image");
        require!(mke2fs(&image, "64M", &["-t", "ext4", "-b", "4096", "-O", feature]));
        let before = free(&image);
        let fs = writable(&image);
        let top = fs.root().unwrap();
        let held: Vec<Inode> =
            (0..50).map(|_| top.tmpfile(&NewInode::root(0o600)).unwrap()).collect();
        fs.sync().unwrap();
        let copy = dir.path().join("copy");
        fs::copy(&image, &copy).unwrap();
        drop((held, top, fs));
        drop(require!(LoopMount::read_write(&copy)));
        e2fsck(&copy).unwrap().assert_clean();
        assert_eq!(free(&copy), before, "{feature}");
    }
}

/// e2fsck counts what we counted, and we go on with the quota files that it wrote.
#[test]
fn quotas_pass_between_us_and_e2fsck() {
    let dir = work_dir();
    let image = dir.path().join("image");
    let made = ["-t", "ext4", "-b", "4096", "-O", "quota,project", "-E", QUOTAS];
    require!(mke2fs(&image, "64M", &made));
    let data = dir.path().join("data");
    fs::write(&data, vec![2; 9000]).unwrap();
    for round in 0..3u32 {
        let fs = writable(&image);
        let top = fs.root().unwrap();
        for number in 0..40 {
            let id = 1000 + number * 37 + round;
            top.mkdir(format!("d{round}-{number}"), &owned(id, id / 2)).unwrap();
        }
        if round > 0 {
            top.rmdir(format!("d{}-5", round - 1)).unwrap();
            top.unlink(format!("k{}-5", round - 1)).unwrap();
        }
        drop(top);
        fs.unmount().unwrap();
        e2fsck(&image).unwrap().assert_clean();
        // debugfs knows nothing of quotas; e2fsck then writes the files anew.
        let mut script = String::new();
        for number in 0..40 {
            let (name, id) = (format!("k{round}-{number}"), 500 + number * 91 + round);
            script += &format!("write {} {name}\nsif {name} uid {id}\n", data.display());
        }
        debugfs(&image, true, &script).unwrap();
        let tool = Tool::find("e2fsck").unwrap();
        let status = tool.command().arg("-fy").arg(&image).output().unwrap().status;
        assert_eq!(status.code(), Some(1), "quotas corrected");
    }
    let fs = writable(&image);
    let entry = fs.quota(QuotaKind::User, 500).unwrap().unwrap();
    assert_eq!((entry.space_bytes, entry.inodes), (12_288, 1));
    let set = SetAttributes::new().owner(Some(77), None);
    fs.resolve("/k0-0").unwrap().set_attributes(&set).unwrap();
    let entry = fs.quota(QuotaKind::User, 77).unwrap().unwrap();
    assert_eq!((entry.space_bytes, entry.inodes), (12_288, 1));
    fs.unmount().unwrap();
    e2fsck(&image).unwrap().assert_clean();
}

/// Many threads, new owners all the time, files deleted while open.
#[test]
fn threads_share_quota_files_and_orphans() {
    let dir = work_dir();
    for feature in ["quota,orphan_file", "quota,^orphan_file"] {
        let image = dir.path().join("image");
        let made = ["-t", "ext4", "-b", "1024", "-O", feature, "-E", "quotatype=usrquota:grpquota"];
        require!(mke2fs(&image, "64M", &made));
        let fs = writable(&image);
        threads::scope(|scope| {
            for thread in 0..4u32 {
                let fs = fs.clone();
                let work = move || {
                    let top = fs.root().unwrap();
                    let dir = top.mkdir(format!("t{thread}"), &owned(thread, thread)).unwrap();
                    let mut held = Vec::new();
                    for step in 0..400u32 {
                        let id = (step * 7 + thread) % 150;
                        let name = format!("f{}", step % 30);
                        match dir.create(&name, &owned(id, id % 10)) {
                            Ok(file) => held.push(file),
                            Err(_) => dir.unlink(&name).unwrap(),
                        }
                        if let Some(file) = held.get(step as usize % (held.len().max(1))) {
                            let set = SetAttributes::new().owner(Some(id / 2), None);
                            file.set_attributes(&set).unwrap();
                        }
                        if held.len() > 20 {
                            held.truncate(3);
                        }
                        if step % 97 == 96 {
                            fs.sync().unwrap();
                        }
                    }
                };
                scope.spawn(&format!("changer-{thread}"), work).unwrap();
            }
        })
        .unwrap();
        fs.unmount().unwrap();
        e2fsck(&image).unwrap().assert_clean();
    }
}

/// While we have the file system, the block names us; afterwards it is free.
#[test]
fn multi_mount_protection_is_held_and_let_go() {
    let dir = work_dir();
    let image = dir.path().join("image");
    require!(mke2fs(&image, "64M", &["-t", "ext4", "-b", "4096", "-O", "mmp"]));
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let open = |image: &Path| {
        let options = options().clock(Arc::clone(&clock) as _);
        options.open(FileDevice::open_read_write(image).unwrap())
    };
    let fs = open(&image).unwrap();
    let shown = require!(debugfs(&image, false, "dump_mmp\n"));
    let host = String::from_utf8(extant_sync::host_name()).unwrap();
    assert!(shown.contains(&format!("node_name: {host}")), "{shown}");
    let sequence =
        |shown: &str| shown.lines().find(|line| line.contains("sequence")).unwrap().to_owned();
    let first = sequence(&shown);
    clock.advance(std::time::Duration::from_secs(6));
    fs.tick().unwrap();
    assert_ne!(sequence(&debugfs(&image, false, "dump_mmp\n").unwrap()), first);
    fs.root().unwrap().create("a", &NewInode::root(0o600)).unwrap();
    fs.unmount().unwrap();
    let shown = debugfs(&image, false, "dump_mmp\n").unwrap();
    assert!(sequence(&shown).contains("ff4d4d50"), "{shown}");
    e2fsck(&image).unwrap().assert_clean();
}

/// A host that slept while another one took the file system writes nothing more when it unmounts.
#[test]
fn a_file_system_that_another_host_has_taken_is_left_as_it_is() {
    let dir = work_dir();
    let image = dir.path().join("image");
    let layout = ["-t", "ext4", "-b", "4096", "-O", "mmp,^metadata_csum"];
    require!(mke2fs(&image, "64M", &layout));
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = options().background(false).clock(clock as _);
    let fs = options.open(FileDevice::open_read_write(&image).unwrap()).unwrap();
    fs.root().unwrap().create("a", &NewInode::root(0o600)).unwrap();
    fs.sync().unwrap();
    let late = fs.root().unwrap().create("late", &NewInode::root(0o600)).unwrap();
    late.write_at(&[7; 10_000], 0).unwrap();
    // The other host writes its name into the block that it found.
    let file = File::options().read(true).write(true).open(&image).unwrap();
    let mut block = [0; 8];
    file.read_exact_at(&mut block, 1024 + 0x168).unwrap();
    file.write_all_at(b"thief\0", u64::from_le_bytes(block) * 4096 + 16).unwrap();
    let before = fs::read(&image).unwrap();
    let other = fs.clone();
    let error = fs.unmount().unwrap_err();
    assert!(matches!(error, FsError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("thief"), "{error}");
    assert!(fs::read(&image).unwrap() == before, "not a byte is written");
    assert!(other.root().unwrap().create("b", &NewInode::root(0o600)).is_err());
    assert!(other.unmount().is_err(), "and no later");
    drop(late);
    assert!(fs::read(&image).unwrap() == before);
}

/// A block of protection that is damaged keeps nothing from the device.
#[test]
fn a_damaged_block_of_protection_is_told_and_everything_else_is_stored() {
    let dir = work_dir();
    let image = dir.path().join("image");
    require!(mke2fs(&image, "64M", &["-t", "ext4", "-b", "4096", "-O", "mmp,^metadata_csum"]));
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = options().background(false).clock(clock as _);
    let fs = options.open(FileDevice::open_read_write(&image).unwrap()).unwrap();
    let late = fs.root().unwrap().create("late", &NewInode::root(0o600)).unwrap();
    late.write_at(&[7; 10_000], 0).unwrap();
    let file = File::options().read(true).write(true).open(&image).unwrap();
    let mut block = [0; 8];
    file.read_exact_at(&mut block, 1024 + 0x168).unwrap();
    file.write_all_at(&[0xa5; 64], u64::from_le_bytes(block) * 4096).unwrap();
    let error = fs.unmount().unwrap_err();
    assert!(error.to_string().contains("multi-mount block"), "{error}");
    drop(late);
    let reader = MountOptions::new().open(FileDevice::open_read_only(&image).unwrap()).unwrap();
    assert!(reader.read("/late").unwrap() == [7; 10_000]);
}

/// A mount at rest leaves the image as one that was unmounted, for e2fsck too; what comes after that survives a crash, and
/// before it is durable, each state between is one or the other.
#[test]
fn what_rests_is_clean_until_the_next_change_and_after_that_needs_recovery() {
    let dir = work_dir();
    for (number, layout) in
        [&["-t", "ext4"][..], &["-t", "ext4", "-O", "orphan_file"], &["-t", "ext2"]]
            .into_iter()
            .enumerate()
    {
        let image = dir.path().join(format!("image-{number}"));
        require!(mke2fs(&image, "16M", &[layout, &["-b", "1024"]].concat()));
        let base = extant_testkit::image::load(&image);
        let device = Arc::new(RecordingDevice::over(base));
        let fs = options().background(false).open_shared(Arc::clone(&device) as _).unwrap();
        let top = fs.root().unwrap();
        top.create("first", &owned(0, 0)).unwrap().write_at(&[1; 5000], 0).unwrap();
        assert!(fs.rest().unwrap() && fs.rest().unwrap(), "{layout:?}");
        let rests = device.records().len();
        let is_clean = |position: usize, name: &str| {
            let path = dir.path().join(format!("{name}-{number}"));
            extant_testkit::image::save(&device.image_with_all(position), &path);
            e2fsck(&path).unwrap().assert_clean();
            let facts = dumpe2fs(&path).unwrap();
            !facts["Filesystem features"].contains("needs_recovery")
                && facts["Filesystem state"] == "clean"
        };
        assert!(is_clean(rests, "rests"), "{layout:?}");
        // Reading changes nothing.
        assert_eq!(fs.read("/first").unwrap(), [1; 5000]);
        fs.sync().unwrap();
        assert_eq!(device.records().len(), rests, "{layout:?}");
        top.create("second", &owned(0, 0)).unwrap();
        fs.sync().unwrap();
        let has_log = layout[1] == "ext4";
        for position in rests..=device.records().len() {
            let image = Arc::new(device.image_with_all(position));
            let fs = options().open_shared(image as _).unwrap();
            assert_eq!(fs.read("/first").unwrap(), [1; 5000], "{layout:?}, {position}");
            let is_there = fs.resolve("/second").is_ok();
            assert!(is_there || position < device.records().len(), "{layout:?}: durable, and lost");
            fs.unmount().unwrap();
        }
        if has_log {
            let image = Arc::new(device.image_with_all(device.records().len()));
            let again = MountOptions::new().open_shared(image as _).unwrap();
            assert!(again.replayed().is_some());
        }
        drop(top);
        fs.unmount().unwrap();
        assert!(is_clean(device.records().len(), "ended"), "{layout:?}");
    }
}
