//! A flag that ends the other threads of a test, whatever happens.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag when it is dropped, also by a panic.
///
/// Threads that work until a flag is set would work for ever when the thread that is to set it
/// fails: the failed assertion would show as a test that hangs. Whoever sets the flag holds one of
/// these from the start.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use extant_testkit::Ends;
///
/// let over = AtomicBool::new(false);
/// let worked = std::thread::scope(|scope| {
///     let worker = scope.spawn(|| {
///         while !over.load(Ordering::Acquire) {
///             std::hint::spin_loop();
///         }
///     });
///     let main = std::panic::catch_unwind(|| {
///         let _ends = Ends(&over);
///         panic!("an assertion that fails");
///     });
///     worker.join().unwrap();
///     main.is_err()
/// });
/// assert!(worked);
/// ```
#[must_use = "the flag is set when this is dropped"]
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
