use std::time::Duration;

use extant_base::Prng;
use extant_format::quota::QuotaFile;
use extant_sync::{Clock, SystemClock};

use super::*;
use crate::fs::Fs;
use crate::test_images::Image;
use crate::txn::Txn;
use crate::{Inode, NewInode, SetAttributes};

const QUOTA: &[&str] = &[
    "-t",
    "ext4",
    "-b",
    "4096",
    "-I",
    "256",
    "-O",
    "quota,project",
    "-E",
    "quotatype=usrquota:grpquota:prjquota",
];
const SMALL: &[&str] = &[
    "-t",
    "ext4",
    "-b",
    "1024",
    "-I",
    "256",
    "-O",
    "quota,project",
    "-E",
    "quotatype=usrquota:grpquota:prjquota",
];

fn owned(uid: u32, gid: u32) -> NewInode {
    NewInode { permissions: 0o755, uid, gid }
}

fn usage(fs: &Fs, kind: QuotaKind, id: u32) -> (u64, u64) {
    let entry = fs.quota(kind, id).unwrap().unwrap();
    (entry.space_bytes, entry.inodes)
}

fn limit(fs: &Fs, kind: QuotaKind, id: u32, limits: QuotaLimits) {
    fs.set_quota_limits(kind, id, &limits).unwrap();
}

fn finish(fs: Fs, image: &Image) {
    fs.unmount().unwrap();
    image.check().assert_clean();
}

/// The whole file, decoded by the code that reads it at once.
fn file(image: &Image, ino: Ino) -> QuotaFile {
    let fs = image.options().read_only(true).open_shared(Arc::clone(&image.device) as _).unwrap();
    QuotaFile::decode(&fs.inode(ino).unwrap().read_all().unwrap()).unwrap()
}

#[test]
fn usage_is_what_e2fsck_counts() {
    for options in [QUOTA, SMALL] {
        let image = extant_testkit::require!(Image::make("32M", options, ""));
        let fs = image.open();
        let root = fs.root().unwrap();
        let mut random = Prng::new(3);
        let ids = [0, 1, 2, 255, 256, 1000, 65_534, 65_536, 1 << 24, u32::MAX - 1];
        let pick = |random: &mut Prng| ids[random.below(10) as usize];
        let mut held: Vec<Inode> = Vec::new();
        for step in 0..300u32 {
            let new = owned(pick(&mut random), pick(&mut random));
            let name = format!("n{step}");
            held.push(match random.below(3) {
                0 => root.create(&name, &new).unwrap(),
                1 => root.mkdir(&name, &new).unwrap(),
                _ => root.symlink(&name, vec![b'x'; 200], &new).unwrap(),
            });
            let inode = &held[random.below(held.len() as u64) as usize];
            let change =
                SetAttributes::new().owner(Some(pick(&mut random)), Some(pick(&mut random)));
            inode.set_attributes(&change).unwrap();
            if step % 50 == 7 {
                fs.sync().unwrap();
            }
        }
        drop((held, root));
        finish(fs, &image);
        let superblock = image.superblock();
        for ino in [superblock.user_quota_inode, superblock.group_quota_inode] {
            let entries = file(&image, ino).entries;
            assert_eq!(entries.len(), ids.len(), "a record each");
            assert!(entries.iter().all(|entry| entry.inodes > 0));
        }
    }
}

#[test]
fn many_ids_make_the_tree_grow() {
    for options in [QUOTA, SMALL] {
        let image = extant_testkit::require!(Image::make("32M", options, ""));
        let fs = image.open();
        let mut random = Prng::new(5);
        let mut ids: Vec<u32> = (0..400).map(|_| random.next_u64() as u32).collect();
        ids.extend(0..400);
        for (step, id) in ids.iter().enumerate() {
            Txn::prepare_quotas(fs.volume(), Owners([*id, 7, 0])).unwrap();
            if step % 100 == 99 {
                fs.sync().unwrap();
            }
        }
        finish(fs, &image);
        ids.sort_unstable();
        ids.dedup();
        let entries = file(&image, image.superblock().user_quota_inode).entries;
        let found: Vec<u32> = entries.iter().map(|entry| entry.id).collect();
        assert_eq!(found, ids);
        assert_eq!(file(&image, image.superblock().group_quota_inode).entries.len(), 2);
        // What was written is found again, without adding anything.
        let fs = image.open();
        for id in &ids {
            let quotas = fs.volume().writer().unwrap().quotas();
            let tree = quotas.file(0).unwrap().tree.lock();
            assert!(tree.find(fs.volume(), *id).unwrap().is_some(), "{id}");
        }
        finish(fs, &image);
    }
}

