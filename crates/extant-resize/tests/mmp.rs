//! A resize and multi-mount protection: nothing is written while another host may be there.

mod common;

use std::sync::Arc;

use common::{Layout, made, problems, seen, with_size};
use extant::{MountOptions, NewInode};
use extant_block::{BlockDevice, MemoryDevice, RecordingDevice, SharedDevice, Survival};
use extant_format::mmp::{Mmp, MmpState};
use extant_resize::{ChangeError, Goal, Plan, ResizeError, resize};
use extant_sync::{Clock, FixedClock};
use extant_testkit::image::e2fsck;
use extant_testkit::others::{Before, While, all_else, get, place, put};
use extant_testkit::{HastyClock, require, tempdir};

const NOW: i64 = 1_700_000_000;
const MIB: u64 = 1 << 20;
const LAYOUT: Layout = Layout::new(
    &["-text4", "-b1024", "-Jsize=4", "-Ommp", "-Emmp_update_interval=1", "-g2048"],
    "24M",
);

fn image() -> Result<MemoryDevice, String> {
    Ok(with_size(&made(tempdir().unwrap().path(), LAYOUT)?, 40 * MIB))
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(FixedClock::at(NOW, 0))
}

/// The seconds that were told, and what came of it.
fn run(
    device: &SharedDevice,
    goal: Goal,
    clock: &Arc<dyn Clock>,
) -> (Vec<u64>, Result<Plan, ResizeError>) {
    let mut told = Vec::new();
    let result = resize(device, goal, clock, &mut |seconds| told.push(seconds));
    (told, result)
}

