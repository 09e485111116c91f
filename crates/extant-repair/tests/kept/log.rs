//! What a damaged log keeps of what was promised, and of what is home.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use extant::{GroupIndex, MountOptions};
use extant_block::{BlockDevice, MemoryDevice};
use extant_format::checksum::crc32c;
use extant_format::group::{GroupChecksum, GroupDescriptor};
use extant_format::jbd2::JournalSuperblock;
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_repair::log_damage;
use extant_testkit::{image, oracle, require, tempdir};

use crate::common::{SETS, cut_at, e2fsck, pieces, planned, problems, repaired, sample};

/// Where the blocks of the journal lie that begin as its own of this kind do, with their transactions.
pub(crate) fn log_blocks(device: &MemoryDevice, kind: u8) -> Vec<(u64, u32)> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    let mut found = Vec::new();
    for at in (0..bytes.len()).step_by(1024) {
        if let [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, this, a, b, c, d, ..] = bytes[at..]
            && this == kind
        {
            found.push((at as u64, u32::from_be_bytes([a, b, c, d])));
        }
    }
    found
}

/// What a check says of the log.
fn said_of_log(device: &MemoryDevice) -> Vec<String> {
    let findings = log_damage(Arc::new(device.snapshot()), None).unwrap();
    findings.into_iter().map(|one| one.message).collect()
}

/// An image that was left after six files were written and synced, each in a transaction.
fn left_with_a_log(dir: &Path) -> Result<MemoryDevice, String> {
    let device = Arc::new(sample(dir, SETS[3])?);
    let options = MountOptions::new().read_only(false).background(false);
    let fs = options.open(Arc::clone(&device)).unwrap();
    for number in 0..6u8 {
        fs.write(format!("/d/late{number}"), [number; 3000]).unwrap();
        fs.sync().unwrap();
    }
    let left = device.snapshot();
    fs.unmount().unwrap();
    Ok(left)
}

#[test]
fn what_was_promised_before_a_damaged_transaction_of_the_log_stays() {
    let dir = tempdir().unwrap();
    let left = require!(left_with_a_log(dir.path()));
    let commits = log_blocks(&left, 2);
    assert!(commits.len() >= 6, "{commits:?}");
    let (place, first) = commits[commits.len() - 3];
    // The checksum of a commit block, and a descriptor that is none any more.
    let (descriptor, _) =
        *log_blocks(&left, 1).iter().find(|(_, number)| *number == first).unwrap();
    for (at, byte) in [(place + 16, 1), (descriptor, 0xff)] {
        let device = left.snapshot();
        let mut bytes = [0];
        device.read_at(at, &mut bytes).unwrap();
        device.write_at(at, &[bytes[0] ^ byte]).unwrap();
        let outcome = repaired(&device).unwrap();
        assert!(outcome.is_clean && outcome.transactions > 0, "{:#?}", outcome.findings);
        assert_eq!(problems(&device), Vec::<String>::new());
        assert_eq!(e2fsck(&device, dir.path(), false).unwrap(), "");
        let fs = MountOptions::new().open(device.snapshot()).unwrap();
        for number in 0..3u8 {
            let read = fs.read(format!("/d/late{number}")).unwrap();
            assert!(read == [number; 3000], "late{number}, {at}");
        }
        // What lies behind the damage is whole, and must not follow what is written later.
        let later = commits.iter().map(|(_, number)| *number).max().unwrap();
        let (head, _) = log_blocks(&device, 4)[0];
        let mut bytes = [0; 1024];
        device.read_at(head, &mut bytes).unwrap();
        let sequence = JournalSuperblock::decode(&bytes).unwrap().sequence.0;
        assert!(sequence > later, "{sequence}, {later}");
    }
}

#[test]
fn a_part_of_the_log_takes_back_nothing_that_is_home() {
    let dir = tempdir().unwrap();
    let left = require!(left_with_a_log(dir.path()));
    // All of it is home, and the log is as it was.
    let home = left.snapshot();
    assert!(repaired(&home).unwrap().is_clean);
    let (descriptor, _) = log_blocks(&left, 1)[2];
    let mut bytes = [0; 1024];
    for place in [1024, log_blocks(&left, 4)[0].0] {
        left.read_at(place, &mut bytes).unwrap();
        home.write_at(place, &bytes).unwrap();
    }
    home.write_at(descriptor + 1020, &[1, 2, 3, 4]).unwrap();
    assert!(repaired(&home).unwrap().is_clean);
    assert_eq!(problems(&home), Vec::<String>::new());
    let fs = MountOptions::new().open(home).unwrap();
    for number in 0..6u8 {
        assert_eq!(fs.read(format!("/d/late{number}")).unwrap(), [number; 3000]);
    }
}

