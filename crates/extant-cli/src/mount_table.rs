//! The list of mounts, as `/proc/self/mountinfo` has it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use extant_fuse::mount::{BLOCK_FILE_SYSTEM_TYPE, FILE_SYSTEM_TYPE};

use crate::place::absolute;

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Number of the mount.
    pub(crate) id: u64,
    /// Device of its files, as `MAJOR:MINOR`.
    pub(crate) device: String,
    /// Where it is.
    pub(crate) point: PathBuf,
    /// Kind of file system.
    pub(crate) kind: String,
    /// What is shown as its device.
    pub(crate) source: OsString,
    /// Options of the mount, then those of the file system.
    pub(crate) options: String,
}

impl Entry {
    /// Returns whether extant serves it.
    pub(crate) fn is_ours(&self) -> bool {
        self.kind == FILE_SYSTEM_TYPE || self.holds_device()
    }

    /// Returns whether the kernel holds a block device for it, and tells the server when to store everything.
    pub(crate) fn holds_device(&self) -> bool {
        self.kind == BLOCK_FILE_SYSTEM_TYPE
    }
}

/// All mounts of this process's name space, later ones last.
pub(crate) fn all() -> io::Result<Vec<Entry>> {
    Ok(entries(&std::fs::read("/proc/self/mountinfo")?).collect())
}

/// All mounts in a text such as `/proc/self/mountinfo`.
pub(crate) fn entries(text: &[u8]) -> impl Iterator<Item = Entry> + '_ {
    text.split(|byte| *byte == b'\n').filter_map(entry)
}

/// The mount that is seen at `dir`, if something is mounted right there. A directory that cannot be
/// looked at, because its server died, is found too.
pub(crate) fn at(dir: &Path) -> io::Result<Option<Entry>> {
    let entries = all()?;
    let topmost = |point: &Path| entries.iter().rev().find(|entry| entry.point == point).cloned();
    if let Some(found) = topmost(&absolute(dir)) {
        return Ok(Some(found));
    }
    let real = match dir.canonicalize() {
        Ok(real) => real,
        Err(error) => match (dir.parent().map(Path::canonicalize), dir.file_name()) {
            (Some(Ok(parent)), Some(name)) => parent.join(name),
            _ => return Err(error),
        },
    };
    Ok(topmost(&real))
}

/// The mount that the kernel made last at `dir`, for whoever has just made one.
pub(crate) fn made_at(dir: &Path) -> Option<Entry> {
    all().ok()?.into_iter().rev().find(|entry| entry.point == dir && entry.is_ours())
}

/// Reads `36 35 98:0 / /mnt rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue`.
fn entry(line: &[u8]) -> Option<Entry> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let mut words = line.split(|byte| *byte == b' ');
    let id = text(words.next()?).parse().ok()?;
    let device = text(words.nth(1)?);
    let point = plain(words.nth(1)?);
    let options = text(words.next()?);
    let mut rest = words.skip_while(|word| *word != b"-").skip(1);
    let kind = text(rest.next()?);
    let source = plain(rest.next()?);
    let options = format!("{options},{}", text(rest.next()?));
    Some(Entry { id, device, point: point.into(), kind, source, options })
}

/// Undoes the kernel's escapes: `\040` is a blank.
fn plain(word: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        });
        match code {
            Some(byte) => {
                out.push(byte);
                rest = after.get(3..).unwrap_or(&[]);
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(out)
}

/// Returns where an image is mounted by extant now.
pub(crate) fn mounts_of(source: &OsStr) -> Vec<PathBuf> {
    let entries = all().unwrap_or_default();
    let ours = entries.into_iter().filter(|entry| entry.is_ours());
    ours.filter(|entry| entry.source.as_bytes() == source.as_bytes())
        .map(|entry| entry.point)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = b"36 35 0:98 / /mnt\\040a rw,noatime shared:1 master:2 - fuse.extant /a\\134b.img ro,user_id=0";
        let entry = entry(line).unwrap();
        assert_eq!((entry.id, entry.device.as_str()), (36, "0:98"));
        assert_eq!(entry.point, Path::new("/mnt a"));
        assert_eq!(entry.source, "/a\\b.img");
        assert!(entry.is_ours());
        assert_eq!(entry.options, "rw,noatime,ro,user_id=0");
        for line in ["", "36", "36 35 0:98 / /mnt rw,noatime", "x y z / / rw - a b c"] {
            assert_eq!(super::entry(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn the_mounts_of_this_process_are_found() {
        let entry = at(Path::new("/proc")).unwrap().unwrap();
        assert_eq!(entry.kind, "proc");
        assert!(at(Path::new("/proc/self/task")).unwrap().is_none());
        assert!(mounts_of(OsStr::new("/no/such.img")).is_empty());
    }
}
