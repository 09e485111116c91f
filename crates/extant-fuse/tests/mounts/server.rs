//! What only a server can do: freezing, shutting down, orders, damage while mounted, and what the kernel
//! holds back.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common;
use common::{Heard, obstacle, with_mount};
use extant::{FileBlock, MappingKind, MountErrors, MountOptions};
use extant_block::{BlockDevice, FaultDevice, FaultPlan, MemoryDevice, SharedDevice};
use extant_fuse::{Durable, RingUse, Settings, mount};
use extant_sync::{Clock, SystemClock, threads};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{require, skip};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, SeekFrom, XattrFlags, copy_file_range,
    fallocate, getxattr, ioctl_getflags, ioctl_setflags, linkat, openat, seek, setxattr,
};

macro_rules! over_each_transport {
    ($($name:ident,)*) => {
        mod read_from_the_device {
            use super::*;
            $(#[test] fn $name() {
                if let Some(obstacle) = obstacle() {
                    skip!("{obstacle}");
                }
                super::$name(&Settings::default());
            })*
        }
        mod over_rings {
            use super::*;
            $(#[test] fn $name() {
                if let Some(obstacle) = obstacle() {
                    skip!("{obstacle}");
                }
                super::$name(&require!(common::over_rings()));
            })*
        }
    };
}

over_each_transport! {
    what_is_frozen_changes_nothing_and_can_be_thawed_whoever_waits,
    a_shutdown_keeps_what_its_mode_says,
    a_shutdown_that_could_not_store_everything_says_so,
    orders_are_for_root_and_who_runs_the_server_and_must_be_known,
    data_that_the_kernel_holds_back_is_found_by_seeking,
    files_without_a_name_ranges_and_copies,
    damage_makes_it_read_only_and_reading_goes_on,
    a_mount_that_nobody_used_ends_well,
    writes_to_files_opened_for_that_are_durable_however_they_come,
    files_that_can_only_be_appended_to_change_nowhere_else,
    what_is_asked_to_be_durable_is_so_when_the_call_returns,
    in_a_directory_that_is_to_be_durable_names_are,
    direct_writes_move_the_times_with_and_without_the_kernels_cache,
    who_writes_on_when_it_is_full_hears_of_it_with_the_next_write,
    what_fits_in_part_is_not_called_durable,
    inodes_of_128_bytes_show_the_whole_seconds_that_they_keep,
    more_wait_for_a_thaw_than_there_are_slots_and_reading_goes_on,
    what_is_forgotten_is_not_kept,
    large_and_odd_pieces_arrive_whole,
    what_many_threads_do_side_by_side_is_all_there,
    a_connection_that_is_cut_ends_the_server,
}

/// An image in memory, and a directory to mount it at.
fn image(options: &[&str]) -> Result<(extant_testkit::TempDir, Arc<MemoryDevice>), String> {
    let dir = extant_testkit::tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs(&path, "32M", &[&["-t", "ext4"], options].concat())?;
    fs::create_dir(dir.path().join("mount")).unwrap();
    Ok((dir, Arc::new(extant_testkit::image::load(&path))))
}

fn open(device: &Arc<MemoryDevice>) -> extant::Fs {
    let shared = Arc::clone(device) as SharedDevice;
    MountOptions::new().read_only(false).open_shared(shared).unwrap()
}

fn order(dir: &Path, order: &str) -> Result<(), rustix::io::Errno> {
    let mut answer = [0u8; 16];
    getxattr(dir, format!("extant.order.{order}"), &mut answer).map(drop)
}

/// What the server says of itself.
fn asked(at: &Path, name: &str) -> serde_json::Value {
    let mut answer = vec![0u8; 65536];
    let len = getxattr(at, name, &mut answer).unwrap();
    serde_json::from_slice(&answer[..len]).unwrap()
}

