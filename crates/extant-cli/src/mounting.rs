//! Mounts: three processes, what they say to each other, and what each may do.
//!
//! # Shape
//!
//! ```text
//! launcher   what the user called. Ends when the mount can be used, or says why not
//!    |
//! keeper     mounts and unmounts, waits for signals and for the server. Touches no byte of the image
//!    |
//! server     opens the image, answers the kernel. Sandboxed; never executes or opens anything
//! ```
//!
//! In the foreground the launcher is the keeper. Nothing forks: each starts the same program with the
//! same arguments and its role in the environment, and a socket as standard input.
//!
//! # Invariants
//!
//! - P1. A mount is announced as ready when the kernel and the server have agreed, not before.
//! - P2. Whatever ends a mount, what programs have written goes to the server before the connection
//!   goes: `syncfs`, then unmount, then wait. Only the death of the server loses what was not synced.
//! - P3. The server looks at the image only after it has given up its rights.
//! - P4. A dead mount is taken away by the keeper; a mount without keeper goes on.

mod answers;
pub(crate) mod asked;
pub(crate) mod busy;
mod devices;
pub(crate) mod farewell;
pub(crate) mod figures;
pub(crate) mod holders;
pub(crate) mod keeper;
pub(crate) mod launcher;
pub(crate) mod link;
pub(crate) mod log;
pub(crate) mod notify;
mod opening;
pub(crate) mod options;
mod peek;
pub(crate) mod remount;
mod reopen;
pub(crate) mod sandbox;
mod second;
pub(crate) mod server;
mod syscalls;
mod utab;
pub(crate) mod words;

pub(crate) use crate::mount_table as table;
