//! `extant touch`: change times, make empty files.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::{ArgAction, Args};
use extant::{FsError, Inode, SetAttributes, TimeChange, Timestamp};

use crate::copying::node::About;
use crate::edit::{EditArgs, NewArgs, Session, edit_each, join, parent};
use crate::exit::{Exit, Failure, Result};
use crate::fault::io_exit;
use crate::image::{label, split};
use crate::mode::ModeChange;
use crate::moment::{Moment, parse_moment};
use crate::text::escape;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant touch root.img:/etc/first-boot\n  extant touch -c -d '2026-11-21 10:12:58' root.img:/etc/motd\n  extant touch -r root.img:/bin/sh root.img:/bin/ash\n";

/// Set times of files in an image, and make empty files
///
/// Without -a or -m, both the time of access and the time of modification. New files get 0644
/// unless --mode says otherwise, whatever the umask. Each path is one change, and made even if
/// another one fails.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct TouchArgs {
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    new: NewArgs,
    /// Make no file
    #[arg(short = 'c', long)]
    no_create: bool,
    /// The time of access only
    #[arg(short = 'a')]
    access: bool,
    /// The time of modification only
    #[arg(short = 'm')]
    modification: bool,
    /// This time: now, @SECONDS, 2026-11-21, '2026-11-21 10:12:58+02:00'; UTC without a zone
    #[arg(short = 'd', long, value_name = "TIME", value_parser = parse_moment,
          allow_hyphen_values = true)]
    date: Option<Moment>,
    /// The times of this file, of the host or of an image (IMG:/PATH)
    #[arg(short = 'r', long, value_name = "FILE", conflicts_with = "date")]
    reference: Option<OsString>,
    /// A symbolic link itself; makes no file
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Permissions of new files, as chmod takes them
    #[arg(long, value_name = "MODE", value_parser = ModeChange::parse)]
    mode: Option<ModeChange>,
    /// The files
    #[arg(value_name = "IMG:/PATH", required = true)]
    targets: Vec<OsString>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Runs the command.
pub(crate) fn run(args: &TouchArgs) -> Result<Exit> {
    let reference =
        args.reference.as_deref().map(|file| reference_times(args, file)).transpose()?;
    let (atime, mtime) = match (reference, args.date) {
        (Some((atime, mtime)), _) => (TimeChange::To(atime), TimeChange::To(mtime)),
        (None, Some(Moment::At(time))) => (TimeChange::To(time), TimeChange::To(time)),
        (None, Some(Moment::Now) | None) => (TimeChange::Now, TimeChange::Now),
    };
    let both = args.access == args.modification;
    let changes = SetAttributes::new().times(
        (both || args.access).then_some(atime),
        (both || args.modification).then_some(mtime),
    );
    edit_each(&args.edit, &args.targets, |session, path| touch(args, &changes, session, path))
}

fn touch(
    args: &TouchArgs,
    changes: &SetAttributes,
    session: &mut Session<'_>,
    path: &[u8],
) -> Result<()> {
    if let Some(inode) = session.look(path, !args.no_dereference)? {
        return session.at(path, inode.set_attributes(changes));
    }
    if args.no_create {
        return Ok(());
    }
    if args.no_dereference {
        return Err(session.failure(path, FsError::NotFound { dir: extant::Ino::ROOT, at: None }));
    }
    let path = &end_of_links(session, path)?;
    let exact = args.mode.as_ref().map(|mode| mode.apply(0o666, false));
    let new = args.new.inode(session, path, exact, 0o644)?;
    let made = session.at(path, session.fs.create(path, &new))?;
    let now = SetAttributes::new().times(Some(TimeChange::Now), Some(TimeChange::Now));
    if *changes == now {
        return Ok(());
    }
    made.set_attributes(changes).map_err(|error| {
        let failure = session.failure(path, error);
        match session.fs.remove_file(path) {
            Ok(()) => failure,
            Err(_) => failure.hint("the file was made, and keeps the present time"),
        }
    })
}

/// Returns where a dangling symbolic link leads: that is what gets made.
pub(crate) fn end_of_links(session: &Session<'_>, path: &[u8]) -> Result<Vec<u8>> {
    let mut path = path.to_vec();
    for _ in 0..=extant::SYMLINKS_MAX {
        let Some(link) = session.look(&path, false)?.filter(Inode::is_symlink) else {
            return Ok(path);
        };
        let target = session.at(&path, link.read_link())?;
        path = if target.starts_with(b"/") { target } else { join(parent(&path), &target) };
    }
    Err(session.failure(&path, FsError::SymlinkLoop { ino: extant::Ino::ROOT, at: None }))
}

/// Times of a file of the host, or of an image if there is no such file.
fn reference_times(args: &TouchArgs, file: &std::ffi::OsStr) -> Result<(Timestamp, Timestamp)> {
    let about = reference(&args.edit, file, !args.no_dereference)?;
    Ok((about.atime, about.mtime))
}

/// Attributes of a file of the host, or of an image if there is no such file.
pub(crate) fn reference(edit: &EditArgs, file: &std::ffi::OsStr, follow: bool) -> Result<About> {
    let failed =
        |error: &std::io::Error| Failure::caused(io_exit(error), &escape(file.as_bytes()), error);
    let host = match follow {
        true => std::fs::metadata(file),
        false => std::fs::symlink_metadata(file),
    };
    let error = match host {
        Ok(meta) => return Ok(About::on_host(&meta)),
        Err(error) => error,
    };
    let (image, path) = split(file);
    if image.as_os_str() == file || !image.exists() {
        return Err(failed(&error));
    }
    let (fs, name) = edit.open_read_only(&image)?;
    let found = if follow { fs.resolve(&path) } else { fs.resolve_link(&path) };
    match found {
        Ok(inode) => Ok(About::in_image(0, &inode.metadata())),
        Err(FsError::NotFound { .. }) => {
            let message = format!("{}: no such file", label(&name, &path));
            Err(Failure::new(Exit::NotFound, message))
        }
        Err(error) => Err(crate::image::failure(&name, &path, error)),
    }
}
