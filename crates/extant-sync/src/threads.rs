//! Named threads that end before their scope does, and a bounded channel between them.
//!
//! The number of threads is always the caller's choice. A panic of a worker does not end the
//! process: its message is returned as [`WorkerPanic`].

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

pub use crossbeam_channel::{Receiver, RecvError, SendError, Sender, TryRecvError, TrySendError};

use crate::apart::Start;
use crate::{Mutex, Rank};

/// A thread panicked, which is a bug, reported to the caller of its work.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("thread {thread} failed: {message}")]
pub struct WorkerPanic {
    /// Name of the thread.
    pub thread: String,
    /// Message of the panic.
    pub message: String,
}

/// Error of starting or running threads.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThreadError {
    /// The operating system started no thread.
    #[error("cannot start thread {thread}")]
    Spawn {
        /// Name of the thread.
        thread: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A thread panicked.
    #[error(transparent)]
    Panic(#[from] WorkerPanic),
}

/// Returns the number of threads that this machine ran at once when a thread of this program asked first, or 1 if that is
/// unknown. To ask the system takes a dozen files of its control groups.
pub fn available() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, NonZeroUsize::get))
}

/// How often the processor is given to a thread that was just started, at most: once is nearly always enough.
const GIVEN_MAX: u32 = 16;

/// Yields the processor to another thread, for a short wait.
pub fn give_way() {
    thread::yield_now();
}

/// Returns a number of the calling thread: 0 for the first caller, 1 for the next. For counters
/// that threads do not share, which are chosen by its lowest bits.
pub fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// Creates a queue of at most `capacity` items (at least 1) for any number of senders and
/// receivers. A full queue makes senders wait; it ends when all senders, or all receivers, are
/// gone.
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    crossbeam_channel::bounded(capacity.max(1))
}

/// The place in which threads of a [`scope`] are started.
pub struct Scope<'scope, 'env> {
    inner: &'scope thread::Scope<'scope, 'env>,
    first_panic: Arc<Mutex<Option<WorkerPanic>>>,
}

/// A running thread of a [`scope`]. Dropping it leaves the thread to be joined by the scope.
pub struct Handle<'scope, T> {
    inner: thread::ScopedJoinHandle<'scope, Result<T, WorkerPanic>>,
}

impl<T> Handle<'_, T> {
    /// Waits for the thread and returns its result.
    ///
    /// # Errors
    ///
    /// [`WorkerPanic`] if it panicked.
    pub fn join(self) -> Result<T, WorkerPanic> {
        let name = self.inner.thread().name().unwrap_or("unnamed").to_owned();
        // The closure caught its panic, so a failing join means one inside the catching itself.
        self.inner
            .join()
            .unwrap_or_else(|panic| Err(WorkerPanic { thread: name, message: message(&*panic) }))
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread called `name` (shown by debuggers and `ps`; the kernel keeps 15 bytes).
    ///
    /// # Errors
    ///
    /// [`ThreadError::Spawn`] when the system has no thread to give, or `name` has a NUL byte.
    pub fn spawn<T: Send + 'scope>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> Result<Handle<'scope, T>, ThreadError> {
        let first_panic = Arc::clone(&self.first_panic);
        let spawn_error = |source| ThreadError::Spawn { thread: name.to_owned(), source };
        if name.contains('\0') {
            return Err(spawn_error(io::ErrorKind::InvalidInput.into()));
        }
        let thread_name = name.to_owned();
        let run = move || {
            // Whatever `work` was changing is seen again only through the error: the scope's
            // caller gets `Err` and knows the work is incomplete.
            catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
                let panic = WorkerPanic { thread: thread_name, message: message(&*panic) };
                first_panic.lock().get_or_insert_with(|| panic.clone());
                panic
            })
        };
        let inner = thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(self.inner, run)
            .map_err(spawn_error)?;
        Ok(Handle { inner })
    }

    /// Starts a thread as [`spawn`](Self::spawn) does, on the processor that is `distance` processors on
    /// from that of the calling thread, of those that it is allowed. It may go elsewhere later.
    ///
    /// For threads that share a task of milliseconds, which the system may otherwise leave on one processor
    /// for all of it. The caller gives way until the thread runs, or a few times if it does not: 0.1 ms.
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn); a system that moves no threads is no error.
    pub fn spawn_apart<T: Send + 'scope>(
        &self,
        name: &str,
        distance: usize,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> Result<Handle<'scope, T>, ThreadError> {
        let start = Start::here();
        let has_begun = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&has_begun);
        let handle = self.spawn(name, move || {
            begun.store(true, Ordering::Relaxed);
            start.move_on(distance);
            work()
        })?;
        // A new thread may wait for milliseconds behind the one that started it, which only itself can move away.
        let mut given = 0;
        while !has_begun.load(Ordering::Relaxed) && given < GIVEN_MAX {
            give_way();
            given += 1;
        }
        Ok(handle)
    }
}

/// Runs `body`, which may start threads that borrow from around it, and waits for all of them.
///
/// # Errors
///
/// [`WorkerPanic`] of the first thread that panicked, even if it was not joined.
///
/// ```
/// use extant_sync::threads;
/// let words = ["one", "three"];
/// let total = threads::scope(|s| {
///     let first = s.spawn("first", || words[0].len())?;
///     let second = s.spawn("second", || words[1].len())?;
///     Ok::<usize, threads::ThreadError>(first.join()? + second.join()?)
/// })??;
/// assert_eq!(total, 8);
/// # Ok::<(), threads::ThreadError>(())
/// ```
#[expect(clippy::disallowed_methods, reason = "the wrapper that the ban points to")]
pub fn scope<'env, T>(
    body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> T,
) -> Result<T, WorkerPanic> {
    let first_panic = Arc::new(Mutex::new(Rank::Leaf, None));
    let result =
        thread::scope(|inner| body(&Scope { inner, first_panic: Arc::clone(&first_panic) }));
    // All threads have ended; none holds the slot any more.
    let panic = first_panic.lock().take();
    panic.map_or(Ok(result), Err)
}

