//! The finished command: what each sub-command prints, its errors, its exit codes.
//!
//! Run as root, it also runs as user 65534, to show that root is not needed.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support;
use support::{EXTANT, Place, Ran, is_root, tool};

#[test]
fn ls_lists_by_name_raw_into_pipes() {
    let place = Place::with_image();
    let ran = place.run(&["ls", "a.img"]).succeeds();
    assert_eq!(ran.output.stdout, b"dir\nfile\nlost+found\nodd\n\xff\nsparse\n");
    let all = place.run(&["ls", "-a", "-0", "a.img:/"]).succeeds();
    assert_eq!(all.output.stdout, b".\0..\0.hidden\0dir\0file\0lost+found\0odd\n\xff\0sparse\0");
    let long = place.run(&["ls", "-ln", "a.img:/dir"]).succeeds().out();
    assert!(long.lines().any(|line| line.ends_with(" link -> ../file")), "{long}");
    assert!(long.lines().any(|line| line.starts_with("-rw") && line.ends_with(" again")), "{long}");
    let deep = place.run(&["ls", "-R", "a.img:/dir"]).succeeds().out();
    assert_eq!(deep, "/dir:\nagain\ndeep\nlink\n\n/dir/deep:\n");
}

#[test]
fn json_says_the_same_in_every_command() {
    let place = Place::with_image();
    let listed = place.run(&["ls", "--json", "a.img"]).succeeds().json_lines();
    let file = listed.iter().find(|value| value["name"] == "file").unwrap();
    assert_eq!((&file["size"], &file["links"]), (&6.into(), &2.into()));
    let odd = listed.iter().find(|value| value.get("name_hex").is_some()).unwrap();
    assert_eq!(odd["name_hex"], "6f64640aff");
    let stat = place.run(&["stat", "--json", "a.img:/file"]).succeeds().json();
    for key in ["ino", "size", "mode", "mtime", "uid"] {
        assert_eq!(stat[key], file[key], "{key}");
    }
    let host = std::fs::metadata(place.path("source/file")).unwrap();
    assert_eq!(stat["mtime"]["sec"], host.mtime());
    assert_eq!(stat["mtime"]["nsec"], host.mtime_nsec());
    let info = place.run(&["info", "--json", "--groups", "a.img"]).succeeds().json();
    let size = std::fs::metadata(place.path("a.img")).unwrap().len();
    assert_eq!((&info["type"], &info["size_bytes"]), (&"ext4".into(), &size.into()));
    assert_eq!(info["groups"].as_array().unwrap().len() as u64, info["group_count"]);
    let tree = place.run(&["tree", "--json", "a.img"]).succeeds().json_lines();
    let found = place.run(&["find", "--json", "a.img"]).succeeds().json_lines();
    assert_eq!(tree.len(), found.len());
}

#[test]
fn tree_stat_and_extents_for_people() {
    let place = Place::with_image();
    let tree = place.run(&["tree", "a.img:/dir"]).succeeds().out();
    assert_eq!(tree, "/dir\n├── again\n├── deep\n└── link -> ../file\n\n1 directory, 2 files\n");
    let stat = place.run(&["stat", "a.img:/dir"]).succeeds().out();
    assert!(stat.contains("Mode: 0710 (drwx--x---)"), "{stat}");
    let extents = place.run(&["extents", "a.img:/sparse"]).succeeds().out();
    assert!(extents.contains("768..768") && extents.ends_with("1 extent\n"), "{extents}");
    let extents = place.run(&["extents", "--json", "a.img:/sparse"]).succeeds().json_lines();
    assert_eq!(extents[0]["logical_byte"], 3 << 20);
}

#[test]
fn cat_gives_contents_and_ranges() {
    let place = Place::with_image();
    assert_eq!(place.run(&["cat", "a.img:/dir/link"]).succeeds().out(), "hello\n");
    let part = place.run(&["cat", "--from", "1", "--length", "3", "a.img:/file"]).succeeds();
    assert_eq!(part.out(), "ell");
    let sparse = place.run(&["cat", "a.img:/sparse"]).succeeds();
    assert!(sparse.output.stdout == std::fs::read(place.path("source/sparse")).unwrap());
    assert_eq!(place.run(&["cat", "--from", "9M", "a.img:/sparse"]).succeeds().out(), "");
}

