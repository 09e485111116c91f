//! Operations from a seed on every layout, and sampled cuts.

use extant_testkit::crash::{Report, Sampling};
use extant_testkit::model::{Profile, errno};
use extant_testkit::proof::{Counts, Proof, env};

use crate::conform;
use crate::finish;
use crate::layouts::{self, LAYOUTS, Layout, SPECIAL, WRITTEN};
use crate::target::Extant;

/// What one seed does to each layout.
struct Load {
    name: &'static str,
    layouts: &'static [Layout],
    steps: usize,
    profile: Profile,
    sampling: Sampling,
}

fn prove(load: &Load, seeds: std::ops::Range<u64>) {
    prove_with(&Extant::default(), load, seeds);
}

fn prove_with(target: &Extant, load: &Load, seeds: std::ops::Range<u64>) {
    let mut counts = Counts::default();
    let mut full = 0;
    for seed in seeds {
        let mut report = Report::default();
        for layout in layouts::of(load.layouts) {
            let profile = load.profile.clone();
            let may_fill = profile.contents_max > 1 << 20;
            if may_fill && layout.unit != 1024 {
                continue; // Larger images.
            }
            let Some(recorded) = conform::generated(target, layout, seed, load.steps, profile)
            else {
                continue;
            };
            full += recorded.answers.iter().filter(|answer| **answer == Err(errno::ENOSPC)).count();
            let sampling = Sampling { seed, ..load.sampling.clone() };
            let (found, counted) = Proof::new(target, sampling).prove(&recorded);
            report.add(found);
            counts.add(&counted);
            if !report.failures.is_empty() {
                break;
            }
        }
        finish(load.name, seed, &report, &counts);
    }
    if full > 0 {
        println!("{}: no space for {full} operations", load.name);
    }
}

fn range(first: u64, count: u64) -> std::ops::Range<u64> {
    let first = env::seed(first);
    let count = if std::env::var_os("EXTANT_SEED").is_some() { 1 } else { count };
    first..first + count
}

#[test]
fn generated_histories_survive_every_cut() {
    let sampling =
        Sampling { exhaustive_max: 3, samples: 12, tears: 6, one_cut_in: 2, ..crate::states() };
    let load = Load {
        name: "generated_histories_survive_every_cut",
        layouts: LAYOUTS,
        steps: 100,
        profile: Profile::default(),
        sampling,
    };
    prove(&load, range(100, 1));
}

#[test]
fn encrypted_and_folding_trees_survive_every_cut() {
    let sampling =
        Sampling { exhaustive_max: 3, samples: 8, tears: 4, one_cut_in: 6, ..crate::states() };
    let load = Load {
        name: "encrypted_and_folding_trees_survive_every_cut",
        layouts: SPECIAL,
        steps: 70,
        profile: Profile { contents: 30, ..Profile::default() },
        sampling,
    };
    prove(&load, range(5100, 1));
}

#[test]
#[ignore = "takes minutes: 17,000 cuts"]
fn many_encrypted_and_folding_trees_survive_every_cut() {
    let sampling = Sampling { exhaustive_max: 3, samples: 8, tears: 4, ..crate::states() };
    let load = Load {
        name: "many_encrypted_and_folding_trees_survive_every_cut",
        layouts: SPECIAL,
        steps: 150,
        profile: Profile { contents: 30, sync_one_in: 8, ..Profile::default() },
        sampling: sampling.clone(),
    };
    prove(&load, range(5200, 9));
    let load = Load { steps: 400, profile: Profile::big_directory(), ..load };
    prove(&load, range(5300, 1));
}

#[test]
#[ignore = "takes minutes: 100,000 states"]
fn many_generated_histories_survive_every_cut() {
    let sampling = Sampling { exhaustive_max: 4, samples: 24, tears: 12, ..crate::states() };
    let load = Load {
        name: "many_generated_histories_survive_every_cut",
        layouts: LAYOUTS,
        steps: 150,
        profile: Profile { sync_one_in: 6, ..Profile::default() },
        sampling,
    };
    prove(&load, range(1000, 8));
}

#[test]
#[ignore = "takes minutes: 50,000 states"]
fn big_directories_survive_every_cut() {
    let sampling =
        Sampling { exhaustive_max: 4, samples: 24, tears: 12, one_cut_in: 2, ..crate::states() };
    let load = Load {
        name: "big_directories_survive_every_cut",
        layouts: LAYOUTS,
        steps: 900,
        profile: Profile { entries_max: 300, sync_one_in: 10, ..Profile::big_directory() },
        sampling,
    };
    prove(&load, range(2000, 2));
}

#[test]
#[ignore = "takes minutes: the log wraps and is checkpointed many times"]
fn a_log_that_wraps_survives_every_cut() {
    let sampling =
        Sampling { exhaustive_max: 4, samples: 24, tears: 9, one_cut_in: 3, ..crate::states() };
    let load = Load {
        name: "a_log_that_wraps_survives_every_cut",
        layouts: LAYOUTS,
        steps: 1200,
        profile: Profile { sync_one_in: 2, ..Profile::default() },
        sampling,
    };
    prove(&load, range(3000, 2));
}

