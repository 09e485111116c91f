//! A file system becomes larger while it is mounted: every layout, beside threads that change it, cut
//! at every write, and with every write failing once.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{LAYOUTS, Layout, Seen, made, problems, seen, to_size, with_size};
use extant::{Fs, FsError, GrowTo, MountOptions, NewInode};
use extant_block::{BlockDevice, MemoryDevice, RecordingDevice, SharedDevice, Survival};
use extant_format::superblock::{SUPERBLOCK_OFFSET, Superblock};
use extant_sync::threads;
use extant_testkit::image::e2fsck;
use extant_testkit::oracle::{self, LoopMount, Tool};
use extant_testkit::{HastyClock, image, require, tempdir};
use rustix::mount::MountFlags;

const MIB: u64 = 1 << 20;

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = [0; 1024];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    Superblock::decode(&bytes).unwrap()
}

fn size_of(sb: &Superblock) -> u64 {
    sb.blocks_count * u64::from(sb.block_size.bytes())
}

fn mounted(device: &SharedDevice) -> Fs {
    let options =
        MountOptions::new().read_only(false).clock(Arc::new(HastyClock)).background(false).seed(3);
    options.open_shared(Arc::clone(device)).expect("it can be mounted")
}

/// Grows a copy of `device` to `bytes` while it is mounted.
fn grown(device: &MemoryDevice, bytes: u64) -> Result<MemoryDevice, FsError> {
    let device = Arc::new(device.snapshot());
    let shared: SharedDevice = Arc::clone(&device) as SharedDevice;
    let fs = mounted(&shared);
    shared.extend(bytes).unwrap();
    fs.grow(GrowTo::Bytes(bytes))?;
    fs.unmount().unwrap();
    Ok(device.snapshot())
}

/// Nothing is wrong, by us and by e2fsck.
fn assert_sound(device: &MemoryDevice, dir: &Path, what: &str) -> Result<(), String> {
    assert_eq!(e2fsck(device, dir)?, "", "{what}");
    assert_eq!(problems(device), [""; 0], "{what}");
    Ok(())
}

/// Sizes to which a layout of `from` bytes is brought, one after the other.
fn sizes(from: u64) -> Vec<u64> {
    vec![from + 100 * 1024, from + 3 * MIB + 5 * 1024, from * 2 + MIB, from * 5 + 77 * 1024]
}

/// What a file of these tests has in it.
fn bytes_of(number: u64) -> Vec<u8> {
    (0..20_000 + number * 977).map(|at| (at * 13 + number) as u8).collect()
}

/// Creates, writes, syncs and removes files until it is told to stop; returns which are left.
fn change_until(fs: &Fs, worker: u64, stop: &AtomicBool) -> Vec<(String, u64)> {
    let dir = format!("/worker{worker}");
    fs.create_dir(&dir, &NewInode::root(0o755)).unwrap();
    let mut left = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Acquire) && number > 30 {
            break;
        }
        let name = format!("{dir}/file{number}");
        match fs.write(&name, bytes_of(number)) {
            Ok(()) => left.push((name.clone(), number)),
            // It may be full until it grows.
            Err(FsError::NoSpace { .. }) => {
                let _gone = fs.remove_file(&name);
            }
            Err(error) => panic!("{name}: {error}"),
        }
        if number % 5 == 4
            && let Ok(inode) = fs.resolve(&name)
        {
            inode.sync().unwrap();
        }
        if (number % 3 == 2 || left.len() > 60) && !left.is_empty() {
            let (name, _) = left.remove(0);
            fs.remove_file(&name).unwrap();
        }
        let totals = fs.statfs().unwrap();
        assert!(totals.blocks_free <= totals.blocks, "{totals:?}");
    }
    left
}

