//! The bytes of a file, and how they get into another one.

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use extant::{Inode, MappingKind};
use extant_image::write::Progress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::{Trouble, host, io};
use crate::interrupt;
use crate::progress::Bar;

/// Bytes moved at once: large enough to cost few calls, small enough to stay in the processor's
/// cache between reading and writing.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// How often a signal is looked for while a pipe is waited for.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What `--sparse=always` leaves out: aligned runs of that many zeros.
const ZERO_RUN_BYTES: usize = 4096;

/// Where holes come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Sparse {
    /// Where the source has them.
    Auto,
    /// Also where it has zeros.
    Always,
    /// Nowhere.
    Never,
}

/// A file that is open for reading.
pub(crate) enum Content {
    Host {
        file: File,
        len: u64,
        /// It is read until it ends, whatever its size.
        is_stream: bool,
    },
    Image {
        inode: Inode,
        writable: bool,
    },
    Memory(Vec<u8>),
}

/// A file that is open for writing.
pub(crate) enum Sink {
    Host(OwnedFd),
    Image(Inode),
}

/// On which side it went wrong.
#[derive(Debug)]
pub(crate) enum Fault {
    From(Trouble),
    To(Trouble),
    /// Half-way, into a file that was there before.
    Half(Box<Fault>),
}

impl Content {
    fn len(&self) -> u64 {
        match self {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::Host { len, .. } => *len,
            Content::Image { inode, .. } => inode.metadata().size,
        }
    }

    /// The first bytes of `range` that are stored, if there are any. Costs what is stored, and
    /// nothing for holes, however large.
    pub(crate) fn data(&self, range: Range<u64>) -> Result<Option<Range<u64>>, Trouble> {
        let (at, end) = (range.start, range.end.min(self.len()));
        if at >= end {
            return Ok(None);
        }
        match self {
            Content::Memory(_) => Ok(Some(at..end)),
            Content::Host { file, .. } => {
                let from = match seek(file, SeekFrom::Data(at)) {
                    Ok(from) if from >= end => return Ok(None),
                    Ok(from) => from,
                    Err(Errno::NXIO) => return Ok(None),
                    // A file system that does not know holes has none.
                    Err(Errno::INVAL) => return Ok(Some(at..end)),
                    Err(errno) => return Err(Trouble::Host("look for holes", errno)),
                };
                let to = match seek(file, SeekFrom::Hole(from)) {
                    Ok(to) => to,
                    Err(Errno::NXIO) => return Ok(None),
                    Err(errno) => return Err(Trouble::Host("look for holes", errno)),
                };
                Ok(Some(from..to.min(end)).filter(|range| !range.is_empty()))
            }
            // What was written just now may have no blocks yet.
            Content::Image { inode, writable: true } => {
                let Some(from) = inode.seek_data(at)? else { return Ok(None) };
                let to = inode.seek_hole(from)?.unwrap_or(end);
                Ok(Some(from..to.min(end)).filter(|range| !range.is_empty()))
            }
            Content::Image { inode, writable: false } => stored(inode, at..end),
        }
    }

    /// Fills `out` from byte `at`; fewer bytes only at the end.
    pub(crate) fn read_at(&self, at: u64, out: &mut [u8]) -> Result<usize, Trouble> {
        match self {
            Content::Memory(bytes) => {
                let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
                let rest = rest.unwrap_or_default();
                let read = rest.len().min(out.len());
                out[..read].copy_from_slice(&rest[..read]);
                Ok(read)
            }
            Content::Image { inode, .. } => Ok(inode.read_at(out, at)?),
            Content::Host { file, is_stream, .. } => {
                let mut done = 0;
                while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
                    let read = match is_stream {
                        true => Ok(read_stream(file, rest)?),
                        false => file.read_at(rest, at.saturating_add(done as u64)),
                    };
                    match read {
                        Ok(0) => break,
                        Ok(read) => done += read,
                        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {
                            check_interrupt()?;
                        }
                        Err(error) => return Err(io("read")(error)),
                    }
                }
                Ok(done)
            }
        }
    }
}

/// Reads from a file that is read to its end, a pipe among them, which was opened so that nothing waits in the system: a
/// read that a signal meets there goes on, and a pipe without a writer is at its end until there is one.
fn read_stream(file: &File, out: &mut [u8]) -> Result<usize, Trouble> {
    loop {
        let mut ready = [PollFd::new(file, PollFlags::IN)];
        match poll(&mut ready, Some(&LOOK_AGAIN)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => match rustix::io::read(file, &mut *out) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                read => return read.map_err(host("read")),
            },
            Err(errno) => return Err(Trouble::Host("read", errno)),
        }
        check_interrupt()?;
    }
}

