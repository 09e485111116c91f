//! Many direct reads and writes of one thread under way at once.
//!
//! # Rules
//!
//! - J1. The content lock is held, shared, from the first question about the map until the last operation of a
//!   batch has finished: whoever takes blocks from the file waits for it.
//! - J2. The thread that gave the batch sees it through. No completion depends on another thread, and none of
//!   the caller's code runs meanwhile, so nobody waits for himself.
//! - J3. What is not as simple as a device operation is done afterwards, one by one, as by
//!   [`DirectFile::read_at`] and [`DirectFile::write_at`], which also say what is wrong with it.

use std::fmt;
use std::ops::Range;

use extant_block::{
    AlignedBuffer, Completion, DeviceError, Engine, Finished, Operation, Queue, QueueOptions, Wait,
};
use extant_iomap::{Mapper, Overwrite};

use super::direct_file::DirectFile;
use super::{FileMapper, WriteBy, check_changeable};
use crate::error::Result;

/// What a request does with its memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DirectKind {
    /// Fills it from the file.
    Read,
    /// Writes it to the file.
    Write {
        /// Durable when it is done (`O_DSYNC`).
        synced: bool,
    },
}

/// A direct read or write, with its memory.
#[derive(Debug)]
pub struct DirectRequest {
    /// Which of the two.
    pub kind: DirectKind,
    /// First byte of the file.
    pub offset: u64,
    /// The bytes; their number is the length.
    pub buffer: AlignedBuffer,
}

/// What became of a request.
#[derive(Debug)]
pub struct DirectDone {
    /// The request, with its memory.
    pub request: DirectRequest,
    /// As [`DirectFile::read_at`] and [`DirectFile::write_at`] say.
    pub result: Result<usize>,
}

/// Many direct reads and writes of one thread at once, from [`DirectFile::queue`].
///
/// A batch of reads and of writes over blocks that have data goes to the device's queue, as deep as that is; nothing
/// is handed to another thread, no handle of the journal is opened, and the content lock is shared. Whatever is not
/// that simple (holes, growth, first data, ranges that are cached or in several pieces) is done afterwards, one by
/// one; `CacheStats::direct_queued` counts the simple ones.
///
/// Requests of one batch happen in any order, as those that programs have under way together: of two that
/// overlap either may be last.
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
/// file.write_at(0, &AlignedBuffer::zeroed(64 << 12))?;
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
    queue: Box<dyn Queue + 'f>,
}

/// A request on its way.
struct Flight {
    request: DirectRequest,
    /// `None` while it is under way, or has to be done afterwards.
    result: Option<Result<usize>>,
}

impl DirectFile {
    /// A queue for one thread. `options` are about the device's queue, which may offer less than is asked for:
    /// [`DirectQueue::engine`].
    pub fn queue(&self, options: &QueueOptions) -> DirectQueue<'_> {
        DirectQueue { file: self, queue: self.inode().volume().device().queue(options) }
    }
}

impl DirectQueue<'_> {
    /// What moves the bytes.
    pub fn engine(&self) -> Engine {
        self.queue.engine()
    }

    /// Requests that are under way at most.
    pub fn depth(&self) -> usize {
        self.queue.depth()
    }

    /// Does all requests of a batch, and returns them in their order, each with its result. Requests are held to
    /// the rules of [`DirectFile`].
    ///
    /// Who wants to take blocks from the file, or write to it through the cache, waits for the batch: long
    /// ones keep others waiting long.
    ///
    /// # Cost
    ///
    /// One device operation for each request that is simple; for the others as the calls for one.
    pub fn run(&mut self, requests: Vec<DirectRequest>) -> Vec<DirectDone> {
        let fly = |request| Flight { request, result: None };
        let mut flights: Vec<Flight> = requests.into_iter().map(fly).collect();
        let inode = self.file.inode();
        let writes = flights.iter().any(|flight| flight.request.kind != DirectKind::Read);
        // What this could not do is done below, one by one, and meets the same error there.
        let _ = match inode.volume().is_writable() {
            false => self.fly_unchanging(&mut flights),
            true if !writes => self.fly(&mut flights, false),
            true => inode.fs().change(|| self.fly(&mut flights, true)),
        };
        flights.into_iter().map(|flight| self.land(flight)).collect()
    }

    /// What is left of a request when the batch is through.
    fn land(&self, Flight { mut request, result }: Flight) -> DirectDone {
        let DirectRequest { kind, offset, buffer } = &mut request;
        let result = match (result, *kind) {
            (Some(Ok(len)), DirectKind::Write { synced: true }) => {
                let end = *offset + len as u64;
                self.file.inode().commit_map_for(end).map(|()| len)
            }
            (Some(result), _) => result,
            (None, DirectKind::Read) => self.file.read_at(*offset, buffer),
            (None, DirectKind::Write { synced }) => {
                self.file.write_by(WriteBy::Program, synced, *offset, buffer)
            }
        };
        DirectDone { request, result }
    }

    /// Does the simple ones (J1); of the writes none, unless `writes`.
    fn fly(&mut self, flights: &mut [Flight], writes: bool) -> Result<()> {
        let inode = self.file.inode();
        let (fs, node) = (inode.fs(), inode.node());
        let (file, writer) = (fs.file(node)?, inode.volume().writer()?);
        let _content = node.content.read();
        let mapper = FileMapper { fs, node, file };
        let may_write = writes && check_changeable(node.ino(), node.gist().flags).is_ok();
        if may_write {
            mapper.begin_overwrite()?;
        }
        let (mut unsynced, mut wrote) = (false, false);
        let plan = |request: &DirectRequest| self.file.plan(&mapper, request, may_write);
        drive(&mut *self.queue, flights, plan, |request, result| {
            let len = request.buffer.len();
            let range = request.offset..request.offset + len as u64;
            let is_write = request.kind != DirectKind::Read;
            unsynced |= request.kind == DirectKind::Write { synced: false };
            wrote |= is_write && result.is_ok();
            match result {
                Err(error) => Some(Err(error.into())),
                Ok(()) if file.cache.end_queued(range, is_write) => Some(Ok(len)),
                // One that a reader has cached meanwhile is written once more, alone.
                Ok(()) => None,
            }
        });
        if may_write {
            mapper.end_overwrite(!unsynced);
        }
        if wrote {
            file.touch(writer.now());
            fs.note_dirty(node, file);
        }
        Ok(())
    }

    /// Does the simple reads on a mount for reading, where no map changes.
    fn fly_unchanging(&mut self, flights: &mut [Flight]) -> Result<()> {
        let file = self.file;
        drive(
            &mut *self.queue,
            flights,
            |request| {
                let range = file.range_of_read(request)?;
                file.inode().stored_range(range).ok()?.map(Target::Read)
            },
            |request, result| {
                let error = |error| file.inode().volume().read_error(error);
                Some(result.map(|()| request.buffer.len()).map_err(error))
            },
        );
        Ok(())
    }
}

