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

use extant_block::{AlignedBuffer, Engine, Finished, Operation, Queue, QueueOptions, Wait};
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
        let fs = self.file.inode().fs();
        // Those that it did not do are done below, and meet the same error there.
        let _ = fs.change(|| self.fly(&mut flights));
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

    /// Does the simple ones (J1).
    fn fly(&mut self, flights: &mut [Flight]) -> Result<()> {
        let inode = self.file.inode();
        let (fs, node) = (inode.fs(), inode.node());
        let file = fs.file(node)?;
        let _content = node.content.read();
        let mapper = FileMapper { fs, node, file };
        let may_write = flights.iter().any(|flight| flight.request.kind != DirectKind::Read)
            && check_changeable(node.ino(), node.gist().flags).is_ok();
        if may_write {
            mapper.begin_overwrite()?;
        }
        let (mut next, mut unsynced, mut wrote) = (0, false, false);
        loop {
            while next < flights.len() && self.queue.len() < self.queue.depth() {
                if let Some(operation) = self.plan(&mapper, &mut flights[next], may_write) {
                    // There is room: it was just looked at.
                    let _full = self.queue.push(next as u64, operation);
                }
                next += 1;
            }
            self.queue.submit();
            let Some(first) = self.queue.reap(Wait::Block) else { break };
            let mut reaped = Some(first);
            while let Some(Finished { tag, completion }) = reaped {
                let Some(flight) = flights.get_mut(tag as usize) else { break };
                let is_ok = completion.result.is_ok();
                let is_read = flight.request.kind == DirectKind::Read;
                if let Operation::Read { buffer, .. } | Operation::Write { buffer, .. } =
                    completion.operation
                {
                    flight.request.buffer = buffer;
                }
                let len = flight.request.buffer.len();
                let range = flight.request.offset..flight.request.offset + len as u64;
                unsynced |= flight.request.kind == DirectKind::Write { synced: false };
                wrote |= is_ok && !is_read;
                // One that a reader has cached meanwhile is written once more, alone.
                flight.result = match completion.result {
                    Err(error) => Some(Err(error.into())),
                    Ok(()) if file.cache.end_queued(range, !is_read) => Some(Ok(len)),
                    Ok(()) => None,
                };
                reaped = self.queue.reap(Wait::Poll);
            }
        }
        if may_write {
            mapper.end_overwrite(!unsynced);
        }
        if wrote {
            file.touch(inode.volume().writer()?.now());
            fs.note_dirty(node, file);
        }
        Ok(())
    }

    /// The device operation that a request is, if it is one. The content lock is held, shared.
    fn plan(
        &self,
        mapper: &FileMapper<'_>,
        flight: &mut Flight,
        may_write: bool,
    ) -> Option<Operation> {
        let DirectRequest { kind, offset, buffer } = &mut flight.request;
        let (offset, len) = (*offset, buffer.len() as u64);
        if buffer.is_empty() || self.file.check(offset, buffer).is_err() {
            return None;
        }
        let (file, range) = (mapper.file, offset..offset.checked_add(len)?);
        // An error will be met again by who does it afterwards.
        match *kind {
            DirectKind::Read => {
                let runs = match range.end <= file.size() {
                    true => file.cache.stored_at(mapper, range, 1).ok()??,
                    false => return None,
                };
                let (address, _) = *runs.first()?;
                Some(Operation::Read { offset: address, buffer: std::mem::take(buffer) })
            }
            DirectKind::Write { synced } => {
                let inode = self.file.inode();
                let by = WriteBy::Program;
                if !may_write || inode.keeps_from_sharing(file, by, offset, len).is_some() {
                    return None;
                }
                let Overwrite { unit, .. } = self.file.overwrites(synced);
                let plan = file.cache.plan_overwrite(mapper, range, unit).ok()?.ok()?;
                let [place] = plan.parts() else { return None };
                let address = plan.is_plain().then_some(place.address)?;
                let buffer = std::mem::take(buffer);
                Some(Operation::Write { offset: address, buffer, fua: synced })
            }
        }
    }
}

impl fmt::Debug for DirectQueue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectQueue({:?}, {}, depth {})", self.file, self.engine(), self.depth())
    }
}
