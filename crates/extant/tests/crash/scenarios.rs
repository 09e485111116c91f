//! Each operation, and each pair of operations, cut everywhere.

use extant_testkit::crash::{Report, Sampling};
use extant_testkit::model::{NewNode, Op, Path, RenameMode, Special, Which, XattrWrite};
use extant_testkit::proof::{Counts, Proof, env, record};

use crate::finish;
use crate::layouts::{self, LAYOUTS, SMALL};
use crate::target::Extant;

const NEW: NewNode = NewNode { permissions: 0o644, uid: 1000, gid: 100 };

/// A set-up, and one operation after it. `at` makes the names of two of them different.
fn single(at: &str) -> Vec<(&'static str, Vec<Op>, Op)> {
    let own = Path::of(at);
    let path = |name: &str| own.join(name.as_bytes());
    let create = |name: &str| Op::Create { path: path(name), new: NEW };
    let mkdir = |name: &str| Op::Mkdir { path: path(name), new: NEW };
    let rename = |from: &str, to: &str, mode| Op::Rename { from: path(from), to: path(to), mode };
    let xattr = |name: &str, len: usize| Op::SetXattr {
        path: path("f"),
        name: name.as_bytes().to_vec(),
        value: vec![b'v'; len],
        write: XattrWrite::Any,
    };
    let acl = Some(some_acl());
    let many = |count: usize| {
        (0..count).map(|n| create(&format!("{n}-{}", "long".repeat(40)))).collect::<Vec<_>>()
    };
    let f = || vec![create("f")];
    let of = |file: &str| Path::of(file);
    vec![
        ("create", vec![], create("f")),
        ("create in a full block", many(5), create(&format!("last-{}", "long".repeat(40)))),
        ("mkdir", vec![], mkdir("d")),
        ("symlink", vec![], Op::Symlink { path: path("l"), target: b"f".to_vec(), new: NEW }),
        (
            "long symlink",
            vec![],
            Op::Symlink { path: path("l"), target: vec![b't'; 300], new: NEW },
        ),
        ("mknod", vec![], Op::Mknod { path: path("n"), special: Special::Char(1, 3), new: NEW }),
        ("link", f(), Op::Link { from: path("f"), to: path("g") }),
        ("unlink", f(), Op::Unlink { path: path("f") }),
        (
            "unlink of one of two names",
            vec![create("f"), Op::Link { from: path("f"), to: path("g") }],
            Op::Unlink { path: path("f") },
        ),
        ("unlink with blocks", vec![], Op::Unlink { path: of(&format!("/large-{at}")) }),
        (
            "unlink of an open file",
            vec![create("f"), Op::Hold { path: path("f"), slot: 0 }],
            Op::Unlink { path: path("f") },
        ),
        (
            "last close of a file without names",
            vec![
                create("f"),
                Op::Hold { path: path("f"), slot: 0 },
                Op::Unlink { path: path("f") },
            ],
            Op::Release { slot: 0 },
        ),
        ("rmdir", vec![mkdir("d")], Op::Rmdir { path: path("d") }),
        ("rename", f(), rename("f", "g", RenameMode::Replace)),
        (
            "rename over a file",
            vec![create("f"), create("g")],
            rename("f", "g", RenameMode::Replace),
        ),
        (
            "rename over a directory",
            vec![mkdir("d"), mkdir("e")],
            rename("d", "e", RenameMode::Replace),
        ),
        (
            "rename of a directory to another one",
            vec![mkdir("d"), mkdir("e"), create("e/f")],
            rename("e", "d/e", RenameMode::Replace),
        ),
        ("rename without replacing", f(), rename("f", "g", RenameMode::NoReplace)),
        ("exchange", vec![create("f"), mkdir("d")], rename("f", "d", RenameMode::Exchange)),
        (
            "exchange across directories",
            vec![create("f"), mkdir("d"), mkdir("d/e")],
            rename("f", "d/e", RenameMode::Exchange),
        ),
        ("whiteout", f(), rename("f", "g", RenameMode::Whiteout)),
        ("chmod", f(), Op::Chmod { path: path("f"), permissions: 0o700 }),
        ("chown", f(), Op::Chown { path: path("f"), uid: 5, gid: 70_000 }),
        ("utimes", f(), Op::Utimes { path: path("f"), atime: 5, mtime: 4_000_000_000 }),
        ("setxattr in the inode", f(), xattr("user.a", 20)),
        ("setxattr in a block", f(), xattr("user.a", 600)),
        (
            "setxattr of a shared block",
            vec![
                create("f"),
                xattr("user.a", 600),
                create("g"),
                Op::SetXattr {
                    path: path("g"),
                    name: b"user.a".to_vec(),
                    value: vec![b'v'; 600],
                    write: XattrWrite::Any,
                },
            ],
            xattr("user.b", 50),
        ),
        (
            "removexattr",
            vec![create("f"), xattr("user.a", 600)],
            Op::RemoveXattr { path: path("f"), name: b"user.a".to_vec() },
        ),
        ("setacl", f(), Op::SetAcl { path: path("f"), which: Which::Access, acl: acl.clone() }),
        (
            "create with an inherited list",
            vec![mkdir("d"), Op::SetAcl { path: path("d"), which: Which::Default, acl }],
            create("d/f"),
        ),
        ("truncate up", f(), Op::Truncate { path: path("f"), size: 1 << 20 }),
        ("truncate down", vec![], Op::Truncate { path: of(&format!("/large-{at}")), size: 4096 }),
        (
            "truncate to nothing",
            vec![],
            Op::Truncate { path: of(&format!("/large-{at}")), size: 0 },
        ),
        ("flags", f(), Op::SetFlags { path: path("f"), flags: 0x40 }),
    ]
}

