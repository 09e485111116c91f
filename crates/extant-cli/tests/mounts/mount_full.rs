//! Mounts, and copies into images, on a disk that is full.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use extant_sync::{Clock as _, SystemClock};
use rustix::fs::FallocateFlags;

use crate::support;
use support::mounts::{Mounts, is_alive, mounts, until};
use support::{kernel, text, tool};

/// A tmpfs of a size on "full", which [`Mounts`] unmounts.
fn full_disk(mounts: &Mounts, size: &str) -> bool {
    let full = mounts.path("full");
    fs::create_dir(&full).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(&full);
    let done = mount.status().is_ok_and(|status| status.success());
    if !done {
        println!("skipped: no tmpfs");
    }
    done
}

/// What is the same in every run and in no two files.
fn noise(number: u32, len: u32) -> Vec<u8> {
    let byte = |at: u32| (at.wrapping_mul(at).wrapping_add(number) >> 7) as u8;
    (number * 31..number * 31 + len).map(byte).collect()
}

#[test]
fn a_sparse_image_on_a_disk_that_fills_up_loses_no_name_and_nothing_synced() {
    let Some(mounts) = mounts() else { return };
    if !full_disk(&mounts, "60M") {
        return;
    }
    let make = ["-q", "-F", "-t", "ext4", "full/a.img", "500M"];
    assert!(tool("mke2fs", &make, mounts.place.0.path()).unwrap().status.success());
    mounts.place.run(&["mount", "--log", "log", "full/a.img", "m"]).succeeds();
    let name = |number: u32| mounts.inside(&format!("d{}/f{number}", number / 100));
    let (mut synced, mut accepted) = (0, Vec::new());
    for number in 0..2500 {
        if number % 100 == 0 {
            fs::create_dir(name(number).parent().unwrap()).unwrap();
        }
        let wrote = fs::write(name(number), noise(number, 24 << 10));
        match wrote {
            Ok(()) if number == 499 => {
                // Each of them, and so what is before it.
                for number in 0..500 {
                    fs::File::open(name(number)).unwrap().sync_all().unwrap();
                }
                synced = 500;
                accepted.push(number);
            }
            Ok(()) => accepted.push(number),
            Err(error) => assert_eq!(error.raw_os_error(), Some(28), "{error}"),
        }
    }
    println!("{} of 2500 were refused at once", 2500 - accepted.len());
    let sync = |number: &u32| fs::File::open(name(*number)).unwrap().sync_all();
    let error = accepted.iter().rev().find_map(|number| sync(number).err()).expect("no room");
    assert_eq!(error.raw_os_error(), Some(28));
    // The journal has its room: names can still be changed, durably.
    fs::rename(name(0), mounts.inside("moved")).unwrap();
    fs::File::open(mounts.path("m")).unwrap().sync_all().unwrap();
    let refused = mounts.place.run(&["umount", "--timeout", "60", "m"]);
    refused.ends_with(8).complains(&["not everything is stored"]).hints("extant umount -l");
    assert!(mounts.log().contains("No space left on device"), "{}", mounts.log());
    assert!(mounts.listed().is_some());
    let (_, server) = mounts.processes();
    mounts.place.run(&["umount", "-l", "m"]);
    until("the server has ended", || !is_alive(server));
    assert!(mounts.log().contains("the disk that holds"), "{}", mounts.log());
    kernel::clean(&mounts.place, "full/a.img");
    let find = mounts.place.run(&["find", "full/a.img:/", "-type", "f"]).succeeds().out();
    let found: Vec<&str> = find.lines().filter_map(|line| line.rsplit('/').next()).collect();
    for number in accepted.iter().filter(|number| **number != 0) {
        assert!(found.contains(&&*format!("f{number}")), "{number} is not there any more");
    }
    for number in (1..synced).step_by(7) {
        let path = format!("full/a.img:/d{}/f{number}", number / 100);
        let read = mounts.place.run(&["cat", &path]).succeeds();
        assert!(read.output.stdout == noise(number, 24 << 10), "{path}");
    }
    let read = mounts.place.run(&["cat", "full/a.img:/moved"]).succeeds();
    assert!(read.output.stdout == noise(0, 24 << 10));
}

