//! Files of an image made on the host, by several threads.
//!
//! # Shape
//!
//! One thread walks the image, makes directories and what has several names, and hands out the rest
//! as jobs; every thread has a [`Worker`] and does jobs. A directory gets its attributes, times
//! among them, from whoever is done with it last: the walk and each job in it hold its [`Level`].

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant::{FileKind, Inode, Xattr};
use extant_sync::{Condvar, Mutex, Rank};
use rustix::fs::{self, AtFlags, Mode};
use rustix::io::Errno;

use crate::copying::content::{Content, Fault, Mover, Sink, Sparse};
use crate::copying::host::{self, Made, Omitted, create, make_dir, make_special};
use crate::copying::node::About;
use crate::copying::{Trouble, host as on_host};
use crate::exit::{Exit, Failure, Result};
use crate::fault::io_exit;
use crate::image::{Failures, Image};
use crate::interrupt;
use crate::output::report;
use crate::progress::Bar;
use crate::text::escape;

/// Files of that many bytes and more are made in parts, by all threads.
pub(crate) const LARGE_BYTES: u64 = 16 << 20;

/// Bytes of one part.
pub(crate) const PART_BYTES: u64 = 8 << 20;

/// A directory being filled.
pub(crate) struct Level {
    dir: OwnedFd,
    /// What its attributes come from, and its path; `None` if they are to stay.
    from: Option<(Inode, Vec<u8>)>,
}

impl Level {
    /// A directory that gets the attributes of `inode` when it is full.
    pub(crate) fn new(dir: OwnedFd, inode: Inode, path: Vec<u8>) -> Level {
        Level { dir, from: Some((inode, path)) }
    }

    /// A directory of the user's.
    pub(crate) fn unfinished(dir: OwnedFd) -> Level {
        Level { dir, from: None }
    }

    pub(crate) fn dir(&self) -> &OwnedFd {
        &self.dir
    }
}

/// A file that is made in parts. Whoever is done with it last gives it its size and attributes, or
/// removes it.
pub(crate) struct Large {
    sink: Sink,
    level: Arc<Level>,
    name: Vec<u8>,
    inode: Inode,
    pub(crate) path: Vec<u8>,
    failed: AtomicBool,
    turn: Turn,
}

/// Whose turn it is to write to a file. The kernel lets one write to a file at a time, and the others spin meanwhile,
/// on processors that threads of other files can use.
struct Turn {
    is_taken: Mutex<bool>,
    given_back: Condvar,
}

impl Turn {
    fn new() -> Turn {
        Turn { is_taken: Mutex::new(Rank::Leaf, false), given_back: Condvar::new() }
    }

    fn take<R>(&self, work: impl FnOnce() -> R) -> R {
        struct Taken<'a>(&'a Turn);
        impl Drop for Taken<'_> {
            fn drop(&mut self) {
                *self.0.is_taken.lock() = false;
                self.0.given_back.notify_one();
            }
        }
        let mut is_taken = self.is_taken.lock();
        while *is_taken {
            self.given_back.wait(&mut is_taken);
        }
        *is_taken = true;
        drop(is_taken);
        let _taken = Taken(self);
        work()
    }
}

impl Large {
    /// Ranges that together hold all that is stored in it, each with about `part_bytes` of that.
    /// What is a hole belongs to a range or to none: it costs nothing, however large.
    pub(crate) fn parts(&self, part_bytes: u64) -> Parts {
        Parts {
            part_bytes: part_bytes.max(1),
            content: Content::Image { inode: self.inode.clone(), writable: false },
            at: 0,
            size: self.inode.size(),
        }
    }

    /// Returns whether it has failed already; from now on, it has.
    pub(crate) fn fail(&self) -> bool {
        self.failed.swap(true, Ordering::Relaxed)
    }

    /// Some of it will be missing.
    pub(crate) fn give_up(file: &Arc<Large>) {
        file.failed.store(true, Ordering::Relaxed);
    }
}

/// See [`Large::parts`].
pub(crate) struct Parts {
    part_bytes: u64,
    content: Content,
    at: u64,
    size: u64,
}

impl Iterator for Parts {
    type Item = Result<Range<u64>, Trouble>;

