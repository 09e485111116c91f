//! Extended headers: `LENGTH KEY=VALUE\n` records.
//!
//! # Source
//!
//! POSIX.1-2017 `pax`, "pax Extended Header"; GNU tar manual, "Storing Sparse Files"; the
//! `SCHILY.*` keys of star(5), the `LIBARCHIVE.*` and `RHT.*` keys of libarchive's tar(5).
//!
//! Keys that say nothing an image can hold (`comment`, `uname`, `SCHILY.ino` …) are
//! passed over, as the format asks of readers that do not know a key.

use std::collections::BTreeSet;

use extant_format::inode::InodeFlags;

use super::header::SparseRun;
use crate::source::{is_kept_xattr, lost_xattr};
use crate::tree::{Time, XattrSet};

/// Values of extended headers for the next member, or (some of them) for all later ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Pax {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<i64>,
    pub(super) gid: Option<i64>,
    pub(super) mtime: Option<Time>,
    pub(super) atime: Option<Time>,
    pub(super) ctime: Option<Time>,
    pub(super) device_major: Option<i64>,
    pub(super) device_minor: Option<i64>,
    /// May name an attribute twice; the last one counts.
    pub(super) xattrs: XattrSet,
    pub(super) acl_access: Option<Vec<u8>>,
    pub(super) acl_default: Option<Vec<u8>>,
    /// Flags of the inode.
    pub(super) flags: u32,
    /// Names of attributes that an image cannot have.
    pub(super) lost: Vec<Box<str>>,
    pub(super) sparse: SparsePax,
}

/// Values for sparse files: GNU's formats 0.0, 0.1 and 1.0.
#[derive(Clone, Debug, Default)]
pub(super) struct SparsePax {
    pub(super) major: Option<u64>,
    pub(super) minor: Option<u64>,
    pub(super) name: Option<Vec<u8>>,
    /// Size of the whole file.
    pub(super) size: Option<u64>,
    /// Formats 0.0 and 0.1 only; 1.0 has it in front of the data.
    pub(super) map: Option<Vec<SparseRun>>,
    /// Format 0.0: an offset whose length is still to come.
    offset: Option<u64>,
}

