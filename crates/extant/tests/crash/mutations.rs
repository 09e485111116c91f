//! The harness finds what it is there to find: with one step of the journal left out, damage.
//!
//! Not here: `release_freed_early` harms only threads that write file data between two steps of one
//! commit. The tests of the journal alone catch it.

use extant_jbd2::Mutations;
use extant_testkit::crash::Sampling;
use extant_testkit::model::{Generator, NewNode, Op, Path, Profile};
use extant_testkit::proof::{Proof, record};
use extant_testkit::require;

use crate::layouts::{self, INLINE, SMALL};
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
