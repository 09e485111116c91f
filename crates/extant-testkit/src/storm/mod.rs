//! Many threads do everything to a few shared names, while the background writes, commits and
//! evicts; afterwards every byte must be one that was written to that file.
//!
//! # Shape
//!
//! ```text
//! run       one round: threads on a Target, and what must hold when they have ended
//! thread    what one thread does, from a seed
//! book      who wrote what where: each unit of 512 bytes says so itself
//! system    a Target by system calls: a mount, or the kernel's own file system
//! layouts   file systems of every shape to storm
//! ```
//!
//! # What is checked
//!
//! - No operation fails but for reasons that other threads or a full disk may give.
//! - A unit read at any time is zero, or was written to this file (or to one that it was copied from).
//! - In the end it is what the last write left there, or one of those that ran at the same time
//!   (`book`, K2).
//! - Logs that only one thread appends to are whole.
//!
//! A round is repeatable by its seed as far as threads are: each does the same operations, and how they
//! meet is the machine's.

pub mod book;
pub mod layouts;
pub mod system;
mod thread;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant_sync::threads::scope;
use extant_sync::{Clock, SystemClock};

use book::Book;
use thread::Actor;

/// Directories that everything happens in.
pub const DIRS: u8 = 3;
/// Shared names in each.
pub const NAMES: u8 = 8;
/// Files are not written at or behind this byte.
pub const FILE_BYTES: u64 = 1 << 20;
/// Shortest range that can be taken out of or put into a file of any layout: a cluster.
pub const SHIFT_BYTES: u64 = 64 << 10;

/// A name: `d0/f0`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Below [`DIRS`].
    pub dir: u8,
    /// Below [`NAMES`]; from there on, the log of a thread.
    pub name: u8,
}

impl Place {
    /// Name of the directory.
    pub fn dir_name(self) -> String {
        format!("d{}", self.dir)
    }

    /// Name in it.
    pub fn file_name(self) -> String {
        if self.name < NAMES { format!("f{}", self.name) } else { format!("log{}", self.name) }
    }
}

/// Which way bytes take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Through the cache.
    Cached,
    /// Past it.
    Direct,
    /// Through memory that shows the file.
    Mapped,
}

/// What is done to space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// Allocated; what is there stays.
    Allocate {
        /// Also behind the end.
        keep_size: bool,
    },
    /// Taken away.
    Punch,
    /// Zero, and allocated.
    Zero {
        /// Also behind the end.
        keep_size: bool,
    },
    /// Taken out of the file.
    Collapse,
    /// Put into the file.
    Insert,
}

/// How a name is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renaming {
    /// Over what has it.
    Over,
    /// Only if nothing has it.
    NoReplace,
    /// Both change places.
    Exchange,
}

/// What an operation returns: a number of the system's errors, or what was asked for.
pub type Answer<T> = Result<T, i32>;

/// A file system under storm. Errors are numbers as of Linux.
pub trait Target: Sync {
    /// An open file.
    type File: Send;