#[test]
fn a_hard_limit_refuses_and_nothing_is_charged() {
    let image = extant_testkit::require!(Image::make("16M", QUOTA, ""));
    let fs = image.open();
    let root = fs.root().unwrap();
    limit(&fs, QuotaKind::User, 5, QuotaLimits { inodes_hard: 2, ..QuotaLimits::default() });
    limit(&fs, QuotaKind::Group, 6, QuotaLimits { space_hard_kib: 8, ..QuotaLimits::default() });
    for name in ["a", "b"] {
        root.create(name, &owned(5, 1)).unwrap();
    }
    let error = root.create("c", &owned(5, 1)).unwrap_err();
    assert_eq!(error.to_string(), "the quota of user 5 for inodes is used up");
    assert_eq!(error.errno(), 122);
    assert_eq!(usage(&fs, QuotaKind::User, 5), (0, 2));
    assert_eq!(usage(&fs, QuotaKind::Group, 1), (0, 2), "Q2");
    for name in ["d", "e"] {
        root.mkdir(name, &owned(1, 6)).unwrap();
    }
    let error = root.mkdir("f", &owned(1, 6)).unwrap_err();
    assert_eq!(error.to_string(), "the quota of group 6 for blocks is used up");
    assert_eq!(usage(&fs, QuotaKind::Group, 6), (8192, 2));
    // A new owner cannot take more either.
    let inode = root.create("g", &owned(1, 1)).unwrap();
    let error = inode.set_attributes(&SetAttributes::new().owner(Some(5), None)).unwrap_err();
    assert!(matches!(error, FsError::QuotaExceeded { id: 5, .. }), "{error}");
    assert_eq!(inode.metadata().uid, 1);
    drop((inode, root));
    finish(fs, &image);
}

/// A front end keeps a handle beyond the removal, and lets go of it between two calls.
#[test]
fn what_a_removed_file_took_is_there_for_the_next_one() {
    let image = extant_testkit::require!(Image::make("16M", QUOTA, ""));
    let fs = image.open();
    let root = fs.root().unwrap();
    let limits = QuotaLimits { inodes_hard: 2, space_hard_kib: 8, ..QuotaLimits::default() };
    limit(&fs, QuotaKind::User, 5, limits);
    let first = root.create("first", &owned(5, 1)).unwrap();
    let second = root.create("second", &owned(5, 1)).unwrap();
    first.write_at(&[1; 8192], 0).unwrap();
    assert!(matches!(second.write_at(&[2], 0), Err(FsError::QuotaExceeded { .. })));
    root.unlink("first").unwrap();
    drop(first);
    assert_eq!(second.write_at(&[2; 8192], 0).unwrap(), 8192);
    assert_eq!(usage(&fs, QuotaKind::User, 5).1, 1);
    root.create("third", &owned(5, 1)).unwrap();
    assert!(matches!(root.create("fourth", &owned(5, 1)), Err(FsError::QuotaExceeded { .. })));
    root.unlink("second").unwrap();
    drop(second);
    root.create("fourth", &owned(5, 1)).unwrap();
    drop(root);
    finish(fs, &image);
}

/// As root in Linux: files are made, written and given away past limits, and counted.
#[test]
fn who_is_beyond_limits_is_not_refused_and_counted() {
    let image = extant_testkit::require!(Image::make("16M", QUOTA, ""));
    let fs = image.options().open_shared(Arc::clone(&image.device) as _).unwrap();
    let limits = QuotaLimits { inodes_hard: 1, space_hard_kib: 8, ..QuotaLimits::default() };
    limit(&fs, QuotaKind::User, 5, limits);
    let root = fs.root().unwrap();
    let a = root.create("a", &owned(5, 1)).unwrap();
    let refused = |result: Result<()>| {
        assert!(matches!(result, Err(FsError::QuotaExceeded { .. })), "{result:?}");
    };
    let write = || a.write_at(&[1; 100_000], 0);
    let give = || {
        let theirs = root.lookup("theirs").or_else(|_| root.create("theirs", &owned(6, 1)))?;
        theirs.set_attributes(&SetAttributes::new().owner(Some(5), None))
    };
    refused(root.create("b", &owned(5, 1)).map(drop));
    // What fits of it is taken.
    assert!(write().is_ok_and(|written| written < 100_000));
    refused(give());
    {
        let _root = fs.take_space_for(true).beyond_limits(true);
        root.create("b", &owned(5, 1)).unwrap();
        assert_eq!(write().unwrap(), 100_000);
        give().unwrap();
        // A guard within it is somebody else's.
        let _other = fs.take_space_for(true);
        refused(root.create("c", &owned(5, 1)).map(drop));
    }
    refused(root.create("c", &owned(5, 1)).map(drop));
    a.sync().unwrap();
    assert_eq!(usage(&fs, QuotaKind::User, 5).1, 3);
    assert!(usage(&fs, QuotaKind::User, 5).0 >= 100_000);
    drop((a, root));
    finish(fs, &image);
}