/// Writes files of 40 KiB into the mount of an overlay on a full disk until one of them is refused; those whose
/// `fsync` came back well are durable.
fn fill(mounts: &Mounts) -> Vec<u32> {
    let mut durable = Vec::new();
    for number in 0..4000 {
        let wrote = fs::File::create(mounts.inside(&format!("f{number}"))).and_then(|mut file| {
            std::io::Write::write_all(&mut file, &noise(number, 40 << 10))?;
            file.sync_all()
        });
        match wrote {
            Ok(()) => durable.push(number),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(28), "{number}: {error}");
                return durable;
            }
        }
    }
    panic!("the disk does not fill up");
}

#[test]
fn an_overlay_on_a_disk_that_fills_up_keeps_what_was_synced_and_goes_on_when_there_is_room() {
    for is_killed in [false, true] {
        let Some(mounts) = mounts() else { return };
        if !full_disk(&mounts, "48M") {
            return;
        }
        let (place, full) = (&mounts.place, mounts.path("full"));
        let make = ["-q", "-F", "-t", "ext4", "-J", "size=8", "b.img", "500M"];
        assert!(tool("mke2fs", &make, place.0.path()).unwrap().status.success());
        let sum = |name: &str| text(&tool("sha256sum", &[name], place.0.path()).unwrap());
        let base = sum("b.img");
        fs::write(full.join("ballast"), vec![1; 16 << 20]).unwrap();
        let mount = ["mount", "--overlay", "full/o.qcow2", "--log", "log", "b.img", "m"];
        place.run(&mount).succeeds();
        let durable = fill(&mounts);
        assert!(durable.len() > 50, "{} files", durable.len());
        // Names still change, durably: the journal has its room in the overlay.
        fs::rename(mounts.inside("f0"), mounts.inside("moved")).unwrap();
        fs::File::open(mounts.path("m")).unwrap().sync_all().unwrap();
        let (_, server) = mounts.processes();
        if is_killed {
            support::mounts::signal(server, rustix::process::Signal::KILL);
            until("the server has ended", || !is_alive(server));
            let _ = place.run(&["umount", "-l", "m"]);
            let what = ["cat", "--overlay", "full/o.qcow2", "b.img:/moved"];
            let read = place.run(&what).succeeds();
            assert!(read.output.stdout == noise(0, 40 << 10), "with no room to replay the journal");
            fs::remove_file(full.join("ballast")).unwrap();
            place.run(&mount).succeeds();
        } else {
            fs::remove_file(full.join("ballast")).unwrap();
            // What was refused is still in memory, and now finds its place.
            fs::File::open(mounts.path("m")).unwrap().sync_all().unwrap();
        }
        let big: Vec<u8> = (0..100).flat_map(|number| noise(number, 40 << 10)).collect();
        let mut file = fs::File::create(mounts.inside("big")).unwrap();
        std::io::Write::write_all(&mut file, &big).unwrap();
        file.sync_all().unwrap();
        drop(file);
        // Who unmounts is reminded of what failed.
        place.run(&["umount", "--timeout", "60", "m"]).succeeds();
        let read = |name: &str| {
            let path = format!("b.img:/{name}");
            let ran = place.run(&["cat", "--overlay", "full/o.qcow2", &path]).succeeds();
            ran.output.stdout.clone()
        };
        assert!(read("big") == big);
        assert!(read("moved") == noise(0, 40 << 10));
        for number in durable.iter().skip(1) {
            assert!(read(&format!("f{number}")) == noise(*number, 40 << 10), "{number}");
        }
        place.run(&["check", "--overlay", "full/o.qcow2", "b.img"]).succeeds();
        if let Some(checked) = tool("qemu-img", &["check", "full/o.qcow2"], place.0.path()) {
            // 3 is for clusters that are counted and not used.
            assert!(matches!(checked.status.code(), Some(0 | 3)), "{}", text(&checked));
        }
        assert!(sum("b.img") == base, "the base has changed");
    }
}