/// The image is clean, after its journal is replayed.
fn check(dir: &Path, device: &MemoryDevice) {
    let path = dir.join("check");
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    fs::write(&path, bytes).unwrap();
    let replayed = std::process::Command::new("e2fsck").args(["-p"]).arg(&path).output().unwrap();
    assert!(replayed.status.code().is_some_and(|code| code < 2), "{replayed:?}");
    let report = e2fsck(&path).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

fn what_is_frozen_changes_nothing_and_can_be_thawed_whoever_waits(settings: &Settings) {
    let (dir, device) = require!(image(&[]));
    let heard = Heard::new();
    let at = dir.path().join("mount");
    let (served, ()) = with_mount(open(&device), &at, settings, &heard, |at| {
        fs::write(at.join("before"), "x").unwrap();
        // For the length alone, as getfattr asks first: no order.
        let length =
            |order: &str| getxattr(at, format!("extant.order.{order}"), &mut [0u8; 0]).map(drop);
        length("freeze").unwrap();
        order(at, "freeze").unwrap();
        length("thaw").unwrap();
        assert_eq!(order(at, "freeze"), Err(rustix::io::Errno::BUSY));
        let done = AtomicU32::new(0);
        threads::scope(|s| {
            // More than there are threads, and each holds the directory in the kernel.
            for index in 0..20 {
                let done = &done;
                s.spawn(&format!("writer-{index}"), move || {
                    fs::write(at.join(format!("new{index}")), "y").unwrap();
                    done.fetch_add(1, Ordering::SeqCst);
                })
                .unwrap();
            }
            SystemClock.sleep(Duration::from_millis(300));
            assert_eq!(done.load(Ordering::SeqCst), 0);
            assert_eq!(fs::read(at.join("before")).unwrap(), b"x", "reading goes on");
            // What is on the device now is a whole file system.
            let copy = device.snapshot();
            let frozen = MountOptions::new().open(copy).unwrap();
            assert_eq!(frozen.read("/before").unwrap(), b"x");
            assert!(!frozen.exists("/new0").unwrap());
            order(at, "thaw").unwrap();
        })
        .unwrap();
        assert_eq!(done.load(Ordering::SeqCst), 20);
        assert_eq!(order(at, "thaw"), Err(rustix::io::Errno::INVAL));
        for index in 0..20 {
            assert_eq!(fs::read(at.join(format!("new{index}"))).unwrap(), b"y");
        }
    });
    served.unwrap();
    check(dir.path(), &device);
}

fn a_shutdown_keeps_what_its_mode_says(settings: &Settings) {
    for (mode, keeps_unsynced) in [("default", true), ("logflush", true), ("nologflush", false)] {
        let (dir, device) = require!(image(&[]));
        let heard = Heard::new();
        let at = dir.path().join("mount");
        let (served, ()) = with_mount(open(&device), &at, settings, &heard, |at| {
            fs::write(at.join("synced"), "kept").unwrap();
            File::open(at.join("synced")).unwrap().sync_all().unwrap();
            fs::create_dir(at.join("unsynced")).unwrap();
            order(at, &format!("shutdown={mode}")).unwrap();
            let refused = fs::create_dir(at.join("later")).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(5), "{mode}: EIO");
            assert_eq!(fs::metadata(at.join("nothing")).unwrap_err().raw_os_error(), Some(5));
        });
        served.unwrap();
        let left = MountOptions::new().open(device.snapshot()).unwrap();
        assert_eq!(left.read("/synced").unwrap(), b"kept", "{mode}");
        assert_eq!(left.exists("/unsynced").unwrap(), keeps_unsynced, "{mode}");
        assert!(!left.exists("/later").unwrap());
        check(dir.path(), &device);
    }
}

fn a_shutdown_that_could_not_store_everything_says_so(settings: &Settings) {
    let (dir, device) = require!(image(&[]));
    let plan = FaultPlan { write_one_in: 1, ..FaultPlan::default() };
    let faulty = Arc::new(FaultDevice::new(device, plan));
    faulty.set_enabled(false);
    let shared = Arc::clone(&faulty) as SharedDevice;
    let fs = MountOptions::new().read_only(false).open_shared(shared).unwrap();
    let at = dir.path().join("mount");
    let (_served, ()) = with_mount(fs, &at, settings, &Heard::new(), |at| {
        fs::write(at.join("file"), "not stored").unwrap();
        faulty.set_enabled(true);
        order(at, "shutdown=default").expect_err("the file was not stored");
        assert_eq!(fs::create_dir(at.join("later")).unwrap_err().raw_os_error(), Some(5));
    });
    assert!(faulty.failed() > 0);
}

