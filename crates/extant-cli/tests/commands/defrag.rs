//! `extant defrag`: images and mounts.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use crate::support;
use support::Place;
use support::mounts::mounts;

fn contents() -> Vec<u8> {
    (0..80u32).flat_map(|at| [if at % 2 == 0 { at as u8 + 1 } else { 0 }; 16 << 10]).collect()
}

/// An image with a file of 40 pieces, whose holes are free space, and one in one piece.
fn crumbled(layout: &[&str]) -> Place {
    let place = Place::with_image();
    place.run(&[&["mkfs", "-q", "c.img", "32M"], layout].concat()).succeeds();
    place.run(&["mkdir", "c.img:/dir"]).succeeds();
    for (path, bytes) in [("crumbs", &contents()[..]), ("dir/whole", &[7; 100_000])] {
        let image = format!("c.img:/{path}");
        let mut write = place.command(&["write", &image]).stdin(Stdio::piped()).spawn().unwrap();
        write.stdin.take().unwrap().write_all(bytes).unwrap();
        assert!(write.wait().unwrap().success());
    }
    place.run(&["fallocate", "-d", "c.img:/crumbs"]).succeeds();
    place.run(&["ln", "c.img:/crumbs", "c.img:/dir/again"]).succeeds();
    place
}

fn is_clean(place: &Place, image: &str) {
    place.run(&["check", image]).succeeds();
    match Command::new("e2fsck").arg("-fn").arg(place.path(image)).output() {
        Ok(checked) => {
            assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
        }
        Err(error) => println!("skipped: no e2fsck: {error}"),
    }
}

#[test]
fn files_that_cannot_be_named_are_brought_together_and_that_is_said_once() {
    let place = crumbled(&[]);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = place.command(&["defrag", "-v", "c.img"]);
    let output = command.stdout(full).output().unwrap();
    let ran = support::Ran { args: "defrag -v".into(), output };
    let ran = ran.ends_with(1).complains(&["cannot write the output"]);
    assert!(!ran.err().contains("panicked"), "{}", ran.err());
    let said = place.run(&["frag", "--json", "c.img"]).succeeds().json();
    assert_eq!(said["broken_files"], 0, "{said}");
    is_clean(&place, "c.img");
}

#[test]
fn the_files_of_an_image_come_together_and_the_score_is_said_before_and_after() {
    for layout in [&["-b", "4096"][..], &["-b", "1024"], &["-t", "ext3"], &["-O", "^has_journal"]] {
        let place = crumbled(layout);
        let before = fs::read(place.path("c.img")).unwrap();
        let said = place.run(&["defrag", "-n", "--json", "c.img"]).succeeds().json();
        assert_eq!((&said["files"], &said["pieces_before"]), (&2.into(), &41.into()), "{said}");
        assert_eq!((&said["changed"], &said["score_before"]), (&false.into(), &100.into()));
        assert!(fs::read(place.path("c.img")).unwrap() == before, "-n has changed the image");
        let said = place.run(&["defrag", "--json", "c.img"]).succeeds().json();
        assert_eq!((&said["pieces_after"], &said["score_after"]), (&2.into(), &0.into()), "{said}");
        assert_eq!((&said["moved_files"], &said["bytes_moved"]), (&1.into(), &(640 << 10).into()));
        let frag = place.run(&["frag", "--json", "c.img"]).succeeds().json();
        assert_eq!(frag["pieces"], 2, "{frag}");
        let read = place.command(&["cat", "c.img:/dir/again"]).output().unwrap();
        assert!(read.stdout == contents());
        is_clean(&place, "c.img");
        let again = place.run(&["defrag", "c.img:/crumbs", "c.img:/dir"]).succeeds().out();
        assert!(again.contains("1 file in 1 piece, score 0; now 1 piece"), "{again}");
    }
}

#[test]
fn what_cannot_be_moved_is_named_and_a_full_image_says_what_to_do() {
    let place = crumbled(&["-b", "1024"]);
    place.run(&["chattr", "+i", "c.img:/crumbs"]).succeeds();
    place.run(&["defrag", "c.img"]).ends_with(7).complains(&["crumbs", "immutable"]);
    place.run(&["chattr", "-i", "c.img:/crumbs"]).succeeds();
    // What is allocated before there is no more stays.
    for rest in ["c.img:/rest", "c.img:/more"] {
        place.run(&["fallocate", "-l", "1G", rest]).ends_with(6);
    }
    let full = place.run(&["defrag", "c.img:/crumbs"]).ends_with(6);
    full.complains(&["stays in pieces", "no free run"]).hints("make room");
    place.run(&["rm", "c.img:/rest", "c.img:/more"]).succeeds();
    place.run(&["defrag", "-v", "c.img"]).succeeds();
    is_clean(&place, "c.img");
    place.run(&["defrag", "c.img:/none"]).ends_with(9).complains(&["none"]);
    place.run(&["defrag", "c.img", "."]).ends_with(2);
    // A directory that nobody of ours has mounted.
    place.run(&["defrag", "source"]).ends_with(7).complains(&["not mounted by extant"]);
}

#[test]
fn the_server_of_a_mount_brings_files_together_while_they_are_used() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    let (path, len) = (mounts.inside("crumbs"), contents().len());
    fs::create_dir(mounts.inside("dir")).unwrap();
    fs::write(&path, contents()).unwrap();
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    for at in (1..80u64).step_by(2) {
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, at * (16 << 10), 16 << 10).unwrap();
    }
    fs::hard_link(&path, mounts.inside("dir/again")).unwrap();
    let root = mounts.inside("");
    let root = root.to_str().unwrap();
    let said = mounts.place.run(&["defrag", "-n", "--json", root]).succeeds().json();
    assert!(said["pieces_before"].as_u64().unwrap() >= 40, "{said}");
    let said = mounts.place.run(&["defrag", "--json", root]).succeeds().json();
    assert_eq!((&said["moved_files"], &said["crowded_files"]), (&1.into(), &0.into()), "{said}");
    // Open all the time, and written to afterwards.
    let mut read = vec![0; len];
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read == contents());
    file.write_all_at(&[0xee; 5000], 100).unwrap();
    let one = path.to_str().unwrap();
    let again = mounts.place.run(&["defrag", "--mounted", one]).succeeds().out();
    assert!(again.contains("1 file in 1 piece"), "{again}");
    drop(file);
    mounts.umount();
    let read = mounts.place.command(&["cat", "a.img:/dir/again"]).output().unwrap();
    let mut expected = contents();
    expected[100..5100].fill(0xee);
    assert!(read.stdout == expected);
}