#[test]
fn a_journal_that_stopped_is_said_by_every_sync_and_by_who_unmounts() {
    let Some(mounts) = mounts() else { return };
    if !full_disk(&mounts, "24M") {
        return;
    }
    let full = mounts.path("full");
    let make = ["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=8", "full/a.img", "40M"];
    assert!(tool("mke2fs", &make, mounts.place.0.path()).unwrap().status.success());
    let blocks = tool("debugfs", &["-R", "blocks <8>", "full/a.img"], mounts.place.0.path());
    let blocks = text(&blocks.unwrap());
    let blocks: Vec<u64> = blocks.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    mounts.place.run(&["mount", "--log", "log", "full/a.img", "m"]).succeeds();
    fs::write(mounts.inside("stored"), "stored").unwrap();
    fs::File::open(mounts.inside("stored")).unwrap().sync_all().unwrap();
    // Somebody takes the journal's room away and fills the disk.
    let image = fs::File::options().write(true).open(full.join("a.img")).unwrap();
    for block in blocks.iter().skip(64) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&image, mode, block * 4096, 4096).unwrap();
    }
    let ballast = fs::write(full.join("ballast"), vec![1; 40 << 20]);
    assert_eq!(ballast.unwrap_err().raw_os_error(), Some(28));
    // Changes that need no new block, so that nothing but the log has no room.
    let mut failed = None;
    for number in 0..400 {
        let path = mounts.inside("stored");
        let mode = fs::Permissions::from_mode(0o600 + number % 2);
        let made =
            fs::set_permissions(&path, mode).and_then(|()| fs::File::open(&path)?.sync_all());
        if let Err(error) = made {
            failed = Some(error);
            break;
        }
    }
    let failed = failed.expect("the journal has no room").raw_os_error();
    assert!(matches!(failed, Some(28 | 30)), "{failed:?}");
    for path in ["stored", "."] {
        let synced = fs::File::open(mounts.inside(path)).unwrap().sync_all();
        assert_eq!(synced.unwrap_err().raw_os_error(), Some(30), "{path}");
    }
    let ended = mounts.place.run(&["umount", "--timeout", "60", "m"]);
    let why = ["writing had stopped", "is full", "No space left on device"];
    ended.ends_with(8).complains(&why).hints("the next mount");
    assert!(mounts.log().contains("No space left on device"), "{}", mounts.log());
    assert!(mounts.listed().is_none());
    fs::remove_file(full.join("ballast")).unwrap();
    let info = mounts.place.run(&["info", "full/a.img"]).succeeds();
    assert!(!info.err().contains("kernel"), "{}", info.err());
    info.complains(&["whoever wrote it last had to stop its journal"]);
    mounts.place.run(&["mount", "--log", "log", "full/a.img", "m"]).succeeds();
    assert_eq!(fs::read(mounts.inside("stored")).unwrap(), b"stored");
    mounts.place.run(&["umount", "m"]).succeeds();
}

#[test]
fn cp_into_an_image_on_a_full_disk_names_what_does_not_fit_and_keeps_the_rest() {
    let Some(mounts) = mounts() else { return };
    if !full_disk(&mounts, "12M") {
        return;
    }
    let make = ["-q", "-F", "-t", "ext4", "full/a.img", "100M"];
    assert!(tool("mke2fs", &make, mounts.place.0.path()).unwrap().status.success());
    let source = mounts.path("source");
    fs::create_dir(&source).unwrap();
    let make = ["-q", "-F", "-t", "ext4", "full/b.img", "100M"];
    assert!(tool("mke2fs", &make, mounts.place.0.path()).unwrap().status.success());
    for number in 0..300 {
        fs::write(source.join(format!("f{number}")), noise(number, 40 << 10)).unwrap();
    }
    let copied = mounts.place.run(&["cp", "-r", "source", "full/a.img:/"]).ends_with(1);
    assert!(copied.err().contains("the disk that holds"), "{}", copied.err());
    copied.hints("make room there");
    kernel::clean(&mounts.place, "full/a.img");
    let (mut there, mut missing) = (0, 0);
    for number in 0..300 {
        let path = format!("full/a.img:/source/f{number}");
        let read = mounts.place.run(&["cat", &path]);
        if read.output.status.success() {
            assert!(read.output.stdout == noise(number, 40 << 10), "{path} is not whole");
            there += 1;
        } else {
            missing += 1;
        }
    }
    assert!(there > 50 && missing > 20, "{there} copied, {missing} not");
    // Nothing of it is there at all: what it takes to write is refused before anything changes.
    let ballast = fs::write(mounts.path("full").join("ballast"), vec![1; 12 << 20]);
    assert_eq!(ballast.unwrap_err().raw_os_error(), Some(28));
    let before = fs::read(mounts.path("full/b.img")).unwrap();
    let refused = mounts.place.run(&["mkdir", "full/b.img:/d"]);
    refused.ends_with(6).complains(&["the disk that holds"]).hints("make room there");
    assert!(fs::read(mounts.path("full/b.img")).unwrap() == before);
}

