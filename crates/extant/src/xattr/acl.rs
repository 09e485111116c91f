//! Access control lists: their inheritance by new inodes, and keeping lists and permission bits
//! consistent.
//!
//! # Source
//!
//! `acl(5)`, "Object creation and default ACLs" and "Correspondence between ACL entries and file
//! permission bits".

use std::sync::Arc;

use extant_format::acl::Acl;
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
    let access = parent.restricted_to(record.mode);
    let (bits, is_minimal) = access.equivalent_mode();
    record.mode = (record.mode & !0o777) | bits;
    Ok(Inherited {
        access: (!is_minimal).then_some(access),
        default: (kind == FileKind::Directory).then_some(parent),
    })
}

/// Updates the access list, if there is one, to new permission bits.
///
/// # Errors
///
/// Space and quota, when the list has to move; damage. Nothing has changed then.
pub(crate) fn chmod_acl(txn: &mut Txn<'_>, fs: &Fs, node: &Arc<Node>, mode: u16) -> Result<()> {
    let Some(acl) = fs.view(node).stored_acl(AclKind::Access)? else { return Ok(()) };
    let changed = acl.with_mode(mode);
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
