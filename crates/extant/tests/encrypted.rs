//! Encrypted trees, with their keys: what the kernel wrote, extant reads, and the other way round.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use extant::{Fs, FsError, Inode, KeySpec, MasterKey, MountOptions};
use extant_testkit::oracle::{self, LoopMount, e2fsck, mke2fs};
use extant_testkit::{TempDir, require, tempdir};

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

fn raw_key() -> Vec<u8> {
    (0..64).map(|n| (n * 5 + 1) as u8).collect()
}

fn key() -> MasterKey {
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

fn require_clean(image: &Path) {
    if let Ok(report) = e2fsck(image) {
        report.assert_clean();
    }
}

/// What a tree has, by path: `d` for a directory, `l` and a target, `f`, size, and contents.
type Tree = BTreeMap<String, Vec<u8>>;

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

fn extant_tree(fs: &Fs, root: &str) -> Tree {
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
fn assert_same(ours: &Tree, theirs: &Tree, what: &str) {
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

fn pattern(seed: usize, len: usize) -> Vec<u8> {
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
        assert!(fs.remove_key(&wanted));
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
