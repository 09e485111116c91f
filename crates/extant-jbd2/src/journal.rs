//! The journal of one mounted file system: its handles, and the role of the committing thread.
//!
//! # Invariants
//!
//! - T1. A transaction is locked only while no handle is open, and none opens until its images are
//!   taken.
//! - T2. One thread at a time commits or checkpoints: the one that set `State::busy`. It holds
//!   `Journal::work`. All other threads wait for the outcome.
//! - T3. Before a transaction is locked, at most a third of the log is in use. Charges keep the
//!   transaction to a third of the log; the last third absorbs what the client's encoding adds.

use std::error::Error as _;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant_base::{BlockSize, sabotage};
use extant_block::{BlockDevice, DeviceError, SharedDevice};
use extant_format::jbd2::{
    JournalCompat, JournalIncompat, JournalSuperblock, JournalVersion, Tid as RawTid,
};
use extant_sync::{CachePadded, Gate, Lane, Mutex, Rank};

use crate::client::{
    AbortReason, Client, JournalError, JournalOpenError, JournalOptions, JournalStats, Tid,
    tid_geq, tid_next,
};
use crate::fast_area::FastArea;
use crate::set::BlockSet;
use crate::store::LogStore;
use crate::waiting::{Gathering, Round, State, Waiting, batch_time};
use crate::work::Work;
use crate::write::{copies_in, revokes_per_block};

/// Fewest blocks of a log: a third of them is a small transaction.
const LOG_BLOCKS_MIN: u32 = 32;
/// Fewest pinned blocks.
const PINNED_BLOCKS_MIN: usize = 64;
/// Linux errno of an I/O error.
pub(crate) const EIO: i32 = 5;
/// Linux errno of a full disk.
const ENOSPC: i32 = 28;

/// Counters; they are relaxed, because they order nothing.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) commits: AtomicU64,
    pub(crate) blocks_logged: AtomicU64,
    pub(crate) log_blocks: AtomicU64,
    pub(crate) revokes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) fua_writes: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) home_writes: AtomicU64,
    batched: AtomicU64,
    pub(crate) waits: AtomicU64,
    pub(crate) fast_commits: AtomicU64,
    pub(crate) fast_blocks: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(u64::try_from(by).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// The log of an open journal, as on the device.
pub(crate) struct Log {
    /// The log; its lock admits one writer of the superblock at a time, from the change to the end
    /// of the write: otherwise the checksum of one could cover the fields of another.
    pub(crate) store: Mutex<LogStore>,
    pub(crate) device: SharedDevice,
    pub(crate) external: bool,
}

/// The journal of a mounted file system, with or without a log. See the crate's documentation.
///
/// Dropping it without [`close`](Self::close) is like a crash: committed transactions are in the
/// log, later changes are lost.
pub struct Journal {
    pub(crate) home: SharedDevice,
    pub(crate) block_size: BlockSize,
    pub(crate) client: Arc<dyn Client>,
    pub(crate) options: JournalOptions,
    pub(crate) log: Option<Log>,
    /// Copies that one transaction may hold.
    pub(crate) limit: u32,
    /// Revokes that take one block of the log.
    revokes_per_block: u32,
    /// The gate of the running transaction: threads inside have a handle. Each lane has credits
    /// that are charged to the transaction and belong to no handle.
    pub(crate) gate: Gate<AtomicU32>,
    pub(crate) running: AtomicU32,
    /// The current round: changed while the gate is shut, by the thread that commits.
    round: AtomicU32,
    pub(crate) makes_fast_commits: bool,
    /// Blocks of the running transaction, and credits of open handles. Not beside the numbers that every handle reads.
    pub(crate) charged: CachePadded<AtomicU32>,
    /// A handle was opened in the running transaction. Set inside the gate, cleared while it is shut.
    pub(crate) touched: AtomicBool,
    /// Revokes of the running transaction.
    pub(crate) revokes: CachePadded<AtomicU32>,
    pub(crate) set: BlockSet,
    state: Mutex<State>,
    pub(crate) waiting: Waiting,
    pub(crate) work: Mutex<Work>,
    /// A lock that is taken in debug builds only to check ranks before a wait.
    pub(crate) probe: Mutex<()>,
    pub(crate) stopped: AtomicBool,
    reason: OnceLock<AbortReason>,
    pub(crate) counters: Counters,
}

/// The right to commit and checkpoint (T2).
pub(crate) struct Role<'a> {
    journal: &'a Journal,
    /// The round for which it was taken.
    round: Option<Round>,
}

