//! Sealing files by fs-verity: what `enable_verity` makes, and the rules of what it made.

use std::fs;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use extant::{
    Fallocate, Fs, FsError, Inode, InodeFlags, MountOptions, NewInode, SetAttributes,
    VerityAlgorithm, VerityOptions, XattrMode,
};
use extant_block::{
    BlockDevice, FaultDevice, FaultPlan, MemoryDevice, RecordingDevice, SharedDevice,
};
use extant_check::{CheckOptions, Problem};
use extant_sync::FixedClock;
use extant_testkit::crash::{self, History, Sampling};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

const NEW: NewInode = NewInode { permissions: 0o644, uid: 0, gid: 0 };

fn make(arguments: &[&str]) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "16M", &[&["-t", "ext4"], arguments].concat())?;
    Ok(Arc::new(image::load(&path)))
}

fn mount(device: SharedDevice) -> Fs {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    options.open_shared(device).unwrap()
}

fn check(device: &MemoryDevice) -> Result<(), String> {
    check_but(device, |_| false)
}

/// Both checkers find nothing but what `may_be` accepts.
fn check_but(device: &MemoryDevice, may_be: fn(&Problem) -> bool) -> Result<(), String> {
    let report = extant_check::check(device, &CheckOptions::default());
    let report = report.map_err(|error| error.to_string())?;
    if !report.problems.iter().all(may_be) {
        return Err(format!("{:#?}", report.problems));
    }
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    image::save(device, &path);
    let report = e2fsck(&path)?;
    if report.is_clean() { Ok(()) } else { Err(report.text) }
}

fn contents(seed: u64, size: u64) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_mul(2_654_435_761) >> 11).wrapping_add(seed) as u8 | 1;
    (0..size).map(byte).collect()
}

/// What the usual tool says of the same bytes: digest and tree.
fn oracle(
    bytes: &[u8],
    block: u32,
    algorithm: VerityAlgorithm,
    salt: &[u8],
) -> Result<(String, Vec<u8>), String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let (file, tree) = (dir.path().join("file"), dir.path().join("tree"));
    fs::write(&file, bytes).map_err(|error| error.to_string())?;
    let mut tool = Command::new("fsverity");
    tool.args(["digest", "--compact", &format!("--hash-alg={algorithm}")]);
    tool.arg(format!("--block-size={block}"));
    tool.arg(format!("--out-merkle-tree={}", tree.display()));
    if !salt.is_empty() {
        let hex: String = salt.iter().map(|byte| format!("{byte:02x}")).collect();
        tool.arg(format!("--salt={hex}"));
    }
    let done = tool.arg(&file).output().map_err(|_| "needs fsverity".to_owned())?;
    assert!(done.status.success(), "{done:?}");
    let digest = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    Ok((digest, fs::read(&tree).map_err(|error| error.to_string())?))
}

fn file_of(fs: &Fs, path: &str, bytes: &[u8]) -> Inode {
    let inode = fs.create(path, &NEW).unwrap();
    assert_eq!(inode.write_at(bytes, 0).unwrap(), bytes.len());
    inode
}

