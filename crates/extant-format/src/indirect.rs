//! Indirect maps: how ext2 and ext3 find the blocks of a file.
//!
//! # Shape
//!
//! ```text
//! i_block[0..12]  -> data blocks 0..12
//! i_block[12]     -> block of P numbers -> data
//! i_block[13]     -> P numbers -> P numbers -> data
//! i_block[14]     -> P numbers -> P numbers -> P numbers -> data       P = block size / 4
//! ```
//!
//! A number of 0 is a hole, at any level. Numbers are 32 bits, little-endian; there are no
//! checksums and no unwritten state.
//!
//! # Invariants
//!
//! A [`Path`] has at most four steps, so a walk ends whatever the numbers say. That a number lies
//! inside the file system is for the crates above.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/ifork.rst`, "Direct/Indirect Block Addressing".

mod build;
mod edit;

pub use build::{BuiltMap, build, map_blocks};
pub use edit::{PointerStore, insert, put_block, remap, remove_step};

use crate::le;
use extant_base::{BlockSize, FileBlock, FsBlock};

/// Data blocks that the inode names itself.
pub const DIRECT: u32 = 12;
/// Numbers in `i_block`: twelve direct, one for each of three depths.
pub const SLOTS: usize = 15;
/// Bytes of `i_block`.
pub const ROOT_BYTES: usize = 60;
/// Bytes of a number.
pub const POINTER_BYTES: usize = 4;

/// A fault in a map, or in runs to be put into one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndirectFault {
    /// The slice is not a whole block.
    #[error("indirect block of {found} bytes, the block size is {wanted}")]
    Length {
        /// Bytes given.
        found: usize,
        /// The block size.
        wanted: usize,
    },
    /// A file block that no map of this block size reaches.
    #[error("file block {block} is past the last one of an indirect map, {last}")]
    PastMap {
        /// The file block.
        block: u64,
        /// The last one that can be mapped.
        last: u64,
    },
    /// A device block that does not fit 32 bits, or is 0.
    #[error("device block {block} cannot be in an indirect map: not in 1..=4294967295")]
    DeviceBlock {
        /// The device block.
        block: u64,
    },
    /// A new run covers a file block that is mapped already. Only when inserting.
    #[error("file block {block} is mapped already")]
    Overlap {
        /// The file block.
        block: u64,
    },
    /// A run starts before the end of the one before it, or is empty, or unwritten.
    #[error("run {run} of an indirect map is empty, unwritten, or not after the one before it")]
    Run {
        /// Which run, from 0.
        run: u32,
    },
}

/// The place of the number of a file block: a slot of `i_block`, then one of each indirect block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    depth: u8,
    slots: [u32; 4],
}

impl Path {
    /// The slot of `i_block`, 0..15, then the slot in each indirect block on the way down. One
    /// step for direct blocks, four for triply indirect ones.
    #[must_use]
    pub fn steps(&self) -> &[u32] {
        self.slots.get(..=usize::from(self.depth)).unwrap_or(&self.slots)
    }

    /// Indirect blocks on the way, 0..=3.
    #[must_use]
    pub fn depth(&self) -> u8 {
        self.depth
    }
}

/// Numbers in one indirect block.
#[must_use]
pub fn pointers(size: BlockSize) -> u32 {
    size.bytes() / 4
}

/// File blocks that a map reaches: 12 + P + P^2 + P^3, or 2^32 where file block numbers end first.
///
/// The kernel limits files without extents further, by their count of sectors (2^32 of 512 bytes
/// unless the file system has `huge_file`).
#[must_use]
pub fn max_file_blocks(size: BlockSize) -> u64 {
    let p = u64::from(pointers(size));
    let cube = p.saturating_mul(p).saturating_mul(p);
    u64::from(DIRECT)
        .saturating_add(p)
        .saturating_add(p.saturating_mul(p))
        .saturating_add(cube)
        .min(1 << 32)
}

/// Pointer blocks of a file whose first `blocks` blocks are all mapped.
#[must_use]
pub fn pointer_blocks(blocks: u64, size: BlockSize) -> u64 {
    let p = u64::from(pointers(size));
    let mut rest = blocks.saturating_sub(u64::from(DIRECT));
    let mut all = 0_u64;
    // Those that this level's trees reach, and the pointer blocks in each layer of the tree.
    let mut reach = p;
    for depth in 1..=3 {
        let here = rest.min(reach);
        let mut layer = here;
        for _ in 0..depth {
            layer = layer.div_ceil(p);
            all = all.saturating_add(layer);
        }
        rest = rest.saturating_sub(here);
        reach = reach.saturating_mul(p);
    }
    all
}

