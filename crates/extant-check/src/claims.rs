//! Which clusters are in use: runs of clusters for each group, and a bit for each cluster where there
//! are many runs.
//!
//! Several threads claim at once. A lock covers the groups of one flexible group or so, and is held
//! for one claim.

use extant_sync::{Mutex, Rank};

/// Runs that a group may have before it gets a bit for each cluster: 1 KiB.
const RUNS_MAX: usize = 128;

/// Groups below one lock.
const GROUPS_PER_LOCK: usize = 16;
/// Runs that a thread gathers.
const GATHERED: usize = 4;

/// The clusters of one group that are in use.
#[derive(Clone, Debug)]
enum Slot {
    /// In order, without overlap and with a gap between any two; each from its first cluster up to
    /// before its last.
    Runs(Vec<(u32, u32)>),
    /// A bit for each cluster, and how many are set.
    Bits(Box<[u64]>, u32),
}

impl Slot {
    /// Claims from `start` up to before `end`. The first that was claimed already.
    fn claim(&mut self, start: u32, end: u32, per_group: u32) -> Option<u32> {
        match self {
            Slot::Runs(runs) => {
                let twice = claim_run(runs, start, end);
                if runs.len() > RUNS_MAX {
                    let mut words = vec![0; per_group.div_ceil(64) as usize];
                    let set = fill(runs, &mut words);
                    *self = Slot::Bits(words.into_boxed_slice(), set);
                }
                twice
            }
            Slot::Bits(words, set) => {
                let (twice, added) = set_bits(words, start, end);
                *set = set.saturating_add(added);
                if *set >= per_group {
                    *self = Slot::Runs(vec![(0, per_group)]);
                }
                twice
            }
        }
    }

    fn count(&self) -> u32 {
        match self {
            Slot::Runs(runs) => runs.iter().map(|(start, end)| end - start).sum(),
            Slot::Bits(_, set) => *set,
        }
    }
}

/// Adds a run to those in order. The first cluster that was there already.
fn claim_run(runs: &mut Vec<(u32, u32)>, start: u32, end: u32) -> Option<u32> {
    // Those from `first` up to before `last` overlap the new run or touch it.
    let first = runs.partition_point(|run| run.1 < start);
    let last = runs.partition_point(|run| run.0 <= end);
    let touched = runs.get(first..last).unwrap_or(&[]);
    let overlap = touched.iter().find(|run| run.0 < end && run.1 > start);
    let twice = overlap.map(|run| run.0.max(start));
    let from = touched.first().map_or(start, |run| run.0.min(start));
    let to = touched.last().map_or(end, |run| run.1.max(end));
    match runs.get_mut(first).filter(|_| first < last) {
        Some(run) => {
            *run = (from, to);
            if last - first > 1 {
                runs.drain(first + 1..last);
            }
        }
        None => {
            if runs.is_empty() {
                // One is enough for most groups.
                runs.reserve_exact(1);
            }
            runs.insert(first, (from, to));
        }
    }
    twice
}

/// Sets the bits of runs. How many there are.
fn fill(runs: &[(u32, u32)], words: &mut [u64]) -> u32 {
    runs.iter().map(|(start, end)| set_bits(words, *start, *end).1).sum()
}

/// Sets bits. The first that was set already, and how many were not.
fn set_bits(words: &mut [u64], start: u32, end: u32) -> (Option<u32>, u32) {
    let (mut before, mut added) = (None, 0);
    let mut at = start;
    while at < end {
        let take = (end - at).min(64 - at % 64);
        let mask = (u64::MAX >> (64 - take)) << (at % 64);
        let Some(word) = words.get_mut((at / 64) as usize) else { break };
        let twice = *word & mask;
        if twice != 0 && before.is_none() {
            before = Some(at - at % 64 + twice.trailing_zeros());
        }
        added += (mask & !*word).count_ones();
        *word |= mask;
        at += take;
    }
    (before, added)
}

/// Clusters counted from the first block of the first group.
pub(crate) struct Claims {
    groups: Vec<Mutex<Vec<Slot>>>,
    per_group: u32,
}

