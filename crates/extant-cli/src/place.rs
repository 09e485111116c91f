//! Paths of the host, and `IMG[:/PATH]`: an image, and a path in it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Splits `IMG[:/PATH]`; `exists` tells whether a file of a name exists.
pub(crate) fn split_target(target: &OsStr, exists: impl Fn(&Path) -> bool) -> (PathBuf, Vec<u8>) {
    let bytes = target.as_bytes();
    let whole = || (PathBuf::from(target), b"/".to_vec());
    if exists(Path::new(target)) {
        return whole();
    }
    let colons: Vec<usize> =
        (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b":/")).collect();
    let image_at = |at: usize| PathBuf::from(OsString::from_vec(bytes[..at].to_vec()));
    let cut = colons.iter().rev().find(|at| exists(&image_at(**at))).or(colons.first());
    match cut {
        Some(&at) => (image_at(at), bytes[at + 1..].to_vec()),
        None => whole(),
    }
}

/// What addresses begin with.
const SCHEMES: [&[u8]; 8] = [
    b"nbd://",
    b"nbd+unix://",
    b"nbds://",
    b"nbds+unix://",
    b"http://",
    b"https://",
    b"s3://",
    RBD,
];
/// What addresses of images in a Ceph cluster begin with.
const RBD: &[u8] = b"rbd:";

/// Returns whether a name is the address of an image elsewhere, and no file.
pub(crate) fn is_address(name: &Path) -> bool {
    let name = name.as_os_str().as_bytes();
    SCHEMES.iter().any(|scheme| name.starts_with(scheme))
}

/// Returns whether a name is the address of a file behind a web server, or of an object in a store.
pub(crate) fn is_web_address(name: &Path) -> bool {
    let bytes = name.as_os_str().as_bytes();
    is_object(name) || bytes.starts_with(b"http://") || bytes.starts_with(b"https://")
}

/// Returns whether a name is the address of an object in a store.
pub(crate) fn is_object(name: &Path) -> bool {
    name.as_os_str().as_bytes().starts_with(b"s3://")
}

/// Returns whether a name is the address of an image in a Ceph cluster.
pub(crate) fn is_rbd(name: &Path) -> bool {
    name.as_os_str().as_bytes().starts_with(RBD)
}

/// Returns whether what is at an address is reached over connections that are made at any time, and so not from a
/// sandbox.
pub(crate) fn needs_connections(name: &Path) -> bool {
    is_web_address(name) || is_rbd(name)
}

/// Splits an address and the path behind it: at the first `:/` after the scheme. In an address of a cluster, a backslash
/// takes the meaning from the character behind it, and no option begins with a slash.
fn split_address(target: &OsStr) -> Option<(PathBuf, Vec<u8>)> {
    let bytes = target.as_bytes();
    let scheme = SCHEMES.iter().find(|scheme| bytes.starts_with(scheme))?;
    let rest = bytes.get(scheme.len()..)?;
    let has_backslashes = *scheme == RBD;
    let mut is_plain = true;
    let found = rest.windows(2).position(|pair| {
        let is_end = is_plain && pair == b":/";
        is_plain = !(has_backslashes && is_plain && pair[0] == b'\\');
        is_end
    });
    Some(match found {
        None => (PathBuf::from(target), b"/".to_vec()),
        Some(at) => {
            let (address, path) = bytes.split_at(scheme.len() + at);
            let path = path.get(1..).unwrap_or(b"/").to_vec();
            (PathBuf::from(OsString::from_vec(address.to_vec())), path)
        }
    })
}

/// The image and the path in it that `IMG[:/PATH]` means.
pub(crate) fn split(target: &OsStr) -> (PathBuf, Vec<u8>) {
    if let Some(found) = split_address(target) {
        return found;
    }
    split_target(target, |path| path.exists())
}

/// An image and the path in it, if that is what `target` means: it has `:/` in it, and is not the
/// name of a file of the host as a whole.
pub(crate) fn split_place(target: &OsStr) -> Option<(PathBuf, Vec<u8>)> {
    let has_path = target.as_bytes().windows(2).any(|pair| pair == b":/");
    (has_path && Path::new(target).symlink_metadata().is_err()).then(|| split(target))
}

/// `path` from the root of the host, without asking what is there.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_behind_an_address_begins_after_it() {
        let split = |target: &str| {
            let (image, path) = split(OsStr::new(target));
            (image.display().to_string(), String::from_utf8(path).unwrap())
        };
        let pair = |image: &str, path: &str| (image.to_owned(), path.to_owned());
        assert_eq!(split("nbd://a/b"), pair("nbd://a/b", "/"));
        assert_eq!(split("nbd://a:1/b:/etc"), pair("nbd://a:1/b", "/etc"));
        assert_eq!(split("nbd://a:/etc"), pair("nbd://a", "/etc"));
        assert_eq!(
            split("nbd+unix:///x?socket=/s:/e:/f"),
            pair("nbd+unix:///x?socket=/s", "/e:/f")
        );
        assert_eq!(
            split("nbds://a:1/b?tls-certificates=/c:/etc"),
            pair("nbds://a:1/b?tls-certificates=/c", "/etc")
        );
        assert_eq!(split("nbds+unix:///?socket=s:/e"), pair("nbds+unix:///?socket=s", "/e"));
        assert_eq!(split("http://a:81/b.img:/etc"), pair("http://a:81/b.img", "/etc"));
        assert_eq!(split("rbd:p/i"), pair("rbd:p/i", "/"));
        assert_eq!(split("rbd:p/n/i@s:/etc:/x"), pair("rbd:p/n/i@s", "/etc:/x"));
        assert_eq!(split("rbd:p/i:conf=/etc/c:/etc"), pair("rbd:p/i:conf=/etc/c", "/etc"));
        assert_eq!(split("rbd:p/i:a=b\\:/c:/etc"), pair("rbd:p/i:a=b\\:/c", "/etc"));
        assert_eq!(split("rbd:p/i\\\\:/etc"), pair("rbd:p/i\\\\", "/etc"));
        assert_eq!(split("s3://a/b c.img:/etc"), pair("s3://a/b c.img", "/etc"));
        assert_eq!(split("https://u:p@a/b?c=d:/e:/f"), pair("https://u:p@a/b?c=d", "/e:/f"));
    }

    #[test]
    fn the_longest_name_that_exists_is_the_image() {
        let split = |target: &str, existing: &[&str]| {
            let exists = |path: &Path| existing.iter().any(|name| Path::new(name) == path);
            let (image, path) = split_target(OsStr::new(target), exists);
            (image.display().to_string(), String::from_utf8(path).unwrap())
        };
        let pair = |image: &str, path: &str| (image.to_owned(), path.to_owned());
        assert_eq!(split("a.img", &["a.img"]), pair("a.img", "/"));
        assert_eq!(split("a.img:/etc", &["a.img"]), pair("a.img", "/etc"));
        assert_eq!(split("a.img:/etc", &["a.img", "a.img:/etc"]), pair("a.img:/etc", "/"));
        assert_eq!(split("a:b.img:/x", &["a", "a:b.img"]), pair("a:b.img", "/x"));
        assert_eq!(split("a.img:/b:/c", &["a.img"]), pair("a.img", "/b:/c"));
        assert_eq!(split("d:/a.img:/b", &["d", "d:/a.img"]), pair("d:/a.img", "/b"));
        // Nothing exists: the message names what was probably meant.
        assert_eq!(split("a.img:/b:/c", &[]), pair("a.img", "/b:/c"));
        assert_eq!(split("a.img:b", &[]), pair("a.img:b", "/"));
    }
}
