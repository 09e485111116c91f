//! `extant salvage`: what it makes on the host, what it says, and how it ends.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::support;
use support::{Place, is_root, tool};

/// Sizes, modes, times and contents of all below a directory, by path.
fn tree(root: &Path) -> std::collections::BTreeMap<String, String> {
    let mut all = std::collections::BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let contents = match () {
                () if meta.is_file() => format!("{:?}", std::fs::read(&path).unwrap()),
                () if meta.is_symlink() => format!("{:?}", std::fs::read_link(&path).unwrap()),
                () => String::new(),
            };
            let (uid, gid) = (meta.uid(), meta.gid());
            let text = format!(
                "{:o} {uid}:{gid} {} {}.{} {contents}",
                meta.mode(),
                meta.nlink(),
                meta.mtime(),
                meta.mtime_nsec()
            );
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            if meta.is_dir() {
                open.push(path);
            }
            all.insert(name, text);
        }
    }
    all
}

/// Overwrites bytes of an image.
fn wipe(place: &Place, at: u64, len: usize) {
    let file = std::fs::OpenOptions::new().write(true).open(place.path("a.img")).unwrap();
    file.write_all_at(&vec![0; len], at).unwrap();
}

#[test]
fn a_sound_image_is_copied_as_extract_does() {
    let place = Place::with_image();
    place.run(&["extract", "-q", "a.img", "by-extract"]).succeeds();
    let before = std::fs::read(place.path("a.img")).unwrap();
    let told = place.run(&["salvage", "a.img", "by-salvage"]).succeeds().out();
    assert!(told.contains("all that was found is whole"), "{told}");
    assert_eq!(tree(&place.path("by-salvage")), tree(&place.path("by-extract")));
    // Holes stay holes.
    let sparse = place.path("by-salvage/sparse").metadata().unwrap();
    assert!(sparse.blocks() * 512 < 1 << 20, "{} sectors", sparse.blocks());
    assert!(std::fs::read(place.path("a.img")).unwrap() == before, "the image is only read");
}

#[test]
fn what_is_there_is_never_overwritten() {
    let place = Place::with_image();
    std::fs::create_dir_all(place.path("full")).unwrap();
    std::fs::write(place.path("full/file"), "mine").unwrap();
    place.run(&["salvage", "a.img", "full"]).ends_with(7).complains(&["not empty"]).hints("empty");
    assert_eq!(std::fs::read(place.path("full/file")).unwrap(), b"mine");
    // The one that every new ext4 has is not in the way.
    std::fs::create_dir_all(place.path("disk/lost+found")).unwrap();
    let ran = place.run(&["salvage", "a.img", "disk"]);
    assert!(place.path("disk/file").exists(), "{}", ran.err());
}

#[test]
fn nothing_that_is_an_image_is_an_error_that_says_what_to_do() {
    let place = Place::new();
    std::fs::write(place.path("a.img"), vec![7; 1 << 20]).unwrap();
    let ran = place.run(&["salvage", "a.img", "out"]).ends_with(4);
    ran.complains(&["no superblock"]).hints("--block-size");
    assert!(!place.path("out").exists());
    place.run(&["salvage", "--block-size", "3000", "a.img", "out"]).ends_with(2);
    place.run(&["salvage", "a.img:/file", "out"]).ends_with(2);
    place.run(&["salvage", "none.img", "out"]).ends_with(8);
}

#[test]
fn without_a_root_names_are_numbers_and_each_damage_is_told() {
    let place = Place::with_image();
    let Some(said) = tool("debugfs", &["-R", "blocks /", "a.img"], place.0.path()) else { return };
    let said = support::text(&said);
    let root: u64 = said.split_whitespace().next().unwrap().parse().unwrap();
    let said = place.run(&["info", "--json", "a.img"]).succeeds().json();
    let block = said["block_bytes"].as_u64().unwrap();
    wipe(&place, root * block, block as usize);
    wipe(&place, 1024, 1024);
    let ran = place.run(&["salvage", "--json", "a.img", "out"]);
    let lines = ran.json_lines();
    let (last, damages) = lines.split_last().unwrap();
    if last["notes"].as_array().is_some_and(|notes| notes.is_empty()) {
        panic!("{last}");
    }
    ran.ends_with(4);
    assert_eq!(last["damaged"].as_u64(), Some(damages.len() as u64), "{lines:?}");
    assert_eq!((last["whole"].as_bool(), last["complete"].as_bool()), (Some(false), Some(true)));
    assert!(damages.iter().any(|one| one["path"] == "/" && one["inode"] == 2), "{damages:?}");
    let found: Vec<_> = tree(&place.path("out/lost+found")).into_values().collect();
    assert!(found.iter().any(|file| file.ends_with(&format!("{:?}", b"hello\n"))), "{found:?}");
    // Again, into the same directory: refused.
    place.run(&["salvage", "a.img", "out"]).ends_with(7);
}