/// Damage of one file, or of a descriptor with all files of its group, has nothing to do with the log, and the old copies
/// of their blocks in the log are whole.
#[test]
fn other_damage_of_an_image_takes_back_nothing_that_is_home() {
    let dir = tempdir().unwrap();
    let left = require!(left_with_a_log(dir.path()));
    let home = left.snapshot();
    assert!(repaired(&home).unwrap().is_clean);
    let fs = MountOptions::new().open(home.snapshot()).unwrap();
    let index = fs.resolve("/d/file5").unwrap().ino().0 - 1;
    assert!(index < fs.superblock().inodes_per_group, "inode {index}");
    let table = fs.group(GroupIndex(0)).unwrap().inode_table.0;
    let links = table * 1024 + u64::from(index) * u64::from(fs.superblock().inode_size) + 0x1a;
    let mut bytes = [0; 1024];
    for place in [1024, log_blocks(&left, 4)[0].0] {
        left.read_at(place, &mut bytes).unwrap();
        home.write_at(place, &bytes).unwrap();
    }
    home.write_at(log_blocks(&left, 1)[2].0 + 1020, &[1, 2, 3, 4]).unwrap();
    // The checksum of each is wrong with it.
    for (place, bytes) in [(links, [7, 0]), (2048 + 8, [0x55, 0x22])] {
        let damaged = home.snapshot();
        damaged.write_at(place, &bytes).unwrap();
        assert!(repaired(&damaged).unwrap().is_clean);
        assert_eq!(problems(&damaged), Vec::<String>::new());
        let fs = MountOptions::new().open(damaged).unwrap();
        for number in 0..6u8 {
            let read = fs.read(format!("/d/late{number}"));
            assert!(read.is_ok_and(|read| read == [number; 3000]), "late{number}, {place}");
        }
        assert_eq!(fs.read("/d/file5").unwrap(), vec![6; 15000]);
    }
}

/// An image whose journal has fast commits only, for eight files of 5000 bytes; what is home is whole.
pub(crate) fn left_with_fast_commits(dir: &Path) -> Result<MemoryDevice, String> {
    let path = dir.join("fast.img");
    oracle::mke2fs(&path, "16M", &["-text4", "-b1024", "-Ofast_commit", "-Jsize=4"])?;
    let device = Arc::new(image::load(&path));
    let options = || MountOptions::new().read_only(false).background(false);
    let fs = options().open(Arc::clone(&device)).unwrap();
    for number in 0..8u8 {
        fs.write(format!("/file{number}"), [number; 1000]).unwrap();
    }
    fs.unmount().unwrap();
    let fs = options().open(Arc::clone(&device)).unwrap();
    for number in 0..8u8 {
        let file = fs.resolve(format!("/file{number}")).unwrap();
        assert_eq!(file.write_at(&[number; 4000], 1000).unwrap(), 4000);
        file.sync().unwrap();
    }
    let left = device.snapshot();
    fs.unmount().unwrap();
    Ok(left)
}

/// e2fsck applies fast commits before it looks at anything, and leaves out what it cannot.
#[test]
fn fast_commits_are_brought_in_once_the_image_is_repaired() {
    let dir = tempdir().unwrap();
    let left = require!(left_with_fast_commits(dir.path()));
    assert_eq!(said_of_log(&left), Vec::<String>::new());
    // The bitmap of the first group: nothing can be allocated, and nothing be applied.
    let mut place = [0; 4];
    left.read_at(2 * 1024, &mut place).unwrap();
    let bitmap = u64::from(u32::from_le_bytes(place)) * 1024;
    let mut bytes = [0; 1024];
    left.read_at(bitmap, &mut bytes).unwrap();
    bytes.iter_mut().skip(100).for_each(|byte| *byte = 0);
    left.write_at(bitmap, &bytes).unwrap();
    assert_eq!(said_of_log(&left).len(), 1);
    let outcome = planned(&left).unwrap();
    assert!(outcome.is_clean && outcome.fast_commits > 0, "{:#?}", outcome.findings);
    let said = |text: &str| outcome.findings.iter().any(|one| one.message.contains(text));
    assert!(said("cannot be brought in as the image is"), "{:#?}", outcome.findings);
    // Whoever is cut off has them in the log until they are home.
    let count = pieces(&outcome).len();
    for cut in 0..=count {
        let image = left.snapshot();
        cut_at(&image, &outcome, cut);
        assert!(repaired(&image).unwrap().is_clean, "cut {cut} of {count}");
        assert_eq!(problems(&image), Vec::<String>::new(), "cut {cut} of {count}");
        let fs = MountOptions::new().open(image.snapshot()).unwrap();
        for number in 0..8u8 {
            let read = fs.read(format!("/file{number}")).unwrap();
            assert!(read == [number; 5000], "file{number}, cut {cut} of {count}");
        }
        if cut % 50 == 0 || cut == count {
            assert_eq!(e2fsck(&image, dir.path(), false).unwrap(), "", "cut {cut} of {count}");
        }
    }
}

