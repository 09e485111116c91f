//! Very many files: what the server keeps of those that the kernel knows.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::common;
use common::{Heard, obstacle, with_mount};
use extant::{Fs, MountOptions, NewInode};
use extant_block::{FileDevice, MemoryDevice, SharedDevice};
use extant_fuse::{CONTROL, Settings};
use extant_sync::{Clock, SystemClock};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, skip, tempdir};
use rustix::fs::{XattrFlags, fgetxattr, getxattr, setxattr};
use rustix::io::Errno;
use serde_json::Value;

const PERMISSIONS: NewInode = NewInode { permissions: 0o644, uid: 0, gid: 0 };

/// What the server counts of inodes.
fn inodes(at: &Path, key: &str) -> u64 {
    let mut answer = vec![0; 64 << 10];
    let len = getxattr(at, "extant.stats", &mut answer).unwrap();
    let all: Value = serde_json::from_slice(&answer[..len]).unwrap();
    all["inodes"][key].as_u64().unwrap()
}

/// Everything that was written so far is durable.
fn sync(at: &Path) {
    setxattr(at, std::str::from_utf8(CONTROL).unwrap(), b"sync", XattrFlags::empty()).unwrap();
}

fn made(size: &str, arguments: &[&str]) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs(&path, size, arguments)?;
    Ok(Arc::new(image::load(&path)))
}

fn open(device: &Arc<MemoryDevice>, inodes_max: usize) -> Fs {
    let options = MountOptions::new().read_only(false).inodes_max(inodes_max);
    options.open_shared(Arc::clone(device) as SharedDevice).unwrap()
}

/// The image is clean and has as many files as that.
fn check(device: &Arc<MemoryDevice>, files: usize) {
    let dir = tempdir().unwrap();
    image::save(device, &dir.path().join("after"));
    e2fsck(&dir.path().join("after")).unwrap().assert_clean();
    let fs = MountOptions::new().open_shared(Arc::clone(device) as SharedDevice).unwrap();
    let found = fs.walk("/").unwrap().map(Result::unwrap).filter(|entry| entry.inode().is_file());
    assert_eq!(found.count(), files);
}

