//! `extant rmdir`: remove empty directories.

use std::ffi::OsString;

use clap::Args;

use crate::edit::{EditArgs, edit_each};
use crate::exit::{Exit, Result};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant rmdir root.img:/srv/empty\n";

/// Remove empty directories from an image
///
/// Each path is one change, and made even if another one fails.
#[derive(Args, Debug)]
pub(crate) struct RmdirArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// The directories
    #[arg(value_name = "IMG:/PATH", required = true)]
    targets: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &RmdirArgs) -> Result<Exit> {
    edit_each(&args.edit, &args.targets, |session, path| {
        session.at(path, session.fs.remove_dir(path))
    })
}
