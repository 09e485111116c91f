//! How far to read when a reader comes to what is not cached.
//!
//! A few streams are remembered for each file: a reader that goes on where a stream ended gets twice
//! the window of before, one that comes from elsewhere gets what it asked for.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::PAGE_LOG2;

/// Streams remembered for a file.
const STREAMS: usize = 4;
/// First window of a reader that starts at the start of a file, in pages.
const FIRST: u64 = 16;
/// Largest window, in pages: 2 MiB.
const MOST: u64 = 512;

/// Where streams are expected to go on: page and window, packed; 0 for none.
#[derive(Default)]
pub(crate) struct Streams {
    slots: [AtomicU64; STREAMS],
    next: AtomicU64,
}

const WINDOW_BITS: u32 = 10;

impl Streams {
    /// How many pages to read from `page` on, for a reader that wants `wanted`. Hints: races between
    /// readers make windows smaller or larger, nothing else.
    pub(crate) fn window(&self, page: u64, wanted: u64) -> u64 {
        let wanted = wanted.max(1);
        for slot in &self.slots {
            let value = slot.load(Ordering::Relaxed);
            let (expected, window) = (value >> WINDOW_BITS, value & ((1 << WINDOW_BITS) - 1));
            if value != 0 && expected == page {
                let window = (window * 2).clamp(wanted.min(MOST), MOST);
                slot.store(pack(page + window.max(wanted), window), Ordering::Relaxed);
                return window.max(wanted);
            }
        }
        let window = if page == 0 { FIRST.max(wanted) } else { wanted };
        let at = self.next.fetch_add(1, Ordering::Relaxed) as usize % STREAMS;
        self.slots[at].store(pack(page + window, window.min(MOST)), Ordering::Relaxed);
        window
    }
}

fn pack(page: u64, window: u64) -> u64 {
    page << WINDOW_BITS | window
}

/// The order for a folio that starts a window of `pages` pages.
pub(crate) fn order_for(pages: u64) -> u8 {
    pages.max(1).ilog2() as u8
}

/// Pages that bytes `len` from byte `at` on touch.
pub(crate) fn pages_of(at: u64, len: u64) -> u64 {
    (at.saturating_add(len)).div_ceil(1 << PAGE_LOG2) - (at >> PAGE_LOG2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_doubles_for_who_goes_on_and_not_for_who_jumps() {
        let streams = Streams::default();
        let mut page = 0;
        let mut windows = Vec::new();
        for _ in 0..8 {
            let window = streams.window(page, 1);
            windows.push(window);
            page += window;
        }
        assert_eq!(windows, [16, 32, 64, 128, 256, 512, 512, 512]);
        assert_eq!(streams.window(1_000_000, 1), 1);
        assert_eq!(streams.window(77, 3), 3);
        assert_eq!(streams.window(page, 1), 512, "the stream is not forgotten");
    }

    #[test]
    fn a_large_request_is_its_own_window() {
        assert_eq!(Streams::default().window(0, 2000), 2000);
        assert_eq!(Streams::default().window(5, 2000), 2000);
    }
}
