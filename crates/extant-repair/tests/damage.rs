//! Images with damage of every structure, repaired: clean by e2fsck and by us, nothing lost that
//! was not damaged, and nothing to do the second time.

mod common;

use std::collections::BTreeSet;
use std::ops::Range;

use common::{
    SETS, cut_at, damage, e2fsck, losses, metadata, pieces, planned, problems, repaired, sample,
    seen,
};
use extant_base::Prng;
use extant_block::BlockDevice;
use extant_format::inode::FileKind;
use extant_format::superblock::Superblock;
use extant_testkit::{require, tempdir};

struct Tally {
    images: u32,
    cuts: u32,
    unrepaired: Vec<String>,
    /// Images of [`OPEN`] that were met.
    open: u64,
}

/// Seeds and rounds of the long run whose images are not repaired yet; `docs/repair.md` says what is wrong with them.
const OPEN: &[(u64, u64)] = &[];

fn run(
    features: &[&str],
    rounds: Range<u64>,
    cuts: u64,
    seed: u64,
    tally: &mut Tally,
) -> Result<(), String> {
    let dir = tempdir().unwrap();
    let good = sample(dir.path(), features)?;
    assert_eq!(problems(&good), Vec::<String>::new(), "{features:?}");
    let (blocks, sound) = (metadata(&good), seen(&good));
    for round in rounds {
        // Each image is its own: what is repaired in another way leaves the later ones as they are.
        let mut random = Prng::new(seed * 1_000_000 + round);
        let device = good.snapshot();
        for _damage in 0..=random.below(3) {
            damage(&device, &blocks, &mut random);
        }
        let what = format!("{features:?}, seed {seed}, round {round}");
        let original = device.snapshot();
        // A link with a damaged target is cut, or cleared, as e2fsck does.
        let mut before = seen(&device);
        // What has become a device by its damage gets the type that its name has.
        before.retain(|ino, file| match file.kind {
            FileKind::Symlink => false,
            FileKind::Regular | FileKind::Directory => true,
            kind => sound.get(ino).is_some_and(|one| one.kind == kind),
        });
        let outcome = repaired(&device).unwrap_or_else(|error| panic!("{what}: {error}"));
        tally.images += 1;
        let mut wrong: Vec<String> = outcome
            .findings
            .iter()
            .filter_map(|one| one.left.as_ref().map(|why| format!("left: {}: {why}", one.message)))
            .collect();
        wrong.extend(problems(&device));
        let text = e2fsck(&device, dir.path(), false)?;
        if !text.is_empty() {
            wrong.push(text);
        }
        let again = planned(&device).unwrap();
        if !again.plan.is_empty() {
            wrong.push(format!("the second repair finds {:?}", again.findings));
        }
        // Of what was damaged, something may go: a file that could be read whole may not.
        wrong.extend(losses(&before, &device));
        if OPEN.contains(&(seed, round)) {
            assert!(!wrong.is_empty(), "{what}: it is repaired now, and no longer open");
            tally.open += 1;
            continue;
        }
        if !wrong.is_empty() {
            if let Some(dir) = std::env::var_os("EXTANT_REPAIR_KEEP") {
                let path = std::path::Path::new(&dir).join(format!("{seed}-{round}.img"));
                extant_testkit::image::save(&original, &path);
            }
            tally.unrepaired.push(format!("{what}:\n  {}", wrong.join("\n  ")));
            continue;
        }
        let count = pieces(&outcome).len();
        let mut points = BTreeSet::new();
        for _cut in 0..cuts.min(count as u64) {
            points.insert(random.below(count as u64) as usize);
        }
        for cut in points {
            let device = original.snapshot();
            cut_at(&device, &outcome, cut);
            let second = repaired(&device).unwrap_or_else(|e| panic!("{what}, cut {cut}: {e}"));
            tally.cuts += 1;
            let mut wrong = problems(&device);
            wrong.extend(losses(&before, &device));
            if !second.is_clean || !wrong.is_empty() {
                tally.unrepaired.push(format!("{what}, cut {cut} of {count}: {wrong:#?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn a_superblock_that_is_gone_comes_from_a_backup() {
    for (number, features) in SETS.iter().enumerate() {
        let dir = tempdir().unwrap();
        let good = require!(sample(dir.path(), features));
        let mut bytes = [0; 1024];
        good.read_at(1024, &mut bytes).unwrap();
        // Of one group only, there is no backup.
        if Superblock::decode(&bytes).unwrap().group_count < 2 {
            continue;
        }
        let before = seen(&good);
        for damage in 0..3 {
            let device = good.snapshot();
            let mut bytes = [0; 1024];
            match damage {
                0 => {}
                1 => Prng::new(number as u64).fill(&mut bytes),
                // The block size.
                _ => {
                    device.read_at(1024, &mut bytes).unwrap();
                    bytes[0x18] = 77;
                }
            }
            device.write_at(1024, &bytes).unwrap();
            let what = format!("{features:?}, damage {damage}");
            let outcome = repaired(&device).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(outcome.is_clean, "{what}: {:#?}", outcome.findings);
            assert_eq!(problems(&device), Vec::<String>::new(), "{what}");
            assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
            assert_eq!(e2fsck(&device, dir.path(), false).unwrap(), "", "{what}");
        }
    }
}

fn all(rounds: u64, cuts: u64, first: u64, only: Option<(u64, u64)>) {
    let mut tally = Tally { images: 0, cuts: 0, unrepaired: Vec::new(), open: 0 };
    for (seed, features) in (first..).zip(SETS) {
        let rounds = match only {
            Some((only, _)) if only != seed => continue,
            Some((_, round)) => round..round + 1,
            None => 0..rounds,
        };
        require!(run(features, rounds, cuts, seed, &mut tally));
    }
    let Tally { images, cuts, mut unrepaired, open } = tally;
    println!("{images} images, {cuts} cuts, {} wrong, {open} open", unrepaired.len());
    let count = unrepaired.len();
    unrepaired.truncate(60);
    assert!(count == 0, "{count} of {images} images and {cuts} cuts:\n{}", unrepaired.join("\n"));
}

#[test]
fn damaged_images_are_repaired() {
    all(6, 40, 1, None);
}

/// `EXTANT_REPAIR_ROUNDS` is the number of images of each set, `EXTANT_REPAIR_SEED` the seed of the first set, and
/// `EXTANT_REPAIR_ONLY` the one image, as `SEED,ROUND`, that a failure named.
/// `EXTANT_REPAIR_KEEP` is a directory for the images that are not repaired.
#[test]
#[ignore = "minutes"]
fn damaged_images_are_repaired_long() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let only = std::env::var("EXTANT_REPAIR_ONLY").ok().map(|text| {
        let (seed, round) = text.split_once(',').unwrap();
        (seed.parse().unwrap(), round.parse().unwrap())
    });
    let rounds = number("EXTANT_REPAIR_ROUNDS").unwrap_or(640);
    all(rounds, 12, number("EXTANT_REPAIR_SEED").unwrap_or(1000), only);
}
