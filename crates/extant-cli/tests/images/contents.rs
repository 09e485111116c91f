//! The commands that change contents of files in images: against coreutils and util-linux on a
//! mounted image, and against e2fsck.

use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};

use crate::support;
use support::kernel::{Mounted, clean, has_kernel, made, same_as_kernel, same_in, sorted};
use support::{EXTANT, Place, Ran, is_root, tool};

const EXT4: &[&str] = &["-t", "ext4"];

/// Bytes that no two places have in common.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A tree with everything that a copy may keep, as `source` of a place.
fn fill_source(place: &Place) {
    let source = place.path("source");
    std::fs::create_dir_all(source.join("dir/deep")).unwrap();
    std::fs::write(source.join("plain"), b"plain\n").unwrap();
    std::fs::write(source.join("large"), noise(3_000_000)).unwrap();
    std::fs::write(source.join("dir/set-id"), b"#!/bin/sh\n").unwrap();
    std::fs::hard_link(source.join("plain"), source.join("dir/again")).unwrap();
    symlink("../plain", source.join("dir/link")).unwrap();
    symlink("nowhere", source.join("dir/deep/dangling")).unwrap();
    let sparse = std::fs::File::create(source.join("sparse")).unwrap();
    sparse.write_all_at(&noise(70_000), 1 << 20).unwrap();
    sparse.set_len(3 << 20).unwrap();
    std::fs::write(source.join("dir/deep/empty"), b"").unwrap();
    let mode = |name: &str, mode| {
        let permissions = PermissionsExt::from_mode(mode);
        std::fs::set_permissions(source.join(name), permissions).unwrap();
    };
    mode("dir/set-id", 0o4755);
    mode("plain", 0o640);
    mode("large", 0o666);
    mode("dir/deep", 0o700);
    mode("dir", 0o2775);
    let lines = "mkfifo dir/pipe; mknod dir/null c 1 3; chown 5:6 large; chown -h 7:8 dir/link; \
                 setfattr -n user.text -v hello large; setfacl -m u:9:rwx plain; \
                 setfacl -d -m g:6:rw dir/deep; \
                 touch -h -d '2001-02-03 04:05:06.789' plain dir/link dir/deep/empty dir/pipe; \
                 touch -d '1999-01-01 12:00' dir/deep dir .";
    let status = Command::new("sh").args(["-ec", lines]).current_dir(&source).status().unwrap();
    assert!(status.success());
}

/// A place with a source and an image; `None` where the kernel cannot be asked.
fn with_source(options: &[&str]) -> Option<Place> {
    if !has_kernel() {
        return None;
    }
    let place = made(options)?;
    fill_source(&place);
    Some(place)
}

/// `HOST/` stands for the source.
fn lines(place: &Place, lines: &[&str]) -> Vec<String> {
    let source = format!("TEXT:{}/", place.path("source").display());
    lines.iter().map(|line| line.replace("HOST/", &source)).collect()
}

#[test]
fn files_are_copied_into_an_image_as_cp_does() {
    for options in [EXT4, &["-t", "ext2", "-b", "1024"]] {
        let Some(place) = with_source(options) else { return };
        let lines = lines(
            &place,
            &[
                "cp HOST/plain /",
                "cp HOST/large /named",
                "mkdir /into",
                "cp HOST/plain HOST/large HOST/dir/link /into",
                "cp -p HOST/large /kept",
                "cp -r HOST/dir /",
                "cp -r HOST/dir /dir",
                "cp -r HOST/dir/. /into",
                "cp -rT HOST/dir /whole",
                "cp -a HOST/. /all",
                "cp -a HOST/dir /all",
                "cp HOST/plain /named",
                "cp -n HOST/large /plain",
                "cp -d HOST/dir/link /as-link",
                "cp -L HOST/dir/link /followed",
                "cp -t /into HOST/sparse",
                "cp --preserve=mode HOST/dir/set-id /",
                "cp --preserve=timestamps,links HOST/plain HOST/dir/again /whole",
            ],
        );
        let times = "find all kept -printf '%p %T@\\n'";
        same_in(&place, &lines, &[times]);
    }
}