impl Pax {
    /// Adds the records of one header of the given kind.
    ///
    /// # Errors
    ///
    /// What is wrong with which record.
    pub(super) fn add(&mut self, mut bytes: &[u8], global: bool) -> Result<(), String> {
        // libarchive writes an attribute under two keys, and escapes both names in its own way.
        let (mut star, mut libarchive) = (Vec::new(), BTreeSet::new());
        // A writer may pad the records with NULs to a whole block.
        while !bytes.is_empty() && bytes.iter().any(|&b| b != 0) {
            let (key, value, rest) = split_record(bytes)?;
            let allowed = !global || is_harmless_for_all(key);
            if !allowed {
                return Err(format!(
                    "a global extended header sets \"{}\" for all members",
                    key.escape_ascii()
                ));
            }
            if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                star.push((name, value));
            } else {
                libarchive.extend(key.strip_prefix(b"LIBARCHIVE.xattr."));
                self.set(key, value).ok_or_else(|| {
                    let value = value.get(..value.len().min(80)).unwrap_or_default();
                    let (key, value) = (key.escape_ascii(), value.escape_ascii());
                    format!("extended header \"{key}\" cannot be \"{value}\"")
                })?;
            }
            bytes = rest;
        }
        for (name, value) in star.into_iter().filter(|(name, _)| !libarchive.contains(name)) {
            self.add_xattr(&without_escapes(name), value);
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            self.add_xattr(&percent_decode(name)?, &base64_decode(value)?);
            return Some(());
        }
        // An empty value cancels that of an earlier record.
        let text = if value.is_empty() { None } else { Some(value.to_vec()) };
        match key {
            b"path" => self.path = text,
            b"linkpath" => self.link = text,
            b"size" => set(&mut self.size, value, decimal)?,
            b"uid" => set(&mut self.uid, value, signed)?,
            b"gid" => set(&mut self.gid, value, signed)?,
            b"mtime" => set(&mut self.mtime, value, time)?,
            b"atime" => set(&mut self.atime, value, time)?,
            b"ctime" => set(&mut self.ctime, value, time)?,
            b"SCHILY.devmajor" => set(&mut self.device_major, value, signed)?,
            b"SCHILY.devminor" => set(&mut self.device_minor, value, signed)?,
            b"SCHILY.acl.access" => self.acl_access = text,
            b"SCHILY.acl.default" => self.acl_default = text,
            b"SCHILY.fflags" => self.set_flags(value),
            b"RHT.security.selinux" => {
                // The kernel keeps the label with its NUL, the archive without.
                let mut label = value.to_vec();
                if label.last() != Some(&0) {
                    label.push(0);
                }
                self.add_xattr(b"security.selinux", &label);
            }
            b"GNU.sparse.major" => self.sparse.major = Some(decimal(value)?),
            b"GNU.sparse.minor" => self.sparse.minor = Some(decimal(value)?),
            b"GNU.sparse.name" => self.sparse.name = text,
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => {
                self.sparse.size = Some(decimal(value)?);
            }
            b"GNU.sparse.map" => self.sparse.map = Some(sparse_map(value)?),
            b"GNU.sparse.numblocks" => {
                self.sparse.map.get_or_insert_default();
            }
            b"GNU.sparse.offset" => {
                // Two offsets in a row: the length of the first is missing.
                let waiting = self.sparse.offset.replace(decimal(value)?);
                if waiting.is_some() {
                    return None;
                }
            }
            b"GNU.sparse.numbytes" => {
                let offset = self.sparse.offset.take()?;
                self.sparse.map.get_or_insert_default().push((offset, decimal(value)?));
            }
            _ => {}
        }
        Some(())
    }

    fn add_xattr(&mut self, name: &[u8], value: &[u8]) {
        if is_kept_xattr(name) && name.len() <= 255 && !name.contains(&0) {
            self.xattrs.push((name.into(), value.into()));
        } else {
            self.lost.push(lost_xattr(name.get(..name.len().min(255)).unwrap_or_default()));
        }
    }

    /// Sets the flags to those in a list of names, of which the empty one takes them back.
    fn set_flags(&mut self, list: &[u8]) {
        self.flags = 0;
        for name in list.split(|byte| matches!(byte, b',' | b' ')).filter(|name| !name.is_empty()) {
            match flag_of(name) {
                Some(flag) => self.flags |= flag.bits(),
                None => {
                    let name = name.get(..name.len().min(40)).unwrap_or_default();
                    self.lost.push(format!("flag {} of an archive", name.escape_ascii()).into());
                }
            }
        }
    }
}

/// The flag that star and libarchive call `name`. Their flags of BSD and macOS (`uchg`, `opaque`) are none of Linux.
fn flag_of(name: &[u8]) -> Option<InodeFlags> {
    Some(match name {
        b"sappnd" | b"sappend" => InodeFlags::APPEND,
        b"schg" | b"schange" | b"simmutable" => InodeFlags::IMMUTABLE,
        b"nodump" => InodeFlags::NODUMP,
        b"undel" => InodeFlags::UNRM,
        b"compress" => InodeFlags::COMPR,
        b"noatime" => InodeFlags::NOATIME,
        b"dirsync" => InodeFlags::DIRSYNC,
        b"journal-data" | b"journal" => InodeFlags::JOURNAL_DATA,
        b"secdel" | b"securedeletion" => InodeFlags::SECRM,
        b"sync" => InodeFlags::SYNC,
        b"notail" => InodeFlags::NOTAIL,
        b"topdir" => InodeFlags::TOPDIR,
        b"nocow" => InodeFlags::from_bits_retain(0x80_0000),
        b"projinherit" => InodeFlags::PROJINHERIT,
        _ => return None,
    })
}

/// Keys that make sense for every member, or that are passed over anyway.
fn is_harmless_for_all(key: &[u8]) -> bool {
    let about_one = matches!(key, b"path" | b"linkpath" | b"size" | b"SCHILY.fflags")
        || [&b"GNU.sparse."[..], b"SCHILY.xattr.", b"LIBARCHIVE.xattr.", b"SCHILY.acl."]
            .iter()
            .any(|prefix| key.starts_with(prefix))
        || key == b"RHT.security.selinux";
    !about_one
}

