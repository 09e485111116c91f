//! A thread that repeats a function until its owner is dropped.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::threads::ThreadError;
use crate::{Condvar, Mutex, Rank};

#[derive(Default)]
struct State {
    stop: bool,
    wake: bool,
}

struct Shared {
    /// Whether a wakeup is pending, so that further ones are not needed.
    awake: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

/// A named thread that calls a function periodically, or when it is woken. It ends when this value
/// is dropped, after the running call, or when the function returns false or panics.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
/// use extant_sync::Background;
/// let count = Arc::new(AtomicU32::new(0));
/// let counted = Arc::clone(&count);
/// let background = Background::start("counter", Duration::from_secs(3600), move || {
///     counted.fetch_add(1, Ordering::SeqCst) < 1
/// })?;
/// background.wake();
/// while count.load(Ordering::SeqCst) == 0 {}
/// drop(background);
/// # Ok::<(), extant_sync::threads::ThreadError>(())
/// ```
#[must_use = "the thread ends when it is dropped"]
pub struct Background {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread. `work` is called after each `period`, and returns whether to continue.
    ///
    /// # Errors
    ///
    /// [`ThreadError::Spawn`].
    pub fn start(
        name: &str,
        period: Duration,
        mut work: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Background, ThreadError> {
        let state = Mutex::new(Rank::Leaf, State::default());
        let shared =
            Arc::new(Shared { awake: AtomicBool::new(false), state, changed: Condvar::new() });
        let inside = Arc::clone(&shared);
        let body = move || {
            loop {
                {
                    let mut state = inside.state.lock();
                    while !state.stop && !state.wake {
                        if inside.changed.wait_for(&mut state, period) {
                            break;
                        }
                    }
                    if state.stop {
                        return;
                    }
                    state.wake = false;
                    // This happens under the lock, before the call: a later wakeup asks for another
                    // call.
                    inside.awake.store(false, Ordering::SeqCst);
                }
                // A panic is a bug of the caller's function; the owner continues without the
                // thread.
                if !catch_unwind(AssertUnwindSafe(&mut work)).unwrap_or(false) {
                    return;
                }
            }
        };
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
        let thread =
            spawned.map_err(|source| ThreadError::Spawn { thread: name.to_owned(), source })?;
        Ok(Background { shared, thread: Some(thread) })
    }

    /// Makes the next call begin now, or when the running one has ended. Cheap when a wakeup is
    /// pending already.
    pub fn wake(&self) {
        if self.shared.awake.swap(true, Ordering::SeqCst) {
            return;
        }
        self.shared.state.lock().wake = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // It caught its own panics.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::{Clock, SystemClock};

    const NEVER: Duration = Duration::from_secs(3600);
    const WHILE: Duration = Duration::from_millis(30);

    fn until(what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..10_000 {
            if is_so() {
                return;
            }
            SystemClock.sleep(Duration::from_millis(1));
        }
        panic!("{what}");
    }

    #[test]
    fn a_wakeup_is_one_call_and_so_is_a_period() {
        let count = Arc::new(AtomicU32::new(0));
        let work = |count: &Arc<AtomicU32>| {
            let count = Arc::clone(count);
            move || count.fetch_add(1, Ordering::SeqCst) < u32::MAX
        };
        let background = Background::start("woken", NEVER, work(&count)).unwrap();
        for calls in 0..3 {
            SystemClock.sleep(WHILE);
            assert_eq!(count.load(Ordering::SeqCst), calls);
            background.wake();
            until("it is not called", || count.load(Ordering::SeqCst) > calls);
        }
        let often = Background::start("often", Duration::from_millis(1), work(&count)).unwrap();
        until("periods pass", || count.load(Ordering::SeqCst) > 10);
        drop(often);
        let seen = count.load(Ordering::SeqCst);
        SystemClock.sleep(WHILE);
        assert_eq!(count.load(Ordering::SeqCst), seen, "called after its end");
    }

    #[test]
    fn it_is_not_called_again_when_it_said_so_or_panicked() {
        for panics in [false, true] {
            let count = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&count);
            let work = move || {
                counted.fetch_add(1, Ordering::SeqCst);
                if panics {
                    // Without a word, which would take its time.
                    std::panic::resume_unwind(Box::new("as it must"));
                }
                false
            };
            let background = Background::start("once", NEVER, work).unwrap();
            background.wake();
            until("it is not called", || count.load(Ordering::SeqCst) == 1);
            background.wake();
            SystemClock.sleep(WHILE);
            assert_eq!(count.load(Ordering::SeqCst), 1, "panics: {panics}");
        }
    }

    #[test]
    fn its_owner_waits_for_a_call_and_not_for_itself() {
        let (began, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (begins, ends) = (Arc::clone(&began), Arc::clone(&ended));
        let work = move || {
            begins.store(true, Ordering::SeqCst);
            SystemClock.sleep(WHILE);
            ends.store(true, Ordering::SeqCst);
            true
        };
        let background = Background::start("slow", NEVER, work).unwrap();
        background.wake();
        until("it is not called", || began.load(Ordering::SeqCst));
        drop(background);
        assert!(ended.load(Ordering::SeqCst), "a call is under way behind its owner's back");
        // The last owner may be the thread itself.
        let owner: Arc<Mutex<Option<Background>>> = Arc::new(Mutex::new(Rank::Device, None));
        let (own, over) = (Arc::clone(&owner), Arc::new(AtomicBool::new(false)));
        let is_over = Arc::clone(&over);
        let work = move || {
            let mine = own.lock().take();
            drop(mine);
            is_over.store(true, Ordering::SeqCst);
            true
        };
        let background = Background::start("own", NEVER, work).unwrap();
        let mut place = owner.lock();
        place.insert(background).wake();
        drop(place);
        until("it waits for itself", || over.load(Ordering::SeqCst));
    }
}
