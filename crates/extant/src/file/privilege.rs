//! Privileges that a change removes from a file: set-id bits and capabilities.
//!
//! A user who can write to a program must not gain the rights with which it runs. So every change
//! of the contents removes them first, and so does a change of the owner.

use crate::error::Result;
use crate::inode::Inode;
use crate::txn::Txn;
use crate::xattr::{self, CAPABILITY, XattrMode};

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o010;

const CAPABILITY_NAME: &[u8] = b"security.capability";
/// Credits to clear the set-id bits of an inode.
const MODE_CREDITS: u32 = 4;
/// Credits to remove an attribute, as for any change of one.
const CAPABILITY_CREDITS: u32 = 64;

/// On whose behalf a file is changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WriteBy {
    /// A program: set-id bits and capabilities are removed, times become the current time, and
    /// inode flags are checked, as in [`Inode::write_at`]. Set-gid without group execution (once
    /// mandatory locking) stays.
    #[default]
    Program,
    /// A program of a user who is not in the file's group: set-gid is removed in any case.
    Outsider,
    /// A program that may keep set-id bits: on Linux, one with `CAP_FSETID`. Capabilities are
    /// removed all the same.
    Privileged,
    /// A cache in front of this one, such as the kernel's, which delivers what programs wrote
    /// earlier. It keeps their times ([`Inode::store_write_times`]) and has checked permissions and
    /// privileges, so neither is done here.
    Cache,
}

impl WriteBy {
    /// Returns the bits of `mode` that a change of the contents removes.
    fn taken(self, mode: u16) -> u16 {
        let of_group = match mode & GROUP_EXECUTES != 0 || self == WriteBy::Outsider {
            true => SET_GID,
            false => 0,
        };
        match self {
            WriteBy::Program | WriteBy::Outsider => mode & (SET_UID | of_group),
            WriteBy::Privileged | WriteBy::Cache => 0,
        }
    }

    /// Returns the bits of `mode` that a change of owner or group removes. It applies to every kind
    /// of file but directories, however privileged the caller is.
    pub(crate) fn taken_with_owner(self, mode: u16) -> u16 {
        match self {
            WriteBy::Outsider => WriteBy::Outsider,
            _ => WriteBy::Program,
        }
        .taken(mode)
    }
}

impl Inode {
    /// Returns whether a change of contents on behalf of `by` would remove privileges that the file
    /// has now, as far as can be told without reading its attributes. Costs one load.
    pub fn may_lose_privileges(&self, by: WriteBy) -> bool {
        let gist = self.node().gist();
        by.taken(gist.mode) != 0 || (by != WriteBy::Cache && gist.may_have_capability)
    }

    /// Removes the privileges that a change of contents removes. The caller holds the content lock
    /// exclusively and no handle.
    pub(crate) fn take_privileges(&self, by: WriteBy) -> Result<()> {
        let gist = self.node().gist();
        let taken = by.taken(gist.mode);
        if taken != 0 {
            let mut txn = Txn::begin(self.volume(), MODE_CREDITS)?;
            let now = txn.writer().now();
            txn.update(self.node(), |data| {
                data.record.mode &= !taken;
                data.record.ctime = now;
            })?;
        }
        match by {
            WriteBy::Cache => Ok(()),
            _ => self.take_capability(),
        }
    }

    /// Removes the attribute `security.capability`. Locks as for
    /// [`take_privileges`](Self::take_privileges).
    pub(crate) fn take_capability(&self) -> Result<()> {
        let node = self.node();
        if !node.gist().may_have_capability {
            return Ok(());
        }
        match self.fs().view(node).stored_xattr(CAPABILITY_NAME) {
            Ok(_) => {
                let mut txn = Txn::begin(self.volume(), CAPABILITY_CREDITS)?;
                let (index, name) = CAPABILITY;
                xattr::set(&mut txn, self.fs(), node, index, name, None, XattrMode::Any)?;
            }
            Err(crate::error::FsError::NoAttribute { .. }) => {}
            // An attribute that cannot be read grants no capabilities, and damage of attributes
            // must not prevent a write.
            Err(_) => return Ok(()),
        }
        node.set_may_have_capability(false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_what() {
        for (by, mode, taken) in [
            (WriteBy::Program, 0o4777, 0o4000),
            (WriteBy::Program, 0o4766, 0o4000),
            (WriteBy::Program, 0o2777, 0o2000),
            (WriteBy::Program, 0o2767, 0),
            (WriteBy::Outsider, 0o2767, 0o2000),
            (WriteBy::Outsider, 0o6767, 0o6000),
            (WriteBy::Program, 0o6767, 0o4000),
            (WriteBy::Program, 0o1777, 0),
            (WriteBy::Privileged, 0o6777, 0),
            (WriteBy::Cache, 0o6777, 0),
        ] {
            assert_eq!(by.taken(mode), taken, "{by:?} {mode:o}");
        }
        assert_eq!(WriteBy::Privileged.taken_with_owner(0o6777), 0o6000);
        assert_eq!(WriteBy::Privileged.taken_with_owner(0o6767), 0o4000);
        assert_eq!(WriteBy::Outsider.taken_with_owner(0o6767), 0o6000);
    }
}