#[test]
fn find_takes_the_options_of_find() {
    let place = Place::with_image();
    let found = |args: &[&str]| place.run(args).succeeds().out();
    assert_eq!(found(&["find", "a.img", "-name", "li*"]), "/dir/link\n");
    assert_eq!(found(&["find", "a.img:/dir", "-type", "d", "-mindepth", "1"]), "/dir/deep\n");
    assert_eq!(found(&["find", "a.img", "-size", "+1M"]), "/sparse\n");
    assert_eq!(found(&["find", "a.img", "-perm", "710"]), "/dir\n");
    assert_eq!(found(&["find", "a.img", "-iname", "FILE", "-print0"]), "/file\0");
    assert_eq!(found(&["find", "a.img:/dir", "-maxdepth", "0"]), "/dir\n");
    place.run(&["find", "a.img", "-type", "x"]).ends_with(2);
}

#[test]
fn extract_restores_what_was_built() {
    let place = Place::with_image();
    place.run(&["extract", "a.img", "out"]).succeeds();
    let out = place.path("out");
    let meta = |name: &str| std::fs::symlink_metadata(out.join(name)).unwrap();
    assert_eq!(std::fs::read(out.join("file")).unwrap(), b"hello\n");
    assert_eq!(meta("file").ino(), meta("dir/again").ino());
    assert_eq!(std::fs::read_link(out.join("dir/link")).unwrap(), Path::new("../file"));
    assert_eq!(meta("dir").mode() & 0o7777, 0o710);
    assert_eq!((meta("sparse").len(), meta("sparse").blocks() < 64), ((3 << 20) + 3, true));
    assert!(out.join(OsStr::from_bytes(b"odd\n\xff")).exists());
    let source = std::fs::symlink_metadata(place.path("source/dir")).unwrap();
    assert_eq!(
        (meta("dir").mtime(), meta("dir").mtime_nsec()),
        (source.mtime(), source.mtime_nsec())
    );
    // Again: the files are in the way.
    place.run(&["extract", "a.img", "out"]).ends_with(1).complains(&["6 files exist"]);
    place.run(&["extract", "--force", "a.img", "out"]).succeeds();
    place.run(&["extract", "a.img:/file", "single"]).succeeds();
    assert_eq!(std::fs::read(place.path("single")).unwrap(), b"hello\n");
}

#[test]
fn extract_never_follows_a_link_out_of_its_destination() {
    let place = Place::with_image();
    std::fs::create_dir_all(place.path("out")).unwrap();
    std::fs::create_dir(place.path("victim")).unwrap();
    symlink("../victim", place.path("out/dir")).unwrap();
    symlink("../victim/file", place.path("out/file")).unwrap();
    place.run(&["extract", "a.img", "out"]).ends_with(1).complains(&["a.img:/"]);
    assert_eq!(std::fs::read_dir(place.path("victim")).unwrap().count(), 0);
    // What is not in the way is there all the same.
    assert!(place.path("out/sparse").exists());
}

#[test]
fn build_refuses_what_holds_data_and_leaves_nothing_behind() {
    let place = Place::with_image();
    let build =
        |rest: &[&str]| place.run(&[&["build", "a.img", "--from", "source"], rest].concat());
    let build_b =
        |rest: &[&str]| place.run(&[&["build", "b.img", "--from", "source"], rest].concat());
    build(&[]).ends_with(7).complains(&["a.img", "ext4"]).hints("--force");
    build(&["--force"]).succeeds();
    place.run(&["mkfs", "a.img"]).ends_with(7).hints("--force");
    let before = place.names();
    place.run(&["build", "b.img", "--from", "missing"]).ends_with(3).complains(&["missing"]);
    std::fs::write(place.path("source/large"), vec![7; 600_000]).unwrap();
    // Too small for the contents, and for any file system.
    for size in ["500K", "20K"] {
        let small = ["build", "b.img", "--from", "source", "--size", size];
        place.run(&small).ends_with(6).hints("--size");
    }
    place.run(&["build", "b.img", "--from", "source", "--size", "100"]).ends_with(2);
    build_b(&["-O", "nonsense"]).ends_with(2).complains(&["nonsense"]);
    build_b(&["-J", "device=x"]).ends_with(5);
    place.run(&["build", "source", "--from", "source"]).ends_with(7);
    place.run(&["build", "no/b.img", "--from", "source"]).ends_with(8);
    assert_eq!(place.names(), before);
}

