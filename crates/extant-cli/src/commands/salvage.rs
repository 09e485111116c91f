//! `extant salvage`: what can be read of an image that is too damaged for anything else.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use extant::BlockSize;
use extant_block::SharedDevice;
use extant_salvage::{Damage, Image, Options, SalvageError, Summary, Why, salvage};
use rustix::fs::{self, CWD, Mode};
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use crate::copying::host::{open_dir, raise_file_limit};
use crate::exit::{Exit, Failure, Result};
use crate::fault::io_exit;
use crate::image::{instead_of_ext, opening, split, window};
use crate::interrupt;
use crate::output::{Out, complain, put_bytes};
use crate::progress::Bar;
use crate::salvaged::Salvaged;
use crate::size::parse_bytes;
use crate::source::SourceArgs;
use crate::text::{counted, escape, kind_name};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant salvage broken.img rescued\n  extant salvage --json broken.img rescued | jq -r '.path // empty'\n  extant salvage --partition 2 disk.img rescued\n\nEnds with 0 when everything is whole, 4 when something is missing or nothing was found, 8 when the device does not read.\n";

/// Copy what can be read out of a damaged image
///
/// For an image that neither opens nor can be repaired, or that must not be written. Finds the superblock or a
/// backup of it, the inode tables and the journal's latest copies, follows directories from the root, and
/// puts what nothing leads to into lost+found. Bytes that cannot be read are holes; of each file it is said what is
/// missing, and why. The image is never written.
///
/// DIR is made if it is missing, and must be empty. Modes, times and extended attributes are restored; owners,
/// devices and privileged attributes as root or with --same-owner.
#[derive(Args, Debug)]
pub(crate) struct SalvageArgs {
    /// Image file or block device
    #[arg(value_name = "IMG")]
    image: OsString,
    /// Directory for what is found
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Block size in bytes, where no superblock is left that says it
    #[arg(long, value_name = "BYTES", value_parser = parse_block_size, help_heading = "Image")]
    block_size: Option<BlockSize>,
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
    /// Restore owners, devices and privileged attributes; the default for root
    #[arg(long, overrides_with = "no_same_owner")]
    same_owner: bool,
    /// Leave them to the user who runs this; the default for everyone else
    #[arg(long)]
    no_same_owner: bool,
    /// Name no damaged files, and show no progress
    #[arg(long, short = 'q')]
    quiet: bool,
    /// One JSON object for each damaged file, on a line, and one for all of it
    #[arg(long)]
    json: bool,
}

fn parse_block_size(text: &str) -> Result<BlockSize, String> {
    let bytes = parse_bytes(text)?;
    BlockSize::new(bytes).map_err(|error| error.to_string())
}

/// Runs the command.
pub(crate) fn run(args: &SalvageArgs) -> Result<Exit> {
    let (file, path) = split(&args.image);
    if path != b"/" {
        return Err(Failure::usage("salvage is for a whole image: leave the path out"));
    }
    let name = escape(file.as_os_str().as_encoded_bytes());
    let device = args.source.open_read_only(&file).map_err(|error| opening(error, &file))?;
    let device = window(device, args.offset, args.partition)?;
    let options = Options { block_size: args.block_size, no_replay: args.no_replay };
    let is_all = args.offset.is_none() && args.partition.is_none();
    let image = Image::open(Arc::clone(&device), &options)
        .map_err(|error| cannot(&error, &name, &device, is_all, args.hint()))?;
    let root = open_empty(&args.dir)?;
    interrupt::listen()?;
    raise_file_limit();
    for note in image.notes() {
        complain(&format!("{name}: note: {}", escape(note.as_bytes())));
    }
    let is_root = rustix::process::geteuid().is_root();
    let privileged = args.same_owner || (is_root && !args.no_same_owner);
    let bar = Bar::new(!args.quiet && !args.json);
    let mut out = Out::new();
    let mut tell = |damage: &Damage| tell(&mut out, args, &name, damage);
    let mut target = Salvaged::new(root, privileged, bar.clone(), &mut tell);
    let (summary, is_over) = salvage(&image, &mut target);
    bar.end();
    let failure = target.failure.take();
    let omitted = std::mem::take(&mut target.omitted);
    drop(target);
    show(&mut out, args, &name, &image, &summary, is_over)?;
    out.flush()?;
    if interrupt::requested() {
        let dir = escape(args.dir.as_os_str().as_encoded_bytes());
        let text = format!("interrupted; {dir} holds what was found so far");
        return Err(Failure::new(Exit::Interrupted, text).on(dir));
    }
    match failure {
        Some(failure) if !is_over => return Err(failure),
        _ => {}
    }
    if !args.quiet {
        omitted.note();
    }
    Ok(if is_whole(&image, &summary) { Exit::Success } else { Exit::Image })
}

fn is_whole(image: &Image, summary: &Summary) -> bool {
    summary.damaged == 0 && summary.lost_groups == 0 && !summary.is_uncompared && !image.lacks_log()
}

/// Why an image cannot be opened at all, and what to do about it. `is_all`: the whole file was looked at, which may be
/// a disk with partitions.
pub(crate) fn cannot(
    error: &SalvageError,
    name: &str,
    device: &SharedDevice,
    is_all: bool,
    hint: &str,
) -> Failure {
    let failure = |exit| Failure::new(exit, error.to_string()).about(name);
    match error {
        SalvageError::Features { .. } => failure(Exit::Unsupported),
        SalvageError::NoSuperblock { .. } => {
            instead_of_ext(name, device, is_all).unwrap_or_else(|| failure(Exit::Image).hint(hint))
        }
        _ => failure(Exit::Io),
    }
}

