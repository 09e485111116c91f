//! Mounts that become larger while they are in use.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::support;
use support::mounts::{Mounts, mounts};
use support::{kernel, text, tool};

const MIB: u64 = 1 << 20;

/// A mount of an image of 16 MiB.
fn small() -> Option<Mounts> {
    let mounts = mounts()?;
    let words = ["-q", "-F", "-t", "ext4", "-b1024", "-Jsize=1", "small.img", "16M"];
    assert!(tool("mke2fs", &words, mounts.place.0.path())?.status.success());
    mounts.place.run(&["mount", "--log", "log", "small.img", "m"]).succeeds();
    Some(mounts)
}

fn blocks(mounts: &Mounts) -> u64 {
    rustix::fs::statvfs(mounts.path("m")).unwrap().f_blocks
}

#[test]
fn a_mount_grows_in_use_and_its_file_with_it() {
    let Some(mounts) = small() else { return };
    let before = blocks(&mounts);
    fs::write(mounts.inside("kept"), vec![7; 5 << 20]).unwrap();
    let too_much = fs::write(mounts.inside("large"), vec![9; 30 << 20]);
    let error = too_much.and_then(|()| fs::File::open(mounts.inside("large"))?.sync_all());
    assert_eq!(error.unwrap_err().raw_os_error(), Some(28));

    let plan = mounts.place.run(&["resize", "--plan", "--json", "m", "+48M"]).succeeds().json();
    assert_eq!((&plan["written"], &plan["before"]["bytes"]), (&false.into(), &(16 * MIB).into()));
    assert_eq!(plan["after"]["bytes"], 64 * MIB);
    assert_eq!(blocks(&mounts), before, "a plan changes nothing");

    let done = mounts.place.run(&["resize", "--json", "m", "+48M"]).succeeds().json();
    assert_eq!((&done["written"], &done["after"]["bytes"]), (&true.into(), &(64 * MIB).into()));
    assert_eq!(done["journaled"], true);
    assert!(blocks(&mounts) > before + 40 * 1024, "{before}, {}", blocks(&mounts));
    assert_eq!(fs::metadata(mounts.path("small.img")).unwrap().len(), 64 * MIB);
    fs::write(mounts.inside("large"), vec![9; 30 << 20]).unwrap();
    fs::File::open(mounts.inside("large")).unwrap().sync_all().unwrap();
    assert!(mounts.log().contains("has grown from"), "{}", mounts.log());
    mounts.place.run(&["resize", "m", "64M"]).succeeds();

    // As a program for the kernel's ext4 asks.
    let call = format!(
        "import fcntl, os, struct\nfd = os.open({:?}, os.O_RDONLY)\n\
         fcntl.ioctl(fd, 0x40086610, struct.pack('Q', {}))\n",
        mounts.path("m").display().to_string(),
        80 * 1024
    );
    match tool("python3", &["-c", &call], mounts.place.0.path()) {
        None => println!("skipped: no python3 for the control operation"),
        Some(output) => {
            assert!(output.status.success(), "{}", text(&output));
            assert_eq!(fs::metadata(mounts.path("small.img")).unwrap().len(), 80 * MIB);
        }
    }
    // A file that somebody made longer: max is all of it.
    let longer = fs::File::options().write(true).open(mounts.path("small.img")).unwrap();
    longer.set_len(100 * MIB).unwrap();
    mounts.place.run(&["resize", "m", "max"]).succeeds();
    mounts.umount();
    let now = mounts.place.run(&["info", "--json", "small.img"]).succeeds().json();
    assert!(now.to_string().contains(&(100 * 1024).to_string()), "{now}");
    kernel::clean(&mounts.place, "small.img");
    let kept = mounts.place.run(&["cat", "small.img:/kept"]).succeeds().out();
    assert!(kept.len() == 5 << 20 && kept.bytes().all(|byte| byte == 7));
}

#[test]
fn what_a_mount_cannot_become_is_refused_with_the_reason() {
    let Some(mounts) = small() else { return };
    let place = &mounts.place;
    for size in ["8M", "-1M", "min"] {
        let refused = place.run(&["resize", "m", size]).ends_with(7);
        refused.complains(&["does not become smaller"]).hints("extant umount m");
    }
    // By the name of the image: the hint has the directory.
    let directory = mounts.path("m").display().to_string();
    let held = place.run(&["resize", "small.img", "+8M"]).ends_with(7);
    let held = held.complains(&["small.img is in use by extant"]);
    held.hints(&format!("extant resize {directory} SIZE"));
    let held = place.run(&["repair", "-y", "small.img"]).ends_with(7);
    held.hints(&format!("extant umount {directory} first"));
    place.run(&["resize", "--partition", "1", "m", "max"]).ends_with(2);
    place.run(&["resize", "m", "8192P"]).ends_with(2);
    place.run(&["resize", "m", "100P"]).ends_with(7).complains(&["cannot be reached", "at most"]);
    assert_eq!(
        fs::metadata(mounts.path("small.img")).unwrap().len(),
        16 * MIB,
        "it was not made longer"
    );
    fs::create_dir(mounts.path("none")).unwrap();
    place.run(&["resize", "none", "20M"]).ends_with(7).complains(&["not mounted by extant"]);
    let mut bytes = [0; 64];
    rustix::fs::getxattr(mounts.path("m"), "extant.order.remount,ro", &mut bytes[..]).unwrap();
    place.run(&["resize", "m", "20M"]).ends_with(7).complains(&["read-only"]).hints("remount,rw");
    mounts.umount();
    kernel::clean(place, "small.img");
}

