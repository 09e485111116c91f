//! A tar archive as source: plain, gzip or zstd, from a file or a stream.
//!
//! # Place
//!
//! Fills a [`TreeBuilder`](crate::tree::TreeBuilder) in one pass over the archive. The data of a
//! plain archive file is read in place later; that of any other input is collected in an unnamed
//! temporary file meanwhile.
//!
//! # What is understood
//!
//! v7, ustar, GNU (long names, sparse files, binary numbers, times) and pax archives: nanosecond
//! times, sizes and owners of any length, extended attributes (`SCHILY.xattr.`,
//! `LIBARCHIVE.xattr.`), POSIX ACLs as text, SELinux labels, GNU sparse formats 0.0, 0.1 and 1.0.
//! User and group names are not looked at: numbers count. Volume labels, inode flags and comments
//! are passed over. Access and change times that the archive does not have are the modification
//! time.
//!
//! # Invariants
//!
//! - A1. An archive is complete: it has its end mark, and each member all of its data.
//! - A2. No name leaves the tree; see `assemble` for the rules.
//! - A3. Memory does not grow with the size of the data, and by a bounded amount per header.

mod acl;
mod assemble;
mod contents;
mod header;
mod input;
pub(super) mod lanes;
mod layering;
mod member;
mod pax;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use extant_sync::threads;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

pub(super) use self::assemble::Assembler;
use self::contents::{Stamp, TarContents};
use self::input::{Input, Packing, Peek, Spool, decompress, pipe};
pub(super) use self::member::{Attributes, Member, What};
use self::member::{End, Members};
use crate::signature::recognise;
use crate::source::container::ContainerNames;
use crate::source::{Contents, Lost, Scanned, Skipped, SourceError, go_on};
use crate::tree::Tree;

/// Place of an archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TarInput {
    /// In a file (or fifo, or device).
    File(PathBuf),
    /// On standard input.
    Stdin,
}

/// How to read an archive.
#[derive(Clone, Debug)]
pub struct TarOptions<'a> {
    /// Directory for the unnamed temporary file that holds the data of an archive which cannot be
    /// read in place: it needs as much room as all files of the archive have bytes.
    pub spool_dir: PathBuf,
    /// Ends the scan with [`SourceError::Interrupted`] once it is set. It is looked at before each
    /// member, and before each piece of a packed archive that is read.
    pub cancel: Option<&'a AtomicBool>,
}

/// Reads the names and attributes of an archive. Its compression is recognised by its contents.
///
/// # Errors
///
/// - [`SourceError::NotTar`]: the file is no tar archive, plain or packed with gzip or zstd; the
///   error names its kind where that is known. An archive without members has at most 10,240 bytes,
///   all of them zero: a longer file that begins with zeros is no archive.
/// - [`SourceError::Archive`]: damaged, cut short, or with members that form no tree or would leave
///   it. Names archive, byte offset and member.
/// - [`SourceError::Io`]: it cannot be opened or read, or the temporary file not be written.
/// - [`SourceError::Tree`]: too much for one tree.
/// - [`SourceError::Threads`]: the system started no thread for decompression.
/// - [`SourceError::Interrupted`]: by [`TarOptions::cancel`].
pub fn scan_tar(input: TarInput, options: &TarOptions<'_>) -> Result<Scanned, SourceError> {
    let path = match input {
        TarInput::Stdin => return scan_tar_stream("standard input", io::stdin(), options),
        TarInput::File(path) => path,
    };
    let name = path.to_string_lossy().into_owned();
    let failed = |doing, cause| SourceError::Io { doing, path: name.clone(), cause };
    let mut file = File::open(&path).map_err(|e| failed("open", e))?;
    let meta = file.metadata().map_err(|e| failed("examine", e))?;
    if !meta.is_file() {
        if meta.is_dir() {
            return Err(failed("read as an archive", io::ErrorKind::IsADirectory.into()));
        }
        return scan_tar_stream(&name, file, options);
    }
    let mut start = Vec::new();
    (&mut file)
        .take(Packing::START as u64)
        .read_to_end(&mut start)
        .map_err(|e| failed("read", e))?;
    if Packing::of(&start) != Packing::Plain {
        return scan_tar_stream(&name, io::Cursor::new(start).chain(file), options);
    }
    let stamp = Stamp::of(&file).map_err(|e| failed("examine", e))?;
    let input = Input::File { file: &file, len: meta.len(), window: Vec::new(), window_start: 0 };
    let (tree, lost) = parse(input, &name, None, options.cancel)?;
    let contents = Box::new(TarContents::new(file, name, Some(stamp)));
    Ok(Scanned { tree, contents, skipped: Skipped::default(), lost })
}