#[test]
fn every_layout_grows_beside_threads_that_change_it() {
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), *layout));
        let before = seen(&first);
        let from = size_of(&superblock(&first));
        let device = Arc::new(first.snapshot());
        let shared: SharedDevice = Arc::clone(&device) as SharedDevice;
        let fs = mounted(&shared);
        let stop = AtomicBool::new(false);
        let mut left = Vec::new();
        threads::scope(|scope| {
            let workers: Vec<_> = (0..3)
                .map(|worker| {
                    let (fs, stop) = (&fs, &stop);
                    scope.spawn("worker", move || change_until(fs, worker, stop))
                })
                .collect();
            for size in sizes(from) {
                let free = fs.statfs().unwrap();
                shared.extend(size).unwrap();
                let grown = fs
                    .grow(GrowTo::DeviceEnd)
                    .inspect_err(|_| stop.store(true, Ordering::Release))
                    .unwrap_or_else(|error| panic!("{layout:?} to {size}: {error}"));
                assert!(grown.after.bytes <= size, "{layout:?} {grown:?}");
                assert_eq!(grown.after.blocks, fs.superblock().blocks_count);
                let now = fs.statfs().unwrap();
                let more = grown.after.blocks - grown.before.blocks;
                // Not all of it: new groups have tables.
                let more = free.blocks + more / 2..=free.blocks + more;
                let is_right = more.contains(&now.blocks);
                stop.fetch_or(!is_right, Ordering::AcqRel);
                assert!(is_right, "{layout:?} {free:?} {now:?}");
            }
            stop.store(true, Ordering::Release);
            left.extend(workers.into_iter().flat_map(|worker| worker.unwrap().join().unwrap()));
        })
        .unwrap();
        for (name, number) in &left {
            assert!(fs.read(name).unwrap() == bytes_of(*number), "{layout:?} {name}");
        }
        fs.unmount().unwrap();
        let now = superblock(&device);
        assert!(size_of(&now) > from * 4, "{layout:?}: {}", size_of(&now));
        require!(assert_sound(&device, dir.path(), &format!("{layout:?}")));
        let after = seen(&device);
        let gone: Vec<_> =
            before.iter().filter(|(path, was)| after.get(*path) != Some(was)).collect();
        // The threads change the times of the root, which are not compared.
        assert!(gone.iter().all(|(path, _)| path.as_slice() == b"/"), "{layout:?} {gone:?}");
        for (name, _) in left {
            assert!(after.contains_key(name.as_bytes()), "{layout:?} {name}");
        }
    }
}

#[test]
fn a_mount_that_has_grown_can_be_filled_to_the_last_block() {
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), *layout));
        let from = size_of(&superblock(&first));
        let device = Arc::new(first.snapshot());
        let shared: SharedDevice = Arc::clone(&device) as SharedDevice;
        let fs = mounted(&shared);
        shared.extend(from * 2).unwrap();
        fs.grow(GrowTo::DeviceEnd).unwrap();
        let totals = fs.statfs().unwrap();
        let file = fs.open_options().write(true).create(true).open("/filler").unwrap();
        let (mut at, piece) = (0, vec![0xa5; 1 << 18]);
        while let Ok(written) = file.write_at(&piece, at) {
            at += written as u64;
            if written == 0 {
                break;
            }
        }
        file.sync().unwrap();
        drop(file);
        let free = fs.statfs().unwrap().blocks_free * u64::from(totals.block_bytes);
        assert!(at > from / 2 && free < from / 4, "{layout:?}: {at} bytes fit, {free} are left");
        let mut made = 0;
        while fs.write(format!("/i{made}"), []).is_ok() && made < 20_000 {
            made += 1;
        }
        assert!(made > 0 || totals.files_free == 0, "{layout:?}");
        fs.unmount().unwrap();
        require!(assert_sound(&device, dir.path(), &format!("{layout:?}")));
    }
}

