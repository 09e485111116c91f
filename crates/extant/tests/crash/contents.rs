//! Contents of files: what each way of changing them may leave, cut everywhere. What must hold is
//! in the header of `crates/extant-testkit/src/proof/contents.rs`.

use extant_testkit::crash::{Report, Sampling};
use extant_testkit::model::{NewNode, Op, Path, RenameMode, Space};
use extant_testkit::proof::{Counts, Proof, env};

use crate::finish;
use crate::layouts::{self, Layout, WRITTEN};
use crate::scenarios;
use crate::target::Extant;

const NEW: NewNode = NewNode { permissions: 0o644, uid: 0, gid: 0 };

fn create(path: &str) -> Op {
    Op::Create { path: Path::of(path), new: NEW }
}

/// Bytes that no other write here has: the seed is the caller's.
fn write(path: &str, offset: u64, len: u64, seed: u64) -> Op {
    Op::Write { path: Path::of(path), offset, len, seed }
}

fn append(path: &str, len: u64, seed: u64) -> Op {
    Op::Append { path: Path::of(path), len, seed }
}

fn truncate(path: &str, size: u64) -> Op {
    Op::Truncate { path: Path::of(path), size }
}

fn fsync(path: &str) -> Op {
    Op::Fsync { path: Path::of(path) }
}

fn fdatasync(path: &str) -> Op {
    Op::Fdatasync { path: Path::of(path) }
}

fn space(path: &str, space: Space, offset: u64, len: u64) -> Op {
    Op::Fallocate { path: Path::of(path), space, offset, len }
}

fn map(path: &str, slot: usize, offset: u64, len: u64) -> Op {
    Op::Map { path: Path::of(path), slot, offset, len }
}

fn store(path: &str, slot: Option<usize>, offset: u64, len: u64, seed: u64) -> Op {
    Op::Store { path: Path::of(path), slot, offset, len, seed }
}

const LATER: Op = Op::Tick { seconds: 31 };

/// Histories by name; `unit` is what space is taken in. `/file` has 20,000 bytes from the start.
pub(crate) fn histories(unit: u64) -> Vec<(&'static str, Vec<Op>)> {
    vec![
        (
            "data is there before the size",
            vec![create("/a"), append("/a", 9000, 1), LATER, append("/a", 700, 2), LATER],
        ),
        (
            "a write behind the end",
            vec![
                create("/a"),
                append("/a", 300, 1),
                fsync("/a"),
                write("/a", 40_000, 50, 2),
                LATER,
            ],
        ),
        (
            "a write over what is there",
            vec![write("/file", 3000, 9000, 1), fdatasync("/file"), write("/file", 0, 20_000, 2)],
        ),
        (
            "a write into a hole",
            vec![write("/sparse5", 5000, 3000, 1), LATER, write("/sparse5", 6000, 9000, 2)],
        ),
        (
            "a file that shrinks and grows again",
            vec![
                truncate("/file", 5300),
                truncate("/file", 30_000),
                fsync("/file"),
                truncate("/file", 100),
                write("/file", 9000, 10, 1),
                LATER,
            ],
        ),
        (
            "a file that shrinks before it was stored",
            vec![
                create("/a"),
                append("/a", 30_000, 1),
                truncate("/a", 7000),
                append("/a", 200, 2),
                fsync("/a"),
                append("/a", 9000, 3),
                truncate("/a", 7100),
                truncate("/a", 12_000),
                LATER,
            ],
        ),
        (
            "a file that is emptied and written again",
            vec![truncate("/file", 0), append("/file", 15_000, 1), LATER, fdatasync("/file")],
        ),
        (
            "a file written beside and renamed over",
            vec![
                create("/new"),
                append("/new", 18_000, 1),
                fsync("/new"),
                Op::Rename {
                    from: Path::of("/new"),
                    to: Path::of("/file"),
                    mode: RenameMode::Replace,
                },
                write("/file", 500, 6000, 2),
                LATER,
            ],
        ),
        ("blocks of a file that is gone", reused()),
        (
            "a sync of one file among many",
            (0..8)
                .flat_map(|n| [create(&format!("/n{n}")), append(&format!("/n{n}"), 3000, n + 1)])
                .chain([fdatasync("/n3"), append("/n3", 10, 20), append("/n4", 10, 21), LATER])
                .collect(),
        ),
        (
            "space that is given and written",
            vec![
                create("/a"),
                space("/a", Space::Allocate { keep_size: true }, 0, 40_000),
                append("/a", 6000, 1),
                LATER,
                space("/a", Space::Allocate { keep_size: false }, 0, 70_000),
                write("/a", 30_000, 9000, 2),
                fsync("/a"),
            ],
        ),
        (
            "space that is taken",
            vec![
                space("/large-a", Space::Punch, 10_000, 3 * unit),
                create("/a"),
                append("/a", 2 * unit, 1),
                fdatasync("/a"),
                write("/large-a", 12_000, 5000, 2),
                space("/large-a", Space::Zero { keep_size: true }, 100_000, 2 * unit),
                write("/large-a", 100_000, 2 * unit, 3),
                LATER,
                space("/large-b", Space::WriteZeroes, 50_000, 30_000),
                fsync("/large-b"),
            ],
        ),
        (
            "ranges that move",
            vec![
                space("/large-a", Space::Collapse, unit, unit),
                write("/large-a", unit, 3 * unit, 1),
                fdatasync("/large-a"),
                space("/large-b", Space::Insert, unit, unit),
                write("/large-b", 2 * unit, 2 * unit, 2),
                LATER,
            ],
        ),
    ]
}

