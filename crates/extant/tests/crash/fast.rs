//! Fast commits: histories of writers that append and sync, cut anywhere, replayed by extant, by
//! e2fsck and by the kernel.

use extant_base::Prng;
use extant_jbd2::Mutations;
use extant_testkit::crash::Sampling;
use extant_testkit::model::{NewNode, Op, Path};
use extant_testkit::proof::{Counts, Proof, Recorded, env, record};
use extant_testkit::require;

use crate::finish;
use crate::layouts::{self, FAST, Layout};
use crate::target::Extant;

/// Appends to some files, writes within and behind them, and syncs after nearly each; now and then
/// something that no fast commit can describe.
fn history(seed: u64, steps: usize, unit: u64) -> Vec<Op> {
    let mut random = Prng::new(seed);
    let names = ["/empty", "/tiny", "/block", "/file", "/dir/f3", "/dir/f7"];
    let new = NewNode { permissions: 0o644, uid: 0, gid: 0 };
    let mut ops = vec![Op::Sync];
    for step in 0..steps {
        let path = Path::of(names[random.next_u64() as usize % names.len()]);
        let len = 1 + random.next_u64() % (3 * unit);
        let data = seed.wrapping_mul(1000).wrapping_add(step as u64);
        let op = match random.next_u64() % 40 {
            0 => Op::Create { path: Path::of(&format!("/new{step}")), new },
            1 => Op::Truncate { path: path.clone(), size: random.next_u64() % 5000 },
            2 => Op::Chmod { path: path.clone(), permissions: 0o600 + (step as u16 % 8) },
            3..10 => {
                let offset = random.next_u64() % (8 * unit);
                Op::Write { path: path.clone(), offset, len, seed: data }
            }
            _ => Op::Append { path: path.clone(), len, seed: data },
        };
        ops.push(op);
        match random.next_u64() % 8 {
            0 => {}
            1 => ops.push(Op::Fsync { path }),
            2 if step % 16 == 0 => ops.push(Op::Sync),
            _ => ops.push(Op::Fdatasync { path }),
        }
    }
    ops
}

fn recorded(target: &Extant, layout: &Layout, ops: Vec<Op>) -> Result<Recorded, String> {
    let base = layouts::base(layout)?;
    let mut ops = ops.into_iter();
    Ok(record(target, &base, |_| ops.next()).unwrap_or_else(|error| panic!("{error}")))
}

struct Often {
    fsck: u64,
    replay: u64,
    kernel: u64,
}

fn prove(name: &str, seeds: std::ops::Range<u64>, steps: usize, often: &Often, one_cut_in: u64) {
    let mut counts = Counts::default();
    for seed in seeds {
        for layout in FAST {
            let target = Extant { makes_fast_commits: true, ..Extant::default() };
            let recorded = require!(recorded(&target, layout, history(seed, steps, layout.unit)));
            let sampling =
                Sampling { seed, exhaustive_max: 3, samples: 8, one_cut_in, ..crate::states() };
            let mut proof = Proof::new(&target, sampling);
            proof.fsck_one_in = often.fsck;
            proof.replay_one_in = often.replay;
            proof.kernel_one_in = often.kernel;
            let (report, counted) = proof.prove(&recorded);
            counts.add(&counted);
            // Only a cut between two writes of one commit makes e2fsck drop the log.
            assert!(counted.exempt * 4 <= counted.replays, "{counted}");
            finish(name, seed, &report, &counts);
            // Many of the states are not those of the last full commit.
            let replayed = target.fast.load(std::sync::atomic::Ordering::Relaxed);
            assert!(replayed * 4 > counted.states, "{replayed} of {} states", counted.states);
        }
    }
}

#[test]
fn fast_commits_survive_every_cut() {
    let often = Often { fsck: 60, replay: 60, kernel: 30 };
    prove("fast_commits_survive_every_cut", 1..2, 40, &often, 12);
}

#[test]
#[ignore = "takes minutes: 20,000 cuts"]
fn many_fast_commits_survive_every_cut() {
    let often = Often { fsck: 100, replay: 100, kernel: 60 };
    let first = env::seed(100);
    prove("many_fast_commits_survive_every_cut", first..first + 12, 250, &often, 1);
}

/// Histories that fill the area of fast commits, and go through the log more than once.
#[test]
#[ignore = "takes minutes: e2fsck replays thousands of states"]
fn fast_commits_are_replayed_by_e2fsck() {
    let often = Often { fsck: 60, replay: 12, kernel: 60 };
    let first = env::seed(1);
    let seeds = first..first + env::number("EXTANT_SEEDS").unwrap_or(20);
    prove("fast_commits_are_replayed_by_e2fsck", seeds, 60, &often, 3);
}

/// The harness finds what it is there to find.
fn must_find(name: &str, mutations: Mutations) {
    let layout = &FAST[0];
    let mut states = 0;
    for seed in 0..6 {
        let target = Extant { mutations, makes_fast_commits: true, ..Extant::default() };
        let recorded = require!(recorded(&target, layout, history(seed, 60, layout.unit)));
        let sampling =
            Sampling { seed, exhaustive_max: 4, samples: 12, one_cut_in: 2, ..crate::states() };
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

#[test]
fn skip_flush_before_tail() {
    let mutations = Mutations { skip_flush_before_tail: true, ..Mutations::default() };
    must_find("skip_flush_before_tail", mutations);
}

#[test]
fn stale_tail() {
    must_find("stale_tail", Mutations { stale_tail: true, ..Mutations::default() });
}