fn some_acl() -> extant::Acl {
    use extant_format::acl::{Acl, AclEntry, Who};
    let entry = |who, perm| AclEntry { who, perm };
    let entries = vec![
        entry(Who::Owner, 6),
        entry(Who::User(1000), 4),
        entry(Who::OwningGroup, 4),
        entry(Who::Mask, 5),
        entry(Who::Others, 0),
    ];
    Acl::new(entries).expect("in order")
}

/// Names as written have slashes; paths have names.
fn split(op: &mut Op) {
    let fix = |path: &mut Path| {
        let names = path.0.iter().flat_map(|name| name.split(|byte| *byte == b'/'));
        path.0 = names.map(<[u8]>::to_vec).collect();
    };
    match op {
        Op::Create { path, .. }
        | Op::Mkdir { path, .. }
        | Op::Symlink { path, .. }
        | Op::Mknod { path, .. }
        | Op::Unlink { path }
        | Op::Rmdir { path }
        | Op::SetXattr { path, .. } => fix(path),
        Op::Rename { from, to, .. } | Op::Link { from, to } => {
            fix(from);
            fix(to);
        }
        _ => {}
    }
}

/// The set-up of `scenarios` up to a sync, then their operations, then a sync after each or after
/// all of them.
fn ops(places: &[&str], scenarios: &[(&str, Vec<Op>, Op)], sync_each: bool) -> Vec<Op> {
    let mut all = Vec::new();
    for place in places {
        all.push(Op::Mkdir { path: Path::of(place), new: NewNode { permissions: 0o755, ..NEW } });
    }
    for (_, setup, _) in scenarios {
        all.extend(setup.iter().cloned());
    }
    all.push(Op::Sync);
    for (_, _, op) in scenarios {
        all.push(op.clone());
        if sync_each {
            all.push(Op::Sync);
        }
    }
    all.push(Op::Sync);
    all.iter_mut().for_each(split);
    all
}

