//! `extant tree`: a directory drawn as a tree.

use std::io::Write;

use clap::Args;
use extant::{DEPTH_MAX, DirEntry, Inode};
use rustc_hash::FxHashSet;

use crate::entry::{LinkError, inode_json, link_suffix};
use crate::exit::{Exit, Failure, Result};
use crate::image::{Failures, Image, ImagesArgs};
use crate::output::Out;
use crate::text::{counted, human_short};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant tree -L 2 root.img:/etc\n";

/// Draw directories of images as trees
#[derive(Args, Debug)]
pub(crate) struct TreeArgs {
    #[command(flatten)]
    images: ImagesArgs,
    /// Go down at most N levels
    #[arg(short = 'L', long, value_name = "N")]
    depth: Option<usize>,
    /// Directories only
    #[arg(short = 'd', long)]
    directories: bool,
    /// Sizes of files
    #[arg(short = 's', long)]
    size: bool,
    /// One JSON object on each line, with the depth
    #[arg(long)]
    json: bool,
}

/// The rest of one directory's entries, the last first.
struct Level {
    path: Vec<u8>,
    entries: Vec<DirEntry>,
}

struct Drawer<'a> {
    args: &'a TreeArgs,
    image: &'a Image,
    out: Out,
    failures: Failures,
    entered: FxHashSet<u32>,
    directories: u64,
    files: u64,
}

/// Runs the command.
pub(crate) fn run(args: &TreeArgs) -> Result<Exit> {
    args.images.each(|image| tree(args, image))
}

fn tree(args: &TreeArgs, image: &Image) -> Result<Exit> {
    let start = image.resolve()?;
    let mut drawer = Drawer {
        args,
        image,
        out: Out::new(),
        failures: Failures::default(),
        entered: FxHashSet::default(),
        directories: 0,
        files: 0,
    };
    drawer.draw(&start)?;
    drawer.out.flush()?;
    Ok(drawer.failures.exit())
}

impl Drawer<'_> {
    fn report(&mut self, path: &[u8], error: extant::FsError) -> Result<()> {
        self.out.flush()?;
        self.failures.report(&self.image.failure(path, error));
        Ok(())
    }

    fn draw(&mut self, start: &Inode) -> Result<()> {
        let path = self.image.path.clone();
        if self.args.json {
            self.json(&path, start, 0)?;
        } else {
            if self.image.is_one_of_several {
                write!(self.out, "{}:", self.image.name)?;
            }
            self.out.coloured(&path, start.kind(), start.metadata().mode())?;
            self.out.write_all(b"\n")?;
        }
        if !start.is_dir() {
            return Ok(());
        }
        let mut levels = Vec::new();
        levels.extend(self.enter(&path, start, 0)?);
        while let Some(level) = levels.last_mut() {
            let Some(entry) = level.entries.pop() else {
                levels.pop();
                continue;
            };
            let mut path = level.path.clone();
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            path.extend_from_slice(entry.name());
            let inode = match entry.inode() {
                Ok(inode) => inode,
                Err(error) => {
                    self.report(&path, error)?;
                    continue;
                }
            };
            if self.args.json {
                self.json(&path, &inode, levels.len())?;
            } else {
                self.line(&levels, entry.name(), &path, &inode)?;
            }
            if inode.is_dir() {
                self.directories += 1;
                let below = self.enter(&path, &inode, levels.len())?;
                levels.extend(below);
            } else {
                self.files += 1;
            }
        }
        if !self.args.json {
            let directories = counted(self.directories, "directory");
            writeln!(self.out, "\n{directories}, {}", counted(self.files, "file"))?;
        }
        Ok(())
    }

    /// The entries of a directory, unless it lies too deep or was met before, which only a damaged
    /// image has.
    fn enter(&mut self, path: &[u8], dir: &Inode, depth: usize) -> Result<Option<Level>> {
        if depth >= self.args.depth.unwrap_or(usize::MAX) {
            return Ok(None);
        }
        if depth >= DEPTH_MAX || !self.entered.insert(dir.ino().0) {
            let label = self.image.label(path);
            self.failures.report(&Failure::new(
                Exit::Image,
                format!("{label}: a directory met twice or more than {DEPTH_MAX} levels down"),
            ));
            return Ok(None);
        }
        let read = match dir.read_dir() {
            Ok(read) => read,
            Err(error) => {
                self.report(path, error)?;
                return Ok(None);
            }
        };
        let mut entries = Vec::new();
        for entry in read {
            match entry {
                Ok(entry) if self.args.directories && !is_dir(&entry) => {}
                Ok(entry) => entries.push(entry),
                Err(error) => self.report(path, error)?,
            }
        }
        entries.sort_by(|a, b| b.name().cmp(a.name()));
        Ok(Some(Level { path: path.to_vec(), entries }))
    }

    fn line(&mut self, levels: &[Level], name: &[u8], path: &[u8], inode: &Inode) -> Result<()> {
        let out = &mut self.out;
        let (last, above) = levels.split_last().unzip();
        for level in above.unwrap_or(&[]) {
            let bar = if level.entries.is_empty() { "    " } else { "\u{2502}   " };
            out.write_all(bar.as_bytes())?;
        }
        let more = last.is_some_and(|level| !level.entries.is_empty());
        let branch = if more { "\u{251c}\u{2500}\u{2500} " } else { "\u{2514}\u{2500}\u{2500} " };
        out.write_all(branch.as_bytes())?;
        if self.args.size {
            write!(out, "[{:>7}] ", human_short(inode.size()))?;
        }
        out.coloured(name, inode.kind(), inode.metadata().mode())?;
        let failed = match link_suffix(out, inode) {
            Ok(()) => None,
            Err(LinkError::Fs(error)) => Some(error),
            Err(LinkError::Out(error)) => return Err(Failure::output(error)),
        };
        out.write_all(b"\n")?;
        failed.map_or(Ok(()), |error| self.report(path, error))
    }

    fn json(&mut self, path: &[u8], inode: &Inode, depth: usize) -> Result<()> {
        let (mut value, failed) = inode_json("path", path, inode);
        if let Some(object) = value.as_object_mut() {
            object.insert("depth".into(), depth.into());
            self.image.put_name(object);
        }
        self.out.json(&value)?;
        failed.map_or(Ok(()), |error| self.report(path, error))
    }
}

fn is_dir(entry: &DirEntry) -> bool {
    match entry.kind() {
        Some(kind) => kind == extant::FileKind::Directory,
        None => entry.inode().is_ok_and(|inode| inode.is_dir()),
    }
}
