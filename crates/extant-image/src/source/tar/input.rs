//! Input of an archive, and storage of its files' data.
//!
//! # Shape
//!
//! ```text
//! plain file   positional reads through a small window; file data stays where it is
//! stream       thread: read, decompress ──> chunks ──> parser ──> data to the spool file
//! ```

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::fs::FileExt;

use extant_oci::{Digest, Hashing};
use extant_sync::threads::{Receiver, Sender, channel};

use crate::signature::PROBE_BYTES;

/// Most bytes behind an archive's end mark that are looked at; tapes pad by a few kilobytes.
const TRAILER_MAX: u64 = 256 << 20;

/// Bytes read at once: by the decompressor, and through the window on a plain file.
const CHUNK: usize = 256 << 10;
const WINDOW: usize = 32 << 10;

/// Chunks between the two threads.
const CHUNKS: usize = 4;

/// An archive to be read from front to back.
pub(super) enum Input<'a> {
    /// A plain archive that can be read anywhere.
    File {
        /// The archive.
        file: &'a File,
        /// Size of the file when it was opened.
        len: u64,
        /// Bytes read ahead, and where they start.
        window: Vec<u8>,
        /// Offset of the start of `window`.
        window_start: u64,
    },
    /// Anything else.
    Stream {
        /// The archive, decompressed.
        stream: Box<dyn BufRead + 'a>,
        /// Takes the data of files.
        spool: Spool<'a>,
    },
    /// Another member, whose data is skipped.
    Passing {
        /// The archive, decompressed.
        stream: Box<dyn BufRead + 'a>,
    },
}

impl Input<'_> {
    /// Fills `buf` from byte `pos` of the archive; returns how much there was.
    pub(super) fn read(&mut self, pos: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let count = match self {
                Input::File { file, window, window_start, .. } => {
                    let at = pos.saturating_add(done as u64);
                    let inside =
                        at.checked_sub(*window_start).and_then(|n| usize::try_from(n).ok());
                    let mut have = inside.and_then(|n| window.get(n..)).unwrap_or_default();
                    if have.is_empty() {
                        window.resize(WINDOW, 0);
                        let count = retry(|| file.read_at(window, at))?;
                        window.truncate(count);
                        *window_start = at;
                        have = window;
                    }
                    let count = have.len().min(rest.len());
                    if let (Some(to), Some(from)) = (rest.get_mut(..count), have.get(..count)) {
                        to.copy_from_slice(from);
                    }
                    count
                }
                Input::Stream { stream, .. } | Input::Passing { stream } => {
                    retry(|| stream.read(rest))?
                }
            };
            if count == 0 {
                break;
            }
            done += count;
        }
        Ok(done)
    }

    /// The first bytes, as many as can be had without reading them away: 132 KiB, unless the
    /// archive is shorter or comes in smaller pieces.
    pub(super) fn start(&mut self) -> io::Result<Vec<u8>> {
        let mut start = Vec::new();
        match self {
            Input::File { file, .. } => {
                start.resize(PROBE_BYTES, 0);
                let mut done = 0;
                while let Some(rest) = start.get_mut(done..).filter(|rest| !rest.is_empty()) {
                    match retry(|| file.read_at(rest, done as u64))? {
                        0 => break,
                        count => done += count,
                    }
                }
                start.truncate(done);
            }
            Input::Stream { stream, .. } | Input::Passing { stream } => {
                let piece = retry(|| stream.fill_buf().map(<[u8]>::len))?;
                let have = stream.fill_buf()?;
                start.extend_from_slice(have.get(..piece.min(PROBE_BYTES)).unwrap_or_default());
            }
        }
        Ok(start)
    }

    /// Passes over `count` bytes from byte `pos`; returns how many there were.
    pub(super) fn skip(&mut self, pos: u64, count: u64) -> io::Result<u64> {
        match self {
            Input::File { len, .. } => Ok(count.min(len.saturating_sub(pos))),
            Input::Stream { stream, .. } | Input::Passing { stream } => {
                each_piece(stream, count, |_| Ok(()))
            }
        }
    }

    /// Keeps `count` bytes from byte `pos` for later; returns where they can be read and how many
    /// there were.
    pub(super) fn keep(&mut self, pos: u64, count: u64) -> io::Result<(u64, u64)> {
        match self {
            Input::File { len, .. } => Ok((pos, count.min(len.saturating_sub(pos)))),
            Input::Stream { stream, spool } => {
                let start = spool.len;
                let done = each_piece(stream, count, |piece| spool.write(piece))?;
                Ok((start, done))
            }
            Input::Passing { stream } => Ok((0, each_piece(stream, count, |_| Ok(()))?)),
        }
    }

    /// Reads a stream to its end: damage behind the archive's end mark is damage too. Gives up
    /// after [`TRAILER_MAX`] bytes, because some streams have no end. Returns how many bytes the spool has.
    pub(super) fn drain(&mut self) -> io::Result<u64> {
        match self {
            Input::File { .. } | Input::Passing { .. } => Ok(0),
            Input::Stream { stream, spool } => {
                each_piece(stream, TRAILER_MAX, |_| Ok(()))?;
                spool.flush()?;
                Ok(spool.len)
            }
        }
    }
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Hands up to `count` bytes to `take`, in pieces; returns how many there were.
fn each_piece(
    stream: &mut dyn BufRead,
    count: u64,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<u64> {
    let mut left = count;
    while left > 0 {
        let piece = match stream.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        let len = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if len == 0 {
            break;
        }
        take(piece.get(..len).unwrap_or_default())?;
        stream.consume(len);
        left -= len as u64;
    }
    Ok(count - left)
}

/// Collects file data in a temporary file, in large writes.
pub(super) struct Spool<'a> {
    file: &'a File,
    buffer: Vec<u8>,
    len: u64,
}

