//! `extant extents`: where the blocks of a file are.

use std::io::Write;

use clap::Args;
use extant::MappingKind;
use serde_json::json;

use crate::exit::{Exit, Result};
use crate::image::{Failures, Image, ImagesArgs};
use crate::output::{Out, put_bytes};
use crate::text::counted;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant extents root.img:/var/lib/db\n";

/// Show where the blocks of files of images are
///
/// Like filefrag -v: one line for each run of blocks that lie together. Numbers are blocks of the
/// file system. Holes have no line.
#[derive(Args, Debug)]
pub(crate) struct ExtentsArgs {
    #[command(flatten)]
    images: ImagesArgs,
    /// One JSON object on each line, in bytes as well as blocks
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &ExtentsArgs) -> Result<Exit> {
    args.images.each(|image| extents(args, image))
}

fn extents(args: &ExtentsArgs, image: &Image) -> Result<Exit> {
    let inode = image.resolve_link()?;
    let block_bytes = u64::from(image.fs.block_size().bytes());
    let size_blocks = inode.block_len();
    let mut out = Out::new();
    let mut failures = Failures::default();
    if !args.json {
        let size = inode.size();
        if image.is_one_of_several {
            write!(out, "{}: ", image.label(&image.path))?;
        }
        writeln!(
            out,
            "{}, {} of {block_bytes} bytes",
            counted(size, "byte"),
            counted(size_blocks, "block")
        )?;
        writeln!(out, "{:>5} {:>25} {:>27} {:>10}  flags", "ext", "logical", "physical", "length")?;
    }
    // Blocks past the end of the file can be reserved only by extents.
    let end = if inode.uses_extents() { 1 << 32 } else { size_blocks.max(1) };
    let mut count = 0u64;
    for run in inode.map(0..end) {
        let run = match run {
            Ok(run) => run,
            Err(error) => {
                out.flush()?;
                failures.report(&image.failure(&image.path, error));
                break;
            }
        };
        let (physical, kind) = match run.kind {
            MappingKind::Hole => continue,
            MappingKind::Mapped(start) => (Some(start.0), "written"),
            MappingKind::Unwritten(start) => (Some(start.0), "unwritten"),
            MappingKind::Inline => (None, "inline"),
        };
        let (first, last) = (u64::from(run.file_start.0), run.file_end().saturating_sub(1));
        let past_end = first >= size_blocks && kind != "inline";
        if args.json {
            let mut value = json!({
                "logical": first,
                "physical": physical,
                "length": run.len,
                "logical_byte": first * block_bytes,
                "physical_byte": physical.map(|start| start.saturating_mul(block_bytes)),
                "length_bytes": run.len.saturating_mul(block_bytes),
                "kind": kind,
                "past_end": past_end,
            });
            if let (true, Some(object)) = (image.is_one_of_several, value.as_object_mut()) {
                image.put_name(object);
                put_bytes(object, "path", &image.path);
            }
            out.json(&value)?;
        } else {
            let span = |from: u64, to: u64| format!("{from}..{to}");
            let device = physical.map_or("in the inode".to_owned(), |start| {
                span(start, start.saturating_add(run.len).saturating_sub(1))
            });
            let logical = span(first, last);
            let flags = match (kind, past_end) {
                ("written", false) => "",
                ("written", true) => "past end",
                ("unwritten", true) => "unwritten, past end",
                (kind, _) => kind,
            };
            let line = format!("{count:>5} {logical:>25} {device:>27} {:>10}  {flags}", run.len);
            writeln!(out, "{}", line.trim_end())?;
        }
        count += 1;
    }
    if !args.json {
        writeln!(out, "{}", counted(count, "extent"))?;
    }
    out.flush()?;
    Ok(failures.exit())
}
