//! How far to read when a reader comes to what is not cached, and what to fetch before it comes.
//!
//! # Shape
//!
//! A few *streams* are remembered for each file. A reader that goes on where one ended gets twice
//! the window of before, one that comes from elsewhere gets what it asked for. Windows end at
//! multiples of their size, so that one folio has all of a large one.
//!
//! A reader that goes on also has windows fetched *ahead* of it. Each is begun by whoever comes
//! first ([`Stream::next`] passes it then): a thread that the mapper asks to come
//! (`readahead`, `FileCache::fetch_next`), the reader itself, or a reader that would only wait for another
//! window to be filled. So readers need no thread, and a slow one does no harm. The first reader of
//! a folio that was fetched ahead moves the end of what is wanted.
//!
//! # Limits
//!
//! What is fetched ahead never fails anybody, never writes anything back to make room, and is
//! at most a tenth of the cache for one stream.

use extant_sync::{Mutex, Rank};

/// Streams remembered for a file.
const STREAMS: usize = 4;
/// First window of a reader that starts at the start of a file, in pages.
const FIRST: u64 = 16;
/// Largest window, in pages: 2 MiB.
const MOST: u64 = 512;
/// Windows ahead of the one where a reader is: one that the thread fills, one that a reader fills
/// instead of waiting, and one more for the thread meanwhile.
const AHEAD: u64 = 3;
/// The cache has room for so many windows.
const SHARE: u64 = 32;

/// Where a reader is expected to go on. All in pages.
#[derive(Clone, Copy, Default, Debug)]
struct Stream {
    /// Behind what was fetched, or begun to be.
    next: u64,
    /// Behind what is wanted; `next` or more.
    end: u64,
    /// A power of two, or 0 for no stream.
    window: u64,
    /// Something was wanted ahead.
    runs: bool,
}

impl Stream {
    fn grow(&mut self, most: u64) {
        self.window = (self.window * 2).min(most);
    }

    /// Where the window with `page` ends.
    fn window_end(&self, page: u64) -> u64 {
        (page / self.window + 1).saturating_mul(self.window)
    }

    /// Whether a reader at `page`, which is cached, belongs to it.
    fn is_near(&self, page: u64) -> bool {
        self.window > 0
            && page < self.end
            && self.next <= page.saturating_add((AHEAD + 2) * self.window)
    }

    /// The next window, begun from now on.
    fn begin(&mut self) -> Option<std::ops::Range<u64>> {
        let start = self.next;
        (self.window > 0 && start < self.end).then(|| {
            self.next = self.window_end(start).min(self.end);
            start..self.next
        })
    }
}

#[derive(Default)]
struct Slots {
    streams: [Stream; STREAMS],
    turn: usize,
}

/// What is remembered of the readers of a file.
pub(crate) struct Streams {
    slots: Mutex<Slots>,
    /// Largest window.
    most: u64,
}

/// What a reader reads that came to a page that is not cached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// Pages.
    pub(crate) pages: std::ops::Range<u64>,
    /// It went on where a stream ended.
    pub(crate) goes_on: bool,
}

impl Streams {
    /// None yet, for a cache of so many pages.
    pub(crate) fn new(cache_pages: u64) -> Streams {
        let most = (cache_pages / SHARE).clamp(1, MOST);
        Streams { slots: Mutex::new(Rank::Leaf, Slots::default()), most: 1 << most.ilog2() }
    }

    /// What to read for a reader that wants `wanted` pages from `page` on, which is not cached.
    pub(crate) fn miss(&self, page: u64, wanted: u64) -> Window {
        let wanted = wanted.max(1);
        let mut slots = self.slots.lock();
        for stream in slots.streams.iter_mut().filter(|stream| stream.window > 0) {
            let ahead = stream.end.min(stream.next + stream.window);
            if page == stream.next || (stream.next..ahead).contains(&page) {
                if page >= stream.end {
                    stream.grow(self.most);
                }
                let fits = wanted.min(self.most).next_power_of_two().min(self.most);
                stream.window = stream.window.max(fits);
                stream.next = stream.window_end(page).max(page.saturating_add(wanted));
                stream.end = stream.end.max(stream.next);
                return Window { pages: page..stream.next, goes_on: true };
            }
            // Begun by another, who has no folio yet, or evicted before it was read.
            if stream.runs && page < stream.next && stream.is_near(page) {
                let end = stream.window_end(page).min(stream.next);
                return Window {
                    pages: page..end.max(page.saturating_add(wanted)),
                    goes_on: false,
                };
            }
        }
        let pages = if page == 0 { FIRST.max(wanted) } else { wanted };
        let next = page.saturating_add(pages);
        let window = pages.min(self.most).next_power_of_two().min(self.most);
        let turn = slots.turn % STREAMS;
        slots.turn = turn + 1;
        slots.streams[turn] = Stream { next, end: next, window, runs: false };
        Window { pages: page..next, goes_on: false }
    }

