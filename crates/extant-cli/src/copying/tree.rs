//! One command's copies: what becomes of each source, whatever is there already.
//!
//! # Invariants
//!
//! - A failure is about one file. It is named with the side it happened on, and the rest goes on.
//! - A copy that could not be finished is removed if it was made by this command; of a file that
//!   was there before, the message says that it is cut off.
//! - Below the destination no link is followed: see the module above.

use extant::{DEPTH_MAX, FileKind, Fs};
use rustc_hash::{FxHashMap, FxHashSet};

use super::content::{Fault, Mover, Sparse};
use super::dest::{Copy, Defaults, Dir, First, Preserve};
use super::host::Omitted;
use super::node::{About, Id, Node};
use super::{Trouble, label, refused};
use crate::edit::{Tally, join};
use crate::exit::{Exit, Failure, Result};
use crate::interrupt;
use crate::output::Out;
use crate::progress::Bar;

/// An image that is open.
pub(crate) struct Opened {
    pub(crate) fs: Fs,
    pub(crate) name: String,
    /// Identity of the file, as the host knows it.
    pub(crate) id: Option<Id>,
    pub(crate) writable: bool,
}

/// Which symbolic links of the source are followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Follow {
    Never,
    /// Those that the command line names.
    Named,
    Always,
}

/// What the command line asks for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) recursive: bool,
    pub(crate) follow: Follow,
    pub(crate) force: bool,
    pub(crate) no_clobber: bool,
    pub(crate) verbose: bool,
    pub(crate) sparse: Sparse,
    pub(crate) preserve: Preserve,
    pub(crate) defaults: Defaults,
}

/// Where one source goes.
pub(crate) enum Target {
    /// This name in a directory.
    Name(Dir, Vec<u8>),
    /// What is in the source goes into this directory.
    Into(Dir),
}

/// A directory that is being copied.
struct Level {
    from: Node,
    to: Dir,
    to_path: Vec<u8>,
    names: std::vec::IntoIter<Vec<u8>>,
    is_new: bool,
}

/// Copies into one destination.
pub(crate) struct Copier<'a> {
    pub(crate) options: &'a Options,
    pub(crate) images: &'a [Opened],
    /// Image of the destination; `None`: the host.
    pub(crate) to_image: Option<usize>,
    /// The directory below which nothing is followed, and its path.
    root: Dir,
    root_path: Vec<u8>,
    pub(crate) tally: Tally,
    out: Out,
    links: FxHashMap<Id, First>,
    /// What was made: one source must not overwrite the copy of another.
    made: FxHashSet<Id>,
    omitted: Omitted,
    mover: Mover,
}

/// The image that a file is in.
fn image_of(id: Id) -> Option<usize> {
    match id {
        Id::Image(image, _) => Some(image),
        Id::Host(..) => None,
    }
}

