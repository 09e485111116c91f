//! `scan_dir` against directories made with the usual tools.

use std::collections::HashMap;
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use extant_image::source::dir::{ScanOptions, scan_dir};
use extant_image::source::{Scanned, SourceError};
use extant_image::tree::{Kind, NodeId, Tree};

fn scan(root: &Path, threads: usize) -> Scanned {
    scan_dir(root, &options(threads)).unwrap()
}

fn options(threads: usize) -> ScanOptions<'static> {
    ScanOptions { threads: NonZeroUsize::new(threads).unwrap(), ..ScanOptions::default() }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a tool; `false`, with a note, when it is missing or refuses.
fn tool(program: &str, args: &[&str], file: &Path) -> bool {
    let done = Command::new(program).args(args).arg(file).output();
    let worked = done.as_ref().is_ok_and(|out| out.status.success());
    if !worked {
        println!("skipped {program} {args:?}: {done:?}");
    }
    worked
}

fn find(tree: &Tree, path: &str) -> NodeId {
    let all = tree.entries().iter().enumerate();
    let mut found = all.filter(|&(i, _)| tree.entry_path(i as u32) == path.as_bytes());
    let (_, entry) = found.next().unwrap_or_else(|| panic!("{path} is not in the tree"));
    entry.node
}

/// Everything about a tree except where its source finds the contents.
fn describe(tree: &Tree) -> Vec<String> {
    let nodes = tree.nodes().iter().map(|node| {
        let mut plain = *node;
        plain.locator = 0;
        // Where names lie in the arena depends on who stored them first.
        plain.target = Default::default();
        // Reading a link is an access, and nothing can be done about it.
        if plain.kind == Kind::Symlink {
            plain.atime = Default::default();
        }
        let (runs, xattrs, target) = (tree.runs(node), tree.xattrs(node), tree.target(node));
        format!("{plain:?} {runs:?} {xattrs:?} {target:?}")
    });
    let entries = tree
        .entries()
        .iter()
        .map(|entry| format!("{:?} {:?} {:?}", entry.parent, tree.name(entry), entry.node));
    nodes.chain(entries).collect()
}

/// One of every kind, with names that are not UTF-8, holes, attributes, links across directories.
fn every_kind(root: &Path) {
    let deep = root.join("dir/deep/deeper");
    fs::create_dir_all(&deep).unwrap();
    fs::write(root.join("plain"), b"some contents").unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"not\xffutf8\n")), b"x").unwrap();
    fs::write(root.join("n".repeat(255)), b"long").unwrap();
    fs::hard_link(root.join("plain"), deep.join("other name")).unwrap();
    symlink("plain", root.join("short")).unwrap();
    symlink("t".repeat(4000), root.join("long")).unwrap();
    symlink("nowhere/at all", deep.join("dangling")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    sparse.write_all_at(&[7; 65536], 4 << 20).unwrap();
    File::create(root.join("hole only")).unwrap().set_len(1 << 40).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, root.join("fifo"), 0o640.into()).unwrap();
    std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o6711)).unwrap();
    fs::set_permissions(root.join("dir"), fs::Permissions::from_mode(0o1777)).unwrap();
    tool("setfattr", &["-n", "user.note", "-v", "on a file"], &root.join("plain"));
    tool("setfattr", &["-n", "user.note", "-v", "on a directory"], &root.join("dir"));
    tool("setfattr", &["-n", "user.note", "-v", "on the root"], root);
    tool("setfacl", &["-m", "u:1234:r,g:5678:rw"], &root.join("plain"));
    tool("setfacl", &["-d", "-m", "u:1234:rwx"], &root.join("dir"));
    if is_root() {
        for (name, kind, major, minor) in [("chr", "c", "4", "65"), ("blk", "b", "259", "70000")] {
            let mut mknod = Command::new("mknod");
            let made = mknod.arg(root.join(name)).args([kind, major, minor]).status();
            assert!(made.unwrap().success());
        }
        fs::write(root.join("secret"), b"s").unwrap();
        fs::set_permissions(root.join("secret"), fs::Permissions::from_mode(0o0)).unwrap();
        std::os::unix::fs::chown(root.join("secret"), Some(4_000_000_000), Some(77)).unwrap();
        std::os::unix::fs::lchown(root.join("short"), Some(5), Some(6)).unwrap();
        tool("setcap", &["cap_net_raw+ep"], &root.join("empty"));
        tool("setfattr", &["-h", "-n", "trusted.t", "-v", "on a link"], &root.join("short"));
        tool("setfattr", &["-n", "security.selinux", "-v", "a:b:c"], &root.join("fifo"));
    } else {
        println!("skipped devices, owners, capabilities, trusted attributes: not root");
    }
    let old = rustix::fs::Timespec { tv_sec: -1_000_000, tv_nsec: 123_456_789 };
    let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, root.join("long"), &times, flags).unwrap();
    rustix::fs::utimensat(rustix::fs::CWD, root.join("plain"), &times, flags).unwrap();
}

fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        out.push(path.clone());
        if path.symlink_metadata().unwrap().is_dir() {
            walk(&path, out);
        }
    }
}

#[test]
fn every_kind_is_as_the_system_shows_it() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    every_kind(root);
    let scanned = scan(root, 2);
    let tree = &scanned.tree;
    let by_path: HashMap<Vec<u8>, NodeId> = (0u32..)
        .zip(tree.entries())
        .map(|(i, entry)| (tree.entry_path(i), entry.node))
        .chain([(Vec::new(), NodeId::ROOT)])
        .collect();
    let mut paths = vec![root.to_path_buf()];
    walk(root, &mut paths);
    assert_eq!(by_path.len(), paths.len());
    for path in &paths {
        let relative = path.strip_prefix(root).unwrap().as_os_str().as_bytes();
        let node = tree.node(by_path[relative]);
        let real = path.symlink_metadata().unwrap();
        let note = path.display();
        assert_eq!(u32::from(node.mode), real.mode() & 0o7777, "{note}");
        assert_eq!((node.uid, node.gid), (real.uid(), real.gid()), "{note}");
        let mtime = (node.mtime.sec, i64::from(node.mtime.nsec));
        assert_eq!(mtime, (real.mtime(), real.mtime_nsec()), "{note}");
        let ctime = (node.ctime.sec, i64::from(node.ctime.nsec));
        assert_eq!(ctime, (real.ctime(), real.ctime_nsec()), "{note}");
        if node.kind != Kind::Dir {
            assert_eq!(u64::from(node.name_count), real.nlink(), "{note}");
        }
        match node.kind {
            Kind::File => assert_eq!(node.size, real.len(), "{note}"),
            Kind::Symlink => {
                let target = fs::read_link(path).unwrap();
                assert_eq!(tree.target(node), target.as_os_str().as_bytes(), "{note}");
                assert_eq!(node.size, real.len(), "{note}");
            }
            Kind::Char | Kind::Block => {
                let device = rustix::fs::makedev(node.rdev.0, node.rdev.1);
                assert_eq!(device, real.rdev(), "{note}");
            }
            _ => {}
        }
        // The tool's listing is the oracle for attributes: one line "name=0x..." each.
        let dump = Command::new("getfattr")
            .args(["-h", "-d", "-m", "-", "-e", "hex", "--absolute-names"])
            .arg(path)
            .output();
        let Ok(dump) = dump else {
            println!("skipped attributes of {note}: no getfattr");
            continue;
        };
        let mut wanted: Vec<String> = String::from_utf8_lossy(&dump.stdout)
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .map(str::to_owned)
            .collect();
        let mut got: Vec<String> = tree
            .xattrs(node)
            .iter()
            .map(|(name, value)| {
                let hex: String = value.iter().map(|b| format!("{b:02x}")).collect();
                format!("{}=0x{hex}", String::from_utf8_lossy(name))
            })
            .collect();
        wanted.sort();
        got.sort();
        assert_eq!(got, wanted, "{note}");
    }
    let runs = |name| {
        let runs = tree.runs(tree.node(find(tree, name)));
        runs.map(|runs| runs.iter().map(|run| (run.offset, run.len)).collect::<Vec<_>>())
    };
    assert_eq!(runs("sparse"), Some(vec![(4 << 20, 65536)]));
    assert_eq!(runs("hole only"), Some(vec![]));
    assert_eq!(runs("plain"), None);
    assert_eq!(scanned.skipped.count, 0);
}

