//! `--for`: images for programs that know fewer features, each read by the program itself where it is at hand.

use std::fs;

use crate::support;
use support::kernel::{Mounted, clean};
use support::{Place, is_root, text, tool};

const READERS: [&str; 9] = [
    "grub",
    "grub-2.12",
    "u-boot",
    "firecracker",
    "linux-2.6",
    "linux-3.4",
    "linux-4.14",
    "linux-5.10",
    "linux-6.1",
];

/// A source with a directory that needs an index, a large file and links.
fn source() -> Place {
    let place = Place::new();
    let at = place.path("source");
    fs::create_dir_all(at.join("boot/many")).unwrap();
    for number in 0..400 {
        let name = format!("boot/many/a file with a long name, number {number}");
        fs::write(at.join(name), number.to_string()).unwrap();
    }
    let large: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
    fs::write(at.join("boot/vmlinuz"), large).unwrap();
    fs::write(at.join("hello"), b"hello\n").unwrap();
    std::os::unix::fs::symlink("boot/vmlinuz", at.join("vmlinuz")).unwrap();
    place
}

fn features(built: &serde_json::Value) -> Vec<&str> {
    built["features"].as_str().unwrap().split(' ').collect()
}

/// What GRUB reads of a file; `None` if it refuses.
fn grub(place: &Place, image: &str, file: &str) -> Option<Vec<u8>> {
    let file = format!("(loop0)/{file}");
    let read = tool("grub-fstest", &[image, "cat", &file], place.0.path())?;
    read.status.success().then_some(read.stdout)
}

fn has_grub(place: &Place) -> bool {
    tool("grub-fstest", &["--version"], place.0.path()).is_some()
}

#[test]
fn each_reader_gets_an_image_that_is_whole() {
    let place = source();
    for reader in READERS {
        let args = ["build", "a.img", "--from", "source", "--for", reader, "-F", "--json"];
        let built = place.run(&args).succeeds().json();
        let has = |feature: &str| features(&built).contains(&feature);
        clean(&place, "a.img");
        place.run(&["check", "a.img"]).succeeds();
        let (old, new) = (["linux-2.6", "linux-3.4"].contains(&reader), reader == "linux-6.1");
        assert_eq!(has("metadata_csum"), !old, "{reader}: {built}");
        assert_eq!(has("uninit_bg"), old, "{reader}: {built}");
        // U-Boot and old GRUBs read no seed of checksums; Linux 4.4 does.
        let no_seed = old || ["grub", "u-boot"].contains(&reader);
        assert_eq!(has("metadata_csum_seed"), !no_seed, "{reader}: {built}");
        let only_reads = reader.starts_with("grub") || reader == "u-boot";
        assert_eq!(has("orphan_file"), new || only_reads, "{reader}: {built}");
        assert_eq!(has("sparse_super2"), reader == "firecracker", "{reader}: {built}");
        if is_root() {
            let mounted = Mounted::of(&place, "a.img");
            mounted.shell("diff -r . ../source 2>&1 | grep -v lost+found; echo new > new");
            drop(mounted);
            clean(&place, "a.img");
        } else {
            println!("skipped mounting: needs root");
        }
        if reader.starts_with("grub") && has_grub(&place) && reader == "grub" {
            let large = fs::read(place.path("source/boot/vmlinuz")).unwrap();
            assert_eq!(grub(&place, "a.img", "vmlinuz"), Some(large));
            let one = "boot/many/a file with a long name, number 399";
            assert_eq!(grub(&place, "a.img", one), Some(b"399".to_vec()));
        }
    }
}

#[test]
fn what_the_table_says_of_grub_is_what_grub_does() {
    let place = source();
    if !has_grub(&place) {
        return;
    }
    let mut refused = Vec::new();
    for feature in [
        "meta_bg,^resize_inode",
        "64bit",
        "flex_bg",
        "mmp",
        "metadata_csum_seed",
        "large_dir",
        "inline_data",
        "ea_inode",
        "encrypt",
        "casefold",
        "bigalloc",
        "sparse_super2,^resize_inode",
        "quota",
        "verity",
    ] {
        let args =
            ["build", "a.img", "--from", "source", "-O", feature, "-t", "debian12", "-F", "-q"];
        place.run(&args).succeeds();
        let reads = grub(&place, "a.img", "hello").as_deref() == Some(b"hello\n");
        let asked = place.run(&[&args[..], &["--for", "grub"]].concat());
        match asked.output.status.code() {
            // What the table allows is read. (Debian's GRUB reads some more than its version says.)
            Some(0) => assert!(reads, "{feature}"),
            Some(2) => {
                let err = asked.err();
                let name = feature.split(',').next().unwrap();
                assert!(
                    err.contains(&format!("grub cannot read a file system with feature {name}"))
                );
                refused.push((name, reads));
            }
            code => panic!("{feature}: {code:?}"),
        }
    }
    for feature in ["inline_data", "ea_inode", "casefold"] {
        assert!(refused.contains(&(feature, false)), "{feature}: {refused:?}");
    }
}

#[test]
fn features_that_are_asked_for_are_errors_or_named() {
    let place = source();
    let build = |more: &[&str]| {
        let args = [&["build", "a.img", "--from", "source", "-F", "--plan"], more].concat();
        place.run(&args)
    };
    build(&["--for", "linux-4.14", "-O", "casefold"]).ends_with(2).complains(&[
        "linux-4.14 cannot read",
        "feature casefold",
        "^casefold",
        "--for linux-4.14",
    ]);
    // An option that turns a feature on asks for it as well.
    build(&["--for", "grub", "-E", "encoding=utf8"]).ends_with(2).complains(&["grub", "casefold"]);
    let err = build(&["--for", "linux-4.14", "-O", "verity"]).succeeds().err();
    assert!(err.contains("linux-4.14 mounts a file system with feature verity for reading only"));
    let err = build(&["--for", "firecracker", "-O", "orphan_file"]).succeeds().err();
    assert!(err.contains("firecracker does not know feature orphan_file"), "{err}");
    assert!(err.starts_with("extant: note: "), "{err}");
    // The level says it where there is one.
    let ran = build(&["--for", "firecracker", "-O", "orphan_file", "--json"]).succeeds();
    let said: serde_json::Value = serde_json::from_str(&ran.err()).unwrap();
    assert_eq!(said["level"], "note");
    assert!(said["message"].as_str().unwrap().starts_with("firecracker"), "{said}");
    assert_eq!(build(&["--for", "grub", "-O", "verity"]).succeeds().err(), "");
    assert_eq!(build(&["--for", "linux-4.14", "-O", "verity", "-q"]).succeeds().err(), "");

    // Several readers: what each of them reads.
    let built = build(&["--for", "grub,linux-3.4", "--json"]).succeeds().json();
    let all = features(&built);
    assert!(
        !all.iter().any(|one| one.starts_with("metadata_csum") || *one == "orphan_file"),
        "{all:?}"
    );
    // A reader does not bring back what was taken away, and mkfs has the option as well.
    let args = ["mkfs", "b.img", "16M", "--for", "u-boot", "-O", "^64bit", "--json"];
    let made = place.run(&args).succeeds().json();
    assert!(
        !features(&made).contains(&"64bit") && !features(&made).contains(&"metadata_csum_seed")
    );
    clean(&place, "b.img");
    build(&["--for", "lilo"]).ends_with(2);
    assert!(text(&build(&["--for", "lilo"]).output).is_empty());
}
