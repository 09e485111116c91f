//! The map from clusters of the disk to places in the file.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::compressed;
use crate::error::damage;
use crate::image::Qcow2;
use crate::table::{COMPRESSED, COPIED, OFFSET, Table, ZERO};

/// Place of one cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Not in this image: in the one below, or nowhere, which reads as zeros.
    Below,
    /// The cluster reads as zeros; one may be allocated for it.
    Zeros,
    /// In the file at this byte.
    Data(u64),
    /// Compressed; the entry says where.
    Packed(u64),
}

impl Qcow2 {
    /// Decodes an entry of a second-level table.
    pub(crate) fn place_of(&self, entry: u64) -> io::Result<Place> {
        if entry & COMPRESSED != 0 {
            return Ok(Place::Packed(entry));
        }
        let host = entry & OFFSET;
        if !host.is_multiple_of(self.header.cluster_bytes()) {
            return Err(damage(format!("a cluster at byte {host}, which is between two")));
        }
        Ok(match (entry & ZERO != 0 && self.header.version >= 3, host) {
            (true, _) => Place::Zeros,
            (false, 0) => Place::Below,
            (false, host) => Place::Data(host),
        })
    }

    /// The cluster that may be written in place, if the entry has one.
    pub(crate) fn own_cluster(&self, entry: u64) -> io::Result<Option<u64>> {
        let is_own = entry & COPIED != 0 && entry & COMPRESSED == 0 && entry & OFFSET != 0;
        if !is_own {
            return Ok(None);
        }
        let host = entry & OFFSET;
        if !host.is_multiple_of(self.header.cluster_bytes()) {
            return Err(damage(format!("a cluster at byte {host}, which is between two")));
        }
        Ok(Some(host))
    }

    /// The second table of entry `at` of the first one; `None` if there is none.
    pub(crate) fn table(&self, at: usize) -> io::Result<Option<Arc<Table>>> {
        let Some(entry) = self.l1.get(at) else {
            return Err(damage(format!("entry {at} of a first table of {}", self.l1.len())));
        };
        let host = entry.load(Ordering::Acquire) & OFFSET;
        if host == 0 {
            return Ok(None);
        }
        if !host.is_multiple_of(self.header.cluster_bytes()) {
            return Err(damage(format!(
                "a second table at byte {host}, which is between two clusters"
            )));
        }
        let entries = 1 << self.header.l2_bits();
        self.tables.load(&*self.store, host, entries).map(Some)
    }

    /// Entry of the first table, and of the second, for a cluster of the disk.
    pub(crate) fn indices(&self, cluster: u64) -> (usize, usize) {
        let bits = self.header.l2_bits();
        ((cluster >> bits) as usize, (cluster & ((1 << bits) - 1)) as usize)
    }

    /// The clusters of the file that an entry counts a use of.
    pub(crate) fn clusters_of(&self, entry: u64) -> Vec<u64> {
        let bits = self.header.cluster_bits;
        if entry & COMPRESSED != 0 {
            let (offset, len) = compressed::place(entry, bits);
            return (offset >> bits..=(offset + len - 1) >> bits).collect();
        }
        match entry & OFFSET {
            0 => Vec::new(),
            host => vec![host >> bits],
        }
    }
}