#[test]
fn what_is_sealed_has_the_digest_and_tree_of_the_usual_tool() {
    let layouts: [&[&str]; 6] = [
        &["-O", "verity"],
        &["-O", "verity", "-b", "1024"],
        &["-O", "verity,inline_data", "-I", "256"],
        &["-O", "verity,bigalloc", "-C", "16384"],
        &["-O", "verity,^has_journal"],
        &["-O", "verity,^64bit,^metadata_csum", "-b", "2048"],
    ];
    let sizes = [0, 1, 60, 1024, 4096, 4097, 65_535, 65_536, 200_000, 1_300_001];
    for (index, layout) in layouts.into_iter().enumerate() {
        let device = require!(make(layout));
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let fs_block = fs.superblock().block_size.bytes();
        let mut made = Vec::new();
        for (at, size) in sizes.into_iter().enumerate() {
            let bytes = contents(at as u64, size);
            let path = format!("/file{at}");
            let inode = file_of(&fs, &path, &bytes);
            let algorithm =
                if at % 3 == 1 { VerityAlgorithm::Sha512 } else { VerityAlgorithm::Sha256 };
            let block = if at % 2 == 1 { 1024 } else { fs_block.min(4096) };
            let salt = [7; 32][..(at * 5).min(32)].to_vec();
            let signature = vec![9; [0, 0, 5, 3836, 3837, 16128][(at + index) % 6]];
            let mut options = VerityOptions::new().algorithm(algorithm).salt(salt.clone());
            options = options.signature(signature.clone());
            if at % 2 == 1 {
                options = options.block_bytes(block);
            }
            let before = inode.metadata();
            let digest = inode.enable_verity(&options).unwrap();
            let (expected, tree) = require!(oracle(&bytes, block, algorithm, &salt));
            assert_eq!(digest.to_string(), expected, "{layout:?}, {size} bytes");
            assert!(inode.is_verity());
            assert_eq!(inode.size(), size);
            assert_eq!(inode.metadata().mtime, before.mtime);
            assert!(inode.read_all().unwrap() == bytes, "{layout:?}, {size} bytes");
            made.push((path, bytes, expected, tree, signature));
        }
        fs.unmount().unwrap();
        check(&device).unwrap_or_else(|text| panic!("{layout:?}: {text}"));
        for read_only in [true, false] {
            let options = MountOptions::new().read_only(read_only).background(false);
            let fs = options.open_shared(Arc::clone(&device) as SharedDevice).unwrap();
            for (path, bytes, digest, tree, signature) in &made {
                let inode = fs.resolve(path).unwrap();
                assert!(inode.read_all().unwrap() == *bytes, "{layout:?}: {path}");
                assert_eq!(inode.verity_digest().unwrap().unwrap().to_string(), *digest);
                let descriptor = inode.verity_descriptor().unwrap().unwrap();
                assert_eq!(descriptor.signature(), signature);
                let mut stored = vec![0; tree.len() + 10];
                let read = inode.read_verity_tree(0, &mut stored).unwrap();
                assert!(stored[..read] == *tree, "{layout:?}: {path}: the tree");
                assert_eq!(inode.read_verity_tree(tree.len() as u64, &mut stored).unwrap(), 0);
            }
            fs.unmount().unwrap();
        }
    }
}

#[test]
fn sparse_files_and_mapped_ones_are_sealed_as_they_read() {
    let device = require!(make(&["-O", "verity", "-b", "4096"]));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let inode = fs.create("/sparse", &NEW).unwrap();
    inode.write_at(&contents(1, 5000), 1 << 20).unwrap();
    inode.fallocate(Fallocate::Allocate { keep_size: false }, 0..3_000_000).unwrap();
    inode.write_at(&contents(2, 5000), 2_500_000).unwrap();
    // Space behind the end, which the tree needs.
    inode.fallocate(Fallocate::Allocate { keep_size: true }, 0..5_000_000).unwrap();
    let bytes = inode.read_all().unwrap();
    let digest = inode.enable_verity(&VerityOptions::new()).unwrap();
    let (expected, _) = require!(oracle(&bytes, 4096, VerityAlgorithm::Sha256, &[]));
    assert_eq!(digest.to_string(), expected);
    let hole = fs.create("/hole", &NEW).unwrap();
    hole.truncate(1_000_001).unwrap();
    hole.enable_verity(&VerityOptions::new()).unwrap();
    // Stores through a map behind the end are no contents.
    let mapped = file_of(&fs, "/mapped", &contents(3, 5000));
    let map = mapped.map_shared(0..8192, true).unwrap();
    map.write(4990, &[0xee; 1000]).unwrap();
    let error = mapped.enable_verity(&VerityOptions::new()).unwrap_err();
    assert!(matches!(error, FsError::OpenForWriting { .. }), "{error}");
    assert_eq!(error.errno(), 26);
    drop(map);
    let shown = mapped.map_shared(0..8192, false).unwrap();
    mapped.enable_verity(&VerityOptions::new()).unwrap();
    let mut byte = [0];
    shown.read(4999, &mut byte).unwrap();
    assert_eq!(byte, [0xee]);
    drop(shown);
    drop((inode, hole, mapped));
    fs.unmount().unwrap();
    check(&device).unwrap();
    let fs = mount(Arc::clone(&device) as SharedDevice);
    assert!(fs.read("/sparse").unwrap() == bytes);
    assert!(fs.read("/hole").unwrap() == vec![0; 1_000_001]);
    assert!(fs.read("/mapped").unwrap().ends_with(&[0xee; 10]));
    fs.unmount().unwrap();
}

