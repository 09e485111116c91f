//! Encrypted trees, with their keys: what the kernel wrote, extant reads, and the other way round.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use std::sync::Arc;

use extant::{Fs, FsError, Inode, KeySpec, MasterKey, MountOptions, NewInode, RenameFlags};
use extant_block::BlockDevice;
use extant_testkit::oracle::{self, LoopMount, e2fsck, mke2fs};
use extant_testkit::{TempDir, image, require, tempdir};

/// Adds a key to a mounted file system, or gives an empty directory a policy, by the kernel.
const KERNEL: &str = r#"
import ctypes, fcntl, os, struct, sys
what, path = sys.argv[1:3]
fd = os.open(path, os.O_RDONLY)
spec = lambda kind, name: struct.pack("<II", kind, 0) + name.ljust(32, b"\0")
if what == "add":
    raw, name = bytes.fromhex(sys.argv[3]), bytes.fromhex(sys.argv[4])
    kind = 1 if name else 2
    arg = bytearray(spec(kind, name) + struct.pack("<II", len(raw), 0) + bytes(32) + raw)
    fcntl.ioctl(fd, 0xC0506617, arg, True)
    print(bytes(arg[8:24] if kind == 2 else arg[8:16]).hex())
else:
    name = bytes.fromhex(sys.argv[3])
    contents, names, flags = map(int, sys.argv[4:7])
    start = bytes([0 if len(name) == 8 else 2, contents, names, flags])
    arg = bytearray(start + (b"" if len(name) == 8 else bytes(4)) + name)
    fcntl.ioctl(fd, 0x800C6613, arg, True)
"#;

fn kernel(arguments: &[&str]) -> Result<String, String> {
    let done = Command::new("python3").args(["-c", KERNEL]).args(arguments).output();
    let done = done.map_err(|error| format!("needs python3: {error}"))?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned()),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

/// One way to encrypt a tree.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    block: &'static str,
    /// The name of a key of version 1.
    descriptor: Option<[u8; 8]>,
    contents: u8,
    names: u8,
    flags: u8,
}

const CASES: [Case; 5] = [
    Case { name: "v2", block: "4096", descriptor: None, contents: 1, names: 4, flags: 3 },
    Case { name: "v2-1k", block: "1024", descriptor: None, contents: 1, names: 4, flags: 0 },
    Case { name: "v2-lblk64", block: "4096", descriptor: None, contents: 1, names: 4, flags: 9 },
    Case { name: "v2-lblk32", block: "4096", descriptor: None, contents: 1, names: 4, flags: 16 },
    Case {
        name: "v1",
        block: "4096",
        descriptor: Some(*b"\x01key\xff\x00yz"),
        contents: 1,
        names: 4,
        flags: 2,
    },
];

pub(crate) fn raw_key() -> Vec<u8> {
    (0..64).map(|n| (n * 5 + 1) as u8).collect()
}

pub(crate) fn key() -> MasterKey {
    MasterKey::new(&raw_key()).unwrap()
}

struct Made {
    dir: TempDir,
    case: Case,
}

impl Made {
    /// Makes an image with the empty directory `d`, encrypted by the kernel.
    fn new(case: Case) -> Result<Made, String> {
        oracle::root("mounts an image")?;
        let dir = tempdir().map_err(|error| error.to_string())?;
        let made = Made { dir, case };
        let features = "encrypt,stable_inodes,inline_data,^resize_inode";
        mke2fs(&made.image(), "48M", &["-t", "ext4", "-b", case.block, "-O", features])?;
        let mounted = made.mount()?;
        let dir = mounted.path().join("d");
        fs::create_dir(&dir).unwrap();
        let name = made.add_key(&mounted)?;
        let Case { contents, names, flags, .. } = case;
        let modes = [contents, names, flags].map(|number| number.to_string());
        kernel(&["policy", text(&dir), &name, &modes[0], &modes[1], &modes[2]])?;
        Ok(made)
    }

    fn image(&self) -> std::path::PathBuf {
        self.dir.path().join("image")
    }

    fn mount(&self) -> Result<LoopMount, String> {
        LoopMount::read_write(&self.image())
    }

    fn add_key(&self, mounted: &LoopMount) -> Result<String, String> {
        let descriptor = self.case.descriptor.map_or(String::new(), |name| hex(&name));
        kernel(&["add", text(mounted.path()), &hex(&raw_key()), &descriptor])
    }

    fn options(&self) -> MountOptions {
        match self.case.descriptor {
            Some(name) => MountOptions::new().key_named(KeySpec::Descriptor(name), key()),
            None => MountOptions::new().key(key()),
        }
    }

