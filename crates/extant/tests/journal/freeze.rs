//! Freezing: a copy of the device made meanwhile is an image that was unmounted, with all that was acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant::{ErrorCode, Fs, FsError, MountOptions, NewInode, RenameFlags, WaitReason};
use extant_block::{FaultDevice, FaultPlan, MemoryDevice, OperationKind, SharedDevice};
use extant_sync::{Clock, SystemClock, no_waiting, threads};
use extant_testkit::oracle::{dumpe2fs, e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

fn new() -> NewInode {
    NewInode::root(0o644)
}

fn fresh(options: &[&str]) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "32M", &[&["-t", "ext4"], options].concat())?;
    Ok(Arc::new(image::load(&path)))
}

fn mount(device: SharedDevice) -> Fs {
    MountOptions::new().read_only(false).open_shared(device).unwrap()
}

fn bytes(device: &MemoryDevice) -> Vec<u8> {
    let mut all = vec![0; 32 << 20];
    extant_block::BlockDevice::read_at(device, 0, &mut all).unwrap();
    all
}

/// A copy of the device as it is, which e2fsck finds clean and has no journal to replay.
fn snapshot(device: &MemoryDevice) -> Result<Fs, String> {
    let copy = device.snapshot();
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    image::save(&copy, &path);
    let report = e2fsck(&path)?;
    assert!(report.is_clean(), "{}", report.text);
    let says = dumpe2fs(&path)?;
    assert_eq!(says["Filesystem state"], "clean");
    assert!(!says["Filesystem features"].contains("needs_recovery"), "{says:?}");
    let fs = MountOptions::new().open(copy).unwrap();
    assert!(fs.replayed().is_none(), "{:?}", fs.replayed());
    Ok(fs)
}

#[test]
fn nothing_reaches_the_device_until_the_thaw() {
    let run = || {
        let device = fresh(&[])?;
        let fs = mount(Arc::clone(&device) as SharedDevice);
        fs.write("/file", "before").unwrap();
        let file = fs.resolve("/file").unwrap();
        let doomed = fs.root().unwrap().create("doomed", &new()).unwrap();
        doomed.write_at(&[1; 100_000], 0).unwrap();
        let frozen = fs.freeze().unwrap();
        assert!(fs.is_frozen() && frozen.fs().is_frozen());
        let there = bytes(&device);
        let written = AtomicBool::new(false);
        threads::scope(|s| {
            let write = s.spawn("write", || {
                file.write_at(b" after", 6).unwrap();
                written.store(true, Ordering::SeqCst);
            });
            let remove = s.spawn("remove", || fs.root().unwrap().unlink("doomed").unwrap());
            // Syncs, reads, what is due, and an end all find nothing to wait for.
            let _scope = no_waiting();
            assert_eq!(file.read_all().unwrap(), b"before");
            for sync in [file.sync(), file.sync_data(), fs.sync(), fs.tick()] {
                sync.unwrap();
            }
            assert!(fs.rest().unwrap());
            assert!(!file.note_access(extant::AccessRule::Strict).unwrap());
            let refused = file.try_write_at(b"x", 0).unwrap_err();
            assert_eq!(refused.reason, WaitReason::Frozen);
            assert!(matches!(fs.clone().unmount(), Err(FsError::Frozen)));
            drop(_scope);
            let again = fs.freeze().unwrap_err();
            assert_eq!((again.code(), again.errno()), (ErrorCode::Frozen, 16));
            // Long enough for the background thread to come by.
            SystemClock.sleep(Duration::from_millis(1200));
            assert!(!written.load(Ordering::SeqCst), "a write went on");
            assert!(bytes(&device) == there, "something was written");
            frozen.thaw();
            write.unwrap().join().unwrap();
            remove.unwrap().join().unwrap();
        })
        .unwrap();
        assert!(!fs.is_frozen());
        assert_eq!(file.read_all().unwrap(), b"before after");
        drop((file, doomed));
        fs.unmount().unwrap();
        let fs = snapshot(&device)?;
        assert_eq!(fs.read("/file").unwrap(), b"before after");
        assert!(matches!(fs.resolve("/doomed"), Err(FsError::NotFound { .. })));
        Ok::<(), String>(())
    };
    require!(run());
}

