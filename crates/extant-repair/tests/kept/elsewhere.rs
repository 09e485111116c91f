//! What a log on a device of its own keeps, and what that device is when it is not.

use std::path::Path;
use std::sync::Arc;

use extant::MountOptions;
use extant_block::{
    BlockDevice, FaultDevice, FaultPlan, MemoryDevice, OperationKind, SharedDevice,
};
use extant_format::jbd2::JournalSuperblock;
use extant_repair::{Outcome, RepairError, RepairOptions, Yes, repair_both};
use extant_testkit::{image, oracle, require, tempdir};

use super::log::{left_with_fast_commits, log_blocks};
use crate::common::{NOW, problems};

/// An image and the device of its journal.
struct Pair {
    home: MemoryDevice,
    log: MemoryDevice,
}

impl Pair {
    /// A file system without files, whose journal is on another device.
    fn new(dir: &Path) -> Result<Pair, String> {
        let home = dir.join("home.img");
        oracle::mke2fs(&home, "16M", &["-text4", "-b1024", "-O^has_journal,^resize_inode"])?;
        Pair::of(dir, &home)
    }

    /// The file system in a file, with the journal on another device.
    fn of(dir: &Path, home: &Path) -> Result<Pair, String> {
        let log = dir.join("log.img");
        let _removed = std::fs::remove_file(&log);
        oracle::mke2fs(&log, "4M", &["-b1024", "-Ojournal_dev"])?;
        let log = image::load(&log);
        let mut uuid = [0; 16];
        log.read_at(1024 + 0x68, &mut uuid).unwrap();
        let uuid: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [&uuid[..8], &uuid[8..12], &uuid[12..16], &uuid[16..20], &uuid[20..]];
        let commands = format!(
            "feature has_journal\nset_super_value journal_inum 0\nset_super_value journal_uuid {}\n",
            parts.join("-")
        );
        oracle::debugfs(home, true, &commands)?;
        Ok(Pair { home: image::load(home), log })
    }

    fn snapshot(&self) -> Pair {
        Pair { home: self.home.snapshot(), log: self.log.snapshot() }
    }

    fn options(log: &Arc<MemoryDevice>) -> MountOptions {
        let log = Arc::clone(log);
        MountOptions::new().read_only(false).background(false).journal_device(log)
    }

    /// Both as they are when the machine stops after `change`, which is told of what was mounted.
    fn left(self, change: impl FnOnce(&extant::Fs)) -> Pair {
        let (home, log) = (Arc::new(self.home), Arc::new(self.log));
        let fs = Pair::options(&log).open(Arc::clone(&home)).unwrap();
        change(&fs);
        let left = Pair { home: home.snapshot(), log: log.snapshot() };
        fs.unmount().unwrap();
        left
    }

    fn planned(&self) -> Result<Outcome, RepairError> {
        let home: SharedDevice = Arc::new(self.home.snapshot());
        let log: SharedDevice = Arc::new(self.log.snapshot());
        repair_both(home, Some(log), &RepairOptions { now: NOW }, &mut Yes)
    }

    fn repaired(&self) -> Outcome {
        let outcome = self.planned().unwrap();
        outcome.plan.apply_both(&self.home, Some(&self.log)).unwrap();
        outcome
    }

    /// Both as a repair leaves them that stops at a write, counted from 0, to one of them; `None`: there is no such
    /// write.
    fn cut(&self, outcome: &Outcome, at: u64, in_log: bool) -> Option<Pair> {
        let left = self.snapshot();
        let (home, log) = (Arc::new(left.home), Arc::new(left.log));
        let plan = |is_cut: bool| FaultPlan {
            exactly: if is_cut { vec![(OperationKind::Write, at, 1 << 40)] } else { Vec::new() },
            // A superblock that is torn between its sectors is for the next repair, as everywhere.
            whole: 1024..2048,
            ..FaultPlan::default()
        };
        let to_home = FaultDevice::new(Arc::clone(&home), plan(!in_log));
        let to_log = FaultDevice::new(Arc::clone(&log), plan(in_log));
        match outcome.plan.apply_both(&to_home, Some(&to_log)) {
            Ok(()) => None,
            Err(_) => Some(Pair { home: home.snapshot(), log: log.snapshot() }),
        }
    }

    fn log_superblock(&self) -> JournalSuperblock {
        let mut bytes = [0; 1024];
        self.log.read_at(2048, &mut bytes).unwrap();
        JournalSuperblock::decode(&bytes).unwrap()
    }

