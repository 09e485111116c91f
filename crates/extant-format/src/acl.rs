//! POSIX access control lists: what ext4 stores, what the kernel hands out, what people read.
//!
//! # Shape
//!
//! Both binary forms are a little-endian version and a list of entries, and differ in both:
//!
//! | form   | where                         | version | entry                                     |
//! |--------|-------------------------------|--------:|-------------------------------------------|
//! | stored | ext4's xattr value            |       1 | tag u16, perm u16; id u32 only for named  |
//! | xattr  | `getxattr`, tar, other images |       2 | tag u16, perm u16, id u32 always          |
//!
//! # Invariants
//!
//! An [`Acl`] obeys the rules of `acl_valid(3)`:
//!
//! - A1. Entries come in the order owner, named users, group, named groups, mask, others.
//! - A2. Owner, group and others occur exactly once, the mask at most once.
//! - A3. There is a mask when there are named users or groups.
//! - A4. Permissions are three bits.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/attributes.rst`, "POSIX ACLs"; `acl(5)`.

use crate::le;
use alloc::vec::Vec;
use core::fmt;

/// `e_version` of the form ext4 stores.
pub const STORED_VERSION: u32 = 1;
/// `a_version` of the form that `getxattr` returns.
pub const XATTR_VERSION: u32 = 2;
/// The id that unnamed entries carry in the `getxattr` form.
const NO_ID: u32 = u32::MAX;

/// Whom an entry is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Who {
    /// The owner of the file.
    Owner,
    /// A user, by id.
    User(u32),
    /// The group of the file.
    OwningGroup,
    /// A group, by id.
    Group(u32),
    /// The upper limit for everyone but the owner and others.
    Mask,
    /// Everyone else.
    Others,
}

impl Who {
    /// The tag on disk: 1, 2, 4, 8, 16, 32.
    #[must_use]
    pub fn tag(self) -> u16 {
        match self {
            Who::Owner => 0x01,
            Who::User(_) => 0x02,
            Who::OwningGroup => 0x04,
            Who::Group(_) => 0x08,
            Who::Mask => 0x10,
            Who::Others => 0x20,
        }
    }

    /// The id, for named users and groups.
    #[must_use]
    pub fn id(self) -> Option<u32> {
        match self {
            Who::User(id) | Who::Group(id) => Some(id),
            Who::Owner | Who::OwningGroup | Who::Mask | Who::Others => None,
        }
    }

    fn from_tag(tag: u16, id: u32) -> Option<Who> {
        match tag {
            0x01 => Some(Who::Owner),
            0x02 => Some(Who::User(id)),
            0x04 => Some(Who::OwningGroup),
            0x08 => Some(Who::Group(id)),
            0x10 => Some(Who::Mask),
            0x20 => Some(Who::Others),
            _ => None,
        }
    }
}

/// One line of a list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AclEntry {
    /// Whom it is about.
    pub who: Who,
    /// Read 4, write 2, execute 1.
    pub perm: u8,
}

/// A list that obeys A1 to A4.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

/// A fault in an access control list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AclFault {
    /// The bytes end within the header or an entry.
    #[error("access control list of {found} bytes ends within an entry")]
    Length {
        /// Bytes given.
        found: usize,
    },
    /// The version is not the one of this form.
    #[error("access control list has version {found}, not {wanted}")]
    Version {
        /// The version found.
        found: u32,
        /// The version of the form asked for.
        wanted: u32,
    },
    /// A tag that does not exist.
    #[error("entry {entry} of the access control list has tag {tag:#x}")]
    Tag {
        /// Which entry, from 0.
        entry: u32,
        /// The tag of the entry.
        tag: u16,
    },
    /// An entry has more than three permission bits (A4).
    #[error("entry {entry} of the access control list has permissions {perm:#o}")]
    Perm {
        /// Which entry, from 0.
        entry: u32,
        /// The permissions of the entry.
        perm: u16,
    },
    /// An entry that may not come after the one before it (A1, A2).
    #[error("entry {entry} of the access control list is out of order or repeated")]
    Order {
        /// Which entry, from 0.
        entry: u32,
    },
    /// No entry for the owner, the group or others (A2).
    #[error("access control list lacks the entry of the owner, the group or others")]
    Incomplete,
    /// Named users or groups and no mask (A3).
    #[error("access control list names users or groups and has no mask")]
    NoMask,
    /// The id -1, which names nobody.
    #[error("entry {entry} of the access control list names id 4294967295")]
    Id {
        /// Which entry, from 0.
        entry: u32,
    },
}

