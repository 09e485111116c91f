//! Entries of directories, those before and behind damage as well.

use extant_base::Ino;
use extant_format::dir::{self, DirLayout, HEADER_BYTES, NAME_MAX, RECORD_MIN};
use extant_format::extent::ExtentState;
use extant_format::inline::{BLOCK_BYTES, PARENT_BYTES};
use extant_format::inode::InodeFlags;
use extant_format::record::{Record, u16_at, u32_at};

use crate::image::Image;
use crate::limits::Budget;
use crate::map::Piece;
use crate::report::{Reasons, Why};

/// Who is handed the entries of a directory.
type Each<'a, E> = &'a mut dyn FnMut(Ino, &[u8], &mut Budget) -> Result<(), E>;
/// Who is handed the entries of one block.
type EachOfBlock<'a, E> = &'a mut dyn FnMut(Ino, &[u8]) -> Result<(), E>;

/// Returns whether bytes can be the name of a file of the host.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Where the blocks of a directory are, as far as its map can be read.
pub(crate) struct Blocks {
    /// First block and length of each run.
    runs: Vec<(u64, u32)>,
    at: usize,
    within: u32,
}

impl Blocks {
    fn next(&mut self) -> Option<u64> {
        let (start, len) = *self.runs.get(self.at)?;
        let block = start + u64::from(self.within);
        self.within += 1;
        if self.within >= len {
            self.at += 1;
            self.within = 0;
        }
        Some(block)
    }
}

impl Image {
    /// Finds the blocks of a directory.
    pub(crate) fn blocks_of(
        &self,
        record: &Record,
        budget: &mut Budget,
        reasons: &mut Reasons,
    ) -> Blocks {
        let mut runs = Vec::new();
        if self.is_inline(record) {
            return Blocks { runs, at: 0, within: 0 };
        }
        // Directories have no holes: what no map has is lost, whichever block of it said so.
        let mut known = 0u64;
        let size = record.size().div_ceil(self.block_bytes() as u64);
        self.walk_map(record, budget, &mut |piece| {
            match piece {
                Piece::Node { .. } | Piece::Unwritten { .. } => {}
                Piece::Doubt { why } => *reasons.entry(why).or_default() += 1,
                // What is behind the end was never there.
                Piece::Lost { from, to, why } if from < size.max(1) => {
                    *reasons.entry(why).or_default() += 1;
                    known = known.saturating_add(to.min(size).saturating_sub(from));
                }
                Piece::Lost { .. } => {}
                Piece::Data { extent } => {
                    if extent.state == ExtentState::Written {
                        let from = u64::from(extent.file_start.0);
                        let to = from.saturating_add(u64::from(extent.len.0));
                        known = known.saturating_add(to.min(size).saturating_sub(from));
                        runs.push((extent.device_start.0, extent.len.0));
                    }
                }
            }
            true
        });
        if known < size && record.size() <= self.blocks.saturating_mul(self.block_bytes() as u64) {
            *reasons.entry(Why::Directory).or_default() += size - known;
        }
        Blocks { runs, at: 0, within: 0 }
    }

    /// Hands on all entries of a directory but `.` and `..`; block after block, so that memory does not grow with it.
    pub(crate) fn each_entry<E>(
        &self,
        record: &Record,
        budget: &mut Budget,
        reasons: &mut Reasons,
        each: Each<'_, E>,
    ) -> Result<(), E> {
        let stored_hash = record.has(InodeFlags::ENCRYPT | InodeFlags::CASEFOLD);
        let layout = DirLayout { stored_hash, ..self.dirs };
        if self.is_inline(record) {
            let area = record.block_area();
            let value = self.inline_value(record).unwrap_or(&[]);
            let mut is_whole = record.size() <= (BLOCK_BYTES + value.len()) as u64;
            for area in [area.get(PARENT_BYTES..).unwrap_or(&[]), value] {
                is_whole &= self.entries(area, layout, &mut |ino, name| each(ino, name, budget))?;
            }
            if !is_whole {
                *reasons.entry(Why::Inline).or_default() += 1;
            }
            return Ok(());
        }
        let mut blocks = self.blocks_of(record, budget, reasons);
        let seed = self.seed_of(record);
        let mut number = 0u64;
        while let Some(block) = blocks.next() {
            if !budget.node() {
                *reasons.entry(Why::TooMuch).or_default() += 1;
                break;
            }
            let Ok(bytes) = self.read_block(block) else {
                *reasons.entry(Why::Unreadable).or_default() += 1;
                continue;
            };
            // An index has checksums of its own, and no entries.
            let is_index = u32_at(&bytes, 0) == 0 && u16_at(&bytes, 4) == bytes.len() as u16;
            let is_root = record.has(InodeFlags::INDEX) && number == 0;
            // The first entry is the directory itself: without it, the block is another's.
            let is_own = number > 0 || is_index || u32_at(&bytes, 0) == record.ino.0;
            number += 1;
            let is_right = is_own
                && (!self.has_checksums()
                    || is_index
                    || is_root
                    || dir::verify(seed, &bytes).is_ok());
            let is_whole =
                self.entries(&bytes, layout, &mut |ino, name| each(ino, name, budget))?;
            if !is_whole || !is_right {
                *reasons.entry(Why::Directory).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Hands on the entries of a block. Behind damage, the next bytes that can be an entry are taken for one. Returns
    /// whether all of it was in order.
    fn entries<E>(
        &self,
        area: &[u8],
        layout: DirLayout,
        each: EachOfBlock<'_, E>,
    ) -> Result<bool, E> {
        let mut is_whole = true;
        let mut is_lost = false;
        let mut at = 0;
        while at + HEADER_BYTES <= area.len() {
            let Ok(entry) = dir::decode_entry(area, at, layout) else {
                is_whole = false;
                is_lost = true;
                at += 4;
                continue;
            };
            let is_used = entry.is_used();
            let is_possible = entry.ino.0 <= self.sb.inodes_count;
            // Among damage, only what is likely: a name of this kind, for an inode that there is.
            if is_lost && !(is_used && is_possible && is_name(entry.name)) {
                at += 4;
                continue;
            }
            is_lost = false;
            if is_used && !entry.is_dots() {
                if is_possible {
                    each(entry.ino, entry.name)?;
                } else {
                    is_whole = false;
                }
            }
            at += (entry.rec_len as usize).max(RECORD_MIN);
        }
        Ok(is_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_none() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b", &[b'x'; 256]] {
            assert!(!is_name(name), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b".a", b"\xff\n", &[b'x'; 255]] {
            assert!(is_name(name), "{name:?}");
        }
    }
}
