//! Maps that point into the file system's own structures: nothing is read there, nothing written,
//! and the error says whose the block is.

use std::ops::Range;
use std::sync::Arc;

use crate::common;
use crate::patch;
use extant::ring::Op;
use extant::{
    AlignedBuffer, Fallocate, Fault, Fs, FsBlock, FsError, GroupIndex, Ino, Inode, MappingKind,
    MountOptions, Zone,
};
use extant_block::{FileDevice, MemoryDevice, RecordingDevice, SharedDevice};
use extant_sync::{Clock, FixedClock, SystemClock};
use extant_testkit::lasting::Lasting;
use extant_testkit::model::{is_written, written};
use extant_testkit::oracle::{debugfs, mke2fs};
use extant_testkit::require;
use extant_testkit::zones::zones;
use patch::patch_inode;

/// Blocks of `/file`.
const BLOCKS: u64 = 16;
const SEED: u64 = 0x5eed;

/// Name, size, arguments of mke2fs.
const LAYOUTS: &[(&str, &str, &[&str])] = &[
    ("ext4", "40M", &["-t", "ext4", "-b", "1024", "-J", "size=4", "-O", "resize_inode"]),
    ("4 KiB", "24M", &["-t", "ext4", "-b", "4096", "-O", "mmp,orphan_file,quota"]),
    ("ext3", "20M", &["-t", "ext3", "-b", "1024"]),
    ("ext2", "20M", &["-t", "ext2", "-b", "1024", "-O", "^sparse_super,^resize_inode"]),
    ("meta_bg", "40M", &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode,^flex_bg"]),
    ("packed", "40M", &["-t", "ext4", "-b", "1024", "-E", "packed_meta_blocks=1"]),
    ("bigalloc", "40M", &["-t", "ext4", "-b", "1024", "-O", "bigalloc,^has_journal"]),
];

fn make(size: &str, options: &[&str]) -> Result<MemoryDevice, String> {
    let dir = common::work_dir();
    let source = dir.path().join("source");
    std::fs::create_dir_all(source.join("dir")).unwrap();
    let bytes = written(SEED, 0, BLOCKS * 4096);
    std::fs::write(source.join("file"), &bytes).unwrap();
    for at in 0..40 {
        std::fs::write(source.join(format!("dir/{at}-{}", "n".repeat(100))), b"").unwrap();
    }
    std::os::unix::fs::symlink("t".repeat(200), source.join("link")).unwrap();
    std::fs::write(source.join("attributes"), b"").unwrap();
    let image = dir.path().join("image");
    let mut arguments = options.to_vec();
    arguments.extend(["-N", "512", "-d", source.to_str().unwrap()]);
    mke2fs(&image, size, &arguments)?;
    let value = "v".repeat(400);
    debugfs(&image, true, &format!("ea_set attributes user.large {value}\n"))?;
    Ok(extant_testkit::image::load(&image))
}

fn open(device: SharedDevice, writing: bool) -> extant::Result<Fs> {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(!writing).seed(1).clock(clock);
    Ok(options.background(false).open_shared(device)?)
}

/// One block of each kind of structure, with the name that the error has to give it.
fn targets(device: &MemoryDevice) -> Vec<(FsBlock, String)> {
    let fs = open(Arc::new(device.snapshot()), false).unwrap();
    let superblock = fs.superblock();
    let mut found = Vec::new();
    let mut add = |block: FsBlock, zone: Zone| found.push((block, zone.to_string()));
    let first = FsBlock(u64::from(superblock.first_data_block));
    add(first, Zone::Superblock(GroupIndex(0)));
    add(FsBlock(first.0 + 1), Zone::Descriptors(GroupIndex(0)));
    if superblock.reserved_gdt_blocks > 0 {
        add(FsBlock(first.0 + 2), Zone::Descriptors(GroupIndex(0)));
        let resize = fs.inode(Ino::RESIZE).unwrap();
        let pointer = resize.record().block[52..56].try_into().unwrap();
        add(FsBlock(u64::from(u32::from_le_bytes(pointer))), Zone::Resize(Ino::RESIZE));
    }
    for group in [0, 1, superblock.group_count - 1].map(GroupIndex) {
        if group.0 >= superblock.group_count {
            continue;
        }
        let descriptor = fs.group(group).unwrap();
        add(descriptor.block_bitmap, Zone::BlockBitmap(group));
        add(descriptor.inode_bitmap, Zone::InodeBitmap(group));
        add(descriptor.inode_table, Zone::InodeTable(group));
        let last = u64::from(superblock.inode_table_blocks()) - 1;
        add(FsBlock(descriptor.inode_table.0 + last), Zone::InodeTable(group));
    }
    if superblock.group_count > 1 {
        add(superblock.group_first_block(GroupIndex(1)).unwrap(), Zone::Superblock(GroupIndex(1)));
    }
    let mut owned = |ino: Ino, zone: fn(Ino) -> Zone| {
        let inode = fs.inode(ino).unwrap();
        let blocks = inode.size() >> fs.block_size().log2();
        let last = inode.map(0..blocks).last().unwrap().unwrap();
        let MappingKind::Mapped(start) = last.kind else { panic!("{ino}: {last:?}") };
        add(FsBlock(start.0 + last.len - 1), zone(ino));
    };
    if superblock.journal_inode.0 != 0 {
        owned(superblock.journal_inode, Zone::Journal);
    }
    if superblock.orphan_file_inode.0 != 0 {
        owned(superblock.orphan_file_inode, Zone::OrphanFile);
    }
    if superblock.user_quota_inode.0 != 0 {
        owned(superblock.user_quota_inode, Zone::Quota);
        owned(superblock.group_quota_inode, Zone::Quota);
    }
    if superblock.mmp_block.0 != 0 {
        add(superblock.mmp_block, Zone::MultiMount);
    }
    found
}

/// The error is about that block, and names what is there.
#[track_caller]
fn assert_refused<T>(what: &str, result: extant::Result<T>, (block, zone): &(FsBlock, String)) {
    let error = match result {
        Ok(_) => panic!("{what}: taken, though block {block} is {zone}"),
        Err(error) => error,
    };
    assert_eq!(error.errno(), 117, "{what}: {error}"); // EUCLEAN
    let FsError::Corrupt { block: Some(at), fault: Fault::Zone { zone: found, .. }, .. } = &error
    else {
        panic!("{what}: {error}");
    };
    assert_eq!((at, &found.to_string()), (block, zone), "{what}: {error}");
}

/// Every way to the contents of `file`, whose first block is `target`'s.
fn try_contents(what: &str, fs: &Fs, file: &Inode, target: &(FsBlock, String), writing: bool) {
    let refuse = |way: &str, result: extant::Result<()>| {
        assert_refused(&format!("{what}: {way}"), result, target);
    };
    let len = fs.block_size().len() as u64;
    let bytes = vec![0; len as usize];
    let mut out = bytes.clone();
    refuse("read", file.read_at(&mut out, 0).map(drop));
    refuse("map", file.map(0..1).next().unwrap().map(drop));
    refuse("fiemap", file.fiemap(0..len, 1, false).map(drop));
    refuse("seek", file.seek_data(0).map(drop));
    if !writing {
        return;
    }
    let new = written(1, 0, len);
    refuse("read past the cache", file.read_direct_at(&mut out, 0).map(drop));
    refuse("read in place", file.with_cached(0..len, |_| ()));
    refuse("write of a part", file.write_at(b"part", 7).map(drop));
    refuse("write of a block", file.write_at(&new, 0).map(drop));
    refuse("write past the cache", file.write_direct_at(&new, 0).map(drop));
    assert!(file.try_read_at(&mut out, 0).is_err() && file.try_write_at(&new, 0).is_err());
    let ring = fs.ring(4).unwrap();
    let by_ring = |op| {
        let done = ring.submit(0, file, op).unwrap().or_else(|| ring.wait());
        done.unwrap().result.map(drop)
    };
    let fetch = Op::ReadDirect { offset: 0, buffer: AlignedBuffer::zeroed(new.len()) };
    refuse("read past the cache by a ring", by_ring(fetch));
    let buffer = AlignedBuffer::copy_of(&new);
    let store = Op::WriteDirect { offset: 0, buffer, synced: false };
    refuse("write past the cache by a ring", by_ring(store));
    assert_eq!((ring.engine().is_some(), ring.stats().lane), (true, 0));
    refuse("zero a part", file.fallocate(Fallocate::PunchHole, 3..len / 2));
    refuse("truncate to a part", file.truncate(len / 2));
    let other = fs.root().unwrap().lookup("attributes").unwrap();
    refuse("copy", file.copy_range(0, &other, 0, len).map(drop));
    file.sync().unwrap();
}

/// What was recorded has no contents of files in structures.
fn assert_untouched(what: &str, device: &RecordingDevice) {
    for touch in device.touches() {
        for sector in touch.data.chunks_exact(512) {
            assert!(!is_written(sector), "{what}: contents of a file in the {}", touch.label);
        }
    }
}

fn recording(image: &MemoryDevice, parts: &[(Range<u64>, String)]) -> Arc<RecordingDevice> {
    let device = RecordingDevice::over(image.snapshot());
    for (bytes, name) in parts {
        device.label(bytes.clone(), name);
    }
    Arc::new(device)
}

#[test]
fn no_contents_are_looked_for_in_structures() {
    for (name, size, options) in LAYOUTS {
        let whole = require!(make(size, options));
        let parts = zones(&whole);
        let targets = targets(&whole);
        assert!(targets.len() >= 7, "{name}: {targets:?}");
        for target in &targets {
            let what = format!("{name}: {} in {}", target.0, target.1);
            let image = whole.snapshot();
            patch_inode(&image, "/file", |record| patch::point_first(record, target.0));
            let fs = open(Arc::new(image.snapshot()), false).unwrap();
            let file = fs.resolve("/file").unwrap();
            try_contents(&what, &fs, &file, target, false);
            drop((file, fs));

            let device = recording(&image, &parts);
            let lasting = Lasting::over(Arc::clone(&device), 1);
            let fs = open(Arc::new(lasting), true).unwrap();
            let file = fs.resolve("/file").unwrap();
            try_contents(&what, &fs, &file, target, true);
            // What follows is found, and is the file's.
            let len = fs.block_size().len() as u64;
            file.write_at(&written(2, len * 90, len), len * 90).unwrap();
            // A file can lose such blocks, and they are not freed.
            let root = fs.root().unwrap();
            root.unlink("file").unwrap();
            drop(file);
            let new = root.create("new", &extant::NewInode::root(0o644)).unwrap();
            for at in 0..100 {
                new.write_at(&written(3, at * len, len), at * len).unwrap();
            }
            drop((new, root));
            fs.unmount().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_untouched(&what, &device);
            let fs = open(Arc::new(device.contents()), true).unwrap();
            assert!(fs.resolve("/file").is_err() && fs.resolve("/new").is_ok());
            fs.unmount().unwrap();
        }
    }
}

#[test]
fn no_tree_directory_attribute_or_target_is_looked_for_in_structures() {
    for (name, size, options) in LAYOUTS {
        let whole = require!(make(size, options));
        for target in &targets(&whole) {
            if target.0.0 == 0 {
                continue; // Says that there is none.
            }
            let what = format!("{name}: {} in {}", target.0, target.1);
            let image = whole.snapshot();
            patch_inode(&image, "/file", |record| patch::point_below(record, target.0));
            for path in ["/dir", "/link"] {
                patch_inode(&image, path, |record| patch::point_first(record, target.0));
            }
            patch_inode(&image, "/attributes", |record| record.file_acl = target.0);
            for writing in [false, true] {
                let fs = open(Arc::new(image.snapshot()), writing).unwrap();
                let mut out = [0; 10];
                let file = fs.resolve("/file").unwrap();
                // Pointers of the inode itself come first, where the map has pointers.
                let below = 12 << fs.block_size().log2();
                assert_refused(&what, file.read_at(&mut out, below), target);
                let dir = fs.resolve("/dir").unwrap();
                assert_refused(&what, dir.lookup("0"), target);
                let listed = dir.read_dir().and_then(Iterator::collect::<extant::Result<Vec<_>>>);
                assert_refused(&what, listed, target);
                let link = fs.resolve_link("/link").unwrap();
                assert_refused(&what, link.read_link(), target);
                let attributes = fs.resolve("/attributes").unwrap();
                assert_refused(&what, attributes.xattr("user.large"), target);
                assert_refused(&what, attributes.fiemap_xattrs(), target);
                if !writing {
                    continue;
                }
                assert_refused(&what, file.write_at(b"x", below), target);
                let new = extant::NewInode::root(0o644);
                assert_refused(&what, dir.create("name", &new), target);
                let set = attributes.set_xattr("user.a", [1; 300], extant::XattrMode::Any);
                assert_refused(&what, set, target);
                drop((file, dir, link, attributes));
                fs.unmount().unwrap();
            }
        }
    }
}

#[test]
fn nothing_is_moved_out_of_structures() {
    let (name, size, options) = LAYOUTS[0];
    let whole = require!(make(size, options));
    let target = targets(&whole).swap_remove(3);
    patch_inode(&whole, "/file", |record| patch::point_first(record, target.0));
    let dir = common::work_dir();
    let path = dir.path().join("image");
    extant_testkit::image::save(&whole, &path);
    let device = FileDevice::open_read_write(&path).unwrap();
    let fs = open(Arc::new(device), true).unwrap();
    let file = fs.resolve("/file").unwrap();
    assert_refused(name, file.with_stored(0..1024, |_, _| true), &target);
    drop(file);
    fs.unmount().unwrap();
}

#[test]
fn owners_use_what_is_theirs() {
    let whole = require!(make("24M", LAYOUTS[1].2));
    for writing in [false, true] {
        let fs = open(Arc::new(whole.snapshot()), writing).unwrap();
        let superblock = fs.superblock();
        let owners = [
            superblock.journal_inode,
            superblock.orphan_file_inode,
            superblock.user_quota_inode,
            superblock.group_quota_inode,
            Ino::RESIZE,
        ];
        for ino in owners {
            let inode = fs.inode(ino).unwrap();
            let blocks = inode.size() >> fs.block_size().log2();
            for run in inode.map(0..blocks) {
                run.unwrap_or_else(|error| panic!("inode {ino}: {error}"));
            }
        }
        fs.unmount().unwrap();
    }
}

/// A file system whose structures overlap is not written, and can be read.
#[test]
fn structures_in_structures_refuse_writing() {
    let whole = require!(make("40M", LAYOUTS[0].2));
    let fs = open(Arc::new(whole.snapshot()), false).unwrap();
    let groups: Vec<_> =
        (0..fs.superblock().group_count).map(|at| fs.group(GroupIndex(at)).unwrap()).collect();
    drop(fs);
    let journal = targets(&whole).into_iter().find(|(_, zone)| zone.contains("journal")).unwrap();
    let table = groups[1].inode_table;
    let cases: &[(&str, u32, FsBlock, &str)] = &[
        ("bitmap in a table", 2, FsBlock(table.0 + 1), "block bitmap of group 2"),
        ("bitmap in a bitmap", 2, groups[3].inode_bitmap, "group 2"),
        ("bitmap in the descriptors", 1, FsBlock(2), "block bitmap of group 1"),
        ("bitmap in a backup", 2, FsBlock(8193), "block bitmap of group 2"),
        ("bitmap in the journal", 2, journal.0, "journal"),
    ];
    for (what, group, block, says) in cases {
        let image = whole.snapshot();
        patch::patch_group(&image, GroupIndex(*group), |descriptor| {
            descriptor.block_bitmap = *block;
        });
        let error = open(Arc::new(image.snapshot()), true).err();
        let error = error.unwrap_or_else(|| panic!("{what}: mounted for writing"));
        assert_eq!(error.errno(), 117, "{what}: {error}");
        assert!(error.to_string().contains(says), "{what}: {error}");
        let fs = open(Arc::new(image), false).unwrap();
        assert_eq!(fs.read("/file").unwrap(), written(SEED, 0, BLOCKS * 4096), "{what}");
    }
}

/// The look at all descriptors does not show: a file system of 15 TiB.
#[test]
fn a_large_file_system_opens_at_the_cost_of_its_descriptors() {
    let dir = common::work_dir();
    let path = dir.path().join("image");
    let options = ["-t", "ext4", "-O", "^has_journal", "-N", "2097152", "-E", "nodiscard"];
    require!(mke2fs(&path, "15T", &options));
    for writing in [false, true] {
        let start = SystemClock.monotonic();
        let device = FileDevice::open_read_write(&path).unwrap();
        let fs = open(Arc::new(device), writing).unwrap();
        let file = fs.root().unwrap();
        assert!(file.map(0..1).next().unwrap().is_ok());
        drop(file);
        println!("writing {writing}: {:?}", SystemClock.monotonic().saturating_sub(start));
        fs.unmount().unwrap();
    }
}

/// Blocks that a quota file gets during a mount are the file system's own from that moment on: a file that maps one of
/// them, as only a hostile image has it, neither reads nor writes there.
#[test]
fn what_a_quota_file_gains_during_a_mount_is_nobody_elses() {
    let options = ["-t", "ext4", "-b", "1024", "-O", "quota,^metadata_csum"];
    let whole = require!(make("24M", &options));
    let fill = |device: Arc<MemoryDevice>| {
        let fs = open(Arc::clone(&device) as _, true).unwrap();
        let root = fs.root().unwrap();
        for uid in 0..150 {
            let new = extant::NewInode { permissions: 0o644, uid: uid * 1000, gid: uid };
            root.create(format!("of {uid}"), &new).unwrap();
        }
        drop(root);
        fs
    };
    let blocks = |fs: &Fs| -> std::collections::BTreeSet<u64> {
        let quota = fs.inode(fs.superblock().user_quota_inode).unwrap();
        let runs = quota.map(0..quota.block_len()).map(Result::unwrap);
        let of = |run: extant::Mapping| match run.kind {
            extant::MappingKind::Mapped(start) => start.0..start.0 + run.len,
            _ => 0..0,
        };
        runs.flat_map(of).collect()
    };
    // Once, to see which ones it gets.
    let before = blocks(&open(Arc::new(whole.snapshot()), false).unwrap());
    let fs = fill(Arc::new(whole.snapshot()));
    let gained: Vec<u64> = blocks(&fs).difference(&before).copied().collect();
    fs.unmount().unwrap();
    let target = *gained.last().expect("it grows");

    let image = whole.snapshot();
    patch_inode(&image, "/file", |record| patch::point_first(record, FsBlock(target)));
    let fs = fill(Arc::new(image));
    assert!(blocks(&fs).contains(&target), "the same happens again");
    let file = fs.resolve("/file").unwrap();
    let mut bytes = [0; 100];
    let refused = file.read_at(&mut bytes, 0).unwrap_err();
    assert!(refused.to_string().contains("inode"), "{refused}");
    assert_eq!((refused.family(), refused.errno()), (extant::Family::Damage, 117));
    let wrote = file.write_at(&[7; 100], 0).and_then(|_| file.sync());
    assert_eq!(wrote.unwrap_err().family(), extant::Family::Damage);
    drop(file);
    let root = fs.root().unwrap();
    root.unlink("file").unwrap();
    drop(root);
    fs.unmount().unwrap();
}
