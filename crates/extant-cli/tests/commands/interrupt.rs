//! ^C in the middle of a copy: what is said is what is there.

use std::path::Path;
use std::process::Stdio;

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
