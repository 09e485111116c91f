//! `build --encrypt`: directories that are encrypted in the image, read with the key by extant and by the kernel.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::support;
use support::kernel::{Mounted, clean};
use support::{Place, is_root, tool};

/// Gives the kernel the key in a file, for a mounted file system.
const ADD_KEY: &str = r#"
import fcntl, os, struct, sys
raw = open(sys.argv[2], "rb").read()
arg = bytearray(struct.pack("<II", 2, 0) + bytes(32) + struct.pack("<II", len(raw), 0) + bytes(32) + raw)
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0xC0506617, arg, True)
"#;

const SECRET: &[u8] = b"nobody shall read this line";

fn add_key(mounted: &Path, key: &Path) -> bool {
    let done = Command::new("python3").args(["-c", ADD_KEY]).args([mounted, key]).output();
    match done {
        Ok(done) if done.status.success() => true,
        other => {
            println!("skipped: the kernel takes no key: {other:?}");
            false
        }
    }
}

/// A source with the directory `home`, of everything that an encrypted directory can have; and keys.
fn source() -> Place {
    let place = Place::new();
    let home = place.path("source/home");
    fs::create_dir_all(home.join("deep/deeper")).unwrap();
    fs::create_dir_all(home.join("many")).unwrap();
    for size in [0, 1, 15, 16, 1023, 1024, 4095, 4096, 4097, 1_048_579] {
        let bytes: Vec<u8> = SECRET.iter().copied().cycle().take(size).collect();
        fs::write(home.join(format!("deep/{size} bytes")), bytes).unwrap();
    }
    for number in 0..500 {
        let name = format!("many/secret name of a file, number {number}");
        fs::write(home.join(name), number.to_string()).unwrap();
    }
    fs::write(home.join("n".repeat(255)), b"long").unwrap();
    fs::write(home.join("s"), b"short").unwrap();
    let sparse = fs::File::create(home.join("sparse")).unwrap();
    sparse.write_all_at(SECRET, 200_000).unwrap();
    sparse.set_len(3_000_000).unwrap();
    fs::hard_link(home.join("s"), home.join("deep/deeper/second")).unwrap();
    for (name, len) in
        [("l1", 1), ("l30", 30), ("l32", 32), ("l33", 33), ("l58", 58), ("l900", 900)]
    {
        symlink("t".repeat(len), home.join(name)).unwrap();
    }
    let pipe = tool("mkfifo", &["source/home/pipe"], place.0.path()).unwrap();
    assert!(pipe.status.success());
    fs::create_dir(place.path("source/open")).unwrap();
    fs::write(place.path("source/open/file"), b"for everybody").unwrap();
    // Small inodes have whole seconds.
    let touch = ["source", "-exec", "touch", "-h", "-d", "@1700000000", "{}", "+"];
    assert!(tool("find", &touch, place.0.path()).unwrap().status.success());
    let raw: Vec<u8> = (0..64).map(|n| n * 3 + 3).collect();
    fs::write(place.path("key"), raw).unwrap();
    fs::write(place.path("other"), [9; 64]).unwrap();
    fs::write(place.path("short"), [9; 16]).unwrap();
    place
}

#[test]
fn extant_and_the_kernel_read_with_the_key_what_was_built() {
    let place = source();
    place.run(&["build", "plain.img", "--from", "source", "-q"]).succeeds();
    for options in [&["-b", "4096"][..], &["-b", "1024"], &["-O", "inline_data"], &["-I", "128"]] {
        let args = ["build", "a.img", "--from", "source", "--encrypt", "/home=key", "-F", "-q"];
        let args = [&args[..], &["--size", "auto+4M"], options].concat();
        place.run(&args).succeeds();
        clean(&place, "a.img");
        place.run(&["check", "a.img"]).succeeds();
        for dir in ["home", "open"] {
            let (plain, built) = (format!("plain.img:/{dir}"), format!("a.img:/{dir}"));
            let diff = place.run(&["diff", "--key-file", "key", &plain, &built]);
            assert_eq!(diff.succeeds().out(), "", "{options:?}");
        }
        let image = fs::read(place.path("a.img")).unwrap();
        for secret in [SECRET, b"secret name", b"tttttttt", b"nnnnnnnn"] {
            assert!(!image.windows(secret.len()).any(|bytes| bytes == secret), "{options:?}");
        }
        assert!(image.windows(13).any(|bytes| bytes == b"for everybody"));
        if !is_root() {
            println!("skipped what the kernel sees: needs root");
            continue;
        }
        let mounted = Mounted::of(&place, "a.img");
        let names = |text: String| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
        // Both show the same names without the key.
        for dir in ["home", "home/*/ | grep -v :"] {
            let theirs = names(mounted.shell(&format!("ls -A {dir}")));
            assert!(!theirs.iter().any(|name| name.contains("secret")), "{theirs:?}");
        }
        let ours = names(place.run(&["ls", "a.img:/home"]).succeeds().out());
        assert_eq!(ours, names(mounted.shell("ls -A home")));
        if !add_key(&mounted.0, &place.path("key")) {
            continue;
        }
        let differ = mounted.shell("diff -r --no-dereference home ../source/home 2>&1; true");
        assert_eq!(differ, "File home/pipe is a fifo while file ../source/home/pipe is a fifo\n");
        assert_eq!(mounted.shell("cat home/deep/deeper/second open/file"), "shortfor everybody");
        // It goes on where the build ended.
        mounted.shell("echo new > home/many/new && mkdir home/made && mv home/s home/made/moved");
        mounted.shell(
            "rm home/sparse && ln -s where home/made/link && echo more >> 'home/deep/15 bytes'",
        );
        drop(mounted);
        clean(&place, "a.img");
        let cat = |path: &str| {
            place
                .run(&["cat", "--key-file", "key", &format!("a.img:/home/{path}")])
                .succeeds()
                .out()
        };
        assert_eq!((cat("many/new"), cat("made/moved")), ("new\n".into(), "short".into()));
        assert_eq!(cat("deep/15 bytes"), "nobody shall remore\n");
    }
}

