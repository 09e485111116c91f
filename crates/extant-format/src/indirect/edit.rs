//! Changing a map: putting runs in, taking ranges out, giving blocks other places.
//!
//! # Invariants
//!
//! - All pointer blocks that an insertion needs are taken before its first write: without space,
//!   the map stays as it was.
//! - After each call no pointer block that the call has touched is without a pointer.
//! - A walk passes at most three pointer blocks, whatever they say.

use super::{
    DIRECT, IndirectFault, POINTER_BYTES, ROOT_BYTES, block_at, max_file_blocks, path, pointers,
    span,
};
use crate::extent::{Extent, ExtentState, Removed};
use crate::le;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use extant_base::{BlockCount, BlockSize, FileBlock, FsBlock};

/// The place of the pointer blocks of one file's map.
pub trait PointerStore {
    /// The error of the store's operations.
    type Error;
    /// A pointer block, borrowed or shared.
    type Bytes: AsRef<[u8]>;

    /// The 60 bytes of `i_block`.
    fn root(&mut self) -> Result<[u8; ROOT_BYTES], Self::Error>;
    /// Replaces them.
    fn set_root(&mut self, root: &[u8; ROOT_BYTES]) -> Result<(), Self::Error>;
    /// A pointer block; the number may be any.
    fn read(&mut self, block: FsBlock) -> Result<Self::Bytes, Self::Error>;
    /// Changes a pointer block that was read before.
    fn edit(&mut self, block: FsBlock, change: impl FnOnce(&mut [u8])) -> Result<(), Self::Error>;
    /// Fills a block that [`reserve`](Self::reserve) gave with zeros.
    fn create(&mut self, block: FsBlock) -> Result<(), Self::Error>;
    /// Takes `count` blocks, below block 2^32: all of them or none.
    fn reserve(&mut self, count: usize) -> Result<Vec<FsBlock>, Self::Error>;
    /// Gives a pointer block back.
    fn free(&mut self, block: FsBlock) -> Result<(), Self::Error>;
    /// The block size.
    fn size(&self) -> BlockSize;
    /// The error for what cannot be done.
    fn fault(&self, fault: IndirectFault) -> Self::Error;
}

/// Stores number `slot` of `i_block` or of a pointer block; 0 for `None`. Nothing happens past the
/// end. The block must be below 2^32.
pub fn put_block(bytes: &mut [u8], slot: u32, block: Option<FsBlock>) {
    let raw = block.map_or(0, |block| u32::try_from(block.0).unwrap_or(0));
    if let Some(at) = le::index(slot).checked_mul(POINTER_BYTES) {
        let _nothing_past_the_end = le::put(bytes, at, &raw.to_le_bytes());
    }
}

/// Maps a written run, of which nothing may be mapped yet.
///
/// # Errors
///
/// Those of the store; `Overlap`, `PastMap`, `DeviceBlock`, `Run` for an unwritten one. The map is
/// then as it was, unless the store fails to write.
pub fn insert<S: PointerStore>(store: &mut S, run: Extent) -> Result<(), S::Error> {
    let size = store.size();
    let (first, len) = (u64::from(run.file_start.0), u64::from(run.len.0));
    let end = first.saturating_add(len);
    let limit = max_file_blocks(size);
    if len == 0 || run.state != ExtentState::Written {
        return Err(store.fault(IndirectFault::Run { run: 0 }));
    }
    if end > limit {
        let (block, last) = (end.saturating_sub(1), limit.saturating_sub(1));
        return Err(store.fault(IndirectFault::PastMap { block, last }));
    }
    let device_end = run.device_start.0.saturating_add(len);
    if run.device_start.0 == 0 || device_end > 1 << 32 {
        return Err(store.fault(IndirectFault::DeviceBlock { block: run.device_start.0 }));
    }
    let mut missing = BTreeSet::new();
    for (at, chunk) in chunks(first, end, size) {
        look(store, at, chunk, &mut missing)?;
    }
    let mut spare = store.reserve(missing.len())?;
    for (at, chunk) in chunks(first, end, size) {
        let device = run.device_start.0.saturating_add(at.saturating_sub(first));
        fill(store, at, chunk, device, &mut spare)?;
    }
    Ok(())
}