impl Acl {
    /// Checks A1 to A4.
    pub fn new(entries: Vec<AclEntry>) -> Result<Acl, AclFault> {
        // Named users and groups may repeat, everything else moves on.
        let mut before = 0;
        let mut seen = 0u16;
        for (number, entry) in entries.iter().enumerate() {
            let number = le::narrow(number);
            let tag = entry.who.tag();
            let may_repeat = entry.who.id().is_some();
            if tag < before || (tag == before && !may_repeat) {
                return Err(AclFault::Order { entry: number });
            }
            if entry.perm > 7 {
                return Err(AclFault::Perm { entry: number, perm: u16::from(entry.perm) });
            }
            if entry.who.id() == Some(NO_ID) {
                return Err(AclFault::Id { entry: number });
            }
            before = tag;
            seen |= tag;
        }
        if seen & 0x25 != 0x25 {
            return Err(AclFault::Incomplete);
        }
        if seen & 0x0a != 0 && seen & 0x10 == 0 {
            return Err(AclFault::NoMask);
        }
        Ok(Acl { entries })
    }

    /// The list that means the same as the nine permission bits of `mode`.
    #[must_use]
    pub fn from_mode(mode: u16) -> Acl {
        let entry = |who, shift: u32| {
            let bits = mode.checked_shr(shift).unwrap_or(0) & 7;
            AclEntry { who, perm: u8::try_from(bits).unwrap_or(0) }
        };
        let entries =
            [entry(Who::Owner, 6), entry(Who::OwningGroup, 3), entry(Who::Others, 0)].to_vec();
        Acl { entries }
    }

    /// The entries, in order.
    #[must_use]
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// The nine permission bits that a file with this list shows (its mask as the group's), and
    /// whether they say all that the list says, so that the list need not be stored.
    #[must_use]
    pub fn equivalent_mode(&self) -> (u16, bool) {
        let (mut mode, mut mask, mut same) = (0u16, None, true);
        for AclEntry { who, perm } in &self.entries {
            let perm = u16::from(*perm);
            match who {
                Who::Owner => mode |= perm << 6,
                Who::OwningGroup => mode |= perm << 3,
                Who::Others => mode |= perm,
                Who::Mask => mask = Some(perm),
                Who::User(_) | Who::Group(_) => {}
            }
            same &= matches!(who, Who::Owner | Who::OwningGroup | Who::Others);
        }
        if let Some(mask) = mask {
            mode = (mode & !0o070) | (mask << 3);
        }
        (mode, same)
    }

    /// The list of a file that gets other permission bits: owner, group class and others have those
    /// of `mode`. The group class is the mask if there is one, else the owning group.
    #[must_use]
    pub fn with_mode(&self, mode: u16) -> Acl {
        self.change_classes(mode, |_, bits| bits)
    }

    /// The list that a new file with `mode` takes from a default list: owner, group class and
    /// others have what both allow.
    #[must_use]
    pub fn restricted_to(&self, mode: u16) -> Acl {
        self.change_classes(mode, |perm, allowed| perm & allowed)
    }

    /// Changes the entries that correspond to the nine bits of `mode`.
    fn change_classes(&self, mode: u16, change: impl Fn(u8, u8) -> u8) -> Acl {
        let has_mask = self.entries.iter().any(|entry| entry.who == Who::Mask);
        let bits = |shift: u32| {
            let bits = mode.checked_shr(shift).unwrap_or(0) & 7;
            u8::try_from(bits).unwrap_or(0)
        };
        let entries = self.entries.iter().map(|entry| {
            let allowed = match entry.who {
                Who::Owner => Some(bits(6)),
                Who::Mask => Some(bits(3)),
                Who::OwningGroup if !has_mask => Some(bits(3)),
                Who::Others => Some(bits(0)),
                Who::OwningGroup | Who::User(_) | Who::Group(_) => None,
            };
            let perm = allowed.map_or(entry.perm, |allowed| change(entry.perm, allowed));
            AclEntry { perm, ..*entry }
        });
        // Who is named is unchanged, so A1 to A4 hold as before.
        Acl { entries: entries.collect() }
    }

