//! The command as a server: mounts by the kernel, and virtiofs.
//!
//! One program for all of them: each has to be linked with everything it tests.

#[path = "../../../extant-virtiofs/tests/machine/mod.rs"]
mod machine;
#[path = "../support/mod.rs"]
mod support;

mod mount;
mod mount_devices;
mod mount_ends;
mod mount_full;
mod mount_grow;
mod mount_many;
mod mount_remount;
mod mount_use;
mod mount_verity;
mod programs;
mod quota;
mod virtiofs;
