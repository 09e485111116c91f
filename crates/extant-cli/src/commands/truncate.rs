//! `extant truncate`: sizes of files.

use std::ffi::OsString;

use clap::Args;
use extant::{FsError, Inode};

use crate::commands::touch::{end_of_links, reference};
use crate::edit::{EditArgs, NewArgs, Session, edit_each};
use crate::exit::{Exit, Failure, Result};
use crate::size::parse_bytes;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant truncate -s 0 root.img:/var/log/syslog\n  extant truncate -s +1G root.img:/swap\n  extant truncate -s %4K root.img:/blob\n";

/// Set the sizes of files in an image
///
/// As truncate(1): what is cut off is gone, growth reads as zeros and takes no space. A file that
/// is missing is made, with 0644, unless -c is given. Each file is one change, and made even if
/// another one fails.
#[derive(Args, Debug)]
pub(crate) struct TruncateArgs {
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    new: NewArgs,
    // Not a doc comment: rustdoc takes the less-than sign for markup.
    #[arg(short = 's', long, help = "The size; +N and -N change it by N bytes, <N makes it at most \
          and >N at least N, /N rounds down and %N up to a multiple", value_name = "[+-<>/%]SIZE", value_parser = SizeChange::parse,
          allow_hyphen_values = true, required_unless_present = "reference")]
    size: Option<SizeChange>,
    /// The size of this file, of the host or of an image (IMG:/PATH); -s then changes that
    #[arg(short = 'r', long, value_name = "FILE")]
    reference: Option<OsString>,
    /// Make no file
    #[arg(short = 'c', long)]
    no_create: bool,
    /// The files
    #[arg(value_name = "IMG:/PATH", required = true)]
    targets: Vec<OsString>,
}

/// What becomes of a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SizeChange {
    To(u64),
    By(u64),
    Less(u64),
    AtMost(u64),
    AtLeast(u64),
    Down(u64),
    Up(u64),
}

impl SizeChange {
    fn parse(text: &str) -> Result<SizeChange, String> {
        let text = text.trim_start();
        let change: fn(u64) -> SizeChange = match text.chars().next() {
            Some('+') => SizeChange::By,
            Some('-') => SizeChange::Less,
            Some('<') => SizeChange::AtMost,
            Some('>') => SizeChange::AtLeast,
            Some('/') => SizeChange::Down,
            Some('%') => SizeChange::Up,
            _ => return parse_bytes(text).map(SizeChange::To),
        };
        match change(parse_bytes(&text[1..])?) {
            SizeChange::Down(0) | SizeChange::Up(0) => Err("0 has no multiples".into()),
            change => Ok(change),
        }
    }

    /// The new size; `None` when there is none so large.
    fn apply(self, size: u64) -> Option<u64> {
        Some(match self {
            SizeChange::To(bytes) => bytes,
            SizeChange::By(bytes) => size.checked_add(bytes)?,
            SizeChange::Less(bytes) => size.saturating_sub(bytes),
            SizeChange::AtMost(bytes) => size.min(bytes),
            SizeChange::AtLeast(bytes) => size.max(bytes),
            SizeChange::Down(bytes) => size - size.checked_rem(bytes)?,
            SizeChange::Up(bytes) => size.checked_next_multiple_of(bytes)?,
        })
    }
}

/// Runs the command.
pub(crate) fn run(args: &TruncateArgs) -> Result<Exit> {
    let reference = match &args.reference {
        None => None,
        Some(_) if matches!(args.size, Some(SizeChange::To(_))) => {
            let message = "beside --reference, --size is a change: +N, -N, <N, >N, /N or %N";
            return Err(Failure::usage(message));
        }
        Some(file) => Some(reference(&args.edit, file, true)?.size),
    };
    edit_each(&args.edit, &args.targets, |session, path| {
        let Some(inode) = file(args, session, path)? else { return Ok(()) };
        let size = reference.unwrap_or_else(|| inode.metadata().size);
        let Some(size) = args.size.unwrap_or(SizeChange::By(0)).apply(size) else {
            let message = format!("{}: no file can be that large", session.label(path));
            return Err(Failure::usage(message));
        };
        session.at(path, inode.truncate(size))
    })
}

/// The file at `path`, made if it is missing, unless it is to be left so.
fn file(args: &TruncateArgs, session: &Session<'_>, path: &[u8]) -> Result<Option<Inode>> {
    let inode = match session.look(path, true)? {
        Some(inode) => inode,
        None if args.no_create => return Ok(None),
        None => {
            let path = end_of_links(session, path)?;
            let new = args.new.inode(session, &path, None, 0o644)?;
            session.at(&path, session.fs.create(&path, &new))?
        }
    };
    check_file(session, path, &inode)?;
    Ok(Some(inode))
}

/// That `inode` has contents.
pub(crate) fn check_file(session: &Session<'_>, path: &[u8], inode: &Inode) -> Result<()> {
    let ino = inode.ino();
    match () {
        () if inode.is_dir() => Err(session.failure(path, FsError::IsADirectory { ino })),
        () if !inode.is_file() => Err(session.failure(path, FsError::NotARegularFile { ino })),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_change_as_the_sign_says() {
        for (text, from, to) in [
            ("5", 7, 5),
            ("+5", 7, 12),
            ("-5", 7, 2),
            ("-9", 7, 0),
            ("<5", 7, 5),
            ("<9", 7, 7),
            (">5", 7, 7),
            (">9", 7, 9),
            ("/4K", 5000, 4096),
            ("%4K", 5000, 8192),
            ("%4K", 4096, 4096),
        ] {
            assert_eq!(SizeChange::parse(text).unwrap().apply(from), Some(to), "{text}");
        }
        for text in ["", "+", "/0", "%0", "x", "--1"] {
            assert!(SizeChange::parse(text).is_err(), "{text}");
        }
        assert_eq!(SizeChange::By(1).apply(u64::MAX), None);
        assert_eq!(SizeChange::Up(4096).apply(u64::MAX), None);
    }
}
