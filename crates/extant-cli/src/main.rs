//! The `extant` command: translates a command line into calls of the crates below.
//!
//! One module for each sub-command under `commands`; the others are what they share. What ext4
//! means is decided in `extant` and `extant-image`, not here.
#![deny(unsafe_code)]

mod accounts;
mod acl_text;
mod archive;
mod base;
mod bounds;
mod cli;
mod commands;
mod copying;
mod disk;
mod edit;
mod entry;
mod exit;
mod fault;
mod flags;
mod foreign;
mod helper;
mod image;
mod in_use;
mod interrupt;
mod keys;
mod manuals;
mod mkfs_args;
mod mode;
mod moment;
mod mount_table;
mod mounting;
mod output;
mod place;
mod policy;
mod progress;
mod replace;
mod restore;
mod salvaged;
mod seal;
mod size;
mod source;
mod stdio;
mod target;
mod text;
mod xattr_text;

use std::panic::{self, UnwindSafe};
use std::process::ExitCode;

use exit::{Exit, Failure};

fn main() -> ExitCode {
    interrupt::outlive_limits();
    if let Some(code) = helper::run() {
        return code;
    }
    let exit = match guarded(cli::run) {
        Ok(exit) => exit,
        Err(failure) => {
            output::report(&failure);
            failure.exit
        }
    };
    if exit == Exit::BrokenPipe {
        interrupt::end_by_broken_pipe();
    }
    exit.into()
}

/// Turns a panic into a failure, whose code says that the fault is ours.
fn guarded(run: impl FnOnce() -> exit::Result<Exit> + UnwindSafe) -> exit::Result<Exit> {
    let says_where = panic::take_hook();
    panic::set_hook(Box::new(move |fault| {
        // With --json, every line on standard error is an object.
        if !output::is_json() {
            says_where(fault);
        }
    }));
    panic::catch_unwind(run).unwrap_or_else(|why| {
        let text = why.downcast_ref::<String>().map(String::as_str);
        let text = text.or(why.downcast_ref::<&str>().copied()).unwrap_or("of a kind not known");
        Err(Failure::new(Exit::Internal, format!("a fault in extant, please report it: {text}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_ours_has_its_code() {
        let number = std::hint::black_box(7);
        let failure = guarded(|| panic!("number {number}")).unwrap_err();
        assert_eq!(failure.exit, Exit::Internal);
        assert!(failure.message.ends_with("please report it: number 7"), "{}", failure.message);
        assert_eq!(guarded(|| Ok(Exit::Partial)).unwrap(), Exit::Partial);
    }
}