/// The part that cannot be applied is left out, and the others stay.
#[test]
fn fast_commits_of_other_files_stay_beside_one_that_is_damaged() {
    let dir = tempdir().unwrap();
    let left = require!(left_with_fast_commits(dir.path()));
    let mut bytes = vec![0; left.size_bytes() as usize];
    left.read_at(0, &mut bytes).unwrap();
    // The area begins with its head, of tag 9 and 8 bytes. The checksum of a tail covers what lies behind the one
    // before; the blocks follow each other.
    let head = [9, 0, 8, 0, 0, 0, 0, 0];
    let area = (0..bytes.len()).step_by(1024).find(|at| bytes[*at..].starts_with(&head)).unwrap();
    let (mut sum, mut ranges, mut tails) = (0, 0, 0);
    'blocks: for block in (area..bytes.len()).step_by(1024) {
        let mut at = block;
        while at + 4 <= block + 1024 {
            let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let (tag, end) = (word(at), at + 4 + usize::from(word(at + 2)));
            match tag {
                1 => {
                    ranges += 1;
                    if ranges == 4 {
                        // Blocks that are far behind the last one of the file system.
                        bytes[at + 4 + 4 + 6..at + 4 + 4 + 8].copy_from_slice(&[0x12, 0]);
                    }
                    sum = crc32c(sum, &bytes[at..end]);
                }
                8 => {
                    sum = crc32c(sum, &bytes[at..at + 8]);
                    bytes[at + 8..at + 12].copy_from_slice(&sum.to_le_bytes());
                    (sum, tails) = (0, tails + 1);
                }
                2..=9 => sum = crc32c(sum, &bytes[at..end]),
                _ if at == block => break 'blocks,
                _ => break,
            }
            at = end;
        }
    }
    assert!(ranges >= 8 && tails >= 8, "{ranges} ranges, {tails} tails");
    left.write_at(0, &bytes).unwrap();
    // A mount that only reads does not apply them, and finds nothing.
    let said = said_of_log(&left);
    assert!(said.len() == 1 && said[0].contains("cannot be brought in"), "{said:?}");
    let outcome = repaired(&left).unwrap();
    assert!(outcome.is_clean && outcome.fast_commits >= 8, "{:#?}", outcome.findings);
    let said = |text: &str| outcome.findings.iter().any(|one| one.message.starts_with(text));
    assert!(said("a part of "), "{:#?}", outcome.findings);
    assert_eq!(problems(&left), Vec::<String>::new());
    assert_eq!(e2fsck(&left, dir.path(), false).unwrap(), "");
    let fs = MountOptions::new().open(left).unwrap();
    let whole =
        |number: &u8| fs.read(format!("/file{number}")).is_ok_and(|read| read == [*number; 5000]);
    assert_eq!((0..8u8).filter(whole).count(), 7);
}

