//! `build --casefold`: directories that find names whatever their case, as e2fsck and extant see them. (The kernels that
//! most distributions build have the tables of Unicode; one that has not is not asked.)

use std::fs;
use std::path::Path;

use crate::support;
use support::Place;
use support::kernel::{Mounted, clean};
use support::mounts::mounts;

const NAMES: [&str; 6] =
    ["README", "Makefile", "Stra\u{df}e", "\u{c5}ngstr\u{f6}m", "\u{3a3}\u{3c2}", "o"];

/// A source with a small directory, and one large enough for an index.
fn source(place: &Place) {
    fs::create_dir_all(place.path("source/Folded/Many")).unwrap();
    fs::create_dir_all(place.path("source/exact")).unwrap();
    for name in NAMES {
        fs::write(place.path("source/Folded").join(name), name).unwrap();
        for number in 0..150 {
            let name = format!("{name} with a longer name {number}");
            fs::write(place.path("source/Folded/Many").join(&name), &name).unwrap();
        }
    }
    fs::write(place.path("source/exact/a"), "small").unwrap();
    fs::write(place.path("source/exact/A"), "large").unwrap();
}

#[test]
fn every_spelling_is_found_in_folding_directories_only() {
    let place = Place::new();
    source(&place);
    let variants = [
        &["-E", "encoding=utf8"][..],
        &["-b", "1024"],
        &["-O", "inline_data,^metadata_csum,^metadata_csum_seed"],
        &["-E", "encoding=utf8,encoding_flags=strict"],
    ];
    for options in variants {
        let args = ["build", "a.img", "--from", "source", "--casefold", "/Folded", "-F", "-q"];
        place.run(&[&args[..], options].concat()).succeeds();
        // e2fsck computes each hash from the folded name.
        clean(&place, "a.img");
        place.run(&["check", "a.img"]).succeeds();
        let cat = |path: &str| place.run(&["cat", &format!("a.img:/{path}")]);
        for name in NAMES {
            for spelling in [name.to_uppercase(), name.to_lowercase(), name.to_owned()] {
                assert_eq!(cat(&format!("Folded/{spelling}")).succeeds().out(), name);
                for number in [0, 77, 149] {
                    let path = format!("Folded/many/{spelling} WITH a longer Name {number}");
                    let whole = format!("{name} with a longer name {number}");
                    assert_eq!(cat(&path).succeeds().out(), whole);
                }
            }
        }
        cat("folded/README").ends_with(9);
        assert_eq!((cat("exact/a").out(), cat("exact/A").out()), ("small".into(), "large".into()));
        let flags = place.run(&["lsattr", "-d", "a.img:/Folded", "a.img:/exact"]).succeeds().out();
        let has = |name: &str| {
            let line = flags.lines().find(|line| line.ends_with(name)).unwrap();
            line.split(' ').next().unwrap().contains('F')
        };
        assert!(has("/Folded") && !has("/exact"), "{flags}");
        // Names are kept as they were given, and new ones find their place.
        let listed = place.run(&["ls", "a.img:/Folded"]).succeeds().out();
        assert!(NAMES.iter().all(|name| listed.lines().any(|line| line == *name)), "{listed}");
        place.run(&["cp", "source/exact/a", "a.img:/FOLDED/x"]).ends_with(9);
        place.run(&["cp", "source/exact/a", "a.img:/Folded/MANY/New"]).succeeds();
        assert_eq!(cat("Folded/many/nEW").succeeds().out(), "small");
        clean(&place, "a.img");
        if support::is_root() && Path::new("/sys/fs/ext4/features/casefold").exists() {
            let mounted = Mounted::of(&place, "a.img");
            assert_eq!(
                mounted.shell("cat Folded/MANY/'readme WITH a longer NAME 77'"),
                "README with a longer name 77"
            );
        } else {
            println!("skipped what the kernel finds: it does not fold case");
        }
    }
}

