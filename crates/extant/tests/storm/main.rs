//! Many threads do everything to a few shared names of one mount; see `extant_testkit::storm`.
//!
//! `EXTANT_SEED` chooses what is done, `EXTANT_STORM_SECONDS` for how long the long tests run,
//! `EXTANT_STORM_LAYOUTS` and `EXTANT_STORM_THREADS` on what and with how many.

mod round;
mod stopped;
mod target;

use std::sync::atomic::Ordering;
use std::time::Duration;

use extant_sync::{Clock, SystemClock};
use extant_testkit::storm::layouts::{Layout, number, random_of};
use extant_testkit::{image, require};

use round::{Setting, round, round_with_cuts, round_with_errors};
use target::BY_LANE;

/// What befalls the device.
#[derive(Clone, Copy)]
enum Fate {
    Good,
    Cuts(usize),
    Errors,
}

/// Rounds on each layout in turn, each with another number of threads, until time is up; at least one
/// on each.
fn rounds(
    layouts: &[Layout],
    threads: &[usize],
    (each, all): (Duration, Duration),
    fates: &[Fate],
) -> Result<(), String> {
    let seed = number("EXTANT_SEED").unwrap_or(1);
    let scratch = extant_testkit::tempdir().expect("a temporary directory");
    let mut images = Vec::new();
    for layout in layouts {
        let path = scratch.path().join(layout.name);
        layout.make(&path)?;
        images.push(image::load(&path));
        let _ = std::fs::remove_file(&path);
    }
    let start = SystemClock.monotonic();
    let (mut count, mut done) = (0usize, 0);
    while count < layouts.len() || SystemClock.monotonic() - start < all {
        let at = count % layouts.len();
        let threads = threads[(count + count / layouts.len()) % threads.len()];
        let setting = Setting::of(random_of(seed, count as u64).next_u64() >> 16, threads, each);
        let (image, scratch) = (&images[at], scratch.path());
        let ended = match fates[count % fates.len()] {
            Fate::Cuts(cuts) if !layouts[at].is_unprotected() => {
                round_with_cuts(image, &setting, scratch, cuts)
            }
            Fate::Errors if !layouts[at].is_unprotected() => {
                round_with_errors(image, &setting, scratch)
            }
            _ => round(image, &setting, scratch),
        };
        match ended {
            Ok(more) => done += more,
            Err(what) => panic!(
                "layout {}, round {count} of EXTANT_SEED={seed}, {setting:?}:\n{what}",
                layouts[at].name
            ),
        }
        count += 1;
    }
    println!(
        "{count} rounds, {done} operations, {} past the workers of rings, {:.1} s",
        BY_LANE.load(Ordering::Relaxed),
        (SystemClock.monotonic() - start).as_secs_f64()
    );
    Ok(())
}

fn some(names: &[&str]) -> Vec<Layout> {
    names.iter().map(|name| Layout::find(name).expect("a layout of that name")).collect()
}

#[test]
fn a_storm_of_two_and_four_threads_leaves_sound_images_and_everybodys_bytes() {
    let layouts = some(&["4k", "1k", "ext3", "bigalloc", "inline", "small-journal"]);
    let times = (Duration::from_millis(600), Duration::ZERO);
    require!(rounds(&layouts, &[4, 2], times, &[Fate::Good]));
}

#[test]
fn a_storm_that_a_power_cut_ends_leaves_what_was_synced() {
    let layouts = some(&["4k", "bigalloc", "small-journal", "orphan-list"]);
    let times = (Duration::from_millis(150), Duration::ZERO);
    require!(rounds(&layouts, &[4, 2], times, &[Fate::Cuts(2)]));
}

#[test]
fn a_storm_on_a_device_that_fails_leaves_nothing_to_repair() {
    let layouts = some(&["4k", "1k", "orphan-list"]);
    let times = (Duration::from_millis(300), Duration::ZERO);
    require!(rounds(&layouts, &[4, 2], times, &[Fate::Errors]));
}

/// For how long, with how many threads, each round for how long.
fn long() -> (Duration, Vec<usize>, Duration) {
    let seconds = number("EXTANT_STORM_SECONDS").unwrap_or(120);
    let threads = number("EXTANT_STORM_THREADS").map_or(vec![2, 4, 8, 32], |n| vec![n as usize]);
    let each = number("EXTANT_STORM_ROUND_MS").unwrap_or(1500);
    (Duration::from_secs(seconds), threads, Duration::from_millis(each))
}

#[test]
#[ignore = "takes minutes"]
fn a_storm_of_up_to_32_threads_over_every_layout() {
    let (all, threads, each) = long();
    require!(rounds(&Layout::chosen(), &threads, (each, all), &[Fate::Good]));
}

#[test]
#[ignore = "takes minutes"]
fn a_storm_with_power_cuts_and_errors_over_every_layout() {
    let (all, threads, each) = long();
    let fates = [Fate::Cuts(3), Fate::Errors];
    require!(rounds(&Layout::chosen(), &threads, (each / 5, all), &fates));
}
