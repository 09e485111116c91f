//! Two mounts in one process: handles of one given to the other, and one page cache for both.

use std::sync::Arc;

use extant::ring::Op;
use extant::{ErrorCode, Fs, FsError, MountOptions, NewInode, RenameFlags, SharedCache};
use extant_block::{FaultDevice, FaultPlan, MemoryDevice, OperationKind};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

const EXDEV: i32 = 18;

fn fresh(size: &str, block: &str) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, size, &["-t", "ext4", "-b", block])?;
    Ok(Arc::new(image::load(&path)))
}

fn mount() -> Result<(Arc<MemoryDevice>, Fs), String> {
    let device = fresh("16M", "1024")?;
    let fs = MountOptions::new().read_only(false).open_shared(device.clone()).unwrap();
    Ok((device, fs))
}

fn check(device: &MemoryDevice) -> Result<(), String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    image::save(device, &path);
    let report = e2fsck(&path)?;
    assert!(report.is_clean(), "{}", report.text);
    Ok(())
}

fn is_other(error: &FsError) -> bool {
    error.code() == ErrorCode::OtherFileSystem && error.errno() == EXDEV
}

#[test]
fn names_and_rings_stay_within_one_mount() {
    let run = || {
        let ((here_device, here), (there_device, there)) = (mount()?, mount()?);
        for (fs, text) in [(&here, "here"), (&there, "there")] {
            fs.root().unwrap().mkdir("dir", &NewInode::root(0o755)).unwrap();
            fs.write("/dir/file", text).unwrap();
        }
        let dir = |fs: &Fs| fs.resolve("/dir").unwrap();
        let file = |fs: &Fs| fs.resolve("/dir/file").unwrap();
        let error = dir(&here).link("link", &file(&there)).unwrap_err();
        assert!(is_other(&error), "{error}");
        let flags = RenameFlags::empty();
        let error = dir(&here).rename("file", &dir(&there), "moved", flags).unwrap_err();
        assert!(is_other(&error), "{error}");
        let ring = here.ring(4).unwrap();
        let append = || Op::Append { bytes: b" and more".to_vec() };
        let done = ring.submit(7, &file(&there), append()).unwrap().expect("at once");
        assert!(is_other(&done.result.unwrap_err()));
        assert_eq!((done.tag, &done.buffer[..]), (7, &b" and more"[..]), "the buffer comes back");
        drop(ring.submit(8, &file(&here), append()).unwrap());
        drop(ring);
        // A copy goes across.
        let copied = file(&here).copy_range(0, &file(&there), 5, 4).unwrap();
        assert_eq!(copied, 4);
        for (device, fs, text) in
            [(here_device, here, "here and more"), (there_device, there, "therehere")]
        {
            let names: Vec<_> =
                fs.read_dir("/dir").unwrap().map(|entry| entry.unwrap().name().to_vec()).collect();
            assert_eq!(names, [b"file"]);
            assert_eq!(fs.read_to_string("/dir/file").unwrap(), text);
            fs.unmount().unwrap();
            check(&device)?;
        }
        Ok::<(), String>(())
    };
    require!(run());
}

/// What one has dirty is no reason for the other to fail, and the budget is that of both.
#[test]
fn two_mounts_share_one_cache_and_its_budget() {
    let run = || {
        const BUDGET: u64 = 4 << 20;
        let cache = SharedCache::new(BUDGET);
        // Nobody writes but who has to.
        let options = MountOptions::new().read_only(false).background(false).cache(&cache);
        let devices = [fresh("64M", "4096")?, fresh("64M", "4096")?];
        let mounts = devices.clone().map(|device| options.open_shared(device).unwrap());
        assert_eq!(cache.mounts(), 2);
        let bytes =
            |seed: u8| -> Vec<u8> { (0..16 << 20).map(|at| (at >> 9) as u8 ^ seed).collect() };
        // As much as may be dirty is the first one's; the second finds nothing of its own to write.
        mounts[0].write("/big", &bytes(1)[..3 << 20]).unwrap();
        let before = devices[0].stored_bytes();
        mounts[1].write("/big", bytes(2)).unwrap();
        assert!(devices[0].stored_bytes() > before, "the other's data made no room");
        mounts[0].write("/big", bytes(3)).unwrap();
        for (fs, seed) in [(&mounts[0], 3), (&mounts[1], 2)] {
            assert!(fs.read("/big").unwrap() == bytes(seed), "mount {seed}");
        }
        let stats = cache.stats();
        assert!(stats.used_bytes <= BUDGET, "{stats:?}");
        assert_eq!(mounts[0].io_stats().unwrap(), mounts[1].io_stats().unwrap());
        // One that is frozen is not waited for.
        let frozen = mounts[0].freeze().unwrap();
        mounts[1].write("/more", bytes(4)).unwrap();
        assert!(mounts[1].read("/more").unwrap() == bytes(4));
        drop(frozen);
        let [one, two] = mounts;
        one.unmount().unwrap();
        assert_eq!(cache.mounts(), 1);
        assert!(two.read("/more").unwrap() == bytes(4));
        two.unmount().unwrap();
        for device in &devices {
            check(device)?;
        }
        let again = MountOptions::new().open_shared(devices[0].clone()).unwrap();
        assert!(again.read("/big").unwrap() == bytes(3));
        Ok::<(), String>(())
    };
    require!(run());
}

/// An error of one device is that of its own files.
#[test]
fn what_fails_under_one_mount_fails_nobody_else() {
    let run = || {
        let cache = SharedCache::new(4 << 20);
        let options = MountOptions::new().read_only(false).background(false).cache(&cache);
        let (bad, good) = (fresh("64M", "4096")?, fresh("64M", "4096")?);
        let seen = Arc::new(FaultDevice::new(bad.snapshot().into(), FaultPlan::default()));
        let fs = options.open_shared(seen.clone()).unwrap();
        let exactly = vec![(OperationKind::Write, seen.seen()[1], 1 << 40)];
        drop(fs);
        let plan = FaultPlan { exactly, ..FaultPlan::default() };
        let one = options.open_shared(Arc::new(FaultDevice::new(bad, plan))).unwrap();
        let two = options.open_shared(good.clone()).unwrap();
        one.write("/file", vec![1; 2 << 20]).unwrap();
        two.write("/file", vec![2; 16 << 20]).unwrap();
        assert!(one.sync().is_err(), "nobody was told");
        assert!(two.read("/file").unwrap().iter().all(|byte| *byte == 2));
        two.unmount().unwrap();
        check(&good)
    };
    require!(run());
}

#[test]
fn a_shared_cache_is_refused_where_it_does_not_fit() {
    let run = || {
        let cache = SharedCache::new(4 << 20);
        let options = MountOptions::new().read_only(false).cache(&cache);
        let first = options.open_shared(fresh("16M", "4096")?).unwrap();
        let error = options.open_shared(fresh("16M", "1024")?).unwrap_err();
        assert!(error.to_string().contains("blocks of another size"), "{error}");
        let both = options.clone().dirty_bytes(1 << 20);
        let error = both.open_shared(fresh("16M", "4096")?).unwrap_err();
        assert!(error.to_string().contains("leave those of the mount unset"), "{error}");
        first.unmount().unwrap();
        Ok::<(), String>(())
    };
    require!(run());
}
