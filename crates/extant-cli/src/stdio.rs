//! Whether the program was started without a standard output (`extant ls root.img >&-`), or without a standard input
//! (`extant write root.img:/etc/hostname <&-`).
//!
//! The standard library opens `/dev/null` in place of what is missing before `main` begins, and takes writes to a closed
//! descriptor for done: a listing that nobody gets would be a success, and a file would be replaced by nothing.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

static WAS_MISSING: AtomicBool = AtomicBool::new(false);
static INPUT_WAS_MISSING: AtomicBool = AtomicBool::new(false);

/// What the loader calls before anything of the standard library runs.
// SAFETY: the section is an array of pointers to functions, of which the loader calls each once, before `main`, on the only
// thread. This one asks the system two questions and sets two numbers.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let flags = rustix::io::fcntl_getfd(rustix::stdio::stdout());
    WAS_MISSING.store(flags.is_err(), Ordering::Relaxed);
    let flags = rustix::io::fcntl_getfd(rustix::stdio::stdin());
    INPUT_WAS_MISSING.store(flags.is_err(), Ordering::Relaxed);
}

/// Returns whether there was no standard output when the program began.
pub(crate) fn was_missing() -> bool {
    WAS_MISSING.load(Ordering::Relaxed)
}

/// Checks that there was a standard input when the program began.
///
/// # Errors
///
/// That of reading from a descriptor that is closed.
pub(crate) fn check_input() -> io::Result<()> {
    match INPUT_WAS_MISSING.load(Ordering::Relaxed) {
        true => Err(rustix::io::Errno::BADF.into()),
        false => Ok(()),
    }
}
