//! Times and the change counter of files that are written to and read: in memory first, never backwards, and stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant::{AccessRule, Fs, Inode, MountOptions, NewInode, SetAttributes, Timestamp};
use extant_block::{MemoryDevice, SharedDevice};
use extant_sync::{FixedClock, threads};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{Ends, image, require, tempdir};

const START: i64 = 1_700_000_000;

fn made() -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "32M", &["-t", "ext4", "-I", "256"])?;
    Ok(Arc::new(image::load(&path)))
}

fn mount(device: &Arc<MemoryDevice>, clock: &Arc<FixedClock>) -> Fs {
    let clock = Arc::clone(clock) as Arc<dyn extant::Clock>;
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    options.open_shared(Arc::clone(device) as SharedDevice).unwrap()
}

fn finish(fs: Fs, device: &MemoryDevice) {
    fs.unmount().unwrap();
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    e2fsck(&path).unwrap().assert_clean();
}

fn handles(fs: &Fs) -> u64 {
    fs.writer_stats().unwrap().journal.handles
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds: START + seconds, nanos: 0 }
}

#[test]
fn access_times_are_noted_without_a_handle_and_stored_by_a_sync() {
    let device = require!(made());
    let clock = Arc::new(FixedClock::at(START, 0));
    let fs = mount(&device, &clock);
    let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
    file.write_at(&[1; 10_000], 0).unwrap();
    file.sync().unwrap();
    clock.advance(Duration::from_secs(10));
    let before = handles(&fs);
    for step in 1..=50 {
        clock.advance(Duration::from_secs(1));
        assert!(file.note_access(AccessRule::Strict).unwrap());
        assert!(!file.note_access(AccessRule::Strict).unwrap(), "it is now still");
        assert_eq!(file.metadata().atime, at(10 + step));
    }
    // Behind the last change, and not a day old.
    assert!(!file.note_access(AccessRule::Relative).unwrap());
    assert_eq!(handles(&fs), before);
    // Contents alone do not need it; a sync stores it, and so does the next change of anything.
    file.sync_data().unwrap();
    assert_eq!(handles(&fs), before);
    file.sync().unwrap();
    assert_eq!(handles(&fs), before + 1);
    assert_eq!((file.metadata().atime, file.record().atime), (at(60), at(60)));
    // What is set counts.
    assert!(!file.note_access(AccessRule::Strict).unwrap());
    clock.advance(Duration::from_secs(1));
    assert!(file.note_access(AccessRule::Strict).unwrap());
    let earlier = extant::TimeChange::To(at(-100));
    file.set_attributes(&SetAttributes::new().times(Some(earlier), None)).unwrap();
    assert_eq!(file.metadata().atime, at(-100));
    // Due by relatime, and stored when the mount ends.
    clock.advance(Duration::from_secs(1));
    assert!(file.note_access(AccessRule::Relative).unwrap());
    drop(file);
    fs.unmount().unwrap();
    let fs = mount(&device, &clock);
    assert_eq!(fs.metadata("/file").unwrap().atime, at(62));
    assert_eq!(fs.metadata("/file").unwrap().mtime, at(0));
    finish(fs, &device);
}

/// What tells changes apart where the clock does not: NFS servers and backups ask for it.
fn change(inode: &Inode) -> u64 {
    inode.metadata().version
}

#[test]
fn every_change_of_a_file_moves_its_counter_though_the_clock_stands_still() {
    let device = require!(made());
    let clock = Arc::new(FixedClock::at(START, 0));
    let fs = mount(&device, &clock);
    let root = fs.root().unwrap();
    let file = root.create("file", &NewInode::root(0o644)).unwrap();
    let other = root.create("other", &NewInode::root(0o644)).unwrap();
    let changes: [(&str, &dyn Fn()); 9] = [
        ("write", &|| _ = file.write_at(&[1; 5000], 0).unwrap()),
        ("write over", &|| _ = file.write_at(&[2; 10], 0).unwrap()),
        ("append", &|| _ = file.append(b"end").unwrap()),
        ("attempt", &|| _ = file.try_write_at(&[3; 10], 0).unwrap().unwrap()),
        ("truncate", &|| file.truncate(100).unwrap()),
        ("mode", &|| file.set_attributes(&SetAttributes::new().permissions(0o600)).unwrap()),
        ("link", &|| root.link("second", &file).unwrap()),
        ("unlink", &|| root.unlink("second").unwrap()),
        ("write again", &|| _ = file.write_at(&[4; 10], 50).unwrap()),
    ];
    let mut last = change(&file);
    let untouched = change(&other);
    for round in 0..2 {
        for (what, act) in changes {
            act();
            let now = change(&file);
            assert!(now > last, "{what}, round {round}: {last} -> {now}");
            last = now;
            // Reading and storing are no changes.
            file.read_at(&mut [0; 10], 0).unwrap();
            file.sync().unwrap();
            assert_eq!(change(&file), now, "{what}: a sync");
        }
    }
    let names = change(&root);
    root.rename("other", &root, "moved", Default::default()).unwrap();
    assert!(change(&root) > names);
    // A file that moves has changed as well (its change time does), one that nobody touched has not.
    drop(other);
    fs.write("/third", "3").unwrap();
    assert!(change(&fs.resolve("/moved").unwrap()) >= untouched);
    // It is stored, and goes on from there.
    drop((file, root));
    fs.unmount().unwrap();
    let fs = mount(&device, &clock);
    let file = fs.resolve("/file").unwrap();
    assert_eq!(change(&file), last);
    file.write_at(b"x", 0).unwrap();
    assert!(change(&file) > last);
    drop(file);
    finish(fs, &device);
}

#[test]
fn the_counter_never_goes_back_while_it_is_stored() {
    let device = require!(made());
    let clock = Arc::new(FixedClock::at(START, 0));
    let fs = mount(&device, &clock);
    let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
    let ends = AtomicBool::new(false);
    threads::scope(|s| {
        let look = || {
            let mut last = 0;
            while !ends.load(Ordering::Acquire) {
                let now = change(&file);
                assert!(now >= last, "{last} -> {now}");
                last = now;
            }
        };
        let looker = s.spawn("looker", look).unwrap();
        let has_ended = Ends(&ends);
        for step in 0..600u64 {
            file.write_at(&step.to_le_bytes(), step % 100).unwrap();
            if step % 3 == 0 {
                file.sync().unwrap();
            }
        }
        drop(has_ended);
        looker.join().unwrap();
    })
    .unwrap();
    assert!(change(&file) >= 600);
    drop(file);
    finish(fs, &device);
}
