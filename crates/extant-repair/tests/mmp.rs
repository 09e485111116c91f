//! A repair and multi-mount protection: nothing is written while another host may be there.

mod common;

use std::io::Cursor;
use std::sync::Arc;

use common::{NOW, SETS, e2fsck, planned, problems, repaired, sample};
use extant::MountOptions;
use extant_block::{
    BlockDevice, FileDevice, MemoryDevice, RecordingDevice, SharedDevice, Survival,
};
use extant_format::mmp::{Mmp, MmpState};
use extant_repair::{Outcome, RepairError, RepairOptions, Yes, clear, holder, look, repair, undo};
use extant_sync::{Clock, FixedClock, SystemClock};
use extant_testkit::others::{While, get, place, put};
use extant_testkit::{oracle, require, tempdir};

/// A byte of a bitmap is wrong.
fn damaged() -> Result<MemoryDevice, String> {
    let dir = tempdir().unwrap();
    let device = sample(dir.path(), SETS[7])?;
    assert!(problems(&device).is_empty());
    let path = dir.path().join("damaged.img");
    extant_testkit::image::save(&device, &path);
    oracle::debugfs(&path, true, "set_super_value free_blocks_count 7\nclri /d/file5\n")?;
    let device = extant_testkit::image::load(&path);
    assert!(!problems(&device).is_empty());
    Ok(device)
}

fn bytes(device: &dyn BlockDevice) -> Vec<u8> {
    let mut all = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut all).unwrap();
    all
}

/// What the command does; the seconds that were told.
fn run(device: &SharedDevice, clock: &dyn Clock) -> (Vec<u64>, Result<Outcome, RepairError>) {
    let mut told = Vec::new();
    let result = (|| {
        let look = look(device, clock, &mut |seconds| told.push(seconds))?;
        let outcome = repair(Arc::clone(device), &RepairOptions { now: NOW }, &mut Yes)?;
        let held = look.claim(device, Some(&outcome), clock, &mut |seconds| told.push(seconds))?;
        let applied = held.with(|below| outcome.plan.apply(below));
        held.end()?;
        applied?;
        Ok(outcome)
    })();
    (told, result)
}

fn refusal(result: Result<Outcome, RepairError>) -> String {
    match result {
        Err(RepairError::InUse { why }) => why,
        other => panic!("{:?}", other.map(|outcome| outcome.findings)),
    }
}

#[test]
fn who_is_alive_is_left_alone() {
    let before = require!(damaged());
    put(&before, |mmp| {
        mmp.state = MmpState::Active(7);
        mmp.node_name[..5].copy_from_slice(b"other");
    });
    let device: SharedDevice = Arc::new(before.snapshot());
    let clock = While::at(NOW, || put(&*device, |mmp| mmp.state = MmpState::Active(8)));
    let (told, result) = run(&device, &clock);
    let why = refusal(result);
    assert!(why.contains("other") && why.contains("changes"), "{why}");
    assert_eq!(told, [11]);
    put(&*device, |mmp| mmp.state = MmpState::Active(7));
    assert!(bytes(&*device) == bytes(&before), "nothing was written");
    assert!(holder(&device).unwrap().unwrap().contains("a mount on other"));
}

#[test]
fn who_is_dead_is_followed_and_the_block_is_released() {
    let dir = tempdir().unwrap();
    let device: SharedDevice = Arc::new(require!(damaged()));
    put(&*device, |mmp| {
        mmp.state = MmpState::Active(7);
        mmp.check_interval = 20;
    });
    let (told, result) = run(&device, &FixedClock::at(NOW, 0));
    assert!(result.unwrap().is_clean);
    assert_eq!(told, [41, 41], "twice the interval of the one who was there, and a second");
    assert_eq!(get(&*device).state, MmpState::Clean);
    assert_eq!(get(&*device).time, NOW as u64 + 82, "by the clock that waited");
    let image = MemoryDevice::new(device.size_bytes());
    image.write_at(0, &bytes(&*device)).unwrap();
    assert_eq!(require!(e2fsck(&image, dir.path(), false)), "");
}

