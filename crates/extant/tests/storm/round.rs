//! One round: mounted somehow, stormed, ended, looked at.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant::{Fs, MountOptions};
use extant_base::Prng;
use extant_block::{
    BlockDevice, FaultDevice, FaultPlan, FileDevice, MemoryDevice, Record, RecordingDevice,
    SharedDevice, Survival,
};
use extant_check::CheckOptions;
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET};
use extant_sync::{Clock, SystemClock};
use extant_testkit::lasting::Lasting;
use extant_testkit::oracle::{e2fsck, e2fsck_as};
use extant_testkit::storm::book::Care;
use extant_testkit::storm::{Log, Round, Storm, run};
use extant_testkit::{Ends, image};

use crate::stopped::check_but_for_errors;
use crate::target::Library;

/// How one round is mounted and used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    seed: u64,
    threads: usize,
    time: Duration,
    data_cache: u64,
    dirty_background: u64,
    metadata_cache: usize,
    commit_ms: u64,
    write_back_ms: u64,
    discard: bool,
    /// Inodes and metadata that nobody holds leave memory all the time.
    evicts: bool,
    /// Handles are held, and let go, beyond the end of the mount.
    ends_early: bool,
    /// The device fails now and then, or its power does: the mount is left as it is.
    breaks: bool,
    /// Rings give direct operations to the device without a worker.
    has_lane: bool,
    /// Most reads and writes go past the cache.
    directs: bool,
    /// The image is a file, whose queues are the system's.
    on_file: bool,
}

impl Setting {
    pub(crate) fn of(seed: u64, threads: usize, time: Duration) -> Setting {
        let mut random = Prng::new(seed);
        let mut one_of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        Setting {
            seed,
            threads,
            time,
            data_cache: one_of(&[4 << 20, 8 << 20, 32 << 20]),
            dirty_background: one_of(&[64 << 10, 1 << 20, 3 << 20]),
            metadata_cache: one_of(&[64 << 10, 4 << 20]) as usize,
            commit_ms: one_of(&[1, 20, 5000]),
            write_back_ms: one_of(&[1, 20, 5000]),
            discard: one_of(&[0, 1]) == 1,
            evicts: one_of(&[0, 0, 1]) == 1,
            ends_early: one_of(&[0, 0, 0, 1]) == 1,
            breaks: false,
            has_lane: one_of(&[0, 1, 1, 1]) == 1,
            directs: one_of(&[0, 1]) == 1,
            on_file: one_of(&[0, 0, 0, 1]) == 1,
        }
    }

    fn options(&self) -> MountOptions {
        MountOptions::new()
            .read_only(false)
            .seed(self.seed)
            .cache_bytes(self.metadata_cache)
            .data_cache_bytes(self.data_cache)
            .dirty_background_bytes(self.dirty_background)
            .commit_interval(Duration::from_millis(self.commit_ms))
            .write_back_after(Duration::from_millis(self.write_back_ms))
            .discard(self.discard)
    }

    /// The device of the mount.
    fn device<D: BlockDevice + 'static>(&self, below: &Arc<D>) -> SharedDevice {
        match self.has_lane {
            true => Arc::new(Lasting::over(Arc::clone(below), self.seed)),
            false => Arc::clone(below) as _,
        }
    }

    fn storm(&self) -> Storm {
        Storm {
            seed: self.seed,
            threads: self.threads,
            time: self.time,
            shifts: true,
            directs: self.directs,
            may_fail: self.ends_early || self.breaks,
        }
    }
}

/// Calls `tick` until it is told to stop: the background of an embedder that has little patience.
fn tick_until(fs: &Fs, evicts: bool, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let _ = fs.tick();
        if evicts {
            fs.drop_cached_metadata();
        }
        SystemClock.sleep(Duration::from_micros(300));
    }
}

