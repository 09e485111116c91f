//! `extant extract`: files of an image into a directory of the host.
//!
//! # Trust
//!
//! Names and links come from the image, so nothing is ever opened by path below the destination:
//! each directory is opened relative to its parent without following links, files are created
//! with `O_EXCL`, and attributes are set through the open file. A name that is already there as
//! something else is an error, never followed.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use extant::{FileKind, Inode, Mapping, MappingKind, WalkEntry};
use extant_sync::threads::{self, Sender, ThreadError, TrySendError};
use extant_sync::{Clock, SystemClock};
use rustc_hash::FxHashMap;
use rustix::fs::{self, CWD, Mode};
use rustix::io::Errno;

use crate::copying::Trouble;
use crate::copying::host::{link, make_dir, open_dir, raise_file_limit};
use crate::exit::{Exit, Failure, Result};
use crate::fault::io_exit;
use crate::image::{Image, ImageArgs};
use crate::interrupt;
use crate::place::is_address;
use crate::progress::Bar;
use crate::restore::{Job, LARGE_BYTES, Large, Level, PART_BYTES, Shared, Whole, Worker};
use crate::text::escape;

/// Files that wait for a thread; a directory stays open for each of them.
const QUEUE: usize = 256;

/// Most threads: more only wait for each other in the kernel.
const THREADS_MAX: usize = 8;

/// Bytes of an image that is far away that one thread fetches at a time: a request, less the pages that it begins and
/// ends in.
const FETCH_BYTES: u64 = (4 << 20) - (64 << 10);

/// Files of such an image that one thread makes together.
const TOGETHER_MAX: usize = 128;

/// Files that are collected and put in the order in which they lie, and their directories, which stay open meanwhile.
const COLLECTED_MAX: usize = 2048;
const COLLECTED_DIRS_MAX: usize = 256;

/// Their directories stay open, so fewer of those jobs wait.
const QUEUE_FAR: usize = 4;

/// How often it is asked whether the bar is there.
const SURVEY_STEP: Duration = Duration::from_millis(50);

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant extract root.img out/\n  extant extract root.img:/etc out/etc\n  extant extract root.img:/etc/passwd passwd\n  extant extract --no-same-owner root.img:/home home/\n";

/// Copy files out of an image
///
/// What is in a directory goes into DEST, which is created if it is missing; any other file becomes
/// DEST, or goes into it if DEST is a directory. Modes, times, hard links, holes and extended
/// attributes are restored; owners, devices and privileged attributes as root or with
/// --same-owner. Nothing outside DEST is touched, whatever the image holds.
///
/// Directories that exist in DEST are filled up and get the image's attributes. A file that exists
/// is an error, named, and the rest goes on (exit code 1); --force replaces it. A symbolic link in
/// DEST where the image has a directory is never followed.
#[derive(Args, Debug)]
pub(crate) struct ExtractArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Directory, or name of the file
    #[arg(value_name = "DEST", default_value = ".")]
    dest: PathBuf,
    /// Replace files that exist
    #[arg(long, short = 'F')]
    force: bool,
    /// Restore owners, devices and privileged attributes; the default for root
    #[arg(long, overrides_with = "no_same_owner")]
    same_owner: bool,
    /// Leave them to the user who runs this; the default for everyone else
    #[arg(long)]
    no_same_owner: bool,
    /// Print nothing but errors
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// Makes what the walk finds. Contents of files are left to whichever thread is free.
struct Extractor<'a> {
    image: &'a Image,
    worker: Worker<'a>,
    jobs: Sender<Job>,
    /// Where inodes with several names were put first: names below the destination.
    links: FxHashMap<u32, Vec<Vec<u8>>>,
    /// Bytes that are fetched at a time; 0 for an image that is at hand.
    far: u64,
    /// Files that are not given to a thread yet, each with where it lies, and how many directories they are in.
    collected: Vec<(u64, Whole)>,
    collected_dirs: usize,
}

