//! From the recorded history of devices to every state that a power cut may leave.
//!
//! # Place
//!
//! Below: [`extant_block::RecordingDevice`] keeps the history. Above: [`proof`](crate::proof)
//! mounts the states. This module knows no file system.
//!
//! # Shape
//!
//! ```text
//! moments   1   2   3   4   5   6   7   8   9 …       one for each thing that happens
//! history   w0 w1       [w0 w1 complete]  F  [F complete]  w2 …
//!                  ^ cut: w0 and w1 may each be kept, lost or torn
//!                                                    ^ cut: both are kept; only w2 is open
//! ```
//!
//! A *cut* is a moment. At a cut every record that has taken effect and is not protected
//! ([`extant_block::protected_from`]) is *open*, and gets a [`Fate`]. A choice of fates is a
//! *state*.
//!
//! # Invariants
//!
//! - C1. The state with all open records lost, and the one with all kept, are among those of each
//!   cut.
//! - C2. With at most [`Sampling::exhaustive_max`] open records, all subsets are.
//! - C3. No state is given twice with the same number of marks before it: a later cut may promise
//!   more about the same bytes, never less.
//! - C4. Equal histories and seeds give equal states with equal names.

mod history;
mod run;
mod states;

pub use history::{Fate, History};
pub use run::{CrashState, Failure, Report, run};
pub use states::Sampling;
