//! Requests over the kernel's rings: for each processor a queue, and threads that stay on that
//! processor.
//!
//! # Shape
//!
//! A program's request goes to the queue of the processor that it runs on. Each queue has a few
//! threads there, each with a ring and one slot: a thread takes a request, answers it, and asks for
//! the next in the same system call that gives the answer back. A thread that blocks occupies only
//! its own slot. Requests without a queue (forgets, interrupts) are still read from `/dev/fuse`, by
//! two further threads.
//!
//! While the file system is frozen, a request that changes something stays in its slot, and the
//! thread takes another slot in its place (`gate`).
//!
//! # Invariants
//!
//! - Q1. Every queue has threads before the first request comes, or there is no mount.
//! - Q2. A thread waits for the kernel to write back only while it has one slot (`may_wait_here`)
//!   and another thread of the same queue is free: no request that it waits for lies in a slot of
//!   its own. A request that has to wait while this does not hold is put off: it is done by threads
//!   without slots, and its own thread takes others and hands out the answer.
//! - Q3. Requests that came while all slots of a queue were taken are handed out when an answer is
//!   given, and only then. A thread that keeps a slot without answering, until a thaw or because its
//!   request is put off, adds others to its queue,
//!   and makes the kernel send a request, if it knows a regular file for that (Linux accepts no
//!   other).

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant_fuse_ring::{Bell, Event, Message, OP_BYTES, Obstacle, Ring, SlotId, pin};
use extant_sync::threads::{self, Receiver, Sender};
use extant_sync::{Mutex, Rank};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, OutHeader, op};
use crate::connection::{Request, code};
use crate::dispatch::{Contents, Desk, Outcome};
use crate::events::{Events, Level, ServeError};
use crate::gate::Gate;
use crate::operations::{Errno, Operations, ReadAnswer};
use crate::patience::Experience;
use crate::session::{Agreed, Session, attempt, changes};
use crate::settings::Settings;
use crate::stats::RequestStats;

/// Most threads for all queues together, and so most slots in ordinary times: 1 MiB of addresses each, of
/// which as much becomes memory as requests of that thread have needed.
const THREADS_MAX: usize = 128;
/// Threads for each queue: the fewest that Q2 allows, and how many it takes to have a device busy.
const PER_QUEUE_MIN: usize = 2;
const PER_QUEUE: usize = 4;
/// Threads that read `/dev/fuse`.
const READERS: usize = 2;
/// Threads that do what was put off.
const WAITERS: usize = 2;
/// Limit of the requests that are put off at once; further ones end with `EAGAIN`.
const PUT_OFF_MAX: usize = 1024;
/// Pause before a request that was put off is tried again, and number of such pauses before it ends with
/// `EAGAIN`: half a minute.
const TURN: Duration = Duration::from_millis(2);
const TURNS: u32 = 15_000;
/// Limit of the slots of one thread: all but one may hold requests while the file system is frozen.
const SLOTS_MAX: usize = 256;
/// Slots that a thread offers when it keeps a request, so that few requests find all of them taken.
const SPARE: usize = 32;
/// Commands that may fail one after the other for no reason that is known here, for each thread.
const FAILURES_MAX: u32 = 16;
/// A request has this much payload at least.
const PAYLOAD_MIN: usize = 8192;

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
}

/// Returns whether the calling thread may wait for what other threads answer (Q2).
pub(crate) fn may_wait_here() -> bool {
    MAY_WAIT.get()
}

/// Rings for all queues, which nothing has come over yet.
#[derive(Debug)]
pub struct Rings {
    /// `per_queue` for each queue, one queue after the other.
    rings: Vec<Ring>,
    /// For each queue, whether its threads may run on its processor.
    allowed: Vec<bool>,
    per_queue: usize,
}