impl<'a> Spool<'a> {
    /// Creates a spool that writes behind the `len` bytes of `file`, whose position is there.
    pub(super) fn new(file: &'a File, len: u64) -> Spool<'a> {
        Spool { file, buffer: Vec::with_capacity(1 << 20), len }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.len() + bytes.len() > self.buffer.capacity() {
            self.flush()?;
        }
        if bytes.len() >= self.buffer.capacity() {
            self.file.write_all(bytes)?;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

/// Compression of an archive, recognised by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Packing {
    /// Not, or in a way that is not undone here.
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    /// Longest start that is looked at.
    pub(super) const START: usize = 4;

    /// Tells by the first bytes of an archive, at most [`Packing::START`].
    pub(super) fn of(start: &[u8]) -> Packing {
        if start.starts_with(&GZIP) {
            Packing::Gzip
        } else if is_zstd(start) {
            Packing::Zstd
        } else {
            Packing::Plain
        }
    }

    /// Returns what it is called; `None` if there is nothing to be undone.
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Packing::Plain => None,
            Packing::Gzip => Some("gzip"),
            Packing::Zstd => Some("zstd"),
        }
    }
}

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A frame, or one to be skipped (RFC 8878, sections 3.1.1 and 3.1.2).
fn is_zstd(start: &[u8]) -> bool {
    start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
        || matches!(start, [low, 0x2a, 0x4d, 0x18, ..] if low & 0xf0 == 0x50)
}

/// A reader that can show what comes next.
pub(super) struct Peek<R> {
    inner: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R: Read> Peek<R> {
    pub(super) fn new(inner: R) -> Peek<R> {
        Peek { inner, buffer: vec![0; CHUNK], start: 0, end: 0 }
    }

    /// The next `count` bytes (at most the buffer), fewer at the end.
    pub(super) fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < count {
            let Some(room) = self.buffer.get_mut(self.end..).filter(|room| !room.is_empty()) else {
                break;
            };
            match retry(|| self.inner.read(room))? {
                0 => break,
                got => self.end += got,
            }
        }
        Ok(self.buffer.get(..self.end.min(count)).unwrap_or_default())
    }
}

impl<R: Read> Read for Peek<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut have = self.fill_buf()?;
        let count = have.read(buf)?;
        self.consume(count);
        Ok(count)
    }
}

impl<R: Read> BufRead for Peek<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            self.end = self.inner.read(&mut self.buffer)?;
        }
        Ok(self.buffer.get(self.start..self.end).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
    }
}

/// An item from the decompressing thread: a chunk, or the error that ended it.
type Piece = io::Result<Vec<u8>>;

/// A pipe from a thread that runs [`decompress`] to a reader.
pub(super) fn pipe() -> (PipeWriter, PipeReader) {
    let (full, chunks) = channel(CHUNKS);
    let (empty, recycled) = channel(CHUNKS + 2);
    (PipeWriter { full, recycled }, PipeReader { chunks, empty, current: Vec::new(), at: 0 })
}

/// As [`pipe`], with a stage between the two that compares what passes with a [`Check`]: for a thread of its own, because it
/// takes a third of the time that unpacking takes.
pub(super) fn checked_pipe(check: Check) -> (PipeWriter, Checker, PipeReader) {
    let (full, from) = channel(CHUNKS);
    let (to, chunks) = channel(CHUNKS);
    let (empty, recycled) = channel(2 * CHUNKS + 3);
    (
        PipeWriter { full, recycled },
        Checker { from, to, check },
        PipeReader { chunks, empty, current: Vec::new(), at: 0 },
    )
}

/// The stage in the middle.
pub(super) struct Checker {
    from: Receiver<Piece>,
    to: Sender<Piece>,
    check: Check,
}

impl Checker {
    /// Passes on all chunks.
    ///
    /// # Errors
    ///
    /// A difference from the check. Whether the stream was complete is known only to its source.
    pub(super) fn run(mut self) -> io::Result<Checked> {
        for piece in &self.from {
            if let Ok(chunk) = &piece {
                self.check.see(chunk)?;
            }
            if self.to.send(piece).is_err() {
                return Ok(Checked::InPart);
            }
        }
        self.check.finish().map(|()| Checked::Whole)
    }
}

/// End of the decompressing thread.
pub(super) struct PipeWriter {
    full: Sender<Piece>,
    recycled: Receiver<Vec<u8>>,
}

