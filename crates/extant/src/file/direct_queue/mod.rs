//! Batches of direct reads and writes: many under way at once from one thread.
//!
//! # Rules
//!
//! - J1. The content lock is held, shared, while places are looked up in the map; afterwards each
//!   operation is [under way](crate::node::Content::under_way) with its range, so that who moves or
//!   frees these blocks waits for it: until it has ended, or until its first data is published (J5).
//!   While anything is under way, the lock is only tried; if it is not free, or somebody waits for
//!   it, nothing more is started before everything has ended.
//! - J2. The thread that submits the batch completes it. No completion depends on another thread,
//!   and of the caller's code only what makes requests and takes results runs meanwhile, which must
//!   not use the file system, so a thread cannot wait for itself.
//! - J3. Requests that are not a single device operation are done afterwards, one by one, as by
//!   [`DirectFile::read_at`] and [`DirectFile::write_at`], which also report what is wrong with
//!   them.
//! - J4. Whoever writes first data to unwritten blocks, or to new ones, holds their range until it is
//!   published. A request for blocks that another writer has is done afterwards, because whoever
//!   waited for a range here might wait for a thread that waits for the batch.
//! - J5. Unwritten blocks become written, and new ones come into the map, once the device has
//!   completed the whole batch, only for the writes that succeeded, and before their results are
//!   returned.

mod drive;
mod flyer;

use std::fmt;
use std::ops::Range;

use extant_block::{AlignedBuffer, Engine, Operation, Queue, QueueOptions};
use extant_iomap::Mapper;

use self::drive::{Batch, Flight, Flying, is_late};
use self::flyer::{Flyer, Unchanging};
use super::direct_file::DirectFile;
use super::{FileMapper, WriteBy, check_changeable};
use crate::error::Result;

/// Requests of one batch of a stream, for each that can be under way.
const STREAM_TURNS: usize = 64;
/// Requests of one batch of a stream, at least.
const STREAM_LEAST: usize = 1024;

/// Direction of a direct request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DirectKind {
    /// Reads from the file into the buffer.
    Read,
    /// Writes the buffer to the file.
    Write {
        /// Whether the bytes are durable when the request is done (`O_DSYNC`).
        synced: bool,
    },
}

/// A direct read or write, with its buffer.
#[derive(Debug)]
pub struct DirectRequest {
    /// Direction of the request.
    pub kind: DirectKind,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// The buffer; its length is the length of the request.
    pub buffer: AlignedBuffer,
}

/// Outcome of a direct request.
#[derive(Debug)]
pub struct DirectDone {
    /// The request, with its buffer.
    pub request: DirectRequest,
    /// Number of bytes read or written, or the error, as of [`DirectFile::read_at`] and
    /// [`DirectFile::write_at`].
    pub result: Result<usize>,
}

/// A queue of direct reads and writes for one thread, from [`DirectFile::queue`].
///
/// Simple requests of a batch go to the device's queue together, up to its depth: reads, writes
/// over blocks that have data, and first writes to whole blocks that are preallocated, lie in a hole
/// or behind the end of the file. Nothing is handed to another thread, and the content lock is
/// shared. Only first writes need journal handles: a few for the whole batch, once the data is on
/// the device, and the file grows then. Other requests (ranges that are cached or in several pieces,
/// parts of blocks without data) are done afterwards, one by one; `CacheStats::direct_queued` counts
/// the simple ones.
///
/// Requests of one batch are not ordered: of two writes that overlap either may be last.
///
/// # Example
///
/// ```
/// use extant::{AlignedBuffer, DirectKind, DirectRequest, MountOptions, NewInode, QueueOptions};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("image");
/// # let made = std::process::Command::new("mke2fs")
/// #     .args(["-q", "-t", "ext4"]).arg(&path).arg("16M").status();
/// # if !made.is_ok_and(|status| status.success()) { return Ok(()); }
/// let fs = MountOptions::new().read_only(false).open_path(&path)?;
/// let file = fs.root()?.create("disk", &NewInode::root(0o644))?.direct()?;
/// file.write_at(&AlignedBuffer::zeroed(64 << 12), 0)?;
/// let mut queue = file.queue(&QueueOptions::default().depth(64));
/// let read = |block: u64| DirectRequest {
///     kind: DirectKind::Read,
///     offset: block << 12,
///     buffer: AlignedBuffer::zeroed(1 << 12),
/// };
/// for done in queue.run((0..64).map(read).collect()) {
///     assert_eq!(done.result?, 1 << 12);
/// }
/// # drop(queue);
/// # drop(file);
/// # fs.unmount()?;
/// # Ok(())
/// # }
/// ```
pub struct DirectQueue<'f> {
    file: &'f DirectFile,
    options: QueueOptions,
    /// `None` after a panic of the caller's code, until the next call.
    queue: Option<Box<dyn Queue + 'f>>,
    engine: Engine,
    depth: usize,
}

