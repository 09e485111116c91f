//! Images that are no plain files: every command over qcow2 images and overlays.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::support;
use support::mounts::{is_alive, mounts, signal, until};
use support::{Place, text, tool};

/// A place with `a.img`, and the same as `a.qcow2`, compressed.
fn place() -> Option<Place> {
    let place = Place::with_image();
    convert(place.0.path(), &["-c", "-f", "raw", "-O", "qcow2", "a.img", "a.qcow2"])
        .then_some(place)
}

/// Whether qemu-img is there, and did it.
fn convert(dir: &Path, args: &[&str]) -> bool {
    let Some(output) = tool("qemu-img", &[&["convert"], args].concat(), dir) else { return false };
    assert!(output.status.success(), "{output:?}");
    true
}

/// What the tools of others say of a qcow2 image: it is sound, and so is the file system in it.
#[track_caller]
fn is_sound(dir: &Path, image: &str) {
    let checked = tool("qemu-img", &["check", image], dir).unwrap();
    assert!(checked.status.success(), "{image}: {checked:?}");
    assert!(convert(dir, &["-f", "qcow2", "-O", "raw", image, "sound.raw"]));
    let checked = tool("e2fsck", &["-fn", "sound.raw"], dir).unwrap();
    assert!(checked.status.success(), "{image}: {}", text(&checked));
    fs::remove_file(dir.join("sound.raw")).unwrap();
}

#[test]
fn every_kind_of_command_reads_and_changes_a_qcow2_image() {
    let Some(place) = place() else { return };
    let dir = place.0.path();
    for command in [&["ls", "-R", "-l"][..], &["tree"], &["find"], &["stat"], &["tar"]] {
        let of = |image: &str| {
            let output = place.run(&[command, &[image]].concat()).succeeds().output.stdout;
            String::from_utf8_lossy(&output).replace(image, "IMG")
        };
        assert_eq!(of("a.qcow2"), of("a.img"), "{command:?}");
    }
    assert_eq!(place.run(&["cat", "a.qcow2:/file"]).succeeds().out(), "hello\n");
    place.run(&["check", "a.qcow2"]).succeeds();
    place.run(&["extract", "a.qcow2", "out"]).succeeds();
    assert_eq!(fs::read(place.path("out/dir/again")).unwrap(), b"hello\n");
    place.run(&["diff", "a.img", "a.qcow2"]).succeeds();
    fs::write(place.path("big"), vec![0x5a; 700_000]).unwrap();
    place.run(&["cp", "big", "a.qcow2:/dir/big"]).succeeds();
    place.run(&["rm", "a.qcow2:/file"]).succeeds();
    place.run(&["mkdir", "a.qcow2:/new"]).succeeds();
    place.run(&["fstrim", "a.qcow2"]).succeeds();
    is_sound(dir, "a.qcow2");
    place.run(&["cat", "a.qcow2:/file"]).ends_with(9);
    let cat = place.run(&["cat", "a.qcow2:/dir/big"]).succeeds();
    assert!(cat.output.stdout == vec![0x5a; 700_000]);
    place.run(&["diff", "a.img", "a.qcow2"]).ends_with(1);
}

#[test]
fn an_empty_qcow2_image_is_not_said_to_be_for_mkfs_which_would_replace_it() {
    let place = Place::new();
    let dir = place.0.path();
    let Some(made) = tool("qemu-img", &["create", "-f", "qcow2", "e.qcow2", "32M"], dir) else {
        return;
    };
    assert!(made.status.success());
    let ran = place.run(&["ls", "e.qcow2:/"]).ends_with(4).hints("qemu-img convert -O qcow2");
    assert!(!ran.err().contains("extant mkfs e.qcow2"), "{}", ran.err());
    fs::write(place.path("e.img"), vec![0; 1 << 20]).unwrap();
    place.run(&["ls", "e.img:/"]).ends_with(4).hints("extant mkfs e.img makes a file system there");
}

