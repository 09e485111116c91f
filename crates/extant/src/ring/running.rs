//! Operations as futures, for any executor.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use extant_sync::{Mutex, Rank};

use super::op::{Completion, Request};
use super::{Outcome, Shared, Started};

/// The place where a worker puts the outcome of an awaited operation.
pub(super) struct Slot {
    state: Mutex<(Option<Outcome>, Option<Waker>)>,
}

impl Slot {
    fn new() -> Arc<Slot> {
        Arc::new(Slot { state: Mutex::new(Rank::Leaf, (None, None)) })
    }

    /// Stores the outcome and wakes the future. The caller holds no lock, because wakers are
    /// foreign code.
    pub(super) fn fill(&self, outcome: Outcome) {
        let waker = {
            let mut state = self.state.lock();
            state.0 = Some(outcome);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll(&self, waker: &Waker) -> Option<Outcome> {
        let mut state = self.state.lock();
        let outcome = state.0.take();
        if outcome.is_none() {
            state.1 = Some(waker.clone());
        }
        outcome
    }
}

/// Futures that wait for room in the ring, in order.
pub(super) struct Room {
    waiting: Mutex<VecDeque<(u64, Waker)>>,
    /// Number of waiting futures; while it is 0, the lock is not needed.
    count: AtomicUsize,
    next: AtomicUsize,
}

impl Default for Room {
    fn default() -> Room {
        let waiting = Mutex::new(Rank::Leaf, VecDeque::new());
        Room { waiting, count: AtomicUsize::new(0), next: AtomicUsize::new(0) }
    }
}

impl Room {
    /// Wakes one future, because there is room for one more, which the caller has made known by a
    /// sequentially consistent operation. The caller holds no lock.
    pub(super) fn wake_one(&self) {
        // A future that enters checks for room once more after this thread could see it.
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let first = {
            let mut waiting = self.waiting.lock();
            let first = waiting.pop_front();
            self.count.store(waiting.len(), Ordering::SeqCst);
            first
        };
        if let Some((_, waker)) = first {
            waker.wake();
        }
    }

    /// Wakes all futures, because there will be no room any more.
    pub(super) fn wake_all(&self) {
        let all = std::mem::take(&mut *self.waiting.lock());
        self.count.store(0, Ordering::SeqCst);
        all.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Enters the queue of waiting futures, or keeps a place in it. Returns the number of the
    /// place.
    fn enter(&self, number: Option<u64>, waker: &Waker) -> u64 {
        let mut waiting = self.waiting.lock();
        let number = match number {
            Some(number) => {
                if let Some(place) = waiting.iter_mut().find(|place| place.0 == number) {
                    place.1 = waker.clone();
                    return number;
                }
                // The future was woken, but others were faster: it is the first again.
                waiting.push_front((number, waker.clone()));
                number
            }
            None => {
                let number = self.next.fetch_add(1, Ordering::Relaxed) as u64;
                waiting.push_back((number, waker.clone()));
                number
            }
        };
        self.count.store(waiting.len(), Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        number
    }

    /// Leaves the queue. Returns whether the future still had its place, so that it was not woken.
    fn leave(&self, number: u64) -> bool {
        let mut waiting = self.waiting.lock();
        let before = waiting.len();
        waiting.retain(|place| place.0 != number);
        self.count.store(waiting.len(), Ordering::SeqCst);
        waiting.len() < before
    }
}

enum Stage {
    /// Not submitted; after it found the ring full, with its place among the waiting futures.
    New(Box<Request>, Option<u64>),
    /// With the workers.
    Queued {
        slot: Arc<Slot>,
        number: u64,
    },
    Over,
}

/// An operation as a future, from [`Ring::run`](super::Ring::run). It is submitted when it is first
/// polled.
///
/// Any executor can run it. Dropping it cancels an operation that has not begun; an operation that
/// has begun completes, and its result is lost. A future may outlive its ring: accepted operations
/// are done, and others return [`OperationCancelled`](crate::FsError::OperationCancelled).
#[must_use = "futures do nothing unless they are polled"]
pub struct Running {
    shared: Arc<Shared>,
    stage: Stage,
}

impl Running {
    pub(super) fn new(shared: Arc<Shared>, request: Request) -> Running {
        Running { shared, stage: Stage::New(Box::new(request), None) }
    }
}

impl Future for Running {
    type Output = Completion;

    /// # Panics
    ///
    /// If the operation panicked, which is a bug of this crate, or if the future is polled after it
    /// was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        let this = &mut *self;
        let (mut request, mut place) = match std::mem::replace(&mut this.stage, Stage::Over) {
            Stage::New(request, place) => (request, place),
            Stage::Queued { slot, number } => {
                let Some(outcome) = slot.poll(context.waker()) else {
                    this.stage = Stage::Queued { slot, number };
                    return Poll::Pending;
                };
                return match outcome {
                    Ok(returned) => Poll::Ready(returned.completion),
                    Err(panic) => resume_unwind(panic),
                };
            }
            Stage::Over => panic!("the result of this operation has been taken"),
        };
        let slot = Slot::new();
        // The waker is stored before the submission, because a worker may fill the slot at once.
        _ = slot.poll(context.waker());
        for is_last in [false, true] {
            match this.shared.start(*request, Some(&slot)) {
                Started::Done(completion) => {
                    this.go(place, false);
                    return Poll::Ready(completion);
                }
                Started::Queued(number) => {
                    this.go(place, true);
                    this.stage = Stage::Queued { slot, number };
                    return Poll::Pending;
                }
                Started::Full(given_back) => request = Box::new(given_back),
            }
            if !is_last {
                // The check is repeated afterwards, because room may have appeared in between
                // without a wakeup.
                place = Some(this.shared.room.enter(place, context.waker()));
            }
        }
        this.stage = Stage::New(request, place);
        Poll::Pending
    }
}

impl Running {
    /// Gives up the place among the waiting futures. A wakeup that was not used goes to the next
    /// one.
    fn go(&self, place: Option<u64>, has_used: bool) {
        if let Some(place) = place
            && !self.shared.room.leave(place)
            && !has_used
        {
            self.shared.room.wake_one();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        match self.stage {
            Stage::New(_, place) => self.go(place, false),
            Stage::Queued { number, .. } => _ = self.shared.cancel_one(number),
            Stage::Over => {}
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::New(..) => "not submitted",
            Stage::Queued { .. } => "with the workers",
            Stage::Over => "over",
        };
        write!(f, "Running({stage})")
    }
}