/// Which device operation a request is: where on the device.
enum Target {
    Read(u64),
    Write { address: u64, fua: bool },
}

/// Keeps the queue as full as `plan` makes device operations of the requests that have no result, until all of them have
/// come back; `end` makes the results, `None` for what has to be done afterwards.
fn drive(
    queue: &mut dyn Queue,
    flights: &mut [Flight],
    mut plan: impl FnMut(&DirectRequest) -> Option<Target>,
    mut end: impl FnMut(&DirectRequest, std::result::Result<(), DeviceError>) -> Option<Result<usize>>,
) {
    let mut next = 0;
    loop {
        while next < flights.len() && queue.len() < queue.depth() {
            let Flight { request, result } = &mut flights[next];
            if result.is_none()
                && let Some(target) = plan(request)
            {
                let buffer = std::mem::take(&mut request.buffer);
                let operation = match target {
                    Target::Read(offset) => Operation::Read { offset, buffer },
                    Target::Write { address, fua } => {
                        Operation::Write { offset: address, buffer, fua }
                    }
                };
                if let Err(refused) = queue.push(next as u64, operation) {
                    // There was room. Its bytes are not lost, and it is done afterwards.
                    request.take_back(refused);
                }
            }
            next += 1;
        }
        queue.submit();
        let Some(first) = queue.reap(Wait::Block) else { break };
        let mut reaped = Some(first);
        while let Some(Finished { tag, completion: Completion { operation, result } }) = reaped {
            // No tag is of anything else (U3).
            let flight = &mut flights[tag as usize];
            flight.request.take_back(operation);
            flight.result = end(&flight.request, result);
            reaped = queue.reap(Wait::Poll);
        }
    }
}

impl DirectRequest {
    /// Its memory is its own again.
    fn take_back(&mut self, operation: Operation) {
        if let Operation::Read { buffer, .. } | Operation::Write { buffer, .. } = operation {
            self.buffer = buffer;
        }
    }
}

impl DirectFile {
    /// The bytes of a read that is aligned and reads something.
    fn range_of_read(&self, request: &DirectRequest) -> Option<Range<u64>> {
        let DirectRequest { kind, offset, ref buffer } = *request;
        let is_read = kind == DirectKind::Read && !buffer.is_empty();
        (is_read && self.check(offset, buffer).is_ok()).then_some(())?;
        Some(offset..offset.checked_add(buffer.len() as u64)?)
    }

    /// The device operation that a request is, if it is one. The content lock is held, shared.
    fn plan(
        &self,
        mapper: &FileMapper<'_>,
        request: &DirectRequest,
        may_write: bool,
    ) -> Option<Target> {
        let file = mapper.file;
        // An error will be met again by who does it afterwards.
        let DirectKind::Write { synced } = request.kind else {
            let range = self.range_of_read(request)?;
            (range.end <= file.size()).then_some(())?;
            let runs = file.cache.stored_at(mapper, range, 1).ok()??;
            return runs.first().map(|(address, _)| Target::Read(*address));
        };
        let DirectRequest { offset, ref buffer, .. } = *request;
        let len = buffer.len() as u64;
        let is_aligned = !buffer.is_empty() && self.check(offset, buffer).is_ok();
        let range = offset..offset.checked_add(len)?;
        let by = WriteBy::Program;
        if !may_write
            || !is_aligned
            || self.inode().keeps_from_sharing(file, by, offset, len).is_some()
        {
            return None;
        }
        let Overwrite { unit, .. } = self.overwrites(synced);
        let plan = file.cache.plan_overwrite(mapper, range, unit).ok()?.ok()?;
        let [place] = plan.parts() else { return None };
        plan.is_plain().then_some(Target::Write { address: place.address, fua: synced })
    }
}

impl fmt::Debug for DirectQueue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectQueue({:?}, {}, depth {})", self.file, self.engine(), self.depth())
    }
}
