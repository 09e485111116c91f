//! Signals that ask to stop: ^C, `kill`, a closed terminal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::exit::{Exit, Failure, Result};

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on a signal asks for an orderly end, so that what is half-made can be removed.
///
/// Before, signals end the process at once: there is nothing to remove, and a read that waits for
/// input would not notice a flag.
pub(crate) fn listen() -> Result<()> {
    let requested = flag();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&requested))
            .map_err(|error| Failure::caused(Exit::Internal, "cannot handle signals", &error))?;
    }
    Ok(())
}

/// From now on a write past the limit for files of this user (`ulimit -f`) fails as others do, and does not end
/// the process: what is half-made is removed, and a mount lives on. Programs that this one starts are as ever.
pub(crate) fn outlive_limits() {
    // Without it, the signal ends the process, as before.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// The flag that a signal sets.
pub(crate) fn flag() -> Arc<AtomicBool> {
    Arc::clone(REQUESTED.get_or_init(Arc::default))
}

/// Returns whether a signal has asked to stop.
pub(crate) fn requested() -> bool {
    REQUESTED.get().is_some_and(|requested| requested.load(Ordering::Relaxed))
}

/// Ends the process the way a program ends that knows nothing of `SIGPIPE`. Returns only where
/// the signal is blocked.
pub(crate) fn end_by_broken_pipe() {
    // Fails only for signals that cannot be raised.
    let _ = signal_hook::low_level::emulate_default_handler(SIGPIPE);
}
