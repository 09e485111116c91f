//! Damage that is met while mounting: what a log would do is known before it is done, and what the
//! kernel reads of a damaged image is read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common;
use crate::patch;
use extant::{Family, Fault, Fs, FsError, GroupIndex, MountOptions, NewInode};
use extant_block::{
    BlockDevice, FaultDevice, FaultPlan, FileDevice, MemoryDevice, OperationKind, Record,
    RecordingDevice, SharedDevice,
};
use extant_format::inode::InodeFlags;
use extant_jbd2::{ExternalJournal, ExternalJournalError};
use extant_sync::FixedClock;
use extant_testkit::oracle::{LoopMount, debugfs, e2fsck, is_root, mke2fs};
use extant_testkit::require;
use rustix::mount::MountFlags;

const BLOCK: u64 = 1024;

fn open(device: SharedDevice, writing: bool) -> extant::Result<Fs> {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(!writing).seed(1).clock(clock);
    Ok(options.background(false).open_shared(device)?)
}

/// An image made by mke2fs with a few files, in a directory of its own.
fn make(options: &[&str]) -> Result<(extant_testkit::TempDir, PathBuf), String> {
    let dir = common::work_dir();
    let source = dir.path().join("source");
    std::fs::create_dir_all(source.join("dir")).unwrap();
    std::fs::write(source.join("file"), [7; 5000]).unwrap();
    std::fs::write(source.join("dir/inner"), b"inner").unwrap();
    let image = dir.path().join("image");
    let mut arguments = vec!["-b", "1024", "-N", "256", "-d", source.to_str().unwrap()];
    arguments.extend(options);
    mke2fs(&image, "8M", &arguments)?;
    Ok((dir, image))
}

/// Whether the kernel mounts a copy of `device`; `None` where that cannot be asked.
fn kernel_mounts(device: &MemoryDevice, dir: &Path) -> Option<bool> {
    if !is_root() {
        return None;
    }
    let copy = dir.join("for the kernel");
    let _ = std::fs::remove_file(&copy);
    extant_testkit::image::save(device, &copy);
    LoopMount::attempt(&copy, MountFlags::empty(), "errors=continue").ok().map(|one| one.is_ok())
}

/// A log of debugfs: two blocks, a revoke of the first of them, a third block.
const THREE_TRANSACTIONS: &str = "jo -c\njw -b 4000-4001 DATA\njw -r 4000\njw -b 4002 DATA\njc\n";

/// Blocks of the log by type and transaction: 1 descriptors, 2 commits, 5 revokes.
fn log_blocks(device: &MemoryDevice) -> Vec<(u32, u32, u64)> {
    let mut found = Vec::new();
    let mut block = [0; BLOCK as usize];
    for number in 1..device.size_bytes() / BLOCK {
        device.read_at(number * BLOCK, &mut block).unwrap();
        let word = |at: usize| u32::from_be_bytes(block[at..at + 4].try_into().unwrap());
        if word(0) == 0xc03b_3998 {
            found.push((word(4), word(8), number));
        }
    }
    found
}

