//! `extant chown`: change owners.

use std::ffi::OsString;

use clap::{ArgAction, Args};
use extant::SetAttributes;

use crate::accounts::OwnerSpec;
use crate::edit::{EditArgs, edit_each};
use crate::exit::{Exit, Result};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant chown 1000:1000 root.img:/home/user\n  extant chown -R www-data: root.img:/srv/www\n  extant chown :adm root.img:/var/log/syslog\n";

/// Change owner and group of files in an image
///
/// Names are looked up in the image's own /etc/passwd and /etc/group; numbers work always. As with
/// chown(1), set-id bits of executable files go. A symbolic link is followed unless -h or -R is
/// given. Each file is one change, and made even if another one fails.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct ChownArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// Directories with all that is in them; symbolic links themselves
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change a symbolic link itself
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// USER, USER:GROUP, :GROUP, or USER: for the login group
    #[arg(value_name = "OWNER", value_parser = OwnerSpec::parse)]
    owner: OwnerSpec,
    /// The files
    #[arg(value_name = "IMG:/PATH", required = true)]
    targets: Vec<OsString>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Runs the command.
pub(crate) fn run(args: &ChownArgs) -> Result<Exit> {
    edit_each(&args.edit, &args.targets, |session, path| {
        let (uid, gid) = args.owner.resolve(&session.fs)?;
        let changes = SetAttributes::new().owner(uid, gid);
        if args.recursive {
            return session.walk(path, false, |session, path, inode| {
                session.at(path, inode.set_attributes(&changes))
            });
        }
        let inode = session.find(path, !args.no_dereference)?;
        session.at(path, inode.set_attributes(&changes))
    })
}