/// Reads an archive from a stream, packed or not, as [`scan_tar`] does; `name` is for messages.
///
/// # Errors
///
/// Those of [`scan_tar`].
pub fn scan_tar_stream(
    name: &str,
    input: impl Read + Send,
    options: &TarOptions<'_>,
) -> Result<Scanned, SourceError> {
    let cancel = options.cancel;
    let mut input = Peek::new(Heeding { input, cancel });
    let start = input.peek(Packing::START).map_err(|e| stopped(name, 0, e))?;
    let packing = Packing::of(start);
    let spool = spool_file(&options.spool_dir)?;
    let (tree, lost) = threads::scope(|scope| {
        let (writer, reader) = pipe();
        let worker = scope.spawn("decompress", move || decompress(input, packing, writer))?;
        let stream = Input::Stream { stream: Box::new(reader), spool: Spool::new(&spool, 0) };
        let tree = parse(stream, name, packing.name(), cancel);
        worker.join().map_err(threads::ThreadError::from)?;
        // What the reader of a stream was told at its cancelling looks like a failure of it.
        tree.map_err(|error| go_on(cancel).err().unwrap_or(error))
    })
    .map_err(threads::ThreadError::from)??;
    let contents = Box::new(TarContents::new(spool, name.into(), None));
    Ok(Scanned { tree, contents, skipped: Skipped::default(), lost })
}

fn parse(
    input: Input<'_>,
    name: &str,
    packed: Option<&'static str>,
    cancel: Option<&AtomicBool>,
) -> Result<(Tree, Lost), SourceError> {
    let mut tree = Assembler::new(name);
    let mut take = |member| {
        go_on(cancel)?;
        tree.add(member).map(|()| true)
    };
    parse_into(&mut take, input, name, packed, End::Mark)?;
    tree.finish()
}

/// A stream that ends when it is cancelled, so that one of many gigabytes in one member does too.
struct Heeding<'a, R> {
    input: R,
    cancel: Option<&'a AtomicBool>,
}

impl<R: Read> Read for Heeding<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // Not `io::ErrorKind::Interrupted`, which means "again".
        go_on(self.cancel).map_err(|error| io::Error::other(error.to_string()))?;
        self.input.read(buf)
    }
}

/// Hands the members of an archive to `take`, until that says false; returns how many bytes the spool has then.
fn parse_into(
    take: &mut dyn FnMut(Member) -> Result<bool, SourceError>,
    mut input: Input<'_>,
    name: &str,
    packed: Option<&'static str>,
    end: End,
) -> Result<u64, SourceError> {
    let start = input.start().map_err(|e| stopped(name, 0, e))?;
    // A first member may hold anything, also at the place of another format's magic number.
    let is_tar = start.first_chunk().is_some_and(|block| header::check_sum(block).is_ok());
    if !is_tar && let Some(found) = recognise(&start) {
        let (archive, why) = (name.into(), String::new());
        return Err(SourceError::NotTar { archive, found: Some(found), packed, why });
    }
    let mut members = Members::new(input, name, packed, end);
    while let Some(member) = members.next()? {
        if !take(member)? {
            break;
        }
    }
    members.drain()
}

/// A temporary file for the data of several archives.
#[derive(Debug)]
pub(super) struct SharedSpool {
    file: File,
    len: u64,
}

impl SharedSpool {
    pub(super) fn new(dir: &Path) -> Result<SharedSpool, SourceError> {
        Ok(SharedSpool { file: spool_file(dir)?, len: 0 })
    }

    pub(super) fn into_contents(self) -> Box<dyn Contents> {
        Box::new(TarContents::new(self.file, "layers".into(), None))
    }
}