#[test]
fn a_damaged_log_is_refused_where_the_kernel_refuses_it() {
    let (dir, image) = require!(make(&["-t", "ext4", "-J", "size=1"]));
    let data = dir.path().join("data");
    std::fs::write(&data, [0xd7; 2048]).unwrap();
    let script = THREE_TRANSACTIONS.replace("DATA", data.to_str().unwrap());
    require!(debugfs(&image, true, &script));
    let whole = extant_testkit::image::load(&image);
    let blocks = log_blocks(&whole);
    // Type, transaction, blocks behind, byte, and whether it is mounted.
    let cases = [
        ("nothing", 0, 0, 0, 0, true),
        ("commit block, checksum", 2, 1, 0, 20, false),
        ("commit block, time", 2, 1, 0, 50, false),
        ("commit block, behind the header", 2, 1, 0, 900, true),
        ("last commit block, checksum", 2, 3, 0, 20, false),
        ("last commit block, behind the header", 2, 3, 0, 900, true),
        ("revoke block, count", 5, 2, 0, 14, false),
        ("revoke block, entry", 5, 2, 0, 20, false),
        ("revoke block, its end", 5, 2, 0, 700, false),
        ("revoke block, magic: the log ends", 5, 2, 0, 1, true),
        ("descriptor", 1, 1, 0, 700, false),
        ("last descriptor", 1, 3, 0, 500, false),
        ("a copy that is revoked", 1, 1, 1, 100, true),
        ("a copy", 1, 3, 1, 5, false),
    ];
    for (what, kind, tid, behind, byte, mounts) in cases {
        let device = whole.snapshot();
        if kind != 0 {
            let found = blocks.iter().find(|(one, other, _)| (*one, *other) == (kind, tid));
            let (_, _, block) = found.unwrap_or_else(|| panic!("{what}: {blocks:?}"));
            let at = (block + behind) * BLOCK + byte;
            let mut old = [0];
            device.read_at(at, &mut old).unwrap();
            device.write_at(at, &[old[0] ^ 0x40]).unwrap();
        }
        if let Some(kernel) = kernel_mounts(&device, dir.path()) {
            assert_eq!(kernel, mounts, "{what}: the kernel");
        }
        let recording = Arc::new(RecordingDevice::over(device.snapshot()));
        match open(Arc::clone(&recording) as _, true) {
            Ok(fs) => {
                assert!(mounts, "{what}");
                fs.unmount().unwrap();
            }
            Err(error) => {
                assert!(!mounts, "{what}: {error}");
                assert_eq!(error.family(), Family::Damage, "{what}: {error}");
                // The kernel has replayed what was before it by then.
                assert_untouched(what, &recording);
            }
        }
        assert_eq!(open(Arc::new(device), false).is_ok(), mounts, "{what}: for reading");
    }
}

fn assert_untouched(what: &str, device: &RecordingDevice) {
    let changed = device.records().into_iter().filter(|record| record.range().1 > 0);
    let changed: Vec<_> = changed.map(|record| record.range()).collect();
    assert!(changed.is_empty(), "{what}: written: {changed:?}");
    assert!(!device.records().iter().any(|record| matches!(record, Record::Write { .. })));
}

#[test]
fn a_device_that_fails_during_a_replay_is_no_damage() {
    let (dir, image) = require!(make(&["-t", "ext4", "-J", "size=1"]));
    let data = dir.path().join("data");
    std::fs::write(&data, [0xd7; 2048]).unwrap();
    let script = THREE_TRANSACTIONS.replace("DATA", data.to_str().unwrap());
    require!(debugfs(&image, true, &script));
    let whole = extant_testkit::image::load(&image);
    for (kind, errno) in [
        (OperationKind::Read, 5),
        (OperationKind::Write, 5),
        (OperationKind::Write, 28),
        (OperationKind::Flush, 5),
        (OperationKind::Flush, 28),
    ] {
        let mut refused = 0;
        for number in 0.. {
            assert!(number < 500, "{kind:?}: the replay never ends");
            let below = Arc::new(whole.snapshot());
            let exactly = vec![(kind, number, u64::MAX / 2)];
            // Half a superblock has a wrong checksum, whoever writes it.
            let plan = FaultPlan { exactly, errno, whole: 1024..2048, ..FaultPlan::default() };
            let device = FaultDevice::new(Arc::clone(&below), plan);
            let Err(error) = open(Arc::new(device), true) else { break };
            refused += 1;
            let what = format!("{kind:?} {number}, errno {errno}: {error}");
            assert_eq!(error.family(), Family::Device, "{what}");
            assert_eq!(error.errno(), errno, "{what}");
            open(below, true).unwrap_or_else(|error| panic!("{what}; then {error}"));
        }
        assert!(refused >= 2, "{kind:?}: {refused}");
    }
}