#[test]
fn contents_do_not_change_and_everything_else_does() {
    let device = require!(make(&["-O", "verity", "-b", "4096"]));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    fs.sync().unwrap();
    let free = || {
        fs.finish_removals();
        fs.sync().unwrap();
        fs.statfs().unwrap().blocks_free
    };
    let before = free();
    let bytes = contents(1, 700_000);
    let inode = file_of(&fs, "/sealed", &bytes);
    inode.enable_verity(&VerityOptions::new()).unwrap();
    let refusals = [
        inode.write_at(b"x", 0).map(drop),
        inode.write_direct_at(&[0; 4096], 0).map(drop),
        inode.append(b"x").map(drop),
        inode.truncate(1),
        inode.truncate(900_000),
        inode.truncate(700_000),
        inode.fallocate(Fallocate::PunchHole, 0..4096),
        inode.fallocate(Fallocate::Allocate { keep_size: true }, 0..1 << 20),
        inode.map_shared(0..4096, true).map(drop),
        inode.check_open_for_writing(true),
        fs.open_options().write(true).open("/sealed").map(drop),
        fs.open_options().append(true).open("/sealed").map(drop),
        inode.write_by(extant::WriteBy::Cache, b"x", 0).map(drop),
    ];
    for (index, refusal) in refusals.into_iter().enumerate() {
        let error = refusal.err().unwrap_or_else(|| panic!("{index} was allowed"));
        assert!(matches!(error, FsError::NotPermitted { .. }), "{index}: {error}");
        assert_eq!(error.errno(), 1, "EPERM");
    }
    let error = inode.enable_verity(&VerityOptions::new()).unwrap_err();
    assert!(matches!(error, FsError::Sealed { .. }), "{error}");
    // The flag is nobody's to set or clear; others next to it are.
    let flags = inode.metadata().flags;
    let set = |flags| inode.set_attributes(&SetAttributes::default().flags(flags));
    set(flags - InodeFlags::VERITY).unwrap_err();
    set(flags | InodeFlags::NODUMP).unwrap();
    assert!(inode.metadata().flags.contains(InodeFlags::VERITY | InodeFlags::NODUMP));
    let other = fs.create("/other", &NEW).unwrap();
    let error = other.set_attributes(
        &SetAttributes::default().flags(other.metadata().flags | InodeFlags::VERITY),
    );
    error.unwrap_err();
    // Everything that is not contents.
    inode.set_attributes(&SetAttributes::default().permissions(0o755)).unwrap();
    inode.set_xattr("user.a", b"value", XattrMode::Any).unwrap();
    fs.rename("/sealed", "/renamed").unwrap();
    fs.hard_link("/renamed", "/second").unwrap();
    fs.remove_file("/renamed").unwrap();
    inode.defragment(&mut |_| ControlFlow::Continue(())).unwrap();
    assert!(fs.read("/second").unwrap() == bytes);
    fs.drop_cached();
    assert!(fs.read("/second").unwrap() == bytes);
    fs.remove_file("/second").unwrap();
    fs.remove_file("/other").unwrap();
    drop((inode, other));
    assert_eq!(free(), before, "the blocks of the tree are free again");
    fs.unmount().unwrap();
    check(&device).unwrap();
}

#[test]
fn pieces_of_a_sealed_file_are_joined_with_their_tree() {
    let device = require!(make(&["-O", "verity", "-b", "1024"]));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let (one, other) = (fs.create("/one", &NEW).unwrap(), fs.create("/other", &NEW).unwrap());
    let bytes = contents(5, 304 << 10);
    for at in (0..bytes.len()).step_by(8 << 10) {
        for inode in [&one, &other] {
            inode.write_at(&bytes[at..at + (8 << 10)], at as u64).unwrap();
            inode.sync().unwrap();
        }
    }
    drop(other);
    fs.remove_file("/other").unwrap();
    let digest = one.enable_verity(&VerityOptions::new()).unwrap();
    fs.sync().unwrap();
    let done = one.defragment(&mut |_| ControlFlow::Continue(())).unwrap();
    assert!(done.pieces_before > done.pieces_after, "{done:?}");
    drop(one);
    fs.unmount().unwrap();
    check(&device).unwrap();
    let fs = mount(Arc::clone(&device) as SharedDevice);
    assert!(fs.read("/one").unwrap() == bytes);
    assert_eq!(fs.resolve("/one").unwrap().verity_digest().unwrap(), Some(digest));
    fs.unmount().unwrap();
}

