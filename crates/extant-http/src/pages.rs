//! What was fetched lately, and what is being fetched.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

/// Number of readers whose places are remembered.
const STREAMS: usize = 8;

/// Pages from which on a run is a large one.
const LARGE: u64 = 16;

/// Number of forgotten runs whose memory is kept.
const SPARE_MAX: usize = 4;

/// Where turns begin. Runs that were read to their end have lower ones: they are the first to go.
const TURNS: u64 = 1 << 62;

/// What one request brought. It stays, and goes, as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// The first page.
    pub(crate) first: u64,
    /// The bytes of all pages.
    pub(crate) bytes: Arc<Vec<u8>>,
}

struct Kept {
    run: Run,
    pages: u64,
    /// When it was used last.
    used: u64,
}

/// Pages of a file by their numbers, at most so many, and the pages that threads are fetching.
///
/// Large runs, which are mostly contents that are read once, have no more than three quarters of the room, so that
/// they do not drive out what leads to them.
pub(crate) struct Pages {
    /// Which run has a page.
    pages: FxHashMap<u64, u64>,
    runs: FxHashMap<u64, Kept>,
    /// Large runs, and others, by when they were used.
    by_use: [BTreeMap<u64, u64>; 2],
    /// Pages of large runs, and of others.
    counts: [u64; 2],
    turn: u64,
    read_turn: u64,
    last_run: u64,
    most: u64,
    coming: FxHashSet<u64>,
    /// Memory of large runs that were forgotten, for those that come: at most [`SPARE_MAX`].
    spare: Vec<Vec<u8>>,
    /// Ranges that were fetched, which readers may go on behind.
    streams: [Range<u64>; STREAMS],
    oldest: usize,
}

impl Kept {
    fn class(&self) -> usize {
        usize::from(self.pages < LARGE)
    }
}

impl Pages {
    pub(crate) fn new(most: u64) -> Pages {
        Pages {
            pages: FxHashMap::default(),
            runs: FxHashMap::default(),
            by_use: [BTreeMap::new(), BTreeMap::new()],
            counts: [0; 2],
            turn: TURNS,
            read_turn: 0,
            last_run: 0,
            most: most.max(1),
            coming: FxHashSet::default(),
            spare: Vec::new(),
            streams: [const { 0..0 }; STREAMS],
            oldest: 0,
        }
    }

    /// Returns how many pages large runs may have together.
    pub(crate) fn large_most(most: u64) -> u64 {
        most / 4 * 3
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.pages.contains_key(&number)
    }

    /// Returns the run that has a page, if it is here, for a reader who reads up to `end`. The run is the last to be
    /// forgotten now; a large one that is read to its end is the first.
    pub(crate) fn get(&mut self, number: u64, end: u64) -> Option<Run> {
        let id = *self.pages.get(&number)?;
        let kept = self.runs.get_mut(&id)?;
        let by_use = &mut self.by_use[kept.class()];
        by_use.remove(&kept.used);
        let is_over = kept.pages >= LARGE && end >= kept.run.first + kept.pages;
        let turn = if is_over { &mut self.read_turn } else { &mut self.turn };
        *turn += 1;
        kept.used = *turn;
        by_use.insert(*turn, id);
        Some(kept.run.clone())
    }

    pub(crate) fn is_coming(&self, number: u64) -> bool {
        self.coming.contains(&number)
    }

    /// Claims a run of pages from `at` on, which is neither here nor coming, for the caller to
    /// fetch: `wanted` of them, more for a reader that goes on where it was, `most` at the most,
    /// and none from `end` on.
    pub(crate) fn claim(&mut self, at: u64, wanted: u64, most: u64, end: u64) -> Range<u64> {
        let earlier = self.streams.iter().find(|stream| stream.end == at && stream.start < at);
        let ahead = earlier.map_or(0, |stream| 2 * (stream.end - stream.start));
        self.claim_exactly(at, wanted.max(ahead).clamp(1, most), end)
    }

    /// Claims `wanted` pages from `at` on, as far as they are neither here nor coming, and none from `end` on.
    pub(crate) fn claim_exactly(&mut self, at: u64, wanted: u64, end: u64) -> Range<u64> {
        let limit = at.saturating_add(wanted).min(end);
        let mut to = at;
        while to < limit && !self.pages.contains_key(&to) && self.coming.insert(to) {
            to += 1;
        }
        at..to
    }

    /// Returns memory for `pages` pages to come, with any contents: memory that was used before costs no zeros.
    pub(crate) fn room(&mut self, pages: u64) -> Vec<u8> {
        if pages < LARGE {
            return Vec::new();
        }
        self.spare.pop().unwrap_or_default()
    }

    /// Ends a claim.
    pub(crate) fn release(&mut self, claimed: Range<u64>) {
        for number in claimed {
            self.coming.remove(&number);
        }
    }

    /// Keeps a run of `pages` pages, and forgets those that were not used for longest.
    pub(crate) fn keep(&mut self, run: Run, pages: u64) {
        self.turn += 1;
        self.last_run += 1;
        let (id, used) = (self.last_run, self.turn);
        for number in run.first..run.first + pages {
            self.pages.insert(number, id);
        }
        let kept = Kept { run, pages, used };
        let class = kept.class();
        self.by_use[class].insert(used, id);
        self.counts[class] += pages;
        self.runs.insert(id, kept);
        while self.counts[0] > Pages::large_most(self.most) && self.forget(0) {}
        while self.counts.iter().sum::<u64>() > self.most && (self.forget(1) || self.forget(0)) {}
    }

