//! What comes out of images again: archives, differences, layers. Each is read by another program, or by `build`, and is the
//! same tree.

use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use crate::support;
use support::Place;

/// As root also owners, devices and attributes that only root sets.
fn is_root() -> bool {
    std::env::var("USER").is_ok_and(|user| user == "root") || rustix::process::geteuid().is_root()
}

fn tool(place: &Place, program: &str, args: &[&str]) -> bool {
    support::tool(program, args, place.0.path()).is_some()
}

/// A source with everything that an archive can hold.
fn everything(place: &Place, name: &str) {
    let at = place.path(name);
    let long = "long/".repeat(60);
    std::fs::create_dir_all(at.join(&long)).unwrap();
    std::fs::write(at.join(&long).join("n".repeat(200)), "deep").unwrap();
    symlink("t".repeat(300), at.join("link")).unwrap();
    std::fs::write(at.join("empty"), "").unwrap();
    std::fs::write(at.join("exact"), vec![7; 4096]).unwrap();
    std::fs::write(at.join("one"), "linked").unwrap();
    std::fs::hard_link(at.join("one"), at.join("two")).unwrap();
    std::fs::hard_link(at.join("one"), at.join("long/three")).unwrap();
    let sparse = std::fs::File::create(at.join("sparse")).unwrap();
    for offset in [0, 1 << 20, 5 << 20] {
        sparse.write_all_at(&vec![9; 8192], offset).unwrap();
    }
    sparse.set_len((6 << 20) + 77).unwrap();
    std::fs::File::create(at.join("hole")).unwrap().set_len(3 << 30).unwrap();
    let odd = std::ffi::OsStr::new("odd name\n\u{fc}");
    std::fs::write(at.join(odd), "odd").unwrap();
    // First: a change of owner takes set-id bits away.
    if is_root() {
        let line = "mknod null c 1 3; mknod disk b 259 70000; chown 70000:3000000 two; setcap cap_net_raw+ep exact; setfattr -n trusted.x -v y one; chown -h 5:6 link";
        let _ = tool(place, "sh", &["-c", &format!("cd {name} && {line}")]);
    }
    let shell = [
        "mkfifo pipe; touch -d '1969-12-31 23:59:58.25 UTC' empty; touch -d '2030-01-01 00:00:00.123456789 UTC' exact",
        "chmod 4751 one; chmod 1777 long; setfattr -n user.note -v 'a value' exact; setfattr -n 'user.a=b%3D%41' -v c=d exact; setfacl -m u:1234:rw,g:5:r exact; setfacl -d -m u:7:rwx long",
    ];
    for line in shell {
        let _ = tool(place, "sh", &["-c", &format!("cd {name} && {line}")]);
    }
}

#[test]
fn an_archive_of_an_image_makes_the_same_image_again() {
    let place = Place::new();
    everything(&place, "source");
    place.run(&["build", "a.img", "-q", "--from", "source"]).succeeds();
    place.run(&["tar", "-o", "a.tar", "a.img"]).succeeds();
    let streamed = place.run(&["tar", "a.img"]).succeeds().output.stdout;
    assert!(std::fs::read(place.path("a.tar")).unwrap() == streamed);
    assert!(place.run(&["tar", "-o", "-", "a.img"]).succeeds().output.stdout == streamed);
    assert!(!place.path("-").exists());
    assert!(streamed.len() < 1 << 20, "holes are stored: {} bytes", streamed.len());
    place.run(&["build", "b.img", "-q", "--from", "a.tar"]).succeeds();
    let differences = place.run(&["diff", "a.img", "b.img"]);
    assert_eq!(differences.succeeds().out(), "");
    // The archive of that is the same: access and change times too.
    place.run(&["tar", "-o", "b.tar", "b.img"]).succeeds();
    assert!(std::fs::read(place.path("b.tar")).unwrap() == streamed);
    // GNU tar reads it, and finds the same files on disk.
    let args = [
        "--xattrs",
        "--acls",
        "--xattrs-include=*",
        "-df",
        "a.tar",
        "-C",
        "source",
        "--exclude=./lost+found",
        "--exclude=lost+found",
    ];
    if tool(&place, "tar", &["--version"]) {
        let output = support::tool("tar", &args, place.0.path()).unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "GNU tar finds differences: {text}");
    }
    // A part of an image, and a single file.
    place.run(&["tar", "-o", "long.tar", "a.img:/long"]).succeeds();
    place.run(&["build", "c.img", "-q", "--from", "long.tar"]).succeeds();
    assert!(place.run(&["find", "c.img"]).succeeds().out().contains("\n/three\n"));
    place.run(&["tar", "-o", "one.tar", "a.img:/one"]).succeeds();
    place.run(&["build", "c.img", "-F", "-q", "--from", "one.tar"]).succeeds();
    assert_eq!(place.run(&["cat", "c.img:/one"]).succeeds().out(), "linked");
}