impl<'a> Copier<'a> {
    pub(crate) fn new(
        options: &'a Options,
        images: &'a [Opened],
        to_image: Option<usize>,
        (root, root_path): (Dir, Vec<u8>),
        bar: &Bar,
    ) -> Copier<'a> {
        Copier {
            options,
            images,
            to_image,
            root,
            root_path,
            tally: Tally::default(),
            out: Out::new(),
            links: FxHashMap::default(),
            made: FxHashSet::default(),
            omitted: Omitted::default(),
            mover: Mover::new(bar),
        }
    }

    fn image_name(&self, image: Option<usize>) -> Option<&'a str> {
        image.and_then(|image| self.images.get(image)).map(|image| &*image.name)
    }

    fn source_label(&self, from: &Node) -> String {
        label(self.image_name(image_of(from.about.id)), &from.path)
    }

    /// Returns what went wrong with the copy of `from` to `to`.
    fn failure(&self, fault: Fault, from: &Node, to: &[u8]) -> Failure {
        match fault {
            Fault::From(trouble) => {
                trouble.about(self.image_name(image_of(from.about.id)), &from.path)
            }
            Fault::Half(fault) => {
                let mut failure = self.failure(*fault, from, to);
                let to = label(self.image_name(self.to_image), to);
                failure.message += &format!("; what was in {to} before is overwritten");
                failure
            }
            Fault::To(trouble) => trouble.about(self.image_name(self.to_image), to),
        }
    }

    fn note(&mut self, fault: Fault, from: &Node, to: &[u8]) {
        let writes = !matches!(fault, Fault::From(_)) && self.to_image.is_some();
        if matches!(fault, Fault::Half(_)) {
            self.tally.changed();
        }
        let failure = self.failure(fault, from, to);
        match writes {
            true => self.tally.failed(&failure),
            false => self.tally.failed_alone(&failure),
        }
    }

    /// Ends the command: what was left out, and what is still to be printed.
    pub(crate) fn end(mut self) -> Result<Tally> {
        std::io::Write::flush(&mut self.out)?;
        self.omitted.note();
        Ok(self.tally)
    }

    /// Copies `from`, a tree with all that is in it. Failures are noted.
    pub(crate) fn source(&mut self, from: Node, target: Target, to_path: Vec<u8>) -> Result<()> {
        let mut way: Vec<Level> = Vec::new();
        let mut entered: FxHashSet<Id> = FxHashSet::default();
        match target {
            Target::Into(_) if from.about.kind != FileKind::Directory => {
                self.note(Fault::To(refused("it is a directory", None)), &from, &to_path);
            }
            Target::Into(_) if !self.options.recursive => {
                self.note(Fault::From(left_out()), &from, &to_path);
            }
            Target::Into(dir) if dir.id().is_ok_and(|id| id == from.about.id) => {
                let what = format!("it is the same directory as {}", self.source_label(&from));
                self.note(Fault::To(refused(what, None)), &from, &to_path);
            }
            Target::Into(dir) => {
                entered.insert(from.about.id);
                self.show(&from, &to_path)?;
                let level = self.open(from, dir, to_path, false);
                way.push(level);
            }
            Target::Name(dir, name) => {
                if let Some(level) = self.one(from, &dir, &name, to_path)? {
                    entered.insert(level.from.about.id);
                    way.push(level);
                }
            }
        }
        while let Some(level) = way.last_mut() {
            if self.tally.stops() {
                return Ok(());
            }
            let Some(name) = level.names.next() else {
                if let Some(level) = way.pop() {
                    entered.remove(&level.from.about.id);
                    self.leave(&level);
                }
                continue;
            };
            let follow = self.options.follow == Follow::Always;
            let to_path = join(&level.to_path, &name);
            let child = match level.from.child(&name, follow) {
                Ok(child) => child,
                Err(trouble) => {
                    let image = self.image_name(image_of(level.from.about.id));
                    let failure = trouble.about(image, &join(&level.from.path, &name));
                    self.tally.failed_alone(&failure);
                    continue;
                }
            };
            let is_dir = child.about.kind == FileKind::Directory;
            if is_dir && entered.contains(&child.about.id) {
                let what = "it leads back to a directory above it";
                self.note(Fault::From(refused(what, None)), &child, &to_path);
                continue;
            }
            if is_dir && way.len() >= DEPTH_MAX {
                let what = format!("it lies deeper than {DEPTH_MAX} directories");
                self.note(Fault::From(refused(what, None)), &child, &to_path);
                continue;
            }
            let Some(level) = way.last() else { break };
            let dir = level.to.clone();
            if let Some(level) = self.one(child, &dir, &name, to_path)? {
                entered.insert(level.from.about.id);
                way.push(level);
            }
        }
        Ok(())
    }

    /// Lists a directory that is to be copied into `to`.
    fn open(&mut self, from: Node, to: Dir, to_path: Vec<u8>, is_new: bool) -> Level {
        let (names, troubles) = from.names();
        for trouble in troubles {
            self.note(Fault::From(trouble), &from, &to_path);
        }
        Level { from, to, to_path, names: names.into_iter(), is_new }
    }

    /// Sets the attributes of a directory that is full.
    fn leave(&mut self, level: &Level) {
        let done = Copy::Dir(&level.to).finish(
            &level.from,
            level.is_new,
            &self.options.preserve,
            &self.options.defaults,
            &mut self.omitted,
        );
        match done {
            Ok(()) => self.tally.done(),
            Err(fault) => self.note(fault, &level.from, &level.to_path),
        }
        if level.is_new {
            self.tally.ended();
        }
    }

    fn show(&mut self, from: &Node, to_path: &[u8]) -> Result<()> {
        use std::io::Write;
        if self.options.verbose {
            let to = label(self.image_name(self.to_image), to_path);
            writeln!(self.out, "'{}' -> '{to}'", self.source_label(from))?;
        }
        Ok(())
    }

    /// Copies one file; a directory is made and given back for what is in it.
    fn one(
        &mut self,
        from: Node,
        dir: &Dir,
        name: &[u8],
        to_path: Vec<u8>,
    ) -> Result<Option<Level>> {
        let there = match self.look(&from, dir, name, &to_path) {
            Ok(there) => there,
            Err(failure) => {
                self.tally.failed_alone(&failure);
                return Ok(None);
            }
        };
        if self.options.no_clobber && there.is_some_and(|there| there.kind != FileKind::Directory) {
            return Ok(None);
        }
        self.show(&from, &to_path)?;
        if from.about.kind == FileKind::Directory {
            let made = match there {
                Some(_) => dir.enter(name),
                None => {
                    let Options { preserve, defaults, .. } = self.options;
                    dir.make_dir(name, &from.about, preserve, defaults)
                }
            };
            let made = made.and_then(|made| Ok((made.id()?, made)));
            return match made {
                Ok((id, to)) => {
                    self.made.insert(id);
                    if there.is_none() {
                        self.tally.begun();
                    }
                    Ok(Some(self.open(from, to, to_path, there.is_none())))
                }
                Err(trouble) => {
                    self.note(Fault::To(trouble), &from, &to_path);
                    Ok(None)
                }
            };
        }
        match self.file(&from, dir, name, &to_path, there) {
            Ok(()) => self.tally.done(),
            // The tally says that it was interrupted.
            Err(fault) if interrupt::requested() => {
                if matches!(fault, Fault::Half(_)) {
                    self.note(fault, &from, &to_path);
                }
                self.tally.stops();
            }
            Err(fault) => self.note(fault, &from, &to_path),
        }
        Ok(None)
    }

    /// Returns what is at the destination, if it does not forbid the copy.
    fn look(
        &self,
        from: &Node,
        dir: &Dir,
        name: &[u8],
        to_path: &[u8],
    ) -> Result<Option<About>, Failure> {
        let failed = |fault: Fault| self.failure(fault, from, to_path);
        let is_dir = from.about.kind == FileKind::Directory;
        if is_dir && !self.options.recursive {
            return Err(failed(Fault::From(left_out())));
        }
        if is_dir && self.made.contains(&from.about.id) {
            let what = "it is not copied into itself";
            return Err(failed(Fault::From(refused(what, None))));
        }
        let image = |id: Id| self.images.iter().any(|image| image.id == Some(id));
        if !is_dir && image(from.about.id) {
            let what = "it is the image that is open for this copy";
            return Err(failed(Fault::From(refused(what, None))));
        }
        let there = dir.look(name).map_err(|trouble| failed(Fault::To(trouble)))?;
        let Some(there) = there else { return Ok(None) };
        let refuse = |what: String, hint| Err(failed(Fault::To(refused(what, hint))));
        if there.id == from.about.id {
            return refuse(format!("it is the same file as {}", self.source_label(from)), None);
        }
        match (is_dir, there.kind == FileKind::Directory) {
            (true, false) => {
                let what = format!("{} is a directory and this is none", self.source_label(from));
                refuse(what, Some("remove it, or copy to another name"))
            }
            (false, true) => {
                let what = format!("this is a directory and {} is none", self.source_label(from));
                refuse(what, Some("remove it, or copy to another name"))
            }
            (false, false) if image(there.id) => {
                refuse("it is the image that is open for this copy".into(), None)
            }
            (false, false) if self.made.contains(&there.id) && !self.links_again(from) => {
                let what = format!(
                    "it was made just now and is not overwritten with {}",
                    self.source_label(from)
                );
                refuse(what, None)
            }
            _ => Ok(Some(there)),
        }
    }

    /// Returns whether the copy will be a further name of an earlier one.
    fn links_again(&self, from: &Node) -> bool {
        self.options.preserve.links && self.links.contains_key(&from.about.id)
    }

    /// Copies what is no directory.
    fn file(
        &mut self,
        from: &Node,
        dir: &Dir,
        name: &[u8],
        to_path: &[u8],
        there: Option<About>,
    ) -> Result<(), Fault> {
        let Options { preserve, defaults, recursive, force, .. } = self.options;
        let about = &from.about;
        // Without -r, what can be read is copied, whatever it is.
        let reads =
            about.kind == FileKind::Regular || (about.kind != FileKind::Symlink && !recursive);
        let keeps_links = preserve.links && about.links > 1;
        if keeps_links && let Some(first) = self.links.get(&about.id).cloned() {
            if there.is_some() {
                dir.remove(name).map_err(Fault::To)?;
            }
            return dir.link(&self.root, &first, name).map_err(Fault::To);
        }
        let privileged = defaults.privileged || self.to_image.is_some();
        if !reads && about.rdev.is_some() && !privileged {
            self.omitted.devices += 1;
            return Ok(());
        }
        let mut there = there;
        if let Some(found) = there {
            let other_names = preserve.links && found.links > 1;
            let regular = found.kind == FileKind::Regular;
            if !reads || other_names || (*force && !regular) {
                dir.remove(name).map_err(Fault::To)?;
                self.made.remove(&found.id);
                there = None;
            } else if !regular {
                let (what, hint) = match found.kind {
                    FileKind::Symlink => {
                        ("it is a symbolic link, which is not followed", "-f replaces it")
                    }
                    _ => (
                        "it is no regular file",
                        "-f removes it and puts a file in its place; extant cat IMG:/PATH > it writes into it",
                    ),
                };
                return Err(Fault::To(refused(what, Some(hint))));
            }
        }
        if reads {
            self.regular(from, dir, name, there)?;
        } else {
            match about.kind {
                FileKind::Symlink => {
                    let target = from.target().map_err(Fault::From)?;
                    dir.symlink(name, &target, about, preserve, defaults).map_err(Fault::To)?;
                }
                _ => dir.special(name, about, preserve, defaults).map_err(Fault::To)?,
            }
            let made = Copy::Named(dir, name);
            made.finish(from, true, preserve, defaults, &mut self.omitted)?;
        }
        let made = dir.look(name).map_err(Fault::To)?;
        if let Some(made) = made {
            self.made.insert(made.id);
            if keeps_links {
                let first = match made.id {
                    Id::Image(_, ino) => First::Image(extant::Ino(ino)),
                    Id::Host(..) => First::Host(self.names_below_root(to_path)),
                };
                self.links.insert(about.id, first);
            }
        }
        Ok(())
    }

    fn names_below_root(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let below = path.get(self.root_path.len()..).unwrap_or_default();
        let names = below.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.map(<[u8]>::to_vec).collect()
    }

    /// Copies contents into a new file, or into one that is there.
    fn regular(
        &mut self,
        from: &Node,
        dir: &Dir,
        name: &[u8],
        there: Option<About>,
    ) -> Result<(), Fault> {
        let Options { preserve, defaults, force, sparse, .. } = self.options;
        let content = from.content().map_err(Fault::From)?;
        let mut is_new = there.is_none();
        let sink = match there {
            None => dir.create(name, &from.about, preserve, defaults),
            Some(_) => match dir.overwrite(name) {
                Err(_) if *force => {
                    is_new = true;
                    dir.remove(name)
                        .and_then(|()| dir.create(name, &from.about, preserve, defaults))
                }
                sink => sink,
            },
        };
        let sink = sink.map_err(Fault::To)?;
        let copied = self.mover.copy(&content, &sink, *sparse);
        if let Err(fault) = copied {
            drop(sink);
            if !is_new {
                return Err(Fault::Half(Box::new(fault)));
            }
            // A file that looks whole and is not would be worse than none. What went wrong before
            // is what counts.
            let _ = dir.remove(name);
            return Err(fault);
        }
        // The contents are worth keeping without an attribute.
        Copy::Sink(&sink).finish(from, is_new, preserve, defaults, &mut self.omitted)
    }
}

fn left_out() -> Trouble {
    let hint = Some("-r copies it with all that is in it");
    Trouble::Refused(Exit::NotFound, "it is a directory, left out".into(), hint)
}
