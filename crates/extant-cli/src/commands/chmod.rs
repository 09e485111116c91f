//! `extant chmod`: change permissions.

use std::ffi::OsString;

use clap::Args;
use extant::{Inode, SetAttributes};

use crate::edit::{EditArgs, Session, edit_each};
use crate::exit::{Exit, Result};
use crate::mode::ModeChange;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant chmod 600 root.img:/etc/shadow\n  extant chmod -R u=rwX,go=rX root.img:/srv/www\n  extant chmod go-w root.img:/tmp/a root.img:/tmp/b\n";

/// Change permissions of files in an image
///
/// MODE is octal, or clauses as chmod(1) has them. Where a clause names nobody, the umask 022
/// counts, whatever the host's is. A symbolic link is followed; with -R those inside the tree are
/// left alone. Each file is one change, and made even if another one fails.
#[derive(Args, Debug)]
pub(crate) struct ChmodArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// Directories with all that is in them
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Octal digits, or clauses: u+rwX,go-w
    #[arg(value_name = "MODE", allow_hyphen_values = true, value_parser = ModeChange::parse)]
    mode: ModeChange,
    /// The files
    #[arg(value_name = "IMG:/PATH", required = true)]
    targets: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &ChmodArgs) -> Result<Exit> {
    edit_each(&args.edit, &args.targets, |session, path| {
        if !args.recursive {
            let inode = session.find(path, true)?;
            return change(&args.mode, session, path, &inode);
        }
        session.walk(path, true, |session, path, inode| match inode.is_symlink() {
            true => Ok(()),
            false => change(&args.mode, session, path, inode),
        })
    })
}

fn change(mode: &ModeChange, session: &Session<'_>, path: &[u8], inode: &Inode) -> Result<()> {
    let permissions = mode.apply(inode.metadata().permissions, inode.is_dir());
    let changes = SetAttributes::new().permissions(permissions);
    session.at(path, inode.set_attributes(&changes))
}