/// A commit block that is none any more looks like the end of the log; what follows says that it is not.
#[test]
fn a_log_that_seems_to_end_takes_back_nothing_that_is_home() {
    let dir = tempdir().unwrap();
    let left = require!(left_with_a_log(dir.path()));
    let home = left.snapshot();
    assert!(repaired(&home).unwrap().is_clean);
    let commits = log_blocks(&left, 2);
    let mut bytes = [0; 1024];
    for place in [1024, log_blocks(&left, 4)[0].0] {
        left.read_at(place, &mut bytes).unwrap();
        home.write_at(place, &bytes).unwrap();
    }
    assert_eq!(said_of_log(&home), Vec::<String>::new());
    home.write_at(commits[2].0, &[0; 1024]).unwrap();
    // A mount takes that for the end of the log.
    assert!(MountOptions::new().open(home.snapshot()).is_ok());
    let said = said_of_log(&home);
    assert!(said.len() == 1 && said[0].contains("and it is not there"), "{said:?}");
    let outcome = repaired(&home).unwrap();
    assert!(outcome.is_clean, "{:#?}", outcome.findings);
    assert_eq!(problems(&home), Vec::<String>::new());
    let fs = MountOptions::new().open(home).unwrap();
    for number in 0..6u8 {
        assert_eq!(fs.read(format!("/d/late{number}")).unwrap(), [number; 3000]);
    }
}

/// The part of a log before damage is later than all that is home, whatever order it leaves the image in.
#[test]
fn a_damaged_copy_costs_no_more_where_a_later_transaction_is_damaged_too() {
    let dir = tempdir().unwrap();
    let left = require!(left_with_a_log(dir.path()));
    let (descriptors, commits) = (log_blocks(&left, 1), log_blocks(&left, 2));
    let files = |device: MemoryDevice| -> Vec<u8> {
        assert!(repaired(&device).unwrap().is_clean);
        assert_eq!(problems(&device), Vec::<String>::new());
        let fs = MountOptions::new().open(device).unwrap();
        let is_whole = |number: &u8| {
            fs.read(format!("/d/late{number}")).is_ok_and(|read| read == [*number; 3000])
        };
        (0..6).filter(is_whole).collect()
    };
    let (mut kept, last) = (0, descriptors[descriptors.len() - 1]);
    for transaction in 0..3 {
        let from = descriptors[transaction].0 + 1024;
        for copy in (from..commits[transaction].0).step_by(1024) {
            let device = left.snapshot();
            device.write_at(copy + 1000, &[0x5a; 24]).unwrap();
            let one = files(device.snapshot());
            device.write_at(last.0 + 1020, &[1, 2, 3, 4]).unwrap();
            let both = files(device);
            let lost: Vec<_> =
                one.iter().filter(|number| **number < 5 && !both.contains(number)).collect();
            assert!(lost.is_empty(), "copy at {copy} of transaction {transaction}: {lost:?}");
            kept += both.len();
        }
    }
    assert!(kept > 20, "{kept}");
}

/// A copy of which home has the contents is not lost, and no earlier copy of its block takes its place.
#[test]
fn a_damaged_copy_of_what_is_home_takes_nothing_back() {
    let dir = tempdir().unwrap();
    let left = require!(left_with_a_log(dir.path()));
    let home = left.snapshot();
    assert!(repaired(&home).unwrap().is_clean);
    let mut bytes = [0; 1024];
    for place in [1024, log_blocks(&left, 4)[0].0] {
        left.read_at(place, &mut bytes).unwrap();
        home.write_at(place, &bytes).unwrap();
    }
    let (last, end) = (log_blocks(&left, 1).pop().unwrap(), log_blocks(&left, 2).pop().unwrap());
    let mut copies = 0;
    for copy in (last.0 + 1024..end.0).step_by(1024) {
        let device = home.snapshot();
        device.read_at(copy, &mut bytes).unwrap();
        bytes[1000] ^= 1;
        device.write_at(copy, &bytes).unwrap();
        // Nothing is lost, but no mount takes it.
        assert!(MountOptions::new().open(device.snapshot()).is_err());
        let said = said_of_log(&device);
        assert!(said.len() == 1 && said[0].contains("is in its place already"), "{said:?}");
        let outcome = repaired(&device).unwrap();
        assert!(outcome.is_clean && !outcome.findings.is_empty(), "{:#?}", outcome.findings);
        assert_eq!(problems(&device), Vec::<String>::new());
        let fs = MountOptions::new().open(device).unwrap();
        for number in 0..6u8 {
            let read = fs.read(format!("/d/late{number}"));
            assert!(read.is_ok_and(|read| read == [number; 3000]), "late{number}, copy at {copy}");
        }
        copies += 1;
    }
    assert!(copies > 2, "{copies}");
}

