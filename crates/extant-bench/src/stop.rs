//! Signals that ask to stop: what is mounted must be unmounted first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on a signal makes [`check`] fail instead of ending the process.
///
/// # Errors
///
/// When the system refuses to handle a signal.
pub fn listen() -> Result<()> {
    let flag = REQUESTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag))?;
    }
    Ok(())
}

/// Returns whether a signal has asked to stop.
pub fn requested() -> bool {
    REQUESTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Fails once a signal has asked to stop.
///
/// # Errors
///
/// Then.
pub fn check() -> Result<()> {
    if requested() {
        bail!("stopped by a signal");
    }
    Ok(())
}
