//! `extant cp`: copies between the host and images, and within images.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use extant::{FileKind, FsError};
use extant_block::FileDevice;
use extant_image::signature::{Class, recognise_device};
use extant_sync::threads::{self, ThreadError};
use extant_sync::{Clock, SystemClock};
use rustc_hash::FxHashSet;
use rustix::fs::Mode;

use crate::copying::content::Sparse;
use crate::copying::dest::{Defaults, Dir, Preserve};
use crate::copying::host::{open_dir, raise_file_limit};
use crate::copying::node::{About, Id, Node};
use crate::copying::tree::{Copier, Follow, Opened, Options, Target};
use crate::copying::{Trouble, label};
use crate::edit::{self, EditArgs, NewArgs, Tally, Unended, join, last_name, parent};
use crate::exit::{Exit, Failure, Result};
use crate::foreign;
use crate::image::split_place;
use crate::interrupt;
use crate::progress::Bar;
use crate::text::escape;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant cp motd root.img:/etc/motd\n  extant cp -a overlay/. root.img:/\n  extant cp -r root.img:/etc etc-copy\n  extant cp -a old.img:/home new.img:/\n  extant cp root.img:/etc/fstab root.img:/etc/fstab.old\n";

/// Permissions that copies in an image do not get by themselves; the host's umask is not asked, so
/// that the same command makes the same image everywhere.
const IMAGE_UMASK: u16 = 0o022;

/// How often it is asked whether the bar is there.
const SURVEY_STEP: Duration = Duration::from_millis(50);

/// Copy files into, out of, between and within images
///
/// As cp(1); each path is IMG:/PATH or a path of the host, and at least one is in an image. A
/// destination that is a directory takes the copies in, unless -T is given. A file that exists is
/// emptied and written, and keeps its attributes. Holes stay holes.
///
/// Without -p or -a, copies belong to root in an image (or to --owner), with the permissions of
/// the source less 022, and to the user on the host. Each file is copied even if another one
/// fails; one that could not be finished is removed again. All of an image is durable when the
/// command ends.
///
/// Links below the destination are never followed, whatever an image holds: -f replaces them.
#[derive(Args, Debug)]
pub(crate) struct CpArgs {
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    new: NewArgs,
    /// Directories too, with all that is in them; links, devices and pipes as what they are
    #[arg(short = 'r', visible_short_alias = 'R', long)]
    recursive: bool,
    /// The same as -r --preserve=all, without following links
    #[arg(short = 'a', long)]
    archive: bool,
    /// The same as --preserve=mode,ownership,timestamps
    #[arg(short = 'p')]
    usual: bool,
    /// Keep attributes: mode (with ACLs), ownership, timestamps, links, xattr, all
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, require_equals = true,
          default_missing_value = "mode,ownership,timestamps")]
    preserve: Vec<Kept>,
    /// Symbolic links as links, and --preserve=links
    #[arg(short = 'd')]
    links: bool,
    /// Symbolic links as links
    #[arg(short = 'P', long, overrides_with_all = ["dereference", "named_links"])]
    no_dereference: bool,
    /// What symbolic links lead to; the default without -r
    #[arg(short = 'L', long, overrides_with_all = ["no_dereference", "named_links"])]
    dereference: bool,
    /// What the links that are named as sources lead to
    #[arg(short = 'H', overrides_with_all = ["no_dereference", "dereference"])]
    named_links: bool,
    /// Replace what cannot be written into: links, devices, files of others
    #[arg(short = 'f', long)]
    force: bool,
    /// Leave files that exist as they are
    #[arg(short = 'n', long, overrides_with = "force")]
    no_clobber: bool,
    /// Where copies have holes
    #[arg(long, value_enum, default_value = "auto")]
    sparse: Sparse,
    /// Show no progress
    #[arg(short = 'q', long)]
    quiet: bool,
    /// Print what is copied
    #[arg(short = 'v', long)]
    verbose: bool,
    /// The destination is the new name, even if it is a directory
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    no_target_directory: bool,
    /// Directory that takes the copies in; then all paths are sources
    #[arg(short = 't', long, value_name = "DIR")]
    target_directory: Option<OsString>,
    /// What is copied, and where to
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

