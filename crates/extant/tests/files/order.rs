//! What must be on the device before what else, and what must stay gone when a change fails in the middle.

use std::fs;
use std::sync::Arc;

use extant::{
    Fallocate, Fs, FsError, Inode, MappingKind, MountOptions, NewInode, QuotaKind, QuotaLimits,
};
use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice, Record, RecordingDevice, SharedDevice};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

const BLOCK: u64 = 1024;

/// An image full of bytes that must never show.
fn make(mib: usize, options: &[&str]) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    fs::write(&path, vec![0xa5; mib << 20]).map_err(|error| error.to_string())?;
    mke2fs(&path, &format!("{mib}M"), options)?;
    Ok(Arc::new(image::load(&path)))
}

fn mount(device: SharedDevice) -> Fs {
    // Nothing goes to the device but by what the test does.
    let options = MountOptions::new().read_only(false).seed(3).background(false);
    options.data_cache_bytes(32 << 20).open_shared(device).unwrap()
}

#[track_caller]
fn check(device: &MemoryDevice) {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    e2fsck(&path).unwrap().assert_clean();
}

fn create(fs: &Fs, name: &str) -> Inode {
    fs.root().unwrap().create(name, &NewInode::root(0o644)).unwrap()
}

/// No zeros: a lost byte shows.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Prng::new(seed).fill(&mut bytes);
    bytes.iter_mut().for_each(|byte| *byte |= 1);
    bytes
}

/// The device as it was after each write of `records`, or each commit only, when all that was written
/// until then has reached it.
fn states(before: &MemoryDevice, records: &[Record], commits: bool) -> Vec<Arc<MemoryDevice>> {
    let now = before.snapshot();
    let mut states = Vec::new();
    for record in records {
        match record {
            Record::Write { offset, data, fua } => {
                now.write_at(*offset, data).unwrap();
                if *fua || !commits {
                    states.push(Arc::new(now.snapshot()));
                }
            }
            Record::WriteZeroes { offset, len } => now.write_zeroes(*offset, *len).unwrap(),
            _ => {}
        }
    }
    states
}

/// Leaves single free blocks only, `holes` of them.
fn fragment(fs: &Fs, holes: u64) {
    let filler = create(fs, "filler");
    filler.fallocate(Fallocate::Allocate { keep_size: false }, 0..2 * holes * BLOCK).unwrap();
    let rest = create(fs, "rest");
    let mut end = 0;
    for step in [1 << 20, 16 << 10, BLOCK] {
        let more = |end| rest.fallocate(Fallocate::Allocate { keep_size: false }, end..end + step);
        while more(end).is_ok() {
            end += step;
        }
    }
    for hole in 0..holes {
        let at = 2 * hole * BLOCK;
        filler.fallocate(Fallocate::PunchHole, at..at + BLOCK).unwrap();
    }
    fs.sync().unwrap();
}

#[test]
fn the_stored_size_follows_the_map_when_a_pass_takes_several_transactions() {
    let options = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-m", "0", "-E", "nodiscard"];
    let device = require!(make(48, &options));
    let recorder = Arc::new(RecordingDevice::over(device.snapshot()));
    let fs = mount(recorder.clone());
    fragment(&fs, 14_000);
    let file = create(&fs, "file");
    // More leaves of the map than one transaction takes.
    let bytes = pattern(13 << 20, 1);
    file.write_at(&bytes, 0).unwrap();
    fs.sync().unwrap();
    let runs = file.map(0..bytes.len() as u64 / BLOCK).count();
    assert!(runs > 10_000, "only {runs} runs");
    let mut partly = 0;
    let states = states(&device, &recorder.records(), true);
    // Commits long before are all alike, and each state costs a mount.
    for state in states.iter().rev().take(40) {
        let later = mount(Arc::clone(state) as SharedDevice);
        let Ok(found) = later.resolve("/file") else { continue };
        let found = found.read_all().unwrap();
        assert!(found.len() <= bytes.len());
        let good = found.iter().zip(&bytes).take_while(|(found, written)| found == written).count();
        assert_eq!(good, found.len(), "bytes that nobody wrote inside the stored size");
        partly += u32::from(!found.is_empty() && found.len() < bytes.len());
        later.unmount().unwrap();
        check(state);
    }
    assert!(partly > 0, "no commit between the parts");
}