#[test]
fn the_kernel_mounts_what_has_grown_online_and_sees_the_same() {
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), *layout));
        let sb = superblock(&first);
        if sb.block_size.bytes() > 4096 {
            continue; // The kernel has pages of 4 KiB.
        }
        let grown = grown(&first, size_of(&sb) * 3).unwrap();
        let path = dir.path().join("grown.img");
        image::save(&first, &path);
        if require!(LoopMount::attempt(&path, MountFlags::empty(), "")).is_err() {
            println!("{layout:?}: not for this kernel");
            continue;
        }
        std::fs::remove_file(&path).unwrap();
        image::save(&grown, &path);
        {
            let mount = require!(LoopMount::read_write(&path));
            let names = std::fs::read_dir(mount.path()).unwrap().count();
            assert_eq!(names, first_level(&seen(&first)), "{layout:?}");
            let totals = rustix::fs::statvfs(mount.path()).unwrap();
            let blocks = superblock(&grown).blocks_count;
            assert!(totals.f_blocks <= blocks && totals.f_blocks > blocks / 2, "{layout:?}");
            for number in 0..40 {
                let bytes = vec![number as u8; 300_000];
                std::fs::write(mount.path().join(format!("new{number}")), bytes).unwrap();
            }
        }
        require!(oracle::e2fsck(&path)).assert_clean();
    }
}

fn first_level(all: &BTreeMap<Vec<u8>, Seen>) -> usize {
    let is_first =
        |path: &&Vec<u8>| path.len() > 1 && path.iter().skip(1).all(|byte| *byte != b'/');
    all.keys().filter(is_first).count()
}

/// The same growth while nobody has it mounted comes to the same file system.
#[test]
fn growth_online_and_offline_come_to_the_same_geometry() {
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), *layout));
        let size = size_of(&superblock(&first)) * 3;
        let online = grown(&first, size).unwrap();
        let (offline, _) = to_size(&first, size).unwrap();
        let (mut on, mut off) = (superblock(&online), superblock(&offline));
        for sb in [&mut on, &mut off] {
            sb.mount_time = 0;
            sb.write_time = 0;
            sb.mount_count = 0;
            sb.kbytes_written = 0;
        }
        assert_eq!(
            (on.blocks_count, on.group_count, on.inodes_count, on.reserved_gdt_blocks),
            (off.blocks_count, off.group_count, off.inodes_count, off.reserved_gdt_blocks),
            "{layout:?}"
        );
        assert_eq!(on.features, off.features, "{layout:?}");
        assert_eq!(
            (on.first_meta_bg, on.backup_groups, on.reserved_blocks_count, on.overhead_clusters),
            (
                off.first_meta_bg,
                off.backup_groups,
                off.reserved_blocks_count,
                off.overhead_clusters
            ),
            "{layout:?}"
        );
        assert_eq!(
            (on.free_blocks_count, on.free_inodes_count),
            (off.free_blocks_count, off.free_inodes_count),
            "{layout:?}"
        );
        // As dumpe2fs prints them: places, free blocks and flags of every group.
        let groups = |device: &MemoryDevice| {
            let path = dir.path().join("dump.img");
            let _removed = std::fs::remove_file(&path);
            image::save(device, &path);
            let text = Tool::find("dumpe2fs")?.run([&path]);
            let from = text.find("\nGroup 0:").unwrap_or(0);
            Ok::<String, String>(text[from..].to_owned())
        };
        assert_eq!(require!(groups(&online)), require!(groups(&offline)), "{layout:?}");
    }
}

/// The device as it was mounted, and what happened to it during a growth to `size`.
fn recorded(device: &MemoryDevice, size: u64) -> (RecordingDevice, usize) {
    let recording = Arc::new(RecordingDevice::over(with_size(device, size)));
    let shared: SharedDevice = Arc::clone(&recording) as SharedDevice;
    let fs = mounted(&shared);
    // Something is under way.
    fs.write("/unsynced", vec![7; 30_000]).unwrap();
    let from = recording.len();
    fs.grow(GrowTo::Bytes(size)).unwrap();
    fs.unmount().unwrap();
    drop(shared);
    (Arc::into_inner(recording).unwrap(), from)
}

