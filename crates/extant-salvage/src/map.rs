//! Where a file's blocks are, as far as its map can be read.

use extant_base::{BlockCount, FileBlock, FsBlock};
use extant_format::extent::{self, Extent, ExtentState};
use extant_format::indirect;
use extant_format::record::{Record, u16_at, u32_at};

use crate::image::Image;
use crate::limits::{Budget, DEPTH_MAX};
use crate::report::Why;

/// What a map says, piece by piece, in the order in which it says it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece {
    /// File blocks on blocks of the image.
    Data { extent: Extent },
    /// Blocks of the image that are the file's, and read as zeros.
    Unwritten { first: u64, len: u32 },
    /// File blocks, from the first to behind the last, of which nothing is known.
    Lost { from: u64, to: u64, why: Why },
    /// A block of the map.
    Node { block: u64 },
    /// Something that was taken as it is.
    Doubt { why: Why },
}

/// Returns whether bytes begin as a node of an extent tree.
pub(crate) fn is_node(bytes: &[u8]) -> bool {
    u16_at(bytes, 0) == extent::MAGIC
}

/// Behind the last file block that there can be.
const END: u64 = 1 << 32;

struct Walk<'a> {
    image: &'a Image,
    budget: &'a mut Budget,
    seed: u32,
    /// Blocks that this file may still have.
    left: u64,
    each: &'a mut dyn FnMut(Piece) -> bool,
    is_over: bool,
}

impl Image {
    /// Walks the map of an inode until `each` says no. Ends after as many nodes and blocks as there can be.
    pub(crate) fn walk_map(
        &self,
        record: &Record,
        budget: &mut Budget,
        each: &mut dyn FnMut(Piece) -> bool,
    ) {
        let area = record.block_area();
        let mut walk = Walk {
            image: self,
            budget,
            seed: self.seed_of(record),
            left: self.blocks,
            each,
            is_over: false,
        };
        if self.has_tree(record) {
            let depth = u16_at(&area, 6);
            if is_node(&area) && depth < DEPTH_MAX {
                walk.node(&area, depth, 0, END);
            } else {
                walk.lost(0, END, Why::Map);
            }
            return;
        }
        let size = self.sb.block_size;
        walk.pointers(area.get(..48).unwrap_or(&[]), 0);
        let mut start = 12u64;
        for depth in 1..=3u8 {
            let block = u64::from(u32_at(&area, 44 + 4 * usize::from(depth)));
            if block != 0 {
                walk.pointer_block(block, depth, start);
            }
            start = start.saturating_add(indirect::span(depth, size));
        }
    }
}

