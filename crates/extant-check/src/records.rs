//! Reading the inode tables: which blocks of them, in which pieces, and each record once.

use std::ops::Range;

use extant_base::{BlockSize, GroupIndex, Ino};
use extant_format::bitmap::BitmapRef;
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupFlags};
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::record::{self, u16_at, u32_at};

use crate::base::Base;
use crate::inodes::Outside;
use crate::piece::Piece;
use crate::scan::Scan;
use crate::states::State;
use crate::tables::Whole;
use crate::{CheckError, Problem};

/// Blocks of an inode table read at once, in bytes: they stay in a processor's cache until they are
/// looked at.
const CHUNK_BYTES: u64 = 1 << 17;

/// Blocks of an inode table that were read.
#[derive(Clone, Copy)]
struct Chunk {
    group: GroupIndex,
    /// The first, counted from the start of the table.
    at: u32,
    /// Inodes of the group that are in use or were.
    scanned: u32,
}

impl Base<'_> {
    /// Returns how many inodes of a group are to be read, if its table is.
    fn scanned(&self, descriptor: &GroupDescriptor) -> Option<u32> {
        let per_group = self.sb.inodes_per_group;
        let has_checksums = self.group_checksum != GroupChecksum::None;
        let is_uninit = has_checksums && descriptor.flags.contains(GroupFlags::INODE_UNINIT);
        let table = descriptor.inode_table.0;
        if is_uninit || !self.in_range(table, u64::from(self.sb.inode_table_blocks())) {
            return None;
        }
        let unused = if has_checksums { descriptor.itable_unused.min(per_group) } else { 0 };
        Some(per_group - unused)
    }

    /// Bytes to be read of the inode table of a group.
    pub(crate) fn table_bytes(&self, group: usize) -> u64 {
        let Some(descriptor) = self.groups.get(group) else { return 0 };
        let scanned = self.scanned(descriptor).unwrap_or(0);
        u64::from(scanned) * u64::from(self.sb.inode_size)
    }

    fn record_bytes(&self) -> usize {
        usize::from(self.sb.inode_size).max(128)
    }

    fn inodes_per_block(&self) -> u32 {
        // Blocks have 64 KiB at most.
        (self.sb.block_size.len() / self.record_bytes()).max(1) as u32
    }

    /// Bytes to be read for a piece.
    pub(crate) fn piece_bytes(&self, piece: &Piece) -> u64 {
        let tables = piece.groups.clone().map(|group| self.table_bytes(group));
        let all = tables.fold(0, u64::saturating_add);
        let block = u64::from(self.sb.block_size.bytes());
        let (from, to) = (u64::from(piece.blocks.start), u64::from(piece.blocks.end));
        all.min(to.saturating_mul(block)).saturating_sub(from.saturating_mul(block))
    }

    /// Divides all inode tables into pieces of `bytes` or so, in order: several groups, or blocks of one.
    pub(crate) fn pieces(&self, groups: &[Range<usize>], bytes: u64) -> Vec<Piece> {
        let block = u64::from(self.sb.block_size.bytes());
        let blocks = u32::try_from(bytes.div_ceil(block)).unwrap_or(u32::MAX).max(1);
        let mut pieces = Vec::new();
        for groups in groups {
            let is_one = groups.len() == 1;
            let table = self.table_bytes(groups.start).div_ceil(block);
            let mut from = 0u32;
            while is_one && u64::from(from).saturating_add(u64::from(blocks)) < table {
                let to = from.saturating_add(blocks);
                pieces.push(Piece { groups: groups.clone(), blocks: from..to });
                from = to;
            }
            pieces.push(Piece { groups: groups.clone(), blocks: from..u32::MAX });
        }
        pieces
    }

    /// Reserved inodes count as used, whatever they hold.
    pub(crate) fn mark_reserved(&self) {
        let first = self.sb.first_inode.0.min(self.sb.inodes_count.saturating_add(1));
        for ino in 1..first {
            self.states.set(Ino(ino), State::UNKNOWN);
        }
    }
}

impl Scan<'_, '_> {
    /// Reads the inode tables of a piece as far as they are used.
    pub(crate) fn read_tables(&mut self, piece: &Piece) -> Result<(), CheckError> {
        let (mut bitmap, mut bytes) = (Vec::new(), Vec::new());
        let base = self.base;
        for number in piece.groups.clone() {
            let Some(descriptor) = base.groups.get(number) else { break };
            let group = GroupIndex(number as u32);
            let table = descriptor.inode_table.0;
            if let Some(scanned) = base.scanned(descriptor) {
                let is_first = piece.blocks.start == 0;
                self.check_table_unused(group, descriptor, (scanned, is_first), &mut bitmap)?;
                let blocks = piece.blocks.clone();
                self.read_table((group, scanned), (table, blocks), &bitmap, &mut bytes)?;
            }
            if self.is_over() {
                break;
            }
        }
        self.part.bytes = self.part.bytes.saturating_add(base.piece_bytes(piece));
        Ok(())
    }

