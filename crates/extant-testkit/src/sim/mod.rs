//! Many clients, faults of the device and cuts of power under one seed.
//!
//! # Shape
//!
//! ```text
//! clients with a generator each      a seeded scheduler picks whose operation is next
//!        |                           (or each has a thread, and the system picks)
//!  file system  <->  models          every answer is compared
//!        |
//!  FaultDevice                       errors in short streaks, late and reordered completions
//!        |
//!  RecordingDevice                   afterwards: cuts, as in `proof`
//! ```
//!
//! # What must hold
//!
//! - S1. An operation that failed changed nothing, now and after a cut.
//! - S2. Once the file system says that it is read-only, it says so until it is mounted again.
//! - S3. After a cut: V1 to V3 of [`proof`](crate::proof), faults or not.
//! - S4. With threads: each client by itself sees its operations in order, whole, and at least those
//!   that it synced; what the clients have together adds up.

mod scheduled;
mod threaded;

pub use scheduled::{Plan, Simulated, simulate};
pub use threaded::{Concurrent, run_threads};