    /// Nothing is wrong with it by our checker, and by e2fsck, which has the journal at hand; and the log is empty.
    fn assert_clean(&self, dir: &Path, what: &str) {
        assert_eq!(problems(&self.home), Vec::<String>::new(), "{what}");
        let (home, log) = (dir.join("fsck.img"), dir.join("fsck.log"));
        for path in [&home, &log] {
            let _removed = std::fs::remove_file(path);
        }
        image::save(&self.home, &home);
        image::save(&self.log, &log);
        let log = format!("-j{}", log.display());
        let report = oracle::e2fsck_with(&home, &[&log]).unwrap();
        assert!(report.is_clean(), "{what}: {}", report.text);
        assert_eq!(self.log_superblock().start, 0, "{what}");
    }

    /// Which of the files of [`six`], or of [`left_with_fast_commits`], are there and whole.
    fn files(&self) -> Vec<u8> {
        let log = Arc::new(self.log.snapshot());
        let fs = Pair::options(&log).open(self.home.snapshot()).unwrap();
        let is_whole = |number: &u8| {
            let has = |name: &str, len: usize| {
                fs.read(format!("/{name}{number}")).is_ok_and(|read| read == vec![*number; len])
            };
            has("late", 3000) || has("file", 5000)
        };
        let files = (0..8).filter(is_whole).collect();
        fs.unmount().unwrap();
        files
    }
}

fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Six files, each in a transaction.
fn six(fs: &extant::Fs) {
    for number in 0..6u8 {
        fs.write(format!("/late{number}"), [number; 3000]).unwrap();
        fs.sync().unwrap();
    }
}

/// Cuts a repair at each of its writes, and repairs what is there then.
fn try_cuts(left: &Pair, outcome: &Outcome, dir: &Path, wanted: &[u8]) {
    let mut cuts = 0;
    for in_log in [false, true] {
        for at in 0.. {
            let Some(image) = left.cut(outcome, at, in_log) else { break };
            let what = format!("cut at write {at}, to the log: {in_log}");
            assert!(image.repaired().is_clean, "{what}");
            image.assert_clean(dir, &what);
            assert_eq!(image.files(), wanted, "{what}");
            cuts += 1;
        }
    }
    assert!(cuts > 2, "{cuts} cuts");
}

