//! `extant resize`: what it tells, changes and refuses.

use crate::hostile::Tmpfs;
use crate::support;
use support::{Place, tool};

fn image(place: &Place) {
    std::fs::create_dir(place.path("source")).unwrap();
    std::fs::write(place.path("source/file"), "contents").unwrap();
    place.run(&["build", "a.img", "--from", "source", "--size", "64M"]).succeeds();
}

fn is_clean(place: &Place) {
    place.run(&["check", "a.img"]).succeeds();
    assert_eq!(place.run(&["cat", "a.img:/file"]).succeeds().out(), "contents");
    if let Some(fsck) = tool("e2fsck", &["-fn", "a.img"], place.0.path()) {
        assert!(fsck.status.success(), "{}", String::from_utf8_lossy(&fsck.stdout));
    }
}

fn length(place: &Place) -> u64 {
    std::fs::metadata(place.path("a.img")).unwrap().len()
}

#[test]
fn an_image_file_grows_with_its_file_system() {
    let place = Place::new();
    image(&place);
    let before = std::fs::read(place.path("a.img")).unwrap();
    let told = place.run(&["resize", "--plan", "--json", "a.img", "1G"]).succeeds().json();
    assert_eq!(told["written"].as_bool(), Some(false));
    assert_eq!(told["after"]["bytes"].as_u64(), Some(1 << 30));
    assert!(std::fs::read(place.path("a.img")).unwrap() == before, "--plan changes nothing");

    let told = place.run(&["resize", "a.img", "+64M"]).succeeds().out();
    assert!(told.contains("has 128.0 MiB") || told.contains("128"), "{told}");
    assert_eq!(length(&place), 128 << 20);
    is_clean(&place);
    let told = place.run(&["resize", "--json", "a.img", "1G"]).succeeds().json();
    assert_eq!((length(&place), told["written"].as_bool()), (1 << 30, Some(true)));
    assert_eq!(told["before"]["bytes"].as_u64(), Some(128 << 20));
    is_clean(&place);

    // A file that is longer already.
    let file = std::fs::OpenOptions::new().write(true).open(place.path("a.img")).unwrap();
    file.set_len(2 << 30).unwrap();
    place.run(&["resize", "a.img", "max"]).succeeds();
    assert_eq!(length(&place), 2 << 30);
    is_clean(&place);
    let told = place.run(&["resize", "a.img", "max"]).succeeds().out();
    assert!(told.contains("already"), "{told}");
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let place = Place::new();
    image(&place);
    let before = std::fs::read(place.path("a.img")).unwrap();
    place.run(&["resize", "a.img", "20"]).ends_with(2);
    place.run(&["resize", "a.img:/file", "20G"]).ends_with(2);
    place.run(&["resize", "none.img", "20G"]).ends_with(8);
    for bytes in [0, 500] {
        std::fs::write(place.path("short.img"), vec![0; bytes]).unwrap();
        place.run(&["resize", "short.img", "20M"]).ends_with(4).hints("too short to hold");
        place.run(&["tune", "-O", "quota", "short.img"]).ends_with(4).hints("too short to hold");
        assert_eq!(std::fs::read(place.path("short.img")).unwrap(), vec![0; bytes]);
    }
    place.run(&["resize", "source/file", "20G"]).ends_with(4);
    place.run(&["resize", "--offset", "0", "a.img", "1G"]).ends_with(6).complains(&["device has"]);
    place.run(&["resize", "a.img", "7E"]).ends_with(2);
    assert!(std::fs::read(place.path("a.img")).unwrap() == before);
}

#[test]
fn a_disk_with_partitions_is_called_one_and_its_partitions_are_named() {
    let place = Place::with_image();
    place.run(&["build", "disk.img", "-q", "--from", "source", "--gpt"]).succeeds();
    for words in [
        &["resize", "disk.img", "+8M"][..],
        &["resize", "--plan", "disk.img", "+8M"],
        &["tune", "-O", "^huge_file", "disk.img"],
        &["tune", "-n", "-O", "^huge_file", "disk.img"],
        &["metadata", "disk.img", "copy.img"],
        &["salvage", "disk.img", "rescued"],
    ] {
        place
            .run(words)
            .ends_with(4)
            .complains(&["disk.img: this is a disk with partitions"])
            .hints("--partition 1");
    }
    place.run(&["tune", "-O", "^huge_file", "--partition", "1", "disk.img"]).succeeds();
    place.run(&["check", "--partition", "1", "disk.img"]).succeeds();
    // The disk is larger, and its partition is not: that is what is in the way.
    let file = std::fs::OpenOptions::new().write(true).open(place.path("disk.img")).unwrap();
    file.set_len(1 << 30).unwrap();
    drop(file);
    let ran = place.run(&["resize", "--partition", "1", "disk.img", "max"]).succeeds();
    assert!(ran.out().contains("already"), "{}", ran.out());
    ran.complains(&["note: that is all of partition 1", "growpart"]);
}

