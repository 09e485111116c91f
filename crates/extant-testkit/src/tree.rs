//! Makes directory trees with everything that a file system must keep.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use extant_base::Prng;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

/// What to put into a tree.
#[derive(Clone, Debug)]
pub struct TreeOptions {
    /// Decides names, sizes and contents.
    pub seed: u64,
    /// Ordinary files, spread over nested directories.
    pub files: u32,
    /// Entries of one big directory.
    pub big_directory_entries: u32,
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        TreeOptions { seed: 1, files: 200, big_directory_entries: 2000 }
    }
}

/// What was left out of a tree, and why: no root, or a file system that does not take it.
#[derive(Clone, Default, Debug)]
pub struct Made {
    /// One line each.
    pub left_out: Vec<String>,
}

/// Adds to the directory `root`, which is made if need be, what damage can be done to in an image of a
/// few MiB: `a` with files of several sizes, one of them sparse, nested directories and a long link,
/// and `big`, a directory of several blocks.
pub fn make_small(root: &Path) {
    for dir in ["a/b/c", "big"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for index in 0..90 {
        fs::write(root.join(format!("big/a file with a long name, number {index}")), "x").unwrap();
    }
    for (name, len) in [("tiny", 20), ("small", 130), ("block", 1024), ("large", 300_000)] {
        fs::write(root.join("a").join(name), vec![7u8; len]).unwrap();
    }
    let sparse = File::create(root.join("a/b/sparse")).unwrap();
    for at in 0..40u64 {
        sparse.write_all_at(&[9; 1000], at * 50_000).unwrap();
    }
    symlink("y".repeat(200), root.join("a/long-link")).unwrap();
}

/// Fills the existing, empty directory `root`. Panics if something ordinary fails; what needs
/// root or special support is tried and listed in the result if it does not work.
///
/// The tree has nested directories; files from empty to several blocks; sparse files; hard links;
/// short and long symbolic links; fifo, socket and devices; names of 255 bytes, with newlines and
/// that are not UTF-8; odd modes, 0000 and set-id bits; times before 1970, after 2038 and with
/// nanoseconds; extended attributes in three name spaces, access and default ACLs, capabilities;
/// and one directory with many entries.
pub fn make(root: &Path, options: &TreeOptions) -> Made {
    let mut maker = Maker { prng: Prng::new(options.seed), made: Made::default() };
    let dirs = maker.directories(root);
    for index in 0..options.files {
        let dir = &dirs[maker.prng.below(dirs.len() as u64) as usize];
        maker.ordinary_file(&dir.join(format!("file-{index}")));
    }
    maker.sparse_files(root);
    maker.links(root);
    maker.special_files(root);
    maker.names(root);
    maker.modes_and_times(root);
    maker.attributes(root);
    let big = root.join("big");
    create_dir(&big);
    for index in 0..options.big_directory_entries {
        let name = format!("entry-{index}-{:x}", maker.prng.next_u64());
        create(&big.join(name));
    }
    set_all_times(root);
    maker.made
}

struct Maker {
    prng: Prng,
    made: Made,
}

fn create(path: &Path) -> File {
    File::create_new(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn create_dir(path: &Path) {
    fs::create_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn set_mtime(path: &Path, seconds: i64, nanoseconds: u32) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
        .unwrap_or_else(|errno| panic!("{}: {errno}", path.display()));
}

/// Gives everything a time that depends on its path below `root` alone, so that one seed makes
/// one tree. Last, since making entries moves the time of their directory. Files that are about
/// times keep theirs.
fn set_all_times(root: &Path) {
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
        // Names of one hard-linked file set its time in turn; the order must not vary.
        paths.sort();
        for path in &paths {
            let is_about_times =
                path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"time-"));
            if !is_about_times {
                set_mtime_of(root, path);
            }
        }
        let is_dir = |path: &PathBuf| path.symlink_metadata().is_ok_and(|m| m.is_dir());
        pending.extend(paths.into_iter().filter(is_dir));
    }
    set_mtime_of(root, root);
}

