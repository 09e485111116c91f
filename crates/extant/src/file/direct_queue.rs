//! Batches of direct reads and writes: many under way at once from one thread.
//!
//! # Rules
//!
//! - J1. The content lock is held, shared, from the first lookup in the map until the last
//!   operation of a batch has finished: truncation and other removal of blocks waits for it.
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

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use extant_base::sabotage;
use extant_block::{
    AlignedBuffer, Completion, DeviceError, Engine, Finished, Operation, Queue, QueueOptions,
};
use extant_iomap::{Alone, DirectOptions, Mapper, OverwritePart, Queued, QueuedFill, RangeLocks};

use super::direct_file::DirectFile;
use super::{FileMapper, Ticket, WriteBy, check_changeable};
use crate::error::Result;

/// Requests of one hold of the content lock in a stream, for each that can be under way.
const STREAM_TURNS: usize = 64;
/// Requests of one hold of the content lock in a stream, at least.
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

/// A request under way.
struct Flight {
    request: DirectRequest,
    /// The device operation of a simple request.
    target: Option<Target>,
    /// `None` while the request is under way or has to be done afterwards.
    result: Option<Result<usize>>,
}

impl Flight {
    fn new(request: DirectRequest) -> Flight {
        Flight { request, target: None, result: None }
    }
}

/// The requests done while the content lock is held once.
struct Batch<'a> {
    next: &'a mut dyn FnMut() -> Option<(u64, DirectRequest)>,
    done: &'a mut dyn FnMut(u64, DirectDone),
    /// A request that was taken from `next` and not started.
    held: Option<(u64, DirectRequest)>,
    /// Number of requests that may still be started.
    left: usize,
    /// Requests to be finished when the lock is released.
    later: Vec<(u64, Flight)>,
    /// Whether any request was a read.
    reads: bool,
}

impl Batch<'_> {
    /// Returns the next request. A write ends a batch without writes.
    fn next(&mut self, writes: bool) -> Option<(u64, DirectRequest)> {
        if self.left == 0 {
            return None;
        }
        let next = self.held.take().or_else(|| (self.next)())?;
        if next.1.kind != DirectKind::Read && !writes {
            self.held = Some(next);
            self.left = 0;
            return None;
        }
        self.left -= 1;
        self.reads |= next.1.kind == DirectKind::Read;
        Some(next)
    }
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
    /// Operations that free blocks of the file or write to it through the cache wait for the batch,
    /// so long batches delay them.
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
    /// I/O on the file wait for as many.
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
        let mut batch = Batch { next, done, held: None, left: 0, later: Vec::new(), reads: false };
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
        Flying { queue }
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
        let _content = node.content.read();
        let mapper = FileMapper { fs, node, file };
        let may_write = writes && check_changeable(node.ino(), node.gist().flags).is_ok();
        if may_write {
            mapper.begin_overwrite()?;
        }
        let mut wrote = false;
        let mut first = Vec::new();
        let ends = EndsOverwrite { mapper: may_write.then_some(&mapper), durable: Cell::new(true) };
        // Until the first data in them is published (J4).
        let mut ranges = RangeLocks::new();
        let fills = Fills { mapper: &mapper, taken: RefCell::default() };
        let plan =
            |request: &DirectRequest| handle.plan(&mapper, request, may_write, &mut ranges, &fills);
        self.device_queue().drive(batch, writes, plan, |request, target, result| {
            let len = request.buffer.len();
            if request.kind == (DirectKind::Write { synced: false }) {
                ends.durable.set(false);
            }
            wrote |= target.what != Queued::Read && result.is_ok();
            match result {
                // Blocks whose write failed stay unwritten, and new ones are given back (J5).
                Err(error)
                    if target.what != Queued::First
                        || !sabotage("extant.direct.first-data-that-failed") =>
                {
                    Some(Err(error.into()))
                }
                _ if target.what == Queued::Fill => {
                    fills.store(request.offset);
                    Some(Ok(len))
                }
                _ if target.what == Queued::First => {
                    let (offset, address) = (request.offset, target.address);
                    let len = len as u64;
                    first.push(OverwritePart { offset, len, address, is_new: true });
                    Some(Ok(request.buffer.len()))
                }
                _ => file.cache.end_queued(request.range(), target.what).then_some(Ok(len)),
            }
        });
        drop(ends);
        let has_first = first.is_empty() || file.cache.publish_queued(&mapper, first).is_ok();
        let has_fills = fills.end().is_ok();
        let is_published = |what| if what == Queued::First { has_first } else { has_fills };
        for (_, Flight { request, target, result }) in &mut batch.later {
            let Some(what) = target.map(|target| target.what).filter(|what| is_late(*what)) else {
                continue;
            };
            if matches!(result, Some(Ok(_)))
                && !(is_published(what) && file.cache.end_queued(request.range(), what))
            {
                // The request is repeated alone: it gets its own error, or writes through the cache.
                *result = None;
            }
        }
        if wrote {
            file.touch(writer.now());
            fs.note_dirty(node, file);
        }
        Ok(())
    }

    /// Does the simple reads on a read-only mount, where maps do not change.
    fn fly_unchanging(&mut self, batch: &mut Batch<'_>) -> Result<()> {
        let file = self.file;
        // Writes are refused afterwards.
        self.device_queue().drive(
            batch,
            true,
            |request| {
                let range = file.range_of_read(request)?;
                let inode = file.inode();
                inode.fs().view(inode.node()).stored_range(range).ok()?.map(Target::read)
            },
            |request, _, result| {
                let error = |error| file.inode().volume().read_error(error);
                Some(result.map(|()| request.buffer.len()).map_err(error))
            },
        );
        Ok(())
    }
}

