//! Promises against limits: space for data in the cache that has no blocks yet.
//!
//! A write is refused when it is made, not when it goes to the device: every check counts promised
//! space as used. Promises are in memory only.
//!
//! # Invariants
//!
//! - Q4. A promise of an inode is one of its owners' for every kind, made for all kinds or none. It
//!   ends by [`Quotas::unpromise`] or, as a charge, by [`Quotas::charge_promised`]; a change of
//!   owner moves it.
//! - Q5. A promise becomes a charge atomically.
//! - Q6. Nobody is refused for the sake of a promise that ends because there is no space: while it
//!   is not known whether there is, the promise is [tentative](Tentative), and who would be refused
//!   waits for that. Who has made one waits for nothing before it is settled.

use super::{Change, Charge, Grow, Quotas, Table};
use crate::error::Result;
use crate::log::Log;
use crate::node::Node;
use crate::volume::Volume;
use extant_base::sabotage;

/// A promise that may end at once because there is no space; it counts as such until this is
/// dropped (Q6).
#[must_use = "it is settled when this is dropped"]
pub(crate) struct Tentative<'a>(Option<&'a Quotas>);

impl Drop for Tentative<'_> {
    fn drop(&mut self) {
        if let Some(quotas) = self.0 {
            let mut table = quotas.table.lock();
            table.tentative = table.tentative.saturating_sub(1);
            drop(table);
            quotas.settled.notify_all();
        }
    }
}

impl Quotas {
    /// Promises blocks, in units of 512 bytes, to the owners of an inode. Without quotas it costs
    /// one comparison; otherwise it reads an owner's record the first time. Opens no transaction.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`](crate::FsError::QuotaExceeded), with nothing promised; damage of
    /// a quota file, device errors.
    pub(crate) fn promise(
        &self,
        volume: &Volume,
        log: &Log,
        node: &Node,
        sectors: u64,
    ) -> Result<Tentative<'_>> {
        self.promise_if(volume, Some(log), node, sectors)
    }

    /// Promises like [`promise`](Self::promise), regardless of limits, for blocks that will not be
    /// charged.
    pub(crate) fn promise_anyway(&self, volume: &Volume, node: &Node, sectors: u64) -> Result<()> {
        self.promise_if(volume, None, node, sectors).map(drop)
    }

    /// Promises blocks; limits are checked if there is a clock for the grace times.
    fn promise_if(
        &self,
        volume: &Volume,
        clock: Option<&Log>,
        node: &Node,
        sectors: u64,
    ) -> Result<Tentative<'_>> {
        let Some(owners) = self.payers(node) else { return Ok(Tentative(None)) };
        let charge = Charge::blocks(sectors);
        let to = Some(owners);
        let clock = clock.filter(|_| self.enforced);
        let change = Change { to, from: None, charge, promised: 0, checked: clock.is_some() };
        for key in self.gainers(&change) {
            self.load(volume, key)?;
        }
        let now = clock.map_or(0, |log| u64::try_from(log.now().seconds).unwrap_or(0));
        let mut table = self.admit(&change, now)?;
        for key in self.gainers(&change) {
            let promised = table.promised.entry(key).or_default();
            *promised = promised.saturating_add(charge.space);
        }
        table.tentative += 1;
        Ok(Tentative(Some(self)))
    }

    /// Ends promises that were not charged. The amount never falls below zero.
    pub(crate) fn unpromise(&self, node: &Node, sectors: u64) {
        let Some(owners) = self.payers(node) else { return };
        self.table.lock().unpromise(self.ids(owners), Charge::blocks(sectors).space);
    }

    /// Charges blocks, in units of 512 bytes, of which `promised` were promised, regardless of
    /// limits.
    pub(crate) fn charge_promised<'v>(
        &self,
        txn: &mut impl Grow<'v>,
        node: &Node,
        sectors: u64,
        promised: u64,
    ) -> Result<()> {
        let Some(owners) = self.payers(node) else { return Ok(()) };
        let (charge, promised) = (Charge::blocks(sectors), Charge::blocks(promised).space);
        let change = Change { to: Some(owners), from: None, charge, promised, checked: false };
        self.apply(txn, change)
    }

    /// Loads a record, if it exists.
    fn load(&self, volume: &Volume, key: (u8, u32)) -> Result<()> {
        if self.table.lock().usage.contains_key(&key) {
            return Ok(());
        }
        let Some(file) = self.file(key.0) else { return Ok(()) };
        let tree = file.tree.lock();
        if let Some(found) = tree.find(volume, key.1)? {
            // Another thread may have loaded and changed it.
            self.table.lock().usage.entry(key).or_insert(found);
        }
        Ok(())
    }
}

impl Table {
    /// Returns the bytes promised to an id.
    pub(super) fn promised_to(&self, key: (u8, u32)) -> u64 {
        if sabotage("extant.quota.promises-not-counted") {
            return 0;
        }
        self.promised.get(&key).copied().unwrap_or(0)
    }

    pub(super) fn unpromise(&mut self, keys: impl Iterator<Item = (u8, u32)>, bytes: u64) {
        for key in keys {
            if let Some(promised) = self.promised.get_mut(&key) {
                *promised = promised.saturating_sub(bytes);
                if *promised == 0 {
                    self.promised.remove(&key);
                }
            }
        }
    }
}
