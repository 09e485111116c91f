//! What a damaged log keeps of what was promised, and of what is home.

use std::path::Path;
use std::sync::Arc;

use extant::MountOptions;
use extant_block::{BlockDevice, MemoryDevice};
use extant_format::jbd2::JournalSuperblock;
use extant_testkit::{require, tempdir};

use crate::common::{SETS, e2fsck, problems, repaired, sample};

/// Where the blocks of the journal lie that begin as its own of this kind do, with their transactions.
fn log_blocks(device: &MemoryDevice, kind: u8) -> Vec<(u64, u32)> {
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
