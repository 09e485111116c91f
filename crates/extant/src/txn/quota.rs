//! Quota charges of a change.

use std::sync::Arc;

use extant_format::inode::{Inode as Record, InodeFlags};
use extant_format::quota::{QuotaEntry, QuotaKind};

use super::Txn;
use crate::error::{FsError, Result};
use crate::fs::{Fs, Mount};
use crate::node::Node;
use crate::quota::{ADD_CREDITS, Charge, Owners, QuotaLimits, all_of};

impl Txn<'_> {
    /// Makes sure that the owners have records, in a transaction of its own: then a charge changes
    /// one block for each kind. Called before an operation opens its handle.
    pub(crate) fn prepare_quotas(mount: &Mount, owners: Owners) -> Result<()> {
        let quotas = mount.writer()?.quotas();
        if !quotas.lacks_records(owners) {
            return Ok(());
        }
        let mut txn = Txn::begin(mount, 3 * ADD_CREDITS)?;
        quotas.claim_all(&mut txn, owners)
    }

    /// Charges one inode to the owners in `record`. Credits: a block for each kind of quota, if
    /// [`prepare_quotas`](Self::prepare_quotas) was called for them.
    pub(crate) fn charge_inode(&mut self, record: &Record) -> Result<()> {
        let quotas = self.writer().quotas();
        if record.flags.contains(InodeFlags::EA_INODE) {
            return Ok(());
        }
        quotas.charge(self, Owners::of(record), Charge::INODE)
    }

    /// Ends the charge of one inode. If that fails, the journal is aborted.
    pub(crate) fn uncharge_inode(&mut self, record: &Record) {
        let quotas = self.writer().quotas();
        if record.flags.contains(InodeFlags::EA_INODE) {
            return;
        }
        if let Err(error) = quotas.uncharge(self, Owners::of(record), Charge::INODE) {
            self.fail(error);
        }
    }

    /// Charges blocks, in units of 512 bytes, to the owners of an inode.
    pub(crate) fn charge_blocks(&mut self, node: &Arc<Node>, sectors: u64) -> Result<()> {
        let quotas = self.writer().quotas();
        match quotas.payers(node) {
            Some(owners) => quotas.charge(self, owners, Charge::blocks(sectors)),
            None => Ok(()),
        }
    }

    /// Ends the charge of blocks. If that fails, the journal is aborted.
    pub(crate) fn uncharge_blocks(&mut self, node: &Arc<Node>, sectors: u64) {
        let quotas = self.writer().quotas();
        let Some(owners) = quotas.payers(node) else { return };
        if let Err(error) = quotas.uncharge(self, owners, Charge::blocks(sectors)) {
            self.fail(error);
        }
    }

    /// Moves the charges of an inode from the owners in `from` to those in `to`.
    pub(crate) fn transfer_quota(&mut self, from: &Record, to: &Record) -> Result<()> {
        let quotas = self.writer().quotas();
        quotas.transfer(self, Owners::of(from), Owners::of(to), all_of(from), true)
    }

    /// Undoes [`transfer_quota`](Self::transfer_quota).
    pub(crate) fn transfer_quota_back(&mut self, from: &Record, to: &Record) {
        let quotas = self.writer().quotas();
        let moved = quotas.transfer(self, Owners::of(to), Owners::of(from), all_of(from), false);
        if let Err(error) = moved {
            self.fail(error);
        }
    }
}

/// # Quotas
impl Fs {
    /// Returns the usage and the limits of an id; space of data that is only in the cache counts as
    /// used. `None` when the file system does not count this kind; an id without a record uses
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`] on a read-only mount, damage of the quota file, device errors.
    pub fn quota(&self, kind: QuotaKind, id: u32) -> Result<Option<QuotaEntry>> {
        self.volume().writer()?.quotas().entry(self.volume(), kind, id)
    }

    /// Sets the limits of an id.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] when the file system does not count this kind;
    /// [`FsError::NoSpace`] for a new record; [`FsError::ReadOnly`], [`FsError::Aborted`], damage
    /// of the quota file, device errors.
    pub fn set_quota_limits(&self, kind: QuotaKind, id: u32, limits: &QuotaLimits) -> Result<()> {
        let quotas = self.volume().writer()?.quotas();
        if !quotas.counts(kind) {
            let what = "kind: the file system has no quotas of this kind";
            return Err(FsError::InvalidArgument { what });
        }
        let mut txn = Txn::begin(self.volume(), ADD_CREDITS)?;
        quotas.set_limits(&mut txn, kind, id, limits)
    }
}
