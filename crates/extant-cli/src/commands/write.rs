//! `extant write`: the contents of a file from standard input.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};

use clap::Args;
use extant::{FsError, Inode};
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::commands::touch::end_of_links;
use crate::copying::content::{CHUNK_BYTES, Content, Fault, Sink};
use crate::copying::refused;
use crate::edit::{EditArgs, NewArgs, Session, edit_one};
use crate::exit::{Exit, Failure, Result};
use crate::fault::io_exit;
use crate::image::split;
use crate::mode::ModeChange;
use crate::replace;
use crate::size::parse_bytes;
use crate::stdio;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  echo web1 | extant write root.img:/etc/hostname\n  extant cat root.img:/etc/fstab | sed s/sda/vda/ | extant write root.img:/etc/fstab\n  echo 'PermitRootLogin no' | extant write --append root.img:/etc/ssh/sshd_config\n  extant write --at 446 root.img:/disk < table\n";

/// What is kept in memory of a pipe, in bytes; the rest goes to a temporary file.
const MEMORY_BYTES: usize = 64 << 20;

/// Write standard input into a file of an image
///
/// The file is replaced all at once: after a failure or a crash it has its old contents or the new
/// ones. Owner, mode, flags and attributes stay, except for capabilities; other names of the same file keep the
/// old contents (--in-place changes them too). A file that is missing is made, with 0644 unless --mode
/// says otherwise.
///
/// All of the input is read before the image is opened, so that it may come from the same image.
/// With --append, --at or --in-place the file itself is changed, and a failure says how far.
#[derive(Args, Debug)]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    new: NewArgs,
    /// Write behind the end
    #[arg(short = 'a', long, conflicts_with = "at")]
    append: bool,
    /// Write from this byte of the file on, and leave the rest as it is
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    at: Option<u64>,
    /// Empty the file and write into it, instead of replacing it
    #[arg(long, conflicts_with_all = ["append", "at"])]
    in_place: bool,
    /// Make no file
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Permissions of a new file, as chmod takes them
    #[arg(long, value_name = "MODE", value_parser = ModeChange::parse, conflicts_with = "no_create")]
    mode: Option<ModeChange>,
    /// The file
    #[arg(value_name = "IMG:/PATH")]
    target: OsString,
}

/// Runs the command.
pub(crate) fn run(args: &WriteArgs) -> Result<Exit> {
    let (file, path) = split(&args.target);
    let input = input()?;
    edit_one(&args.edit, &file, |session| {
        let result = write(args, session, &path, &input);
        session.tally.note(result);
        Ok(())
    })
}

fn write(args: &WriteArgs, session: &Session<'_>, path: &[u8], input: &Content) -> Result<()> {
    let there = session.look(path, true)?;
    let permissions = args.mode.as_ref().map(|mode| mode.apply(0o666, false));
    let path = match &there {
        Some(_) => session.at(path, session.fs.canonicalize(path))?,
        None if args.no_create => return Err(session.failure(path, missing())),
        None => end_of_links(session, path)?,
    };
    if !args.append
        && let Some(old) = &there
    {
        replace::check(session, &path, old)?;
    }
    let changes = args.append || args.at.is_some() || args.in_place;
    let inode = match there {
        Some(inode) if changes => inode,
        // What is new appears all at once.
        None if args.at.is_some_and(|at| at > 0) => {
            let new = args.new.inode(session, &path, permissions, 0o644)?;
            session.at(&path, session.fs.create(&path, &new))?
        }
        old => {
            let new = (&args.new, permissions);
            return replace::replace(session, &path, old.as_ref(), new, input);
        }
    };
    if args.in_place {
        session.at(&path, inode.truncate(0))?;
        return replace::fill(session, &path, input, &Sink::Image(inode))
            .map_err(|failure| failure.hint("the file was emptied and is not complete"));
    }
    pour(session, &path, input, &inode, args.at)
}

fn missing() -> FsError {
    FsError::NotFound { dir: extant::Ino::ROOT, at: None }
}

/// Writes all of `input` at byte `at`, or at the end.
fn pour(
    session: &Session<'_>,
    path: &[u8],
    input: &Content,
    to: &Inode,
    at: Option<u64>,
) -> Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut done = 0u64;
    let mut step = || -> Result<bool, Fault> {
        let read = input.read_at(done, &mut buffer).map_err(Fault::From)?;
        let part = &buffer[..read];
        if part.is_empty() {
            return Ok(false);
        }
        match at {
            Some(at) => {
                let at = at.checked_add(done).ok_or_else(|| {
                    Fault::To(refused("the offset is past the end of any file", None))
                })?;
                Sink::Image(to.clone()).write_at(at, part).map_err(Fault::To)?;
            }
            None => {
                to.append(part).map_err(|error| Fault::To(error.into()))?;
            }
        }
        done = done.saturating_add(read as u64);
        Ok(true)
    };
    let result = loop {
        match step() {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(fault) => break Err(fault),
        }
    };
    result.map_err(|fault| {
        let failure = replace::failure(session, path, fault);
        failure.hint(format!("{done} bytes of the input were written before"))
    })
}

/// Standard input: as it is if it is a file, else read to its end.
fn input() -> Result<Content> {
    stdio::check_input().map_err(|error| unreadable(&error))?;
    let stdin = std::io::stdin();
    let file = rustix::io::fcntl_dupfd_cloexec(&stdin, 0).map(File::from);
    let file = file.map_err(|errno| unreadable(&errno.into()))?;
    let meta = file.metadata().map_err(|error| unreadable(&error))?;
    let at = rustix::fs::tell(&file).ok();
    // From its beginning only: what was read of it before is not input.
    if meta.is_file() && meta.len() > 0 && at == Some(0) {
        return Ok(Content::Host { len: meta.len(), file, is_stream: false });
    }
    let mut bytes = Vec::new();
    let mut source = file.take(MEMORY_BYTES as u64 + 1);
    source.read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    if bytes.len() <= MEMORY_BYTES {
        return Ok(Content::Memory(bytes));
    }
    let dir = std::env::temp_dir();
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let spool = openat(CWD, &dir, flags, Mode::from(0o600)).map(File::from);
    let mut spool = spool.map_err(|errno| unspooled(&errno.into()))?;
    let mut source = source.into_inner();
    let copied = spool.write_all(&bytes).and_then(|()| std::io::copy(&mut source, &mut spool));
    copied.map_err(|error| unspooled(&error))?;
    let len = spool.metadata().map_err(|error| unspooled(&error))?.len();
    Ok(Content::Host { file: spool, len, is_stream: false })
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::caused(io_exit(error), "cannot read standard input", error)
}

fn unspooled(error: &std::io::Error) -> Failure {
    let what = format!("cannot keep the input in {}", std::env::temp_dir().display());
    Failure::caused(io_exit(error), &what, error)
        .hint("set TMPDIR to a larger place, or give the input as a file: < FILE")
}