/// The superblock on the device is right, and the later one in the log names a device beside the journal.
#[test]
fn a_superblock_in_the_log_that_names_a_journal_device_is_set_right_at_once() {
    let dir = tempdir().unwrap();
    let (path, other) = (dir.path().join("one.img"), dir.path().join("other.img"));
    let block = dir.path().join("block");
    require!(oracle::mke2fs(&path, "16M", &["-text4", "-b1024", "-Jsize=4"]));
    fs::copy(&path, &other).unwrap();
    let uuid = "set_super_value journal_uuid e97bad5d-abd4-4dff-9a4b-2a3c41ac0adf\n";
    require!(oracle::debugfs(&other, true, uuid));
    let mut bytes = [0; 1024];
    image::load(&other).read_at(1024, &mut bytes).unwrap();
    fs::write(&block, bytes).unwrap();
    let script = format!("jo -c\njw -b 1 {}\njc\n", block.display());
    require!(oracle::debugfs(&path, true, &script));
    let device = image::load(&path);
    let (before, _) = log_blocks(&device, 4)[0];
    let outcome = repaired(&device).unwrap();
    assert!(outcome.is_clean && outcome.transactions == 1, "{:#?}", outcome.findings);
    assert_eq!(problems(&device), Vec::<String>::new());
    assert_eq!(e2fsck(&device, dir.path(), false).unwrap(), "");
    device.read_at(1024, &mut bytes).unwrap();
    assert_eq!((&bytes[0xd0..0xe0], bytes[0xe0]), (&[0; 16][..], 8));
    assert_eq!(log_blocks(&device, 4)[0].0, before);
}

/// What Linux leaves when a machine stops, and what e2fsck -fn proposes without a word of damage: a check passes both over.
#[test]
fn what_a_mount_leaves_is_no_damage_and_other_orphans_are() {
    let dir = tempdir().unwrap();
    let device = Arc::new(require!(sample(dir.path(), SETS[3])));
    let options = MountOptions::new().read_only(false).background(false);
    let fs = options.open(Arc::clone(&device)).unwrap();
    let open = fs.resolve("/d/file5").unwrap();
    fs.resolve("/d").unwrap().unlink("file5").unwrap();
    let other = fs.resolve("/d/file6").unwrap().ino();
    fs.sync().unwrap();
    let left = device.snapshot();
    drop(open);
    fs.unmount().unwrap();
    let told = |device: &MemoryDevice| {
        let findings = planned(device).unwrap().findings;
        let codes: Vec<&str> = findings.iter().map(|one| one.code).collect();
        let damage = findings.iter().filter(|one| one.is_damage).count();
        (codes.join(" "), damage)
    };
    assert_eq!(said_of_log(&left), Vec::<String>::new());
    let (codes, damage) = told(&left);
    assert!(codes.contains("orphans") && codes.contains("bitmap"), "{codes}");
    assert_eq!(damage, 0, "{codes}");
    assert_eq!(e2fsck(&device, dir.path(), false).unwrap(), "");

    let path = dir.path().join("other.img");
    let with = |commands: &str| {
        let _removed = fs::remove_file(&path);
        image::save(&device, &path);
        oracle::debugfs(&path, true, commands).unwrap();
        image::load(&path)
    };
    // Of an image that was unmounted, nobody is to delete any.
    let (codes, damage) = told(&with(&format!("ssv last_orphan {other}\nsif <{other}> dtime 0")));
    assert!(codes.contains("orphans") && damage > 0, "{codes}");
    // A tree that could be smaller.
    with("punch /sparse 4 400");
    oracle::e2fsck_as(&path, "-fy", &["-E", "no_optimize_extents"]).unwrap();
    let (codes, damage) = told(&image::load(&path));
    assert!(codes.contains("extent-tree"), "{codes}");
    assert_eq!(damage, 0, "{codes}");
}