#[test]
fn files_are_copied_out_of_an_image_as_cp_does() {
    let Some(place) = with_source(EXT4) else { return };
    let mounted = Mounted::of(&place, "a.img");
    mounted.shell("cp -a ../source/. . && cp -a sparse dir/sparse");
    drop(mounted);
    for how in [&["-r"][..], &["-a"], &["-rp"], &["-r", "--preserve=links"], &["-rL"]] {
        let (ours, theirs) = (place.path("ours"), place.path("theirs"));
        let args = [&["cp"], how, &["a.img:/dir", "a.img:/large", "a.img:/plain", "ours"]].concat();
        std::fs::create_dir_all(&ours).unwrap();
        std::fs::create_dir_all(&theirs).unwrap();
        let ran = place.run(&args);
        let mounted = Mounted::of(&place, "a.img");
        let line = format!("cp {} dir large plain ../theirs", how.join(" "));
        if how == ["-rL"] {
            // A dangling link is an error to both.
            let ran = ran.ends_with(1);
            assert!(ran.err().contains("/dir/deep/dangling: no such file"), "{}", ran.err());
            // A pipe is a pipe with -r, so nobody waits for one.
            mounted.shell(&format!("{line} 2>/dev/null; true"));
        } else {
            ran.succeeds();
            mounted.shell(&line);
        }
        drop(mounted);
        for question in [
            "find . -mindepth 1 -printf '%P %M %U %G %n %l %s\\n'",
            "find . -type f -exec md5sum {} +",
            "find . -type f -name sparse -printf '%p %b\\n'",
            "getfacl -R -n . | grep -v '^# file: [.]$'",
            "getfattr -R -h -d -m - .",
        ] {
            let ask = |dir: &std::path::Path| {
                let output = Command::new("sh").args(["-c", question]).current_dir(dir).output();
                String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
            };
            assert_eq!(sorted(&ask(&ours)), sorted(&ask(&theirs)), "{how:?} {question}");
        }
        if how == ["-a"] {
            let ask = |dir: &std::path::Path| {
                let find = ["-c", "find . -mindepth 1 -printf '%P %T@\\n'"];
                let output = Command::new("sh").args(find).current_dir(dir).output();
                String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
            };
            assert_eq!(sorted(&ask(&ours)), sorted(&ask(&theirs)));
        }
        std::fs::remove_dir_all(ours).unwrap();
        std::fs::remove_dir_all(theirs).unwrap();
    }
}

#[test]
fn files_are_copied_within_and_between_images() {
    let Some(place) = with_source(EXT4) else { return };
    place.run(&["cp", "-a", "source/.", "a.img:/"]).succeeds();
    place.run(&["cp", "-a", "a.img:/dir", "a.img:/dir2"]).succeeds();
    place.run(&["cp", "a.img:/sparse", "a.img:/sparse2"]).succeeds();
    let args = ["mkfs", "-q", "b.img", "48M"];
    place.run(&args).succeeds();
    place.run(&["cp", "-a", "a.img:/.", "b.img:/copy"]).succeeds();
    clean(&place, "a.img");
    clean(&place, "b.img");
    let (a, b) = (Mounted::of(&place, "a.img"), Mounted::of(&place, "b.img"));
    for question in [
        "find . ! -path '*lost+found' ! -path . -printf '%P %M %U %G %n %l %s %b %T@\\n'",
        "find . -type f -exec md5sum {} +",
        "getfacl -R -n . | grep -v '^# file: [.]$'",
        "getfattr -R -h -d -m - .",
    ] {
        let copy = b.shell(&format!("cd copy && {question}"));
        assert_eq!(sorted(&a.shell(question)), sorted(&copy), "{question}");
    }
    a.shell("cmp sparse sparse2 && cmp large ../source/large && diff -r --no-dereference dir/deep dir2/deep");
    let blocks = a.shell("stat -c %b sparse sparse2");
    assert_eq!(blocks.lines().next(), blocks.lines().nth(1));
}