impl DirectFile {
    /// Creates a queue for one thread. `options` ask for an engine and a depth of the device's
    /// queue, which may offer less: see [`DirectQueue::engine`] and [`DirectQueue::depth`].
    pub fn queue(&self, options: &QueueOptions) -> DirectQueue<'_> {
        let queue = self.inode().volume().device().queue(options);
        let (engine, depth) = (queue.engine(), queue.depth());
        DirectQueue { file: self, options: *options, queue: Some(queue), engine, depth }
    }
}

impl<'f> DirectQueue<'f> {
    /// Returns the engine that transfers the bytes.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Returns the limit of the requests under way.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Does all requests of a batch, and returns them in their order, each with its result. The
    /// alignment rules are those of [`DirectFile`].
    ///
    /// Whoever frees blocks of the file, or writes to it through the cache, waits for what is under
    /// way there, and nothing is started meanwhile.
    ///
    /// # Cost
    ///
    /// One device operation for each simple request; for the others, the cost of single calls.
    pub fn run(&mut self, requests: Vec<DirectRequest>) -> Vec<DirectDone> {
        let writes = requests.iter().any(|request| request.kind != DirectKind::Read);
        let mut all: Vec<Option<DirectDone>> = Vec::new();
        all.resize_with(requests.len(), || None);
        let mut requests = (0..).zip(requests);
        let mut done = |tag: u64, done| all[tag as usize] = Some(done);
        self.go(writes, usize::MAX, &mut || requests.next(), &mut done);
        all.into_iter().flatten().collect()
    }

    /// Does the requests that `next` returns, each with a tag of the caller's choice, until it
    /// returns none, and calls `done` with each as it finishes. As many as
    /// [`depth`](Self::depth) stay under way all the time, so that `next` can reuse the memory that
    /// `done` got back. The alignment rules are those of [`DirectFile`].
    ///
    /// Both are called with locks held, and must not use the file system; debug builds panic if
    /// they do. Requests that are not simple, first data, and synchronous writes finish late: after
    /// up to 1024 requests, or 64 times the depth if that is more. Operations that wait for direct
    /// I/O on the file wait for what is under way.
    ///
    /// # Cost
    ///
    /// As [`run`](Self::run).
    ///
    /// # Example
    ///
    /// ```
    /// # use extant::{AlignedBuffer, DirectKind, DirectQueue, DirectRequest, FsError};
    /// /// Reads blocks `0..count` with 16 buffers, and returns the number of bytes.
    /// fn scan(queue: &mut DirectQueue<'_>, count: u64) -> Result<usize, FsError> {
    ///     let spare = std::cell::RefCell::new(vec![AlignedBuffer::zeroed(4096); 16]);
    ///     let (mut block, mut bytes) = (0, Ok(0));
    ///     queue.stream(
    ///         || {
    ///             let buffer = (block < count).then(|| spare.borrow_mut().pop()).flatten()?;
    ///             let offset = block * 4096;
    ///             block += 1;
    ///             Some((block, DirectRequest { kind: DirectKind::Read, offset, buffer }))
    ///         },
    ///         |_, done| {
    ///             match (&mut bytes, done.result) {
    ///                 (Ok(bytes), Ok(len)) => *bytes += len,
    ///                 (Ok(_), Err(error)) => bytes = Err(error),
    ///                 (Err(_), _) => {}
    ///             }
    ///             spare.borrow_mut().push(done.request.buffer);
    ///         },
    ///     );
    ///     bytes
    /// }
    /// ```
    pub fn stream(
        &mut self,
        mut next: impl FnMut() -> Option<(u64, DirectRequest)>,
        mut done: impl FnMut(u64, DirectDone),
    ) {
        let most = self.depth.saturating_mul(STREAM_TURNS).max(STREAM_LEAST);
        self.go(false, most, &mut next, &mut done);
    }