impl Claims {
    /// Nothing claimed. `groups` groups of `per_group` clusters.
    pub(crate) fn new(groups: u32, per_group: u32) -> Claims {
        let mut left = groups as usize;
        let mut list = Vec::with_capacity(left.div_ceil(GROUPS_PER_LOCK));
        while left > 0 {
            let take = left.min(GROUPS_PER_LOCK);
            list.push(Mutex::new(Rank::Leaf, vec![Slot::Runs(Vec::new()); take]));
            left -= take;
        }
        Claims { groups: list, per_group: per_group.max(1) }
    }

    fn with<T>(&self, group: u64, work: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let group = usize::try_from(group).ok()?;
        let mut slots = self.groups.get(group / GROUPS_PER_LOCK)?.lock();
        slots.get_mut(group % GROUPS_PER_LOCK).map(work)
    }

    /// Claims `len` clusters from `first` on. The first of them that was claimed already; the others
    /// are claimed even so.
    pub(crate) fn claim(&self, first: u64, len: u64) -> Option<u64> {
        let per_group = u64::from(self.per_group);
        let mut before = None;
        let end = first.saturating_add(len);
        let mut at = first;
        while at < end {
            let (group, bit) = (at / per_group, at % per_group);
            let take = (end - at).min(per_group - bit);
            // Both are at most `per_group`.
            let (start, stop) = (bit as u32, (bit + take) as u32);
            let twice = self.with(group, |slot| slot.claim(start, stop, self.per_group));
            let Some(twice) = twice else { return before };
            if let (None, Some(twice)) = (before, twice) {
                before = Some(group * per_group + u64::from(twice));
            }
            at += take;
        }
        before
    }

    /// Clusters claimed in a group.
    pub(crate) fn count(&self, group: u32) -> u32 {
        self.with(u64::from(group), |slot| slot.count()).unwrap_or(0)
    }

    /// The bits of a group, into `words`.
    pub(crate) fn words(&self, group: u32, words: &mut Vec<u64>) {
        words.clear();
        words.resize(self.per_group.div_ceil(64) as usize, 0);
        self.with(u64::from(group), |slot| match slot {
            Slot::Runs(runs) => drop(fill(runs, words)),
            Slot::Bits(bits, _) => words.copy_from_slice(bits),
        });
    }

    /// The bits of all groups; `None` for those where nothing is claimed.
    pub(crate) fn to_groups(&self, groups: u32) -> Vec<Option<Box<[u64]>>> {
        let of = |group| {
            let mut words = Vec::new();
            (self.count(group) != 0).then(|| {
                self.words(group, &mut words);
                words.into_boxed_slice()
            })
        };
        (0..groups).map(of).collect()
    }
}

/// Runs of clusters that one thread gathers before it claims them: files that were written one after the other lie one
/// behind the other, and the locks of a small image are few.
#[derive(Default)]
pub(crate) struct Gathered {
    /// First cluster and length; a length of 0 for none.
    runs: [(u64, u64); GATHERED],
    next: usize,
}

impl Gathered {
    /// Returns whether one of these clusters was gathered and not given out.
    pub(crate) fn has_any(&self, first: u64, len: u64) -> bool {
        let end = first.saturating_add(len);
        self.runs.iter().any(|run| run.0 < end && first < run.0.saturating_add(run.1))
    }

    /// Adds `len` clusters from `first` on. Returns a run that is to be claimed now.
    pub(crate) fn add(&mut self, first: u64, len: u64) -> Option<(u64, u64)> {
        if let Some(run) =
            self.runs.iter_mut().find(|run| run.1 > 0 && run.0.checked_add(run.1) == Some(first))
        {
            run.1 = run.1.saturating_add(len);
            return None;
        }
        let run = self.runs.get_mut(self.next)?;
        self.next = (self.next + 1) % GATHERED;
        Some(std::mem::replace(run, (first, len))).filter(|run| run.1 > 0)
    }

    /// Returns all runs, which are to be claimed; none is left.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (u64, u64)> {
        std::mem::take(self).runs.into_iter().filter(|run| run.1 > 0)
    }
}

