//! The progress bar: on a terminal only.

use std::io::{IsTerminal, stderr};

use extant_image::write::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on standard error, or nothing.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// For `total` bytes; shown unless `quiet` or standard error is no terminal.
    pub(crate) fn new(total: u64, quiet: bool) -> Bar {
        if quiet || !stderr().is_terminal() {
            return Bar(ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()));
        }
        let bar = ProgressBar::new(total);
        let template =
            "{wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Bar(bar)
    }
}

impl Progress for Bar {
    fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Bar {
    /// Takes the bar off the terminal, so that messages stand on a line of their own.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