/// One word of `--preserve`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Kept {
    Mode,
    Ownership,
    Timestamps,
    Links,
    Xattr,
    All,
}

/// Where a path is.
struct Place {
    /// Number of the image.
    image: Option<usize>,
    path: Vec<u8>,
}

/// The images of one command, in the order in which they are met.
#[derive(Default)]
struct Images {
    files: Vec<PathBuf>,
    ids: Vec<Option<Id>>,
}

impl Images {
    fn place(&mut self, target: &OsStr) -> Place {
        let Some((file, path)) = split_place(target) else {
            return Place { image: None, path: target.as_bytes().to_vec() };
        };
        let id = file.metadata().ok().map(|meta| About::on_host(&meta).id);
        let known = |at: &usize| {
            self.files.get(*at) == Some(&file) || (id.is_some() && self.ids.get(*at) == Some(&id))
        };
        let image = (0..self.files.len()).find(known).unwrap_or_else(|| {
            self.files.push(file);
            self.ids.push(id);
            self.files.len() - 1
        });
        Place { image: Some(image), path }
    }
}

impl CpArgs {
    fn options(&self) -> Options {
        let has = |kept: Kept| self.preserve.contains(&kept) || self.preserve.contains(&Kept::All);
        let all = self.archive;
        let recursive = self.recursive || all;
        let follow = match () {
            () if self.dereference => Follow::Always,
            () if self.named_links => Follow::Named,
            () if self.no_dereference || self.links || recursive => Follow::Never,
            () => Follow::Always,
        };
        // Asked for by setting another one, while there is one thread.
        let umask = rustix::process::umask(Mode::from(0o077));
        rustix::process::umask(umask);
        Options {
            recursive,
            follow,
            force: self.force,
            no_clobber: self.no_clobber,
            verbose: self.verbose,
            sparse: self.sparse,
            preserve: Preserve {
                mode: all || self.usual || has(Kept::Mode),
                ownership: all || self.usual || has(Kept::Ownership),
                timestamps: all || self.usual || has(Kept::Timestamps),
                links: all || self.links || has(Kept::Links),
                xattrs: all || has(Kept::Xattr),
            },
            defaults: Defaults {
                owner: (0, 0),
                umask: (umask.bits() & 0o777) as u16,
                privileged: rustix::process::geteuid().is_root(),
            },
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &CpArgs) -> Result<Exit> {
    let mut images = Images::default();
    let (sources, target) = match &args.target_directory {
        Some(target) => (&args.paths[..], target),
        None => match args.paths.split_last() {
            Some((target, sources)) if !sources.is_empty() => (sources, target),
            _ => return Err(Failure::usage("no destination: give SOURCE… and DESTINATION")),
        },
    };
    if args.no_target_directory && sources.len() > 1 {
        return Err(Failure::usage("-T is for one source and one destination"));
    }
    let sources: Vec<Place> = sources.iter().map(|source| images.place(source)).collect();
    let target = images.place(target);
    if target.image.is_none() && sources.iter().any(|source| source.image.is_none()) {
        let failure = Failure::usage("source and destination are both on the host");
        let meant = args.paths.iter().chain(&args.target_directory).find_map(|path| meant(path));
        return Err(failure.hint(match meant {
            Some(hint) => hint,
            None => "paths in an image are IMG:/PATH; for the host alone there is cp".to_owned(),
        }));
    }
    if target.image.is_none() && args.new.is_given() {
        return Err(Failure::usage("--owner is for copies in an image"));
    }
    interrupt::listen()?;
    raise_file_limit();
    let mut opened = Vec::new();
    for (image, file) in images.files.iter().enumerate() {
        let writable = target.image == Some(image);
        let result = if writable { args.edit.open(file) } else { args.edit.open_read_only(file) };
        match result {
            Ok((fs, name)) => {
                let id = images.ids.get(image).copied().flatten();
                opened.push(Opened { fs, name, id, writable });
            }
            Err(failure) => {
                close(opened)?;
                return Err(failure);
            }
        }
    }
    let result = copy(args, &opened, &sources, &target);
    let closed = close(opened);
    let mut tally = result?;
    if let Err(unended) = closed {
        tally.unended(&unended);
    }
    Ok(tally.exit())
}

/// Ends the mounts, the writable one so that all is durable.
fn close(images: Vec<Opened>) -> Result<(), Unended> {
    for image in images {
        if image.writable {
            edit::close(image.fs, &image.name)?;
        }
    }
    Ok(())
}

fn copy(args: &CpArgs, images: &[Opened], sources: &[Place], target: &Place) -> Result<Tally> {
    let mut options = args.options();
    if let Some(image) = target.image.and_then(|image| images.get(image)) {
        options.defaults.umask = IMAGE_UMASK;
        options.defaults.owner = args.new.given(&image.fs)?.unwrap_or((0, 0));
    }
    let name = target.image.and_then(|image| images.get(image)).map(|image| &*image.name);
    let to = Destination::find(images, target, !args.no_target_directory)?;
    let must = args.target_directory.is_some() || sources.len() > 1;
    let single = match (&to, sources) {
        (Destination::Directory(_), _) => None,
        (Destination::Name(..), _) if must => {
            let failure = Failure::usage(format!(
                "{}: it is no directory that could take the copies in",
                label(name, &target.path)
            ));
            return Err(failure.hint("extant mkdir makes one in an image"));
        }
        (Destination::Name(..), sources) => sources.first(),
    };
    let root = match &to {
        Destination::Directory(dir) => (dir.clone(), target.path.clone()),
        Destination::Name(dir, _, path) => (dir.clone(), parent_of(path)),
    };
    let bar = Bar::new(!args.quiet && !args.verbose);
    let is_over = AtomicBool::new(false);
    let copied = threads::scope(|scope| {
        let survey = match bar.is_wanted() {
            false => None,
            true => Some(scope.spawn("cp-survey", || {
                survey(images, sources, &options, &bar, &is_over);
            })?),
        };
        let copier = Copier::new(&options, images, target.image, root, &bar);
        let copied = copy_all(args, copier, sources, target, &to, single, name);
        is_over.store(true, Ordering::Relaxed);
        survey.map_or(Ok(()), |thread| thread.join())?;
        bar.end();
        Ok::<_, ThreadError>(copied)
    });
    let copier = copied
        .map_err(ThreadError::from)
        .and_then(|result| result)
        .map_err(|error| Failure::caused(Exit::Internal, "", &error))??;
    copier.end()
}

/// Copies each source to where it goes.
fn copy_all<'a>(
    args: &CpArgs,
    mut copier: Copier<'a>,
    sources: &[Place],
    target: &Place,
    to: &Destination,
    single: Option<&Place>,
    name: Option<&str>,
) -> Result<Copier<'a>> {
    let (images, follow) = (copier.images, copier.options.follow);
    for source in sources {
        if copier.tally.stops() {
            break;
        }
        let from = match find(images, source, follow) {
            Ok(from) => from,
            Err(trouble) => {
                let image = source.image.and_then(|image| images.get(image));
                let failure = trouble.about(image.map(|image| &*image.name), &source.path);
                copier.tally.failed_alone(&failure);
                continue;
            }
        };
        if let Some(failure) = into_itself(images, source, target, &from) {
            copier.tally.failed_alone(&failure);
            continue;
        }
        let wants_directory = single.is_some()
            && target.path.last() == Some(&b'/')
            && from.about.kind != extant::FileKind::Directory;
        if wants_directory {
            let message = format!("{}: no such directory", label(name, &target.path));
            copier.tally.failed_alone(&Failure::new(Exit::NotFound, message));
            continue;
        }
        let (target, path) = match to {
            Destination::Name(dir, name, path) => {
                (Target::Name(dir.clone(), name.clone()), path.clone())
            }
            Destination::Directory(dir) if args.no_target_directory => {
                (Target::Into(dir.clone()), target.path.clone())
            }
            Destination::Directory(dir) => match last_name(&source.path) {
                b"" | b"." | b".." => (Target::Into(dir.clone()), target.path.clone()),
                last => (Target::Name(dir.clone(), last.to_vec()), join(&target.path, last)),
            },
        };
        copier.source(from, target, path)?;
    }
    Ok(copier)
}

