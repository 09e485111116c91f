//! Limits and times.

use std::time::Duration;

use crate::disk::DiskCache;

/// How a file behind a server is read.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Bytes that are kept in memory at most; 64 MiB.
    pub cache_bytes: u64,
    /// A cache on a disk for what has an entity tag, shared by processes; none.
    pub disk_cache: Option<DiskCache>,
    /// Requests that one batch of reads has under way at once at most; 4.
    pub connections: usize,
    /// How often a request is tried at most; 5.
    pub attempts: u32,
    /// Time limit of a connection; 10 seconds.
    pub connect_timeout: Duration,
    /// Time limit of a request with its answer, at most 4 MiB; 60 seconds.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cache_bytes: 64 << 20,
            disk_cache: None,
            connections: 4,
            attempts: 5,
            connect_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
        }
    }
}