#[test]
fn gnu_tar_extracts_files_that_end_in_a_hole_as_long_as_they_are() {
    let place = Place::new();
    let source = place.path("source");
    std::fs::create_dir(&source).unwrap();
    for (name, contents, size) in [
        ("hole", &b""[..], 1 << 20),
        ("short", b"abc", 5000),
        ("long", b"abc", 1 << 30),
        ("data", b"abc", 3),
    ] {
        std::fs::write(source.join(name), contents).unwrap();
        std::fs::File::options()
            .write(true)
            .open(source.join(name))
            .unwrap()
            .set_len(size)
            .unwrap();
    }
    let both = std::fs::File::create(source.join("both")).unwrap();
    both.write_all_at(b"in the middle", 1 << 20).unwrap();
    both.set_len(3 << 20).unwrap();
    place.run(&["build", "a.img", "-q", "--from", "source"]).succeeds();
    place.run(&["tar", "-o", "a.tar", "a.img"]).succeeds();
    std::fs::create_dir(place.path("out")).unwrap();
    let args = ["-C", "out", "-xf", "a.tar"];
    let Some(output) = support::tool("tar", &args, place.0.path()) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in ["hole", "short", "long", "data", "both"] {
        let size = |dir: &str| std::fs::metadata(place.path(dir).join(name)).unwrap().len();
        assert_eq!(size("out"), size("source"), "{name}");
    }
    for name in ["short", "data", "both"] {
        let bytes = |dir: &str| std::fs::read(place.path(dir).join(name)).unwrap();
        assert!(bytes("out") == bytes("source"), "{name}");
    }
}

#[test]
fn an_archive_takes_the_place_of_an_archive_and_of_no_image() {
    let place = Place::with_image();
    place.run(&["build", "b.img", "-q", "--from", "source"]).succeeds();
    let before = std::fs::read(place.path("a.img")).unwrap();
    std::os::unix::fs::symlink("a.img", place.path("link")).unwrap();
    for out in ["a.img", "./a.img", "link"] {
        for args in [&["tar", "-o", out, "a.img"][..], &["tar", "-o", out, "b.img"]] {
            let ran = place.run(args).ends_with(7).complains(&["an ext4 file system"]);
            ran.hints("another name");
        }
        place.run(&["diff", "--layer", out, "a.img", "b.img"]).ends_with(2);
        assert!(std::fs::read(place.path("a.img")).unwrap() == before, "{out}");
    }
    std::fs::write(place.path("a.tar"), "notes").unwrap();
    for _ in 0..2 {
        place.run(&["tar", "-o", "a.tar", "a.img"]).succeeds();
    }
    place.run(&["build", "c.img", "-q", "--from", "a.tar"]).succeeds();
}