#[test]
fn contents_survive_every_cut() {
    let sampling = Sampling { exhaustive_max: 3, samples: 8, one_cut_in: 16, ..crate::states() };
    let load = Load {
        name: "contents_survive_every_cut",
        layouts: WRITTEN,
        steps: 80,
        profile: Profile::contents(),
        sampling,
    };
    prove(&load, range(4000, 1));
}

/// The same through the journal: what is written is in the log before it is home.
fn through_the_journal(
    name: &'static str,
    steps: usize,
    one_cut_in: u64,
    seeds: std::ops::Range<u64>,
) {
    let target = Extant { data_journal: true, ..Extant::default() };
    let sampling =
        Sampling { exhaustive_max: 3, samples: 8, tears: 4, one_cut_in, ..crate::states() };
    let profile = Profile { maps: 10, ..Profile::contents() };
    prove_with(&target, &Load { name, layouts: WRITTEN, steps, profile, sampling }, seeds);
}

#[test]
fn contents_in_the_journal_survive_every_cut() {
    through_the_journal("contents_in_the_journal_survive_every_cut", 60, 16, range(4901, 1));
}

#[test]
#[ignore = "takes minutes: 19,000 cuts"]
fn many_contents_in_the_journal_survive_every_cut() {
    let name = "many_contents_in_the_journal_survive_every_cut";
    through_the_journal(name, 150, 2, range(4910, 4));
}

/// A quarter of all changes bring a file together on the device; what is freed by that is taken again.
fn moved() -> Profile {
    Profile { defrag_one_in: 4, ..Profile::contents() }
}

#[test]
fn contents_that_are_moved_together_survive_every_cut() {
    let sampling = Sampling { exhaustive_max: 3, samples: 8, one_cut_in: 20, ..crate::states() };
    let load = Load {
        name: "contents_that_are_moved_together_survive_every_cut",
        layouts: WRITTEN,
        steps: 90,
        profile: moved(),
        sampling,
    };
    prove(&load, range(4700, 1));
}

#[test]
#[ignore = "takes minutes: 40,000 states"]
fn many_contents_that_are_moved_together_survive_every_cut() {
    let sampling =
        Sampling { exhaustive_max: 4, samples: 20, tears: 6, one_cut_in: 4, ..crate::states() };
    let load = Load {
        name: "many_contents_that_are_moved_together_survive_every_cut",
        layouts: WRITTEN,
        steps: 200,
        profile: Profile { maps: 20, ..moved() },
        sampling,
    };
    prove(&load, range(4800, 4));
}

/// A third of all changes go through maps, some of which stay for long.
fn mapped() -> Profile {
    Profile { maps: 33, ..Profile::contents() }
}

#[test]
fn mapped_contents_survive_every_cut() {
    let sampling = Sampling { exhaustive_max: 3, samples: 8, one_cut_in: 24, ..crate::states() };
    let load = Load {
        name: "mapped_contents_survive_every_cut",
        layouts: WRITTEN,
        steps: 60,
        profile: mapped(),
        sampling,
    };
    prove(&load, range(4200, 1));
}

#[test]
#[ignore = "takes minutes: 40,000 states"]
fn many_mapped_contents_survive_every_cut() {
    let sampling =
        Sampling { exhaustive_max: 4, samples: 20, tears: 6, one_cut_in: 4, ..crate::states() };
    let load = Load {
        name: "many_mapped_contents_survive_every_cut",
        layouts: WRITTEN,
        steps: 150,
        profile: mapped(),
        sampling,
    };
    prove(&load, range(4300, 4));
}

/// Files that become larger than there is space for.
fn filling(name: &'static str, one_cut_in: u64) -> Load {
    Load {
        name,
        layouts: WRITTEN,
        steps: 200,
        profile: Profile { contents_max: 6 << 20, sync_one_in: 8, ..Profile::contents() },
        sampling: Sampling { exhaustive_max: 3, samples: 8, one_cut_in, ..crate::states() },
    }
}

#[test]
fn contents_survive_every_cut_when_space_runs_out() {
    prove(&filling("contents_survive_every_cut_when_space_runs_out", 96), range(4500, 1));
}

#[test]
#[ignore = "takes minutes: 40,000 states"]
fn many_contents_survive_every_cut_when_space_runs_out() {
    prove(&filling("many_contents_survive_every_cut_when_space_runs_out", 8), range(4600, 4));
}

#[test]
#[ignore = "takes minutes: 100,000 states"]
fn many_contents_survive_every_cut() {
    let sampling = Sampling { exhaustive_max: 4, samples: 20, tears: 6, ..crate::states() };
    let load = Load {
        name: "many_contents_survive_every_cut",
        layouts: WRITTEN,
        steps: 150,
        profile: Profile::contents(),
        sampling,
    };
    prove(&load, range(4100, 3));
}
