//! What dm-verity seals: left as it is, unless somebody says that the seal may break.

use crate::support;
use support::mounts::mounts;
use support::{Place, tool};

/// Runs `args` of `image`, and says whether any byte of it is another one now.
fn changes(place: &Place, image: &str, args: &[&str], code: i32) -> bool {
    let before = std::fs::read(place.path(image)).unwrap();
    let ran = place.run(args).ends_with(code);
    if code == 7 {
        ran.complains(&["sealed by dm-verity"]).hints("--break-seal");
    }
    std::fs::read(place.path(image)).unwrap() != before
}

#[test]
fn a_sealed_image_is_changed_by_nobody_who_does_not_say_so() {
    let place = Place::with_image();
    let build = ["build", "s.img", "-q", "-F", "--from", "source", "--verity"];
    place.run(&build).succeeds();
    for args in [
        &["touch", "s.img:/new"][..],
        &["rm", "s.img:/file"],
        &["resize", "s.img", "+8M"],
        &["tune", "-L", "name", "s.img"],
        &["tune", "-O", "^orphan_file", "s.img"],
        &["fstrim", "s.img"],
        &["defrag", "s.img"],
    ] {
        assert!(!changes(&place, "s.img", args, 7), "{args:?}");
    }
    // Looking at it, and plans, change nothing.
    for args in [
        &["cat", "s.img:/file"][..],
        &["check", "s.img"],
        &["repair", "-y", "s.img"],
        &["resize", "--plan", "s.img", "+8M"],
        &["defrag", "-n", "s.img"],
        &["touch", "--overlay", "o.qcow2", "s.img:/new"],
    ] {
        assert!(!changes(&place, "s.img", args, 0), "{args:?}");
    }
    assert!(changes(&place, "s.img", &["touch", "--break-seal", "s.img:/new"], 0));
    // A seal that is broken protects nothing.
    assert!(changes(&place, "s.img", &["rm", "s.img:/new"], 0));
    place.run(&["check", "s.img"]).succeeds();
}

#[test]
fn an_overlay_over_what_is_sealed_is_written_and_not_committed() {
    let place = Place::with_image();
    place.run(&["build", "s.img", "-q", "--from", "source", "--verity"]).succeeds();
    place.run(&["build", "d.img", "-q", "--from", "source", "--gpt", "--verity"]).succeeds();
    for (image, options) in [("s.img", &[][..]), ("d.img", &["--partition", "1"])] {
        place.run(&["overlay", "create", "o.qcow2", "--base", image]).succeeds();
        // Before anything else was written: what is seen is the sealed file system.
        let touch = [&["touch"], options, &["o.qcow2:/new"]].concat();
        assert!(!changes(&place, image, &touch, 0), "{image}");
        assert!(!changes(&place, image, &["overlay", "commit", "o.qcow2"], 7), "{image}");
        let ls = [&["ls"], options, &["o.qcow2:/new"]].concat();
        place.run(&ls).succeeds();
        let commit = ["overlay", "commit", "--break-seal", "o.qcow2"];
        assert!(changes(&place, image, &commit, 0), "{image}");
        std::fs::remove_file(place.path("o.qcow2")).unwrap();
    }
}

