//! `extant replay`: bring in what the journal holds.

use std::ffi::OsString;
use std::io::Write;

use clap::Args;
use serde_json::json;

use crate::edit::{EditArgs, close};
use crate::exit::{Exit, Failure, Result};
use crate::image::split;
use crate::interrupt;
use crate::output::Out;
use crate::text::counted;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant replay root.img\n";

/// Replay the journal of an image that was not unmounted
///
/// As mounting and unmounting it would: complete transactions and fast commits are written to their
/// places, unlinked files that were still open are removed, and the image is marked clean. A clean
/// image stays as it is.
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Image file or block device
    #[arg(value_name = "IMG")]
    image: OsString,
}

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs) -> Result<Exit> {
    let (file, path) = split(&args.image);
    if path != b"/" {
        return Err(Failure::usage("replay is for a whole image: leave the path out"));
    }
    interrupt::listen()?;
    // A look first, so that a clean image is not even opened for changes.
    let (fs, name) = args.edit.open_read_only(&file)?;
    let unclean = is_unclean(&fs);
    drop(fs);
    let mut replayed = None;
    if unclean {
        let (fs, name) = args.edit.open(&file)?;
        replayed = Some(fs.replayed().cloned());
        close(fs, &name)?;
    }
    let mut out = Out::new();
    if args.json {
        let summary = replayed.as_ref().map(|summary| {
            let summary = summary.as_ref();
            json!({
                "transactions": summary.map_or(0, |summary| summary.transactions),
                "fast_commits": summary.map_or(0, |summary| summary.fast_commits),
                "blocks": summary.map_or(0, |summary| summary.blocks),
            })
        });
        out.json_pretty(&json!({ "image": name, "replayed": summary }))?;
    } else {
        match replayed {
            None => writeln!(out, "{name}: clean, nothing to replay")?,
            Some(None) => writeln!(out, "{name}: the journal was empty; marked clean")?,
            Some(Some(summary)) => writeln!(
                out,
                "{name}: replayed {} and {}, {} in all; marked clean",
                counted(summary.transactions.into(), "transaction"),
                counted(summary.fast_commits.into(), "fast commit"),
                counted(summary.blocks as u64, "block"),
            )?,
        }
    }
    out.flush()?;
    Ok(Exit::Success)
}

/// Whether there is a journal to be brought in, or something else that an unmount would have done.
fn is_unclean(fs: &extant::Fs) -> bool {
    use extant_format::features::Incompat;
    fs.features().has_incompat(Incompat::RECOVER)
}