fn orders_are_for_root_and_who_runs_the_server_and_must_be_known(settings: &Settings) {
    let (dir, device) = require!(image(&[]));
    let at = dir.path().join("mount");
    let (served, ()) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        assert_eq!(order(at, "dance"), Err(rustix::io::Errno::INVAL));
        let set = |value: &[u8]| setxattr(at, "extant.control", value, XattrFlags::empty());
        set(b"sync").unwrap();
        set(b"remount,ro").unwrap();
        assert_eq!(fs::write(at.join("a"), "").unwrap_err().raw_os_error(), Some(30));
        set(b"remount,rw").unwrap();
        fs::write(at.join("a"), "").unwrap();
        let info = asked(at, "extant.info");
        assert_eq!((&info["read_only"], &info["frozen"]), (&false.into(), &false.into()));
        let over = if settings.ring == RingUse::Always { "io_uring" } else { "/dev/fuse" };
        assert_eq!(info["transport"], over);
        let stats = asked(at, "extant.stats");
        assert!(stats["requests"]["ops"]["create"]["count"].as_u64() >= Some(1), "{stats}");
    });
    served.unwrap();
}

fn data_that_the_kernel_holds_back_is_found_by_seeking(settings: &Settings) {
    let (dir, device) = require!(image(&[]));
    let at = dir.path().join("mount");
    let (served, ()) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(at.join("sparse"))
            .unwrap();
        file.write_all_at(b"x", 1 << 20).unwrap();
        file.write_all_at(b"y", 5 << 20).unwrap();
        assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(1 << 20));
        // Of blocks of 1 KiB one or four: the kernel writes a page, or, near a full file system, what there is of
        // it before the next write.
        let hole = seek(&file, SeekFrom::Hole(1 << 20)).unwrap() - (1 << 20);
        assert!(matches!(hole, 1024 | 4096), "{hole}");
        assert_eq!(seek(&file, SeekFrom::Data(2 << 20)), Ok(5 << 20));
        assert_eq!(seek(&file, SeekFrom::Data(6 << 20)), Err(rustix::io::Errno::NXIO));
        let mut byte = [0];
        file.read_exact_at(&mut byte, 5 << 20).unwrap();
        assert_eq!(&byte, b"y");
        // Many at once: none may keep the others' writes from being taken.
        threads::workers("seeker", 16, |index| {
            let name = at.join(format!("sparse{index}"));
            let file = File::create_new(&name).unwrap();
            for round in 0..20u64 {
                file.write_all_at(b"z", (round + 1) << 20).unwrap();
                let found = seek(&file, SeekFrom::Data((round << 20) + 4096));
                // No program expects `EAGAIN` of it, although all others may wait already.
                assert_eq!(found, Ok((round + 1) << 20));
            }
        })
        .unwrap();
    });
    served.unwrap();
    check(dir.path(), &device);
}

fn files_without_a_name_ranges_and_copies(settings: &Settings) {
    let (dir, device) = require!(image(&[]));
    let at = dir.path().join("mount");
    let (served, ()) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let nameless = openat(CWD, at, flags, Mode::from(0o600)).unwrap();
        rustix::io::write(&nameless, b"named later").unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&nameless));
        linkat(CWD, path, CWD, at.join("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
        assert_eq!(fs::read(at.join("named")).unwrap(), b"named later");
        let lost = openat(CWD, at, flags, Mode::from(0o600)).unwrap();
        rustix::io::write(&lost, b"gone").unwrap();
        drop(lost);

        let a = File::options().read(true).write(true).create_new(true).open(at.join("a"));
        let (a, b) = (a.unwrap(), File::create_new(at.join("b")).unwrap());
        a.write_all_at(&[7; 100_000], 0).unwrap();
        fallocate(&a, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        fallocate(&a, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 4096).unwrap();
        let copied = copy_file_range(a.as_fd(), Some(&mut 0), b.as_fd(), None, 1 << 20).unwrap();
        assert_eq!(copied, 1 << 20);
        let bytes = fs::read(at.join("b")).unwrap();
        assert_eq!(bytes.len(), 1 << 20);
        assert!(bytes[4096..8192].iter().all(|byte| *byte == 0));
        assert!(bytes[8192..100_000].iter().all(|byte| *byte == 7));
        assert!(bytes[100_000..].iter().all(|byte| *byte == 0));
        // In use without a name.
        fs::remove_file(at.join("a")).unwrap();
        let mut byte = [0];
        a.read_exact_at(&mut byte, 99_999).unwrap();
        assert_eq!(byte, [7]);
    });
    served.unwrap();
    check(dir.path(), &device);
    let left = MountOptions::new().open(device.snapshot()).unwrap();
    assert!(left.exists("/named").unwrap() && !left.exists("/a").unwrap());
}