/// Runs the command.
pub(crate) fn run(args: &ExtractArgs) -> Result<Exit> {
    let image = args.image.open()?;
    let inode = image.resolve_link()?;
    interrupt::listen()?;
    raise_file_limit();
    let is_root = rustix::process::geteuid().is_root();
    let privileged = args.same_owner || (is_root && !args.no_same_owner);
    let bar = Bar::new(!args.quiet);
    let shared = Shared::new(&image, args.force, privileged, bar.clone());
    let surveyed = AtomicBool::new(false);
    let surveyed = &surveyed;
    // What the threads fetch at the same time has to be kept until it is read.
    let far = (image.fs.near_bytes() / THREADS_MAX as u64).min(FETCH_BYTES);
    let (sender, receiver) = threads::channel(if far > 0 { QUEUE_FAR } else { QUEUE });
    let receiver = &receiver;
    let shared = &shared;
    let worker = threads::scope(|scope| {
        let mut threads = Vec::new();
        // Behind a server they wait for answers most of the time, and not for processors.
        let count = match far > 0 || is_address(Path::new(&image.name)) {
            true => THREADS_MAX,
            false => threads::available().min(THREADS_MAX),
        };
        for number in 1..count {
            threads.push(scope.spawn_apart(&format!("extract-{number}"), number, move || {
                let mut worker = Worker::new(shared);
                while let Ok(job) = receiver.recv() {
                    worker.run(job);
                }
                worker
            })?);
        }
        if bar.is_wanted() {
            let (image, bar) = (&image, bar.clone());
            threads.push(scope.spawn("extract-survey", move || {
                survey(image, &bar, surveyed);
                Worker::new(shared)
            })?);
        }
        let mut extractor = Extractor {
            image: &image,
            worker: Worker::new(shared),
            jobs: sender,
            links: FxHashMap::default(),
            far,
            collected: Vec::new(),
            collected_dirs: 0,
        };
        let result = match inode.is_dir() {
            true => extractor.tree(&args.dest),
            false => extractor.single(&inode, &args.dest),
        };
        extractor.give_collected();
        let Extractor { mut worker, jobs, .. } = extractor;
        // The others end when the queue is empty.
        drop(jobs);
        while let Ok(job) = receiver.recv() {
            worker.run(job);
        }
        surveyed.store(true, Ordering::Relaxed);
        for thread in threads {
            worker.add(thread.join()?);
        }
        Ok::<_, ThreadError>((worker, result))
    });
    let (worker, result) = worker
        .map_err(ThreadError::from)
        .and_then(|result| result)
        .map_err(|error| Failure::caused(Exit::Internal, "", &error))?;
    bar.end();
    result?;
    let dest = escape(args.dest.as_os_str().as_bytes());
    shared.summarise(&dest);
    if interrupt::requested() {
        return Err(interrupted(&args.dest));
    }
    shared.result().map_err(|full| {
        full.hint(format!(
            "make room on the disk that holds {dest}, or give a directory on another, and run it again; --force replaces \
             what is there already"
        ))
    })?;
    if !args.quiet {
        worker.omitted.note();
    }
    Ok(worker.failures.exit())
}