    fn open(&self, writable: bool) -> Fs {
        self.options().read_only(!writable).open_path(self.image()).unwrap()
    }

    fn check(&self) {
        require_clean(&self.image());
    }
}

pub(crate) fn require_clean(image: &Path) {
    let device = image::load(image);
    let report = extant_check::check(&device, &extant_check::CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
    if let Ok(report) = e2fsck(image) {
        report.assert_clean();
    }
}

/// What a tree has, by path: `d` for a directory, `l` and a target, `f`, size, and contents.
pub(crate) type Tree = BTreeMap<String, Vec<u8>>;

fn host_tree(root: &Path) -> Tree {
    fn walk(dir: &Path, prefix: &str, tree: &mut Tree) {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}/{}", entry.file_name().to_str().unwrap());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                tree.insert(name.clone(), b"d".to_vec());
                walk(&entry.path(), &name, tree);
            } else if kind.is_symlink() {
                let target = fs::read_link(entry.path()).unwrap();
                tree.insert(name, [b"l", target.to_str().unwrap().as_bytes()].concat());
            } else {
                let bytes = fs::read(entry.path())
                    .unwrap_or_else(|error| format!("{:?}", error.raw_os_error()).into_bytes());
                let mode = entry.metadata().unwrap().mode();
                tree.insert(name, [format!("f{mode:o} ").as_bytes(), &bytes].concat());
            }
        }
    }
    let mut tree = Tree::new();
    walk(root, "", &mut tree);
    tree
}

pub(crate) fn extant_tree(fs: &Fs, root: &str) -> Tree {
    fn walk(dir: &Inode, prefix: &str, tree: &mut Tree) {
        for entry in dir.read_dir().unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}/{}", String::from_utf8(entry.name().to_vec()).unwrap());
            let inode = entry.inode().unwrap();
            assert_eq!(dir.lookup(entry.name()).unwrap().ino(), inode.ino(), "{name}");
            if inode.is_dir() {
                tree.insert(name.clone(), b"d".to_vec());
                walk(&inode, &name, tree);
            } else if inode.is_symlink() {
                tree.insert(name, [b"l", &inode.read_link().unwrap()[..]].concat());
            } else {
                let bytes = match inode.read_all() {
                    Ok(bytes) => bytes,
                    Err(error) => format!("{:?}", Some(error.errno())).into_bytes(),
                };
                let mode = inode.metadata().mode();
                tree.insert(name, [format!("f{mode:o} ").as_bytes(), &bytes].concat());
            }
        }
    }
    let mut tree = Tree::new();
    walk(&fs.resolve(root).unwrap(), "", &mut tree);
    tree
}

#[track_caller]
pub(crate) fn assert_same(ours: &Tree, theirs: &Tree, what: &str) {
    let show =
        |bytes: &Vec<u8>| String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
    for (name, bytes) in theirs {
        let got = ours.get(name).unwrap_or_else(|| panic!("{what}: {name} is missing"));
        assert!(
            got == bytes,
            "{what}: {name}: {} bytes {:?}, not {} bytes {:?}",
            got.len(),
            show(got),
            bytes.len(),
            show(bytes)
        );
    }
    assert_eq!(ours.len(), theirs.len(), "{what}");
}

pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + at * 13 + seed * 31) as u8).collect()
}

/// Sizes around the ends of blocks.
const SIZES: [usize; 12] = [0, 1, 15, 16, 1023, 1024, 1025, 4095, 4096, 4097, 70_000, 3_000_000];

/// Fills a directory of the host with every kind of thing.
fn fill(dir: &Path) {
    for (seed, size) in SIZES.into_iter().enumerate() {
        fs::write(dir.join(format!("file of {size}")), pattern(seed, size)).unwrap();
    }
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    for at in [5_000, 100_000, 1_000_001] {
        sparse.write_all_at(&pattern(at, 3_000), at as u64).unwrap();
    }
    sparse.set_len(2_000_000).unwrap();
    for len in [1, 15, 16, 17, 31, 32, 33, 149, 200, 255] {
        fs::write(dir.join("n".repeat(len)), len.to_string()).unwrap();
    }
    for len in [1, 10, 30, 31, 46, 47, 60, 500, 900] {
        std::os::unix::fs::symlink("t".repeat(len), dir.join(format!("link {len}"))).unwrap();
    }
    let deep = dir.join("a").join("directory within").join("another");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("deep"), b"at the end").unwrap();
    let many = dir.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..600 {
        fs::write(many.join(format!("entry number {number} of a large directory")), b"").unwrap();
    }
}

