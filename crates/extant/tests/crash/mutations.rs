//! The harness finds what it is there to find: with one step of the journal left out, damage.
//!
//! Not here: `skip_revokes` and `release_freed_early` harm only blocks that are written past the
//! journal, and nothing but the contents of files is. The tests of the journal alone catch them.

use extant_jbd2::Mutations;
use extant_testkit::crash::Sampling;
use extant_testkit::model::{Generator, Profile};
use extant_testkit::proof::{Proof, record};
use extant_testkit::require;

use crate::layouts::{self, SMALL};
use crate::target::Extant;

/// Fails unless some seed shows damage.
fn must_find(name: &str, mutations: Mutations) {
    let target = Extant { mutations, errors: false };
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