/// Tells the mapper that overwriting has ended, also when the caller's code panics.
struct EndsOverwrite<'a, 'm> {
    mapper: Option<&'a FileMapper<'m>>,
    durable: Cell<bool>,
}

impl Drop for EndsOverwrite<'_, '_> {
    fn drop(&mut self) {
        if let Some(mapper) = self.mapper {
            mapper.end_overwrite(self.durable.get());
        }
    }
}

/// Blocks that were taken for writes of a batch, by the first byte of each in the file; given back
/// if they do not come into the map, also when the caller's code panics.
struct Fills<'a, 'm> {
    mapper: &'a FileMapper<'m>,
    taken: RefCell<BTreeMap<u64, QueuedFill<Ticket>>>,
}

impl Fills<'_, '_> {
    /// Records that the device has the bytes of a write.
    fn store(&self, offset: u64) {
        if let Some(fill) = self.taken.borrow_mut().get_mut(&offset) {
            fill.is_stored = true;
        }
    }

    /// Puts what is stored into the map.
    fn end(&self) -> Result<()> {
        let taken = std::mem::take(&mut *self.taken.borrow_mut());
        self.mapper.file.cache.end_fills(self.mapper, taken.into_values().collect())
    }
}

impl Drop for Fills<'_, '_> {
    fn drop(&mut self) {
        let mut taken = std::mem::take(self.taken.get_mut());
        taken.values_mut().for_each(|fill| fill.is_stored = false);
        // Nothing is published, so nothing fails.
        let _ = self.mapper.file.cache.end_fills(self.mapper, taken.into_values().collect());
    }
}

/// Returns whether a write has its outcome only when the map has its blocks.
fn is_late(what: Queued) -> bool {
    matches!(what, Queued::First | Queued::Fill)
}

/// The device operation of a request.
#[derive(Clone, Copy)]
struct Target {
    /// Address on the device, in bytes.
    address: u64,
    what: Queued,
    /// Whether the write is durable when it completes.
    fua: bool,
}

impl Target {
    fn read(address: u64) -> Target {
        Target { address, what: Queued::Read, fua: false }
    }
}

/// The device's queue while requests are under way. When the caller's code panics it is dropped,
/// which waits for the requests the device has and forgets the others, before the content lock is
/// released (J1).
struct Flying<'q, 'f> {
    queue: &'q mut Option<Box<dyn Queue + 'f>>,
}

impl Drop for Flying<'_, '_> {
    fn drop(&mut self) {
        if self.queue.as_ref().is_some_and(|queue| !queue.is_empty()) {
            *self.queue = None;
        }
    }
}