/// The next bytes of `range` that have blocks or are in the inode.
fn stored(inode: &Inode, range: Range<u64>) -> Result<Option<Range<u64>>, Trouble> {
    let size = inode.fs().block_size();
    let mut found: Option<Range<u64>> = None;
    for run in inode.map(range.start >> size.log2()..size.blocks_for(range.end)) {
        let run = run?;
        if !matches!(run.kind, MappingKind::Mapped(_) | MappingKind::Inline) {
            match found {
                Some(_) => break,
                None => continue,
            }
        }
        let start = u64::from(run.file_start.0).saturating_mul(u64::from(size.bytes()));
        let end = run.file_end().saturating_mul(u64::from(size.bytes())).min(range.end);
        match &mut found {
            Some(found) => found.end = end,
            None => found = Some(start.max(range.start)..end),
        }
    }
    Ok(found.filter(|range| !range.is_empty()))
}

impl Sink {
    /// Writes all of `bytes` at byte `at`.
    pub(crate) fn write_at(&self, mut at: u64, mut bytes: &[u8]) -> Result<(), Trouble> {
        while !bytes.is_empty() {
            let wrote = match self {
                Sink::Image(inode) => inode.write_at(bytes, at)?,
                Sink::Host(file) => match rustix::io::pwrite(file, bytes, at) {
                    Err(Errno::INTR) => {
                        check_interrupt()?;
                        continue;
                    }
                    wrote => wrote.map_err(host("write"))?,
                },
            };
            if wrote == 0 {
                return Err(Trouble::Host("write", Errno::IO));
            }
            bytes = bytes.get(wrote..).unwrap_or_default();
            at = at.saturating_add(wrote as u64);
        }
        Ok(())
    }

    /// Sets the size; growth is a hole.
    pub(crate) fn set_size(&self, size: u64) -> Result<(), Trouble> {
        match self {
            Sink::Image(inode) if inode.metadata().size == size => Ok(()),
            Sink::Image(inode) => Ok(inode.truncate(size)?),
            Sink::Host(file) => rustix::fs::ftruncate(file, size).map_err(host("set the size")),
        }
    }
}

impl Sink {
    /// All is written: a disk that is full below an image shows here, while it is known which file
    /// does not fit.
    fn hand_over(&self) -> Result<(), Trouble> {
        match self {
            Sink::Image(inode) => Ok(inode.write_back()?),
            Sink::Host(_) => Ok(()),
        }
    }
}

fn check_interrupt() -> Result<(), Trouble> {
    match interrupt::requested() {
        true => Err(Trouble::Host("finish", Errno::INTR)),
        false => Ok(()),
    }
}

/// How far a part was copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Behind the last byte that was stored.
    pub(crate) end: u64,
    /// The source ended before the part did.
    pub(crate) cut_off: bool,
}

/// Moves bytes, and shows how many.
pub(crate) struct Mover {
    buffer: Vec<u8>,
    bar: Bar,
}

impl Mover {
    /// Counts what it moves in `bar`.
    pub(crate) fn new(bar: &Bar) -> Mover {
        Mover { buffer: Vec::new(), bar: bar.clone() }
    }

    /// Moves without a word.
    pub(crate) fn silent() -> Mover {
        Mover::new(&Bar::none())
    }

    /// Copies all of `from` into `to`, which is empty.
    pub(crate) fn copy(&mut self, from: &Content, to: &Sink, sparse: Sparse) -> Result<(), Fault> {
        let is_stream = matches!(from, Content::Host { is_stream: true, .. });
        let all = 0..if is_stream { u64::MAX } else { from.len() };
        let wrote = self.copy_part(from, to, sparse, all)?;
        let end = match wrote {
            Part { cut_off: true, end } => end,
            // A hole at the end.
            Part { end, .. } if !is_stream => end.max(from.len()),
            Part { end, .. } => end,
        };
        // Whoever wrote the last byte has set the size.
        match end == wrote.end && sparse != Sparse::Always {
            true if end > 0 => {}
            _ => to.set_size(end).map_err(Fault::To)?,
        }
        to.hand_over().map_err(Fault::To)
    }

    /// Copies what is stored in `range`; the size stays as the last write leaves it.
    pub(crate) fn copy_part(
        &mut self,
        from: &Content,
        to: &Sink,
        sparse: Sparse,
        range: Range<u64>,
    ) -> Result<Part, Fault> {
        if let Content::Image { inode, .. } = from {
            inode.check_key().map_err(|error| Fault::From(error.into()))?;
        }
        let is_stream = matches!(from, Content::Host { is_stream: true, .. });
        if is_stream || sparse == Sparse::Never {
            // Holes read as zeros.
            let end = self.copy_range(from, to, sparse, range.clone())?;
            return Ok(Part { end, cut_off: end < range.end });
        }
        let (mut at, mut end) = (range.start, 0);
        while at < range.end {
            let Some(data) = from.data(at..range.end).map_err(Fault::From)? else { break };
            end = self.copy_range(from, to, sparse, data.clone())?;
            if end < data.end {
                return Ok(Part { end, cut_off: true });
            }
            at = end;
        }
        Ok(Part { end, cut_off: false })
    }