/// Counts the bytes that there are to copy, once somebody looks at the bar, until it `is_over`.
fn survey(
    images: &[Opened],
    sources: &[Place],
    options: &Options,
    bar: &Bar,
    is_over: &AtomicBool,
) {
    let is_over = || is_over.load(Ordering::Relaxed) || interrupt::requested();
    while !bar.is_visible() {
        if is_over() {
            return;
        }
        SystemClock.sleep(SURVEY_STEP);
    }
    let mut bytes = 0u64;
    let mut waiting: Vec<Node> =
        sources.iter().filter_map(|source| find(images, source, options.follow).ok()).collect();
    let depth_follows = options.follow == Follow::Always;
    // Links that lead in a circle end the count, not the copy.
    let mut entered = FxHashSet::default();
    while let Some(node) = waiting.pop() {
        if is_over() {
            return;
        }
        match node.about.kind {
            FileKind::Regular => bytes = bytes.saturating_add(node.about.stored_bytes),
            FileKind::Directory if options.recursive && entered.insert(node.about.id) => {
                let (names, _) = node.names();
                let children = names.iter().map(|name| node.child(name, depth_follows));
                waiting.extend(children.filter_map(Result::ok));
            }
            _ => {}
        }
    }
    bar.set_total(bytes);
}

/// Returns what was probably meant by a path of the host in a copy that has no image.
fn meant(path: &OsStr) -> Option<String> {
    let shown = escape(path.as_bytes());
    let is_image = || {
        let device = FileDevice::open_read_only(Path::new(path)).ok()?;
        let found = recognise_device(&device).ok().flatten()?;
        (found.class == Class::Ext).then_some(())
    };
    let hint = format!("{shown} is an image: paths in it are {shown}:/PATH");
    is_image().map(|()| hint).or_else(|| foreign::meant_path(path))
}

