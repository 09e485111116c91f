//! Whether the program was started without a standard output (`extant ls root.img >&-`).
//!
//! The standard library opens `/dev/null` in place of what is missing before `main` begins, and takes writes to a closed
//! descriptor for done: a listing that nobody gets would be a success.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_MISSING: AtomicBool = AtomicBool::new(false);

/// What the loader calls before anything of the standard library runs.
// SAFETY: the section is an array of pointers to functions, of which the loader calls each once, before `main`, on the only
// thread. This one asks the system one question and sets a number.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let flags = rustix::io::fcntl_getfd(rustix::stdio::stdout());
    WAS_MISSING.store(flags.is_err(), Ordering::Relaxed);
}

/// Returns whether there was no standard output when the program began.
pub(crate) fn was_missing() -> bool {
    WAS_MISSING.load(Ordering::Relaxed)
}
