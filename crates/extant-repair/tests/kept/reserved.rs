//! What reserved inodes may hold, and what comes of a journal whose map leads to a part of itself.

use std::fmt::Write as _;

use extant_base::Ino;
use extant_block::BlockDevice;
use extant_format::record::u32_at;
use extant_testkit::{image, oracle, require, tempdir};

use crate::common::{SETS, e2fsck, losses, problems, sample, seen};
use crate::{damaged, mended, record_of};

/// Neither has a name or links; e2fsck looks at them, and so must we.
#[test]
fn reserved_inodes_that_nothing_uses_hold_nothing() {
    let dir = tempdir().unwrap();
    for (features, ino, fields) in [
        (
            SETS[4],
            5,
            &["mode 040755", "size 72340172821233664", "blocks 1103806595072", "dtime 77"][..],
        ),
        (SETS[4], 6, &["mode 0100600", "size 72340172821233664", "dtime 77"]),
        (SETS[4], 7, &["mode 040755", "mode 020600", "block[0] 5000", "block[3] 5000", "dtime 77"]),
        (SETS[3], 5, &["mode 040755", "size 72340172821233664", "blocks 1103806595072"]),
        (
            SETS[3],
            9,
            &["mode 0120777", "size 72340172821233664", "blocks 1103806595072", "dtime 77"],
        ),
    ] {
        let good = require!(sample(dir.path(), features));
        let before = seen(&good);
        for field in fields {
            let what = format!("{features:?}, inode {ino}, {field}");
            let device = require!(damaged(dir.path(), &good, &format!("sif <{ino}> {field}")));
            assert_ne!(e2fsck(&device, dir.path(), false).unwrap(), "", "{what}");
            assert_ne!(problems(&device), Vec::<String>::new(), "{what}");
            drop(mended(device.snapshot(), dir.path()));
            assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
        }
    }
}

/// Only the type of a boot loader is wrong: its blocks are what they were.
#[test]
fn a_boot_loader_that_says_it_is_a_directory_keeps_its_contents() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[3]));
    let path = dir.path().join("damaged.img");
    let _same = require!(damaged(dir.path(), &good, ""));
    let record = require!(record_of(&path, "/d/file4"));
    let mut bytes = [0; 256];
    good.read_at(record, &mut bytes).unwrap();
    let mut commands = String::from(
        "sif <5> mode 040600\nsif <5> links_count 1\nsif <5> size 12000\nsif <5> blocks 24\n\
         sif <5> flags 0x80000\nsif <5> extra_isize 32\nclri /d/file4\nunlink /d/file4\n",
    );
    for slot in 0..12 {
        let word = u32_at(&bytes, 0x28 + 4 * slot);
        writeln!(commands, "sif <5> block[{slot}] {word}").unwrap();
    }
    let device = require!(damaged(dir.path(), &good, &commands));
    let fs = mended(device, dir.path());
    let loader = fs.inode(Ino(5)).unwrap();
    let mut contents = vec![0; 12_000];
    assert_eq!(loader.read_at(&mut contents, 0).unwrap(), 12_000);
    assert!(contents.iter().all(|byte| *byte == 5));
}

/// Its own block of pointers was its last block until the copy was made, and nothing else was wrong with it.
#[test]
fn a_journal_that_leads_to_its_own_map_is_right_with_a_copy() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[1]));
    let path = dir.path().join("own.img");
    image::save(&good, &path);
    let said = require!(oracle::debugfs(&path, false, "blocks <8>\n"));
    let numbers = said.lines().filter(|line| !line.starts_with("debugfs"));
    let blocks: Vec<u64> =
        numbers.flat_map(str::split_whitespace).map(|word| word.parse().unwrap()).collect();
    // 12 blocks, the first block of pointers, 256 blocks, one of pointers to pointers, and the first of those.
    let (first, own) = (blocks[12], blocks[12 + 1 + 256 + 1]);
    let place = first * 1024 + 199 * 4;
    let mut pointer = [0; 4];
    good.read_at(place, &mut pointer).unwrap();
    assert_eq!(u64::from(u32::from_le_bytes(pointer)), blocks[13 + 199]);
    let before = seen(&good);
    good.write_at(place, &(own as u32).to_le_bytes()).unwrap();
    drop(mended(good.snapshot(), dir.path()));
    assert_eq!(losses(&before, &good), Vec::<String>::new());
}
