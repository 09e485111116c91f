//! Streams: the size of reads, and the windows to be read ahead.
//!
//! # Shape
//!
//! A few *streams* are remembered for each file. A reader that continues a stream gets twice its
//! last window; other readers get what they ask for. Windows end at multiples of their size, so
//! that one folio has all of a large one.
//!
//! For a reader that continues a stream, windows are also fetched *ahead*. Each is begun by the
//! first thread to come ([`Stream::next`] passes it then): a thread that the mapper asked for
//! (`readahead`, `FileCache::fetch_next`), the reader itself, or a reader that would only wait for
//! another window to be filled. So readers need no thread, and a slow one does no harm. The first
//! reader of a folio that was fetched ahead moves the wanted end.
//!
//! # Limits
//!
//! Fetching ahead never causes an error, never writes anything back to make room, and takes at most
//! a tenth of the cache for one stream.

use extant_sync::{Mutex, Rank};

/// Streams remembered for a file.
const STREAMS: usize = 4;
/// First window of a reader that starts at the start of a file, in pages.
const FIRST: u64 = 16;
/// Largest window, in pages: 2 MiB.
const MOST: u64 = 512;
/// Number of windows ahead of a reader's own: one that the thread fills, one that a reader fills
/// instead of waiting, and one more for the thread meanwhile.
const AHEAD: u64 = 3;
/// Smallest number of windows that fit in the cache.
const SHARE: u64 = 32;

/// A place at which a reader is expected to continue. All values are in pages.
#[derive(Clone, Copy, Default, Debug)]
struct Stream {
    /// End of the windows that were fetched, or begun.
    next: u64,
    /// End of the wanted windows; `next` or more.
    end: u64,
    /// Size of a window: a power of two, or 0 for no stream.
    window: u64,
    /// Whether a window was wanted ahead.
    runs: bool,
}

impl Stream {
    fn grow(&mut self, most: u64) {
        self.window = (self.window * 2).min(most);
    }

    /// Returns the end of the window with `page`.
    fn window_end(&self, page: u64) -> u64 {
        (page / self.window + 1).saturating_mul(self.window)
    }

    /// Returns whether a reader at `page`, which is cached, belongs to the stream.
    fn is_near(&self, page: u64) -> bool {
        self.window > 0
            && page < self.end
            && self.next <= page.saturating_add((AHEAD + 2) * self.window)
    }

    /// Begins the next window.
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

/// The streams of a file's readers.
pub(crate) struct Streams {
    slots: Mutex<Slots>,
    /// Largest window.
    most: u64,
}

/// The pages to read for a reader of a page that is not cached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// Pages.
    pub(crate) pages: std::ops::Range<u64>,
    /// Whether the reader continued a stream.
    pub(crate) goes_on: bool,
}

impl Streams {
    /// Creates the state without streams, for a cache of `cache_pages` pages.
    pub(crate) fn new(cache_pages: u64) -> Streams {
        let most = (cache_pages / SHARE).clamp(1, MOST);
        Streams { slots: Mutex::new(Rank::Leaf, Slots::default()), most: 1 << most.ilog2() }
    }

    /// Returns the pages to read for a reader that wants `wanted` pages from `page` on, which is
    /// not cached.
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
            // Another thread has begun it and has no folio yet, or it was evicted before it was
            // read.
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

    /// Records that a reader has reached `page`: the following windows are wanted, up to page
    /// `limit`. Returns whether there is one to fetch.
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

    /// Begins a wanted window of any stream.
    pub(crate) fn begin(&self) -> Option<std::ops::Range<u64>> {
        self.slots.lock().streams.iter_mut().find_map(Stream::begin)
    }

    /// Begins the next window of the stream whose reader is at `page`.
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