#[test]
fn an_image_file_becomes_shorter_with_its_file_system() {
    let place = Place::new();
    image(&place);
    place.run(&["resize", "a.img", "-16M"]).succeeds();
    assert_eq!(length(&place), 48 << 20);
    is_clean(&place);
    let told = place.run(&["resize", "--plan", "--json", "a.img", "min"]).succeeds().json();
    let least = told["after"]["bytes"].as_u64().unwrap();
    assert_eq!((length(&place), told["written"].as_bool()), (48 << 20, Some(false)));
    let small = format!("{}B", least - 4096);
    place.run(&["resize", "a.img", &small]).ends_with(6).complains(&["smallest"]);
    assert_eq!(length(&place), 48 << 20);
    place.run(&["resize", "a.img", "min"]).succeeds();
    assert_eq!(length(&place), least);
    is_clean(&place);
    place.run(&["resize", "a.img", "80M"]).succeeds();
    is_clean(&place);
}

/// Hashes of dm-verity, for example.
#[test]
fn what_lies_behind_the_file_system_stays() {
    use std::os::unix::fs::FileExt;
    let place = Place::new();
    image(&place);
    let file = std::fs::OpenOptions::new().write(true).open(place.path("a.img")).unwrap();
    file.write_all_at(b"hashes", 65 << 20).unwrap();
    let ran = place.run(&["resize", "a.img", "32M"]).succeeds();
    assert!(ran.err().contains("keeps its length"), "{}", ran.err());
    assert_eq!(length(&place), (65 << 20) + 6);
    let bytes = std::fs::read(place.path("a.img")).unwrap();
    assert_eq!(&bytes[65 << 20..], b"hashes");
    is_clean(&place);
}

#[test]
fn a_directory_of_a_mount_by_others_is_said_to_be_one() {
    let place = Place::new();
    let ran = place.run(&["resize", "/proc", "+1M"]).ends_with(7);
    ran.complains(&["/proc is not mounted by extant"]);
}