#[test]
fn what_differs_is_named_and_counts_in_the_exit_code() {
    let place = Place::new();
    everything(&place, "source");
    place.run(&["build", "a.img", "-q", "--from", "source"]).succeeds();
    std::fs::copy(place.path("a.img"), place.path("b.img")).unwrap();
    assert_eq!(place.run(&["diff", "a.img", "b.img"]).succeeds().out(), "");
    for change in [
        &["chmod", "600", "b.img:/one"][..],
        &["rm", "b.img:/exact"],
        &["mkdir", "b.img:/new"],
        &["setfattr", "-n", "user.x", "-v", "y", "b.img:/empty"],
        &["truncate", "-s", "10", "b.img:/sparse"],
        &["rm", "b.img:/pipe"],
        &["mkdir", "b.img:/pipe"],
    ] {
        place.run(change).succeeds();
    }
    let ran = place.run(&["diff", "--ignore-mtime", "a.img", "b.img"]).ends_with(1);
    let wanted = "M /empty: xattrs\n- /exact\nM /long/three: mode 4751 -> 0600\n+ /new\nM /one: mode 4751 -> 0600\n\
                  M /pipe: kind pipe -> directory, mode 0644 -> 0755\nM /sparse: size 6291533 -> 10, contents\n\
                  M /two: mode 4751 -> 0600\n";
    assert_eq!(ran.out(), wanted);
    let json = place.run(&["diff", "--json", "a.img", "b.img"]).ends_with(1).out();
    assert!(
        json.lines().any(|line| line.contains("\"/exact\"") && line.contains("\"removed\"")),
        "{json}"
    );
    assert!(
        json.lines().any(|line| line.contains("\"path\":\"/\"") && line.contains("mtime")),
        "{json}"
    );
    assert_eq!(place.run(&["diff", "-q", "a.img", "b.img"]).ends_with(1).out(), "");
    // A hard link that is a copy in the other.
    std::fs::copy(place.path("a.img"), place.path("c.img")).unwrap();
    place.run(&["rm", "c.img:/two"]).succeeds();
    place.run(&["cp", "-a", "c.img:/one", "c.img:/two"]).succeeds();
    let ran = place.run(&["diff", "--ignore-mtime", "a.img", "c.img"]).ends_with(1);
    assert_eq!(ran.out(), "M /two: links\n");
    // Trouble is 2, whatever it is.
    place.run(&["diff", "a.img", "gone.img"]).ends_with(2).complains(&["gone.img"]);
    place.run(&["diff", "a.img", "source/one"]).ends_with(2);
    place.run(&["diff", "a.img:/gone", "a.img"]).ends_with(2).complains(&["/gone"]);
}

#[test]
fn a_layer_makes_the_new_image_of_the_old() {
    let place = Place::new();
    everything(&place, "source");
    place.run(&["build", "a.img", "-q", "--from", "source", "--size", "auto+16M"]).succeeds();
    place.run(&["tar", "-o", "a.tar", "a.img"]).succeeds();
    std::fs::write(place.path("text"), "new text").unwrap();
    let changes: &[&[&[&str]]] = &[
        &[],
        &[&["rm", "b.img:/exact"], &["cp", "text", "b.img:/added"]],
        &[&["rm", "-r", "b.img:/long"], &["cp", "text", "b.img:/long"]],
        &[&["rm", "b.img:/empty"], &["mkdir", "b.img:/empty"], &["cp", "text", "b.img:/empty/x"]],
        // Files of several names: one more, one changed through another, one torn off.
        &[&["ln", "b.img:/two", "b.img:/four"]],
        &[&["chmod", "600", "b.img:/two"]],
        &[&["rm", "b.img:/two"], &["cp", "text", "b.img:/two"]],
        &[&["rm", "b.img:/one"], &["ln", "b.img:/exact", "b.img:/one"]],
        &[
            &["setfattr", "-n", "user.x", "-v", "y", "b.img:/"],
            &["truncate", "-s", "9M", "b.img:/sparse"],
        ],
        &[&["rm", "-r", "b.img:/long/long"]],
    ];
    for steps in changes {
        std::fs::copy(place.path("a.img"), place.path("b.img")).unwrap();
        for step in *steps {
            place.run(step).succeeds();
        }
        let differs = i32::from(!steps.is_empty());
        place.run(&["diff", "--layer", "l.tar", "a.img", "b.img"]).ends_with(differs);
        place.run(&["build", "c.img", "-F", "-q", "--from", "a.tar", "--from", "l.tar"]).succeeds();
        let left = place.run(&["diff", "b.img", "c.img"]);
        assert_eq!(left.out(), "", "{steps:?}");
        left.succeeds();
        let layer = std::fs::metadata(place.path("l.tar")).unwrap().len();
        assert!(layer <= 40 << 10, "{steps:?}: {layer} bytes");
        if steps.is_empty() {
            assert_eq!(layer, 10_240);
        }
    }
    // A name that would be a whiteout cannot be in a layer.
    place.run(&["cp", "text", "b.img:/.wh.x"]).succeeds();
    let before = place.names();
    let refused = place.run(&["diff", "--layer", "m.tar", "a.img", "b.img"]);
    refused.ends_with(2).complains(&["/.wh.x", "is a whiteout"]);
    assert_eq!(place.names(), before);
    assert!(!Path::new(&place.path("m.tar")).exists());
}

