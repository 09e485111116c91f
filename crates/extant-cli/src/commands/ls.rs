//! `extant ls`: names in a directory, or one file.

use std::io::Write;
use std::rc::Rc;

use clap::Args;
use extant::{DirEntry, Inode, ReadDir};

use crate::accounts::Names;
use crate::entry::{LinkError, LongForm, inode_json, link_suffix, long_prefix};
use crate::exit::{Exit, Failure, Result};
use crate::image::{Failures, Image, ImagesArgs};
use crate::output::Out;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant ls -l root.img:/etc\n  extant ls --json disk.img:/ --partition 2\n  extant ls s3://images/debian.qcow2:/etc --partition 1 --cache-dir ~/.cache/images\n";

/// List files of images
///
/// Of several paths, files come first, then directories, each under a heading. A directory is listed
/// by name; names that begin with a dot only with -a. Owners are shown
/// as the image's own /etc/passwd and /etc/group name them. Times are in UTC. On a terminal,
/// control characters in names become escapes; into a pipe or file, names go as they are.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    images: ImagesArgs,
    /// Mode, links, owner, group, size, time, name
    #[arg(short = 'l', long)]
    long: bool,
    /// Also names that begin with a dot
    #[arg(short = 'a', long)]
    all: bool,
    /// Directories below, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// The directory itself and not what is in it
    #[arg(short = 'd', long)]
    directory: bool,
    /// Inode numbers
    #[arg(short = 'i', long)]
    inode: bool,
    /// Owners as numbers
    #[arg(short = 'n', long)]
    numeric: bool,
    /// With -l, sizes as 1.5K, 3M, 2G
    #[arg(short = 'h', long)]
    human: bool,
    /// As stored, without sorting: large directories begin at once and take no memory
    #[arg(short = 'U', long)]
    unsorted: bool,
    /// End names with NUL and leave them as they are
    #[arg(short = '0', long = "null", conflicts_with_all = ["long", "json"])]
    null: bool,
    /// One JSON object on each line
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

struct Lister<'a> {
    args: &'a LsArgs,
    image: &'a Image,
    names: Rc<Names>,
    out: Out,
    failures: Failures,
}

/// Runs the command.
pub(crate) fn run(args: &LsArgs) -> Result<Exit> {
    // Names of owners are read once for each image.
    let mut known: Vec<(String, Rc<Names>)> = Vec::new();
    let mut is_first = true;
    // What cannot be looked up counts as a file.
    let rank = |image: &Image| {
        u8::from(!args.directory && resolve(args, image).is_ok_and(|inode| inode.is_dir()))
    };
    args.images.each_in_order(rank, |image| {
        let found = known.iter().find(|(name, _)| *name == image.name);
        let names = found.map(|(_, names)| Rc::clone(names)).unwrap_or_else(|| {
            let names = Rc::new(Names::load(&image.fs, args.numeric || !args.long));
            known.push((image.name.clone(), Rc::clone(&names)));
            names
        });
        let exit = ls(args, image, names, is_first);
        is_first = false;
        exit
    })
}

fn resolve(args: &LsArgs, image: &Image) -> Result<Inode> {
    if args.long || args.directory { image.resolve_link() } else { image.resolve() }
}

fn ls(args: &LsArgs, image: &Image, names: Rc<Names>, is_first: bool) -> Result<Exit> {
    let mut lister = Lister { args, image, names, out: Out::new(), failures: Failures::default() };
    let inode = resolve(args, image)?;
    if image.is_one_of_several && inode.is_dir() && !args.directory && !args.json && !args.null {
        let blank = if is_first { "" } else { "\n" };
        writeln!(lister.out, "{blank}{}:", image.label(&image.path))?;
    }
    if !inode.is_dir() || args.directory {
        let name = match image.is_one_of_several && !args.json {
            true => [image.name.as_bytes(), b":", &image.path].concat(),
            false => image.path.clone(),
        };
        lister.line(&name, &image.path, inode.ino().0, Some(&inode))?;
    } else if args.recursive {
        lister.recurse()?;
    } else {
        let entries = inode.read_dir().map_err(|error| image.failure(&image.path, error))?;
        lister.list(&image.path, entries)?;
    }
    lister.out.flush()?;
    Ok(lister.failures.exit())
}

