//! Quotas of users, groups and projects: usage and limits.
//!
//! # Place
//!
//! Beside: `quota::promise` holds space for data in the cache. Below: `quota::tree` finds and adds
//! records in the hidden quota files; `editor`. Above: changes charge inodes and blocks through
//! `Txn`, whose [`Grow`] makes a quota file longer.
//!
//! # Invariants
//!
//! - Q1. Usage in memory is authoritative once an id was touched. A record is encoded once per
//!   transaction, when it locks.
//! - Q2. A charge is checked for every kind before it is made for any: all or none.
//! - Q3. The quota files themselves, the other hidden inodes and inodes of attribute values are
//!   charged to no id.

mod promise;
mod tree;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::DerefMut;
use std::sync::Arc;

use extant_base::{FileBlock, FsBlock, Ino, sabotage};
use extant_format::features::RoCompat;
use extant_format::inode::{Inode as Record, InodeFlags};
use extant_format::quota::{LIMIT_UNIT_BYTES, QuotaEntry, QuotaHeader, QuotaKind, RECORD_BYTES};
use extant_format::superblock::Superblock;
use extant_jbd2::Tid;
use extant_sync::{Condvar, Mutex, MutexGuard, Rank};
use rustc_hash::FxHashMap;

use crate::alloc::SpaceFor;
use crate::editor::Editor;
use crate::error::{FsError, Result};
use crate::node::Node;
use crate::slot::BlockKind;
use crate::volume::Volume;
pub(crate) use tree::Extent;
use tree::Tree;

/// The resource that a transaction lacks for one more record: after a commit, the next transaction
/// has it.
pub(crate) const NO_CREDITS: &str = "journal blocks for a new quota record";

/// Credits for adding a record: tree blocks of four levels, a leaf, its neighbour, the header; the
/// inode, and for four new blocks bitmaps, descriptors and nodes of the map.
pub(crate) const ADD_CREDITS: u32 = 24;

/// The kinds, in the order of the arrays here.
const KINDS: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

/// The ids charged for an inode: user, group and project.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owners([u32; 3]);

impl Owners {
    pub(crate) fn new(uid: u32, gid: u32, project: u32) -> Owners {
        Owners([uid, gid, project])
    }

    pub(crate) fn of(record: &Record) -> Owners {
        Owners([record.uid, record.gid, record.project])
    }
}

/// An amount of usage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Charge {
    /// Allocated space in bytes.
    pub(crate) space: u64,
    /// Number of inodes.
    pub(crate) inodes: u64,
}

impl Charge {
    /// Returns the charge of `sectors` of 512 bytes.
    pub(crate) fn blocks(sectors: u64) -> Charge {
        Charge { space: sectors.saturating_mul(512), inodes: 0 }
    }

    /// The charge of one inode.
    pub(crate) const INODE: Charge = Charge { space: 0, inodes: 1 };
}

/// A change of charges: the ids that gain one, and those that lose one.
#[derive(Clone, Copy)]
struct Change {
    to: Option<Owners>,
    from: Option<Owners>,
    charge: Charge,
    /// Bytes of the charge that were promised to the gaining ids.
    promised: u64,
    checked: bool,
}

/// A handle through which a quota file can also grow. Mapping blocks needs space, which is charged
/// to quotas; so this module does not know maps, and the module that knows both implements this
/// trait.
pub(crate) trait Grow<'v>: DerefMut<Target = Editor<'v>> {
    /// Adds a block at the end of the file of `node`, as for all files with journaled contents.
    fn append_block(&mut self, node: &Arc<Node>) -> Result<(FileBlock, FsBlock)>;
}

/// Number of times that a refusal is reconsidered because other promises were tentative.
const ROUNDS_MAX: u32 = 64;

/// A quota file as found.
pub(crate) struct StoredFile {
    pub(crate) node: Arc<Node>,
    pub(crate) size: u64,
    /// The file's blocks, in order and without holes.
    pub(crate) extents: Vec<Extent>,
}

/// Returns the inodes of the quota files by kind, if there are any.
pub(crate) fn stored_files(superblock: &Superblock) -> [Option<Ino>; 3] {
    let inodes =
        [superblock.user_quota_inode, superblock.group_quota_inode, superblock.project_quota_inode];
    let is_on = superblock.features.has_ro_compat(RoCompat::QUOTA);
    inodes.map(|ino| Some(ino).filter(|ino| is_on && ino.0 != 0))
}

