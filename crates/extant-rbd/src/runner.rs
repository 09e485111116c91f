//! Operations as requests: cut, started, put together again, and judged.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::sabotage;
use extant_block::{AlignedBuffer, Completion, DeviceError, Operation, OperationKind, Wait};
use rustc_hash::FxHashMap;

use crate::board::{Arrival, Board};
use crate::ffi::Call;
use crate::shared::{Shared, kind_of};

/// Longest request that moves bytes.
const TRANSFER_MAX: u64 = 16 << 20;
/// Longest request that moves none.
const RANGE_MAX: u64 = 1 << 30;
/// Longest write of zeros where the library has no request for it.
const ZEROS_MAX: u64 = 4 << 20;

/// An operation under way.
struct Work {
    kind: OperationKind,
    offset: u64,
    len: u64,
    fua: bool,
    /// Whether a flush comes when all parts are done.
    flush_then: bool,
    /// Memory of the operation, while no request has it.
    memory: Option<AlignedBuffer>,
    is_cut: bool,
    /// Parts that are not done.
    left: usize,
    failed: Option<DeviceError>,
}

impl Work {
    fn completion(self) -> Completion {
        let Work { offset, len, .. } = self;
        // What a request still has is not given back; of what failed nobody may rely on the bytes of a read.
        let memory = || AlignedBuffer::zeroed(len as usize);
        let operation = match self.kind {
            OperationKind::Read => {
                Operation::Read { offset, buffer: self.memory.unwrap_or_else(memory) }
            }
            OperationKind::Write => Operation::Write {
                offset,
                buffer: self.memory.unwrap_or_else(memory),
                fua: self.fua,
            },
            OperationKind::Discard => Operation::Discard { offset, len },
            OperationKind::WriteZeroes => Operation::WriteZeroes { offset, len },
            _ => Operation::Flush,
        };
        Completion { operation, result: self.failed.map_or(Ok(()), Err) }
    }
}

/// A request of an operation.
struct Part {
    work: u64,
    call: Call,
    offset: u64,
    len: u64,
}

/// Operations of one caller on an image. They have names, which the caller gives them.
pub(crate) struct Runner {
    shared: Arc<Shared>,
    board: Arc<Board>,
    works: FxHashMap<u64, Work>,
    /// Requests that are not started, with their memory.
    todo: VecDeque<(Part, AlignedBuffer)>,
    /// Requests under way.
    parts: FxHashMap<u64, Part>,
    finished: VecDeque<(u64, Completion)>,
    next: u64,
}

impl Runner {
    pub(crate) fn new(shared: &Arc<Shared>) -> Runner {
        Runner {
            shared: Arc::clone(shared),
            board: Board::new(&shared.flights),
            works: FxHashMap::default(),
            todo: VecDeque::new(),
            parts: FxHashMap::default(),
            finished: VecDeque::new(),
            next: 0,
        }
    }

    /// Takes an operation. It is started by the next call of [`start`](Self::start).
    pub(crate) fn take(&mut self, name: u64, operation: Operation) {
        let (kind, offset, len) = (operation.kind(), operation.offset(), operation.length());
        let checked = self.shared.check(kind, offset, len);
        let is_nothing = match kind {
            OperationKind::Flush => self.shared.is_read_only(),
            _ => len == 0,
        };
        if checked.is_err() || is_nothing {
            let result = checked.map_err(|fault| self.shared.error(kind, offset, len, fault));
            self.finished.push_back((name, Completion { operation, result }));
            return;
        }
        let (call, longest) = match kind {
            OperationKind::Read => (Call::Read, TRANSFER_MAX),
            OperationKind::Write => (Call::Write, TRANSFER_MAX),
            OperationKind::Discard => (Call::Discard(len), RANGE_MAX),
            OperationKind::WriteZeroes if self.shared.can_zero() => (Call::Zero(len), RANGE_MAX),
            OperationKind::WriteZeroes => (Call::Write, ZEROS_MAX),
            _ => (Call::Flush, u64::MAX),
        };
        let is_cut = len > longest;
        let (memory, fua) = match operation {
            Operation::Read { buffer, .. } => (Some(buffer), false),
            Operation::Write { buffer, fua, .. } => (Some(buffer), fua),
            _ => (None, false),
        };
        let flush_then = fua && !sabotage("rbd.runner.fua-not-flushed");
        let failed = None;
        let mut work = Work { kind, offset, len, fua, flush_then, memory, is_cut, left: 0, failed };
        let count = if kind == OperationKind::Flush { 1 } else { len.div_ceil(longest) };
        for number in 0..count {
            let at = number.saturating_mul(longest);
            let len = longest.min(len - at);
            let call = match call {
                Call::Discard(_) => Call::Discard(len),
                Call::Zero(_) => Call::Zero(len),
                other => other,
            };
            let memory = match (call, &mut work.memory) {
                (Call::Flush | Call::Discard(_) | Call::Zero(_), _) => AlignedBuffer::default(),
                (Call::Read, memory) if !is_cut => memory.take().unwrap_or_default(),
                (Call::Write, memory @ Some(_)) if !is_cut => memory.take().unwrap_or_default(),
                (Call::Write, Some(whole)) => {
                    AlignedBuffer::copy_of(&whole[at as usize..][..len as usize])
                }
                // Parts of a long read, and zeros.
                _ => AlignedBuffer::zeroed(len as usize),
            };
            work.left += 1;
            self.todo.push_back((Part { work: name, call, offset: offset + at, len }, memory));
        }
        self.works.insert(name, work);
    }

