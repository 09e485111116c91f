//! `extant defrag`: bring files together on the device.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use extant::{Defragmented, FileKind, Inode};
use extant_image::write::Progress;
use rustc_hash::FxHashSet;
use serde_json::{Map, Value};

use crate::commands::frag::Files;
use crate::edit::{EditArgs, Session, Tally, edit_each, read_each};
use crate::exit::{Exit, Failure, Result};
use crate::interrupt;
use crate::mounting::asked;
use crate::output::{self, Out, put_bytes};
use crate::progress::{self, Bar};
use crate::text::{counted, escape, human_bytes};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant defrag root.img\n  extant defrag -n --json root.img:/var\n  extant defrag mnt\n  extant defrag --mounted mnt/var/lib/db\n";

/// Bring the files of images, or of a mount, together on the device
///
/// Each file that lies in several pieces is copied, a part at a time, to where it lies together, and then the map says so:
/// whenever the command or the machine stops, each part is at its old place or at its new one, and no byte is
/// lost. Nodes of extent trees that are half empty are joined. Sizes, times and contents stay. Pieces of 16 MiB
/// or more stay where they are. Directories, and files with the immutable flag, which boot loaders may know
/// by their place, are left alone.
///
/// A directory is one of a mount by extant, whose server does the work while others use the files; for root and the user
/// who mounted. Everything else is an image.
#[derive(Args, Debug)]
pub(crate) struct DefragArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// Change nothing: only show in how many pieces the files lie
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// One JSON object for each path
    #[arg(long)]
    json: bool,
    /// Say what became of each file that lay in several pieces
    #[arg(short = 'v', long, conflicts_with = "json")]
    verbose: bool,
    /// The paths are files and directories of a mount, not images
    #[arg(long)]
    mounted: bool,
    /// Images, directories or files in them; directories of mounts
    #[arg(value_name = "IMG[:/PATH]|DIR", required = true)]
    targets: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &DefragArgs) -> Result<Exit> {
    let is_live = |target: &OsStr| args.mounted || Path::new(target).is_dir();
    let (live, images): (Vec<_>, Vec<_>) =
        args.targets.iter().cloned().partition(|target| is_live(target));
    if !live.is_empty() && !images.is_empty() {
        let message = "directories of mounts and images are not for one run: give one or the other";
        return Err(Failure::usage(message));
    }
    if !live.is_empty() {
        return on_mounts(args, &live);
    }
    let each = |session: &mut Session<'_>, path: &[u8]| on_image(args, session, path);
    match args.dry_run {
        true => read_each(&images, |file| args.edit.open_read_only(file), each),
        false => edit_each(&args.edit, &images, each),
    }
}

/// What became of the files below one path.
#[derive(Default)]
struct Sum {
    before: Files,
    after: Files,
    moved_files: u64,
    bytes_moved: u64,
    nodes_freed: u64,
    /// In several pieces still, for want of a free run.
    crowded: u64,
    /// Standard output takes no more, which was said.
    is_mute: bool,
}

impl Sum {
    fn add(&mut self, path: &[u8], block_bytes: u64, done: &Defragmented) {
        let bytes = done.blocks.saturating_mul(block_bytes);
        self.before.add(path, done.pieces_before, bytes, 0);
        self.after.add(path, done.pieces_after, bytes, 0);
        self.moved_files += u64::from(done.bytes_moved > 0);
        self.bytes_moved += done.bytes_moved;
        self.nodes_freed += done.nodes_freed;
        self.crowded += u64::from(done.lacks_room && done.pieces_after > 1);
    }

    /// That something could not be improved, as a failure.
    fn lack(&self, label: &str) -> Result<()> {
        if self.crowded == 0 {
            return Ok(());
        }
        let files = counted(self.crowded, "file");
        let verb = if self.crowded == 1 { "stays" } else { "stay" };
        let message = format!(
            "{label}: {files} {verb} in pieces: no free run is long enough for more than one of them"
        );
        Err(Failure::new(Exit::NoSpace, message)
            .hint("make room and run it again; extant frag shows how long free runs are"))
    }

