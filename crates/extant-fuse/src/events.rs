//! The owner of a mount: the events that it receives and the requests that it serves.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use extant::Fs;
use extant_sync::threads::{self, ThreadError};

use crate::abi;
use crate::argument::Argument;

/// The owner of a mount, which receives its events.
pub trait Events: Send + Sync {
    /// The file system can be used.
    fn ready(&self);

    /// Said before [`ready`](Self::ready): how to end the mount without unmounting it.
    fn connected(&self, brake: Brake) {
        let _ = brake;
    }

    /// Returns the user of thread `thread`, which waits for an answer. Called when the kernel does
    /// not give the user.
    fn user_of(&self, thread: u32) -> Option<u32> {
        let _ = thread;
        None
    }

    /// Somebody wants to hear how the mount ended, at the socket with the name `path`.
    fn tell_at_end(&self, path: &str) {
        let _ = path;
    }

    /// Makes the kernel send the dirty data of all files, in large pieces, by a call of `syncfs`
    /// from another process. Returns whether all of it was answered when this returns.
    fn hand_over_writes(&self) -> bool {
        false
    }

    /// Opens the file system for writing, which was mounted for reading
    /// ([`Settings::may_become_writable`](crate::Settings::may_become_writable)). No request is being answered meanwhile.
    ///
    /// # Errors
    ///
    /// [`NotWritable`].
    fn open_for_writing(&self) -> Result<Fs, Box<NotWritable>> {
        let (why, instead) = ("it was mounted for reading".to_owned(), None);
        Err(Box::new(NotWritable { why, instead }))
    }

    /// Something for the log.
    fn log(&self, level: Level, text: &str);

    /// Reads bytes of the argument of a control operation in which a thread of some program waits:
    /// [`Argument::read`] by a process that may look. Asked when the server may not.
    fn read_argument(&self, argument: Argument, bytes: Range<u32>) -> Option<Vec<u8>> {
        let _ = (argument, bytes);
        None
    }

    /// Writes bytes of such an argument: [`Argument::write`]. Returns whether that was done.
    fn write_argument(&self, argument: Argument, bytes: &[u8]) -> bool {
        let _ = (argument, bytes);
        false
    }
}

/// The reason why what was mounted for reading did not become writable.
#[derive(Debug)]
pub struct NotWritable {
    /// The reason, in words.
    pub why: String,
    /// The file system, opened for reading again: the failed attempt may have written something,
    /// such as the replayed journal, which the served file system reads through. `None` when
    /// nothing was written.
    pub instead: Option<Fs>,
}

/// The weight of a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Data may be at risk, or a request failed for a reason that is not the caller's.
    Error,
    /// Something is not as good as it could be.
    Warning,
    /// Progress.
    Info,
}

/// The reason why a mount ended other than by unmounting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The connection to the kernel failed.
    #[error("the connection to the kernel failed: {0}")]
    Connection(#[from] io::Error),
    /// The kernel speaks another protocol.
    #[error("the kernel speaks FUSE {major}.{minor}; this needs 7.{} or newer", abi::OLDEST_MINOR)]
    Protocol {
        /// The major version of the protocol.
        major: u32,
        /// The minor version of the protocol.
        minor: u32,
    },
    /// Rings were asked for, and this mount gets none.
    #[error("requests cannot come over io_uring: {0}")]
    NoRing(String),
    /// Idmapped mounts were asked for.
    #[error("this kernel makes no idmapped mounts of FUSE: Linux 6.12 does")]
    NoIdmappedMounts,
    /// A thread could not be started, or ended by a bug of this crate.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The file system could not be ended cleanly: the next mount replays the journal.
    #[error("ending the file system: {0}")]
    End(#[from] extant::FsError),
}

impl From<threads::WorkerPanic> for ServeError {
    fn from(panic: threads::WorkerPanic) -> ServeError {
        ServeError::Thread(panic.into())
    }
}

/// Brings a mount to rest, for a server that may not unmount it. After that its file system can be
/// ended although programs have files open; they get errors when the connection is closed.
#[derive(Clone)]
pub struct Brake(Arc<dyn Halt>);

/// The way to bring a mount to rest: see [`Brake`].
pub(crate) trait Halt: Send + Sync {
    /// As [`Brake::pull`].
    fn pull(&self);

    /// As [`Brake::end`].
    fn end(&self) -> extant::Result<()>;
}

impl Brake {
    pub(crate) fn new(halt: impl Halt + 'static) -> Brake {
        Brake(Arc::new(halt))
    }

    /// Makes the kernel send the dirty data of files, then waits for the changes under way, and
    /// lets no other one begin, for good. The threads of the server continue meanwhile and answer
    /// requests that change nothing.
    ///
    /// Data that a program writes into the kernel's cache after its file was handed over is lost
    /// with the connection.
    pub fn pull(&self) {
        self.0.pull();
    }

    /// Brings the mount to rest and ends its file system: everything is written and the image is
    /// clean. Open files of programs are unusable after that.
    ///
    /// # Errors
    ///
    /// As [`Fs::unmount`](extant::Fs::unmount). If the file system was being ended already, this
    /// waits for the end, and the other caller gets the result.
    pub fn end(&self) -> extant::Result<()> {
        self.0.end()
    }
}

impl fmt::Debug for Brake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Brake").finish_non_exhaustive()
    }
}