#[test]
fn plan_writes_nothing_and_is_right() {
    let place = Place::with_image();
    let args = ["build", "b.img", "--from", "source", "--size", "auto+1M", "--json"];
    let plan = place.run(&[&args[..], &["--plan"]].concat()).succeeds().json();
    assert!(!place.path("b.img").exists());
    let built = place.run(&args).succeeds().json();
    for key in ["size_bytes", "used_blocks", "free_blocks", "inodes", "files"] {
        assert_eq!(plan[key], built[key], "{key}");
    }
    // And what Linux lets no data have.
    assert_eq!(plan["free_blocks"], 256 + plan["blocks"].as_u64().unwrap() / 50);
    let info = place.run(&["info", "--json", "b.img"]).succeeds().json();
    assert_eq!(info["free_blocks"], plan["free_blocks"]);
}

#[test]
fn the_same_input_and_epoch_give_the_same_bytes_with_any_threads() {
    let place = Place::with_image();
    for (name, threads) in [("b.img", "1"), ("c.img", "4")] {
        let args = ["build", name, "--from", "source", "--threads", threads];
        let output = place.command(&args).env("SOURCE_DATE_EPOCH", "1000000000").output().unwrap();
        Ran { args: args.join(" "), output }.succeeds();
    }
    let read = |name| std::fs::read(place.path(name)).unwrap();
    assert!(read("b.img") == read("c.img"));
    let args = ["build", "-", "--from", "source", "-q"];
    let output = place.command(&args).env("SOURCE_DATE_EPOCH", "1000000000").output().unwrap();
    assert!(output.stdout == read("b.img"));
    let output = place.command(&args).env("SOURCE_DATE_EPOCH", "soon").output().unwrap();
    Ran { args: args.join(" "), output }.ends_with(2).complains(&["SOURCE_DATE_EPOCH", "soon"]);
}

