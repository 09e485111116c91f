//! What is about to be read of an image that is far away, fetched in few requests.
//!
//! # Place
//!
//! Below: the device, which says how much it keeps ([`near_bytes`](extant_block::BlockDevice::near_bytes)); for
//! files of this host that is nothing, and everything here returns at once. Above: walks, and whoever knows which
//! files he reads next.
//!
//! # Invariants
//!
//! - N1. Nothing here decides what is read, and no error comes from here: a read that follows finds it again.
//! - N2. What is looked at for one call is bounded, whatever the image says: entries, directories and runs are counted.

use std::ops::Range;

use extant_base::{FsBlock, Ino, sabotage};
use extant_block::BlockDevice;
use extant_format::inode::FileKind;
use rustc_hash::FxHashSet;

use crate::fs::Fs;
use crate::inode::Inode;
use crate::map::{Cursor, MappingKind};
use crate::view::View;

/// Runs of one part of a file that are fetched together at most.
const RUNS_MAX: usize = 1024;

/// Directories that are looked through ahead of a walk at a time.
const DIRS_MAX: usize = 256;

/// Entries of them whose inodes are fetched.
const ENTRIES_MAX: usize = 65_536;

/// The share of what the device keeps that one step ahead of a walk may take.
const STEP_SHARE: u64 = 8;

/// Bytes of inode tables that are fetched together: neighbours are named by directories that follow.
const TABLE_BYTES: u64 = 256 << 10;

/// # Images that are far away
impl Fs {
    /// Returns how many bytes of contents can be [brought near](Self::bring_near) before they are read; 0 where that
    /// is of no use.
    pub fn near_bytes(&self) -> u64 {
        self.device().near_bytes()
    }

    /// Fetches what is stored of parts of files, given as byte ranges, with what belongs to them beside their
    /// contents, in as few requests as possible. It is for images behind a server
    /// ([`near_bytes`](Self::near_bytes)), and does nothing for others. Errors are left to the reads that follow.
    pub fn bring_near(&self, parts: &[(Inode, Range<u64>)]) {
        if self.near_bytes() == 0 {
            return;
        }
        let mut ranges = Vec::new();
        for (inode, range) in parts {
            inode.locked(|view| view.note_stored(range.clone(), &mut ranges));
        }
        self.device().bring_near(&ranges);
    }
}

impl View<'_> {
    /// Adds where the bytes of `range` lie on the device, and the block of attributes.
    fn note_stored(&self, range: Range<u64>, found: &mut Vec<Range<u64>>) {
        let block_size = self.volume().block_size();
        let mut note = |start: FsBlock, len: u64| {
            let bytes = len.saturating_mul(u64::from(block_size.bytes()));
            if let Some(at) = block_size.offset_of(start) {
                found.push(at..at.saturating_add(bytes));
            }
        };
        if let Some(block) = self.xattr_block()
            && range.start == 0
        {
            note(block, 1);
        }
        if self.is_inline() || (self.is_symlink() && self.is_fast_symlink()) {
            return;
        }
        let end = block_size.blocks_for(range.end.min(self.size()));
        let (mut at, mut cursor) = (range.start >> block_size.log2(), Cursor::new(self));
        for _ in 0..RUNS_MAX {
            if at >= end {
                return;
            }
            let Ok(run) = cursor.run(self, at, end) else { return };
            let into = at.saturating_sub(u64::from(run.file_start.0));
            let len = run.file_end().min(end).saturating_sub(at);
            if let MappingKind::Mapped(start) = run.kind
                && let Some(start) = start.checked_add(into)
            {
                note(start, len);
            }
            at = run.file_end().max(at + 1);
        }
    }
}

/// What a walk is about to meet, a few levels of directories at a time.
#[derive(Debug, Default)]
pub(crate) struct Scout {
    /// Directories whose entries and their inodes are near, and that the walk has not entered yet.
    known: FxHashSet<u32>,
}

impl Scout {
    /// Returns `None` where an image is at hand.
    pub(crate) fn of(fs: &Fs) -> Option<Scout> {
        (fs.near_bytes() > 0 && !sabotage("extant.near.scout-not-sent")).then(Scout::default)
    }

    /// The walk enters `dir`, and at most `levels` below it.
    pub(crate) fn enter(&mut self, dir: &Inode, levels: usize) {
        if levels == 0 || self.known.remove(&dir.ino().0) {
            return;
        }
        let fs = dir.fs();
        let room = fs.near_bytes() / STEP_SHARE;
        let (mut bytes, mut entries, mut dirs) = (0u64, 0, 0);
        let mut level = vec![dir.clone()];
        let mut below = Vec::new();
        for depth in 0..levels {
            bring_contents(fs, &level, room.saturating_sub(bytes));
            let mut inodes = Vec::new();
            for dir in level.drain(..) {
                bytes = bytes.saturating_add(dir.size());
                let Ok(list) = dir.read_dir() else { continue };
                for entry in list.flatten().take(ENTRIES_MAX.saturating_sub(entries)) {
                    entries += 1;
                    inodes.push(entry.ino());
                    if entry.kind() == Some(FileKind::Directory) {
                        below.push(entry.ino());
                    }
                }
            }
            bytes = bytes.saturating_add(bring_inodes(fs, inodes, room.saturating_sub(bytes)));
            if depth + 1 == levels || bytes >= room || entries >= ENTRIES_MAX || dirs >= DIRS_MAX {
                return;
            }
            // Those that are left out are looked through when the walk enters them.
            below.truncate(DIRS_MAX - dirs);
            dirs += below.len();
            for ino in below.drain(..) {
                if let Ok(found) = fs.inode(ino)
                    && found.is_dir()
                    && self.known.insert(ino.0)
                {
                    level.push(found);
                }
            }
            if level.is_empty() {
                return;
            }
        }
    }
}

fn bring_contents(fs: &Fs, dirs: &[Inode], room: u64) {
    let mut left = room;
    let mut parts = Vec::new();
    for dir in dirs {
        let len = dir.size().min(left);
        left -= len;
        parts.push((dir.clone(), 0..len));
    }
    fs.bring_near(&parts);
}

/// Fetches the records of inodes, with their neighbours. Returns how many bytes these are, at most `room`.
fn bring_inodes(fs: &Fs, mut inodes: Vec<Ino>, room: u64) -> u64 {
    inodes.sort_unstable_by_key(|ino| ino.0);
    let block_size = fs.block_size();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut bytes = 0;
    for ino in inodes {
        let Ok((block, _)) = fs.volume().inode_place(ino) else { continue };
        let Some(at) = block_size.offset_of(block) else { continue };
        if ranges.last().is_some_and(|last| last.contains(&at)) {
            continue;
        }
        if bytes >= room {
            break;
        }
        let start = at / TABLE_BYTES * TABLE_BYTES;
        ranges.push(start..start + TABLE_BYTES);
        bytes += TABLE_BYTES;
    }
    fs.device().bring_near(&ranges);
    bytes
}
