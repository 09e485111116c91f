//! What fakeroot remembers: owners, permissions and devices of files that an ordinary user could not give them.
//!
//! `fakeroot -s FILE` saves one line for each file that a program changed the owner, permissions or kind of:
//! `dev=fe00,ino=12,mode=20600,uid=0,gid=5,nlink=1,rdev=1025`. The device is hexadecimal, the mode octal, the rest decimal.
//! Files that are not in it belong to root, as fakeroot itself shows them.
//!
//! # Source
//!
//! fakeroot(1), "-s" and "-i"; the files that fakeroot 1.31 writes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;
use rustix::fs::{FileType, major, minor};

use super::SourceError;
use crate::tree::{Kind, Node};

/// Most files of one state, about 50 bytes of memory each.
pub const FILES_MAX: usize = 1 << 24;

/// Longest line; real ones have less than 150 bytes.
const LINE_MAX: u64 = 1024;

/// The state that fakeroot saved. Clones share one.
#[derive(Clone, Debug)]
pub struct Fakeroot {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    name: String,
    /// By device and inode number.
    files: FxHashMap<(u64, u64), Said>,
    /// How often a file of a source was in it.
    found: AtomicU64,
}

/// Attributes of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Said {
    mode: u32,
    uid: u32,
    gid: u32,
    rdev: u64,
}

impl Fakeroot {
    /// Reads the file `path` that `fakeroot -s` saved.
    ///
    /// # Errors
    ///
    /// [`SourceError::Io`] when it cannot be read, [`SourceError::Fakeroot`] with the number of a line that fakeroot
    /// does not write, or for more than [`FILES_MAX`] files.
    ///
    /// # Cost
    ///
    /// One read of the file; about 50 bytes of memory for each line.
    pub fn read(path: &Path) -> Result<Fakeroot, SourceError> {
        let bytes = path.as_os_str().as_bytes();
        let file = File::open(path).map_err(|e| SourceError::io("open", bytes, e))?;
        Fakeroot::parse(&bytes.escape_ascii().to_string(), BufReader::new(file))
    }

    fn parse(name: &str, mut input: impl BufRead) -> Result<Fakeroot, SourceError> {
        let mut files = FxHashMap::default();
        let mut line = Vec::new();
        for number in 1u64.. {
            line.clear();
            let mut limited = input.by_ref().take(LINE_MAX);
            let count = limited
                .read_until(b'\n', &mut line)
                .map_err(|e| SourceError::io("read", name.as_bytes(), e))?;
            if count == 0 {
                break;
            }
            let fault = |what: String| SourceError::Fakeroot { path: name.to_owned(), what };
            let text = line.trim_ascii();
            if text.is_empty() {
                continue;
            }
            let (inode, said) = read_line(text).ok_or_else(|| {
                let start = text.get(..text.len().min(60)).unwrap_or_default();
                fault(format!(
                    "line {number} is none of a state that fakeroot -s saves: \"{}\"",
                    start.escape_ascii()
                ))
            })?;
            if files.len() >= FILES_MAX {
                return Err(fault(format!("it has more than {FILES_MAX} files")));
            }
            files.insert(inode, said);
        }
        let state = State { name: name.to_owned(), files, found: AtomicU64::new(0) };
        Ok(Fakeroot { state: Arc::new(state) })
    }

    /// Gives `node`, the file `inode` of the host, the attributes that fakeroot showed.
    ///
    /// # Errors
    ///
    /// In words: the state is that of another kind of file.
    pub(super) fn apply(&self, inode: (u64, u64), node: &mut Node) -> Result<(), String> {
        let Some(said) = self.state.files.get(&inode) else {
            (node.uid, node.gid) = (0, 0);
            return Ok(());
        };
        self.state.found.fetch_add(1, Ordering::Relaxed);
        let kind = kind_of(said.mode);
        // Devices and their like are empty files to everybody else.
        let is_possible = match kind {
            Some(Kind::Char | Kind::Block | Kind::Fifo | Kind::Socket) => {
                node.kind == Kind::File && node.size == 0 || kind == Some(node.kind)
            }
            kind => kind == Some(node.kind),
        };
        let Some(kind) = kind.filter(|_| is_possible) else {
            return Err(format!(
                "fakeroot's state {} has mode {:o} for it, which is another kind of file: was it \
                 replaced since?",
                self.state.name, said.mode
            ));
        };
        node.kind = kind;
        if kind != Kind::Symlink {
            node.mode = (said.mode & 0o7777) as u16;
        }
        (node.uid, node.gid) = (said.uid, said.gid);
        if matches!(kind, Kind::Char | Kind::Block) {
            node.rdev = (major(said.rdev), minor(said.rdev));
        }
        Ok(())
    }

