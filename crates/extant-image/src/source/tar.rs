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
mod member;
mod pax;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use extant_sync::threads;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use self::assemble::Assembler;
use self::contents::{Stamp, TarContents};
use self::input::{Input, Packing, Peek, Spool, decompress, pipe};
use self::member::Members;
use crate::signature::recognise;
use crate::source::{Scanned, Skipped, SourceError};
use crate::tree::Tree;

/// Where an archive is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TarInput {
    /// In a file (or fifo, or device).
    File(PathBuf),
    /// On standard input.
    Stdin,
}

/// How to read an archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TarOptions {
    /// Directory for the unnamed temporary file that holds the data of an archive which cannot be
    /// read in place: it needs as much room as all files of the archive have bytes.
    pub spool_dir: PathBuf,
}

/// Reads the names and attributes of an archive. How it is packed is told by its contents.
///
/// # Errors
///
/// - [`SourceError::NotTar`]: it is no tar archive, plain or packed with gzip or zstd; says what it
///   is where that is known. An archive without members has at most 10,240 bytes, all of them zero:
///   what merely begins with zeros is no archive.
/// - [`SourceError::Archive`]: damaged, cut short, or with members that make no tree or would leave
///   it. Names archive, byte offset and member.
/// - [`SourceError::Io`]: it cannot be opened or read, or the temporary file not be written.
/// - [`SourceError::Tree`]: too much for one tree.
/// - [`SourceError::Threads`]: the system gave no thread to decompress.
pub fn scan_tar(input: TarInput, options: &TarOptions) -> Result<Scanned, SourceError> {
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
    let tree = parse(input, &name, None)?;
    let contents = Box::new(TarContents::new(file, name, Some(stamp)));
    Ok(Scanned { tree, contents, skipped: Skipped::default() })
}

/// Reads an archive from a stream, packed or not, as [`scan_tar`] does; `name` is for messages.
///
/// # Errors
///
/// Those of [`scan_tar`].
pub fn scan_tar_stream(
    name: &str,
    input: impl Read + Send,
    options: &TarOptions,
) -> Result<Scanned, SourceError> {
    let mut input = Peek::new(input);
    let start = input.peek(Packing::START).map_err(|e| stopped(name, 0, e))?;
    let packing = Packing::of(start);
    let spool = spool_file(&options.spool_dir)?;
    let tree = threads::scope(|scope| {
        let (writer, reader) = pipe();
        let worker = scope.spawn("decompress", move || decompress(input, packing, &writer))?;
        let stream = Input::Stream { stream: Box::new(reader), spool: Spool::new(&spool) };
        let tree = parse(stream, name, packing.name());
        worker.join().map_err(threads::ThreadError::from)?;
        tree
    })
    .map_err(threads::ThreadError::from)??;
    let contents = Box::new(TarContents::new(spool, name.into(), None));
    Ok(Scanned { tree, contents, skipped: Skipped::default() })
}

fn parse(
    mut input: Input<'_>,
    name: &str,
    packed: Option<&'static str>,
) -> Result<Tree, SourceError> {
    let start = input.start().map_err(|e| stopped(name, 0, e))?;
    // A first member may hold anything, also at the place of another format's magic number.
    let is_tar = start.first_chunk().is_some_and(|block| header::check_sum(block).is_ok());
    if !is_tar && let Some(found) = recognise(&start) {
        let (archive, why) = (name.into(), String::new());
        return Err(SourceError::NotTar { archive, found: Some(found), packed, why });
    }
    let mut members = Members::new(input, name, packed);
    let mut tree = Assembler::new(name);
    while let Some(member) = members.next()? {
        tree.add(member)?;
    }
    members.drain()?;
    tree.finish()
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