    /// A reader has come to `page`: windows behind it are wanted, up to page `limit`. Whether
    /// there is one to fetch.
    pub(crate) fn arrive(&self, page: u64, limit: u64) -> bool {
        let mut slots = self.slots.lock();
        let Some(stream) = slots.streams.iter_mut().find(|stream| stream.is_near(page)) else {
            return false;
        };
        stream.grow(self.most);
        let end = stream.window_end(page).saturating_add(AHEAD * stream.window);
        stream.end = stream.end.max(end.min(limit));
        stream.runs = true;
        stream.next < stream.end
    }

    /// A window that is wanted, begun from now on: of any stream.
    pub(crate) fn begin(&self) -> Option<std::ops::Range<u64>> {
        self.slots.lock().streams.iter_mut().find_map(Stream::begin)
    }

    /// The same, of the stream whose reader is at `page`.
    pub(crate) fn begin_near(&self, page: u64) -> Option<std::ops::Range<u64>> {
        let mut slots = self.slots.lock();
        slots.streams.iter_mut().find(|stream| stream.is_near(page))?.begin()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Room for the largest windows.
    const LARGE: u64 = 1 << 20;

    #[test]
    fn a_window_doubles_for_who_goes_on_and_not_for_who_jumps() {
        let streams = Streams::new(LARGE);
        let mut page = 0;
        let mut ends = Vec::new();
        for _ in 0..9 {
            let window = streams.miss(page, 1);
            assert_eq!((window.pages.start, window.goes_on), (page, page > 0));
            page = window.pages.end;
            ends.push(page);
        }
        assert_eq!(ends, [16, 32, 64, 128, 256, 512, 1024, 1536, 2048]);
        let jump = |page, len| Window { pages: page..page + len, goes_on: false };
        assert_eq!(streams.miss(1_000_000, 1), jump(1_000_000, 1));
        assert_eq!(streams.miss(77, 3), jump(77, 3));
        assert_eq!(streams.miss(page, 1).pages, page..page + 512, "the stream is not forgotten");
    }

    #[test]
    fn a_large_request_is_its_own_window() {
        assert_eq!(Streams::new(LARGE).miss(0, 2000).pages, 0..2000);
        assert_eq!(Streams::new(LARGE).miss(5, 2000).pages, 5..2005);
    }

    #[test]
    fn windows_ahead_are_each_begun_once_and_end_at_the_limit() {
        let streams = Streams::new(LARGE);
        streams.miss(0, 16);
        assert_eq!(streams.begin(), None, "nobody has gone on yet");
        assert_eq!(streams.miss(16, 1).pages, 16..32);
        assert!(streams.arrive(16, 10_000));
        // The window has doubled by now: 64 pages.
        assert_eq!(streams.begin(), Some(32..64));
        assert_eq!(streams.begin_near(20), Some(64..128));
        // The reader comes to one that nobody has begun; what it left out stays for the others.
        assert_eq!(streams.miss(128, 1).pages, 128..192);
        assert_eq!(streams.begin(), Some(192..256));
        assert_eq!(streams.begin(), None);
        assert!(!streams.arrive(5000, 10_000), "no stream is there");
        assert!(streams.arrive(192, 300));
        assert_eq!(streams.begin(), Some(256..300));
        assert_eq!(streams.begin(), None);
        // What another has begun and is not there yet is no jump.
        let window = Window { pages: 260..300, goes_on: false };
        assert_eq!(streams.miss(260, 1), window);
        assert_eq!(streams.miss(300, 1).pages, 300..512);
    }

    #[test]
    fn a_small_cache_has_small_windows() {
        let streams = Streams::new(512);
        streams.miss(0, 1);
        for _ in 0..4 {
            let next = streams.slots.lock().streams[0].next;
            streams.miss(next, 1);
        }
        assert!(streams.arrive(60, u64::MAX));
        let mut ahead = 0;
        while let Some(pages) = streams.begin() {
            ahead += pages.end - pages.start;
        }
        assert!((16..=AHEAD * 16 + 16).contains(&ahead), "{ahead} of 512 pages");
    }
}
