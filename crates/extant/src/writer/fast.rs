//! Records of fast commits, from the state in memory.

use extant_base::Ino;
use extant_format::features::{Compat, RoCompat};
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::jbd2::FcRecord;
use extant_jbd2::{Description, FastSink};

use super::Writer;
use crate::error::Result;
use crate::extent_node::Records;
use crate::fast::{Changed, Refusal};
use crate::node::InodeData;
use crate::volume::Volume;

/// Shortest part of a large inode behind its first 128 bytes that e2fsck takes in a record.
const EXTRA_BYTES_MIN: u16 = 4;

/// Returns whether fast commits can be made on a file system: its journal has room for them, and no
/// feature has state that a replay would not bring up to date.
///
/// A replay counts no quotas, and counts the blocks of an inode in blocks, not in clusters. Without
/// checksums of groups, that of e2fsck 1.47 leaves fields in the descriptors which it then finds
/// wrong.
pub(crate) fn are_possible(volume: &Volume) -> bool {
    let superblock = volume.superblock();
    let has_quotas = superblock.features.has_ro_compat(RoCompat::QUOTA);
    let has_sums = superblock.features.has_ro_compat(RoCompat::METADATA_CSUM)
        || superblock.features.has_ro_compat(RoCompat::GDT_CSUM);
    superblock.features.has_compat(Compat::FAST_COMMIT)
        && superblock.features.has_compat(Compat::HAS_JOURNAL)
        && superblock.journal_inode != Ino(0)
        && !superblock.bigalloc()
        && has_sums
        && !has_quotas
}

impl Writer {
    /// Describes what changed since the last commit. No handle is open.
    pub(crate) fn describe(&self, volume: &Volume, sink: &mut FastSink) -> Description {
        let fast = self.fast();
        if !fast.describes() {
            return Description::Full;
        }
        let changed = fast.take();
        if changed.is_empty() {
            return Description::Nothing;
        }
        // Before the log is in use the superblock says that it may be (J11).
        if self.supers.wake().is_err() {
            return Description::Full;
        }
        for changed in &changed {
            if !matches!(describe_inode(volume, changed, sink), Ok(true)) {
                // A fault is found by the full commit as well.
                fast.refuse(Refusal::Inode);
                fast.count_refusal();
                return Description::Full;
            }
        }
        Description::Records
    }
}

/// Adds the records of one inode: first its ranges, then itself, as Linux does. Returns false for an
/// inode that a replay would not restore as it is.
fn describe_inode(volume: &Volume, changed: &Changed, sink: &mut FastSink) -> Result<bool> {
    let (ino, data) = (changed.node.ino(), changed.node.data());
    if !is_restored(volume, &data)? {
        return Ok(false);
    }
    for extent in &changed.extents {
        sink.push(&FcRecord::AddRange { ino, extent: *extent });
    }
    let mut raw = vec![0; data.raw.len()];
    data.encode(volume.inode_layout(), &mut raw, 0)?;
    sink.push(&FcRecord::Inode { ino, raw: &raw });
    Ok(true)
}

/// Returns whether a replay by Linux or e2fsck restores an inode as it is.
///
/// Both restore the fields, and the map by the ranges; not attributes, and not what is in the place
/// of the map. Only a map within the inode will do: e2fsck 1.47 gives a larger one nodes before it
/// knows all blocks that later records use.
fn is_restored(volume: &Volume, data: &InodeData) -> Result<bool> {
    let (record, superblock) = (&data.record, volume.superblock());
    let unfit = InodeFlags::INLINE_DATA
        | InodeFlags::VERITY
        | InodeFlags::EA_INODE
        | InodeFlags::JOURNAL_DATA;
    let is_large = superblock.inode_size > 128;
    if data.kind != FileKind::Regular
        || data.ino < superblock.first_inode
        || record.links == 0
        || record.file_acl.0 != 0
        || !record.flags.contains(InodeFlags::EXTENTS)
        || record.flags.intersects(unfit)
        || (is_large && record.extra_isize < EXTRA_BYTES_MIN)
    {
        return Ok(false);
    }
    Ok(matches!(data.extent_root()?.records, Records::Leaf(_)))
}
