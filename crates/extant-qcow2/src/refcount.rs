//! How often each cluster of the file is used, and which one is used next.

use std::io;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::damage;
use crate::header::{Header, read_entries};
use crate::store::Store;

/// Blocks of counts that are as in the file and stay in memory.
const BLOCKS_MAX: usize = 64;

struct Block {
    host: u64,
    bytes: Vec<u8>,
    is_changed: bool,
    /// The table in the file does not name it yet.
    is_new: bool,
    /// On its way to the file.
    is_leaving: bool,
}

/// The counts that a flush writes.
#[derive(Default)]
pub(crate) struct Leaving {
    /// Number of the block, where it lies, its bytes, whether the table names it yet.
    pub(crate) blocks: Vec<(u64, u64, Vec<u8>, bool)>,
    /// Offsets of entries of the refcount table in the file, with the entries.
    pub(crate) table: Vec<(u64, u64)>,
}

impl Leaving {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// The counts of an image that is written.
pub(crate) struct Refcounts {
    cluster_bits: u32,
    /// Bits of a count, as power of two.
    order: u32,
    table_offset: u64,
    table: Vec<u64>,
    blocks: FxHashMap<u64, Block>,
    /// Start of the search for unused clusters.
    hint: u64,
    /// Clusters with metadata: whatever their counts say, they are in use.
    metadata: FxHashSet<u64>,
}

impl Refcounts {
    pub(crate) fn load(store: &dyn Store, header: &Header, l1: &[u64]) -> io::Result<Refcounts> {
        let cluster_bits = header.cluster_bits;
        let entries = (header.reftable_clusters as usize) << (cluster_bits - 3);
        let table = read_entries(store, header.reftable_offset, entries)?;
        let mut metadata = FxHashSet::default();
        let mut range = |offset: u64, bytes: u64| {
            let first = offset >> cluster_bits;
            metadata.extend(first..first + bytes.div_ceil(1 << cluster_bits));
        };
        range(0, 1);
        range(header.l1_offset, u64::from(header.l1_entries) * 8);
        range(header.reftable_offset, u64::from(header.reftable_clusters) << cluster_bits);
        for entry in &table {
            if !entry.is_multiple_of(1 << cluster_bits) {
                return Err(damage(format!("a block of reference counts at byte {entry}")));
            }
        }
        metadata.extend(table.iter().chain(l1).map(|e| (e & crate::table::OFFSET) >> cluster_bits));
        let blocks = FxHashMap::default();
        let order = header.refcount_order;
        let table_offset = header.reftable_offset;
        Ok(Refcounts { cluster_bits, order, table_offset, table, blocks, hint: 1, metadata })
    }

    fn counts_bits(&self) -> u32 {
        self.cluster_bits + 3 - self.order
    }

    fn split(&self, cluster: u64) -> (u64, u64) {
        (cluster >> self.counts_bits(), cluster & ((1 << self.counts_bits()) - 1))
    }

    /// The block with the count of a cluster; `None` if there is none yet.
    fn block(&mut self, store: &dyn Store, number: u64) -> io::Result<Option<&mut Block>> {
        if !self.blocks.contains_key(&number) {
            let host = match self.table.get(number as usize) {
                Some(0) | None => return Ok(None),
                Some(host) => *host,
            };
            let mut bytes = vec![0; 1 << self.cluster_bits];
            store.read_at(host, &mut bytes)?;
            if self.blocks.len() >= BLOCKS_MAX {
                self.blocks.retain(|_, block| block.is_changed || block.is_leaving);
            }
            self.blocks.insert(
                number,
                Block { host, bytes, is_changed: false, is_new: false, is_leaving: false },
            );
        }
        Ok(self.blocks.get_mut(&number))
    }

    pub(crate) fn get(&mut self, store: &dyn Store, cluster: u64) -> io::Result<u64> {
        let ((number, index), order) = (self.split(cluster), self.order);
        Ok(self.block(store, number)?.map_or(0, |block| count(&block.bytes, order, index)))
    }

    fn set(&mut self, store: &dyn Store, cluster: u64, value: u64) -> io::Result<()> {
        let ((number, index), order) = (self.split(cluster), self.order);
        let block = self.block(store, number)?;
        let block = block.ok_or_else(|| damage(format!("cluster {cluster} has no count")))?;
        set_count(&mut block.bytes, order, index, value);
        block.is_changed = true;
        Ok(())
    }

    /// Up to `wanted` unused clusters that lie next to each other, counted as used once from now on: the
    /// first and how many.
    pub(crate) fn take(&mut self, store: &dyn Store, wanted: u64) -> io::Result<(u64, u64)> {
        let mut first = self.hint.max(1);
        loop {
            let (number, index) = self.split(first);
            if self.block(store, number)?.is_none() {
                self.start_block(store, number, first)?;
                first += 1;
                continue;
            }
            let (order, per_block) = (self.order, 1 << self.counts_bits());
            let block = self.block(store, number)?.ok_or_else(|| damage("no block"))?;
            let unused = (index..per_block).find(|index| count(&block.bytes, order, *index) == 0);
            let Some(start) = unused else {
                first = (number + 1) << self.counts_bits();
                continue;
            };
            let run = (start..per_block).take(wanted as usize);
            let run =
                run.take_while(|index| count(&block.bytes, order, *index) == 0).count() as u64;
            first = (number << self.counts_bits()) + start;
            if let Some(cluster) = (first..first + run).find(|c| self.metadata.contains(c)) {
                return Err(damage(format!(
                    "cluster {cluster} holds metadata and is counted as unused"
                )));
            }
            for cluster in first..first + run {
                self.set(store, cluster, 1)?;
            }
            self.hint = first + run;
            return Ok((first, run));
        }
    }

