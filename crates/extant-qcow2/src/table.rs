//! Second tables in memory: where the clusters of a part of the disk are.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use extant_sync::{Rank, RwLock};
use rustc_hash::FxHashMap;

use crate::header::read_entries;
use crate::store::Store;

/// Memory for tables that are as in the file, in bytes; at least [`TABLES_MIN`] of them.
const TABLES_BYTES: u64 = 32 << 20;
const TABLES_MIN: u64 = 8;

/// The cluster or table belongs to this image alone, so it may be written in place.
pub(crate) const COPIED: u64 = 1 << 63;
/// The cluster is compressed.
pub(crate) const COMPRESSED: u64 = 1 << 62;
/// The cluster reads as zeros, whatever lies where it is.
pub(crate) const ZERO: u64 = 1;
/// Mask of the offset of the cluster or table.
pub(crate) const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

const CLEAN: u8 = 0;
const DIRTY: u8 = 1;
/// On its way to the file.
const LEAVING: u8 = 2;

/// One second table.
pub(crate) struct Table {
    /// Offset of the table in the file.
    pub(crate) host: u64,
    entries: Box<[AtomicU64]>,
    state: AtomicU8,
    used: AtomicU64,
}

impl Table {
    pub(crate) fn new(host: u64, entries: Vec<u64>) -> Table {
        let entries = entries.into_iter().map(AtomicU64::new).collect();
        Table { host, entries, state: AtomicU8::new(CLEAN), used: AtomicU64::new(0) }
    }

    pub(crate) fn get(&self, index: usize) -> u64 {
        self.entries[index].load(Ordering::Acquire)
    }

    /// Changes an entry in memory; the file learns of it at the next flush.
    pub(crate) fn set(&self, index: usize, entry: u64) {
        self.entries[index].store(entry, Ordering::Release);
        self.state.store(DIRTY, Ordering::Release);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn touch(&self) {
        self.state.store(DIRTY, Ordering::Release);
    }

    fn is_clean(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLEAN
    }

    /// The bytes of a table that was changed. From now on it is on its way.
    fn take(&self) -> Option<Vec<u8>> {
        let changed =
            self.state.compare_exchange(DIRTY, LEAVING, Ordering::AcqRel, Ordering::Acquire);
        changed.ok()?;
        let entries = self.entries.iter();
        Some(entries.flat_map(|entry| entry.load(Ordering::Acquire).to_be_bytes()).collect())
    }

    /// Records that the table is in the file, unless it changed again.
    pub(crate) fn arrived(&self) {
        let _ = self.state.compare_exchange(LEAVING, CLEAN, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// The tables that are in memory, by where they are in the file.
pub(crate) struct Tables {
    map: RwLock<FxHashMap<u64, Arc<Table>>>,
    /// Number of tables in the map, for those who look at every write.
    count: AtomicUsize,
    clock: AtomicU64,
    max: usize,
}

impl Tables {
    /// `order`: among the locks of devices.
    pub(crate) fn new(cluster_bytes: u64, order: u64) -> Tables {
        let max = (TABLES_BYTES / cluster_bytes).max(TABLES_MIN) as usize;
        let map = RwLock::with_order(Rank::Device, order, FxHashMap::default());
        Tables { map, count: AtomicUsize::new(0), clock: AtomicU64::new(0), max }
    }

    /// The table at `host`, from the file if need be.
    pub(crate) fn load(
        &self,
        store: &dyn Store,
        host: u64,
        entries: usize,
    ) -> io::Result<Arc<Table>> {
        let now = self.clock.load(Ordering::Relaxed);
        if let Some(table) = self.map.read().get(&host) {
            table.used.store(now, Ordering::Relaxed);
            return Ok(Arc::clone(table));
        }
        let read = read_entries(store, host, entries)?;
        Ok(self.insert(Table::new(host, read)))
    }

    /// Puts a table in, unless another thread was first.
    pub(crate) fn insert(&self, table: Table) -> Arc<Table> {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        let mut map = self.map.write();
        make_room(&mut map, self.max);
        let table = Arc::clone(map.entry(table.host).or_insert_with(|| Arc::new(table)));
        self.count.store(map.len(), Ordering::Relaxed);
        table.used.store(now, Ordering::Relaxed);
        table
    }

    /// Forgets a table that is no longer one.
    pub(crate) fn forget(&self, host: u64) {
        let mut map = self.map.write();
        map.remove(&host);
        self.count.store(map.len(), Ordering::Relaxed);
    }

    /// Gives up what is in the file and was not used for long, as far as there are too many.
    pub(crate) fn shrink(&self) {
        let mut map = self.map.write();
        make_room(&mut map, self.max);
        self.count.store(map.len(), Ordering::Relaxed);
    }

    /// Returns whether so many tables wait for a flush that one is due.
    pub(crate) fn is_crowded(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.max.saturating_mul(2)
    }

    /// All changed tables with their bytes; those are on their way.
    pub(crate) fn take_changed(&self) -> Vec<(Arc<Table>, Vec<u8>)> {
        let map = self.map.read();
        let mut changed: Vec<_> =
            map.values().filter_map(|table| Some((Arc::clone(table), table.take()?))).collect();
        changed.sort_by_key(|(table, _)| table.host);
        changed
    }
}

/// Makes room for one more.
fn make_room(map: &mut FxHashMap<u64, Arc<Table>>, max: usize) {
    while map.len() >= max {
        // The holder of a table may be about to change it.
        let oldest = map
            .iter()
            .filter(|(_, table)| table.is_clean() && Arc::strong_count(table) == 1)
            .min_by_key(|(_, table)| table.used.load(Ordering::Relaxed))
            .map(|(host, _)| *host);
        match oldest {
            Some(host) => map.remove(&host),
            None => break,
        };
    }
}