fn storm_on(
    fs: &Fs,
    setting: &Setting,
    moment: &(dyn Fn() -> u64 + Sync),
) -> Result<Round, String> {
    let library = Library::new(fs.clone()).map_err(|error| error.to_string())?;
    let stop = AtomicBool::new(false);
    let ended = extant_sync::threads::scope(|threads| {
        let (fs, stop) = (fs.clone(), &stop);
        let has_ended = Ends(stop);
        let ticking = fs.clone();
        let ticks = threads.spawn("tick", move || tick_until(&ticking, setting.evicts, stop));
        let ends = || {
            if setting.ends_early {
                SystemClock.sleep(setting.time / 2);
                unmount_when_thawed(&fs)
            } else {
                Ok(())
            }
        };
        let mut unmounted = Ok(());
        let round = run(&setting.storm(), &library, moment, || unmounted = ends());
        drop(has_ended);
        ticks.map_err(|error| error.to_string())?.join().map_err(|panic| panic.to_string())?;
        unmounted.and(round)
    });
    let round = ended.map_err(|panic| panic.to_string())??;
    if !setting.ends_early && !setting.breaks {
        round.verify(&library)?;
        // What is not cached any more is what the device has.
        fn said(error: impl std::fmt::Display) -> String {
            error.to_string()
        }
        fs.sync().map_err(said)?;
        fs.drop_cached();
        fs.drop_cached_metadata();
        round.verify(&library)?;
        drop(library);
        fs.clone().unmount().map_err(said)?;
    }
    Ok(round)
}

/// Ends the mount beside threads that freeze it now and then.
fn unmount_when_thawed(fs: &Fs) -> Result<(), String> {
    loop {
        match fs.clone().unmount() {
            Err(extant::FsError::Frozen) => SystemClock.sleep(Duration::from_micros(100)),
            ended => return ended.map_err(|error| error.to_string()),
        }
    }
}

/// Both checkers find nothing.
pub(crate) fn check(device: &MemoryDevice, scratch: &Path) -> Result<(), String> {
    let report = extant_check::check(device, &CheckOptions::default());
    let report = report.map_err(|error| error.to_string())?;
    let path = scratch.join("checked");
    let _ = std::fs::remove_file(&path);
    image::save(device, &path);
    let found = e2fsck(&path)?;
    if !found.is_clean() {
        return Err(format!("e2fsck: {:?}\n{}", found.status, found.text));
    }
    if !report.is_clean() {
        return Err(format!("{:#?}", report.problems));
    }
    Ok(())
}