    /// Returns whether a cached write shows whole or not at all to readers at the same time.
    fn is_atomic(&self) -> bool;
    /// Opens a file for reading and writing, made if it is not there.
    fn create(&self, at: Place, exclusive: bool) -> Answer<Self::File>;
    /// Opens a file for reading and writing.
    fn open(&self, at: Place) -> Answer<Self::File>;
    /// Makes a file without a name.
    fn tmpfile(&self, dir: u8) -> Answer<Self::File>;
    /// Returns what no other file has, now or later, as far as the layout allows.
    fn identity(&self, file: &Self::File) -> Answer<u64>;
    /// Reads.
    fn read(&self, file: &Self::File, at: u64, out: &mut [u8], way: Way) -> Answer<usize>;
    /// Writes all or fails; what is written when it fails is not known.
    fn write(&self, file: &Self::File, at: u64, bytes: &[u8], way: Way) -> Answer<()>;
    /// Writes at the end, and says where that was.
    fn append(&self, file: &Self::File, bytes: &[u8]) -> Answer<u64>;
    /// Bytes of the file.
    fn size(&self, file: &Self::File) -> Answer<u64>;
    /// Sets them.
    fn truncate(&self, file: &Self::File, size: u64) -> Answer<()>;
    /// Changes space.
    fn space(&self, file: &Self::File, what: Space, range: Range<u64>) -> Answer<()>;
    /// Copies bytes between files; how many.
    fn copy(
        &self,
        from: &Self::File,
        at: u64,
        to: &Self::File,
        to_at: u64,
        len: u64,
    ) -> Answer<u64>;
    /// Makes a file durable.
    fn sync(&self, file: &Self::File, data_only: bool) -> Answer<()>;
    /// Makes everything durable.
    fn sync_all(&self) -> Answer<()>;
    /// Gives a file another name.
    fn link(&self, file: &Self::File, to: Place) -> Answer<()>;
    /// Removes a name.
    fn unlink(&self, at: Place) -> Answer<()>;
    /// Moves a name.
    fn rename(&self, from: Place, to: Place, how: Renaming) -> Answer<()>;
    /// Makes a symbolic link.
    fn symlink(&self, at: Place, target: &str) -> Answer<()>;
    /// Makes a directory.
    fn mkdir(&self, at: Place) -> Answer<()>;
    /// Removes one.
    fn rmdir(&self, at: Place) -> Answer<()>;
    /// Sets an extended attribute.
    fn set_xattr(&self, file: &Self::File, name: &str, value: &[u8]) -> Answer<()>;
    /// Removes one.
    fn remove_xattr(&self, file: &Self::File, name: &str) -> Answer<()>;
    /// Sets mode and times.
    fn attributes(&self, file: &Self::File, mode: u16) -> Answer<()>;
    /// Looks at a name, and lists its directory.
    fn look(&self, at: Place) -> Answer<()>;
    /// Something that the background does from time to time, done now.
    fn disturb(&self, random: u64) -> Answer<()>;
}

/// What a round is.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    /// What all threads' operations follow from.
    pub seed: u64,
    /// How many.
    pub threads: usize,
    /// How long.
    pub time: Duration,
    /// Whether files are moved in parts (collapse, insert).
    pub shifts: bool,
    /// Whether most reads and writes go past the cache.
    pub directs: bool,
    /// Whether errors of any kind may come: devices fail, or the mount ends meanwhile.
    pub may_fail: bool,
}

/// What one thread wrote to its own log, and what of it is durable.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Where it is; `None` when it could not be made.
    pub place: Option<Place>,
    /// Bytes that were written.
    pub bytes: u64,
    /// The write behind them failed: some of it may be there.
    pub is_cut: bool,
    /// Bytes that a sync returned for, and what the clock of the device said when it did.
    pub durable: Vec<(u64, u64)>,
}

/// A round that has ended: what is known of its files.
pub struct Round {
    /// The writes.
    pub book: Book,
    /// Of each thread.
    pub logs: Vec<Log>,
    /// Operations that succeeded.
    pub done: u64,
    /// Operations that failed for reasons that may be.
    pub refused: u64,
}

