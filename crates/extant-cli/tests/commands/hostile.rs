//! Odd and hostile surroundings: archives, names, full and read-only targets, very large things.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support;
use extant_sync::{Clock, SystemClock};
use support::{Place, Ran, is_root, text, tool};

/// A member of a ustar archive.
fn member(name: &str, kind: u8, link: &str, contents: &[u8]) -> Vec<u8> {
    let mut header = vec![0u8; 512];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", contents.len()));
    put(136, "00000000000\0");
    put(148, "        ");
    put(157, link);
    put(257, "ustar\x0000");
    header[156] = kind;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header.extend_from_slice(contents);
    header.resize(header.len().next_multiple_of(512), 0);
    header
}

#[test]
fn a_hostile_archive_is_refused_by_the_name_of_the_member() {
    let place = Place::new();
    let end = vec![0; 1024];
    let mut wrong_sum = member("sum", b'0', "", b"abc");
    wrong_sum[0] ^= 1;
    let mut cut = member("cut", b'0', "", &[1; 3000]);
    cut.truncate(1024);
    for (archive, word) in [
        ([member("../evil", b'0', "", b"x"), end.clone()].concat(), "../evil"),
        ([member("a/../../evil", b'0', "", b"x"), end.clone()].concat(), "evil"),
        ([member("hard", b'1', "nothing", b""), end.clone()].concat(), "nothing"),
        ([member("hard", b'1', "../../etc/passwd", b""), end.clone()].concat(), "hard"),
        (
            [member("f", b'0', "", b"x"), member("f/below", b'0', "", b"x"), end.clone()].concat(),
            "f",
        ),
        ([wrong_sum, end.clone()].concat(), "not a tar archive: a header's checksum"),
        (cut, "cut"),
        ([member("a\x1b[31m\nb", b'1', "no", b""), end.clone()].concat(), "hard link"),
    ] {
        std::fs::write(place.path("a.tar"), &archive).unwrap();
        let ran = place.run(&["build", "a.img", "--from", "a.tar"]);
        let err = ran.err();
        assert_ne!(ran.output.status.code(), Some(0), "{word}: {err}");
        ran.ends_with(3).complains(&[word]);
        assert_eq!(err.lines().filter(|line| !line.starts_with("hint: ")).count(), 1, "{err}");
        assert!(!err.contains('\x1b'), "{err:?}");
        assert_eq!(place.names(), ["a.tar"]);
    }
}

