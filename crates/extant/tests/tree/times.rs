//! Times and the change counter of files that are written to and read: in memory first, never backwards, and stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant::ring::{Completion, Op};
use extant::{
    AccessRule, AclKind, AlignedBuffer, DirectKind, DirectRequest, Fallocate, Fs, Inode,
    MountOptions, NewInode, QueueOptions, RenameFlags, SetAttributes, Timestamp, XattrMode,
};
use extant_block::{MemoryDevice, SharedDevice};
use extant_format::acl::Acl;
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
    mount_with(device, clock, |options| options)
}

fn mount_with(
    device: &Arc<MemoryDevice>,
    clock: &Arc<FixedClock>,
    with: impl FnOnce(MountOptions) -> MountOptions,
) -> Fs {
    let clock = Arc::clone(clock) as Arc<dyn extant::Clock>;
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    with(options).open_shared(Arc::clone(device) as SharedDevice).unwrap()
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

/// What a crash now would leave.
fn copy(device: &MemoryDevice) -> Arc<MemoryDevice> {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    Arc::new(image::load(&path))
}

fn lazy(device: &Arc<MemoryDevice>, clock: &Arc<FixedClock>) -> Fs {
    mount_with(device, clock, |options| options.lazytime(true))
}

#[test]
fn lazy_times_open_no_handle_and_a_crash_loses_nothing_else() {
    let device = require!(made());
    let clock = Arc::new(FixedClock::at(START, 0));
    let fs = lazy(&device, &clock);
    let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
    file.write_at(&[1; 10_000], 0).unwrap();
    fs.sync().unwrap();
    let before = handles(&fs);
    // Written and read for an hour; the data goes to the device, and no transaction follows it.
    for minute in 1..=60 {
        clock.advance(Duration::from_secs(60));
        assert_eq!(file.try_write_at(&[minute as u8; 5000], 0).unwrap().unwrap(), 5000);
        assert!(file.note_access(AccessRule::Strict).unwrap());
        clock.advance(Duration::from_secs(31));
        fs.tick().unwrap();
        let seen = file.metadata();
        assert_eq!((seen.mtime, seen.ctime, seen.atime), {
            let now = at(minute * 91 - 31);
            (now, now, now)
        });
    }
    assert_eq!(handles(&fs), before, "times alone");
    let after_crash = mount(&copy(&device), &clock);
    assert_eq!(after_crash.read("/file").unwrap()[..5000], [60; 5000]);
    assert_eq!(after_crash.metadata("/file").unwrap().mtime, at(0), "that is what may be lost");
    finish(after_crash, &device);
    // Contents alone need none of it; a sync of the file stores it.
    file.sync_data().unwrap();
    assert_eq!(handles(&fs), before);
    file.sync().unwrap();
    assert_eq!(handles(&fs), before + 1);
    let stored = |fs: &Fs| {
        let after_crash = mount(&copy(&device), &clock);
        let stored = after_crash.metadata("/file").unwrap();
        assert_eq!(stored.version, fs.metadata("/file").unwrap().version);
        drop(after_crash);
        (stored.mtime, stored.atime)
    };
    assert_eq!(stored(&fs), (at(5429), at(5429)));
    // Another change of the inode takes them along.
    clock.advance(Duration::from_secs(1));
    file.write_at(&[7; 10], 0).unwrap();
    fs.tick().unwrap();
    clock.advance(Duration::from_secs(1));
    file.set_attributes(&SetAttributes::new().permissions(0o600)).unwrap();
    fs.root().unwrap().sync().unwrap();
    assert_eq!(stored(&fs).0, at(5461));
    drop(file);
    finish(fs, &device);
}

#[test]
fn lazy_times_are_stored_after_a_day_and_at_the_end_and_data_does_not_wait_with_them() {
    let device = require!(made());
    let clock = Arc::new(FixedClock::at(START, 0));
    let fs = lazy(&device, &clock);
    let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
    file.write_at(&[1; 4096], 0).unwrap();
    fs.sync().unwrap();
    clock.advance(Duration::from_secs(10));
    assert!(file.note_access(AccessRule::Strict).unwrap());
    let before = handles(&fs);
    // The file is kept for its times; what is written to it is due like any other data.
    clock.advance(Duration::from_secs(60));
    file.write_at(&[2; 4096], 0).unwrap();
    file.append(&[3; 4096]).unwrap();
    clock.advance(Duration::from_secs(31));
    fs.tick().unwrap();
    let after_crash = mount(&copy(&device), &clock);
    assert_eq!(after_crash.read("/file").unwrap()[..4096], [2; 4096]);
    drop(after_crash);
    assert!(handles(&fs) > before, "the size is no time");
    assert_eq!(file.record().atime, at(10), "it went with the size");
    // Alone for a day, and not longer.
    clock.advance(Duration::from_secs(1));
    assert!(file.note_access(AccessRule::Strict).unwrap());
    let before = handles(&fs);
    clock.advance(Duration::from_secs(24 * 3600 - 1));
    fs.tick().unwrap();
    assert_eq!(handles(&fs), before);
    clock.advance(Duration::from_secs(1));
    fs.tick().unwrap();
    assert_eq!(handles(&fs), before + 1);
    assert_eq!(file.record().atime, at(102));
    fs.tick().unwrap();
    assert_eq!(handles(&fs), before + 1, "there is nothing left");
    // What is removed takes its times along, and the end stores the others.
    let gone = fs.root().unwrap().create("gone", &NewInode::root(0o644)).unwrap();
    clock.advance(Duration::from_secs(5));
    assert!(gone.note_access(AccessRule::Strict).unwrap());
    assert!(file.note_access(AccessRule::Strict).unwrap());
    let now = file.metadata().atime;
    fs.root().unwrap().unlink("gone").unwrap();
    drop((gone, file));
    fs.unmount().unwrap();
    let fs = mount(&device, &clock);
    assert_eq!(fs.metadata("/file").unwrap().atime, now);
    finish(fs, &device);
}

/// A name, the path of what is read, and the read.
type Reading<'a> = (&'static str, &'static str, Box<dyn Fn() + 'a>);

