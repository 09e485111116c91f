//! A mount for reading that becomes writable.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::FileExt;

use rustix::fs::XattrFlags;

use crate::support;
use support::kernel::Loop;
use support::mounts::{Mounts, mounts};

const TEXT: &[u8] = b"what was there before";

/// An image with a few files.
fn filled() -> Option<Mounts> {
    let mounts = mounts()?;
    mounts.mount(&[]).succeeds();
    fs::create_dir(mounts.inside("dir")).unwrap();
    for name in ["one", "two", "dir/three"] {
        fs::write(mounts.inside(name), TEXT).unwrap();
    }
    mounts.umount();
    Some(mounts)
}

fn remount(mounts: &Mounts, list: &str) -> support::Ran {
    mounts.place.run(&["mount", "-o", list, "m"])
}

#[test]
fn what_was_mounted_for_reading_becomes_writable_while_it_is_in_use() {
    let Some(mounts) = filled() else { return };
    mounts.mount(&["-r"]).succeeds();
    // Known to the kernel, with contents, names, and that there are none.
    let mut open = File::open(mounts.inside("one")).unwrap();
    let mut text = Vec::new();
    open.read_to_end(&mut text).unwrap();
    assert_eq!(text, TEXT);
    let dir = File::open(mounts.inside("dir")).unwrap();
    assert_eq!(fs::read_dir(mounts.inside("dir")).unwrap().count(), 1);
    assert!(fs::metadata(mounts.inside("new")).is_err());
    let error = fs::write(mounts.inside("new"), "x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);

    remount(&mounts, "remount,rw").succeeds();
    assert!(mounts.listed().unwrap().contains(" rw,"), "{:?}", mounts.listed());
    fs::write(mounts.inside("new"), "new").unwrap();
    let mut end = OpenOptions::new().append(true).open(mounts.inside("one")).unwrap();
    end.write_all(b", and more").unwrap();
    end.sync_all().unwrap();
    drop(end);
    // Who had it open sees it, as everybody.
    open.rewind().unwrap();
    text.clear();
    open.read_to_end(&mut text).unwrap();
    assert_eq!(text, [TEXT, b", and more"].concat());
    fs::write(mounts.inside("two"), "cut").unwrap();
    fs::rename(mounts.inside("dir/three"), mounts.inside("dir/four")).unwrap();
    fs::remove_file(mounts.inside("one")).unwrap();
    open.rewind().unwrap();
    text.clear();
    open.read_to_end(&mut text).unwrap();
    assert_eq!(text.len(), TEXT.len() + 10, "without a name, and there while it is open");
    drop((open, dir));
    // There and back, as often as one likes.
    remount(&mounts, "remount,ro").succeeds();
    assert!(fs::write(mounts.inside("new"), "x").is_err());
    remount(&mounts, "remount,rw").succeeds();
    fs::write(mounts.inside("last"), "last").unwrap();
    // Nobody else writes meanwhile.
    mounts.place.run(&["touch", "a.img:/other"]).ends_with(7);
    mounts.umount();
    let shown =
        |name: &str| mounts.place.run(&["cat", &format!("a.img:/{name}")]).succeeds().output.stdout;
    for (name, text) in
        [("new", &b"new"[..]), ("two", b"cut"), ("dir/four", TEXT), ("last", b"last")]
    {
        assert_eq!(shown(name), text, "{name}");
    }
    mounts.place.run(&["cat", "a.img:/one"]).ends_with(9);
}

#[test]
fn what_a_journal_holds_is_there_before_and_after_it_becomes_writable() {
    let Some(mounts) = filled() else { return };
    mounts.mount(&[]).succeeds();
    for number in 0..40 {
        fs::write(mounts.inside(&format!("dir/{number}")), format!("{number}")).unwrap();
    }
    let none = XattrFlags::empty();
    rustix::fs::setxattr(mounts.path("m"), "extant.control", b"sync", none).unwrap();
    // As a power cut would leave it.
    fs::copy(mounts.path("a.img"), mounts.path("cut.img")).unwrap();
    mounts.umount();
    fs::rename(mounts.path("cut.img"), mounts.path("a.img")).unwrap();
    mounts.mount(&["-r"]).succeeds();
    let all_there = || {
        for number in 0..40 {
            let read = fs::read_to_string(mounts.inside(&format!("dir/{number}"))).unwrap();
            assert_eq!(read, format!("{number}"));
        }
    };
    // Half of them are known to the kernel, and half are not.
    (0..20).for_each(|number| drop(fs::read(mounts.inside(&format!("dir/{number}"))).unwrap()));
    remount(&mounts, "remount,rw").succeeds();
    all_there();
    fs::write(mounts.inside("dir/new"), vec![7; 300_000]).unwrap();
    all_there();
    mounts.umount();
    let new = mounts.place.run(&["cat", "a.img:/dir/new"]).succeeds().output.stdout;
    assert!(new == [7; 300_000]);
}

#[test]
fn while_somebody_else_reads_or_writes_it_stays_read_only_and_says_by_whom() {
    let Some(mounts) = filled() else { return };
    mounts.mount(&["-r"]).succeeds();
    let other = File::open(mounts.path("a.img")).unwrap();
    other.lock_shared().unwrap();
    let refused = remount(&mounts, "remount,rw").ends_with(7);
    refused.complains(&["stays read-only", "in use by"]);
    assert!(mounts.listed().unwrap().contains(" ro,"), "{:?}", mounts.listed());
    assert_eq!(fs::read(mounts.inside("two")).unwrap(), TEXT);
    drop(other);
    // It keeps writers away again.
    mounts.place.run(&["touch", "a.img:/other"]).ends_with(7);
    remount(&mounts, "remount,rw").succeeds();
    fs::write(mounts.inside("new"), "x").unwrap();
    mounts.umount();
}

#[test]
fn what_cannot_be_written_stays_read_only_and_says_why() {
    let Some(mounts) = filled() else { return };
    // Asked for something that only reads.
    mounts.mount(&["-o", "ro,noload"]).succeeds();
    remount(&mounts, "remount,rw").ends_with(7).complains(&["stays read-only", "noload"]);
    mounts.umount();
    // A feature that nobody knows, which forbids to write.
    let args = ["-q", "-F", "-t", "ext4", "-O", "^metadata_csum", "a.img", "48M"];
    let Some(_made) = support::tool("mke2fs", &args, mounts.place.0.path()) else { return };
    mounts.mount(&[]).succeeds();
    fs::create_dir(mounts.inside("dir")).unwrap();
    for name in ["one", "two", "dir/three"] {
        fs::write(mounts.inside(name), TEXT).unwrap();
    }
    mounts.umount();
    let image = OpenOptions::new().read(true).write(true).open(mounts.path("a.img")).unwrap();
    let mut word = [0; 4];
    image.read_exact_at(&mut word, 1024 + 0x64).unwrap();
    let unknown = (u32::from_le_bytes(word) | 1 << 30).to_le_bytes();
    image.write_all_at(&unknown, 1024 + 0x64).unwrap();
    drop(image);
    mounts.mount(&["-r"]).succeeds();
    let known = File::open(mounts.inside("two")).unwrap();
    for _ in 0..10 {
        let refused = remount(&mounts, "remount,rw").ends_with(7).complains(&["stays read-only"]);
        // There is nobody else, and whoever comes is kept away.
        assert!(!refused.err().contains("somebody else"), "{}", refused.err());
        mounts.place.run(&["repair", "-y", "a.img"]).ends_with(7).complains(&["in use by"]);
        assert_eq!(fs::read(mounts.inside("one")).unwrap(), TEXT);
        assert_eq!(fs::read_dir(mounts.inside("dir")).unwrap().count(), 1);
    }
    let mut text = [0; 4];
    known.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(text, TEXT[..4]);
    drop(known);
    mounts.place.run(&["umount", "m"]).succeeds();
}

#[test]
fn a_write_protected_device_stays_read_only_and_another_becomes_writable() {
    let Some(mounts) = filled() else { return };
    let Some(device) = Loop::over(&mounts.path("a.img")) else { return };
    let protect = |how: &str| {
        support::tool("blockdev", &[how, &device.0], mounts.place.0.path())
            .is_some_and(|done| done.status.success())
    };
    if !protect("--setro") {
        return println!("skipped: blockdev does not protect {}", device.0);
    }
    let mount = || mounts.place.run(&["mount", "-r", "--log", "log", &device.0, "m"]).succeeds();
    mount();
    remount(&mounts, "remount,rw").ends_with(7).complains(&["stays read-only", "write-protected"]);
    mounts.place.run(&["umount", "m"]).succeeds();
    assert!(protect("--setrw"));
    mount();
    assert_eq!(fs::read(mounts.inside("two")).unwrap(), TEXT);
    remount(&mounts, "remount,rw").succeeds();
    fs::write(mounts.inside("two"), "over").unwrap();
    mounts.place.run(&["umount", "m"]).succeeds();
    drop(device);
    mounts.clean();
    assert_eq!(mounts.place.run(&["cat", "a.img:/two"]).succeeds().output.stdout, b"over");
}

#[test]
fn the_search_for_blocks_is_switched_while_it_is_mounted() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&["-o", "mb_optimize_scan=0"]).succeeds();
    let info =
        || -> serde_json::Value { serde_json::from_slice(&mounts.asked("extant.info")).unwrap() };
    let write = |name: &str| fs::write(mounts.inside(name), vec![7; 100_000]).unwrap();
    assert_eq!(info()["mb_optimize_scan"], 0);
    for (turn, mode) in [1, 0, 1, 1].into_iter().enumerate() {
        write(&format!("file{turn}"));
        remount(&mounts, &format!("remount,mb_optimize_scan={mode}")).succeeds();
        assert_eq!(info()["mb_optimize_scan"], mode, "turn {turn}");
    }
    // What else is asked for changes it not, and what makes no sense is refused.
    remount(&mounts, "remount,rw").succeeds();
    assert_eq!(info()["mb_optimize_scan"], 1);
    remount(&mounts, "remount,mb_optimize_scan=2").ends_with(2);
    write("last");
    mounts.umount();
}