impl Extractor<'_> {
    /// Lets a thread that is free do `job`; this one, if none is.
    fn give(&mut self, job: Job) {
        match self.jobs.try_send(job) {
            Ok(()) => {}
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => self.worker.run(job),
        }
    }

    /// Keeps a file for later: what is fetched together should lie together.
    fn collect(&mut self, file: Whole) {
        let is_other = |(_, last): &(u64, Whole)| !Arc::ptr_eq(&last.level, &file.level);
        self.collected_dirs += usize::from(self.collected.last().is_none_or(is_other));
        let first = file.inode.map(0..1).next();
        let place = match first {
            Some(Ok(Mapping { kind: MappingKind::Mapped(start), .. })) => start.0,
            // It lies in its inode, or nowhere, or whoever reads it says why not.
            _ => 0,
        };
        self.collected.push((place, file));
        if self.collected.len() >= COLLECTED_MAX || self.collected_dirs >= COLLECTED_DIRS_MAX {
            self.give_collected();
        }
    }

    /// Gives the threads what was collected, in the order in which it lies, in pieces that are worth a request.
    fn give_collected(&mut self) {
        self.collected_dirs = 0;
        let mut all = std::mem::take(&mut self.collected);
        all.sort_by_key(|(place, _)| *place);
        let (mut piece, mut bytes) = (Vec::new(), 0u64);
        for (_, file) in all {
            let size = if file.inode.is_file() { file.inode.size() } else { 0 };
            let is_full = bytes.saturating_add(size) > self.far || piece.len() >= TOGETHER_MAX;
            if is_full && !piece.is_empty() {
                self.give(Job::Files(std::mem::take(&mut piece)));
                bytes = 0;
            }
            bytes = bytes.saturating_add(size);
            piece.push(file);
        }
        if !piece.is_empty() {
            self.give(Job::Files(piece));
        }
    }

    /// One file that is no directory.
    fn single(&mut self, inode: &Inode, dest: &Path) -> Result<()> {
        let own_name = self.image.path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
        let own_name = own_name.unwrap_or(b"file").to_vec();
        let (dir, name) = if dest.is_dir() {
            (dest.to_owned(), own_name)
        } else {
            let parent = dest.parent().filter(|parent| !parent.as_os_str().is_empty());
            let name = dest.file_name().map(OsStrExt::as_bytes).map(<[u8]>::to_vec);
            let name =
                name.ok_or_else(|| Failure::usage(format!("{}: no name", dest.display())))?;
            (parent.unwrap_or(Path::new(".")).to_owned(), name)
        };
        let dir = Level::unfinished(open_dir(&dir)?);
        let path = self.image.path.clone();
        self.file(&Arc::new(dir), &name, inode, &path);
        Ok(())
    }

    /// Everything in the directory asked for.
    fn tree(&mut self, dest: &Path) -> Result<()> {
        if let Err(errno) = fs::mkdirat(CWD, dest, Mode::from(0o700))
            && errno != Errno::EXIST
        {
            let error = std::io::Error::from(errno);
            let what = format!("cannot create {}", dest.display());
            return Err(Failure::caused(io_exit(&error), &what, &error));
        }
        let root = open_dir(dest)?;
        let start = self.image.path.clone();
        let walk = self.image.fs.walk(&start).map_err(|e| self.image.failure(&start, e))?;
        let mut levels: Vec<Arc<Level>> = Vec::new();
        // A directory that could not be made: what is in it is passed over.
        let mut skipped: Option<usize> = None;
        // As it was built, as often as not: what has names beside each other lies together.
        for item in walk.sorted(self.far > 0) {
            if self.worker.stops() {
                // What comes after stays away; the caller says why.
                break;
            }
            let found = match item {
                Ok(found) => found,
                Err(error) => {
                    self.worker.report(&error.path, Trouble::Fs(error.error));
                    continue;
                }
            };
            let depth = found.depth();
            if skipped.is_some_and(|above| depth > above) {
                continue;
            }
            skipped = None;
            while levels.len() > depth {
                self.leave(levels.pop());
            }
            match self.entry(&root, &levels, &found) {
                Ok(Some(dir)) => {
                    let (inode, path) = (found.inode().clone(), found.path().to_vec());
                    levels.push(Arc::new(Level::new(dir, inode, path)));
                }
                Ok(None) => {}
                Err(trouble) => {
                    if found.inode().is_dir() {
                        skipped = Some(depth);
                    }
                    self.worker.report(found.path(), trouble);
                }
            }
        }
        while let Some(level) = levels.pop() {
            self.leave(Some(level));
        }
        Ok(())
    }

    /// A directory gets no more entries from here.
    fn leave(&mut self, level: Option<Arc<Level>>) {
        if let Some(level) = level {
            self.worker.leave(level);
        }
    }

    /// Makes what the walk found; gives back an open directory if it is one.
    fn entry(
        &mut self,
        root: &OwnedFd,
        levels: &[Arc<Level>],
        found: &WalkEntry,
    ) -> Result<Option<OwnedFd>, Trouble> {
        let inode = found.inode();
        let Some(parent) = levels.last() else {
            // The start itself: the destination.
            return root.try_clone().map(Some).map_err(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Trouble::Host("open the destination", errno)
            });
        };
        let name = found.name();
        if inode.is_dir() {
            return make_dir(parent.dir(), name).map(Some);
        }
        let meta = inode.metadata();
        if meta.links <= 1 {
            self.file(parent, name, inode, found.path());
            return Ok(None);
        }
        // The other names need this one: it is made now.
        let names: Vec<Vec<u8>> = found.path()[self.image.path.len()..]
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
        if let Some(first) = self.links.get(&meta.ino.0) {
            self.worker.make_way(parent.dir(), name)?;
            return link(root, first, parent.dir(), name).map(|()| None);
        }
        self.worker.file(parent.dir(), name, inode, found.path())?;
        self.links.insert(meta.ino.0, names);
        Ok(None)
    }

    /// A file with one name. Large ones are made in parts.
    fn file(&mut self, level: &Arc<Level>, name: &[u8], inode: &Inode, path: &[u8]) {
        let size = inode.size();
        let large = if self.far > 0 { self.far } else { LARGE_BYTES };
        if !inode.is_file() || size < large {
            let level = Arc::clone(level);
            let (name, path) = (name.to_vec(), path.to_vec());
            let whole = Whole { level, name, inode: inode.clone(), path };
            match self.far {
                0 => self.give(Job::File(whole)),
                _ => self.collect(whole),
            }
            return;
        }
        // Parts of one size: a short one at the end would cost a request as well.
        let part_bytes = match self.far {
            0 => PART_BYTES,
            far => size.div_ceil(size.div_ceil(far)),
        };
        match self.worker.large(level, name, inode, path) {
            Ok(file) => {
                for part in file.parts(part_bytes) {
                    match part {
                        _ if self.worker.stops() => {
                            Large::give_up(&file);
                            break;
                        }
                        Ok(range) => self.give(Job::Part { file: Arc::clone(&file), range }),
                        Err(trouble) => {
                            if !file.fail() {
                                self.worker.report(path, trouble);
                            }
                        }
                    }
                }
                self.worker.end_large(file);
            }
            Err(trouble) => self.worker.report(path, trouble),
        }
    }
}

/// Counts the bytes that there are to extract, once somebody looks at the bar, until `done`.
fn survey(image: &Image, bar: &Bar, done: &AtomicBool) {
    let is_over = || done.load(Ordering::Relaxed) || interrupt::requested();
    while !bar.is_visible() {
        if is_over() {
            return;
        }
        SystemClock.sleep(SURVEY_STEP);
    }
    let Ok(walk) = image.fs.walk(&image.path) else { return };
    let mut bytes = 0u64;
    for entry in walk.flatten() {
        if is_over() {
            return;
        }
        let meta = entry.inode().metadata();
        if meta.kind == FileKind::Regular {
            // What cannot be read is no news here; names after the first are counted too.
            bytes = bytes.saturating_add(meta.size.min(meta.blocks.saturating_mul(512)));
        }
    }
    bar.set_total(bytes);
}

/// Returns what a signal leaves behind.
fn interrupted(dest: &Path) -> Failure {
    let dest = dest.display();
    Failure::new(Exit::Interrupted, format!("interrupted; {dest} holds what was restored so far"))
        .on(dest.to_string())
}
