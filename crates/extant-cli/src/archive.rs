//! Writes tar archives: POSIX (pax) format, the same bytes for the same files.
//!
//! # Source
//!
//! POSIX.1-2017 `pax`, "ustar Interchange Format" and "pax Extended Header"; GNU tar manual, "Storing Sparse Files" (PAX
//! format 1.0); the `SCHILY.*` keys of star(5).

use std::io::{self, Write};

/// Bytes of a block.
const BLOCK: u64 = 512;

/// Blocks that archives are padded to: 10 KiB, as tar does.
const RECORD: u64 = 20 * BLOCK;

/// What a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind<'a> {
    /// A regular file whose contents of that many bytes follow.
    File(u64),
    /// A regular file with holes: its size, the number of its data runs, and the bytes of its map as
    /// [`map_entry_len`] counts them, and of the runs. Map and runs follow.
    Sparse {
        /// Bytes of the file.
        size: u64,
        /// How many runs of data it has.
        runs: u64,
        /// Bytes of all map entries.
        map: u64,
        /// Bytes of all runs.
        data: u64,
    },
    Dir,
    Symlink(&'a [u8]),
    /// Another name of a member that came before.
    Link(&'a [u8]),
    /// Major and minor number.
    Char(u32, u32),
    /// Major and minor number.
    Block(u32, u32),
    Fifo,
}

/// Seconds since 1970 and nanoseconds after that.
pub(crate) type Time = (i64, u32);

/// Key and value of a record of an extended header.
pub(crate) type Record = (Vec<u8>, Vec<u8>);

/// All that is said about a member beside its contents.
#[derive(Clone, Debug)]
pub(crate) struct Header<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) kind: Kind<'a>,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Time,
    pub(crate) atime: Time,
    pub(crate) ctime: Time,
    /// Records beside those that follow from the rest: keys and values.
    pub(crate) records: &'a [Record],
}

/// An archive being written.
pub(crate) struct Archive<W> {
    out: W,
    written: u64,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Archive<W> {
        Archive { out, written: 0 }
    }

    /// Writes the header of a member.
    pub(crate) fn header(&mut self, header: &Header<'_>) -> io::Result<()> {
        let mut records = Vec::new();
        let mut name = header.name.to_vec();
        let (flag, link, size, device) = match header.kind {
            Kind::File(size) => (b'0', &b""[..], size, (0, 0)),
            Kind::Sparse { size, runs, map, data } => {
                record(&mut records, b"GNU.sparse.major", b"1");
                record(&mut records, b"GNU.sparse.minor", b"0");
                record(&mut records, b"GNU.sparse.name", header.name);
                record(&mut records, b"GNU.sparse.realsize", size.to_string().as_bytes());
                // For those who do not know the keys.
                name = [&b"GNUSparseFile.0/"[..], last_part(header.name)].concat();
                let map = map + map_entry_len(runs);
                (b'0', &b""[..], map.next_multiple_of(BLOCK) + data, (0, 0))
            }
            Kind::Dir => (b'5', &b""[..], 0, (0, 0)),
            Kind::Symlink(target) => (b'2', target, 0, (0, 0)),
            Kind::Link(target) => (b'1', target, 0, (0, 0)),
            Kind::Char(major, minor) => (b'3', &b""[..], 0, (major, minor)),
            Kind::Block(major, minor) => (b'4', &b""[..], 0, (major, minor)),
            Kind::Fifo => (b'6', &b""[..], 0, (0, 0)),
        };
        let mut block = [0u8; BLOCK as usize];
        if name.len() > 100 && !matches!(header.kind, Kind::Sparse { .. }) {
            record(&mut records, b"path", &name);
        }
        if link.len() > 100 {
            record(&mut records, b"linkpath", link);
        }
        put(&mut block, 0, name.get(..name.len().min(100)).unwrap_or_default());
        put(&mut block, 157, link.get(..link.len().min(100)).unwrap_or_default());
        let mut number = |at: usize, digits: usize, key: &[u8], value: u64| {
            let fits = value < 1 << (3 * digits);
            if !fits {
                record(&mut records, key, value.to_string().as_bytes());
            }
            let value = if fits { value } else { 0 };
            put(&mut block, at, format!("{value:0digits$o}").as_bytes());
        };
        number(100, 7, b"mode", u64::from(header.mode & 0o7777));
        number(108, 7, b"uid", header.uid.into());
        number(116, 7, b"gid", header.gid.into());
        number(124, 11, b"size", size);
        number(329, 7, b"SCHILY.devmajor", device.0.into());
        number(337, 7, b"SCHILY.devminor", device.1.into());
        let seconds = u64::try_from(header.mtime.0).unwrap_or(0);
        let is_plain = header.mtime.1 == 0 && seconds as i64 == header.mtime.0 && seconds < 1 << 33;
        put(&mut block, 136, format!("{:011o}", if is_plain { seconds } else { 0 }).as_bytes());
        if !is_plain {
            record(&mut records, b"mtime", time_text(header.mtime).as_bytes());
        }
        for (key, time) in [(&b"atime"[..], header.atime), (b"ctime", header.ctime)] {
            if time != header.mtime {
                record(&mut records, key, time_text(time).as_bytes());
            }
        }
        for (key, value) in header.records {
            record(&mut records, key, value);
        }
        put(&mut block, 257, b"ustar\x0000");
        if !records.is_empty() {
            let mut extended = [0u8; BLOCK as usize];
            put(&mut extended, 0, b"PaxHeaders/");
            let shown = last_part(&name);
            put(&mut extended, 11, shown.get(..shown.len().min(80)).unwrap_or_default());
            put(&mut extended, 100, b"0000644");
            put(&mut extended, 108, b"0000000");
            put(&mut extended, 116, b"0000000");
            put(&mut extended, 124, format!("{:011o}", records.len()).as_bytes());
            put(&mut extended, 136, b"00000000000");
            put(&mut extended, 257, b"ustar\x0000");
            self.seal(&mut extended, b'x')?;
            self.data(&records)?;
            self.pad()?;
        }
        self.seal(&mut block, flag)
    }