#[test]
fn holes_are_kept_made_or_filled() {
    let Some(place) = with_source(EXT4) else { return };
    std::fs::write(place.path("zeros"), [noise(5000), vec![0; 1 << 20], noise(5000)].concat())
        .unwrap();
    for (how, most, least) in
        [("auto", 2100 << 9, 1 << 20), ("always", 64 << 10, 8192), ("never", 3 << 20, 1 << 20)]
    {
        let sparse = format!("--sparse={how}");
        place.run(&["cp", &sparse, "zeros", "a.img:/zeros"]).succeeds();
        let stat = place.run(&["stat", "--json", "a.img:/zeros"]).succeeds().json();
        let bytes = stat["allocated_bytes"].as_u64().unwrap();
        assert!((least..=most).contains(&bytes), "{how}: {bytes}");
        place.run(&["cp", &sparse, "a.img:/zeros", "back"]).succeeds();
        assert!(
            std::fs::read(place.path("back")).unwrap()
                == std::fs::read(place.path("zeros")).unwrap()
        );
    }
    clean(&place, "a.img");
}

#[test]
fn copies_that_make_no_sense_are_refused_and_the_others_made() {
    let place = Place::with_image();
    let out = |ran: Ran| (ran.out(), ran.err());
    place.run(&["cp", "source/file", "elsewhere"]).ends_with(2).complains(&["both on the host"]);
    place.run(&["cp", "a.img:/file"]).ends_with(2).complains(&["no destination"]);
    place.run(&["cp", "--owner", "5", "a.img:/file", "x"]).ends_with(2).complains(&["--owner"]);
    place
        .run(&["cp", "a.img:/dir", "a.img:/nothing", "a.img:/file", "."])
        .ends_with(1)
        .complains(&["a.img:/dir", "left out"])
        .hints("-r");
    assert_eq!(std::fs::read(place.path("file")).unwrap(), b"hello\n");
    place.run(&["cp", "a.img:/nothing", "."]).ends_with(9).complains(&["/nothing", "no such file"]);
    place.run(&["cp", "a.img:/file", "no/such"]).complains(&["no"]);
    place
        .run(&["cp", "a.img:/file", "new/"])
        .ends_with(9)
        .complains(&["new/", "no such directory"]);
    let two = ["cp", "a.img:/file", "a.img:/.hidden", "neither"];
    place.run(&two).ends_with(2).complains(&["neither", "no directory"]);
    place
        .run(&["cp", "-r", "a.img:/dir", "a.img:/dir/deep/"])
        .ends_with(7)
        .complains(&["not copied into itself"]);
    place.run(&["cp", "a.img:/file", "a.img:/dir/again"]).ends_with(7).complains(&["same file"]);
    place.run(&["cp", "-r", "a.img:/dir", "file"]).complains(&["directory"]);
    place
        .run(&["cp", "-r", ".", "a.img:/x"])
        .ends_with(1)
        .complains(&["a.img", "open for this copy"]);
    place.run(&["cp", "-f", "a.img:/file", "a.img"]).ends_with(7).complains(&["a.img"]);
    symlink("nowhere", place.path("dangling")).unwrap();
    place.run(&["cp", "a.img:/file", "dangling"]).ends_with(7).complains(&["link to nothing"]);
    assert!(!place.path("nowhere").exists());
    // Two sources of one name.
    std::fs::create_dir(place.path("both")).unwrap();
    place
        .run(&["cp", "a.img:/file", "a.img:/dir/../file", "both"])
        .ends_with(1)
        .complains(&["made just now"]);
    let (shown, _) = out(place.run(&["cp", "-rv", "a.img:/dir", "both"]).succeeds());
    assert!(shown.contains("'a.img:/dir/again' -> 'both/dir/again'"), "{shown}");
}