    /// Reads the inode bitmap, which is empty where it cannot be. The first piece of a group tells that, and
    /// looks for inodes behind those that are scanned.
    fn check_table_unused(
        &mut self,
        group: GroupIndex,
        descriptor: &GroupDescriptor,
        (scanned, is_first): (u32, bool),
        bitmap: &mut Vec<u8>,
    ) -> Result<(), CheckError> {
        bitmap.clear();
        if !self.in_range(descriptor.inode_bitmap.0, 1) {
            return Ok(());
        }
        if let Err(error) = self.read_block(descriptor.inode_bitmap.0, bitmap) {
            bitmap.clear();
            let problem =
                self.unreadable(error, || format!("the inode bitmap of group {group}"))?;
            if is_first {
                self.problem(problem);
            }
            return Ok(());
        }
        if !is_first {
            return Ok(());
        }
        let per_group = self.sb.inodes_per_group;
        if let Some(bit) = BitmapRef::new(bitmap).first_set(scanned..per_group) {
            let ino = Ino(group.0.saturating_mul(per_group).saturating_add(bit + 1));
            self.problem(Problem::TableUnused { group, ino, unused: per_group - scanned });
        }
        Ok(())
    }

    fn read_table(
        &mut self,
        (group, scanned): (GroupIndex, u32),
        (table, within): (u64, Range<u32>),
        bitmap: &[u8],
        bytes: &mut Vec<u8>,
    ) -> Result<(), CheckError> {
        let block = self.sb.block_size;
        let blocks = scanned.div_ceil(self.inodes_per_block()).min(within.end);
        let mut step = chunk_blocks(block);
        let mut at = within.start;
        while at < blocks {
            let take = step.min(blocks - at);
            match self.read_blocks(table + u64::from(at), take, bytes) {
                Ok(()) => self.check_chunk(Chunk { group, at, scanned }, bitmap, bytes)?,
                // Those that can be read, one by one.
                Err(_) if take > 1 && self.options.skip_unreadable => {
                    step = 1;
                    continue;
                }
                Err(error) => {
                    self.note_unreadable(error, || format!("the inode table of group {group}"))?;
                    self.mark_unread((group, scanned), at..at + take);
                }
            }
            if self.is_over() {
                break;
            }
            at += take;
        }
        Ok(())
    }

    /// Notes that nothing is known of the inodes in blocks of a table, so that what leads to them
    /// is not taken for damage.
    fn mark_unread(&self, (group, scanned): (GroupIndex, u32), blocks: Range<u32>) {
        let in_block = self.inodes_per_block();
        let to = blocks.end.saturating_mul(in_block).min(scanned);
        for index in blocks.start.saturating_mul(in_block)..to {
            let before = u64::from(group.0) * u64::from(self.sb.inodes_per_group);
            let Ok(ino) = u32::try_from(before + u64::from(index) + 1) else { break };
            self.states.set(Ino(ino), State::UNREAD);
        }
    }

    fn check_chunk(
        &mut self,
        chunk: Chunk,
        bitmap: &[u8],
        bytes: &mut [u8],
    ) -> Result<(), CheckError> {
        let size = self.record_bytes();
        let per_group = self.sb.inodes_per_group;
        let mut index = chunk.at * self.inodes_per_block();
        for block in bytes.chunks_exact_mut(self.sb.block_size.len()) {
            let number = u64::from(chunk.group.0) * u64::from(per_group) + u64::from(index) + 1;
            let Ok(number) = u32::try_from(number) else { break };
            let verifier = self.base.verifier.as_ref();
            let is_sound = verifier.is_some_and(|verifier| verifier.are_sound(Ino(number), block));
            for (ino, record) in (number..).zip(block.chunks_exact(size)) {
                if index >= chunk.scanned {
                    return Ok(());
                }
                if !self.take_plain(Ino(ino), record, is_sound) {
                    let is_marked = !bitmap.is_empty() && BitmapRef::new(bitmap).get(index);
                    self.check_record(Ino(ino), record, Outside { is_marked, is_sound })?;
                }
                index = index.saturating_add(1);
            }
        }
        Ok(())
    }
}

impl Scan<'_, '_> {
    /// Takes an inode for what it is, if it is a plain file. False when it has to be looked at.
    fn take_plain(&mut self, ino: Ino, record: &[u8], is_sound: bool) -> bool {
        let runs = self.base.plain.and_then(|plain| plain.runs(ino, record, is_sound));
        let Some(runs) = runs else { return false };
        if !runs.list().iter().all(|(block, len)| self.in_range(*block, *len)) {
            return false;
        }
        self.states.set(ino, State::new(Some(FileKind::Regular), false));
        for (block, len) in runs.list() {
            // What is claimed twice was told, and what is said of a map with such blocks is said of none.
            _ = self.claim(ino, *block, *len);
        }
        if self.counts_usage() {
            self.count_plain(ino, record);
        }
        true
    }

    /// Adds a plain file to what is known of owners, and to what a repair knows.
    fn count_plain(&mut self, ino: Ino, record: &[u8]) {
        let (mode, links) = (u16_at(record, record::MODE), u16_at(record, record::LINKS));
        let flags = InodeFlags::from_bits_retain(u32_at(record, record::FLAGS));
        let size = u64::from(u32_at(record, record::SIZE_LO));
        let sectors = u64::from(u32_at(record, record::BLOCKS_LO));
        if self.base.is_full {
            self.part.all.push(Whole { ino, mode, links, flags, size, sectors });
        }
        let id = |low, high| u32::from(u16_at(record, low)) | u32::from(u16_at(record, high)) << 16;
        // Behind the end of a small inode there is none.
        let owners = [id(0x2, 0x78), id(0x18, 0x7a), u32_at(record, 0x9c)];
        self.count_owners(ino, owners, sectors, 0);
    }
}

fn chunk_blocks(block: BlockSize) -> u32 {
    u32::try_from(CHUNK_BYTES / u64::from(block.bytes()).max(1)).unwrap_or(1).max(1)
}