/// Points each mapped block of `start..end` (file blocks) to a device block as far behind `to` as it is behind
/// `start`. Holes stay. No pointer block is added or freed.
///
/// # Errors
///
/// Those of the store; `DeviceBlock` for places that no pointer can name, and then nothing has changed.
///
/// # Cost
///
/// Reads and writes the lowest pointer blocks of the range.
pub fn remap<S: PointerStore>(
    store: &mut S,
    (start, end): (u64, u64),
    to: FsBlock,
) -> Result<(), S::Error> {
    let size = store.size();
    let end = end.min(max_file_blocks(size));
    let device_end = to.0.saturating_add(end.saturating_sub(start));
    if to.0 == 0 || device_end > 1 << 32 {
        return Err(store.fault(IndirectFault::DeviceBlock { block: to.0 }));
    }
    for (at, len) in chunks(start, end, size) {
        let (mut slot, rest) = steps(store, at)?;
        let (mut node, mut is_hole) = (None, false);
        for next in rest {
            let child = pointer(store, node, slot)?;
            is_hole |= child.is_none();
            (node, slot) = (child, next);
            if is_hole {
                break;
            }
        }
        if is_hole {
            continue;
        }
        let device = to.0.saturating_add(at.saturating_sub(start));
        change(store, node, |bytes| {
            for into in 0..len {
                let slot = slot.saturating_add(u32::try_from(into).unwrap_or(u32::MAX));
                if block_at(bytes, slot).block().is_some() {
                    put_block(bytes, slot, Some(FsBlock(device.saturating_add(into))));
                }
            }
        })?;
    }
    Ok(())
}

/// The parts of a range that each lie in one lowest pointer block, or among the direct ones.
fn chunks(first: u64, end: u64, size: BlockSize) -> impl Iterator<Item = (u64, u64)> {
    let direct = u64::from(DIRECT);
    let mut at = first;
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let per = span(1, size);
        let stop = match at.checked_sub(direct) {
            None => direct,
            // `per` is a power of two.
            Some(past) => {
                (past & !per.saturating_sub(1)).saturating_add(per).saturating_add(direct)
            }
        };
        let (start, len) = (at, stop.min(end).saturating_sub(at));
        at = stop;
        Some((start, len))
    })
}

/// The steps to a file block that has a path.
fn steps<S: PointerStore>(store: &S, at: u64) -> Result<(u32, Vec<u32>), S::Error> {
    let size = store.size();
    let way = u32::try_from(at).ok().and_then(|at| path(FileBlock(at), size));
    let found = way.as_ref().and_then(|way| way.steps().split_first());
    let last = max_file_blocks(size).saturating_sub(1);
    let fault = IndirectFault::PastMap { block: at, last };
    found.map(|(root, rest)| (*root, rest.to_vec())).ok_or_else(|| store.fault(fault))
}

/// Which pointer blocks are missing on the way to a chunk, and whether it is free.
fn look<S: PointerStore>(
    store: &mut S,
    at: u64,
    len: u64,
    missing: &mut BTreeSet<Vec<u32>>,
) -> Result<(), S::Error> {
    let (mut slot, rest) = steps(store, at)?;
    let root = store.root()?;
    let mut held: Option<S::Bytes> = None;
    let mut way = Vec::new();
    let mut is_missing = false;
    for next in rest {
        way.push(slot);
        let bytes = held.as_ref().map_or(root.as_slice(), AsRef::as_ref);
        let child = block_at(bytes, slot).block().filter(|_| !is_missing);
        match child {
            Some(child) => held = Some(store.read(child)?),
            // Everything below is missing too.
            None => {
                is_missing = true;
                missing.insert(way.clone());
            }
        }
        slot = next;
    }
    if is_missing {
        return Ok(());
    }
    let bytes = held.as_ref().map_or(root.as_slice(), AsRef::as_ref);
    for into in 0..len {
        let slot = slot.saturating_add(u32::try_from(into).unwrap_or(u32::MAX));
        if block_at(bytes, slot).block().is_some() {
            let block = at.saturating_add(into);
            return Err(store.fault(IndirectFault::Overlap { block }));
        }
    }
    Ok(())
}

