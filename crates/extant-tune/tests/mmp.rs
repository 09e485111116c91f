//! A conversion and multi-mount protection: nothing is written while another host may be there.

mod common;

use std::sync::Arc;

use common::{Layout, e2fsck, features, made, problems, seen};
use extant_block::{
    BlockDevice, FaultDevice, FaultPlan, MemoryDevice, OperationKind, RecordingDevice,
    SharedDevice, Survival,
};
use extant_format::features::Feature;
use extant_format::mmp::{MMP_BYTES, Mmp, MmpState};
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_sync::{Clock, FixedClock};
use extant_testkit::others::{Before, While, all_else, get, put};
use extant_testkit::{require, tempdir};
use extant_tune::{Plan, Request, TuneError, tune};

const NOW: i64 = 1_700_000_000;
const WORDS: [&str; 5] = ["-text4", "-b1024", "-Jsize=4", "-Ommp", "-Emmp_update_interval=1"];

fn image(more: &'static [&'static str]) -> Result<MemoryDevice, String> {
    let words: Vec<&'static str> = WORDS.iter().chain(more).copied().collect();
    made(tempdir().unwrap().path(), Layout::new(words.leak(), "24M"))
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(FixedClock::at(NOW, 0))
}

/// The seconds that were told, and what came of it.
fn run(
    device: &SharedDevice,
    request: &Request,
    clock: &Arc<dyn Clock>,
) -> (Vec<u64>, Result<Plan, TuneError>) {
    let mut told = Vec::new();
    let mut tell = |seconds| told.push(seconds);
    let result = tune(device, request, &mut |_| Ok(()), clock, &mut tell);
    (told, result)
}

fn refusal(result: Result<Plan, TuneError>) -> String {
    let error = result.unwrap_err().to_string();
    assert!(error.contains("multi-mount protection says that it is in use"), "{error}");
    error
}

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    Superblock::decode_unverified(&bytes).unwrap()
}

/// Who has the file system, for a host that looks at it now; `None`: it has no protection.
fn state(device: &MemoryDevice) -> Option<MmpState> {
    let sb = superblock(device);
    let mut bytes = [0; MMP_BYTES];
    device.read_at(sb.mmp_block.0 * 1024, &mut bytes).unwrap();
    // While checksums change, one may be wrong; whoever reads that refuses it, too.
    sb.features.has(Feature::MMP).then(|| Mmp::decode(None, &bytes).unwrap().state)
}

#[test]
fn from_the_first_write_to_the_last_nobody_else_gets_it() {
    let dir = tempdir().unwrap();
    let cases: [(&'static [&'static str], &str, &[u64]); 6] = [
        (&[], "quota", &[11]),
        (&["-O^metadata_csum"], "metadata_csum,quota", &[11]),
        (&[], "^metadata_csum,^dir_index", &[11]),
        (&["-O^has_journal"], "metadata_csum_seed,quota", &[11]),
        (&[], "^mmp", &[11]),
        (&["-O^mmp"], "mmp,quota,project", &[]),
    ];
    for (more, words, waits) in cases {
        let first = require!(image(more));
        let tree = seen(&first);
        let device = Arc::new(RecordingDevice::over(first.snapshot()));
        let shared: SharedDevice = Arc::clone(&device) as _;
        let (told, result) = run(&shared, &features(words), &clock());
        assert!(!result.unwrap().steps.is_empty(), "{words}");
        assert_eq!(told, waits, "{words}");
        let at = |position| device.image_at(position, |_, _| Survival::Kept);
        let states: Vec<_> = (0..=device.len()).map(|position| state(&at(position))).collect();
        let is_free = |state: &Option<MmpState>| matches!(state, Some(MmpState::Clean));
        // Where there was none, it begins with a step and is held for those behind it.
        let has_it = |state: &Option<MmpState>| state.is_some();
        let taken = states.iter().position(|state| has_it(state) && !is_free(state)).unwrap();
        let held = states[taken..].iter().take_while(|state| has_it(state) && !is_free(state));
        let free = taken + held.count();
        if waits.is_empty() {
            assert!(states[..taken].iter().all(Option::is_none), "{words}: {states:?}");
        } else {
            assert!(all_else(&at(taken)) == all_else(&first), "{words}");
        }
        // With the protection gone, only what nobody looks at is left to do: copies of the superblock.
        if words != "^mmp" {
            assert!(all_else(&at(free)) == all_else(&at(device.len())), "{words}: {states:?}");
        }
        assert!(free > taken + 5, "{words}: {states:?}");
        let after = at(device.len());
        assert_eq!(state(&after), (words != "^mmp").then_some(MmpState::Clean), "{words}");
        if words != "^mmp" {
            // With a checksum that is right.
            get(&after);
        }
        assert_eq!(problems(&after), [""; 0], "{words}");
        assert_eq!(seen(&after), tree, "{words}");
        assert_eq!(require!(e2fsck(&after, dir.path())), "", "{words}");
    }
}

