//! Settings of a mount beyond those of the file system.

use crate::ids::IdMap;

/// The rule by which reading changes the access time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AccessTimes {
    /// At each read that reaches the server.
    Strict,
    /// When it is older than the last change, or older than a day.
    #[default]
    Relative,
    /// Never.
    Never,
}

/// The changes that are durable before a call returns, beside what programs ask for (`fsync`, `O_SYNC`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Durable {
    /// Nothing is durable earlier than a program asks.
    #[default]
    AsAsked,
    /// Changes of names: what makes, moves or removes them.
    Names,
    /// All changes. Writes are then only seen one by one if the kernel does not collect them
    /// ([`Settings::writeback_cache`]); what is stored through maps is not.
    Everything,
}

/// The way of requests: over the kernel's rings (io_uring), or read from `/dev/fuse`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RingUse {
    /// Never.
    #[default]
    Never,
    /// If the kernel offers it.
    WhenOffered,
    /// In any case; without it there is no mount.
    Always,
}

/// Settings of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Threads that answer requests, 1 to 64. With rings at least that many, two for each processor and more.
    pub threads: usize,
    /// Whether the kernel collects writes before it sends them. Without, each write of a program is
    /// one request.
    pub writeback_cache: bool,
    /// Changes that are durable before a call returns.
    pub durable: Durable,
    /// Access times.
    pub access_times: AccessTimes,
    /// Whether access times of directories are kept: `false` is `nodiratime`.
    pub directory_access_times: bool,
    /// Mapping of owners between the image and the host.
    pub ids: IdMap,
    /// The user that may see statistics and give orders besides root: the server's own.
    pub operator: u32,
    /// The mount options as the user gave them, for display.
    pub options: String,
    /// Most bytes in one write, 4 KiB to 1 MiB: the kernel gives no more.
    pub write_bytes_max: u32,
    /// How requests come.
    pub ring: RingUse,
    /// Whether the kernel may make idmapped mounts of it (Linux 6.12). The kernel then gives the
    /// user of a request only when a file is created: elsewhere root is treated as any other user,
    /// and the user of an order is determined by [`Events::user_of`](crate::Events::user_of).
    pub idmapped: bool,
    /// Whether a read-only mount may become writable (`remount,rw`), by
    /// [`Events::open_for_writing`](crate::Events::open_for_writing). The kernel then sends a
    /// request for each opening of a file, as on a writable mount: requests that it was told to
    /// omit it never sends again.
    pub may_become_writable: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        crate::memory::prepare();
        Settings {
            threads: (extant_sync::threads::available() * 2).clamp(4, 16),
            writeback_cache: true,
            durable: Durable::default(),
            access_times: AccessTimes::default(),
            directory_access_times: true,
            ids: IdMap::default(),
            operator: rustix::process::geteuid().as_raw(),
            options: String::new(),
            write_bytes_max: 1 << 20,
            ring: RingUse::default(),
            idmapped: false,
            may_become_writable: false,
        }
    }
}
