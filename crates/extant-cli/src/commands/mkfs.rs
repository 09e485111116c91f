//! `extant mkfs`: an empty file system.

use std::ffi::OsString;

use clap::Args;
use extant_image::plan::{BuildOptions, SizeSpec, plan};
use extant_image::source::NoContents;
use extant_image::tree::{Kind, Node, Time, Tree};
use extant_sync::{Clock, SystemClock};

use crate::commands::build::random_uuid;
use crate::exit::{Exit, Failure, Result};
use crate::mkfs_args::{MkfsSet, warn_of_readers};
use crate::size::{Amount, parse_amount};
use crate::target::{TargetSet, epoch};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant mkfs data.img 2G -L data\n  extant mkfs disk.img --partition 1 -O ^has_journal\n  extant mkfs data.img 64M -b 1024 -N 5000\n";

/// Make an empty file system
///
/// In a file that exists, a block device or a part of one, it takes all the room there is unless
/// SIZE says less. Sizes are as mke2fs takes them: 2G, 512M, 4096s; a plain number is KiB, or
/// blocks when -b is given.
#[derive(Args, Debug)]
pub(crate) struct MkfsArgs {
    /// Image file or block device; - for standard output
    #[arg(value_name = "IMG")]
    image: OsString,
    /// Size; needed when IMG does not exist
    #[arg(value_name = "SIZE", value_parser = parse_amount)]
    size: Option<Amount>,
    #[command(flatten)]
    target: TargetSet,
    #[command(flatten)]
    mkfs: MkfsSet,
}

/// A tree of a root directory alone.
pub(crate) fn empty_tree(epoch: Option<i64>) -> Tree {
    let (sec, nsec) = match epoch {
        Some(sec) => (sec, 0),
        None => (SystemClock.now().0, 0),
    };
    let now = Time { sec, nsec };
    let mut root = Node::new(Kind::Dir);
    root.mode = 0o755;
    (root.mtime, root.atime, root.ctime) = (now, now, now);
    Tree::empty(root)
}

/// Runs the command.
pub(crate) fn run(args: &MkfsArgs) -> Result<Exit> {
    let mut mkfs = args.mkfs.options()?;
    let epoch = epoch(None)?;
    mkfs.created = mkfs.created.or(epoch);
    if args.mkfs.wants_random_uuid() {
        mkfs.uuid = Some(random_uuid()?);
    }
    if !args.target.quiet {
        warn_of_readers(&mkfs);
    }
    let target = args.target.look_at(&args.image)?;
    let bytes = match args.size {
        Some(Amount::Bytes(bytes)) => bytes,
        Some(Amount::Plain(count)) => {
            let unit = args.mkfs.block_size.map_or(1024, |size| u64::from(size.bytes()));
            count.checked_mul(unit).ok_or_else(|| {
                Failure::usage(format!("{count} blocks of {unit} bytes are too many"))
            })?
        }
        None => target.room()?.ok_or_else(|| {
            Failure::usage(format!("{}: no size", args.image.to_string_lossy()))
                .hint("give one: extant mkfs IMG 2G")
        })?,
    };
    let mut tree = empty_tree(epoch);
    let size = SizeSpec::Bytes(bytes);
    let plan = plan(&mut tree, &BuildOptions { mkfs, size, reproducible: epoch.is_some() })?;
    target.write(&plan, &tree, &NoContents, false)?;
    Ok(Exit::Success)
}