    /// Decodes the form that ext4 stores.
    pub fn decode_stored(bytes: &[u8]) -> Result<Acl, AclFault> {
        Self::decode(bytes, STORED_VERSION, |tag| tag & 0x0a != 0)
    }

    /// Decodes the form that `getxattr` returns. The ids of unnamed entries are not looked at.
    pub fn decode_xattr(bytes: &[u8]) -> Result<Acl, AclFault> {
        Self::decode(bytes, XATTR_VERSION, |_| true)
    }

    fn decode(bytes: &[u8], wanted: u32, has_id: fn(u16) -> bool) -> Result<Acl, AclFault> {
        let short = AclFault::Length { found: bytes.len() };
        let found = le::u32_at(bytes, 0).ok_or(short)?;
        if found != wanted {
            return Err(AclFault::Version { found, wanted });
        }
        let mut rest = bytes.get(4..).unwrap_or(&[]);
        let mut entries = Vec::with_capacity(rest.len() / 4);
        while !rest.is_empty() {
            let entry = le::narrow(entries.len());
            let tag = le::u16_at(rest, 0).ok_or(short)?;
            let perm = le::u16_at(rest, 2).ok_or(short)?;
            let size = if has_id(tag) { 8 } else { 4 };
            let id = if size == 8 { le::u32_at(rest, 4).ok_or(short)? } else { NO_ID };
            let who = Who::from_tag(tag, id).ok_or(AclFault::Tag { entry, tag })?;
            let perm = u8::try_from(perm).map_err(|_| AclFault::Perm { entry, perm })?;
            entries.push(AclEntry { who, perm });
            rest = rest.get(size..).unwrap_or(&[]);
        }
        Acl::new(entries)
    }

    /// The form that ext4 stores.
    #[must_use]
    pub fn encode_stored(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.entries.len().saturating_mul(8).saturating_add(4));
        out.extend_from_slice(&STORED_VERSION.to_le_bytes());
        for entry in &self.entries {
            out.extend_from_slice(&entry.who.tag().to_le_bytes());
            out.extend_from_slice(&u16::from(entry.perm).to_le_bytes());
            if let Some(id) = entry.who.id() {
                out.extend_from_slice(&id.to_le_bytes());
            }
        }
        out
    }

    /// The form that `getxattr` returns.
    #[must_use]
    pub fn encode_xattr(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.entries.len().saturating_mul(8).saturating_add(4));
        out.extend_from_slice(&XATTR_VERSION.to_le_bytes());
        for entry in &self.entries {
            out.extend_from_slice(&entry.who.tag().to_le_bytes());
            out.extend_from_slice(&u16::from(entry.perm).to_le_bytes());
            out.extend_from_slice(&entry.who.id().unwrap_or(NO_ID).to_le_bytes());
        }
        out
    }
}

/// The long text form of `acl(5)` with numeric ids, as `getfacl -ncE` prints it: a line each.
///
/// ```
/// # use extant_format::acl::Acl;
/// assert_eq!(Acl::from_mode(0o640).to_string(), "user::rw-\ngroup::r--\nother::---\n");
/// ```
impl fmt::Display for Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for AclEntry { who, perm } in &self.entries {
            match who {
                Who::Owner => f.write_str("user::")?,
                Who::User(id) => write!(f, "user:{id}:")?,
                Who::OwningGroup => f.write_str("group::")?,
                Who::Group(id) => write!(f, "group:{id}:")?,
                Who::Mask => f.write_str("mask::")?,
                Who::Others => f.write_str("other::")?,
            }
            for (bit, letter) in [(4, "r"), (2, "w"), (1, "x")] {
                f.write_str(if perm & bit == 0 { "-" } else { letter })?;
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
