//! Index of the groups by the length of their longest free run: pure policy, without a volume.
//!
//! # Shape
//!
//! For each order there is one bit for each group: the order is the base-2 logarithm of the group's
//! longest free run outside windows. A search for a length asks for the next group of that order or
//! a larger one.
//!
//! # Invariants
//!
//! - O1. The index is a hint and the bitmap is authoritative: a group may be recorded under a wrong
//!   order. A search that finds nothing through the index looks at all groups before it gives up.
//! - O2. A group has at most one bit, that of the order recorded for it; both change under the
//!   group's lock. A group without free clusters has none.
//! - O3. The index is maintained whether searches use it or not.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::sparse::Sparse;

/// The largest order: runs of 2^17 clusters or more, and groups that were not looked at yet.
const TOP: usize = 17;

/// The order of a group without free clusters.
const NONE: u8 = u8::MAX;

/// Number of groups whose bits share a word.
const WORD: u32 = 64;

/// The bits of 64 groups.
struct Word {
    orders: [AtomicU64; TOP + 1],
    recorded: [AtomicU8; WORD as usize],
}

/// Bytes of what is kept of 64 groups.
#[cfg(test)]
pub(super) const WORD_BYTES: usize = size_of::<Word>();

impl Word {
    /// The word of groups that were not looked at yet.
    fn unknown(_: u32) -> Word {
        Word {
            orders: std::array::from_fn(|order| AtomicU64::new(if order == TOP { !0 } else { 0 })),
            recorded: std::array::from_fn(|_| AtomicU8::new(TOP as u8)),
        }
    }
}

/// The index of a volume's groups by their longest free run.
pub(super) struct Index {
    words: Sparse<Word>,
}

/// The order of a length: runs of at least that length have this order or a larger one.
fn order_of(len: u32) -> usize {
    (len.max(1).ilog2() as usize).min(TOP)
}

impl Index {
    pub(super) fn new(groups: u32) -> Index {
        Index { words: Sparse::new(groups.div_ceil(WORD), Word::unknown) }
    }

    /// Makes room for groups that are added, up to number `groups`; of at most `most`.
    pub(super) fn grow(&self, groups: u32, most: u32) {
        self.words.grow(groups.div_ceil(WORD), most.div_ceil(WORD));
    }

    /// Records that no free run of this group is longer than `longest`, `u32::MAX` if unknown. The
    /// caller holds the group's lock.
    pub(super) fn record(&self, group: u32, longest: u32) {
        let Some(word) = self.words.get(group / WORD) else { return };
        let (at, bit) = ((group % WORD) as usize, 1u64 << (group % WORD));
        let order = if longest == 0 { NONE } else { order_of(longest) as u8 };
        let Some(recorded) = word.recorded.get(at) else { return };
        let before = recorded.load(Ordering::Relaxed);
        if before == order {
            return;
        }
        recorded.store(order, Ordering::Relaxed);
        // The bit is taken from the recorded order, which may differ from the true one (P50).
        if let Some(orders) = word.orders.get(usize::from(before)) {
            orders.fetch_and(!bit, Ordering::AcqRel);
        }
        if let Some(orders) = word.orders.get(usize::from(order)) {
            orders.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Returns the first group in `from..end` that may have a free run of `len`.
    pub(super) fn next(&self, from: u32, end: u32, len: u32) -> Option<u32> {
        self.scan(from, end, order_of(len)..TOP + 1)
    }

    /// Returns a group whose longest run, shorter than `len` and at least `least`, may be the
    /// longest of its kind: the next such group from `from` on, or else from the start.
    pub(super) fn longest_below(&self, from: u32, end: u32, len: u32, least: u32) -> Option<u32> {
        let orders = order_of(least)..order_of(len) + 1;
        let near = |order: usize| {
            let orders = order..order + 1;
            self.scan(from, end, orders.clone()).or_else(|| self.scan(0, from.min(end), orders))
        };
        orders.rev().find_map(near)
    }

    fn scan(&self, from: u32, end: u32, orders: std::ops::Range<usize>) -> Option<u32> {
        let mut at = from;
        while at < end {
            let word = self.words.get(at / WORD)?;
            let all = word.orders.get(orders.clone()).unwrap_or_default();
            let any = all.iter().fold(0, |any, order| any | order.load(Ordering::Acquire));
            let here = any & (!0 << (at % WORD));
            if here != 0 {
                let found = at - at % WORD + here.trailing_zeros();
                return (found < end).then_some(found);
            }
            at = (at - at % WORD).saturating_add(WORD);
        }
        None
    }

    /// Size of the index in bytes when all groups were looked at.
    #[cfg(test)]
    fn bytes_max(&self) -> usize {
        self.words.len() as usize * size_of::<Word>()
    }
}

/// Iterator over the groups that a search visits, each once: `first`, then those that the index
/// names from there to the last group, then those before `first`. Without an index, all groups in
/// that order.
#[derive(Clone)]
pub(super) struct Visits<'i> {
    index: Option<&'i Index>,
    len: u32,
    first: u32,
    groups: u32,
    /// Number of groups from `first` on that are done.
    done: u32,
}

impl<'i> Visits<'i> {
    pub(super) fn new(index: Option<&'i Index>, first: u32, groups: u32, len: u32) -> Visits<'i> {
        Visits { index, len, first: first.min(groups.saturating_sub(1)), groups, done: 0 }
    }
}

impl Iterator for Visits<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.done >= self.groups {
            return None;
        }
        // The sum is below twice the number of groups, which may be beyond 32 bits.
        let before_end = self.groups - self.first;
        let found = match self.index {
            Some(index) if self.done > 0 => {
                let behind = match self.done < before_end {
                    true => index.next(self.first + self.done, self.groups, self.len),
                    false => None,
                };
                let from = self.done.saturating_sub(before_end);
                behind.or_else(|| index.next(from, self.first, self.len))
            }
            _ if self.done < before_end => Some(self.first + self.done),
            _ => Some(self.done - before_end),
        };
        let Some(found) = found else {
            self.done = self.groups;
            return None;
        };
        self.done = match found >= self.first {
            true => found - self.first + 1,
            false => before_end + found + 1,
        };
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use extant_base::Prng;