/// A name of an attribute behind `SCHILY.xattr.`, where a key cannot have `=`: GNU tar writes it
/// as `%3D`, and `%` as `%25`. Nothing else is an escape, so names that others wrote as they are stay.
fn without_escapes(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, behind)) = rest.split_first() {
        let (byte, behind) = match rest {
            [b'%', b'3', b'D', behind @ ..] => (b'=', behind),
            [b'%', b'2', b'5', behind @ ..] => (b'%', behind),
            _ => (byte, behind),
        };
        out.push(byte);
        rest = behind;
    }
    out
}

/// Key, value, and what follows them.
type Split<'a> = (&'a [u8], &'a [u8], &'a [u8]);

/// Takes the first record off.
fn split_record(bytes: &[u8]) -> Result<Split<'_>, String> {
    let bad = || {
        let start = bytes.get(..bytes.len().min(40)).unwrap_or_default();
        format!("a damaged extended header record: \"{}\"", start.escape_ascii())
    };
    let blank = bytes.iter().take(21).position(|&b| b == b' ').ok_or_else(bad)?;
    let len = decimal(bytes.get(..blank).unwrap_or_default())
        .and_then(|len| usize::try_from(len).ok())
        .ok_or_else(bad)?;
    let record = bytes.get(blank + 1..len).and_then(|r| r.strip_suffix(b"\n")).ok_or_else(bad)?;
    let equals = record.iter().position(|&b| b == b'=').filter(|&at| at > 0).ok_or_else(bad)?;
    let (key, value) = record.split_at(equals);
    Ok((key, value.get(1..).unwrap_or_default(), bytes.get(len..).unwrap_or_default()))
}

/// Sets a field to what a value says; an empty value takes it back. `None` for a value that says nothing.
fn set<T>(field: &mut Option<T>, value: &[u8], parse: fn(&[u8]) -> Option<T>) -> Option<()> {
    *field = if value.is_empty() { None } else { Some(parse(value)?) };
    Some(())
}

/// An unsigned decimal number of at least one digit.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

fn signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(digits) => decimal(digits).and_then(|value| 0i64.checked_sub_unsigned(value)),
        None => decimal(text).and_then(|value| i64::try_from(value).ok()),
    }
}

/// Seconds with a fraction; digits past nanoseconds are cut off towards the past.
fn time(text: &[u8]) -> Option<Time> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut parts = text.splitn(2, |&b| b == b'.');
    let sec = i64::try_from(decimal(parts.next()?)?).ok()?;
    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nsec = digits.fold(0u32, |value, digit| value * 10 + u32::from(digit - b'0'));
    let lost = fraction.iter().skip(9).any(|&b| b != b'0');
    if !negative {
        return Some(Time { sec, nsec });
    }
    // -1.25 is 0.75 seconds after -2.
    let nsec = nsec + u32::from(lost);
    Some(if nsec == 0 {
        Time { sec: -sec, nsec }
    } else {
        Time { sec: -sec - 1, nsec: 1_000_000_000 - nsec }
    })
}

fn sparse_map(text: &[u8]) -> Option<Vec<SparseRun>> {
    let numbers: Option<Vec<u64>> = text.split(|&b| b == b',').map(decimal).collect();
    let (pairs, rest) = numbers.as_deref()?.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|&[offset, len]| (offset, len)).collect())
}

fn percent_decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(&byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(*rest.next()?).to_digit(16);
            let (high, low) = (digit()?, digit()?);
            out.push((high * 16 + low) as u8);
        } else {
            out.push(byte);
        }
    }
    Some(out)
}

