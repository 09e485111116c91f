//! Walks two directory trees and lists every difference.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Bytes read from each file at a time.
const CHUNK_BYTES: usize = 1 << 18;

/// What to look at. Everything by default, except holes.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// Owner and group.
    pub owners: bool,
    /// Modification times, to the nanosecond.
    pub times: bool,
    /// Extended attributes of all name spaces the caller may list.
    pub xattrs: bool,
    /// Largest surplus of allocated bytes of a file in the second tree over the same file in the
    /// first; `None` does not look. Allocation differs between file systems, so this is rough:
    /// it notices a hole that was filled.
    pub extra_allocated_bytes: Option<u64>,
    /// Names in the root of either tree to leave out, such as `lost+found`.
    pub ignore_at_root: Vec<OsString>,
}

impl Default for CompareOptions {
    fn default() -> CompareOptions {
        CompareOptions {
            owners: true,
            times: true,
            xattrs: true,
            extra_allocated_bytes: None,
            ignore_at_root: vec!["lost+found".into()],
        }
    }
}

/// One way in which two trees differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Path below both roots; empty for the roots themselves.
    pub path: PathBuf,
    /// What differs: `mode`, `owner`, `content`, `xattr user.x`, and so on.
    pub what: String,
    /// What the first tree has.
    pub first: String,
    /// What the second tree has.
    pub second: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = Path::new(".").join(&self.path);
        write!(f, "{path:?}: {}: {} | {}", self.what, self.first, self.second)
    }
}

/// Lists the differences between the trees at `a` and `b`, in order of path. Reads every byte of
/// every file, follows no symbolic link, stays on no particular file system.
///
/// Files that cannot be read are differences too, so an empty list means equal trees.
pub fn compare_trees(a: &Path, b: &Path, options: &CompareOptions) -> Vec<Difference> {
    let mut walk =
        Walk { roots: [a, b], options, found: Vec::new(), links: [HashMap::new(), HashMap::new()] };
    // An own stack: a tree may be deeper than the thread's stack.
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        pending.extend(walk.visit(&path).into_iter().rev());
    }
    walk.found
}

struct Walk<'a> {
    roots: [&'a Path; 2],
    options: &'a CompareOptions,
    found: Vec<Difference>,
    /// For files with several names: device and inode number to the first path seen.
    links: [HashMap<(u64, u64), PathBuf>; 2],
}