/// The hash tree of dm-verity, as veritysetup reads it.
#[test]
fn a_sealed_image_is_what_veritysetup_verifies() {
    let place = Place::with_image();
    let build = |out: &str, args: &[&str]| {
        let args = [&["build", out, "-q", "-F", "--json", "--from", "source"], args].concat();
        let output = place.command(&args).env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap();
        let ran = support::Ran { args: args.join(" "), output }.succeeds();
        serde_json::from_str::<serde_json::Value>(&ran.out()).unwrap()
    };
    let appended = build("a.img", &["--verity"]);
    let verity = &appended["verity"];
    let text = |key: &str| verity[key].as_str().unwrap().to_owned();
    let (root, offset) = (text("root_hash"), verity["offset"].as_u64().unwrap());
    assert_eq!(appended["size_bytes"].as_u64().unwrap(), offset);
    let len = std::fs::metadata(place.path("a.img")).unwrap().len();
    assert_eq!(len, offset + verity["bytes"].as_u64().unwrap());
    // The same with any number of threads, and beside the image.
    assert_eq!(build("b.img", &["--verity", "--threads", "1"])["verity"]["root_hash"], root);
    let sealed = std::fs::read(place.path("a.img")).unwrap();
    assert!(std::fs::read(place.path("b.img")).unwrap() == sealed);
    assert_eq!(build("c.img", &["--verity=c.hash"])["verity"]["root_hash"], root);
    let (image, hashes) = sealed.split_at(offset as usize);
    assert!(std::fs::read(place.path("c.img")).unwrap() == image);
    assert!(std::fs::read(place.path("c.hash")).unwrap() == hashes);
    // Without JSON the root hash is a line on standard output. Blocks of 1 KiB; the odd one of the size is left
    // out, as by mke2fs.
    let args =
        ["build", "d.img", "-q", "--from", "source", "--size", "20001K", "-b", "1024", "--verity"];
    let line = place.run(&args).succeeds().out();
    let odd_root = line.trim().strip_prefix("verity root hash: ").unwrap().to_owned();
    let check = place.run(&["check", "d.img"]);
    check.succeeds();
    let odd_offset = 20_000u64 << 10;
    // What the plan says, and where it cannot be.
    let plan = place.run(&["build", "e.img", "--from", "source", "--verity", "--plan"]).succeeds();
    assert!(plan.out().contains("Verity: "), "{}", plan.out());
    place.run(&["build", "-", "--from", "source", "--verity"]).ends_with(2).hints("--verity=FILE");
    place.run(&["build", "e.img", "--from", "source", "--verity=e.img"]).ends_with(2);
    place.run(&["build", "e.img", "--from", "source", "--verity=c.img"]).ends_with(7);
    assert!(!place.path("e.img").exists());
    let Ok(()) = std::process::Command::new("veritysetup").arg("--version").output().map(drop)
    else {
        println!("skipped: veritysetup is not installed");
        return;
    };
    let verify = |data: &str, hash: &str, root: &str, offset: u64| {
        let mut command = std::process::Command::new("veritysetup");
        command.args(["verify", data, hash, root, &format!("--hash-offset={offset}")]);
        command.current_dir(place.0.path()).output().unwrap().status.success()
    };
    assert!(verify("a.img", "a.img", &root, offset));
    assert!(verify("c.img", "c.hash", &root, 0));
    assert!(verify("d.img", "d.img", &odd_root, odd_offset));
    let mut damaged = sealed;
    damaged[(offset / 2) as usize] ^= 1;
    std::fs::write(place.path("a.img"), damaged).unwrap();
    assert!(!verify("a.img", "a.img", &root, offset));
}