/// Stores through maps: found by a sync, by time, and by the end of the map. What is stored behind the
/// end of the file never shows, whatever the file becomes.
fn mapped(unit: u64) -> Vec<(&'static str, Vec<Op>)> {
    vec![
        (
            "stores through a map that stays",
            vec![
                map("/file", 1, 0, 30_000),
                store("/file", Some(1), 5000, 9000, 1),
                fdatasync("/file"),
                store("/file", Some(1), 0, 19_000, 2),
                LATER,
                append("/file", 500, 3),
                store("/file", Some(1), 20_100, 10, 4),
                truncate("/file", 26_000),
                fsync("/file"),
                Op::Release { slot: 1 },
                LATER,
            ],
        ),
        (
            "stores into holes, and under a map that shrinks",
            vec![
                map("/sparse5", 1, 0, 60_000),
                store("/sparse5", Some(1), 9000, 20_000, 1),
                Op::Sync,
                truncate("/sparse5", 6000),
                store("/sparse5", Some(1), 5000, 1000, 2),
                write("/sparse5", 40_000, 100, 3),
                LATER,
                store("/sparse5", None, 20_000, 5000, 4),
                fsync("/sparse5"),
                truncate("/sparse5", 0),
                truncate("/sparse5", 9000),
                LATER,
            ],
        ),
        (
            "space that is taken and moved under a map",
            vec![
                map("/large-a", 1, 0, 160_000),
                store("/large-a", Some(1), 3000, 100_000, 1),
                space("/large-a", Space::Punch, 2000, 2 * unit),
                fdatasync("/large-a"),
                store("/large-a", Some(1), unit, unit, 2),
                space("/large-a", Space::Collapse, unit, unit),
                store("/large-a", Some(1), 100, 8000, 3),
                space("/large-a", Space::Insert, 2 * unit, unit),
                LATER,
            ],
        ),
        (
            "a mapped file that is deleted",
            vec![
                map("/large-a", 1, 0, 90_000),
                store("/large-a", Some(1), 0, 90_000, 1),
                Op::Unlink { path: Path::of("/large-a") },
                create("/b"),
                append("/b", 90_000, 2),
                fsync("/b"),
                Op::Release { slot: 1 },
                append("/b", 90_000, 3),
                LATER,
            ],
        ),
        (
            "a map of a small file",
            vec![
                create("/a"),
                append("/a", 20, 1),
                fsync("/a"),
                store("/a", None, 3, 9, 2),
                truncate("/a", 5000),
                fsync("/a"),
                store("/small3", None, 0, 50, 3),
                append("/small3", 6000, 4),
                LATER,
            ],
        ),
    ]
}