/// What is missing is a hole, and its bytes are told.
#[test]
fn bytes_outside_are_missing() {
    let place = Place::new();
    std::fs::create_dir(place.path("source")).unwrap();
    std::fs::write(place.path("source/file"), vec![b'x'; 300_000]).unwrap();
    place.run(&["mkfs", "a.img", "16M"]).succeeds();
    place.run(&["cp", "source/file", "a.img:/file"]).succeeds();
    let image = std::fs::OpenOptions::new().write(true).open(place.path("a.img")).unwrap();
    let extents = place.run(&["extents", "--json", "a.img:/file"]).succeeds().json_lines();
    let start = extents[0]["physical"].as_u64().unwrap();
    let said = place.run(&["info", "--json", "a.img"]).succeeds().json();
    let block = said["block_bytes"].as_u64().unwrap();
    // The image ends in the middle of the file.
    image.set_len((start + 10) * block).unwrap();
    let ran = place.run(&["salvage", "--json", "a.img", "out"]).ends_with(4);
    let lines = ran.json_lines();
    let file = lines.iter().find(|line| line["path"] == "/file").unwrap();
    assert_eq!(
        (file["size"].as_u64(), file["missing"].as_u64()),
        (Some(300_000), Some(300_000 - 10 * block))
    );
    assert_eq!(file["why"][0]["code"], "outside");
    let copied = std::fs::read(place.path("out/file")).unwrap();
    assert_eq!(copied.len(), 300_000);
    assert!(copied[..10 * block as usize].iter().all(|byte| *byte == b'x'));
    assert!(copied[10 * block as usize..].iter().all(|byte| *byte == 0));
}

/// Files that have a block of each other, or of the file system itself, have checksums that are right.
#[test]
fn files_that_have_blocks_of_others_are_not_whole() {
    let place = Place::new();
    std::fs::create_dir(place.path("source")).unwrap();
    for (name, byte) in [("own", b'o'), ("other", b'x'), ("third", b't')] {
        std::fs::write(place.path(&format!("source/{name}")), vec![byte; 20_000]).unwrap();
    }
    place.run(&["build", "a.img", "--from", "source", "-q"]).succeeds();
    place.run(&["salvage", "a.img", "sound"]).succeeds();
    let extents = |path: &str| place.run(&["extents", "--json", path]).succeeds().json_lines();
    let own = extents("a.img:/own")[0]["physical"].as_u64().unwrap();
    let inode = |path: &str| {
        let said = place.run(&["stat", "--json", path]).succeeds().json();
        said["ino"].as_u64().unwrap()
    };
    let numbers = [inode("a.img:/own"), inode("a.img:/other")];

    let lead = |to: u64| {
        let request = format!("sif /other block[5] {to}");
        tool("debugfs", &["-w", "-R", &request, "a.img"], place.0.path()).is_some()
    };
    if !lead(own) {
        return;
    }
    let ran = place.run(&["salvage", "--json", "a.img", "both"]);
    let lines = ran.json_lines();
    let (last, damages) = lines.split_last().unwrap();
    let named = |name: &str| {
        let of = |one: &&serde_json::Value| one["path"] == name;
        damages.iter().find(of).unwrap_or_else(|| panic!("{name}: {lines:?}"))
    };
    for (name, other) in [("/own", numbers[1]), ("/other", numbers[0])] {
        let one = named(name);
        assert_eq!((&one["why"][0]["code"], one["missing"].as_u64()), (&"shared".into(), Some(0)));
        assert_eq!(one["shared_with"].as_u64(), Some(other), "{one}");
    }
    assert_eq!((last["damaged"].as_u64(), last["whole"].as_bool()), (Some(2), Some(false)));
    ran.ends_with(4);
    let told = place.run(&["salvage", "a.img", "told"]).ends_with(4).out();
    assert!(
        told.contains(&format!("/own: it shares 5 blocks with inode {}", numbers[1])),
        "{told}"
    );
    assert_eq!(std::fs::read(place.path("told/own")).unwrap(), vec![b'o'; 20_000]);

    // The second block has descriptors.
    assert!(lead(1));
    let told = place.run(&["salvage", "a.img", "system"]).ends_with(4).out();
    assert!(told.contains("/other: it shares"), "{told}");
    assert!(told.contains("with the file system itself") && !told.contains("/own:"), "{told}");
}