/// Maps a chunk that [`look`] has looked at.
fn fill<S: PointerStore>(
    store: &mut S,
    at: u64,
    len: u64,
    device: u64,
    spare: &mut Vec<FsBlock>,
) -> Result<(), S::Error> {
    let (mut slot, rest) = steps(store, at)?;
    let mut node: Option<FsBlock> = None;
    for next in rest {
        let found = match node {
            None => block_at(&store.root()?, slot).block(),
            Some(block) => block_at(store.read(block)?.as_ref(), slot).block(),
        };
        let child = match found {
            Some(child) => child,
            None => {
                let full = IndirectFault::Overlap { block: at };
                let child = spare.pop().ok_or_else(|| store.fault(full))?;
                store.create(child)?;
                change(store, node, |bytes| put_block(bytes, slot, Some(child)))?;
                child
            }
        };
        node = Some(child);
        slot = next;
    }
    change(store, node, |bytes| {
        for into in 0..len {
            let slot = slot.saturating_add(u32::try_from(into).unwrap_or(u32::MAX));
            put_block(bytes, slot, Some(FsBlock(device.saturating_add(into))));
        }
    })
}

/// Changes a pointer block, or `i_block` for `None`.
fn change<S: PointerStore>(
    store: &mut S,
    node: Option<FsBlock>,
    change: impl FnOnce(&mut [u8]),
) -> Result<(), S::Error> {
    match node {
        Some(block) => store.edit(block, change),
        None => {
            let mut root = store.root()?;
            change(&mut root);
            store.set_root(&root)
        }
    }
}

/// A step down: the block that holds the pointer (`None` for `i_block`), and its slot there.
type Step = (Option<FsBlock>, u32);

/// Takes the last runs of file blocks `start..end` out, at most `most` of them and all from one
/// pointer block. The caller frees what they mapped, and calls again from [`Removed::end`] until it
/// is done: after every call the map is whole.
///
/// # Errors
///
/// Those of the store.
///
/// # Cost
///
/// Reads at most seven pointer blocks, and writes or frees at most four.
pub fn remove_step<S: PointerStore>(
    store: &mut S,
    (start, end): (u64, u64),
    most: usize,
) -> Result<Removed, S::Error> {
    let size = store.size();
    let mut end = end.min(max_file_blocks(size));
    let none = |end, done| Removed { extents: Vec::new(), end, done };
    // Only blocks that hold pointers on both sides of `end` make another round necessary: one of
    // each level.
    for _round in 0..=4 {
        if start >= end {
            return Ok(none(start, true));
        }
        let Some(last) = descend(store, end)? else { return Ok(none(start, true)) };
        let Last { steps, level, base, slots } = last;
        let under = span(level, size);
        let covered = base.saturating_add(u64::from(slots).saturating_mul(under));
        if covered <= start {
            return Ok(none(start, true));
        }
        let node = steps.last().copied();
        let at = match node {
            None => None,
            Some((block, slot)) => pointer(store, block, slot)?,
        };
        let (mut pointers, mut extents) = (numbers(store, at)?, Vec::new());
        let mut lowest = start.max(base);
        if level == 0 {
            let slot_of = |block: u64| usize::try_from(block.saturating_sub(base)).unwrap_or(0);
            let range = slot_of(start.max(base))..slot_of(end.min(covered));
            let (taken, all) = take_runs(&mut pointers, range, base, most.max(1));
            if let (false, Some(last)) = (all, taken.last()) {
                lowest = u64::from(last.file_start.0);
            }
            extents = taken;
        }
        let is_empty = pointers.iter().all(|raw| *raw == 0);
        if extents.is_empty() && !(is_empty && at.is_some()) {
            end = base.max(start);
            continue;
        }
        if is_empty && at.is_some() {
            unlink(store, steps)?;
        } else {
            change(store, at, |bytes| {
                for (place, raw) in bytes.chunks_exact_mut(POINTER_BYTES).zip(&pointers) {
                    place.copy_from_slice(&raw.to_le_bytes());
                }
            })?;
        }
        return Ok(Removed { extents, end: lowest, done: lowest <= start });
    }
    Ok(none(end, false))
}

/// The last pointer block that may map something.
struct Last {
    /// How to get there; empty for the direct pointers.
    steps: Vec<Step>,
    /// Blocks below one of its pointers are `span(level)`: 0 when they are data.
    level: u8,
    /// The first file block that it maps.
    base: u64,
    /// Pointers in it.
    slots: u32,
}