#[test]
fn what_the_kernel_wrote_is_read_with_the_key_and_shown_alike_without() {
    for case in CASES {
        let made = require!(Made::new(case));
        let theirs = {
            let mounted = require!(made.mount());
            made.add_key(&mounted).unwrap();
            fill(&mounted.path().join("d"));
            host_tree(&mounted.path().join("d"))
        };
        for writable in [false, true] {
            let fs = made.open(writable);
            assert_same(&extant_tree(&fs, "/d"), &theirs, case.name);
            // Parts, past the cache and through it.
            let file = fs.resolve("/d/file of 3000000").unwrap();
            let expected = pattern(11, 3_000_000);
            for (at, len) in [(0, 1), (1, 4096), (4095, 2), (70_001, 9_999), (2_999_990, 100)] {
                let end = expected.len().min(at + len);
                for direct in [false, true] {
                    let mut out = vec![0; len];
                    let read = match direct {
                        true => file.read_direct_at(&mut out, at as u64).unwrap(),
                        false => file.read_at(&mut out, at as u64).unwrap(),
                    };
                    assert_eq!(out[..read], expected[at..end], "{} {at} {direct}", case.name);
                }
            }
            drop(file);
            drop(fs);
        }
        // Without the key.
        let shown = {
            let mounted = require!(made.mount());
            host_tree(&mounted.path().join("d"))
        };
        let fs = MountOptions::new().open_path(made.image()).unwrap();
        assert_same(&extant_tree(&fs, "/d"), &shown, case.name);
        assert!(!shown.keys().any(|name| theirs.contains_key(name)));
        let (name, _) = shown.iter().find(|(_, bytes)| bytes.starts_with(b"f")).unwrap();
        let file = fs.resolve(format!("/d{name}")).unwrap();
        let error = file.read_all().unwrap_err();
        let wanted = match case.descriptor {
            Some(name) => KeySpec::Descriptor(name),
            None => key().identifier(),
        };
        assert!(
            matches!(error, FsError::Encrypted { key: Some(key), .. } if key == wanted),
            "{error}"
        );
        // A wrong key is no key where its name follows from it.
        fs.add_key(MasterKey::new(&[3; 64]).unwrap()).unwrap();
        assert_same(&extant_tree(&fs, "/d"), &shown, case.name);
        match case.descriptor {
            Some(name) => fs.add_key_named(KeySpec::Descriptor(name), key()).unwrap(),
            None => drop(fs.add_key(key()).unwrap()),
        }
        assert_same(&extant_tree(&fs, "/d"), &theirs, case.name);
        assert!(fs.remove_key(&wanted).unwrap());
        assert_same(&extant_tree(&fs, "/d"), &shown, case.name);
    }
}

#[test]
fn what_is_written_to_files_the_kernel_reads_with_the_key() {
    for case in CASES {
        let made = require!(Made::new(case));
        {
            let mounted = require!(made.mount());
            made.add_key(&mounted).unwrap();
            fill(&mounted.path().join("d"));
        }
        let fs = made.open(true);
        let file = |name: &str| fs.resolve(format!("/d/{name}")).unwrap();
        // Over, within, across and behind; direct; into a hole; shorter and longer again.
        for (at, len) in [(0, 10), (1000, 50), (4090, 12), (69_999, 30_000), (200_001, 8_192)] {
            file("file of 70000").write_at(&pattern(at, len), at as u64).unwrap();
        }
        file("file of 3000000").write_at(&pattern(8, 2_500_000), 100).unwrap();
        file("file of 3000000").sync().unwrap();
        file("file of 3000000").write_direct_at(&pattern(3, 1 << 20), 12_288).unwrap();
        file("file of 0").write_direct_at(&pattern(4, 9_000), 0).unwrap();
        file("sparse").write_at(&pattern(5, 100), 500_000).unwrap();
        let short = file("file of 4097");
        short.truncate(2_000).unwrap();
        short.sync().unwrap();
        short.truncate(6_000).unwrap();
        let short = file("file of 1025");
        short.append(b"and more").unwrap();
        let wide = file("file of 1");
        wide.fallocate(extant::Fallocate::Allocate { keep_size: false }, 0..65_536).unwrap();
        wide.write_at(&pattern(6, 100), 30_000).unwrap();
        let zeroed = file("sparse");
        zeroed
            .fallocate(extant::Fallocate::ZeroRange { keep_size: false }, 100_500..101_700)
            .unwrap();
        zeroed.fallocate(extant::Fallocate::WriteZeroes, 1_200_000..1_300_000).unwrap();
        let punched = file("file of 3000000");
        punched.fallocate(extant::Fallocate::PunchHole, 2_000_100..2_010_000).unwrap();
        let error = punched.fallocate(extant::Fallocate::CollapseRange, 0..65_536).unwrap_err();
        assert!(matches!(error, FsError::NotSupported { .. }), "{error}");
        drop((short, wide, zeroed, punched));
        let ours = extant_tree(&fs, "/d");
        fs.unmount().unwrap();
        made.check();
        let mounted = require!(made.mount());
        made.add_key(&mounted).unwrap();
        assert_same(&ours, &host_tree(&mounted.path().join("d")), case.name);
        let bytes = fs::read(mounted.path().join("d/file of 4097")).unwrap();
        assert_eq!(bytes[..2_000], pattern(9, 4_097)[..2_000]);
        assert!(bytes.len() == 6_000 && bytes[2_000..].iter().all(|byte| *byte == 0));
    }
}

