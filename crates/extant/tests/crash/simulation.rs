//! Many clients under one seed, with errors and reordering; and real threads.

use extant_block::{FaultPlan, OperationKind};
use extant_testkit::crash::Sampling;
use extant_testkit::model::Profile;
use extant_testkit::proof::{Counts, Proof, env};
use extant_testkit::require;
use extant_testkit::sim::{Plan, run_threads, simulate};

use crate::finish;
use crate::layouts::{self, DEFAULT, Layout, SMALL, WRITTEN};
use crate::target::Extant;

/// Simulates some seeds and proves what is left of each.
fn seeds(
    name: &str,
    first: u64,
    count: u64,
    faults: impl Fn(u64) -> FaultPlan,
    sampling: Sampling,
) {
    let profile = Profile { sync_one_in: 8, ..Profile::default() };
    seeds_of(name, first, count, (&SMALL, profile), faults, sampling);
}

/// [`seeds`] of other operations on another layout.
fn seeds_of(
    name: &str,
    first: u64,
    count: u64,
    (layout, profile): (&Layout, Profile),
    faults: impl Fn(u64) -> FaultPlan,
    sampling: Sampling,
) {
    let target = Extant { errors: true, ..Extant::default() };
    let mut counts = Counts::default();
    let (mut errors, mut failed, mut gave_up) = (0, 0, 0);
    let count = if std::env::var_os("EXTANT_SEED").is_some() { 1 } else { count };
    let first = env::seed(first);
    for seed in first..first + count {
        let base = require!(layouts::base(layout));
        let plan = Plan {
            seed,
            clients: 5,
            steps: 120,
            profile: profile.clone(),
            faults: FaultPlan { whole: 1024..2048, ..faults(seed) },
        };
        let done = simulate(&target, &base, &plan).unwrap_or_else(|text| {
            panic!("{text}\n\nagain: EXTANT_SEED={seed} cargo test -p extant --test crash {name}")
        });
        errors += done.device_errors;
        failed += done.failed_ops;
        gave_up += usize::from(done.gave_up);
        let sampling = Sampling { seed, ..sampling.clone() };
        let mut proof = Proof::new(&target, sampling);
        if done.device_errors > 0 {
            // Linux and e2fsck delete no orphans after errors either, which shows in a check.
            (proof.kernel_one_in, proof.replay_one_in) = (0, 0);
        }
        let (report, counted) = proof.prove(&done.recorded);
        counts.add(&counted);
        if seed + 1 == first + count || !report.failures.is_empty() {
            finish(name, seed, &report, &counts);
        }
    }
    println!("{name}: {errors} errors of devices, {failed} failed operations, {gave_up} gave up");
}

fn sampling(one_cut_in: u64) -> Sampling {
    Sampling { exhaustive_max: 3, samples: 8, one_cut_in, ..crate::states() }
}

#[test]
fn late_and_reordered_completions_lose_nothing() {
    let plan = |_| FaultPlan { reorder: true, ..FaultPlan::default() };
    seeds("late_and_reordered_completions", 1, 4, plan, sampling(6));
}

#[test]
fn errors_of_the_device_leave_whole_operations() {
    let plan = |seed| FaultPlan {
        read_one_in: if seed % 3 == 0 { 40 } else { 0 },
        write_one_in: if seed % 3 == 1 { 60 } else { 0 },
        flush_one_in: if seed % 3 == 2 { 6 } else { 0 },
        streak_max: 2,
        reorder: seed % 2 == 0,
        errno: errno(seed / 3),
        ..FaultPlan::default()
    };
    seeds("errors_of_the_device", 1, 6, plan, sampling(6));
}

#[test]
#[ignore = "takes minutes: each write and flush of a run fails once"]
fn each_single_error_leaves_whole_operations() {
    let plan = |seed: u64| {
        let kinds = [OperationKind::Write, OperationKind::Flush, OperationKind::Read];
        let kind = kinds[(seed % 3) as usize];
        FaultPlan { exactly: vec![(kind, seed / 3, 1)], errno: errno(seed), ..FaultPlan::default() }
    };
    seeds("each_single_error", 0, 300, plan, sampling(16));
}

#[test]
#[ignore = "takes minutes: 200 seeds of errors and reordering"]
fn many_seeds_of_errors_leave_whole_operations() {
    let plan = |seed: u64| FaultPlan {
        read_one_in: 200 * (seed % 2),
        write_one_in: 100 * (seed / 2 % 2),
        flush_one_in: 10 * (seed / 4 % 2),
        streak_max: seed % 5,
        reorder: true,
        ..FaultPlan::default()
    };
    seeds("many_seeds_of_errors", 5000, 200, plan, sampling(10));
}

