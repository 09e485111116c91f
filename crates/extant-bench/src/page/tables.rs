//! What each benchmark measures, beside whom, and why a row loses.

use serde::Serialize;

use super::figures::Role;

/// A table of the page.
#[derive(Debug, Serialize)]
pub(super) struct About {
    /// Name of the benchmark: `make bench-NAME`, `target/bench/NAME.json`.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// What it belongs to.
    pub(super) thread: &'static str,
    pub(super) question: &'static str,
    /// Contenders that are extant; the first that was measured is compared.
    #[serde(skip)]
    pub(super) own: &'static [&'static str],
    /// Contenders that nobody can beat.
    #[serde(skip)]
    limits: &'static [&'static str],
}

impl About {
    pub(super) fn role(&self, target: &str) -> Role {
        if self.own.contains(&target) {
            Role::Own
        } else if self.limits.contains(&target) {
            Role::Limit
        } else {
            Role::Peer
        }
    }
}

/// All tables, in the order of the page.
pub(super) const ALL: &[About] = &[
    About {
        name: "io",
        title: "Contents of files",
        thread: "iomap, large folios and delayed allocation; buffered writes; zero range",
        question: "What do reading and writing through the page cache cost in process, beside the kernel's ext4 and \
                   XFS on loop devices, beside copying alone, and beside the system's calls on the image's file?",
        own: &["extant"],
        limits: &["memcpy", "device"],
    },
    About {
        name: "fio",
        title: "Contents of files, by fio",
        thread: "the same, measured by a program of others",
        question: "What does fio get from extant as an engine, from the kernel, and from a copy?",
        own: &["extant (buffered)", "extant (ring)"],
        limits: &["memcpy (mmap, tmpfs)", "fio alone (null)"],
    },
    About {
        name: "alloc",
        title: "Space for files that grow",
        thread: "block allocation that scales",
        question: "How many times a second can 1 to 64 workers give a file of their own 8 KiB more?",
        own: &["extant", "extant, linear"],
        limits: &["extant, apart"],
    },
    About {
        name: "pieces",
        title: "Pieces of files that grow side by side",
        thread: "block allocation that does not fragment",
        question: "In how many pieces lie 64 files that grow at the same time, by space alone and with an fsync for \
                   each 256 KiB?",
        own: &["extant", "extant, linear"],
        limits: &[],
    },
    About {
        name: "age",
        title: "An old, nearly full file system",
        thread: "block allocation that does not fragment",
        question: "How do files and free space lie after a long time at nearly full?",
        own: &["extant"],
        limits: &[],
    },
    About {
        name: "async",
        title: "Small buffered writes through a ring",
        thread: "buffered writes that never block the submitter",
        question: "What does a ring at depth 1 cost over the call that waits, and beside the kernel's ext4?",
        own: &["ring"],
        limits: &["blocking"],
    },
    About {
        name: "direct",
        title: "Direct I/O",
        thread: "direct I/O without a penalty",
        question: "What does a file system cost over the raw device, with one request and with 64 under way?",
        own: &["extant"],
        limits: &["fio raw", "ring"],
    },
    About {
        name: "namespace",
        title: "Names",
        thread: "users: what sandboxes and builds do",
        question: "What does a change of the name space cost in process, beside the kernel's ext4?",
        own: &["extant"],
        limits: &[],
    },
    About {
        name: "build",
        title: "Images of trees",
        thread: "users: who builds root file systems",
        question: "How long does an image of a real tree take, beside other tools and beside what nobody can do \
                   without?",
        own: &["extant"],
        limits: &["reads alone", "writes alone", "unpacking alone"],
    },
    About {
        name: "mkfs",
        title: "An empty file system of 16 TiB",
        thread: "users: who builds images",
        question: "What do time and memory of making one come to?",
        own: &["extant"],
        limits: &[],
    },
    About {
        name: "remote",
        title: "Images where they lie",
        thread: "users: who keeps images in many places",
        question: "What does it cost that an image is a qcow2 file, behind an NBD server, in a store 20 ms away, or under \
                   many overlays?",
        own: &["extant", "extant, qcow2"],
        limits: &["raw", "parallel ranges"],
    },
    About {
        name: "check",
        title: "Checking an image",
        thread: "users: who keeps images",
        question: "How long does a check of everything take, and in how much memory, beside e2fsck and beside reading \
                   the same bytes?",
        own: &["extant"],
        limits: &["pread"],
    },
    About {
        name: "read",
        title: "Reading an image",
        thread: "users: who looks into images",
        question: "What does reading through the library cost over the system's own calls on the same bytes?",
        own: &["extant"],
        limits: &["pread"],
    },
    About {
        name: "python",
        title: "From Python",
        thread: "users: who scripts",
        question: "What does the same cost through the Python package as through the library and the command?",
        own: &["python"],
        limits: &["extant"],
    },
    About {
        name: "crypt",
        title: "Encrypted files",
        thread: "users: who keeps secrets",
        question: "What do encrypted contents cost, beside plain ones?",
        own: &["aes256", "adiantum"],
        limits: &["plain"],
    },
    About {
        name: "mount",
        title: "Mounted",
        thread: "users: any program, through FUSE",
        question: "What does a program pay on a mount of extant, beside the kernel's ext4 and fuse2fs?",
        own: &["extant"],
        limits: &[],
    },
    About {
        name: "io-memory",
        title: "Memory",
        thread: "users: who embeds",
        question: "Does the cache of contents keep its budget with four times as much data?",
        own: &["extant"],
        limits: &["bar"],
    },
];