fn damage_makes_it_read_only_and_reading_goes_on(settings: &Settings) {
    let (dir, device) = require!(image(&["-O", "metadata_csum"]));
    {
        let fs = open(&device);
        let root = fs.root().unwrap();
        let new = extant::NewInode::root(0o755);
        let bad = root.mkdir("bad", &new).unwrap();
        bad.create("inside", &new).unwrap();
        fs.write("/good", "good").unwrap();
        let place = bad.map(0..1).next().unwrap().unwrap();
        let MappingKind::Mapped(block) = place.kind else { panic!("{place:?}") };
        assert_eq!(place.file_start, FileBlock(0));
        let offset = fs.block_size().offset_of(block).unwrap();
        fs.unmount().unwrap();
        device.write_at(offset + 30, &[0xff; 16]).unwrap();
    }
    let shared = Arc::clone(&device) as SharedDevice;
    let options = MountOptions::new().read_only(false).errors(MountErrors::RemountReadOnly);
    let heard = Heard::new();
    let at = dir.path().join("mount");
    let fs = options.open_shared(shared).unwrap();
    let (_, ()) = with_mount(fs, &at, settings, &heard, |at| {
        fs::write(at.join("new"), "new").unwrap();
        assert_eq!(
            fs::metadata(at.join("bad/inside")).unwrap_err().raw_os_error(),
            Some(74),
            "EBADMSG: a checksum"
        );
        let refused = fs::write(at.join("later"), "later").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(30), "EROFS");
        let refused = OpenOptions::new().write(true).open(at.join("good")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(30), "EROFS");
        assert_eq!(fs::read(at.join("good")).unwrap(), b"good");
        assert_eq!(fs::read(at.join("new")).unwrap(), b"new");
    });
    assert!(heard.says("errors=remount-ro"), "{:?}", heard.lines.lock());
    let state = MountOptions::new().open(device.snapshot()).unwrap().superblock().state;
    assert!(state.contains(extant_format::features::State::ERROR), "{state:?}");
}

fn a_mount_that_nobody_used_ends_well(settings: &Settings) {
    let (dir, device) = require!(image(&[]));
    let at = dir.path().join("mount");
    let connection = mount::open_and_mount(&at, &mount::KernelOptions::new("test")).unwrap();
    mount::unmount(&at, false).unwrap();
    let heard = Heard::new();
    let fs = open(&device);
    extant_fuse::serve(connection, fs, settings, &heard).unwrap();
    assert!(!heard.ready.load(Ordering::SeqCst));
    let left = MountOptions::new().open(device.snapshot()).unwrap();
    assert!(left.replayed().is_none(), "ended cleanly");
}

/// Whether `path` has these contents if the power fails now.
fn survives(device: &MemoryDevice, path: &str, contents: &[u8]) -> bool {
    let after = MountOptions::new().open(device.snapshot()).unwrap();
    after.read(path).is_ok_and(|found| found == contents)
}

fn add_flag(file: &File, flag: IFlags) {
    ioctl_setflags(file, ioctl_getflags(file).unwrap() | flag).unwrap();
}

fn writes_to_files_opened_for_that_are_durable_however_they_come(settings: &Settings) {
    for writeback_cache in [true, false] {
        let (dir, device) = require!(image(&[]));
        let at = dir.path().join("mount");
        let mut settings = settings.clone();
        settings.writeback_cache = writeback_cache;
        let (served, ()) = with_mount(open(&device), &at, &settings, &Heard::new(), |at| {
            for (name, flags) in [
                ("cached", OFlags::DSYNC),
                ("direct", OFlags::DIRECT | OFlags::DSYNC),
                ("direct-sync", OFlags::DIRECT | OFlags::SYNC),
                // Files that can only be appended to are opened past the cache.
                ("only-append", OFlags::APPEND | OFlags::DSYNC),
            ] {
                let path = at.join(name);
                let new = File::create(&path).unwrap();
                new.sync_all().unwrap();
                if name == "only-append" {
                    add_flag(&new, IFlags::APPEND);
                }
                let flags = flags | OFlags::WRONLY;
                let file = File::from(openat(CWD, &path, flags, Mode::empty()).unwrap());
                std::io::Write::write_all(&mut &file, &[5; 4096]).unwrap();
                let path = format!("/{name}");
                assert!(survives(&device, &path, &[5; 4096]), "{name}, {writeback_cache}");
                if name == "only-append" {
                    let flags = ioctl_getflags(&new).unwrap();
                    ioctl_setflags(&new, flags - IFlags::APPEND).unwrap();
                }
            }
        });
        served.unwrap();
    }
}