#[test]
fn builds_with_an_epoch_are_equal_and_others_are_not() {
    let place = source();
    let build = |image: &str, more: &[&str]| {
        let args = ["build", image, "--from", "source", "--encrypt", "/home=key", "-F", "-q"];
        place.run(&[&args[..], more].concat()).succeeds();
        fs::read(place.path(image)).unwrap()
    };
    let epoch = ["--mtime-clamp", "1700000000"];
    let one = build("a.img", &[&epoch[..], &["--threads", "1"]].concat());
    assert!(one == build("b.img", &[&epoch[..], &["--threads", "4"]].concat()));
    // A UUID of its own is all that it takes to have other ciphertexts.
    let uuid = ["-U", "6b5f2f2e-9c0e-4a53-8f41-4a8c6c1f9b1d"];
    let other = build("c.img", &[&epoch[..], &uuid].concat());
    let encrypted = |image: &str| {
        let place_of =
            ["extents", "--json", "--key-file", "key", &format!("{image}:/home/deep/4096 bytes")];
        let extent = place.run(&place_of).succeeds().json_lines().remove(0);
        extent["physical_byte"].as_u64().unwrap() as usize
    };
    let (at, there) = (encrypted("a.img"), encrypted("c.img"));
    assert!(one[at..at + 4096] != other[there..there + 4096]);
    // Without an epoch nonces are random, even if everything else is given.
    let (first, second) = (build("d.img", &uuid), build("e.img", &uuid));
    let (at, there) = (encrypted("d.img"), encrypted("e.img"));
    assert!(first[at..at + 4096] != second[there..there + 4096]);
}

#[test]
fn what_cannot_be_encrypted_is_refused_by_name() {
    let place = source();
    fs::hard_link(place.path("source/home/s"), place.path("source/open/outside")).unwrap();
    let build = |more: &[&str]| {
        place.run(&[&["build", "a.img", "--from", "source", "-q"][..], more].concat())
    };
    build(&["--encrypt", "/none=key"]).ends_with(9).complains(&["no directory", "/none"]);
    build(&["--encrypt", "/home"]).ends_with(2).complains(&["no DIR=FILE"]);
    build(&["--encrypt", "/home=missing"]).ends_with(2).complains(&["missing"]);
    build(&["--encrypt", "/home=short"]).ends_with(2).complains(&["16 bytes is too short"]);
    build(&["--encrypt", "/=key"]).ends_with(3).complains(&["cannot be encrypted"]);
    build(&["--encrypt", "/home=key"]).ends_with(3).complains(&["another name in", "open"]);
    let both = ["--encrypt", "/home=key", "--encrypt", "/open=other"];
    build(&both).ends_with(3).complains(&["another name in"]);
    let nested = ["--encrypt", "/home=key", "--encrypt", "/home/deep=key"];
    build(&nested).ends_with(3).complains(&["below two directories", "home/deep"]);
    fs::remove_file(place.path("source/open/outside")).unwrap();
    build(&["--encrypt", "/home=key", "--fs-verity"])
        .ends_with(5)
        .complains(&["to be encrypted and sealed"]);
    build(&["--encrypt", "/home=key", "--for", "linux-4.0"])
        .ends_with(2)
        .complains(&["linux-4.0 cannot read", "encrypt"]);
    assert!(!place.path("a.img").exists());
    // Two directories, two keys: each is read with its own.
    build(&both).succeeds();
    clean(&place, "a.img");
    place.run(&["cat", "--key-file", "other", "a.img:/open/file"]).succeeds();
    place.run(&["cat", "--key-file", "other", "a.img:/home/s"]).ends_with(9);
    let keys = ["--key-file", "key", "--key-file", "other"];
    place.run(&[&["cat"][..], &keys, &["a.img:/home/s"]].concat()).succeeds();
}