#[test]
fn marks_that_do_not_move_are_refused_at_once_and_cleared_by_order_only() {
    let device: SharedDevice = Arc::new(require!(damaged()));
    let unmovable = [
        (MmpState::Fsck, 5, "a check or a conversion"),
        (MmpState::Unsafe(0xe24d_4d51), 5, "something unknown"),
        (MmpState::Active(5), 301, "301 s"),
    ];
    for (state, interval, said) in unmovable {
        put(&*device, |mmp| (mmp.state, mmp.check_interval) = (state, interval));
        let before = bytes(&*device);
        let (told, result) = run(&device, &FixedClock::at(NOW, 0));
        let why = refusal(result);
        assert!(why.contains(said), "{why}");
        assert!(told.is_empty() && bytes(&*device) == before);
    }
    clear(&device).unwrap();
    put(&*device, |mmp| mmp.check_interval = 5);
    assert!(run(&device, &FixedClock::at(NOW, 0)).1.unwrap().is_clean);
}

#[test]
fn a_damaged_block_is_set_right_unless_it_changes() {
    let before = require!(damaged());
    let (at, _) = place(&before);
    before.write_at(at + 3, &[0xff; 20]).unwrap();
    let device: SharedDevice = Arc::new(before.snapshot());
    let clock = While::at(NOW, || device.write_at(at + 200, &[1]).unwrap());
    let why = refusal(run(&device, &clock).1);
    assert!(why.contains("damaged") && why.contains("changes"), "{why}");

    let device = Arc::new(RecordingDevice::over(before.snapshot()));
    let shared: SharedDevice = Arc::clone(&device) as _;
    let (told, result) = run(&shared, &FixedClock::at(NOW, 0));
    let outcome = result.unwrap();
    assert_eq!(told, [11, 11]);
    assert!(outcome.findings.iter().any(|one| one.code == "mmp"), "{:?}", outcome.findings);
    assert_eq!(get(&*device).state, MmpState::Clean);
    // From the first write of the plan to the last nobody else takes it, though the plan has the block, too.
    let states: Vec<MmpState> = (0..=device.len())
        .filter_map(|position| {
            let image = device.image_at(position, |_, _| Survival::Kept);
            let mut found = [0; 1024];
            image.read_at(at, &mut found).unwrap();
            Mmp::decode(None, &found).ok().map(|mmp| mmp.state)
        })
        .collect();
    let free = states.iter().position(|state| *state == MmpState::Clean).unwrap();
    assert!(free + 2 >= states.len(), "{states:?}");
    assert!(states.iter().filter(|state| **state == MmpState::Fsck).count() > 3, "{states:?}");
}

#[test]
fn who_comes_between_the_look_and_the_first_write_is_seen() {
    let device: SharedDevice = Arc::new(require!(damaged()));
    let clock: Arc<dyn Clock> = Arc::new(FixedClock::at(NOW, 0));
    let look = look(&device, &*clock, &mut |_| {}).unwrap();
    let outcome = repair(Arc::clone(&device), &RepairOptions { now: NOW }, &mut Yes).unwrap();
    // While somebody answers.
    let options = MountOptions::new().read_only(false).background(false).clock(Arc::clone(&clock));
    let fs = options.open(Arc::clone(&device)).unwrap();
    fs.unmount().unwrap();
    assert_eq!(get(&*device).state, MmpState::Clean);
    let before = bytes(&*device);
    let refused = look.claim(&device, Some(&outcome), &*clock, &mut |_| {});
    let Err(RepairError::InUse { why }) = refused.map(drop) else { panic!("it was taken") };
    assert!(why.contains("since it was looked at"), "{why}");
    assert!(bytes(&*device) == before);
}

