//! Images of many layouts get other features and back, and e2fsck, our checker and the tree agree.

mod common;
#[path = "parts/damaged.rs"]
mod damaged;
#[path = "parts/edges.rs"]
mod edges;
#[path = "parts/settings.rs"]
mod settings;
#[path = "parts/theirs.rs"]
mod theirs;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use common::{LAYOUTS, Layout, e2fsck, features, hasty, made, problems, seen, tuned};
use extant::{MountOptions, NewInode, XattrMode};
use extant_base::Prng;
use extant_block::{
    BlockDevice, FaultDevice, FaultPlan, MemoryDevice, OperationKind, Record, RecordingDevice,
    SharedDevice, Survival,
};
use extant_change::Image;
use extant_format::features::Feature;
use extant_format::mmp::MmpState;
use extant_format::superblock::{SUPERBLOCK_OFFSET, Superblock, SuperblockError};
use extant_repair::{RepairOptions, Yes, repair};
use extant_testkit::oracle::{self, LoopMount};
use extant_testkit::{image, others, require, tempdir};
use extant_tune::{Plan, Request, TuneError, tune};
use rustix::mount::MountFlags;

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = [0; 1024];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    Superblock::decode(&bytes).unwrap()
}

/// Conversions and their reverse, by the words of tune2fs.
const PAIRS: &[(&str, &str)] = &[
    ("metadata_csum", "^metadata_csum,^uninit_bg"),
    ("^metadata_csum", "metadata_csum"),
    ("^has_journal,^orphan_file", "has_journal,orphan_file"),
    ("has_journal", "^has_journal"),
    ("orphan_file", "^orphan_file"),
    ("quota,project", "^quota,^project"),
    ("mmp", "^mmp"),
    ("uninit_bg", "^uninit_bg"),
    ("64bit", "^64bit"),
    ("^64bit", "64bit"),
    ("^dir_index", "dir_index"),
    ("metadata_csum,metadata_csum_seed", "^metadata_csum_seed"),
    ("large_dir,verity,encrypt,casefold,stable_inodes,huge_file", "^casefold,^encrypt,^verity"),
];

#[test]
fn conversions_and_their_reverse_leave_the_tree_and_please_both_checkers() {
    let mut done = 0;
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), *layout));
        let before = seen(&first);
        for (there, back) in PAIRS {
            let mut device = first.snapshot();
            for words in [there, back] {
                let (next, plan) = match tuned(&device, &features(words)) {
                    Ok(done) => done,
                    Err(error @ (TuneError::Refused { .. } | TuneError::Full { .. })) => {
                        println!("{layout:?} {words}: {error}");
                        assert!(!error.to_string().contains("in order"), "it was done wrong");
                        break;
                    }
                    Err(error) => panic!("{layout:?} {words}: {error}"),
                };
                if plan.steps.is_empty() {
                    break;
                }
                assert_eq!(problems(&next), [""; 0], "{layout:?} {words} {plan:?}");
                assert_eq!(require!(e2fsck(&next, dir.path())), "", "{layout:?} {words} {plan:?}");
                assert_eq!(seen(&next), before, "{layout:?} {words}");
                assert_eq!(superblock(&next).features, plan.features, "{layout:?} {words}");
                for (feature, on) in features(words).features {
                    assert_eq!(plan.features.has(feature), on, "{layout:?} {words}: {feature}");
                }
                device = next;
                done += 1;
            }
        }
    }
    assert!(done > 100, "{done} conversions were done");
}

/// Inode tables of several MiB, which threads share: files with attributes outside, the same for neighbours, indexed
/// directories, and names that leave no room for a checksum.
fn large_tables(dir: &Path) -> Result<MemoryDevice, String> {
    let path = dir.join("large.img");
    oracle::mke2fs(
        &path,
        "96M",
        &["-text4", "-b1024", "-I1024", "-N6000", "-O^metadata_csum,^64bit,^has_journal"],
    )?;
    let device = Arc::new(image::load(&path));
    let fs = MountOptions::new().read_only(false).open_shared(Arc::clone(&device) as SharedDevice);
    let fs = fs.unwrap();
    for number in 0..4200u32 {
        let dir = format!("/{:02}", number / 84);
        if number % 84 == 0 {
            fs.create_dir(&dir, &NewInode::root(0o755)).unwrap();
        }
        let name = format!("{dir}/{number:04}");
        drop(fs.open_options().write(true).create(true).open(&name).unwrap());
        if number % 8 == 0 {
            let value = vec![(number / 512) as u8; 900];
            fs.set_xattr(&name, "user.shared", value, XattrMode::Any).unwrap();
        }
    }
    fs.unmount().unwrap();
    Ok(device.snapshot())
}