/// Compares the first `bits` bits of a bitmap with what should be there; `None` stands for zeros.
/// The first bit that differs, whether it is set in the bitmap, and how many differ.
pub(crate) fn compare(
    bitmap: &[u8],
    wanted: Option<&[u64]>,
    bits: u32,
) -> Option<(u32, bool, u32)> {
    let mut first = None;
    let mut count = 0;
    let (words, _) = bitmap.as_chunks::<8>();
    for (number, word) in words.iter().take(bits.div_ceil(64) as usize).enumerate() {
        let found = u64::from_le_bytes(*word);
        let wanted = wanted.and_then(|words| words.get(number)).copied().unwrap_or(0);
        let left = bits - (number as u32) * 64;
        let mask = if left >= 64 { u64::MAX } else { u64::MAX >> (64 - left) };
        let differ = (found ^ wanted) & mask;
        if differ != 0 {
            count += differ.count_ones();
            let bit = differ.trailing_zeros();
            first.get_or_insert((number as u32 * 64 + bit, found >> bit & 1 == 1));
        }
    }
    first.map(|(bit, marked)| (bit, marked, count))
}

#[cfg(test)]
mod tests {
    use extant_base::Prng;

    use super::*;

    #[test]
    fn what_is_gathered_is_claimed_once_and_as_a_whole() {
        let mut random = Prng::new(11);
        let (mut gathered, mut wanted) = (Gathered::default(), [0u32; 200]);
        let mut found = [0u32; 200];
        let mut note = |(first, len): (u64, u64)| {
            (first..first + len).for_each(|at| found[at as usize] += 1);
        };
        let mut claims = 0;
        for _ in 0..3 {
            let mut at = 0;
            while at < 190 {
                let len = 1 + random.below(4);
                (at..at + len).for_each(|at| wanted[at as usize] += 1);
                if let Some(run) = gathered.add(at, len) {
                    claims += 1;
                    note(run);
                }
                at += len + u64::from(random.one_in(8)) * random.below(5);
            }
        }
        gathered.take().for_each(&mut note);
        assert_eq!(gathered.take().count(), 0);
        assert_eq!(found, wanted);
        assert!(!gathered.has_any(0, 200), "nothing is left");
        _ = gathered.add(10, 5);
        assert!(gathered.has_any(0, 11) && gathered.has_any(14, 9) && gathered.has_any(12, 1));
        assert!(!gathered.has_any(0, 10) && !gathered.has_any(15, u64::MAX));
        assert!((1..60).contains(&claims), "{claims} runs were claimed before the end");
    }

    #[test]
    fn runs_and_bits_say_what_a_plain_list_says() {
        let mut random = Prng::new(7);
        for per_group in [64, 1000, 32768] {
            let claims = Claims::new(3, per_group);
            let mut plain = vec![false; 3 * per_group as usize];
            for _ in 0..4000 {
                let first = random.below(plain.len() as u64);
                let len = (1 + random.below(5)).min(plain.len() as u64 - first);
                let range = first as usize..(first + len) as usize;
                let wanted = range.clone().find(|at| plain[*at]).map(|at| at as u64);
                assert_eq!(claims.claim(first, len), wanted, "{first}+{len} of {per_group}");
                plain[range].fill(true);
            }
            let mut words = Vec::new();
            for (group, bits) in plain.chunks(per_group as usize).enumerate() {
                claims.words(group as u32, &mut words);
                let found = (0..bits.len()).map(|at| words[at / 64] >> (at % 64) & 1 == 1);
                assert!(found.eq(bits.iter().copied()));
                let wanted = bits.iter().filter(|bit| **bit).count();
                assert_eq!(claims.count(group as u32) as usize, wanted);
            }
        }
    }

    #[test]
    fn a_claim_past_the_last_group_ends() {
        let claims = Claims::new(2, 100);
        assert_eq!(claims.claim(150, u64::MAX), None);
        assert_eq!((claims.count(0), claims.count(1)), (0, 50));
        assert_eq!(claims.claim(0, 200), Some(150));
    }
}
