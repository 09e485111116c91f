//! Access control lists: their inheritance by new inodes, and keeping lists and permission bits
//! consistent.
//!
//! # Source
//!
//! `acl(5)`, "Object creation and default ACLs" and "Correspondence between ACL entries and file
//! permission bits".

use std::sync::Arc;

use extant_format::acl::{Acl, AclEntry, Who};
use extant_format::inode::{FileKind, Inode as Record};
use extant_format::xattr::NameIndex;

use super::edit::put;
use super::{AclKind, XattrMode};
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::node::Node;
use crate::txn::Txn;
use crate::view::View;

/// Access control lists that a new inode inherits from its directory.
#[derive(Default)]
pub(crate) struct Inherited {
    access: Option<Acl>,
    default: Option<Acl>,
}

impl Inherited {
    /// Stores the lists in the new inode.
    ///
    /// # Errors
    ///
    /// Space and quota. The inode may have one of the two lists then: the caller deletes it.
    pub(crate) fn store(&self, txn: &mut Txn<'_>, fs: &Fs, node: &Arc<Node>) -> Result<()> {
        for (kind, acl) in [(AclKind::Default, &self.default), (AclKind::Access, &self.access)] {
            if let Some(acl) = acl {
                put_acl(txn, fs, node, kind, Some(acl))?;
            }
        }
        Ok(())
    }
}

/// Returns the lists that a new inode of `kind` in `dir` inherits; changes the mode in `record`
/// accordingly. The caller holds the content lock of `dir`.
///
/// Every inode but a symbolic link gets the default list as its access list, restricted to the
/// mode, and a directory also as its own default list (P82).
///
/// # Errors
///
/// Damage of the directory's attributes.
pub(crate) fn inherited(dir: &View<'_>, kind: FileKind, record: &mut Record) -> Result<Inherited> {
    if kind == FileKind::Symlink {
        return Ok(Inherited::default());
    }
    let Some(parent) = dir.stored_acl(AclKind::Default)? else {
        return Ok(Inherited::default());
    };
    let access = restrict(&parent, record.mode);
    let (bits, is_minimal) = access.equivalent_mode();
    record.mode = (record.mode & !0o777) | bits;
    Ok(Inherited {
        access: (!is_minimal).then_some(access),
        default: (kind == FileKind::Directory).then_some(parent),
    })
}

/// Returns the list with owner, group class and others each restricted to the bits of `mode`. The
/// group class is the mask if there is one, else the owning group.
fn restrict(acl: &Acl, mode: u16) -> Acl {
    change_classes(acl, |perm, allowed| perm & allowed, mode)
}

/// Changes the entries that correspond to the nine bits of `mode`.
fn change_classes(acl: &Acl, change: impl Fn(u8, u8) -> u8, mode: u16) -> Acl {
    let has_mask = acl.entries().iter().any(|entry| entry.who == Who::Mask);
    let bits = |shift: u32| ((mode >> shift) & 7) as u8;
    let entries = acl.entries().iter().map(|entry| {
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
    // The set of users and groups is unchanged, so the list stays valid.
    Acl::new(entries.collect()).unwrap_or_else(|_| acl.clone())
}

/// Updates the access list, if there is one, to new permission bits.
///
/// # Errors
///
/// Space and quota, when the list has to move; damage. Nothing has changed then.
pub(crate) fn chmod_acl(txn: &mut Txn<'_>, fs: &Fs, node: &Arc<Node>, mode: u16) -> Result<()> {
    let Some(acl) = fs.view(node).stored_acl(AclKind::Access)? else { return Ok(()) };
    let changed = change_classes(&acl, |_, bits| bits, mode);
    put_acl(txn, fs, node, AclKind::Access, Some(&changed))
}

/// Sets or removes a list. An access list sets the permission bits, and is not stored when it is
/// equivalent to them.
///
/// # Errors
///
/// [`FsError::NotPermitted`] for symbolic links, and for default lists of anything but a directory;
/// space, quota, damage. Nothing has changed then.
pub(crate) fn set_acl(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    kind: AclKind,
    acl: Option<&Acl>,
) -> Result<()> {
    let (ino, file_kind) = (node.ino(), node.with(|data| data.kind));
    if file_kind == FileKind::Symlink {
        let what = "symbolic links have no access control lists";
        return Err(FsError::NotPermitted { ino, what });
    }
    if kind == AclKind::Default {
        if acl.is_some() && file_kind != FileKind::Directory {
            let what = "only directories have default access control lists";
            return Err(FsError::NotPermitted { ino, what });
        }
        return put_acl(txn, fs, node, kind, acl);
    }
    let mode = acl.map(Acl::equivalent_mode);
    let stored = acl.filter(|_| mode.is_some_and(|(_, is_minimal)| !is_minimal));
    put_acl(txn, fs, node, kind, stored)?;
    if let Some((bits, _)) = mode {
        let update = txn.update(node, |data| {
            data.record.mode = (data.record.mode & !0o777) | bits;
        });
        update.map_err(|error| txn.fail(error))?;
    }
    Ok(())
}

/// Sets a list like [`set_acl`], from the form that programs use.
pub(super) fn set_by_value(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    index: NameIndex,
    value: Option<&[u8]>,
    mode: XattrMode,
) -> Result<()> {
    let kind = match index {
        NameIndex::ACL_DEFAULT => AclKind::Default,
        _ => AclKind::Access,
    };
    let exists = fs.view(node).stored_acl(kind)?.is_some();
    match mode {
        XattrMode::Create if exists => return Err(FsError::AttributeExists { ino: node.ino() }),
        XattrMode::Replace if !exists => return Err(FsError::NoAttribute { ino: node.ino() }),
        _ => {}
    }
    let acl = value.map(Acl::decode_xattr).transpose().map_err(|_| {
        let what = "an access control list in the form of getxattr, complete and in order";
        FsError::InvalidArgument { what }
    })?;
    set_acl(txn, fs, node, kind, acl.as_ref())
}

fn put_acl(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    kind: AclKind,
    acl: Option<&Acl>,
) -> Result<()> {
    let index = match kind {
        AclKind::Access => NameIndex::ACL_ACCESS,
        AclKind::Default => NameIndex::ACL_DEFAULT,
    };
    let value = acl.map(Acl::encode_stored);
    put(txn, fs, node, (index, b""), value.as_deref(), XattrMode::Any)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(Who, u8)]) -> Acl {
        Acl::new(entries.iter().map(|(who, perm)| AclEntry { who: *who, perm: *perm }).collect())
            .unwrap()
    }

    #[test]
    fn a_mode_restricts_the_mask_and_not_the_owning_group_behind_it() {
        let list = acl(&[
            (Who::Owner, 7),
            (Who::User(5), 6),
            (Who::OwningGroup, 7),
            (Who::Mask, 7),
            (Who::Others, 5),
        ]);
        let restricted = restrict(&list, 0o640);
        let expected = acl(&[
            (Who::Owner, 6),
            (Who::User(5), 6),
            (Who::OwningGroup, 7),
            (Who::Mask, 4),
            (Who::Others, 0),
        ]);
        assert_eq!(restricted, expected);
        assert_eq!(restricted.equivalent_mode(), (0o640, false));
    }

    #[test]
    fn without_a_mask_the_owning_group_is_the_group_class() {
        let list = Acl::from_mode(0o775);
        assert_eq!(restrict(&list, 0o640), Acl::from_mode(0o640));
        assert_eq!(change_classes(&list, |_, bits| bits, 0o4751), Acl::from_mode(0o751));
    }
}
