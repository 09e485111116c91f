//! Locks, threads, time and randomness for all other crates.
//!
//! # Place
//!
//! Near the bottom: this crate does not know devices or formats. Every other crate takes its locks,
//! threads, clock and random bytes from here only (`clippy.toml` at the root of the repository
//! forbids other sources), so that one seed can decide a whole simulated run and so that every lock
//! has a rank that debug builds check.
//!
//! # Parts
//!
//! - [`Mutex`], [`RwLock`], [`Condvar`], [`Rank`]: locks with ranks; the table is in
//!   `docs/locking.md`.
//! - [`Bell`]: wakes many at once.
//! - [`CachePadded`]: keeps what many threads write away from what they read.
//! - [`Gate`]: lets many operations pass at once, until it is shut.
//! - [`no_waiting`]: a scope in which debug builds panic where a thread would wait.
//! - [`lock_waits`]: number and time of the waits for locks of each rank.
//! - [`Clock`]: the time of day and a time that only moves forward; real or fixed.
//! - [`threads`]: named scoped threads, a pool by count, a bounded channel. A panic in a worker
//!   becomes an error in the caller.
//! - [`Background`]: a periodic thread that ends with its owner.
//! - [`Signal`]: an event for `poll` and its like.
//! - [`host_name`]: the name of this machine, for records of the writer.
//! - [`os_random`]: bytes from the operating system, for UUIDs and hash seeds.
#![forbid(unsafe_code)]

mod apart;
mod background;
mod bell;
mod clock;
mod condvar;
mod fixed_clock;
mod gate;
mod host;
mod lock;
mod no_wait;
mod random;
mod rank;
mod signal;
pub mod threads;
mod waits;

pub use background::Background;
pub use bell::Bell;
pub use clock::{Clock, SystemClock};
pub use condvar::Condvar;
pub use crossbeam_utils::CachePadded;
pub use fixed_clock::FixedClock;
pub use gate::{Gate, Lane, Shut};
pub use host::host_name;
pub use lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use no_wait::{NoWaiting, check_may_wait, no_waiting};
pub use random::{RandomError, os_random};
pub use rank::{Hold, Rank, holds};
pub use signal::Signal;
pub use waits::{LockWaits, lock_waits};