    /// Starts what there is room for. With [`Wait::Block`] all is started, and waited for where that takes room.
    pub(crate) fn start(&mut self, wait: Wait) {
        while let Some((part, memory)) = self.todo.pop_front() {
            if self.works.get(&part.work).is_some_and(|work| work.failed.is_some()) {
                self.done(&part, Ok(()), None);
                continue;
            }
            let bytes = memory.len() as u64;
            let has_room = self.shared.flights.try_enter(bytes)
                // Others have it, or nobody waits for those who have it.
                || (self.parts.is_empty()
                    && wait == Wait::Block
                    && self.shared.flights.wait_enter(bytes, self.shared.limit()));
            if !has_room {
                self.todo.push_front((part, memory));
                match wait {
                    Wait::Poll => return,
                    Wait::Block if self.parts.is_empty() => self.give_up(),
                    Wait::Block => self.wait(),
                }
                continue;
            }
            let cookie = self.next;
            self.next += 1;
            match self.shared.start(part.call, part.offset, cookie, memory, &self.board) {
                Ok(()) => drop(self.parts.insert(cookie, part)),
                Err(fault) => {
                    let error = self.shared.error(kind_of(part.call), part.offset, part.len, fault);
                    self.done(&part, Err(error), None);
                }
            }
        }
    }

    /// A part is done.
    fn done(
        &mut self,
        part: &Part,
        result: Result<(), DeviceError>,
        memory: Option<AlignedBuffer>,
    ) {
        let Some(work) = self.works.get_mut(&part.work) else { return };
        let is_whole = !work.is_cut && matches!(part.call, Call::Read | Call::Write);
        if let Some(memory) = memory.filter(|_| work.kind != OperationKind::WriteZeroes) {
            match (&mut work.memory, part.call) {
                (slot, _) if is_whole => *slot = Some(memory),
                (Some(whole), Call::Read) if result.is_ok() => {
                    whole[(part.offset - work.offset) as usize..][..memory.len()]
                        .copy_from_slice(&memory);
                }
                _ => {}
            }
        }
        if let Err(error) = result
            && work.failed.is_none()
        {
            work.failed = Some(error);
        }
        work.left -= 1;
        if work.left > 0 {
            return;
        }
        if work.flush_then && work.failed.is_none() {
            (work.flush_then, work.left) = (false, 1);
            let part = Part { work: part.work, call: Call::Flush, offset: 0, len: 0 };
            self.todo.push_back((part, AlignedBuffer::default()));
            return;
        }
        if let Some(work) = self.works.remove(&part.work) {
            self.finished.push_back((part.work, work.completion()));
        }
    }

    fn arrived(&mut self, arrival: Arrival) {
        // One that was given up comes to nobody.
        let Some(part) = self.parts.remove(&arrival.cookie) else { return };
        let result = self
            .shared
            .judge(part.call, part.offset, part.len, arrival.result)
            .map_err(|fault| self.shared.error(kind_of(part.call), part.offset, part.len, fault));
        self.done(&part, result, Some(arrival.memory));
    }

    /// Waits for an arrival, or gives up.
    fn wait(&mut self) {
        match self.board.wait(self.shared.limit()) {
            Some(arrival) => self.arrived(arrival),
            None => self.give_up(),
        }
    }

    /// Nothing came for too long: what is under way fails, and what was to follow with it.
    fn give_up(&mut self) {
        let under_way: Vec<Part> = self.parts.drain().map(|(_, part)| part).collect();
        let waiting: Vec<Part> = self.todo.drain(..).map(|(part, _)| part).collect();
        for part in &under_way {
            // Before anything else can be started.
            drop(self.shared.silence(kind_of(part.call)));
        }
        for part in under_way.into_iter().chain(waiting) {
            if let Some(work) = self.works.get_mut(&part.work) {
                // It ends with an error, and not with a flush.
                work.flush_then = false;
            }
            let kind = kind_of(part.call);
            let error = self.shared.error(kind, part.offset, part.len, self.shared.silence(kind));
            self.done(&part, Err(error), None);
        }
    }

    /// The next operation that is finished; `None` if none is under way, or none has finished and nobody is to wait.
    pub(crate) fn next(&mut self, wait: Wait) -> Option<(u64, Completion)> {
        loop {
            while let Some(arrival) = self.board.poll() {
                self.arrived(arrival);
            }
            if let Some(finished) = self.finished.pop_front() {
                self.start(Wait::Poll);
                return Some(finished);
            }
            self.start(wait);
            if !self.finished.is_empty() {
                continue;
            }
            if self.parts.is_empty() || wait == Wait::Poll {
                return None;
            }
            self.wait();
        }
    }

    /// Waits for all operations, which are named by their numbers.
    pub(crate) fn all(mut self, count: usize) -> Vec<Completion> {
        let mut done: Vec<Option<Completion>> = (0..count).map(|_| None).collect();
        while let Some((name, completion)) = self.next(Wait::Block) {
            if let Some(slot) = done.get_mut(name as usize) {
                *slot = Some(completion);
            }
        }
        done.into_iter().flatten().collect()
    }
}
