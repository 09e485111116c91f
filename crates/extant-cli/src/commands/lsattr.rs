//! `extant lsattr`: show inode flags.

use std::ffi::OsString;
use std::io::Write;

use clap::Args;
use extant::Inode;
use serde_json::{Map, Value};

use crate::commands::chattr::has_flags;
use crate::edit::{Session, join, read_each};
use crate::exit::{Exit, Failure, Result};
use crate::flags::{letters, names};
use crate::image::ReadArgs;
use crate::output::{Out, put_bytes};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str =
    "Examples:\n  extant lsattr root.img:/etc\n  extant lsattr -d -p root.img:/home/user\n";

/// Show flags of files of an image
///
/// The letters of lsattr(1). Of a directory, those of the files in it, unless -d is given. Only
/// files and directories have flags; the rest is left out.
#[derive(Args, Debug)]
pub(crate) struct LsattrArgs {
    #[command(flatten)]
    how: ReadArgs,
    /// A directory itself, not what is in it
    #[arg(short = 'd', long)]
    directory: bool,
    /// Names that begin with a dot too
    #[arg(short = 'a', long)]
    all: bool,
    /// Directories with all that is in them
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Names of flags in place of letters
    #[arg(short = 'l', long)]
    long: bool,
    /// The project first
    #[arg(short = 'p', long)]
    project: bool,
    /// The generation number first
    #[arg(short = 'v', long)]
    generation: bool,
    /// One JSON object on each line
    #[arg(long)]
    json: bool,
    /// The files
    #[arg(value_name = "IMG[:/PATH]", required = true)]
    targets: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &LsattrArgs) -> Result<Exit> {
    let mut out = Out::new();
    let exit = read_each(
        &args.targets,
        |file| args.how.open(file),
        |session, path| {
            let inode = session.find(path, false)?;
            if inode.is_dir() && !args.directory {
                return list(args, session, &mut out, path, inode);
            }
            if !has_flags(&inode) {
                let message =
                    format!("{}: only files and directories have flags", session.label(path));
                return Err(Failure::new(Exit::NotFound, message));
            }
            show(args, &mut out, path, &inode)
        },
    )?;
    out.flush()?;
    Ok(exit)
}

/// The files of a directory; with -R also those of the directories in it, each under its name.
fn list(
    args: &LsattrArgs,
    session: &mut Session<'_>,
    out: &mut Out,
    path: &[u8],
    dir: Inode,
) -> Result<()> {
    // Directories still to be listed, the next one last.
    let mut waiting = vec![(path.to_vec(), dir, 0usize)];
    while let Some((path, dir, depth)) = waiting.pop() {
        if depth > 0 && !args.json {
            writeln!(out)?;
            out.name(&path)?;
            writeln!(out, ":")?;
        }
        let mut entries = Vec::new();
        for entry in session.at(&path, dir.read_dir())? {
            match entry {
                Ok(entry) => entries.push(entry),
                Err(error) => session.tally.failed(&session.failure(&path, error)),
            }
        }
        entries.sort_by(|a, b| a.name().cmp(b.name()));
        let mut below = Vec::new();
        for entry in entries {
            if !args.all && entry.name().starts_with(b".") {
                continue;
            }
            let child = join(&path, entry.name());
            let result = entry.inode().map_err(|error| session.failure(&child, error));
            let inode = match result {
                Ok(inode) if has_flags(&inode) => inode,
                Ok(_) => continue,
                Err(failure) => {
                    session.tally.failed(&failure);
                    continue;
                }
            };
            let shown = show(args, out, &child, &inode);
            session.tally.note(shown);
            if args.recursive && inode.is_dir() && depth < extant::DEPTH_MAX {
                below.push((child, inode, depth + 1));
            }
        }
        waiting.extend(below.into_iter().rev());
        if session.tally.stops() {
            break;
        }
    }
    Ok(())
}

fn show(args: &LsattrArgs, out: &mut Out, path: &[u8], inode: &Inode) -> Result<()> {
    let meta = inode.metadata();
    if args.json {
        let mut object = Map::new();
        put_bytes(&mut object, "path", path);
        object.insert("flags".into(), letters(meta.flags).replace('-', "").into());
        let set: Vec<Value> = names(meta.flags).into_iter().map(Value::from).collect();
        object.insert("names".into(), set.into());
        object.insert("flags_raw".into(), meta.flags.bits().into());
        object.insert("project".into(), meta.project.into());
        object.insert("generation".into(), meta.generation.into());
        out.json(&Value::Object(object))?;
        return Ok(());
    }
    if args.project {
        write!(out, "{:>5} ", meta.project)?;
    }
    if args.generation {
        write!(out, "{:<10} ", meta.generation)?;
    }
    if args.long {
        let set = names(meta.flags);
        out.name(path)?;
        let padding = 28usize.saturating_sub(path.len());
        let set = if set.is_empty() { "---".to_owned() } else { set.join(", ") };
        writeln!(out, "{:padding$} {set}", "")?;
    } else {
        write!(out, "{} ", letters(meta.flags))?;
        out.name(path)?;
        writeln!(out)?;
    }
    Ok(())
}