/// A journal has the size of its file, blocks of its file system, and a log from its second block on: one of these fields
/// that says something else costs nothing of what waits.
#[test]
fn a_field_of_the_journal_that_follows_from_others_costs_no_log() {
    let dir = tempdir().unwrap();
    let left = require!(left_with_a_log(dir.path()));
    let (head, _) = log_blocks(&left, 4)[0];
    let mut old = [0; 1024];
    left.read_at(head, &mut old).unwrap();
    // Magic, kind, size of blocks, their number, first of the log, number of users.
    let fields = [
        (0, 7u32),
        (4, 2),
        (12, 4096),
        (16, 7),
        (16, 1 << 30),
        (20, 0),
        (20, 2),
        (20, 1 << 25),
        (64, 99),
    ];
    for (at, value) in fields {
        let mut new = old;
        new[at..at + 4].copy_from_slice(&value.to_be_bytes());
        let mut written = new;
        written[0xfc..0x100].fill(0);
        let sum = crc32c(!0, &written);
        written[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
        for bytes in [new, written] {
            let device = left.snapshot();
            device.write_at(head, &bytes).unwrap();
            assert!(!said_of_log(&device).is_empty() || !problems(&device).is_empty());
            let outcome = repaired(&device).unwrap();
            let context = format!("{value} at {at}: {:#?}", outcome.findings);
            assert!(outcome.is_clean && outcome.transactions > 5, "{context}");
            assert!(!outcome.findings.is_empty(), "{context}");
            assert_eq!(problems(&device), Vec::<String>::new(), "{context}");
            assert_eq!(e2fsck(&device, dir.path(), false).unwrap(), "", "{context}");
            let fs = MountOptions::new().open(device).unwrap();
            for number in 0..6u8 {
                let read = fs.read(format!("/d/late{number}"));
                assert!(read.is_ok_and(|read| read == [number; 3000]), "late{number}, {context}");
            }
        }
    }
    // What is no journal at all does not become one with an empty log and numbers that old transactions have.
    let device = left.snapshot();
    device.write_at(head, &[0; 1024]).unwrap();
    let outcome = repaired(&device).unwrap();
    assert!(outcome.is_clean && outcome.transactions == 0, "{:#?}", outcome.findings);
    assert!(outcome.findings.iter().all(|one| !one.message.starts_with("a field")));
}

/// What an earlier pass of the log left behind its end is no transaction that follows, if there is no room for those
/// between.
#[test]
fn a_log_ends_before_a_number_that_it_cannot_have_there() {
    let dir = tempdir().unwrap();
    let left = require!(left_with_a_log(dir.path()));
    let (place, last) = *log_blocks(&left, 2).last().unwrap();
    let mut head = [0; 1024];
    left.read_at(log_blocks(&left, 4)[0].0, &mut head).unwrap();
    let mut commit = [0; 1024];
    left.read_at(place, &mut commit).unwrap();
    for (ahead, follows) in [(2, true), (40, false)] {
        let device = left.snapshot();
        let mut stale = commit;
        stale[8..12].copy_from_slice(&(last + ahead).to_be_bytes());
        stale[16..20].fill(0);
        let sum = crc32c(crc32c(!0, &head[0x30..0x40]), &stale);
        stale[16..20].copy_from_slice(&sum.to_be_bytes());
        device.write_at(place + 5 * 1024, &stale).unwrap();
        assert_eq!(!said_of_log(&device).is_empty(), follows, "{ahead}");
        let outcome = repaired(&device).unwrap();
        assert_eq!(outcome.findings.iter().any(|one| one.code == "journal-log"), follows);
        let fs = MountOptions::new().open(device).unwrap();
        for number in 0..6u8 {
            assert_eq!(fs.read(format!("/d/late{number}")).unwrap(), [number; 3000], "{ahead}");
        }
    }
}

/// Bringing in a log takes away what it says of errors, which a check finds before.
#[test]
fn a_log_that_was_aborted_is_a_finding() {
    let dir = tempdir().unwrap();
    let device = require!(left_with_a_log(dir.path()));
    let (head, _) = log_blocks(&device, 4)[0];
    let mut bytes = [0; 1024];
    device.read_at(head, &mut bytes).unwrap();
    bytes[0x20..0x24].copy_from_slice(&(-5i32).to_be_bytes());
    bytes[0xfc..0x100].fill(0);
    let sum = crc32c(!0, &bytes);
    bytes[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
    device.write_at(head, &bytes).unwrap();
    assert!(problems(&device).iter().any(|one| one.contains("aborted")), "a check finds it");
    let outcome = repaired(&device).unwrap();
    let said = |one: &extant_repair::Fix| one.is_damage && one.message.contains("aborted");
    assert_eq!(outcome.findings.iter().filter(|one| said(one)).count(), 1);
    assert!(outcome.is_clean && outcome.transactions > 5, "{:#?}", outcome.findings);
    assert_eq!(problems(&device), Vec::<String>::new());
}

/// The log is found by inodes that are where they always were, and has the descriptor as it was; Linux mounts no such image.
#[test]
fn a_descriptor_that_hides_the_log_is_damage_also_where_the_log_has_it_right() {
    let dir = tempdir().unwrap();
    let left = require!(left_with_a_log(dir.path()));
    let mut bytes = [0; SUPERBLOCK_BYTES];
    left.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    let sb = Superblock::decode(&bytes).unwrap();
    let mut unused = vec![0; usize::from(sb.desc_size)];
    left.read_at(2 * 1024, &mut unused).unwrap();
    let mut descriptor = GroupDescriptor::decode(&unused).unwrap();
    descriptor.itable_unused = sb.inodes_per_group;
    descriptor.encode(GroupIndex(0), &GroupChecksum::of(&sb), &mut unused).unwrap();
    // Nothing of it is left; and no inode of the group was ever in use.
    for raw in [vec![0; unused.len()], unused] {
        let device = left.snapshot();
        device.write_at(2 * 1024, &raw).unwrap();
        assert!(MountOptions::new().open(device.snapshot()).is_err());
        assert_ne!(e2fsck(&device, dir.path(), false).unwrap(), "");
        let outcome = repaired(&device).unwrap();
        assert!(outcome.is_clean && outcome.transactions > 0, "{:#?}", outcome.findings);
        let is_told = outcome.findings.iter().any(|one| one.is_damage && one.code == "journal-log");
        assert!(is_told, "{raw:?}: {:#?}", outcome.findings);
        assert_eq!(problems(&device), Vec::<String>::new());
        assert_eq!(e2fsck(&device, dir.path(), false).unwrap(), "");
        let fs = MountOptions::new().open(device).unwrap();
        for number in 0..6u8 {
            assert!(fs.read(format!("/d/late{number}")).unwrap() == [number; 3000]);
        }
    }
}

/// Whoever applies fast commits deletes the orphans first, and takes what cannot be one out.
#[test]
fn what_is_no_orphan_is_damage_also_beside_fast_commits() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("fast.img");
    let features = "orphan_file,fast_commit,^metadata_csum,uninit_bg";
    require!(oracle::mke2fs(&path, "16M", &["-text4", "-b1024", "-Jsize=4", "-O", features]));
    let device = Arc::new(image::load(&path));
    let options = || MountOptions::new().read_only(false).background(false);
    let fs = options().open(Arc::clone(&device)).unwrap();
    fs.write("/gone", [9; 5000]).unwrap();
    fs.write("/file", [1; 1000]).unwrap();
    fs.unmount().unwrap();
    let fs = options().open(Arc::clone(&device)).unwrap();
    let open = fs.resolve("/gone").unwrap();
    fs.root().unwrap().unlink("gone").unwrap();
    fs.sync().unwrap();
    let file = fs.resolve("/file").unwrap();
    for number in 1..5 {
        assert_eq!(file.write_at(&[1; 1000], number * 1000).unwrap(), 1000);
        file.sync().unwrap();
    }
    let left = device.snapshot();
    drop(open);
    fs.unmount().unwrap();
    let told = |device: &MemoryDevice| {
        let outcome = planned(device).unwrap();
        assert!(outcome.is_clean && outcome.fast_commits > 0, "{:#?}", outcome.findings);
        outcome.findings.iter().filter(|one| one.is_damage).count()
    };
    assert_eq!(told(&left), 0);

    // At home and in the log, in the place of the one that is.
    let mut bytes = vec![0; left.size_bytes() as usize];
    left.read_at(0, &mut bytes).unwrap();
    let magic = 0x0b10_ca04_u32.to_le_bytes();
    let is_used = |at: &usize| bytes[at + 1016..at + 1020] == magic && bytes[*at..at + 4] != [0; 4];
    let blocks: Vec<usize> = (0..bytes.len()).step_by(1024).filter(is_used).collect();
    assert!(!blocks.is_empty());
    for at in blocks {
        left.write_at(at as u64 + 16, &0x7fff_ffff_u32.to_le_bytes()).unwrap();
    }
    assert!(told(&left) > 0);
    // A check finds that in the file itself.
    assert_eq!(said_of_log(&left), Vec::<String>::new());
    assert!(repaired(&left).unwrap().is_clean);
    assert_eq!(told_again(&left), 0);
    assert_eq!(e2fsck(&left, dir.path(), false).unwrap(), "");
}

/// What a second repair finds.
fn told_again(device: &MemoryDevice) -> usize {
    planned(device).unwrap().findings.len()
}
