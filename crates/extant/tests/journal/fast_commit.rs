//! Images cut off under a kernel mount with fast commits, mounted for writing; and fast commits of
//! our own.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common;
use common::{ALL, Keeps, differences, open, work_dir};
use extant::{Fallocate, Fs, MountOptions, NewInode};
use extant_block::{BlockDevice as _, FileDevice, MemoryDevice, RecordingDevice, SharedDevice};
use extant_testkit::crash::{self, Fate, History, Sampling};
use extant_testkit::oracle::{LoopMount, e2fsck, e2fsck_as, mke2fs, root};
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

/// Lets the kernel apply the fast commits of `cut` in a copy. Returns whether it did: now and then it refuses what
/// itself has written (seen with Linux 6.18, on a busy machine: "error loading journal").
fn replay_elsewhere(cut: &Path, copy: &Path) -> Result<bool, String> {
    for _ in 0..2 {
        fs::copy(cut, copy).unwrap();
        if LoopMount::attempt(copy, rustix::mount::MountFlags::empty(), "")?.is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
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
        let (mut fast_commits, mut refused) = (0, 0);
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
            // The first mount replays; what it then shows is the truth.
            let is_replayed = require!(replay_elsewhere(&ours, &theirs));
            fast_commits += replay(&ours);
            e2fsck(&ours).unwrap().assert_clean();
            if !is_replayed {
                refused += 1;
                eprintln!(
                    "{name} {round}: not compared, as the kernel refused its own image twice"
                );
                continue;
            }
            let replayed = require!(LoopMount::read_only(&theirs));
            let keeps = Keeps { blocks: false, dir_times: false, ..ALL };
            let found = differences(replayed.path(), &open(&ours), keeps);
            assert!(found.is_empty(), "{name} {round}: {:#?}", &found[..found.len().min(12)]);
        }
        assert!(fast_commits > 0, "{name}: no fast commit was made");
        assert!(refused <= 2, "{name}: the kernel refused {refused} of 6 images");
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

/// A file system on which syncs make fast commits, with some files, in memory.
fn fast_image(dir: &Path, options: &[&str]) -> Result<MemoryDevice, String> {
    let image = dir.join("fast.img");
    mke2fs(&image, "64M", &[&["-t", "ext4", "-O", "fast_commit"], options].concat())?;
    let device = extant_testkit::image::load(&image);
    fs::remove_file(&image).unwrap();
    Ok(device)
}

fn writable(device: &SharedDevice) -> Fs {
    let options = MountOptions::new().read_only(false).background(false).seed(3).fast_commits(true);
    options.open_shared(Arc::clone(device)).unwrap()
}

fn create(fs: &Fs, name: &str) -> extant::Inode {
    fs.root().unwrap().create(name, &NewInode { permissions: 0o644, uid: 0, gid: 0 }).unwrap()
}

/// The counts of fast and of full commits.
fn commits(fs: &Fs) -> (u64, u64) {
    let journal = fs.writer_stats().unwrap().journal;
    (journal.fast_commits, journal.commits)
}

/// What one file has, and how it is then shown by a mount for reading.
fn shown(device: &MemoryDevice, name: &str) -> Vec<u8> {
    let fs = MountOptions::new().open(device.snapshot()).unwrap();
    let root = fs.root().unwrap();
    root.lookup(name).unwrap().read_all().unwrap()
}

/// Appends are made durable by fast commits; extant, e2fsck and the kernel find all of them.
#[test]
fn appends_are_synced_by_fast_commits_and_found_by_all() {
    let dir = work_dir();
    for (what, options) in [
        ("4K", &["-b", "4096"] as &[&str]),
        ("1K", &["-b", "1024"]),
        ("small inodes", &["-b", "4096", "-I", "128"]),
        ("checksums of groups", &["-b", "4096", "-O", "^metadata_csum,^64bit,uninit_bg"]),
    ] {
        let memory = Arc::new(require!(fast_image(dir.path(), options)));
        let device: SharedDevice = Arc::clone(&memory) as _;
        let fs = writable(&device);
        let files: Vec<_> = (0..4).map(|n| create(&fs, &format!("f{n}"))).collect();
        files[0].sync().unwrap();
        let (fast, full) = commits(&fs);
        let mut contents = vec![Vec::new(); 4];
        // With more, the files are in so many pieces that their maps leave the inodes.
        for round in 0..12u8 {
            let at = usize::from(round % 4);
            let bytes = vec![round + 1; 700 + 1500 * usize::from(round % 5)];
            files[at].append(&bytes).unwrap();
            contents[at].extend(bytes);
            match round % 3 {
                0 => files[at].sync().unwrap(),
                _ => files[at].sync_data().unwrap(),
            }
            // A second sync has nothing to do.
            files[at].sync_data().unwrap();
            assert_eq!(commits(&fs), (fast + u64::from(round) + 1, full), "{what} {round}");
            assert_eq!(shown(&memory, &format!("f{at}")), contents[at], "{what} {round}");
        }
        let cut = memory.snapshot();
        let at_end = |device: &MemoryDevice, by: &str| {
            for (at, contents) in contents.iter().enumerate() {
                assert!(shown(device, &format!("f{at}")) == *contents, "{what}, {by}: f{at}");
            }
        };
        at_end(&cut, "extant");
        let image = dir.path().join("cut.img");
        extant_testkit::image::save(&cut, &image);
        e2fsck_as(&image, "-fy", &["-E", "journal_only"]).unwrap();
        e2fsck(&image).unwrap().assert_clean();
        at_end(&extant_testkit::image::load(&image), "e2fsck");
        fs::remove_file(&image).unwrap();
        extant_testkit::image::save(&cut, &image);
        if root("mounts images").is_ok() {
            drop(require!(LoopMount::read_write(&image)));
            e2fsck(&image).unwrap().assert_clean();
            at_end(&extant_testkit::image::load(&image), "the kernel");
        }
        fs::remove_file(&image).unwrap();
        // A mount applies them, and goes on with numbers of its own.
        let again: SharedDevice = Arc::new(cut.snapshot());
        let mounted = writable(&again);
        assert!(mounted.replayed().unwrap().fast_commits > 0, "{what}");
        let file = mounted.root().unwrap().lookup("f0").unwrap();
        file.append(b"more").unwrap();
        file.sync_data().unwrap();
        assert_eq!(commits(&mounted).0, 1, "{what}");
        mounted.unmount().unwrap();
        fs.unmount().unwrap();
        let image = dir.path().join("end.img");
        extant_testkit::image::save(&memory, &image);
        e2fsck(&image).unwrap().assert_clean();
        fs::remove_file(&image).unwrap();
    }
}

/// The area is used up to the last block that e2fsck can read and no further: it drops a log whose
/// area is full to the end. Fast commits are made unless they are switched off.
#[test]
fn e2fsck_replays_an_area_that_has_no_more_room() {
    let dir = work_dir();
    let memory = Arc::new(require!(fast_image(dir.path(), &["-b", "1024", "-J", "size=2"])));
    let device: SharedDevice = Arc::clone(&memory) as _;
    let options = MountOptions::new().read_only(false).background(false).seed(3);
    let off = options.clone().fast_commits(false).open_shared(Arc::clone(&device)).unwrap();
    create(&off, "file").sync().unwrap();
    off.root().unwrap().lookup("file").unwrap().append(b"first").unwrap();
    off.sync().unwrap();
    assert_eq!(commits(&off).0, 0);
    off.unmount().unwrap();
    let fs = options.open_shared(Arc::clone(&device)).unwrap();
    let file = fs.root().unwrap().lookup("file").unwrap();
    let mut contents = b"first".to_vec();
    let (mut before, full) = (None, commits(&fs).1);
    for round in 0u32.. {
        let bytes = [round as u8; 100];
        file.append(&bytes).unwrap();
        file.sync_data().unwrap();
        if commits(&fs).1 > full {
            break;
        }
        contents.extend(bytes);
        before = Some(memory.snapshot());
        assert!(round < 1000, "the area is never full");
    }
    let cut = before.expect("a fast commit");
    let image = dir.path().join("cut.img");
    extant_testkit::image::save(&cut, &image);
    let replay = e2fsck_as(&image, "-fy", &["-E", "journal_only"]).unwrap();
    assert!(!replay.text.contains("orrupt"), "{}", replay.text);
    assert!(shown(&extant_testkit::image::load(&image), "file") == contents, "{}", replay.text);
}

/// Whatever a record cannot say is committed fully, and counted by its reason.
#[test]
fn names_and_freed_blocks_need_a_full_commit() {
    let dir = work_dir();
    let memory = Arc::new(require!(fast_image(dir.path(), &["-b", "4096"])));
    let device: SharedDevice = Arc::clone(&memory) as _;
    let fs = writable(&device);
    let file = create(&fs, "file");
    file.append(&[1; 50_000]).unwrap();
    create(&fs, "gone");
    file.sync().unwrap();
    let root = fs.root().unwrap();
    type Change<'a> = (&'static str, &'static str, Box<dyn Fn() + 'a>);
    let changes: Vec<Change<'_>> = vec![
        ("create", "names", Box::new(|| drop(create(&fs, "new")))),
        ("link", "names", Box::new(|| root.link("other", &file).unwrap())),
        ("unlink", "names", Box::new(|| root.unlink("gone").unwrap())),
        ("truncate", "blocks", Box::new(|| file.truncate(9000).unwrap())),
        (
            "punch",
            "blocks",
            Box::new(|| {
                file.fallocate(Fallocate::PunchHole, 0..4096).unwrap();
            }),
        ),
        (
            "xattr",
            "attributes",
            Box::new(|| {
                file.set_xattr("user.a", b"b", extant::XattrMode::Any).unwrap();
            }),
        ),
    ];
    for (what, why, change) in &changes {
        change();
        file.append(&[2; 5000]).unwrap();
        // A truncation may have committed by itself.
        let (fast, full) = commits(&fs);
        let before = refusals(&fs, why);
        file.sync_data().unwrap();
        assert_eq!(commits(&fs), (fast, full + 1), "{what}");
        assert_eq!(refusals(&fs, why), before + 1, "{what}");
        // The next transaction can be described again.
        file.append(&[3; 5000]).unwrap();
        file.sync_data().unwrap();
        assert_eq!(commits(&fs), (fast + 1, full + 1), "{what}");
    }
    // A whole transaction is asked for: records of it are not enough.
    file.append(&[4; 100]).unwrap();
    file.sync_data().unwrap();
    let (fast, full) = commits(&fs);
    fs.sync().unwrap();
    assert_eq!(commits(&fs), (fast, full + 1));
    assert_eq!(head_of(&memory.snapshot(), 4096), None, "e2fsck 1.47 would drop the log");
    // Switched off, and where a replay would leave counts behind.
    drop(changes);
    fs.unmount().unwrap();
    let off = MountOptions::new().read_only(false).background(false).fast_commits(false);
    let fs = off.open_shared(Arc::clone(&device)).unwrap();
    let file = fs.root().unwrap().lookup("file").unwrap();
    file.append(&[5; 100]).unwrap();
    file.sync_data().unwrap();
    assert_eq!(commits(&fs), (0, 1));
    fs.unmount().unwrap();
    for options in [
        &["-O", "quota"] as &[&str],
        &["-O", "bigalloc"],
        &["-O", "inline_data"],
        &["-O", "^metadata_csum,^64bit"],
    ] {
        let device: SharedDevice = Arc::new(require!(fast_image(dir.path(), options)));
        let fs = writable(&device);
        let file = create(&fs, "file");
        file.sync().unwrap();
        file.append(&[1; 40]).unwrap();
        file.sync_data().unwrap();
        assert_eq!(commits(&fs).0, 0, "{options:?}");
        fs.unmount().unwrap();
    }
}

