//! What the cache did, in counters.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter on a cache line of its own: threads that count different things do not meet.
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

/// A counter that one thread at a time adds to, and any reads. It costs no locked instruction, which
/// after a large copy would wait until the copy has left the processor.
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
            /// Pieces of 2 MiB of the cache's memory that the system made one huge page of.
            pub chunks_huge: u64,
            /// Pieces that were filled and stayed small pages.
            pub chunks_plain: u64,
            /// Bytes that are dirty now.
            pub dirty_bytes: u64,
            /// Bytes of the arena in use now.
            pub used_bytes: u64,
        }

        impl CacheStats {
            /// Every counter with its name, for whoever shows them.
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
    /// Folios given up to make room.
    folios_evicted,
    /// Times a folio was looked for in a file's index, because neither the last one used nor a hint
    /// was right.
    index_finds,
    /// Questions to a mapper.
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
    /// Reads from the device past the cache.
    direct_reads,
    /// Writes to the device past the cache.
    direct_writes,
    /// Bytes read past the cache.
    bytes_read_direct,
    /// Bytes written past the cache.
    bytes_written_direct,
    /// Writes past the cache over data, with the content lock shared and without a handle.
    direct_overwrites,
    /// Reads and writes past the cache that were one device operation, with others under way.
    direct_queued,
    /// Writes past the cache that gave unwritten blocks their first data, with the content lock shared.
    direct_conversions,
    /// Writes past the cache that were alone with their file because some of the range was cached.
    direct_alone_cached,
    /// The same, because some of the range was a hole.
    direct_alone_hole,
    /// The same, because the file grew.
    direct_alone_extends,
    /// The same, because a part of a block without data was written.
    direct_alone_parts,
    /// The same, because the file was mapped.
    direct_alone_mapped,
    /// The same, because the data was in the inode.
    direct_alone_inline,
    /// The same, because the write took rights from the file, or the file can only be appended to.
    direct_alone_rights,
    /// Windows that a thread has fetched before a reader came.
    ahead_fetched,
    /// Windows that a reader has fetched while another thread filled the one it needed.
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
    /// Writes to the device that zeroing a range has caused before it returned: none, unless a test
    /// asks for them.
    zero_flushes,
    /// Passes of writeback that failed.
    writeback_errors,
}
