//! A socket, and the machines that come to it one after the other.

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant::Fs;
use extant_fuse::{Events, Exchange, Level, Settings, exchange};
use extant_sync::threads::{self, ThreadError};
use extant_sync::{Clock as _, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost::vhost_user::{Error as Protocol, Listener};
use vhost_user_backend::{Error, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use crate::device::{Device, QUEUE_LEN_MAX};
use crate::pool::{Job, work};

/// Period of checks for the end of serving.
const LOOK: Duration = Duration::from_millis(20);
/// Pause after a machine whose connection could not be begun with.
const PAUSE: Duration = Duration::from_millis(200);

/// Settings of the device.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Queues for requests, 1 to 16; besides them there is one for urgent ones. A guest of Linux before 6.11 uses one.
    pub queues: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { queues: 4 }
    }
}

/// Why serving ended other than by request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The socket failed.
    #[error("the socket: {0}")]
    Socket(#[from] io::Error),
    /// The file system could not be ended cleanly.
    #[error(transparent)]
    FileSystem(#[from] extant_fuse::ServeError),
    /// A thread could not be started, or ended by a bug.
    #[error(transparent)]
    Thread(#[from] ThreadError),
}

impl From<threads::WorkerPanic> for ServeError {
    fn from(panic: threads::WorkerPanic) -> ServeError {
        ServeError::Thread(panic.into())
    }
}

/// Serves `fs` to the machines that connect to `socket`, one after the other, until `end` is set; then everything is
/// written and the image is clean. When a machine disconnects, what it wrote is made durable.
///
/// A machine that comes back without a first request of the protocol goes on with the files it had open; one that was
/// started anew begins anew.
///
/// # Errors
///
/// [`ServeError`]; in every case the file system was ended as well as it can be.
pub fn serve(
    socket: UnixListener,
    fs: Fs,
    options: &Options,
    settings: &Settings,
    events: &dyn Events,
    end: &AtomicBool,
) -> Result<(), ServeError> {
    exchange(fs, settings, events, |exchange| machines(socket, options, exchange, events, end))?
}

fn machines(
    socket: UnixListener,
    options: &Options,
    exchange: &Exchange<'_>,
    events: &dyn Events,
    end: &AtomicBool,
) -> Result<(), ServeError> {
    let (jobs, taken) = threads::channel(QUEUE_LEN_MAX);
    let mut listener = Listener::from(socket.try_clone()?);
    threads::scope(|scope| {
        // Given to the closure, so that the threads end with it.
        let jobs = jobs;
        for index in 0..exchange.threads() {
            let taken = taken.clone();
            scope.spawn(&format!("virtiofs-{index}"), move || work(index, &taken, exchange))?;
        }
        drop(taken);
        let served = loop {
            match comes(&socket, end) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error.into()),
            }
            if let Err(why) = machine(&mut listener, options, &jobs, end) {
                events.log(Level::Warning, &format!("a machine was disconnected: {why}"));
                SystemClock.sleep(PAUSE);
            }
            if let Err(error) = exchange.rest() {
                let text = format!("not all that a machine wrote is durable: error {}", error.0);
                events.log(Level::Error, &text);
            }
        };
        drop(jobs);
        served
    })?
}

/// Waits for a machine; `false` at the end of serving.
fn comes(socket: &UnixListener, end: &AtomicBool) -> io::Result<bool> {
    let period = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
    while !end.load(Ordering::Acquire) {
        let mut wanted = [PollFd::new(socket, PollFlags::IN)];
        match poll(&mut wanted, Some(&period)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Serves one machine until it is gone or `end` is set.
fn machine(
    listener: &mut Listener,
    options: &Options,
    jobs: &threads::Sender<Job>,
    end: &AtomicBool,
) -> Result<(), String> {
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::<()>::new());
    let queues = options.queues.clamp(1, 16) + 1;
    let device = Arc::new(Device::new(memory.clone(), queues, jobs.clone()));
    let name = "virtiofs-socket".to_owned();
    let mut daemon = VhostUserDaemon::new(name, Arc::clone(&device), memory)
        .map_err(|error| error.to_string())?;
    daemon.start(listener).map_err(|error| error.to_string())?;
    let is_over = AtomicBool::new(false);
    let shutdown = daemon.shutdown_handle();
    let ended = threads::scope(|scope| {
        let watch = scope.spawn("virtiofs-end", || {
            while !is_over.load(Ordering::Acquire) {
                if end.load(Ordering::Acquire)
                    && let Some(shutdown) = &shutdown
                {
                    return shutdown.shutdown();
                }
                SystemClock.sleep(LOOK);
            }
        });
        let ended = match &watch {
            Ok(_) => daemon.wait().map_err(|error| told(&error)),
            Err(error) => Err(Some(error.to_string())),
        };
        is_over.store(true, Ordering::Release);
        ended
    });
    // V4: first nothing is taken any more, then the thread that took is waited for, then who answers.
    device.stop();
    drop(daemon);
    device.finish();
    match ended.map_err(|panic| panic.to_string())? {
        Err(Some(why)) => Err(why),
        _ => Ok(()),
    }
}

/// Returns what is to be told of the end of a connection. A machine that is switched off is gone in the middle of
/// whatever it was saying.
fn told(error: &Error) -> Option<String> {
    match error {
        Error::HandleRequest(Protocol::Disconnected | Protocol::PartialMessage) => None,
        error => Some(error.to_string()),
    }
}
