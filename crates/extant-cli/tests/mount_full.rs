//! Mounts, and copies into images, on a disk that is full.

mod support;

use std::fs;
use std::process::Command;

use rustix::fs::FallocateFlags;

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
    let mut failed = None;
    for number in 0..400 {
        let path = mounts.inside(&format!("n{number}"));
        let made = fs::write(&path, "new").and_then(|()| fs::File::open(&path)?.sync_all());
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