    fn print(
        &self,
        args: &DefragArgs,
        label: &str,
        path: &[u8],
        image: Option<&str>,
    ) -> Result<()> {
        let mut out = Out::new();
        if args.json {
            let mut object = Map::new();
            put_bytes(&mut object, "path", path);
            if let Some(image) = image {
                object.insert("image".into(), image.into());
            }
            let numbers = [
                ("files", self.before.count),
                ("moved_files", self.moved_files),
                ("pieces_before", self.before.pieces),
                ("pieces_after", self.after.pieces),
                ("score_before", self.before.score()),
                ("score_after", self.after.score()),
                ("bytes", self.before.bytes),
                ("bytes_moved", self.bytes_moved),
                ("nodes_freed", self.nodes_freed),
                ("crowded_files", self.crowded),
            ];
            for (key, number) in numbers {
                object.insert(key.into(), number.into());
            }
            object.insert("changed".into(), (!args.dry_run).into());
            out.json(&Value::Object(object))?;
            return Ok(out.flush()?);
        }
        let of =
            |files: &Files| format!("{}, score {}", counted(files.pieces, "piece"), files.score());
        write!(out, "{label}: {} in {}", counted(self.before.count, "file"), of(&self.before))?;
        if !args.dry_run {
            write!(out, "; now {}", of(&self.after))?;
            write!(
                out,
                " ({} moved, {}; {} of trees given back)",
                counted(self.moved_files, "file"),
                human_bytes(self.bytes_moved),
                counted(self.nodes_freed, "node")
            )?;
        }
        writeln!(out)?;
        Ok(out.flush()?)
    }
}

/// Says what became of a file; that it could not be said is a failure once.
fn tell(args: &DefragArgs, label: &str, done: &Defragmented, (sum, tally): (&mut Sum, &mut Tally)) {
    if args.verbose && !sum.is_mute && (done.pieces_before > 1 || done.nodes_freed > 0) {
        let (before, after) = (done.pieces_before, done.pieces_after);
        let why = if done.lacks_room && after > 1 { ": no free run is long enough" } else { "" };
        let line = format!("{label}: {before} to {}{why}\n", counted(after, "piece"));
        let mut said = Ok(());
        progress::aside(|| said = output::put(line.as_bytes()));
        if let Err(error) = said {
            sum.is_mute = true;
            tally.failed_alone(&error.into());
        }
    }
}

fn on_image(args: &DefragArgs, session: &mut Session<'_>, path: &[u8]) -> Result<()> {
    let block_bytes = u64::from(session.fs.block_size().bytes());
    let (mut sum, mut met) = (Sum::default(), FxHashSet::default());
    let bar = Bar::new(!args.json && !args.dry_run);
    let start = session.at(path, session.fs.canonicalize(path))?;
    // What lies well already counts as neither done nor failed.
    for entry in session.at(path, session.fs.walk(&start))?.sorted(true) {
        if session.tally.stops() {
            break;
        }
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                let failure = session.failure(&error.path, error.error);
                session.tally.failed(&failure);
                continue;
            }
        };
        let (path, inode) = (entry.path(), entry.inode());
        let is_new = inode.metadata().links < 2 || met.insert(inode.ino().0);
        if inode.kind() != FileKind::Regular || !is_new {
            continue;
        }
        match session.at(path, one(args, inode, &bar)) {
            Ok(done) => {
                sum.add(path, block_bytes, &done);
                let label = session.label(path);
                tell(args, &label, &done, (&mut sum, session.tally));
                if done.bytes_moved > 0 {
                    session.tally.done();
                }
            }
            Err(failure) => session.tally.failed(&failure),
        }
    }
    bar.end();
    let label = session.label(path);
    sum.print(args, &label, path, Some(&session.name))?;
    sum.lack(&label)
}

/// One file of an image.
fn one(args: &DefragArgs, inode: &Inode, bar: &Bar) -> Result<Defragmented, extant::FsError> {
    if args.dry_run {
        let pieces = inode.pieces()?;
        let mut done = Defragmented::default();
        (done.pieces_before, done.pieces_after) = (pieces.count, pieces.count);
        done.blocks = pieces.blocks;
        return Ok(done);
    }
    let mut told = 0;
    inode.defragment(&mut |moved| {
        bar.add(moved.saturating_sub(told));
        told = moved;
        match interrupt::requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })
}