#[test]
fn the_tree_does_not_depend_on_the_number_of_threads() {
    let temp = tempfile::tempdir().unwrap();
    every_kind(temp.path());
    // Enough names in one directory to be cut into chunks, some with attributes and holes.
    let many = temp.path().join("many");
    fs::create_dir(&many).unwrap();
    for i in 0..5000u32 {
        let file = File::create(many.join(format!("file {i}"))).unwrap();
        if i % 500 == 0 {
            file.set_len(1 << 20).unwrap();
            let value = (i / 1000).to_string();
            tool("setfattr", &["-n", "user.i", "-v", &value], &many.join(format!("file {i}")));
        }
    }
    let one = describe(&scan(temp.path(), 1).tree);
    assert!(one.len() > 10_000);
    for threads in [2, 3, 4, 4, 4] {
        let tree = scan(temp.path(), threads).tree;
        assert!(one == describe(&tree), "{threads} threads made another tree");
    }
}

#[test]
fn contents_are_read_in_any_pieces() {
    let temp = tempfile::tempdir().unwrap();
    every_kind(temp.path());
    let scanned = scan(temp.path(), 2);
    let tree = &scanned.tree;
    let mut reader = scanned.contents.reader();
    let mut buf = [0; 13];
    reader.read(tree, find(tree, "plain"), 0, &mut buf).unwrap();
    assert_eq!(&buf, b"some contents");
    let mut pieces = Vec::new();
    for at in 0..13 {
        let mut byte = [0];
        reader.read(tree, find(tree, "plain"), at, &mut byte).unwrap();
        pieces.push(byte[0]);
    }
    assert_eq!(pieces, b"some contents");
    let sparse = find(tree, "sparse");
    let mut data = vec![0; 65536];
    reader.read(tree, sparse, 4 << 20, &mut data).unwrap();
    assert!(data.iter().all(|&b| b == 7));
    reader.finish(tree).unwrap();
    reader.finish(tree).unwrap();
    assert!(reader.read(tree, find(tree, "fifo"), 0, &mut buf).is_err());
}

/// What reading `name` gives after `change` was done to it between scan and read.
fn after(change: impl FnOnce(&Path)) -> Result<(), SourceError> {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("d")).unwrap();
    let path = temp.path().join("d/file");
    fs::write(&path, b"0123456789").unwrap();
    let scanned = scan(temp.path(), 1);
    let node = find(&scanned.tree, "d/file");
    change(&path);
    let mut reader = scanned.contents.reader();
    let mut buf = [0; 10];
    reader.read(&scanned.tree, node, 0, &mut buf)?;
    reader.finish(&scanned.tree)
}