#[test]
fn limits_that_are_not_enforced_are_counted() {
    let image = extant_testkit::require!(Image::make("16M", QUOTA, ""));
    let options = image.options().quota_limits(false);
    let fs = options.open_shared(Arc::clone(&image.device) as _).unwrap();
    limit(&fs, QuotaKind::User, 5, QuotaLimits { inodes_hard: 1, ..QuotaLimits::default() });
    let root = fs.root().unwrap();
    for name in ["a", "b", "c"] {
        root.create(name, &owned(5, 1)).unwrap();
    }
    assert_eq!(usage(&fs, QuotaKind::User, 5), (0, 3));
    drop(root);
    finish(fs, &image);
}

#[test]
fn above_a_soft_limit_grace_runs_and_ends() {
    let image = extant_testkit::require!(Image::make("16M", QUOTA, ""));
    let fs = image.open();
    let root = fs.root().unwrap();
    limit(&fs, QuotaKind::User, 5, QuotaLimits { inodes_soft: 1, ..QuotaLimits::default() });
    let grace_end = |fs: &Fs| fs.quota(QuotaKind::User, 5).unwrap().unwrap().inode_grace_end;
    root.create("a", &owned(5, 1)).unwrap();
    assert_eq!(grace_end(&fs), 0);
    let b = root.create("b", &owned(5, 1)).unwrap();
    let end = grace_end(&fs);
    assert_eq!(end, 1_700_000_000 + 7 * 86_400);
    image.clock.advance(std::time::Duration::from_secs(7 * 86_400 - 1));
    root.create("c", &owned(5, 1)).unwrap();
    image.clock.advance(std::time::Duration::from_secs(1));
    assert!(matches!(root.create("d", &owned(5, 1)), Err(FsError::QuotaExceeded { .. })));
    assert_eq!(grace_end(&fs), end, "not begun anew");
    // Below the limit the time is forgotten.
    b.set_attributes(&SetAttributes::new().owner(Some(1), None)).unwrap();
    root.lookup("c").unwrap().set_attributes(&SetAttributes::new().owner(Some(1), None)).unwrap();
    assert_eq!(grace_end(&fs), 0);
    root.create("d", &owned(5, 1)).unwrap();
    drop((root, b));
    finish(fs, &image);
}

#[test]
fn a_damaged_tree_is_named_and_changes_nothing() {
    use extant_block::BlockDevice;
    let image = extant_testkit::require!(Image::make("16M", QUOTA, ""));
    let ino = image.superblock().user_quota_inode;
    let fs = image.options().read_only(true).open_shared(Arc::clone(&image.device) as _).unwrap();
    let start = match fs.inode(ino).unwrap().map(0..1).next().unwrap().unwrap().kind {
        crate::MappingKind::Mapped(start) => start.0 * 4096,
        other => panic!("{other:?}"),
    };
    // Root of the tree: id 0's way leads astray, or in a circle.
    for wild in [6u32, u32::MAX, 1] {
        let image = image.copy();
        image.device.write_at(start + 1024, &wild.to_le_bytes()).unwrap();
        let fs = image.open();
        let error = fs.root().unwrap().create("a", &owned(3, 3)).unwrap_err();
        assert!(error.to_string().contains("quota file"), "{wild}: {error}");
    }
    for (at, bad) in [(0u64, 0x55u32), (4, 9), (0x14, 1 << 20)] {
        let image = image.copy();
        image.device.write_at(start + at, &bad.to_le_bytes()).unwrap();
        let error = image.options().open_shared(Arc::clone(&image.device) as _).unwrap_err();
        assert!(error.to_string().contains("quota file"), "{error}");
    }
}