    fn seal(&mut self, block: &mut [u8; BLOCK as usize], flag: u8) -> io::Result<()> {
        put(block, 156, &[flag]);
        put(block, 148, &[b' '; 8]);
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        put(block, 148, format!("{sum:06o}\0").as_bytes());
        self.data(block)
    }

    /// Writes the number of runs that a map of holes begins with.
    pub(crate) fn map_start(&mut self, runs: u64) -> io::Result<()> {
        self.data(format!("{runs}\n").as_bytes())
    }

    /// Writes one run of a map of holes.
    pub(crate) fn map_entry(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.data(format!("{offset}\n{len}\n").as_bytes())
    }

    /// Writes contents.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Fills the last block: after contents, and after a map of holes.
    pub(crate) fn pad(&mut self) -> io::Result<()> {
        self.fill(BLOCK)
    }

    fn fill(&mut self, unit: u64) -> io::Result<()> {
        let missing = self.written.next_multiple_of(unit) - self.written;
        self.data(vec![0; missing as usize].as_slice())
    }

    /// Writes the end mark.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.data(&[0; 2 * BLOCK as usize])?;
        self.fill(RECORD)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Bytes of one number of a map of holes, with its line end.
pub(crate) fn map_entry_len(number: u64) -> u64 {
    u64::from(number.checked_ilog10().unwrap_or(0)) + 2
}

fn last_part(name: &[u8]) -> &[u8] {
    let name = name.strip_suffix(b"/").unwrap_or(name);
    name.rsplit(|&b| b == b'/').next().unwrap_or(name)
}

fn put(block: &mut [u8; BLOCK as usize], at: usize, bytes: &[u8]) {
    if let Some(field) = block.get_mut(at..at + bytes.len()) {
        field.copy_from_slice(bytes);
    }
}

/// Adds `LENGTH KEY=VALUE\n`, whose length counts itself.
fn record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    out.extend_from_slice(format!("{len} ").as_bytes());
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// Seconds with as many decimals as there are; before 1970, the fraction counts away from zero.
fn time_text((seconds, nanos): Time) -> String {
    let (sign, whole, part) = match seconds {
        0.. => ("", seconds.unsigned_abs(), nanos),
        _ if nanos == 0 => ("-", seconds.unsigned_abs(), 0),
        _ => ("-", seconds.unsigned_abs() - 1, 1_000_000_000 - nanos),
    };
    if part == 0 {
        return format!("{sign}{whole}");
    }
    let decimals = format!("{part:09}");
    format!("{sign}{whole}.{}", decimals.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_their_own_length() {
        for value in [0, 1, 85, 86, 87, 88, 89, 90, 985, 990, 995, 9990] {
            let mut out = Vec::new();
            record(&mut out, b"key", &vec![b'x'; value]);
            let text = String::from_utf8(out).unwrap();
            let (len, _) = text.split_once(' ').unwrap();
            assert_eq!(len.parse::<usize>().unwrap(), text.len(), "{value}");
        }
    }

    #[test]
    fn times_before_1970_and_after() {
        for (time, text) in [
            ((0, 0), "0"),
            ((1, 500_000_000), "1.5"),
            ((1, 1), "1.000000001"),
            ((-1, 0), "-1"),
            ((-2, 750_000_000), "-1.25"),
            ((-1, 999_999_999), "-0.000000001"),
        ] {
            assert_eq!(time_text(time), text);
        }
    }

    #[test]
    fn lengths_of_numbers() {
        for number in [0, 1, 9, 10, 99, 100, u64::MAX] {
            assert_eq!(map_entry_len(number), number.to_string().len() as u64 + 1);
        }
    }
}