#[test]
fn a_log_on_another_device_is_brought_in() {
    let dir = tempdir().unwrap();
    let left = require!(Pair::new(dir.path())).left(six);
    assert_ne!(left.log_superblock().start, 0);
    let outcome = left.planned().unwrap();
    assert!(outcome.is_clean && outcome.transactions >= 6, "{:#?}", outcome.findings);
    let is_total = |code| code == "superblock-count";
    assert!(outcome.findings.iter().all(|one| is_total(one.code)), "{:#?}", outcome.findings);
    // Without the device nothing of it is written.
    let home = left.home.snapshot();
    assert!(outcome.plan.writes_journal() && outcome.plan.apply(&home).is_err());
    assert!(bytes_of(&home) == bytes_of(&left.home));
    try_cuts(&left, &outcome, dir.path(), &[0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_damaged_log_on_another_device_keeps_what_was_promised_before() {
    let dir = tempdir().unwrap();
    let left = require!(Pair::new(dir.path())).left(six);
    let commits = log_blocks(&left.log, 2);
    let (place, _) = commits[commits.len() - 3];
    let mut bytes = [0; 1024];
    left.log.read_at(place, &mut bytes).unwrap();
    left.log.write_at(place, &[0; 1024]).unwrap();
    let outcome = left.planned().unwrap();
    assert!(outcome.is_clean && outcome.transactions > 0, "{:#?}", outcome.findings);
    let said = |text: &str| outcome.findings.iter().any(|one| one.message.contains(text));
    assert!(said("the log is damaged behind"), "{:#?}", outcome.findings);
    let done = left.snapshot();
    done.repaired();
    done.assert_clean(dir.path(), "damaged");
    let files = done.files();
    assert!(files.len() >= 3 && files.len() < 6, "{files:?}");
    // What lies behind the damage must not follow what is written later.
    let later = commits.iter().map(|(_, number)| *number).max().unwrap();
    assert!(done.log_superblock().sequence.0 > later, "{:?}", done.log_superblock());
    try_cuts(&left, &outcome, dir.path(), &files);
}

#[test]
fn a_journal_device_whose_journal_is_none_gets_an_empty_one() {
    let dir = tempdir().unwrap();
    let left = require!(Pair::new(dir.path())).left(six);
    let before = left.log_superblock();
    for damage in [&[0u8; 1024][..], &[0xa5; 40]] {
        let image = left.snapshot();
        image.log.write_at(2048, damage).unwrap();
        let outcome = image.repaired();
        let said = |text: &str| outcome.findings.iter().any(|one| one.message.contains(text));
        assert!(outcome.is_clean && said("cannot be replayed"), "{:#?}", outcome.findings);
        image.assert_clean(dir.path(), "no journal");
        let after = image.log_superblock();
        assert_eq!((after.first, after.len), (before.first, before.len));
        assert_eq!((after.uuid, after.users[0], after.user_count), {
            let mut uuid = [0; 16];
            image.home.read_at(1024 + 0x68, &mut uuid).unwrap();
            (before.uuid, uuid, 1)
        });
        // It works as one.
        let again = image.left(six);
        assert!(again.repaired().is_clean);
        assert_eq!(again.files(), [0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn fast_commits_on_another_device_are_brought_in_once_the_image_is_repaired() {
    let dir = tempdir().unwrap();
    let inside = require!(left_with_fast_commits(dir.path()));
    // Nobody writes fast commits to another device yet, though the format has them. Those of the log in the image
    // are moved there, where all lies two blocks further on.
    let mut superblock = Vec::new();
    let (place, _) = log_blocks(&inside, 4)[0];
    let mut bytes = vec![0; inside.size_bytes() as usize];
    inside.read_at(0, &mut bytes).unwrap();
    superblock.extend_from_slice(&bytes[place as usize..][..1024]);
    let mut superblock = JournalSuperblock::decode(&superblock).unwrap();
    let home = dir.path().join("moved.img");
    image::save(&inside, &home);
    let made = Pair::of(dir.path(), &home).unwrap();
    let (from, len) = (place as usize, superblock.len as usize * 1024);
    let log = MemoryDevice::new(len as u64 + 2048);
    let mut head = [0; 2048];
    made.log.read_at(0, &mut head).unwrap();
    head[1024 + 4..][..4].copy_from_slice(&(superblock.len + 2).to_le_bytes());
    log.write_at(0, &head).unwrap();
    log.write_at(2048, &bytes[from..][..len]).unwrap();
    superblock.first += 2;
    superblock.len += 2;
    superblock.start += 2;
    let mut bytes = [0; 1024];
    superblock.encode(&mut bytes).unwrap();
    log.write_at(2048, &bytes).unwrap();
    let left = Pair { home: made.home, log };
    let outcome = left.planned().unwrap();
    assert!(outcome.is_clean && outcome.fast_commits >= 6, "{outcome:#?}");
    assert!(outcome.findings.iter().all(|one| one.code != "journal-log"), "{outcome:#?}");
    try_cuts(&left, &outcome, dir.path(), &[0, 1, 2, 3, 4, 5, 6, 7]);
    // The bitmap of the first group: nothing can be allocated, and nothing be applied.
    let mut place = [0; 4];
    left.home.read_at(2 * 1024, &mut place).unwrap();
    let bitmap = u64::from(u32::from_le_bytes(place)) * 1024;
    left.home.read_at(bitmap, &mut bytes).unwrap();
    bytes.iter_mut().skip(100).for_each(|byte| *byte = 0);
    left.home.write_at(bitmap, &bytes).unwrap();
    let outcome = left.planned().unwrap();
    let said = |text: &str| outcome.findings.iter().any(|one| one.message.contains(text));
    assert!(said("cannot be brought in as the image is"), "{:#?}", outcome.findings);
    try_cuts(&left, &outcome, dir.path(), &[0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_device_that_is_not_that_of_the_journal_is_refused_by_what_it_is() {
    let dir = tempdir().unwrap();
    let left = require!(Pair::new(dir.path())).left(six);
    let other = Pair::new(dir.path()).unwrap();
    let small = dir.path().join("small.img");
    oracle::mke2fs(&small, "4M", &["-b4096", "-Ojournal_dev"]).unwrap();
    let small = image::load(&small);
    let mut uuid = [0; 16];
    left.log.read_at(1024 + 0x68, &mut uuid).unwrap();
    small.write_at(1024 + 0x68, &uuid).unwrap();
    for (log, why) in [
        (&other.log, "the image's journal has UUID"),
        (&other.home, "device is not a journal device"),
        (&small, "blocks of 4096 bytes, its file system of 1024"),
        (&MemoryDevice::new(4 << 20), "magic 0x0000"),
        (&MemoryDevice::new(100), "past"),
    ] {
        let pair = Pair { home: left.home.snapshot(), log: log.snapshot() };
        let error = pair.planned().unwrap_err();
        let is_read = matches!(error, RepairError::Device(_)) && why == "past";
        assert!(matches!(error, RepairError::OtherJournal { .. }) || is_read, "{error:?}");
        assert!(error.to_string().contains(why) || is_read, "{error}");
    }
    let inside = dir.path().join("inside.img");
    oracle::mke2fs(&inside, "16M", &["-text4", "-b1024"]).unwrap();
    let pair = Pair { home: image::load(&inside), log: left.log };
    let error = pair.planned().unwrap_err().to_string();
    assert!(error.contains("has its journal in inode 8"), "{error}");
}