fn files_that_can_only_be_appended_to_change_nowhere_else(settings: &Settings) {
    for writeback_cache in [true, false] {
        let (dir, device) = require!(image(&[]));
        let at = dir.path().join("mount");
        let mut settings = settings.clone();
        settings.writeback_cache = writeback_cache;
        let (served, ()) = with_mount(open(&device), &at, &settings, &Heard::new(), |at| {
            let path = at.join("file");
            fs::write(&path, "contents").unwrap();
            let file = File::open(&path).unwrap();
            add_flag(&file, IFlags::APPEND);
            // As programs do that take the flag back, or map the file.
            let script = "import fcntl, mmap, os, sys\n\
                fd = os.open(sys.argv[1], os.O_RDWR | os.O_APPEND)\n\
                os.write(fd, b' and more')\n\
                fcntl.fcntl(fd, fcntl.F_SETFL, 0)\n\
                try:\n    os.pwrite(fd, b'XX', 0)\n    sys.exit(3)\n\
                except PermissionError: pass\n\
                try:\n    m = mmap.mmap(fd, 8)\n    m[0:2] = b'XX'\n    m.flush()\n    sys.exit(4)\n\
                except OSError: pass\n";
            let mut python = std::process::Command::new("python3");
            match python.args(["-c", script]).arg(&path).status() {
                Ok(status) => assert!(status.success(), "{writeback_cache}: {status}"),
                Err(error) => skip!("python3: {error}"),
            }
            let flags = ioctl_getflags(&file).unwrap();
            ioctl_setflags(&file, flags - IFlags::APPEND).unwrap();
        });
        served.unwrap();
        let left = MountOptions::new().open(device.snapshot()).unwrap();
        assert_eq!(left.read("/file").unwrap(), b"contents and more", "{writeback_cache}");
    }
}

fn what_is_asked_to_be_durable_is_so_when_the_call_returns(settings: &Settings) {
    for durable in [Durable::AsAsked, Durable::Names, Durable::Everything] {
        let (dir, device) = require!(image(&[]));
        let at = dir.path().join("mount");
        let mut settings = settings.clone();
        (settings.durable, settings.writeback_cache) = (durable, false);
        let heard = Heard::new();
        let (served, ()) = with_mount(open(&device), &at, &settings, &heard, |at| {
            let names = durable >= Durable::Names;
            let is_dir = |path: &str| {
                let after = MountOptions::new().open(device.snapshot()).unwrap();
                after.metadata(path).is_ok()
            };
            fs::create_dir(at.join("dir")).unwrap();
            assert_eq!(is_dir("/dir"), names, "{durable:?}");
            fs::rename(at.join("dir"), at.join("moved")).unwrap();
            assert_eq!(is_dir("/moved"), names, "{durable:?}");
            fs::remove_dir(at.join("moved")).unwrap();
            assert!(!is_dir("/moved"), "{durable:?}");
            fs::write(at.join("file"), "contents").unwrap();
            let all = durable == Durable::Everything;
            assert_eq!(survives(&device, "/file", b"contents"), all, "{durable:?}");
            assert_eq!(survives(&device, "/file", b"contents") || is_dir("/file"), names);
        });
        served.unwrap();
        assert_eq!(heard.errors.load(Ordering::SeqCst), 0);
    }
}