#[test]
fn a_file_that_grows_over_dirty_data_gets_its_size_stored_behind_the_data() {
    type Grow = fn(&Inode);
    let truncate: Grow = |file| file.truncate(100_000).unwrap();
    let allocate: Grow = |file| {
        file.fallocate(Fallocate::Allocate { keep_size: false }, 6000..100_000).unwrap();
    };
    let (ext4, ext3) = (["-t", "ext4", "-b", "1024"], ["-t", "ext3", "-b", "1024"]);
    for (options, grow) in [(&ext4, truncate), (&ext4, allocate), (&ext3, truncate)] {
        let device = require!(make(32, options));
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let (file, other) = (create(&fs, "file"), create(&fs, "other"));
        let bytes = pattern(5000, 2);
        file.write_at(&bytes[..700], 0).unwrap();
        fs.sync().unwrap();
        file.write_at(&bytes[700..], 700).unwrap();
        grow(&file);
        // A commit of something else: what it takes along must not show what was never there.
        other.write_at(b"other", 0).unwrap();
        other.sync().unwrap();
        let image = Arc::new(device.snapshot());
        let later = mount(Arc::clone(&image) as SharedDevice);
        let found = later.resolve("/file").unwrap().read_all().unwrap();
        assert!(bytes.starts_with(&found), "{} bytes, and not those written", found.len());
        later.unmount().unwrap();
        check(&image);
        fs.sync().unwrap();
        let image = Arc::new(device.snapshot());
        let later = mount(Arc::clone(&image) as SharedDevice);
        let mut wanted = bytes.clone();
        wanted.resize(100_000, 0);
        assert!(later.resolve("/file").unwrap().read_all().unwrap() == wanted);
    }
}

/// A file whose extent tree has no room for one more record, so that a hole in the middle of its first
/// extent needs a block: four extents far apart.
fn full_root(fs: &Fs) -> (Inode, Vec<u8>) {
    let new = NewInode { permissions: 0o644, uid: 1000, gid: 1000 };
    let file = fs.root().unwrap().create("file", &new).unwrap();
    let part = pattern(16 * BLOCK as usize, 3);
    let mut bytes = Vec::new();
    for at in (0..4).map(|at| at * 64 * BLOCK) {
        file.write_at(&part, at).unwrap();
        bytes.resize(at as usize, 0);
        bytes.extend(&part);
    }
    fs.sync().unwrap();
    (file, bytes)
}

fn is_refused(error: &FsError) -> bool {
    matches!(error, FsError::NoSpace { .. } | FsError::QuotaExceeded { .. })
}

/// Punches a hole that cannot be cut, and demands zeros there now and after all is written.
fn punched_stays_gone(device: &Arc<MemoryDevice>, fs: Fs, file: Inode, mut wanted: Vec<u8>) {
    let range = 4 * BLOCK..8 * BLOCK;
    let punched = file.fallocate(Fallocate::PunchHole, range.clone());
    assert!(punched.as_ref().is_err_and(is_refused), "{punched:?}");
    wanted[range.start as usize..range.end as usize].fill(0);
    assert!(file.read_all().unwrap() == wanted, "what was there before came back");
    fs.sync().unwrap();
    let image = Arc::new(device.snapshot());
    let later = mount(Arc::clone(&image) as SharedDevice);
    assert!(later.resolve("/file").unwrap().read_all().unwrap() == wanted, "on the device");
    later.unmount().unwrap();
    check(&image);
    drop(file);
    fs.unmount().unwrap();
    check(device);
}