/// Looks a source up.
fn find(images: &[Opened], source: &Place, follow: Follow) -> Result<Node, Trouble> {
    let follow = follow != Follow::Never;
    match source.image.and_then(|at| Some((at, images.get(at)?))) {
        None => Node::on_host(source.path.clone(), follow),
        Some((at, image)) => {
            let inode = match follow {
                true => image.fs.resolve(&source.path)?,
                false => image.fs.resolve_link(&source.path)?,
            };
            Ok(Node::in_image(source.path.clone(), at, image.writable, inode))
        }
    }
}

/// Why `from` cannot be copied to the target: that is in it.
fn into_itself(images: &[Opened], source: &Place, target: &Place, from: &Node) -> Option<Failure> {
    if source.image != target.image || from.about.kind != extant::FileKind::Directory {
        return None;
    }
    let image = images.get(source.image?)?;
    let above = image.fs.canonicalize(&source.path).ok()?;
    let below = match image.fs.canonicalize(&target.path) {
        Ok(path) => path,
        Err(_) => join(&image.fs.canonicalize(parent(&target.path)).ok()?, b"new"),
    };
    let rest = below.strip_prefix(above.strip_suffix(b"/").unwrap_or(&above))?;
    // The same directory is another matter.
    (rest.len() > 1 && rest.first() == Some(&b'/')).then(|| {
        let to = label(Some(&image.name), &target.path);
        let from = label(Some(&image.name), &source.path);
        Failure::new(Exit::Refused, format!("{from}: it is not copied into itself, to {to}"))
    })
}