impl Flying<'_, '_> {
    /// Drives the queue until all requests of a batch have ended: `plan` turns requests into device
    /// operations, and `end` turns completions into results, `None` for requests that have to be
    /// done afterwards.
    fn drive(
        self,
        batch: &mut Batch<'_>,
        writes: bool,
        mut plan: impl FnMut(&DirectRequest) -> Option<Target>,
        mut end: impl FnMut(
            &DirectRequest,
            Target,
            std::result::Result<(), DeviceError>,
        ) -> Option<Result<usize>>,
    ) {
        let Some(queue) = self.queue.as_mut() else { return };
        let mut flying: Vec<Option<(u64, Flight)>> = Vec::new();
        let mut free: Vec<usize> = Vec::new();
        loop {
            while queue.len() < queue.depth()
                && let Some((tag, mut request)) = batch.next(writes)
            {
                let target = plan(&request);
                let Some(Target { address: offset, what, fua }) = target else {
                    batch.later.push((tag, Flight::new(request)));
                    continue;
                };
                let buffer = std::mem::take(&mut request.buffer);
                let operation = match what {
                    Queued::Read => Operation::Read { offset, buffer },
                    Queued::Over | Queued::First | Queued::Fill => {
                        Operation::Write { offset, buffer, fua }
                    }
                };
                let index = free.pop().unwrap_or_else(|| {
                    flying.push(None);
                    flying.len() - 1
                });
                if let Err(refused) = queue.push(index as u64, operation) {
                    // The queue refused the operation although it had room. The request keeps its
                    // buffer and is done afterwards.
                    free.push(index);
                    request.take_back(refused);
                    batch.later.push((tag, Flight::new(request)));
                    continue;
                }
                flying[index] = Some((tag, Flight { request, target, result: None }));
            }
            let Some(Finished { tag: index, completion }) = queue.advance() else { break };
            let Completion { operation, result } = completion;
            // Every tag is an index of `flying`, handed back once (U3).
            let index = index as usize;
            let Some((tag, mut flight)) = flying[index].take() else { continue };
            free.push(index);
            flight.request.take_back(operation);
            if let Some(target) = flight.target {
                flight.result = end(&flight.request, target, result);
            }
            let is_late = flight.target.is_some_and(|target| is_late(target.what));
            let is_synced = flight.request.kind == DirectKind::Write { synced: true };
            match flight.result {
                Some(result) if !is_late && !is_synced => {
                    (batch.done)(tag, DirectDone { request: flight.request, result });
                }
                _ => batch.later.push((tag, flight)),
            }
        }
        // The queue has handed back all of them (U3).
        batch.later.extend(flying.into_iter().flatten());
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

impl DirectFile {
    /// Returns the byte range of an aligned read that is not empty; `None` for other requests.
    fn range_of_read(&self, request: &DirectRequest) -> Option<Range<u64>> {
        let DirectRequest { kind, offset, ref buffer } = *request;
        let is_read = kind == DirectKind::Read && !buffer.is_empty();
        (is_read && self.check(offset, buffer).is_ok()).then_some(())?;
        Some(offset..offset.checked_add(buffer.len() as u64)?)
    }

    /// Returns the device operation of a request, if it is a single one. The caller holds the
    /// content lock, shared.
    fn plan<'a>(
        &self,
        mapper: &FileMapper<'a>,
        request: &DirectRequest,
        may_write: bool,
        ranges: &mut RangeLocks<'a>,
        fills: &Fills<'_, '_>,
    ) -> Option<Target> {
        let file = mapper.file;
        // The call that does the request afterwards reports the error.
        let DirectKind::Write { synced } = request.kind else {
            let range = self.range_of_read(request)?;
            (range.end <= file.size()).then_some(())?;
            let runs = file.cache.stored_at(mapper, range, 1).ok()??;
            return runs.first().map(|(address, _)| Target::read(*address));
        };
        let DirectRequest { offset, ref buffer, .. } = *request;
        let len = buffer.len() as u64;
        let is_aligned = !buffer.is_empty() && self.check(offset, buffer).is_ok();
        let range = offset..offset.checked_add(len)?;
        let by = WriteBy::Program;
        if !may_write
            || !is_aligned
            || self.inode().keeps_from_sharing(file, by, range.end).is_some()
        {
            return None;
        }
        let DirectOptions { unit, .. } = self.options(synced);
        let mut plan = match file.cache.plan_overwrite(mapper, range.clone(), unit).ok()? {
            Ok(plan) => plan,
            Err(Alone::Hole | Alone::Extends) => {
                let fill = file.cache.begin_fill(mapper, range, ranges)?;
                let address = fill.address();
                fills.taken.borrow_mut().insert(offset, fill);
                return Some(Target { address, what: Queued::Fill, fua: false });
            }
            Err(_) => return None,
        };
        if !plan.is_plain() {
            if !file.cache.try_lock_range(range.clone(), ranges) {
                return None;
            }
            // Whoever had it before may have given the blocks their first data.
            plan = file.cache.plan_overwrite(mapper, range, unit).ok()?.ok()?;
        }
        let [place] = plan.parts() else { return None };
        let what = if plan.is_plain() { Queued::Over } else { Queued::First };
        Some(Target { address: place.address, what, fua: synced })
    }
}

impl fmt::Debug for DirectQueue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectQueue({:?}, {}, depth {})", self.file, self.engine(), self.depth())
    }
}