impl Drop for Role<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.journal.abort(EIO, "a panic in the middle of a commit");
        }
        let mut state = self.journal.state.lock();
        state.busy = false;
        if let Some(round) = self.round.filter(|round| !tid_geq(state.durable, *round)) {
            state.gathering.leave(round);
        }
        // The thread that is woken takes the role, and commits for the others.
        self.journal.waiting.pass_on(state, self.journal.round());
    }
}

impl Journal {
    /// Opens the journal of a clean log: [`recover_to_device`](crate::recover_to_device) comes
    /// first. Nothing is written before the first commit, which marks the log as in use; so the
    /// client sets its own "needs recovery" flag, durably, before its first handle, and clears it
    /// after [`close`](Self::close) (J11).
    ///
    /// # Errors
    ///
    /// [`JournalOpenError`]: a log in use, too small, or of version 1.
    pub fn open(
        store: LogStore,
        home: SharedDevice,
        client: Arc<dyn Client>,
        options: JournalOptions,
    ) -> Result<Arc<Journal>, JournalOpenError> {
        let on_disk = store.superblock();
        if on_disk.is_dirty() && !store.resumed {
            return Err(JournalOpenError::NotClean { start: on_disk.start });
        }
        if on_disk.version == JournalVersion::V1 {
            return Err(JournalOpenError::Version1);
        }
        // Never 0, and never a number that an older transaction had (J9).
        let first = on_disk.sequence.0.max(1);
        let superblock = with_features(on_disk.clone(), options.features, store.is_external());
        let log = superblock.log();
        let found = log.end.saturating_sub(log.start);
        if found < LOG_BLOCKS_MIN {
            let needed = LOG_BLOCKS_MIN;
            return Err(JournalOpenError::TooSmall { found, needed });
        }
        let area = match store.is_external() {
            true => 0..0,
            false => superblock.fast_commit_area(),
        };
        let makes_fast_commits =
            !area.is_empty() && options.features.contains(JournalIncompat::FAST_COMMIT);
        let holes = log.clone().chain(area.clone()).find(|block| store.offset_of(*block).is_none());
        if let Some(block) = holes {
            return Err(JournalOpenError::Unmapped { block });
        }
        let format = superblock.log_format();
        let resumed_at = on_disk.start;
        let head = if store.resumed && log.contains(&resumed_at) {
            resumed_at
        } else if superblock.goes_round() && log.contains(&on_disk.head) {
            on_disk.head
        } else {
            log.start
        };
        let mut copies = copies_in(&format, found / 3);
        // Room for revoke blocks, and for what encoding adds.
        copies = copies.saturating_sub(copies / 8);
        let revokes_per_block = u32::try_from(revokes_per_block(&format)).unwrap_or(u32::MAX);
        let block_size = store.block_size();
        let device = Arc::clone(store.device());
        let external = store.is_external();
        // Fast commits that are still to be applied have the number of the first transaction.
        let closed = store.resumed.then_some(first);
        let store = Mutex::with_order(Rank::JournalState, 1, store);
        let log_part = Log { store, device, external };
        let mut work = Work::new(log, head, superblock);
        if !area.is_empty() {
            work = work.with_fast_area(area, closed, makes_fast_commits);
        }
        let parts = (first, copies, revokes_per_block);
        Ok(Journal::build(home, block_size, client, options, Some(log_part), parts, work))
    }

    /// A journal without a log, for file systems that have none: a commit writes the images home
    /// and flushes. After a crash the file system needs a check.
    pub fn without_log(
        home: SharedDevice,
        block_size: BlockSize,
        client: Arc<dyn Client>,
        options: JournalOptions,
    ) -> Arc<Journal> {
        let parts = (1, u32::MAX, u32::MAX);
        Journal::build(home, block_size, client, options, None, parts, Work::without_log())
    }