    use super::*;

    #[test]
    fn p49_of_ten_thousand_full_groups_none_is_visited() {
        let index = Index::new(10_000);
        (0..10_000).for_each(|group| index.record(group, 0));
        assert_eq!(Visits::new(Some(&index), 17, 10_000, 1).collect::<Vec<_>>(), [17]);
        index.record(9_999, 40);
        index.record(3, 5);
        assert_eq!(Visits::new(Some(&index), 17, 10_000, 32).collect::<Vec<_>>(), [17, 9_999]);
        assert_eq!(Visits::new(Some(&index), 17, 10_000, 5).collect::<Vec<_>>(), [17, 9_999, 3]);
        // One that becomes full leaves at once.
        index.record(9_999, 0);
        assert_eq!(Visits::new(Some(&index), 17, 10_000, 32).collect::<Vec<_>>(), [17]);
        assert_eq!(Visits::new(None, 9_998, 10_000, 32).count(), 10_000, "without the index, all");
    }

    #[test]
    fn p50_a_group_is_in_one_order_whatever_it_was_in_before() {
        let index = Index::new(200);
        let mut random = Prng::new(50);
        let mut longest = vec![u32::MAX; 200];
        for _ in 0..20_000 {
            let group = random.below(200) as u32;
            let len = match random.below(8) {
                0 => 0,
                1 => u32::MAX,
                _ => 1 << random.below(20) | random.below(3) as u32,
            };
            index.record(group, len);
            longest[group as usize] = len;
            let wanted = 1 << random.below(17) | random.below(2) as u32;
            let first = random.below(200) as u32;
            let visits: Vec<u32> = Visits::new(Some(&index), first, 200, wanted).collect();
            let mut expected: Vec<u32> = (first..200).chain(0..first).collect();
            expected.retain(|group| {
                let longest = longest[*group as usize];
                *group == first || (longest > 0 && order_of(longest) >= order_of(wanted))
            });
            assert_eq!(visits, expected, "{wanted} from {first}");
            // Whoever has as much as is wanted is among them (O1).
            let has = |group: u32| longest[group as usize] >= wanted;
            assert!((0..200).filter(|group| has(*group)).all(|group| visits.contains(&group)));
        }
    }

    #[test]
    fn the_longest_run_that_is_too_short_is_found_nearest_first() {
        let index = Index::new(1000);
        (0..1000).for_each(|group| index.record(group, 3));
        index.record(40, 100);
        index.record(700, 90);
        assert_eq!(index.longest_below(50, 1000, 500, 1), Some(700));
        assert_eq!(index.longest_below(800, 1000, 500, 1), Some(40), "and round");
        assert_eq!(index.longest_below(800, 1000, 30, 1), Some(800));
        assert_eq!(index.longest_below(0, 1000, 500, 101), Some(40), "orders, not lengths");
        assert_eq!(index.longest_below(0, 1000, 500, 256), None);
    }

    #[test]
    fn a_file_system_of_16_tib_is_indexed_in_less_than_a_mebibyte() {
        assert!(Index::new(131_072).bytes_max() < 1 << 20);
    }
}