fn in_a_directory_that_is_to_be_durable_names_are(settings: &Settings) {
    let (dir, device) = require!(image(&[]));
    let at = dir.path().join("mount");
    let (served, ()) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        fs::create_dir(at.join("dir")).unwrap();
        let handle = File::open(at.join("dir")).unwrap();
        add_flag(&handle, IFlags::DIRSYNC);
        handle.sync_all().unwrap();
        fs::create_dir(at.join("dir/new")).unwrap();
        let after = MountOptions::new().open(device.snapshot()).unwrap();
        assert!(after.metadata("/dir/new").is_ok());
    });
    served.unwrap();
}

fn direct_writes_move_the_times_with_and_without_the_kernels_cache(settings: &Settings) {
    for writeback_cache in [true, false] {
        let (dir, device) = require!(image(&[]));
        let at = dir.path().join("mount");
        let mut settings = settings.clone();
        settings.writeback_cache = writeback_cache;
        let (served, ()) = with_mount(open(&device), &at, &settings, &Heard::new(), |at| {
            let path = at.join("file");
            fs::write(&path, vec![1; 8192]).unwrap();
            let old = fs::metadata(&path).unwrap().modified().unwrap();
            SystemClock.sleep(Duration::from_millis(30));
            let flags = OFlags::DIRECT | OFlags::RDWR;
            let direct = File::from(openat(CWD, &path, flags, Mode::empty()).unwrap());
            direct.write_all_at(&[2; 4096], 0).unwrap();
            let new = fs::metadata(&path).unwrap().modified().unwrap();
            assert!(new > old, "writeback cache {writeback_cache}: {old:?} {new:?}");
            let mut bytes = [0; 2];
            File::open(&path).unwrap().read_exact_at(&mut bytes, 4095).unwrap();
            assert_eq!(bytes, [2, 1]);
        });
        served.unwrap();
        let left = MountOptions::new().open(device.snapshot()).unwrap();
        assert_eq!(left.read("/file").unwrap()[4094..4098], [2, 2, 1, 1]);
    }
}

/// What a program reads that has nothing to do with the kernel's cache.
fn read_past_the_cache(path: &Path) -> Vec<u8> {
    let flags = OFlags::DIRECT | OFlags::RDONLY;
    let mut file = File::from(openat(CWD, path, flags, Mode::empty()).unwrap());
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn who_writes_on_when_it_is_full_hears_of_it_with_the_next_write(settings: &Settings) {
    let (dir, device) = require!(image(&[]));
    let at = dir.path().join("mount");
    let (served, ()) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        let path = at.join("log");
        let (mut file, other) = (File::create(&path).unwrap(), File::create(&path).unwrap());
        // More than there is room for. The kernel takes it all, and writes it back later: here, now.
        let taken = (0..48).take_while(|_| file.write_all(&[7; 1 << 20]).is_ok()).count();
        assert!(taken > 16, "{taken} MiB were taken");
        // What it says goes to who asks for it by `fsync`.
        let _ = rustix::fs::syncfs(&file);
        let full = Some(rustix::io::Errno::NOSPC.raw_os_error());
        if taken == 48 {
            assert_eq!(file.write(b"more").unwrap_err().raw_os_error(), full);
        }
        assert_eq!(other.write_at(b"more", 0).unwrap_err().raw_os_error(), full);
        // Who only looks is not troubled.
        file.metadata().unwrap();
        fs::metadata(&path).unwrap();
        // Each hears of it once: there may be room again.
        file.set_len(0).unwrap();
        file.rewind().unwrap();
        file.write_all(b"less").unwrap();
        other.write_all_at(b"Less", 0).unwrap();
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), full, "what was lost was lost");
        file.sync_all().unwrap();
        assert_eq!(read_past_the_cache(&path), b"Less");
    });
    served.unwrap();
    check(dir.path(), &device);
}

fn what_fits_in_part_is_not_called_durable(settings: &Settings) {
    let (dir, device) = require!(image(&["-b", "1024"]));
    let at = dir.path().join("mount");
    let (served, ()) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        const LEN: usize = 64 << 10;
        let path = at.join("file");
        let file = File::create(&path).unwrap();
        // The first half has its blocks, the second half is a hole.
        file.write_all_at(&[1; LEN / 2], 0).unwrap();
        file.set_len(LEN as u64).unwrap();
        file.sync_all().unwrap();
        let ballast = File::create(at.join("ballast")).unwrap();
        let mut filled = 0;
        for step in [1 << 20, 1 << 14, 1 << 10] {
            while fallocate(&ballast, FallocateFlags::empty(), 0, filled + step).is_ok() {
                filled += step;
            }
        }
        // One request of the kernel, of which one half fits.
        file.write_all_at(&[2; LEN], 0).unwrap();
        let synced = file.sync_all();
        assert_eq!(synced.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        assert_eq!(read_past_the_cache(&path)[LEN / 2..], [0; LEN / 2], "there is no room");
    });
    served.unwrap();
    check(dir.path(), &device);
}