/// The quotas of a writable mount.
pub(crate) struct Quotas {
    files: [Option<File>; 3],
    table: Mutex<Table>,
    /// A tentative promise was settled.
    settled: Condvar,
    /// Whether limits are enforced; usage is always counted.
    enforced: bool,
    hidden: [Ino; 5],
    first_inode: Ino,
}

struct File {
    ino: Ino,
    space_grace: u32,
    inode_grace: u32,
    /// The tree, with rank `InodeMap` and key 0, before every inode: the file grows under this
    /// lock.
    tree: Mutex<Tree>,
}

#[derive(Default)]
struct Table {
    /// Usage by index of the kind, and id.
    usage: FxHashMap<(u8, u32), Usage>,
    /// Bytes promised to data in the cache, for ids that have any.
    promised: FxHashMap<(u8, u32), u64>,
    /// Number of promises of which it is not known whether there is space for them.
    tentative: u32,
    /// Ids that the running transaction changed.
    dirty: Vec<(u8, u32)>,
}

/// A record, and its place.
#[derive(Clone, Copy, Debug)]
struct Usage {
    entry: QuotaEntry,
    block: FsBlock,
    /// Offset of the record in the block.
    offset: usize,
    /// The last transaction whose dirty list has it; 0 for none.
    dirty: Tid,
}

impl Quotas {
    /// Opens the quota files that were [found](stored_files); the usage of an id is read when first
    /// needed.
    pub(crate) fn open(
        volume: &Volume,
        stored: [Option<StoredFile>; 3],
        enforced: bool,
    ) -> Result<Quotas> {
        let superblock = volume.superblock();
        let mut files = [None, None, None];
        for ((file, kind), stored) in files.iter_mut().zip(KINDS).zip(stored) {
            let Some(stored) = stored else { continue };
            let ino = stored.node.ino();
            let (tree, header): (Tree, QuotaHeader) = Tree::open(volume, stored, kind)?;
            *file = Some(File {
                ino,
                space_grace: header.space_grace,
                inode_grace: header.inode_grace,
                tree: Mutex::with_order(Rank::InodeMap, 0, tree),
            });
        }
        Ok(Quotas {
            files,
            table: Mutex::new(Rank::Leaf, Table::default()),
            settled: Condvar::new(),
            enforced,
            hidden: hidden(superblock),
            first_inode: superblock.first_inode,
        })
    }

    /// Returns whether any kind is counted.
    pub(crate) fn is_on(&self) -> bool {
        self.files.iter().any(Option::is_some)
    }

    /// Returns the ids charged for an inode; `None` for an inode that is not charged (Q3).
    pub(crate) fn payers(&self, node: &Node) -> Option<Owners> {
        let ino = node.ino();
        let ordinary = ino == Ino::ROOT || ino >= self.first_inode;
        if !self.is_on() || !ordinary || self.hidden.contains(&ino) {
            return None;
        }
        let is_paid = |record: &Record| !record.flags.contains(InodeFlags::EA_INODE);
        node.with(|data| is_paid(&data.record).then(|| Owners::of(&data.record)))
    }

    /// Returns whether the record of an owner is not known yet: then [`claim_all`](Self::claim_all)
    /// comes first.
    pub(crate) fn lacks_records(&self, owners: Owners) -> bool {
        self.is_on() && {
            let table = self.table.lock();
            self.ids(owners).any(|key| !table.usage.contains_key(&key))
        }
    }

