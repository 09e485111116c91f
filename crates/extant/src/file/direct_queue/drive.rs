//! Driving the device's queue: requests become operations, and operations results.

use extant_block::{Completion, DeviceError, Finished, Operation, Queue};
use extant_iomap::Queued;

use super::{DirectDone, DirectKind, DirectRequest};
use crate::error::Result;

/// A request under way.
pub(super) struct Flight {
    pub(super) request: DirectRequest,
    /// The device operation of a simple request.
    pub(super) target: Option<Target>,
    /// `None` while the request is under way or has to be done afterwards.
    pub(super) result: Option<Result<usize>>,
}

impl Flight {
    pub(super) fn new(request: DirectRequest) -> Flight {
        Flight { request, target: None, result: None }
    }
}

/// The requests of one round of the queue.
pub(super) struct Batch<'a> {
    pub(super) next: &'a mut dyn FnMut() -> Option<(u64, DirectRequest)>,
    pub(super) done: &'a mut dyn FnMut(u64, DirectDone),
    /// A request that was taken from `next` and not started.
    pub(super) held: Option<(u64, DirectRequest)>,
    /// Number of requests that may still be started.
    pub(super) left: usize,
    /// Requests to be finished when all that is under way has ended.
    pub(super) later: Vec<(u64, Flight)>,
    /// Whether any request was a read.
    pub(super) reads: bool,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        next: &'a mut dyn FnMut() -> Option<(u64, DirectRequest)>,
        done: &'a mut dyn FnMut(u64, DirectDone),
    ) -> Batch<'a> {
        Batch { next, done, held: None, left: 0, later: Vec::new(), reads: false }
    }

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

    /// Takes a request back that was not started, and starts no others.
    fn put_back(&mut self, tag: u64, request: DirectRequest) {
        self.held = Some((tag, request));
        self.left = 0;
    }
}

/// What a queue asks for its requests.
pub(super) trait Fly {
    /// Returns what becomes of a request, which has this number while the device has it.
    fn plan(&mut self, number: usize, request: &DirectRequest) -> Plan;

    /// Prepares for a wait for the device.
    fn rest(&mut self);

    /// Returns the result of an operation that has ended; `None` if it has to be done afterwards.
    fn end(
        &mut self,
        number: usize,
        request: &DirectRequest,
        target: Target,
        result: std::result::Result<(), DeviceError>,
    ) -> Option<Result<usize>>;

    /// Forgets an operation that the queue has refused.
    fn refused(&mut self, number: usize);
}

/// What becomes of a request.
pub(super) enum Plan {
    /// A device operation.
    Go(Target),
    /// It is done afterwards, alone.
    Alone,
    /// Nothing is started until all that is under way has ended; then it is asked again.
    Pause,
}

/// Returns whether a write has its outcome only when the map has its blocks.
pub(super) fn is_late(what: Queued) -> bool {
    matches!(what, Queued::First | Queued::Fill)
}

/// The device operation of a request.
#[derive(Clone, Copy)]
pub(super) struct Target {
    /// Address on the device, in bytes.
    pub(super) address: u64,
    pub(super) what: Queued,
    /// Whether the write is durable when it completes.
    pub(super) fua: bool,
}

impl Target {
    pub(super) fn read(address: u64) -> Target {
        Target { address, what: Queued::Read, fua: false }
    }
}

/// The device's queue while requests are under way. When the caller's code panics it is dropped,
/// which waits for the requests the device has and forgets the others, before they stop to count as
/// under way (J1).
pub(super) struct Flying<'q, 'f> {
    queue: &'q mut Option<Box<dyn Queue + 'f>>,
}

impl Drop for Flying<'_, '_> {
    fn drop(&mut self) {
        if self.queue.as_ref().is_some_and(|queue| !queue.is_empty()) {
            *self.queue = None;
        }
    }
}

impl<'q, 'f> Flying<'q, 'f> {
    pub(super) fn new(queue: &'q mut Option<Box<dyn Queue + 'f>>) -> Flying<'q, 'f> {
        Flying { queue }
    }

    /// Drives the queue until all requests of a batch have ended.
    pub(super) fn drive(self, batch: &mut Batch<'_>, writes: bool, flyer: &mut dyn Fly) {
        let Some(queue) = self.queue.as_mut() else { return };
        let mut flying: Vec<Option<(u64, Flight)>> = Vec::new();
        let mut free: Vec<usize> = Vec::new();
        loop {
            while queue.len() < queue.depth()
                && let Some((tag, mut request)) = batch.next(writes)
            {
                let index = free.pop().unwrap_or_else(|| {
                    flying.push(None);
                    flying.len() - 1
                });
                let target = match flyer.plan(index, &request) {
                    Plan::Go(target) => target,
                    Plan::Alone => {
                        free.push(index);
                        batch.later.push((tag, Flight::new(request)));
                        continue;
                    }
                    Plan::Pause => {
                        free.push(index);
                        batch.put_back(tag, request);
                        break;
                    }
                };
                let Target { address: offset, what, fua } = target;
                let buffer = std::mem::take(&mut request.buffer);
                let operation = match what {
                    Queued::Read => Operation::Read { offset, buffer },
                    Queued::Over | Queued::First | Queued::Fill => {
                        Operation::Write { offset, buffer, fua }
                    }
                };
                if let Err(refused) = queue.push(index as u64, operation) {
                    // The queue refused the operation although it had room. The request keeps its
                    // buffer and is done afterwards.
                    flyer.refused(index);
                    free.push(index);
                    request.take_back(refused);
                    batch.later.push((tag, Flight::new(request)));
                    continue;
                }
                flying[index] = Some((tag, Flight { request, target: Some(target), result: None }));
            }
            flyer.rest();
            let Some(Finished { tag: index, completion }) = queue.advance() else { break };
            let Completion { operation, result } = completion;
            // Every tag is an index of `flying`, handed back once (U3).
            let index = index as usize;
            let Some((tag, mut flight)) = flying[index].take() else { continue };
            free.push(index);
            flight.request.take_back(operation);
            if let Some(target) = flight.target {
                flight.result = flyer.end(index, &flight.request, target, result);
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