#[test]
fn outputs_that_cannot_be_leave_everything_as_it_was() {
    let place = Place::with_image();
    symlink("loop-b", place.path("loop-a")).unwrap();
    symlink("loop-a", place.path("loop-b")).unwrap();
    symlink("target.img", place.path("link.img")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        place.path("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from(0o600),
        0,
    )
    .unwrap();
    let before = place.names();
    for (out, code) in [("source", 7), ("fifo", 7), ("loop-a", 8), ("no/a.img", 8)] {
        place.run(&["build", out, "--from", "source"]).ends_with(code).complains(&[]);
        place.run(&["build", out, "--from", "source", "--force"]).ends_with(code);
        assert_eq!(place.names(), before, "{out}");
    }
    place.run(&["build", "link.img", "--from", "source"]).succeeds();
    assert!(std::fs::symlink_metadata(place.path("link.img")).unwrap().is_symlink());
    assert!(place.path("target.img").is_file());
    // Inside its own source: never a part of itself, new or old.
    for _ in 0..2 {
        place.run(&["build", "-F", "source/self.img", "--from", "source"]).succeeds();
        assert_eq!(place.run(&["find", "source/self.img", "-name", "*self*"]).succeeds().out(), "");
    }
}

#[test]
fn sources_of_every_kind() {
    let place = Place::with_image();
    symlink("source", place.path("link")).unwrap();
    place.run(&["build", "b.img", "--from", "link"]).succeeds();
    assert_eq!(place.run(&["cat", "b.img:/file"]).succeeds().out(), "hello\n");
    std::fs::create_dir(place.path("empty")).unwrap();
    place.run(&["build", "c.img", "--from", "empty"]).succeeds();
    assert_eq!(place.run(&["ls", "-a", "c.img"]).succeeds().out(), ".\n..\nlost+found\n");
    place.run(&["build", "d.img", "--from", "/dev/null"]).ends_with(3).complains(&["empty"]);
    let map = ["--uid-map", "5:7", "--gid-map", "0:0:1000"];
    let mapped = place.run(&[&["build", "d.img", "--from", "source"][..], &map].concat());
    if is_root() {
        mapped.ends_with(3).complains(&["user 0", "range"]).hints("--owner");
        assert!(!place.path("d.img").exists());
        std::os::unix::fs::chown(place.path("source/dir"), Some(1000), Some(100)).unwrap();
        let map = ["--uid-map", "1000:0:1,0:4:1", "--gid-map", "100:7,0:0"];
        place.run(&[&["build", "d.img", "--from", "source"][..], &map].concat()).succeeds();
        let stat = place.run(&["stat", "--json", "d.img:/dir"]).succeeds().json();
        assert_eq!((&stat["uid"], &stat["gid"]), (&0.into(), &7.into()));
        let stat = place.run(&["stat", "--json", "d.img:/file"]).succeeds().json();
        assert_eq!((&stat["uid"], &stat["gid"]), (&4.into(), &0.into()));
    }
}

/// A small or read-only tmpfs that goes away with the value.
pub(crate) struct Tmpfs(std::path::PathBuf);

impl Tmpfs {
    pub(crate) fn mount(path: &Path, options: &str) -> Option<Tmpfs> {
        std::fs::create_dir_all(path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(path);
        if !is_root() || !mount.status().is_ok_and(|status| status.success()) {
            println!("skipped: cannot mount here");
            return None;
        }
        Some(Tmpfs(path.to_owned()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn full_and_read_only_targets() {
    let place = Place::with_image();
    std::fs::write(place.path("source/large"), vec![7; 900_000]).unwrap();
    place.run(&["build", "b.img", "--from", "source", "-q"]).succeeds();
    let at = place.path("small");
    if let Some(_small) = Tmpfs::mount(&at, "size=300k") {
        place.run(&["build", "small/a.img", "--from", "source"]).ends_with(6).hints("room");
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0);
        let extracted = place.run(&["extract", "b.img", "small/out"]).ends_with(6);
        extracted.complains(&["No space left"]).hints("the disk that holds small/out");
        assert!(!at.join("out/large").exists());
    }
    if let Some(_small) = Tmpfs::mount(&at, "size=2M") {
        place.run(&["mkfs", "-q", "-J", "none", "small/c.img", "40M"]).succeeds();
        // To the last block, so that nothing is left for the tables of new groups.
        let _ = std::fs::write(at.join("filler"), vec![1; 2 << 20]);
        place.run(&["resize", "small/c.img", "200M"]).ends_with(6).hints("make room");
        std::fs::remove_file(at.join("filler")).unwrap();
        place.run(&["resize", "small/c.img", "200M"]).succeeds();
        place.run(&["check", "small/c.img"]).succeeds();
    }
    if let Some(_fixed) = Tmpfs::mount(&at, "ro,size=300k") {
        place
            .run(&["build", "small/a.img", "--from", "source"])
            .ends_with(8)
            .complains(&["Read-only"]);
        place.run(&["extract", "b.img", "small/out"]).ends_with(8).complains(&["small/out"]);
    }
}

#[test]
fn names_do_not_control_the_terminal() {
    let place = Place::new();
    let source = place.path("source");
    std::fs::create_dir(&source).unwrap();
    for name in [&b"a\nb"[..], b"\x1b[31mred", b"\xc2\x9b31m", "\u{202e}x".as_bytes(), b"\xff"] {
        std::fs::write(source.join(OsStr::from_bytes(name)), b"").unwrap();
    }
    symlink(OsStr::from_bytes(b"\x1b[2Jtarget"), source.join("link")).unwrap();
    place.run(&["build", "n.img", "--from", "source", "-q"]).succeeds();
    for args in ["ls -l", "ls", "ls --json", "ls -R", "find", "find --json", "tree", "tree --json"]
    {
        for no_colour in ["", "1"] {
            let line = format!("{} {args} n.img", support::EXTANT);
            let mut script = Command::new("script");
            script.args(["-qec", &line, "/dev/null"]).current_dir(place.0.path());
            script.env("NO_COLOR", no_colour).env("TERM", "xterm").stdin(Stdio::null());
            let Ok(output) = script.output() else {
                println!("skipped: script is not installed");
                return;
            };
            let mut shown = text(&output);
            let coloured = shown.contains("\x1b[0m");
            assert!(!coloured || no_colour.is_empty(), "{args}");
            assert!(coloured || args != "ls -l" || !no_colour.is_empty(), "{shown:?}");
            for colour in ["\x1b[0m", "\x1b[1;34m", "\x1b[1;36m"] {
                shown = shown.replace(colour, "");
            }
            let raw = shown
                .chars()
                .find(|c| (c.is_control() && !matches!(c, '\n' | '\r')) || *c == '\u{202e}');
            assert_eq!(raw, None, "{args}: {shown:?}");
        }
    }
    let ran = place.run(&["cat", "n.img:/\x1b[31mno\nno"]).ends_with(9);
    assert_eq!(ran.err(), "extant: n.img:/\\u{1b}[31mno\\nno: no such file\n");
    let ran = place.run(&["build", "b.img", "--from", "no\x1b[31m\n"]).ends_with(3);
    assert!(!ran.err().contains('\x1b') && ran.err().lines().count() == 2, "{:?}", ran.err());
    // In any locale, pipes get the bytes.
    let list = place.command(&["ls", "-0", "n.img"]).env("LC_ALL", "C").output().unwrap();
    assert!(list.stdout.split(|byte| *byte == 0).any(|name| name == b"\xff"));
}

/// Kilobytes of memory that a process has used at most.
fn peak_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[test]
fn a_hundred_thousand_names_stream_in_bounded_memory() {
    let place = Place::new();
    let mut archive = Vec::new();
    for number in 0..100_000 {
        archive.extend(member(&format!("many/name-{number:06}"), b'0', "", b""));
    }
    archive.extend([0; 1024]);
    std::fs::write(place.path("a.tar"), &archive).unwrap();
    place.run(&["build", "a.img", "--from", "a.tar", "-q"]).succeeds();
    for args in [&["ls", "-U", "a.img:/many"][..], &["find", "a.img:/many"], &["ls", "a.img:/many"]]
    {
        let started = SystemClock.monotonic();
        let mut child = place.command(args).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let lines = BufReader::new(child.stdout.take().unwrap()).split(b'\n');
        let mut count = 0;
        let mut peak = 0;
        for line in lines {
            assert!(line.unwrap().windows(4).any(|part| part == b"many" || part == b"name"));
            count += 1;
            if count % 10_000 == 1 {
                peak = peak.max(peak_kib(pid).unwrap_or(0));
            }
        }
        assert!(child.wait().unwrap().success());
        assert_eq!(count, 100_000 + i32::from(args[0] == "find"), "{args:?}");
        assert!(peak < 64 << 10, "{args:?}: {peak} KiB");
        assert!(
            SystemClock.monotonic().saturating_sub(started) < Duration::from_secs(30),
            "{args:?}"
        );
    }
}

#[test]
fn files_past_4_gib_stay_sparse_both_ways() {
    let place = Place::new();
    std::fs::create_dir(place.path("source")).unwrap();
    let big = std::fs::File::create(place.path("source/big")).unwrap();
    let marks = [(0, b"first"), (3 << 30, b"below"), ((4 << 30) + 4096 * 3 + 7, b"above")];
    for (at, mark) in marks {
        big.write_all_at(mark, at).unwrap();
    }
    big.set_len(5 << 30).unwrap();
    place.run(&["build", "a.img", "--from", "source", "-q"]).succeeds();
    assert!(std::fs::metadata(place.path("a.img")).unwrap().len() < 64 << 20);
    place.run(&["extract", "a.img:/big", "out"]).succeeds();
    let out = std::fs::File::open(place.path("out")).unwrap();
    let meta = out.metadata().unwrap();
    assert_eq!(meta.len(), 5 << 30);
    assert!(meta.blocks() * 512 < 1 << 20, "{}", meta.blocks());
    for (at, mark) in marks {
        let mut read = [0; 5];
        out.read_exact_at(&mut read, at).unwrap();
        assert_eq!(&read, mark);
    }
}

#[test]
fn a_source_that_shrinks_while_it_is_read_is_named() {
    let place = Place::new();
    std::fs::create_dir(place.path("source")).unwrap();
    // The file is cut between scan and copy: the archive's end comes through a pipe only later.
    for number in 0..400 {
        std::fs::write(place.path(&format!("source/{number:03}")), vec![1; 300_000]).unwrap();
    }
    let args = ["build", "a.img", "--from", "source", "--threads", "1"];
    let mut command = place.command(&args);
    let child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    while !place.is_writing(child.id()) {
        std::thread::yield_now();
    }
    let last = std::fs::File::options().write(true).open(place.path("source/399")).unwrap();
    last.set_len(10).unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.success() {
        println!("skipped: the build was faster than the change");
        return;
    }
    let ran = Ran { args: args.join(" "), output };
    ran.ends_with(3).complains(&["source/399"]).hints("build again");
    assert_eq!(place.names(), ["source"]);
}

#[test]
fn an_interrupted_mkfs_in_place_says_what_is_left() {
    let place = Place::new();
    for _ in 0..20 {
        let file = std::fs::File::create(place.path("a.img")).unwrap();
        file.set_len(4 << 40).unwrap();
        drop(file);
        let mut command = place.command(&["mkfs", "a.img", "-b", "1024"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        // In place, the first block allocated tells that the writing has begun.
        while std::fs::metadata(place.path("a.img")).unwrap().blocks() == 0 {
            if child.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::yield_now();
        }
        let pid = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        if child.wait().unwrap().code() == Some(130) {
            assert!(said.contains("a.img is unfinished and holds no file system"), "{said}");
            place.run(&["info", "a.img"]).ends_with(4);
            return;
        }
    }
    println!("skipped: never interrupted in time");
}

#[test]
fn extract_restores_what_only_root_can() {
    let place = Place::new();
    let source = place.path("source");
    std::fs::create_dir_all(source.join("d/e")).unwrap();
    std::fs::write(source.join("d/f"), b"x").unwrap();
    std::fs::set_permissions(source.join("d/f"), PermissionsExt::from_mode(0o4751)).unwrap();
    if !is_root() || std::os::unix::fs::chown(source.join("d"), Some(12), Some(34)).is_err() {
        println!("skipped: needs root");
        return;
    }
    let flags = rustix::fs::XattrFlags::empty();
    let caps = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    std::fs::write(source.join("caps"), b"x").unwrap();
    let has_caps =
        rustix::fs::setxattr(source.join("caps"), "security.capability", &caps, flags).is_ok();
    let epoch = std::time::SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123);
    for dir in ["d/e", "d"] {
        std::fs::File::open(source.join(dir)).unwrap().set_modified(epoch).unwrap();
    }
    place.run(&["build", "a.img", "--from", "source", "-q"]).succeeds();
    place.run(&["extract", "a.img", "out"]).succeeds();
    let meta = |name: &str| std::fs::symlink_metadata(place.path("out").join(name)).unwrap();
    assert_eq!((meta("d").uid(), meta("d").gid()), (12, 34));
    assert_eq!(meta("d/f").mode() & 0o7777, 0o4751);
    assert_eq!((meta("d").modified().unwrap(), meta("d/e").modified().unwrap()), (epoch, epoch));
    if has_caps {
        let mut value = [0; 64];
        let len = rustix::fs::getxattr(place.path("out/caps"), "security.capability", &mut value);
        assert_eq!(&value[..len.unwrap()], caps);
    }
    // Without owners, nobody gets somebody else's powers.
    place.run(&["extract", "--no-same-owner", "a.img", "plain"]).succeeds();
    let plain = std::fs::metadata(place.path("plain/d/f")).unwrap();
    assert_eq!(plain.mode() & 0o7777, 0o751);
}

#[test]
fn pages_render_and_completions_load() {
    let place = Place::new();
    std::fs::create_dir(place.path("man")).unwrap();
    place.run(&["man", "man"]).succeeds();
    if let Some(page) = tool("man", &["-l", "--warnings", "man/extant-build.1"], place.0.path()) {
        assert!(page.status.success());
        assert!(text(&page).contains("\nEXAMPLES") && text(&page).contains("--from"));
        assert_eq!(String::from_utf8_lossy(&page.stderr), "");
    }
    std::fs::write(place.path("c.bash"), place.run(&["completions", "bash"]).succeeds().out())
        .unwrap();
    if let Some(bash) =
        tool("bash", &["-ec", "source ./c.bash; complete -p extant"], place.0.path())
    {
        assert!(bash.status.success(), "{}", String::from_utf8_lossy(&bash.stderr));
    }
    for command in
        ["build", "mkfs", "info", "ls", "tree", "stat", "cat", "find", "extents", "extract"]
    {
        let help = place.run(&["help", command]).succeeds().out();
        let own = format!("extant {command} ");
        let example = help.split("Examples:").nth(1).unwrap_or_default();
        assert!(example.contains(&own), "{command}: {help}");
        assert!(help.contains("Exit codes:"), "{command}");
    }
}