#[test]
fn a_disk_that_fills_up_under_the_journal_is_named_as_full() {
    let place = Place::new();
    let Some(_disk) = Tmpfs::mount(&place.path("disk"), "size=3M") else { return };
    // The log is a hole, for which the disk has no room.
    place.run(&["mkfs", "disk/a.img", "200M", "-q"]).succeeds();
    let filled = std::fs::write(place.path("disk/filler"), vec![1; 4 << 20]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let ran = place.run(&["resize", "disk/a.img", "240M"]);
    std::fs::remove_file(place.path("disk/filler")).unwrap();
    let repaired = place.run(&["repair", "-y", "disk/a.img"]);
    let again = place.run(&["resize", "disk/a.img", "240M"]);
    let clean = tool("e2fsck", &["-fn", "disk/a.img"], place.0.path());
    ran.ends_with(6).complains(&["No space left"]).hints("make room on the disk");
    assert!([0, 1].contains(&repaired.output.status.code().unwrap()));
    again.succeeds();
    assert!(clean.is_none_or(|clean| clean.status.success()));
}

#[test]
fn a_full_disk_is_named_and_the_image_is_as_it_was() {
    let place = Place::new();
    let Some(_disk) = Tmpfs::mount(&place.path("disk"), "size=4M") else { return };
    place.run(&["mkfs", "disk/a.img", "200M", "-q"]).succeeds();
    let filled = std::fs::write(place.path("disk/filler"), vec![1; 4 << 20]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let ran = place.run(&["resize", "disk/a.img", "4G"]).ends_with(6);
    ran.complains(&["No space left"]).hints("extant check disk/a.img");
    let checked = place.run(&["check", "disk/a.img"]);
    // With room again it is done.
    std::fs::remove_file(place.path("disk/filler")).unwrap();
    let again = place.run(&["resize", "disk/a.img", "4G"]);
    let clean = tool("e2fsck", &["-fn", "disk/a.img"], place.0.path());
    checked.succeeds();
    again.succeeds();
    assert!(clean.is_none_or(|clean| clean.status.success()));
}

/// A block that waits in the journal, as after a cut.
#[test]
fn an_image_that_was_not_unmounted_is_replayed_first() {
    let place = Place::new();
    image(&place);
    std::fs::write(place.path("block"), [7; 4096]).unwrap();
    let commands = ["journal_open", "journal_write -b 9000 block", "journal_close"];
    std::fs::write(place.path("commands"), commands.join("\n")).unwrap();
    let debugfs = tool("debugfs", &["-w", "-f", "commands", "a.img"], place.0.path());
    if debugfs.is_none() {
        return;
    }
    let before = std::fs::read(place.path("a.img")).unwrap();
    for words in [
        &["resize", "min", "a.img"][..],
        &["resize", "-16M", "a.img"],
        &["tune", "-O", "^metadata_csum", "a.img"],
        &["tune", "-O", "^orphan_file,^has_journal", "a.img"],
        &["tune", "-J", "size=8M", "a.img"],
        &["tune", "-U", "random", "a.img"],
        &["tune", "-I", "512", "a.img"],
    ] {
        let mut words = words.to_vec();
        if words[0] == "resize" {
            words.swap(1, 2);
        }
        std::fs::write(place.path("a.img"), &before).unwrap();
        let plan = if words[0] == "resize" { "--plan" } else { "-n" };
        let planned = [&words[..1], &[plan], &words[1..]].concat();
        place.run(&planned).succeeds();
        assert!(std::fs::read(place.path("a.img")).unwrap() == before, "{planned:?}");
        place.run(&words).succeeds();
        is_clean(&place);
    }
}

/// Wherever the disk becomes full, the file has room for the file system that is there, and no more.
#[test]
fn a_full_disk_leaves_a_file_that_is_as_long_as_its_file_system() {
    let place = Place::new();
    let Some(_disk) = Tmpfs::mount(&place.path("disk"), "size=64M") else { return };
    let mut full = 0;
    for kind in [&["-t", "ext4"][..], &["-t", "ext4", "-J", "none"], &["-t", "ext4", "-b", "1024"]]
    {
        for left in [0, 40, 80, 120, 160, 200, 240, 280, 320, 360, 400, 500, 600, 800] {
            let made = [&["mkfs", "-q"], kind, &["disk/a.img", "64M"]].concat();
            place.run(&made).succeeds();
            let _full = std::fs::write(place.path("disk/filler"), vec![1; 64 << 20]);
            std::fs::write(place.path("disk/a.tmp"), []).unwrap();
            let filler = std::fs::File::options().write(true).open(place.path("disk/filler"));
            let filler = filler.unwrap();
            let there = filler.metadata().unwrap().len();
            filler.set_len(there - (left << 10)).unwrap();
            drop(filler);
            let ran = place.run(&["resize", "disk/a.img", "2G"]);
            std::fs::remove_file(place.path("disk/filler")).unwrap();
            let what = format!("{kind:?}, {left} KiB left: {}", ran.err());
            let length = std::fs::metadata(place.path("disk/a.img")).unwrap().len();
            let code = ran.output.status.code();
            assert!([Some(0), Some(6)].contains(&code), "{what}");
            full += usize::from(code == Some(6));
            let repaired = place.run(&["repair", "-y", "disk/a.img"]);
            assert!([0, 1].contains(&repaired.output.status.code().unwrap()), "{what}");
            let told = place.run(&["info", "--json", "disk/a.img"]).succeeds().json();
            let blocks = told["blocks"].as_u64().unwrap();
            assert_eq!(blocks * told["block_bytes"].as_u64().unwrap(), length, "{what}");
            place.run(&["check", "disk/a.img"]).succeeds();
            place.run(&["resize", "disk/a.img", "2G"]).succeeds();
            std::fs::remove_file(place.path("disk/a.img")).unwrap();
        }
    }
    assert!(full > 10, "{full} times the disk was full");
}
