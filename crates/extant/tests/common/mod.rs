//! Compares what extant reads from an image with a tree of ordinary files.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use extant::{FileKind, Fs, Inode, MappingKind, MountOptions, Timestamp};
use extant_block::FileDevice;
use rustix::fs::SeekFrom;

/// What the maker of the image keeps.
#[derive(Clone, Copy)]
pub(crate) struct Keeps {
    /// Nanoseconds and seconds outside 32 bits.
    pub(crate) full_times: bool,
    /// The count of allocated blocks is the one that `stat` shows.
    pub(crate) blocks: bool,
    /// Inode numbers are those that `stat` shows.
    pub(crate) inodes: bool,
    /// Extended attributes.
    pub(crate) xattrs: bool,
    /// Times of directories.
    pub(crate) dir_times: bool,
}

/// Everything: the tree is the same file system, mounted by the kernel.
pub(crate) const ALL: Keeps =
    Keeps { full_times: true, blocks: true, inodes: true, xattrs: true, dir_times: true };

pub(crate) fn open(image: &Path) -> Fs {
    MountOptions::new()
        .open(FileDevice::open_read_only(image).expect("the image"))
        .unwrap_or_else(|error| panic!("{}: {error}", image.display()))
}

/// Where the test keeps its images: `TMPDIR` decides.
pub(crate) fn work_dir() -> extant_testkit::TempDir {
    extant_testkit::tempdir().expect("a temporary directory")
}

/// One line per difference between the tree at `source` and the image.
pub(crate) fn differences(source: &Path, fs: &Fs, keeps: Keeps) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::new()];
    let mut visited = 0;
    while let Some(below) = pending.pop() {
        visited += 1;
        let path = source.join(&below);
        let inode = match fs.resolve_link([b"/", below.as_os_str().as_bytes()].concat()) {
            Ok(inode) => inode,
            Err(error) => {
                found.push(format!("{below:?}: {error}"));
                continue;
            }
        };
        let mut differ = |what: &str, a: String, b: String| {
            if a != b {
                found.push(format!("{below:?}: {what}: {a} | {b}"));
            }
        };
        let theirs = fs::symlink_metadata(&path).expect("an entry of the source");
        // mke2fs makes the root itself and does not copy its times.
        if keeps.full_times || !below.as_os_str().is_empty() {
            compare_metadata(&theirs, &inode, keeps, &mut differ);
        }
        if keeps.xattrs {
            compare_xattrs(&path, &inode, &mut differ);
        }
        let kind = theirs.file_type();
        if kind.is_symlink() {
            let target = fs::read_link(&path).expect("a link of the source");
            let ours = inode.read_link().map_err(|e| e.to_string());
            differ("target", format!("{:?}", Ok::<_, String>(target.as_os_str().as_bytes())), {
                format!("{:?}", ours.as_deref().map_err(Clone::clone))
            });
        } else if kind.is_file() {
            compare_contents(&path, &inode, &mut differ);
        } else if kind.is_dir() {
            let mut names: BTreeSet<Vec<u8>> = fs::read_dir(&path)
                .expect("a directory of the source")
                .map(|entry| entry.expect("an entry").file_name().as_bytes().to_vec())
                .collect();
            if below.as_os_str().is_empty() {
                names.remove(b"lost+found".as_slice());
            }
            pending.extend(names.iter().map(|name| below.join(OsStr::from_bytes(name))));
            let mut ours = BTreeSet::new();
            let listing = match inode.read_dir() {
                Ok(listing) => listing,
                Err(error) => {
                    found.push(format!("{below:?}: {error}"));
                    continue;
                }
            };
            for entry in listing {
                match entry {
                    Ok(entry) if below.as_os_str().is_empty() && entry.name() == b"lost+found" => {}
                    Ok(entry) => {
                        if !ours.insert(entry.name().to_vec()) {
                            found.push(format!("{below:?}: listed twice: {entry:?}"));
                        }
                    }
                    Err(error) => found.push(format!("{below:?}: {error}")),
                }
            }
            for name in names.symmetric_difference(&ours) {
                let name = String::from_utf8_lossy(name);
                found.push(format!("{below:?}: only on one side: {name:?}"));
            }
        }
    }
    assert!(visited > 1, "{}: nothing to compare", source.display());
    found
}