    /// Does what `next` returns, in batches of at most `most` requests.
    fn go(
        &mut self,
        mut writes: bool,
        most: usize,
        next: &mut dyn FnMut() -> Option<(u64, DirectRequest)>,
        done: &mut dyn FnMut(u64, DirectDone),
    ) {
        let inode = self.file.inode();
        let mut batch = Batch::new(next, done);
        loop {
            if batch.held.is_none() {
                batch.held = (batch.next)();
            }
            let Some((_, first)) = &batch.held else { break };
            writes |= first.kind != DirectKind::Read;
            batch.left = most;
            let flown = match inode.volume().is_writable() {
                false => self.fly_unchanging(&mut batch),
                true if !writes => self.fly(&mut batch, false),
                true => inode.fs().change(|| self.fly(&mut batch, true)),
            };
            if std::mem::take(&mut batch.reads) {
                inode.was_read();
            }
            if flown.is_err() {
                // The request is done below, alone, and meets the same error there.
                let held = batch.held.take().map(|(tag, request)| (tag, Flight::new(request)));
                batch.later.extend(held);
            }
            for (tag, flight) in std::mem::take(&mut batch.later) {
                (batch.done)(tag, self.land(flight));
            }
        }
    }

    /// Returns the device's queue, which is made again after a panic.
    fn device_queue(&mut self) -> Flying<'_, 'f> {
        let DirectQueue { file, options, queue, engine, depth } = self;
        let made = queue.get_or_insert_with(|| file.inode().volume().device().queue(options));
        (*engine, *depth) = (made.engine(), made.depth());
        Flying::new(queue)
    }

    /// Finishes a request after its batch and returns its outcome.
    fn land(&self, Flight { mut request, target, result }: Flight) -> DirectDone {
        let DirectRequest { kind, offset, buffer } = &mut request;
        let result = match (result, *kind) {
            (Some(Ok(len)), DirectKind::Write { synced: true })
                if target.is_some_and(|target| is_late(target.what)) =>
            {
                self.file.inode().sync_data().map(|()| len)
            }
            (Some(Ok(len)), DirectKind::Write { synced: true }) => {
                let end = *offset + len as u64;
                self.file.inode().commit_map_for(end).map(|()| len)
            }
            (Some(result), _) => result,
            (None, DirectKind::Read) => self.file.read_at(buffer, *offset),
            (None, DirectKind::Write { synced }) => {
                self.file.write_by(WriteBy::Program, synced, buffer, *offset)
            }
        };
        DirectDone { request, result }
    }

    /// Does the simple requests (J1); only reads, unless `writes`.
    fn fly(&mut self, batch: &mut Batch<'_>, writes: bool) -> Result<()> {
        let handle = self.file;
        let inode = handle.inode();
        let (fs, node) = (inode.fs(), inode.node());
        let (file, writer) = (fs.file(node)?, inode.volume().writer()?);
        let content = node.content.read();
        let mapper = FileMapper { fs, node, file };
        let may_write = writes && check_changeable(node.ino(), node.gist().flags).is_ok();
        if may_write {
            mapper.begin_overwrite()?;
        }
        let mut flyer = Flyer::new(handle, &mapper, writer.spans(), may_write, content);
        self.device_queue().drive(batch, writes, &mut flyer);
        if flyer.end(batch) {
            file.touch(writer.now());
            fs.note_dirty(node, file);
        }
        Ok(())
    }

    /// Does the simple reads on a read-only mount, where maps do not change.
    fn fly_unchanging(&mut self, batch: &mut Batch<'_>) -> Result<()> {
        // Writes are refused afterwards.
        let file = self.file;
        self.device_queue().drive(batch, true, &mut Unchanging(file));
        Ok(())
    }
}

impl DirectRequest {
    /// Returns the byte range of the request. Planned requests end within the file's size.
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.buffer.len() as u64
    }

    /// Returns the buffer of a finished operation to its request.
    fn take_back(&mut self, operation: Operation) {
        if let Operation::Read { buffer, .. } | Operation::Write { buffer, .. } = operation {
            self.buffer = buffer;
        }
    }
}

impl fmt::Debug for DirectQueue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectQueue({:?}, {}, depth {})", self.file, self.engine(), self.depth())
    }
}