/// Returns where the number of `block` is; `None` when no map reaches it.
///
/// ```
/// # use extant_base::{BlockSize, FileBlock};
/// # use extant_format::indirect::path;
/// let size = BlockSize::new(1024).unwrap();
/// assert_eq!(path(FileBlock(11), size).unwrap().steps(), [11]);
/// assert_eq!(path(FileBlock(12), size).unwrap().steps(), [12, 0]);
/// assert_eq!(path(FileBlock(12 + 256), size).unwrap().steps(), [13, 0, 0]);
/// assert_eq!(path(FileBlock(12 + 256 + 65536 + 257), size).unwrap().steps(), [14, 0, 1, 1]);
/// ```
#[must_use]
pub fn path(block: FileBlock, size: BlockSize) -> Option<Path> {
    // P is a power of two: 2^8 to 2^14.
    let bits = size.log2().saturating_sub(2);
    let mask = pointers(size).saturating_sub(1);
    let Some(past_direct) = block.0.checked_sub(DIRECT) else {
        return Some(Path { depth: 0, slots: [block.0, 0, 0, 0] });
    };
    let rest = u64::from(past_direct);
    let slot = |rest: u64, level: u32| {
        // Below P by the mask.
        u32::try_from((rest >> bits.saturating_mul(level)) & u64::from(mask)).unwrap_or(0)
    };
    let single = 1u64 << bits;
    if rest < single {
        return Some(Path { depth: 1, slots: [12, slot(rest, 0), 0, 0] });
    }
    let rest = rest.saturating_sub(single);
    let double = single << bits;
    if rest < double {
        return Some(Path { depth: 2, slots: [13, slot(rest, 1), slot(rest, 0), 0] });
    }
    let rest = rest.saturating_sub(double);
    if rest < double << bits {
        let slots = [14, slot(rest, 2), slot(rest, 1), slot(rest, 0)];
        return Some(Path { depth: 3, slots });
    }
    None
}

/// File blocks below one number at `depth` (0 for a number that names data): P^depth.
#[must_use]
pub fn span(depth: u8, size: BlockSize) -> u64 {
    let bits = size.log2().saturating_sub(2);
    1u64.checked_shl(bits.saturating_mul(u32::from(depth))).unwrap_or(u64::MAX)
}

/// The numbers of `i_block`, or of an indirect block; `None` stands for a hole.
pub fn blocks(bytes: &[u8]) -> impl ExactSizeIterator<Item = Option<FsBlock>> + '_ {
    bytes.as_chunks::<POINTER_BYTES>().0.iter().map(|raw| decode(u32::from_le_bytes(*raw)))
}

/// What a slot of `i_block`, or of an indirect block, holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// The number of a block.
    Block(FsBlock),
    /// No number: a hole.
    Hole,
    /// The slot lies past the last one.
    PastEnd,
}

impl Slot {
    /// The block, if there is one.
    #[must_use]
    pub fn block(self) -> Option<FsBlock> {
        match self {
            Slot::Block(block) => Some(block),
            Slot::Hole | Slot::PastEnd => None,
        }
    }
}

/// What slot `slot` of `i_block`, or of an indirect block, holds.
#[must_use]
pub fn block_at(bytes: &[u8], slot: u32) -> Slot {
    let raw = le::index(slot).checked_mul(POINTER_BYTES).and_then(|at| le::u32_at(bytes, at));
    match raw {
        None => Slot::PastEnd,
        Some(raw) => decode(raw).map_or(Slot::Hole, Slot::Block),
    }
}

fn decode(raw: u32) -> Option<FsBlock> {
    (raw != 0).then(|| FsBlock(u64::from(raw)))
}

/// The run that starts at `slot`: how many numbers from there on are holes, or consecutive blocks.
///
/// For readers that want long runs. `None` past the end; else the length is at least 1.
#[must_use]
pub fn run_at(bytes: &[u8], slot: u32) -> Option<(Option<FsBlock>, u32)> {
    let first = match block_at(bytes, slot) {
        Slot::PastEnd => return None,
        slot => slot.block(),
    };
    let from = le::index(slot).checked_mul(POINTER_BYTES)?;
    let rest = bytes.get(from..)?;
    let mut len = 0u32;
    for found in blocks(rest) {
        let wanted = first.and_then(|first| first.checked_add(u64::from(len)));
        if found != wanted {
            break;
        }
        len = len.saturating_add(1);
    }
    Some((first, len))
}

/// Checks that `block` is a whole block of numbers.
pub fn check_length(block: &[u8], size: BlockSize) -> Result<(), IndirectFault> {
    let wanted = size.len();
    if block.len() == wanted {
        Ok(())
    } else {
        Err(IndirectFault::Length { found: block.len(), wanted })
    }
}

#[cfg(test)]
mod tests;