/// Fills a directory by extant with what [`fill`] makes, and changes names.
pub(crate) fn fill_by_extant(fs: &Fs, dir: &Inode) {
    let new = NewInode::root(0o644);
    for (seed, size) in SIZES.into_iter().enumerate() {
        let file = dir.create(format!("file of {size}"), &new).unwrap();
        file.write_at(&pattern(seed, size), 0).unwrap();
    }
    let sparse = dir.create("sparse", &new).unwrap();
    for at in [5_000, 100_000, 1_000_001] {
        sparse.write_at(&pattern(at, 3_000), at as u64).unwrap();
    }
    for len in [1, 15, 16, 17, 31, 32, 33, 149, 200, 255] {
        dir.create("n".repeat(len), &new).unwrap().append(b"named").unwrap();
    }
    for len in [1, 10, 30, 31, 46, 47, 60, 500, 900] {
        let link = dir.symlink(format!("link {len}"), "t".repeat(len), &new).unwrap();
        assert_eq!(link.read_link().unwrap(), "t".repeat(len).into_bytes());
    }
    let long = dir.symlink("too long", "t".repeat(fs.block_size().len() - 2), &new);
    assert!(matches!(long.unwrap_err(), FsError::TargetTooLong { .. }));
    let many = dir.mkdir("many", &NewInode::root(0o755)).unwrap();
    for number in 0..900 {
        many.create(format!("entry number {number} of a large directory"), &new).unwrap();
    }
    for number in (0..900).step_by(3) {
        let (old, new) =
            (format!("entry number {number} of a large directory"), format!("moved {number}"));
        many.rename(&old, dir, &new, RenameFlags::empty()).unwrap();
        dir.rename(&new, &many, &new, RenameFlags::empty()).unwrap();
    }
    for number in (1..900).step_by(3) {
        many.unlink(format!("entry number {number} of a large directory")).unwrap();
    }
    let other = dir.mkdir("other", &NewInode::root(0o755)).unwrap();
    other.link("linked", &dir.lookup("file of 1025").unwrap()).unwrap();
    other.mknod("pipe", extant::Special::Fifo, &new).unwrap();
    other.unlink("pipe").unwrap();
    let nameless = other.tmpfile(&new).unwrap();
    nameless.append(b"came without a name").unwrap();
    other.link("named later", &nameless).unwrap();
    dir.mkdir("gone", &NewInode::root(0o755)).unwrap();
    dir.rmdir("gone").unwrap();
    dir.rename("file of 15", &other, "linked", RenameFlags::EXCHANGE).unwrap();
    dir.rename("file of 16", dir, "file of 0", RenameFlags::empty()).unwrap();
    dir.rename("other", &many, "moved dir", RenameFlags::empty()).unwrap();
    assert!(matches!(dir.create("sparse", &new).unwrap_err(), FsError::Exists { .. }));
    assert!(matches!(dir.unlink("none").unwrap_err(), FsError::NotFound { .. }));
}

