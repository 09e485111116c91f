//! `extant rm`: remove files and trees.

use std::ffi::OsString;

use clap::Args;
use extant::{FsError, Inode, InodeFlags};

use crate::edit::{EditArgs, Session, edit_each, join, last_name};
use crate::exit::{Exit, Failure, Result};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant rm root.img:/etc/motd root.img:/etc/issue\n  extant rm -rf root.img:/var/cache/apt\n";

/// Remove files from an image
///
/// Each path is one change, and made even if another one fails. With -r a tree is removed one by
/// one from the bottom up; what cannot be removed is named, and stays with the directories above
/// it. A tree with something immutable in it is left whole.
#[derive(Args, Debug)]
pub(crate) struct RmArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// Directories too, with all that is in them
    #[arg(short = 'r', visible_short_alias = 'R', long)]
    recursive: bool,
    /// What does not exist is no error
    #[arg(short = 'f', long)]
    force: bool,
    /// Empty directories too
    #[arg(short = 'd', long)]
    dir: bool,
    /// The files
    #[arg(value_name = "IMG:/PATH", required = true)]
    targets: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &RmArgs) -> Result<Exit> {
    edit_each(&args.edit, &args.targets, |session, path| remove(args, session, path))
}

fn remove(args: &RmArgs, session: &mut Session<'_>, path: &[u8]) -> Result<()> {
    if matches!(last_name(path), b"" | b"." | b"..") {
        let what = "the root, `.` and `..` are never removed";
        return Err(Failure::usage(format!("{}: {what}", session.label(path))));
    }
    let inode = match session.fs.resolve_link(path) {
        Ok(inode) => inode,
        Err(FsError::NotFound { .. } | FsError::NotADirectory { .. }) if args.force => {
            return Ok(());
        }
        Err(error) => return Err(session.failure(path, error)),
    };
    if !inode.is_dir() {
        return session.at(path, session.fs.remove_file(path));
    }
    if args.recursive {
        check_removable(session, path)?;
        return remove_tree(session, path, inode);
    }
    if args.dir {
        return session.at(path, session.fs.remove_dir(path));
    }
    let failure = session.failure(path, FsError::IsADirectory { ino: inode.ino() });
    Err(failure.hint("-r removes it with all that is in it, -d if it is empty"))
}

/// That nothing in the tree forbids its removal, so that it is not found half-way.
fn check_removable(session: &Session<'_>, path: &[u8]) -> Result<()> {
    for entry in session.at(path, session.fs.walk(path))? {
        // What cannot be read will be named when it cannot be removed.
        let Ok(entry) = entry else { continue };
        let frozen = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if entry.inode().flags().intersects(frozen) {
            let what = "it is immutable or append-only, so nothing was removed";
            let error = FsError::NotPermitted { ino: entry.inode().ino(), what };
            let failure = session.failure(entry.path(), error);
            return Err(failure.hint("chattr -i -a lifts that"));
        }
    }
    Ok(())
}

/// A directory that is being emptied.
struct Level {
    dir: Inode,
    path: Vec<u8>,
    /// Names that are still to be removed, the last one first.
    names: Vec<Vec<u8>>,
}

impl Level {
    fn open(session: &mut Session<'_>, dir: Inode, path: Vec<u8>) -> Level {
        let mut names = Vec::new();
        match dir.read_dir() {
            Ok(entries) => {
                for entry in entries {
                    match entry {
                        Ok(entry) => names.push(entry.name().to_vec()),
                        Err(error) => session.tally.failed(&session.failure(&path, error)),
                    }
                }
            }
            Err(error) => session.tally.failed(&session.failure(&path, error)),
        }
        Level { dir, path, names }
    }
}

/// Removes a directory from the bottom up. Failures are noted and the rest is removed.
fn remove_tree(session: &mut Session<'_>, path: &[u8], top: Inode) -> Result<()> {
    let mut way = vec![Level::open(session, top, path.to_vec())];
    loop {
        let depth = way.len();
        let Some(level) = way.last_mut() else { return Ok(()) };
        if session.tally.stops() {
            return Ok(());
        }
        let Some(name) = level.names.pop() else {
            // Empty by now, unless something in it was named as a failure.
            let path = std::mem::take(&mut level.path);
            way.pop();
            let result = session.fs.remove_dir(&path);
            if let Err(FsError::NotEmpty { .. }) = result {
                continue;
            }
            let result = session.at(&path, result);
            session.tally.note(result);
            continue;
        };
        let path = join(&level.path, &name);
        match level.dir.unlink(&name) {
            Ok(()) => session.tally.done(),
            Err(FsError::IsADirectory { .. }) => {
                if depth >= extant::DEPTH_MAX {
                    let error =
                        FsError::TooDeep { ino: extant::Ino::ROOT, depth_max: extant::DEPTH_MAX };
                    session.tally.failed(&session.failure(&path, error));
                    continue;
                }
                match level.dir.lookup(&name) {
                    Ok(below) => {
                        let below = Level::open(session, below, path);
                        way.push(below);
                    }
                    Err(error) => session.tally.failed(&session.failure(&path, error)),
                }
            }
            Err(error) => session.tally.failed(&session.failure(&path, error)),
        }
    }
}
