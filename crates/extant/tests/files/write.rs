//! Changes of the name space on images of mke2fs, checked by e2fsck and by reading back.

use std::sync::Arc;
use std::time::Duration;

use extant::{Fs, FsError, MountOptions, NewInode, RenameFlags, SetAttributes, Special, XattrMode};
use extant_block::MemoryDevice;
use extant_sync::FixedClock;
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require};

fn work_dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn device(
    dir: &tempfile::TempDir,
    size: &str,
    options: &[&str],
) -> Result<Arc<MemoryDevice>, String> {
    let path = dir.path().join("image");
    mke2fs(&path, size, options)?;
    Ok(Arc::new(image::load(&path)))
}

fn mount(device: &Arc<MemoryDevice>) -> Fs {
    let device = Arc::clone(device);
    MountOptions::new().read_only(false).seed(1).open_shared(device).expect("mounts")
}

fn check(dir: &tempfile::TempDir, device: &MemoryDevice) {
    let path = dir.path().join("result");
    let _ = std::fs::remove_file(&path);
    image::save(device, &path);
    e2fsck(&path).expect("mke2fs is there, so is e2fsck").assert_clean();
}

const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext4"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext3"],
    &["-t", "ext2"],
    &["-t", "ext4", "-O", "bigalloc", "-C", "16384"],
];

#[test]
fn every_operation_leaves_a_clean_file_system() {
    let dir = work_dir();
    for layout in LAYOUTS {
        let device = require!(device(&dir, "64M", layout));
        let fs = mount(&device);
        let new = NewInode { permissions: 0o640, uid: 1000, gid: 100 };
        let root = fs.root().unwrap();
        let sub = root.mkdir("sub", &NewInode::root(0o755)).unwrap();
        let file = sub.create("file", &new).unwrap();
        sub.link("second", &file).unwrap();
        sub.symlink("short", "file", &new).unwrap();
        sub.symlink("long", "x".repeat(300), &new).unwrap();
        sub.mknod("null", Special::CharDevice { major: 1, minor: 3 }, &new).unwrap();
        root.rename("sub", &root, "moved", RenameFlags::empty()).unwrap();
        file.set_attributes(&SetAttributes::new().permissions(0o4755)).unwrap();
        file.set_xattr("user.name", "value", XattrMode::Any).unwrap();
        for at in 0..100 {
            sub.create(format!("many-{at}"), &new).unwrap();
        }
        for at in 0..50 {
            sub.unlink(format!("many-{at}")).unwrap();
        }
        let inner = sub.mkdir("inner", &new).unwrap();
        sub.rename("inner", &root, "outer", RenameFlags::empty()).unwrap();
        assert_eq!(inner.lookup("..").unwrap().ino(), root.ino());
        root.rmdir("outer").unwrap();
        drop((file, sub, root, inner));
        fs.unmount().unwrap();
        check(&dir, &device);
        let again = MountOptions::new().open_shared(device).unwrap();
        let found = again.resolve("/moved/second").unwrap();
        assert_eq!(found.metadata().links, 2);
        assert_eq!(found.xattr("user.name").unwrap(), b"value");
        assert_eq!(again.read_link("/moved/long").unwrap().len(), 300);
        assert_eq!(again.read_dir("/moved").unwrap().count(), 55);
    }
}

#[test]
fn a_thousand_changes_of_one_inode_are_encoded_once() {
    let dir = work_dir();
    let device = require!(device(&dir, "16M", &["-t", "ext4"]));
    let fs = mount(&device);
    let file = fs.create("/file", &NewInode::root(0o644)).unwrap();
    fs.sync().unwrap();
    let before = fs.writer_stats().unwrap();
    for mode in 0..1000 {
        file.set_attributes(&SetAttributes::new().permissions(mode & 0o777)).unwrap();
    }
    fs.sync().unwrap();
    let after = fs.writer_stats().unwrap();
    assert!(after.inode_updates - before.inode_updates >= 1000);
    assert_eq!(after.inodes_encoded - before.inodes_encoded, 1);
    drop(file);
    fs.unmount().unwrap();
    check(&dir, &device);
}

