//! The power fails at each write of a repair, with the writes since the last flush kept, lost, torn or
//! in another order: the image is no worse than before, and the next repair ends clean.

mod common;

use std::ops::Range;
use std::sync::Arc;

use common::{
    SETS, cut_at, damage, losses, metadata, opens, pieces, planned, problems, repaired, sample,
    seen,
};
use extant::MountOptions;
use extant_base::Prng;
use extant_block::{MemoryDevice, Record, RecordingDevice, Survival};
use extant_format::inode::FileKind;
use extant_testkit::{image, oracle, require, tempdir};

/// Bytes of the primary superblock.
const SUPERBLOCK: Range<u64> = 1024..2048;

/// How the writes that no flush protects yet fare.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// All are there.
    Kept,
    /// None is there.
    Lost,
    /// Some are there, some are not, some in part: as a device does that writes in an order of its own.
    Mixed,
}

/// What a power failure behind the first `position` records leaves.
fn crashed(
    device: &RecordingDevice,
    position: usize,
    fate: Fate,
    random: &mut Prng,
) -> MemoryDevice {
    device.image_at(position, |_, record| match (fate, random.below(3)) {
        (Fate::Kept, _) | (Fate::Mixed, 0) => Survival::Kept,
        (Fate::Lost, _) | (Fate::Mixed, 1) => Survival::Lost,
        _ => Survival::Torn { bytes: torn_at(record, 512 * random.below(16)) },
    })
}

/// Where a write is torn: not inside of the primary superblock, as `docs/crash-model.md` has it.
fn torn_at(record: &Record, bytes: u64) -> u64 {
    let Record::Write { offset, .. } = record else { return bytes };
    match (SUPERBLOCK.start + 1..SUPERBLOCK.end).contains(&offset.saturating_add(bytes)) {
        true => SUPERBLOCK.end - offset,
        false => bytes,
    }
}

#[derive(Default)]
struct Tally {
    images: u32,
    cuts: u32,
    /// Cuts after which a file cannot be read until the next repair.
    hidden: u32,
    wrong: Vec<String>,
}

fn run(
    features: &[&str],
    rounds: u64,
    cuts: u64,
    seed: u64,
    tally: &mut Tally,
) -> Result<(), String> {
    let dir = tempdir().unwrap();
    let good = sample(dir.path(), features)?;
    let blocks = metadata(&good);
    for round in 0..rounds {
        let mut random = Prng::new(seed * 1_000_000 + round);
        let original = good.snapshot();
        for _damage in 0..=random.below(3) {
            damage(&original, &blocks, &mut random);
        }
        let mut before = seen(&original);
        // A link with a damaged target is cut, or cleared.
        before.retain(|_, file| file.kind != FileKind::Symlink);
        let what = format!("{features:?}, seed {seed}, round {round}");
        let outcome = planned(&original).unwrap_or_else(|error| panic!("{what}: {error}"));
        let done = original.snapshot();
        outcome.plan.apply(&done).unwrap();
        // What cannot be repaired, or differs on purpose, is for the test of that.
        if !outcome.is_clean || !losses(&before, &done).is_empty() || outcome.plan.is_empty() {
            continue;
        }
        tally.images += 1;
        let device = RecordingDevice::over(original.snapshot());
        outcome.plan.apply(&device).unwrap();
        assert_eq!(device.races(), Vec::new(), "{what}");
        let count = device.len() as u64;
        let positions: Vec<usize> = match cuts >= count {
            true => (1..device.len()).collect(),
            false => (0..cuts).map(|_| 1 + random.below(count - 1) as usize).collect(),
        };
        for position in positions {
            for fate in [Fate::Kept, Fate::Lost, Fate::Mixed] {
                let what = format!("{what}, cut at {position} of {count}, {fate:?}");
                let image = crashed(&device, position, fate, &mut random);
                tally.cuts += 1;
                if opens(&original) && !opens(&image) {
                    tally.wrong.push(format!("{what}: it does not open any more"));
                }
                tally.hidden += u32::from(!losses(&before, &image).is_empty());
                let second = repaired(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
                let mut wrong = problems(&image);
                wrong.extend(losses(&before, &image));
                if !second.is_clean || !wrong.is_empty() {
                    tally.wrong.push(format!("{what}: {wrong:#?}"));
                    continue;
                }
                let third = planned(&image).unwrap();
                if !third.plan.is_empty() {
                    tally.wrong.push(format!("{what}: the third finds {:?}", third.findings));
                }
            }
        }
    }
    Ok(())
}

fn all(rounds: u64, cuts: u64, seed: u64) {
    let mut tally = Tally::default();
    for (number, features) in SETS.iter().enumerate() {
        require!(run(features, rounds, cuts, seed + number as u64, &mut tally));
    }
    let Tally { images, cuts, hidden, mut wrong } = tally;
    println!("{images} images, {cuts} cuts, {hidden} with something hidden, {} wrong", wrong.len());
    let count = wrong.len();
    wrong.truncate(30);
    assert!(count == 0, "{count} of {cuts} cuts:\n{}", wrong.join("\n"));
    assert!(u64::from(images) * 2 >= rounds * SETS.len() as u64, "{images} images are too few");
}

#[test]
fn a_cut_at_any_write_loses_nothing() {
    all(2, 12, 50);
}

#[test]
#[ignore = "minutes"]
fn a_cut_at_any_write_loses_nothing_long() {
    all(40, 1000, 5000);
}

/// Fast commits become a transaction, which has to be in the log before any of its blocks is home.
#[test]
fn a_cut_while_fast_commits_are_brought_in_loses_none() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("fast.img");
    require!(oracle::mke2fs(&path, "16M", &["-text4", "-b1024", "-Ofast_commit", "-Jsize=4"]));
    let device = Arc::new(image::load(&path));
    let options = MountOptions::new().read_only(false).background(false);
    let fs = options.open(Arc::clone(&device)).unwrap();
    let files = 0..8u8;
    for number in files.clone() {
        fs.write(format!("/file{number}"), [number; 1000]).unwrap();
    }
    fs.sync().unwrap();
    for number in files.clone() {
        let file = fs.resolve(format!("/file{number}")).unwrap();
        assert_eq!(file.write_at(&[number; 4000], 1000).unwrap(), 4000);
        file.sync().unwrap();
    }
    let left = device.snapshot();
    fs.unmount().unwrap();
    let outcome = planned(&left).unwrap();
    assert!(outcome.is_clean && outcome.fast_commits > 0, "{outcome:?}");
    let count = pieces(&outcome).len();
    for cut in 0..=count {
        let image = left.snapshot();
        cut_at(&image, &outcome, cut);
        assert!(repaired(&image).unwrap().is_clean, "cut {cut} of {count}");
        assert_eq!(problems(&image), [""; 0], "cut {cut} of {count}");
        let fs = MountOptions::new().open(image).unwrap();
        for number in files.clone() {
            let read = fs.read(format!("/file{number}"));
            assert!(read.is_ok_and(|read| read == [number; 5000]), "cut {cut} of {count}");
        }
    }
}
