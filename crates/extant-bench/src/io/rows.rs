//! The rows of the table, and what each must reach.

use std::fmt;

/// What is done with a file, from its first byte to its last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A file that is all hole is read; nothing of it is cached.
    ReadHole,
    /// A file with data is read that was read before.
    ReadMemory,
    /// A file with data is read that was not read since the mount.
    ReadDisk,
    /// The same, but the cache has been full once: its memory is not the system's any more.
    ReadWarm,
    /// A new file is written; nothing is written back.
    AppendCache,
    /// A file that is cached and clean is written over; nothing is written back.
    OverwriteCache,
    /// A new file is written; writeback goes on meanwhile, and ends within the time.
    AppendWriteback,
    /// A file that is cached and clean is written over; writeback as above.
    OverwriteWriteback,
    /// A new file is written, with an fsync after each write.
    AppendFsync,
    /// A file that is cached and clean is written over, with an fsync after each write.
    OverwriteFsync,
}

/// Whether and when data reaches the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writeback {
    /// Not while it is measured.
    Off,
    /// Meanwhile, all of it.
    On,
    /// After each write.
    Each,
}

impl Kind {
    const ALL: [Kind; 10] = [
        Kind::ReadHole,
        Kind::ReadMemory,
        Kind::ReadDisk,
        Kind::ReadWarm,
        Kind::AppendCache,
        Kind::OverwriteCache,
        Kind::AppendWriteback,
        Kind::OverwriteWriteback,
        Kind::AppendFsync,
        Kind::OverwriteFsync,
    ];

    fn name(self) -> &'static str {
        match self {
            Kind::ReadHole => "read hole",
            Kind::ReadMemory => "read memory",
            Kind::ReadDisk => "read disk",
            Kind::ReadWarm => "read warm",
            Kind::AppendCache => "append cache",
            Kind::OverwriteCache => "overwrite cache",
            Kind::AppendWriteback => "append writeback",
            Kind::OverwriteWriteback => "overwrite writeback",
            Kind::AppendFsync => "append fsync",
            Kind::OverwriteFsync => "overwrite fsync",
        }
    }

    /// Returns whether a new file is written, an old one, or (`None`) none.
    pub fn appends(self) -> Option<bool> {
        match self {
            Kind::ReadHole | Kind::ReadMemory | Kind::ReadDisk | Kind::ReadWarm => None,
            Kind::AppendCache | Kind::AppendWriteback | Kind::AppendFsync => Some(true),
            Kind::OverwriteCache | Kind::OverwriteWriteback | Kind::OverwriteFsync => Some(false),
        }
    }

    /// Returns what becomes of the data written.
    pub fn writeback(self) -> Writeback {
        match self {
            Kind::AppendWriteback | Kind::OverwriteWriteback => Writeback::On,
            Kind::AppendFsync | Kind::OverwriteFsync => Writeback::Each,
            _ => Writeback::Off,
        }
    }
}

/// One row: a kind of work with blocks of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// What is done.
    pub kind: Kind,
    /// Bytes per call.
    pub block_bytes: usize,
}

impl Row {
    /// All rows, in the order of the table.
    pub fn all() -> Vec<Row> {
        let sizes = [4 << 10, 64 << 10, 1 << 20];
        let row = |kind| sizes.map(|block_bytes| Row { kind, block_bytes });
        Kind::ALL.into_iter().flat_map(row).collect()
    }

    /// Bytes that one pass covers, of files of `file_bytes`. Fewer where each write waits for the
    /// device.
    pub fn bytes(self, file_bytes: u64) -> u64 {
        let most = match (self.kind.writeback(), self.block_bytes) {
            (Writeback::Each, 0..=4096) => 8 << 20,
            (Writeback::Each, 4097..=65536) => 64 << 20,
            (Writeback::Each, _) => 128 << 20,
            _ => file_bytes,
        };
        file_bytes.min(most)
    }

    /// Returns what the row must reach: at least so many times the rate of another contender.
    pub fn bars(self) -> Vec<Bar> {
        let small = self.block_bytes == 4 << 10;
        match self.kind {
            Kind::ReadMemory | Kind::OverwriteCache if small => vec![Bar::new("ext4", 4.0)],
            Kind::ReadMemory | Kind::OverwriteCache => {
                vec![Bar::new("ext4", 4.0), Bar::new("memcpy", 0.85)]
            }
            Kind::AppendWriteback if small => vec![Bar::new("ext4", 2.0)],
            _ => vec![Bar::new("ext4", 1.0)],
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match self.block_bytes >> 10 {
            1024 => "1M".to_owned(),
            kib => format!("{kib}K"),
        };
        write!(f, "{} {size}", self.kind.name())
    }
}

/// A rate to reach: `times` that of the contender `of`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bar {
    /// The contender.
    pub of: &'static str,
    /// The factor.
    pub times: f64,
}

impl Bar {
    /// `times` the rate of `of`.
    pub fn new(of: &'static str, times: f64) -> Bar {
        Bar { of, times }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_kind_with_three_sizes() {
        let names: Vec<String> = Row::all().iter().map(Row::to_string).collect();
        assert_eq!(names.len(), 30);
        assert_eq!(names[0], "read hole 4K");
        assert_eq!(names[29], "overwrite fsync 1M");
        let cached = Row { kind: Kind::ReadMemory, block_bytes: 1 << 20 };
        assert_eq!(cached.bars(), [Bar::new("ext4", 4.0), Bar::new("memcpy", 0.85)]);
    }
}