#[test]
fn a_replay_that_would_ruin_the_image_writes_nothing() {
    let (dir, image) = require!(make(&["-t", "ext4", "-J", "size=1"]));
    let clean = extant_testkit::image::load(&image);
    let fs = open(Arc::new(clean.snapshot()), false).unwrap();
    let table = fs.group(GroupIndex(0)).unwrap().inode_table;
    drop(fs);
    let zeros = dir.path().join("zeros");
    std::fs::write(&zeros, [0; 1024]).unwrap();
    let noise = dir.path().join("noise");
    std::fs::write(&noise, [0xa5; 1024]).unwrap();
    for (what, block, data) in [
        ("the superblock", 1, &zeros),
        ("the descriptors", 2, &zeros),
        ("the descriptors, with noise", 2, &noise),
        ("the root", table.0, &zeros),
    ] {
        let copy = dir.path().join("copy");
        std::fs::copy(&image, &copy).unwrap();
        let script = format!("jo -c\njw -b {block} {}\njc\n", data.display());
        require!(debugfs(&copy, true, &script));
        let device = Arc::new(RecordingDevice::over(extant_testkit::image::load(&copy)));
        let error = open(Arc::clone(&device) as _, true).err();
        let error = error.unwrap_or_else(|| panic!("{what}: mounted"));
        let refused = matches!(error, FsError::NotExt { .. }) || error.family() == Family::Damage;
        assert!(refused, "{what}: {error}");
        assert_untouched(what, &device);
    }
}