impl SalvageArgs {
    /// What to try where nothing is found.
    fn hint(&self) -> &'static str {
        match (self.offset.is_some() || self.partition.is_some(), self.block_size) {
            (false, _) => {
                "if the file system begins later in the file, say where: --offset or --partition; if its block size \
                 is known, --block-size"
            }
            (true, None) => "if its block size is known, pass --block-size",
            (true, Some(_)) => "another --block-size may be the right one",
        }
    }
}

/// Opens the directory, which is made if it is missing, and holds nothing but an empty `lost+found` of its own.
fn open_empty(dir: &Path) -> Result<OwnedFd> {
    if let Err(errno) = fs::mkdirat(CWD, dir, Mode::from(0o700))
        && errno != Errno::EXIST
    {
        let error = std::io::Error::from(errno);
        let what = format!("cannot create {}", dir.display());
        return Err(Failure::caused(io_exit(&error), &what, &error));
    }
    let root = open_dir(dir)?;
    let failed = |error: std::io::Error| {
        Failure::caused(io_exit(&error), &format!("cannot read {}", dir.display()), &error)
    };
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Every new ext4 has one, which may be closed to this user.
        let is_kept = entry.file_name() == "lost+found"
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
            && std::fs::read_dir(entry.path()).map_or(true, |mut inside| inside.next().is_none());
        if !is_kept {
            let shown = escape(dir.as_os_str().as_encoded_bytes());
            return Err(Failure::new(Exit::Refused, format!("{shown} is not empty"))
                .on(shown)
                .hint(
                    "nothing in it is ever overwritten: give a directory that is new, or empty",
                ));
        }
    }
    Ok(root)
}

/// Says what is missing of one file.
fn tell(out: &mut Out, args: &SalvageArgs, name: &str, damage: &Damage) -> std::io::Result<()> {
    let why = |(why, count): &(Why, u64)| match &damage.unverified {
        Some(blocks) if *why == Why::Unverified => {
            format!("{}: {}", why.text(*count), blocks.text(*count))
        }
        _ => match damage.shared_with {
            Some(other) if *why == Why::Shared => {
                let other = match other.0 {
                    0 => "the file system itself".to_owned(),
                    number => format!("inode {number}"),
                };
                format!("{} with {other}", why.text(*count))
            }
            _ => why.text(*count),
        },
    };
    if args.json {
        let mut object = Map::new();
        object.insert("image".into(), name.into());
        put_bytes(&mut object, "path", &damage.path);
        object.insert("inode".into(), damage.ino.0.into());
        object.insert("type".into(), damage.kind.map(kind_name).into());
        object.insert("size".into(), damage.size.into());
        object.insert("missing".into(), damage.missing.into());
        let reasons: Vec<Value> = damage
            .why
            .iter()
            .map(|one| json!({"code": one.0.code(), "count": one.1, "message": why(one)}))
            .collect();
        object.insert("why".into(), reasons.into());
        let unverified = damage.unverified.as_ref();
        object.insert("unverified".into(), unverified.map(|one| one.blocks.clone()).into());
        object.insert("shared_with".into(), damage.shared_with.map(|other| other.0).into());
        object.insert("host".into(), damage.host.clone().into());
        return out.json(&Value::Object(object));
    }
    if args.quiet {
        return Ok(());
    }
    let mut reasons: Vec<String> = damage.why.iter().map(why).collect();
    reasons.extend(damage.host.iter().map(|text| escape(text.as_bytes())));
    let what = match (damage.missing, damage.size) {
        (0, _) => String::new(),
        (missing, size) => format!("{missing} of {} are missing: ", counted(size, "byte")),
    };
    writeln!(out, "{name}: {}: {what}{}", escape(&damage.path), reasons.join("; "))
}

fn show(
    out: &mut Out,
    args: &SalvageArgs,
    name: &str,
    image: &Image,
    summary: &Summary,
    is_over: bool,
) -> Result<()> {
    if args.json {
        out.json(&json!({
            "image": name,
            "notes": image.notes(),
            "complete": is_over,
            "whole": is_over && is_whole(image, summary),
            "directories": summary.directories,
            "files": summary.files,
            "bytes": summary.bytes,
            "loose": summary.loose,
            "damaged": summary.damaged,
            "missing": summary.missing,
            "lost_groups": summary.lost_groups,
            "compared": !summary.is_uncompared,
        }))?;
        return Ok(());
    }
    let found = format!(
        "{} and {}, {}",
        counted(summary.files, "file"),
        match summary.directories {
            1 => "1 directory".to_owned(),
            many => format!("{many} directories"),
        },
        counted(summary.bytes, "byte"),
    );
    let mut text = format!("{name}: {found}");
    if summary.loose > 0 {
        text += &format!("; {} of them in lost+found, where nothing led to them", summary.loose);
    }
    text += &match (summary.damaged, summary.missing) {
        // What comes next says why it ended.
        (0, _) if !is_over => " so far; there may be more".to_owned(),
        (0, _) if image.lacks_log() => {
            "; what was found is whole, but for changes that the journal may have held".to_owned()
        }
        (0, _) if summary.is_uncompared => String::new(),
        (0, _) => "; all that was found is whole".to_owned(),
        (damaged, 0) => format!("; {damaged} damaged"),
        (damaged, missing) => format!("; {damaged} damaged, {} missing", counted(missing, "byte")),
    };
    if summary.lost_groups > 0 {
        let groups = counted(summary.lost_groups, "group");
        text += &format!("; the inodes of {groups} could not all be read");
    }
    if summary.is_uncompared {
        text += "; files are in too many pieces to see of all whether they share blocks";
    }
    writeln!(out, "{text}")?;
    Ok(())
}
