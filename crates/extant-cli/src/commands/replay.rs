//! `extant replay`: bring in what the journal holds.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write;

use clap::Args;
use extant::Fs;
use extant_base::sabotage;
use extant_format::features::{Incompat, RoCompat, State};
use serde_json::{Value, json};

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
    let mut done = None;
    if unclean {
        let (fs, name) = args.edit.open(&file)?;
        done = Some(Done::of(&fs));
        close(fs, &name)?;
    }
    // The truth is what lies there now.
    let (fs, _) = args.edit.open_read_only(&file)?;
    let (state, unclean) = (fs.superblock().state, is_unclean(&fs));
    let broken = unclean || state.contains(State::ERROR) || !state.contains(State::VALID);
    let mut out = Out::new();
    if args.json {
        out.json_pretty(&json!({
            "image": name,
            "replayed": done.as_ref().map(Done::to_json),
            "clean": !broken,
        }))?;
    } else {
        let what = done.as_ref().map_or_else(|| "nothing to replay".to_owned(), Done::to_text);
        let state = match () {
            () if state.contains(State::ERROR) => "errors are recorded: run extant repair",
            () if broken => "it was not unmounted and may be damaged: run extant repair",
            () => "clean",
        };
        writeln!(out, "{name}: {what}; {state}")?;
    }
    out.flush()?;
    let damaged =
        done.is_some_and(|done| done.damaged) && !sabotage("cli.replay.damage-is-success");
    Ok(if damaged { Exit::Partial } else { Exit::Success })
}

/// What opening the image brought in.
struct Done {
    transactions: u32,
    fast_commits: u32,
    blocks: usize,
    deleted: u64,
    shortened: u64,
    damaged: bool,
}

impl Done {
    fn of(fs: &Fs) -> Done {
        let (journal, orphans) = (fs.replayed(), fs.recovered_orphans());
        Done {
            transactions: journal.map_or(0, |journal| journal.transactions),
            fast_commits: journal.map_or(0, |journal| journal.fast_commits),
            blocks: journal.map_or(0, |journal| journal.blocks),
            deleted: orphans.map_or(0, |orphans| orphans.deleted),
            shortened: orphans.map_or(0, |orphans| orphans.shortened),
            damaged: orphans.is_some_and(|orphans| orphans.damaged > 0 || orphans.list_ignored),
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "transactions": self.transactions,
            "fast_commits": self.fast_commits,
            "blocks": self.blocks,
            "orphans_deleted": self.deleted,
            "orphans_shortened": self.shortened,
        })
    }

    fn to_text(&self) -> String {
        let mut text = format!(
            "replayed {} and {}, {} in all",
            counted(self.transactions.into(), "transaction"),
            counted(self.fast_commits.into(), "fast commit"),
            counted(self.blocks as u64, "block"),
        );
        if self.deleted + self.shortened > 0 {
            let (deleted, shortened) =
                (counted(self.deleted, "file"), counted(self.shortened, "file"));
            let _ = write!(text, ", deleted {deleted} without a name, shortened {shortened}");
        }
        text
    }
}

/// Returns whether there is a journal to be brought in, or files that a crash left without a name.
fn is_unclean(fs: &Fs) -> bool {
    fs.features().has_incompat(Incompat::RECOVER)
        || fs.features().has_ro_compat(RoCompat::ORPHAN_PRESENT)
        || fs.superblock().last_orphan != 0
}