#[test]
fn of_two_who_take_it_at_once_one_gets_it() {
    let device: SharedDevice = Arc::new(require!(damaged()));
    let clock = While::at(NOW, || put(&*device, |mmp| mmp.state = MmpState::Active(99)));
    let why = refusal(run(&device, &clock).1);
    assert!(why.contains("at the same time"), "{why}");
    assert_eq!(get(&*device).state, MmpState::Active(99), "left alone");
}

#[test]
fn what_is_cut_off_keeps_others_out_until_told_and_is_repaired_then() {
    let original = require!(damaged());
    let device = Arc::new(RecordingDevice::over(original.snapshot()));
    let shared: SharedDevice = Arc::clone(&device) as _;
    run(&shared, &FixedClock::at(NOW, 0)).1.unwrap();
    let (mut refused, mut followed) = (0, 0);
    for position in 1..=device.len() {
        let image: SharedDevice = Arc::new(device.image_at(position, |_, _| Survival::Kept));
        let result = match run(&image, &FixedClock::at(NOW, 0)).1 {
            Err(RepairError::InUse { why }) => {
                assert!(why.contains("a check or a conversion"), "{why}");
                assert!(holder(&image).unwrap().is_some());
                refused += 1;
                clear(&image).unwrap();
                run(&image, &FixedClock::at(NOW, 0)).1
            }
            other => {
                followed += 1;
                other
            }
        };
        assert!(result.unwrap().is_clean, "cut at {position}");
        assert_eq!(get(&*image).state, MmpState::Clean);
    }
    assert!(refused > 3 && followed > 0, "{refused} {followed} of {}", device.len());
}

#[test]
fn to_put_back_is_to_write_too() {
    let before = require!(damaged());
    let outcome = planned(&before).unwrap();
    let mut file = Vec::new();
    outcome.plan.save_undo(&before, &mut file).unwrap();
    let after = before.snapshot();
    repaired(&after).unwrap();
    let device: SharedDevice = Arc::new(after);
    let clock = FixedClock::at(NOW, 0);
    let held = look(&device, &clock, &mut |_| {}).unwrap();
    let held = held.claim(&device, None, &clock, &mut |_| {}).unwrap();
    assert_eq!(get(&*device).state, MmpState::Fsck);
    held.with(|below| undo(below, &mut Cursor::new(&file), false)).unwrap();
    assert_eq!(get(&*device).state, MmpState::Fsck);
    held.end().unwrap();
    let (at, _) = place(&before);
    let (mut is, mut was) = (bytes(&*device), bytes(&before));
    let block = at as usize..at as usize + 1024;
    assert!(is[block.clone()] != was[block.clone()], "it says who had it last");
    for all in [&mut is, &mut was] {
        all[block.clone()].fill(0);
    }
    assert!(is == was);
}

/// A loop device over a file; detached when dropped.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
#[ignore = "waits for half a minute, as the protection wants"]
fn the_kernel_on_another_way_to_the_disk_is_alive() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("disk");
    extant_testkit::image::save(&require!(damaged()), &path);
    require!(oracle::e2fsck_as(&path, "-fy", &[]).map(drop));
    let mount = require!(oracle::LoopMount::read_write(&path));
    let losetup = std::process::Command::new("losetup");
    let made = { losetup }.args(["--find", "--show"]).arg(&path).output().unwrap();
    assert!(made.status.success());
    let second = Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned());
    let device: SharedDevice = Arc::new(FileDevice::open_read_write(&second.0).unwrap());
    // What this way keeps in memory moves no more.
    let kept = get(&*device);
    assert!(matches!(kept.state, MmpState::Active(_)));
    let mut waited = Vec::new();
    let refused = look(&device, &SystemClock, &mut |seconds| waited.push(seconds)).map(drop);
    let Err(RepairError::InUse { why }) = refused else { panic!("it was taken from a mount") };
    assert!(why.contains("changes") && waited.len() == 1, "{why}");
    drop(mount);
    look(&device, &SystemClock, &mut |_| panic!("it is clean")).unwrap();
}