/// Blocks of 4 KiB that differ, the longer image's tail counted.
fn changed_blocks(place: &Place, old: &str, new: &str) -> usize {
    let (old, new) =
        (std::fs::read(place.path(old)).unwrap(), std::fs::read(place.path(new)).unwrap());
    let differ = old.chunks(4096).zip(new.chunks(4096)).filter(|(a, b)| a != b).count();
    differ + old.len().abs_diff(new.len()).div_ceil(4096)
}

/// A tree of 600 files with contents that compress to nothing else, and what becomes of it.
fn release(place: &Place, number: u32) {
    let at = place.path("source");
    for file in 0..600u32 {
        let path = at.join(format!("dir{}/file{file}", file / 30));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let changed = number * u32::from(file % 100 == 7);
        let byte =
            |at: u32| (file.wrapping_mul(2_654_435_761) ^ at.wrapping_mul(40_503 + changed)) as u8;
        let bytes: Vec<u8> = (0..(file * 37) % 40_000).map(byte).collect();
        if std::fs::read(&path).is_ok_and(|old| old == bytes) {
            continue;
        }
        std::fs::write(path, bytes).unwrap();
    }
    if number > 0 {
        // Some are gone, some are new, one is longer, one has another place.
        std::fs::remove_file(at.join("dir0/file3")).unwrap();
        std::fs::remove_dir_all(at.join("dir5")).unwrap();
        std::fs::create_dir(at.join("added")).unwrap();
        std::fs::write(at.join("added/first"), vec![1; 50_000]).unwrap();
        std::fs::write(at.join("dir1/another"), vec![2; 9000]).unwrap();
        std::fs::write(at.join("dir2/file80"), vec![3; 300_000]).unwrap();
        std::fs::rename(at.join("dir9/file290"), at.join("added/file290")).unwrap();
    }
}

#[test]
fn over_a_base_little_changes_and_the_tree_is_the_same() {
    let place = Place::new();
    release(&place, 0);
    let options: [&[&str]; 6] = [
        &[],
        &["-b", "1024"],
        &["-O", "bigalloc,quota"],
        &["-O", "^extents,^64bit,^metadata_csum,^metadata_csum_seed,^flex_bg"],
        &["-O", "inline_data,orphan_file", "--profile", "microvm"],
        &["--fs-verity"],
    ];
    for (number, options) in options.iter().enumerate() {
        let base = format!("base{number}.img");
        place.run(&[&["build", &base, "-q", "--from", "source"], *options].concat()).succeeds();
        // Nothing changed, and nothing changes, though neither UUID nor time were given.
        let same = ["build", "same.img", "-F", "-q", "--from", "source", "--base", &base];
        place.run(&[&same, *options].concat()).succeeds();
        assert_eq!(changed_blocks(&place, &base, "same.img"), 0, "{options:?}");
    }
    release(&place, 1);
    for (number, options) in options.iter().enumerate() {
        let base = format!("base{number}.img");
        let build = |name, more: &[&str]| {
            let args = ["build", name, "-F", "-q", "--from", "source"];
            place.run(&[&args, *options, more].concat()).succeeds();
        };
        build("anew.img", &[]);
        build("over.img", &["--base", &base]);
        build("again.img", &["--base", &base, "--threads", "1"]);
        assert_eq!(changed_blocks(&place, "over.img", "again.img"), 0, "{options:?}");
        place.run(&["check", "-q", "over.img"]).succeeds();
        if let Some(checked) = support::tool("e2fsck", &["-fn", "over.img"], place.0.path()) {
            assert!(checked.status.success(), "{options:?}: {checked:?}");
        }
        // Only lost+found knows when the image was made.
        let differences = place.run(&["diff", "--ignore-mtime", "anew.img", "over.img"]);
        assert_eq!(differences.succeeds().out(), "", "{options:?}");
        let (anew, over) =
            (changed_blocks(&place, &base, "anew.img"), changed_blocks(&place, &base, "over.img"));
        assert!(over * 4 < anew, "{options:?}: {over} blocks changed, {anew} without a base");
    }
}