    /// Makes `cluster`, whose count has no block, the block of its own count.
    fn start_block(&mut self, store: &dyn Store, number: u64, cluster: u64) -> io::Result<()> {
        let Some(entry) = self.table.get_mut(number as usize) else {
            let message =
                "the table of reference counts is full: qemu-img convert makes a larger image";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        };
        let host = cluster << self.cluster_bits;
        // The block is written at a flush, which must not fail for want of space.
        store.allocate(host, 1 << self.cluster_bits)?;
        *entry = host;
        self.metadata.insert(cluster);
        let mut bytes = vec![0; 1 << self.cluster_bits];
        let index = self.split(cluster).1;
        set_count(&mut bytes, self.order, index, 1);
        self.blocks.insert(
            number,
            Block { host, bytes, is_changed: true, is_new: true, is_leaving: false },
        );
        Ok(())
    }

    /// One use less. True if the cluster is unused now.
    pub(crate) fn give_back(&mut self, store: &dyn Store, cluster: u64) -> io::Result<bool> {
        let left = self.get(store, cluster)?;
        let left = left
            .checked_sub(1)
            .ok_or_else(|| damage(format!("cluster {cluster} is used and counted as unused")))?;
        self.set(store, cluster, left)?;
        if left == 0 {
            self.hint = self.hint.min(cluster);
        }
        Ok(left == 0)
    }

    /// Takes the changes for a flush.
    pub(crate) fn take_changed(&mut self) -> Leaving {
        let mut leaving = Leaving::default();
        for (number, block) in self.blocks.iter_mut().filter(|(_, block)| block.is_changed) {
            leaving.blocks.push((*number, block.host, block.bytes.clone(), block.is_new));
            if block.is_new {
                leaving.table.push((self.table_offset + number * 8, block.host));
            }
            block.is_changed = false;
            block.is_new = false;
            block.is_leaving = true;
        }
        leaving.blocks.sort_by_key(|(_, host, _, _)| *host);
        leaving
    }

    /// Records that the changes taken by a flush are in the file.
    pub(crate) fn arrived(&mut self, leaving: &Leaving) {
        for (number, ..) in &leaving.blocks {
            if let Some(block) = self.blocks.get_mut(number) {
                block.is_leaving = false;
            }
        }
    }

    /// A flush failed: what it took is still to be written.
    pub(crate) fn put_back(&mut self, leaving: &Leaving) {
        for (number, _, _, is_new) in &leaving.blocks {
            if let Some(block) = self.blocks.get_mut(number) {
                block.is_changed = true;
                block.is_new |= *is_new;
                block.is_leaving = false;
            }
        }
    }

    /// `cluster` holds a second table from now on.
    pub(crate) fn note_metadata(&mut self, cluster: u64) {
        self.metadata.insert(cluster);
    }

    /// `cluster` holds none any more.
    pub(crate) fn forget_metadata(&mut self, cluster: u64) {
        self.metadata.remove(&cluster);
    }
}

/// Count `index` of a block, of 2^`order` bits.
fn count(bytes: &[u8], order: u32, index: u64) -> u64 {
    let index = index as usize;
    if order < 3 {
        let bits = 1 << order;
        let at = index << order;
        return u64::from(bytes[at / 8] >> (at % 8)) & ((1 << bits) - 1);
    }
    let width = 1usize << (order - 3);
    bytes[index * width..][..width].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn set_count(bytes: &mut [u8], order: u32, index: u64, value: u64) {
    let index = index as usize;
    if order < 3 {
        let bits = 1 << order;
        let at = index << order;
        let mask = (((1u32 << bits) - 1) << (at % 8)) as u8;
        bytes[at / 8] = bytes[at / 8] & !mask | ((value as u8) << (at % 8)) & mask;
        return;
    }
    let width = 1usize << (order - 3);
    bytes[index * width..][..width].copy_from_slice(&value.to_be_bytes()[8 - width..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_every_width_are_apart() {
        for order in 0..=6 {
            let mut bytes = vec![0; 512];
            let max = if order == 6 { u64::MAX } else { (1 << (1u32 << order)) - 1 };
            for index in [0, 1, 7, 8, 62] {
                set_count(&mut bytes, order, index, max);
                assert_eq!(count(&bytes, order, index), max, "{order} {index}");
                assert_eq!(count(&bytes, order, index + 1), 0);
                set_count(&mut bytes, order, index, 0);
                assert!(bytes.iter().all(|byte| *byte == 0), "{order} {index}");
            }
        }
    }
}
