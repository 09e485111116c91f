//! `extant mv`: rename and move.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::Args;
use extant::{FsError, RenameFlags};

use crate::edit::{EditArgs, Session, edit_one, join, last_name, parent};
use crate::exit::{Exit, Failure, Result};
use crate::image::split;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant mv root.img:/etc/motd root.img:/etc/motd.old\n  extant mv root.img:/a root.img:/b root.img:/archive/\n  extant mv --exchange root.img:/current root.img:/next\n";

/// Rename or move files within an image
///
/// A destination that is a directory takes the files in, unless -T is given. Each source is one
/// change, and made even if another one fails; what is at the new name is replaced in the same
/// instant.
#[derive(Args, Debug)]
pub(crate) struct MvArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// Fail instead of replacing what exists
    #[arg(short = 'n', long, overrides_with = "force")]
    no_clobber: bool,
    /// Replace what exists, in spite of an -n before
    #[arg(short = 'f', long, overrides_with = "no_clobber")]
    force: bool,
    /// The destination is the new name, even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Let both names change places
    #[arg(long, conflicts_with_all = ["no_clobber", "force"])]
    exchange: bool,
    /// What is moved, and where to
    #[arg(value_name = "IMG:/PATH", num_args = 2.., required = true)]
    paths: Vec<OsString>,
}

/// The one image that all of `targets` are in, and their paths.
pub(crate) fn one_image(targets: &[OsString]) -> Result<(PathBuf, Vec<Vec<u8>>)> {
    let mut image: Option<(PathBuf, &OsStr)> = None;
    let mut paths = Vec::new();
    for target in targets {
        let (file, path) = split(target);
        match &image {
            None => image = Some((file, target)),
            Some((first, _)) if same_file(first, &file) => {}
            Some((_, first)) => {
                let message = format!(
                    "{} and {} are not in the same image",
                    first.display(),
                    target.display()
                );
                return Err(Failure::usage(message));
            }
        }
        paths.push(path);
    }
    let (file, _) = image.ok_or_else(|| Failure::usage("no paths"))?;
    Ok((file, paths))
}

fn same_file(a: &Path, b: &Path) -> bool {
    let full = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    a == b || full(a) == full(b)
}

/// Runs the command.
pub(crate) fn run(args: &MvArgs) -> Result<Exit> {
    let (file, mut sources) = one_image(&args.paths)?;
    let target = sources.pop().unwrap_or_default();
    edit_one(&args.edit, &file, |session| {
        let into =
            !args.no_target_directory && !args.exchange && session.is_directory(&target, true)?;
        if sources.len() > 1 && !into {
            let message = format!(
                "{}: several files move only into a directory that exists",
                session.label(&target)
            );
            return Err(Failure::usage(message));
        }
        for source in &sources {
            if session.tally.stops() {
                break;
            }
            let to = if into { join(&target, last_name(source)) } else { target.clone() };
            let result = rename(args, session, source, &to);
            session.tally.note(result);
        }
        Ok(())
    })
}

fn rename(args: &MvArgs, session: &Session<'_>, from: &[u8], to: &[u8]) -> Result<()> {
    if [from, to].iter().any(|path| matches!(last_name(path), b"" | b"." | b"..")) {
        let message = "the root, `.` and `..` cannot be moved or replaced";
        return Err(Failure::usage(format!("{}: {message}", session.label(from))));
    }
    let moved = session.find(from, false)?;
    let there = session.look(to, false)?;
    let flags = match () {
        () if args.exchange => RenameFlags::EXCHANGE,
        () if args.no_clobber => RenameFlags::NOREPLACE,
        () => RenameFlags::empty(),
    };
    // Two names of one file: a rename would leave both, and say nothing.
    if flags.is_empty() && there.as_ref().is_some_and(|there| there.ino() == moved.ino()) {
        let message =
            format!("{} and {} are the same file", session.label(from), session.label(to));
        return Err(Failure::usage(message));
    }
    session.fs.rename_with(from, to, flags).map_err(|error| match error {
        FsError::NotFound { .. } if there.is_none() && args.exchange => session.failure(to, error),
        FsError::NotFound { .. } => session.failure(parent(to), error),
        _ => session.failure(to, error),
    })
}