fn set_mtime_of(root: &Path, path: &Path) {
    let below = path.strip_prefix(root).expect("a path below the root").as_os_str();
    let seed = below
        .as_encoded_bytes()
        .iter()
        .fold(0u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(*b)));
    let mut prng = Prng::new(seed);
    set_mtime(path, prng.below(4_000_000_000) as i64, prng.below(1_000_000_000) as u32);
}

impl Maker {
    fn try_to(&mut self, what: &str, result: Result<(), Errno>) {
        if let Err(errno) = result {
            self.made.left_out.push(format!("{what}: {errno}"));
        }
    }

    fn directories(&mut self, root: &Path) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = Vec::new();
        for index in 0..12 {
            let parent = match self.prng.below(dirs.len() as u64 + 1) {
                0 => root.to_owned(),
                parent => dirs[parent as usize - 1].clone(),
            };
            let dir = parent.join(format!("dir-{index}"));
            create_dir(&dir);
            dirs.push(dir);
        }
        let mut deep = root.to_owned();
        for depth in 0..40 {
            deep.push(format!("d{depth}"));
            create_dir(&deep);
            dirs.push(deep.clone());
        }
        dirs
    }

    fn ordinary_file(&mut self, path: &Path) {
        // Around the limits: empty, inline data, one block, several.
        let base = [0, 1, 60, 160, 1024, 4096, 8192, 65_536, 300_000][self.prng.below(9) as usize];
        let mut bytes = vec![0; base + self.prng.below(3) as usize];
        self.prng.fill(&mut bytes);
        let file = create(path);
        file.write_all_at(&bytes, 0).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    fn sparse_files(&mut self, root: &Path) {
        let dir = root.join("sparse");
        create_dir(&dir);
        let all_hole = create(&dir.join("only-a-hole"));
        all_hole.set_len(1 << 20).expect("a sparse file");
        // Bits of data far apart, the last past 4 GiB.
        let file = create(&dir.join("islands"));
        for at in [0, 65_536, 1 << 24, (1 << 32) + 4096] {
            let mut bytes = vec![0; 5000];
            self.prng.fill(&mut bytes);
            file.write_all_at(&bytes, at).expect("a sparse file");
        }
        file.set_len((1 << 32) + (1 << 20)).expect("a sparse file");
        let zeros = create(&dir.join("written-zeros"));
        zeros.write_all_at(&[0; 20_000], 0).expect("a small file");
    }

    fn links(&mut self, root: &Path) {
        let dir = root.join("links");
        create_dir(&dir);
        let first = dir.join("first");
        self.ordinary_file(&first);
        for name in ["second", "third"] {
            fs::hard_link(&first, dir.join(name)).expect("a hard link");
        }
        fs::hard_link(&first, root.join("first-from-elsewhere")).expect("a hard link");
        // 59 bytes fit the inode, 60 and more do not; a target takes at most one block and 4095.
        for len in [1, 59, 60, 61, 1000, 4095] {
            let target = "t".repeat(len);
            let made = rustix::fs::symlink(target, dir.join(format!("symlink-{len}")));
            self.try_to("symbolic link", made);
        }
        symlink(OsString::from_vec(b"not/\xff\xfe utf-8".to_vec()), dir.join("bytes"))
            .expect("a symbolic link");
    }

    fn special_files(&mut self, root: &Path) {
        let dir = root.join("special");
        create_dir(&dir);
        let table = [
            ("fifo", FileType::Fifo, 0, 0),
            ("socket", FileType::Socket, 0, 0),
            ("null", FileType::CharacterDevice, 1, 3),
            ("block", FileType::BlockDevice, 7, 200),
            ("large-minor", FileType::CharacterDevice, 300, 70_000),
        ];
        for (name, kind, major, minor) in table {
            let device = rustix::fs::makedev(major, minor);
            let mode = Mode::from_raw_mode(0o640);
            let made = rustix::fs::mknodat(CWD, dir.join(name), kind, mode, device);
            self.try_to(name, made);
        }
    }

    fn names(&mut self, root: &Path) {
        let dir = root.join("names");
        create_dir(&dir);
        let mut names: Vec<Vec<u8>> = vec![
            b"x".repeat(255),
            b" leading and trailing ".to_vec(),
            b"new\nline\ttab".to_vec(),
            b"-dash".to_vec(),
            "gr\u{fc}n \u{1f333}".as_bytes().to_vec(),
            b"...".to_vec(),
        ];
        let mut bytes = [0; 255];
        self.prng.fill(&mut bytes);
        names.push(bytes.map(|b| if matches!(b, 0 | b'/') { 0xff } else { b }).to_vec());
        for name in names {
            create(&dir.join(OsString::from_vec(name)));
        }
    }

    fn modes_and_times(&mut self, root: &Path) {
        let dir = root.join("modes");
        create_dir(&dir);
        for mode in [0o000, 0o001, 0o444, 0o777, 0o1644, 0o2755, 0o4755, 0o7777] {
            let path = dir.join(format!("mode-{mode:04o}"));
            create(&path);
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("mode of an own file");
        }
        let closed = dir.join("closed-directory");
        create_dir(&closed);
        let owners = [(0, 0), (1000, 1000), (65_534, 65_534), (70_000, 1 << 31)];
        for (user, group) in owners {
            let path = dir.join(format!("owner-{user}-{group}"));
            create(&path);
            let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
            let changed = rustix::fs::chown(&path, Some(user), Some(group));
            self.try_to("owner", changed);
        }
        // ext4 keeps 34 bits of seconds: up to 2446.
        for (seconds, nanoseconds) in
            [(-1, 999_999_999), (-(1 << 31), 0), (0, 1), ((1 << 31) + 5, 123_456_789), (1 << 33, 0)]
        {
            let path = dir.join(format!("time-{seconds}"));
            create(&path);
            set_mtime(&path, seconds, nanoseconds);
        }
        fs::set_permissions(&closed, Permissions::from_mode(0o0)).expect("mode of an own file");
    }

    fn attributes(&mut self, root: &Path) {
        let dir = root.join("attributes");
        create_dir(&dir);
        let file = |name: &str| {
            create(&dir.join(name));
            dir.join(name)
        };
        let (few, many, shared) = (file("few"), file("many"), file("shared"));
        self.attribute(&few, "user.short", b"v");
        self.attribute(&few, "user.empty", b"");
        self.attribute(&few, "trusted.overlay", &[0, 255, 10]);
        self.attribute(&few, "security.selinux", b"system_u:object_r:bin_t:s0\0");
        for index in 0..12 {
            let mut value = vec![0; 150];
            self.prng.fill(&mut value);
            self.attribute(&many, &format!("user.name-{index}"), &value);
        }
        self.attribute(&shared, "user.shared", &[7; 300]);
        // Version 2, effective, permitted CAP_NET_RAW (bit 13), nothing inheritable.
        let capability = [[1, 0, 0, 2], [0, 0x20, 0, 0], [0; 4], [0; 4], [0; 4]].concat();
        let tool = file("capable");
        self.attribute(&tool, "security.capability", &capability);
        // Tag, permissions, id: owner rw-, user 1000 r--, group r--, mask r--, others ---.
        let acl =
            acl(&[(1, 6, None), (2, 4, Some(1000)), (4, 4, None), (16, 4, None), (32, 0, None)]);
        let listed = file("listed");
        self.attribute(&listed, "system.posix_acl_access", &acl);
        let parent = dir.join("with-default-acl");
        create_dir(&parent);
        self.attribute(&parent, "system.posix_acl_default", &acl);
        create(&parent.join("child"));
    }

    fn attribute(&mut self, path: &Path, name: &str, value: &[u8]) {
        let set = rustix::fs::setxattr(path, name, value, XattrFlags::empty());
        self.try_to(name, set);
    }
}

/// A POSIX ACL as the kernel takes it: version 2, then tag, permissions and id per entry.
fn acl(entries: &[(u16, u16, Option<u32>)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.unwrap_or(u32::MAX).to_le_bytes());
    }
    bytes
}
