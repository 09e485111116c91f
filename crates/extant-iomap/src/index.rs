//! The index of a file's folios, which the file's cache and the whole cache use.

use std::collections::{BTreeMap, BTreeSet};

use extant_sync::RwLock;

use crate::stats::LoneCounter;

/// The folios that a file has in the cache, in order.
#[derive(Default)]
pub(crate) struct Index {
    /// Frame and order by the first page of the file.
    pub(crate) folios: BTreeMap<u64, (u32, u8)>,
    /// First pages of dirty folios.
    pub(crate) dirty: BTreeSet<u64>,
}

impl Index {
    /// Returns the folio with `page`.
    pub(crate) fn at(&self, page: u64) -> Option<(u64, u32, u8)> {
        let (&start, &(id, order)) = self.folios.range(..=page).next_back()?;
        (page - start < 1 << order).then_some((start, id, order))
    }
}

/// The state of a file that the whole cache knows.
pub(crate) struct FileInner {
    pub(crate) id: u64,
    pub(crate) index: RwLock<Index>,
    pub(crate) units_touched: LoneCounter,
    pub(crate) bytes_copied: LoneCounter,
}