#[test]
fn links_below_the_destination_are_not_followed() {
    let place = Place::with_image();
    let out = place.path("out");
    std::fs::create_dir_all(out.join("dir")).unwrap();
    std::fs::write(place.path("victim"), b"mine").unwrap();
    symlink("../../victim", out.join("dir/again")).unwrap();
    symlink("../..", out.join("dir/deep")).unwrap();
    place
        .run(&["cp", "-r", "a.img:/dir", "out"])
        .ends_with(1)
        .complains(&["again", "not followed"])
        .hints("-f");
    assert_eq!(std::fs::read(place.path("victim")).unwrap(), b"mine");
    place.run(&["cp", "-rf", "a.img:/dir", "out"]).ends_with(1);
    assert_eq!(std::fs::read(place.path("victim")).unwrap(), b"mine");
    assert_eq!(std::fs::read(out.join("dir/again")).unwrap(), b"hello\n");
    // But the one that was named is.
    symlink("victim", place.path("named")).unwrap();
    place.run(&["cp", "a.img:/file", "named"]).succeeds();
    assert_eq!(std::fs::read(place.path("victim")).unwrap(), b"hello\n");
}

#[test]
fn a_copy_that_does_not_fit_leaves_nothing_half_made() {
    let Some(place) = made(EXT4) else { return };
    std::fs::write(place.path("huge"), noise(80 << 20)).unwrap();
    std::fs::write(place.path("small"), b"small").unwrap();
    place.run(&["cp", "huge", "small", "a.img:/"]).ends_with(1).complains(&["a.img:/huge", "no"]);
    assert_eq!(place.run(&["cat", "a.img:/small"]).succeeds().out(), "small");
    place.run(&["stat", "a.img:/huge"]).ends_with(9);
    place.run(&["cp", "huge", "a.img:/small"]).ends_with(6).complains(&["before is overwritten"]);
    let from = std::fs::File::open(place.path("huge")).unwrap();
    let output = place.command(&["write", "a.img:/small2"]).stdin(from).output().unwrap();
    Ran { args: "write".into(), output }.ends_with(6);
    place.run(&["stat", "a.img:/small2"]).ends_with(9);
    clean(&place, "a.img");
}