#[test]
fn of_a_mount_that_begins_meanwhile_nothing_is_written_over() {
    let first = require!(image(&[]));
    let device: SharedDevice = Arc::new(first.snapshot());
    let other = Arc::clone(&device);
    let at_once: Arc<dyn Clock> = Arc::new(While::at(NOW, move || {
        put(&*other, |mmp| mmp.state = MmpState::Active(99));
    }));
    let (_, result) = run(&device, &features("quota"), &at_once);
    assert!(refusal(result).contains("at the same time"));
    assert_eq!(get(&*device).state, MmpState::Active(99), "left alone");
    assert!(all_else(&*device) == all_else(&first), "nothing was written");

    let below = Arc::new(first.snapshot());
    let active = |mmp: &mut Mmp| mmp.state = MmpState::Active(5);
    let device: SharedDevice = Arc::new(Before::read(2, Arc::clone(&below), active));
    let (told, result) = run(&device, &features("quota"), &clock());
    assert!(refusal(result).contains("since it was looked at"));
    assert_eq!((told.len(), get(&*below).state), (0, MmpState::Active(5)));
    assert!(all_else(&*below) == all_else(&first), "nothing was written");
}

#[test]
fn a_mount_that_is_alive_is_left_alone_and_a_dead_one_is_followed() {
    let first = require!(image(&[]));
    put(&first, |mmp| mmp.state = MmpState::Active(7));
    let device: SharedDevice = Arc::new(first.snapshot());
    let other = Arc::clone(&device);
    let alive: Arc<dyn Clock> = Arc::new(While::at(NOW, move || {
        put(&*other, |mmp| mmp.state = MmpState::Active(8));
    }));
    let (told, result) = run(&device, &features("quota"), &alive);
    assert!(refusal(result).contains("its block changes"));
    assert_eq!((told, get(&*device).state), (vec![11], MmpState::Active(8)));
    assert!(all_else(&*device) == all_else(&first), "nothing was written");

    let (told, result) = run(&device, &features("quota"), &clock());
    assert_eq!(result.unwrap().steps.len(), 1);
    assert_eq!((told, get(&*device).state), (vec![11, 11], MmpState::Clean));
}

#[test]
fn what_fails_is_given_back() {
    let first = require!(image(&[]));
    let below = Arc::new(first.snapshot());
    // The number, the mark of e2fsck, and then the first of the conversion.
    let plan = FaultPlan { exactly: vec![(OperationKind::Write, 2, 1)], ..FaultPlan::default() };
    let device: SharedDevice = Arc::new(FaultDevice::new(Arc::clone(&below), plan));
    let (_, result) = run(&device, &features("quota"), &clock());
    let error = result.unwrap_err();
    assert!(!error.to_string().contains("multi-mount"), "{error}");
    assert_eq!(get(&*below).state, MmpState::Clean);
    let device: SharedDevice = below;
    assert_eq!(run(&device, &features("quota"), &clock()).1.unwrap().steps.len(), 1);
}