/// Where the area of fast commits begins, if it begins with a head.
fn head_of(device: &MemoryDevice, block: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (0..device.size_bytes() / block).map(|at| at * block).find(|at| {
        device.read_at(*at, &mut bytes).unwrap();
        bytes == [9, 0, 8, 0, 0, 0, 0, 0]
    })
}

fn refusals(fs: &Fs, why: &str) -> u64 {
    let all = fs.writer_stats().unwrap().fast_refused;
    let name = format!("fast_refused_{why}");
    all.iter().find(|(other, _)| *other == name).expect("a known reason").1
}

/// Threads that sync at once share fast commits, and a full commit that another asks for.
#[test]
fn syncs_of_many_threads_meet_in_fast_commits() {
    let dir = work_dir();
    let memory = Arc::new(require!(fast_image(dir.path(), &["-b", "4096"])));
    let device: SharedDevice = Arc::clone(&memory) as _;
    let fs = writable(&device);
    let files: Vec<_> = (0..4).map(|n| create(&fs, &format!("f{n}"))).collect();
    fs.sync().unwrap();
    extant_sync::threads::workers("writer", 4, |at| {
        for round in 0..100u32 {
            files[at].append(&[at as u8 + 1; 300]).unwrap();
            files[at].sync_data().unwrap();
            if round % 30 == at as u32 {
                fs.sync().unwrap();
            }
        }
    })
    .unwrap();
    let (fast, full) = commits(&fs);
    assert!(fast > 50 && full > 3, "{fast} fast, {full} full");
    let cut = memory.snapshot();
    for at in 0..4u8 {
        assert_eq!(shown(&cut, &format!("f{at}")), vec![at + 1; 30_000], "f{at}");
    }
    drop(fs);
}