#[test]
fn what_threads_share_is_changed_as_a_whole_and_the_same_each_time() {
    let dir = tempdir().unwrap();
    let first = require!(large_tables(dir.path()));
    let before = seen(&first);
    let uuid = |byte| Request { uuid: Some([byte; 16]), ..features("") };
    let requests =
        [features("metadata_csum"), uuid(7), features("^metadata_csum"), features("^uninit_bg")];
    let mut device = first;
    for request in &requests {
        let (next, plan) = tuned(&device, request).unwrap();
        assert_eq!(problems(&next), [""; 0], "{plan:?}");
        assert_eq!(require!(e2fsck(&next, dir.path())), "", "{plan:?}");
        assert_eq!(seen(&next), before, "{plan:?}");
        let (again, _) = tuned(&device, request).unwrap();
        assert!(bytes_of(&again) == bytes_of(&next), "{plan:?}: another image");
        device = next;
    }
}

#[test]
fn sizes_and_names_change_and_please_both_checkers() {
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), *layout));
        let before = seen(&first);
        let now = Request { now: 1_700_000_000, ..Request::default() };
        let requests = [
            Request { uuid: Some(*b"another uuid 123"), ..now.clone() },
            Request { uuid: Some(*b"another uuid 123"), keep_checksums: true, ..now.clone() },
            Request { journal_bytes: Some(2 << 20), ..now.clone() },
            Request { inode_size: Some(512), ..now.clone() },
            Request { inode_size: Some(256), ..now.clone() },
            Request { inode_size: Some(128), ..features("^extra_isize") },
            Request { quota: [Some(true), None, None], ..now.clone() },
        ];
        for request in requests {
            let (next, plan) = match tuned(&first, &request) {
                Ok(done) => done,
                Err(error @ (TuneError::Refused { .. } | TuneError::Full { .. })) => {
                    println!("{layout:?} {request:?}: {error}");
                    continue;
                }
                Err(error) => panic!("{layout:?} {request:?}: {error}"),
            };
            assert_eq!(problems(&next), [""; 0], "{layout:?} {request:?} {plan:?}");
            assert_eq!(require!(e2fsck(&next, dir.path())), "", "{layout:?} {request:?} {plan:?}");
            assert_eq!(seen(&next), before, "{layout:?} {request:?}");
            let (was, is) = (superblock(&first), superblock(&next));
            assert_eq!(is.uuid, request.uuid.unwrap_or(was.uuid), "{layout:?} {request:?}");
            let inode_size = request.inode_size.unwrap_or(was.inode_size);
            assert_eq!(is.inode_size, inode_size, "{layout:?} {request:?}");
        }
    }
}

/// Does what a request says over a device that records, and returns it.
fn recorded(device: &MemoryDevice, request: &Request) -> (RecordingDevice, Plan) {
    let recording = Arc::new(RecordingDevice::over(device.snapshot()));
    let shared: SharedDevice = Arc::clone(&recording) as SharedDevice;
    let plan = tune(&shared, request, &mut |_| Ok(()), &hasty(), &mut |_| {}).unwrap();
    drop(shared);
    (Arc::into_inner(recording).unwrap(), plan)
}

/// All bytes of a device.
fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// The image after all that a repair proposes.
fn repaired(device: &MemoryDevice, what: &str) -> MemoryDevice {
    let device = Arc::new(device.snapshot());
    let shared: SharedDevice = Arc::clone(&device) as SharedDevice;
    let outcome = repair(Arc::clone(&shared), &RepairOptions { now: 0 }, &mut Yes);
    let outcome = outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(outcome.is_clean, "{what}: {:?}", outcome.findings);
    outcome.plan.apply(&*shared).unwrap();
    device.snapshot()
}