#[test]
fn a_full_disk_below_a_loop_device_is_told_without_a_journal_that_nobody_has() {
    let Some(mounts) = mounts() else { return };
    if !full_disk(&mounts, "12M") {
        return;
    }
    fs::write(mounts.path("file"), noise(1, 40 << 20)).unwrap();
    for (kind, hint) in [("ext2", "no journal: extant repair"), ("ext4", "replays the journal")] {
        let disk = mounts.path("full").join(kind);
        fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
        let Some(device) = kernel::Loop::over(&disk) else { return };
        let make = ["-q", "-F", "-E", "nodiscard", "-t", kind, &device.0];
        assert!(tool("mke2fs", &make, mounts.place.0.path()).unwrap().status.success());
        mounts.place.run(&["cp", "file", &format!("{}:/", device.0)]).ends_with(8).hints(hint);
        drop(device);
        fs::remove_file(&disk).unwrap();
    }
}

/// Free and available blocks, and bytes of one.
fn totals(dir: &std::path::Path) -> (u64, u64, u64) {
    let totals = rustix::fs::statvfs(dir).unwrap();
    (totals.f_bfree, totals.f_bavail, totals.f_frsize)
}

#[test]
fn the_last_blocks_are_roots_and_df_is_right_at_once() {
    let Some(mounts) = mounts() else { return };
    let make = ["-q", "-F", "-t", "ext4", "-m", "10", "a.img", "48M"];
    assert!(tool("mke2fs", &make, mounts.place.0.path()).unwrap().status.success());
    mounts.mount(&["-o", "allow_other"]).succeeds();
    let m = mounts.path("m");
    fs::set_permissions(&m, fs::Permissions::from_mode(0o777)).unwrap();
    // The way to the mount, for the user.
    fs::set_permissions(mounts.place.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let allocate = |uid: u32, name: &str, bytes: u64| {
        let mut command = Command::new("fallocate");
        command.args(["-l", &bytes.to_string()]).arg(mounts.inside(name)).uid(uid).gid(uid);
        let output = command.env("LC_ALL", "C").output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let (free, available, block) = totals(&m);
    let kept = (free - available) * block;
    assert!(kept >= 48 * 1024 * 1024 / 10, "{kept}");
    assert_eq!(allocate(1, "most", (available - 4) * block), "");
    let (_, left, _) = totals(&m);
    assert!(left <= 4, "{left}");
    assert!(allocate(1, "more", 64 * block).contains("No space left"), "the reserve is root's");
    assert_eq!(allocate(0, "roots", kept / 2), "");
    assert_eq!(totals(&m).1, 0);
    // An ordinary user's file through the kernel's cache: what was accepted is not root's to take.
    let mut write = Command::new("dd");
    write.args(["if=/dev/zero", "bs=64k", "count=16", "conv=fsync"]);
    write.arg(format!("of={}", mounts.inside("late").display())).uid(1).gid(1);
    assert!(!write.output().unwrap().status.success());
    // What is removed shows as free without waiting for anything.
    fs::remove_file(mounts.inside("most")).unwrap();
    for round in 0..10 {
        let path = mounts.inside("gone");
        fs::write(&path, vec![round; 1 << 20]).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        let (before, ..) = totals(&m);
        fs::remove_file(&path).unwrap();
        let wanted = before + (1 << 20) / block;
        // The kernel says in its own time that nobody has the file any more; a commit by age would take seconds.
        let begun = SystemClock.monotonic();
        while totals(&m).0 < wanted {
            let took = SystemClock.monotonic() - begun;
            assert!(took.as_secs() < 2, "round {round}: {} of {wanted}", totals(&m).0);
        }
    }
    mounts.umount();
}

/// Writes by `io_submit` to a file opened with `O_DIRECT`, in pieces of 1 MiB, and prints each result.
const ASYNCHRONOUS: &str = r#"
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
IO_SETUP, IO_GETEVENTS, IO_SUBMIT = 206, 208, 209
context = ctypes.c_ulong(0)
if libc.syscall(IO_SETUP, 8, ctypes.byref(context)) != 0:
    sys.exit("no aio")
size = 1 << 20
memory = mmap.mmap(-1, size)
memory.write(b"x" * size)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
for number in range(100):
    block = (ctypes.c_ulonglong * 8)()
    # data, key; opcode 1 is a write, and the descriptor; buffer, bytes, offset
    block[2] = 1 | (fd << 32)
    block[3], block[4], block[5] = address, size, number * size
    pointer = ctypes.pointer(block)
    if libc.syscall(IO_SUBMIT, context, 1, ctypes.byref(pointer)) != 1:
        sys.exit("io_submit: %d" % ctypes.get_errno())
    event = (ctypes.c_longlong * 4)()
    libc.syscall(IO_GETEVENTS, context, 1, 1, ctypes.byref(event), None)
    print(event[2])
    if event[2] <= 0:
        break
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn an_asynchronous_direct_write_that_fits_in_part_says_how_much() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    let path = mounts.inside("file").display().to_string();
    let Some(ran) = tool("python3", &["-c", ASYNCHRONOUS, &path], mounts.place.0.path()) else {
        return println!("skipped: no python3");
    };
    if text(&ran).contains("no aio") {
        return println!("skipped: no asynchronous I/O");
    }
    assert!(ran.status.success(), "{}", text(&ran));
    let results: Vec<i64> =
        String::from_utf8_lossy(&ran.stdout).lines().map(|line| line.parse().unwrap()).collect();
    let (last, before) = results.split_last().unwrap();
    assert_eq!(*last, -28, "{results:?}");
    let (part, whole) = before.split_last().unwrap();
    assert!(whole.iter().all(|result| *result == 1 << 20), "{results:?}");
    assert!((1..=1 << 20).contains(part), "{results:?}");
    let stored: i64 = before.iter().sum();
    assert_eq!(fs::metadata(mounts.inside("file")).unwrap().len(), stored as u64);
    mounts.umount();
}

/// Somebody makes the image file shorter under a mount: what was behind its new end is not there any more.
#[test]
fn an_image_that_is_cut_off_under_a_mount_ends_with_an_error() {
    let Some(mounts) = mounts() else { return };
    for is_written in [true, false] {
        let _ = fs::remove_file(mounts.path("cut.img"));
        mounts.place.run(&["mkfs", "cut.img", "64M"]).succeeds();
        mounts.place.run(&["mount", "--log", "log", "cut.img", "m"]).succeeds();
        fs::write(mounts.inside("before"), noise(1, 3 << 20)).unwrap();
        fs::File::open(mounts.inside("before")).unwrap().sync_all().unwrap();
        let image = fs::File::options().write(true).open(mounts.path("cut.img")).unwrap();
        image.set_len(8 << 20).unwrap();
        if is_written {
            let synced = fs::write(mounts.inside("after"), noise(2, 30 << 20))
                .and_then(|()| fs::File::open(mounts.inside("after"))?.sync_all());
            assert!(matches!(synced.unwrap_err().raw_os_error(), Some(5 | 30)));
        }
        let ended = mounts.place.run(&["umount", "--timeout", "60", "m"]).ends_with(8);
        ended.complains(&["67108864", "somebody made it shorter"]);
        assert!(mounts.log().contains("somebody made it shorter"), "{}", mounts.log());
        assert!(mounts.listed().is_none());
        assert!(image.metadata().unwrap().len() < 64 << 20);
        // With its length again, it does not say that it is in order.
        image.set_len(64 << 20).unwrap();
        mounts.place.run(&["check", "cut.img"]).ends_with(4);
    }
}

#[test]
fn a_limit_for_files_fails_writes_and_does_not_end_the_mount() {
    let Some(mounts) = mounts() else { return };
    // A journal would lie behind the limit.
    let make = ["-q", "-F", "-t", "ext4", "-O", "^has_journal", "a.img", "64M"];
    assert!(tool("mke2fs", &make, mounts.place.0.path()).unwrap().status.success());
    let whole = mounts.place.command(&["mount", "--log", "log", "a.img", "m"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 20480; exec \"$0\" \"$@\""]).arg(whole.get_program());
    shell.args(whole.get_args()).current_dir(mounts.place.0.path());
    assert!(shell.status().unwrap().success());
    fs::write(mounts.inside("before"), "kept").unwrap();
    fs::File::open(mounts.inside("before")).unwrap().sync_all().unwrap();
    let file = fs::File::create(mounts.inside("large")).unwrap();
    let written = std::io::Write::write_all(&mut &file, &noise(1, 40 << 20));
    assert!(written.and_then(|()| file.sync_all()).is_err(), "past the limit");
    drop(file);
    // Before, the server was gone, and with it everything that was not stored.
    assert_eq!(fs::read(mounts.inside("before")).unwrap(), b"kept");
    // Without what does not fit, the rest can be stored.
    fs::remove_file(mounts.inside("large")).unwrap();
    mounts.place.run(&["umount", "--timeout", "60", "m"]).succeeds();
    let kept = mounts.place.run(&["cat", "a.img:/before"]).succeeds().out();
    assert_eq!(kept, "kept");
}