/// Every way to read through the library, with the inode whose time it updates.
fn reads(fs: &Fs) -> Vec<Reading<'_>> {
    let file = || fs.resolve("/dir/file").unwrap();
    let done = |completion: Option<Completion>| assert!(completion.unwrap().result.is_ok());
    vec![
        ("read_at", "/dir/file", Box::new(move || _ = file().read_at(&mut [0; 10], 0).unwrap())),
        ("read", "/dir/file", Box::new(|| _ = fs.read("/dir/file").unwrap())),
        (
            "attempt",
            "/dir/file",
            Box::new(move || {
                assert_eq!(file().try_read_at(&mut [0; 10], 0).unwrap().unwrap(), 10);
            }),
        ),
        (
            "direct",
            "/dir/file",
            Box::new(move || {
                let mut out = AlignedBuffer::zeroed(4096);
                assert_eq!(file().direct().unwrap().read_at(&mut out, 0).unwrap(), 4096);
            }),
        ),
        (
            "queue",
            "/dir/file",
            Box::new(move || {
                let file = file().direct().unwrap();
                let (kind, buffer) = (DirectKind::Read, AlignedBuffer::zeroed(4096));
                let mut queue = file.queue(&QueueOptions::default());
                queue
                    .run(vec![DirectRequest { kind, offset: 0, buffer }])
                    .pop()
                    .unwrap()
                    .result
                    .unwrap();
            }),
        ),
        (
            "ring",
            "/dir/file",
            Box::new(move || {
                let ring = fs.ring(1).unwrap();
                let op = Op::Read { offset: 0, buffer: vec![0; 10] };
                done(ring.submit(0, &file(), op).unwrap().or_else(|| ring.wait()));
            }),
        ),
        (
            "ring, direct",
            "/dir/file",
            Box::new(move || {
                let ring = fs.ring(1).unwrap();
                let op = Op::ReadDirect { offset: 0, buffer: AlignedBuffer::zeroed(4096) };
                done(ring.submit(0, &file(), op).unwrap().or_else(|| ring.wait()));
            }),
        ),
        ("read_dir", "/dir", Box::new(|| assert_eq!(fs.read_dir("/dir").unwrap().count(), 2))),
        (
            "read_link",
            "/dir/link",
            Box::new(|| {
                assert_eq!(fs.read_link("/dir/link").unwrap(), b"file");
            }),
        ),
    ]
}