fn compare_metadata(
    theirs: &fs::Metadata,
    inode: &Inode,
    keeps: Keeps,
    differ: &mut impl FnMut(&str, String, String),
) {
    let ours = inode.metadata();
    let kind = theirs.file_type();
    differ("mode", format!("{:o}", theirs.mode()), format!("{:o}", ours.mode()));
    differ("uid", theirs.uid().to_string(), ours.uid.to_string());
    differ("gid", theirs.gid().to_string(), ours.gid.to_string());
    if !kind.is_dir() || keeps.blocks {
        differ("size", theirs.size().to_string(), ours.size.to_string());
        differ("links", theirs.nlink().to_string(), ours.links.to_string());
    }
    if keeps.blocks {
        differ("blocks", theirs.blocks().to_string(), ours.blocks.to_string());
    }
    if keeps.inodes {
        differ("ino", theirs.ino().to_string(), ours.ino.to_string());
    }
    if kind.is_char_device() || kind.is_block_device() {
        let rdev = (rustix::fs::major(theirs.rdev()), rustix::fs::minor(theirs.rdev()));
        differ("rdev", format!("{:?}", Some(rdev)), format!("{:?}", ours.rdev));
    }
    let shown = |time: Timestamp| format!("{}.{:09}", time.seconds, time.nanos);
    if kind.is_dir() && !keeps.dir_times {
        return;
    }
    if keeps.full_times {
        for (what, sec, nsec, time) in [
            ("mtime", theirs.mtime(), theirs.mtime_nsec(), ours.mtime),
            ("ctime", theirs.ctime(), theirs.ctime_nsec(), ours.ctime),
            ("atime", theirs.atime(), theirs.atime_nsec(), ours.atime),
        ] {
            differ(what, format!("{sec}.{nsec:09}"), shown(time));
        }
    } else {
        let low = |seconds: i64| (seconds as u32).to_string();
        differ("mtime", low(theirs.mtime()), low(ours.mtime.seconds));
    }
}

fn compare_xattrs(path: &Path, inode: &Inode, differ: &mut impl FnMut(&str, String, String)) {
    let mut theirs = Vec::new();
    let mut list = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut list).expect("a list of attributes");
    for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 1 << 16];
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value).expect("value");
        value.truncate(len);
        theirs.push((name.to_vec(), value));
    }
    theirs.sort();
    let ours = inode.xattrs().map(|list| {
        let mut list: Vec<_> = list.into_iter().map(|xattr| (xattr.name, xattr.value)).collect();
        list.sort();
        list
    });
    for (name, value) in &theirs {
        let one = inode.xattr(name).map_err(|error| error.to_string());
        differ("xattr by name", format!("{:?}", Ok::<_, String>(value)), {
            format!("{:?}", one.as_ref().map_err(Clone::clone))
        });
    }
    let shown = |list: &[(Vec<u8>, Vec<u8>)]| {
        let list: Vec<_> = list.iter().map(|(name, value)| (lossy(name), value)).collect();
        format!("{list:?}")
    };
    differ(
        "xattrs",
        shown(&theirs),
        match ours {
            Ok(ours) => shown(&ours),
            Err(error) => error.to_string(),
        },
    );
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const CHUNK: u64 = 1 << 20;

