//! What a glance takes for a plain file is one: a look at every field finds the same, whatever the bytes say.

use std::fs;
use std::os::unix::fs::FileExt;

use extant_base::Ino;
use extant_block::{BlockDevice, MemoryDevice};
use extant_format::inode::{Inode, InodeLayout};
use extant_format::superblock::Superblock;
use extant_testkit::{image, oracle, require, tempdir};

use crate::checker::Checker;
use crate::{CheckOptions, Examination, ReportAll};

/// Where the records of files lie, and how long they are.
struct Records {
    table: u64,
    layout: InodeLayout,
}

impl Records {
    fn of(device: &MemoryDevice) -> Records {
        let mut raw = [0; 1024];
        device.read_at(1024, &mut raw).unwrap();
        let sb = Superblock::decode(&raw).unwrap();
        let mut groups = [0; 32];
        device.read_at(2048, &mut groups).unwrap();
        let table = u32::from_le_bytes(groups[8..12].try_into().unwrap());
        Records { table: u64::from(table) * 1024, layout: InodeLayout::of(&sb) }
    }

    fn offset(&self, ino: Ino) -> u64 {
        self.table + u64::from(ino.0 - 1) * u64::from(self.layout.inode_size)
    }
}

/// All that is found out, by a glance at plain files or by a look at each field, for a repair or not.
fn found(device: &MemoryDevice, glances: bool, is_full: bool) -> Vec<String> {
    let (options, mut meet) = (CheckOptions::default(), ReportAll);
    let mut checker = Checker::open(device, options, &mut meet, is_full).unwrap().unwrap();
    assert!(checker.base.plain.is_some());
    if !glances {
        checker.base.plain = None;
    }
    crate::run_all(&mut checker).unwrap();
    let exam = Examination::of(checker);
    let problems = exam.report.problems.iter().map(ToString::to_string);
    let inodes = exam.inodes().map(|inode| format!("{inode:?}"));
    let usage = (0..3).map(|owner| format!("{:?}", exam.usage(owner)));
    problems.chain(inodes).chain(usage).collect()
}

#[test]
fn a_glance_misses_nothing_that_a_look_finds() {
    let dir = tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("some"), [3; 5000]).unwrap();
    fs::write(source.join("none"), []).unwrap();
    let sparse = fs::File::create(source.join("sparse")).unwrap();
    (0..4).for_each(|hole| sparse.write_all_at(&[1; 1500], hole * 8192).unwrap());
    let path = dir.path().join("image");
    let from = source.display().to_string();
    let sets = [
        &["-t", "ext4", "-O", "^has_journal,^64bit", "-I256"][..],
        &[
            "-t",
            "ext4",
            "-O",
            "^has_journal,^64bit,^metadata_csum,^resize_inode,^large_file",
            "-I128",
        ],
    ];
    let (mut damages, mut told) = (0, 0);
    for set in sets {
        _ = fs::remove_file(&path);
        let plain = ["-b1024", "-N32", "-d", &from];
        require!(oracle::mke2fs(&path, "1M", &[set, &plain].concat()));
        let device = image::load(&path);
        let records = Records::of(&device);
        let clean = crate::check(&device, &CheckOptions::default()).unwrap();
        assert!(clean.is_clean(), "{:?}", clean.problems);
        for ino in [12, 13, 14].map(Ino) {
            let at = records.offset(ino);
            let mut good = vec![0; usize::from(records.layout.inode_size)];
            device.read_at(at, &mut good).unwrap();
            let bytes = 0..good.len().min(168);
            let mut changes: Vec<Vec<(usize, u8)>> = bytes
                .flat_map(|byte| [0x01, 0x04, 0x40, 0x80, 0xff].map(|change| vec![(byte, change)]))
                .collect();
            // A record without blocks; attributes that are none.
            changes.push(vec![(0x2a, 0x01)]);
            if good.len() > 168 {
                changes.push(vec![(0xa2, 0x02), (0xa3, 0xea), (0xa4, 0x77), (0xa5, 0x77)]);
            }
            for change in changes {
                let mut bad = good.clone();
                change.iter().for_each(|(byte, change)| bad[*byte] ^= change);
                // One that its checksum tells of is looked at in any case.
                if Inode::seal(&records.layout, ino, &mut bad).is_err() {
                    continue;
                }
                device.write_at(at, &bad).unwrap();
                for is_full in [false, true] {
                    let (glance, look) =
                        (found(&device, true, is_full), found(&device, false, is_full));
                    assert_eq!(glance, look, "inode {ino}, {change:x?}, {set:?}");
                }
                damages += 1;
                let report = crate::check(&device, &CheckOptions::default()).unwrap();
                told += usize::from(!report.is_clean());
            }
            device.write_at(at, &good).unwrap();
        }
    }
    // Times, owners and the like are nobody's business.
    assert!(damages > 3000 && told > damages / 3, "{told} of {damages} were told");
}
