//! The device behind a server.

mod connections;
mod runs;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use extant_base::sabotage;
use extant_block::{
    AlignedBuffer, BlockDevice, Completion, DeviceError, DeviceFault, Operation, OperationKind,
    Pending, Queue, QueueOptions, ReadRun, WriteRun, check_range,
};
use extant_sync::{Condvar, Mutex, Rank, RwLock, check_may_wait};

use crate::address::Address;
use crate::error::NbdError;
use crate::pipe::{Export, Pipe, read_of};
use crate::queue::Reads;
use crate::tls::Connector;
use crate::unflushed::{Buffers, Unflushed};
use crate::wire::*;

/// Limit of the bytes kept until they are flushed; a further write flushes first.
pub const UNFLUSHED_MAX: u64 = 64 << 20;
/// Requests of one batch under way at once.
const WINDOW: usize = 64;
/// Connections of one device, where the server allows several.
const CONNECTIONS_MAX: usize = 4;
/// Longest discard or write of zeros in one request, in bytes.
const RANGE_MAX: u64 = 1 << 30;

/// How patient a client is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How long a connection, or one reply, may take. 30 seconds. What is longer than 256 KiB has as many seconds more as
    /// it has times that length, while it goes on.
    pub limit: Duration,
    /// How often a lost connection is made again before anything more is answered. 5 times: at once, and
    /// then after a pause that doubles from 100 milliseconds on. When that was in vain, it is tried once for each
    /// request, and not more often than once in a second.
    pub tries: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { limit: Duration::from_secs(30), tries: 5 }
    }
}

/// Idle connections.
struct Pool {
    idle: Vec<Pipe>,
    open: usize,
}

/// A device behind an NBD server.
///
/// Several threads use several connections where the server allows that, otherwise they take turns.
/// A lost connection is made again, writes that were acknowledged and not flushed are repeated
/// (N1), and requests under way are sent again; callers get an error only when that fails.
///
/// A server that neither answers nor ends a connection may still make the changes that it was sent there. They
/// are errors then, and so is every further change until that connection ends (N5).
pub struct NbdDevice {
    address: Address,
    name: Arc<str>,
    settings: Settings,
    /// What makes TLS of connections, if that is asked for.
    connector: Option<Connector>,
    export: Export,
    is_read_only: bool,
    /// Connections that there may be; fewer once another one could not be made.
    connections: AtomicUsize,
    pool: Mutex<Pool>,
    is_free: Condvar,
    /// Lock held shared by threads with requests under way, exclusively by the one that repeats
    /// writes.
    gate: RwLock<()>,
    unflushed: Mutex<Unflushed>,
    /// Flushes that failed, and whether the server may have lost since what it had acknowledged (N7).
    failures: AtomicU64,
    is_in_doubt: AtomicBool,
    /// Connections that were given up with changes under way, and that the server has not ended.
    lingering: Mutex<Vec<Pipe>>,
    /// When it was last in vain to connect, and why.
    down: Mutex<Option<(Duration, String)>>,
    /// How often connections were made again.
    again: AtomicU64,
}

impl NbdDevice {
    /// Connects to the export at `address`.
    ///
    /// # Errors
    ///
    /// [`NbdError`]; [`NbdError::ReadOnly`] only for writing.
    pub fn open(
        address: &Address,
        is_read_only: bool,
        settings: Settings,
    ) -> Result<NbdDevice, NbdError> {
        let connector = match &address.secret {
            Some(secret) => Some(
                Connector::new(&address.at, secret)
                    .map_err(|what| NbdError::Certificates { what })?,
            ),
            None => None,
        };
        let pipe = Pipe::open(address, connector.as_ref(), settings.limit)?;
        let export = pipe.export;
        if !is_read_only && export.flags & READ_ONLY != 0 {
            return Err(NbdError::ReadOnly { address: address.to_string() });
        }
        if !is_read_only && export.flags & SEND_FLUSH == 0 {
            return Err(NbdError::NoFlush { address: address.to_string() });
        }
        if export.block_min > 512 {
            return Err(NbdError::Protocol {
                address: address.to_string(),
                what: format!(
                    "the server wants requests of {} bytes, more than 512",
                    export.block_min
                ),
            });
        }
        let connections = if export.flags & CAN_MULTI_CONN != 0 { CONNECTIONS_MAX } else { 1 };
        Ok(NbdDevice {
            name: address.to_string().into(),
            address: address.clone(),
            settings,
            connector,
            export,
            is_read_only,
            connections: AtomicUsize::new(connections),
            pool: Mutex::new(Rank::Leaf, Pool { idle: vec![pipe], open: 1 }),
            is_free: Condvar::new(),
            gate: RwLock::with_order(Rank::Device, 1 << 20, ()),
            unflushed: Mutex::new(Rank::Leaf, Unflushed::default()),
            failures: AtomicU64::new(0),
            is_in_doubt: AtomicBool::new(false),
            lingering: Mutex::new(Rank::Leaf, Vec::new()),
            down: Mutex::new(Rank::Leaf, None),
            again: AtomicU64::new(0),
        })
    }