impl Rings {
    /// Creates the rings of a mount. Later system calls create no new kind of object, so a sandbox
    /// may begin between this and [`serve_over`](crate::serve_over).
    ///
    /// # Errors
    ///
    /// [`Obstacle`]: the kernel has no FUSE over io_uring, or not for this process.
    pub fn prepare(settings: &Settings) -> Result<Rings, Obstacle> {
        extant_fuse_ring::obstacle()?;
        let queues = extant_fuse_ring::processors().map_err(Obstacle::Forbidden)?;
        let per_queue = settings.threads.div_ceil(queues.max(1)).max(PER_QUEUE);
        let per_queue = per_queue.min(THREADS_MAX / queues.max(1));
        if per_queue < PER_QUEUE_MIN {
            return Err(Obstacle::TooManyProcessors(queues));
        }
        let payload = (settings.write_bytes_max.clamp(4096, 1 << 20) as usize).max(PAYLOAD_MIN);
        let rings = (0..queues * per_queue).map(|_| Ring::new(payload));
        let rings = rings.collect::<io::Result<_>>().map_err(Obstacle::Forbidden)?;
        Ok(Rings { rings, allowed: extant_fuse_ring::processors_allowed(queues), per_queue })
    }

    /// Threads that will answer.
    pub(crate) fn threads(&self) -> usize {
        self.rings.len() + READERS + WAITERS
    }

    /// Returns how many of them serve the same queue.
    pub(crate) fn per_queue(&self) -> usize {
        self.per_queue
    }

    /// Answers requests until the mount is gone.
    pub(crate) fn run(
        self,
        session: &Session,
        operations: &dyn Operations,
        agreed: Agreed,
        stats: &RequestStats,
        events: &dyn Events,
    ) -> Result<(), ServeError> {
        let Rings { rings, allowed, per_queue } = self;
        let count = rings.len();
        let bells: Vec<Arc<Bell>> = rings.iter().map(Ring::bell).collect();
        let first_error = Mutex::new(Rank::Leaf, None);
        let gives_up = AtomicBool::new(false);
        let (said, heard) = threads::channel(count);
        let (later, put_off) = threads::channel(PUT_OFF_MAX);
        threads::scope(|scope| {
            let (first_error, gives_up) = (&first_error, &gives_up);
            let give_up = || {
                gives_up.store(true, Ordering::SeqCst);
                bells.iter().for_each(|bell| bell.ring());
            };
            for (index, ring) in rings.into_iter().enumerate() {
                let queue = index / per_queue;
                let may_pin = allowed.get(queue).is_some_and(|may| *may);
                let desk = Desk {
                    operations,
                    lane: stats.lane(index),
                    direct_in_parallel: agreed.direct_in_parallel(),
                };
                let mut worker = Worker {
                    session,
                    desk,
                    gate: operations.gate(),
                    events,
                    gives_up,
                    queue: queue as u16,
                    bell: ring.bell(),
                    inbox: Arc::new(Inbox::of(ring.bell())),
                    later: later.clone(),
                    ring,
                    kept: Vec::new(),
                    failures: 0,
                };
                let said = said.clone();
                let work = move || {
                    let begun = worker.begin(may_pin);
                    let begins = begun.is_ok();
                    let first = begun.unwrap_or_else(|error| {
                        first_error.lock().get_or_insert(error);
                        None
                    });
                    let _ = said.send(begins);
                    if begins && let Err(error) = worker.work(first) {
                        let text = format!("a thread of processor {queue} ended: {error}");
                        worker.events.log(Level::Error, &text);
                        first_error.lock().get_or_insert(error);
                    }
                };
                if let Err(error) = scope.spawn(&format!("fuse-{queue}-{index}"), work) {
                    give_up();
                    return Err(ServeError::from(error));
                }
            }
            // It ends with the threads that have rings.
            drop(later);
            if (0..count).any(|_| heard.recv() != Ok(true)) {
                give_up(); // Q1
                return Ok(());
            }
            for waiter in 0..WAITERS {
                let desk = Desk {
                    operations,
                    lane: stats.lane(count + READERS + waiter),
                    direct_in_parallel: agreed.direct_in_parallel(),
                };
                let put_off = put_off.clone();
                let wait = move || do_what_was_put_off(&put_off, &desk, session, events);
                if let Err(error) = scope.spawn(&format!("fuse-waiter-{waiter}"), wait) {
                    give_up();
                    return Err(ServeError::from(error));
                }
            }
            for reader in 0..READERS {
                let read = move || {
                    let index = count + reader;
                    if let Err(error) = session.work(index, operations, agreed, stats, None, events)
                    {
                        first_error.lock().get_or_insert(error);
                    }
                };
                if let Err(error) = scope.spawn(&format!("fuse-{reader}"), read) {
                    give_up();
                    return Err(ServeError::from(error));
                }
            }
            Ok(())
        })??;
        first_error.into_inner().map_or(Ok(()), |error| Err(error.into()))
    }
}