/// After each write, with everything written so far or only with what was flushed. `step`: how many writes
/// are passed over.
fn cuts(layout: Layout, request: &Request, step: usize) -> Result<usize, String> {
    let dir = tempdir().unwrap();
    let first = made(dir.path(), layout)?;
    let before = seen(&first);
    let (recording, plan) = recorded(&first, request);
    let is_atomic = plan.steps.iter().all(|step| step.is_atomic);
    let features = [superblock(&first).features, plan.features];
    let sb = superblock(&first);
    // By itself e2fsck looks for backups where groups of the usual size have them.
    let has_backup = sb.group_count > 1;
    let is_usual = has_backup && sb.blocks_per_group == 8 * sb.block_size.bytes();
    let (mut count, mut hidden) = (0, 0);
    for position in (0..=recording.len()).step_by(step) {
        for survival in [Survival::Kept, Survival::Lost] {
            let cut = recording.image_at(position, |_, _| survival);
            let path = dir.path().join("cut.img");
            let _removed = std::fs::remove_file(&path);
            image::save(&cut, &path);
            let what = format!("{layout:?} {request:?} cut at {position}, {survival:?}");
            // Of what is old or new, the journal is replayed, and nothing else is to be done.
            let mode = if is_atomic { "-p" } else { "-fy" };
            let done = oracle::e2fsck_as(&path, mode, &[])?;
            let is_hidden = done.status == Some(8) && !is_atomic && !is_usual;
            let after = if is_hidden {
                assert_eq!(std::fs::read(&path).unwrap(), bytes_of(&cut), "{what}: it was changed");
                hidden += 1;
                if has_backup {
                    let at = u64::from(sb.blocks_per_group) + u64::from(sb.first_data_block);
                    let [at, size] = [at, u64::from(sb.block_size.bytes())].map(|n| n.to_string());
                    let done = oracle::e2fsck_as(&path, "-fy", &["-b", &at, "-B", &size])?;
                    assert!(matches!(done.status, Some(0 | 1)), "{what}: {}", done.text);
                    image::load(&path)
                } else {
                    repaired(&cut, &what)
                }
            } else {
                assert!(matches!(done.status, Some(0 | 1)), "{what}: {}", done.text);
                image::load(&path)
            };
            assert_eq!(e2fsck(&after, dir.path())?, "", "{what}: {}", done.text);
            assert_eq!(seen(&after), before, "{what}: {}", done.text);
            let mut now = superblock(&after).features;
            now.remove(Feature::ORPHAN_PRESENT);
            if is_atomic && plan.steps.len() == 1 {
                assert!(features.contains(&now), "{what}: {now:?}");
                continue;
            }
            let after = repaired(&cut, &what);
            assert_eq!(e2fsck(&after, dir.path())?, "", "{what}");
            assert_eq!(seen(&after), before, "{what}");
            count += 1;
        }
    }
    assert!(is_usual || request.inode_size.is_none() || step > 1 || hidden > 0, "{layout:?}");
    Ok(count + recording.len())
}

/// Requests whose cuts are looked at, and the layouts for them.
fn cut_cases() -> Vec<(usize, Request)> {
    let now = Request { now: 1_700_000_000, ..Request::default() };
    vec![
        (2, features("metadata_csum")),
        (1, features("^metadata_csum")),
        (2, features("64bit")),
        (1, features("^64bit")),
        (1, features("orphan_file,quota")),
        (1, features("^has_journal")),
        (0, features("has_journal")),
        (3, features("uninit_bg")),
        (1, Request { inode_size: Some(512), ..now.clone() }),
        (2, Request { inode_size: Some(512), ..now.clone() }),
        (3, Request { inode_size: Some(128), ..features("^extra_isize") }),
        (4, Request { inode_size: Some(512), ..now.clone() }),
        (5, Request { inode_size: Some(512), ..now.clone() }),
        (1, Request { uuid: Some(*b"another uuid 123"), ..now.clone() }),
        (1, Request { journal_bytes: Some(2 << 20), ..now.clone() }),
        (4, features("^dir_index")),
        (0, features("mmp,dir_index")),
    ]
}