#[test]
fn an_archive_comes_in_by_standard_input() {
    let place = Place::with_image();
    let mut tar = Command::new("tar");
    let tar = tar.args(["-C", "source", "-cf", "-", "."]).current_dir(place.0.path());
    let Ok(tar) = tar.output() else {
        println!("skipped: tar is not installed");
        return;
    };
    let feed = |bytes: &[u8], name: &str| {
        let args = ["build", name, "--from", "-"];
        let mut command = place.command(&args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that refuses the archive early closes the pipe.
        let _ = child.stdin.take().unwrap().write_all(bytes);
        Ran { args: args.join(" "), output: child.wait_with_output().unwrap() }
    };
    feed(&tar.stdout, "b.img").succeeds();
    assert_eq!(place.run(&["cat", "b.img:/file"]).succeeds().out(), "hello\n");
    let before = place.names();
    feed(&tar.stdout[..tar.stdout.len() / 2], "c.img").ends_with(3).complains(&["at byte"]);
    feed(b"\x50\x4b\x03\x04 not a tar", "c.img").ends_with(3);
    assert_eq!(place.names(), before);
}

#[test]
fn mkfs_counts_as_mke2fs_does() {
    let place = Place::new();
    for (args, bytes) in [
        (&["mkfs", "a.img", "8192"][..], 8 << 20),
        (&["mkfs", "b.img", "8192", "-b", "4096"], 32 << 20),
        (&["mkfs", "c.img", "16M", "-L", "name", "-U", "clear"], 16 << 20),
    ] {
        place.run(args).succeeds();
        assert_eq!(std::fs::metadata(place.path(args[1])).unwrap().len(), bytes, "{args:?}");
    }
    let info = place.run(&["info", "--json", "c.img"]).succeeds().json();
    assert_eq!(info["label"], "name");
    assert_eq!(info["uuid"], "00000000-0000-0000-0000-000000000000");
    place.run(&["mkfs", "d.img"]).ends_with(2).complains(&["no size"]);
    place.run(&["mkfs", "d.img", "10K"]).ends_with(6);
    // Into a part of a file that exists; what lies before stays.
    std::fs::write(place.path("disk"), vec![0xa5; 16 << 20]).unwrap();
    place.run(&["mkfs", "disk", "--offset", "1M"]).succeeds();
    place.run(&["mkfs", "disk", "--offset", "1M"]).ends_with(7);
    assert_eq!(place.run(&["ls", "--offset", "1M", "disk"]).succeeds().out(), "lost+found\n");
    let mut head = vec![0; 1 << 20];
    std::fs::File::open(place.path("disk")).unwrap().read_exact(&mut head).unwrap();
    assert!(head.iter().all(|byte| *byte == 0xa5));
}

#[test]
fn the_root_gets_the_owner_and_mode_asked_for() {
    let place = Place::with_image();
    let options = ["--root-owner", "5:6", "-E", "root_perms=0700"];
    for args in [&["mkfs", "b.img", "8M"][..], &["build", "c.img", "--from", "source"]] {
        place.run(&[args, &options].concat()).succeeds();
        let stat = place.run(&["stat", "--json", args[1]]).succeeds().json();
        assert_eq!((&stat["uid"], &stat["gid"]), (&5.into(), &6.into()), "{args:?}");
        assert_eq!(stat["mode"], "0700");
    }
}

#[test]
fn bad_images_and_paths_have_their_own_codes() {
    let place = Place::with_image();
    place.run(&["ls", "missing.img"]).ends_with(8).complains(&["missing.img"]);
    place.run(&["ls", "source/file"]).ends_with(4).complains(&["source/file"]);
    place.run(&["ls", "source"]).ends_with(2).complains(&["directory"]);
    // What is to be changed, too: a directory cannot even be opened for that.
    for command in [&["rm", "source:/file"][..], &["mkdir", "source:/x"], &["fstrim", "source"]] {
        place.run(command).ends_with(2).complains(&["directory"]).hints("image files");
    }
    place.run(&["fstrim", "/proc"]).ends_with(2).hints("fstrim /proc, of util-linux");
    place.run(&["cat", "a.img:/none"]).ends_with(9).complains(&["a.img:/none", "no such file"]);
    place.run(&["cat", "a.img:/dir"]).ends_with(9).complains(&["directory"]);
    place.run(&["cat", "a.img:/file/x"]).ends_with(9);
    place.run(&["info", "a.img:/none"]).ends_with(2).complains(&["leave the path out"]);
    place.run(&["info", "a.img:/"]).succeeds();
    place.run(&["ls", "--partition", "1", "a.img"]).ends_with(4).hints("--partition");
    place.run(&["ls", "--nonsense", "a.img"]).ends_with(2);
    place.run(&[]).ends_with(2);
    let image = place.path("a.img");
    let bytes = std::fs::read(&image).unwrap();
    let damaged = |name: &str, at: usize, flip: u8| {
        let mut bytes = bytes.clone();
        bytes[at] ^= flip;
        std::fs::write(place.path(name), bytes).unwrap();
    };
    damaged("magic.img", 1080, 0xff);
    place.run(&["info", "magic.img"]).ends_with(4);
    damaged("sum.img", 1024 + 0x78, 1);
    place.run(&["info", "sum.img"]).ends_with(4).complains(&["superblock"]).hints("-b");
    place.run(&["info", "--no-checksums", "sum.img"]).succeeds();
    // An incompatible feature that nobody has.
    damaged("feature.img", 1024 + 0x63, 0x80);
    let ran = place.run(&["info", "--no-checksums", "feature.img"]);
    ran.ends_with(5).complains(&["FEATURE_I31"]);
    std::fs::write(place.path("short.img"), &bytes[..1500]).unwrap();
    place.run(&["info", "short.img"]).ends_with(4);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::with_image();
    let mut command = place.command(&["cat", "a.img:/sparse"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(said, "");
    // Ended by the signal, as any program that knows nothing of it.
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(13));
}

#[test]
fn a_signal_while_writing_leaves_nothing_behind() {
    let place = Place::new();
    let source = place.path("source");
    std::fs::create_dir(&source).unwrap();
    // Enough to be writing for a while.
    for number in 0..3000 {
        std::fs::write(source.join(format!("{number}")), vec![1; 60_000]).unwrap();
    }
    let (mut interrupted, mut killed) = (0, 0);
    for round in 0..20 {
        let kills = round % 2 == 1;
        let args = ["build", "b.img", "--from", "source", "--threads", "1"];
        let mut child = place.command(&args).stderr(Stdio::piped()).spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        // When the temporary file is there, writing has begun, and the handler stands.
        while !place.is_writing(child.id()) {
            if child.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::yield_now();
        }
        let signal =
            if kills { rustix::process::Signal::KILL } else { rustix::process::Signal::INT };
        let _ = rustix::process::kill_process(pid, signal);
        let status = child.wait().unwrap();
        match status.code() {
            // Nobody is left to remove anything: a file without a name goes by itself.
            None => {
                killed += 1;
                let named = place.names().iter().any(|name| name.starts_with(".b.img.extant-"));
                if named {
                    println!("skipped: no files without names here");
                    return;
                }
                assert_eq!(place.names(), ["source"]);
            }
            Some(130) => {
                interrupted += 1;
                assert_eq!(place.names(), ["source"]);
            }
            // It was faster than the signal.
            Some(0) => std::fs::remove_file(place.path("b.img")).unwrap(),
            other => panic!("ended with {other:?}"),
        }
    }
    assert!(interrupted > 0 && killed > 0, "never in time: {interrupted}, {killed}");
}

#[test]
fn what_cannot_be_read_is_an_error_or_is_counted() {
    if !is_root() || Command::new("setpriv").arg("--version").output().is_err() {
        println!("skipped: needs root and setpriv");
        return;
    }
    let place = Place::with_image();
    std::fs::set_permissions(place.0.path(), PermissionsExt::from_mode(0o777)).unwrap();
    // The command where an ordinary user can run it.
    std::fs::copy(EXTANT, place.path("extant")).unwrap();
    std::fs::set_permissions(place.path("source/.hidden"), PermissionsExt::from_mode(0o000))
        .unwrap();
    std::fs::set_permissions(place.path("source/dir"), PermissionsExt::from_mode(0o755)).unwrap();
    let as_user = |args: &[&str]| {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "./extant"])
            .args(args)
            .current_dir(place.0.path())
            .output()
            .unwrap();
        Ran { args: args.join(" "), output }
    };
    let build = ["build", "b.img", "--from", "source", "--owner", "0:0"];
    as_user(&build).ends_with(3).complains(&[".hidden"]).hints("--ignore-unreadable");
    assert!(!place.path("b.img").exists());
    let ran = as_user(&[&build[..], &["--ignore-unreadable"]].concat());
    ran.ends_with(1).complains(&["left out", ".hidden"]);
    assert_eq!(as_user(&["cat", "b.img:/file"]).succeeds().out(), "hello\n");
    let stat = as_user(&["stat", "--json", "b.img:/file"]).succeeds().json();
    assert_eq!((&stat["uid"], &stat["gid"]), (&0.into(), &0.into()));
    as_user(&["extract", "b.img", "out"]).succeeds().complains(&["note", "owners"]);
    assert_eq!(std::fs::metadata(place.path("out/file")).unwrap().uid(), 65534);
}