    /// Checks, when all sources were read, that the state is about one of them.
    pub(super) fn check(&self) -> Result<(), SourceError> {
        let State { name, files, found } = &*self.state;
        if files.is_empty() || found.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        let count = files.len();
        let what = format!(
            "none of the {count} files in it is in a directory that was given: fakeroot knows them by \
             device and inode number, so a tree that was copied has lost them"
        );
        Err(SourceError::Fakeroot { path: name.clone(), what })
    }
}

fn read_line(line: &[u8]) -> Option<((u64, u64), Said)> {
    let text = std::str::from_utf8(line).ok()?;
    let mut fields = text.split(',');
    let mut field = |key: &str, radix: u32| {
        let digits = fields.next()?.strip_prefix(key)?.strip_prefix('=')?;
        // `from_str_radix` would take a sign too.
        digits.bytes().next().filter(u8::is_ascii_alphanumeric)?;
        u64::from_str_radix(digits, radix).ok()
    };
    let inode = (field("dev", 16)?, field("ino", 10)?);
    let mode = u32::try_from(field("mode", 8)?).ok()?;
    let mut id = |key| u32::try_from(field(key, 10)?).ok().filter(|id| *id != u32::MAX);
    let (uid, gid) = (id("uid")?, id("gid")?);
    field("nlink", 10)?;
    let rdev = field("rdev", 10)?;
    Some((inode, Said { mode, uid, gid, rdev }))
}

fn kind_of(mode: u32) -> Option<Kind> {
    Some(match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::CharacterDevice => Kind::Char,
        FileType::BlockDevice => Kind::Block,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::Unknown => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Fakeroot, SourceError> {
        Fakeroot::parse("state", text.as_bytes())
    }

    #[test]
    fn lines_are_read_or_refused_with_their_number() {
        let state = parse(
            "dev=fe00,ino=12,mode=20600,uid=0,gid=5,nlink=1,rdev=1025\n\
             dev=fe00,ino=13,mode=100644,uid=7,gid=8,nlink=2,rdev=0\n",
        )
        .unwrap();
        let mut node = Node::new(Kind::File);
        state.apply((0xfe00, 12), &mut node).unwrap();
        assert_eq!((node.kind, node.mode, node.gid, node.rdev), (Kind::Char, 0o600, 5, (4, 1)));
        let mut node = Node::new(Kind::File);
        node.size = 3;
        assert!(state.apply((0xfe00, 12), &mut node).unwrap_err().contains("mode 20600"));
        let mut node = Node::new(Kind::Dir);
        assert!(state.apply((0xfe00, 13), &mut node).is_err());
        (node.uid, node.gid) = (9, 9);
        state.apply((0xfe00, 14), &mut node).unwrap();
        assert_eq!((node.uid, node.gid), (0, 0));
        state.check().unwrap();

        parse("").unwrap().check().unwrap();
        let unused = parse("dev=1,ino=2,mode=100644,uid=0,gid=0,nlink=1,rdev=0").unwrap();
        assert!(unused.check().unwrap_err().to_string().contains("none of the 1 files"));
        let good = "dev=1,ino=2,mode=100644,uid=0,gid=0,nlink=1,rdev=0\n";
        for bad in [
            "x",
            "dev=1,ino=2",
            "dev=1,ino=+2,mode=100644,uid=0,gid=0,nlink=1,rdev=0",
            "dev=1,ino=2,mode=9,uid=0,gid=0,nlink=1,rdev=0",
            "dev=1,ino=2,mode=100644,uid=4294967295,gid=0,nlink=1,rdev=0",
            "ino=2,dev=1,mode=100644,uid=0,gid=0,nlink=1,rdev=0",
        ] {
            let error = parse(&format!("{good}{bad}\n")).unwrap_err().to_string();
            assert!(error.contains("state: line 2"), "{error}");
        }
        // A line without an end costs no memory.
        assert!(parse(&"dev=1".repeat(1 << 20)).is_err());
    }
}
