//! Counters of the cache.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter on a cache line of its own, so that threads that count different things do not
/// contend.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A counter that one thread at a time adds to, and any thread reads. It needs no locked
/// instruction, which after a large copy would wait until the copy has left the processor.
#[derive(Default)]
pub(crate) struct LoneCounter(AtomicU64);

impl LoneCounter {
    pub(crate) fn add_alone(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a cache since it was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct CacheStats {
            $($(#[$doc])* pub $name: u64,)*
            /// Number of pieces of 2 MiB of the cache's memory that became one huge page.
            pub chunks_huge: u64,
            /// Number of pieces that were filled and stayed small pages.
            pub chunks_plain: u64,
            /// Number of dirty bytes now.
            pub dirty_bytes: u64,
            /// Number of bytes of the arena in use now.
            pub used_bytes: u64,
        }

        impl CacheStats {
            /// Returns every counter with its name, for display.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![
                    $((stringify!($name), self.$name),)*
                    ("chunks_huge", self.chunks_huge),
                    ("chunks_plain", self.chunks_plain),
                    ("dirty_bytes", self.dirty_bytes),
                    ("used_bytes", self.used_bytes),
                ]
            }
        }

        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> CacheStats {
                CacheStats { $($name: self.$name.get(),)* ..CacheStats::default() }
            }
        }
    };
}

counters! {
    /// Folios made.
    folios_made,
    /// Folios evicted to make room.
    folios_evicted,
    /// Times a folio was looked for in a file's index, because neither the last one used nor a hint
    /// was right.
    index_finds,
    /// Requests to a mapper.
    mappings,
    /// Times a mapping was outdated when its folio was locked.
    stale_mappings,
    /// Bytes read from the device into the cache.
    bytes_filled,
    /// Bytes written from the cache to the device.
    bytes_written,
    /// Writes to the device.
    device_writes,
    /// Reads from the device.
    device_reads,
    /// Reads from the device that bypassed the cache.
    direct_reads,
    /// Writes to the device that bypassed the cache.
    direct_writes,
    /// Bytes read bypassing the cache.
    bytes_read_direct,
    /// Bytes written bypassing the cache.
    bytes_written_direct,
    /// Direct writes over data, with the content lock shared and without a handle.
    direct_overwrites,
    /// Direct reads and writes that were one device operation of a queue.
    direct_queued,
    /// Direct writes that gave unwritten blocks their first data, with the content lock shared.
    direct_conversions,
    /// Direct writes that added blocks or moved the end, with the content lock shared.
    direct_fills,
    /// Direct writes that were exclusive because a part of the range was cached.
    direct_alone_cached,
    /// Direct writes that were exclusive because a part of the range was a hole, and blocks are
    /// added in clusters.
    direct_alone_hole,
    /// Direct writes that were exclusive because they began behind an end within a block, or ended
    /// behind the largest size.
    direct_alone_extends,
    /// Direct writes that were exclusive because they covered a part of the unit of alignment.
    direct_alone_parts,
    /// Direct writes that were exclusive because the file was mapped.
    direct_alone_mapped,
    /// Direct writes that were exclusive because the data was in the inode.
    direct_alone_inline,
    /// Direct writes that were exclusive because they removed privileges from the file, or the file
    /// is append-only.
    direct_alone_rights,
    /// Direct writes that were exclusive because the file system refused a part of them before, such
    /// as space.
    direct_alone_refused,
    /// Windows that a thread fetched ahead of a reader.
    ahead_fetched,
    /// Windows that a reader fetched while another thread filled the one it needed.
    ahead_helped,
    /// Waits of a reader for a folio that another thread filled.
    fill_waits,
    /// Bytes copied into the cache for callers.
    bytes_copied,
    /// Units whose state was looked at or changed by writes: grows with the bytes written, not with the
    /// size of folios.
    units_touched,
    /// Waits of a writer for a block under writeback.
    writeback_waits,
    /// Calls that zeroed a range.
    zero_calls,
    /// Device writes that zeroing a range caused before it returned: none, unless a test asks for
    /// them.
    zero_flushes,
    /// Passes of writeback that failed.
    writeback_errors,
    /// Folios that left the cache after their first use, as was asked for.
    dropped_behind,
}