#[test]
fn what_extant_makes_the_kernel_reads_changes_and_removes() {
    for case in CASES {
        let made = require!(Made::new(case));
        let fs = made.open(true);
        let dir = fs.resolve("/d").unwrap();
        fill_by_extant(&fs, &dir);
        // A directory that extant itself encrypts.
        let own = fs.root().unwrap().mkdir("own", &NewInode::root(0o755)).unwrap();
        let policy = dir.encryption_policy().unwrap().unwrap();
        own.set_encryption_policy(&policy).unwrap();
        own.set_encryption_policy(&policy).unwrap();
        let sub = own.mkdir("sub", &NewInode::root(0o755)).unwrap();
        sub.create("file", &NewInode::root(0o600)).unwrap().append(b"inside").unwrap();
        assert_eq!(sub.encryption_policy().unwrap(), Some(policy));
        let other = extant::EncryptionPolicy { padding: policy.padding ^ 12, ..policy };
        assert!(matches!(
            own.set_encryption_policy(&other).unwrap_err(),
            FsError::AttributeExists { .. }
        ));
        let ours = (extant_tree(&fs, "/d"), extant_tree(&fs, "/own"));
        drop((dir, own, sub));
        fs.unmount().unwrap();
        made.check();
        {
            let mounted = require!(made.mount());
            let shown = host_tree(&mounted.path().join("d"));
            made.add_key(&mounted).unwrap();
            assert_same(&ours.0, &host_tree(&mounted.path().join("d")), case.name);
            assert_same(&ours.1, &host_tree(&mounted.path().join("own")), case.name);
            drop(mounted);
            let fs = MountOptions::new().open_path(made.image()).unwrap();
            assert_same(&extant_tree(&fs, "/d"), &shown, case.name);
        }
        {
            let mounted = require!(made.mount());
            made.add_key(&mounted).unwrap();
            let dir = mounted.path().join("d");
            fs::write(dir.join("many").join("by the kernel"), b"here").unwrap();
            fs::rename(dir.join("many/moved 3"), dir.join("out of many")).unwrap();
            fs::remove_dir_all(dir.join("many/moved dir")).unwrap();
        }
        let fs = made.open(true);
        assert_eq!(fs.read("/d/many/by the kernel").unwrap(), b"here");
        assert!(fs.resolve("/d/out of many").is_ok() && fs.resolve("/d/many/moved 3").is_err());
        let many = fs.resolve("/d/many").unwrap();
        for entry in many.read_dir().unwrap() {
            many.unlink(entry.unwrap().name()).unwrap();
        }
        drop(many);
        fs.resolve("/d").unwrap().rmdir("many").unwrap();
        fs.unmount().unwrap();
        made.check();
        let mounted = require!(made.mount());
        made.add_key(&mounted).unwrap();
        fs::remove_dir_all(mounted.path().join("d")).unwrap();
        drop(mounted);
        made.check();
    }
}

/// The errno of an operation, 0 for none.
pub(crate) fn errno<T>(done: Result<T, FsError>) -> i32 {
    done.map_or_else(|error| error.errno(), |_| 0)
}

fn host_errno<T>(done: std::io::Result<T>) -> i32 {
    done.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |_| 0)
}