#[test]
fn e2fsck_agrees_with_what_was_built() {
    let place = Place::with_image();
    let check = Command::new("timeout")
        .args(["-s", "KILL", "60", "e2fsck", "-fn", "a.img"])
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .current_dir(place.0.path())
        .output()
        .unwrap();
    if check.status.code() == Some(127) {
        println!("skipped: e2fsck is not installed");
        return;
    }
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}

#[test]
fn pages_and_completions_name_every_command_and_exit_code() {
    let place = Place::new();
    std::fs::create_dir(place.path("man")).unwrap();
    place.run(&["man", "man"]).succeeds();
    let commands = [
        "build", "mkfs", "info", "ls", "tree", "stat", "cat", "find", "extents", "frag", "defrag",
        "extract", "mkdir", "rmdir", "mknod", "rm", "mv", "ln", "chmod", "chown", "touch",
        "setfattr", "getfattr", "setfacl", "getfacl", "chattr", "lsattr", "tune", "replay",
        "check", "repair", "undo", "resize",
    ];
    let bash = place.run(&["completions", "bash"]).succeeds().out();
    let help = place.run(&["--help"]).succeeds().out();
    for command in commands {
        assert!(place.path(&format!("man/extant-{command}.1")).exists(), "{command}");
        assert!(bash.contains(command) && help.contains(command), "{command}");
        let long = place.run(&[command, "--help"]).succeeds().out();
        assert!(long.contains("130  stopped by a signal"), "{long}");
    }
    let page = place.run(&["man"]).succeeds().out();
    assert!(page.contains("stopped by a signal"), "{page}");
    assert!(place.run(&["--version"]).succeeds().out().starts_with("extant "));
}

