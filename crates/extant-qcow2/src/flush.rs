//! Bringing tables and counts into the file, in an order that every cut survives.
//!
//! 1. New blocks of counts, counts, new second tables; a sync, which takes the data along.
//! 2. The table of blocks of counts, if there are new ones; a sync.
//! 3. Second tables, and the first one; a sync.
//! 4. Clusters that lost their last reference in step 3 are counted as unused.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::sabotage;

use crate::image::Qcow2;
use crate::refcount::Leaving;
use crate::table::{COPIED, Table};

/// The changes that one flush writes to the file.
struct Changes {
    tables: Vec<(Arc<Table>, Vec<u8>)>,
    counts: Leaving,
    /// Numbers of entries of the first table, and the entries.
    l1: Vec<(usize, u64)>,
    new_tables: Vec<u64>,
    leaving: Vec<u64>,
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.tables.is_empty()
            && self.counts.is_empty()
            && self.l1.is_empty()
            && self.leaving.is_empty()
    }
}

impl Qcow2 {
    /// Makes everything that was written durable.
    pub(crate) fn flush_all(&self) -> io::Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        let _one = self.flushing.lock();
        self.check_health()?;
        let changes = self.take_changes()?;
        if changes.is_empty() {
            return self.sync();
        }
        if let Err(error) = self.bring(&changes) {
            // Changes that were not written are kept for a later flush.
            self.put_back(changes)?;
            return Err(error);
        }
        for (table, _) in &changes.tables {
            table.arrived();
        }
        self.state.lock().counts()?.arrived(&changes.counts);
        self.release(&changes.leaving)
    }

    fn sync(&self) -> io::Result<()> {
        // The system reports a failure once, and forgets the data that it could not write.
        self.store.sync().inspect_err(|_| self.is_failed.store(true, Ordering::Release))
    }

    /// Takes the changes so far, while no operation is under way.
    fn take_changes(&self) -> io::Result<Changes> {
        let _all = self.gate.write();
        let mut state = self.state.lock();
        let l1 = std::mem::take(&mut state.l1_changed).into_iter();
        let l1 = l1.map(|at| (at, self.l1[at].load(Ordering::Acquire))).collect();
        Ok(Changes {
            counts: state.counts()?.take_changed(),
            l1,
            new_tables: state.new_tables.drain().collect(),
            leaving: std::mem::take(&mut state.leaving),
            tables: self.tables.take_changed(),
        })
    }

    fn put_back(&self, changes: Changes) -> io::Result<()> {
        let mut state = self.state.lock();
        state.counts()?.put_back(&changes.counts);
        state.l1_changed.extend(changes.l1.iter().map(|(at, _)| *at));
        state.new_tables.extend(changes.new_tables);
        state.leaving.extend(changes.leaving);
        for (table, _) in &changes.tables {
            table.touch();
        }
        Ok(())
    }

    fn bring(&self, changes: &Changes) -> io::Result<()> {
        let store = &*self.store;
        for (_, host, bytes, _) in &changes.counts.blocks {
            store.write_at(*host, bytes)?;
        }
        let is_new = |table: &Table| changes.new_tables.contains(&table.host);
        for (table, bytes) in changes.tables.iter().filter(|(table, _)| is_new(table)) {
            store.write_at(table.host, bytes)?;
        }
        if !sabotage("qcow2.flush.references-not-after-data") {
            self.sync()?;
        }
        if !changes.counts.table.is_empty() {
            for (at, entry) in &changes.counts.table {
                store.write_at(*at, &entry.to_be_bytes())?;
            }
            self.sync()?;
        }
        for (table, bytes) in changes.tables.iter().filter(|(table, _)| !is_new(table)) {
            store.write_at(table.host, bytes)?;
        }
        for (at, entry) in &changes.l1 {
            debug_assert!(*entry & COPIED != 0, "only own tables are put into the first one");
            store.write_at(self.header.l1_offset + *at as u64 * 8, &entry.to_be_bytes())?;
        }
        self.sync()
    }

    /// Lowers the counts of clusters whose loss is durable.
    fn release(&self, leaving: &[u64]) -> io::Result<()> {
        if leaving.is_empty() {
            return Ok(());
        }
        let (store, bits) = (&*self.store, self.header.cluster_bits);
        let mut state = self.state.lock();
        for cluster in leaving {
            if state.counts()?.give_back(store, *cluster)? {
                state.has_room.remove(cluster);
                state.counts()?.forget_metadata(*cluster);
                self.tables.forget(cluster << bits);
                store.punch(cluster << bits, 1 << bits);
            }
        }
        // Written now, so that nothing is left over when this was the last flush; durable by the next.
        let changed = state.counts()?.take_changed();
        let is_plain = changed.table.is_empty();
        let write = || {
            changed.blocks.iter().try_for_each(|(_, host, bytes, _)| store.write_at(*host, bytes))
        };
        match is_plain && write().is_ok() {
            true => state.counts()?.arrived(&changed),
            false => state.counts()?.put_back(&changed),
        }
        Ok(())
    }
}
