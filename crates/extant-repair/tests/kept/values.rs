//! What is kept of attributes whose values are in inodes of their own, and of what only says that it is one.

use std::fs;

use extant::QuotaKind;
use extant_block::BlockDevice;
use extant_format::record::u32_at;
use extant_testkit::{image, oracle, require, tempdir};

use crate::common::{SETS, losses, repaired, sample, seen};
use crate::{damaged, mended, record_of};

/// A value has no name that could say what type it has; its mark does.
#[test]
fn a_value_whose_inode_has_another_type_stays_one() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[3]));
    let (path, file) = (dir.path().join("valued.img"), dir.path().join("value"));
    image::save(&good, &path);
    fs::write(&file, [b'v'; 3000]).unwrap();
    let command = format!("ea_set -f {} /d/file5 user.large\n", file.display());
    require!(oracle::debugfs(&path, true, &command));
    // What debugfs does not count for quota.
    require!(oracle::e2fsck_as(&path, "-fy", &[]));
    let good = image::load(&path);
    let held = (12..512).find(|ino| {
        let said = oracle::debugfs(&path, false, &format!("stat <{ino}>")).unwrap();
        said.contains("Flags: 0x280000")
    });
    let held = held.unwrap();
    let value = |fs: &extant::Fs| fs.resolve("/d/file5").unwrap().xattr("user.large").unwrap();
    let wanted = value(&mended(good.snapshot(), dir.path()));
    for mode in ["0", "0150600"] {
        let device = require!(damaged(dir.path(), &good, &format!("sif <{held}> mode {mode}")));
        let fs = mended(device, dir.path());
        assert!(value(&fs) == wanted, "{mode}");
    }
}

/// An attribute of a file whose value is said to be in the file itself.
#[test]
fn an_attribute_that_is_its_own_value_goes() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[2]));
    let value = "v".repeat(600);
    let good =
        require!(damaged(dir.path(), &good, &format!("ea_set /d/file5 user.long {value}\n")));
    let before = seen(&good);
    let path = dir.path().join("own.img");
    image::save(&good, &path);
    let said = require!(oracle::debugfs(&path, false, "stat /d/file5"));
    let number = |mark: &str| -> u32 {
        let rest = said.split(mark).nth(1).unwrap_or_else(|| panic!("{mark}: {said}"));
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    let (ino, block) = (number("Inode:"), u64::from(number("File ACL:")));
    let mut bytes = [0; 1024];
    good.read_at(block * 1024, &mut bytes).unwrap();
    assert_eq!(u32_at(&bytes, 0), 0xea02_0000);
    good.write_at(block * 1024 + 32 + 4, &ino.to_le_bytes()).unwrap();
    let outcome = repaired(&good).unwrap();
    assert!(outcome.is_clean, "{:#?}", outcome.findings);
    assert_eq!(losses(&before, &good), Vec::<String>::new());
    drop(mended(good, dir.path()));
}

/// Nothing could lead to it, or away from it: it would come back with each repair.
#[test]
fn a_reserved_inode_that_says_it_holds_a_value_holds_none() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[3]));
    let before = seen(&good);
    let unused = "sif <5> mode 0100600\nsif <5> flags 0x200000\nsif <5> links_count 1\n\
                  sif <5> extra_isize 32";
    for commands in [unused, "sif <5> mode 0\nsif <5> flags 0x200000", "sif <3> flags 0x280000"] {
        let device = require!(damaged(dir.path(), &good, commands));
        let fs = mended(device.snapshot(), dir.path());
        assert!(fs.quota(QuotaKind::User, 0).unwrap().is_some(), "{commands}");
        assert_eq!(losses(&before, &device), Vec::<String>::new(), "{commands}");
    }
}

/// Its first entries are elsewhere in its inode, and stay where they are, or move to a block.
#[test]
fn a_directory_in_its_inode_whose_value_is_gone_stays_a_directory() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[3]));
    let full = format!("ea_set /d/e user.x {}", "x".repeat(48));
    // What is left of the entry behind the end of the list, and an entry of another name with no room behind it.
    for (commands, at, bytes) in [("", 164, &[0, 0, 0, 0][..]), (&full, 165, &[1])] {
        let device = require!(damaged(dir.path(), &good, commands));
        let before = seen(&device);
        let path = dir.path().join("damaged.img");
        let record = require!(record_of(&path, "/d/e"));
        let mut entry = [0; 20];
        device.read_at(record + 164, &mut entry).unwrap();
        assert_eq!((&entry[..2], &entry[16..]), (&[4, 7][..], &b"data"[..]));
        device.write_at(record + at, bytes).unwrap();
        let outcome = repaired(&device).unwrap();
        assert!(outcome.is_clean, "{commands}: {:#?}", outcome.findings);
        assert_eq!(losses(&before, &device), Vec::<String>::new(), "{commands}");
        let fs = mended(device, dir.path());
        assert!(fs.resolve("/d/e/again").is_ok() && fs.resolve("/d/e/f").is_ok());
    }
}
