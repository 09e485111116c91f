//! Quotas of users, groups and projects.

use std::sync::Arc;

use extant_format::inode::Inode as Record;

use crate::error::Result;
use crate::node::Node;
use crate::txn::Txn;

impl Txn<'_> {
    /// Charges blocks, in units of 512 bytes, to the owners of an inode.
    pub(crate) fn charge_blocks(&mut self, _node: &Arc<Node>, _sectors: u64) -> Result<()> {
        Ok(())
    }

    pub(crate) fn uncharge_blocks(&mut self, _node: &Arc<Node>, _sectors: u64) {}

    /// Charges one inode to the owners in `record`.
    pub(crate) fn charge_inode(&mut self, _record: &Record) -> Result<()> {
        Ok(())
    }

    pub(crate) fn uncharge_inode(&mut self, _record: &Record) {}

    /// Moves the charges of an inode from the owners in `from` to those in `to`.
    pub(crate) fn transfer_quota(&mut self, _from: &Record, _to: &Record) -> Result<()> {
        Ok(())
    }

    /// Undoes [`transfer_quota`](Self::transfer_quota).
    pub(crate) fn transfer_quota_back(&mut self, _from: &Record, _to: &Record) {}
}
