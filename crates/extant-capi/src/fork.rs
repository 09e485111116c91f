//! Forks of the process. A mount for writing belongs to the process that made it: a child has neither its threads nor what
//! it will write later, and would destroy what its parent stores.
#![expect(unsafe_code, reason = "the system calls a function in each child")]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks that led to this process since the library was first asked.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns a number that differs in each child from that of its parent. Costs one load, but for the first time.
pub(crate) fn generation() -> u32 {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: what is registered is a function that may be called in a child of a process with threads: it adds to an
        // atomic number. When the library is unloaded, the C library forgets it.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        // It fails only for want of memory: then forks go unnoticed, as before.
        debug_assert_eq!(failed, 0);
    });
    FORKS.load(Ordering::Relaxed)
}
