//! Quota files: usage by owner.

use std::collections::BTreeMap;

use extant_format::quota::{QuotaEntry, QuotaError, QuotaFile, QuotaKind};

use crate::tree::{NodeId, Tree};

/// The kinds, by their index in the plan.
pub(crate) const KINDS: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

/// The file of one kind, as the kernel and e2fsck count: every inode but the reserved ones. `usage_of`
/// says the bytes and inodes that one node stands for; inodes of attribute values count for each
/// file that refers to them.
pub(crate) fn quota_file(
    kind: QuotaKind,
    tree: &Tree,
    usage_of: impl Fn(NodeId) -> (u64, u64),
) -> Result<Vec<u8>, QuotaError> {
    let mut usage: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (index, node) in tree.nodes().iter().enumerate() {
        let id = match kind {
            QuotaKind::User => node.uid,
            QuotaKind::Group => node.gid,
            QuotaKind::Project => node.project,
        };
        let used = usage.entry(id).or_default();
        let (space, inodes) = usage_of(NodeId(index as u32));
        used.0 += space;
        used.1 += inodes;
    }
    let mut file = QuotaFile::empty(kind);
    file.entries = usage
        .iter()
        .map(|(&id, &(space_bytes, inodes))| QuotaEntry {
            id,
            space_bytes,
            inodes,
            ..QuotaEntry::default()
        })
        .collect();
    file.encode()
}