#[test]
fn names_go_in_and_out_as_the_kernel_lets_them() {
    let made = require!(Made::new(CASES[0]));
    let prepare = |root: &Path| {
        fs::write(root.join("plain"), b"plain").unwrap();
        fs::create_dir(root.join("plain dir")).unwrap();
        fs::write(root.join("d/secret"), b"secret").unwrap();
        fs::create_dir(root.join("d/secret dir")).unwrap();
    };
    let theirs: Vec<i32> = {
        let mounted = require!(made.mount());
        made.add_key(&mounted).unwrap();
        let root = mounted.path();
        prepare(root);
        let to = |from: &str, to: &str| host_errno(fs::rename(root.join(from), root.join(to)));
        let link = |from: &str, to: &str| host_errno(fs::hard_link(root.join(from), root.join(to)));
        let answers = vec![
            to("plain", "d/plain"),
            to("plain dir", "d/plain dir"),
            link("plain", "d/plain"),
            link("d/secret", "linked out"),
            to("d/secret dir", "dir out"),
            to("dir out", "d/secret dir"),
            to("d/secret", "d/secret dir/secret"),
        ];
        fs::remove_file(root.join("linked out")).unwrap();
        fs::rename(root.join("d/secret dir/secret"), root.join("d/secret")).unwrap();
        answers
    };
    let fs = made.open(true);
    let (root, d) = (fs.root().unwrap(), fs.resolve("/d").unwrap());
    let none = RenameFlags::empty();
    let ours = vec![
        errno(root.rename("plain", &d, "plain", none)),
        errno(root.rename("plain dir", &d, "plain dir", none)),
        errno(d.link("plain", &root.lookup("plain").unwrap())),
        errno(root.link("linked out", &d.lookup("secret").unwrap())),
        errno(d.rename("secret dir", &root, "dir out", none)),
        errno(root.rename("dir out", &d, "secret dir", none)),
        errno(d.rename("secret", &d.lookup("secret dir").unwrap(), "secret", none)),
    ];
    assert_eq!(ours, theirs);
    assert_eq!(ours, [18, 18, 18, 0, 0, 0, 0]);
    let policy = d.encryption_policy().unwrap().unwrap();
    assert!(matches!(
        root.set_encryption_policy(&policy).unwrap_err(),
        FsError::NotPermitted { .. }
    ));
    let full = root.mkdir("full", &NewInode::root(0o755)).unwrap();
    full.create("file", &NewInode::root(0o644)).unwrap();
    assert!(matches!(full.set_encryption_policy(&policy).unwrap_err(), FsError::NotEmpty { .. }));
    drop((root, d, full));
    fs.unmount().unwrap();
    made.check();
    // Without the key nothing is added, and nothing changes its size.
    let theirs = {
        let mounted = require!(made.mount());
        let d = mounted.path().join("d");
        [host_errno(fs::write(d.join("new"), b"x")), host_errno(fs::create_dir(d.join("new")))]
    };
    let fs = MountOptions::new().read_only(false).open_path(made.image()).unwrap();
    let d = fs.resolve("/d").unwrap();
    let new = NewInode::root(0o644);
    let ours = [errno(d.create("new", &new)), errno(d.mkdir("new", &new))];
    assert_eq!(ours, theirs);
    let file = fs.resolve("/linked out").unwrap();
    for refused in
        [errno(file.truncate(2)), errno(file.write_at(b"x", 0)), errno(file.direct().map(drop))]
    {
        assert_eq!(refused, 126);
    }
    // Removing works by the names that are shown, as in Linux; also when a key was there before.
    fs.add_key(key()).unwrap();
    d.create("short-lived", &new).unwrap().append(b"x").unwrap();
    let inner = d.lookup("secret dir").unwrap();
    assert!(fs.remove_key(&key().identifier()).unwrap());
    for dir in [&inner, &d] {
        for entry in dir.read_dir().unwrap() {
            let entry = entry.unwrap();
            let other = errno(dir.rename(entry.name(), dir, "other", RenameFlags::empty()));
            assert_eq!(other, 126);
            match entry.inode().unwrap().is_dir() {
                true => dir.rmdir(entry.name()).unwrap(),
                false => dir.unlink(entry.name()).unwrap(),
            }
        }
        assert_eq!(dir.read_dir().unwrap().count(), 0);
    }
    drop(inner);
    let wanted = extant::EncryptionPolicy::new(key().identifier());
    let dir = fs.root().unwrap().mkdir("unused", &new).unwrap();
    assert_eq!(errno(dir.set_encryption_policy(&wanted)), 126);
    drop((d, file, dir));
    fs.unmount().unwrap();
    made.check();
}

#[test]
fn no_context_makes_a_mount_panic() {
    let made = require!(Made::new(CASES[0]));
    {
        let mounted = require!(made.mount());
        made.add_key(&mounted).unwrap();
        let dir = mounted.path().join("d");
        fs::write(dir.join("file"), pattern(1, 5_000)).unwrap();
        std::os::unix::fs::symlink("target", dir.join("link")).unwrap();
    }
    let device = Arc::new(image::load(&made.image()));
    let (refused, read) = with_changed_contexts(&device, &key().identifier(), || made.options());
    assert!(refused > 500 && read > 500, "{refused} {read}");
}

/// Changes bytes of the contexts of `/d`, `/d/file` and `/d/link` to others, one at a time, and reads the three each
/// time. Returns how often that was refused, and how often not.
pub(crate) fn with_changed_contexts(
    device: &Arc<extant_block::MemoryDevice>,
    key: &KeySpec,
    options: impl Fn() -> MountOptions,
) -> (u32, u32) {
    let mut bytes = vec![0; 8 << 20];
    device.read_at(0, &mut bytes).unwrap();
    let KeySpec::Identifier(name) = key else { panic!() };
    let places: Vec<usize> =
        (8..bytes.len()).filter(|at| bytes[*at..].starts_with(name)).map(|at| at - 8).collect();
    assert!(places.len() >= 3, "contexts of a directory, a file and a link: {places:?}");
    let (mut refused, mut read) = (0, 0);
    for place in places {
        for at in (0..8).chain([8, 23, 24, 39]) {
            for byte in [0, 1, 2, 3, 4, 5, 6, 9, 10, 12, 16, 0x80, 0xff] {
                let old = bytes[place + at];
                device.write_at((place + at) as u64, &[byte]).unwrap();
                for writable in [false, true] {
                    let options = options().read_only(!writable).verify_checksums(writable);
                    let Ok(fs) = options.background(false).open_shared(device.clone()) else {
                        continue;
                    };
                    for path in ["/d", "/d/file", "/d/link"] {
                        let Ok(inode) = fs.resolve(path) else {
                            refused += 1;
                            continue;
                        };
                        let done = match inode.kind() {
                            extant::FileKind::Directory => inode.read_dir().map(|dir| dir.count()),
                            extant::FileKind::Symlink => inode.read_link().map(|link| link.len()),
                            _ => inode.read_all().map(|bytes| bytes.len()),
                        };
                        if done.is_ok() { read += 1 } else { refused += 1 }
                    }
                }
                device.write_at((place + at) as u64, &[old]).unwrap();
            }
        }
    }
    (refused, read)
}

