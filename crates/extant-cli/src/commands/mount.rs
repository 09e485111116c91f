//! `extant mount`.

use std::path::PathBuf;

use clap::Args;

use crate::exit::{Exit, Failure, Result};
use crate::mounting::launcher::{self, Request};
use crate::mounting::options::MountSet;
use crate::mounting::remount;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant mount disk.img mnt\n  extant mount -o ro,noatime disk.img mnt\n  extant mount --map-root --partition 2 disk.img mnt\n  extant umount mnt\n";

/// Mount an image on a directory
///
/// For reading and writing, as the user who calls it, through FUSE. The command ends when the mount can
/// be used; a process in the background serves it until extant umount, umount or fusermount3 -u. SIGTERM
/// ends it as well as unmounting does. docs/mounting.md has the options of -o, fstab, systemd.
#[derive(Args, Debug)]
pub(crate) struct MountArgs {
    #[command(flatten)]
    set: MountSet,
    /// Image file or block device
    #[arg(value_name = "IMG")]
    image: PathBuf,
    /// Directory that shows it; -o remount takes it alone
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &MountArgs) -> Result<Exit> {
    let choices = args.set.choices()?;
    if choices.remount {
        let read_only = args.set.read_only.then(|| "ro".to_owned());
        let lists: Vec<String> = args.set.lists.iter().cloned().chain(read_only).collect();
        return remount::run(args.dir.as_ref().unwrap_or(&args.image), &lists);
    }
    let Some(dir) = args.dir.clone() else {
        return Err(Failure::usage("a directory to mount on is needed: extant mount IMG DIR"));
    };
    launcher::run(&Request { image: args.image.clone(), dir, choices })
}
