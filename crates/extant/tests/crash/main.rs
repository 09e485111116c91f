//! The proof that the file system survives power cuts, and the tests of the proof.
//!
//! - `conform`: the operations of the model do to an image what the model says, without any cut.
//! - `scenarios`: each operation and each pair of operations, written by hand; every cut.
//! - `contents`: each way of changing contents of files; every cut.
//! - `generated`: operations from a seed on every layout; sampled cuts.
//! - `fast`: writers that append and sync, with fast commits.
//! - `handles`: what a thread with an open handle may not do.
//! - `interop`: images cut off under the kernel are replayed as the kernel replays them.
//! - `overlay`: the device is a qcow2 overlay, whose file is cut.
//! - `lossy`: the device is behind a network whose connections are lost.
//! - `mutations`: with one step of the journal left out, the same harness finds damage.
//! - `simulation`: many clients, errors of the device, late and reordered completions, threads.
//!
//! `docs/testing.md` says how to repeat a case.

mod conform;
mod contents;
mod fast;
mod generated;
mod handles;
mod interop;
mod layouts;
mod lossy;
mod mutations;
mod overlay;
mod racing;
mod scenarios;
mod simulation;
mod target;

use extant_testkit::crash::{Report, Sampling};
use extant_testkit::proof::{Counts, explain};

/// Where samplings start: the superblock, of two sectors under one checksum, is never torn. Linux
/// and e2fsprogs write it in place, too, and no layout of the format could bear it.
fn states() -> Sampling {
    Sampling { whole: 1024..2048, ..Sampling::default() }
}

/// Prints what was done, past the capture of the harness, and fails with the first damage.
#[track_caller]
fn finish(name: &str, seed: u64, report: &Report, counts: &Counts) {
    use std::io::Write as _;
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr().lock(), "{name}: {counts}");
    let command = format!("cargo test --release -p extant --test crash {name}");
    explain(report, &format!("EXTANT_SEED={seed}"), &command);
}