#[test]
fn a_hole_that_cannot_be_cut_for_want_of_quota_brings_no_old_bytes_back() {
    for is_cached in [true, false] {
        let device = require!(make(16, &["-t", "ext4", "-b", "1024", "-O", "quota"]));
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let (file, mut bytes) = full_root(&fs);
        let used = fs.quota(QuotaKind::User, 1000).unwrap().unwrap().space_bytes;
        let limits = QuotaLimits { space_hard_kib: used / 1024, ..QuotaLimits::default() };
        fs.set_quota_limits(QuotaKind::User, 1000, &limits).unwrap();
        let (fs, file) = match is_cached {
            true => {
                // What the device does not have is gone, too.
                file.write_at(&[0xee; BLOCK as usize], 5 * BLOCK).unwrap();
                bytes[5 * BLOCK as usize..6 * BLOCK as usize].fill(0xee);
                (fs, file)
            }
            false => {
                drop(file);
                fs.unmount().unwrap();
                let fs = mount(Arc::clone(&device) as SharedDevice);
                let file = fs.resolve("/file").unwrap();
                (fs, file)
            }
        };
        punched_stays_gone(&device, fs, file, bytes);
    }
}

#[test]
fn what_the_device_has_behind_the_end_is_not_shown_through_a_map() {
    let device = require!(make(16, &["-t", "ext4", "-b", "4096"]));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let file = create(&fs, "file");
    file.write_at(&[7; 100], 0).unwrap();
    fs.sync().unwrap();
    let run = file.map(0..1).next().unwrap().unwrap();
    let MappingKind::Mapped(block) = run.kind else { panic!("{run:?}") };
    drop(file);
    fs.unmount().unwrap();
    // As a driver may leave it that does not clean up behind the end.
    device.write_at(block.0 * 4096 + 100, &[0xa5; 3996]).unwrap();
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let file = fs.resolve("/file").unwrap();
    let map = file.map_shared(0..4096, false).unwrap();
    let mut shown = vec![1; 4096];
    map.read(0, &mut shown).unwrap();
    assert!(shown[..100] == [7; 100] && shown[100..].iter().all(|byte| *byte == 0));
}

#[test]
fn stores_behind_the_end_do_not_reach_the_device() {
    let device = require!(make(16, &["-t", "ext4", "-b", "4096"]));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let file = create(&fs, "file");
    file.write_at(&[7; 100], 0).unwrap();
    let map = file.map_shared(0..4096, true).unwrap();
    map.write(50, &[9; 1000]).unwrap();
    map.sync(0..4096).unwrap();
    let run = file.map(0..1).next().unwrap().unwrap();
    let MappingKind::Mapped(block) = run.kind else { panic!("{run:?}") };
    let mut stored = vec![1; 4096];
    device.read_at(block.0 * 4096, &mut stored).unwrap();
    assert_eq!((stored[49], stored[50], stored[99]), (7, 9, 9));
    assert!(stored[100..].iter().all(|byte| *byte == 0), "somebody else will see it as contents");
}

/// What `/file` has after each write that `change` makes, if the power goes there: all that was written by
/// then has reached the device.
fn cut_at_each_write(before: &MemoryDevice, change: impl Fn(&Inode)) -> Vec<Vec<u8>> {
    let recorder = Arc::new(RecordingDevice::over(before.snapshot()));
    let fs = mount(recorder.clone());
    let file = fs.resolve("/file").unwrap();
    change(&file);
    file.sync().unwrap();
    let contents = |state: &Arc<MemoryDevice>| {
        let later = mount(Arc::clone(state) as SharedDevice);
        let found = later.resolve("/file").unwrap().read_all().unwrap();
        later.unmount().unwrap();
        found
    };
    let found: Vec<_> = states(before, &recorder.records(), false).iter().map(contents).collect();
    assert!(found.len() > 3, "only {} writes", found.len());
    found
}

/// An image with `/file`.
fn with_file(bytes: &[u8]) -> Result<Arc<MemoryDevice>, String> {
    let device = make(16, &["-t", "ext4", "-b", "1024"])?;
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let file = create(&fs, "file");
    file.write_at(bytes, 0).unwrap();
    drop(file);
    fs.unmount().unwrap();
    Ok(device)
}

