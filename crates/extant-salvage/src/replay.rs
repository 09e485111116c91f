//! The journal: its latest copies of blocks, shown in their places.

use std::sync::Arc;

use extant_block::SharedDevice;
use extant_format::extent::ExtentState;
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::record::{self, Record};
use extant_jbd2::{
    JournalRun, LOG_BLOCKS_MAX, LogStore, MappedJournal, RecoveryError, ReplayedDevice,
    newer_at_home, recover_damaged,
};

use crate::image::Image;
use crate::limits::Budget;
use crate::map::{Piece, is_node};

/// A journal that was brought in.
pub(crate) struct Replayed {
    pub(crate) device: SharedDevice,
    pub(crate) transactions: u32,
    /// Copies that were left out because of a wrong checksum.
    pub(crate) damaged: usize,
    /// Damage that ended the log before its end.
    pub(crate) broken: Option<String>,
    /// Fast commits that were left out.
    pub(crate) fast_commits: u32,
}

/// Returns the device with the log's blocks in their places; `None`: the log is empty.
pub(crate) fn replay(image: &Image) -> Result<Option<Replayed>, String> {
    if image.sb.journal_inode.0 == 0 {
        return Err("it is on another device".to_owned());
    }
    let record = journal_record(image).ok_or("its inode cannot be read")?;
    let runs = runs(image, &record);
    if runs.is_empty() {
        return Err("it has no blocks".to_owned());
    }
    let text = |error: RecoveryError| error.to_string();
    let log = Arc::new(MappedJournal::new(image.shared(), image.sb.block_size, runs));
    let store = LogStore::internal(log).map_err(text)?;
    if !store.superblock().is_dirty() {
        return Ok(None);
    }
    let home = image.shared();
    let seen = recover_damaged(store.reader(), store.superblock(), image.sb.blocks_count, &*home);
    let seen = seen.map_err(text)?;
    if let Some(broken) = &seen.broken {
        let newer =
            newer_at_home(&**store.reader(), store.superblock(), &seen, &*home).map_err(text)?;
        if !newer.is_empty() {
            // A repair would see which is in better order.
            return Err(broken.to_string());
        }
    }
    let reader: Arc<dyn extant_jbd2::JournalReader> = Arc::clone(store.reader()) as _;
    let fast_commits = seen.fast_commits.as_ref().map_or(0, |fast| fast.commits());
    let device = ReplayedDevice::new(image.shared(), reader, Arc::new(seen.blocks));
    Ok(Some(Replayed {
        device: Arc::new(device),
        transactions: seen.transactions,
        damaged: seen.damaged.len(),
        broken: seen.broken.as_ref().map(ToString::to_string),
        fast_commits,
    }))
}

/// The journal's inode, or the copy of its map in the superblock where that inode is none.
fn journal_record(image: &Image) -> Option<Record> {
    let ino = image.sb.journal_inode;
    if let Some(record) = image.load(ino)
        && record.kind() == Some(FileKind::Regular)
        && record.links() != 0
        && (!record.has(InodeFlags::EXTENTS) || is_node(&record.block_area()))
    {
        return Some(record);
    }
    let words = image.sb.journal_backup;
    let mut copy = Record { ino, bytes: vec![0; usize::from(image.sb.inode_size)] };
    copy.put16(record::MODE, FileKind::Regular.mode_bits() | 0o600);
    copy.put16(record::LINKS, 1);
    let mut area = [0; 60];
    for (slot, word) in words.iter().take(15).enumerate() {
        record::put(&mut area, slot * 4, &word.to_le_bytes());
    }
    copy.set_block_area(&area);
    copy.set_flag(InodeFlags::EXTENTS, is_node(&area));
    let [.., high, low] = words;
    copy.set_size(u64::from(low) | (u64::from(high) << 32));
    area.iter().any(|byte| *byte != 0).then_some(copy)
}

fn runs(image: &Image, record: &Record) -> Vec<JournalRun> {
    let mut runs: Vec<JournalRun> = Vec::new();
    let mut left = LOG_BLOCKS_MAX;
    let mut budget = Budget::of(image.blocks);
    image.walk_map(record, &mut budget, &mut |piece| {
        if let Piece::Data { extent } = piece
            && extent.state == ExtentState::Written
        {
            left = left.saturating_sub(u64::from(extent.len.0));
            runs.push(JournalRun {
                journal_start: extent.file_start.0,
                device_start: extent.device_start,
                len: extent.len.0,
            });
        }
        left > 0
    });
    runs
}