/// One round on a fresh image.
pub(crate) fn round(
    device: &MemoryDevice,
    setting: &Setting,
    scratch: &Path,
) -> Result<u64, String> {
    let device = Arc::new(device.snapshot());
    if setting.on_file {
        return round_on_file(&device, setting, scratch);
    }
    let shared = setting.device(&device);
    fn said(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let fs = setting.options().open_shared(Arc::clone(&shared)).map_err(said)?;
    let round = storm_on(&fs, setting, &|| 0)?;
    drop(fs);
    if setting.ends_early {
        // What was still held has no name; the next mount deletes it.
        let again = setting.options().open_shared(Arc::clone(&shared)).map_err(said)?;
        again.unmount().map_err(said)?;
    }
    check(&device, scratch)?;
    if !setting.ends_early {
        let again = MountOptions::new().open_shared(shared).map_err(said)?;
        round.verify(&Library::new(again).map_err(said)?)?;
    }
    Ok(round.done)
}

/// A round on an image that is a file.
fn round_on_file(device: &MemoryDevice, setting: &Setting, scratch: &Path) -> Result<u64, String> {
    let setting = Setting { ends_early: false, ..*setting };
    let path = scratch.join("live");
    let _ = std::fs::remove_file(&path);
    image::save(device, &path);
    fn said(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let file = FileDevice::open_read_write(&path).map_err(said)?;
    let fs = setting.options().open_shared(Arc::new(file) as SharedDevice).map_err(said)?;
    let round = storm_on(&fs, &setting, &|| 0)?;
    drop(fs);
    let left = Arc::new(image::load(&path));
    check(&left, scratch)?;
    let again = MountOptions::new().open_shared(left as SharedDevice).map_err(said)?;
    round.verify(&Library::new(again).map_err(said)?)?;
    Ok(round.done)
}

/// What must be on the device at a moment: the logs, as far as a sync has returned for them by then,
/// and nothing anywhere but what was written there.
fn check_survivors(round: &Round, fs: Fs, moment: u64) -> Result<(), String> {
    let library = Library::new(fs).map_err(|error| error.to_string())?;
    for Log { place, durable, .. } in &round.logs {
        let synced = durable.iter().filter(|(_, at)| *at <= moment).map(|(bytes, _)| *bytes).max();
        if let (Some(place), Some(bytes)) = (place, synced) {
            round.verify_log(&library, *place, bytes, false)?;
        }
    }
    round.verify_with(&library, Care::Whole)?;
    Ok(())
}

/// Whether it is a write to the primary superblock: nobody could bear half of that.
fn is_superblock(record: &Record) -> bool {
    let at = SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64;
    matches!(record, Record::Write { offset, data, .. }
        if *offset < at.end && at.start < offset + data.len() as u64)
}

/// A round whose device loses power at `cuts` moments, each looked at.
pub(crate) fn round_with_cuts(
    device: &MemoryDevice,
    setting: &Setting,
    scratch: &Path,
    cuts: usize,
) -> Result<u64, String> {
    let setting = Setting { breaks: true, ends_early: false, ..*setting };
    let device = Arc::new(RecordingDevice::over(device.snapshot()));
    let shared = setting.device(&device);
    fn said(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let fs = setting.options().open_shared(shared).map_err(said)?;
    let moment = || device.len() as u64;
    let round = storm_on(&fs, &setting, &moment)?;
    drop(fs);
    let mut random = Prng::new(setting.seed);
    for _ in 0..cuts {
        let at = random.below(device.len() as u64 + 1) as usize;
        let mut dice = Prng::new(random.next_u64());
        let left = device.image_at(at, |_, record| match dice.below(4) {
            0 => Survival::Lost,
            1 if !is_superblock(record) => Survival::Torn { bytes: dice.below(8) * 512 },
            _ => Survival::Kept,
        });
        let cut = |what: String| format!("cut at {at} of {}: {what}", device.len());
        look_at_survivor(&round, left, &setting, scratch, at as u64).map_err(cut)?;
    }
    Ok(round.done)
}

fn look_at_survivor(
    round: &Round,
    left: MemoryDevice,
    setting: &Setting,
    scratch: &Path,
    moment: u64,
) -> Result<(), String> {
    fn said(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let left = Arc::new(left);
    let fs = setting.options().open_shared(Arc::clone(&left) as _).map_err(said)?;
    check_survivors(round, fs.clone(), moment)?;
    fs.unmount().map_err(said)?;
    check(&left, scratch)
}

/// A round on a device that fails now and then. What was said to be durable is there, e2fsck has
/// nothing to repair but what a journal that stopped leaves: the state, the log and orphans.
pub(crate) fn round_with_errors(
    device: &MemoryDevice,
    setting: &Setting,
    scratch: &Path,
) -> Result<u64, String> {
    let setting = Setting { breaks: true, ends_early: false, ..*setting };
    let below = Arc::new(device.snapshot());
    let mut random = Prng::new(setting.seed);
    let plan = FaultPlan {
        seed: random.next_u64(),
        read_one_in: [0, 500, 3000][random.below(3) as usize],
        write_one_in: [300, 2000, 10_000][random.below(3) as usize],
        flush_one_in: [0, 0, 200][random.below(3) as usize],
        streak_max: 2,
        // Nothing repairs a superblock of which half is written.
        whole: 0..4096,
        ..FaultPlan::default()
    };
    let device = Arc::new(FaultDevice::new(Arc::clone(&below), plan));
    device.set_enabled(false);
    fn said(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let shared = setting.device(&device);
    let fs = setting.options().open_shared(shared).map_err(said)?;
    let round = {
        let enabled = Arc::clone(&device);
        let started = AtomicBool::new(false);
        let moment = move || {
            // From the first sync of a log on.
            if !started.swap(true, Ordering::Relaxed) {
                enabled.set_enabled(true);
            }
            0
        };
        storm_on(&fs, &setting, &moment)?
    };
    let unmounted = fs.clone().unmount();
    device.set_enabled(false);
    drop(fs);
    let path = scratch.join("failed");
    let _ = std::fs::remove_file(&path);
    image::save(&below, &path);
    let tell =
        |what: String| format!("after {} errors, unmount {unmounted:?}: {what}", device.failed());
    let found = e2fsck_as(&path, "-fy", &[])?;
    if !matches!(found.status, Some(0 | 1)) || !e2fsck(&path)?.is_clean() {
        return Err(tell(found.text));
    }
    check_but_for_errors(&below, &setting.options(), scratch).map_err(tell)?;
    let repaired: SharedDevice = Arc::new(image::load(&path));
    let fs = setting.options().open_shared(Arc::clone(&repaired)).map_err(said)?;
    check_survivors(&round, fs, u64::MAX)?;
    debug_assert_eq!(repaired.size_bytes(), below.size_bytes());
    Ok(round.done)
}