fn write(place: &Place, args: &[&str], input: &[u8]) -> Ran {
    use std::io::Write;
    let mut command = place.command(&[&["write"], args].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    Ran { args: args.join(" "), output: child.wait_with_output().unwrap() }
}

/// Capabilities of a program, of version 2.
const CAPABLE: &str = "0x0100000200200000000000000000000000000000";

#[test]
fn writing_replaces_a_file_and_keeps_its_attributes() {
    let place = Place::with_image();
    let cat = |path: &str| place.run(&["cat", path]).succeeds().out();
    write(&place, &["a.img:/new"], b"one\n").succeeds();
    write(&place, &["--mode", "600", "--owner", "5:6", "a.img:/secret"], b"two\n").succeeds();
    let stat = place.run(&["stat", "--json", "a.img:/secret"]).succeeds().json();
    assert_eq!((&stat["mode"], &stat["uid"], &stat["gid"]), (&"0600".into(), &5.into(), &6.into()));
    place.run(&["setfattr", "-n", "user.x", "-v", "y", "a.img:/secret"]).succeeds();
    place.run(&["setfacl", "-m", "u:9:r", "a.img:/secret"]).succeeds();
    place.run(&["chattr", "+d", "a.img:/secret"]).succeeds();
    let before = place.run(&["stat", "--json", "a.img:/secret"]).succeeds().json();
    let capable = ["setfattr", "-n", "security.capability", "-v", CAPABLE, "a.img:/secret"];
    place.run(&capable).succeeds();
    write(&place, &["a.img:/secret"], b"three\n").succeeds();
    let after = place.run(&["stat", "--json", "a.img:/secret"]).succeeds().json();
    for key in ["mode", "uid", "gid", "flags", "xattrs"] {
        assert_eq!(before[key], after[key], "{key}");
    }
    assert_ne!(before["ino"], after["ino"]);
    assert_eq!(cat("a.img:/secret"), "three\n");
    assert!(place.run(&["getfattr", "-d", "a.img:/secret"]).out().contains("user.x=\"y\""));
    assert!(place.run(&["getfacl", "a.img:/secret"]).out().contains("user:9:r--"));
    // Through a link, and with another name, which keeps what it had.
    let ran = write(&place, &["a.img:/dir/link"], b"other\n").succeeds();
    assert!(ran.err().contains("keep the old contents"), "{}", ran.err());
    assert_eq!((cat("a.img:/file"), cat("a.img:/dir/again")), ("other\n".into(), "hello\n".into()));
    write(&place, &["--in-place", "a.img:/dir/again"], b"in place").succeeds();
    assert_eq!(cat("a.img:/dir/again"), "in place");
    clean(&place, "a.img");
}

#[test]
fn writing_changes_a_part_or_the_end_of_a_file() {
    let place = Place::with_image();
    let cat = |path: &str| place.run(&["cat", path]).succeeds().out();
    write(&place, &["--append", "a.img:/file"], b"more\n").succeeds();
    assert_eq!(cat("a.img:/dir/again"), "hello\nmore\n");
    write(&place, &["--at", "1", "a.img:/file"], b"ELL").succeeds();
    assert_eq!(cat("a.img:/file"), "hELLo\nmore\n");
    write(&place, &["--at", "20", "a.img:/file"], b"far").succeeds();
    assert_eq!(cat("a.img:/file"), "hELLo\nmore\n\0\0\0\0\0\0\0\0\0far");
    write(&place, &["--append", "a.img:/made"], b"1").succeeds();
    write(&place, &["--append", "a.img:/made"], b"2").succeeds();
    assert_eq!(cat("a.img:/made"), "12");
    // What was a privileged program is one no more.
    place.run(&["chmod", "6755", "a.img:/made"]).succeeds();
    place.run(&["setfattr", "-n", "security.capability", "-v", CAPABLE, "a.img:/made"]).succeeds();
    write(&place, &["--at", "0", "a.img:/made"], b"1").succeeds();
    assert_eq!(place.run(&["stat", "--json", "a.img:/made"]).json()["mode"], "0755");
    assert!(!place.run(&["getfattr", "-d", "-m", "-", "a.img:/made"]).out().contains("capab"));
    write(&place, &["-c", "a.img:/not-made"], b"x").ends_with(9).complains(&["no such file"]);
    write(&place, &["a.img:/dir"], b"x").complains(&["a.img:/dir"]);
    place.run(&["chattr", "+i", "a.img:/made"]).succeeds();
    write(&place, &["a.img:/made"], b"x").ends_with(7).complains(&["immutable"]);
    place.run(&["chattr", "-i", "a.img:/made"]).succeeds();
    place.run(&["chattr", "+a", "a.img:/made"]).succeeds();
    write(&place, &["a.img:/made"], b"x").ends_with(7).complains(&["appended to"]);
    write(&place, &["--append", "a.img:/made"], b"3").succeeds();
    assert_eq!(cat("a.img:/made"), "123");
    clean(&place, "a.img");
}

#[test]
fn the_input_may_come_from_the_same_image() {
    let place = Place::with_image();
    let line = format!("'{EXTANT}' cat a.img:/file | tr a-z A-Z | '{EXTANT}' write a.img:/file");
    let status = Command::new("sh").args(["-c", &line]).current_dir(place.0.path()).status();
    assert!(status.unwrap().success());
    assert_eq!(place.run(&["cat", "a.img:/file"]).succeeds().out(), "HELLO\n");
}

fn edit(place: &Place, editor: &str, path: &str) -> Ran {
    let mut command = place.command(&["edit", path]);
    command.env_remove("VISUAL").env("EDITOR", editor).env("TMPDIR", place.path("tmp"));
    Ran { args: format!("edit {path} with {editor}"), output: command.output().unwrap() }
}

#[test]
fn editing_puts_back_what_the_editor_saved() {
    let place = Place::with_image();
    std::fs::create_dir(place.path("tmp")).unwrap();
    let cat = |path: &str| place.run(&["cat", path]).succeeds().out();
    let left = || std::fs::read_dir(place.path("tmp")).unwrap().count();
    place.run(&["chmod", "4751", "a.img:/file"]).succeeds();
    edit(&place, "sed -i s/hello/goodbye/", "a.img:/file").succeeds();
    assert_eq!(cat("a.img:/file"), "goodbye\n");
    let stat = place.run(&["stat", "--json", "a.img:/file"]).succeeds().json();
    assert_eq!(stat["mode"], "4751");
    // Nothing saved, nothing written: not even the time.
    let before = std::fs::read(place.path("a.img")).unwrap();
    edit(&place, "true", "a.img:/file").succeeds();
    edit(&place, "touch", "a.img:/file").succeeds();
    edit(&place, "false", "a.img:/file").ends_with(7).complains(&["nothing was changed"]);
    edit(&place, "echo x >", "a.img:/dir").complains(&["a.img:/dir"]);
    edit(&place, "true", "a.img:/absent").succeeds();
    assert!(before == std::fs::read(place.path("a.img")).unwrap());
    assert_eq!(left(), 0);
    // A new file.
    edit(&place, "echo made >", "a.img:/dir/made").succeeds();
    assert_eq!(cat("a.img:/dir/made"), "made\n");
    // Somebody else was faster.
    let meanwhile = format!("'{EXTANT}' touch a.img:/file && echo mine >");
    let ran = edit(&place, &meanwhile, "a.img:/file").ends_with(7).hints("what the editor saved");
    assert_eq!(cat("a.img:/file"), "goodbye\n");
    let err = ran.err();
    let kept = err.split("saved is in ").nth(1).unwrap().trim();
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "mine\n");
    clean(&place, "a.img");
}

