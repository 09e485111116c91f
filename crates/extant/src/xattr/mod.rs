//! Extended attributes: names, values, access control lists.
//!
//! An inode's attributes are in its own space behind the fields, in one block that it may share
//! with others, and large values in inodes of their own. This module presents them as one list, in
//! that order.
//!
//! Values are as Linux returns them to programs: access control lists are converted from ext4's
//! form into that of `getxattr`; everything else is as stored. Attributes that Linux does not show
//! to programs (inline data, encryption contexts) are not shown.

mod acl;
mod edit;
mod value;

pub(crate) use acl::{chmod_acl, inherited, set_acl};
pub(crate) use edit::{release_all, releases_at_once, set, set_context, set_inline_data};
pub(crate) use value::{transfer_quota, transfer_quota_back};

use extant_base::{FsBlock, Ino};
use extant_format::acl::Acl;
use extant_format::inline::{BLOCK_BYTES as INLINE_BYTES, PARENT_BYTES};
use extant_format::inode::FileKind;
use extant_format::xattr::{
    self, NameIndex, Value, XattrEntry, decode_block, decode_inode, entry_hash_for_inode, split,
    value_hash,
};

use crate::error::{Fault, FsError, Result};
use crate::inode::Inode;
use crate::shared_blocks::read_block;
use crate::view::View;

/// Limit of the total size of the values that [`Inode::xattrs`] returns, in bytes. Linux limits the
/// names of a file to 64 KiB, and each value to 64 KiB.
pub const XATTRS_BYTES_MAX: u64 = 64 << 20;

/// An extended attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Xattr {
    /// The full name, such as `user.mime_type` or `security.selinux`.
    pub name: Vec<u8>,
    /// The value, as `getxattr` returns it.
    pub value: Vec<u8>,
}

/// Kind of access control list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AclKind {
    /// The list that controls access to the file.
    Access,
    /// The list that new entries of a directory inherit.
    Default,
}

/// Condition for setting an extended attribute: whether it may or must exist before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrMode {
    /// The attribute may exist or not.
    #[default]
    Any,
    /// The attribute must not exist: [`FsError::AttributeExists`].
    Create,
    /// The attribute must exist: [`FsError::NoAttribute`].
    Replace,
}

/// The attribute with the capabilities of a program.
pub(crate) const CAPABILITY: (NameIndex, &[u8]) = (NameIndex::SECURITY, b"capability");

/// An inline directory: its parent and its areas of entries, each with its position in the listing.
pub(crate) struct InlineDir {
    pub(crate) parent: Ino,
    pub(crate) areas: Vec<(u64, Vec<u8>)>,
}

/// # Extended attributes
impl Inode {
    /// Returns the full names of all attributes.
    ///
    /// # Errors
    ///
    /// Damage of the inode's attribute space or of its attribute block.
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.locked(|inode| {
            inode.for_each_entry(|entry| {
                names.extend(shown_name(entry));
                Ok(Next::Continue)
            })
        })?;
        Ok(names)
    }

    /// Returns all attributes with their values.
    ///
    /// # Errors
    ///
    /// Those of [`xattr_names`](Self::xattr_names) and [`xattr`](Self::xattr);
    /// [`FsError::TooLarge`] when all values together exceed [`XATTRS_BYTES_MAX`]: read the names
    /// first and the values one by one then.
    pub fn xattrs(&self) -> Result<Vec<Xattr>> {
        self.locked(|view| view.all_xattrs())
    }

    /// Returns the value of the attribute with this full name.
    ///
    /// # Errors
    ///
    /// - [`FsError::NoAttribute`].
    /// - Damage: of the attribute space or block; of the inode that holds a large value, its hash
    ///   included; of an access control list.
    pub fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.locked(|inode| inode.stored_xattr(name.as_ref()))
    }

    /// Returns an access control list; `None` when there is none beyond the permission bits.
    ///
    /// # Errors
    ///
    /// Those of [`xattr`](Self::xattr), except that absence is not one.
    pub fn acl(&self, kind: AclKind) -> Result<Option<Acl>> {
        self.locked(|inode| inode.stored_acl(kind))
    }
}

