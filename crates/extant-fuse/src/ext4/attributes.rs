//! Attributes of nodes: shown and set.

use extant::{FileKind, Inode, InodeFlags, SetAttributes, TimeChange, Timestamp};
use extant_base::sabotage;

use super::Ext4;
use crate::operations::{Attributes, Caller, Errno, NodeId, Reply, SetAttr, SetTime, Time};

/// `STATX_ATTR_*` for flags of inodes.
const STATX_FLAGS: [(InodeFlags, u64); 6] = [
    (InodeFlags::COMPR, 0x4),
    (InodeFlags::IMMUTABLE, 0x10),
    (InodeFlags::APPEND, 0x20),
    (InodeFlags::NODUMP, 0x40),
    (InodeFlags::ENCRYPT, 0x800),
    (InodeFlags::VERITY, 0x10_0000),
];

/// Blocks of 512 bytes that are shown of a file whose data may all be in the kernel's cache. ext4
/// itself shows as many of data that lies in the inode.
const HIDDEN_BLOCKS: u64 = 1;

pub(super) fn time(of: Timestamp) -> Time {
    Time { seconds: of.seconds, nanos: of.nanos_clamped() }
}

pub(super) fn timestamp(of: Time) -> Timestamp {
    Timestamp { seconds: of.seconds, nanos: of.nanos.min(999_999_999) }
}

impl Ext4<'_> {
    /// Returns what the kernel is shown of an inode.
    pub(super) fn attributes_of(&self, inode: &Inode) -> Attributes {
        let of = inode.metadata();
        let ids = &self.settings.ids;
        let statx = STATX_FLAGS.iter().filter(|(flag, _)| of.flags.contains(*flag));
        Attributes {
            ino: u64::from(of.ino.0),
            // The kernel has no use for sizes that it cannot count to.
            size: of.size.min(i64::MAX as u64),
            blocks: if self.may_hide_data(inode) { HIDDEN_BLOCKS } else { of.blocks },
            atime: time(of.atime),
            mtime: time(of.mtime),
            ctime: time(of.ctime),
            btime: of.crtime.map(time),
            mode: u32::from(of.mode()),
            nlink: of.links,
            uid: ids.user_outside(of.uid),
            gid: ids.group_outside(of.gid),
            rdev: of.rdev.unwrap_or((0, 0)),
            blksize: self.fs().block_size().bytes(),
            statx_attributes: statx.map(|(_, bit)| bit).fold(0, |all, bit| all | bit),
            valid_for: self.valid_for(inode),
        }
    }

    pub(super) fn set_attributes_of(
        &self,
        caller: Caller,
        node: NodeId,
        changes: &SetAttr,
    ) -> Reply<Attributes> {
        let inode = self.inode(node)?;
        if let Some((mtime, ctime)) = times_of_writes(changes)
            && inode.kind() == FileKind::Regular
        {
            self.reply(inode.store_write_times(timestamp(mtime), timestamp(ctime)))?;
            return Ok(self.attributes_of(&inode));
        }
        let ids = &self.settings.ids;
        let mut wanted = SetAttributes::new();
        wanted.permissions = changes.mode.map(|mode| (mode & 0o7777) as u16);
        // An owner that has no number here cannot be stored.
        let inside = |id: Option<u32>, map: &dyn Fn(u32) -> Option<u32>| match id {
            Some(id) => map(id).ok_or(Errno::EINVAL).map(Some),
            None => Ok(None),
        };
        wanted.uid = inside(changes.uid, &|id| ids.user_inside(id))?;
        wanted.gid = inside(changes.gid, &|id| ids.group_inside(id))?;
        wanted.size = changes.size;
        wanted.atime = changes.atime.map(time_change);
        wanted.mtime = changes.mtime.map(time_change);
        wanted.ctime = changes.ctime.map(timestamp);
        // With a new owner, privileges are removed as for the user who gives the file away.
        let takes = changes.take_set_id && (changes.size.is_some() || caller.uid != 0);
        wanted.by = self.on_behalf_of(caller, takes, &inode);
        self.reply(inode.set_attributes(&wanted))?;
        if changes.size.is_some() {
            self.room.note_freed();
        }
        if changes.size == Some(0) {
            self.nodes.give_up_refusals(node);
        }
        Ok(self.attributes_of(&inode))
    }
}

/// Both times that the kernel keeps while it holds writes back, and nothing else.
fn times_of_writes(changes: &SetAttr) -> Option<(Time, Time)> {
    let (Some(SetTime::To(mtime)), Some(ctime)) = (changes.mtime, changes.ctime) else {
        return None;
    };
    let alone = SetAttr { mtime: changes.mtime, ctime: changes.ctime, ..SetAttr::default() };
    let is_alone = *changes == alone || sabotage("fuse.attributes.other-changes-lost");
    is_alone.then_some((mtime, ctime))
}

fn time_change(change: SetTime) -> TimeChange {
    match change {
        SetTime::Now => TimeChange::Now,
        SetTime::To(time) => TimeChange::To(timestamp(time)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_writes_come_alone() {
        let (mtime, ctime) = (Time { seconds: 1, nanos: 2 }, Time { seconds: 3, nanos: 4 });
        let both =
            SetAttr { mtime: Some(SetTime::To(mtime)), ctime: Some(ctime), ..SetAttr::default() };
        assert_eq!(times_of_writes(&both), Some((mtime, ctime)));
        assert_eq!(times_of_writes(&SetAttr { size: Some(0), ..both }), None);
        assert_eq!(times_of_writes(&SetAttr { atime: Some(SetTime::Now), ..both }), None);
        assert_eq!(times_of_writes(&SetAttr { mtime: Some(SetTime::Now), ..both }), None);
        assert_eq!(times_of_writes(&SetAttr { ctime: None, ..both }), None);
    }
}