/// A request that its thread may not wait for (Q2).
struct PutOff {
    asked: InHeader,
    fixed: [u8; OP_BYTES],
    body: Vec<u8>,
    began: Duration,
    slot: SlotId,
    from: Arc<Inbox>,
}

/// What became of requests that were put off.
struct Inbox {
    bell: Arc<Bell>,
    done: Mutex<Vec<(PutOff, Outcome)>>,
}

impl Inbox {
    fn of(bell: Arc<Bell>) -> Inbox {
        Inbox { bell, done: Mutex::new(Rank::Leaf, Vec::new()) }
    }
}

/// Does what was put off, and tells those who have the slots, until they are gone.
fn do_what_was_put_off(
    put_off: &Receiver<PutOff>,
    desk: &Desk<'_>,
    session: &Session,
    events: &dyn Events,
) {
    while let Ok(one) = put_off.recv() {
        let mut turns = 0..TURNS;
        let outcome = loop {
            let request = Request::of_parts(one.asked, &one.fixed, &one.body, one.body.len());
            let Some(request) = request else { break Outcome::Failed(Errno::EIO) };
            let mut contents = Filled { room: &mut [], sent: None };
            match attempt(desk, request, &mut contents, events) {
                Outcome::Failed(Errno::LATER) if turns.next().is_some() => {
                    session.clock.sleep(TURN);
                }
                Outcome::Failed(Errno::LATER) => break Outcome::Failed(Errno::EAGAIN),
                outcome => break outcome,
            }
        };
        let from = Arc::clone(&one.from);
        from.done.lock().push((one, outcome));
        from.bell.ring();
    }
}

/// One thread with its ring.
struct Worker<'a> {
    session: &'a Session,
    desk: Desk<'a>,
    gate: &'a Gate,
    events: &'a dyn Events,
    /// Whether all threads end because not all could begin.
    gives_up: &'a AtomicBool,
    queue: u16,
    bell: Arc<Bell>,
    inbox: Arc<Inbox>,
    later: Sender<PutOff>,
    ring: Ring,
    /// Slots whose requests wait for a thaw.
    kept: Vec<SlotId>,
    failures: u32,
}

/// The outcome of the request in a slot.
enum Done {
    /// The answer lies in the slot, with so much payload.
    Answered(usize),
    /// The request waits for a thaw.
    Kept,
    /// Others do what the request asks for, and ring the bell.
    PutOff,
}