#[test]
fn names_that_are_one_when_folded_are_refused() {
    let place = Place::new();
    source(&place);
    let build = |more: &[&str]| {
        place.run(&[&["build", "a.img", "--from", "source", "-q", "-F"][..], more].concat())
    };
    build(&["--casefold", "/"]).ends_with(5).complains(&["/exact", "\"A\" and \"a\" are one"]);
    build(&["--casefold", "/none"]).ends_with(9).complains(&["no directory", "/none"]);
    fs::write(place.path("source/Folded").join("STRASSE"), b"").unwrap();
    build(&["--casefold", "Folded"]).ends_with(5).complains(&["STRASSE", "are one"]);
    fs::remove_file(place.path("source/Folded/STRASSE")).unwrap();

    // A name that is not UTF-8 equals itself, unless all names have to be.
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff");
    fs::write(place.path("source/Folded/Many").join(odd), b"odd").unwrap();
    build(&["--casefold", "/Folded"]).succeeds();
    clean(&place, "a.img");
    let strict = ["-E", "encoding=utf8,encoding_flags=strict"];
    build(&[&["--casefold", "/Folded"], &strict[..]].concat())
        .ends_with(5)
        .complains(&["not UTF-8", "strict"]);
    assert!(
        build(&["--casefold", "/Folded", "--for", "linux-5.1"])
            .ends_with(2)
            .err()
            .contains("casefold")
    );
    // A policy of version 1 has no key for the hash of such names.
    fs::write(place.path("key"), [7; 64]).unwrap();
    let both = ["--casefold", "/Folded", "--encrypt", "/Folded=0123456789abcdef=key"];
    build(&both).ends_with(5).complains(&["Folded", "fold case", "version 1"]);
}

#[test]
fn directories_fold_case_and_are_encrypted() {
    let place = Place::new();
    source(&place);
    fs::write(place.path("key"), [7; 64]).unwrap();
    let variants = [
        &["-E", "encoding=utf8"][..],
        &["-b", "1024", "--modes", "hctr2"],
        &["-O", "^metadata_csum,^metadata_csum_seed", "--modes", "adiantum", "--padding", "4"],
        &["-b", "2048", "-O", "^dir_index", "--vectors", "ino-lblk64"],
    ];
    for options in variants {
        let args = ["build", "a.img", "--from", "source", "--casefold", "/Folded", "-F", "-q"];
        let both = [&args[..], &["--encrypt", "/Folded=key"], options].concat();
        place.run(&both).succeeds();
        clean(&place, "a.img");
        place.run(&["check", "a.img"]).succeeds();
        let with_key = |words: &[&str]| {
            place.run(&[&words[..1], &["--key-file", "key"], &words[1..]].concat())
        };
        for name in NAMES {
            for spelling in [name.to_uppercase(), name.to_lowercase(), name.to_owned()] {
                let path = format!("a.img:/Folded/{spelling}");
                assert_eq!(with_key(&["cat", &path]).succeeds().out(), name, "{options:?}");
                for number in [0, 77, 149] {
                    let path = format!("a.img:/Folded/many/{spelling} WITH a longer Name {number}");
                    let whole = format!("{name} with a longer name {number}");
                    assert_eq!(with_key(&["cat", &path]).succeeds().out(), whole, "{options:?}");
                }
            }
        }
        // Without the key each of the names that are shown is found, by the hash that is stored with it.
        let shown = place.run(&["ls", "a.img:/Folded"]).succeeds().out();
        assert_eq!(shown.lines().count(), NAMES.len() + 1);
        assert!(NAMES.iter().all(|name| !shown.lines().any(|line| line == *name)), "{shown}");
        for name in shown.lines() {
            place.run(&["stat", &format!("a.img:/Folded/{name}")]).succeeds();
        }
        with_key(&["cp", "source/exact/a", "a.img:/Folded/MANY/New"]).succeeds();
        assert_eq!(with_key(&["cat", "a.img:/Folded/many/nEW"]).succeeds().out(), "small");
        with_key(&["rm", "a.img:/Folded/MANY/readme with A longer name 77"]).succeeds();
        clean(&place, "a.img");
    }
}

#[test]
fn a_folding_directory_of_the_source_stays_one() {
    let Some(mounts) = mounts() else { return };
    let place = &mounts.place;
    source(place);
    let args = ["build", "a.img", "--from", "source", "--casefold", "/Folded", "-F", "-q"];
    place.run(&args).succeeds();
    mounts.mount(&["-r"]).succeeds();
    place.run(&["build", "b.img", "--from", "m", "-O", "casefold", "-q"]).succeeds();
    let err = place.run(&["build", "c.img", "--from", "m"]).succeeds().err();
    let line = "not kept: flag F (folds case; -O casefold keeps it), of 2 files: Folded";
    assert!(err.contains(line), "{err}");
    mounts.umount();
    clean(place, "b.img");
    clean(place, "c.img");
    let path = "b.img:/Folded/MANY/makefile WITH A longer name 3";
    assert_eq!(place.run(&["cat", path]).succeeds().out(), "Makefile with a longer name 3");
    place.run(&["cat", "c.img:/Folded/makefile"]).ends_with(9);
}
