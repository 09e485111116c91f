//! Files mapped by block pointers, as in ext2 and ext3.

use std::sync::Arc;

use extant_base::{FileBlock, FsBlock, Ino};
use extant_format::indirect;

use super::{FILE_BLOCKS_END, Mapping, MappingKind};
use crate::error::Result;
use crate::slot::MetaBlock;
use crate::volume::Volume;

/// Follows pointers, and remembers the last block of pointers.
#[derive(Debug, Default)]
pub(super) struct IndirectCursor {
    last: Option<Arc<MetaBlock>>,
}

impl IndirectCursor {
    /// Returns the run of consecutive pointers, or the hole, at `at`. A hole covers everything that
    /// a missing pointer block would have mapped.
    pub(super) fn piece(
        &mut self,
        volume: &Volume,
        ino: Ino,
        root: &[u8; indirect::ROOT_BYTES],
        at: FileBlock,
    ) -> Result<Mapping> {
        let size = volume.block_size();
        let block = u64::from(at.0);
        let hole = |len: u64| Mapping { file_start: at, len, kind: MappingKind::Hole };
        let Some(path) = indirect::path(at, size) else {
            return Ok(hole(FILE_BLOCKS_END - block));
        };
        let Some((root_slot, slots)) = path.steps().split_first() else {
            return Ok(hole(1));
        };
        let depth = path.depth();
        let root = root.as_slice();
        let Some((last_slot, upper_slots)) = slots.split_last() else {
            // A run of direct pointers ends with the last of them.
            return Ok(run(at, root.get(..indirect::DIRECT as usize * 4), *root_slot));
        };
        // Number of blocks from `at` to the end of the range of one pointer at `level`; level 0 is
        // data. The parts before the first block at a level are whole multiples of its span.
        let first = block - u64::from(indirect::DIRECT) - before(depth, size);
        let rest_of_span = |level: u8| {
            let span = indirect::span(level, size);
            span - first % span
        };
        let mut level = depth;
        let Some(mut node) = indirect::block_at(root, *root_slot).block() else {
            return Ok(hole(rest_of_span(level)));
        };
        for slot in upper_slots {
            level -= 1;
            let bytes = self.load(volume, ino, node)?;
            let Some(child) = indirect::block_at(bytes.bytes(), *slot).block() else {
                return Ok(hole(rest_of_span(level)));
            };
            node = child;
        }
        let bytes = self.load(volume, ino, node)?;
        let piece = run(at, Some(bytes.bytes()), *last_slot);
        self.last = Some(bytes);
        Ok(piece)
    }

    /// Returns a block of pointers: the remembered one, or from the cache.
    fn load(&self, volume: &Volume, ino: Ino, block: FsBlock) -> Result<Arc<MetaBlock>> {
        if let Some(last) = &self.last
            && last.number() == block
        {
            return Ok(Arc::clone(last));
        }
        volume.check_file_blocks("indirect block pointer", ino, None, block, 1)?;
        volume.read_block(block)
    }
}

/// Returns the number of file blocks after the direct ones that pointers of lower depth than
/// `depth` cover.
fn before(depth: u8, size: extant_base::BlockSize) -> u64 {
    (1..depth).map(|level| indirect::span(level, size)).sum()
}

/// Returns the run of consecutive pointers that starts at `slot`.
fn run(at: FileBlock, pointers: Option<&[u8]>, slot: u32) -> Mapping {
    let (device, len) = pointers.and_then(|p| indirect::run_at(p, slot)).unwrap_or((None, 1));
    let kind = device.map_or(MappingKind::Hole, MappingKind::Mapped);
    Mapping { file_start: at, len: u64::from(len), kind }
}