impl Lister<'_> {
    /// Returns whether a line needs more than the directory has: loading inodes costs reads.
    fn needs_inode(&self) -> bool {
        self.args.long || self.args.json
    }

    fn report(&mut self, path: &[u8], error: extant::FsError) -> Result<()> {
        // What was listed so far comes first on a terminal.
        self.out.flush()?;
        self.failures.report(&self.image.failure(path, error));
        Ok(())
    }

    fn list(&mut self, path: &[u8], entries: ReadDir) -> Result<()> {
        let entries = entries.with_dots(self.args.all);
        if self.args.unsorted {
            for entry in entries {
                self.entry(path, entry)?;
            }
        } else {
            let mut all: Vec<_> = entries.collect();
            all.sort_by(|a, b| match (a, b) {
                (Ok(a), Ok(b)) => a.name().cmp(b.name()),
                (a, b) => b.is_err().cmp(&a.is_err()),
            });
            for entry in all {
                self.entry(path, entry)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, dir: &[u8], entry: extant::Result<DirEntry>) -> Result<()> {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return self.report(dir, error),
        };
        if !self.args.all && entry.name().starts_with(b".") {
            return Ok(());
        }
        let mut path = dir.to_vec();
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(entry.name());
        if !self.needs_inode() {
            return self.line(entry.name(), &path, entry.ino().0, None);
        }
        match entry.inode() {
            Ok(inode) => self.line(entry.name(), &path, inode.ino().0, Some(&inode)),
            Err(error) => self.report(&path, error),
        }
    }

    /// Everything below the path, each directory under a heading as `ls -R` does; with `--json` or
    /// `-0` by path, without headings.
    fn recurse(&mut self) -> Result<()> {
        let walk = self.image.fs.walk(&self.image.path);
        let walk = walk.map_err(|error| self.image.failure(&self.image.path, error))?;
        let mut heading = false;
        for item in walk.sorted(!self.args.unsorted) {
            let found = match item {
                Ok(found) => found,
                Err(error) => {
                    self.report(&error.path, error.error)?;
                    continue;
                }
            };
            if !self.args.all && found.depth() > 0 && hidden(found.path(), &self.image.path) {
                continue;
            }
            if self.args.json || self.args.null {
                if found.depth() > 0 {
                    let (path, ino) = (found.path(), found.inode().ino().0);
                    self.line(path, path, ino, Some(found.inode()))?;
                }
            } else if found.inode().is_dir() {
                if heading {
                    self.out.write_all(b"\n")?;
                }
                heading = true;
                self.out.name(found.path())?;
                self.out.write_all(b":\n")?;
                // The walk reports a directory that cannot be listed.
                if let Ok(entries) = found.inode().read_dir() {
                    self.list(found.path(), entries)?;
                }
            }
        }
        Ok(())
    }

    fn line(&mut self, name: &[u8], path: &[u8], ino: u32, inode: Option<&Inode>) -> Result<()> {
        if let (true, Some(inode)) = (self.args.json, inode) {
            let several = self.image.is_one_of_several;
            let (key, shown) = match self.args.recursive || several {
                true => ("path", path),
                false => ("name", name),
            };
            let (mut value, failed) = inode_json(key, shown, inode);
            if let Some(object) = value.as_object_mut() {
                self.image.put_name(object);
            }
            self.out.json(&value)?;
            return failed.map_or(Ok(()), |error| self.report(path, error));
        }
        let out = &mut self.out;
        if let (true, Some(inode)) = (self.args.long, inode) {
            let meta = inode.metadata();
            let form = LongForm { ino: self.args.inode, human: self.args.human };
            long_prefix(out, &meta, &self.names, form)?;
            out.coloured(name, meta.kind, meta.mode())?;
            let failed = match link_suffix(out, inode) {
                Ok(()) => None,
                Err(LinkError::Fs(error)) => Some(error),
                Err(LinkError::Out(error)) => return Err(Failure::output(error)),
            };
            self.out.write_all(b"\n")?;
            return failed.map_or(Ok(()), |error| self.report(path, error));
        }
        if self.args.inode {
            write!(out, "{ino:>9} ")?;
        }
        if self.args.null {
            out.write_all(name)?;
            out.write_all(b"\0")?;
        } else {
            out.name(name)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

/// Returns whether a name on the way from `start` down to `path` begins with a dot.
fn hidden(path: &[u8], start: &[u8]) -> bool {
    path.get(start.len()..).unwrap_or(&[]).split(|byte| *byte == b'/').any(|n| n.starts_with(b"."))
}