#[test]
fn the_server_keeps_as_many_inodes_as_asked_however_many_the_kernel_knows() {
    const FILES: u64 = 20_000;
    const MOST: u64 = 2000;
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let device = require!(made("128M", &["-t", "ext4", "-N", "24000"]));
    let dir = tempdir().unwrap();
    let at = dir.path().join("mount");
    fs::create_dir(&at).unwrap();
    let (fs, heard) = (open(&device, MOST as usize), Heard::new());
    let (served, ()) = with_mount(fs, &at, &Settings::default(), &heard, |at| {
        let name = |index: u64| at.join(format!("{}/{index}", index % 10));
        (0..10).for_each(|index| fs::create_dir(at.join(index.to_string())).unwrap());
        // Open for writing; open without a name; known to the kernel without a name, and not open.
        let mut kept = File::create(at.join("kept")).unwrap();
        let unnamed =
            File::options().read(true).write(true).create_new(true).open(at.join("u")).unwrap();
        unnamed.write_all_at(b"nobody's", 0).unwrap();
        fs::remove_file(at.join("u")).unwrap();
        fs::write(at.join("seen"), "seen").unwrap();
        let seen =
            File::options().read(true).custom_flags(libc_path()).open(at.join("seen")).unwrap();
        fs::write(at.join("other"), "other").unwrap();
        fs::rename(at.join("other"), at.join("seen")).unwrap();
        for index in 0..FILES {
            let mut file = File::create(name(index)).unwrap();
            if index % 100 == 7 {
                file.write_all(index.to_string().as_bytes()).unwrap();
            }
        }
        // What waits to be stored stays; once it is stored, what comes later takes its place.
        sync(at);
        for round in 0..2 {
            for index in 0..FILES {
                let mut text = String::new();
                File::open(name(index)).unwrap().read_to_string(&mut text).unwrap();
                let wanted = if index % 100 == 7 { index.to_string() } else { String::new() };
                assert_eq!(text, wanted, "file {index}");
            }
            let (known, held) = (inodes(at, "known"), inodes(at, "held"));
            assert!(known >= FILES, "the kernel forgot: {known} known, nothing is tested");
            assert!(held <= 8, "{held} of {known} are held, round {round}");
            let in_memory = inodes(at, "in_memory");
            assert!(in_memory <= MOST + 64, "{in_memory} of {known} are in memory, round {round}");
            assert!(inodes(at, "known_bytes") <= known * 64);
        }
        // Changes of what was not in memory.
        for index in (0..FILES).step_by(50) {
            let file = OpenOptions::new().write(true).open(name(index)).unwrap();
            file.write_all_at(b"x", 100).unwrap();
            file.sync_all().unwrap();
            assert_eq!(fs::metadata(name(index)).unwrap().size(), 101);
        }
        kept.write_all(b"still here").unwrap();
        assert_eq!(fs::read_to_string(at.join("kept")).unwrap(), "still here");
        let mut text = [0; 8];
        unnamed.read_exact_at(&mut text, 0).unwrap();
        assert_eq!((&text, unnamed.metadata().unwrap().nlink()), (b"nobody's", 0));
        let through =
            PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&seen)));
        assert_eq!(fs::read_to_string(&through).unwrap(), "seen", "the file that was replaced");
        assert_eq!(fs::read_to_string(at.join("seen")).unwrap(), "other");
        let (first, second) =
            (unnamed.metadata().unwrap().ino(), fs::metadata(&through).unwrap().ino());
        for index in 0..100 {
            let new =
                File::create(at.join(format!("new{index}"))).unwrap().metadata().unwrap().ino();
            assert!(new != first && new != second, "the number of a file in use was given out");
        }
        for index in 0..FILES {
            if index % 2 == 0 {
                fs::remove_file(name(index)).unwrap();
            }
        }
    });
    served.unwrap();
    assert_eq!(heard.errors.into_inner(), 0, "{:?}", heard.lines.lock());
    check(&device, FILES as usize / 2 + 102);
}

/// `O_PATH`: the kernel knows the file, and nobody has it open.
fn libc_path() -> i32 {
    rustix::fs::OFlags::PATH.bits() as i32
}

#[test]
fn a_node_is_stale_when_its_number_has_another_inode() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let device = require!(made("16M", &["-t", "ext4", "-N", "512"]));
    let dir = tempdir().unwrap();
    let at = dir.path().join("mount");
    fs::create_dir(&at).unwrap();
    let fs = open(&device, 256);
    let (served, ()) = with_mount(fs.clone(), &at, &Settings::default(), &Heard::new(), |at| {
        fs::write(at.join("file"), "old").unwrap();
        let file = File::open(at.join("file")).unwrap();
        let ino = file.metadata().unwrap().ino();
        let mut value = [0; 8];
        assert_eq!(fgetxattr(&file, "user.whose", &mut value), Err(Errno::NODATA));
        // Somebody else changes the file system behind the kernel's back.
        let root = fs.root().unwrap();
        root.unlink("file").unwrap();
        fs.finish_removals();
        assert_eq!(fgetxattr(&file, "user.whose", &mut value), Err(Errno::STALE));
        let again = (0..400).find_map(|index| {
            let new = root.create(format!("new{index}"), &PERMISSIONS).unwrap();
            (u64::from(new.ino().0) == ino).then_some(new)
        });
        let again = again.expect("the number is never given out again: nothing is tested");
        again.set_xattr("user.whose", b"another", extant::XattrMode::Any).unwrap();
        assert_eq!(fgetxattr(&file, "user.whose", &mut value), Err(Errno::STALE));
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(Errno::STALE.raw_os_error()));
    });
    served.unwrap();
}