/// Whatever four threads are doing, each copy has all that had returned, in an image that is clean.
#[test]
fn copies_made_beside_writers_are_clean_and_have_what_was_acknowledged() {
    let run = || {
        for options in [&["-b", "4096"][..], &["-b", "1024", "-O", "^has_journal"]] {
            let device = fresh(options)?;
            let fs = mount(Arc::clone(&device) as SharedDevice);
            let (done, stop) = ([const { AtomicU64::new(0) }; 4], AtomicBool::new(false));
            for thread in 0..4 {
                fs.root().unwrap().mkdir(format!("{thread}"), &NewInode::root(0o755)).unwrap();
            }
            let copies = threads::scope(|s| {
                for (thread, done) in done.iter().enumerate() {
                    let (fs, stop) = (&fs, &stop);
                    let work = move || {
                        let dir = fs.resolve(format!("/{thread}")).unwrap();
                        for number in 1.. {
                            if stop.load(Ordering::Relaxed) {
                                break;
                            }
                            let file = dir.create(format!("new{number}"), &new()).unwrap();
                            file.write_at(number.to_string().as_bytes(), 0).unwrap();
                            let flags = RenameFlags::empty();
                            dir.rename(format!("new{number}"), &dir, "now", flags).unwrap();
                            dir.link(format!("l{}", number % 7), &file).ok();
                            dir.unlink(format!("l{}", (number + 3) % 7)).ok();
                            done.store(number, Ordering::SeqCst);
                        }
                    };
                    drop(s.spawn(&format!("work-{thread}"), work).unwrap());
                }
                let mut copies = Vec::new();
                for _ in 0..12 {
                    SystemClock.sleep(Duration::from_millis(5));
                    let before: Vec<u64> =
                        done.iter().map(|done| done.load(Ordering::SeqCst)).collect();
                    let frozen = fs.freeze().unwrap();
                    copies.push((before, device.snapshot()));
                    drop(frozen);
                }
                stop.store(true, Ordering::Relaxed);
                copies
            })
            .unwrap();
            for (before, copy) in copies {
                let fs = snapshot(&copy)?;
                for (thread, least) in before.iter().enumerate() {
                    if *least == 0 {
                        continue;
                    }
                    let now = fs.read_to_string(format!("/{thread}/now")).unwrap();
                    let now: u64 = now.parse().unwrap();
                    assert!(now >= *least, "thread {thread}: {now} of at least {least}");
                }
            }
            fs.unmount().unwrap();
            snapshot(&device)?;
        }
        Ok::<(), String>(())
    };
    require!(run());
}

/// Programs store to maps without anybody's leave: that stays in memory, and a sync waits with it for the thaw.
#[test]
fn stores_through_maps_wait_for_the_thaw() {
    let run = || {
        let device = fresh(&[])?;
        let fs = mount(Arc::clone(&device) as SharedDevice);
        fs.write("/file", [1; 8192]).unwrap();
        let file = fs.resolve("/file").unwrap();
        let map = file.map_shared(0..8192, true).unwrap();
        map.write(0, &[2]).unwrap();
        let frozen = fs.freeze().unwrap();
        map.write(1, &[3]).unwrap();
        let there = bytes(&device);
        threads::scope(|s| {
            let sync = s.spawn("sync", || map.sync(0..8192).unwrap());
            SystemClock.sleep(Duration::from_millis(50));
            assert!(bytes(&device) == there, "a store through a map was written");
            let copy = snapshot(&device).unwrap();
            assert_eq!(copy.read("/file").unwrap()[..3], [2, 1, 1]);
            frozen.thaw();
            sync.unwrap().join().unwrap();
        })
        .unwrap();
        let copy = MountOptions::new().open(device.snapshot()).unwrap();
        assert_eq!(copy.read("/file").unwrap()[..3], [2, 3, 1]);
        drop((map, file));
        fs.unmount().unwrap();
        snapshot(&device)?;
        Ok::<(), String>(())
    };
    require!(run());
}

#[test]
fn a_freeze_that_fails_leaves_the_mount_going_on() {
    let run = || {
        let memory = fresh(&[])?;
        // Every write from the 41st on fails.
        let exactly = vec![(OperationKind::Write, 40, 1 << 40)];
        let plan = FaultPlan { exactly, ..FaultPlan::default() };
        let device = Arc::new(FaultDevice::new(Arc::clone(&memory), plan));
        let fs = mount(Arc::clone(&device) as SharedDevice);
        for number in 0..60 {
            fs.write(format!("/file{number}"), [1; 20_000]).unwrap();
        }
        let error = fs.freeze().unwrap_err();
        assert_ne!(error.code(), ErrorCode::Frozen, "{error}");
        assert!(!fs.is_frozen());
        // Whoever tries to change something hears why not, and waits for nobody.
        let _ = fs.write("/file", "more");
        assert!(fs.freeze().is_err() && !fs.is_frozen());
        Ok::<(), String>(())
    };
    require!(run());
}

#[test]
fn a_mount_for_reading_stands_still_anyway() {
    let run = || {
        let device = fresh(&[])?;
        let fs = MountOptions::new().open_shared(device).unwrap();
        let frozen = fs.freeze().unwrap();
        assert!(!fs.is_frozen());
        drop(frozen);
        Ok::<(), String>(())
    };
    require!(run());
}
