//! Names: a number for the prefix, and the rest.

use alloc::vec::Vec;

/// `e_name_index`: what stands before the stored name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NameIndex(pub u8);

impl NameIndex {
    /// No prefix.
    pub const NONE: NameIndex = NameIndex(0);
    /// `user.`
    pub const USER: NameIndex = NameIndex(1);
    /// `system.posix_acl_access`, the whole name.
    pub const ACL_ACCESS: NameIndex = NameIndex(2);
    /// `system.posix_acl_default`, the whole name.
    pub const ACL_DEFAULT: NameIndex = NameIndex(3);
    /// `trusted.`
    pub const TRUSTED: NameIndex = NameIndex(4);
    /// Lustre; no name in the attribute name space of the kernel.
    pub const LUSTRE: NameIndex = NameIndex(5);
    /// `security.`
    pub const SECURITY: NameIndex = NameIndex(6);
    /// `system.`; only `system.data`, the rest of inline data.
    pub const SYSTEM: NameIndex = NameIndex(7);
    /// `system.richacl`, the whole name.
    pub const RICHACL: NameIndex = NameIndex(8);
    /// The encryption context, stored under the name `c`; never shown to programs.
    pub const ENCRYPTION: NameIndex = NameIndex(9);
    /// `gnu.`, of the Hurd.
    pub const HURD: NameIndex = NameIndex(10);

    /// The prefix, and whether it is the whole name. `None` for indexes that have no name: what is
    /// stored there cannot be named by programs.
    #[must_use]
    pub fn prefix(self) -> Option<(&'static str, bool)> {
        match self {
            Self::NONE => Some(("", false)),
            Self::USER => Some(("user.", false)),
            Self::ACL_ACCESS => Some(("system.posix_acl_access", true)),
            Self::ACL_DEFAULT => Some(("system.posix_acl_default", true)),
            Self::TRUSTED => Some(("trusted.", false)),
            Self::SECURITY => Some(("security.", false)),
            Self::SYSTEM => Some(("system.", false)),
            Self::RICHACL => Some(("system.richacl", true)),
            Self::HURD => Some(("gnu.", false)),
            _ => None,
        }
    }
}

/// Splits a full name: `user.mime` becomes (`USER`, `mime`). `None` for a name with no prefix that
/// ext4 knows, and for a prefix with nothing behind it.
///
/// ```
/// use extant_format::xattr::{NameIndex, split};
/// assert_eq!(split(b"security.capability"), Some((NameIndex::SECURITY, b"capability".as_slice())));
/// assert_eq!(split(b"system.posix_acl_access"), Some((NameIndex::ACL_ACCESS, b"".as_slice())));
/// assert_eq!(split(b"user."), None);
/// assert_eq!(split(b"osx.x"), None);
/// ```
#[must_use]
pub fn split(full: &[u8]) -> Option<(NameIndex, &[u8])> {
    // Whole names first: `system.` would match them too.
    let order = [
        NameIndex::ACL_ACCESS,
        NameIndex::ACL_DEFAULT,
        NameIndex::RICHACL,
        NameIndex::USER,
        NameIndex::TRUSTED,
        NameIndex::SECURITY,
        NameIndex::SYSTEM,
        NameIndex::HURD,
    ];
    order.into_iter().find_map(|index| {
        let (prefix, whole) = index.prefix()?;
        let rest = full.strip_prefix(prefix.as_bytes())?;
        (whole == rest.is_empty()).then_some((index, rest))
    })
}

/// The full name; `None` for an index that has none.
#[must_use]
pub fn join(index: NameIndex, name: &[u8]) -> Option<Vec<u8>> {
    let (prefix, _) = index.prefix()?;
    let mut full = Vec::with_capacity(prefix.len().saturating_add(name.len()));
    full.extend_from_slice(prefix.as_bytes());
    full.extend_from_slice(name);
    Some(full)
}