#[test]
fn attributes_are_charged_to_the_inodes_that_have_them() {
    let mut options = SMALL.to_vec();
    options[7] = "quota,project,ea_inode";
    let image = extant_testkit::require!(Image::make("16M", &options, ""));
    let fs = image.open();
    let root = fs.root().unwrap();
    let files: Vec<Inode> =
        ["a", "b"].iter().map(|name| root.create(name, &owned(5, 6)).unwrap()).collect();
    let any = crate::XattrMode::Any;
    for file in &files {
        file.set_xattr("user.block", [7; 500], any).unwrap();
    }
    // One block, which both use and pay for.
    assert_eq!(files[0].metadata().blocks, 2);
    assert_eq!(usage(&fs, QuotaKind::User, 5), (2048, 2));
    files[0].set_xattr("user.large", [8; 3000], any).unwrap();
    assert_eq!(usage(&fs, QuotaKind::User, 5), (2048 + 3072, 3));
    limit(&fs, QuotaKind::User, 5, QuotaLimits { space_hard_kib: 6, ..QuotaLimits::default() });
    limit(&fs, QuotaKind::Group, 6, QuotaLimits { inodes_hard: 3, ..QuotaLimits::default() });
    for len in [800, 2000] {
        let error = files[1].set_xattr("user.more", vec![9; len], any).unwrap_err();
        assert!(matches!(error, FsError::QuotaExceeded { .. }), "{error}");
        assert!(files[1].xattr("user.more").is_err());
    }
    assert_eq!(usage(&fs, QuotaKind::User, 5), (2048 + 3072, 3));
    // They go along to a new owner, and are given back.
    files[0].set_attributes(&SetAttributes::new().owner(Some(8), None)).unwrap();
    assert_eq!(usage(&fs, QuotaKind::User, 8), (1024 + 3072, 2));
    assert_eq!(usage(&fs, QuotaKind::User, 5), (1024, 1));
    files[0].remove_xattr("user.large").unwrap();
    assert_eq!(usage(&fs, QuotaKind::User, 8), (1024, 1));
    root.unlink("b").unwrap();
    drop((files, root));
    fs.reclaim();
    assert_eq!(usage(&fs, QuotaKind::User, 5), (0, 0));
    finish(fs, &image);
}

#[test]
fn who_would_be_refused_waits_until_others_know_whether_there_is_space() {
    let image = extant_testkit::require!(Image::make("32M", QUOTA, ""));
    let fs = image.open();
    let writer = fs.volume().writer().unwrap();
    let quotas = writer.quotas();
    let [a, b] = ["a", "b"].map(|name| fs.root().unwrap().create(name, &owned(5, 6)).unwrap());
    limit(&fs, QuotaKind::User, 5, QuotaLimits { space_hard_kib: 40, ..QuotaLimits::default() });
    for is_kept in [false, true] {
        let tentative = quotas.promise(fs.volume(), writer, a.node(), 10 * 8).unwrap();
        extant_sync::threads::scope(|s| {
            let other = s.spawn("other", || {
                let promised = quotas.promise(fs.volume(), writer, b.node(), 8);
                promised.map(drop).map_err(|error| error.errno())
            });
            SystemClock.sleep(Duration::from_millis(50));
            if !is_kept {
                quotas.unpromise(a.node(), 10 * 8);
            }
            drop(tentative);
            let answer = other.unwrap().join().unwrap();
            assert_eq!(answer, if is_kept { Err(122) } else { Ok(()) });
        })
        .unwrap();
        quotas.unpromise(if is_kept { a.node() } else { b.node() }, 10 * 8);
    }
    assert!(quotas.table.lock().promised.is_empty());
    drop((a, b));
    finish(fs, &image);
}