/// An image of automatic size is one that can be worked in; without room, the message says how there is some.
#[test]
fn an_image_of_automatic_size_has_room_to_work_in() {
    let place = Place::with_image();
    std::fs::write(place.path("new"), vec![7; 9 << 20]).unwrap();
    for (size, free) in [("auto", 32 << 20), ("auto+0", 0), ("auto+5M", 5 << 20)] {
        place.run(&["build", "b.img", "-F", "--from", "source", "--size", size]).succeeds();
        let info = place.run(&["info", "--json", "b.img"]).succeeds().json();
        let bytes = |key: &str| info[key].as_u64().unwrap();
        // Linux lets no data have a fiftieth.
        let pool = if free == 0 { 0 } else { bytes("blocks") / 50 };
        assert_eq!((bytes("free_blocks") - pool) * bytes("block_bytes"), free, "{size}");
        if free > 0 {
            std::fs::write(place.path("fits"), vec![7; free as usize]).unwrap();
            place.run(&["cp", "fits", "b.img:/fits"]).succeeds();
            place.run(&["rm", "b.img:/fits"]).succeeds();
        }
        let copied = place.run(&["cp", "new", "b.img:/new"]);
        if free > 9 << 20 {
            copied.succeeds();
        } else {
            copied.ends_with(6).complains(&["no room"]).hints("auto+512M");
        }
    }
    // A tenth, where that is more.
    let large = std::fs::File::create(place.path("source/large")).unwrap();
    for piece in 0..400u64 {
        large.write_all_at(&vec![1; 1 << 20], piece << 20).unwrap();
    }
    let plan =
        place.run(&["build", "c.img", "--from", "source", "--plan", "--json"]).succeeds().json();
    let free = plan["free_blocks"].as_u64().unwrap() * plan["block_bytes"].as_u64().unwrap();
    assert!((40 << 20..52 << 20).contains(&free), "{free}");
}

/// Without root's powers: the kernel lets nobody else set `user.` attributes of what may not be written.
#[test]
fn attributes_are_kept_of_what_may_not_be_written() {
    let place = Place::with_image();
    place.run(&["mkdir", "-m", "555", "a.img:/closed"]).succeeds();
    place.run(&["chmod", "444", "a.img:/file"]).succeeds();
    place
        .run(&["setfattr", "-n", "user.a", "-v", "kept", "a.img:/file", "a.img:/closed"])
        .succeeds();
    let ways: [&[&str]; 3] = [
        &["extract", "a.img", "extracted"],
        &["cp", "-a", "a.img:/.", "copied"],
        &["salvage", "-q", "a.img", "salvaged"],
    ];
    std::fs::create_dir(place.path("copied")).unwrap();
    for way in ways {
        let ran = match is_root() {
            true => {
                let powers = ["--bounding-set", "-all", "--inh-caps", "-all", EXTANT];
                tool("setpriv", &[&powers, way].concat(), place.0.path())
            }
            false => tool(EXTANT, way, place.0.path()),
        };
        let Some(ran) = ran else { return };
        assert!(ran.status.success(), "{way:?}: {}", String::from_utf8_lossy(&ran.stderr));
        for name in ["file", "closed"] {
            let dir = ["extracted", "copied", "salvaged"]
                .into_iter()
                .find(|dir| way.contains(dir))
                .unwrap();
            let path = format!("{dir}/{name}");
            let get = ["-n", "user.a", "--only-values", path.as_str()];
            let Some(got) = tool("getfattr", &get, place.0.path()) else { return };
            assert_eq!(String::from_utf8_lossy(&got.stdout), "kept", "{path}");
        }
    }
}