/// Runs `work(0)`, `work(1)`, … `work(count - 1)` on a thread each, called `name-0` and so on,
/// and returns their results in that order. A `count` of 0 means 1; with one, the work runs on
/// a thread too, so that one and many behave alike. They start on processors of their own.
///
/// # Errors
///
/// [`ThreadError`] if a thread could not be started or panicked. The others have ended by then.
pub fn workers<T: Send>(
    name: &str,
    count: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Result<Vec<T>, ThreadError> {
    let work = &work;
    scope(|s| {
        let handles: Vec<_> = (0..count.max(1))
            .map(|index| s.spawn_apart(&format!("{name}-{index}"), index, move || work(index)))
            .collect();
        handles.into_iter().map(|handle| Ok(handle?.join()?)).collect()
    })?
}

/// Threads that run until their owner makes them end, through shared state, and drops this value.
///
/// ```
/// use extant_sync::threads::{self, Crew};
/// let (sender, receiver) = threads::channel(4);
/// let (answers, sums) = threads::channel(4);
/// let crew = Crew::start("adder", 2, move || {
///     let _ = answers.send(receiver.iter().sum::<u32>());
/// })?;
/// (1..=10).for_each(|number| sender.send(number).unwrap());
/// drop(sender);
/// drop(crew);
/// assert_eq!(sums.iter().sum::<u32>(), 55);
/// # Ok::<(), threads::ThreadError>(())
/// ```
#[must_use = "dropping it waits for its threads to end"]
pub struct Crew {
    threads: Vec<thread::JoinHandle<()>>,
}

impl Crew {
    /// Starts `count` threads (at least one) called `name-0` and so on, each of which calls `work` once. One that
    /// panics ends; the others go on.
    ///
    /// # Errors
    ///
    /// [`ThreadError::Spawn`] when not even one could be started; with fewer than `count` the crew is smaller.
    pub fn start(
        name: &str,
        count: usize,
        work: impl Fn() + Send + Sync + 'static,
    ) -> Result<Crew, ThreadError> {
        let work = Arc::new(work);
        let mut threads = Vec::new();
        for index in 0..count.max(1) {
            let (thread, work) = (format!("{name}-{index}"), Arc::clone(&work));
            // The work catches what it does for others; a panic of its own is a bug that the join would only repeat.
            let run = move || drop(catch_unwind(AssertUnwindSafe(|| work())));
            match thread::Builder::new().name(thread.clone()).spawn(run) {
                Ok(handle) => threads.push(handle),
                Err(_) if !threads.is_empty() => break,
                Err(source) => return Err(ThreadError::Spawn { thread, source }),
            }
        }
        Ok(Crew { threads })
    }

    /// Returns how many threads it has.
    pub fn len(&self) -> usize {
        self.threads.len()
    }

    /// Returns false: a crew has at least one thread.
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for thread in self.threads.drain(..) {
            // It caught its own panics. A thread that drops its crew does not wait for itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crew({})", self.threads.len())
    }
}

/// The text of a panic, where it has one.
fn message(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&'static str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without a message".to_owned(),
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scope")
    }
}

impl<T> fmt::Debug for Handle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({})", self.inner.thread().name().unwrap_or("unnamed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_answer_in_order_and_carry_their_name() {
        let names =
            workers("reader", 4, |index| (index, thread::current().name().map(str::to_owned)));
        let wanted: Vec<_> = (0..4).map(|i| (i, Some(format!("reader-{i}")))).collect();
        assert_eq!(names.unwrap(), wanted);
        assert_eq!(workers("none", 0, |i| i).unwrap(), [0]);
    }

    #[test]
    fn a_panic_becomes_an_error_with_thread_and_message() {
        let error = workers("worker", 3, |index| assert!(index != 1, "index {index} is bad"));
        let wanted = "thread worker-1 failed: index 1 is bad";
        assert_eq!(error.unwrap_err().to_string(), wanted);
        // The same when nobody joins the thread.
        let lost = scope(|s| drop(s.spawn("lost", || panic!("static text"))));
        let wanted = WorkerPanic { thread: "lost".into(), message: "static text".into() };
        assert_eq!(lost, Err(wanted));
    }

    #[test]
    fn a_name_with_a_nul_byte_is_refused() {
        let result = scope(|s| s.spawn("a\0b", || ()).map(drop)).unwrap();
        assert!(matches!(result, Err(ThreadError::Spawn { .. })));
    }

    #[test]
    fn a_channel_holds_no_more_than_its_capacity_and_delivers_everything() {
        let (sender, receiver) = channel(2);
        sender.try_send(1).unwrap();
        sender.try_send(2).unwrap();
        assert!(matches!(sender.try_send(3), Err(TrySendError::Full(3))));
        let sum = scope(|s| {
            let consumer = s.spawn("consumer", || receiver.iter().sum::<u64>()).unwrap();
            for n in 3..=1000 {
                sender.send(n).unwrap();
            }
            drop(sender);
            consumer.join().unwrap()
        });
        assert_eq!(sum, Ok(500_500));
    }
}
