//! Owners that tools without root write beside a file: `user.rootlesscontainers`.
//!
//! umoci and others, which cannot give files to other users, keep the owner that a file is to have in this attribute: a
//! message of protocol buffers with two numbers.
//!
//! # Source
//!
//! The rootless containers project, `rootlesscontainers.proto`; Protocol Buffers, "Encoding".

/// The name of the attribute.
pub(super) const NAME: &[u8] = b"user.rootlesscontainers";

/// Value that leaves an owner unchanged.
const AS_IT_IS: u64 = u32::MAX as u64;

/// User and group that `value` names; `None` in place of one that stays as it is.
pub(super) fn owner(value: &[u8]) -> Option<(Option<u32>, Option<u32>)> {
    let mut rest = value;
    // A number that is not there is 0.
    let mut ids = [0u64; 2];
    while !rest.is_empty() {
        let key = number(&mut rest)?;
        let id = number(&mut rest)?;
        // Fields 1 and 2, both numbers: there are no others.
        *ids.get_mut(match key {
            0x08 => 0,
            0x10 => 1,
            _ => return None,
        })? = id;
    }
    let id = |id: u64| match id {
        AS_IT_IS => Some(None),
        id => u32::try_from(id).ok().map(Some),
    };
    Some((id(ids[0])?, id(ids[1])?))
}

/// Seven bits in each byte, the lowest first; the highest bit of a byte says that more follow.
fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, tail) = rest.split_first()?;
        *rest = tail;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_read_and_nonsense_is_not() {
        assert_eq!(owner(&[]), Some((Some(0), Some(0))));
        assert_eq!(owner(&[0x08, 0x2a]), Some((Some(42), Some(0))));
        assert_eq!(owner(&[0x08, 0xe8, 0x07, 0x10, 0xac, 0x02]), Some((Some(1000), Some(300))));
        let as_it_is = [0x08, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x10, 0x05];
        assert_eq!(owner(&as_it_is), Some((None, Some(5))));
        for bad in [
            &[0x08][..],
            &[0x18, 1],
            &[0x0a, 1, 1],
            &[0x08, 0xff],
            b"text",
            &[0x08, 0x80, 0x80, 0x80, 0x80, 0x20],
        ] {
            assert_eq!(owner(bad), None, "{bad:?}");
        }
        assert_eq!(
            owner(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            None
        );
    }
}