    fn next(&mut self) -> Option<Result<Range<u64>, Trouble>> {
        let mut part: Option<Range<u64>> = None;
        let mut bytes = 0;
        while bytes < self.part_bytes && self.at < self.size {
            let data = match self.content.data(self.at..self.size) {
                Ok(Some(data)) => data,
                Ok(None) => {
                    self.at = self.size;
                    break;
                }
                Err(trouble) => {
                    self.at = self.size;
                    return Some(Err(trouble));
                }
            };
            let end = data.end.min(data.start.saturating_add(self.part_bytes - bytes));
            bytes += end - data.start;
            part.get_or_insert(data).end = end;
            self.at = end;
        }
        part.map(Ok)
    }
}

/// A file that is made at once.
pub(crate) struct Whole {
    pub(crate) level: Arc<Level>,
    pub(crate) name: Vec<u8>,
    pub(crate) inode: Inode,
    pub(crate) path: Vec<u8>,
}

/// What a thread does at a time.
pub(crate) enum Job {
    /// A file with all it has.
    File(Whole),
    /// Files of an image that is far away, whose contents are fetched together.
    Files(Vec<Whole>),
    /// A part of a file's contents.
    Part { file: Arc<Large>, range: Range<u64> },
}

/// What the threads share.
pub(crate) struct Shared<'a> {
    image: &'a Image,
    force: bool,
    privileged: bool,
    /// With no room left, every other file fails alike: nothing more is made.
    stop: AtomicBool,
    full: Mutex<Option<Failure>>,
    /// What happened to many files alike: what was tried, and the host's answer.
    alike: Mutex<Vec<Alike>>,
    bar: Bar,
}

/// Files that fared alike.
struct Alike {
    doing: &'static str,
    errno: Errno,
    count: u64,
    /// The first few.
    names: Vec<String>,
}

/// Files with one failure that are named; the others are counted.
const ALIKE_NAMED: usize = 5;