fn refusal(result: Result<Plan, ResizeError>) -> String {
    match result {
        Err(ResizeError::Change(ChangeError::InUse { why })) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_released_block_is_taken_with_one_wait_and_kept_until_the_last_write() {
    let dir = tempdir().unwrap();
    let first = require!(image());
    let tree = seen(&first);
    for goal in [Goal::Max, Goal::Bytes(20 * MIB)] {
        let device = Arc::new(RecordingDevice::over(first.snapshot()));
        let shared: SharedDevice = Arc::clone(&device) as _;
        let (told, result) = run(&shared, goal, &clock());
        assert!(!result.unwrap().is_empty(), "{goal:?}");
        assert_eq!(told, [11], "{goal:?}");
        let states: Vec<MmpState> = (0..=device.len())
            .map(|position| get(&device.image_at(position, |_, _| Survival::Kept)).state)
            .collect();
        // Whoever looks at the block before or after that finds the file system as it was, or as it is.
        let taken = states.iter().position(|state| *state != MmpState::Clean).unwrap();
        let free = taken + states[taken..].iter().position(|s| *s == MmpState::Clean).unwrap();
        let at = |position| device.image_at(position, |_, _| Survival::Kept);
        assert!(all_else(&at(taken)) == all_else(&first), "{goal:?}");
        assert!(all_else(&at(free)) == all_else(&at(device.len())), "{goal:?}");
        assert!(matches!(states[taken], MmpState::Active(_)), "{goal:?} {states:?}");
        assert!(states[taken + 3..free].iter().all(|s| *s == MmpState::Fsck), "{states:?}");
        assert!(free > taken + 5, "{goal:?} {states:?}");
        let after = at(device.len());
        assert_eq!(problems(&after), [""; 0], "{goal:?}");
        assert_eq!(seen(&after), tree, "{goal:?}");
        assert_eq!(require!(e2fsck(&after, dir.path())), "", "{goal:?}");
    }
}

#[test]
fn of_a_mount_that_begins_in_the_wait_nothing_is_written_over() {
    let first = require!(image());
    let device: SharedDevice = Arc::new(first.snapshot());
    let other = Arc::clone(&device);
    let clock: Arc<dyn Clock> = Arc::new(While::at(NOW, move || {
        put(&*other, |mmp| mmp.state = MmpState::Active(99));
    }));
    let why = refusal(run(&device, Goal::Max, &clock).1);
    assert!(why.contains("at the same time"), "{why}");
    assert_eq!(get(&*device).state, MmpState::Active(99), "left alone");
    assert!(all_else(&*device) == all_else(&first), "nothing was written");
}

#[test]
fn of_a_mount_that_begins_after_the_look_nothing_is_written_over() {
    let first = require!(image());
    let below = Arc::new(first.snapshot());
    let active = |mmp: &mut Mmp| mmp.state = MmpState::Active(5);
    let device: SharedDevice = Arc::new(Before::read(2, Arc::clone(&below), active));
    let (told, result) = run(&device, Goal::Max, &clock());
    let why = refusal(result);
    assert!(why.contains("since it was looked at"), "{why}");
    assert_eq!((told.len(), get(&*below).state), (0, MmpState::Active(5)));
    assert!(all_else(&*below) == all_else(&first), "nothing was written");
}

#[test]
fn a_mount_that_is_alive_is_left_alone_and_a_dead_one_is_followed() {
    let first = require!(image());
    put(&first, |mmp| (mmp.state, mmp.check_interval) = (MmpState::Active(7), 20));
    let device: SharedDevice = Arc::new(first.snapshot());
    let other = Arc::clone(&device);
    let alive: Arc<dyn Clock> = Arc::new(While::at(NOW, move || {
        put(&*other, |mmp| mmp.state = MmpState::Active(8));
    }));
    let (told, result) = run(&device, Goal::Max, &alive);
    assert!(refusal(result).contains("its block changes"));
    assert_eq!((told, get(&*device).state), (vec![41], MmpState::Active(8)));
    assert!(all_else(&*device) == all_else(&first), "nothing was written");

    let (told, result) = run(&device, Goal::Max, &clock());
    assert!(!result.unwrap().is_empty());
    assert_eq!((told, get(&*device).state), (vec![41, 41], MmpState::Clean));
}

#[test]
fn a_check_elsewhere_and_a_damaged_block_are_refused_at_once() {
    let first = require!(image());
    let device: SharedDevice = Arc::new(first.snapshot());
    put(&*device, |mmp| mmp.state = MmpState::Fsck);
    let (told, result) = run(&device, Goal::Max, &clock());
    assert!(refusal(result).contains("a check or a conversion"));
    assert!(told.is_empty());
    let (at, _) = place(&*device);
    device.write_at(at, &[0xff; 4]).unwrap();
    let before = all_else(&*device);
    let (_, result) = run(&device, Goal::Max, &clock());
    let error = result.unwrap_err().to_string();
    assert!(error.contains("multi-mount block"), "{error}");
    assert!(all_else(&*device) == before, "nothing was written");
}

#[test]
fn what_changes_nothing_waits_for_nobody() {
    let device: SharedDevice = Arc::new(require!(image()));
    let (told, result) = run(&device, Goal::Bytes(24 * MIB), &clock());
    assert!(result.unwrap().is_empty() && told.is_empty());
}

#[test]
fn a_journal_is_replayed_under_the_protection_too() {
    let device: SharedDevice = Arc::new(require!(image()));
    // A mount that is cut off: its journal is full, and its number is in the block.
    let hasty: Arc<dyn Clock> = Arc::new(HastyClock);
    let options = MountOptions::new().read_only(false).background(false).clock(hasty);
    let fs = options.open(Arc::clone(&device)).unwrap();
    fs.create("/more", &NewInode::root(0o644)).unwrap();
    fs.sync().unwrap();
    drop(fs);
    assert!(matches!(get(&*device).state, MmpState::Active(_)));
    let clock = clock();
    let (told, result) = run(&device, Goal::Max, &clock);
    assert!(!result.unwrap().is_empty());
    // A mount asks for twice its interval of 5 s.
    assert_eq!(told, [42, 21], "as a mount, and once more");
    assert_eq!(clock.monotonic().as_secs(), 63);
    assert_eq!(get(&*device).state, MmpState::Clean);
    assert!(MountOptions::new().open(device).unwrap().exists("/more").unwrap());
}