#[test]
fn an_overlay_takes_the_changes_and_its_base_none() {
    let Some(place) = place() else { return };
    let dir = place.0.path();
    for base in ["a.img", "a.qcow2"] {
        let before = fs::read(place.path(base)).unwrap();
        // Before there is one, it shows the image.
        let file = format!("{base}:/file");
        let new = format!("{base}:/new");
        assert_eq!(place.run(&["cat", "--overlay", "o.qcow2", &file]).succeeds().out(), "hello\n");
        assert!(!place.path("o.qcow2").exists());
        place.run(&["cp", "--overlay", "o.qcow2", "source/file", &new]).succeeds();
        place.run(&["rm", "--overlay", "o.qcow2", &file]).succeeds();
        assert!(fs::read(place.path(base)).unwrap() == before);
        assert_eq!(place.run(&["cat", "--overlay", "o.qcow2", &new]).succeeds().out(), "hello\n");
        place.run(&["cat", "--overlay", "o.qcow2", &file]).ends_with(9);
        // By its own name, too.
        assert_eq!(place.run(&["cat", "o.qcow2:/new"]).succeeds().out(), "hello\n");
        is_sound(dir, "o.qcow2");
        let info = place.run(&["overlay", "info", "--json", "o.qcow2"]).succeeds().json();
        assert_eq!(info["base"], base);
        assert!(info["own_clusters"].as_u64().unwrap() > 0);
        // Over another image it is refused.
        fs::copy(place.path(base), place.path("other.img")).unwrap();
        place
            .run(&["rm", "--overlay", "o.qcow2", "--format", "raw", "other.img:/file"])
            .ends_with(7)
            .complains(&["o.qcow2", "lies over", base])
            .hints("rebase");
        place.run(&["overlay", "commit", "o.qcow2"]).succeeds();
        assert_eq!(place.run(&["cat", &new]).succeeds().out(), "hello\n");
        let info = place.run(&["overlay", "info", "--json", "o.qcow2"]).succeeds().json();
        assert_eq!(info["own_clusters"], 0);
        fs::remove_file(place.path("o.qcow2")).unwrap();
    }
    place.run(&["overlay", "create", "p.qcow2", "--base", "a.qcow2"]).succeeds();
    place.run(&["overlay", "create", "p.qcow2", "--base", "a.qcow2"]).ends_with(7);
    place.run(&["mkdir", "p.qcow2:/there"]).succeeds();
    place.run(&["overlay", "rebase", "p.qcow2", "--base", "a.img"]).succeeds();
    place.run(&["stat", "p.qcow2:/there"]).succeeds();
    is_sound(dir, "p.qcow2");
}

#[test]
fn a_qcow2_image_by_another_name_is_read_with_a_note_and_not_written() {
    let Some(place) = place() else { return };
    fs::rename(place.path("a.qcow2"), place.path("b.img")).unwrap();
    let cat = place.run(&["cat", "b.img:/file"]).succeeds();
    assert_eq!(cat.out(), "hello\n");
    assert!(cat.err().contains("b.img: note: read as a qcow2 image"), "{}", cat.err());
    place
        .run(&["rm", "b.img:/file"])
        .ends_with(7)
        .complains(&["b.img", "qcow2", "its name does not say so"])
        .hints("--format qcow2");
    place.run(&["rm", "--format", "qcow2", "b.img:/file"]).succeeds();
    place.run(&["ls", "--format", "raw", "b.img"]).ends_with(4);
    place.run(&["ls", "--format", "raw", "a.img"]).succeeds();
    // A header and nothing more.
    fs::write(place.path("c.qcow2"), [&b"QFI\xfb\0\0\0\x03"[..], &[0; 300_000]].concat()).unwrap();
    place
        .run(&["ls", "c.qcow2"])
        .ends_with(4)
        .complains(&["damaged qcow2 image"])
        .hints("qemu-img");
    place.run(&["ls", "--format", "qcow2", "a.img"]).ends_with(4).complains(&["no qcow2 image"]);
}

#[test]
fn a_snapshot_inside_an_image_is_read() {
    let Some(place) = place() else { return };
    let dir = place.0.path();
    assert!(tool("qemu-img", &["snapshot", "-c", "one", "a.qcow2"], dir).unwrap().status.success());
    place.run(&["rm", "a.qcow2:/file"]).succeeds();
    place.run(&["cat", "a.qcow2:/file"]).ends_with(9);
    let then = place.run(&["cat", "--snapshot", "one", "a.qcow2:/file"]).succeeds();
    assert_eq!(then.out(), "hello\n");
    place
        .run(&["cat", "--snapshot", "two", "a.qcow2:/file"])
        .ends_with(9)
        .complains(&["it has one"]);
    let info = place.run(&["overlay", "info", "a.qcow2"]).succeeds().out();
    assert!(info.contains("snapshot 1: one"), "{info}");
}

