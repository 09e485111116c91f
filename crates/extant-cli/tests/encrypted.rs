//! Encrypted directories by the command, with `--key-file`.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use extant::{EncryptionPolicy, MasterKey, MountOptions, NewInode};

use support::Place;

/// An image with the encrypted directory `private`, and the file `key`; `None` without mke2fs.
fn place() -> Option<Place> {
    let place = Place::new();
    let image = place.path("a.img");
    let made = Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-O", "encrypt"])
        .arg(&image)
        .arg("16M")
        .status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: needs mke2fs");
        return None;
    }
    let raw: Vec<u8> = (0..64).map(|n| n * 3).collect();
    fs::write(place.path("key"), &raw).unwrap();
    let digits: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(place.path("digits"), format!("{digits}\n")).unwrap();
    fs::write(place.path("other"), [7; 64]).unwrap();
    fs::write(place.path("short"), [7; 9]).unwrap();
    let fs = MountOptions::new().read_only(false).open_path(&image).unwrap();
    let key = fs.add_key(MasterKey::new(&raw).unwrap()).unwrap();
    let dir = fs.root().unwrap().mkdir("private", &NewInode::root(0o755)).unwrap();
    dir.set_encryption_policy(&EncryptionPolicy::new(key)).unwrap();
    fs.write("/private/letter", "dear reader\n").unwrap();
    drop(dir);
    fs.unmount().unwrap();
    Some(place)
}

#[test]
fn files_are_read_and_written_with_the_key() {
    let Some(place) = place() else { return };
    for key in ["key", "digits"] {
        let read = place.run(&["cat", "--key-file", key, "a.img:/private/letter"]).succeeds();
        assert_eq!(read.out(), "dear reader\n");
    }
    fs::write(place.path("new"), "an answer\n").unwrap();
    place.run(&["cp", "--key-file", "key", "new", "a.img:/private/answer"]).succeeds();
    let listed = place.run(&["ls", "--key-file", "key", "a.img:/private"]).succeeds();
    assert_eq!(listed.out(), "answer\nletter\n");
    place.run(&["cp", "--key-file", "key", "-r", "a.img:/private", "copy"]).succeeds();
    assert_eq!(fs::read_to_string(place.path("copy/answer")).unwrap(), "an answer\n");
    place.run(&["check", "a.img"]).succeeds();
    // Without the key, and with another one.
    for args in [&["ls"][..], &["ls", "--key-file", "other"]] {
        let listed = place.run(&[args, &["a.img:/private"]].concat()).succeeds();
        assert!(!listed.out().contains("letter") && listed.out().lines().count() == 2);
        let name = listed.out().lines().next().unwrap().to_owned();
        let path = format!("a.img:/private/{name}");
        place.run(&["cat", &path]).ends_with(5).complains(&["encrypted with the key"]);
    }
    place.run(&["cp", "new", "a.img:/private/more"]).ends_with(5);
    place.run(&["ls", "--key-file", "short", "a.img:/"]).ends_with(2).complains(&["16 to 64"]);
    place.run(&["ls", "--key-file", "none", "a.img:/"]).ends_with(2).complains(&["none"]);
}

#[test]
fn a_mount_has_the_key() {
    let Some(place) = place() else { return };
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs /dev/fuse");
        return;
    }
    fs::create_dir(place.path("mnt")).unwrap();
    place.run(&["mount", "--key-file", "key", "a.img", "mnt"]).succeeds();
    let inside = |name: &str| place.path("mnt/private").join(name);
    let seen = fs::read_to_string(inside("letter"));
    let written = fs::write(inside("by a program"), vec![b'z'; 100_000])
        .and_then(|()| fs::rename(inside("by a program"), inside("renamed")));
    place.run(&["umount", "mnt"]).succeeds();
    assert_eq!(seen.unwrap(), "dear reader\n");
    written.unwrap();
    let read = place.run(&["cat", "--key-file", "key", "a.img:/private/renamed"]).succeeds();
    assert_eq!(read.out(), "z".repeat(100_000));
    place.run(&["check", "a.img"]).succeeds();
}
