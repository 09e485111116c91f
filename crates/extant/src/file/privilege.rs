//! What a change of a program takes from it: set-id bits, capabilities.
//!
//! Who can write to a program must not write one that runs with the rights of somebody else. So whatever changes
//! the contents of a file takes them first, and so does a new owner.

use crate::error::Result;
use crate::inode::Inode;
use crate::txn::Txn;
use crate::xattr::{self, CAPABILITY, XattrMode};

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o010;

const CAPABILITY_NAME: &[u8] = b"security.capability";
/// Credits to take the set-id bits of an inode.
const MODE_CREDITS: u32 = 4;
/// Credits to take an attribute, as any change of one.
const CAPABILITY_CREDITS: u32 = 64;

/// On whose behalf a file is changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WriteBy {
    /// A program: set-id bits and capabilities go, times are now, flags of the inode count. What
    /// [`Inode::write_at`] does. Set-gid without group execution meant mandatory locks, and stays.
    #[default]
    Program,
    /// A program of somebody who is not in the file's group: set-gid goes in any case.
    Outsider,
    /// A program that may keep set-id bits: on Linux, one with `CAP_FSETID`. Capabilities go all the same.
    Privileged,
    /// Another cache in front of this one, which brings what programs wrote to it before. It keeps
    /// their times ([`Inode::store_write_times`]) and has checked whether they may, so neither is
    /// done here.
    Cache,
}

impl WriteBy {
    /// The bits of `mode` that a change of contents takes.
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

    /// The bits of `mode` that a new owner or group takes: however privileged who gives it away is, and
    /// of everything but directories.
    pub(crate) fn taken_with_owner(self, mode: u16) -> u16 {
        match self {
            WriteBy::Outsider => WriteBy::Outsider,
            _ => WriteBy::Program,
        }
        .taken(mode)
    }
}

impl Inode {
    /// Whether a change of contents on behalf of `by` takes something from the file that it has now, as far as
    /// can be told without looking into its attributes. Costs a load.
    pub fn may_lose_privileges(&self, by: WriteBy) -> bool {
        let gist = self.node().gist();
        by.taken(gist.mode) != 0 || (by != WriteBy::Cache && gist.may_have_capability)
    }

    /// Takes what a change of contents takes. The caller holds the content lock exclusively and no handle.
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

    /// Takes the capabilities of a program. Locks as [`take_privileges`](Self::take_privileges).
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
            // What cannot be read gives nobody capabilities, and damage of attributes is no reason not to write.
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
