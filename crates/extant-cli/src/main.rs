//! The `extant` command: translates a command line into calls of the crates below.
//!
//! One module for each sub-command under `commands`; the others are what they share. What ext4
//! means is decided in `extant` and `extant-image`, not here.
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod entry;
mod exit;
mod fault;
mod image;
mod interrupt;
mod mkfs_args;
mod output;
mod progress;
mod size;
mod target;
mod text;

use std::io::{IsTerminal, Write, stderr};
use std::process::ExitCode;

use exit::{Exit, Failure};

fn main() -> ExitCode {
    let exit = match cli::run() {
        Ok(exit) => exit,
        Err(failure) => {
            report(&failure);
            failure.exit
        }
    };
    if exit == Exit::BrokenPipe {
        interrupt::end_by_broken_pipe();
    }
    exit.into()
}

/// Says what happened on one line and what to do about it on the next.
fn report(failure: &Failure) {
    if failure.message.is_empty() {
        return;
    }
    let bold = stderr().is_terminal() && output::colours_wanted();
    let (on, off) = if bold { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    let mut err = stderr().lock();
    // With standard error gone, the exit code is all there is.
    let _ = writeln!(err, "{on}extant:{off} {}", text::one_line(&failure.message));
    if let Some(hint) = &failure.hint {
        let _ = writeln!(err, "hint: {}", text::one_line(hint));
    }
}