/// P57: files are deleted, and others written before that is committed.
fn reused() -> Vec<Op> {
    let names = ["/large-a", "/large-b", "/file", "/dir/other-name"];
    let mut ops: Vec<Op> = names.map(|name| Op::Unlink { path: Path::of(name) }).into();
    ops.push(truncate("/sparse3", 0));
    for n in 0..6 {
        let path = format!("/new{n}");
        ops.extend([create(&path), append(&path, 90_000, n + 1)]);
    }
    ops.extend([fdatasync("/new0"), LATER]);
    ops
}

fn prove(name: &str, sampling: &Sampling, layouts: &[&Layout], target: &Extant) {
    let (mut report, mut counts) = (Report::default(), Counts::default());
    let proof = Proof::new(target, sampling.clone());
    for layout in layouts {
        let base = match layouts::base(layout) {
            Ok(base) => base,
            Err(reason) => {
                extant_testkit::oracle::print_skip(module_path!(), line!(), &reason);
                continue;
            }
        };
        let mapped = mapped(base.unit);
        for (what, mut ops) in histories(base.unit).into_iter().chain(mapped) {
            ops.retain(|op| layout.has_extents() || !matches!(op, Op::Fallocate { .. }));
            // Everything is known to be there, and then in doubt again.
            ops.insert(0, Op::Sync);
            let what = format!("{what} on {}", layout.name);
            scenarios::prove(&base, &what, ops, &proof, &mut report, &mut counts);
            if !report.failures.is_empty() {
                break;
            }
        }
    }
    finish(name, sampling.seed, &report, &counts);
}

#[test]
fn each_change_of_contents_leaves_old_or_new() {
    let seed = env::seed(1);
    let sampling =
        Sampling { seed, exhaustive_max: 3, samples: 8, one_cut_in: 2, ..crate::states() };
    let layouts: Vec<&Layout> =
        layouts::of(WRITTEN).into_iter().filter(|layout| layout.unit == 1024).take(1).collect();
    let target = Extant::default();
    prove("each_change_of_contents_leaves_old_or_new", &sampling, &layouts, &target);
}

/// What a cut brings back was not discarded, nor what somebody has got meanwhile.
#[test]
fn each_change_of_contents_leaves_old_or_new_where_freed_blocks_are_discarded() {
    let seed = env::seed(7);
    let sampling =
        Sampling { seed, exhaustive_max: 3, samples: 6, one_cut_in: 3, ..crate::states() };
    let layouts: Vec<&Layout> =
        layouts::of(WRITTEN).into_iter().filter(|layout| layout.unit == 1024).take(1).collect();
    let target = Extant { discard: true, ..Extant::default() };
    prove("each_change_of_contents_where_freed_blocks_are_discarded", &sampling, &layouts, &target);
}

#[test]
#[ignore = "takes minutes: all layouts"]
fn each_change_of_contents_in_the_journal_leaves_old_or_new() {
    let seed = env::seed(1);
    let sampling = Sampling { seed, samples: 12, one_cut_in: 2, ..crate::states() };
    let target = Extant { data_journal: true, ..Extant::default() };
    let name = "each_change_of_contents_in_the_journal";
    prove(name, &sampling, &layouts::of(WRITTEN), &target);
}

#[test]
#[ignore = "takes minutes: all layouts"]
fn each_change_of_contents_on_every_layout_leaves_old_or_new() {
    let seed = env::seed(1);
    let sampling = Sampling { seed, samples: 12, one_cut_in: 2, ..crate::states() };
    for discard in [false, true] {
        let target = Extant { discard, ..Extant::default() };
        prove("each_change_of_contents_on_every_layout", &sampling, &layouts::of(WRITTEN), &target);
    }
}
