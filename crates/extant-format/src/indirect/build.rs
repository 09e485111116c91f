//! Building a map from runs.

use super::{IndirectFault, Path, ROOT_BYTES, max_file_blocks, path, span};
use crate::extent::{Extent, ExtentState};
use crate::le;
use alloc::vec;
use alloc::vec::Vec;
use extant_base::{BlockSize, FileBlock, FsBlock};

/// A whole indirect map, ready to be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BuiltMap {
    /// For `i_block`.
    pub root: [u8; ROOT_BYTES],
    /// The indirect blocks, each with where it goes; in the order of `next_block`.
    pub blocks: Vec<(FsBlock, Vec<u8>)>,
}

/// Returns how many indirect blocks a file needs whose data is in `runs`; holes need none.
///
/// # Errors
///
/// As [`build`], but device blocks are not looked at.
pub fn map_blocks(
    runs: impl IntoIterator<Item = (FileBlock, u64)>,
    size: BlockSize,
) -> Result<u64, IndirectFault> {
    let last = max_file_blocks(size).saturating_sub(1);
    let mut total = 0u64;
    // The last file block that is mapped so far.
    let mut before: Option<u64> = None;
    for (number, (start, len)) in runs.into_iter().enumerate() {
        let first = u64::from(start.0);
        let end = first.saturating_add(len);
        if len == 0 || before.is_some_and(|before| first <= before) {
            return Err(IndirectFault::Run { run: le::narrow(number) });
        }
        if end > last.saturating_add(1) {
            return Err(IndirectFault::PastMap { block: end.saturating_sub(1), last });
        }
        let final_block = end.saturating_sub(1);
        // One tree of each depth; the blocks of a level are numbered by division.
        let mut base = u64::from(super::DIRECT);
        for depth in 1..=3u8 {
            let reach = span(depth, size);
            let limit = base.saturating_add(reach);
            if final_block >= base && first < limit {
                let low = first.max(base).saturating_sub(base);
                let high = final_block.min(limit.saturating_sub(1)).saturating_sub(base);
                let seen = before.and_then(|before| before.checked_sub(base));
                for level in 1..=depth {
                    let per = span(level, size);
                    // `per` is a power of two, at least 256.
                    let nodes = |block: u64| block.checked_div(per).unwrap_or(0);
                    let mut from = nodes(low);
                    if seen.is_some_and(|seen| seen < reach && nodes(seen) == from) {
                        from = from.saturating_add(1);
                    }
                    total =
                        total.saturating_add(nodes(high).saturating_add(1).saturating_sub(from));
                }
            }
            base = limit;
        }
        before = Some(final_block);
    }
    Ok(total)
}

/// Builds the map of `runs`, which are written, in file order, and do not overlap.
///
/// `next_block` is called [`map_blocks`] times, when the first file block under an indirect block
/// is reached: a parent before its children.
///
/// # Errors
///
/// Those of `next_block`; `Run`, `PastMap`, `DeviceBlock` for runs that no map can hold.
pub fn build<E: From<IndirectFault>>(
    runs: &[Extent],
    size: BlockSize,
    mut next_block: impl FnMut() -> Result<FsBlock, E>,
) -> Result<BuiltMap, E> {
    let mut map = BuiltMap { root: [0; ROOT_BYTES], blocks: Vec::new() };
    let last = max_file_blocks(size).saturating_sub(1);
    let mut limit = 0u64;
    // The indirect blocks on the way to the last file block: their position in `map.blocks`.
    let mut open = Open { path: None, nodes: [0; 3] };
    for (number, run) in runs.iter().enumerate() {
        let first = u64::from(run.file_start.0);
        let is_data = run.len.0 > 0 && run.state == ExtentState::Written;
        if !is_data || first < limit {
            return Err(E::from(IndirectFault::Run { run: le::narrow(number) }));
        }
        limit = first.saturating_add(u64::from(run.len.0));
        if limit > last.saturating_add(1) {
            let block = limit.saturating_sub(1);
            return Err(E::from(IndirectFault::PastMap { block, last }));
        }
        for into in 0..run.len.0 {
            let block = FileBlock(run.file_start.0.saturating_add(into));
            let device = run.device_start.0.saturating_add(u64::from(into));
            let way = path(block, size)
                .ok_or(IndirectFault::PastMap { block: u64::from(block.0), last })?;
            open.descend(way, size, &mut map, &mut next_block)?;
            open.put(way, &mut map, device)?;
        }
    }
    Ok(map)
}

/// The way to the last file block.
struct Open {
    path: Option<Path>,
    /// Positions in [`BuiltMap::blocks`] of the indirect blocks on the way.
    nodes: [usize; 3],
}

impl Open {
    /// Makes the indirect blocks on the way to `way` that are not there yet.
    fn descend<E: From<IndirectFault>>(
        &mut self,
        way: Path,
        size: BlockSize,
        map: &mut BuiltMap,
        next_block: &mut impl FnMut() -> Result<FsBlock, E>,
    ) -> Result<(), E> {
        let inner = usize::from(way.depth());
        let shared = match self.path {
            Some(old) => {
                let same = |(a, b): &(&u32, &u32)| a == b;
                old.steps().iter().zip(way.steps()).take_while(same).count()
            }
            None => 0,
        };
        for level in shared.min(inner)..inner {
            let block = next_block()?;
            let prefix = Path { depth: u8::try_from(level).unwrap_or(0), slots: way.slots };
            self.put(prefix, map, block.0)?;
            if let Some(node) = self.nodes.get_mut(level) {
                *node = map.blocks.len();
            }
            map.blocks.push((block, vec![0; size.len()]));
        }
        self.path = Some(way);
        Ok(())
    }

    /// Stores `device` in the last slot of `way`.
    fn put(&self, way: Path, map: &mut BuiltMap, device: u64) -> Result<(), IndirectFault> {
        let fault = IndirectFault::DeviceBlock { block: device };
        let raw = u32::try_from(device).ok().filter(|raw| *raw != 0).ok_or(fault)?;
        let slot = way.steps().last().copied().unwrap_or(0);
        let at = le::index(slot).saturating_mul(super::POINTER_BYTES);
        let bytes: Option<&mut [u8]> = match usize::from(way.depth()).checked_sub(1) {
            None => Some(&mut map.root),
            Some(level) => self
                .nodes
                .get(level)
                .and_then(|node| map.blocks.get_mut(*node))
                .map(|(_, bytes)| bytes.as_mut_slice()),
        };
        bytes.and_then(|bytes| le::put(bytes, at, &raw.to_le_bytes())).ok_or(fault)
    }
}