impl<'a> Shared<'a> {
    pub(crate) fn new(image: &'a Image, force: bool, privileged: bool, bar: Bar) -> Shared<'a> {
        let full = Mutex::new(Rank::Leaf, None);
        let alike = Mutex::new(Rank::Leaf, Vec::new());
        Shared { image, force, privileged, stop: AtomicBool::new(false), full, alike, bar }
    }

    /// Counts what the host refused for the file `label`. Whether it is to be named at once: what is
    /// in the way is said at the end, for all files; of the rest, the first few are named.
    fn count(&self, doing: &'static str, errno: Errno, label: &str) -> bool {
        let mut alike = self.alike.lock();
        let known = alike.iter().position(|alike| (alike.doing, alike.errno) == (doing, errno));
        let at = known.unwrap_or_else(|| {
            alike.push(Alike { doing, errno, count: 0, names: Vec::new() });
            alike.len() - 1
        });
        let Some(alike) = alike.get_mut(at) else { return true };
        alike.count += 1;
        if alike.names.len() < ALIKE_NAMED {
            alike.names.push(label.to_owned());
            return errno != Errno::EXIST;
        }
        false
    }

    /// Says how many files fared alike, where not each was named.
    pub(crate) fn summarise(&self, dest: &str) {
        for Alike { doing, errno, count, names } in self.alike.lock().drain(..) {
            let named = names.len() as u64;
            if errno == Errno::EXIST {
                let more = if count > named { ", …" } else { "" };
                let what = match count {
                    1 => "1 file exists there already and was left as it is".to_owned(),
                    count => format!("{count} files exist there already and were left as they are"),
                };
                let message = format!("{dest}: {what}: {}{more}", names.join(", "));
                let failure = Failure::new(Exit::Refused, message).on(dest);
                report(&failure.hint("--force replaces files that exist"));
            } else if count > named {
                let error = std::io::Error::from(errno);
                let message = format!("and {} more: cannot {doing}: {error}", count - named);
                report(&Failure::new(io_exit(&error), message).on(dest));
            }
        }
    }

    /// Why the rest was not made, if that is so.
    pub(crate) fn result(&self) -> Result<()> {
        self.full.lock().take().map_or(Ok(()), Err)
    }
}

/// One thread's part.
pub(crate) struct Worker<'a> {
    shared: &'a Shared<'a>,
    pub(crate) omitted: Omitted,
    pub(crate) failures: Failures,
    mover: Mover,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(shared: &'a Shared<'a>) -> Worker<'a> {
        let (omitted, failures) = (Omitted::default(), Failures::default());
        Worker { shared, omitted, failures, mover: Mover::new(&shared.bar) }
    }

    /// Adds what another thread counted.
    pub(crate) fn add(&mut self, other: Worker<'_>) {
        self.omitted.add(&other.omitted);
        self.failures.add(&other.failures);
    }

    /// Returns whether to leave the rest.
    pub(crate) fn stops(&self) -> bool {
        interrupt::requested() || self.shared.stop.load(Ordering::Relaxed)
    }

    /// Names what could not be done, and goes on.
    pub(crate) fn report(&mut self, path: &[u8], trouble: Trouble) {
        if interrupt::requested() {
            return; // That is what is reported.
        }
        let label = self.shared.image.label(path);
        let is_full = matches!(trouble, Trouble::Host(_, Errno::NOSPC | Errno::DQUOT));
        let named = match &trouble {
            Trouble::Host(doing, errno) if !is_full => self.shared.count(doing, *errno, &label),
            _ => true,
        };
        if !named {
            self.failures.count();
            return;
        }
        let failure = match trouble {
            Trouble::Host(doing, errno) => {
                let error = std::io::Error::from(errno);
                let what = format!("{label}: cannot {doing}");
                Failure::caused(io_exit(&error), &what, &error).on(label)
            }
            other => other.about(Some(&self.shared.image.name), path),
        };
        if is_full {
            self.shared.stop.store(true, Ordering::Relaxed);
            self.shared.full.lock().get_or_insert(failure);
            return;
        }
        self.failures.report(&failure);
    }

    pub(crate) fn run(&mut self, job: Job) {
        match job {
            Job::File(file) => self.whole(file),
            Job::Files(files) => {
                if !self.stops() {
                    let all = |file: &Whole| (file.inode.clone(), 0..file.inode.size());
                    let parts: Vec<_> = files.iter().map(all).collect();
                    self.shared.image.fs.bring_near(&parts);
                }
                for file in files {
                    self.whole(file);
                }
            }
            Job::Part { file, range } => {
                if !self.stops() {
                    self.shared.image.fs.bring_near(&[(file.inode.clone(), range.clone())]);
                }
                if self.stops() {
                    Large::give_up(&file);
                } else if let Err(trouble) = self.part(&file, range) {
                    // The first one is reported; the others are of the same file.
                    if !file.fail() {
                        self.report(&file.path, trouble);
                    }
                }
                self.end_large(file);
            }
        }
    }

    fn whole(&mut self, file: Whole) {
        let Whole { level, name, inode, path } = file;
        if !self.stops()
            && let Err(trouble) = self.file(&level.dir, &name, &inode, &path)
        {
            self.report(&path, trouble);
        }
        self.leave(level);
    }

    /// This thread is done with a directory. The last one sets its attributes.
    pub(crate) fn leave(&mut self, level: Arc<Level>) {
        if let Some(Level { dir, from: Some((inode, path)) }) = Arc::into_inner(level)
            && let Err(trouble) = self.attributes(&Made::Open(dir.as_fd()), &inode, &path)
        {
            self.report(&path, trouble);
        }
    }

    /// With `--force`, removes a file that is in the way.
    pub(crate) fn make_way(&self, dir: &OwnedFd, name: &[u8]) -> Result<(), Trouble> {
        if !self.shared.force {
            return Ok(());
        }
        match fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Trouble::Host("remove the file in its place", errno)),
        }
    }

    /// A file that is no directory, with its attributes.
    pub(crate) fn file(
        &mut self,
        dir: &OwnedFd,
        name: &[u8],
        inode: &Inode,
        path: &[u8],
    ) -> Result<(), Trouble> {
        let meta = inode.metadata();
        match meta.kind {
            FileKind::Regular => return self.regular(dir, name, inode, path),
            FileKind::Directory => return make_dir(dir, name).map(|_| ()),
            FileKind::Symlink => {
                let target = inode.read_link()?;
                self.make_way(dir, name)?;
                fs::symlinkat(target.as_slice(), dir, name).map_err(on_host("create"))?;
            }
            _ if meta.rdev.is_some() && !self.shared.privileged => {
                self.omitted.devices += 1;
                return Ok(());
            }
            kind => {
                self.make_way(dir, name)?;
                make_special(dir, name, kind, meta.rdev, Mode::from(0o600))?;
            }
        }
        self.attributes(&Made::Named(dir, name, meta.kind), inode, path)
    }

    fn regular(
        &mut self,
        dir: &OwnedFd,
        name: &[u8],
        inode: &Inode,
        path: &[u8],
    ) -> Result<(), Trouble> {
        self.make_way(dir, name)?;
        let sink = Sink::Host(create(dir, name, Mode::from(0o600))?);
        let content = Content::Image { inode: inode.clone(), writable: false };
        let copied = self.mover.copy(&content, &sink, Sparse::Auto);
        if let Err(fault) = copied {
            remove(dir, name);
            return Err(trouble_of(fault));
        }
        self.open_attributes(&sink, inode, path)
    }

    fn open_attributes(&mut self, sink: &Sink, inode: &Inode, path: &[u8]) -> Result<(), Trouble> {
        match sink {
            Sink::Host(file) => self.attributes(&Made::Open(file.as_fd()), inode, path),
            Sink::Image(_) => Ok(()),
        }
    }

    /// Makes a large file, empty.
    pub(crate) fn large(
        &mut self,
        level: &Arc<Level>,
        name: &[u8],
        inode: &Inode,
        path: &[u8],
    ) -> Result<Arc<Large>, Trouble> {
        self.make_way(&level.dir, name)?;
        let sink = Sink::Host(create(&level.dir, name, Mode::from(0o600))?);
        let (level, inode) = (Arc::clone(level), inode.clone());
        let (name, path, failed) = (name.to_vec(), path.to_vec(), AtomicBool::new(false));
        let turn = Turn::new();
        Ok(Arc::new(Large { sink, level, name, inode, path, failed, turn }))
    }

    fn part(&mut self, file: &Large, range: Range<u64>) -> Result<(), Trouble> {
        if file.failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let content = Content::Image { inode: file.inode.clone(), writable: false };
        let mover = &mut self.mover;
        let mut copy = || mover.copy_part(&content, &file.sink, Sparse::Auto, range.clone());
        // What is far away was fetched by now.
        let copied = match self.shared.image.fs.near_bytes() {
            0 => copy(),
            _ => file.turn.take(copy),
        };
        copied.map(drop).map_err(trouble_of)
    }

    /// This thread is done with a large file.
    pub(crate) fn end_large(&mut self, file: Arc<Large>) {
        let Some(file) = Arc::into_inner(file) else { return };
        let Large { sink, level, name, inode, path, failed, .. } = file;
        if failed.into_inner() {
            remove(&level.dir, &name);
        } else {
            let sized = sink.set_size(inode.size());
            if sized.is_err() {
                remove(&level.dir, &name);
            }
            if let Err(trouble) = sized.and_then(|()| self.open_attributes(&sink, &inode, &path)) {
                self.report(&path, trouble);
            }
        }
        self.leave(level);
    }

    /// Owner, extended attributes, mode and times, in the order in which none undoes another or keeps it from being
    /// set: a change of owner drops capabilities, and both change the mode.
    fn attributes(&mut self, made: &Made<'_>, inode: &Inode, path: &[u8]) -> Result<(), Trouble> {
        let about = About::in_image(0, &inode.metadata());
        if self.shared.privileged {
            made.set_owner(&about)?;
        } else {
            self.omitted.owner(&about);
        }
        let xattrs = inode.xattrs();
        if let Ok(xattrs) = &xattrs {
            self.xattrs(made, path, xattrs.iter().filter(|xattr| host::wants_write(&xattr.name)));
        }
        made.set_mode(host::allowed_mode(about.permissions, self.shared.privileged))?;
        let xattrs = xattrs?;
        self.xattrs(made, path, xattrs.iter().filter(|xattr| !host::wants_write(&xattr.name)));
        made.set_times(&about)
    }

    fn xattrs<'x>(
        &mut self,
        made: &Made<'_>,
        path: &[u8],
        xattrs: impl Iterator<Item = &'x Xattr>,
    ) {
        for xattr in xattrs {
            if !host::is_open_to_all(&xattr.name) && !self.shared.privileged {
                self.omitted.xattrs += 1;
                continue;
            }
            if let Err(errno) = made.set_xattr(&xattr.name, &xattr.value) {
                let label = self.shared.image.label(path);
                if !self.shared.count("set an extended attribute", errno, &label) {
                    self.failures.count();
                    continue;
                }
                let error = std::io::Error::from(errno);
                let what = format!("{label}: cannot set {}", escape(&xattr.name));
                self.failures.report(&Failure::caused(io_exit(&error), &what, &error).on(label));
            }
        }
    }
}

/// A file that looks whole and is not would be worse than none.
fn remove(dir: &OwnedFd, name: &[u8]) {
    // What went wrong before is what is reported.
    let _ = fs::unlinkat(dir, name, AtFlags::empty());
}

fn trouble_of(fault: Fault) -> Trouble {
    match fault {
        Fault::From(trouble) | Fault::To(trouble) => trouble,
        Fault::Half(fault) => trouble_of(*fault),
    }
}
