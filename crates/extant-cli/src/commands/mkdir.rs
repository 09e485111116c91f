//! `extant mkdir`: make directories.

use std::ffi::OsString;

use clap::Args;
use extant::FsError;

use crate::edit::{EditArgs, NewArgs, Session, edit_each, last_name, parent};
use crate::exit::{Exit, Result};
use crate::mode::ModeChange;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant mkdir root.img:/srv\n  extant mkdir -p -m 750 --owner 33:33 root.img:/srv/www/htdocs\n";

/// Permissions where none are given: all, under a umask of 022.
const USUAL: u16 = 0o755;

/// Make directories in an image
///
/// Each path is one change, and made even if another one fails. Permissions are 0755 unless -m says
/// otherwise, whatever the umask; a default ACL of the directory above is inherited.
#[derive(Args, Debug)]
pub(crate) struct MkdirArgs {
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    new: NewArgs,
    /// Make what is missing above too; a directory that exists is no error
    #[arg(short = 'p', long)]
    parents: bool,
    /// Permissions, as chmod takes them
    #[arg(short = 'm', long, value_name = "MODE", value_parser = ModeChange::parse)]
    mode: Option<ModeChange>,
    /// The directories
    #[arg(value_name = "IMG:/PATH", required = true)]
    targets: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &MkdirArgs) -> Result<Exit> {
    edit_each(&args.edit, &args.targets, |session, path| make(args, session, path))
}

fn make(args: &MkdirArgs, session: &mut Session<'_>, path: &[u8]) -> Result<()> {
    if args.parents {
        let above = parent(path);
        let new = args.new.inode(session, above, None, USUAL)?;
        session.at(path, session.fs.create_dir_all(above, &new))?;
        match session.look(path, true)? {
            Some(found) if found.is_dir() => return Ok(()),
            Some(found) => {
                let error = FsError::NotADirectory { ino: found.ino(), at: None };
                return Err(session.failure(path, error));
            }
            None if last_name(path).is_empty() => return Ok(()),
            None => {}
        }
    }
    let exact = args.mode.as_ref().map(|mode| mode.apply(0o777, true));
    let new = args.new.inode(session, path, exact, USUAL)?;
    let made = session.at(path, session.fs.create_dir(path, &new))?;
    // A default ACL limits what a new directory gets; -m means what it says.
    if let Some(exact) =
        exact.filter(|exact| made.metadata().permissions & 0o5777 != exact & 0o5777)
    {
        let changes = extant::SetAttributes::new().permissions(exact);
        session.at(path, made.set_attributes(&changes))?;
    }
    Ok(())
}