#[test]
fn a_base_that_cannot_be_one_is_named() {
    let place = Place::new();
    release(&place, 0);
    place.run(&["build", "base.img", "-q", "--from", "source"]).succeeds();
    let build = ["build", "new.img", "-q", "--from", "source", "--base"];
    let refused = |more: &[&str], code: i32, words: &str| {
        let told = place.run(&[&build[..], more].concat());
        let (found, error) =
            (told.output.status.code(), String::from_utf8_lossy(&told.output.stderr).into_owned());
        assert_eq!(found, Some(code), "{error}");
        assert!(error.contains(words), "{error}");
        assert!(!place.path("new.img").exists());
    };
    refused(&["base.img", "-b", "1024"], 5, "the base has blocks of 4096 bytes");
    std::fs::write(place.path("text"), "no image").unwrap();
    refused(&["text"], 4, "text");
    refused(&["missing.img"], 8, "missing.img");
    // Zeros over everything behind the first blocks of inode tables and directories.
    let image = std::fs::OpenOptions::new().write(true).open(place.path("base.img")).unwrap();
    image.write_all_at(&vec![0x55; 1 << 20], 200 << 10).unwrap();
    refused(&["base.img"], 4, "--base base.img:");
    // An older one that is smaller, in which nothing fits any more.
    place.run(&["mkfs", "small.img", "3M", "-q", "-b", "4096"]).succeeds();
    place.run(&[&build[..], &["small.img"]].concat()).succeeds();
    place.run(&["check", "-q", "new.img"]).succeeds();
}

#[test]
fn a_base_that_lies_is_refused_or_changes_no_file() {
    let place = Place::new();
    release(&place, 0);
    // Without checksums, lies are not found at once.
    let features = ["-O", "^metadata_csum,^metadata_csum_seed,^uninit_bg"];
    place
        .run(&[&["build", "base.img", "-q", "--from", "source"], &features[..]].concat())
        .succeeds();
    release(&place, 1);
    place
        .run(&[&["build", "anew.img", "-q", "--from", "source"], &features[..]].concat())
        .succeeds();
    let sound = std::fs::read(place.path("base.img")).unwrap();
    let (mut state, mut built) = (7u64, 0);
    let mut random = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..24 {
        let mut base = sound.clone();
        for _ in 0..=random(8) {
            // Superblock and descriptors; or whatever there is in front of the contents.
            let at = if random(4) == 0 { 1024 + random(8192) } else { random(400 << 10) } as usize
                / 4
                * 4;
            let word = base[at..at + 4].try_into().map(u32::from_le_bytes).unwrap();
            let lie = match random(4) {
                0 => word ^ (1 << random(32)),
                1 => word.wrapping_add(1),
                2 => u32::MAX,
                _ => random(1 << 20) as u32,
            };
            base[at..at + 4].copy_from_slice(&lie.to_le_bytes());
        }
        std::fs::write(place.path("lie.img"), base).unwrap();
        let args = ["build", "over.img", "-F", "-q", "--from", "source", "--base", "lie.img"];
        let told = place.run(&[&args, &features[..]].concat());
        match told.output.status.code() {
            Some(0) => {}
            Some(4 | 5) => continue,
            code => panic!("round {round}: {code:?}: {:?}", told.output),
        }
        built += 1;
        place.run(&["check", "-q", "over.img"]).succeeds();
        let differences = place.run(&["diff", "--ignore-mtime", "anew.img", "over.img"]);
        assert_eq!(differences.succeeds().out(), "", "round {round}");
    }
    assert!(built > 2 && built < 24, "{built} of 24 were built over");
}
