//! Free clusters and inodes, as far as a repair may take them.

use std::ops::Range;

use extant_format::superblock::Superblock;

/// Which clusters are taken: a bit for each, in pieces of one group, made when first needed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits {
    groups: Vec<Option<Box<[u64]>>>,
    per_group: u32,
}

impl Bits {
    pub(crate) fn new(groups: u32, per_group: u32) -> Bits {
        Bits { groups: vec![None; groups as usize], per_group: per_group.max(1) }
    }

    fn place(&self, cluster: u64) -> (usize, usize, u64) {
        let per = u64::from(self.per_group);
        let (group, bit) = (cluster / per, cluster % per);
        (usize::try_from(group).unwrap_or(usize::MAX), (bit / 64) as usize, 1 << (bit % 64))
    }

    pub(crate) fn get(&self, cluster: u64) -> bool {
        let (group, word, mask) = self.place(cluster);
        let words = self.groups.get(group).and_then(Option::as_deref);
        words.and_then(|words| words.get(word)).is_some_and(|word| word & mask != 0)
    }

    pub(crate) fn set(&mut self, cluster: u64) {
        let (group, word, mask) = self.place(cluster);
        let len = self.per_group.div_ceil(64) as usize;
        if let Some(slot) = self.groups.get_mut(group) {
            let words = slot.get_or_insert_with(|| vec![0; len].into_boxed_slice());
            if let Some(word) = words.get_mut(word) {
                *word |= mask;
            }
        }
    }

    /// Adds the bits of a group.
    pub(crate) fn add_words(&mut self, group: u32, more: &[u64]) {
        let len = self.per_group.div_ceil(64) as usize;
        if let Some(slot) = self.groups.get_mut(group as usize) {
            let words = slot.get_or_insert_with(|| vec![0; len].into_boxed_slice());
            for (word, more) in words.iter_mut().zip(more) {
                *word |= more;
            }
        }
    }
}

/// Free space of the image.
#[derive(Debug)]
pub(crate) struct Space {
    /// In use in the image as it is now.
    pub(crate) taken: Bits,
    /// Clusters in use in the image on the device, or marked so in its bitmaps: used only when no
    /// others are left.
    pub(crate) pinned: Bits,
    clusters: u64,
    /// Start of the next search.
    next: u64,
}

impl Space {
    pub(crate) fn new(sb: &Superblock) -> Space {
        let bits = Bits::new(sb.group_count, sb.clusters_per_group);
        let blocks = sb.blocks_count.saturating_sub(u64::from(sb.first_data_block));
        Space { taken: bits.clone(), pinned: bits, clusters: blocks >> sb.cluster_bits(), next: 0 }
    }

    /// Takes `len` clusters in a row, none of which the image uses or, if there are any such, used.
    /// Searches all clusters once.
    pub(crate) fn take(&mut self, len: u64) -> Option<u64> {
        let (next, end) = (self.next, self.clusters);
        let at = [true, false].into_iter().find_map(|avoid| {
            self.find(len, next..end, avoid).or_else(|| self.find(len, 0..end, avoid))
        })?;
        self.next = at + len;
        Some(self.mark(at, len))
    }

    /// As [`take`](Self::take), in a range of clusters.
    pub(crate) fn take_within(&mut self, len: u64, range: Range<u64>) -> Option<u64> {
        let range = range.start..range.end.min(self.clusters);
        let at = self.find(len, range.clone(), true).or_else(|| self.find(len, range, false))?;
        Some(self.mark(at, len))
    }

    fn mark(&mut self, at: u64, len: u64) -> u64 {
        for cluster in at..at + len {
            self.taken.set(cluster);
        }
        at
    }

    fn find(&self, len: u64, range: Range<u64>, avoid_pinned: bool) -> Option<u64> {
        let mut run = 0;
        for cluster in range {
            let is_taken = self.taken.get(cluster) || avoid_pinned && self.pinned.get(cluster);
            run = if is_taken { 0 } else { run + 1 };
            if run == len {
                return Some(cluster + 1 - len);
            }
        }
        None
    }
}