fn inodes_of_128_bytes_show_the_whole_seconds_that_they_keep(settings: &Settings) {
    let (dir, device) = require!(image(&["-I", "128"]));
    let at = dir.path().join("mount");
    let (served, ()) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        let path = at.join("file");
        // The kernel itself keeps these times while the file is written.
        for _ in 0..3 {
            fs::write(&path, b"text").unwrap();
            let of = fs::metadata(&path).unwrap();
            assert_eq!((of.mtime_nsec(), of.ctime_nsec()), (0, 0));
            SystemClock.sleep(Duration::from_millis(7));
        }
    });
    served.unwrap();
    check(dir.path(), &device);
}

fn more_wait_for_a_thaw_than_there_are_slots_and_reading_goes_on(settings: &Settings) {
    const WRITERS: usize = 300;
    let (dir, device) = require!(image(&[]));
    let at = dir.path().join("mount");
    let (served, ()) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        for index in 0..WRITERS {
            fs::create_dir(at.join(format!("d{index}"))).unwrap();
        }
        for round in 0..3 {
            let done = AtomicU32::new(0);
            order(at, "freeze").unwrap();
            threads::scope(|s| {
                // Each in a directory of its own: all of them reach the server.
                for index in 0..WRITERS {
                    let done = &done;
                    s.spawn(&format!("w-{index}"), move || {
                        fs::create_dir(at.join(format!("d{index}/{round}"))).unwrap();
                        done.fetch_add(1, Ordering::SeqCst);
                    })
                    .unwrap();
                }
                // Names that the kernel does not know: each is a question.
                for name in 0..200 {
                    assert!(fs::metadata(at.join(format!("none-{round}-{name}"))).is_err());
                }
                SystemClock.sleep(Duration::from_millis(200));
                assert_eq!(done.load(Ordering::SeqCst), 0);
                assert!(fs::metadata(at.join(format!("none-{round}"))).is_err());
                assert_eq!(asked(at, "extant.info")["frozen"], true);
                order(at, "thaw").unwrap();
            })
            .unwrap();
            assert_eq!(done.load(Ordering::SeqCst) as usize, WRITERS);
        }
    });
    served.unwrap();
    check(dir.path(), &device);
}

fn what_is_forgotten_is_not_kept(settings: &Settings) {
    const FILES: u64 = 2000;
    let (dir, device) = require!(image(&[]));
    let at = dir.path().join("mount");
    let (served, ()) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        for index in 0..FILES {
            File::create(at.join(format!("{index}"))).unwrap();
        }
        let nodes = || asked(at, "extant.stats")["nodes"].as_u64().unwrap();
        assert!(nodes() >= FILES, "{}", nodes());
        for index in 0..FILES {
            fs::remove_file(at.join(format!("{index}"))).unwrap();
        }
        // They come behind, in batches.
        let gone = (0..200).any(|_| {
            SystemClock.sleep(Duration::from_millis(25));
            nodes() < 50
        });
        assert!(gone, "{} of {FILES} files without a name are still known", nodes());
    });
    served.unwrap();
    check(dir.path(), &device);
}

