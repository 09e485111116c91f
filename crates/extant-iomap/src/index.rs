//! Which folios a file has: what its cache and the whole cache both look at.

use std::collections::{BTreeMap, BTreeSet};

use extant_sync::RwLock;

use crate::stats::LoneCounter;

/// What a file has in the cache, in order.
#[derive(Default)]
pub(crate) struct Index {
    /// First page of the file → frame and order.
    pub(crate) folios: BTreeMap<u64, (u32, u8)>,
    /// First pages of dirty folios.
    pub(crate) dirty: BTreeSet<u64>,
}

impl Index {
    /// The folio that has `page`.
    pub(crate) fn at(&self, page: u64) -> Option<(u64, u32, u8)> {
        let (&start, &(id, order)) = self.folios.range(..=page).next_back()?;
        (page - start < 1 << order).then_some((start, id, order))
    }
}

/// What the whole cache knows of a file.
pub(crate) struct FileInner {
    pub(crate) id: u64,
    pub(crate) index: RwLock<Index>,
    pub(crate) units_touched: LoneCounter,
    pub(crate) bytes_copied: LoneCounter,
}