#[test]
fn what_cannot_be_sealed_is_refused_by_name() {
    let device = require!(make(&[]));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let inode = file_of(&fs, "/file", b"bytes");
    let error = inode.enable_verity(&VerityOptions::new()).unwrap_err();
    assert_eq!(error.errno(), 95, "{error}");
    assert!(error.to_string().contains("tune2fs -O verity"), "{error}");
    assert_eq!(inode.verity_digest().unwrap(), None);
    drop(inode);
    fs.unmount().unwrap();

    let device = require!(make(&["-O", "verity", "-b", "2048"]));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let enable = |inode: &Inode, options: VerityOptions| inode.enable_verity(&options).unwrap_err();
    assert_eq!(enable(&fs.root().unwrap(), VerityOptions::new()).errno(), 21, "EISDIR");
    let link = fs.root().unwrap().symlink("l", "target", &NEW).unwrap();
    assert_eq!(enable(&link, VerityOptions::new()).errno(), 22);
    let inode = file_of(&fs, "/file", b"bytes");
    for options in [
        VerityOptions::new().block_bytes(512),
        VerityOptions::new().block_bytes(1025),
        VerityOptions::new().block_bytes(4096),
        VerityOptions::new().block_bytes(0),
        VerityOptions::new().salt([0; 33]),
        VerityOptions::new().signature([0; 16129]),
    ] {
        let error = enable(&inode, options.clone());
        assert!(matches!(error, FsError::InvalidArgument { .. }), "{options:?}: {error}");
    }
    for flag in [InodeFlags::APPEND, InodeFlags::IMMUTABLE] {
        let flags = inode.metadata().flags;
        inode.set_attributes(&SetAttributes::default().flags(flags | flag)).unwrap();
        assert_eq!(enable(&inode, VerityOptions::new()).errno(), 1, "EPERM");
        inode.set_attributes(&SetAttributes::default().flags(flags)).unwrap();
    }
    let large = fs.create("/large", &NEW).unwrap();
    large.truncate((u64::from(u32::MAX) << 11) - 4096).unwrap();
    let error = enable(&large, VerityOptions::new());
    assert!(matches!(error, FsError::TooLarge { .. }), "{error}");
    large.truncate(0).unwrap();
    inode.write_at(b"goes on", 0).unwrap();
    drop((inode, link, large));
    fs.unmount().unwrap();
    check(&device).unwrap();
}

#[test]
fn without_room_the_file_is_as_it_was() {
    let device = require!(make(&["-O", "verity", "-b", "4096"]));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let bytes = contents(1, 4 << 20);
    let inode = file_of(&fs, "/file", &bytes);
    let filler = fs.create("/filler", &NEW).unwrap();
    fs.sync().unwrap();
    let mut size = 0;
    while filler.append(&[1; 4096]).is_ok() {
        size += 4096;
    }
    fs.sync().unwrap();
    // Some blocks are free, and the tree needs 10.
    filler.truncate(size - 5 * 4096).unwrap();
    fs.sync().unwrap();
    let before = (fs.statfs().unwrap().blocks_free, inode.metadata().blocks);
    let error = inode.enable_verity(&VerityOptions::new()).unwrap_err();
    assert!(matches!(error, FsError::NoSpace { .. }), "{error}");
    fs.sync().unwrap();
    assert_eq!((fs.statfs().unwrap().blocks_free, inode.metadata().blocks), before);
    assert!(!inode.is_verity());
    inode.write_at(b"goes on", 0).unwrap();
    drop(filler);
    fs.remove_file("/filler").unwrap();
    fs.finish_removals();
    inode.enable_verity(&VerityOptions::new()).unwrap();
    fs.drop_cached();
    assert!(inode.read_all().unwrap().ends_with(&bytes[7..]));
    drop(inode);
    fs.unmount().unwrap();
    check(&device).unwrap();
}