/// Records and proves one list of operations.
pub(crate) fn prove(
    base: &extant_testkit::proof::Base,
    what: &str,
    ops: Vec<Op>,
    proof: &Proof<'_, Extant>,
    report: &mut Report,
    counts: &mut Counts,
) {
    let mut ops = ops.into_iter();
    let recorded = record(proof.target, base, |_| ops.next());
    let recorded = recorded.unwrap_or_else(|text| panic!("{what}: {text}"));
    let (mut found, counted) = proof.prove(&recorded);
    for failure in &mut found.failures {
        failure.message = format!("{what}: {}", failure.message);
    }
    report.add(found);
    counts.add(&counted);
}

/// Programs were written against this: whoever syncs the directory that a file came from finds the link
/// elsewhere after a cut, although nothing in that directory changed.
#[test]
fn a_synced_directory_has_every_name_that_was_made_before() {
    const NAME: &str = "a_synced_directory_has_every_name_that_was_made_before";
    let seed = env::seed(1);
    let sampling = Sampling { seed, exhaustive_max: 3, samples: 8, ..crate::states() };
    let target = Extant::default();
    let proof = Proof::new(&target, sampling.clone());
    let (mut report, mut counts) = (Report::default(), Counts::default());
    let base = match layouts::base(&SMALL) {
        Ok(base) => base,
        Err(reason) => {
            extant_testkit::oracle::print_skip(module_path!(), line!(), &reason);
            return;
        }
    };
    let dir = || Path::of("dir");
    let foo = || dir().join(b"foo");
    let device = || Path::of("null");
    let sync = |path: Path| Op::Fsync { path };
    let link = |name: &str| Op::Link { from: foo(), to: Path::of(name) };
    let begin = || {
        vec![
            Op::Mkdir { path: dir(), new: NewNode { permissions: 0o755, ..NEW } },
            Op::Create { path: foo(), new: NEW },
            sync(foo()),
            sync(dir()),
        ]
    };
    let after = |mut more: Vec<Op>| {
        let mut all = begin();
        all.append(&mut more);
        all
    };
    let special = Op::Mknod { path: device(), special: Special::Fifo, new: NEW };
    let cases = [
        ("a link elsewhere", after(vec![link("bar"), sync(dir())])),
        ("a file moved away", {
            let mode = RenameMode::Replace;
            let moved = Op::Rename { from: foo(), to: Path::of("bar"), mode };
            after(vec![Op::Create { path: dir().join(b"f"), new: NEW }, moved, sync(dir())])
        }),
        ("attributes of a file below", {
            let mode = Op::Chmod { path: foo(), permissions: 0o600 };
            after(vec![mode, sync(dir())])
        }),
        ("the root", after(vec![link("dir/bar"), sync(Path(Vec::new()))])),
        ("nothing at all", after(vec![sync(dir()), sync(dir())])),
        ("something else than a directory", after(vec![special, link("bar"), sync(dir())])),
    ];
    for (what, ops) in cases {
        prove(&base, what, ops, &proof, &mut report, &mut counts);
    }
    finish(NAME, seed, &report, &counts);
}

#[test]
fn each_operation_is_whole_or_not_at_all() {
    let seed = env::seed(1);
    let sampling = Sampling { seed, exhaustive_max: 3, samples: 8, ..crate::states() };
    each("each_operation_is_whole_or_not_at_all", &sampling, &[&SMALL]);
}

#[test]
#[ignore = "takes minutes: all layouts"]
fn each_operation_on_every_layout_is_whole_or_not_at_all() {
    let seed = env::seed(1);
    let sampling = Sampling { seed, samples: 16, ..crate::states() };
    each("each_operation_on_every_layout", &sampling, &layouts::chosen());
}

fn each(name: &str, sampling: &Sampling, layouts: &[&layouts::Layout]) {
    let target = Extant::default();
    let proof = Proof::new(&target, sampling.clone());
    let (mut report, mut counts) = (Report::default(), Counts::default());
    for layout in layouts {
        let base = match layouts::base(layout) {
            Ok(base) => base,
            Err(reason) => {
                extant_testkit::oracle::print_skip(module_path!(), line!(), &reason);
                continue;
            }
        };
        for scenario in single("a") {
            let what = format!("{} on {}", scenario.0, layout.name);
            let ops = ops(&["a"], &[scenario], true);
            prove(&base, &what, ops, &proof, &mut report, &mut counts);
            if !report.failures.is_empty() {
                break;
            }
        }
    }
    finish(name, sampling.seed, &report, &counts);
}