#[test]
fn a_cut_leaves_the_image_before_or_after_or_one_that_a_check_sets_right() {
    for (number, request) in cut_cases() {
        require!(cuts(LAYOUTS[number], &request, 7));
    }
}

#[test]
#[ignore = "every write of every case; make test-long runs it"]
fn every_cut_leaves_the_image_before_or_after_or_one_that_a_check_sets_right() {
    let mut total = 0;
    for (number, request) in cut_cases() {
        total += require!(cuts(LAYOUTS[number], &request, 1));
    }
    println!("{total} cuts");
    assert!(total > 300, "{total}");
}

#[test]
fn while_inode_tables_move_nobody_takes_the_image_for_one_and_a_repair_puts_it_back() {
    let request = Request { inode_size: Some(512), now: 1_700_000_000, ..Request::default() };
    for number in [1, 4, 5] {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), LAYOUTS[number]));
        let before = seen(&first);
        let (recording, plan) = recorded(&first, &request);
        assert!(!plan.steps[0].is_atomic, "{plan:?}");
        let mut hidden = 0;
        for position in 0..=recording.len() {
            let cut = recording.image_at(position, |_, _| Survival::Kept);
            let mut bytes = [0; 1024];
            cut.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
            let Err(error) = Superblock::decode(&bytes) else { continue };
            let what = format!("{:?} cut at {position}: {error}", LAYOUTS[number]);
            assert_eq!(error, SuperblockError::InodeSizeInChange { old: 256 }, "{what}");
            hidden += 1;
            let path = dir.path().join("hidden.img");
            let _removed = std::fs::remove_file(&path);
            image::save(&cut, &path);
            if let Ok(attempt) = LoopMount::attempt(&path, MountFlags::empty(), "") {
                assert!(attempt.is_err(), "{what}: Linux mounts it");
            }
            let Err(refused) = tuned(&cut, &request) else { panic!("{what}: it is converted") };
            assert!(refused.to_string().contains("extant repair"), "{refused}");
            assert!(extant::MountOptions::new().open(cut.snapshot()).is_err(), "{what}");
            let after = repaired(&cut, &what);
            assert_eq!(seen(&after), before, "{what}");
            assert_eq!(superblock(&after).inode_size, 256, "{what}");
            let (again, _) = tuned(&after, &request).unwrap();
            assert_eq!(superblock(&again).inode_size, 512, "{what}");
            assert_eq!(require!(e2fsck(&again, dir.path())), "", "{what}");
            assert_eq!(seen(&again), before, "{what}");
        }
        assert!(hidden > 1, "{hidden}");
    }
}

/// After a cut, copies of superblock and descriptors are all that leads back to the old tables, and these were damaged.
#[test]
fn copies_that_are_no_good_are_made_good_before_the_superblock_is_hidden() {
    let request = Request { inode_size: Some(512), now: 1_700_000_000, ..Request::default() };
    for number in [1, 4] {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), LAYOUTS[number]));
        let before = seen(&first);
        let copies = Image::open(Arc::new(first.snapshot()), 0).unwrap().backups().unwrap();
        assert!(!copies.is_empty(), "{:?}", LAYOUTS[number]);
        for (offset, bytes) in copies {
            first.write_at(offset, &vec![0; bytes.len()]).unwrap();
        }
        let (recording, _) = recorded(&first, &request);
        // As soon as it is hidden, and before that is known to be durable.
        let hidden = (0..=recording.len()).find(|at| {
            let mut bytes = [0; 1024];
            let cut = recording.image_at(*at, |_, _| Survival::Kept);
            cut.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
            Superblock::decode(&bytes).is_err()
        });
        let hidden = hidden.expect("it is hidden");
        let fate = |_, record: &Record| match record {
            Record::Write { offset: SUPERBLOCK_OFFSET, .. } => Survival::Kept,
            _ => Survival::Lost,
        };
        let cut = recording.image_at(hidden, fate);
        let after = repaired(&cut, &format!("{:?}", LAYOUTS[number]));
        assert_eq!(seen(&after), before, "{:?}", LAYOUTS[number]);
        assert_eq!(superblock(&after).inode_size, 256, "{:?}", LAYOUTS[number]);
    }
}