#[test]
fn a_device_that_fails_at_any_moment_leaves_the_file_or_its_seal() {
    let bytes = contents(1, 600_000);
    let base = require!(make(&["-O", "verity", "-b", "4096"]));
    let fs = mount(Arc::clone(&base) as SharedDevice);
    drop(file_of(&fs, "/file", &bytes));
    fs.unmount().unwrap();
    let (mut failed, mut sealed) = (0, 0);
    for seed in 0..60 {
        let memory = Arc::new(base.snapshot());
        let plan = FaultPlan { seed, write_one_in: 6, flush_one_in: 6, ..FaultPlan::default() };
        let device = Arc::new(FaultDevice::new(Arc::clone(&memory), plan));
        device.set_enabled(false);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let inode = fs.resolve("/file").unwrap();
        device.set_enabled(true);
        let done = inode.enable_verity(&VerityOptions::new());
        device.set_enabled(false);
        match done {
            Ok(_) => sealed += 1,
            Err(_) => {
                failed += 1;
                assert!(fs.stopped_because().is_some() || inode.write_at(&bytes[..1], 0).is_ok());
            }
        }
        assert!(inode.read_all().unwrap() == bytes);
        drop(inode);
        let _ = fs.unmount();
        let fs = mount(Arc::clone(&memory) as SharedDevice);
        assert!(fs.read("/file").unwrap() == bytes, "seed {seed}");
        fs.unmount().unwrap();
        // A journal that stopped leaves a mark in the superblock.
        check_but(&memory, |problem| matches!(problem, Problem::State { .. }))
            .unwrap_or_else(|text| panic!("seed {seed}: {text}"));
    }
    assert!(failed > 5 && sealed > 5, "{failed} failed, {sealed} did not");
}

/// Every cut of an enable, with each set of writes that a device may have done.
fn cut(layout: &[&str], size: u64, sampling: &Sampling) -> Result<(), String> {
    let bytes = contents(1, size);
    let (digest, _) = oracle(&bytes, 1024, VerityAlgorithm::Sha256, &[])?;
    let base = make(layout)?;
    let fs = mount(Arc::clone(&base) as SharedDevice);
    drop(file_of(&fs, "/file", &bytes));
    fs.unmount().map_err(|error| error.to_string())?;
    let recorder = Arc::new(RecordingDevice::over(base.snapshot()));
    let fs = mount(Arc::clone(&recorder) as SharedDevice);
    let inode = fs.resolve("/file").unwrap();
    inode.enable_verity(&VerityOptions::new()).unwrap();
    inode.sync().unwrap();
    recorder.mark("sealed");
    drop(inode);
    fs.unmount().unwrap();
    let history = History::of(&[&recorder]);
    let seen = [(); 2].map(|()| std::sync::atomic::AtomicU64::new(0));
    let report = crash::run(&history, sampling, 2, None, |state| {
        let device = Arc::new(state.devices[0].snapshot());
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let inode = fs.resolve("/file").map_err(|error| error.to_string())?;
        let is_sealed = inode.is_verity();
        let count = &seen[usize::from(is_sealed)];
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if state.marks > 0 && !is_sealed {
            return Err("the seal was synced, and is gone".to_owned());
        }
        if inode.size() != size || inode.read_all().map_err(|error| error.to_string())? != bytes {
            return Err(format!("other contents, sealed: {is_sealed}"));
        }
        let found = inode.verity_digest().map_err(|error| error.to_string())?;
        if found.map(|found| found.to_string()) != is_sealed.then(|| digest.clone()) {
            return Err(format!("another digest, sealed: {is_sealed}"));
        }
        let end = inode.block_len();
        let behind = inode
            .map(end..1 << 20)
            .any(|run| !matches!(run.map(|run| run.kind), Ok(extant::MappingKind::Hole)));
        if behind != is_sealed {
            return Err(format!("sealed: {is_sealed}, blocks behind the end: {behind}"));
        }
        let written = inode.write_at(&bytes[..1], 0);
        if written.is_ok() == is_sealed {
            return Err(format!("sealed: {is_sealed}, a write: {written:?}"));
        }
        drop(inode);
        fs.unmount().map_err(|error| error.to_string())?;
        check(&device)
    });
    println!("{layout:?}: {} cuts, {} states", report.cuts, report.states);
    assert!(report.failures.is_empty(), "{}", report.failures[0]);
    let seen = seen.map(|count| count.into_inner());
    assert!(seen.iter().all(|count| *count > 0), "not sealed and sealed: {seen:?}");
    Ok(())
}