/// Reads both sides where either has data, and a sample of each hole.
fn compare_contents(path: &Path, inode: &Inode, differ: &mut impl FnMut(&str, String, String)) {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => {
            differ("open", error.to_string(), String::new());
            return;
        }
    };
    let size = file.metadata().expect("metadata").len();
    let (mut theirs, mut ours) = (vec![0; CHUNK as usize], vec![0; CHUNK as usize]);
    let mut at = 0;
    let mut sampled = false;
    while at < size {
        let end = (at + CHUNK).min(size);
        // A hole on both sides: look at its first chunk, then go to where it ends on one of them.
        let theirs_next = rustix::fs::seek(&file, SeekFrom::Data(at)).unwrap_or(size);
        let next = theirs_next.min(data_from(inode, at)).min(size);
        if next >= end && std::mem::replace(&mut sampled, true) {
            at = (next / CHUNK * CHUNK).max(end);
            sampled = false;
            continue;
        }
        sampled = next >= end;
        let len = (end - at) as usize;
        file.read_exact_at(&mut theirs[..len], at).expect("contents of the source");
        ours.fill(0xa5);
        match inode.read_at(&mut ours[..len], at) {
            Ok(read) if read == len => {
                if let Some(first) = (0..len).find(|i| theirs[*i] != ours[*i]) {
                    let byte = at + first as u64;
                    differ("contents", format!("{} at {byte}", theirs[first]), {
                        format!("{} at {byte}", ours[first])
                    });
                    return;
                }
            }
            other => {
                differ("read", format!("{len} at {at}"), format!("{other:?}"));
                return;
            }
        }
        at = end;
    }
    // Nothing past the end, and odd pieces agree with whole chunks.
    let past = inode.read_at(&mut ours[..10], size).map_err(|e| e.to_string());
    differ("past the end", "Ok(0)".into(), format!("{past:?}"));
    if size > 3 {
        let middle = size / 2;
        let len = (size - middle).min(7001) as usize;
        file.read_exact_at(&mut theirs[..len], middle).expect("contents of the source");
        let read = inode.read_at(&mut ours[..len], middle).map_err(|e| e.to_string());
        differ("read", format!("{:?}", Ok::<_, String>(len)), format!("{read:?}"));
        differ("odd piece", "true".into(), (theirs[..len] == ours[..len]).to_string());
    }
}

/// The first byte at or after `at` that is not in a hole of the image's map.
fn data_from(inode: &Inode, at: u64) -> u64 {
    let bits = inode.fs().block_size().log2();
    inode
        .map(at >> bits..inode.block_len())
        .find(|run| !matches!(run.as_ref().map(|run| run.kind), Ok(MappingKind::Hole)))
        .map_or(u64::MAX, |run| run.map_or(at, |run| u64::from(run.file_start.0) << bits).max(at))
}

/// Reads everything there is, within bounds, and returns what went wrong.
pub(crate) fn read_everything(fs: &Fs, bytes_max: u64) -> Vec<String> {
    let mut errors = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    let mut left = bytes_max;
    let walk = match fs.walk("/") {
        Ok(walk) => walk,
        Err(error) => return vec![error.to_string()],
    };
    for entry in walk.take(20_000) {
        let inode = match &entry {
            Ok(entry) => entry.inode(),
            Err(error) => {
                errors.push(error.to_string());
                continue;
            }
        };
        let mut note = |result: Result<(), extant::FsError>| {
            errors.extend(result.err().map(|error| error.to_string()));
        };
        let _ = inode.metadata();
        note(inode.xattrs().map(drop));
        note(inode.acl(extant::AclKind::Access).map(drop));
        for run in inode.map(0..1 << 32).take(1000) {
            note(run.map(drop));
        }
        match inode.kind() {
            FileKind::Symlink => note(inode.read_link().map(drop)),
            FileKind::Directory => {
                note(inode.lookup(b"no such name").map(drop).or_else(|error| match error {
                    extant::FsError::NotFound { .. } => Ok(()),
                    other => Err(other),
                }));
                note(inode.lookup(b"..").map(drop));
            }
            FileKind::Regular => {
                for offset in [0, inode.size() / 2, inode.size().saturating_sub(100)] {
                    let mut at = offset;
                    for _ in 0..8 {
                        match inode.read_at(&mut buffer, at) {
                            Ok(0) => break,
                            Ok(read) => {
                                at += read as u64;
                                left = left.saturating_sub(read as u64);
                            }
                            Err(error) => {
                                note(Err(error));
                                break;
                            }
                        }
                    }
                }
            }
            _ => {}
        }
        if left == 0 {
            break;
        }
    }
    errors
}