    /// How often a lost connection was made again.
    pub fn reconnections(&self) -> u64 {
        self.again.load(Ordering::Relaxed)
    }

    /// Bytes that are kept because they are not flushed.
    pub fn unflushed_bytes(&self) -> u64 {
        self.unflushed.lock().bytes()
    }

    fn has(&self, flag: u16) -> bool {
        self.export.flags & flag != 0
    }

    /// Longest payload of one request, in bytes.
    fn longest(&self) -> u64 {
        u64::from(self.export.payload_max)
    }

    fn fail(&self, operation: &Operation, error: io::Error) -> DeviceError {
        self.failed(operation.kind(), operation.offset(), operation.length(), error)
    }

    fn failed(&self, kind: OperationKind, offset: u64, len: u64, error: io::Error) -> DeviceError {
        DeviceError::new(self.describe(), kind, offset, len, DeviceFault::Io(error))
    }

    /// Splits an operation into requests that the server accepts; `None` if nothing has to be sent.
    fn parts(&self, operation: Operation) -> Vec<Operation> {
        let longest = u64::from(self.export.payload_max);
        let cut = |offset: u64, len: u64, longest: u64| {
            (0..len.div_ceil(longest)).map(move |number| {
                let at = number * longest;
                (offset + at, longest.min(len - at))
            })
        };
        match operation {
            Operation::WriteZeroes { offset, len } if self.has(SEND_WRITE_ZEROES) => {
                cut(offset, len, RANGE_MAX)
                    .map(|(offset, len)| Operation::WriteZeroes { offset, len })
                    .collect()
            }
            Operation::WriteZeroes { offset, len } => cut(offset, len, longest.min(1 << 20))
                .map(|(offset, len)| Operation::Write {
                    offset,
                    buffer: AlignedBuffer::zeroed(len as usize),
                    fua: false,
                })
                .collect(),
            Operation::Discard { offset, len } => cut(offset, len, RANGE_MAX)
                .map(|(offset, len)| Operation::Discard { offset, len })
                .collect(),
            Operation::Read { offset, buffer } if buffer.len() as u64 > longest => {
                cut(offset, buffer.len() as u64, longest)
                    .map(|(offset, len)| read_of(offset, len as usize))
                    .collect()
            }
            Operation::Write { offset, buffer, fua } if buffer.len() as u64 > longest => {
                cut(offset, buffer.len() as u64, longest)
                    .map(|(at, len)| Operation::Write {
                        offset: at,
                        buffer: AlignedBuffer::copy_of(
                            &buffer[(at - offset) as usize..][..len as usize],
                        ),
                        fua,
                    })
                    .collect()
            }
            other => vec![other],
        }
    }

    /// Runs requests that the server takes as they are, many at a time; they come back in their order.
    fn run(
        &self,
        operations: Vec<Operation>,
        buffers: Buffers,
    ) -> Vec<(Operation, io::Result<()>)> {
        let is_flush = operations.iter().any(|operation| matches!(operation, Operation::Flush));
        let mut pipe = self.acquire_or_connect();
        if is_flush && self.is_in_doubt.load(Ordering::Acquire) {
            let (kept, told) = pipe.map_or((None, Ok(())), |pipe| self.restore(pipe));
            pipe = kept;
            if let Err(error) = told {
                self.release(pipe);
                let failed =
                    |operation| (operation, Err(io::Error::new(error.kind(), error.to_string())));
                return operations.into_iter().map(failed).collect();
            }
        }
        let count = operations.len();
        let mut todo: VecDeque<(usize, Operation)> = operations.into_iter().enumerate().collect();
        let mut done: Vec<Option<(Operation, io::Result<()>)>> = (0..count).map(|_| None).collect();
        let mut last = io::Error::from(io::ErrorKind::NotConnected);
        let mut tries = 0;
        while !todo.is_empty() {
            let connected = match pipe.take() {
                Some(pipe) => Ok(pipe),
                None => self.recover(&mut tries, last),
            };
            let left = todo.len();
            last = match connected.map(|pipe| self.exchange(pipe, buffers, &mut todo, &mut done)) {
                Ok(Ok(connected)) => {
                    pipe = Some(connected);
                    break;
                }
                Ok(Err(error)) => error,
                Err(error) => {
                    for (number, operation) in todo.drain(..) {
                        let error = io::Error::new(error.kind(), error.to_string());
                        done[number] = Some((operation, Err(error)));
                    }
                    break;
                }
            };
            // A server that answers something each time is worth another try.
            if todo.len() < left {
                tries = 0;
            }
        }
        self.release(pipe);
        done.into_iter().flatten().collect()
    }

