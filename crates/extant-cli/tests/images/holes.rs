//! Files that are mostly holes cost what is stored in them, whatever their size says.

use std::os::unix::fs::{FileExt, MetadataExt};

use crate::support;
use support::{Place, Ran, tool};

/// Runs the command, which must end in a time in which nothing of a file's size can be gone through.
fn soon(place: &Place, args: &[&str]) -> Ran {
    let mut command = std::process::Command::new("timeout");
    command.args(["-s", "KILL", "60", support::EXTANT]).args(args).current_dir(place.0.path());
    let ran = Ran { args: args.join(" "), output: command.output().unwrap() };
    // Killed by a signal, or timeout's own code for that.
    assert!(!matches!(ran.output.status.code(), None | Some(137)), "{} does not end", ran.args);
    ran
}

/// An image with a file of almost 16 TiB, the most there can be, that has a few bytes here and there.
fn with_holes() -> (Place, u64) {
    let place = Place::with_image();
    let size = (16 << 40) - 4096;
    place.run(&["truncate", "-s", &size.to_string(), "a.img:/huge"]).succeeds();
    for at in ["0", "5T", "15T"] {
        let write = place.command(&["write", "--at", at, "a.img:/huge"]);
        let mut write = write;
        write.stdin(std::process::Stdio::piped());
        let mut child = write.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), at.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }
    (place, size)
}

#[test]
fn extract_and_cp_pass_over_holes_of_terabytes() {
    let (place, size) = with_holes();
    for (args, name) in [
        (&["extract", "a.img", "out"][..], "out/huge"),
        (&["extract", "a.img:/huge", "one"], "one"),
        (&["cp", "a.img:/huge", "two"], "two"),
    ] {
        let ran = soon(&place, args);
        let Ok(copy) = std::fs::File::open(place.path(name)) else {
            // ext4 on the host ends just below.
            ran.complains(&["huge", "File too large"]);
            println!("skipped: no files of 16 TiB here");
            return;
        };
        ran.succeeds();
        let meta = copy.metadata().unwrap();
        assert_eq!(meta.len(), size, "{name}");
        assert!(meta.blocks() < 1000, "{name}");
        for (at, text) in [(0, "0"), (5 << 40, "5T"), (15 << 40, "15T")] {
            let mut bytes = vec![0; text.len()];
            copy.read_exact_at(&mut bytes, at).unwrap();
            assert_eq!(bytes, text.as_bytes(), "{name}");
        }
    }
    // Within the image, and between images.
    soon(&place, &["cp", "a.img:/huge", "a.img:/again"]).succeeds();
    let stat = place.run(&["stat", "--json", "a.img:/again"]).succeeds().json();
    assert_eq!(stat["size"], size);
    assert!(stat["allocated_bytes"].as_u64().unwrap() < 1 << 20);
}

/// A size that no file can have, as debugfs writes it: no command goes through it.
#[test]
fn a_size_beyond_every_map_ends_no_command() {
    let place = Place::with_image();
    let set = ["-w", "-R", "sif /file size 0x500000000000000", "a.img"];
    if tool("debugfs", &set, place.0.path()).is_none() {
        return;
    }
    // The others are there, whatever becomes of this one.
    let ran = soon(&place, &["extract", "a.img", "out"]);
    assert!(matches!(ran.output.status.code(), Some(0 | 1)), "{}", ran.err());
    assert_eq!(
        std::fs::read(place.path("out/dir/deep/../../sparse")).unwrap().len(),
        (3 << 20) + 3
    );
    if ran.output.status.code() == Some(1) {
        ran.complains(&["a.img:/"]);
    }
    soon(&place, &["cp", "a.img:/file", "copy"]);
    soon(&place, &["cp", "-r", "a.img:/", "copies"]);
    soon(&place, &["tree", "-s", "a.img"]);
    soon(&place, &["ls", "-l", "a.img"]);
    soon(&place, &["extents", "a.img:/file"]);
    soon(&place, &["stat", "a.img:/file"]);
}

/// A size that the host does not take is a failure of that file alone.
#[test]
fn a_file_too_large_for_the_host_is_named_and_the_rest_is_made() {
    let (place, _) = with_holes();
    let limit = "ulimit -f 100000; trap '' XFSZ; exec \"$0\" \"$@\"";
    for args in [&["extract", "a.img", "out"][..], &["cp", "-r", "a.img:/.", "out"]] {
        let _ = std::fs::remove_dir_all(place.path("out"));
        std::fs::create_dir(place.path("out")).unwrap();
        let mut command = std::process::Command::new("timeout");
        command.args(["-s", "KILL", "60", "bash", "-c", limit, support::EXTANT]).args(args);
        let output = command.current_dir(place.0.path()).output().unwrap();
        let ran = Ran { args: args.join(" "), output };
        ran.ends_with(1).complains(&["huge", "File too large"]);
        assert!(!place.path("out/huge").exists(), "{args:?}");
        assert_eq!(std::fs::read(place.path("out/file")).unwrap(), b"hello\n");
        assert_eq!(std::fs::read(place.path("out/sparse")).unwrap().len(), (3 << 20) + 3);
    }
}

/// So many groups are made as fast as a few of larger blocks are: whoever looked at all of them again for each block of
/// descriptors would take minutes.
#[test]
fn a_tebibyte_in_blocks_of_1_kib_is_made_soon() {
    let place = Place::with_image();
    soon(&place, &["mkfs", "-q", "-b", "1024", "small.img", "1T"]).succeeds();
    let info = soon(&place, &["info", "--json", "small.img"]).succeeds().json();
    assert_eq!(info["group_count"], 131_072);
    assert!(info["features"].as_array().unwrap().contains(&"meta_bg".into()), "{info}");
    soon(&place, &["check", "small.img"]).succeeds();
}