fn large_and_odd_pieces_arrive_whole(settings: &Settings) {
    let (dir, device) = require!(image(&[]));
    let at = dir.path().join("mount");
    let byte = |at: usize| (at % 251) as u8;
    let whole: Vec<u8> = (0..5 << 20).map(byte).collect();
    let (served, ()) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        for (name, flags) in [("cached", OFlags::empty()), ("direct", OFlags::DIRECT)] {
            let path = at.join(name);
            let flags = flags | OFlags::CREATE | OFlags::RDWR;
            let file = File::from(openat(CWD, &path, flags, Mode::from(0o600)).unwrap());
            let mut piece = if name == "direct" { 512 } else { 1 };
            let mut offset = 0;
            while offset < whole.len() {
                let len = piece.min(whole.len() - offset);
                file.write_all_at(&whole[offset..offset + len], offset as u64).unwrap();
                offset += len;
                piece = if name == "direct" { (piece * 2).min(2 << 20) } else { piece * 3 };
            }
            file.sync_all().unwrap();
            assert!(fs::read(&path).unwrap() == whole, "{name}");
            let mut read = vec![0; 3 << 20];
            file.read_exact_at(&mut read, 1 << 20).unwrap();
            assert!(read[..] == whole[1 << 20..4 << 20], "{name}");
        }
        // Long names and values go the same way.
        let long = "n".repeat(255);
        fs::write(at.join(&long), "x").unwrap();
        let value = vec![7; 700];
        setxattr(at.join(&long), "user.large", &value, XattrFlags::empty()).unwrap();
        let mut back = vec![0; 4000];
        let len = getxattr(at.join(&long), "user.large", &mut back).unwrap();
        assert_eq!(back[..len], value[..]);
        let target = "t".repeat(900);
        std::os::unix::fs::symlink(&target, at.join("link")).unwrap();
        assert_eq!(fs::read_link(at.join("link")).unwrap().as_os_str().len(), 900);
        fs::rename(at.join(&long), at.join("m".repeat(255))).unwrap();
        assert_eq!(fs::read_dir(at).unwrap().count(), 5);
    });
    served.unwrap();
    check(dir.path(), &device);
}

fn what_many_threads_do_side_by_side_is_all_there(settings: &Settings) {
    let (dir, device) = require!(image(&[]));
    let at = dir.path().join("mount");
    let (served, ()) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        threads::workers("client", 16, |index| {
            let own = at.join(format!("{index}"));
            fs::create_dir(&own).unwrap();
            for round in 0..60u8 {
                let path = own.join(format!("{round}"));
                let bytes = vec![round ^ index as u8; 5000 + usize::from(round)];
                fs::write(&path, &bytes).unwrap();
                let file = File::open(&path).unwrap();
                if round % 8 == 0 {
                    file.sync_all().unwrap();
                }
                let mut read = vec![0; 4096];
                let flags = OFlags::DIRECT | OFlags::RDONLY;
                let direct = File::from(openat(CWD, &path, flags, Mode::empty()).unwrap());
                direct.read_exact_at(&mut read, 0).unwrap();
                assert_eq!(read[..], bytes[..4096]);
                if round % 3 == 0 {
                    fs::remove_file(&path).unwrap();
                } else {
                    fs::rename(&path, own.join(format!("{round}-kept"))).unwrap();
                }
            }
            assert_eq!(fs::read_dir(&own).unwrap().count(), 40);
        })
        .unwrap();
    });
    served.unwrap();
    check(dir.path(), &device);
}

fn a_connection_that_is_cut_ends_the_server(settings: &Settings) {
    use std::os::unix::fs::MetadataExt;

    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let (dir, device) = require!(image(&[]));
    let at = dir.path().join("mount");
    let (_, cut) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        fs::write(at.join("synced"), "kept").unwrap();
        File::open(at.join("synced")).unwrap().sync_all().unwrap();
        let number = rustix::fs::minor(fs::metadata(at).unwrap().dev());
        let control = dir.path().join("control");
        fs::create_dir(&control).unwrap();
        let _ = mount("fusectl", &control, "fusectl", MountFlags::empty(), None);
        let abort = control.join(format!("{number}/abort"));
        order(at, "freeze").unwrap();
        threads::scope(|s| {
            let waits = s.spawn("waits", || fs::create_dir(at.join("never"))).unwrap();
            SystemClock.sleep(Duration::from_millis(100));
            // Where it cannot be cut, the waiting must end too.
            let cut = fs::write(&abort, "1").inspect_err(|_| order(at, "thaw").unwrap()).is_ok();
            assert_eq!(waits.join().unwrap().is_err(), cut);
            let _ = unmount(&control, UnmountFlags::DETACH);
            cut
        })
        .unwrap()
    });
    if !cut {
        skip!("needs fusectl: cuts a connection");
    }
    let left = MountOptions::new().open(device.snapshot()).unwrap();
    assert_eq!(left.read("/synced").unwrap(), b"kept");
    assert!(!left.exists("/never").unwrap());
    check(dir.path(), &device);
}
