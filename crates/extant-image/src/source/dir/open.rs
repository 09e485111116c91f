//! Opening what lies below a directory, never through a symlink and never outside.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// Longest path handed to the kernel at once; its own bound is 4095.
const PATH_MAX: usize = 4000;

const DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the directory `path`, relative to `root` and empty for `root` itself, of any length.
///
/// # Errors
///
/// `ELOOP` or `ENOTDIR` when a component is a symlink; whatever else opening gives.
pub(super) fn open_dir_beneath(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut rest = path;
    let mut at: Option<OwnedFd> = None;
    loop {
        let (head, tail) = split(rest);
        let base = at.as_ref().map_or(root, AsFd::as_fd);
        let next = open_piece(base, head)?;
        match tail {
            Some(tail) => rest = tail,
            None => return Ok(next),
        }
        at = Some(next);
    }
}

/// Cuts `path` at the last slash that keeps the head within `PATH_MAX`.
fn split(path: &[u8]) -> (&[u8], Option<&[u8]>) {
    if path.len() <= PATH_MAX {
        return (path, None);
    }
    // A component has at most 255 bytes, so a slash is there; without one, let the kernel refuse.
    match path.iter().take(PATH_MAX + 1).rposition(|&b| b == b'/') {
        Some(at) => (path.get(..at).unwrap_or(path), path.get(at + 1..)),
        None => (path, None),
    }
}

fn open_piece(base: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { &b"."[..] } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    // Listing a directory should not change it. Only its owner and root may ask for that.
    let mut result = openat2(base, path, DIR | OFlags::NOATIME, Mode::empty(), resolve);
    if result.as_ref().is_err_and(|&e| e == Errno::PERM) {
        result = openat2(base, path, DIR, Mode::empty(), resolve);
    }
    match result {
        // Older than Linux 5.6, or a container's filter that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => open_by_component(base, path),
        // Somebody renamed a directory meanwhile, and the kernel could not prove "beneath".
        Err(Errno::AGAIN) => open_by_component(base, path),
        result => result,
    }
}

fn open_by_component(base: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut at: Option<OwnedFd> = None;
    for name in path.split(|&b| b == b'/') {
        let dir = at.as_ref().map_or(base, AsFd::as_fd);
        let next = match openat(dir, name, DIR | OFlags::NOATIME, Mode::empty()) {
            Err(Errno::PERM) => openat(dir, name, DIR, Mode::empty()),
            result => result,
        };
        at = Some(next?);
    }
    at.ok_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{fstat, mkdirat, symlinkat};

    #[test]
    fn long_paths_are_cut_at_a_slash() {
        let long = [&[b'a'; 255][..]; 40].join(&b'/');
        let (head, tail) = split(&long);
        assert!(head.len() <= PATH_MAX && head.len() > PATH_MAX - 257);
        assert_eq!([head, tail.unwrap()].join(&b'/'), long);
        assert_eq!(split(b"a/b"), (&b"a/b"[..], None));
    }

    #[test]
    fn both_ways_of_opening_agree_and_refuse_symlinks() {
        let temp = tempfile::tempdir().unwrap();
        let root = openat(rustix::fs::CWD, temp.path(), DIR, Mode::empty()).unwrap();
        // 30 levels of 200 bytes: longer than the kernel takes at once.
        let mut path = Vec::new();
        let mut at = open_dir_beneath(root.as_fd(), b"").unwrap();
        for level in 0..30 {
            let name = [b'a' + level; 200];
            mkdirat(&at, &name[..], Mode::RWXU).unwrap();
            path.extend_from_slice(if level == 0 { b"" } else { b"/" });
            path.extend_from_slice(&name);
            at = openat(&at, &name[..], DIR, Mode::empty()).unwrap();
        }
        let found = open_dir_beneath(root.as_fd(), &path).unwrap();
        assert_eq!(fstat(&found).unwrap().st_ino, fstat(&at).unwrap().st_ino);
        let found = open_by_component(root.as_fd(), &path).unwrap();
        assert_eq!(fstat(&found).unwrap().st_ino, fstat(&at).unwrap().st_ino);

        symlinkat("/", &root, "out").unwrap();
        for path in [&b"out"[..], b"out/etc", b"out/"] {
            assert!(open_dir_beneath(root.as_fd(), path).is_err());
        }
        assert!(open_by_component(root.as_fd(), b"out").is_err());
        assert!(open_by_component(root.as_fd(), b"out/etc").is_err());
    }
}