impl View<'_> {
    fn all_xattrs(&self) -> Result<Vec<Xattr>> {
        let mut all = Vec::new();
        let mut bytes = 0u64;
        self.for_each_entry(|entry| {
            let Some(name) = shown_name(entry) else { return Ok(Next::Continue) };
            bytes += match entry.value {
                Value::Here(value) => value.len() as u64,
                Value::InInode { len, .. } => u64::from(len),
            };
            if bytes > XATTRS_BYTES_MAX {
                let limit = XATTRS_BYTES_MAX;
                return Err(FsError::TooLarge { ino: self.ino(), bytes, limit });
            }
            all.push(Xattr { name, value: self.shown_value(entry)? });
            Ok(Next::Continue)
        })?;
        Ok(all)
    }

    /// Returns the value of an attribute, as [`Inode::xattr`] does.
    pub(crate) fn stored_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let none = FsError::NoAttribute { ino: self.ino() };
        let Some((index, rest)) = split(name).filter(|(index, _)| is_shown(*index)) else {
            return Err(none);
        };
        let mut found = None;
        self.for_each_entry(|entry| {
            if entry.index != index || entry.name != rest {
                return Ok(Next::Continue);
            }
            found = Some(self.shown_value(entry)?);
            Ok(Next::Stop)
        })?;
        found.ok_or(none)
    }

    /// Returns the stored value of attribute `index` + `name`, shown to programs or not.
    pub(crate) fn any_xattr(&self, index: NameIndex, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.for_each_entry(|entry| {
            if entry.index != index || entry.name != name {
                return Ok(Next::Continue);
            }
            found = Some(self.value(entry)?);
            Ok(Next::Stop)
        })?;
        Ok(found)
    }

    /// Returns an access control list, as [`Inode::acl`] does.
    pub(crate) fn stored_acl(&self, kind: AclKind) -> Result<Option<Acl>> {
        let wanted = match kind {
            AclKind::Access => NameIndex::ACL_ACCESS,
            AclKind::Default => NameIndex::ACL_DEFAULT,
        };
        let mut found = None;
        self.for_each_entry(|entry| {
            if entry.index != wanted || !entry.name.is_empty() {
                return Ok(Next::Continue);
            }
            found = Some(self.decode_acl(&self.value(entry)?)?);
            Ok(Next::Stop)
        })?;
        Ok(found)
    }

    /// Calls `visit` for every stored attribute, shown or not, until it returns [`Next::Stop`].
    fn for_each_entry(&self, mut visit: impl FnMut(&XattrEntry<'_>) -> Result<Next>) -> Result<()> {
        let fail = |block: Option<FsBlock>, fault| {
            FsError::corrupt("extended attributes", self.ino(), block, fault)
        };
        let decode = |fault| Fault::Decode(Box::new(fault));
        if let Some(area) =
            decode_inode(self.xattr_space()).map_err(|fault| fail(None, decode(fault)))?
        {
            for entry in area.entries() {
                if visit(&entry)? == Next::Stop {
                    return Ok(());
                }
            }
        }
        let Some(at) = self.xattr_block() else { return Ok(()) };
        let block = read_block(self.volume(), Some(self.ino()), at)?;
        let (_, area) =
            decode_block(block.bytes()).map_err(|fault| fail(Some(at), decode(fault)))?;
        for entry in area.entries() {
            if visit(&entry)? == Next::Stop {
                break;
            }
        }
        Ok(())
    }

    /// Returns the stored value of the inode attribute `index` + `name`, from the inode's own space
    /// only.
    pub(crate) fn own_xattr(&self, index: NameIndex, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let area = decode_inode(self.xattr_space()).map_err(|fault| {
            let fault = Fault::Decode(Box::new(fault));
            FsError::corrupt("extended attributes", self.ino(), None, fault)
        })?;
        let entry = area.and_then(|area| area.find(index, name));
        entry.map(|entry| self.value(&entry)).transpose()
    }

    /// Returns the stored data of an inline file.
    pub(crate) fn inline_data(&self) -> Result<Vec<u8>> {
        let mut data = self.i_block().to_vec();
        data.extend(self.own_xattr(NameIndex::SYSTEM, b"data")?.unwrap_or_default());
        Ok(data)
    }

    /// Returns the entries of an inline directory.
    pub(crate) fn inline_dir(&self) -> Result<InlineDir> {
        let (parent, first) = self.i_block().split_at(PARENT_BYTES);
        let parent = parent.first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let value = self.own_xattr(NameIndex::SYSTEM, b"data")?.unwrap_or_default();
        let second = INLINE_BYTES as u64;
        let areas = vec![(PARENT_BYTES as u64, first.to_vec()), (second, value)];
        Ok(InlineDir { parent: Ino(parent), areas })
    }

    /// Returns the stored value.
    fn value(&self, entry: &XattrEntry<'_>) -> Result<Vec<u8>> {
        match entry.value {
            Value::Here(value) => Ok(value.to_vec()),
            Value::InInode { ino, len } => self.value_in_inode(entry, ino, len),
        }
    }

    /// Returns the value as shown to programs.
    fn shown_value(&self, entry: &XattrEntry<'_>) -> Result<Vec<u8>> {
        let value = self.value(entry)?;
        match entry.index {
            NameIndex::ACL_ACCESS | NameIndex::ACL_DEFAULT => {
                Ok(self.decode_acl(&value)?.encode_xattr())
            }
            _ => Ok(value),
        }
    }

    fn decode_acl(&self, stored: &[u8]) -> Result<Acl> {
        Acl::decode_stored(stored).map_err(|fault| {
            let fault = Fault::Decode(Box::new(fault));
            FsError::corrupt("access control list", self.ino(), None, fault)
        })
    }

    /// Reads a value from an inode of its own. The attributes of that inode are not read, so there
    /// is no recursion.
    fn value_in_inode(&self, entry: &XattrEntry<'_>, ino: Ino, len: u32) -> Result<Vec<u8>> {
        let fail = |fault| FsError::corrupt("extended attribute value", ino, None, fault);
        let holder = match self.fs().inode(ino) {
            Err(FsError::NoSuchInode { .. }) => {
                return Err(fail(Fault::Rule(
                    "an attribute names this inode, which is not in use",
                )));
            }
            other => other?,
        };
        let holder = self.fs().view(holder.node());
        if !holder.is_ea_inode() || holder.kind() != FileKind::Regular {
            return Err(fail(Fault::Rule("it does not hold an attribute value")));
        }
        if holder.size() != u64::from(len) {
            let rule = "its size is not that of the value";
            return Err(fail(Fault::Field { rule, value: holder.size(), limit: u64::from(len) }));
        }
        let mut value = vec![0; len as usize]; // At most VALUE_MAX, 16 MiB.
        holder.read_range(0, &mut value)?;
        if self.volume().verifies_checksums() && !holder.is_lustre_value_of(self) {
            let stored = holder.ea_value_hash();
            let computed = value_hash(self.volume().checksum_seed(), &value);
            if stored != computed {
                return Err(fail(Fault::Checksum { stored, computed }));
            }
            let computed = entry_hash_for_inode(entry.name, computed);
            // Kernels before 6.2 hashed names as signed bytes, so only hashes of ASCII names can be
            // checked.
            if entry.hash != computed && entry.name.is_ascii() {
                return Err(fail(Fault::Checksum { stored: entry.hash, computed }));
            }
        }
        Ok(value)
    }
}

#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}

const _: () = assert!(xattr::VALUE_MAX as u64 <= XATTRS_BYTES_MAX);

/// Returns whether Linux shows attributes with this prefix to programs.
fn is_shown(index: NameIndex) -> bool {
    matches!(
        index,
        NameIndex::USER
            | NameIndex::ACL_ACCESS
            | NameIndex::ACL_DEFAULT
            | NameIndex::TRUSTED
            | NameIndex::SECURITY
            | NameIndex::HURD
    )
}

/// Returns the full name, if the attribute is shown.
fn shown_name(entry: &XattrEntry<'_>) -> Option<Vec<u8>> {
    if is_shown(entry.index) { xattr::join(entry.index, entry.name) } else { None }
}