    /// Forgets the run of a class that was not used for longest. False if there is none.
    fn forget(&mut self, class: usize) -> bool {
        let Some((_, id)) = self.by_use[class].pop_first() else { return false };
        if let Some(kept) = self.runs.remove(&id) {
            self.counts[class] -= kept.pages;
            for number in kept.run.first..kept.run.first + kept.pages {
                // It may have come again since.
                if self.pages.get(&number) == Some(&id) {
                    self.pages.remove(&number);
                }
            }
            // Somebody may read it still.
            if kept.pages >= LARGE
                && self.spare.len() < SPARE_MAX
                && let Some(bytes) = Arc::into_inner(kept.run.bytes)
            {
                self.spare.push(bytes);
            }
        }
        true
    }

    /// Remembers that these pages were fetched for a reader who may go on.
    pub(crate) fn note_stream(&mut self, fetched: Range<u64>) {
        let goes_on = self.streams.iter().position(|stream| stream.end == fetched.start);
        let at = goes_on.unwrap_or_else(|| {
            self.oldest = (self.oldest + 1) % STREAMS;
            self.oldest
        });
        self.streams[at] = fetched;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, byte: u8) -> Run {
        Run { first, bytes: Arc::new(vec![byte]) }
    }

    fn here(pages: &Pages, numbers: impl IntoIterator<Item = u64>) -> Vec<bool> {
        numbers.into_iter().map(|number| pages.has(number)).collect()
    }

    #[test]
    fn what_was_not_used_for_longest_is_forgotten() {
        let mut pages = Pages::new(3);
        (0..3).for_each(|number| pages.keep(run(number, number as u8), 1));
        assert!(pages.get(0, 1).is_some());
        pages.keep(run(3, 3), 1);
        assert_eq!(here(&pages, 0..4), [true, false, true, true]);
        // The same page again: the newer one counts, and the older one goes first.
        pages.keep(run(3, 9), 1);
        assert_eq!(pages.get(3, 4).unwrap().bytes[0], 9);
        assert_eq!((pages.counts, pages.runs.len()), ([0, 3], 3));
        pages.keep(run(5, 5), 1);
        pages.keep(run(6, 6), 1);
        assert_eq!(here(&pages, [0, 2, 3, 5, 6]), [false, false, true, true, true]);
        assert_eq!((pages.pages.len(), pages.by_use[1].len()), (3, 3));
    }

    #[test]
    fn large_runs_leave_a_quarter_to_others_and_go_first_when_they_were_read() {
        let mut pages = Pages::new(128);
        for number in 0..32 {
            pages.keep(run(number, 0), 1);
        }
        for number in 0..3 {
            pages.keep(run(1000 + 32 * number, 1), 32);
        }
        assert_eq!(pages.counts, [96, 32]);
        // In parts; the one in the middle to its end.
        assert!(pages.get(1000, 1016).is_some() && pages.get(1064, 1095).is_some());
        assert!(pages.get(1032, 1064).is_some());
        pages.keep(run(2000, 1), 32);
        assert_eq!(
            here(&pages, [0, 31, 1000, 1032, 1063, 1064, 2000]),
            [true, true, true, false, false, true, true]
        );
        assert_eq!(pages.counts, [96, 32]);
        // The memory of what was forgotten is there for what comes, unless somebody reads it.
        assert_eq!((pages.spare.len(), pages.room(15).len(), pages.room(16).len()), (1, 0, 1));
        let read = pages.get(2000, 2001).unwrap();
        (0..9).for_each(|number| pages.keep(run(3000 + 32 * number, 1), 32));
        assert_eq!((pages.spare.len(), read.bytes.len()), (SPARE_MAX, 1));
        // What is too large for the room is not kept, and drives nothing out but large runs.
        let mut small = Pages::new(16);
        small.keep(run(0, 0), 1);
        small.keep(run(100, 1), 16);
        assert_eq!(here(&small, [0, 100]), [true, false]);
        assert_eq!(small.counts, [0, 1]);
    }

    #[test]
    fn a_page_is_claimed_once_and_again_after_its_release() {
        let mut pages = Pages::new(100);
        pages.keep(run(6, 0), 1);
        assert_eq!(pages.claim(2, 10, 64, 100), 2..6);
        assert!(pages.is_coming(5) && !pages.is_coming(6));
        assert_eq!(pages.claim(0, 10, 64, 100), 0..2);
        pages.release(2..6);
        assert_eq!(pages.claim(3, 1, 64, 100), 3..4);
        assert_eq!(pages.claim(99, 10, 64, 100), 99..100);
    }

    #[test]
    fn who_goes_on_gets_twice_as_much_up_to_the_most() {
        let mut pages = Pages::new(1000);
        let mut at = 10;
        let mut lens = Vec::new();
        for _ in 0..6 {
            let claimed = pages.claim(at, 1, 16, 1000);
            lens.push(claimed.end - claimed.start);
            at = claimed.end;
            pages.note_stream(claimed.clone());
            pages.release(claimed.clone());
            pages.keep(run(claimed.start, 0), claimed.end - claimed.start);
        }
        assert_eq!(lens, [1, 2, 4, 8, 16, 16]);
        // Elsewhere it begins anew.
        assert_eq!(pages.claim(500, 1, 16, 1000), 500..501);
        // Who brings something near says how much.
        assert_eq!(pages.claim_exactly(at, 3, 1000), at..at + 3);
    }
}
