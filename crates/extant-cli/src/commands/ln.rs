//! `extant ln`: hard and symbolic links.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use extant::FsError;

use crate::commands::mv::one_image;
use crate::edit::{EditArgs, NewArgs, Session, edit_one, join, last_name, parent};
use crate::exit::{Exit, Failure, Result};
use crate::image::split;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant ln -s ../run root.img:/var/run\n  extant ln -sf /usr/share/zoneinfo/UTC root.img:/etc/localtime\n  extant ln root.img:/bin/busybox root.img:/bin/sh\n";

/// Make links in an image
///
/// With -s, TARGET is text: the path that the link leads to, and need not exist. Without, it is a
/// file of the image that gets another name. A last path that is a directory takes the links in.
#[derive(Args, Debug)]
pub(crate) struct LnArgs {
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    new: NewArgs,
    /// Symbolic links
    #[arg(short = 's', long)]
    symbolic: bool,
    /// Replace what has the name already, unless it is a directory
    #[arg(short = 'f', long)]
    force: bool,
    /// The last path is the link's name, even if it is a link to a directory
    #[arg(short = 'n', long)]
    no_dereference: bool,
    /// The last path is the link's name, even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// TARGET… IMG:/LINK
    #[arg(value_name = "TARGET… IMG:/LINK", num_args = 2.., required = true)]
    paths: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &LnArgs) -> Result<Exit> {
    let (file, originals, link) = if args.symbolic {
        let Some((link, targets)) = args.paths.split_last() else {
            return Err(Failure::usage("no link"));
        };
        let (file, link) = split(link);
        (file, targets.iter().map(|target| target.as_bytes().to_vec()).collect(), link)
    } else {
        let (file, mut paths) = one_image(&args.paths)?;
        let link = paths.pop().unwrap_or_default();
        (file, paths, link)
    };
    edit_one(&args.edit, &file, |session| {
        let follow = !args.no_dereference;
        let into = !args.no_target_directory && session.is_directory(&link, follow)?;
        if originals.len() > 1 && !into {
            let message = format!(
                "{}: several links are made only in a directory that exists",
                session.label(&link)
            );
            return Err(Failure::usage(message));
        }
        for original in &originals {
            if session.tally.stops() {
                break;
            }
            let path = if into { join(&link, last_name(original)) } else { link.clone() };
            let result = make(args, session, original, &path);
            session.tally.note(result);
        }
        Ok(())
    })
}

fn make(args: &LnArgs, session: &Session<'_>, original: &[u8], path: &[u8]) -> Result<()> {
    let there = if args.force { session.look(path, false)? } else { None };
    let Some(there) = there else { return make_at(args, session, original, path) };
    if there.is_dir() {
        return Err(session.failure(path, FsError::IsADirectory { ino: there.ino() }));
    }
    if !args.symbolic && session.find(original, false)?.ino() == there.ino() {
        let message =
            format!("{} and {} are the same file", session.label(original), session.label(path));
        return Err(Failure::usage(message));
    }
    // Under another name first, so that the old link is there until the new one is.
    let aside = join(parent(path), format!(".extant-{}", std::process::id()).as_bytes());
    make_at(args, session, original, &aside)?;
    session.fs.rename(&aside, path).map_err(|error| {
        // The name was ours; what is left if this fails too is named.
        let left = session.fs.remove_file(&aside);
        let failure = session.failure(path, error);
        match left {
            Ok(()) => failure,
            Err(_) => failure.hint(format!("{} is left over", session.label(&aside))),
        }
    })
}

fn make_at(args: &LnArgs, session: &Session<'_>, original: &[u8], path: &[u8]) -> Result<()> {
    if args.symbolic {
        let new = args.new.inode(session, path, Some(0o777), 0o777)?;
        return session.at(path, session.fs.symlink(original, path, &new)).map(drop);
    }
    // First, so that a missing original is not taken for a missing directory.
    session.find(original, false)?;
    session.at(path, session.fs.hard_link(original, path))
}
