//! POSIX ACLs from the text in extended headers to what the kernel's xattr calls exchange.
//!
//! # Source
//!
//! acl(5), "ACL TEXT FORMS", with star's fourth field for numeric ids.

use extant_format::acl::{Acl, AclEntry, Who};

/// The binary form of `text`; `None` for an ACL that says no more than mode bits do, which the
/// kernel does not store either.
///
/// # Errors
///
/// What cannot be understood: a name without a number, above all. Names would mean the accounts
/// of the machine that builds, not of the image.
pub(super) fn to_kernel(text: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let mut entries: Vec<AclEntry> = Vec::new();
    for item in text.split(|b| matches!(b, b',' | b'\n')) {
        let item = item.split(|&b| b == b'#').next().unwrap_or_default().trim_ascii();
        if !item.is_empty() {
            entries.push(entry(item)?);
        }
    }
    if entries.is_empty() {
        return Ok(None);
    }
    entries.sort_unstable_by_key(|entry| (entry.who.tag(), entry.who.id()));
    let refuse =
        |why: &dyn std::fmt::Display| format!("access list \"{}\": {why}", text.escape_ascii());
    if let Some([one, _]) = entries.array_windows().find(|[one, next]| one.who == next.who) {
        return Err(refuse(&format!("tag {:#x} twice", one.who.tag())));
    }
    let acl = Acl::new(entries).map_err(|fault| refuse(&fault))?;
    let (_, says_no_more) = acl.equivalent_mode();
    Ok((!says_no_more).then(|| acl.encode_xattr()))
}

fn entry(item: &[u8]) -> Result<AclEntry, String> {
    let bad = || format!("access list entry \"{}\" cannot be understood", item.escape_ascii());
    let item_text = std::str::from_utf8(item).map_err(|_| bad())?;
    let item_text = item_text.strip_prefix("default:").unwrap_or(item_text);
    let mut fields = item_text.split(':').map(str::trim);
    let kind = fields.next().unwrap_or_default();
    let second = fields.next().ok_or_else(bad)?;
    // `mask` and `other` may be written with one colon.
    let (who, permissions) = match fields.next() {
        Some(third) => (second, third),
        None if matches!(kind, "mask" | "m" | "other" | "o") => ("", second),
        None => return Err(bad()),
    };
    let number = fields.next();
    if fields.next().is_some() {
        return Err(bad());
    }
    let mut perm = 0u8;
    for letter in permissions.chars() {
        perm |= match letter {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            '-' => 0,
            _ => return Err(bad()),
        };
    }
    let (named, own): (fn(u32) -> Who, Who) = match kind {
        "user" | "u" => (Who::User, Who::Owner),
        "group" | "g" => (Who::Group, Who::OwningGroup),
        "mask" | "m" if who.is_empty() => return Ok(AclEntry { who: Who::Mask, perm }),
        "other" | "o" if who.is_empty() => return Ok(AclEntry { who: Who::Others, perm }),
        _ => return Err(bad()),
    };
    if who.is_empty() {
        return Ok(AclEntry { who: own, perm });
    }
    let id = number.unwrap_or(who);
    match id.parse::<u32>() {
        Ok(id) if id != u32::MAX => Ok(AclEntry { who: named(id), perm }),
        _ => Err(format!(
            "access list entry \"{item_text}\" names an account without its number; \
             make the archive with --xattrs, which keeps numbers"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_of_writing_one_list() {
        let wanted: Vec<u8> = [
            &[2, 0, 0, 0][..],
            &[1, 0, 6, 0, 255, 255, 255, 255],
            &[2, 0, 4, 0, 0xd2, 4, 0, 0],
            &[4, 0, 4, 0, 255, 255, 255, 255],
            &[8, 0, 7, 0, 5, 0, 0, 0],
            &[16, 0, 7, 0, 255, 255, 255, 255],
            &[32, 0, 0, 0, 255, 255, 255, 255],
        ]
        .concat();
        for text in [
            "user::rw-,user:1234:r--,group::r--,group:5:rwx,mask::rwx,other::---",
            "other::---\nmask::rwx\ngroup:x:rwx:5\nuser::rw-\nuser:joe:r--:1234\ngroup::r--\n",
            "u::rw,u:1234:r,g::r,g:5:rwx,m:rwx,o:- # a comment",
        ] {
            assert_eq!(to_kernel(text.as_bytes()).unwrap().as_ref(), Some(&wanted), "{text}");
        }
    }

    #[test]
    fn lists_that_add_nothing_or_make_no_sense() {
        assert_eq!(to_kernel(b"user::rw-,group::r--,other::r--"), Ok(None));
        assert_eq!(to_kernel(b""), Ok(None));
        for text in [
            "user::rw-,group::r--",
            "user::rw-,user:7:r--,group::r--,other::r--",
            "user::rw-,user::r--,group::r--,other::r--",
            "user::rwq,group::r--,other::r--",
            "user:joe:rw-,user::rw-,group::r--,mask::rw-,other::r--",
            "user:4294967295:r--,user::rw-,group::r--,mask::rw-,other::r--",
            "owner@:rwx::allow",
            "mask:5:rwx",
            "user",
        ] {
            assert!(to_kernel(text.as_bytes()).is_err(), "{text}");
        }
    }
}
