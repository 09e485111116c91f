//! `extant fstrim`: give free space back to the device.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use clap::Args;

use crate::edit::{EditArgs, edit_one};
use crate::exit::{Exit, Failure, Result};
use crate::image::split;
use crate::mount_table;
use crate::output::stdout;
use crate::size::parse_bytes;
use crate::text::{counted, escape, human_bytes};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant fstrim -v root.img\n";

/// Tell the device of an image which parts hold nothing
///
/// As fstrim(8): free blocks are discarded. An image file becomes sparse there, so that it takes less
/// room; a device that cannot discard is an error.
#[derive(Args, Debug)]
pub(crate) struct FstrimArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// Begin at this byte of the file system; the long name is --from, because --offset is that of
    /// the file system
    #[arg(short = 'o', long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    from: u64,
    /// At most that many bytes from there on; to the end when left out
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = parse_bytes)]
    length: Option<u64>,
    /// Runs of free blocks that are shorter stay as they are
    #[arg(short = 'm', long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    minimum: u64,
    /// Print how much was discarded
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Image file or block device
    #[arg(value_name = "IMG")]
    image: OsString,
}

/// Runs the command.
pub(crate) fn run(args: &FstrimArgs) -> Result<Exit> {
    let (file, path) = split(&args.image);
    if path != b"/" {
        return Err(Failure::usage("fstrim is for a whole image: leave the path out"));
    }
    let is_mounted = || mount_table::at(&file).is_ok_and(|mounted| mounted.is_some());
    if file.is_dir() && is_mounted() {
        let name = escape(file.as_os_str().as_bytes());
        return Err(Failure::usage(format!("{name} is where a file system is mounted"))
            .hint(format!("fstrim {name}, of util-linux, does it there")));
    }
    let end = args.length.map_or(u64::MAX, |length| args.from.saturating_add(length));
    edit_one(&args.edit, &file, |session| {
        let trimmed = session.fs.trim(args.from..end, args.minimum);
        let trimmed = trimmed.map_err(|error| Failure::from(error).about(&session.name))?;
        session.tally.done();
        if args.verbose {
            let (human, bytes) = (human_bytes(trimmed), counted(trimmed, "byte"));
            writeln!(stdout(), "{}: {human} ({bytes}) trimmed", session.name)?;
        }
        Ok(())
    })
}