/// What dumpe2fs shows of an image, without what says when and by whom.
fn shown(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let mut map = oracle::dumpe2fs(path)?;
    for key in [
        "Last write time",
        "Checksum",
        "Lifetime writes",
        "Journal checksum",
        "Journal sequence",
        // The journal has carried the change.
        "Journal features",
        "Journal checksum type",
        "Last checked",
        "Mount count",
        "Filesystem UUID",
    ] {
        map.remove(key);
    }
    // Who wrote the multi-mount block last, and when.
    map.retain(|key, _| !key.starts_with("mmp_"));
    Ok(map)
}

/// Where both do the same conversion, dumpe2fs shows the same of both; what differs is listed.
#[test]
fn dumpe2fs_shows_what_tune2fs_makes() {
    let tune2fs = require!(oracle::Tool::find("tune2fs"));
    // The size of the overhead is for the kernel to compute: tune2fs leaves the old one.
    let differs: &[(&str, &[&str])] = &[
        ("has_journal", &["Overhead clusters"]),
        // It leaves the mark of a copy that is not there.
        ("^has_journal", &["Overhead clusters", "Journal backup"]),
        // e2fsck -D packs directories anew.
        ("metadata_csum", &["Free blocks"]),
    ];
    let all = [
        "metadata_csum",
        "^metadata_csum",
        "has_journal",
        "^has_journal",
        "quota",
        "project",
        "mmp",
        "dir_nlink",
        "large_dir",
        "verity",
        "casefold",
        "encrypt",
        "ea_inode",
        "stable_inodes",
        "fast_commit",
        "^huge_file",
        "^extra_isize",
        "orphan_file",
        "uninit_bg",
        "^uninit_bg",
        "flex_bg",
    ];
    for number in [0, 1, 2, 5] {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), LAYOUTS[number]));
        for words in all {
            let (Ok((ours, plan)), path) =
                (tuned(&first, &features(words)), dir.path().join("t.img"))
            else {
                continue;
            };
            if plan.steps.is_empty() {
                continue;
            }
            let _removed = std::fs::remove_file(&path);
            image::save(&first, &path);
            let output = tune2fs.command().args(["-f", "-O", words]).arg(&path).output().unwrap();
            if !output.status.success() {
                println!("{words}: {}", String::from_utf8_lossy(&output.stderr));
                continue;
            }
            // It asks for a check after some of them.
            let how = if words == "metadata_csum" { "-fyD" } else { "-fy" };
            let checked = require!(oracle::e2fsck_as(&path, how, &[]));
            assert!(matches!(checked.status, Some(0 | 1)), "{words}: {}", checked.text);
            let theirs = require!(shown(&path));
            std::fs::remove_file(&path).unwrap();
            image::save(&ours, &path);
            let ours = require!(shown(&path));
            let known =
                differs.iter().find(|(name, _)| *name == words).map_or(&[][..], |(_, keys)| keys);
            let keys: std::collections::BTreeSet<&String> =
                theirs.keys().chain(ours.keys()).collect();
            for key in keys {
                if !known.contains(&key.as_str()) {
                    assert_eq!(
                        theirs.get(key),
                        ours.get(key),
                        "{words} {:?}: {key}",
                        LAYOUTS[number]
                    );
                }
            }
        }
    }
}

#[test]
fn the_kernel_mounts_what_was_converted_and_fills_it() {
    for (number, words) in [
        (2, "metadata_csum,64bit,orphan_file"),
        (1, "^metadata_csum,^64bit,fast_commit"),
        (5, "64bit,metadata_csum_seed"),
        (0, "has_journal,extent,dir_index"),
        (6, "metadata_csum,^has_journal"),
    ] {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), LAYOUTS[number]));
        let path = dir.path().join("tuned.img");
        let (device, _) = match tuned(&first, &features(words)) {
            Ok(done) => done,
            Err(error) => panic!("{:?} {words}: {error}", LAYOUTS[number]),
        };
        image::save(&first, &path);
        if require!(LoopMount::attempt(&path, MountFlags::empty(), "")).is_err() {
            println!("{:?}: not for this kernel", LAYOUTS[number]);
            continue;
        }
        std::fs::remove_file(&path).unwrap();
        image::save(&device, &path);
        {
            let mount = require!(LoopMount::read_write(&path));
            assert_eq!(std::fs::read_dir(mount.path().join("many")).unwrap().count(), 150);
            for number in 0..60 {
                let bytes = vec![number as u8; 30_000];
                std::fs::write(mount.path().join(format!("full/new{number}")), bytes).unwrap();
            }
        }
        let report = require!(oracle::e2fsck(&path));
        assert!(report.is_clean(), "{words}: {}", report.text);
    }
}