    /// Sends the operations of `todo` and takes the answers. Operations under way when the
    /// connection is lost are put back into `todo`, in order.
    fn exchange(
        &self,
        mut pipe: Pipe,
        buffers: Buffers,
        todo: &mut VecDeque<(usize, Operation)>,
        done: &mut [Option<(Operation, io::Result<()>)>],
    ) -> io::Result<Pipe> {
        let _inside = self.gate.read();
        let mut numbers: VecDeque<(u64, usize)> = VecDeque::new();
        let mut marks: VecDeque<(u64, u64, u64)> = VecDeque::new();
        let failed = loop {
            if todo.is_empty() && pipe.len() == 0 {
                return Ok(pipe);
            }
            let may_send = |(_, operation): &(usize, Operation)| pipe.may_send(operation);
            if pipe.len() < WINDOW && todo.front().is_some_and(may_send) {
                let Some((number, operation)) = todo.pop_front() else { continue };
                if matches!(operation, Operation::Flush) {
                    let failures = self.failures.load(Ordering::Acquire);
                    marks.push_back((number as u64, self.unflushed.lock().next(), failures));
                }
                match pipe.send(operation) {
                    Ok(cookie) => numbers.push_back((cookie, number)),
                    Err((error, operation)) => {
                        todo.push_front((number, operation));
                        break error;
                    }
                }
                continue;
            }
            let mut answer = match pipe.receive() {
                Ok(answer) => answer,
                Err(error) => break error,
            };
            let Some(at) = numbers.iter().position(|(cookie, _)| *cookie == answer.cookie) else {
                continue;
            };
            let number = numbers.remove(at).map_or(0, |(_, number)| number);
            let mut result = match answer.errno {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            };
            if matches!(answer.operation, Operation::Flush) {
                let mark = marks.iter().find(|(of, ..)| *of == number as u64);
                result = self.judge_flush(result, mark.map(|(_, until, before)| (*until, *before)));
            } else if result.is_ok() {
                self.unflushed.lock().note(&mut answer.operation, buffers);
            }
            done[number] = Some((answer.operation, result));
        };
        let (waiting, is_over) = self.give_up(pipe);
        for (cookie, operation) in waiting.into_iter().rev() {
            let Some((_, number)) = numbers.iter().find(|(of, _)| *of == cookie) else { continue };
            let changes = !matches!(operation, Operation::Read { .. } | Operation::Flush);
            match self.check_lingering() {
                Err(error) if !is_over && changes => done[*number] = Some((operation, Err(error))),
                _ => todo.push_front((*number, operation)),
            }
        }
        Err(failed)
    }

    /// Takes the answer to a flush, which was sent when `until` was the number of the next change and `before` flushes
    /// had failed. One that succeeds beside another that failed says nothing: the server may have dropped what that one
    /// was to bring to the disk.
    fn judge_flush(&self, answer: io::Result<()>, mark: Option<(u64, u64)>) -> io::Result<()> {
        if let Err(error) = answer {
            if !sabotage("nbd.client.flush-failed-once") {
                self.failures.fetch_add(1, Ordering::AcqRel);
                self.is_in_doubt.store(true, Ordering::Release);
            }
            return Err(error);
        }
        let Some((until, before)) = mark else { return Ok(()) };
        if self.failures.load(Ordering::Acquire) != before {
            return Err(io::Error::other("another flush has failed meanwhile"));
        }
        self.unflushed.lock().flushed(until);
        Ok(())
    }

