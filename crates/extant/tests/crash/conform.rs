//! Without any cut: the file system does what the model says, on every layout.

use extant_testkit::model::{Generator, Profile};
use extant_testkit::oracle;
use extant_testkit::proof::{Recorded, Target as _, env, record};

use crate::layouts::{self, LAYOUTS, Layout, SPECIAL, WRITTEN};
use crate::target::Extant;

/// The operations of one seed on one layout. Space may run out where files may become large.
pub(crate) fn generated(
    target: &Extant,
    layout: &Layout,
    seed: u64,
    steps: usize,
    profile: Profile,
) -> Option<Recorded> {
    let base = match layouts::base(layout) {
        Ok(mut base) => {
            base.rules.full = profile.contents_max > 1 << 20;
            base
        }
        Err(reason) => {
            oracle::print_skip(module_path!(), line!(), &format!("{}: {reason}", layout.name));
            return None;
        }
    };
    let unit = if profile.unit > 0 && layout.moves_contents() { base.unit } else { 0 };
    let profile = Profile { project: layout.project, value_max: layout.value_max, unit, ..profile };
    let writes = profile.contents > 0;
    let mut generator = Generator::new(seed, profile);
    let mut left = steps;
    // Too little for everything to stay in memory, on every other seed.
    let data_cache_bytes = if seed % 2 == 1 && writes { 2 << 20 } else { 0 };
    let discard = seed.is_multiple_of(3);
    let target = Extant { data_cache_bytes, discard, ..target.clone() };
    let recorded = record(&target, &base, |model| {
        left = left.checked_sub(1)?;
        Some(generator.next_op(model))
    });
    match recorded {
        Ok(recorded) => Some(recorded),
        Err(text) => {
            panic!("{text}\n\nagain: EXTANT_SEED={seed} cargo test -p extant --test crash conform")
        }
    }
}

/// Runs, compares every answer and the whole tree, unmounts, checks.
fn conform(layouts: &'static [Layout], seed: u64, steps: usize, profile: &Profile) {
    for layout in layouts::of(layouts) {
        if profile.contents_max > 1 << 20 && layout.unit != 1024 {
            continue; // Larger images.
        }
        let Some(recorded) = generated(&Extant::default(), layout, seed, steps, profile.clone())
        else {
            continue;
        };
        let devices = recorded.history.bases();
        recorded.history.replay_all(&devices);
        let checked = Extant::default().check(&devices);
        checked.unwrap_or_else(|text| panic!("{}, seed {seed}: {text}", layout.name));
        let dir = extant_testkit::tempdir().unwrap();
        let file = dir.path().join("image");
        extant_testkit::image::save(&devices[0], &file);
        if devices.len() == 1
            && let Ok(report) = oracle::e2fsck(&file)
        {
            assert!(report.is_clean(), "{}, seed {seed}: {}", layout.name, report.text);
        }
    }
}

#[test]
fn names_and_attributes_are_as_the_model_says() {
    conform(LAYOUTS, env::seed(1), 400, &Profile::default());
}

#[test]
fn encrypted_and_folding_trees_are_as_the_model_says() {
    conform(SPECIAL, env::seed(5), 300, &Profile::default());
    conform(SPECIAL, env::seed(6), 200, &Profile::contents());
}

#[test]
fn a_directory_that_grows_and_shrinks_is_as_the_model_says() {
    let profile = Profile { entries_max: 250, ..Profile::big_directory() };
    conform(LAYOUTS, env::seed(2), 700, &profile);
}

#[test]
fn contents_are_as_the_model_says() {
    for seed in env::seed(3)..env::seed(3) + 2 {
        conform(WRITTEN, seed, 300, &Profile::contents());
        conform(WRITTEN, seed, 200, &Profile { maps: 33, ..Profile::contents() });
        conform(WRITTEN, seed, 200, &Profile { defrag_one_in: 4, ..Profile::contents() });
    }
}

/// A write that is cut short because space ran out, and goes on because some became free.
#[test]
fn contents_are_as_the_model_says_when_space_runs_out() {
    let profile = Profile { contents_max: 6 << 20, sync_one_in: 8, ..Profile::contents() };
    conform(WRITTEN, env::seed(4600), 200, &profile);
}