/// Goes down by the last pointers before file block `end`, to data or to a block without such a
/// pointer.
fn descend<S: PointerStore>(store: &mut S, end: u64) -> Result<Option<Last>, S::Error> {
    let size = store.size();
    let root = store.root()?;
    let per = pointers(size);
    for depth in (1..=3u8).rev() {
        let before: u64 = (1..depth).map(|level| span(level, size)).sum();
        let mut base = u64::from(DIRECT).saturating_add(before);
        let slot = u32::from(depth).saturating_add(DIRECT).saturating_sub(1);
        let Some(mut block) = block_at(&root, slot).block() else { continue };
        if base >= end {
            continue;
        }
        let mut steps: Vec<Step> = [(None, slot)].to_vec();
        let mut level = depth.saturating_sub(1);
        while level > 0 {
            let under = span(level, size);
            let bytes = store.read(block)?;
            let first_past = end.saturating_sub(base).div_ceil(under).min(u64::from(per));
            let found = (0..u32::try_from(first_past).unwrap_or(per))
                .rev()
                .find_map(|slot| block_at(bytes.as_ref(), slot).block().map(|child| (slot, child)));
            let Some((slot, child)) = found else { break };
            steps.push((Some(block), slot));
            base = base.saturating_add(u64::from(slot).saturating_mul(under));
            block = child;
            level = level.saturating_sub(1);
        }
        return Ok(Some(Last { steps, level, base, slots: per }));
    }
    Ok((end > 0).then_some(Last { steps: Vec::new(), level: 0, base: 0, slots: DIRECT }))
}

fn pointer<S: PointerStore>(
    store: &mut S,
    block: Option<FsBlock>,
    slot: u32,
) -> Result<Option<FsBlock>, S::Error> {
    Ok(match block {
        None => block_at(&store.root()?, slot).block(),
        Some(block) => block_at(store.read(block)?.as_ref(), slot).block(),
    })
}

/// The numbers of a pointer block, or those of `i_block`.
fn numbers<S: PointerStore>(store: &mut S, at: Option<FsBlock>) -> Result<Vec<u32>, S::Error> {
    let list = |bytes: &[u8]| {
        let raw = bytes.as_chunks::<POINTER_BYTES>().0;
        raw.iter().map(|raw| u32::from_le_bytes(*raw)).collect()
    };
    Ok(match at {
        None => list(&store.root()?),
        Some(block) => list(store.read(block)?.as_ref()),
    })
}

/// Clears runs of consecutive blocks from the end of `range` backwards; whether that was all.
fn take_runs(
    pointers: &mut [u32],
    range: core::ops::Range<usize>,
    base: u64,
    most: usize,
) -> (Vec<Extent>, bool) {
    let mut runs: Vec<Extent> = Vec::new();
    for slot in range.rev() {
        let Some(raw) = pointers.get_mut(slot) else { continue };
        if *raw == 0 {
            continue;
        }
        let device = FsBlock(u64::from(*raw));
        // Below 2^32, as every block that a map reaches.
        let file = base.saturating_add(u64::from(le::narrow(slot)));
        let file_start = FileBlock(u32::try_from(file).unwrap_or(u32::MAX));
        let continues = runs.last().is_some_and(|run| {
            run.file_start.0.checked_sub(1) == Some(file_start.0)
                && device.checked_add(1) == Some(run.device_start)
        });
        let is_full = runs.len() == most;
        match runs.last_mut() {
            Some(run) if continues => {
                (run.file_start, run.device_start) = (file_start, device);
                run.len = BlockCount(run.len.0.saturating_add(1));
            }
            _ if is_full => return (runs, false),
            _ => runs.push(Extent {
                file_start,
                device_start: device,
                len: BlockCount(1),
                state: ExtentState::Written,
            }),
        }
        *raw = 0;
    }
    (runs, true)
}

/// Frees the pointer block at the end of `steps`, and every one above that has no other pointer.
fn unlink<S: PointerStore>(store: &mut S, mut steps: Vec<Step>) -> Result<(), S::Error> {
    while let Some((block, slot)) = steps.pop() {
        if let Some(empty) = pointer(store, block, slot)? {
            store.free(empty)?;
        }
        let mut others = numbers(store, block)?;
        if let Some(raw) = others.get_mut(le::index(slot)) {
            *raw = 0;
        }
        if block.is_none() || others.iter().any(|raw| *raw != 0) {
            return change(store, block, |bytes| put_block(bytes, slot, None));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
