//! `extant metadata`: an image without the contents of its files, to give away.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use extant_block::BlockDevice;
use extant_image::output::{Existing, Output, existing};
use extant_salvage::{Copied, CopyOptions, Image, Options, copy_metadata};
use serde_json::json;

use crate::commands::salvage::cannot;
use crate::exit::{Exit, Failure, Result};
use crate::image::{opening, split, window};
use crate::interrupt;
use crate::output::{Out, complain};
use crate::size::parse_bytes;
use crate::source::SourceArgs;
use crate::text::{counted, escape};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant metadata disk.img disk.meta\n  extant metadata --scramble disk.img disk.meta && zstd disk.meta\n\nEnds with 0 when all of it was copied, 4 when something could not be followed, which is named.\n";

/// What to try where nothing is found.
const HINT: &str =
    "if the file system begins later in the file, say where: --offset or --partition";

/// Copy an image without the contents of its files
///
/// OUT is a sparse image: superblocks, descriptors, bitmaps, inode tables, directories, maps, attributes, targets of
/// links and quota are those of IMG, and contents of files are holes, data in inodes included. Every command
/// reads it; extant check and e2fsck say of it what they say of IMG. A journal that was pending is brought in, and empty
/// in OUT: its log holds contents and names of the past. What was deleted while it was open is still there, and extant
/// check calls it orphans.
///
/// --scramble gives every file another name of equal length, and replaces targets of links, values of attributes
/// and labels as well. Names of attributes, owners, times and sizes stay, and names that are encrypted; indexes of
/// directories are left out.
#[derive(Args, Debug)]
pub(crate) struct MetadataArgs {
    /// Image file or block device
    #[arg(value_name = "IMG")]
    image: OsString,
    /// The copy: a new file
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Replace names, targets of links, values of attributes and labels
    #[arg(long)]
    scramble: bool,
    /// Replace OUT if it exists
    #[arg(long, short = 'f')]
    force: bool,
    /// The file system begins that many bytes into the file
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Image")]
    offset: Option<u64>,
    /// The file system is in partition N of the file (GPT or MBR)
    #[arg(long, value_name = "N", conflicts_with = "offset", help_heading = "Image")]
    partition: Option<u32>,
    /// Leave the journal alone
    #[arg(long, help_heading = "Image")]
    no_replay: bool,
    #[command(flatten)]
    source: SourceArgs,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &MetadataArgs) -> Result<Exit> {
    let (file, path) = split(&args.image);
    if path != b"/" {
        return Err(Failure::usage("metadata is for a whole image: leave the path out"));
    }
    if args.out.as_os_str() == "-" {
        return Err(Failure::usage("the copy is a sparse file, and standard output is none")
            .hint("give a file, and pack that: extant metadata IMG OUT && zstd OUT"));
    }
    let name = escape(file.as_os_str().as_encoded_bytes());
    let shown = escape(args.out.as_os_str().as_encoded_bytes());
    let refused = |text: String| Failure::new(Exit::Refused, text).on(shown.clone());
    let failed = |error: extant_image::output::OutputError| Failure::from(error);
    match existing(&args.out).map_err(failed)? {
        Existing::Nothing => {}
        Existing::File(_) if is_same(&file, &args.out) => {
            return Err(refused(format!("{shown} is the image itself: its files would be lost")));
        }
        Existing::File(_) if args.force => {}
        Existing::File(_) => {
            return Err(refused(format!("{shown} exists")).hint("-f replaces it"));
        }
        _ => return Err(refused(format!("{shown} is no regular file"))),
    }
    let device = args.source.open_read_only(&file).map_err(|error| opening(error, &file))?;
    let device = window(device, args.offset, args.partition)?;
    let options = Options { block_size: None, no_replay: args.no_replay };
    let is_all = args.offset.is_none() && args.partition.is_none();
    let image = Image::open(Arc::clone(&device), &options)
        .map_err(|error| cannot(&error, &name, &device, is_all, HINT))?;
    interrupt::listen()?;
    for note in image.notes() {
        complain(&format!("{name}: note: {}", escape(note.as_bytes())));
    }
    let output = Output::create(&args.out, image.device().size_bytes()).map_err(failed)?;
    let how = CopyOptions { scramble: args.scramble };
    let stop = || interrupt::requested();
    let copied = copy_metadata(&image, output.device(), &how, &stop).map_err(|error| {
        let what = format!("{shown} cannot be written");
        let exit = match error.is_full() {
            true => Exit::NoSpace,
            false => Exit::Io,
        };
        Failure::caused(exit, &what, &error)
    })?;
    let Some(copied) = copied else {
        return Err(Failure::new(Exit::Interrupted, "interrupted; nothing was made"));
    };
    output.commit().map_err(failed)?;
    show(args, &name, &shown, &image, &copied)?;
    Ok(if copied.left.is_empty() { Exit::Success } else { Exit::Image })
}

/// Returns whether two names lead to one file. An address leads to none.
fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    id(one).is_some_and(|one| id(other) == Some(one))
}

fn show(
    args: &MetadataArgs,
    name: &str,
    shown: &str,
    image: &Image,
    copied: &Copied,
) -> Result<()> {
    let mut out = Out::new();
    if args.json {
        out.json_pretty(&json!({
            "image": name,
            "output": shown,
            "scrambled": args.scramble,
            "notes": image.notes(),
            "blocks": copied.blocks,
            "bytes": copied.bytes,
            "inodes": copied.inodes,
            "directories": copied.directories,
            "names": copied.names,
            "left": copied.left,
            "more_left": copied.more_left,
        }))?;
        out.flush()?;
        return Ok(());
    }
    for what in &copied.left {
        writeln!(out, "{name}: left out: {}", escape(what.as_bytes()))?;
    }
    let mut text = format!(
        "{shown}: {} of {}, {} copied",
        counted(copied.bytes, "byte"),
        image.device().size_bytes(),
        counted(copied.inodes, "inode"),
    );
    if args.scramble {
        text += &format!(", {} replaced", counted(copied.names, "name"));
    }
    if copied.more_left > 0 {
        text += &format!("; {} more left out", copied.more_left);
    }
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}