/// Bytes of memory that this process, which is the server, has.
fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Prints how long each 100,000 of `FILES` took, and the memory afterwards; seconds of the first and the
/// last.
fn each(what: &str, files: u64, work: impl Fn(u64)) -> (f64, f64) {
    let mut times = Vec::new();
    let mut began = SystemClock.monotonic();
    for index in 0..files {
        work(index);
        if index % 100_000 == 99_999 {
            let now = SystemClock.monotonic();
            times.push((now - began).as_secs_f64());
            began = now;
        }
    }
    let rounded: Vec<String> = times.iter().map(|time| format!("{time:.1}")).collect();
    println!(
        "{what}: {} s per 100,000; last to first {:.2}; {} MiB resident",
        rounded.join(" "),
        times.last().unwrap() / times[0],
        resident() >> 20,
    );
    (times[0], *times.last().unwrap())
}

#[test]
#[ignore = "takes minutes: a million files"]
fn a_million_files_known_to_the_kernel_take_a_gigabyte_and_a_half() {
    const FILES: u64 = 1_000_000;
    const MOST: u64 = 1 << 16;
    const BYTES_MAX: u64 = 3 << 29;
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let dir = tempdir().unwrap();
    let (path, at) = (dir.path().join("image"), dir.path().join("mount"));
    require!(mke2fs(&path, "8G", &["-t", "ext4", "-N", "1100000"]));
    fs::create_dir(&at).unwrap();
    let device = FileDevice::open_read_write(&path).unwrap();
    let options = MountOptions::new().read_only(false).inodes_max(MOST as usize);
    let (fs, heard) = (options.open(device).unwrap(), Heard::new());
    let (served, ()) = with_mount(fs, &at, &Settings::default(), &heard, |at| {
        let before = resident();
        let directory = |index: u64| at.join(format!("{:03}", index / 1000));
        let name = |index: u64| directory(index).join(index.to_string());
        let report = |when: &str| {
            let of = |key| inodes(at, key);
            println!(
                "{when}: {} known in {} KiB, {} held; {} in memory, about {} MiB; {} MiB resident",
                of("known"),
                of("known_bytes") >> 10,
                of("held"),
                of("in_memory"),
                of("in_memory_bytes") >> 20,
                resident() >> 20,
            );
        };
        println!("{} MiB resident before", before >> 20);
        each("create", FILES, |index| {
            if index % 1000 == 0 {
                fs::create_dir(directory(index)).unwrap();
            }
            let mut file = File::create(name(index)).unwrap();
            file.write_all(b"a few bytes of contents").unwrap();
        });
        report("created");
        sync(at);
        for round in 0..2 {
            each(&format!("walk {round}"), FILES, |index| {
                if index % 1000 == 0 {
                    assert_eq!(fs::read_dir(directory(index)).unwrap().count(), 1000);
                }
                assert_eq!(fs::symlink_metadata(name(index)).unwrap().len(), 23);
            });
            report("walked");
        }
        // Each of these comes to the server.
        each("change", FILES, |index| {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(name(index), permissions).unwrap();
        });
        sync(at);
        each("read", FILES, |index| {
            assert_eq!(fs::read(name(index)).unwrap(), b"a few bytes of contents");
        });
        report("read");
        let (known, in_memory, bytes) = (inodes(at, "known"), inodes(at, "in_memory"), resident());
        assert!(bytes <= BYTES_MAX, "{bytes} bytes for {known} inodes that the kernel knows");
        assert!(in_memory <= MOST + 64, "{in_memory} inodes in memory");
        each("remove", FILES, |index| fs::remove_file(name(index)).unwrap());
        for _ in 0..100 {
            if inodes(at, "known") < 2000 {
                break;
            }
            SystemClock.sleep(Duration::from_millis(100));
        }
        report("removed");
        assert!(inodes(at, "known") < 2000, "what is removed is known");
        assert!(resident() <= BYTES_MAX);
    });
    served.unwrap();
    assert_eq!(heard.errors.into_inner(), 0, "{:?}", heard.lines.lock());
    let report = require!(e2fsck(&path));
    report.assert_clean();
}