/// Asks the servers of mounts.
fn on_mounts(args: &DefragArgs, targets: &[OsString]) -> Result<Exit> {
    interrupt::listen()?;
    let mut tally = Tally::default();
    for target in targets {
        if tally.stops() {
            break;
        }
        let path = Path::new(target);
        let label = escape(target.as_bytes());
        if let Err(error) = asked::info(path) {
            tally.failed_alone(&asked::no_answer(path, &error));
            continue;
        }
        let bar = Bar::new(!args.json && !args.dry_run);
        let (mut sum, failed) = (Sum::default(), tally.failures());
        let walked = below(path, &mut tally, &mut |tally, file| {
            let asked = ask(args, file, &bar);
            match asked {
                Ok((block_bytes, done)) => {
                    sum.add(file.as_os_str().as_bytes(), block_bytes, &done);
                    let label = escape(file.as_os_str().as_bytes());
                    tell(args, &label, &done, (&mut sum, tally));
                    if done.bytes_moved > 0 {
                        tally.done();
                    }
                }
                Err(failure) => tally.failed_alone(&failure),
            }
        });
        bar.end();
        if let Err(failure) = walked {
            tally.failed_alone(&failure);
        }
        sum.print(args, &label, target.as_bytes(), None)?;
        if let Err(failure) = sum.lack(&label) {
            tally.failed_alone(&failure);
        } else if tally.failures() == failed && sum.moved_files == 0 {
            tally.done();
        }
    }
    Ok(tally.exit())
}

/// Calls `each` for the regular files at and below `start`, in its file system, each once.
fn below(start: &Path, tally: &mut Tally, each: &mut dyn FnMut(&mut Tally, &Path)) -> Result<()> {
    let caused = |path: &Path, error| {
        Failure::caused(Exit::Io, &escape(path.as_os_str().as_bytes()), &error)
    };
    let first = std::fs::symlink_metadata(start).map_err(|error| caused(start, error))?;
    let mut met = FxHashSet::default();
    let mut pending: Vec<(PathBuf, std::fs::Metadata)> = vec![(start.to_owned(), first.clone())];
    while let Some((path, meta)) = pending.pop() {
        if tally.stops() {
            return Ok(());
        }
        if meta.dev() != first.dev() {
            continue;
        }
        if meta.is_file() && (meta.nlink() < 2 || met.insert(meta.ino())) {
            each(tally, &path);
        }
        if !meta.is_dir() {
            continue;
        }
        let names = match std::fs::read_dir(&path) {
            Ok(names) => names,
            Err(error) => {
                tally.failed_alone(&caused(&path, error));
                continue;
            }
        };
        let mut found = Vec::new();
        for name in names {
            let entry = name.and_then(|name| Ok((name.path(), name.metadata()?)));
            match entry {
                Ok(entry) => found.push(entry),
                // Somebody has removed it meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => tally.failed_alone(&caused(&path, error)),
            }
        }
        // The first name is on top.
        found.sort_by(|a, b| b.0.cmp(&a.0));
        pending.extend(found);
    }
    Ok(())
}

/// Has the server of a mount bring one file together: a part with each request, so that none takes long.
fn ask(args: &DefragArgs, path: &Path, bar: &Bar) -> Result<(u64, Defragmented)> {
    let failed = |error: &std::io::Error| {
        let name = escape(path.as_os_str().as_bytes());
        let exit = match error.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                Exit::Refused
            }
            std::io::ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::Io,
        };
        Failure::caused(exit, &name, error)
    };
    let name = if args.dry_run { extant_fuse::PIECES } else { extant_fuse::DEFRAG };
    let mut all: Option<Defragmented> = None;
    loop {
        let answer = asked::answer(path, name).map_err(|error| failed(&error))?;
        let number = |key: &str| answer.get(key).and_then(Value::as_u64).unwrap_or(0);
        let is = |key: &str| answer.get(key).and_then(Value::as_bool).unwrap_or(false);
        let mut done = all.take().unwrap_or_else(|| {
            let mut done = Defragmented::default();
            done.pieces_before = number("pieces_before");
            done
        });
        done.pieces_after = number("pieces_after");
        done.blocks = number("blocks");
        done.bytes_moved += number("bytes_moved");
        done.nodes_freed += number("nodes_freed");
        (done.lacks_room, done.is_stopped) = (is("lacks_room"), is("is_stopped"));
        bar.add(number("bytes_moved"));
        // A server that gets nowhere is not asked for ever.
        let goes_on = done.is_stopped && number("pieces_after") < number("pieces_before");
        if !goes_on || interrupt::requested() {
            return Ok((number("block_bytes"), done));
        }
        all = Some(done);
    }
}