#[test]
fn sizes_are_set_as_truncate_does() {
    let lines = [
        "truncate -s 5 /a /b",
        "truncate -s +1M /a",
        "truncate -s -1 /b",
        "truncate -s %4K /b",
        "truncate -s 10000 /c",
        "truncate -s TEXT:/4096 /c",
        "truncate -s '<100' /c",
        "truncate -s '>200' /c",
        "truncate -c -s 7 /absent",
        "truncate -r /a /d",
        "truncate -r /a -s -5 /e",
        "truncate -s 0 /a",
    ];
    same_as_kernel(EXT4, &lines);
    same_as_kernel(&["-t", "ext3", "-b", "1024"], &lines);
    let place = Place::with_image();
    place.run(&["truncate", "a.img:/file"]).ends_with(2);
    place.run(&["truncate", "-s", "9", "-r", "source/file", "a.img:/file"]).ends_with(2);
    place
        .run(&["truncate", "-s", "9", "a.img:/dir", "a.img:/file"])
        .ends_with(1)
        .complains(&["/dir"]);
    place.run(&["truncate", "-r", "source/sparse", "a.img:/file"]).succeeds();
    let stat = place.run(&["stat", "--json", "a.img:/file"]).succeeds().json();
    assert_eq!(stat["size"], (3 << 20) + 3);
}

#[test]
fn space_is_given_and_taken_as_fallocate_does() {
    let Some(place) = with_source(EXT4) else { return };
    let lines = lines(
        &place,
        &[
            "cp HOST/large /a",
            "cp HOST/large /b",
            "cp HOST/large /c",
            "cp HOST/large /d",
            "fallocate -l 1M /new",
            "fallocate -n -o 1M -l 1M /new",
            "fallocate -o 2M -l 5000 /a",
            "fallocate -p -o 5000 -l 300000 /a",
            "fallocate -z -o 1000000 -l 8192 /a",
            "fallocate -z -n -o 4M -l 8192 /a",
            "fallocate -c -o 64K -l 128K /b",
            "fallocate -i -o 64K -l 1M /c",
            "fallocate -p -o 0 -l 8M /d",
        ],
    );
    same_in(&place, &lines, &["find . -type f -printf '%p %b\\n'"]);
}