    /// Copies `range`, or as much of it as there is, and returns where that ends.
    fn copy_range(
        &mut self,
        from: &Content,
        to: &Sink,
        sparse: Sparse,
        range: Range<u64>,
    ) -> Result<u64, Fault> {
        let mut at = range.start;
        while at < range.end {
            check_interrupt().map_err(Fault::From)?;
            let want = (range.end - at).min(CHUNK_BYTES as u64) as usize; // At most CHUNK_BYTES.
            if self.buffer.len() < want {
                self.buffer.resize(want, 0);
            }
            let part = &mut self.buffer[..want];
            let read = from.read_at(at, part).map_err(Fault::From)?;
            let part = &part[..read];
            if sparse == Sparse::Always {
                write_nonzero(to, at, part)?;
            } else {
                to.write_at(at, part).map_err(Fault::To)?;
            }
            self.bar.add(read as u64);
            at = at.saturating_add(read as u64);
            if read < want {
                break;
            }
        }
        Ok(at)
    }
}

/// Writes what is not aligned runs of zeros, in the largest pieces.
fn write_nonzero(to: &Sink, at: u64, bytes: &[u8]) -> Result<(), Fault> {
    // To the next boundary in the file.
    let first = (ZERO_RUN_BYTES as u64 - at % ZERO_RUN_BYTES as u64) as usize; // At most that.
    let (mut start, mut here, mut len) = (0, 0, first);
    while here < bytes.len() {
        let end = (here + len).min(bytes.len());
        if bytes[here..end].iter().all(|byte| *byte == 0) {
            to.write_at(at.saturating_add(start as u64), &bytes[start..here]).map_err(Fault::To)?;
            start = end;
        }
        (here, len) = (end, ZERO_RUN_BYTES);
    }
    to.write_at(at.saturating_add(start as u64), &bytes[start..]).map_err(Fault::To)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn open(bytes: &[(u64, &[u8])], len: u64) -> Content {
        let file = tempfile::tempfile().unwrap();
        for (at, bytes) in bytes {
            file.write_all_at(bytes, *at).unwrap();
        }
        file.set_len(len).unwrap();
        Content::Host { file, len, is_stream: false }
    }

    fn copied(from: &Content, sparse: Sparse) -> (Vec<u8>, u64) {
        let file = tempfile::tempfile().unwrap();
        let sink = Sink::Host(file.try_clone().unwrap().into());
        Mover::silent().copy(from, &sink, sparse).unwrap();
        let meta = file.metadata().unwrap();
        let mut all = vec![0; meta.len() as usize];
        file.read_exact_at(&mut all, 0).unwrap();
        (all, meta.blocks() * 512)
    }

    #[test]
    fn holes_are_kept_made_or_filled_and_the_bytes_are_the_same() {
        let mut wanted = vec![0; 5 << 20];
        wanted[70_000..70_003].copy_from_slice(b"abc");
        wanted[4 << 20..(4 << 20) + 3].copy_from_slice(b"end");
        // The zeros in the middle are stored, those at the end are a hole.
        let from = open(&[(70_000, b"abc"), (1 << 20, &[0; 1 << 20]), (4 << 20, b"end")], 5 << 20);
        let (auto, auto_bytes) = copied(&from, Sparse::Auto);
        let (always, always_bytes) = copied(&from, Sparse::Always);
        let (never, never_bytes) = copied(&from, Sparse::Never);
        assert!(auto == wanted && always == wanted && never == wanted);
        assert_eq!(never_bytes, 5 << 20);
        assert!(always_bytes < 1 << 20 && (1 << 20..2 << 20).contains(&auto_bytes));
    }

    #[test]
    fn zeros_are_left_out_on_boundaries_of_the_file_only() {
        let file = tempfile::tempfile().unwrap();
        let sink = Sink::Host(file.try_clone().unwrap().into());
        let mut bytes = vec![7; 20_000];
        bytes[5000..17_000].fill(0);
        write_nonzero(&sink, 1000, &bytes).unwrap();
        let mut all = vec![0; 21_000];
        file.read_exact_at(&mut all, 0).unwrap();
        assert_eq!(&all[1000..], &bytes[..]);
    }

    #[test]
    fn a_stream_is_read_to_its_end() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"through a pipe").unwrap();
        drop(writer);
        let file = File::from(OwnedFd::from(reader));
        let from = Content::Host { file, len: 0, is_stream: true };
        assert_eq!(copied(&from, Sparse::Auto).0, b"through a pipe");
    }
}