#[test]
fn a_full_disk_ends_it_and_leaves_no_half_file() {
    let place = Place::with_image();
    if !is_root() {
        println!("skipped: needs root: mounts a small tmpfs");
        return;
    }
    std::fs::write(place.path("source/large"), vec![b'x'; 3 << 20]).unwrap();
    place.run(&["build", "b.img", "--from", "source", "-q"]).succeeds();
    std::fs::create_dir(place.path("small")).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=1M", "tmpfs", "small"];
    let Some(mounted) = tool("mount", &mount, place.0.path()) else { return };
    if !mounted.status.success() {
        println!("skipped: no tmpfs: {}", String::from_utf8_lossy(&mounted.stderr));
        return;
    }
    let ran = place.run(&["salvage", "b.img", "small/out"]);
    let large = place.path("small/out/large").exists();
    let unmounted = tool("umount", &["small"], place.0.path()).unwrap();
    assert!(unmounted.status.success());
    let told = ran.ends_with(6).complains(&["cannot write"]).hints("another file system").out();
    assert!(told.contains("so far") && !told.contains("whole"), "{told}");
    assert!(!large, "half a file looks like a whole one");
}

#[test]
fn a_signal_ends_it_in_order() {
    const FILES: usize = 2000;
    let place = Place::new();
    std::fs::create_dir_all(place.path("source")).unwrap();
    for number in 0..FILES {
        let name = format!("source/a name that is told because its contents are missing {number}");
        std::fs::write(place.path(&name), vec![b'x'; 5000]).unwrap();
    }
    place.run(&["mkfs", "a.img", "32M", "-N", "4096"]).succeeds();
    place.run(&["cp", "-r", "source", "a.img:/"]).succeeds();
    // Nothing of the contents is there, which is told for each file: more than a pipe holds that nobody reads.
    let said = place.run(&["info", "--json", "a.img"]).succeeds().json();
    let block = said["block_bytes"].as_u64().unwrap();
    let mut first = u64::MAX;
    for number in (0..FILES).step_by(FILES / 20) {
        let name = format!("a name that is told because its contents are missing {number}");
        let path = format!("a.img:/source/{name}");
        let extents = place.run(&["extents", "--json", &path]).succeeds().json_lines();
        first = first.min(extents[0]["physical"].as_u64().unwrap());
    }
    let image = std::fs::OpenOptions::new().write(true).open(place.path("a.img")).unwrap();
    image.set_len(first * block).unwrap();
    let mut command = place.command(&["salvage", "--json", "a.img", "out"]);
    let pipe = std::process::Stdio::piped;
    let mut child = command.stdout(pipe()).stderr(pipe()).spawn().unwrap();
    // Where the directory itself is lost, they have numbers.
    let count = |dir| std::fs::read_dir(place.path(dir)).map_or(0, Iterator::count);
    let made = || count("out/source").max(count("out/lost+found"));
    while made() < 10 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let ran = support::Ran { args: "salvage".to_owned(), output }.ends_with(130);
    assert!(ran.err().contains("holds what was found so far"), "{}", ran.err());
    let last = ran.json_lines().pop().unwrap();
    assert_eq!((last["complete"].as_bool(), last["whole"].as_bool()), (Some(false), Some(false)));
    assert!(made() < FILES, "it went on to the end");
}