#[test]
fn reads_through_the_library_update_access_times_by_the_rule_of_the_mount() {
    for lazy in [false, true] {
        let device = require!(made());
        let clock = Arc::new(FixedClock::at(START, 0));
        let fs = mount(&device, &clock);
        fs.create_dir("/dir", &NewInode::root(0o755)).unwrap();
        fs.write("/dir/file", [1; 8192]).unwrap();
        let new = NewInode::root(0o777);
        fs.resolve("/dir").unwrap().symlink("link", "file", &new).unwrap();
        fs.unmount().unwrap();
        for rule in [AccessRule::Never, AccessRule::Strict, AccessRule::Relative] {
            let fs = mount_with(&device, &clock, |o| o.access_times(rule).lazytime(lazy));
            let _ = fs.read("/dir/file").unwrap();
            for (what, path, read) in reads(&fs) {
                let atime = || fs.symlink_metadata(path).unwrap().atime;
                let mut changes = 0;
                for step in [1, 1, 86_400] {
                    clock.advance(Duration::from_secs(step));
                    let before = atime();
                    read();
                    changes += u32::from(atime() > before);
                }
                let (least, most) = match rule {
                    AccessRule::Never => (0, 0),
                    AccessRule::Strict => (3, 3),
                    // After the last change, and again after a day.
                    AccessRule::Relative => (1, 2),
                };
                assert!((least..=most).contains(&changes), "{what}, {rule:?}: {changes}");
            }
            fs.unmount().unwrap();
        }
        finish(mount(&device, &clock), &device);
    }
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

/// Which times a change sets: of the contents and of the inode, and those of the two directories.
struct Sets {
    name: &'static str,
    contents: bool,
    inode: bool,
    from: bool,
    to: bool,
    run: fn(&Inode, &Inode, &Inode),
}

fn sets(
    name: &'static str,
    [contents, inode, from, to]: [bool; 4],
    run: fn(&Inode, &Inode, &Inode),
) -> Sets {
    Sets { name, contents, inode, from, to, run }
}

#[test]
fn each_change_sets_the_times_that_linux_sets_and_no_other() {
    const Y: bool = true;
    const N: bool = false;
    // The file is called `file` in the first directory; the second has `other`.
    let changes = [
        sets("write", [Y, Y, N, N], |file, _, _| _ = file.write_at(&[1; 10], 5).unwrap()),
        sets("append", [Y, Y, N, N], |file, _, _| _ = file.append(&[1; 10]).unwrap()),
        sets("shorter", [Y, Y, N, N], |file, _, _| file.truncate(3).unwrap()),
        sets("longer", [Y, Y, N, N], |file, _, _| file.truncate(30_000).unwrap()),
        // As ftruncate does.
        sets("same length", [Y, Y, N, N], |file, _, _| file.truncate(20_000).unwrap()),
        sets("allocate", [Y, Y, N, N], |file, _, _| {
            let mode = Fallocate::Allocate { keep_size: true };
            file.fallocate(mode, 0..100_000).unwrap();
        }),
        sets("punch", [Y, Y, N, N], |file, _, _| {
            file.fallocate(Fallocate::PunchHole, 0..4096).unwrap();
        }),
        sets("zero", [Y, Y, N, N], |file, _, _| {
            file.fallocate(Fallocate::ZeroRange { keep_size: true }, 0..4096).unwrap();
        }),
        sets("collapse", [Y, Y, N, N], |file, _, _| {
            file.fallocate(Fallocate::CollapseRange, 0..4096).unwrap();
        }),
        sets("insert", [Y, Y, N, N], |file, _, _| {
            file.fallocate(Fallocate::InsertRange, 0..4096).unwrap();
        }),
        sets("direct write", [Y, Y, N, N], |file, _, _| {
            file.direct().unwrap().write_at(&AlignedBuffer::zeroed(4096), 0).unwrap();
        }),
        sets("atomic write", [Y, Y, N, N], |file, _, _| {
            file.direct().unwrap().write_atomic_at(&AlignedBuffer::zeroed(4096), 0).unwrap();
        }),
        sets("mode", [N, Y, N, N], |file, _, _| {
            file.set_attributes(&SetAttributes::new().permissions(0o640)).unwrap();
        }),
        sets("owner", [N, Y, N, N], |file, _, _| {
            file.set_attributes(&SetAttributes::new().owner(Some(5), Some(6))).unwrap();
        }),
        // As chown with -1 and -1 on Linux.
        sets("no attribute named", [N, Y, N, N], |file, _, _| {
            file.set_attributes(&SetAttributes::new()).unwrap();
        }),
        sets("flags", [N, Y, N, N], |file, _, _| {
            let flags = file.metadata().flags | extant::InodeFlags::NOATIME;
            file.set_attributes(&SetAttributes::new().flags(flags)).unwrap();
        }),
        sets("attribute", [N, Y, N, N], |file, _, _| {
            file.set_xattr("user.a", b"b", XattrMode::Any).unwrap();
        }),
        sets("no attribute", [N, Y, N, N], |file, _, _| file.remove_xattr("user.kept").unwrap()),
        sets("list", [N, Y, N, N], |file, _, _| {
            file.set_acl(AclKind::Access, Some(&Acl::from_mode(0o604))).unwrap();
        }),
        sets("link", [N, Y, N, Y], |file, _, to| to.link("again", file).unwrap()),
        sets("unlink", [N, Y, Y, N], |_, from, _| from.unlink("file").unwrap()),
        sets("rename", [N, Y, Y, N], |_, from, _| {
            from.rename("file", from, "moved", Default::default()).unwrap();
        }),
        sets("move", [N, Y, Y, Y], |_, from, to| {
            from.rename("file", to, "moved", Default::default()).unwrap();
        }),
        sets("move over another", [N, Y, Y, Y], |_, from, to| {
            from.rename("file", to, "other", Default::default()).unwrap();
        }),
        sets("is replaced", [N, Y, Y, Y], |_, from, to| {
            to.rename("other", from, "file", Default::default()).unwrap();
        }),
        sets("exchange", [N, Y, Y, Y], |_, from, to| {
            from.rename("file", to, "other", RenameFlags::EXCHANGE).unwrap();
        }),
        sets("create", [N, N, N, Y], |_, _, to| drop(to.create("new", &NewInode::root(0o644)))),
        sets("mkdir", [N, N, N, Y], |_, _, to| drop(to.mkdir("new", &NewInode::root(0o755)))),
        sets("symlink", [N, N, N, Y], |_, _, to| {
            drop(to.symlink("new", "target", &NewInode::root(0o777)).unwrap());
        }),
        sets("rmdir", [N, N, N, Y], |_, _, to| to.rmdir("dir").unwrap()),
        sets("nothing", [N, N, N, N], |file, _, _| {
            file.write_at(&[], 0).unwrap();
            file.read_all().unwrap();
        }),
    ];
    let device = require!(made());
    let clock = Arc::new(FixedClock::at(START, 0));
    let fs = mount(&device, &clock);
    let mut now = 0;
    for Sets { name, contents, inode, from: of_from, to: of_to, run } in changes {
        let new = NewInode::root(0o755);
        let root = fs.root().unwrap();
        let from = root.mkdir(format!("{name}, from"), &new).unwrap();
        let to = root.mkdir(format!("{name}, to"), &new).unwrap();
        let file = from.create("file", &NewInode::root(0o644)).unwrap();
        file.write_at(&[7; 20_000], 0).unwrap();
        file.set_xattr("user.kept", b"it is", XattrMode::Any).unwrap();
        // It has another name, and so is there in the end.
        root.link(name, &file).unwrap();
        to.create("other", &NewInode::root(0o644)).unwrap();
        to.mkdir("dir", &new).unwrap();
        let before = now;
        clock.advance(Duration::from_secs(10));
        now += 10;
        run(&file, &from, &to);
        let time = |changed: bool| at(if changed { now } else { before });
        let seen = |inode: &Inode| (inode.metadata().mtime, inode.metadata().ctime);
        let check = |what: &str| {
            let wanted = (time(contents), time(inode));
            assert_eq!(seen(&fs.resolve(format!("/{name}")).unwrap()), wanted, "{name}{what}");
            for (dir, changed) in [("from", of_from), ("to", of_to)] {
                let found = seen(&fs.resolve(format!("/{name}, {dir}")).unwrap());
                assert_eq!(found, (time(changed), time(changed)), "{name}, {dir}{what}");
            }
        };
        check("");
        fs.sync().unwrap();
        drop((root, from, to, file));
        fs.drop_cached_metadata();
        check(", synced");
    }
    finish(fs, &device);
}