#[test]
fn a_file_that_changed_since_the_scan_is_named() {
    after(|_| ()).unwrap();
    let refused = |what: &str, change: &dyn Fn(&Path)| {
        let error = after(change).expect_err(what);
        assert!(matches!(error, SourceError::Changed { .. }), "{what}: {error:?}");
        let text = error.to_string();
        assert!(text.contains("d/file") && text.contains("changed"), "{what}: {text}");
        text
    };
    let text = refused("grown", &|path| fs::write(path, b"0123456789A").unwrap());
    assert!(text.contains("10 bytes, now it has 11"), "{text}");
    let text = refused("shrunk", &|path| fs::write(path, b"01234").unwrap());
    assert!(text.contains("10 bytes, now it ends at 5"), "{text}");
    refused("rewritten", &|path| {
        // Coarse clocks may give the old time again; a set time cannot be the same.
        let old = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 1 };
        let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
    });
    refused("gone", &|path| fs::remove_file(path).unwrap());
    refused("replaced", &|path| {
        fs::write(path.with_extension("new"), b"0123456789").unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    });
    refused("now a fifo", &|path| {
        fs::remove_file(path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path, 0o600.into()).unwrap();
    });
    refused("now a symlink", &|path| {
        fs::rename(path, path.with_extension("old")).unwrap();
        symlink("file.old", path).unwrap();
    });
    refused("its directory now a symlink", &|path| {
        let dir = path.parent().unwrap();
        fs::rename(dir, dir.with_extension("old")).unwrap();
        symlink("d.old", dir).unwrap();
    });
}

#[test]
fn the_image_being_written_and_other_file_systems_can_be_left_out() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("a"), b"a").unwrap();
    fs::write(temp.path().join("out.img"), b"b").unwrap();
    let meta = fs::metadata(temp.path().join("out.img")).unwrap();
    let options =
        ScanOptions { exclude_inode: Some((meta.dev(), meta.ino())), ..ScanOptions::default() };
    let scanned = scan_dir(temp.path(), &options).unwrap();
    assert_eq!(scanned.tree.entries().len(), 1);
    assert_eq!(scanned.tree.path(NodeId(1)), b"a");

    if !is_root() {
        println!("skipped one_file_system: mounting needs root");
        return;
    }
    let point = temp.path().join("point");
    fs::create_dir(&point).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "x"]).arg(&point).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped one_file_system: mount refused");
        return;
    }
    fs::write(point.join("inside"), b"c").unwrap();
    let all = scan_dir(temp.path(), &ScanOptions::default());
    let one =
        scan_dir(temp.path(), &ScanOptions { one_file_system: true, ..ScanOptions::default() });
    assert!(Command::new("umount").arg(&point).status().unwrap().success());
    assert_eq!(all.unwrap().tree.entries().len(), 4);
    assert_eq!(one.unwrap().tree.entries().len(), 3);
}

#[test]
fn contents_without_a_size_are_not_taken_for_an_empty_file() {
    // A small directory of /proc whose files give their size as 0; one of them is empty in truth.
    let root = Path::new("/proc/sys/kernel/random");
    if !fs::read(root.join("uuid")).is_ok_and(|text| !text.is_empty()) {
        println!("skipped: no {}", root.display());
        return;
    }
    let error = scan_dir(root, &options(1)).err().expect("nothing was missed");
    let SourceError::Io { doing: "copy", path, cause } = &error else { panic!("{error:?}") };
    assert!(path.starts_with("/proc/sys/kernel/random/"), "{path}");
    assert!(cause.to_string().contains("size as 0"), "{cause}");

    let options = ScanOptions { ignore_unreadable: true, ..options(2) };
    let scanned = scan_dir(root, &options).unwrap();
    let shown = fs::read_dir(root).unwrap().count();
    assert_eq!(scanned.skipped.count as usize + scanned.tree.entries().len(), shown);
    let uuid = |text: &String| text.contains("/uuid\": it has contents");
    assert!(scanned.skipped.examples.iter().any(uuid), "{:?}", scanned.skipped);

    // Empty files elsewhere are what they seem, and asking is no access.
    let temp = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::write(temp.path().join("empty"), b"").unwrap();
    let before = fs::metadata(temp.path().join("empty")).unwrap();
    let scanned = scan(temp.path(), 1);
    assert_eq!(scanned.tree.entries().len(), 1);
    let after = fs::metadata(temp.path().join("empty")).unwrap();
    let atime = |meta: &fs::Metadata| (meta.atime(), meta.atime_nsec());
    assert_eq!(atime(&before), atime(&after));
}