/// Pairs: `one_in` of them, chosen by the seed.
fn pairs(name: &str, seed: u64, one_in: u64, sampling: &Sampling, layouts: &[layouts::Layout]) {
    let target = Extant::default();
    let proof = Proof::new(&target, sampling.clone());
    let mut random = extant_base::Prng::new(seed);
    let (mut report, mut counts) = (Report::default(), Counts::default());
    for layout in layouts {
        let base = match layouts::base(layout) {
            Ok(base) => base,
            Err(reason) => {
                extant_testkit::oracle::print_skip(module_path!(), line!(), &reason);
                continue;
            }
        };
        for first in single("a") {
            for second in single("b") {
                if !random.one_in(one_in) || !report.failures.is_empty() {
                    continue;
                }
                let what = format!("{}, {} on {}", first.0, second.0, layout.name);
                let both = [first.clone(), second];
                let ops = ops(&["a", "b"], &both, random.one_in(2));
                prove(&base, &what, ops, &proof, &mut report, &mut counts);
            }
        }
    }
    finish(name, seed, &report, &counts);
}

#[test]
fn some_pairs_of_operations_are_whole_and_in_order() {
    let seed = env::seed(2);
    let sampling =
        Sampling { seed, exhaustive_max: 3, samples: 10, one_cut_in: 2, ..crate::states() };
    pairs("some_pairs_of_operations", seed, 24, &sampling, &[SMALL]);
}

#[test]
#[ignore = "takes minutes: every pair of operations"]
fn every_pair_of_operations_is_whole_and_in_order() {
    let seed = env::seed(3);
    let sampling = Sampling {
        seed,
        exhaustive_max: 4,
        samples: 12,
        tears: 6,
        one_cut_in: 2,
        ..crate::states()
    };
    pairs("every_pair_of_operations", seed, 1, &sampling, &[SMALL]);
    let sampling =
        Sampling { seed, exhaustive_max: 3, samples: 8, one_cut_in: 6, ..crate::states() };
    pairs("every_pair_of_operations", seed, 12, &sampling, LAYOUTS);
}

#[test]
fn attributes_of_what_exists_are_whole_and_in_order() {
    let seed = env::seed(4);
    let target = Extant::default();
    let proof =
        Proof::new(&target, Sampling { seed, samples: 12, one_cut_in: 2, ..crate::states() });
    let (mut report, mut counts) = (Report::default(), Counts::default());
    for layout in layouts::chosen() {
        let base = match layouts::base(layout) {
            Ok(base) => base,
            Err(reason) => {
                extant_testkit::oracle::print_skip(module_path!(), line!(), &reason);
                continue;
            }
        };
        let mut random = extant_base::Prng::new(seed);
        let mut ops = Vec::new();
        for _ in 0..40 {
            let n = random.below(12);
            let path = if n < 6 { format!("/sparse{n}") } else { format!("/dir/f{n}") };
            let path = Path::of(&path);
            let number = random.below(1 << 20);
            ops.push(match random.below(6) {
                0 => Op::Chmod { path, permissions: number as u16 & 0o777 },
                1 => Op::Chown { path, uid: number as u32, gid: number as u32 / 2 },
                2 => Op::Utimes { path, atime: number as i64, mtime: number as i64 * 3000 },
                3 => Op::SetFlags { path, flags: (number as u32 & 1) * 0x40 },
                4 => Op::Fsync { path },
                _ => Op::Sync,
            });
        }
        prove(&base, layout.name, ops, &proof, &mut report, &mut counts);
    }
    finish("attributes_of_what_exists", seed, &report, &counts);
}