/// Bitmaps, heads and tables share clusters.
const LARGE_CLUSTERS: [Layout; 3] = [
    Layout::new(&["-text4", "-b1024", "-Obigalloc", "-C65536", "-Jsize=4"], "64M"),
    Layout::new(&["-text4", "-b1024", "-Obigalloc,^flex_bg", "-C65536", "-Jsize=4"], "64M"),
    Layout::new(&["-text4", "-b1024", "-Obigalloc", "-C1048576", "-Jsize=4"], "256M"),
];

#[test]
fn what_shares_a_cluster_with_a_table_or_an_orphan_file_stays_marked() {
    for layout in LARGE_CLUSTERS {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), layout));
        let before = seen(&first);
        let larger = Request { inode_size: Some(512), now: 1_700_000_000, ..Request::default() };
        for request in [larger, features("orphan_file")] {
            let (next, _) = match tuned(&first, &request) {
                Ok(done) => done,
                Err(error @ TuneError::Full { .. }) => {
                    println!("{layout:?} {request:?}: {error}");
                    continue;
                }
                Err(error) => panic!("{layout:?} {request:?}: {error}"),
            };
            assert_eq!(problems(&next), [""; 0], "{layout:?} {request:?}");
            assert_eq!(require!(e2fsck(&next, dir.path())), "", "{layout:?} {request:?}");
            assert_eq!(seen(&next), before, "{layout:?} {request:?}");
            let path = dir.path().join("first.img");
            image::save(&first, &path);
            if require!(LoopMount::attempt(&path, MountFlags::empty(), "")).is_err() {
                println!("{layout:?}: not for this kernel");
                std::fs::remove_file(&path).unwrap();
                continue;
            }
            std::fs::remove_file(&path).unwrap();
            image::save(&next, &path);
            let mount = require!(LoopMount::read_write(&path));
            assert_eq!(std::fs::read_dir(mount.path().join("many")).unwrap().count(), 150);
            drop(mount);
            std::fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn a_feature_that_the_layout_relies_on_is_refused_and_nobody_is_sent_to_a_repair() {
    let dir = tempdir().unwrap();
    let first = require!(made(dir.path(), LAYOUTS[4]));
    let error = tuned(&first, &features("^flex_bg")).unwrap_err();
    assert!(matches!(error, TuneError::Refused { .. }), "{error}");
    for word in ["^flex_bg", "block bitmap of group 1 is at block", "in another group"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    // What has its own in its own groups can do without.
    let home = require!(made(dir.path(), LAYOUTS[3]));
    let (with, _) = tuned(&home, &features("flex_bg")).unwrap();
    let (without, _) = tuned(&with, &features("^flex_bg")).unwrap();
    assert_eq!(require!(e2fsck(&without, dir.path())), "");
}

/// Of 64 MiB, where the log has the fewest blocks that the kernel takes, and none to give away.
#[test]
fn the_kernel_mounts_new_journals_with_fast_commits() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("fast.img");
    let now = || Request { now: 1_700_000_000, ..Request::default() };
    for (words, request) in [
        ("fast_commit", Request { journal_bytes: Some(4 << 20), ..now() }),
        ("fast_commit", Request { journal_bytes: Some(6 << 20), ..now() }),
        ("fast_commit,^has_journal", features("has_journal")),
        ("^fast_commit", Request { journal_bytes: Some(5 << 20), ..features("fast_commit") }),
    ] {
        let set = format!("-O{words}");
        let size = if words.contains("^has_journal") { "-m5" } else { "-Jsize=5" };
        require!(oracle::mke2fs(&path, "64M", &["-text4", "-b4096", size, &set]));
        let (device, plan) = tuned(&image::load(&path), &request).unwrap();
        assert!(!plan.steps.is_empty(), "{words} {request:?}");
        assert_eq!(problems(&device), [""; 0], "{words} {request:?}");
        assert_eq!(require!(e2fsck(&device, dir.path())), "", "{words} {request:?}");
        std::fs::remove_file(&path).unwrap();
        image::save(&device, &path);
        let mount = require!(LoopMount::attempt(&path, MountFlags::empty(), ""));
        assert!(mount.is_ok(), "{words} {request:?}: {:?}", mount.err());
    }
}

/// Multi-mount protection keeps a conversion that was killed, because nothing tells it from one that is under
/// way on another host: whoever knows that says so.
#[test]
fn what_was_killed_under_multi_mount_protection_is_in_nobodys_way_when_told() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("mmp.img");
    require!(oracle::mke2fs(&path, "24M", &["-text4", "-b1024", "-Jsize=4", "-Ommp"]));
    let device: SharedDevice = Arc::new(image::load(&path));
    // Dropped without its end, as by SIGKILL.
    others::put(&*device, |mmp| mmp.state = MmpState::Fsck);
    let quota = features("quota");
    let error =
        tune(&device, &quota, &mut |_| Ok(()), &hasty(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("a check or a conversion"), "{error}");
    let clear = Request { clear_mmp: true, ..Request::default() };
    for (steps, request) in [(1, &clear), (0, &clear)] {
        assert_eq!(extant_tune::plan(&device, request).unwrap().steps.len(), steps);
        assert_eq!(
            tune(&device, request, &mut |_| Ok(()), &hasty(), &mut |_| {}).unwrap().steps.len(),
            steps
        );
    }
    tune(&device, &quota, &mut |_| Ok(()), &hasty(), &mut |_| {}).unwrap();
    // With other wishes in one request.
    others::put(&*device, |mmp| mmp.state = MmpState::Fsck);
    let both = Request { clear_mmp: true, ..features("^quota") };
    assert_eq!(
        tune(&device, &both, &mut |_| Ok(()), &hasty(), &mut |_| {}).unwrap().steps.len(),
        2
    );
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(require!(e2fsck(&image::load(&path), dir.path())), "");
}

/// Fields of the superblock, descriptors, tables and maps with other values: what becomes of it does
/// not matter, as long as it ends.
#[test]
fn damaged_images_are_refused_or_converted_and_nothing_panics() {
    let (mut refused, mut done) = (0, 0);
    let words =
        ["metadata_csum", "^metadata_csum", "64bit", "^has_journal", "quota", "^64bit", "mmp"];
    for number in [1, 2] {
        let dir = tempdir().unwrap();
        let good = require!(made(dir.path(), LAYOUTS[number]));
        let mut random = Prng::new(number as u64);
        for round in 0..60 {
            let device = Arc::new(good.snapshot());
            for _ in 0..1 + random.below(5) {
                let at = match random.below(3) {
                    0 => SUPERBLOCK_OFFSET + random.below(1024),
                    1 => 2048 + random.below(4096),
                    _ => 1024 + random.below(800 << 10),
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
            let mut request = features(words[random.below(7) as usize]);
            match random.below(4) {
                0 => request = Request { inode_size: Some(512), ..request },
                1 => request = Request { uuid: Some([9; 16]), ..request },
                _ => {}
            }
            match tune(&(device as SharedDevice), &request, &mut |_| Ok(()), &hasty(), &mut |_| {})
            {
                Ok(_) => done += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 20 && done > 5, "{refused} {done}");
}

#[test]
#[ignore = "takes minutes; make test-long runs it"]
fn conversions_at_random_please_both_checkers() {
    let words = [
        "metadata_csum",
        "^metadata_csum",
        "has_journal",
        "^has_journal,^orphan_file",
        "orphan_file",
        "^orphan_file",
        "quota",
        "^quota",
        "project",
        "^project",
        "mmp",
        "^mmp",
        "uninit_bg",
        "^uninit_bg",
        "64bit",
        "^64bit",
        "dir_index",
        "^dir_index",
        "metadata_csum_seed",
        "^metadata_csum_seed",
        "huge_file",
        "^huge_file",
        "extra_isize",
        "^extra_isize",
    ];
    let mut done = 0;
    for (number, layout) in LAYOUTS.iter().enumerate() {
        let dir = tempdir().unwrap();
        let mut device = require!(made(dir.path(), *layout));
        let before = seen(&device);
        let mut random = Prng::new(number as u64 + 100);
        for round in 0..60 {
            let mut request = features(words[random.below(words.len() as u64) as usize]);
            match random.below(8) {
                0 => request.uuid = Some([random.below(255) as u8 + 1; 16]),
                1 => request.journal_bytes = Some((2 + random.below(4)) << 20),
                2 => request.inode_size = Some(128 << random.below(3)),
                _ => {}
            }
            let what = format!("{layout:?} round {round}: {request:?}");
            match tuned(&device, &request) {
                Ok((next, _)) => device = next,
                Err(TuneError::Refused { .. } | TuneError::Full { .. }) => continue,
                Err(error) => panic!("{what}: {error}"),
            }
            assert_eq!(problems(&device), [""; 0], "{what}");
            assert_eq!(require!(e2fsck(&device, dir.path())), "", "{what}");
            assert_eq!(seen(&device), before, "{what}");
            done += 1;
        }
    }
    println!("{done} conversions");
    assert!(done > 150, "{done}");
}

/// Each read fails once: it is told as a failure of the device, never as damage that a repair would set right.
#[test]
fn a_read_that_fails_is_told_as_one() {
    let dir = tempdir().unwrap();
    let good = require!(made(dir.path(), LAYOUTS[0]));
    let before = seen(&good);
    let request = features("metadata_csum");
    let mut failures = 0;
    for number in 0..400 {
        let exactly = vec![(OperationKind::Read, number, 1)];
        let plan = FaultPlan { exactly, ..FaultPlan::default() };
        let device = Arc::new(good.snapshot());
        let fault = Arc::new(FaultDevice::new(Arc::clone(&device), plan));
        let shared: SharedDevice = Arc::clone(&fault) as SharedDevice;
        let result = tune(&shared, &request, &mut |_| Ok(()), &hasty(), &mut |_| {});
        if fault.failed() == 0 {
            result.unwrap();
            break;
        }
        // What is asked for again, or can be done without, is no failure.
        let Err(error) = result else {
            assert_eq!(problems(&device), Vec::<String>::new(), "read {number}");
            assert_eq!(seen(&device), before, "read {number}");
            continue;
        };
        failures += 1;
        let text = error.to_string();
        assert!(!text.contains("not in order"), "read {number}: {text}");
        assert!(text.contains("read of"), "read {number}: {text}");
    }
    assert!(failures > 5, "{failures}");
}

/// A cut in between must not leave a superblock of after with tables of before: it is hidden first, and is back behind all else.
#[test]
fn the_superblock_is_hidden_until_all_inode_records_have_their_other_size() {
    let mut done = 0;
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), *layout));
        let request = Request { inode_size: Some(512), now: 1_700_000_000, ..Request::default() };
        if tuned(&first, &request).is_err() {
            continue;
        }
        let records = recorded(&first, &request).0.records();
        // Where the superblock is written, and whether it is one then.
        let is_one = |(at, record): (usize, &Record)| {
            let Record::Write { offset, data, .. } = record else { return None };
            let from = usize::try_from(SUPERBLOCK_OFFSET.checked_sub(*offset)?).ok()?;
            Some((at, Superblock::decode(data.get(from..from + 1024)?).is_ok()))
        };
        let written: Vec<(usize, bool)> = records.iter().enumerate().filter_map(is_one).collect();
        let Some(hidden) = written.iter().position(|(_, is_one)| !is_one) else { continue };
        let [(back, true)] = written[hidden + 1..] else {
            panic!("{layout:?}: {written:?} of {} records", records.len());
        };
        let is_flush = |at: usize| matches!(records[at], Record::Flush);
        assert!(is_flush(written[hidden].0 + 1) && is_flush(back - 1), "{layout:?}: {written:?}");
        assert!(back > written[hidden].0 + 3, "{layout:?}: nothing was written meanwhile");
        done += 1;
    }
    assert!(done > 2, "{done} layouts");
}