#[test]
fn a_partition_of_a_qcow2_disk_is_found() {
    let Some(place) = place() else { return };
    let dir = place.0.path();
    let image = fs::read(place.path("a.img")).unwrap();
    let mut disk = vec![0; 1 << 20];
    disk.extend_from_slice(&image);
    // One MBR partition, of Linux.
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&2048u32.to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&((image.len() / 512) as u32).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(place.path("disk.raw"), disk).unwrap();
    assert!(convert(dir, &["-f", "raw", "-O", "qcow2", "disk.raw", "disk.qcow2"]));
    place.run(&["ls", "disk.qcow2"]).ends_with(4).hints("--partition 1");
    place.run(&["rm", "--partition", "1", "disk.qcow2:/file"]).succeeds();
    place.run(&["stat", "--partition", "1", "disk.qcow2:/dir"]).succeeds();
}

#[test]
fn a_mount_over_an_overlay_leaves_the_base_and_keeps_what_was_synced_when_killed() {
    let Some(mounts) = mounts() else { return };
    let dir = mounts.place.0.path();
    let base = fs::read(mounts.path("a.img")).unwrap();
    mounts.mount(&["--overlay", "o.qcow2"]).succeeds();
    fs::write(mounts.inside("kept"), vec![7; 300_000]).unwrap();
    mounts.place.run(&["umount", "--timeout", "60", "m"]).succeeds();
    assert!(fs::read(mounts.path("a.img")).unwrap() == base);
    // Two at once, over one base: each its own.
    fs::create_dir(mounts.path("n")).unwrap();
    mounts.mount(&["--overlay", "o.qcow2"]).succeeds();
    mounts.place.run(&["mount", "--overlay", "p.qcow2", "a.img", "n"]).succeeds();
    assert_eq!(fs::read(mounts.inside("kept")).unwrap(), vec![7; 300_000]);
    assert!(!mounts.path("n/kept").exists());
    fs::write(mounts.path("n/other"), b"other").unwrap();
    let synced = fs::File::create(mounts.inside("synced")).unwrap();
    std::io::Write::write_all(&mut &synced, &[9; 200_000]).unwrap();
    synced.sync_all().unwrap();
    drop(synced);
    let (_, server) = mounts.processes();
    signal(server, Signal::KILL);
    until("it is dead", || !is_alive(server));
    let _ = Command::new("umount").args(["-l"]).arg(mounts.path("m")).status();
    mounts.place.run(&["umount", "--timeout", "60", "n"]).succeeds();
    assert!(fs::read(mounts.path("a.img")).unwrap() == base);
    let cat = mounts.place.run(&["cat", "o.qcow2:/synced"]).succeeds();
    assert!(cat.output.stdout == vec![9; 200_000]);
    mounts.place.run(&["replay", "o.qcow2"]).succeeds();
    assert_eq!(mounts.place.run(&["cat", "p.qcow2:/other"]).succeeds().out(), "other");
    if tool("qemu-img", &["--version"], dir).is_some() {
        // Killed in the middle, it may have clusters that nothing uses (3), and no damage.
        let checked = tool("qemu-img", &["check", "o.qcow2"], dir).unwrap();
        assert!(matches!(checked.status.code(), Some(0 | 3)), "{checked:?}");
        is_sound(dir, "p.qcow2");
    }
}

#[test]
fn images_of_other_kinds_are_named_and_the_command_that_is_hinted_at_makes_them_readable() {
    let place = Place::with_image();
    let dir = place.0.path();
    let kinds = [
        ("vmdk", "", "a VMDK image"),
        ("vmdk", "subformat=streamOptimized", "a VMDK image"),
        ("vhdx", "", "a VHDX image"),
        ("vpc", "", "a VHD image"),
        ("vdi", "", "a VDI image"),
        ("parallels", "", "a Parallels disk image"),
    ];
    for (number, (format, options, name)) in kinds.into_iter().enumerate() {
        let file = format!("{number}.{format}");
        let mut make = vec!["-f", "raw", "-O", format];
        if !options.is_empty() {
            make.extend(["-o", options]);
        }
        make.extend(["a.img", &file]);
        if !convert(dir, &make) {
            return;
        }
        for args in [["ls", &file], ["check", &file]] {
            place.run(&args).ends_with(4).complains(&[name]);
        }
        let hint = place.run(&["ls", &file]).err();
        let hint = hint.lines().find_map(|line| line.strip_prefix("hint: ")).unwrap();
        let command = hint.split("; then").next().unwrap();
        let words: Vec<&str> = command.split(' ').collect();
        assert_eq!(words[..4], ["qemu-img", "convert", "-f", format], "{hint}");
        let done = tool(words[0], &words[1..], dir).unwrap();
        assert!(done.status.success(), "{command}: {}", text(&done));
        assert_eq!(place.run(&["cat", "disk.raw:/file"]).succeeds().out(), "hello\n", "{file}");
        fs::remove_file(place.path("disk.raw")).unwrap();
    }
}