impl Walk<'_> {
    fn differ(&mut self, path: &Path, what: &str, first: impl ToString, second: impl ToString) {
        self.found.push(Difference {
            path: path.to_owned(),
            what: what.to_owned(),
            first: first.to_string(),
            second: second.to_string(),
        });
    }

    fn compare<T: PartialEq>(
        &mut self,
        path: &Path,
        what: &str,
        sides: [T; 2],
        show: impl Fn(&T) -> String,
    ) {
        let [first, second] = sides;
        if first != second {
            self.differ(path, what, show(&first), show(&second));
        }
    }

    /// Asks both sides. An error on one is a difference; on both, one of its own kind.
    fn both<T>(
        &mut self,
        path: &Path,
        what: &str,
        ask: impl Fn(&Path) -> io::Result<T>,
    ) -> Option<[T; 2]> {
        // `join` with an empty path would add a slash, which follows a link at the root.
        let full = self.roots.map(|root| {
            if path.as_os_str().is_empty() { root.to_owned() } else { root.join(path) }
        });
        match (ask(&full[0]), ask(&full[1])) {
            (Ok(first), Ok(second)) => Some([first, second]),
            (first, second) => {
                let show = |side: io::Result<T>| side.err().map_or("ok".into(), |e| e.to_string());
                self.differ(path, what, show(first), show(second));
                None
            }
        }
    }

    /// Compares one path; returns the children to visit.
    fn visit(&mut self, path: &Path) -> Vec<PathBuf> {
        let Some(sides) = self.both(path, "look-up", |p| fs::symlink_metadata(p)) else {
            return Vec::new();
        };
        let kinds = [kind(&sides[0]), kind(&sides[1])];
        if kinds[0] != kinds[1] {
            self.differ(path, "kind", kinds[0], kinds[1]);
            return Vec::new();
        }
        self.attributes(path, kinds[0], &sides);
        if kinds[0] != "directory" && !self.first_name(path, &sides) {
            return Vec::new();
        }
        match kinds[0] {
            "directory" => return self.children(path),
            "symbolic link" => {
                if let Some(targets) = self.both(path, "target", |p| fs::read_link(p)) {
                    self.compare(path, "target", targets, |target| format!("{target:?}"));
                }
            }
            "file" => self.file(path, &sides),
            _ => {}
        }
        Vec::new()
    }

    fn attributes(&mut self, path: &Path, kind: &str, sides: &[Metadata; 2]) {
        let both = |get: fn(&Metadata) -> u64| [get(&sides[0]), get(&sides[1])];
        self.compare(path, "mode", both(|m| u64::from(m.mode())), |mode| format!("{mode:o}"));
        if self.options.owners {
            self.compare(path, "owner", both(|m| m.uid().into()), u64::to_string);
            self.compare(path, "group", both(|m| m.gid().into()), u64::to_string);
        }
        if self.options.times {
            let times = [0, 1].map(|side| (sides[side].mtime(), sides[side].mtime_nsec()));
            self.compare(path, "mtime", times, |(s, ns)| format!("{s}.{ns:09}"));
        }
        if kind != "directory" {
            self.compare(path, "size", both(Metadata::size), u64::to_string);
            self.compare(path, "link count", both(Metadata::nlink), u64::to_string);
        }
        if kind.ends_with("device") {
            let show =
                |dev: &u64| format!("{}:{}", rustix::fs::major(*dev), rustix::fs::minor(*dev));
            self.compare(path, "device number", both(Metadata::rdev), show);
        }
        if self.options.xattrs {
            self.xattrs(path);
        }
    }

    /// Compares which earlier name, if any, is the same file. False for a later name: its
    /// contents were compared already.
    fn first_name(&mut self, path: &Path, sides: &[Metadata; 2]) -> bool {
        let mut earlier = [None, None];
        for (side, metadata) in sides.iter().enumerate() {
            if metadata.nlink() > 1 {
                let seen = self.links[side]
                    .entry((metadata.dev(), metadata.ino()))
                    .or_insert_with(|| path.to_owned());
                earlier[side] = (seen != path).then(|| seen.clone());
            }
        }
        let is_first = earlier.iter().any(Option::is_none);
        self.compare(path, "same file as", earlier, |name| format!("{name:?}"));
        is_first
    }

    fn children(&mut self, path: &Path) -> Vec<PathBuf> {
        let names = |dir: &Path| -> io::Result<BTreeSet<OsString>> {
            fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
        };
        let Some([mut first, mut second]) = self.both(path, "list", names) else {
            return Vec::new();
        };
        if path.as_os_str().is_empty() {
            for name in &self.options.ignore_at_root {
                first.remove(name);
                second.remove(name);
            }
        }
        for name in first.symmetric_difference(&second) {
            let has = |names: &BTreeSet<OsString>| {
                if names.contains(name) { "exists" } else { "missing" }
            };
            self.differ(&path.join(name), "name", has(&first), has(&second));
        }
        first.intersection(&second).map(|name| path.join(name)).collect()
    }

    fn xattrs(&mut self, path: &Path) {
        let Some([first, second]) = self.both(path, "xattrs", xattrs) else { return };
        let names: BTreeSet<_> = first.keys().chain(second.keys()).cloned().collect();
        for name in names {
            let what = format!("xattr {}", name.display());
            let sides = [first.get(&name), second.get(&name)];
            self.compare(path, &what, sides, |value| match value {
                Some(value) => format!("{} bytes {:?}", value.len(), OsStr::from_bytes(value)),
                None => "missing".to_owned(),
            });
        }
    }

    fn file(&mut self, path: &Path, sides: &[Metadata; 2]) {
        if let Some(limit) = self.options.extra_allocated_bytes {
            // `st_blocks` counts 512 bytes whatever the file system's block is.
            let [first, second] = [0, 1].map(|side| sides[side].blocks().saturating_mul(512));
            if second > first.saturating_add(limit) {
                self.differ(path, "allocated bytes", first, second);
            }
        }
        if sides[0].size() != sides[1].size() {
            return;
        }
        let Some([first, second]) = self.both(path, "open", |p| File::open(p)) else { return };
        match first_difference(&first, &second, sides[0].size()) {
            Ok(None) => {}
            Ok(Some(at)) => {
                let byte = |file: &File| {
                    let mut byte = [0];
                    match file.read_exact_at(&mut byte, at) {
                        Ok(()) => format!("{:#04x} at byte {at}", byte[0]),
                        Err(error) => error.to_string(),
                    }
                };
                self.differ(path, "content", byte(&first), byte(&second));
            }
            Err(error) => self.differ(path, "read", &error, "either side"),
        }
    }
}

fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_file() => "file",
        () if kind.is_dir() => "directory",
        () if kind.is_symlink() => "symbolic link",
        () if kind.is_block_device() => "block device",
        () if kind.is_char_device() => "character device",
        () if kind.is_fifo() => "fifo",
        () => "socket",
    }
}

/// First byte at which two files of `size` bytes differ. Skips what is a hole in both.
fn first_difference(first: &File, second: &File, size: u64) -> io::Result<Option<u64>> {
    let mut ranges = data_ranges(first, size);
    ranges.extend(data_ranges(second, size));
    ranges.sort_by_key(|range| range.start);
    let mut buffers = [vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]];
    let mut done = 0;
    for range in ranges {
        let mut at = range.start.max(done);
        while at < range.end {
            let len = (range.end - at).min(CHUNK_BYTES as u64) as usize;
            let [a, b] = &mut buffers;
            first.read_exact_at(&mut a[..len], at)?;
            second.read_exact_at(&mut b[..len], at)?;
            if let Some(index) = a[..len].iter().zip(&b[..len]).position(|(a, b)| a != b) {
                return Ok(Some(at + index as u64));
            }
            at += len as u64;
        }
        done = done.max(range.end);
    }
    Ok(None)
}

/// The parts of a file that are not holes, in order; all of it where the file system cannot tell.
pub(crate) fn data_ranges(file: &File, size: u64) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => return ranges,
            Err(_) => return std::iter::once(0..size).collect(),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        if end <= start {
            break;
        }
        ranges.push(start..end);
        at = end;
    }
    ranges
}

/// All extended attributes of a path itself; none where the file system has none.
fn xattrs(path: &Path) -> io::Result<BTreeMap<OsString, Vec<u8>>> {
    // 64 KiB is the kernel's limit for a list and for a value.
    let mut list = vec![0u8; 1 << 16];
    let len = match rustix::fs::llistxattr(path, &mut list[..]) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => return Ok(BTreeMap::new()),
        Err(errno) => return Err(errno.into()),
    };
    let mut all = BTreeMap::new();
    for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0u8; 1 << 16];
        let name = OsString::from_vec(name.to_owned());
        let len = rustix::fs::lgetxattr(path, name.as_os_str(), &mut value[..])?;
        value.truncate(len);
        all.insert(name, value);
    }
    Ok(all)
}
