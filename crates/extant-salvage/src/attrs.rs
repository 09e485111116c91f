//! What an inode says of its file, and its extended attributes.

use extant_base::Ino;
use extant_format::acl::Acl;
use extant_format::features::Incompat;
use extant_format::inode::{FileKind, Inode, InodeError, InodeFlags};
use extant_format::record::{self, Record};
use extant_format::time::Timestamp;
use extant_format::xattr::{self, NameIndex, Value, XattrArea};

use crate::content::{Sink, Source};
use crate::image::Image;
use crate::limits::{Budget, XATTR_BYTES_MAX};
use crate::report::{Reasons, Why};

/// A file that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its inode.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// Permissions: `0..=0o7777`.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that it should have.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// What its blocks take as the inode counts them, in sectors of 512 bytes: more than its map has where a part of
    /// that is lost.
    pub sectors: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Major and minor number of a device.
    pub rdev: Option<(u32, u32)>,
}

/// An extended attribute, as `getxattr` returns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Xattr {
    /// The full name.
    pub name: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

impl Image {
    /// What a record says of its file, as far as it can be believed; `None`: it has no type.
    pub(crate) fn found(&self, record: &mut Record, reasons: &mut Reasons) -> Option<Found> {
        let kind = record.kind()?;
        if self.has_checksums() && !self.is_sealed(record) {
            *reasons.entry(Why::InodeChecksum).or_default() += 1;
        }
        let mut decoded = Inode::decode(&self.layout, &record.bytes);
        if let Err(InodeError::ExtraSize { .. }) = &decoded {
            // Where its attributes begin is not known any more.
            record.put16(record::EXTRA, 0);
            *reasons.entry(Why::Attributes).or_default() += 1;
            decoded = Inode::decode(&self.layout, &record.bytes);
        }
        if let Err(InodeError::Size { .. }) = &decoded {
            *reasons.entry(Why::Size).or_default() += 1;
            record.set_size(0);
            decoded = Inode::decode(&self.layout, &record.bytes);
        }
        let inode = decoded.ok()?;
        Some(Found {
            ino: record.ino,
            kind,
            permissions: inode.permissions(),
            uid: inode.uid,
            gid: inode.gid,
            links: u32::from(inode.links),
            size: inode.size,
            sectors: inode.sectors,
            atime: inode.atime,
            mtime: inode.mtime,
            rdev: inode.device().map(|device| (device.major, device.minor)),
        })
    }