    fn build(
        home: SharedDevice,
        block_size: BlockSize,
        client: Arc<dyn Client>,
        mut options: JournalOptions,
        log: Option<Log>,
        (first, copies, revokes_per_block): (Tid, u32, u32),
        work: Work,
    ) -> Arc<Journal> {
        options.pinned_blocks_max = options.pinned_blocks_max.max(PINNED_BLOCKS_MIN);
        let pinned = u32::try_from(options.pinned_blocks_max / 4).unwrap_or(u32::MAX);
        let born = options.clock.monotonic();
        // As if it were, so that waiting for any earlier transaction ends at once.
        let durable = first.wrapping_sub(1);
        let (gathering, took) = (Gathering::default(), Duration::ZERO);
        let (busy, closed, wanted) = (false, false, 0);
        let state = State {
            busy,
            durable,
            durable_tid: durable,
            sealed: durable,
            full: None,
            born,
            closed,
            gathering,
            wanted,
            took,
        };
        let makes_fast_commits = work.fast.as_ref().is_some_and(FastArea::is_used);
        Arc::new(Journal {
            home,
            block_size,
            client,
            options,
            log,
            limit: copies.min(pinned),
            revokes_per_block,
            gate: Gate::default(),
            running: AtomicU32::new(first),
            round: AtomicU32::new(first),
            makes_fast_commits,
            charged: CachePadded::new(AtomicU32::new(0)),
            touched: AtomicBool::new(false),
            revokes: CachePadded::new(AtomicU32::new(0)),
            set: BlockSet::new(),
            state: Mutex::with_order(Rank::JournalState, 0, state),
            waiting: Waiting::new(durable),
            work: Mutex::new(Rank::JournalHandle, work),
            probe: Mutex::new(Rank::JournalHandle, ()),
            stopped: AtomicBool::new(false),
            reason: OnceLock::new(),
            counters: Counters::default(),
        })
    }