/// Runs one round. `meanwhile` runs beside the threads; when it returns early the storm goes on.
/// `moment` is asked for what the clock of the device says.
///
/// # Errors
///
/// What was wrong, with the thread that saw it.
pub fn run<T: Target>(
    storm: &Storm,
    target: &T,
    moment: &(dyn Fn() -> u64 + Sync),
    meanwhile: impl FnOnce() + Send,
) -> Result<Round, String> {
    let book = Book::new(storm.seed);
    let stop = AtomicBool::new(false);
    let (done, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let ended = scope(|threads| {
        let (book, stop, done, refused) = (&book, &stop, &done, &refused);
        let work = |number: usize| {
            move || {
                let mut actor = Actor::new(storm, target, book, number, moment);
                let start = SystemClock.monotonic();
                let mut result = Ok(());
                while result.is_ok()
                    && !stop.load(Ordering::Relaxed)
                    && SystemClock.monotonic() - start < storm.time
                {
                    result = actor.step();
                }
                if result.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                done.fetch_add(actor.done, Ordering::Relaxed);
                refused.fetch_add(actor.refused, Ordering::Relaxed);
                let log = actor.finish();
                result.map(|()| log)
            }
        };
        let running: Vec<_> = (0..storm.threads)
            .map(|number| threads.spawn(&format!("storm-{number}"), work(number)))
            .collect();
        meanwhile();
        let mut logs = Vec::new();
        for thread in running {
            let thread = thread.map_err(|error| error.to_string())?;
            logs.push(thread.join().map_err(|panic| panic.to_string())??);
        }
        Ok::<_, String>(logs)
    });
    let logs = ended.map_err(|panic| panic.to_string())??;
    let (done, refused) = (done.into_inner(), refused.into_inner());
    Ok(Round { book, logs, done, refused })
}

impl Round {
    /// What every file has is what the threads left there. Nobody changes anything meanwhile.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn verify<T: Target>(&self, target: &T) -> Result<u64, String> {
        let units = self.verify_with(target, book::Care::Last)?;
        for log in &self.logs {
            if let Some(at) = log.place {
                self.verify_log(target, at, log.bytes, !log.is_cut)?;
            }
        }
        Ok(units)
    }

    /// The shared files, looked at more or less closely; how many units they have.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn verify_with<T: Target>(&self, target: &T, care: book::Care) -> Result<u64, String> {
        let mut units = 0;
        for dir in 0..DIRS {
            for name in 0..NAMES {
                let at = Place { dir, name };
                match target.open(at) {
                    Ok(file) => units += self.verify_file(target, &file, at, care)?,
                    // Missing, a directory, a link.
                    Err(book::ENOENT | book::EISDIR | book::ELOOP | book::EINVAL) => {}
                    Err(errno) => return Err(format!("{at:?}: opening: error {errno}")),
                }
            }
        }
        Ok(units)
    }

    fn verify_file<T: Target>(
        &self,
        target: &T,
        file: &T::File,
        at: Place,
        care: book::Care,
    ) -> Result<u64, String> {
        let fail = |errno| format!("{at:?}: error {errno}");
        let id = target.identity(file).map_err(fail)?;
        let size = target.size(file).map_err(fail)?;
        let mut bytes = vec![0; 256 << 10];
        let mut offset = 0;
        while offset < size {
            let got = target.read(file, offset, &mut bytes, Way::Cached).map_err(fail)?;
            if got == 0 {
                return Err(format!("{at:?}: ends at {offset} of {size}"));
            }
            self.book
                .check(id, offset, &bytes[..got], care)
                .map_err(|what| format!("{at:?}, file {id:x} of {size} bytes: {what}"))?;
            offset += got as u64;
        }
        Ok(size / book::UNIT)
    }

    /// The log at `at` has at least `bytes`, all as its thread wrote them; exactly those if `all`.
    ///
    /// # Errors
    ///
    /// What is different.
    pub fn verify_log<T: Target>(
        &self,
        target: &T,
        at: Place,
        bytes: u64,
        all: bool,
    ) -> Result<(), String> {
        let fail = |errno| format!("log {at:?}: error {errno}, {bytes} bytes expected");
        if bytes == 0 {
            return Ok(());
        }
        let file = target.open(at).map_err(fail)?;
        let size = target.size(&file).map_err(fail)?;
        if size < bytes || (all && size != bytes) {
            return Err(format!("log {at:?}: {size} bytes, not {bytes}"));
        }
        let mut found = vec![0; bytes as usize];
        let mut got = 0;
        while got < found.len() {
            match target.read(&file, got as u64, &mut found[got..], Way::Cached).map_err(fail)? {
                0 => return Err(format!("log {at:?}: ends at {got} of {bytes}")),
                more => got += more,
            }
        }
        self.book.check_log(at.name, &found).map_err(|what| format!("log {at:?}: {what}"))
    }
}
