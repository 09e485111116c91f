//! What was fetched lately, and what is being fetched.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

/// Number of readers whose places are remembered.
const STREAMS: usize = 8;

struct Page {
    bytes: Arc<[u8]>,
    /// When it was used last.
    used: u64,
}

/// Pages of a file by their numbers, at most so many, and the pages that threads are fetching.
pub(crate) struct Pages {
    pages: FxHashMap<u64, Page>,
    /// Numbers of the pages, by when they were used.
    by_use: BTreeMap<u64, u64>,
    turn: u64,
    most: usize,
    coming: FxHashSet<u64>,
    /// Ranges that were fetched, which readers may go on behind.
    streams: [Range<u64>; STREAMS],
    oldest: usize,
}

impl Pages {
    pub(crate) fn new(most: usize) -> Pages {
        Pages {
            pages: FxHashMap::default(),
            by_use: BTreeMap::new(),
            turn: 0,
            most: most.max(1),
            coming: FxHashSet::default(),
            streams: [const { 0..0 }; STREAMS],
            oldest: 0,
        }
    }

    /// Returns a page that is here; it is the last to be forgotten now.
    pub(crate) fn get(&mut self, number: u64) -> Option<Arc<[u8]>> {
        let page = self.pages.get_mut(&number)?;
        self.turn += 1;
        self.by_use.remove(&page.used);
        page.used = self.turn;
        self.by_use.insert(self.turn, number);
        Some(Arc::clone(&page.bytes))
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
        let limit = at.saturating_add(wanted.max(ahead).clamp(1, most)).min(end);
        let mut to = at;
        while to < limit && !self.pages.contains_key(&to) && self.coming.insert(to) {
            to += 1;
        }
        at..to
    }

    /// Ends a claim.
    pub(crate) fn release(&mut self, claimed: Range<u64>) {
        for number in claimed {
            self.coming.remove(&number);
        }
    }

    /// Keeps a page, and forgets those that were not used for longest.
    pub(crate) fn keep(&mut self, number: u64, bytes: Arc<[u8]>) {
        self.turn += 1;
        if let Some(earlier) = self.pages.insert(number, Page { bytes, used: self.turn }) {
            self.by_use.remove(&earlier.used);
        }
        self.by_use.insert(self.turn, number);
        while self.pages.len() > self.most
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.pages.remove(&oldest);
        }
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

    fn page(byte: u8) -> Arc<[u8]> {
        [byte].into()
    }

    #[test]
    fn what_was_not_used_for_longest_is_forgotten() {
        let mut pages = Pages::new(3);
        (0..3).for_each(|number| pages.keep(number, page(number as u8)));
        assert!(pages.get(0).is_some());
        pages.keep(3, page(3));
        assert_eq!(
            [0, 1, 2, 3].map(|number| pages.get(number).is_some()),
            [true, false, true, true]
        );
        pages.keep(3, page(9));
        assert_eq!(pages.get(3).as_deref(), Some([9].as_slice()));
        assert_eq!((pages.pages.len(), pages.by_use.len()), (3, 3));
    }

    #[test]
    fn a_page_is_claimed_once_and_again_after_its_release() {
        let mut pages = Pages::new(100);
        pages.keep(6, page(0));
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
            claimed.for_each(|number| pages.keep(number, page(0)));
        }
        assert_eq!(lens, [1, 2, 4, 8, 16, 16]);
        // Elsewhere it begins anew.
        assert_eq!(pages.claim(500, 1, 16, 1000), 500..501);
    }
}
