//! ^C in the middle of a copy: what is said is what is there.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use extant_block::FileDevice;

use crate::support;
use support::{Place, Ran};

/// Bytes that take longer to write than a signal takes to arrive.
const LONG: &str = "64G";

/// Runs the command until `is_under_way`, and interrupts it.
fn interrupted(place: &Place, args: &[&str], is_under_way: impl Fn() -> bool) -> Ran {
    let mut command = place.command(args);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    while !is_under_way() {
        assert!(child.try_wait().unwrap().is_none(), "{args:?} ended by itself");
        std::thread::yield_now();
    }
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    Ran { args: args.join(" "), output: child.wait_with_output().unwrap() }
}

fn len(path: &Path) -> u64 {
    path.metadata().map_or(0, |meta| meta.len())
}

/// An image with a directory in which there is a file that takes long, and one before it.
fn place() -> Place {
    let place = Place::with_image();
    place.run(&["mkdir", "a.img:/tree"]).succeeds();
    place.run(&["cp", "source/file", "a.img:/tree/a"]).succeeds();
    place.run(&["truncate", "-s", LONG, "a.img:/tree/long"]).succeeds();
    place
}

#[test]
fn an_interrupted_copy_tells_what_it_has_changed() {
    let place = place();
    // A new file: it is removed, and nothing else was done.
    let copy = ["cp", "--sparse=never", "a.img:/tree/long", "new"];
    let ran = interrupted(&place, &copy, || len(&place.path("new")) > 0).ends_with(130);
    ran.complains(&["interrupted: nothing was changed"]);
    assert!(!place.path("new").exists());

    // A file that was there: what it held is gone.
    std::fs::write(place.path("old"), b"x").unwrap();
    let copy = ["cp", "--sparse=never", "a.img:/tree/long", "old"];
    let ran = interrupted(&place, &copy, || len(&place.path("old")) > 1).ends_with(130);
    std::fs::remove_file(place.path("old")).unwrap();
    assert!(ran.err().contains("old before is overwritten"), "{}", ran.err());
    assert!(ran.err().contains("interrupted: what was done before stays"), "{}", ran.err());
    assert!(!ran.err().contains("nothing was changed"), "{}", ran.err());

    // A directory: it stays, with what was copied into it.
    let copy = ["cp", "-r", "--sparse=never", "a.img:/tree", "out"];
    let ran = interrupted(&place, &copy, || len(&place.path("out/long")) > 0).ends_with(130);
    let unfinished = "1 directory that was made is not full";
    ran.complains(&["what was done before stays, 1 in number", unfinished]);
    assert_eq!(std::fs::read(place.path("out/a")).unwrap(), b"hello\n");
    assert!(!place.path("out/long").exists());

    // Only a directory was made, and nothing is in it yet.
    place.run(&["rm", "a.img:/tree/a"]).succeeds();
    let copy = ["cp", "-r", "--sparse=never", "a.img:/tree", "again"];
    let ran = interrupted(&place, &copy, || len(&place.path("again/long")) > 0).ends_with(130);
    ran.complains(&["what was done before stays; 1 directory that was made is not full"]);
    assert!(place.path("again").is_dir());
}

#[test]
fn a_copy_that_waits_for_a_pipe_is_interrupted() {
    let place = Place::with_image();
    let pipe = place.path("pipe");
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let holds = || FileDevice::open_read_write(place.path("a.img")).is_err();
    let copy = ["cp", "pipe", "a.img:/new"];
    // Nobody writes, and then somebody who says nothing.
    interrupted(&place, &copy, holds).ends_with(130);
    let silent = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    interrupted(&place, &copy, holds).ends_with(130);
    drop(silent);
    place.run(&["stat", "a.img:/new"]).ends_with(9);
    // One who comes late is heard to the end.
    let mut late = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let mut child = place.command(&copy).stderr(Stdio::piped()).spawn().unwrap();
    late.write_all(&[7; 30_000]).unwrap();
    while rustix::io::ioctl_fionread(&late).unwrap() > 0 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    drop(late);
    let ran = Ran { args: copy.join(" "), output: child.wait_with_output().unwrap() };
    ran.succeeds();
    let copied = place.run(&["cat", "a.img:/new"]).succeeds().output.stdout;
    assert!(copied == [7; 30_000]);
}

#[test]
fn an_interrupted_archive_is_not_there() {
    let place = Place::new();
    std::fs::create_dir(place.path("source")).unwrap();
    let bytes: Vec<u8> = (0..96u32 << 20).map(|at| (at * 7 + at / 251) as u8).collect();
    std::fs::write(place.path("source/long"), bytes).unwrap();
    place.run(&["build", "a.img", "--from", "source"]).succeeds();
    let before = place.names();
    std::fs::write(place.path("old.tar"), "what was there before").unwrap();
    let ends = [rustix::process::Signal::INT, rustix::process::Signal::TERM];
    for (name, signal) in [("new.tar", ends[0]), ("old.tar", ends[1])] {
        let mut command = place.command(&["tar", "-o", name, "a.img"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while !place.is_writing(child.id()) {
            assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
            std::thread::yield_now();
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let ran = Ran { args: "tar".to_owned(), output }.ends_with(130);
        ran.complains(&["interrupted", "no archive was made"]);
    }
    let old = std::fs::read(place.path("old.tar")).unwrap();
    assert_eq!(old, b"what was there before");
    std::fs::remove_file(place.path("old.tar")).unwrap();
    assert_eq!(place.names(), before, "nothing is left behind");
    place.run(&["tar", "-o", "new.tar", "a.img"]).succeeds();
}

/// `ulimit -f`: a write past it raises a signal, which ends programs that do not know of it.
#[test]
fn a_limit_for_files_fails_a_copy_which_is_removed() {
    let place = place();
    place.run(&["mkdir", "a.img:/all"]).succeeds();
    for (name, size) in [("small", "1K"), ("large", "9M")] {
        place.run(&["truncate", "-s", size, &format!("a.img:/all/{name}")]).succeeds();
    }
    let limited = |args: &[&str]| {
        let whole = place.command(args);
        let mut shell = std::process::Command::new("sh");
        // In units of 512 bytes or of 1024.
        shell.args(["-c", "ulimit -f 4096; exec \"$0\" \"$@\""]).arg(whole.get_program());
        shell.args(whole.get_args()).current_dir(place.0.path());
        Ran { args: args.join(" "), output: shell.output().unwrap() }
    };
    let too_large = "File too large";
    limited(&["cp", "--sparse=never", "a.img:/all/large", "large"]).complains(&[too_large]);
    assert!(!place.path("large").exists(), "a copy that failed is removed");
    limited(&["extract", "a.img:/all", "all"]).ends_with(1).complains(&[too_large]);
    assert!(place.path("all/small").exists() && !place.path("all/large").exists());
    limited(&["mkfs", "b.img", "64M"]).ends_with(6).complains(&[too_large]);
    assert!(!place.path("b.img").exists());
}
