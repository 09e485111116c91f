//! `extant encrypt`: give empty directories an encryption policy.

use std::ffi::OsString;

use clap::Args;

use crate::edit::{EditArgs, edit_each};
use crate::exit::{Exit, Result};
use crate::policy::PolicyArgs;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant mkdir root.img:/home/alice\n  extant encrypt --key-file key root.img:/home/alice\n  extant cp -r --key-file key letters root.img:/home/alice\n  extant stat --key-file key root.img:/home/alice\n";

/// Encrypt empty directories of an image
///
/// What is made in such a directory from now on, and below it, is encrypted with the key of --key-file (fscrypt):
/// contents, names and targets of links. The image needs the feature encrypt (extant mkfs -O encrypt). The policy is of
/// version 2, named after the key; with --key-file NAME=FILE it is of version 1, which has the name that is given. A
/// directory that has this very policy stays as it is. extant stat shows the policy of a file. On a mount, fscryptctl
/// and xfs_io do the same.
#[derive(Args, Debug)]
pub(crate) struct EncryptArgs {
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    policy: PolicyArgs,
    /// The directories
    #[arg(value_name = "IMG:/PATH", required = true)]
    targets: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &EncryptArgs) -> Result<Exit> {
    let policy = args.policy.policy(args.edit.only_key()?)?;
    edit_each(&args.edit, &args.targets, |session, path| {
        let dir = session.find(path, true)?;
        session.at(path, dir.set_encryption_policy(&policy))
    })
}