#[test]
fn a_cut_at_any_write_leaves_the_file_or_its_seal() {
    let sampling = Sampling { whole: 1024..2048, samples: 12, tears: 0, ..Sampling::default() };
    for layout in [
        &["-O", "verity", "-b", "1024", "-J", "size=4"][..],
        &["-O", "verity,bigalloc,orphan_file", "-b", "1024", "-C", "4096", "-J", "size=4"],
        &["-O", "verity,inline_data,^orphan_file", "-b", "1024", "-J", "size=4"],
    ] {
        for size in [50, 100_000] {
            require!(cut(layout, size, &sampling));
        }
    }
}

#[test]
fn bytes_of_the_device_are_read_again_after_sealing() {
    let device = require!(make(&["-O", "verity", "-b", "4096"]));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let bytes = contents(1, 40_000);
    let inode = file_of(&fs, "/file", &bytes);
    inode.enable_verity(&VerityOptions::new()).unwrap();
    let run = inode.map(3..4).next().unwrap().unwrap();
    let extant::MappingKind::Mapped(start) = run.kind else { panic!("{run:?}") };
    device.write_at(start.0 * 4096, &[0; 10]).unwrap();
    fs.drop_cached();
    let error = inode.read_at(&mut [0; 1], 3 * 4096).unwrap_err();
    assert!(matches!(error, FsError::Unverified { index: 3, .. }), "{error}");
    assert_eq!(inode.read_at(&mut [0; 1], 0).unwrap(), 1);
}

/// What a file of a history may be after a cut.
#[derive(Clone)]
struct Known {
    bytes: Vec<u8>,
    digest: Option<String>,
}

/// Files of a history by their paths.
type Files = std::collections::BTreeMap<String, Known>;

