//! Access control lists in the form of `system.posix_acl_access`, from and to text.
//!
//! Text: `u::rw-,u:bob:r--,g::r--,g:staff:rw-,m::rwx,o::---`. The bytes: a 32-bit version 2, then
//! for each entry a 16-bit tag, 16-bit permissions and a 32-bit id, little-endian.

use crate::users;

const NO_ID: u32 = u32::MAX;

/// Bytes of a list. `None` if the text is none.
pub(crate) fn encode(text: &str) -> Option<Vec<u8>> {
    let mut out = 2_u32.to_le_bytes().to_vec();
    for entry in text.split(',').filter(|entry| !entry.is_empty()) {
        let mut parts = entry.split(':');
        let (kind, who, perm) = (parts.next()?, parts.next()?, parts.next()?);
        let tag: u16 = match (kind, who.is_empty()) {
            ("u", true) => 1,
            ("u", false) => 2,
            ("g", true) => 4,
            ("g", false) => 8,
            ("m", _) => 0x10,
            ("o", _) => 0x20,
            _ => return None,
        };
        let id = if who.is_empty() { NO_ID } else { users::id(who)? };
        let bit = |c, bit| if perm.contains(c) { bit } else { 0_u16 };
        out.extend(tag.to_le_bytes());
        out.extend((bit('r', 4) | bit('w', 2) | bit('x', 1)).to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    Some(out)
}

/// Text of a list; `None` if the bytes are none.
pub(crate) fn decode(bytes: &[u8]) -> Option<String> {
    let entries = bytes.strip_prefix(&2_u32.to_le_bytes())?;
    let mut out = Vec::new();
    for entry in entries.chunks(8) {
        let half = |at: usize| Some(u16::from_le_bytes(entry.get(at..at + 2)?.try_into().ok()?));
        let (tag, perm) = (half(0)?, half(2)?);
        let id = u32::from_le_bytes(entry.get(4..8)?.try_into().ok()?);
        let kind = match tag {
            1 | 2 => 'u',
            4 | 8 => 'g',
            0x10 => 'm',
            0x20 => 'o',
            _ => '?',
        };
        let who = if id == NO_ID { String::new() } else { users::name_of(id) };
        let bit = |bit, c| if perm & bit != 0 { c } else { '-' };
        out.push(format!("{kind}:{who}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x')));
    }
    Some(out.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let text = "u::rw-,u:bob:r--,g::r--,g:staff:rw-,m::rwx,o::---";
        let bytes = encode(text).unwrap();
        assert_eq!(bytes.len(), 4 + 6 * 8);
        assert_eq!(decode(&bytes).unwrap(), text);
        assert_eq!(encode("x::rwx"), None);
        assert_eq!(decode(b"\x02\0\0\0\x01"), None);
    }
}