#[test]
fn a_frozen_mount_does_not_grow() {
    let Some(mounts) = small() else { return };
    let order = |name: &str| {
        let mut bytes = [0; 64];
        rustix::fs::getxattr(mounts.path("m"), name, &mut bytes[..])
    };
    order("extant.order.freeze").unwrap();
    mounts.place.run(&["resize", "m", "32M"]).ends_with(7).complains(&["frozen"]);
    order("extant.order.thaw").unwrap();
    mounts.place.run(&["resize", "m", "32M"]).succeeds();
    mounts.umount();
    kernel::clean(&mounts.place, "small.img");
}

#[test]
fn a_full_disk_below_leaves_the_mount_as_it_was() {
    let Some(mounts) = mounts() else { return };
    let full = mounts.path("full");
    fs::create_dir(&full).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=8M", "none"]).arg(&full);
    if !mount.status().is_ok_and(|status| status.success()) {
        println!("skipped: no tmpfs");
        return;
    }
    // Every group has bitmaps, which need room.
    let words =
        ["-q", "-F", "-t", "ext4", "-b1024", "-g512", "-O^metadata_csum,^uninit_bg", "-Jsize=1"];
    let make = [&words[..], &["full/a.img", "12M"]].concat();
    assert!(tool("mke2fs", &make, mounts.place.0.path()).unwrap().status.success());
    mounts.place.run(&["mount", "--log", "log", "full/a.img", "m"]).succeeds();
    fs::write(mounts.inside("file"), b"kept").unwrap();
    // What is left of the disk.
    let taken = fs::write(full.join("filler"), vec![1; 8 << 20]);
    assert_eq!(taken.unwrap_err().raw_os_error(), Some(28));
    let before = blocks(&mounts);
    let refused = mounts.place.run(&["resize", "m", "2G"]).ends_with(6);
    refused.complains(&["the disk that holds full/a.img is full"]);
    assert_eq!(blocks(&mounts), before);
    fs::remove_file(full.join("filler")).unwrap();
    fs::write(mounts.inside("file"), b"changed").unwrap();
    fs::File::open(mounts.inside("file")).unwrap().sync_all().unwrap();
    mounts.place.run(&["resize", "m", "40M"]).succeeds();
    let used = fs::metadata(full.join("a.img")).unwrap().blocks() * 512;
    assert!(used < 6 * MIB, "{used} bytes are kept");
    mounts.umount();
    kernel::clean(&mounts.place, "full/a.img");
}

#[test]
fn a_mount_gets_another_label_and_uuid_in_use() {
    let Some(mounts) = small() else { return };
    let (place, uuid) = (&mounts.place, "01234567-89ab-cdef-0123-456789abcdef");
    // Its checksums depend on the UUID.
    place.run(&["tune", "-U", uuid, "m"]).ends_with(7).complains(&["metadata_csum_seed"]);
    place.run(&["tune", "-L", "seventeen letters", "m"]).ends_with(7).complains(&["16 bytes"]);
    place.run(&["tune", "-O", "quota", "m"]).ends_with(2).complains(&["only -L and -U"]);
    mounts.umount();
    let words = ["-q", "-F", "-t", "ext4", "-O", "metadata_csum_seed", "seeded.img", "16M"];
    assert!(tool("mke2fs", &words, place.0.path()).unwrap().status.success());
    place.run(&["mount", "--log", "log", "seeded.img", "m"]).succeeds();
    place.run(&["tune", "-L", "a name", "-U", uuid, "m"]).succeeds();
    fs::write(mounts.inside("kept"), "x").unwrap();
    let call = format!(
        "import fcntl, os, struct\nfd = os.open({:?}, os.O_RDONLY)\n\
         fcntl.ioctl(fd, 0x4008662c, struct.pack('II', 16, 0) + bytes(range(16)))\n",
        mounts.path("m").display().to_string()
    );
    let asked = tool("python3", &["-c", &call], place.0.path());
    mounts.umount();
    let info = place.run(&["info", "seeded.img"]).succeeds().out();
    let wanted = match asked.is_some_and(|output| output.status.success()) {
        true => "00010203-0405-0607-0809-0a0b0c0d0e0f",
        // Where nobody may look into another's memory, the call is refused.
        false => uuid,
    };
    assert!(info.contains(wanted) && info.contains("a name"), "{info}");
    kernel::clean(place, "seeded.img");
}