/// Reasons: table, beginning of the row's name, sentence.
const REASONS: &[(&str, &str, &str)] = &[
    (
        "io",
        "read disk",
        "A fresh mount has a fresh cache, whose memory the system zeroes before extant reads into it.",
    ),
    (
        "io",
        "read warm",
        "The device is a file in memory: reading it is a copy that the kernel's loop device also makes.",
    ),
    (
        "io",
        "append cache",
        "Fresh memory again: the kernel's page cache has pages that were used before and need no zeros.",
    ),
    (
        "io",
        "append writeback",
        "Writing into the image file is nearly all of the time; the kernel's loop driver writes a file in memory faster \
         than pwrite does.",
    ),
    (
        "io",
        "overwrite writeback",
        "Writing into the image file is nearly all of the time; the kernel's loop driver writes a file in memory faster \
         than pwrite does.",
    ),
    (
        "io",
        "append fsync",
        "The copy into the image and the one into the cache bound it; XFS logs less for each sync.",
    ),
    ("io", "overwrite fsync", "The copy into the image and the one into the cache bound it."),
    ("io", "random overwrite 1M", "All contenders are at the speed of a copy."),
    ("io", "direct write", "One host file lies below, whose lock all threads share."),
    ("io", "read memory", "All contenders are at the speed of a copy."),
    ("io", "overwrite cache", "All contenders are at the speed of a copy."),
    ("fio", "", "All contenders are at the speed of a copy."),
    (
        "pieces",
        "synced",
        "Each sync is a commit of its own here, and the kernel's ext4 shares more of them.",
    ),
    (
        "async",
        "write",
        "An attempt asks for each lock instead of waiting for it, and counts what it did.",
    ),
    (
        "async",
        "lane",
        "Each request looks at the file, its lock, its rights, the cache and the map.",
    ),
    (
        "async",
        "punted",
        "The bytes move from one processor's cache to the other's, and each batch wakes a thread on both sides.",
    ),
    (
        "check",
        "change",
        "The image is checked first and changed through its journal; tune2fs and resize2fs do neither.",
    ),
    ("check", "", "Most of the memory is the text of the command."),
    ("age", "fill", "Contents are copied twice, into the cache and into the image file."),
    ("age", "churn", "Contents are copied twice, into the cache and into the image file."),
    (
        "direct",
        "",
        "With one request under way a sleep and a wake of the loop device's thread are what is measured.",
    ),
    (
        "mount",
        "read warm",
        "No request reaches the server: the kernel keeps pages of 4 KiB for FUSE, large folios for ext4.",
    ),
    (
        "mount",
        "write close",
        "FUSE hands a file's contents to its server at each close; ext4 keeps them.",
    ),
    ("mount", "write fsync", "One copy out of the request and one into the image."),
    (
        "mount",
        "write",
        "No request reaches the server: the kernel keeps pages of 4 KiB for FUSE, large folios for ext4.",
    ),
    (
        "mount",
        "direct",
        "Each request is a turn to the server, and FUSE lets one thread at a time write to a file.",
    ),
    ("mount", "", "Each file takes about ten turns to the server, and a turn wakes two programs."),
];

/// Returns why a row loses.
pub(super) fn why(table: &str, row: &str) -> &'static str {
    let fits = |(of, begin, _): &&(&str, &str, &str)| *of == table && row.starts_with(begin);
    REASONS.iter().find(fits).map_or("The reason is not known.", |(.., why)| why)
}