    /// Makes sure that the owners have records: then a charge changes one block for each kind.
    /// Three times [`ADD_CREDITS`].
    pub(crate) fn claim_all<'v>(&self, txn: &mut impl Grow<'v>, owners: Owners) -> Result<()> {
        for key in self.ids(owners) {
            self.claim(txn, key, true)?;
        }
        Ok(())
    }

    /// Returns the keys of all counted kinds.
    fn ids(&self, owners: Owners) -> impl Iterator<Item = (u8, u32)> + '_ {
        let kinds = self.files.iter().zip(0u8..).zip(owners.0);
        kinds.filter_map(|((file, kind), id)| file.as_ref().map(|_| (kind, id)))
    }

    fn file(&self, kind: u8) -> Option<&File> {
        self.files.get(usize::from(kind))?.as_ref()
    }

    /// Adds a record to the transaction; returns false when there is none and `make` is false.
    fn claim<'v>(&self, txn: &mut impl Grow<'v>, key: (u8, u32), make: bool) -> Result<bool> {
        let tid = txn.tid();
        let known = self.table.lock().usage.get(&key).copied();
        let usage = match known {
            Some(usage) if usage.dirty == tid => return Ok(true),
            Some(usage) => usage,
            None => match self.find(txn, key, make)? {
                Some(usage) => usage,
                None => return Ok(false),
            },
        };
        txn.edit_block(usage.block, BlockKind::Plain, |_| ())?;
        let mut table = self.table.lock();
        let table = &mut *table;
        // Another thread may have loaded it first.
        let now = table.usage.entry(key).or_insert(usage);
        if now.dirty != tid {
            now.dirty = tid;
            table.dirty.push(key);
        }
        Ok(true)
    }

    /// Reads a record from its file, or adds one.
    fn find<'v>(
        &self,
        txn: &mut impl Grow<'v>,
        key: (u8, u32),
        make: bool,
    ) -> Result<Option<Usage>> {
        let Some(file) = self.file(key.0) else { return Ok(None) };
        let mut tree = file.tree.lock();
        if let Some(found) = tree.find(txn.volume(), key.1)? {
            return Ok(Some(found));
        }
        if !make {
            return Ok(None);
        }
        if !txn.extend(ADD_CREDITS) {
            let (wanted, free) = (u64::from(ADD_CREDITS), 0);
            return Err(FsError::NoSpace { what: NO_CREDITS, wanted, free });
        }
        tree.add(txn, key.1).map(Some)
    }

    /// Charges `owners`.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`], with nothing charged; full disks, for a new record; damage of a
    /// quota file; device errors.
    pub(crate) fn charge<'v>(
        &self,
        txn: &mut impl Grow<'v>,
        owners: Owners,
        charge: Charge,
    ) -> Result<()> {
        self.apply(txn, Change { to: Some(owners), from: None, charge, promised: 0, checked: true })
    }

    /// Ends a charge. Usage never falls below zero: a wrong count stays wrong until e2fsck corrects
    /// it.
    pub(crate) fn uncharge<'v>(
        &self,
        txn: &mut impl Grow<'v>,
        owners: Owners,
        charge: Charge,
    ) -> Result<()> {
        self.apply(
            txn,
            Change { to: None, from: Some(owners), charge, promised: 0, checked: false },
        )
    }

    /// Moves a charge. Errors as [`charge`](Self::charge).
    pub(crate) fn transfer<'v>(
        &self,
        txn: &mut impl Grow<'v>,
        from: Owners,
        to: Owners,
        charge: Charge,
        checked: bool,
    ) -> Result<()> {
        self.apply(txn, Change { to: Some(to), from: Some(from), charge, promised: 0, checked })
    }

    /// Moves the charges of everything that an inode uses, regardless of limits, because the change
    /// of its owner was accepted before.
    pub(crate) fn transfer_unchecked<'v>(
        &self,
        txn: &mut impl Grow<'v>,
        from: &Record,
        to: &Record,
    ) -> Result<()> {
        self.transfer(txn, Owners::of(from), Owners::of(to), all_of(from), false)
    }

    /// Charges a new inode, regardless of limits.
    pub(crate) fn charge_unchecked<'v>(&self, txn: &mut impl Grow<'v>, node: &Node) -> Result<()> {
        self.charge_anyway(txn, node, Charge::INODE)
    }

    /// Charges blocks, in units of 512 bytes, regardless of limits.
    pub(crate) fn charge_blocks_unchecked<'v>(
        &self,
        txn: &mut impl Grow<'v>,
        node: &Node,
        sectors: u64,
    ) -> Result<()> {
        self.charge_anyway(txn, node, Charge::blocks(sectors))
    }

    fn charge_anyway<'v>(
        &self,
        txn: &mut impl Grow<'v>,
        node: &Node,
        charge: Charge,
    ) -> Result<()> {
        let Some(owners) = self.payers(node) else { return Ok(()) };
        self.apply(
            txn,
            Change { to: Some(owners), from: None, charge, promised: 0, checked: false },
        )
    }

    /// Returns the ids that gain a charge; ids on both sides are not touched.
    fn gainers(&self, change: &Change) -> impl Iterator<Item = (u8, u32)> + '_ {
        self.changed(change.to, change.from)
    }

    /// Returns the ids that lose a charge; ids on both sides are not touched.
    fn losers(&self, change: &Change) -> impl Iterator<Item = (u8, u32)> + '_ {
        self.changed(change.from, change.to)
    }

    /// Returns the keys of `owners` that `others` do not have.
    fn changed(
        &self,
        owners: Option<Owners>,
        others: Option<Owners>,
    ) -> impl Iterator<Item = (u8, u32)> + '_ {
        let is_same = move |key: &(u8, u32)| {
            let at = usize::from(key.0);
            owners.zip(others).is_some_and(|(one, other)| one.0.get(at) == other.0.get(at))
        };
        owners.into_iter().flat_map(|owners| self.ids(owners)).filter(move |key| !is_same(key))
    }

    fn apply<'v>(&self, txn: &mut impl Grow<'v>, change: Change) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        for key in self.gainers(&change) {
            self.claim(txn, key, true)?;
        }
        for key in self.losers(&change) {
            self.claim(txn, key, false)?;
        }
        let charge = change.charge;
        let now = u64::try_from(txn.log().now().seconds).unwrap_or(0);
        let mut table = self.admit(&change, now)?;
        for key in self.gainers(&change) {
            if let (Some(usage), Some(file)) = (table.usage.get_mut(&key), self.file(key.0)) {
                let entry = &mut usage.entry;
                entry.space_bytes = entry.space_bytes.saturating_add(charge.space);
                entry.inodes = entry.inodes.saturating_add(charge.inodes);
                set_grace(entry, file, now);
            }
        }
        if change.promised != 0 {
            table.unpromise(self.gainers(&change), change.promised);
        }
        for key in self.losers(&change) {
            if let (Some(usage), Some(file)) = (table.usage.get_mut(&key), self.file(key.0)) {
                let entry = &mut usage.entry;
                entry.space_bytes = entry.space_bytes.saturating_sub(charge.space);
                if !sabotage("extant.quota.inodes-not-uncharged") {
                    entry.inodes = entry.inodes.saturating_sub(charge.inodes);
                }
                set_grace(entry, file, now);
            }
        }
        Ok(())
    }

    /// Locks the table when no limit is in the way of a change; waits for promises that may end (Q6).
    fn admit(&self, change: &Change, now: u64) -> Result<MutexGuard<'_, Table>> {
        let mut table = self.table.lock();
        if !change.checked || !self.enforced || SpaceFor::is_beyond_limits() {
            return Ok(table);
        }
        for round in 0.. {
            let refused = self.gainers(change).find_map(|key| {
                // An id without a record has no limits.
                let usage = table.usage.get(&key)?;
                check(key, &usage.entry, table.promised_to(key), change.charge, now).err()
            });
            match refused {
                Some(error) if table.tentative == 0 || round >= ROUNDS_MAX => return Err(error),
                Some(error) if sabotage("extant.quota.tentative-refuses") => return Err(error),
                Some(_) => self.settled.wait(&mut table),
                None => break,
            }
        }
        Ok(table)
    }

    /// Encodes the changed records into their blocks, which the transaction has claimed. No handle
    /// is open.
    pub(crate) fn encode(&self, volume: &Volume) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        let changed: Vec<Usage> = {
            let mut table = self.table.lock();
            let dirty = std::mem::take(&mut table.dirty);
            dirty.iter().filter_map(|key| table.usage.get(key).copied()).collect()
        };
        for usage in changed {
            let load = || volume.load_block(usage.block);
            volume.slot(usage.block).change(BlockKind::Plain, load, |block| {
                let end = usage.offset.saturating_add(RECORD_BYTES);
                if let Some(place) = block.get_mut(usage.offset..end) {
                    place.copy_from_slice(&usage.entry.encode());
                }
            })?;
        }
        Ok(())
    }

    /// Returns the usage and the limits of an id, with the space promised to it; `None` when the
    /// kind is not counted.
    pub(crate) fn entry(
        &self,
        volume: &Volume,
        kind: QuotaKind,
        id: u32,
    ) -> Result<Option<QuotaEntry>> {
        let Some(key) = self.key(kind, id) else { return Ok(None) };
        let known = |stored: Option<QuotaEntry>| {
            let table = self.table.lock();
            let mut entry = table.usage.get(&key).map(|usage| usage.entry).or(stored)?;
            entry.space_bytes = entry.space_bytes.saturating_add(table.promised_to(key)); // Q5
            Some(entry)
        };
        if let Some(entry) = known(None) {
            return Ok(Some(entry));
        }
        let Some(file) = self.file(key.0) else { return Ok(None) };
        let found = file.tree.lock().find(volume, id)?;
        let nothing = QuotaEntry { id, ..QuotaEntry::default() };
        Ok(known(Some(found.map_or(nothing, |usage| usage.entry))))
    }

    /// Returns whether the kind is counted.
    pub(crate) fn counts(&self, kind: QuotaKind) -> bool {
        self.key(kind, 0).is_some()
    }

    /// Sets the limits of an id of a counted kind. Needs [`ADD_CREDITS`].
    pub(crate) fn set_limits<'v>(
        &self,
        txn: &mut impl Grow<'v>,
        kind: QuotaKind,
        id: u32,
        limits: &QuotaLimits,
    ) -> Result<()> {
        let Some(key) = self.key(kind, id) else { return Ok(()) };
        self.claim(txn, key, true)?;
        let now = u64::try_from(txn.log().now().seconds).unwrap_or(0);
        let mut table = self.table.lock();
        if let (Some(usage), Some(file)) = (table.usage.get_mut(&key), self.file(key.0)) {
            let entry = &mut usage.entry;
            entry.space_hard_limit = limits.space_hard_kib;
            entry.space_soft_limit = limits.space_soft_kib;
            entry.inode_hard_limit = limits.inodes_hard;
            entry.inode_soft_limit = limits.inodes_soft;
            set_grace(entry, file, now);
        }
        Ok(())
    }

    /// Returns the key of an id of a kind; `None` when the kind is not counted.
    fn key(&self, kind: QuotaKind, id: u32) -> Option<(u8, u32)> {
        let (_, index) = KINDS.iter().zip(0u8..).find(|(one, _)| **one == kind)?;
        self.file(index).map(|_| (index, id))
    }
}