impl Walk<'_> {
    fn say(&mut self, piece: Piece) {
        if !self.is_over && !(self.each)(piece) {
            self.is_over = true;
        }
    }

    fn lost(&mut self, from: u64, to: u64, why: Why) {
        self.say(Piece::Lost { from, to: to.max(from.saturating_add(1)), why });
    }

    /// Reads a block of the map that covers the file blocks `from..to`.
    fn read(&mut self, block: u64, from: u64, to: u64) -> Option<Vec<u8>> {
        if self.is_over {
            return None;
        }
        if !self.budget.node() {
            self.lost(from, to, Why::TooMuch);
            self.is_over = true;
            return None;
        }
        match self.image.read_block(block) {
            Ok(bytes) => Some(bytes),
            Err(_) => {
                self.lost(from, to, Why::Map);
                None
            }
        }
    }

    fn node(&mut self, bytes: &[u8], depth: u16, from: u64, to: u64) {
        let room = bytes.len().saturating_sub(12) / 12;
        let said = usize::from(u16_at(bytes, 2));
        let entries = said.min(room);
        let record = |number: usize| bytes.get((number + 1) * 12..(number + 2) * 12);
        // Entries for file blocks that are not this node's: it is another's, or they are damaged. What they were
        // for is lost: everything up to the next entry that is to be believed.
        let (mut strangers, mut known) = (false, from);
        for number in 0..entries {
            let Some(raw) = record(number).filter(|_| !self.is_over) else { return };
            let first = u64::from(u32_at(raw, 0));
            if !(from..to).contains(&first) {
                strangers = true;
                continue;
            }
            if strangers && first > known {
                self.lost(known, first, Why::Map);
            }
            strangers = false;
            if first < known && number > 0 {
                // Entries are in order, and none reaches over the next: one of the two is damaged.
                self.say(Piece::Doubt { why: Why::Map });
            }
            if depth == 0 {
                known = known.max(self.extent(raw, to));
                continue;
            }
            let next = match record(number + 1) {
                Some(raw) if number + 1 < entries => u64::from(u32_at(raw, 0)),
                _ => to,
            };
            let (first, next) =
                if (first + 1..=to).contains(&next) { (first, next) } else { (first, to) };
            known = next;
            let child = u64::from(u32_at(raw, 4)) | (u64::from(u16_at(raw, 8)) << 32);
            let Some(node) = self.read(child, first, next) else { continue };
            let below = u16_at(&node, 6);
            if !is_node(&node) || below >= depth {
                self.lost(first, next, Why::Map);
                continue;
            }
            if self.image.has_checksums() && extent::verify(self.seed, &node).is_err() {
                self.say(Piece::Doubt { why: Why::MapChecksum });
            }
            self.say(Piece::Node { block: child });
            self.node(&node, below, first, next);
        }
        if said > entries {
            self.lost(from, to, Why::Map);
        } else if strangers && known < to {
            self.lost(known, to, Why::Map);
        }
    }

    /// Hands on an extent, as far as it ends before `to`; returns where it ends.
    fn extent(&mut self, raw: &[u8], to: u64) -> u64 {
        let start = u32_at(raw, 0);
        let (len, state) = match u32::from(u16_at(raw, 4)) {
            len @ ..=0x8000 => (len, ExtentState::Written),
            len => (len - 0x8000, ExtentState::Unwritten),
        };
        let device = u64::from(u32_at(raw, 8)) | (u64::from(u16_at(raw, 6)) << 32);
        let end = u64::from(start) + u64::from(len);
        if len == 0 || end > END {
            self.lost(u64::from(start), end.min(END), Why::Map);
            return end.min(END);
        }
        let within = end.min(to).saturating_sub(u64::from(start)) as u32;
        if within < len {
            // The rest is for file blocks of another node.
            self.say(Piece::Doubt { why: Why::Map });
        }
        if state == ExtentState::Unwritten {
            // Zeros, wherever it lies.
            self.say(Piece::Unwritten { first: device, len: within });
        } else {
            self.data(start, device, within, state);
        }
        end.min(to)
    }

    /// File blocks on a run of the image: what lies outside of it is lost.
    fn data(&mut self, start: u32, device: u64, len: u32, state: ExtentState) {
        let from = u64::from(start);
        let inside = match self.image.in_range(device, 1) {
            true => u64::from(len).min(self.image.blocks - device) as u32,
            false => 0,
        };
        if u64::from(inside) > self.left {
            self.lost(from, from + u64::from(len), Why::TooMuch);
            self.is_over = true;
            return;
        }
        self.left -= u64::from(inside);
        if inside > 0 {
            let extent = Extent {
                file_start: FileBlock(start),
                device_start: FsBlock(device),
                len: BlockCount(inside),
                state,
            };
            self.say(Piece::Data { extent });
        }
        if inside < len {
            self.lost(from + u64::from(inside), from + u64::from(len), Why::Outside);
        }
    }

    fn pointer_block(&mut self, block: u64, depth: u8, start: u64) {
        let span = indirect::span(depth, self.image.sb.block_size);
        let Some(bytes) = self.read(block, start, start.saturating_add(span).min(END)) else {
            return;
        };
        self.say(Piece::Node { block });
        if depth == 1 {
            self.pointers(&bytes, start);
            return;
        }
        let span = indirect::span(depth - 1, self.image.sb.block_size);
        for (slot, child) in indirect::blocks(&bytes).enumerate() {
            if self.is_over {
                return;
            }
            if let Some(child) = child {
                let at = start.saturating_add(span.saturating_mul(slot as u64));
                if at < END {
                    self.pointer_block(child.0, depth - 1, at);
                }
            }
        }
    }

    fn pointers(&mut self, bytes: &[u8], start: u64) {
        let mut slot = 0;
        while let Some((first, len)) = indirect::run_at(bytes, slot) {
            let at = start.saturating_add(u64::from(slot));
            if self.is_over || at.saturating_add(u64::from(len)) > END {
                return;
            }
            if let Some(first) = first {
                self.data(at as u32, first.0, len, ExtentState::Written);
            }
            slot += len.max(1);
        }
    }
}