impl Worker<'_> {
    /// Gives the kernel a slot. An event that came in the meantime is returned.
    fn begin(&mut self, may_pin: bool) -> io::Result<Option<Event>> {
        if may_pin {
            // Elsewhere it works too, slower.
            let _ = pin(usize::from(self.queue));
        }
        self.ring.open(self.session.connection.duplicate()?)?;
        self.ring.offer(self.queue)?;
        self.ring.submit()?;
        if !self.ring.has_event() {
            return Ok(None);
        }
        match self.ring.wait()? {
            Event::Ended(_, errno) if !is_end(errno) => Err(io::Error::from_raw_os_error(errno)),
            event => Ok(Some(event)),
        }
    }

    /// Answers until the mount is gone.
    fn work(&mut self, first: Option<Event>) -> io::Result<()> {
        let mut experience = Experience::default();
        let mut event = first;
        loop {
            let next = match event.take() {
                Some(event) => event,
                None => self.ring.wait()?,
            };
            match next {
                Event::Request(slot) => {
                    self.failures = 0;
                    self.session.patience.note_request();
                    self.take(slot)?;
                    self.look(&mut experience)?;
                }
                Event::Bell => {
                    if self.gives_up.load(Ordering::SeqCst) {
                        return Ok(());
                    }
                    let done = std::mem::take(&mut *self.inbox.done.lock());
                    for (one, outcome) in done {
                        if let Some(payload) =
                            self.put(&one.asked, one.slot, one.began, outcome, None)
                        {
                            self.ring.commit(one.slot, payload)?;
                        }
                    }
                    for slot in std::mem::take(&mut self.kept) {
                        self.take(slot)?;
                    }
                }
                Event::Ended(_, errno) if is_end(errno) => {
                    if self.ring.away() == 0 {
                        return Ok(());
                    }
                }
                Event::Ended(_, errno) => {
                    let error = io::Error::from_raw_os_error(errno);
                    self.failures += 1;
                    if self.failures > FAILURES_MAX {
                        return Err(error);
                    }
                    let text = format!("the kernel gave a slot back: {error}; it gets another");
                    self.events.log(Level::Warning, &text);
                    self.ring.offer(self.queue)?;
                }
            }
        }
    }

    fn look(&mut self, experience: &mut Experience) -> io::Result<()> {
        let (mut submitted, ring) = (None, &mut self.ring);
        self.session.patience.stay(experience, &*self.session.clock, || {
            let sent = submitted.get_or_insert_with(|| ring.submit());
            sent.is_err() || ring.has_event()
        });
        submitted.unwrap_or(Ok(()))
    }

    /// Answers the request in a slot, or keeps it.
    fn take(&mut self, slot: SlotId) -> io::Result<()> {
        match self.answer(slot) {
            Some(Done::Answered(payload)) => self.ring.commit(slot, payload),
            Some(Done::Kept) => {
                self.kept.push(slot);
                self.go_on_without()
            }
            Some(Done::PutOff) => self.go_on_without(),
            None => Ok(()),
        }
    }

    /// Goes on with other slots while a request stays in its own (Q3).
    fn go_on_without(&mut self) -> io::Result<()> {
        while self.ring.slots() < SLOTS_MAX && self.ring.away() < SPARE {
            MAY_WAIT.set(false);
            self.ring.offer(self.queue)?;
        }
        self.ring.submit()?;
        if let Some(file) = self.desk.operations.some_file() {
            // The answer makes the queue continue. The file may be forgotten by now.
            let _ = self.session.connection.ask_to_be_asked(file);
        }
        Ok(())
    }

    /// Answers the request in a slot; `None` when the kernel owns the slot.
    fn answer(&mut self, slot: SlotId) -> Option<Done> {
        let Message { header, op: fixed, payload, payload_len } = self.ring.message(slot)?;
        let (asked, _) = InHeader::read_from_prefix(&header[..]).ok()?;
        let began = self.session.clock.monotonic();
        let (outcome, sent) = {
            // The request's data lies where its answer goes, except that a read has no data.
            let (body, room) = match asked.opcode {
                op::READ => (&[][..], &mut *payload),
                _ => (&payload[..payload_len], &mut [][..]),
            };
            match Request::of_parts(asked, fixed, body, body.len()) {
                None => {
                    self.events.log(Level::Error, "a malformed request was refused");
                    (Outcome::Failed(Errno::EIO), None)
                }
                Some(request) => {
                    let entered = changes(&request).then(|| self.gate.enter_or_keep(&self.bell));
                    if let Some(None) = entered {
                        return Some(Done::Kept);
                    }
                    let mut contents = Filled { room, sent: None };
                    let outcome = attempt(&self.desk, request, &mut contents, self.events);
                    if let Some(Some(lane)) = entered {
                        self.gate.leave(lane);
                    }
                    let outcome = match outcome {
                        Outcome::Failed(Errno::LATER) => {
                            let (fixed, body) = (*fixed, body.to_vec());
                            let from = Arc::clone(&self.inbox);
                            // What goes through the gate belongs to this thread.
                            let may_go = !matches!(entered, Some(Some(_)));
                            let one = PutOff { asked, fixed, body, began, slot, from };
                            if may_go && self.later.try_send(one).is_ok() {
                                return Some(Done::PutOff);
                            }
                            Outcome::Failed(Errno::EAGAIN)
                        }
                        outcome => outcome,
                    };
                    (outcome, contents.sent)
                }
            }
        };
        self.put(&asked, slot, began, outcome, sent).map(Done::Answered)
    }

    /// Puts the answer to a request into its slot; returns the length of its payload.
    fn put(
        &mut self,
        asked: &InHeader,
        slot: SlotId,
        began: Duration,
        outcome: Outcome,
        sent: Option<usize>,
    ) -> Option<usize> {
        let Message { header, payload, .. } = self.ring.message(slot)?;
        let (error, len) = match outcome {
            // The kernel waits for the slot itself.
            Outcome::Silent | Outcome::Nothing => (0, 0),
            Outcome::Sent => (0, sent.unwrap_or(0)),
            Outcome::Bytes(bytes) => match payload.get_mut(..bytes.len()) {
                Some(to) => {
                    to.copy_from_slice(&bytes);
                    (0, bytes.len())
                }
                None => {
                    let why = format!("{} bytes", bytes.len());
                    self.session.tell_refused(asked.opcode, &why, self.events);
                    (code(Errno::EIO), 0)
                }
            },
            Outcome::Failed(error) => (code(error), 0),
        };
        let whole = (size_of::<OutHeader>() + len) as u32;
        let answer = OutHeader { len: whole, error, unique: asked.unique };
        header[..size_of::<OutHeader>()].copy_from_slice(answer.as_bytes());
        #[cfg(test)]
        let len = match self.session.connection.mangle.get().filter(|_| error == 0) {
            Some(mangle) => mangle_slot(mangle, header, payload, len),
            None => len,
        };
        let took = self.session.clock.monotonic().saturating_sub(began);
        self.desk.lane.count(asked.opcode, took, error != 0);
        Some(len)
    }
}