/// Expected properties of an unpacked stream.
pub(super) struct Check {
    /// Expected digest.
    pub(super) wanted: Digest,
    /// Most bytes.
    pub(super) limit: u64,
    hashing: Hashing,
    seen: u64,
}

impl Check {
    pub(super) fn new(wanted: Digest, limit: u64) -> Check {
        Check { hashing: Hashing::like(&wanted), wanted, limit, seen: 0 }
    }

    fn see(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.seen += bytes.len() as u64;
        if self.seen > self.limit {
            let what = format!("it unpacks to more than {} bytes", self.limit);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        self.hashing.update(bytes);
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        let (found, wanted) = (self.hashing.finish(), self.wanted);
        if found == wanted {
            return Ok(());
        }
        let what = format!("unpacked, its digest is {found}, and the image says {wanted}");
        Err(io::Error::new(io::ErrorKind::InvalidData, what))
    }
}

/// End of the parsing thread.
pub(super) struct PipeReader {
    chunks: Receiver<Piece>,
    empty: Sender<Vec<u8>>,
    current: Vec<u8>,
    at: usize,
}

/// Reads `input` to its end and writes it unpacked to `out`. Returns early when the reader has
/// gone.
///
/// Bytes after the last gzip member or zstd frame are ignored, as by `gzip` (tapes pad with zeros):
/// the archive's own end mark tells whether something is missing.
pub(super) fn decompress(mut input: Peek<impl Read>, packing: Packing, mut out: PipeWriter) {
    match unpack(&mut input, packing, &mut out) {
        Ok(()) => {}
        // The parser found what it wanted, or an error of its own.
        Err(Stop::NobodyListens) => {}
        Err(Stop::Io(error)) => drop(out.full.send(Err(error))),
    }
}

/// Decompresses like [`decompress`], for a stream that is checked: errors that `input` finds at its
/// end take precedence over errors of the reader, which follow from them.
///
/// # Errors
///
/// Errors of the packed stream. `Ok` with [`Checked::InPart`] is a stream whose reader stopped
/// before its end.
pub(super) fn decompress_whole(
    mut input: Peek<impl Read>,
    packing: Packing,
    mut out: PipeWriter,
) -> io::Result<Checked> {
    let outcome = unpack(&mut input, packing, &mut out);
    // Whoever listens need not wait for the rest.
    drop(out);
    retry(|| io::copy(&mut input, &mut io::sink()))?;
    match outcome {
        Ok(()) => Ok(Checked::Whole),
        Err(Stop::NobodyListens) => Ok(Checked::InPart),
        Err(Stop::Io(error)) => Err(error),
    }
}

/// How much of a stream was compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Checked {
    /// All of it.
    Whole,
    /// The part that the reader took.
    InPart,
}

fn unpack<R: Read>(
    input: &mut Peek<R>,
    packing: Packing,
    out: &mut PipeWriter,
) -> Result<(), Stop> {
    match packing {
        Packing::Plain => out.send_all(input),
        Packing::Gzip => members(
            input,
            out,
            GZIP.len(),
            |start| start == GZIP,
            |input| Ok(Box::new(flate2::bufread::GzDecoder::new(input))),
        ),
        Packing::Zstd => members(input, out, 4, is_zstd, |input| {
            Ok(Box::new(zstd::stream::read::Decoder::with_buffer(input)?.single_frame()))
        }),
    }
}

enum Stop {
    NobodyListens,
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Io(error)
    }
}

fn members<R: Read>(
    input: &mut Peek<R>,
    out: &mut PipeWriter,
    magic_len: usize,
    is_magic: impl Fn(&[u8]) -> bool,
    decoder: impl for<'i> Fn(&'i mut Peek<R>) -> io::Result<Box<dyn Read + 'i>>,
) -> Result<(), Stop> {
    while is_magic(input.peek(magic_len)?) {
        out.send_all(&mut *decoder(input)?)?;
    }
    Ok(())
}

impl PipeWriter {
    fn send_all(&mut self, input: &mut dyn Read) -> Result<(), Stop> {
        loop {
            let mut chunk = self.recycled.try_recv().unwrap_or_default();
            chunk.resize(CHUNK, 0);
            let mut len = 0;
            while let Some(room) = chunk.get_mut(len..).filter(|room| !room.is_empty()) {
                match retry(|| input.read(room))? {
                    0 => break,
                    count => len += count,
                }
            }
            if len == 0 {
                return Ok(());
            }
            chunk.truncate(len);
            self.full.send(Ok(chunk)).map_err(|_| Stop::NobodyListens)?;
        }
    }
}

impl Read for PipeReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut have = self.fill_buf()?;
        let count = have.read(buf)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for PipeReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at >= self.current.len() {
            match self.chunks.recv() {
                Ok(chunk) => {
                    let used = std::mem::replace(&mut self.current, chunk?);
                    self.at = 0;
                    // Full only if the other side stopped taking chunks back.
                    let _ = self.empty.try_send(used);
                }
                // The other thread is done.
                Err(_) => return Ok(&[]),
            }
        }
        Ok(self.current.get(self.at..).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.at = self.current.len().min(self.at + count);
    }
}
