//! What programs may expect of a mounted directory, as tables of system calls with their results.
//!
//! # Place
//!
//! A test tool: it knows nothing of ext4 and touches a file system only by system calls, so that
//! it can judge any mounted directory and compare two. `extant-posix run DIR` is the command;
//! `cases/*.case` are the tables, compiled in.
//!
//! # Shape
//!
//! ```text
//! [unlink.sticky.other]                 a case: runs in a new directory of mode 0777
//! root: mkdir d 1777                    a step: who, a verb with words, `=` and what comes out
//! alice: put d/f hello
//! bob: unlink d/f = EPERM
//! ```
//!
//! Each user of a case is a process of its own, started for the case, that gave up all rights but
//! those of this user ([`users`]). It keeps open files between steps, so two processes can hold
//! locks against each other, and dies alone when a step kills it.
//!
//! A step comes out as one line of text: an errno, a signal, or the values it gave. What is
//! written after `=` must come out; without it anything that is no error. `= ?` is written down but not
//! judged, `= ~` is not even written down. All that was written down is one [`record::Record`], and
//! two runs are compared by these.
//!
//! # Invariants
//!
//! - A result never has numbers in it that differ between two right file systems: no inode
//!   numbers, no times of day, no process ids. So two runs can be compared as text.
//! - A case leaves nothing behind: its directory can be removed, which is itself a step.
#![forbid(unsafe_code)]

mod acl;
pub mod agent;
pub mod cases;
mod errno;
pub mod record;
pub mod run;
mod script;
mod show;
pub mod users;
mod words;