/// An image with features, in memory, and nothing of the kernel.
pub(crate) fn unmounted(
    features: &str,
    block: &str,
) -> Result<Arc<extant_block::MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "48M", &["-t", "ext4", "-b", block, "-O", features])?;
    Ok(Arc::new(image::load(&path)))
}

pub(crate) fn open_shared(device: &Arc<extant_block::MemoryDevice>, options: MountOptions) -> Fs {
    options.read_only(false).background(false).open_shared(device.clone()).unwrap()
}

pub(crate) fn assert_device_clean(device: &extant_block::MemoryDevice) {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    require_clean(&path);
}

#[test]
fn what_is_in_use_when_its_key_goes_goes_on_and_nothing_is_lost() {
    use extant::KeyStatus;
    let device = require!(unmounted("encrypt", "1024"));
    let fs = open_shared(&device, MountOptions::new());
    let name = fs.add_key(key()).unwrap();
    assert_eq!(fs.add_key(key()).unwrap(), name, "a key may be added twice");
    assert_eq!(fs.key_status(&name), KeyStatus::Present);
    let new = NewInode::root(0o644);
    let dir = fs.root().unwrap().mkdir("d", &NewInode::root(0o755)).unwrap();
    dir.set_encryption_policy(&extant::EncryptionPolicy::new(name)).unwrap();
    let (held, other) = (dir.create("held", &new).unwrap(), dir.create("other", &new).unwrap());
    held.write_at(&pattern(1, 50_000), 0).unwrap();
    other.write_at(&pattern(2, 50_000), 0).unwrap();
    let in_use = held.use_key().unwrap().unwrap();
    assert!(dir.mkdir("plain within", &new).unwrap().encryption_nonce().unwrap().is_some());
    assert!(fs.root().unwrap().use_key().unwrap().is_none(), "it is not encrypted");
    // Both are dirty. One is in use, of the other there is a handle alone.
    assert!(fs.remove_key(&name).unwrap());
    assert_eq!(fs.key_status(&name), KeyStatus::InUse);
    assert_eq!(held.read_all().unwrap(), pattern(1, 50_000));
    held.write_at(b"after", 60_000).unwrap();
    let second = held.use_key().unwrap();
    for refused in [errno(other.read_all()), errno(other.write_at(b"x", 0)), errno(other.use_key())]
    {
        assert_eq!(refused, 126);
    }
    assert_eq!(errno(dir.create("new", &new)), 126);
    assert!(dir.lookup("held").is_err(), "names are shown without the key");
    assert!(!fs.remove_key(&name).unwrap(), "it was removed before");
    drop(in_use);
    assert_eq!(fs.key_status(&name), KeyStatus::InUse, "another one has it");
    held.write_at(b"the last", 70_000).unwrap();
    drop(second);
    assert_eq!(fs.key_status(&name), KeyStatus::Absent);
    assert_eq!(errno(held.read_at(&mut [0; 4], 0)), 126);
    // What was written while it was in use is written back without the key.
    fs.sync().unwrap();
    drop((held, other, dir));
    assert!(!fs.remove_key(&name).unwrap());
    fs.add_key(MasterKey::new(&[9; 64]).unwrap()).unwrap();
    assert!(fs.resolve("/d/held").is_err(), "a wrong key is no key");
    fs.add_key(key()).unwrap();
    for _ in 0..2 {
        let held = fs.resolve("/d/held").unwrap().read_all().unwrap();
        assert_eq!(held[..50_000], pattern(1, 50_000));
        assert!(held[60_000..].starts_with(b"after") && held[70_000..] == *b"the last");
        assert_eq!(fs.read("/d/other").unwrap(), pattern(2, 50_000));
        // And by what the device has.
        fs.remove_key(&name).unwrap();
        fs.add_key(key()).unwrap();
    }
    fs.unmount().unwrap();
    assert_device_clean(&device);
}

