//! `extant overlay`: images that hold what differs from another image.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use extant_block::{OperationKind, partition};
use extant_qcow2::{Elsewhere, Facts, Format, How, Opened, Qcow2Error, backing_of, overlay};
use serde_json::json;

use crate::exit::{Exit, Failure, Result};
use crate::image::opening;
use crate::in_use::loop_device_of;
use crate::output::{Out, stdout};
use crate::place::{is_address, is_web_address};
use crate::seal::{Part, SealArgs};
use crate::source::SourceArgs;
use crate::text::{escape, human_bytes};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:
  extant overlay create my.qcow2 --base debian.qcow2
  extant cp notes my.qcow2:/srv/
  extant overlay create my.qcow2 --base https://images.example/debian.qcow2
  extant overlay info my.qcow2
  extant overlay commit my.qcow2";

/// Make, describe, commit and rebase overlays: images that hold what differs from another one
///
/// An overlay is a qcow2 image with a backing image, as qemu has it. Any number of them lie over one base,
/// which none of them writes. The option --overlay of other commands makes one when it is first needed.
#[derive(Args, Debug)]
pub(crate) struct OverlayArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Make an empty overlay over an image
    Create(CreateArgs),
    /// What a qcow2 image is, what it lies over, and the snapshots in it
    Info(InfoArgs),
    /// Write what an overlay has into the image below it, and empty the overlay
    ///
    /// Other overlays over that image are of no use afterwards. Stopped in the middle, it can be done again.
    Commit(CommitArgs),
    /// Let an overlay lie over another image, and show the same: what differs is copied into it
    Rebase(RebaseArgs),
}

#[derive(Args, Debug)]
struct CreateArgs {
    /// The overlay
    #[arg(value_name = "FILE")]
    overlay: PathBuf,
    /// The image that it lies over, or its address
    #[arg(long, value_name = "IMG")]
    base: PathBuf,
    /// Format of the base, raw or qcow2; found out where that is safe
    #[arg(long, value_name = "FORMAT", value_parser = crate::source::format)]
    format: Option<Format>,
    /// Images that the base or the overlay lies over may be in DIR, too
    #[arg(long = "backing-dir", value_name = "DIR")]
    backing_dirs: Vec<PathBuf>,
}

#[derive(Args, Debug)]
struct RebaseArgs {
    #[command(flatten)]
    to: CreateArgs,
    /// The address of the image that it lies over now, if that is at one
    #[arg(long, value_name = "ADDRESS")]
    over: Option<PathBuf>,
    /// Copy nothing: the overlay fits the base as that is now, which was only moved, or changed without harm
    #[arg(long, conflicts_with = "over")]
    as_is: bool,
}

