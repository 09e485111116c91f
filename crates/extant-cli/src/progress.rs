//! The progress bar: on a terminal only.

use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant_image::write::Progress;
use extant_sync::{Clock, Mutex, Rank, SystemClock};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What is over sooner needs no bar.
const SHOWN_AFTER: Duration = Duration::from_millis(500);

/// Redraws in a second.
const DRAWS: u8 = 10;

/// The bar that is on the terminal.
static CURRENT: Mutex<Option<ProgressBar>> = Mutex::new(Rank::Leaf, None);

/// Whether there is one. Who has none takes no lock.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// How far something is, in bytes: a bar on standard error with share, rate and time left, once it
/// takes long enough; or nothing. Clones are the same bar, which goes with the last of them.
#[derive(Clone)]
pub(crate) struct Bar(Option<Arc<Shown>>);

struct Shown {
    bar: ProgressBar,
    begun: Duration,
    is_visible: AtomicBool,
}

impl Bar {
    /// Never anything.
    pub(crate) fn none() -> Bar {
        Bar(None)
    }

    /// For bytes that nobody has counted yet; shown if it is `wanted` and standard error is a
    /// terminal that can move its cursor.
    pub(crate) fn new(wanted: bool) -> Bar {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if !wanted || is_dumb || !stderr().is_terminal() {
            return Bar::none();
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        set_style(&bar, "{spinner} {binary_bytes} {binary_bytes_per_sec}, {elapsed}");
        let (begun, is_visible) = (SystemClock.monotonic(), AtomicBool::new(false));
        Bar(Some(Arc::new(Shown { bar, begun, is_visible })))
    }

    /// For `total` bytes.
    pub(crate) fn of(total: u64, wanted: bool) -> Bar {
        let bar = Bar::new(wanted);
        bar.set_total(total);
        bar
    }

    /// Returns whether there is anybody to show something to.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether it is on the terminal.
    pub(crate) fn is_visible(&self) -> bool {
        self.0.as_ref().is_some_and(|shown| shown.is_visible.load(Ordering::Relaxed))
    }

    /// Takes the bar off the terminal, so that messages stand on a line of their own.
    pub(crate) fn end(&self) {
        if let Some(shown) = &self.0 {
            shown.end();
        }
    }

    /// How many bytes there will be.
    pub(crate) fn set_total(&self, total: u64) {
        let Some(shown) = &self.0 else { return };
        shown.bar.set_length(total);
        let template = "{wide_bar} {percent}% {binary_bytes}/{binary_total_bytes} \
                        {binary_bytes_per_sec} {eta} left";
        set_style(&shown.bar, template);
    }
}

fn set_style(bar: &ProgressBar, template: &str) {
    // The templates are constants; one that cannot be read leaves the crate's own.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

impl Progress for Bar {
    fn add(&self, bytes: u64) {
        let Some(shown) = &self.0 else { return };
        shown.bar.inc(bytes);
        if shown.is_visible.load(Ordering::Relaxed) {
            return;
        }
        let took = SystemClock.monotonic().saturating_sub(shown.begun);
        if took >= SHOWN_AFTER && !shown.is_visible.swap(true, Ordering::Relaxed) {
            *CURRENT.lock() = Some(shown.bar.clone());
            IS_SHOWN.store(true, Ordering::Release);
            shown.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(DRAWS));
        }
    }
}

impl Shown {
    fn end(&self) {
        // From now on it counts as shown, so that nothing shows it again.
        if self.is_visible.swap(true, Ordering::Relaxed) && IS_SHOWN.swap(false, Ordering::AcqRel) {
            *CURRENT.lock() = None;
            self.bar.finish_and_clear();
            self.bar.set_draw_target(ProgressDrawTarget::hidden());
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.end();
    }
}

/// Prints with `print` while no bar is in the way.
pub(crate) fn aside(print: impl FnOnce()) {
    let current = match IS_SHOWN.load(Ordering::Acquire) {
        true => CURRENT.lock().clone(),
        false => None,
    };
    match current {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}