    /// [`charge`](Self::charge) that mostly takes from what its lane has to spare: what the handle before it gave back,
    /// or half of what a lane may keep beyond what this handle needs.
    pub(crate) fn reserve(&self, lane: Lane, credits: u32) -> bool {
        let (most, spare) = (self.spare_max() / 2, self.gate.of(lane));
        if credits > self.spare_max() {
            return self.charge(credits);
        }
        let take = |have: u32| have.checked_sub(credits);
        if spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            return true;
        }
        if credits <= most && self.charge(credits.saturating_add(most)) {
            spare.fetch_add(most, Ordering::Relaxed);
            return true;
        }
        self.charge(credits)
    }

    /// Returns credits that a handle did not use to its lane or to the transaction.
    pub(crate) fn give_back(&self, lane: Lane, credits: u32) {
        let most = self.spare_max();
        let put = |have: u32| have.checked_add(credits).filter(|sum| *sum <= most);
        let kept = self.gate.of(lane).fetch_update(Ordering::Relaxed, Ordering::Relaxed, put);
        if kept.is_err() && !sabotage("jbd2.handle.credits-not-returned") {
            self.charged.fetch_sub(credits, Ordering::Relaxed);
        }
    }

    /// What one lane may keep. All lanes together keep at most a quarter of the limit: then a
    /// transaction is committed a little early, which only big transactions would notice.
    fn spare_max(&self) -> u32 {
        self.limit / 64
    }

    /// Adds `credits` blocks to the running transaction. Returns false if there is no room.
    pub(crate) fn charge(&self, credits: u32) -> bool {
        let before = self.charged.fetch_add(credits, Ordering::Relaxed);
        let limit = self.limit.saturating_add(u32::from(sabotage("jbd2.journal.limit-off-by-one")));
        let fits = before.checked_add(credits).is_some_and(|sum| sum <= limit);
        if !fits {
            self.charged.fetch_sub(credits, Ordering::Relaxed);
        }
        fits
    }

    /// Counts a revoke record; true when it begins a block of its own.
    pub(crate) fn charge_revoke(&self) -> bool {
        let before = self.revokes.fetch_add(1, Ordering::Relaxed);
        before.checked_rem(self.revokes_per_block) == Some(0)
    }

    /// Returns the limit of the credits of one handle.
    pub fn credits_max(&self) -> u32 {
        self.limit
    }

    /// Returns the running transaction.
    pub fn running(&self) -> Tid {
        self.running.load(Ordering::Acquire)
    }

    /// Returns the current round: changes made now become durable with it.
    pub fn round(&self) -> Round {
        self.round.load(Ordering::Acquire)
    }

    /// Returns whether the journal makes fast commits.
    pub fn makes_fast_commits(&self) -> bool {
        self.makes_fast_commits
    }

    /// Returns when the changes of `round`, and all before them, are durable, by a fast commit where
    /// one can describe them; [`Handle::round`](crate::Handle::round) is the round of a change.
    /// Otherwise like [`commit`](Self::commit).
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    pub fn sync(&self, round: Round) -> Result<(), JournalError> {
        self.settle(round, true).map(drop)
    }

    /// Returns when transaction `tid` is durable: at once when it is, else after committing it here
    /// or waiting for the thread that does. A transaction without changes is not written. When others
    /// committed lately as well, this waits for them, no longer than
    /// [`batch_time`](JournalOptions::batch_time), and they share one commit.
    ///
    /// # Errors
    ///
    /// [`JournalError::Aborted`] or the device error that led to it.
    pub fn commit(&self, tid: Tid) -> Result<(), JournalError> {
        self.commit_soon(tid, true)
    }

    /// Commits like [`commit`](Self::commit), waiting for other threads or not.
    pub(crate) fn commit_soon(&self, tid: Tid, waits: bool) -> Result<(), JournalError> {
        loop {
            let round = {
                let mut state = self.state.lock();
                if tid_geq(state.durable_tid, tid) {
                    return Ok(());
                }
                if tid == self.running() {
                    // A thread that is about to end this round by a fast commit may not see this;
                    // then the next round is waited for.
                    state.full = Some(self.round());
                    self.round()
                } else {
                    state.sealed
                }
            };
            if !self.settle(round, waits)? {
                return Ok(());
            }
        }
    }

    /// Ends a round, or waits for the thread that does. Returns false when there was nothing to
    /// commit.
    fn settle(&self, round: Round, waits: bool) -> Result<bool, JournalError> {
        if cfg!(debug_assertions) {
            drop(self.probe.try_lock());
        }
        let Some(role) = self.lead_or_follow(round, waits)? else { return Ok(true) };
        let began = self.options.clock.monotonic();
        let committed = match self.commit_fast(&role) {
            Ok(None) => self.commit_running(&role).map(|()| self.round() != round),
            Ok(Some(ended)) => Ok(ended),
            Err(error) => Err(error),
        };
        let took = self.options.clock.monotonic().saturating_sub(began);
        self.state.lock().took = took;
        committed
    }

    /// Returns whether a thread waits for the current round to end with a full commit.
    pub(crate) fn is_full_wanted(&self) -> bool {
        self.state.lock().full == Some(self.round())
    }

    /// Takes the right to commit; `None` when another thread has made round `tid` durable.
    fn lead_or_follow(&self, tid: Round, waits: bool) -> Result<Option<Role<'_>>, JournalError> {
        let mut state = self.state.lock();
        if tid_geq(state.durable, tid) {
            return Ok(None);
        }
        state.gathering.join(tid);
        let mut followed = false;
        loop {
            if tid_geq(state.durable, tid) {
                count(&self.counters.batched, usize::from(followed));
                return Ok(None);
            }
            if self.stopped.load(Ordering::Acquire) {
                return Err(self.stop_error());
            }
            // Only the current round is waited for with a time limit.
            let waits = waits && tid == self.round();
            if !state.busy && (!waits || state.gathering.is_complete(tid)) {
                state.busy = true;
                state.gathering.unwatch(tid, false);
                return Ok(Some(Role { journal: self, round: Some(tid) }));
            }
            if !followed {
                followed = true;
                let (expected, took) = (state.gathering.expected(), state.took);
                drop(state);
                let is_stopped = || self.stopped.load(Ordering::Acquire);
                self.waiting.spin(expected, took, tid, is_stopped);
                state = self.state.lock();
                #[cfg(test)]
                self.waiting.slept.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if waits && state.gathering.watch(tid) {
                let time = batch_time(state.took, &self.options.batch_time);
                let woken = self.waiting.sleep(state, tid, Some(time));
                if woken && self.waiting.is_durable(tid) {
                    count(&self.counters.batched, 1);
                    return Ok(None);
                }
                state = self.state.lock();
                if !tid_geq(state.durable, tid) {
                    state.gathering.unwatch(tid, !woken);
                }
                continue;
            }
            self.waiting.sleep(state, tid, None);
            if self.waiting.is_durable(tid) {
                count(&self.counters.batched, 1);
                return Ok(None);
            }
            state = self.state.lock();
        }
    }

    /// Commits the running transaction if it is older than the interval; for a tick of the caller.
    /// True when it committed.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    pub fn commit_if_due(&self) -> Result<bool, JournalError> {
        let now = self.options.clock.monotonic();
        let tid = self.running();
        {
            let mut state = self.state.lock();
            if state.busy {
                return Ok(false);
            }
            if !self.is_touched() {
                state.born = now;
                return Ok(false);
            }
            if now.saturating_sub(state.born) < self.options.commit_interval {
                return Ok(false);
            }
        }
        self.commit_soon(tid, false)?;
        Ok(self.running() != tid)
    }

    /// Writes committed blocks home, and releases the log.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    pub fn checkpoint(&self) -> Result<(), JournalError> {
        let role = self.role()?;
        self.checkpoint_all(&role)
    }

    /// Commits, writes everything home, and marks the log clean. Handles are refused from then on;
    /// a second call does nothing.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit); the log is not clean then.
    pub fn close(&self) -> Result<(), JournalError> {
        loop {
            let role = match self.role() {
                Err(JournalError::Closed) => return Ok(()),
                role => role?,
            };
            self.commit_running(&role)?;
            if self.close_clean(&role)? {
                return Ok(());
            }
        }
    }

    /// Commits, writes everything home, marks the log clean, and calls `when_clean` while no thread
    /// has a handle. The next commit begins a new log, after
    /// [`Client::encode`](crate::Client::encode). Returns false, without the call, when there were
    /// changes in between.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit), and those of `when_clean`.
    pub fn rest<E: From<JournalError>>(
        &self,
        when_clean: impl FnOnce() -> Result<(), E>,
    ) -> Result<bool, E> {
        let role = self.role()?;
        self.commit_running(&role)?;
        self.clean(&role, when_clean)
    }

    /// Waits for the role; not available after an abort or a close.
    fn role(&self) -> Result<Role<'_>, JournalError> {
        if cfg!(debug_assertions) {
            drop(self.probe.try_lock());
        }
        let mut state = self.state.lock();
        loop {
            if self.stopped.load(Ordering::Acquire) {
                return Err(self.stop_error_in(&state));
            }
            if !state.busy {
                state.busy = true;
                return Ok(Role { journal: self, round: None });
            }
            state.wanted = state.wanted.saturating_add(1);
            self.waiting.sleep_for_role(state);
            state = self.state.lock();
            state.wanted = state.wanted.saturating_sub(1);
        }
    }

    /// Publishes that a round is durable, and with a full commit its transaction: its waiters
    /// continue.
    pub(crate) fn publish(&self, round: Round, tid: Option<Tid>) {
        let mut state = self.state.lock();
        if let Some(tid) = tid {
            state.durable_tid = tid;
        }
        self.waiting.publish(state, round);
    }

    /// Resets all charges: the running transaction is empty, and the gate is shut and empty.
    pub(crate) fn reset_charges(&self) {
        self.gate.all().for_each(|spare| spare.store(0, Ordering::Relaxed));
        self.charged.store(0, Ordering::Relaxed);
        self.revokes.store(0, Ordering::Relaxed);
        self.touched.store(false, Ordering::Relaxed);
    }

    /// Begins the next transaction; the gate is shut and empty.
    pub(crate) fn switch(&self, tid: Tid) {
        let mut state = self.state.lock();
        if !sabotage("jbd2.journal.born-with-the-journal") {
            state.born = self.options.clock.monotonic();
        }
        state.sealed = self.round();
        self.round.store(tid_next(self.round()), Ordering::Release);
        self.running.store(tid_next(tid), Ordering::Release);
    }

    /// Begins the next round of the running transaction; the gate is shut and empty.
    pub(crate) fn next_round(&self) {
        let _state = self.state.lock();
        self.round.store(tid_next(self.round()), Ordering::Release);
    }

    /// Refuses handles from now on; the gate is shut and empty.
    pub(crate) fn set_closed(&self) {
        self.state.lock().closed = true;
        self.stopped.store(true, Ordering::Release);
        // Threads about to wait have seen `stopped` or are waiting. None of them takes the role.
        drop(self.state.lock());
        self.waiting.wake_all();
    }

    /// Aborts the journal: no later handle, commit or home write. Committed transactions stay in
    /// the log. `errno`, positive, is stored in the journal superblock if that can still be
    /// written. The first call counts, later ones do nothing.
    pub fn abort(&self, errno: i32, why: &str) {
        let reason = AbortReason { errno, why: why.to_owned() };
        if self.reason.set(reason).is_err() {
            return;
        }
        self.stopped.store(true, Ordering::Release);
        // Threads about to wait have seen `stopped` or are waiting.
        drop(self.state.lock());
        self.waiting.wake_all();
        if let Some(log) = &self.log {
            let mut store = log.store.lock();
            let positive = errno.saturating_abs();
            let errno = match sabotage("jbd2.abort.errno-positive") {
                true => positive,
                false => positive.saturating_neg(),
            };
            let superblock = JournalSuperblock { errno, ..store.superblock().clone() };
            // Best effort: the device may be what failed.
            let _ = store.write_superblock(superblock);
        }
        if let Some(reason) = self.reason.get() {
            self.client.aborted(reason);
        }
    }

    /// Aborts the journal like a power cut: as [`abort`](Self::abort), but nothing is written, not
    /// even the abort. The outcome of writes under way is undefined.
    pub fn cut(&self, why: &str) {
        let reason = AbortReason { errno: EIO, why: why.to_owned() };
        if self.reason.set(reason).is_err() {
            return;
        }
        self.stopped.store(true, Ordering::Release);
        drop(self.state.lock());
        self.waiting.wake_all();
    }

    /// Returns the reason of the abort, if there was one.
    pub fn abort_reason(&self) -> Option<&AbortReason> {
        self.reason.get()
    }

    /// True after an abort.
    pub fn is_aborted(&self) -> bool {
        self.reason.get().is_some()
    }

    /// Sets the number of threads expected at the next commit.
    #[cfg(test)]
    pub(crate) fn expect_committers(&self, count: u32) {
        self.state.lock().gathering.expect(count);
    }

    /// Fails after an abort.
    pub(crate) fn check(&self) -> Result<(), JournalError> {
        match self.reason.get() {
            Some(AbortReason { errno, why }) => {
                Err(JournalError::Aborted { errno: *errno, why: why.clone() })
            }
            None => Ok(()),
        }
    }

    pub(crate) fn stop_error(&self) -> JournalError {
        self.check().err().unwrap_or(JournalError::Closed)
    }

    fn stop_error_in(&self, state: &State) -> JournalError {
        if state.closed { JournalError::Closed } else { self.stop_error() }
    }

    /// Aborts because a device failed (J8), and returns the error for the caller.
    pub(crate) fn failed(&self, error: DeviceError) -> JournalError {
        let mut why = error.to_string();
        if let Some(cause) = error.source() {
            let _ = write!(why, ": {cause}");
        }
        let errno = match error.is_full() {
            true => {
                why.insert_str(0, "the disk that holds it is full (make room there): ");
                ENOSPC
            }
            false => EIO,
        };
        self.abort(errno, &why);
        JournalError::Device(error)
    }

    pub(crate) fn flush(&self, device: &dyn BlockDevice) -> Result<(), JournalError> {
        count(&self.counters.flushes, 1);
        device.flush().map_err(|error| self.failed(error))
    }

    /// Returns the counters of the journal.
    pub fn stats(&self) -> JournalStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        JournalStats {
            commits: get(&counters.commits),
            handles: self.gate.entered(),
            blocks_logged: get(&counters.blocks_logged),
            log_blocks: get(&counters.log_blocks),
            revokes: get(&counters.revokes),
            flushes: get(&counters.flushes),
            fua_writes: get(&counters.fua_writes),
            checkpoints: get(&counters.checkpoints),
            home_writes: get(&counters.home_writes),
            batched: get(&counters.batched),
            waits: get(&counters.waits),
            fast_commits: get(&counters.fast_commits),
            fast_blocks: get(&counters.fast_blocks),
        }
    }
}