#[derive(Args, Debug)]
struct InfoArgs {
    /// The image
    #[arg(value_name = "FILE")]
    image: PathBuf,
    /// Images that it lies over may be in DIR, too
    #[arg(long = "backing-dir", value_name = "DIR")]
    backing_dirs: Vec<PathBuf>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct CommitArgs {
    /// The overlay
    #[arg(value_name = "FILE")]
    overlay: PathBuf,
    /// The address of the image that it lies over, if that is at one: the export of an NBD server, or an
    /// image in a Ceph cluster
    #[arg(long, value_name = "ADDRESS")]
    over: Option<PathBuf>,
    /// The base, and what that lies over, may be in DIR, too
    #[arg(long = "backing-dir", value_name = "DIR")]
    backing_dirs: Vec<PathBuf>,
    #[command(flatten)]
    seal: SealArgs,
}

/// Runs the command.
pub(crate) fn run(args: &OverlayArgs) -> Result<Exit> {
    let failed = |file: &Path| {
        let file = file.to_owned();
        move |error: Qcow2Error| opening(error.into(), &file)
    };
    let shown = |path: &Path| escape(path.as_os_str().as_encoded_bytes());
    match &args.what {
        What::Create(args) => match is_address(&args.base) {
            true => {
                let base = at(&args.base, args.format, false, None)?;
                overlay::make_elsewhere(&args.overlay, &base).map_err(failed(&args.overlay))?;
            }
            false => {
                overlay::make(&args.overlay, &args.base, &args.how()).map_err(failed(&args.base))?
            }
        },
        What::Info(args) => info(args)?,
        What::Commit(args) => {
            // What can be written there is; the rest is refused by its name.
            let over = args
                .over
                .as_deref()
                .map(|over| at(over, None, !is_web_address(over), Some(&args.overlay)));
            let how = How {
                backing_dirs: args.backing_dirs.clone(),
                elsewhere: over.transpose()?,
                ..How::default()
            };
            check_base(args, &how)?;
            let moved = overlay::commit(&args.overlay, &how).map_err(|error| {
                let hint = what_a_commit_left(&error, &shown(&args.overlay));
                let failure = failed(&args.overlay)(error);
                match hint {
                    Some(hint) => failure.hint(hint),
                    None => failure,
                }
            })?;
            let (name, bytes) = (shown(&args.overlay), human_bytes(moved.bytes));
            writeln!(stdout(), "{name}: {bytes} written to the image below it")?;
        }
        What::Rebase(RebaseArgs { to: args, as_is: true, .. }) => {
            let base = shown(&args.base);
            if is_address(&args.base) {
                return Err(Failure::usage(format!(
                    "--as-is is for a file, and {base} is an address"
                )));
            }
            overlay::rebase_as_is(&args.overlay, &args.base, &args.how())
                .map_err(failed(&args.overlay))?;
            let name = shown(&args.overlay);
            writeln!(stdout(), "{name}: over {base} as it is; nothing was copied")?;
        }
        What::Rebase(RebaseArgs { to: args, over, .. }) => {
            let over = over.as_deref().map(|over| at(over, None, false, Some(&args.overlay)));
            let over = over.transpose()?;
            let how = How { elsewhere: over, ..args.how() };
            let moved = match is_address(&args.base) {
                true => {
                    let base = at(&args.base, args.format, false, None)?;
                    overlay::rebase_elsewhere(&args.overlay, &base, &how)
                }
                false => overlay::rebase(&args.overlay, &args.base, &how),
            };
            let moved = moved.map_err(failed(&args.overlay))?;
            let (name, bytes) = (shown(&args.overlay), human_bytes(moved.bytes));
            let base = shown(&args.base);
            writeln!(stdout(), "{name}: over {base}; {bytes} copied into it")?;
        }
    }
    Ok(Exit::Success)
}

/// Refuses to commit into what the kernel has as a loop device, and into what is sealed. What cannot be opened is
/// for the commit to name.
fn check_base(args: &CommitArgs, how: &How) -> Result<()> {
    let (name, base) = match (&how.elsewhere, backing_of(&args.overlay)) {
        (Some(base), _) => (escape(base.address.as_bytes()), Some(Arc::clone(&base.device))),
        (None, Ok(Some(base))) => {
            let name = escape(base.as_os_str().as_encoded_bytes());
            if let Some(holder) = loop_device_of(&base) {
                let message = format!("{name} is in use: the kernel has it as {holder}");
                let hint = format!("unmount it and detach it (losetup -d {holder}) first");
                return Err(Failure::new(Exit::Refused, message).hint(hint));
            }
            (name, extant_qcow2::open(&base, how).ok().map(Opened::into_device))
        }
        _ => return Ok(()),
    };
    let Some(base) = base.filter(|_| !args.seal.break_seal) else { return Ok(()) };
    let partitions = partition::list(&*base).unwrap_or_default();
    let numbers = partitions.iter().map(|one| Some(one.number));
    for number in [None].into_iter().chain(numbers) {
        // A base that is an overlay itself has no seal: what is below it is not changed.
        let Ok(part) = Part::of(Arc::clone(&base), None, number, true) else { continue };
        part.check(&name).map_err(|failure| {
            failure.hint(
                "the overlay shows the changes as it is; --break-seal commits it all the same",
            )
        })?;
    }
    Ok(())
}

/// Returns what to do about a commit that failed, by how far it came.
fn what_a_commit_left(error: &Qcow2Error, overlay: &str) -> Option<String> {
    let Qcow2Error::Device(error) = error else { return None };
    match error.kind() {
        OperationKind::Allocate => {
            Some("the image below it reads as before: make room there and commit again".into())
        }
        _ => Some(format!(
            "keep {overlay}, which still has all of it, and commit again: until then the image below it alone may be \
             neither what it was nor what it will be"
        )),
    }
}

/// Opens the image at an address.
fn at(
    address: &Path,
    format: Option<Format>,
    write: bool,
    overlay: Option<&Path>,
) -> Result<Elsewhere> {
    if !is_address(address) {
        let name = escape(address.as_os_str().as_encoded_bytes());
        return Err(Failure::usage(format!(
            "{name} is no address: nbd://, nbds://, http://, https://, s3://, rbd:"
        )));
    }
    let source = SourceArgs { format, ..SourceArgs::default() };
    source.elsewhere(address, write, overlay).map_err(|error| opening(error, address))
}

impl CreateArgs {
    fn how(&self) -> How {
        How { format: self.format, backing_dirs: self.backing_dirs.clone(), ..How::default() }
    }
}

fn info(args: &InfoArgs) -> Result<()> {
    let name = escape(args.image.as_os_str().as_encoded_bytes());
    let image = extant_qcow2::open_alone(&args.image)
        .map_err(|error| opening(error.into(), &args.image))?;
    let facts = facts(&image, &name)?;
    let mut out = Out::new();
    let Facts { version, cluster_bytes, size_bytes, file_bytes, own_clusters, clusters, .. } =
        facts;
    if args.json {
        let snapshots = image.snapshots().iter().map(|one| {
            json!({ "id": one.id, "name": one.name, "seconds": one.seconds, "size_bytes": one.size_bytes })
        });
        let snapshots: Vec<_> = snapshots.collect();
        out.json_pretty(&json!({
            "image": name,
            "version": version,
            "cluster_bytes": cluster_bytes,
            "size_bytes": size_bytes,
            "file_bytes": file_bytes,
            "own_clusters": own_clusters,
            "clusters": clusters,
            "base": facts.backing,
            "base_format": facts.backing_format,
            "base_version": facts.backing_version,
            "snapshots": snapshots,
        }))?;
        return Ok(out.flush()?);
    }
    let own = human_bytes(own_clusters * cluster_bytes);
    let (size, file, cluster) =
        (human_bytes(size_bytes), human_bytes(file_bytes), human_bytes(cluster_bytes));
    writeln!(out, "{name}: qcow2 version {version}, a disk of {size} in a file of {file}")?;
    writeln!(out, "  its own: {own}, {own_clusters} of {clusters} clusters of {cluster}")?;
    match (&facts.backing, &facts.backing_format) {
        (Some(base), format) => {
            let format = format.as_deref().unwrap_or("no recorded format");
            writeln!(out, "  over: {} ({})", escape(base.as_bytes()), escape(format.as_bytes()))?;
            if let Some(version) = &facts.backing_version {
                writeln!(out, "  when it was made: {}", escape(version.as_bytes()))?;
            }
        }
        (None, _) => writeln!(out, "  over: nothing")?,
    }
    for one in image.snapshots() {
        let (id, label) = (escape(one.id.as_bytes()), escape(one.name.as_bytes()));
        writeln!(out, "  snapshot {id}: {label}, {}", human_bytes(one.size_bytes))?;
    }
    Ok(out.flush()?)
}

fn facts(image: &extant_qcow2::Qcow2, name: &str) -> Result<Facts> {
    image.facts().map_err(|error| Failure::caused(crate::fault::io_exit(&error), name, &error))
}