/// A number that is given out again within a transaction keeps one entry on the list of what is to be encoded.
#[test]
fn a_thousand_owners_of_one_number_are_encoded_once_and_the_last_is_stored() {
    let dir = work_dir();
    let device = require!(device(&dir, "16M", &["-t", "ext4"]));
    let fs = mount(&device);
    fs.sync().unwrap();
    let before = fs.writer_stats().unwrap();
    let first = fs.create("/0", &NewInode::root(0o600)).unwrap().ino();
    fs.remove_file("/0").unwrap();
    for n in 1..500 {
        let (file, sub) = (format!("/{n}"), format!("/d{n}"));
        assert_eq!(fs.create(&file, &NewInode::root(0o600)).unwrap().ino(), first, "{n}");
        fs.remove_file(&file).unwrap();
        fs.create_dir(&sub, &NewInode::root(0o700)).unwrap();
        fs.remove_dir(&sub).unwrap();
    }
    let last = fs.create("/last", &NewInode::root(0o640)).unwrap();
    assert_eq!(last.ino(), first);
    drop(last);
    fs.sync().unwrap();
    let after = fs.writer_stats().unwrap();
    // The root, the number of the files and that of the directories, in each of the few transactions that a slow machine
    // may make of it; and not a thousand.
    let encoded = after.inodes_encoded - before.inodes_encoded;
    assert!(encoded <= 12, "{encoded}");
    fs.unmount().unwrap();
    check(&dir, &device);
    let again = MountOptions::new().open_shared(device).unwrap();
    assert_eq!(again.resolve("/last").unwrap().metadata().permissions, 0o640);
    assert_eq!(again.read_dir("/").unwrap().count(), 2);
}

#[test]
fn a_removed_file_lives_until_its_last_handle() {
    let dir = work_dir();
    let device = require!(device(&dir, "16M", &["-t", "ext4"]));
    let fs = mount(&device);
    let free = fs.statfs().unwrap().files_free;
    let file = fs.create("/file", &NewInode::root(0o644)).unwrap();
    let other = file.clone();
    fs.remove_file("/file").unwrap();
    assert_eq!(file.metadata().links, 0);
    drop(file);
    assert!(fs.inode(other.ino()).is_ok(), "held");
    let ino = other.ino();
    drop(other);
    fs.sync().unwrap();
    assert!(fs.inode(ino).is_err(), "gone");
    assert_eq!(fs.statfs().unwrap().files_free, free);
    fs.unmount().unwrap();
    check(&dir, &device);
}

#[test]
fn refusals_change_nothing() {
    let dir = work_dir();
    let device = require!(device(&dir, "16M", &["-t", "ext4"]));
    let fs = mount(&device);
    let new = NewInode::root(0o755);
    let a = fs.create_dir("/a", &new).unwrap();
    let b = a.mkdir("b", &new).unwrap();
    let file = a.create("file", &new).unwrap();
    let errno = |result: extant::Result<()>| result.unwrap_err().errno();
    assert_eq!(errno(a.create("file", &new).map(drop)), 17, "EEXIST");
    assert_eq!(errno(a.unlink("b")), 21, "EISDIR");
    assert_eq!(errno(a.rmdir("file")), 20, "ENOTDIR");
    assert_eq!(errno(fs.remove_dir("/a")), 39, "ENOTEMPTY");
    assert_eq!(errno(a.unlink("none")), 2, "ENOENT");
    assert_eq!(errno(a.create("x".repeat(256), &new).map(drop)), 36, "ENAMETOOLONG");
    assert_eq!(errno(a.create("", &new).map(drop)), 22, "EINVAL");
    assert_eq!(errno(fs.rename("/a", "/a/b/c")), 22, "EINVAL");
    assert_eq!(errno(fs.rename("/a/file", "/a/b")), 21, "EISDIR");
    assert_eq!(errno(fs.rename("/a/b", "/a/file")), 20, "ENOTDIR");
    assert_eq!(errno(a.link("again", &b)), 1, "EPERM");
    let flags = RenameFlags::NOREPLACE;
    assert_eq!(errno(a.rename("file", &a, "b", flags)), 17, "EEXIST");
    let names: Vec<_> = fs.read_dir("/a").unwrap().map(|e| e.map(|e| e.name().to_vec())).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    drop((a, b, file));
    fs.unmount().unwrap();
    check(&dir, &device);
}