/// Returns the superblock with the features that this journal will use.
fn with_features(
    mut superblock: JournalSuperblock,
    wanted: JournalIncompat,
    is_external: bool,
) -> JournalSuperblock {
    let mut known = JournalIncompat::BLOCKS_64BIT | JournalIncompat::CSUM_V3;
    if !is_external {
        known |= JournalIncompat::FAST_COMMIT;
    }
    let wanted = wanted & known;
    let had_fast_commits = superblock.incompat.contains(JournalIncompat::FAST_COMMIT);
    superblock.incompat |= wanted | JournalIncompat::REVOKE;
    if wanted.contains(JournalIncompat::CSUM_V3) {
        superblock.incompat.remove(JournalIncompat::CSUM_V2);
        superblock.compat.remove(JournalCompat::CHECKSUM);
        superblock.checksum_type = 4;
    }
    // A journal that is too small for them, as `tune2fs -O fast_commit` leaves one, works without: with the feature, Linux and
    // e2fsck would call it corrupt.
    if !had_fast_commits && !superblock.fast_commits_fit() {
        superblock.incompat.remove(JournalIncompat::FAST_COMMIT);
    }
    // The commit block waits for everything before it, here.
    superblock.incompat.remove(JournalIncompat::ASYNC_COMMIT);
    superblock.sequence = RawTid(superblock.sequence.0.max(1));
    superblock
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("running", &self.running())
            .field("limit", &self.limit)
            .field("aborted", &self.reason.get())
            .finish_non_exhaustive()
    }
}
