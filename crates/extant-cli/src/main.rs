//! The `extant` command: translates a command line into calls of the crates below.
//!
//! One module for each sub-command under `commands`; the others are what they share. What ext4
//! means is decided in `extant` and `extant-image`, not here.
#![forbid(unsafe_code)]

mod accounts;
mod acl_text;
mod archive;
mod base;
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
mod size;
mod source;
mod target;
mod text;
mod xattr_text;

use std::process::ExitCode;

use exit::Exit;

fn main() -> ExitCode {
    interrupt::outlive_limits();
    if let Some(code) = helper::run() {
        return code;
    }
    let exit = match cli::run() {
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
