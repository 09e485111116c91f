//! Reads an image through the `extant` crate and compares it with the source, so that images which
//! the running kernel cannot mount are compared too.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use extant::MountOptions;
use extant_block::FileDevice;

/// Which times have to be equal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    None,
    /// Those of all that is no directory.
    Files,
    All,
}

/// Panics at the first difference in names, kinds, modes, owners, links, sizes, times, contents,
/// link targets or extended attributes.
pub(crate) fn assert_equal(source: &Path, image: &Path, nanoseconds: bool) {
    assert_equal_by(source, image, if nanoseconds { Times::All } else { Times::None });
}

/// As [`assert_equal`].
pub(crate) fn assert_equal_by(source: &Path, image: &Path, times: Times) {
    let device = FileDevice::open_read_only(image).unwrap();
    let fs = MountOptions::new().open(device).unwrap();
    let mut seen = 0;
    for entry in fs.walk("/").unwrap() {
        let entry = entry.unwrap();
        let relative = std::ffi::OsStr::from_bytes(entry.path().trim_ascii_start());
        let relative = Path::new(relative);
        let relative = relative.strip_prefix("/").unwrap_or(relative);
        if relative.starts_with("lost+found") {
            continue;
        }
        seen += 1;
        let path = source.join(relative);
        let theirs = fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let inode = entry.inode();
        let ours = inode.metadata();
        assert_eq!(u32::from(ours.mode()), theirs.mode(), "{path:?}: mode");
        assert_eq!((ours.uid, ours.gid), (theirs.uid(), theirs.gid()), "{path:?}: owner");
        if times == Times::All || (times == Times::Files && !inode.is_dir()) {
            let mtime = (ours.mtime.seconds, i64::from(ours.mtime.nanos));
            assert_eq!(mtime, (theirs.mtime(), theirs.mtime_nsec()), "{path:?}: mtime");
        }
        if !inode.is_dir() {
            assert_eq!(u64::from(ours.links), theirs.nlink(), "{path:?}: links");
            assert_eq!(ours.size, theirs.size(), "{path:?}: size");
        }
        if let Some((major, minor)) = ours.rdev {
            let rdev = theirs.rdev();
            assert_eq!((major, minor), (rustix::fs::major(rdev), rustix::fs::minor(rdev)));
        }
        if inode.is_symlink() {
            let target = fs::read_link(&path).unwrap();
            assert_eq!(inode.read_link().unwrap(), target.as_os_str().as_bytes(), "{path:?}");
        }
        if inode.is_file() {
            compare_contents(&path, inode);
        }
        let mut xattrs: Vec<_> =
            inode.xattrs().unwrap().into_iter().map(|x| (x.name, x.value)).collect();
        xattrs.sort();
        assert!(xattrs == host_xattrs(&path), "{path:?}: extended attributes");
    }
    assert_eq!(seen, count(source), "number of files");
}

fn compare_contents(path: &Path, inode: &extant::Inode) {
    let file = fs::File::open(path).unwrap();
    let (mut ours, mut theirs) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut offset = 0;
    loop {
        let len = inode.read_at(&mut ours, offset).unwrap();
        let want = (inode.size() - offset).min(ours.len() as u64) as usize;
        assert_eq!(len, want, "{path:?}: read at {offset}");
        if len == 0 {
            return;
        }
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut theirs[..len], offset).unwrap();
        assert!(ours[..len] == theirs[..len], "{path:?}: contents from byte {offset}");
        offset += len as u64;
    }
}

fn host_xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut found: Vec<_> = names[..len]
        .split(|&b| b == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            value.truncate(len);
            (name.to_vec(), value)
        })
        .collect();
    found.sort();
    found
}

/// Files below `root` of every kind, itself included.
fn count(root: &Path) -> usize {
    let entries = fs::read_dir(root).unwrap().map(Result::unwrap);
    1 + entries
        .map(|e| if e.file_type().unwrap().is_dir() { count(&e.path()) } else { 1 })
        .sum::<usize>()
}