/// Adds the archive `input` as another layer of `tree`, with contents `own` in it if it can be read in place, and else
/// with contents `spooled` in the spool. Returns what reads it in place.
pub(super) fn add_archive(
    tree: &mut Assembler,
    input: &TarInput,
    spool: &mut SharedSpool,
    (own, spooled): (u16, u16),
    whiteouts: bool,
) -> Result<Option<Box<dyn Contents>>, SourceError> {
    let (name, file) = match input {
        TarInput::Stdin => ("standard input".into(), None),
        TarInput::File(path) => {
            let name = path.to_string_lossy().into_owned();
            let file = File::open(path);
            let file =
                file.map_err(|cause| SourceError::Io { doing: "open", path: name.clone(), cause })?;
            (name, Some(file))
        }
    };
    let failed = |doing, cause| SourceError::Io { doing, path: name.clone(), cause };
    if let Some(file) = &file {
        let meta = file.metadata().map_err(|e| failed("examine", e))?;
        let mut start = [0; Packing::START];
        let count = if meta.is_file() {
            file.read_at(&mut start, 0).map_err(|e| failed("read", e))?
        } else {
            0
        };
        if meta.is_file() && Packing::of(start.get(..count).unwrap_or_default()) == Packing::Plain {
            let stamp = Stamp::of(file).map_err(|e| failed("examine", e))?;
            tree.begin_layer(&name, own, whiteouts)?;
            let input = Input::File { file, len: meta.len(), window: Vec::new(), window_start: 0 };
            let mut take = |member| tree.add(member).map(|()| true);
            parse_into(&mut take, input, &name, None, End::Mark)?;
            let file = file.try_clone().map_err(|e| failed("open", e))?;
            return Ok(Some(Box::new(TarContents::new(file, name, Some(stamp)))));
        }
    }
    tree.begin_layer(&name, spooled, whiteouts)?;
    let raw: Box<dyn Read + Send> = match file {
        Some(file) => Box::new(file),
        None => Box::new(io::stdin()),
    };
    let mut input = Peek::new(raw);
    let packing = Packing::of(input.peek(Packing::START).map_err(|e| stopped(&name, 0, e))?);
    let SharedSpool { file, len } = spool;
    *len = threads::scope(|scope| {
        let (writer, reader) = pipe();
        let worker = scope.spawn("decompress", move || decompress(input, packing, writer))?;
        let stream = Input::Stream { stream: Box::new(reader), spool: Spool::new(file, *len) };
        let mut take = |member| tree.add(member).map(|()| true);
        let parsed = parse_into(&mut take, stream, &name, packing.name(), End::Mark);
        worker.join().map_err(threads::ThreadError::from)?;
        parsed
    })
    .map_err(threads::ThreadError::from)??;
    Ok(None)
}

/// Returns whether the archive in the file `path` is a container image with its layers, by the
/// names in its root. An unreadable archive is not; reading it as a whole reports the error.
pub(super) fn holds_container(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let Ok(meta) = file.metadata() else { return false };
    let mut start = [0; Packing::START];
    let count = match meta.is_file() {
        true => file.read_at(&mut start, 0).unwrap_or(0),
        false => return false,
    };
    let packing = Packing::of(start.get(..count).unwrap_or_default());
    let mut names = ContainerNames::default();
    let mut look = |input| {
        let mut members = Members::new(input, "", None, End::Mark);
        while let Ok(Some(member)) = members.next() {
            names.see(&member.name);
        }
    };
    if packing == Packing::Plain {
        look(Input::File { file: &file, len: meta.len(), window: Vec::new(), window_start: 0 });
    } else {
        let done = threads::scope(|scope| {
            let (writer, reader) = pipe();
            let input = Peek::new(&file);
            let worker = scope.spawn("decompress", move || decompress(input, packing, writer));
            if worker.is_ok() {
                look(Input::Passing { stream: Box::new(reader) });
            }
        });
        if done.is_err() {
            return false;
        }
    }
    names.is_container()
}

/// An error of reading an archive: damage where the decompressor says so.
fn stopped(archive: &str, offset: u64, cause: io::Error) -> SourceError {
    use io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    match cause.kind() {
        // zstd's own errors come as `Other`.
        InvalidData | InvalidInput | Other if cause.raw_os_error().is_none() => {
            let what = format!("the compressed data is damaged: {cause}");
            SourceError::Archive { archive: archive.into(), offset, what }
        }
        UnexpectedEof => {
            let what = "the archive is cut short: the compressed data has no end".into();
            SourceError::Archive { archive: archive.into(), offset, what }
        }
        _ => SourceError::Io { doing: "read or collect", path: archive.into(), cause },
    }
}

/// A temporary file without a name in `dir`.
fn spool_file(dir: &Path) -> Result<File, SourceError> {
    let failed = |cause: io::Error| SourceError::Io {
        doing: "make a temporary file in",
        path: dir.to_string_lossy().into_owned(),
        cause,
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match openat(CWD, dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(file.into()),
        // A file system or kernel without it; a kernel before 3.11 sees a directory to be written.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            tempfile::tempfile_in(dir).map_err(failed)
        }
        Err(cause) => Err(failed(cause.into())),
    }
}