/// A history of files that are made, sealed and removed, beside one that is appended to, and every cut of it. Returns
/// the numbers of cuts and of states.
fn history_with_seals(
    layout: &[&str],
    seed: u64,
    steps: usize,
    samples: usize,
) -> Result<(u64, u64), String> {
    use extant_base::Prng;
    let options = || {
        let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
        let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
        options.key(super::encrypted::key())
    };
    let base = make(layout)?;
    let is_encrypted = layout.iter().any(|word| word.contains("encrypt"));
    let fs = options().open_shared(Arc::clone(&base) as SharedDevice).unwrap();
    let top = fs.root().unwrap().mkdir("d", &NewInode::root(0o755)).unwrap();
    if is_encrypted {
        let policy = extant::EncryptionPolicy::new(super::encrypted::key().identifier());
        top.set_encryption_policy(&policy).unwrap();
    }
    let beside = top.create("beside", &NEW).unwrap();
    beside.sync().unwrap();
    drop((top, beside));
    fs.unmount().map_err(|error| error.to_string())?;

    let recorder = Arc::new(RecordingDevice::over(base.snapshot()));
    let fs = options().open_shared(Arc::clone(&recorder) as SharedDevice).unwrap();
    let mut random = Prng::new(seed);
    let beside = fs.resolve("/d/beside").unwrap();
    // What is durable at each mark, and what the files were that have been touched until the next one.
    let (mut durable, mut touched) = (vec![Files::new()], vec![Files::new()]);
    let mut now = Files::new();
    for step in 0..steps {
        let any = now.keys().nth(random.below(now.len().max(1) as u64) as usize).cloned();
        match (random.below(10), any) {
            (0..4, _) | (_, None) => {
                let bytes = contents(seed ^ step as u64, random.below(40_000));
                let path = format!("/d/file{step}");
                drop(file_of(&fs, &path, &bytes));
                now.insert(path.clone(), Known { bytes, digest: None });
                touched.last_mut().unwrap().insert(path.clone(), now[&path].clone());
            }
            (4..8, Some(path)) if now[&path].digest.is_none() => {
                let block = if random.one_in(2) {
                    1024
                } else {
                    fs.superblock().block_size.bytes().min(4096)
                };
                let salt = vec![step as u8; random.below(33) as usize];
                let verity = VerityOptions::new().block_bytes(block).salt(salt);
                let digest = fs.resolve(&path).unwrap().enable_verity(&verity).unwrap();
                now.get_mut(&path).unwrap().digest = Some(digest.to_string());
                touched.last_mut().unwrap().insert(path.clone(), now[&path].clone());
            }
            (8, Some(path)) => {
                fs.remove_file(&path).unwrap();
                let was = now.remove(&path).unwrap();
                touched.last_mut().unwrap().insert(path, was);
            }
            _ => {
                beside.append(&contents(step as u64, 3000)).unwrap();
                if random.one_in(2) {
                    beside.sync_data().unwrap();
                }
            }
        }
        if random.one_in(3) {
            fs.sync().unwrap();
            recorder.mark("synced");
            durable.push(now.clone());
            touched.push(Files::new());
        }
    }
    drop(beside);
    fs.unmount().unwrap();
    let history = History::of(&[&recorder]);
    let sampling = Sampling {
        seed,
        exhaustive_max: 2,
        samples,
        tears: 1,
        whole: 1024..2048,
        ..Sampling::default()
    };
    let (looked, sealed) =
        (std::sync::atomic::AtomicU64::new(0), std::sync::atomic::AtomicU64::new(0));
    let report = crash::run(&history, &sampling, 2, None, |state| {
        let device = Arc::new(state.devices[0].snapshot());
        let fs = options()
            .open_shared(Arc::clone(&device) as SharedDevice)
            .map_err(|error| error.to_string())?;
        let (held, touched) = (&durable[state.marks], &touched[state.marks]);
        let names: std::collections::BTreeSet<&String> =
            held.keys().chain(touched.keys()).collect();
        for path in names {
            let (was, may) = (held.get(path), touched.get(path));
            let inode = match fs.resolve(path) {
                Ok(inode) => inode,
                Err(FsError::NotFound { .. }) if may.is_some() => continue,
                Err(error) => return Err(format!("{path}: {error}")),
            };
            let known = may.or(was).expect("one of them has it");
            let bytes = inode.read_all().map_err(|error| format!("{path}: {error}"))?;
            let found = inode.verity_digest().map_err(|error| format!("{path}: {error}"))?;
            let found = found.map(|digest| digest.to_string());
            if found.is_some() {
                sealed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            let is_whole = bytes == known.bytes;
            if was.is_some() && !is_whole {
                return Err(format!("{path} was synced, and has other contents"));
            }
            match (&found, was.and_then(|was| was.digest.as_ref())) {
                (Some(found), Some(digest)) if found == digest => {}
                (None, None) => {}
                (Some(_), None) if is_whole && found == known.digest => {}
                other => return Err(format!("{path}, whole: {is_whole}: seals {other:?}")),
            }
        }
        fs.unmount().map_err(|error| error.to_string())?;
        if looked.fetch_add(1, std::sync::atomic::Ordering::Relaxed).is_multiple_of(64) {
            return check(&device);
        }
        let report = extant_check::check(&*device, &CheckOptions::default());
        let report = report.map_err(|error| error.to_string())?;
        if report.problems.is_empty() { Ok(()) } else { Err(format!("{:#?}", report.problems)) }
    });
    assert!(report.failures.is_empty(), "{layout:?}, seed {seed}: {}", report.failures[0]);
    assert!(sealed.into_inner() * 4 > report.states, "few seals were there to be looked at");
    Ok((report.cuts, report.states))
}

const SEALED_LAYOUTS: [&[&str]; 5] = [
    &["-O", "verity", "-b", "4096", "-J", "size=4"],
    &["-O", "verity,orphan_file", "-b", "1024", "-J", "size=4"],
    &["-O", "verity,encrypt", "-b", "1024", "-J", "size=4"],
    &["-O", "verity,bigalloc", "-b", "1024", "-C", "4096", "-J", "size=4"],
    &["-O", "verity,inline_data,^metadata_csum", "-b", "1024", "-J", "size=4"],
];

fn histories_with_seals(seeds: std::ops::Range<u64>, steps: usize, samples: usize) {
    let (mut cuts, mut states) = (0, 0);
    for layout in SEALED_LAYOUTS {
        for seed in seeds.clone() {
            let (more_cuts, more_states) =
                require!(history_with_seals(layout, seed, steps, samples));
            (cuts, states) = (cuts + more_cuts, states + more_states);
        }
        println!("{layout:?}: {cuts} cuts, {states} states so far");
    }
}

#[test]
fn histories_with_seals_survive_every_cut() {
    histories_with_seals(1..2, 12, 2);
}

#[test]
#[ignore = "takes minutes: 24,000 cuts"]
fn many_histories_with_seals_survive_every_cut() {
    let first = extant_testkit::proof::env::seed(100);
    let count = extant_testkit::proof::env::number("EXTANT_SEEDS").unwrap_or(12);
    histories_with_seals(first..first + count, 60, 2);
}
