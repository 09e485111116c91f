//! `extant mknod`: devices, pipes and sockets.

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use extant::Special;

use crate::edit::{EditArgs, NewArgs, edit_each};
use crate::exit::{Exit, Failure, Result};
use crate::mode::ModeChange;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant mknod root.img:/dev/null c 1 3 -m 666\n  extant mknod root.img:/run/initctl p -m 600\n";

/// Make a device, a pipe or a socket in an image
///
/// Permissions are 0644 unless -m says otherwise, whatever the umask.
#[derive(Args, Debug)]
pub(crate) struct MknodArgs {
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    new: NewArgs,
    /// Permissions, as chmod takes them
    #[arg(short = 'm', long, value_name = "MODE", value_parser = ModeChange::parse)]
    mode: Option<ModeChange>,
    /// The new name
    #[arg(value_name = "IMG:/PATH")]
    target: OsString,
    /// What it is
    #[arg(value_name = "TYPE")]
    kind: Kind,
    /// Major number of a device, below 4096
    major: Option<u32>,
    /// Minor number of a device, below 1048576
    minor: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Block device
    B,
    /// Character device
    #[value(alias = "u")]
    C,
    /// Named pipe
    P,
    /// Socket
    S,
}

/// Runs the command.
pub(crate) fn run(args: &MknodArgs) -> Result<Exit> {
    let special = match (args.kind, args.major, args.minor) {
        (Kind::B, Some(major), Some(minor)) => Special::BlockDevice { major, minor },
        (Kind::C, Some(major), Some(minor)) => Special::CharDevice { major, minor },
        (Kind::B | Kind::C, ..) => return Err(Failure::usage("a device has MAJOR and MINOR")),
        (Kind::P, None, None) => Special::Fifo,
        (Kind::S, None, None) => Special::Socket,
        (Kind::P | Kind::S, ..) => return Err(Failure::usage("only devices have numbers")),
    };
    edit_each(&args.edit, std::slice::from_ref(&args.target), |session, path| {
        let exact = args.mode.as_ref().map(|mode| mode.apply(0o666, false));
        let new = args.new.inode(session, path, exact, 0o644)?;
        session.at(path, session.fs.mknod(path, special, &new)).map(drop)
    })
}
