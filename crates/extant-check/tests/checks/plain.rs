//! Nearly all files are plain and taken by a glance at their bytes. A repair wants to know more and looks at every field
//! of every inode: both must find the same in whatever the bytes say.

use std::fs;
use std::os::unix::fs::FileExt;

use extant_base::Ino;
use extant_block::{BlockDevice, MemoryDevice};
use extant_check::{CheckOptions, Problem, ReportAll, check, examine};
use extant_format::inode::{Inode, InodeLayout};
use extant_format::superblock::Superblock;
use extant_testkit::{image, oracle, require, tempdir};

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

fn told(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
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
    let (mut damages, mut found) = (0, 0);
    for set in sets {
        _ = fs::remove_file(&path);
        let plain = ["-b1024", "-N32", "-d", &from];
        require!(oracle::mke2fs(&path, "1M", &[set, &plain].concat()));
        let device = image::load(&path);
        let records = Records::of(&device);
        let options = CheckOptions::default();
        let clean = check(&device, &options).unwrap();
        assert!(clean.is_clean(), "{:?}", told(&clean.problems));
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
                let glance = check(&device, &options).unwrap();
                let look = examine(&device, &options, &mut ReportAll).unwrap();
                let (one, other) = (told(&glance.problems), told(&look.report.problems));
                assert_eq!(one, other, "inode {ino}, {change:x?}, {set:?}");
                damages += 1;
                found += usize::from(!one.is_empty());
            }
            device.write_at(at, &good).unwrap();
        }
    }
    // Times, owners and the like are nobody's business.
    assert!(damages > 3000 && found > damages / 3, "{found} of {damages} were found");
}