#[test]
fn zeros_are_dug_out_as_fallocate_does() {
    let Some(place) = with_source(EXT4) else { return };
    let bytes = [vec![0; 6000], noise(5000), vec![0; 2 << 20], noise(100), vec![0; 9000]].concat();
    std::fs::write(place.path("source/zeros"), &bytes).unwrap();
    let lines = lines(&place, &["cp HOST/zeros /a", "fallocate -d /a"]);
    same_in(&place, &lines, &["find . -type f -printf '%p %b\\n'"]);
    // And a part of a file, to the byte.
    place.run(&["cp", "--sparse=never", "source/zeros", "a.img:/b"]).succeeds();
    let allocated = || {
        let stat = place.run(&["stat", "--json", "a.img:/b"]).succeeds().json();
        stat["allocated_bytes"].as_u64().unwrap()
    };
    let before = allocated();
    place.run(&["fallocate", "-d", "-o", "1M", "-l", "64K", "a.img:/b"]).succeeds();
    assert_eq!(before - allocated(), 64 << 10);
    place.run(&["cp", "a.img:/b", "back"]).succeeds();
    assert!(std::fs::read(place.path("back")).unwrap() == bytes);
    clean(&place, "a.img");
}

#[test]
fn ordinary_users_copy_what_they_may() {
    if !is_root() || tool("setpriv", &["--version"], std::path::Path::new("/")).is_none() {
        println!("skipped: needs root and setpriv");
        return;
    }
    let Some(place) = with_source(EXT4) else { return };
    place.run(&["cp", "-a", "source/.", "a.img:/"]).succeeds();
    let image = PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(place.path("a.img"), image).unwrap();
    std::fs::create_dir(place.path("mine")).unwrap();
    std::fs::set_permissions(place.0.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(place.path("mine"), Some(4242), Some(4242)).unwrap();
    let command = ["--reuid=4242", "--regid=4242", "--clear-groups", EXTANT];
    let args = [&command[..], &["cp", "-a", "a.img:/dir", "a.img:/large", "mine"]].concat();
    let output = tool("setpriv", &args, place.0.path()).unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{err}");
    assert!(err.contains("which needs root"), "{err}");
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(place.path("mine/dir/set-id")).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (4242, 0o755));
    assert!(!place.path("mine/dir/null").exists());
}

#[test]
fn free_space_is_given_back() {
    use std::os::unix::fs::MetadataExt;
    let Some(place) = made(EXT4) else { return };
    std::fs::write(place.path("large"), noise(14 << 20)).unwrap();
    place.run(&["cp", "large", "a.img:/gone"]).succeeds();
    place.run(&["cp", "large", "a.img:/stays"]).succeeds();
    place.run(&["rm", "a.img:/gone"]).succeeds();
    let bytes = || std::fs::metadata(place.path("a.img")).unwrap().blocks() * 512;
    let before = bytes();
    let said = place.run(&["fstrim", "-v", "a.img"]).succeeds().out();
    assert!(said.starts_with("a.img: ") && said.ends_with(" trimmed\n"), "{said}");
    assert!(bytes() + (14 << 20) <= before, "{before} {}", bytes());
    let out = place.run(&["cp", "a.img:/stays", "back"]).succeeds().err();
    assert_eq!(out, "");
    assert!(std::fs::read(place.path("back")).unwrap() == noise(14 << 20));
    place.run(&["fstrim", "a.img:/stays"]).ends_with(2);
    place.run(&["fstrim", "-o", "1T", "a.img"]).ends_with(2).complains(&["behind"]);
    clean(&place, "a.img");
}