/// Limits of an id; see [`Fs::set_quota_limits`](crate::Fs::set_quota_limits). 0 means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QuotaLimits {
    /// Hard limit of the space, in KiB.
    pub space_hard_kib: u64,
    /// Soft limit of the space, in KiB, above which the grace time runs.
    pub space_soft_kib: u64,
    /// Hard limit of the number of inodes.
    pub inodes_hard: u64,
    /// Soft limit of the number of inodes, above which the grace time runs.
    pub inodes_soft: u64,
}

/// Returns the inodes that belong to the file system and are not charged.
fn hidden(superblock: &Superblock) -> [Ino; 5] {
    [
        superblock.user_quota_inode,
        superblock.group_quota_inode,
        superblock.project_quota_inode,
        superblock.orphan_file_inode,
        superblock.journal_inode,
    ]
}

/// Checks a further charge by Linux's rules: usage may never exceed a hard limit, and may exceed a
/// soft limit during the grace time, which begins with the charge that exceeds it. `promised` bytes
/// count as used.
fn check(
    key: (u8, u32),
    entry: &QuotaEntry,
    promised: u64,
    charge: Charge,
    now: u64,
) -> Result<()> {
    let over = |add: u64, used: u64, hard: u64, soft: u64, grace_end: u64| {
        let wanted = used.saturating_add(add);
        add != 0
            && ((hard != 0 && wanted > hard)
                || (soft != 0 && wanted > soft && grace_end != 0 && now >= grace_end))
    };
    let (hard, soft) = (bytes(entry.space_hard_limit), bytes(entry.space_soft_limit));
    let space = entry.space_bytes.saturating_add(promised);
    let what = if over(charge.space, space, hard, soft, entry.space_grace_end) {
        "blocks"
    } else {
        let (hard, soft) = (entry.inode_hard_limit, entry.inode_soft_limit);
        if !over(charge.inodes, entry.inodes, hard, soft, entry.inode_grace_end) {
            return Ok(());
        }
        "inodes"
    };
    let kind = match key.0 {
        0 => "user",
        1 => "group",
        _ => "project",
    };
    Err(FsError::QuotaExceeded { kind, id: key.1, what })
}