/// An area with any bytes in it makes no mount panic, and shows a state at some sync or an error.
#[test]
fn mutated_areas_show_an_earlier_sync_or_an_error() {
    let dir = work_dir();
    let memory = Arc::new(require!(fast_image(dir.path(), &["-b", "1024"])));
    let device: SharedDevice = Arc::clone(&memory) as _;
    let fs = writable(&device);
    let file = create(&fs, "file");
    fs.sync().unwrap();
    let mut synced = vec![Vec::new()];
    for round in 0..8u8 {
        file.append(&[round + 1; 1500]).unwrap();
        file.sync_data().unwrap();
        synced.push(file.read_all().unwrap());
    }
    let cut = memory.snapshot();
    let head = head_of(&cut, 1024).expect("the head of the area");
    let mut random = extant_base::Prng::new(7);
    let (mut earlier, mut errors) = (0, 0);
    for _ in 0..1500 {
        let device = cut.snapshot();
        for _ in 0..1 + random.next_u64() % 3 {
            let at = head + random.next_u64() % (9 * 1024);
            let mut byte = [0];
            device.read_at(at, &mut byte).unwrap();
            byte[0] ^= 1 << (random.next_u64() % 8);
            device.write_at(at, &byte).unwrap();
        }
        let options =
            MountOptions::new().read_only(!random.next_u64().is_multiple_of(4)).background(false);
        let found = options.open(device).map_err(extant::FsError::from).and_then(|fs| {
            let found = fs.root()?.lookup("file")?.read_all();
            fs.unmount().ok();
            found
        });
        match found {
            Ok(found) => {
                assert!(synced.contains(&found), "{} bytes", found.len());
                earlier += u32::from(found != synced[8]);
            }
            Err(_) => errors += 1,
        }
    }
    println!("{earlier} earlier states, {errors} errors");
    assert!(earlier > 100, "{earlier}");
    drop(fs);
}