/// The directory that the last name of a path is in, for a path of the host too.
fn parent_of(path: &[u8]) -> Vec<u8> {
    let end = path.len() - path.iter().rev().take_while(|byte| **byte == b'/').count();
    match path[..end].iter().rposition(|byte| *byte == b'/') {
        Some(0) => b"/".to_vec(),
        Some(slash) => path[..slash].to_vec(),
        None => Vec::new(),
    }
}

/// Where the copies go.
enum Destination {
    /// This directory takes them in.
    Directory(Dir),
    /// A name in a directory, and its path. A link that was named has been followed.
    Name(Dir, Vec<u8>, Vec<u8>),
}

impl Destination {
    fn find(images: &[Opened], target: &Place, into: bool) -> Result<Destination> {
        match target.image.and_then(|at| Some((at, images.get(at)?))) {
            Some((at, image)) => Destination::in_image(at, image, &target.path, into),
            None => Destination::on_host(&target.path, into),
        }
    }

    fn in_image(at: usize, image: &Opened, path: &[u8], into: bool) -> Result<Destination> {
        let failed = |path: &[u8], error: FsError| crate::image::failure(&image.name, path, error);
        let is_own_name = !matches!(last_name(path), b"" | b"." | b"..");
        let mut path = path.to_vec();
        match image.fs.resolve(&path) {
            Ok(found) if found.is_dir() && (into || !is_own_name) => {
                return Ok(Destination::Directory(Dir::Image(at, found)));
            }
            Ok(found) if !found.is_dir() => {
                path = image.fs.canonicalize(&path).map_err(|error| failed(&path, error))?;
            }
            Ok(_) => {}
            Err(FsError::NotFound { .. }) => match image.fs.resolve_link(&path) {
                Ok(_) => return Err(dangling(label(Some(&image.name), &path))),
                Err(FsError::NotFound { .. }) if is_own_name => {}
                Err(error) => return Err(failed(&path, error)),
            },
            Err(error) => return Err(failed(&path, error)),
        }
        let above = parent(&path);
        let dir = image.fs.resolve(above).map_err(|error| failed(above, error))?;
        Ok(Destination::Name(Dir::Image(at, dir), last_name(&path).to_vec(), path))
    }

    fn on_host(path: &[u8], into: bool) -> Result<Destination> {
        let is_own_name = !matches!(last_name(path), b"" | b"." | b"..");
        let mut at = PathBuf::from(OsStr::from_bytes(path));
        match at.metadata() {
            Ok(meta) if meta.is_dir() && (into || !is_own_name) => {
                return Ok(Destination::Directory(Dir::Host(Arc::new(open_dir(&at)?))));
            }
            Ok(meta) if !meta.is_dir() => {
                at = at.canonicalize().map_err(|error| unreadable(path, &error))?;
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if at.symlink_metadata().is_ok() {
                    return Err(dangling(escape(path)));
                }
            }
            Err(error) => return Err(unreadable(path, &error)),
        }
        let path = at.into_os_string().into_vec();
        let above = parent_of(&path);
        let above = if above.is_empty() { b".".to_vec() } else { above };
        let dir = open_dir(Path::new(OsStr::from_bytes(&above)))?;
        Ok(Destination::Name(Dir::Host(Arc::new(dir)), last_name(&path).to_vec(), path))
    }
}

fn dangling(label: String) -> Failure {
    let message = format!("{label}: it is a symbolic link to nothing, and is not written through");
    Failure::new(Exit::Refused, message)
        .hint("give the file that is to be made, or remove the link")
}

fn unreadable(path: &[u8], error: &std::io::Error) -> Failure {
    Failure::caused(crate::fault::io_exit(error), &escape(path), error)
}