/// What the host's kernel answers, and what the library does, to paths that end in a name that no
/// change can have: the root, `.`, `..`, and nothing. None of the calls can succeed.
#[test]
fn names_that_cannot_change_are_refused_as_by_linux() {
    let dir = work_dir();
    let device = require!(device(&dir, "16M", &["-t", "ext4"]));
    let fs = mount(&device);
    let new = NewInode::root(0o755);
    // The same paths on both sides.
    let at = dir.path().join("names");
    std::fs::create_dir_all(at.join("d")).unwrap();
    std::fs::write(at.join("f"), "").unwrap();
    let at = at.to_str().unwrap();
    fs.create_dir_all(format!("{at}/d"), &new).unwrap();
    fs.create(format!("{at}/f"), &new).unwrap();
    let (d, f, free) = (format!("{at}/d"), format!("{at}/f"), format!("{at}/free"));
    let theirs = |done: std::io::Result<()>| done.unwrap_err().raw_os_error().unwrap();
    let ours = |done: extant::Result<()>| done.unwrap_err().errno();
    for end in ["/", "//", "", "d/.", "d/./", "d/..", "d/../"] {
        let path = &match end.contains('d') {
            true => format!("{at}/{end}"),
            false => end.to_owned(),
        };
        let answers = [
            ("mkdir", theirs(std::fs::create_dir(path)), ours(fs.create_dir(path, &new).map(drop))),
            ("rmdir", theirs(std::fs::remove_dir(path)), ours(fs.remove_dir(path))),
            ("unlink", theirs(std::fs::remove_file(path)), ours(fs.remove_file(path))),
            ("from", theirs(std::fs::rename(path, &free)), ours(fs.rename(path, &free))),
            ("to", theirs(std::fs::rename(&d, path)), ours(fs.rename(&d, path))),
            ("link", theirs(std::fs::hard_link(&f, path)), ours(fs.hard_link(&f, path))),
            (
                "symlink",
                theirs(std::os::unix::fs::symlink("x", path)),
                ours(fs.symlink("x", path, &new).map(drop)),
            ),
        ];
        for (call, theirs, ours) in answers {
            assert_eq!(ours, theirs, "{call} of {end:?}");
        }
    }
    let root = fs.remove_dir("/").unwrap_err();
    assert!(matches!(root, FsError::NameInUse { name: "/" }), "{root}");
    assert_eq!(ours(fs.remove_all("/")), 16, "EBUSY");
    let kept = fs.rename_with(&d, "/", RenameFlags::NOREPLACE);
    assert_eq!(ours(kept), 17, "EEXIST, as renameat2");
    fs.unmount().unwrap();
    check(&dir, &device);
}

#[test]
fn exchange_and_whiteout() {
    let dir = work_dir();
    let device = require!(device(&dir, "16M", &["-t", "ext4"]));
    let clock = Arc::new(FixedClock::at(1_600_000_000, 0));
    let options = MountOptions::new().read_only(false).seed(1).clock(clock.clone());
    let fs = options.open_shared(device.clone()).unwrap();
    let new = NewInode::root(0o755);
    let a = fs.create_dir("/a", &new).unwrap();
    let b = fs.create_dir("/b", &new).unwrap();
    let inner = a.mkdir("dir", &new).unwrap();
    let file = b.create("file", &new).unwrap();
    let changed = || [&a, &b, &inner, &file].map(|inode| inode.metadata().ctime);
    let before = changed();
    clock.advance(Duration::from_secs(1));
    a.rename("dir", &b, "file", RenameFlags::EXCHANGE).unwrap();
    for (at, (before, after)) in before.into_iter().zip(changed()).enumerate() {
        assert!(before < after, "{at}: both directories, and both that moved");
    }
    assert!(fs.metadata("/a/dir").unwrap().is_file());
    assert!(fs.metadata("/b/file").unwrap().is_dir());
    assert_eq!(inner.lookup("..").unwrap().ino(), b.ino());
    assert_eq!((a.metadata().links, b.metadata().links), (2, 3));
    a.rename("dir", &b, "moved", RenameFlags::WHITEOUT).unwrap();
    assert_eq!(fs.metadata("/a/dir").unwrap().rdev, Some((0, 0)));
    assert!(fs.metadata("/b/moved").unwrap().is_file());
    assert_eq!(fs.metadata("/a/dir").unwrap().uid, 0);
    let by = NewInode { permissions: 0o777, uid: 1000, gid: 1001 };
    b.rename_by("moved", &a, "moved", RenameFlags::WHITEOUT, &by).unwrap();
    let whiteout = fs.metadata("/b/moved").unwrap();
    assert_eq!((whiteout.uid, whiteout.gid, whiteout.permissions), (1000, 1001, 0));
    drop((a, b, inner, file));
    fs.unmount().unwrap();
    check(&dir, &device);
}

