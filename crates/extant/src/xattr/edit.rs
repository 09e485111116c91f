//! Changes of extended attributes.

use std::sync::Arc;

use extant_format::acl::Acl;
use extant_format::inode::{FileKind, Inode as Record};
use extant_format::xattr::NameIndex;

use super::AclKind;
use crate::error::{FsError, Result};
use crate::inode::{Inode, InodeData};
use crate::mount::Fs;
use crate::namei::XattrMode;
use crate::node::Node;
use crate::txn::Txn;

/// ACLs that a new inode gets from its directory.
pub(crate) struct Inherited {}

impl Inherited {
    pub(crate) fn store(&self, _: &mut Txn<'_>, _: &Fs, _node: &Arc<Node>) -> Result<()> {
        Ok(())
    }
}

/// What a new inode of `kind` in `dir` inherits; changes the mode in `record` accordingly.
pub(crate) fn inherited(
    _: &Fs,
    _dir: &Inode,
    _kind: FileKind,
    _record: &mut Record,
) -> Result<Inherited> {
    Ok(Inherited {})
}

/// Whether [`release_all`] needs only a few credits.
pub(crate) fn releases_at_once(data: &InodeData) -> bool {
    data.record.file_acl.0 == 0
}

pub(crate) fn release_all(_: &mut Txn<'_>, _: &Fs, _node: &Arc<Node>) -> Result<()> {
    Ok(())
}

pub(crate) fn set(
    _: &mut Txn<'_>,
    _: &Fs,
    _node: &Arc<Node>,
    _index: NameIndex,
    _name: &[u8],
    _value: Option<&[u8]>,
    _mode: XattrMode,
) -> Result<()> {
    Err(FsError::InvalidArgument { what: "attributes cannot be changed yet" })
}

pub(crate) fn chmod_acl(_: &mut Txn<'_>, _: &Fs, _node: &Arc<Node>, _mode: u16) -> Result<()> {
    Ok(())
}

pub(crate) fn set_acl(
    _: &mut Txn<'_>,
    _: &Fs,
    _node: &Arc<Node>,
    _kind: AclKind,
    _acl: Option<&Acl>,
) -> Result<()> {
    Err(FsError::InvalidArgument { what: "attributes cannot be changed yet" })
}