#[test]
fn what_cannot_be_read_is_an_error_or_counted() {
    if !is_root() {
        println!("skipped: needs root to drop to another user");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(temp.path().join("closed")).unwrap();
    fs::write(temp.path().join("closed/inside"), b"").unwrap();
    fs::write(temp.path().join("open"), b"").unwrap();
    fs::write(temp.path().join("secret"), b"").unwrap();
    for name in ["closed", "secret"] {
        fs::set_permissions(temp.path().join(name), fs::Permissions::from_mode(0o700)).unwrap();
    }
    // The checks ask the kernel about this process, so another process has to be another user:
    // this test calls itself through setpriv.
    if let Some(path) = std::env::var_os("EXTANT_SCAN_AS_NOBODY") {
        panic!("the inner run must not be root: {path:?}");
    }
    let exe = std::env::current_exe().unwrap();
    let copy = temp.path().join("open");
    fs::copy(exe, &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    let run = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&copy)
        .args(["--exact", "scan_dir::scan_as_nobody", "--nocapture", "--include-ignored"])
        .env("EXTANT_SCAN_AS_NOBODY", temp.path())
        .output();
    match run {
        Ok(out) => {
            let text = String::from_utf8_lossy(&out.stdout);
            assert!(out.status.success() && text.contains("1 passed"), "{out:?}");
        }
        Err(error) => println!("skipped: no setpriv: {error}"),
    }
}

#[test]
#[ignore = "run by what_cannot_be_read_is_an_error_or_counted as another user"]
fn scan_as_nobody() {
    let Some(path) = std::env::var_os("EXTANT_SCAN_AS_NOBODY") else { return };
    let root = Path::new(&path);
    let error = scan_dir(root, &ScanOptions::default()).err().unwrap();
    let SourceError::Io { path, cause, .. } = &error else { panic!("{error:?}") };
    assert!(path.ends_with("/closed") || path.ends_with("/secret"), "{path}");
    assert_eq!(cause.kind(), std::io::ErrorKind::PermissionDenied);

    let options = ScanOptions { ignore_unreadable: true, ..ScanOptions::default() };
    let scanned = scan_dir(root, &options).unwrap();
    assert_eq!(scanned.skipped.count, 2, "{:?}", scanned.skipped);
    assert!(scanned.skipped.examples[0].contains("/closed\": Permission denied"));
    assert!(scanned.skipped.examples[1].contains("/secret\": Permission denied"));
    // The directory stays, empty; the file does not.
    let names: Vec<_> = scanned.tree.entries().iter().map(|e| scanned.tree.name(e)).collect();
    assert_eq!(names, [&b"closed"[..], b"open"]);
}

#[test]
fn a_root_that_is_no_directory_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("file"), b"").unwrap();
    for name in ["file", "missing"] {
        let error = scan_dir(&temp.path().join(name), &ScanOptions::default()).err().unwrap();
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// Not a check: prints how long a scan takes. `cargo test --release -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_methods, reason = "measures real time")]
fn time_of_usr_share() {
    for threads in [1, 2, 2, 2] {
        let start = std::time::Instant::now();
        let scanned = scan(Path::new("/usr/share"), threads);
        println!(
            "{threads} threads: {} names, {:?}",
            scanned.tree.entries().len(),
            start.elapsed()
        );
    }
}

#[test]
fn a_scan_that_is_cancelled_lists_nothing_more() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("dir")).unwrap();
    for stop in [false, true] {
        let stop = AtomicBool::new(stop);
        let scanned = scan_dir(temp.path(), &ScanOptions { cancel: Some(&stop), ..options(2) });
        match stop.into_inner() {
            false => assert!(scanned.is_ok()),
            true => assert!(matches!(scanned.err(), Some(SourceError::Interrupted))),
        }
    }
}