#[test]
fn promises_count_for_every_check_and_become_charges_in_one_step() {
    use crate::alloc::{BlockAsk, Growth, Purpose};
    let image = extant_testkit::require!(Image::make("32M", QUOTA, ""));
    // Records are to be read again: nothing of the first mount is known.
    let fs = image.open();
    let root = fs.root().unwrap();
    for name in ["a", "b"] {
        root.create(name, &owned(5, 6)).unwrap();
    }
    limit(&fs, QuotaKind::User, 5, QuotaLimits { space_hard_kib: 40, ..QuotaLimits::default() });
    limit(&fs, QuotaKind::User, 7, QuotaLimits { space_hard_kib: 8, ..QuotaLimits::default() });
    drop(root);
    fs.unmount().unwrap();
    let fs = image.open();
    let writer = fs.volume().writer().unwrap();
    let (quotas, alloc) = (writer.quotas(), writer.alloc());
    let [a, b] = ["a", "b"].map(|name| fs.root().unwrap().lookup(name).unwrap());
    drop(quotas.promise(fs.volume(), writer, a.node(), 8 * 8).unwrap());
    let error = quotas.promise(fs.volume(), writer, b.node(), 3 * 8).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "the quota of user 5 for blocks is used up");
    assert_eq!(usage(&fs, QuotaKind::Group, 6), (8 * 4096, 2), "all kinds or none (Q4)");
    drop(quotas.promise(fs.volume(), writer, b.node(), 2 * 8).unwrap());
    assert_eq!(usage(&fs, QuotaKind::User, 5), (10 * 4096, 2));
    // Others' charges see them.
    let ask =
        BlockAsk { goal: FsBlock(0), len: 1, min: 1, purpose: Purpose::Data, continues: false };
    let mut txn = Txn::begin(fs.volume(), 40).unwrap();
    let error = txn.allocate(b.node(), &ask).unwrap_err();
    assert!(matches!(error, FsError::QuotaExceeded { id: 5, .. }), "{error}");
    drop(txn);
    quotas.unpromise(b.node(), 2 * 8);
    // What is taken is charged instead.
    alloc.promise(fs.volume(), 8).unwrap();
    let three = BlockAsk { len: 3, min: 3, ..ask };
    let run = alloc.pin(fs.volume(), a.node(), &three, Growth::default()).unwrap();
    let mut txn = Txn::begin(fs.volume(), 40).unwrap();
    txn.take_pinned(a.node(), run, 3).unwrap();
    drop(txn);
    assert_eq!(usage(&fs, QuotaKind::User, 5), (8 * 4096, 2));
    assert_eq!(quotas.table.lock().promised_to((0, 5)), 5 * 4096);
    quotas.unpromise(a.node(), 5 * 8);
    alloc.unpromise(5);
    assert!(quotas.table.lock().promised.is_empty());
    let mut txn = Txn::begin(fs.volume(), 40).unwrap();
    txn.release(a.node(), run, Purpose::Data).unwrap();
    drop((txn, a, b));
    finish(fs, &image);
}

#[test]
fn threads_never_get_more_than_the_limit_together() {
    let image = extant_testkit::require!(Image::make("32M", QUOTA, ""));
    let fs = image.open();
    let root = fs.root().unwrap();
    let files: Vec<Inode> =
        (0..4).map(|at| root.create(at.to_string(), &owned(5, 6)).unwrap()).collect();
    let limits = QuotaLimits { space_hard_kib: 400, ..QuotaLimits::default() };
    limit(&fs, QuotaKind::User, 5, limits);
    let writer = fs.volume().writer().unwrap();
    let quotas = writer.quotas();
    let worker = |at: usize| {
        let mut random = Prng::new(at as u64);
        let node = files[at].node();
        let (mut promised, mut charged) = (0u64, 0u64);
        for _ in 0..5000 {
            match random.below(4) {
                0 | 1 => {
                    let want = random.below(300) + 1;
                    promised += quotas.promise(fs.volume(), writer, node, want).map_or(0, |_| want);
                }
                2 => {
                    let part = random.below(promised + 1);
                    quotas.unpromise(node, part);
                    promised -= part;
                }
                _ => {
                    let part = random.below(promised + 1);
                    let mut txn = Txn::begin(fs.volume(), 20).unwrap();
                    quotas.charge_promised(&mut txn, node, part, part).unwrap();
                    promised -= part;
                    charged += part;
                    if charged > 200 {
                        let owners = quotas.payers(node).unwrap();
                        quotas.uncharge(&mut txn, owners, Charge::blocks(charged)).unwrap();
                        charged = 0;
                    }
                }
            }
            assert!(usage(&fs, QuotaKind::User, 5).0 <= 400 << 10);
        }
        quotas.unpromise(node, promised);
        let mut txn = Txn::begin(fs.volume(), 20).unwrap();
        let owners = quotas.payers(node).unwrap();
        quotas.uncharge(&mut txn, owners, Charge::blocks(charged)).unwrap();
    };
    extant_sync::threads::workers("quota", 4, worker).unwrap();
    assert_eq!(usage(&fs, QuotaKind::User, 5), (0, 4));
    assert!(quotas.table.lock().promised.is_empty());
    drop((files, root));
    finish(fs, &image);
}