/// After each write, with everything written so far or only with what was flushed.
fn cuts(layout: Layout, factor: u64) -> Result<(), String> {
    let dir = tempdir().unwrap();
    let first = made(dir.path(), layout)?;
    let before = seen(&first);
    let old = superblock(&first);
    let (recording, from) = recorded(&first, size_of(&old) * factor);
    let mut sizes = std::collections::BTreeSet::new();
    for position in from..=recording.len() {
        for survival in [Survival::Kept, Survival::Lost] {
            let cut = recording.image_at(position, |_, _| survival);
            let what = format!("{layout:?} cut at {position}, {survival:?}");
            let shared = Arc::new(cut.snapshot());
            let fs = mounted(&(Arc::clone(&shared) as SharedDevice));
            fs.unmount().unwrap();
            assert_eq!(problems(&shared), [""; 0], "{what}");
            let mut after = seen(&shared);
            after.remove(b"/unsynced".as_slice());
            assert_eq!(after, before, "{what}");
            sizes.insert(superblock(&shared).blocks_count);
            let path = dir.path().join("cut.img");
            let _removed = std::fs::remove_file(&path);
            image::save(&cut, &path);
            // The journal is replayed, and nothing else is to be done.
            let done = oracle::e2fsck_as(&path, "-p", &[])?;
            assert!(matches!(done.status, Some(0 | 1)), "{what}: {}", done.text);
            oracle::e2fsck(&path)?.assert_clean();
        }
    }
    assert_eq!(sizes.len(), 2, "{layout:?}: the old size and the new one: {sizes:?}");
    assert_eq!(sizes.first(), Some(&old.blocks_count));
    Ok(())
}

#[test]
fn a_cut_of_a_growth_online_leaves_the_old_size_or_the_new() {
    for number in [2, 3, 6, 7, 14] {
        require!(cuts(LAYOUTS[number], 2));
    }
}

/// What dumpe2fs says of the superblock, as far as it follows from the size.
fn geometry(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let all = oracle::dumpe2fs(path)?;
    let names = [
        "Block count",
        "Inode count",
        "Reserved GDT blocks",
        "Reserved block count",
        "Filesystem features",
        "First meta block group",
        "Backup block groups",
        "Free blocks",
        "Free inodes",
    ];
    let wanted = all.into_iter().filter(|(name, _)| names.contains(&name.as_str()));
    Ok(wanted.collect())
}

/// What resize2fs makes otherwise, on purpose or by mistake: `docs/resize.md` tells why.
fn differs_from_resize2fs(layout: &Layout, name: &str, theirs: Option<&String>) -> bool {
    let has = |word: &str| layout.words.iter().any(|option| option.contains(word));
    let is_bigalloc = has("bigalloc");
    match name {
        // Without a reserve it moves what lies where descriptors have to go.
        "Filesystem features" | "First meta block group" => has("^resize_inode") && !is_bigalloc,
        "Free blocks" if has("^resize_inode") && !is_bigalloc => true,
        // More blocks than the file system has: it counts clusters of the old last group twice.
        "Free blocks" if is_bigalloc => {
            let free = theirs.and_then(|free| free.parse::<u64>().ok());
            free.is_some_and(|free| free * 1024 > size_in_bytes(layout.size) * 2)
        }
        "Backup block groups" => has("sparse_super2"),
        _ => false,
    }
}

/// Bytes of a size as these layouts have them: `12M`.
fn size_in_bytes(size: &str) -> u64 {
    size.strip_suffix('M').and_then(|size| size.parse::<u64>().ok()).expect("MiB") * MIB
}

#[test]
fn the_size_is_what_resize2fs_makes_of_it() {
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), *layout));
        let size = size_of(&superblock(&first)) * 2;
        let (ours, theirs) = (dir.path().join("ours.img"), dir.path().join("theirs.img"));
        image::save(&grown(&first, size).unwrap(), &ours);
        image::save(&with_size(&first, size), &theirs);
        let resize2fs = require!(Tool::find("resize2fs"));
        // What it says is not asked: if it failed, the size below is not this one.
        resize2fs.run(["-f".as_ref(), theirs.as_os_str()]);
        let (ours, theirs) = (require!(geometry(&ours)), require!(geometry(&theirs)));
        for name in ours.keys().chain(theirs.keys()) {
            let (mine, other) = (ours.get(name), theirs.get(name));
            let is_equal = mine == other;
            let is_known = differs_from_resize2fs(layout, name, other);
            assert!(is_equal || is_known, "{layout:?} {name}: {mine:?}, resize2fs {other:?}");
        }
    }
}
