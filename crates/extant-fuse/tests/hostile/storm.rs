//! Many threads do everything to a few shared names of a mount; see `extant_testkit::storm`.
//!
//! `EXTANT_SEED`, `EXTANT_STORM_SECONDS`, `EXTANT_STORM_LAYOUTS` and `EXTANT_STORM_THREADS` as for the
//! library's storm. Reads and writes pass the kernel's cache now and then, beside those that do not; with
//! `EXTANT_STORM_DIRECT=0` none does.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common;
use common::{Heard, obstacle, with_mount};
use extant::MountOptions;
use extant_base::Prng;
use extant_block::MemoryDevice;
use extant_fuse::Settings;
use extant_sync::{Clock, SystemClock};
use extant_testkit::oracle::e2fsck;
use extant_testkit::storm::layouts::{Layout, number, random_of};
use extant_testkit::storm::system::System;
use extant_testkit::storm::{Storm, run};
use extant_testkit::{image, require, skip};

/// Inodes of these have no time of birth, by which the storm tells two of one number apart.
const WITHOUT_BIRTH: [&str; 2] = ["small-inodes", "ext3"];

/// The machine's clock, which moves by ticks, and within a tick by a nanosecond each time that it is
/// asked: an inode and the next of its number are born at different times.
#[derive(Default)]
struct Births {
    asked: AtomicU32,
}

/// Nanoseconds that are fewer than any tick has.
const TICK: u32 = 1_000_000;

impl Clock for Births {
    fn now(&self) -> (i64, u32) {
        let (seconds, nanos) = SystemClock.now();
        let nanos = nanos + self.asked.fetch_add(1, Ordering::Relaxed) % TICK;
        (seconds + i64::from(nanos / 1_000_000_000), nanos % 1_000_000_000)
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }

    fn sleep(&self, time: Duration) {
        SystemClock.sleep(time);
    }
}

/// One round on a fresh image.
fn round(
    device: &MemoryDevice,
    storm: &Storm,
    settings: &Settings,
    scratch: &Path,
) -> Result<u64, String> {
    let device = Arc::new(device.snapshot());
    let mut random = Prng::new(storm.seed);
    let options = MountOptions::new()
        .read_only(false)
        .seed(storm.seed)
        .clock(Arc::new(Births::default()))
        .data_cache_bytes([4 << 20, 8 << 20, 32 << 20][random.below(3) as usize])
        .dirty_background_bytes([64 << 10, 1 << 20][random.below(2) as usize])
        .commit_interval(Duration::from_millis([1, 20, 5000][random.below(3) as usize]))
        .write_back_after(Duration::from_millis([1, 20, 5000][random.below(3) as usize]));
    let fs = options.open_shared(Arc::clone(&device) as _).map_err(|error| error.to_string())?;
    let dir = scratch.join("mount");
    let heard = Heard::new();
    let storms = |dir: &Path| -> Result<_, String> {
        let target = System::new(dir, number("EXTANT_STORM_DIRECT") != Some(0))
            .map_err(|error| error.to_string())?;
        let round = run(storm, &target, &|| 0, || ())?;
        round.verify(&target)?;
        Ok(round)
    };
    let (served, result) = with_mount(fs.clone(), &dir, settings, &heard, storms);
    let round = result?;
    served.map_err(|error| error.to_string())?;
    if heard.bugs.load(Ordering::SeqCst) > 0 {
        return Err("the server caught a panic".to_owned());
    }
    fs.unmount().map_err(|error| error.to_string())?;
    let path = scratch.join("checked");
    let _ = fs::remove_file(&path);
    image::save(&device, &path);
    let found = e2fsck(&path)?;
    if !found.is_clean() {
        return Err(format!("e2fsck: {:?}\n{}", found.status, found.text));
    }
    // Mounted again, it has what it had.
    let fs = options.open_shared(device).map_err(|error| error.to_string())?;
    let again = |dir: &Path| -> Result<_, String> {
        let target = System::new(dir, number("EXTANT_STORM_DIRECT") != Some(0))
            .map_err(|error| error.to_string())?;
        round.verify(&target)
    };
    let (served, result) = with_mount(fs, &dir, settings, &heard, again);
    served.map_err(|error| error.to_string())?;
    result?;
    Ok(round.done)
}

/// Rounds on each layout in turn, with and without the kernel's cache of writes.
fn rounds(
    layouts: &[Layout],
    threads: &[usize],
    (each, all): (Duration, Duration),
) -> Result<(), String> {
    let seed = number("EXTANT_SEED").unwrap_or(1);
    let scratch = extant_testkit::tempdir().expect("a temporary directory");
    fs::create_dir(scratch.path().join("mount")).expect("a directory");
    let mut images = Vec::new();
    for layout in layouts {
        let path = scratch.path().join(layout.name);
        layout.make(&path)?;
        images.push(image::load(&path));
        let _ = fs::remove_file(&path);
    }
    let start = SystemClock.monotonic();
    let (mut count, mut done) = (0usize, 0);
    while count < layouts.len() || SystemClock.monotonic() - start < all {
        let at = count % layouts.len();
        let threads = threads[(count + count / layouts.len()) % threads.len()];
        let mut settings = Settings::default();
        settings.writeback_cache = count % 2 == 1;
        let storm = Storm {
            seed: random_of(seed, count as u64).next_u64() >> 16,
            threads,
            time: each,
            shifts: true,
            directs: false,
            may_fail: false,
        };
        match round(&images[at], &storm, &settings, scratch.path()) {
            Ok(more) => done += more,
            Err(what) => panic!(
                "layout {}, round {count} of EXTANT_SEED={seed}, writeback_cache {}, {storm:?}:\n{what}",
                layouts[at].name, settings.writeback_cache
            ),
        }
        count += 1;
    }
    println!(
        "{count} rounds, {done} operations, {:.1} s",
        (SystemClock.monotonic() - start).as_secs_f64()
    );
    Ok(())
}

fn with_birth(layouts: impl IntoIterator<Item = Layout>) -> Vec<Layout> {
    let has_birth = |layout: &Layout| !WITHOUT_BIRTH.contains(&layout.name);
    layouts.into_iter().filter(has_birth).collect()
}

#[test]
fn a_storm_on_a_mount_leaves_sound_images_and_everybodys_bytes() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let names = ["4k", "1k", "bigalloc", "inline"];
    let layouts = with_birth(names.map(|name| Layout::find(name).expect("a layout")));
    require!(rounds(&layouts, &[4, 2], (Duration::from_millis(500), Duration::ZERO)));
}

#[test]
#[ignore = "takes minutes"]
fn a_storm_of_up_to_32_threads_on_mounts_of_every_layout() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let seconds = number("EXTANT_STORM_SECONDS").unwrap_or(120);
    let threads = number("EXTANT_STORM_THREADS").map_or(vec![2, 4, 8, 32], |n| vec![n as usize]);
    let each = Duration::from_millis(number("EXTANT_STORM_ROUND_MS").unwrap_or(1500));
    require!(rounds(&with_birth(Layout::chosen()), &threads, (each, Duration::from_secs(seconds))));
}