    /// The bytes behind an inode's fields.
    fn space<'a>(&self, record: &'a Record) -> &'a [u8] {
        record.bytes.get(record.xattr_at()..).unwrap_or(&[])
    }

    /// Returns whether attributes have values in inodes of their own, or may have.
    pub(crate) fn has_values_elsewhere(&self, record: &Record) -> bool {
        if !self.sb.features.has_incompat(Incompat::EA_INODE) {
            return false;
        }
        let is_elsewhere = |area: &XattrArea<'_>| {
            area.entries().any(|entry| matches!(entry.value, Value::InInode { .. }))
        };
        let Ok(inside) = xattr::decode_inode(self.space(record)) else { return true };
        let block = record.file_acl(self.is_wide());
        let bytes = if block.0 == 0 { None } else { Some(self.read_block(block.0)) };
        inside.as_ref().is_some_and(is_elsewhere)
            || bytes.is_some_and(|bytes| match bytes.as_deref().map(xattr::decode_block) {
                Ok(Ok((_, area))) => is_elsewhere(&area),
                _ => true,
            })
    }

    /// The part of the data in an inode that is an attribute; `None`: there is none.
    pub(crate) fn inline_value<'a>(&self, record: &'a Record) -> Option<&'a [u8]> {
        let area = xattr::decode_inode(self.space(record)).ok()??;
        match area.find(NameIndex::SYSTEM, b"data")?.value {
            Value::Here(value) => Some(value),
            Value::InInode { .. } => None,
        }
    }

    /// The extended attributes that programs are shown, as far as they can be read.
    pub(crate) fn xattrs(
        &self,
        record: &Record,
        budget: &mut Budget,
        reasons: &mut Reasons,
    ) -> Vec<Xattr> {
        let mut list = Vec::new();
        match xattr::decode_inode(self.space(record)) {
            Ok(None) => {}
            Ok(Some(area)) => self.area(record, &area, budget, reasons, &mut list),
            Err(_) => *reasons.entry(Why::Attributes).or_default() += 1,
        }
        let block = record.file_acl(self.is_wide());
        if block.0 == 0 {
            return list;
        }
        let bytes = if budget.node() { self.read_block(block.0).ok() } else { None };
        match bytes.as_deref().map(xattr::decode_block) {
            Some(Ok((_, area))) => {
                let bytes = bytes.as_deref().unwrap_or(&[]);
                if self.has_checksums() && xattr::verify_block(self.seed, block, bytes).is_err() {
                    *reasons.entry(Why::AttributesChecksum).or_default() += 1;
                }
                self.area(record, &area, budget, reasons, &mut list);
            }
            _ => *reasons.entry(Why::Attributes).or_default() += 1,
        }
        list
    }

    fn area(
        &self,
        owner: &Record,
        area: &XattrArea<'_>,
        budget: &mut Budget,
        reasons: &mut Reasons,
        list: &mut Vec<Xattr>,
    ) {
        for entry in area.entries() {
            let is_shown = entry.index != NameIndex::SYSTEM && entry.index != NameIndex::ENCRYPTION;
            let Some(name) = xattr::join(entry.index, entry.name).filter(|_| is_shown) else {
                continue;
            };
            let value = match entry.value {
                Value::Here(value) => Some(value.to_vec()),
                Value::InInode { ino, len } => self.value(owner, (ino, len), budget, reasons),
            };
            let is_acl = matches!(entry.index, NameIndex::ACL_ACCESS | NameIndex::ACL_DEFAULT);
            let value = match value {
                Some(value) if is_acl => {
                    Acl::decode_stored(&value).ok().map(|acl| acl.encode_xattr())
                }
                other => other,
            };
            match value {
                Some(value) => list.push(Xattr { name, value }),
                None => *reasons.entry(Why::Attributes).or_default() += 1,
            }
        }
    }

    /// A value that has an inode of its own; its hash is said to be wrong where it is.
    fn value(
        &self,
        owner: &Record,
        (ino, len): (Ino, u32),
        budget: &mut Budget,
        reasons: &mut Reasons,
    ) -> Option<Vec<u8>> {
        let held = self.load(ino)?;
        let bytes =
            self.value_in(&held, budget).filter(|bytes| bytes.len() as u64 == u64::from(len))?;
        // The value of a Lustre file has no hash, but who owns it.
        let is_lustre = held.u32(record::MTIME) == owner.ino.0
            && held.u32(record::GENERATION) == owner.u32(record::GENERATION);
        let is_right = held.u32(record::ATIME) == xattr::value_hash(self.seed, &bytes);
        if !is_lustre && !is_right {
            *reasons.entry(Why::AttributesChecksum).or_default() += 1;
        }
        Some(bytes)
    }

    /// What an inode holds that is marked as the value of an attribute, if all of it can be read.
    fn value_in(&self, held: &Record, budget: &mut Budget) -> Option<Vec<u8>> {
        let is_value = held.has(InodeFlags::EA_INODE) && held.kind() == Some(FileKind::Regular);
        let size = held.size();
        if !is_value || size > u64::from(XATTR_BYTES_MAX) {
            return None;
        }
        let mut sink = Value64 { bytes: vec![0; usize::try_from(size).ok()?] };
        let mut lost = Reasons::new();
        let source = Source { record: held, size, sectors: None };
        let missing = self.read_content(&source, budget, &mut lost, &mut sink).ok()?;
        (missing.bytes == 0 && lost.is_empty()).then_some(sink.bytes)
    }

    /// Returns whether what a name leads to is the value of an attribute, which has no name: it has the mark, and the hash
    /// of a value. A file that only has the mark is one.
    pub(crate) fn holds_value(&self, record: &Record, budget: &mut Budget) -> bool {
        self.is_marked_as_value(record)
            && self.value_in(record, budget).is_some_and(|bytes| {
                record.u32(record::ATIME) == xattr::value_hash(self.seed, &bytes)
            })
    }
}

/// Collects a value.
struct Value64 {
    bytes: Vec<u8>,
}

impl Sink for Value64 {
    type Stop = ();

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ()> {
        record::put(&mut self.bytes, usize::try_from(offset).map_err(|_| ())?, bytes);
        Ok(())
    }
}