/// Starts or stops the grace time, which runs while usage exceeds the soft limit.
fn set_grace(entry: &mut QuotaEntry, file: &File, now: u64) {
    let end = |used: u64, soft: u64, end: u64, grace: u32| match end {
        _ if soft == 0 || used <= soft => 0,
        // 0 would mean that it does not run.
        0 if sabotage("extant.quota.grace-never-runs") => 0,
        0 => now.saturating_add(u64::from(grace)).max(1),
        running => running,
    };
    let soft = bytes(entry.space_soft_limit);
    entry.space_grace_end = end(entry.space_bytes, soft, entry.space_grace_end, file.space_grace);
    let soft = entry.inode_soft_limit;
    entry.inode_grace_end = end(entry.inodes, soft, entry.inode_grace_end, file.inode_grace);
}

/// Converts a limit on space into bytes.
fn bytes(limit: u64) -> u64 {
    limit.saturating_mul(LIMIT_UNIT_BYTES)
}

/// Returns everything that an inode with this record uses.
pub(crate) fn all_of(record: &Record) -> Charge {
    Charge { space: record.sectors.saturating_mul(512), inodes: 1 }
}

impl fmt::Debug for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inodes = self.files.each_ref().map(|file| file.as_ref().map(|file| file.ino));
        f.debug_struct("Quotas").field("inodes", &inodes).finish_non_exhaustive()
    }
}