/// Contents of files, written by several clients; completions come late and in another order.
fn contents() -> (&'static Layout, Profile) {
    let layout = &WRITTEN[1];
    (layout, Profile { unit: layout.unit, contents_max: 40_000, ..Profile::contents() })
}

#[test]
fn late_and_reordered_completions_lose_no_contents() {
    let plan = |_| FaultPlan { reorder: true, ..FaultPlan::default() };
    seeds_of("late_and_reordered_completions_lose_no_c", 1, 2, contents(), plan, sampling(8));
}

#[test]
#[ignore = "takes minutes: 60 seeds"]
fn many_late_and_reordered_completions_lose_no_contents() {
    let plan = |_| FaultPlan { reorder: true, ..FaultPlan::default() };
    seeds_of("many_late_and_reordered_completions_lose", 6000, 60, contents(), plan, sampling(3));
}

/// Errors of devices, and disks that are full, in turn.
fn errno(seed: u64) -> i32 {
    if seed.is_multiple_of(2) { 5 } else { 28 }
}

/// What a sync said to be there is there, whatever failed before it and after it.
fn errors(seed: u64) -> FaultPlan {
    FaultPlan {
        read_one_in: 100 * (seed % 2),
        write_one_in: 40 * (seed / 2 % 2),
        flush_one_in: 8 * (seed / 4 % 2),
        streak_max: 1 + seed % 3,
        reorder: !seed.is_multiple_of(5),
        errno: errno(seed / 8),
        ..FaultPlan::default()
    }
}

#[test]
fn errors_of_the_device_lose_no_synced_contents() {
    seeds_of("errors_of_the_device_lose_no_synced", 1, 8, contents(), errors, sampling(8));
}

#[test]
#[ignore = "takes minutes: 200 seeds"]
fn many_errors_of_the_device_lose_no_synced_contents() {
    seeds_of("many_errors_of_the_device_lose_no_s", 7000, 200, contents(), errors, sampling(8));
}

#[test]
#[ignore = "takes minutes: each write and flush of a run fails once"]
fn each_single_error_loses_no_synced_contents() {
    let plan = |seed: u64| {
        let kinds = [OperationKind::Write, OperationKind::Flush, OperationKind::Read];
        let kind = kinds[(seed % 3) as usize];
        FaultPlan { exactly: vec![(kind, seed / 3, 1)], errno: errno(seed), ..FaultPlan::default() }
    };
    seeds_of("each_single_error_loses_no_synced", 0, 300, contents(), plan, sampling(16));
}

fn threads(name: &str, seed: u64, rounds: u64, clients: usize, steps: usize) {
    let profile = Profile { sync_one_in: 10, ..Profile::default() };
    threads_of(name, seed, rounds, (clients, steps), &[&DEFAULT, &SMALL], &profile);
}

fn threads_of(
    name: &str,
    seed: u64,
    rounds: u64,
    (clients, steps): (usize, usize),
    layouts: &[&Layout],
    profile: &Profile,
) {
    let target = Extant::default();
    let mut counts = Counts::default();
    for seed in seed..seed + rounds {
        for layout in layouts {
            let base = require!(layouts::base(layout));
            let (done, fs) = run_threads(&target, &base, clients, steps, seed, profile)
                .unwrap_or_else(|text| panic!("{name}, seed {seed}: {text}"));
            drop(fs);
            let sampling = Sampling { seed, ..sampling(12) };
            let rules = extant_testkit::model::Rules { times: false, ..base.rules };
            let verdict = |marks: usize, tree: &_| done.judge(marks, tree);
            let proof = Proof::new(&target, sampling);
            let (report, counted) =
                proof.prove_history(&done.history, &rules, layout.name, verdict);
            counts.add(&counted);
            finish(name, seed, &report, &counts);
        }
    }
}

#[test]
fn threads_see_their_own_operations_in_order() {
    threads("threads_see_their_own", env::seed(1), 1, 4, 60);
}

#[test]
#[ignore = "takes minutes"]
fn many_threads_see_their_own_operations_in_order() {
    threads("many_threads_see_their_own", env::seed(100), 10, 8, 150);
}

#[test]
fn threads_find_their_own_contents() {
    let (layout, profile) = contents();
    threads_of("threads_find_their_own", env::seed(1), 1, (4, 60), &[layout], &profile);
}

#[test]
#[ignore = "takes minutes"]
fn many_threads_find_their_own_contents() {
    let (layout, profile) = contents();
    let layouts = [layout, &WRITTEN[0]];
    let profile = Profile { contents_max: 20_000, unit: 4096, ..profile };
    threads_of("many_threads_find_their_own", env::seed(100), 10, (8, 120), &layouts, &profile);
}