#[test]
fn directories_may_be_encrypted_and_ignore_case() {
    let usual = extant::EncryptionPolicy::new(key().identifier());
    let hctr2 = extant::EncryptionPolicy { names: extant::NamesMode::Aes256Hctr2, ..usual };
    for (features, folds_first, policy) in [
        ("encrypt,casefold", true, usual),
        ("encrypt,casefold,inline_data", false, usual),
        ("encrypt,casefold", false, hctr2),
        ("encrypt,casefold", true, super::wide::adiantum(usual.key, extant::IvKind::DirectKey)),
    ] {
        let device = require!(unmounted(features, "1024"));
        let fs = open_shared(&device, MountOptions::new().key(key()));
        let new = NewInode::root(0o644);
        let dir = fs.root().unwrap().mkdir("d", &NewInode::root(0o755)).unwrap();
        let fold = || {
            let flags = dir.metadata().flags | extant::InodeFlags::CASEFOLD;
            dir.set_attributes(&extant::SetAttributes::new().flags(flags))
        };
        if folds_first {
            fold().unwrap();
            let old = extant::EncryptionPolicy::new(KeySpec::Descriptor([1; 8]));
            assert_eq!(errno(dir.set_encryption_policy(&old)), 95, "version 1 has no hash");
            dir.set_encryption_policy(&policy).unwrap();
        } else {
            dir.set_encryption_policy(&policy).unwrap();
            fold().unwrap();
        }
        // Large enough for an index of two levels; names as they were given.
        let name = |n: usize| format!("Name {n} of \u{c5}ngstr\u{f6}m {}", "x".repeat(n % 90));
        const COUNT: usize = 1500;
        for n in 0..COUNT {
            let file = dir.create(name(n), &new).unwrap();
            if n % 100 == 0 {
                file.append(name(n).as_bytes()).unwrap();
            }
        }
        for n in [0, 7, 800, COUNT - 1] {
            let other = name(n).to_lowercase().replace('\u{e5}', "a\u{30a}");
            assert_ne!(other, name(n));
            let found = dir.lookup(&other).unwrap();
            assert_eq!(found.ino(), dir.lookup(name(n)).unwrap().ino());
            assert!(matches!(dir.create(&other, &new).unwrap_err(), FsError::Exists { .. }));
        }
        let sub = dir.mkdir("Sub", &NewInode::root(0o755)).unwrap();
        assert!(sub.is_encrypted() && sub.is_casefold());
        for n in (0..COUNT).step_by(3) {
            dir.rename(name(n).to_uppercase(), &sub, format!("MOVED {n}"), RenameFlags::empty())
                .unwrap();
        }
        for n in (1..COUNT).step_by(3) {
            dir.unlink(name(n).to_lowercase()).unwrap();
        }
        sub.link("Again", &dir.lookup(name(2)).unwrap()).unwrap();
        // In another spelling it is the same name of the same file, so nothing happens, as in Linux.
        sub.rename("moved 0", &sub, "Moved 0", RenameFlags::empty()).unwrap();
        drop((dir, sub));
        fs.unmount().unwrap();
        assert_device_clean(&device);
        let fs = open_shared(&device, MountOptions::new().key(key()));
        let tree = extant_tree(&fs, "/d");
        assert_eq!(tree.len(), COUNT - 2 * COUNT / 3 + COUNT / 3 + 2);
        assert!(tree.contains_key("/Sub/MOVED 0") && tree.contains_key("/Sub/Again"));
        assert_eq!(fs.read("/d/SUB/moved 300").unwrap(), name(300).as_bytes());
        fs.unmount().unwrap();
        // Without the key every name is found as it is shown, and can be removed.
        let fs = open_shared(&device, MountOptions::new());
        let shown = extant_tree(&fs, "/d");
        assert!(shown.len() == tree.len() && !shown.keys().any(|name| tree.contains_key(name)));
        let dir = fs.resolve("/d").unwrap();
        for entry in dir.read_dir().unwrap() {
            let entry = entry.unwrap();
            if !entry.inode().unwrap().is_dir() {
                dir.unlink(entry.name()).unwrap();
            }
        }
        assert_eq!(dir.read_dir().unwrap().count(), 1);
        drop(dir);
        fs.unmount().unwrap();
        assert_device_clean(&device);
    }
}