    /// One operation of a batch, whole.
    fn one(&self, mut operation: Operation) -> Completion {
        check_may_wait("a device");
        let (kind, offset, len) = (operation.kind(), operation.offset(), operation.length());
        if let Err(error) = check_range(self, kind, offset, len) {
            return Completion { operation, result: Err(error) };
        }
        let is_nothing = match kind {
            OperationKind::Flush => self.is_read_only,
            _ => len == 0,
        };
        if is_nothing {
            return Completion { operation, result: Ok(()) };
        }
        if kind == OperationKind::Discard && !self.has(SEND_TRIM) {
            let error =
                DeviceError::new(self.describe(), kind, offset, len, DeviceFault::Unsupported);
            return Completion { operation, result: Err(error) };
        }
        let changes = matches!(kind, OperationKind::Write | OperationKind::WriteZeroes);
        if (changes || kind == OperationKind::Discard)
            && let Err(error) = self.check_lingering()
        {
            let error = self.fail(&operation, error);
            return Completion { operation, result: Err(error) };
        }
        if changes && self.unflushed_bytes() > UNFLUSHED_MAX {
            // The writes kept stay bounded, and a server that cannot flush gets no more data to
            // lose.
            if let Err(error) = self.flush() {
                return Completion { operation, result: Err(error) };
            }
        }
        let wants_flush = match &mut operation {
            Operation::Write { fua, .. } if *fua && !self.has(SEND_FUA) => {
                *fua = false;
                true
            }
            _ => false,
        };
        let result;
        (operation, result) = self.whole(operation);
        let result = match result {
            Ok(()) if wants_flush => self.flush(),
            other => other,
        };
        Completion { operation, result }
    }

    /// Runs an operation in as many requests as it takes.
    fn whole(&self, operation: Operation) -> (Operation, Result<(), DeviceError>) {
        let (kind, offset, len) = (operation.kind(), operation.offset(), operation.length());
        let is_cut = len > u64::from(self.export.payload_max)
            || (kind == OperationKind::WriteZeroes && !self.has(SEND_WRITE_ZEROES));
        if !is_cut {
            let Some((operation, result)) = self.run(vec![operation], Buffers::GivenBack).pop()
            else {
                return (Operation::Flush, Ok(()));
            };
            let result = result.map_err(|error| self.fail(&operation, error));
            return (operation, result);
        }
        let again = match &operation {
            Operation::Read { .. } => read_of(offset, len as usize),
            Operation::Write { buffer, fua, .. } => {
                Operation::Write { offset, buffer: buffer.clone(), fua: *fua }
            }
            Operation::Discard { .. } => Operation::Discard { offset, len },
            _ => Operation::WriteZeroes { offset, len },
        };
        let mut whole = again;
        for (part, result) in self.run(self.parts(operation), Buffers::GivenBack) {
            if let Err(error) = result {
                let error = self.fail(&part, error);
                return (whole, Err(error));
            }
            if let (Operation::Read { buffer: all, .. }, Operation::Read { offset: at, buffer }) =
                (&mut whole, &part)
            {
                all[(*at - offset) as usize..][..buffer.len()].copy_from_slice(buffer);
            }
        }
        (whole, Ok(()))
    }
}

impl BlockDevice for NbdDevice {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        // Reads of a batch that the server takes as they are go out together.
        let longest = u64::from(self.export.payload_max);
        let is_plain = |operation: &Operation| {
            matches!(operation, Operation::Read { .. })
                && (1..=longest).contains(&operation.length())
                && check_range(self, OperationKind::Read, operation.offset(), operation.length())
                    .is_ok()
        };
        if batch.len() > 1 && batch.iter().all(is_plain) {
            check_may_wait("a device");
            let finished =
                self.run(batch, Buffers::GivenBack).into_iter().map(|(operation, result)| {
                    let result = result.map_err(|error| self.fail(&operation, error));
                    Completion { operation, result }
                });
            return Pending::done(finished.collect());
        }
        Pending::done(batch.into_iter().map(|operation| self.one(operation)).collect())
    }

    /// Reads of a queue are all under way at once, on a connection of the queue's own where the server
    /// allows several.
    fn queue(&self, options: &QueueOptions) -> Box<dyn Queue + '_> {
        let has_own = self.connections.load(Ordering::Relaxed) > 1;
        let pipe = has_own.then(|| self.fresh().ok()).flatten();
        Box::new(Reads::new(self, pipe, self.longest(), options))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.write_parts(offset, &[IoSlice::new(bytes)])
    }

    fn write_vectored_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DeviceError> {
        self.write_parts(offset, parts)
    }

    fn write_runs(&self, runs: &[WriteRun<'_>]) -> Vec<Result<(), DeviceError>> {
        self.write_all(runs)
    }

    fn read_runs(&self, runs: &mut [ReadRun<'_>]) -> Vec<Result<(), DeviceError>> {
        self.read_all(runs)
    }

    fn runs_at_once(&self, _: OperationKind) -> usize {
        WINDOW
    }

    fn size_bytes(&self) -> u64 {
        self.export.size
    }

    fn logical_sector_bytes(&self) -> u32 {
        self.export.block_min.next_power_of_two().max(512)
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn describe(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        for pipe in self.pool.get_mut().idle.drain(..) {
            pipe.close();
        }
    }
}

impl std::fmt::Debug for NbdDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NbdDevice")
            .field("name", &self.name)
            .field("export", &self.export)
            .finish_non_exhaustive()
    }
}
