//! What tests of several crates share: other implementations to ask, trees to build, trees to
//! compare.
//!
//! # Place
//!
//! A dev-dependency only; nothing of it reaches a user. Everything here may panic: in a test that
//! is how a broken set-up is reported. A tool or a right that is missing is not a failure: the
//! test says what it needs ([`skip!`]) and ends.
//!
//! # Parts
//!
//! - [`oracle`]: mke2fs, e2fsck, dumpe2fs, debugfs, and the kernel through a loop mount.
//! - [`kernel`]: the operations of the model, done by Linux.
//! - [`tree`]: makes a tree with every kind of file from a seed.
//! - [`compare`]: walks two trees and lists every difference.
//! - [`crash`]: every state that a power cut may leave, from a recorded history.
//! - [`model`]: a name space in memory, operations on it, operations from a seed.
//! - [`nbd`]: a server of block devices that loses connections and forgets.
//! - [`others`]: other hosts, which take a file system that has multi-mount protection.
//! - [`proof`]: does operations, cuts the power everywhere, and says whether what is left may be.
//! - [`lasting`]: a device whose queue lasts, as a ring's direct operations need it.
//! - [`rbd`]: stand-ins for the libraries of Ceph, which fail, stall and forget.
//! - [`sim`]: many clients, faults and cuts under one seed.
//! - [`storm`]: many threads, real ones, on a few shared names.
#![forbid(unsafe_code)]

pub mod compare;
pub mod crash;
mod ends;
mod hooked;
mod hurry;
pub mod image;
pub mod kernel;
pub mod lasting;
pub mod model;
pub mod nbd;
pub mod oracle;
pub mod others;
pub mod proof;
pub mod rbd;
mod scratch;
pub mod sim;
pub mod storm;
pub mod tree;
pub mod zones;

pub use compare::{CompareOptions, Difference, compare_trees};
pub use ends::Ends;
pub use hooked::Hooked;
pub use hurry::HastyClock;
pub use scratch::tempdir;
pub use tempfile::TempDir;

/// Ends the test early and prints why. A skipped test shows in its output, never silently.
///
/// ```
/// # fn test() {
/// if !extant_testkit::oracle::is_root() {
///     extant_testkit::skip!("needs root: mounts an image");
/// }
/// # }
/// ```
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::oracle::print_skip(module_path!(), line!(), &format!($($reason)*));
        return;
    }};
}

/// Unwraps a `Result` whose error is the reason to skip the test.
#[macro_export]
macro_rules! require {
    ($available:expr) => {
        match $available {
            Ok(value) => value,
            Err(reason) => $crate::skip!("{reason}"),
        }
    };
}