/// Lets a test change the answer in a slot; returns the length of its payload afterwards.
#[cfg(test)]
fn mangle_slot(
    mangle: &crate::connection::Mangle,
    header: &mut [u8],
    payload: &mut [u8],
    len: usize,
) -> usize {
    let (head, _) = header.split_at_mut(size_of::<OutHeader>());
    let mut all = [&*head, &payload[..len]].concat();
    mangle(&mut all);
    let (new_head, body) = all.split_at(head.len());
    head.copy_from_slice(new_head);
    let fits = body.len().min(payload.len());
    payload[..fits].copy_from_slice(&body[..fits]);
    fits
}

/// The reply to a read: put where the kernel takes it from.
struct Filled<'a> {
    room: &'a mut [u8],
    sent: Option<usize>,
}

impl ReadAnswer for Filled<'_> {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        debug_assert!(self.sent.is_none(), "one answer");
        let mut len = 0;
        for part in parts {
            let to = self.room.get_mut(len..).and_then(|rest| rest.get_mut(..part.len()));
            to.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(part);
            len += part.len();
        }
        self.sent = Some(len);
        Ok(())
    }

    fn buffer(&mut self, len: usize) -> Option<&mut [u8]> {
        self.room.get_mut(..len)
    }

    fn send_filled(&mut self, len: usize) -> io::Result<()> {
        debug_assert!(self.sent.is_none(), "one answer");
        if len > self.room.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.sent = Some(len);
        Ok(())
    }
}

impl Contents for Filled<'_> {
    fn sent(&self) -> Option<u64> {
        self.sent.map(|len| len as u64)
    }
}

/// Returns whether a command failed because there is no mount any more.
fn is_end(errno: i32) -> bool {
    use rustix::io::Errno as Os;
    [Os::NOTCONN, Os::CONNABORTED, Os::CANCELED, Os::NODEV].map(Os::raw_os_error).contains(&errno)
}
