//! Damaged images, and devices that fail: nothing panics, and nothing is lost.

mod common;

use std::sync::Arc;

use common::{LAYOUTS, hasty, made, many_files, seen, to_size, with_at_the_end, with_size};
use extant::MountOptions;
use extant_base::Prng;
use extant_block::{
    BlockDevice, FaultDevice, FaultPlan, MemoryDevice, OperationKind, SharedDevice,
};
use extant_check::{CheckOptions, check};
use extant_format::superblock::{SUPERBLOCK_OFFSET, Superblock};
use extant_resize::{Goal, resize};
use extant_testkit::{require, tempdir};

/// Fields of the superblock, descriptors, tables and maps with other values: what becomes of it does
/// not matter, as long as it ends.
#[test]
fn damaged_images_are_refused_or_resized_and_nothing_panics() {
    let (mut refused, mut done) = (0, 0);
    for number in [0, 5, 2, 14] {
        let dir = tempdir().unwrap();
        let good = require!(made(dir.path(), LAYOUTS[number]));
        let mut random = Prng::new(number as u64);
        for round in 0..150 {
            let device = Arc::new(with_size(&good, 40 << 20));
            for _ in 0..1 + random.below(6) {
                let at = match random.below(3) {
                    0 => SUPERBLOCK_OFFSET + random.below(1024),
                    1 => 2048 + random.below(4096),
                    _ => 1024 + random.below(600 << 10),
                };
                let bytes = match random.below(3) {
                    0 => vec![random.below(256) as u8],
                    1 => vec![0xff; 4],
                    _ => (random.next_u64() as u32).to_le_bytes().to_vec(),
                };
                device.write_at(at, &bytes).unwrap();
            }
            // Half of the superblocks are believed.
            let mut bytes = [0; 1024];
            device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
            if let Ok(sb) = Superblock::decode_unverified(&bytes)
                && round % 2 == 0
            {
                device.write_at(SUPERBLOCK_OFFSET, &sb.encode()).unwrap();
            }
            let goal = match random.below(3) {
                0 => Goal::Min,
                1 => Goal::Max,
                _ => Goal::Bytes(1 << 20 | random.below(64 << 20)),
            };
            let shared: SharedDevice = device;
            match resize(&shared, goal, &hasty(), &mut |_| {}) {
                Ok(_) => done += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 50 && done > 50, "{refused} {done}");
}

/// Each write fails once: the error is told, and the image is of the old size or of the new one.
#[test]
fn a_write_that_fails_is_told_and_loses_nothing() {
    let dir = tempdir().unwrap();
    let good = require!(made(dir.path(), LAYOUTS[2]));
    let before = seen(&good);
    let mut failures = 0;
    for number in 0..60 {
        let device = Arc::new(with_size(&good, 30 << 20));
        let kinds = [OperationKind::Write, OperationKind::WriteZeroes];
        let exactly = kinds.map(|kind| (kind, number, 1)).to_vec();
        let plan = FaultPlan { exactly, whole: 0..u64::MAX, ..FaultPlan::default() };
        let fault = Arc::new(FaultDevice::new(Arc::clone(&device), plan));
        let shared: SharedDevice = Arc::clone(&fault) as SharedDevice;
        let result = resize(&shared, Goal::Max, &hasty(), &mut |_| {});
        if fault.failed() == 0 {
            result.unwrap();
            break;
        }
        assert!(result.is_err(), "write {number} failed, and nobody says so");
        failures += 1;
        let copy: Arc<MemoryDevice> = Arc::new(device.snapshot());
        let options = MountOptions::new().read_only(false).background(false);
        let fs = options.open_shared(Arc::clone(&copy) as SharedDevice);
        fs.unwrap_or_else(|error| panic!("{number}: {error}")).unmount().unwrap();
        // That the journal stopped for an error is recorded.
        let options = CheckOptions { require_clean_state: false, ..CheckOptions::default() };
        let report = check(&*copy, &options).unwrap();
        assert!(report.is_clean(), "write {number}: {:?}", report.problems);
        assert_eq!(seen(&copy), before, "write {number}");
    }
    assert!(failures > 5, "{failures}");
}

/// The same while files move in front of a new end; flushes fail as well.
#[test]
fn a_write_or_flush_that_fails_in_a_shrink_is_told_and_loses_nothing() {
    let dir = tempdir().unwrap();
    let first = require!(made(dir.path(), LAYOUTS[2]));
    let (grown, _) = to_size(&first, 24 << 20).unwrap();
    // So many that it takes several steps.
    let good = with_at_the_end(&grown, many_files);
    let before = seen(&good);
    for (kind, step, least) in [(OperationKind::Write, 7, 20), (OperationKind::Flush, 1, 8)] {
        let mut failures = 0;
        for number in (0..).step_by(step) {
            let device = Arc::new(good.snapshot());
            let plan = FaultPlan {
                exactly: vec![(kind, number, 1)],
                whole: 0..u64::MAX,
                ..FaultPlan::default()
            };
            let fault = Arc::new(FaultDevice::new(Arc::clone(&device), plan));
            let shared: SharedDevice = Arc::clone(&fault) as SharedDevice;
            let result = resize(&shared, Goal::Min, &hasty(), &mut |_| {});
            if fault.failed() == 0 {
                result.unwrap();
                break;
            }
            let what = format!("{kind:?} {number}");
            assert!(result.is_err(), "{what} failed, and nobody says so");
            failures += 1;
            let copy: Arc<MemoryDevice> = Arc::new(device.snapshot());
            let options = MountOptions::new().read_only(false).background(false);
            let fs = options.open_shared(Arc::clone(&copy) as SharedDevice);
            fs.unwrap_or_else(|error| panic!("{what}: {error}")).unmount().unwrap();
            // That the journal stopped for an error is recorded.
            let options = CheckOptions { require_clean_state: false, ..CheckOptions::default() };
            let report = check(&*copy, &options).unwrap();
            assert!(report.is_clean(), "{what}: {:?}", report.problems);
            assert_eq!(seen(&copy), before, "{what}");
        }
        assert!(failures >= least, "{kind:?}: {failures}");
    }
}

/// Each read fails once: it is told as a failure of the device, never as damage that a repair would set right.
#[test]
fn a_read_that_fails_is_told_as_one() {
    let dir = tempdir().unwrap();
    let good = require!(made(dir.path(), LAYOUTS[2]));
    let before = seen(&good);
    let mut failures = 0;
    for number in 0..400 {
        let exactly = vec![(OperationKind::Read, number, 1)];
        let plan = FaultPlan { exactly, ..FaultPlan::default() };
        let device = Arc::new(good.snapshot());
        let fault = Arc::new(FaultDevice::new(Arc::clone(&device), plan));
        let result =
            resize(&(Arc::clone(&fault) as SharedDevice), Goal::Min, &hasty(), &mut |_| {});
        if fault.failed() == 0 {
            result.unwrap();
            break;
        }
        failures += 1;
        // What is asked for again, or can be done without, is no failure.
        let Err(error) = result else {
            let report = check(&*device, &CheckOptions::default()).unwrap();
            assert!(report.is_clean(), "read {number}: {:?}", report.problems);
            assert_eq!(seen(&device), before, "read {number}");
            continue;
        };
        let text = error.to_string();
        assert!(!text.contains("not in order"), "read {number}: {text}");
        assert!(text.contains("read of"), "read {number}: {text}");
    }
    assert!(failures > 5, "{failures}");
}
