//! The harness finds what it is there to find: with one step of the journal or of writeback left out or
//! out of order, damage.

use extant_jbd2::Mutations;
use extant_testkit::crash::Sampling;
use extant_testkit::model::{Generator, NewNode, Op, Path, Profile};
use extant_testkit::proof::{Proof, record};
use extant_testkit::require;

use crate::contents;
use crate::layouts::{self, INLINE, SMALL, WRITTEN};
use crate::racing::Racing;
use crate::target::Extant;

/// Fails unless some seed shows damage.
fn must_find(name: &str, mutations: Mutations) {
    let target = Extant { mutations, ..Extant::default() };
    let base = require!(layouts::base(&SMALL));
    let mut states = 0;
    for seed in 0..12 {
        let profile = Profile { sync_one_in: 3, ..Profile::default() };
        let mut generator = Generator::new(seed, profile);
        let mut left = 150 + 100 * seed;
        let recorded = record(&target, &base, |model| {
            left = left.checked_sub(1)?;
            Some(generator.next_op(model))
        });
        let recorded = match recorded {
            Ok(recorded) => recorded,
            Err(text) => panic!("{name}, seed {seed}: wrong without any cut: {text}"),
        };
        let sampling =
            Sampling { seed, exhaustive_max: 4, samples: 12, one_cut_in: 4, ..crate::states() };
        let whole = Extant::default();
        let mut proof = Proof::new(&whole, sampling);
        (proof.fsck_one_in, proof.replay_one_in, proof.kernel_one_in) = (0, 0, 0);
        proof.again_one_in = 0;
        let (report, counts) = proof.prove(&recorded);
        states += counts.states;
        if let Some(failure) = report.failures.first() {
            println!("{name}: found after {states} states, seed {seed}: {failure}");
            return;
        }
    }
    panic!("{name}: nothing found in {states} states");
}

/// Blocks of a directory become file data while the log still has copies of them.
#[test]
fn skip_revokes() {
    let new = NewNode { permissions: 0o755, uid: 0, gid: 0 };
    let entry = |n: usize| Path::of(&format!("/d/{n}-{}", "long".repeat(50)));
    let mut ops = vec![Op::Mkdir { path: Path::of("/d"), new }];
    ops.extend((0..40).map(|n| Op::Create { path: entry(n), new }));
    ops.push(Op::Sync);
    ops.extend((0..40).map(|n| Op::Unlink { path: entry(n) }));
    ops.extend([Op::Rmdir { path: Path::of("/d") }, Op::Sync]);
    for n in 0..16 {
        // Data that is inside the inode moves to a block, which is written at once.
        ops.push(Op::Truncate { path: Path::of(&format!("/small{n}")), size: 4096 });
    }
    ops.push(Op::Sync);
    let base = require!(layouts::base(&INLINE));
    let failures = |mutations| {
        let target = Extant { mutations, ..Extant::default() };
        let mut ops = ops.clone().into_iter();
        let recorded = record(&target, &base, |_| ops.next()).unwrap_or_else(|e| panic!("{e}"));
        let whole = Extant::default();
        let (report, counts) = Proof::new(&whole, crate::states()).prove(&recorded);
        println!("skip_revokes: {counts}: {:?}", report.failures.first());
        report.failures.len()
    };
    assert_eq!(failures(Mutations::default()), 0);
    assert!(failures(Mutations { skip_revokes: true, ..Mutations::default() }) > 0);
}

macro_rules! mutation {
    ($($switch:ident)*) => {$(
        #[test]
        fn $switch() {
            let mutations = Mutations { $switch: true, ..Mutations::default() };
            must_find(stringify!($switch), mutations);
        }
    )*};
}

mutation! {
    skip_flush_before_commit
    skip_checkpoint_flush
    bad_checksum
    commit_block_first
    tail_before_home
}

/// P57: blocks that a transaction frees are used again before it is durable. Harms only whoever writes
/// file data between two steps of its commit: another thread.
#[test]
fn release_freed_early() {
    let base = require!(layouts::base(&WRITTEN[1]));
    let new = NewNode { permissions: 0o644, uid: 0, gid: 0 };
    let file = Path::of("/large-a");
    let ops = vec![
        Op::Sync,
        Op::Truncate { path: file.clone(), size: 1024 },
        // So that a sync of the root has something to commit.
        Op::Create { path: Path::of("/new"), new },
        // Goes behind the first block, where the old blocks were.
        Op::Append { path: file.clone(), len: 200_000, seed: 1 },
        Op::Fsync { path: Path::default() },
    ];
    let failures = |mutations| {
        let inner = Extant { mutations, ..Extant::default() };
        let target = Racing { inner, file: file.clone() };
        let mut ops = ops.clone().into_iter();
        let recorded = record(&target, &base, |_| ops.next()).unwrap_or_else(|e| panic!("{e}"));
        let whole = Extant::default();
        let (report, counts) = Proof::new(&whole, crate::states()).prove(&recorded);
        println!("release_freed_early: {counts}: {:?}", report.failures.first());
        report.failures.len()
    };
    assert_eq!(failures(Mutations::default()), 0);
    assert!(failures(Mutations { release_freed_early: true, ..Mutations::default() }) > 0);
}

/// Blocks get into the map, and the size over them, before their data is there.
#[test]
fn publish_before_data() {
    let base = require!(layouts::base(&WRITTEN[1]));
    let mut found = Vec::new();
    for (what, mut ops) in contents::histories(base.unit).into_iter().take(4) {
        ops.insert(0, Op::Sync);
        let mut ops = ops.into_iter();
        let target = Extant { publish_before_data: true, ..Extant::default() };
        let recorded = record(&target, &base, |_| ops.next()).unwrap_or_else(|e| panic!("{e}"));
        let whole = Extant::default();
        let sampling = Sampling { exhaustive_max: 3, samples: 8, one_cut_in: 2, ..crate::states() };
        let (report, counts) = Proof::new(&whole, sampling).prove(&recorded);
        println!("publish_before_data, {what}: {counts}");
        if let Some(failure) = report.failures.first() {
            println!("{failure}");
            found.push(what);
        }
    }
    assert!(!found.is_empty());
}
