//! POSIX ACLs from the text in extended headers to what the kernel's xattr calls exchange.
//!
//! # Source
//!
//! acl(5), "ACL TEXT FORMS", with star's fourth field for numeric ids; the binary form is
//! Linux `include/uapi/linux/posix_acl_xattr.h`: a 32-bit version, then per entry a 16-bit tag,
//! 16-bit permissions and a 32-bit id, little-endian.

const VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// One entry: tag, id, permissions; in the order the kernel wants.
type Entry = (u16, u32, u16);

/// The binary form of `text`; `None` for an ACL that says no more than mode bits do, which the
/// kernel does not store either.
///
/// # Errors
///
/// What cannot be understood: a name without a number, above all. Names would mean the accounts
/// of the machine that builds, not of the image.
pub(super) fn to_kernel(text: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let mut entries: Vec<Entry> = Vec::new();
    for item in text.split(|b| matches!(b, b',' | b'\n')) {
        let item = item.split(|&b| b == b'#').next().unwrap_or_default().trim_ascii();
        if !item.is_empty() {
            entries.push(entry(item)?);
        }
    }
    entries.sort_unstable();
    let shown = || text.escape_ascii().to_string();
    if let Some([one, _]) =
        entries.array_windows::<2>().find(|[one, next]| (one.0, one.1) == (next.0, next.1))
    {
        return Err(format!("access list \"{}\" has tag {:#x} twice", shown(), one.0));
    }
    let has = |tag| entries.iter().any(|entry| entry.0 == tag);
    if entries.is_empty() {
        return Ok(None);
    }
    if ![USER_OBJ, GROUP_OBJ, OTHER].into_iter().all(has) {
        return Err(format!("access list \"{}\" lacks owner, group or others", shown()));
    }
    if (has(USER) || has(GROUP)) && !has(MASK) {
        return Err(format!("access list \"{}\" has named entries but no mask", shown()));
    }
    if entries.len() == 3 {
        return Ok(None);
    }
    let mut out = VERSION.to_le_bytes().to_vec();
    for (tag, id, permissions) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&permissions.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    Ok(Some(out))
}

fn entry(item: &[u8]) -> Result<Entry, String> {
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
    let mut bits = 0;
    for letter in permissions.chars() {
        bits |= match letter {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            '-' => 0,
            _ => return Err(bad()),
        };
    }
    let (named, own) = match kind {
        "user" | "u" => (USER, USER_OBJ),
        "group" | "g" => (GROUP, GROUP_OBJ),
        "mask" | "m" if who.is_empty() => return Ok((MASK, NO_ID, bits)),
        "other" | "o" if who.is_empty() => return Ok((OTHER, NO_ID, bits)),
        _ => return Err(bad()),
    };
    if who.is_empty() {
        return Ok((own, NO_ID, bits));
    }
    let id = number.unwrap_or(who);
    match id.parse::<u32>() {
        Ok(id) if id != NO_ID => Ok((named, id, bits)),
        _ => Err(format!(
            "access list entry \"{item_text}\" names an account without its number; \
             make the archive with --numeric-owner"
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
