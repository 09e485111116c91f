//! The proof that a file system survives power cuts.
//!
//! # Place
//!
//! Below: [`crash`](crate::crash) makes states, [`model`](crate::model) says what may be in them.
//! Above: tests choose images and operations. The file system itself comes in through [`Target`],
//! so that this module can be tested with a toy.
//!
//! # Shape
//!
//! ```text
//! record   mount, operations one by one: each answer is compared with the model's, the model's
//!          fingerprint is kept after each, syncs are noted in the history
//! prove    each state of the history: mount (replay, clean-up), look at every node, unmount, check
//! ```
//!
//! # The verdict
//!
//! - V1. The tree is what the model had after some number of operations: each whole or not at
//!   all, and in order.
//! - V2. That number is at least what a sync covered that had returned, and at most what had begun.
//!   Where files are written, that goes for names and attributes; contents, sizes and times of
//!   files follow later, and `contents` says what may be there of them.
//! - V3. After the unmount the checker finds no problem, and neither does `e2fsck -fn`.
//! - V4. Power may fail again during the mount that recovers: the tree after that is the same.
//! - V5. `e2fsck -fy` on the state as it was cut gives the same tree, and repairs nothing but what
//!   a replay does. A mount by the running kernel gives the same tree, too.

mod contents;
mod judge;
mod record;

pub use contents::Contents;
pub(crate) use contents::Moment;
pub use judge::{Counts, Proof, explain};
pub use record::{Base, Recorded, Step, record, record_with};
pub(crate) use record::{Progress, check_zones, recorders};

use std::collections::HashMap;
use std::sync::Arc;

use extant_block::{MemoryDevice, SharedDevice};
use extant_sync::FixedClock;

use crate::model::{Op, Outcome, Rules, Tree};

/// When the clock of every scenario starts, in seconds.
pub const EPOCH: i64 = 1_700_000_000;

/// A file system to be proved.
pub trait Target: Sync {
    /// A mounted file system.
    type Fs: Sync;
    /// What keeps an inode alive without a name.
    type Handle: Send;

    /// Mounts for writing: replays the journal and cleans up. The first device has the file system,
    /// a second one its journal.
    fn mount(&self, devices: &[SharedDevice], clock: Arc<FixedClock>) -> Result<Self::Fs, String>;

    /// Does one operation. `slots` are the handles that the operations of one client hold.
    fn apply(&self, fs: &Self::Fs, slots: &mut HashMap<usize, Self::Handle>, op: &Op) -> Outcome;

    /// Reads everything that users can see.
    fn snapshot(&self, fs: &Self::Fs, rules: &Rules) -> Result<Tree, String>;

    /// Unmounts cleanly. A file system that is dropped instead writes nothing more.
    fn unmount(&self, fs: Self::Fs) -> Result<(), String>;

    /// Checks the invariants of an unmounted file system. `false` when something is there that
    /// e2fsck would repair and that is no mistake: after errors, as on Linux, orphans are not deleted.
    fn check(&self, devices: &[MemoryDevice]) -> Result<bool, String>;

    /// The disks that `devices` hold, for programs that know nothing of what lies between. [`mount`](Self::mount)
    /// takes them as well.
    ///
    /// # Errors
    ///
    /// What lies between cannot be read.
    fn disks(&self, devices: &[MemoryDevice]) -> Result<Vec<MemoryDevice>, String> {
        Ok(devices.iter().map(MemoryDevice::snapshot).collect())
    }
}

/// The variables of the environment that choose one case again.
pub mod env {
    /// A seed instead of the test's own.
    pub fn seed(default: u64) -> u64 {
        number("EXTANT_SEED").unwrap_or(default)
    }

    /// The one state to look at.
    pub fn state() -> Option<String> {
        std::env::var("EXTANT_STATE").ok()
    }

    /// The value of a variable that holds a number. Panics if it holds something else.
    pub fn number(name: &str) -> Option<u64> {
        let text = std::env::var(name).ok()?;
        Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
    }
}