/// The usual alphabet; padding may be missing.
fn base64_decode(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let mut bits = 0u32;
        for &byte in group {
            let value = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        let bytes = (bits << (6 * (4 - group.len()))).to_be_bytes();
        let count = [0, 0, 1, 2, 3].get(group.len()).copied().filter(|&n| n > 0)?;
        out.extend_from_slice(bytes.get(1..1 + count)?);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(key: &str, value: &str) -> Vec<u8> {
        let body = key.len() + value.len() + 3;
        let len = (1..=20).map(|n| body + n).find(|len| len.to_string().len() + body == *len);
        format!("{} {key}={value}\n", len.unwrap()).into_bytes()
    }

    #[test]
    fn times_around_zero() {
        for (text, sec, nsec) in [
            ("0", 0, 0),
            ("1.5", 1, 500_000_000),
            ("1.0000000019", 1, 1),
            ("-1", -1, 0),
            ("-1.25", -2, 750_000_000),
            ("-0.0000000001", -1, 999_999_999),
            ("12345678901.123456789", 12345678901, 123_456_789),
        ] {
            assert_eq!(time(text.as_bytes()), Some(Time { sec, nsec }), "{text}");
        }
        for text in ["", ".5", "-", "1.x", "1e3", "99999999999999999999"] {
            assert_eq!(time(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn records_are_taken_apart_or_refused() {
        let mut pax = Pax::default();
        let mut bytes = record("path", "a=b\nc");
        bytes.extend(record("SCHILY.xattr.user.x", "v\0w"));
        bytes.extend(record("LIBARCHIVE.xattr.user.%79", "AQID/w"));
        bytes.extend(record("GNU.sparse.map", "0,1,4096,5"));
        bytes.extend([0; 20]);
        pax.add(&bytes, false).unwrap();
        assert_eq!(pax.path.as_deref(), Some(&b"a=b\nc"[..]));
        let xattrs: Vec<_> = pax.xattrs.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(xattrs, [(&b"user.y"[..], &[1, 2, 3, 255][..]), (b"user.x", b"v\0w")]);
        assert_eq!(pax.sparse.map, Some(vec![(0, 1), (4096, 5)]));
        pax.add(&record("path", ""), false).unwrap();
        assert_eq!(pax.path, None);

        for bad in ["", "5 a=\n6", "4 a\n", "9 a=b\n", "99999999999999999999999 a=b\n", "x", "0 a"]
        {
            let result = Pax::default().add(bad.as_bytes(), false);
            assert_eq!(result.is_ok(), bad.is_empty(), "{bad:?}");
        }
        for (key, value) in [("size", "-1"), ("uid", "x"), ("GNU.sparse.map", "1,2,3")] {
            let error = Pax::default().add(&record(key, value), false).unwrap_err();
            assert!(error.contains(key) && error.contains(value), "{error}");
        }
        assert!(Pax::default().add(&record("path", "x"), true).is_err());
        Pax::default().add(&record("comment", "x"), true).unwrap();
    }

    #[test]
    fn names_of_attributes_are_those_that_the_writer_meant() {
        for (records, name) in [
            // GNU tar; star, Go and Python, which write names as they are; libarchive.
            (&[("SCHILY.xattr.user.a%3Db%253D%25c", "v")][..], "user.a=b%3D%c"),
            (&[("SCHILY.xattr.user.%41 %2", "v")], "user.%41 %2"),
            (
                &[("LIBARCHIVE.xattr.user.a%20b", "dg"), ("SCHILY.xattr.user.a%20b", "v")],
                "user.a b",
            ),
            (
                &[("SCHILY.xattr.user.%C3%A9", "v"), ("LIBARCHIVE.xattr.user.%C3%A9", "dg")],
                "user.\u{e9}",
            ),
        ] {
            let mut pax = Pax::default();
            let bytes: Vec<u8> = records.iter().flat_map(|(k, v)| record(k, v)).collect();
            pax.add(&bytes, false).unwrap();
            let found: Vec<_> =
                pax.xattrs.iter().map(|(name, value)| (&**name, &**value)).collect();
            assert_eq!(found, [(name.as_bytes(), &b"v"[..])], "{records:?}");
        }
    }

    proptest! {
        #[test]
        fn no_records_make_it_panic(bytes in "[0-9]{1,3} [a-zA-Z.]{0,30}=[ -~]{0,40}\n{0,2}") {
            let _ = Pax::default().add(bytes.as_bytes(), false);
            let _ = (base64_decode(bytes.as_bytes()), percent_decode(bytes.as_bytes()));
        }
    }
}