#[test]
fn a_journal_device_with_a_wrong_checksum_is_refused() {
    let dir = common::work_dir();
    let path = dir.path().join("journal");
    let options = ["-b", "1024", "-O", "journal_dev,metadata_csum", "-L", "label"];
    require!(mke2fs(&path, "2M", &options));
    let open = || {
        let device = FileDevice::open_read_only(&path).unwrap();
        ExternalJournal::open(Arc::new(device))
    };
    open().unwrap_or_else(|error| panic!("{error}"));
    let device = FileDevice::open_read_write(&path).unwrap();
    device.write_at(1024 + 0x78, b"LABEL").unwrap();
    drop(device);
    match open() {
        Err(ExternalJournalError::Checksum(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_descriptor_says_wrongly_hides_no_file() {
    let (_dir, image) = require!(make(&["-t", "ext4", "-J", "size=1"]));
    let whole = extant_testkit::image::load(&image);
    // The checksum of the first descriptor: the kernel mounts that for reading.
    let device = whole.snapshot();
    device.write_at(2 * BLOCK + 0x1e, &[0x12, 0x34]).unwrap();
    let fs = open(Arc::new(device.snapshot()), false).unwrap();
    assert_eq!(fs.read("/dir/inner").unwrap(), b"inner");
    assert!(fs.statfs().is_ok());
    drop(fs);
    let error = open(Arc::new(device), true).expect_err("not for writing");
    assert_eq!(error.errno(), 74, "{error}"); // EBADMSG
    // A count that cannot be: nothing is allocated there, and everything is read.
    let device = whole.snapshot();
    patch::patch_group(&device, GroupIndex(0), |descriptor| descriptor.free_inodes = 60_000);
    for writing in [false, true] {
        let fs = open(Arc::new(device.snapshot()), writing).unwrap();
        assert_eq!(fs.read("/dir/inner").unwrap(), b"inner", "{writing}");
    }
    // A block bitmap with a wrong checksum is nothing to a reader.
    let device = whole.snapshot();
    let fs = open(Arc::new(whole.snapshot()), false).unwrap();
    let bitmap = fs.group(GroupIndex(0)).unwrap().block_bitmap;
    drop(fs);
    device.write_at(bitmap.0 * BLOCK + 500, &[0x55]).unwrap();
    for writing in [false, true] {
        let fs = open(Arc::new(device.snapshot()), writing).unwrap();
        assert_eq!(fs.read("/dir/inner").unwrap(), b"inner", "{writing}");
    }
}

/// A root that cannot be used is no mount; a reader can still look at inodes.
#[test]
fn a_root_that_cannot_be_used_is_found_before_anybody_relies_on_it() {
    let (_dir, image) = require!(make(&["-t", "ext4", "-J", "size=1"]));
    let whole = extant_testkit::image::load(&image);
    type Change = fn(&mut extant_format::inode::Inode);
    let cases: [(&str, Change); 4] = [
        ("a file", |record| record.mode = 0o100_644),
        ("not in use", |record| (record.mode, record.links) = (0, 0)),
        ("no size", |record| record.size = 0),
        ("no space", |record| record.sectors = 0),
    ];
    for (what, change) in cases {
        let device = whole.snapshot();
        patch::patch_inode(&device, "/", change);
        let error = open(Arc::new(device.snapshot()), true).err();
        let error = error.unwrap_or_else(|| panic!("{what}: mounted for writing"));
        assert_eq!(error.family(), Family::Damage, "{what}: {error}");
        let fs = open(Arc::new(device), false).unwrap();
        assert_eq!(fs.check_root().unwrap_err().family(), Family::Damage, "{what}");
    }
}

/// Sizes that no map reaches are damage, from the same byte on as for the kernel.
#[test]
fn sizes_past_the_map_are_damage_as_for_the_kernel() {
    for (name, options) in [
        ("extents", &["-t", "ext4", "-O", "^has_journal"][..]),
        ("no huge files", &["-t", "ext4", "-O", "^has_journal,^huge_file"]),
        ("pointers", &["-t", "ext2"]),
        ("pointers and huge files", &["-t", "ext2", "-O", "huge_file"]),
    ] {
        let (dir, image) = require!(make(options));
        let whole = extant_testkit::image::load(&image);
        let with_size = |size: u64| {
            let device = whole.snapshot();
            patch::patch_inode(&device, "/file", |record| record.size = size);
            device
        };
        let damage = |size: u64| {
            let fs = open(Arc::new(with_size(size)), false).unwrap();
            let error = fs.resolve("/file").err();
            error.map(|error| match error {
                FsError::Corrupt { fault: Fault::Field { limit, .. }, .. } => limit,
                other => panic!("{name}, {size}: {other}"),
            })
        };
        let limit = damage((1 << 63) - 1).unwrap_or_else(|| panic!("{name}: any size"));
        assert_eq!((damage(limit), damage(limit + 1)), (None, Some(limit)), "{name}");
        // With the largest size nothing takes long: what is not stored costs nothing.
        for writing in [false, true] {
            let fs = open(Arc::new(with_size(limit)), writing).unwrap();
            let file = fs.resolve("/file").unwrap();
            assert!(file.map(0..1 << 32).count() < 10, "{name}");
            let mut out = [1; 100];
            assert_eq!(file.read_at(&mut out, limit - 100).unwrap(), 100);
            assert_eq!(out, [0; 100]);
            assert_eq!(file.seek_data(1 << 20).unwrap(), None, "{name}");
            assert_eq!(file.seek_hole(0).unwrap(), Some(5120), "{name}");
            assert_eq!(file.fiemap(0..limit, 100, false).unwrap().len(), 1, "{name}");
            drop(file);
            fs.unmount().unwrap();
        }
        if !is_root() {
            continue;
        }
        for (size, is_good) in [(limit, true), (limit + 1, false)] {
            let path = dir.path().join("for the kernel");
            let _ = std::fs::remove_file(&path);
            extant_testkit::image::save(&with_size(size), &path);
            let mount = require!(LoopMount::read_only(&path));
            let found = std::fs::metadata(mount.path().join("file"));
            assert_eq!(found.is_ok(), is_good, "{name}, {size}: {found:?}");
        }
    }
}

#[test]
fn new_inodes_get_the_extra_bytes_that_the_superblock_asks_for() {
    let (dir, image) = require!(make(&["-t", "ext4", "-I", "512", "-J", "size=1"]));
    let whole = extant_testkit::image::load(&image);
    for (min, want, gets) in [(0, 0, 32), (32, 64, 64), (96, 32, 96), (32, 66, 32)] {
        let device = whole.snapshot();
        device.write_at(1024 + 0x15c, &u16::to_le_bytes(min)).unwrap();
        device.write_at(1024 + 0x15e, &u16::to_le_bytes(want)).unwrap();
        patch::reseal(&device);
        let device = Arc::new(device);
        let fs = open(Arc::clone(&device) as _, true).unwrap();
        let root = fs.root().unwrap();
        let file = root.create("new", &extant::NewInode::root(0o644)).unwrap();
        assert_eq!(file.record().extra_isize, gets, "{min}, {want}");
        assert!(!file.record().flags.contains(InodeFlags::INLINE_DATA));
        file.set_xattr("user.a", [1; 50], extant::XattrMode::Any).unwrap();
        drop((file, root));
        fs.unmount().unwrap();
        let path = dir.path().join("checked");
        let _ = std::fs::remove_file(&path);
        extant_testkit::image::save(&device, &path);
        let found = require!(e2fsck(&path));
        match want % 4 {
            0 => found.assert_clean(),
            // The field itself, which is ours to report and not to change, and nothing else.
            _ => {
                assert!(found.text.contains("Bad desired extra isize"), "{}", found.text);
                assert_eq!(found.text.matches("? no").count(), 1, "{}", found.text);
            }
        }
    }
}

#[test]
fn minix_df_counts_all_blocks() {
    let (_dir, image) = require!(make(&["-t", "ext4", "-J", "size=1"]));
    let whole = extant_testkit::image::load(&image);
    let statfs = |minix| {
        let options = MountOptions::new().minix_df(minix);
        options.open_shared(Arc::new(whole.snapshot())).unwrap().statfs().unwrap()
    };
    assert_eq!(statfs(true).blocks, 8192);
    assert!(statfs(false).blocks < 8192);
    assert_eq!(statfs(true).blocks_free, statfs(false).blocks_free);
}

/// What an inode says of data in itself counts only with the feature, as for the kernel: without it the map is followed,
/// for reading and for writing.
#[test]
fn a_flag_for_data_in_the_inode_means_nothing_without_its_feature() {
    for options in [&["-t", "ext2"][..], &["-t", "ext3", "-J", "size=1"]] {
        let (dir, path) = require!(make(options));
        let device = Arc::new(extant_testkit::image::load(&path));
        for name in ["/file", "/dir"] {
            patch::patch_inode(&device, name, |record| record.flags |= InodeFlags::INLINE_DATA);
        }
        assert_ne!(kernel_mounts(&device, dir.path()), Some(false));
        for writing in [false, true] {
            let fs = open(Arc::clone(&device) as _, writing).unwrap();
            assert_eq!(fs.read("/file").unwrap(), [7; 5000], "writing: {writing}");
            assert_eq!(fs.read("/dir/inner").unwrap(), b"inner");
            if writing {
                let root = fs.root().unwrap();
                let file = root.lookup("file").unwrap();
                file.truncate(9000).unwrap();
                root.lookup("dir").unwrap().create("new", &NewInode::root(0o644)).unwrap();
                drop((file, root));
            }
            fs.unmount().unwrap();
        }
        let changed = dir.path().join("changed");
        extant_testkit::image::save(&device, &changed);
        e2fsck(&changed).unwrap().assert_clean();
    }
}

/// Linux uses the space for extra fields of an inode that says it has none, and so what is there counts.
#[test]
fn extra_fields_of_an_inode_that_says_it_has_none_are_used_as_by_the_kernel() {
    let (dir, path) = require!(make(&["-t", "ext4", "-O", "^metadata_csum"]));
    let device = Arc::new(extant_testkit::image::load(&path));
    let at = patch::patch_inode(&device, "/file", |_| ());
    let mut word = [0; 4];
    device.read_at(at + 8 + 8, &mut word).unwrap(); // i_mtime
    let seconds = i64::from(u32::from_le_bytes(word)) + (1 << 32);
    device.write_at(at + 128, &[0, 0]).unwrap(); // i_extra_isize
    device.write_at(at + 136, &[1, 0, 0, 0]).unwrap(); // i_mtime_extra
    if is_root() {
        let copy = dir.path().join("copy");
        extant_testkit::image::save(&device, &copy);
        if let Ok(Ok(mount)) = LoopMount::attempt(&copy, MountFlags::RDONLY, "errors=continue") {
            let file = std::fs::metadata(mount.path().join("file")).unwrap();
            assert_eq!(std::os::unix::fs::MetadataExt::mtime(&file), seconds);
        }
    }
    for writing in [false, true] {
        let fs = open(Arc::clone(&device) as _, writing).unwrap();
        let file = fs.resolve("/file").unwrap();
        assert_eq!(file.metadata().mtime.seconds, seconds, "writing: {writing}");
        if writing {
            // It has the fields from then on, and room for attributes behind them.
            file.set_xattr("user.small", b"small", extant::XattrMode::Any).unwrap();
        }
        drop(file);
        fs.unmount().unwrap();
    }
    let changed = dir.path().join("changed");
    extant_testkit::image::save(&device, &changed);
    e2fsck(&changed).unwrap().assert_clean();
    let fs = open(device as _, false).unwrap();
    assert_eq!(fs.resolve("/file").unwrap().record().extra_isize, 32);
}
