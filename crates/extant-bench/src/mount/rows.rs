//! The rows of the table, what each must reach, and which of them are measured together.

use std::fmt;

use crate::io::rows::Bar;

/// Bytes of one direct request.
pub const DIRECT_BYTES: usize = 4096;

/// What is measured on one mount. All rows are rates: more is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Session {
    /// A new file is written from its first byte to its last.
    Write {
        /// Bytes per call.
        block_bytes: usize,
        /// What ends the time.
        until: Until,
    },
    /// A file is read from its first byte to its last: just after mounting, with the kernel's caches
    /// dropped, or for the second time.
    Read {
        /// Bytes per call.
        block_bytes: usize,
        /// Whether nothing of it is cached.
        is_cold: bool,
    },
    /// Blocks of a file at random places, past the kernel's cache.
    Direct {
        /// Written, or read.
        is_write: bool,
        /// Threads, each with one request in flight.
        threads: usize,
    },
    /// Files are made, written, looked at, read, renamed and removed by so many clients at once.
    Clients(usize),
    /// An archive of small files is unpacked, walked, and removed.
    Tree,
}

/// What ends the time of a file that is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// The last write.
    Written,
    /// Closing the file, when the kernel hands over to a server what it had kept.
    Closed,
    /// One fsync, and closing the file.
    Synced,
}

/// The rows of [`Session::Tree`].
pub const UNTAR: &str = "untar";
/// [`UNTAR`] and the unmount behind it.
pub const UNTAR_UNMOUNT: &str = "untar, unmount";
/// `find` with a stat of each, after a first one.
pub const FIND_WARM: &str = "find+stat warm";
/// The same just after mounting.
pub const FIND_COLD: &str = "find+stat cold";
/// `rm -r`.
pub const REMOVE: &str = "rm -r";

impl Session {
    /// All of them, in the order of the table.
    pub fn all() -> Vec<Session> {
        let sizes = [4 << 10, 1 << 20];
        let write = |until| sizes.map(|block_bytes| Session::Write { block_bytes, until });
        let read = |is_cold| sizes.map(|block_bytes| Session::Read { block_bytes, is_cold });
        let direct = |is_write| [1, 8].map(|threads| Session::Direct { is_write, threads });
        let mut all = Vec::new();
        all.extend(write(Until::Written));
        all.extend(write(Until::Closed));
        all.extend(write(Until::Synced));
        all.extend(read(true));
        all.extend(read(false));
        all.extend(direct(false));
        all.extend(direct(true));
        all.extend([1, 2, 8].map(Session::Clients));
        all.push(Session::Tree);
        all
    }

    /// The rows that it fills.
    pub fn rows(self) -> Vec<String> {
        match self {
            Session::Tree => {
                [UNTAR, UNTAR_UNMOUNT, FIND_COLD, FIND_WARM, REMOVE].map(str::to_owned).to_vec()
            }
            other => vec![other.to_string()],
        }
    }

    /// The unit of its rows.
    pub fn unit(self) -> &'static str {
        match self {
            Session::Write { .. } | Session::Read { .. } => "MiB/s",
            Session::Direct { .. } | Session::Clients(_) => "op/s",
            Session::Tree => "files/s",
        }
    }

    /// Returns whether it needs the file that is read.
    pub fn reads(self) -> bool {
        matches!(self, Session::Read { .. } | Session::Direct { .. })
    }
}

/// Returns what a row must reach: at least so many times the rate of another contender.
pub fn bars(row: &str) -> Vec<Bar> {
    let starts = |word: &str| row.starts_with(word);
    match row {
        UNTAR => vec![Bar::new("fuse2fs", 4.0), Bar::new("ext4", 0.3)],
        FIND_WARM => vec![Bar::new("ext4", 0.5)],
        _ if starts("write close") => Vec::new(),
        _ if starts("write") || starts("read") => vec![Bar::new("ext4", 0.9)],
        _ if starts("direct") => vec![Bar::new("ext4", 1.0)],
        _ => Vec::new(),
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: usize| if bytes == 1 << 20 { "1M" } else { "4K" };
        match *self {
            Session::Write { block_bytes, until } => {
                let until = match until {
                    Until::Written => "",
                    Until::Closed => " close",
                    Until::Synced => " fsync",
                };
                write!(f, "write{until} {}", size(block_bytes))
            }
            Session::Read { block_bytes, is_cold } => {
                write!(f, "read {} {}", if is_cold { "cold" } else { "warm" }, size(block_bytes))
            }
            Session::Direct { is_write, threads } => {
                write!(f, "direct {} x{threads}", if is_write { "write" } else { "read" })
            }
            Session::Clients(count) => write!(f, "clients x{count}"),
            Session::Tree => f.write_str("tree"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_belongs_to_one_session_and_bars_to_rows() {
        let mut rows: Vec<String> = Session::all().into_iter().flat_map(Session::rows).collect();
        let count = rows.len();
        assert_eq!(rows[..3], ["write 4K", "write 1M", "write close 4K"]);
        assert_eq!(rows.iter().filter(|row| !bars(row).is_empty()).count(), 14);
        rows.sort();
        rows.dedup();
        assert_eq!(rows.len(), count);
    }
}
