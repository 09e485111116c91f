//! e2fsprogs reads and replays a log that we wrote.

use std::path::Path;

use extant_block::FileDevice;
use extant_testkit::oracle::Tool;
use extant_testkit::require;

use super::*;

/// The blocks of the journal inode, as debugfs lists them.
fn journal_runs(debugfs: &Tool, image: &Path) -> Vec<JournalRun> {
    let text = debugfs.run(["-R".as_ref(), "blocks <8>".as_ref(), image.as_os_str()]);
    let mut runs: Vec<JournalRun> = Vec::new();
    let numbers = text.split_whitespace().map(|word| word.parse::<u64>().unwrap());
    for (at, number) in numbers.enumerate() {
        match runs.last_mut() {
            Some(run) if run.device_start.0 + u64::from(run.len) == number => run.len += 1,
            _ => runs.push(JournalRun {
                journal_start: at as u32,
                device_start: FsBlock(number),
                len: 1,
            }),
        }
    }
    runs
}

#[test]
fn debugfs_dumps_and_e2fsck_replays_a_log_that_we_wrote() {
    let mke2fs = require!(Tool::find("mke2fs"));
    let debugfs = require!(Tool::find("debugfs"));
    let e2fsck = require!(Tool::find("e2fsck"));
    let modern = JournalIncompat::CSUM_V3 | JournalIncompat::BLOCKS_64BIT;
    for (features, kind) in [
        (modern, "metadata_csum,64bit"),
        (modern, "metadata_csum,64bit,fast_commit"),
        (JournalIncompat::empty(), "^metadata_csum,^64bit"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let size_kib = "16384";
        mke2fs.run(
            ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", kind]
                .map(std::ffi::OsStr::new)
                .into_iter()
                .chain([image.as_os_str(), size_kib.as_ref()]),
        );
        let runs = journal_runs(&debugfs, &image);
        let device: SharedDevice = Arc::new(FileDevice::open_read_write(&image).unwrap());
        let log = Arc::new(MappedJournal::new(Arc::clone(&device), size(), runs));
        let store = LogStore::internal(log).unwrap();
        let first = store.superblock().sequence.0.max(1);
        let options = JournalOptions { features, ..options() };
        let client = TestClient::plain();
        let journal = Journal::open(store, Arc::clone(&device), client, options).unwrap();
        // Free blocks at the end; 255 begins like a journal block.
        let blocks: Vec<_> = (16300..16310).map(TestBlock::new).collect();
        let list: Vec<_> = blocks.iter().map(|block| (block, 255)).collect();
        change(&journal, &list);
        let mut handle = journal.start(3).unwrap();
        handle.revoke(FsBlock(16303)).unwrap();
        handle.claim(&blocks[1]).unwrap();
        blocks[1].set(7);
        let tid = handle.tid();
        drop(handle);
        journal.commit(tid).unwrap();
        drop(journal);
        debugfs.run([
            "-w".as_ref(),
            "-R".as_ref(),
            "feature needs_recovery".as_ref(),
            image.as_os_str(),
        ]);
        let dump = debugfs.run(["-R".as_ref(), "logdump -a".as_ref(), image.as_os_str()]);
        for wanted in [
            format!("expected sequence {first}"),
            format!("Found expected sequence {}, type 2 (commit block)", tid),
            format!("Found expected sequence {}, type 5 (revoke table)", tid),
        ] {
            assert!(dump.contains(&wanted), "{wanted}: {dump}");
        }
        let mut command = e2fsck.command();
        let output = command.args(["-f", "-y"]).arg(&image).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.code().is_some_and(|code| code <= 1), "{kind}: {text}");
        assert!(!text.contains("checksum"), "{text}");
        let fill = |block| fill_of(&*device, block);
        assert_eq!((fill(16300), fill(16301), fill(16309)), (Some(255), Some(7), Some(255)));
        assert_eq!(fill(16303), Some(0), "{kind}: revoked");
    }
}