#[test]
fn a_repair_of_what_is_sealed_is_said_to_break_the_seal() {
    let place = Place::with_image();
    place.run(&["build", "s.img", "-q", "--from", "source", "--verity"]).succeeds();
    let json = place.run(&["info", "--json", "--groups", "s.img"]).succeeds().json();
    let bitmap = json["groups"][0]["inode_bitmap"].as_u64().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(place.path("s.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 64], bitmap * 4096).unwrap();
    drop(file);
    assert!(!changes(&place, "s.img", &["repair", "-n", "s.img"], 4));
    assert!(!changes(&place, "s.img", &["repair", "-y", "s.img"], 7));
    assert!(changes(&place, "s.img", &["repair", "-y", "--break-seal", "s.img"], 1));
    place.run(&["check", "s.img"]).succeeds();
}

#[test]
fn a_sealed_partition_is_found_by_the_hashes_in_another() {
    let place = Place::with_image();
    place.run(&["build", "d.img", "-q", "--from", "source", "--gpt", "--verity"]).succeeds();
    let offset = (1 << 20).to_string();
    for args in [
        &["touch", "--partition", "1", "d.img:/new"][..],
        &["touch", "--offset", &offset, "d.img:/new"],
        &["resize", "--partition", "1", "d.img", "max"],
        &["resize", "--partition", "1", "d.img", "min"],
        &["tune", "--partition", "1", "-L", "name", "d.img"],
    ] {
        assert!(!changes(&place, "d.img", args, 7), "{args:?}");
    }
    assert!(changes(
        &place,
        "d.img",
        &["touch", "--partition", "1", "--break-seal", "d.img:/new"],
        0
    ));
    assert!(changes(&place, "d.img", &["rm", "--partition", "1", "d.img:/new"], 0));

    // Without hashes there is no seal.
    place.run(&["build", "e.img", "-q", "--from", "source", "--gpt"]).succeeds();
    assert!(changes(&place, "e.img", &["touch", "--partition", "1", "e.img:/new"], 0));
}

#[test]
fn a_sealed_image_is_mounted_for_reading() {
    let Some(mounts) = mounts() else { return };
    let place = &mounts.place;
    std::fs::create_dir(place.path("source")).unwrap();
    place.run(&["build", "a.img", "-q", "-F", "--from", "source", "--verity"]).succeeds();
    let before = std::fs::read(place.path("a.img")).unwrap();
    mounts.mount(&[]).ends_with(7).complains(&["sealed by dm-verity"]).hints("-o ro");
    mounts.mount(&["-o", "ro"]).succeeds();
    let refused = place.run(&["mount", "-o", "remount,rw", "m"]).ends_with(7);
    refused.complains(&["stays read-only", "sealed by dm-verity"]);
    place.run(&["umount", "m"]).succeeds();
    assert!(std::fs::read(place.path("a.img")).unwrap() == before);
    place.run(&["overlay", "create", "o.qcow2", "--base", "a.img"]).succeeds();
    place.run(&["mount", "o.qcow2", "m"]).succeeds();
    std::fs::write(mounts.inside("new"), "x").unwrap();
    place.run(&["umount", "m"]).succeeds();
    assert!(std::fs::read(place.path("a.img")).unwrap() == before);
    mounts.mount(&["-o", "break_seal"]).succeeds();
    std::fs::write(mounts.inside("new"), "x").unwrap();
    mounts.umount();
    mounts.mount(&[]).succeeds();
    mounts.umount();
}

#[test]
fn seals_that_veritysetup_makes_are_found() {
    let place = Place::new();
    for (shape, bytes) in [
        (&[][..], 4096),
        (&["--data-block-size=512", "--hash-block-size=1024"], 512),
        (&["--data-block-size=1024", "--hash-block-size=4096", "--salt=-"], 1024),
        (&["--hash-block-size=512"], 4096),
        (&["--hash=sha512"], 4096),
        (&["--format=0"], 4096),
    ] {
        place.run(&["mkfs", "-q", "-F", "w.img", "20M"]).succeeds();
        let file = std::fs::OpenOptions::new().write(true).open(place.path("w.img")).unwrap();
        file.set_len(25 << 20).unwrap();
        drop(file);
        let (blocks, at) = (format!("{}", (20 << 20) / bytes), format!("{}", 20 << 20));
        let args = ["format", "w.img", "w.img", "--data-blocks", &blocks, "--hash-offset", &at];
        let args = [&args[..], shape].concat();
        let Some(made) = tool("veritysetup", &args, place.0.path()) else { return };
        assert!(made.status.success(), "{shape:?}: {}", support::text(&made));
        assert!(!changes(&place, "w.img", &["touch", "w.img:/new"], 7), "{shape:?}");
        assert!(changes(&place, "w.img", &["touch", "--break-seal", "w.img:/new"], 0));
    }
}