#[test]
fn a_file_that_shrinks_is_the_old_one_or_the_new_one_after_each_write() {
    let bytes = pattern(5000, 4);
    let device = require!(with_file(&bytes));
    let all = cut_at_each_write(&device, |file| file.truncate(4500).unwrap());
    for found in &all {
        let is_old_or_new = *found == bytes || *found == bytes[..4500];
        assert!(is_old_or_new, "{} bytes, and zeros among them", found.len());
    }
    assert_eq!((all[0].len(), all[all.len() - 1].len()), (5000, 4500));
}

#[test]
fn blocks_that_were_moved_are_not_written_over_at_their_old_place() {
    let block = BLOCK as usize;
    let bytes = pattern(8 * block, 5);
    let device = require!(with_file(&bytes));
    let new = pattern(block, 6);
    let all = cut_at_each_write(&device, |file| {
        file.fallocate(Fallocate::CollapseRange, 0..4 * BLOCK).unwrap();
        file.write_at(&new, 0).unwrap();
    });
    let moved = &bytes[4 * block..];
    let written = [&new, &moved[block..]].concat();
    for found in &all {
        let is_whole = *found == bytes || *found == moved || *found == written;
        assert!(is_whole, "{} bytes: new ones in the file as it was", found.len());
    }
    assert!(all[all.len() - 1] == written);
}

#[test]
fn what_the_device_has_behind_the_end_does_not_become_contents() {
    let bytes = pattern(100, 7);
    let grow: [fn(&Inode); 3] = [
        |file| file.truncate(1000).unwrap(),
        |file| assert_eq!(file.write_at(&[0], 999).unwrap(), 1),
        |file| file.fallocate(Fallocate::Allocate { keep_size: false }, 0..1000).unwrap(),
    ];
    for (turn, grow) in grow.iter().enumerate() {
        let device = require!(with_file(&bytes));
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let run = fs.resolve("/file").unwrap().map(0..1).next().unwrap().unwrap();
        let MappingKind::Mapped(block) = run.kind else { panic!("{run:?}") };
        fs.unmount().unwrap();
        // As a driver may leave it that does not clean up behind the end.
        device.write_at(block.0 * BLOCK + 100, &[0xa5; 924]).unwrap();
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = fs.resolve("/file").unwrap();
        grow(&file);
        let found = file.read_all().unwrap();
        assert_eq!(found.len(), 1000);
        assert!(found[..100] == bytes && found[100..].iter().all(|byte| *byte == 0), "{turn}");
    }
}

#[test]
fn a_file_that_was_shortened_is_no_orphan_afterwards() {
    for options in [&["-t", "ext4"][..], &["-t", "ext4", "-O", "^orphan_file"], &["-t", "ext3"]] {
        let device = require!(make(16, options));
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = create(&fs, "file");
        file.write_at(&pattern(50_000, 8), 0).unwrap();
        fs.sync().unwrap();
        file.truncate(10_001).unwrap();
        let block = u64::from(fs.block_size().bytes());
        let last = 10_001 / block;
        let MappingKind::Mapped(place) = file.map(last..last + 1).next().unwrap().unwrap().kind
        else {
            panic!("{options:?}: a hole");
        };
        let mut bytes = vec![1; (block - 10_001 % block) as usize];
        device.read_at(place.0 * block + 10_001 % block, &mut bytes).unwrap();
        assert!(
            bytes.iter().all(|byte| *byte == 0),
            "{options:?}: what was behind the end is gone"
        );
        fs.sync().unwrap();
        let image = Arc::new(device.snapshot());
        let later = mount(Arc::clone(&image) as SharedDevice);
        let found = later.recovered_orphans();
        assert_eq!(found.map_or(0, |found| found.shortened + found.deleted), 0, "{options:?}");
        later.unmount().unwrap();
        check(&image);
    }
}
