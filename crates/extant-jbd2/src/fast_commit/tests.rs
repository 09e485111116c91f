//! Folding, and when the area counts.

use super::*;
use crate::recovery::{RecoveryOptions, recover};
use crate::test_log::{BLOCK, TestLog};
use extant_base::Prng;
use extant_format::jbd2::{FcWriter, JournalChecksum, JournalIncompat};

fn dentry(parent: u32, ino: u32, name: &[u8]) -> FcDentry<'_> {
    FcDentry { parent: Ino(parent), ino: Ino(ino), name }
}

fn extent(file_start: u32, device_start: u64, len: u32) -> Extent {
    Extent {
        file_start: FileBlock(file_start),
        device_start: FsBlock(device_start),
        len: BlockCount(len),
        state: ExtentState::Written,
    }
}

fn raw_inode(mode: u16, flags: u32, generation: u32) -> Vec<u8> {
    let mut raw = vec![0xcc; 160];
    raw[..2].copy_from_slice(&mode.to_le_bytes());
    raw[0x20..0x24].copy_from_slice(&flags.to_le_bytes());
    raw[0x64..0x68].copy_from_slice(&generation.to_le_bytes());
    raw
}

fn folded(records: &[FcRecord<'_>]) -> FastCommitOverlay {
    let mut overlay = FastCommitOverlay::new(Tid(1));
    records.iter().for_each(|record| overlay.fold(record));
    overlay
}

/// A dirty journal with one full commit and an area that holds `commits`, one list each.
fn journal(commits: &[&[FcRecord<'_>]]) -> TestLog {
    let mut log = TestLog::new(JournalChecksum::V3, 1300, 1);
    log.superblock.incompat |= JournalIncompat::FAST_COMMIT;
    log.superblock.fast_commit_blocks = 200;
    log.data(&[(5, 1)]);
    log.commit();
    let mut at = log.superblock.fast_commit_area().start as usize;
    for (number, records) in commits.iter().enumerate() {
        let mut writer = FcWriter::new(log.superblock.block_size);
        if number == 0 {
            assert!(writer.push(&FcRecord::Head { features: 0, tid: log.tid }));
        }
        for record in *records {
            assert!(writer.push(record));
        }
        for block in writer.finish(log.tid).chunks(BLOCK) {
            log.blocks[at] = block.to_vec();
            at += 1;
        }
    }
    log
}

fn recovered(log: &TestLog) -> Result<Option<FastCommitOverlay>, RecoveryError> {
    Ok(recover(log, &log.superblock, &RecoveryOptions::new(1000))?.fast_commits)
}

#[test]
fn all_valid_fast_commits_are_folded_in_order() {
    let a = [FcRecord::Create(dentry(2, 12, b"a"))];
    let b = [FcRecord::Unlink(dentry(2, 12, b"a")), FcRecord::Link(dentry(2, 12, b"b"))];
    let overlay = recovered(&journal(&[&a, &b])).unwrap().unwrap();
    assert_eq!((overlay.commits(), overlay.tid()), (2, Tid(0)));
    assert_eq!(overlay.stop(), FastCommitStop::NotARecord);
    let directory = overlay.directory(Ino(2)).unwrap();
    assert_eq!(directory.get(b"a"), Some(FcEntry::Removed(Ino(12))));
    assert_eq!(directory.get(b"b"), Some(FcEntry::Present(Ino(12))));
    assert_eq!(directory.get(b"c"), None);
}

#[test]
fn a_range_that_ends_with_the_one_it_cuts_leaves_nothing_behind_it() {
    let range = |start, len| FcRecord::DelRange { ino: Ino(12), start: FileBlock(start), len };
    let overlay = folded(&[
        FcRecord::AddRange { ino: Ino(12), extent: extent(0, 500, 10) },
        range(5, BlockCount(5)),
    ]);
    let inode = overlay.inode(Ino(12)).unwrap();
    assert_eq!(inode.map(FileBlock(4)), FcMapping::Mapped(extent(4, 504, 1)));
    assert_eq!(inode.map(FileBlock(5)), FcMapping::Hole { len: BlockCount(5) });
    assert_eq!(inode.map(FileBlock(10)), FcMapping::Unchanged { len: BlockCount(u32::MAX - 9) });
}

#[test]
fn the_area_counts_up_to_the_last_good_tail() {
    let a = [FcRecord::Create(dentry(2, 12, b"a"))];
    let b = [FcRecord::Create(dentry(2, 13, b"b"))];
    let good = journal(&[&a, &b]);
    let first = good.superblock.fast_commit_area().start as usize;
    // Any changed bit of the first fast commit that its checksum covers.
    for byte in 0..4 + 8 + 4 + 9 + 4 + 8 {
        let mut log = journal(&[&a, &b]);
        log.blocks[first][byte] ^= 1;
        match recovered(&log) {
            Ok(None) | Err(RecoveryError::FastCommitFeatures { .. }) => {}
            other => panic!("byte {byte}: {other:?}"),
        }
        let mut log = journal(&[&a, &b]);
        if byte < 4 + 9 + 4 + 8 {
            log.blocks[first + 1][byte] ^= 1;
            assert_eq!(recovered(&log).unwrap().unwrap().commits(), 1, "byte {byte}");
        }
    }
    // Without the second block only the first fast commit counts.
    let mut log = good;
    log.blocks[first + 1].fill(0);
    assert_eq!(recovered(&log).unwrap().unwrap().commits(), 1);
}

#[test]
fn fast_commits_behind_no_full_commit_change_the_file_system() {
    let a = [FcRecord::Create(dentry(2, 12, b"a"))];
    let mut log = journal(&[&a]);
    (log.superblock.start, log.superblock.sequence) = (log.next, log.tid);
    let replay = recover(&log, &log.superblock, &RecoveryOptions::new(1000)).unwrap();
    assert_eq!((replay.transactions, replay.blocks.len()), (0, 0));
    assert!(replay.fast_commits.is_some() && !replay.changes_nothing());
}

#[test]
fn a_full_commit_invalidates_the_area() {
    let a = [FcRecord::Create(dentry(2, 12, b"a"))];
    let mut log = journal(&[&a]);
    assert!(recovered(&log).unwrap().is_some());
    log.data(&[(6, 1)]);
    log.commit();
    assert_eq!(recovered(&log).unwrap(), None);
}

#[test]
fn features_are_refused_and_a_missing_head_is_no_area() {
    let a = [FcRecord::Create(dentry(2, 12, b"a"))];
    let mut log = journal(&[&a]);
    let first = log.superblock.fast_commit_area().start as usize;
    log.blocks[first][4] = 1;
    assert_eq!(recovered(&log).unwrap_err().to_string(), "fast commits need unknown features 0x1");
    let mut log = journal(&[]);
    let mut writer = FcWriter::new(log.superblock.block_size);
    assert!(writer.push(&a[0]));
    let tid = log.tid;
    log.blocks[first] = writer.finish(tid);
    assert_eq!(recovered(&log).unwrap(), None);
}

#[test]
fn ranges_agree_with_one_target_per_block() {
    let mut random = Prng::new(8);
    for _ in 0..300 {
        let mut inode = FcInode::default();
        let mut model: Vec<Option<Option<u64>>> = vec![None; 64];
        for _ in 0..random.below(12) {
            let (start, len) = (random.below(56), 1 + random.below(8));
            let device = random.one_in(2).then(|| 1000 + random.below(1000));
            let target = match device {
                Some(device) => Target::Mapped(FsBlock(device), ExtentState::Written),
                None => Target::Hole,
            };
            inode.set(start..start + len, target);
            for into in 0..len {
                model[(start + into) as usize] = Some(device.map(|device| device + into));
            }
        }
        let mut at = 0u32;
        while at < 64 {
            let len = match inode.map(FileBlock(at)) {
                FcMapping::Unchanged { len } => {
                    assert_eq!(model[at as usize], None);
                    len
                }
                FcMapping::Hole { len } => {
                    assert_eq!(model[at as usize], Some(None));
                    len
                }
                FcMapping::Mapped(extent) => {
                    assert_eq!(extent.file_start, FileBlock(at));
                    for into in 0..extent.len.0 {
                        let wanted = extent.device_start.0 + u64::from(into);
                        assert_eq!(model[(at + into) as usize], Some(Some(wanted)));
                    }
                    extent.len
                }
            };
            assert!(len.0 > 0);
            at = at.saturating_add(if len.0 > 64 { 64 } else { len.0.min(1 + len.0 / 2) });
        }
    }
}

#[test]
fn ranges_reach_the_last_file_block() {
    let overlay = folded(&[FcRecord::DelRange {
        ino: Ino(12),
        start: FileBlock(5),
        len: BlockCount(u32::MAX),
    }]);
    let inode = overlay.inode(Ino(12)).unwrap();
    assert_eq!(inode.map(FileBlock(4)), FcMapping::Unchanged { len: BlockCount(1) });
    assert_eq!(inode.map(FileBlock(5)), FcMapping::Hole { len: BlockCount(u32::MAX - 4) });
    assert_eq!(inode.map(FileBlock(u32::MAX)), FcMapping::Hole { len: BlockCount(1) });
    assert_eq!(
        FcInode::default().map(FileBlock(0)),
        FcMapping::Unchanged { len: BlockCount(u32::MAX) }
    );
}

#[test]
fn an_inode_keeps_its_tree_unless_it_is_new() {
    let new = raw_inode(0x81a4, FLAG_EXTENTS, 7);
    let merged_with = |home: &[u8], image: &[u8]| {
        let record = FcRecord::Inode { ino: Ino(12), raw: image };
        folded(&[record]).inode(Ino(12)).unwrap().merge(home)
    };
    // The same inode: recorded bytes, its own tree, its own tail.
    let mut home = vec![0x11; 256];
    home[..160].copy_from_slice(&raw_inode(0x8180, FLAG_EXTENTS, 7));
    home[0x28..0x2c].copy_from_slice(&[0x0a, 0xf3, 1, 0]);
    let merged = merged_with(&home, &new);
    assert_eq!(merged[..0x28], new[..0x28]);
    assert_eq!(merged[0x28..0x64], home[0x28..0x64]);
    assert_eq!(merged[0x64..160], new[0x64..160]);
    assert_eq!(merged[160..], home[160..]);
    // Another generation, another type, or never used: an empty tree and no tail.
    for other in
        [raw_inode(0x8180, FLAG_EXTENTS, 8), raw_inode(0x41ed, FLAG_EXTENTS, 7), vec![0; 160]]
    {
        let mut home = vec![0x11; 256];
        home[..160].copy_from_slice(&other);
        home[0x28..0x2c].copy_from_slice(&[0x0a, 0xf3, 1, 0]); // The tree of another file.
        let merged = merged_with(&home, &new);
        assert_eq!(merged[0x28..0x30], EMPTY_TREE);
        assert!(merged[0x30..0x64].iter().chain(&merged[160..]).all(|byte| *byte == 0));
    }
    // Devices, short symbolic links and inline data live in `i_block` and come from the record.
    for (mode, flags) in [(0x61a4, 0), (0xa1ff, 0), (0x81a4, FLAG_INLINE_DATA)] {
        let image = raw_inode(mode, flags, 7);
        assert_eq!(merged_with(&home, &image)[0x28..0x64], image[0x28..0x64]);
    }
    // Without a record nothing changes; a short home inode gets what fits.
    assert_eq!(FcInode::default().merge(&home), home);
    assert_eq!(merged_with(&[0; 128], &new).len(), 128);
    assert_eq!(merged_with(&[], &new).len(), 0);
}

#[test]
fn a_number_used_again_loses_its_ranges() {
    let (old, new) = (raw_inode(0x81a4, FLAG_EXTENTS, 7), raw_inode(0x81a4, FLAG_EXTENTS, 8));
    let add = FcRecord::AddRange { ino: Ino(12), extent: extent(0, 500, 4) };
    let image = |raw| FcRecord::Inode { ino: Ino(12), raw };
    let overlay = folded(&[image(&old), add, image(&old)]);
    assert!(overlay.inode(Ino(12)).unwrap().has_ranges());
    let overlay = folded(&[image(&old), add, image(&new)]);
    assert!(!overlay.inode(Ino(12)).unwrap().has_ranges());
}

#[test]
fn a_new_directory_is_what_the_records_say() {
    let raw = raw_inode(0x41ed, FLAG_EXTENTS, 7);
    let overlay = folded(&[
        FcRecord::Link(dentry(12, 99, b"former life")),
        FcRecord::Inode { ino: Ino(12), raw: &raw },
        FcRecord::Create(dentry(2, 12, b"dir")),
        FcRecord::Create(dentry(12, 13, b"file")),
    ]);
    let directory = overlay.directory(Ino(12)).unwrap();
    assert_eq!(directory.made_in(), Some(Ino(2)));
    let names: Vec<_> = directory.entries().collect();
    assert_eq!(names, [(&b"file"[..], FcEntry::Present(Ino(13)))]);
    assert!(!directory.keeps(b"former life", Ino(99)));
    assert_eq!(overlay.directory(Ino(2)).unwrap().made_in(), None);
    // And a file that has its number afterwards is none.
    let file = raw_inode(0x81a4, FLAG_EXTENTS, 8);
    let overlay = folded(&[
        FcRecord::Inode { ino: Ino(12), raw: &raw },
        FcRecord::Create(dentry(2, 12, b"dir")),
        FcRecord::Create(dentry(12, 13, b"file")),
        FcRecord::Inode { ino: Ino(12), raw: &file },
        FcRecord::Create(dentry(2, 12, b"again")),
    ]);
    assert_eq!(overlay.directory(Ino(12)), None);
}

#[test]
fn a_removed_name_is_about_one_inode() {
    let overlay = folded(&[
        FcRecord::Unlink(dentry(2, 12, b"a")),
        FcRecord::Link(dentry(2, 13, b"b")),
        FcRecord::Unlink(dentry(2, 14, b"b")), // Not what the name stands for by now.
    ]);
    let directory = overlay.directory(Ino(2)).unwrap();
    assert!(!directory.keeps(b"a", Ino(12)) && directory.keeps(b"a", Ino(15)));
    assert!(directory.keeps(b"b", Ino(13)) && !directory.keeps(b"b", Ino(14)));
    assert!(directory.keeps(b"c", Ino(1)));
    assert_eq!(directory.get(b"b"), Some(FcEntry::Present(Ino(13))));
}
