//! What a mount is asked to do, beyond what the file system itself decides.

use crate::ids::IdMap;

/// When reading changes the access time.
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

/// What is durable before a call returns, beside what programs ask for (`fsync`, `O_SYNC`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Durable {
    /// Nothing.
    #[default]
    AsAsked,
    /// Changes of names: what makes, moves or removes them.
    Names,
    /// All changes. Writes are then only seen one by one if the kernel does not collect them
    /// ([`Settings::writeback_cache`]); what is stored through maps is not.
    Everything,
}

/// Whether requests come over the kernel's rings (io_uring) or are read from `/dev/fuse`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RingUse {
    /// Never.
    #[default]
    Never,
    /// Where the kernel offers it.
    WhenOffered,
    /// In any case; without it there is no mount.
    Always,
}

/// How the server answers.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Threads that answer requests, 1 to 64. With rings at least that many, two for each processor and more.
    pub threads: usize,
    /// Whether the kernel collects writes before it sends them. Off, each write of a program is one request.
    pub writeback_cache: bool,
    /// What is durable before a call returns.
    pub durable: Durable,
    /// Access times.
    pub access_times: AccessTimes,
    /// Whether directories have access times of their own rule: `false` is `nodiratime`.
    pub directory_access_times: bool,
    /// Whose inodes are whose outside.
    pub ids: IdMap,
    /// Who may see statistics and give orders beside root: the user that the server runs as.
    pub operator: u32,
    /// What it was mounted with, in the words of whoever did: shown, and given back to who asks.
    pub options: String,
    /// Most bytes in one write, 4 KiB to 1 MiB: the kernel gives no more.
    pub write_bytes_max: u32,
    /// How requests come.
    pub ring: RingUse,
    /// Whether the kernel may make idmapped mounts of it (Linux 6.12). It then tells who asks only when
    /// something new is made: elsewhere root is treated as any other user, and who gives an order is found by
    /// [`Events::user_of`](crate::Events::user_of).
    pub idmapped: bool,
    /// What is mounted for reading may be asked to become writable (`remount,rw`), by
    /// [`Events::open_for_writing`](crate::Events::open_for_writing). The kernel then asks at each opening
    /// of a file, as on a mount for writing: what it was told not to ask it never asks again.
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
