//! What somebody meets who is new and gets it wrong: each mistake has its exit code, a message that
//! says what is so, and a hint that says what to do next.

use std::os::unix::fs::PermissionsExt;

use crate::support;
use support::{Place, Ran, is_root, tool};

/// A mistake: the command line, the exit code, words of the message, words of the hint.
type Mistake<'a> = (&'a [&'a str], i32, &'a [&'a str], &'a str);

fn check(place: &Place, mistakes: &[Mistake<'_>]) {
    for (args, code, words, hint) in mistakes {
        let ran = place.run(args).ends_with(*code).complains(words);
        if !hint.is_empty() {
            ran.hints(hint);
        }
    }
}

/// Runs the command as an ordinary user; `None`, with a line about it, where that cannot be done.
fn as_user(place: &Place, args: &[&str]) -> Option<Ran> {
    if !is_root() {
        return Some(place.run(args));
    }
    let mode = PermissionsExt::from_mode;
    std::fs::set_permissions(place.0.path(), mode(0o777)).unwrap();
    std::fs::set_permissions(place.path("source/dir"), mode(0o755)).unwrap();
    // The command where an ordinary user can run it.
    let copy = tempfile::tempdir().unwrap();
    std::fs::set_permissions(copy.path(), mode(0o755)).unwrap();
    let program = copy.path().join("extant");
    // By another process: what this one has open for writing, a child of another test may keep open as this is run.
    let copied = std::process::Command::new("cp").arg(support::EXTANT).arg(&program).status();
    assert!(copied.unwrap().success());
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program).args(args);
    let Ok(output) = command.current_dir(place.0.path()).output() else {
        println!("skipped: setpriv is not installed");
        return None;
    };
    Some(Ran { args: args.join(" "), output })
}

#[test]
fn paths_and_names() {
    let place = Place::with_image();
    std::fs::write(place.path("empty.img"), b"").unwrap();
    let is_path = "paths in an image are IMG:/PATH: a.img:/dir";
    check(
        &place,
        &[
            (&["ls", "gone.img"], 8, &["gone.img", "No such file"], "extant mkfs gone.img SIZE"),
            (&["ls", "source"], 2, &["source is a directory"], "extant build IMG --from source"),
            (
                &["info", "empty.img"],
                4,
                &["empty.img: this is an empty file"],
                "extant mkfs empty.img",
            ),
            (&["ls", "a.img:dir"], 8, &["a.img:dir"], is_path),
            (&["ls", "a.img/dir"], 8, &["a.img/dir"], is_path),
            (&["cat", "a.img:file"], 8, &["a.img:file"], "a.img:/file"),
            (&["stat", "a.img/dir/deep"], 8, &["a.img/dir/deep"], "a.img:/dir/deep"),
            (&["mkdir", "a.img/new"], 8, &["a.img/new"], "a.img:/new"),
            (&["rm", "a.img:file"], 8, &["a.img:file"], "a.img:/file"),
            (&["extract", "a.img/dir", "out"], 8, &["a.img/dir"], is_path),
            (
                &["cp", "source/file", "a.img"],
                2,
                &["both on the host"],
                "paths in it are a.img:/PATH",
            ),
            (&["cp", "a.img:file", "out"], 2, &["both on the host"], "a.img:/file"),
            (&["cp", "source/file", "elsewhere"], 2, &["both on the host"], "IMG:/PATH"),
            (&["cat", "a.img:/none"], 9, &["a.img:/none", "no such file"], ""),
            (&["cat", "a.img:/dir"], 9, &["a.img:/dir", "directory"], ""),
            (&["cp", "a.img:/dir", "."], 9, &["a.img:/dir", "directory, left out"], "-r"),
            (&["cp", "source", "a.img:/"], 9, &["source", "directory, left out"], "-r"),
            (&["rm", "a.img:/dir"], 9, &["a.img:/dir"], "-r"),
            (&["cp", "a.img:/none", "."], 9, &["a.img:/none", "no such file"], ""),
        ],
    );
    assert!(!place.path("dir").exists());
    // One of two: what could be copied is.
    place.run(&["cp", "a.img:/dir", "a.img:/file", "."]).ends_with(1).complains(&["left out"]);
    assert!(place.path("file").exists());
}

#[test]
fn files_of_other_kinds() {
    let place = Place::with_image();
    let start = |magic: &[u8], at: usize| {
        let mut bytes = vec![0; 300_000];
        bytes[at..at + magic.len()].copy_from_slice(magic);
        bytes
    };
    let files: [(&str, Vec<u8>, &str, &str); 14] = [
        ("x.gz", start(b"\x1f\x8b\x08", 0), "a file packed with gzip", "gzip -dc x.gz > IMG"),
        ("x.zst", start(b"\x28\xb5\x2f\xfd", 0), "a file packed with zstd", "zstd -dc x.zst > IMG"),
        ("x.zip", start(b"PK\x03\x04", 0), "a zip archive", "unzip -d DIR x.zip"),
        ("x.qcow", start(b"QFI\xfb\0\0\0\x01", 0), "a QCOW image", "qemu-img convert -f qcow -O"),
        ("x.vhd", start(b"conectix", 0), "a VHD image", "qemu-img convert -f vpc -O raw x.vhd"),
        ("x.vhdx", start(b"vhdxfile", 0), "a VHDX image", "qemu-img convert -f vhdx"),
        ("x.vmdk", start(b"KDMV", 0), "a VMDK image", "qemu-img convert -f vmdk"),
        ("x.iso", start(b"CD001", 0x8001), "an ISO 9660 image", "xorriso"),
        ("x.sqfs", start(b"hsqs", 0), "a SquashFS image", "unsquashfs -d DIR x.sqfs"),
        ("x.erofs", start(b"\xe2\xe1\xf5\xe0", 1024), "an EROFS image", "fsck.erofs"),
        ("x.xfs", start(b"XFSB", 0), "an XFS file system", "ext2, ext3 and ext4"),
        (
            "x.btrfs",
            start(b"_BHRfS_M", 0x10040),
            "a Btrfs file system",
            "btrfs restore x.btrfs DIR",
        ),
        ("x.swap", start(b"SWAPSPACE2", 4086), "swap space", "open the volume"),
        ("x.zero", vec![0; 300_000], "no ext2, ext3 or ext4 superblock", "extant mkfs x.zero"),
    ];
    for (name, bytes, what, hint) in &files {
        std::fs::write(place.path(name), bytes).unwrap();
        // Whether the image is to be read or to be changed.
        check(
            &place,
            &[
                (&["info", name], 4, &[name, what], hint),
                (&["ls", name], 4, &[name, what], hint),
                (&["mkdir", &format!("{name}:/new")], 4, &[name, what], hint),
            ],
        );
    }
    if tool("tar", &["-cf", "x.tar", "source"], place.0.path()).is_some() {
        let hint = "extant build OUT --from x.tar";
        check(&place, &[(&["ls", "x.tar"], 4, &["x.tar: this is a tar archive"], hint)]);
        // Nothing of the kind is overwritten unasked.
        place.run(&["mkfs", "x.tar", "1M"]).ends_with(7).complains(&["a tar archive"]);
    }
    std::fs::write(place.path("noise"), b"no magic number here\n".repeat(9999)).unwrap();
    check(&place, &[(&["ls", "noise"], 4, &["noise", "magic"], "--offset BYTES")]);
}

/// A disk with an EFI partition that has a FAT file system, one of ours, swap, and one without
/// anything in it.
fn disk(place: &Place) {
    let image = std::fs::read(place.path("a.img")).unwrap();
    let len = image.len();
    let mib = 1 << 20;
    let mut disk = vec![0; 6 * mib + len];
    let starts = [(0xef_u8, mib, mib), (0x83, 2 * mib, len), (0x82, 2 * mib + len, mib)];
    let starts = starts.into_iter().chain([(0x83, 3 * mib + len, mib)]);
    for (entry, (kind, start, len)) in starts.enumerate() {
        let at = 446 + 16 * entry;
        disk[at + 4] = kind;
        disk[at + 8..at + 12].copy_from_slice(&((start / 512) as u32).to_le_bytes());
        disk[at + 12..at + 16].copy_from_slice(&((len / 512) as u32).to_le_bytes());
    }
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[mib + 0x36..mib + 0x3b].copy_from_slice(b"FAT16");
    disk[2 * mib..2 * mib + len].copy_from_slice(&image);
    let swap = 2 * mib + len + 4086;
    disk[swap..swap + 10].copy_from_slice(b"SWAPSPACE2");
    std::fs::write(place.path("disk.img"), disk).unwrap();
}

/// Up to the end of the disk there are other partitions.
#[test]
fn a_file_system_at_an_offset_ends_where_something_else_begins() {
    let place = Place::new();
    let mib = 1 << 20;
    let mut disk = vec![0; 40 * mib];
    for (entry, start) in [2048u32, 2048 + 20_480].into_iter().enumerate() {
        let at = 446 + 16 * entry;
        disk[at + 4] = 0x83;
        disk[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        disk[at + 12..at + 16].copy_from_slice(&20_480u32.to_le_bytes());
    }
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(place.path("disk.img"), disk).unwrap();
    let bytes = |offset: &str| {
        let info = place.run(&["info", "--json", "--offset", offset, "disk.img"]).succeeds().json();
        info["size_bytes"].as_u64().unwrap() as usize / mib
    };
    place.run(&["mkfs", "disk.img", "--partition", "2", "-L", "mine"]).succeeds();
    let second = std::fs::read(place.path("disk.img")).unwrap()[11 * mib..21 * mib].to_vec();
    for args in
        [&["mkfs", "disk.img", "--offset", "1M"][..], &["mkfs", "-F", "disk.img", "--offset", "1M"]]
    {
        place.run(args).succeeds();
        assert_eq!(bytes("1M"), 10);
    }
    place.run(&["resize", "--offset", "1M", "disk.img", "max"]).succeeds();
    place.run(&["resize", "--offset", "1M", "disk.img", "15M"]).ends_with(6);
    assert_eq!(bytes("1M"), 10);
    place.run(&["mkfs", "-F", "disk.img", "15M", "--offset", "1M"]).ends_with(6);
    // In the middle of one, and behind all of them.
    place
        .run(&["mkfs", "disk.img", "1M", "--offset", "12M"])
        .ends_with(7)
        .complains(&["byte 12582912", "in the middle of partition 2", "at byte 11534336"])
        .hints("--partition 2");
    place.run(&["mkfs", "disk.img", "--offset", "25M"]).succeeds();
    assert_eq!(bytes("25M"), 15);
    assert!(std::fs::read(place.path("disk.img")).unwrap()[11 * mib..21 * mib] == second);
}

#[test]
fn disks_and_partitions() {
    let place = Place::with_image();
    disk(&place);
    let fat = ["disk.img partition 1 (EFI system)", "a FAT file system, not an ext2"];
    check(
        &place,
        &[
            (
                &["ls", "disk.img"],
                4,
                &["disk.img: this is a disk with partitions"],
                "--partition 2;",
            ),
            (&["ls", "disk.img"], 4, &[], "1 (1 MiB, a FAT file system), 2 ("),
            (
                &["ls", "disk.img"],
                4,
                &[],
                "an ext4 file system), 3 (1 MiB, swap space), 4 (1 MiB, Linux)",
            ),
            (&["ls", "--partition", "1", "disk.img"], 4, &fat, "extant is for ext2"),
            (&["mkdir", "--partition", "1", "disk.img:/new"], 4, &fat, "extant is for ext2"),
            (
                &["ls", "--partition", "3", "disk.img"],
                4,
                &["partition 3 (Linux swap)", "swap space"],
                "",
            ),
            (
                &["ls", "--partition", "4", "disk.img"],
                4,
                &["partition 4 (Linux)", "superblock"],
                "nothing was made there",
            ),
            (
                &["ls", "--partition", "9", "disk.img"],
                9,
                &["partition 9 does not exist", "there are 1"],
                "",
            ),
            (&["ls", "--partition", "1", "a.img"], 4, &["no partition table"], "--partition"),
        ],
    );
    place.run(&["ls", "--partition", "2", "disk.img"]).succeeds();
}

#[test]
fn sizes_and_targets() {
    let place = Place::with_image();
    let too_large = "100 TiB are more than a file of this image can have, 16.0 TiB";
    check(
        &place,
        &[
            (&["truncate", "-s", "100T", "a.img:/file"], 6, &["a.img:/file", too_large], ""),
            (&["mkfs", "b.img"], 2, &["no size"], "extant mkfs IMG 2G"),
            (
                &["build", "b.img", "--from", "source", "--size", "20K"],
                6,
                &["too few"],
                "--size auto",
            ),
            (&["build", "a.img", "--from", "source"], 7, &["a.img", "ext4"], "--force"),
            (&["mkfs", "a.img"], 7, &["a.img", "ext4"], "--force"),
            (&["build", "no/b.img", "--from", "source"], 8, &["no", "No such file"], ""),
            (&["extract", "a.img", "no/such/place"], 8, &["no/such/place"], ""),
            (&["extract", "a.img:/none", "out"], 9, &["a.img:/none"], ""),
        ],
    );
    for size in ["10", "2GB", "1,5G", "5 M", "-3M"] {
        let size = format!("--size={size}");
        let ran = place.run(&["build", "b.img", "--from", "source", &size]).ends_with(2);
        assert!(
            ran.err().contains("K, M, G, T, P") || ran.err().contains("Give a unit"),
            "{}",
            ran.err()
        );
    }
    assert!(!place.path("b.img").exists());
}

#[test]
fn an_extract_onto_what_is_there_says_so_once() {
    let place = Place::with_image();
    for number in 0..300 {
        std::fs::write(place.path(&format!("source/dir/{number}")), b"x").unwrap();
    }
    place.run(&["build", "a.img", "-F", "--from", "source"]).succeeds();
    place.run(&["extract", "a.img", "out"]).succeeds();
    std::fs::remove_file(place.path("out/file")).unwrap();
    let ran = place.run(&["extract", "a.img", "out"]).ends_with(1).hints("--force replaces");
    let ran = ran.complains(&["out: 305 files exist there already", "a.img:/", ", …"]);
    assert_eq!(ran.err().lines().count(), 2, "{}", ran.err());
    assert!(place.path("out/file").exists());
    place.run(&["extract", "-F", "a.img", "out"]).succeeds();
    // Other troubles that many files have alike: a few are named, the rest is counted.
    std::fs::create_dir_all(place.path("shut/dir")).unwrap();
    let shut = |mode| PermissionsExt::from_mode(mode);
    std::fs::set_permissions(place.path("shut/dir"), shut(0o555)).unwrap();
    std::fs::set_permissions(place.path("shut"), shut(0o777)).unwrap();
    let Some(ran) = as_user(&place, &["extract", "a.img", "shut"]) else { return };
    let ran = ran.ends_with(1);
    std::fs::set_permissions(place.path("shut/dir"), shut(0o700)).unwrap();
    assert!(ran.err().lines().count() < 20, "{}", ran.err());
    assert!(ran.err().contains("more: cannot create: Permission denied"), "{}", ran.err());
}

#[test]
fn an_image_that_must_not_or_cannot_be_changed() {
    let place = Place::with_image();
    // Somebody who holds it for writing.
    let held = std::fs::File::options().write(true).open(place.path("a.img")).unwrap();
    held.lock().unwrap();
    let in_use = ["a.img is in use by"];
    let hint = "wait for it to finish, or stop it";
    std::fs::create_dir(place.path("out")).unwrap();
    check(
        &place,
        &[
            (&["mkdir", "a.img:/new"], 7, &in_use, hint),
            // Also for a mount for reading, which would not see what the other one writes.
            (&["mount", "-r", "a.img", "out"], 7, &in_use, hint),
        ],
    );
    place.run(&["ls", "a.img"]).succeeds();
    drop(held);
    let mode =
        |mode| std::fs::set_permissions(place.path("a.img"), PermissionsExt::from_mode(mode));
    mode(0o444).unwrap();
    let Some(ran) = as_user(&place, &["mkdir", "a.img:/new"]) else { return };
    ran.ends_with(7).complains(&["a.img", "Permission denied"]).hints("needs to be writable");
    for words in [
        &["resize", "a.img", "+1M"][..],
        &["tune", "-L", "x", "a.img"],
        &["tune", "-O", "^huge_file", "a.img"],
        &["repair", "-y", "a.img"],
        &["defrag", "a.img"],
        &["cp", "source/file", "a.img:/new"],
    ] {
        as_user(&place, words).unwrap().ends_with(7).complains(&["a.img", "Permission denied"]);
    }
    as_user(&place, &["ls", "a.img"]).unwrap().succeeds();
    mode(0).unwrap();
    let ran = as_user(&place, &["ls", "a.img"]).unwrap();
    ran.ends_with(7).complains(&["a.img", "Permission denied"]).hints("needs no root");
    // A place where nothing may be made.
    std::fs::create_dir(place.path("closed")).unwrap();
    std::fs::set_permissions(place.path("closed"), PermissionsExt::from_mode(0o555)).unwrap();
    let ran = as_user(&place, &["build", "closed/b.img", "--from", "source/dir/deep"]).unwrap();
    ran.ends_with(8).complains(&["cannot create a file in \"closed\"", "Permission denied"]);
}

#[test]
fn an_image_that_is_mounted_is_changed_through_its_mount() {
    let place = Place::with_image();
    std::fs::create_dir(place.path("mnt")).unwrap();
    let mounted = place.run(&["mount", "--log", "log", "a.img", "mnt"]);
    if mounted.output.status.code() != Some(0) {
        println!("skipped: cannot mount here: {}", mounted.err());
        return;
    }
    let ran = place.run(&["mkdir", "a.img:/new"]);
    let read = place.run(&["cat", "a.img:/file"]);
    place.run(&["umount", "mnt"]).succeeds();
    ran.ends_with(7).complains(&["a.img is in use by"]).hints("mnt: change its files there");
    assert_eq!(read.succeeds().out(), "hello\n");
}

/// An image on a full disk: the message names the disk, not the image.
#[test]
fn a_full_disk_is_named() {
    let place = Place::with_image();
    let args = ["build", "/dev/full", "--from", "source"];
    place.run(&args).ends_with(7).complains(&["/dev/full", "neither a regular file"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = place.command(&["cat", "a.img:/file"]);
    let output = command.stdout(full).output().unwrap();
    Ran { args: "cat to /dev/full".into(), output }.ends_with(6).complains(&["output", "No space"]);
}