#[test]
fn an_exchange_puts_no_directory_below_itself() {
    let dir = work_dir();
    let device = require!(device(&dir, "16M", &["-t", "ext4"]));
    let fs = mount(&device);
    let new = NewInode::root(0o755);
    let root = fs.root().unwrap();
    fs.create_dir("/a", &new).unwrap();
    fs.create_dir("/a/b", &new).unwrap();
    let deep = fs.create_dir("/a/b/c", &new).unwrap();
    deep.create("file", &new).unwrap();
    deep.mkdir("dir", &new).unwrap();
    for name in ["file", "dir"] {
        // Either may be the one that is asked to move.
        let down = root.rename("a", &deep, name, RenameFlags::EXCHANGE);
        assert!(matches!(down, Err(FsError::IntoItself { .. })), "{name}: {down:?}");
        let up = deep.rename(name, &root, "a", RenameFlags::EXCHANGE);
        assert!(matches!(up, Err(FsError::IntoItself { .. })), "{name}: {up:?}");
    }
    // Nor over the one that it is in, which is not empty.
    let over = fs.resolve("/a/b").unwrap().rename(
        "c",
        &fs.resolve("/a").unwrap(),
        "b",
        RenameFlags::empty(),
    );
    assert!(matches!(over, Err(FsError::NotEmpty { .. })), "{over:?}");
    assert!(fs.metadata("/a/b/c/file").unwrap().is_file());
    assert!(fs.metadata("/a/b/c/dir").unwrap().is_dir());
    drop((root, deep));
    fs.unmount().unwrap();
    check(&dir, &device);
}

#[test]
fn a_directory_that_replaces_one_beside_it_takes_a_link_from_their_parent() {
    let dir = work_dir();
    let device = require!(device(&dir, "16M", &["-t", "ext4"]));
    let fs = mount(&device);
    let new = NewInode::root(0o755);
    let parent = fs.create_dir("/parent", &new).unwrap();
    for name in ["one", "two", "three"] {
        parent.mkdir(name, &new).unwrap();
    }
    assert_eq!(parent.metadata().links, 5);
    parent.rename("one", &parent, "four", RenameFlags::empty()).unwrap();
    assert_eq!(parent.metadata().links, 5, "another name for the same");
    parent.rename("four", &parent, "two", RenameFlags::empty()).unwrap();
    assert_eq!(parent.metadata().links, 4, "one directory fewer");
    parent.rename("two", &parent, "three", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(parent.metadata().links, 4);
    let other = fs.create_dir("/other", &new).unwrap();
    other.mkdir("two", &new).unwrap();
    parent.rename("two", &other, "two", RenameFlags::empty()).unwrap();
    assert_eq!((parent.metadata().links, other.metadata().links), (3, 3), "moved over another");
    drop((parent, other));
    fs.unmount().unwrap();
    check(&dir, &device);
}

#[test]
fn a_file_that_loses_a_name_has_changed() {
    let dir = work_dir();
    let device = require!(device(&dir, "16M", &["-t", "ext4"]));
    let clock = Arc::new(FixedClock::at(1_000_000, 0));
    let shared = Arc::clone(&device);
    let options = MountOptions::new().read_only(false).seed(1).clock(clock.clone());
    let fs = options.open_shared(shared).unwrap();
    let root = fs.root().unwrap();
    let file = root.create("file", &NewInode::root(0o644)).unwrap();
    let mut last = file.metadata();
    let mut step = |what: &str, change: &dyn Fn()| {
        clock.advance(Duration::from_secs(10));
        change();
        let now = file.metadata();
        assert_eq!(now.ctime.seconds, last.ctime.seconds + 10, "{what}");
        assert_eq!(now.mtime, last.mtime, "{what}: its contents have not");
        last = now;
    };
    step("link", &|| root.link("second", &file).unwrap());
    step("rename", &|| root.rename("second", &root, "third", RenameFlags::empty()).unwrap());
    step("unlink", &|| root.unlink("third").unwrap());
    step("replaced", &|| {
        root.link("fourth", &file).unwrap();
        root.create("fifth", &NewInode::root(0o644)).unwrap();
        root.rename("fifth", &root, "fourth", RenameFlags::empty()).unwrap();
    });
}

#[test]
fn handles_are_shared_by_threads() {
    fn assert_send_sync<T: Send + Sync>(_: &T) {}
    let dir = work_dir();
    let device = require!(device(&dir, "16M", &["-t", "ext4"]));
    let fs = Arc::new(mount(&device));
    assert_send_sync(&fs.root().unwrap());
}
