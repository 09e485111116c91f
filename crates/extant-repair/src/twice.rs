//! Blocks that two things claim: what comes later gets a copy.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use extant_base::{BlockCount, FsBlock, GroupIndex, Ino};
use extant_format::extent::{Extent, ExtentState, UNWRITTEN_LEN_MAX};
use extant_format::features::Incompat;
use extant_format::record::TRANSLATOR;
use extant_format::xattr;

use crate::error::Fixed;
use crate::space::Bits;
use crate::state::State;
use extant_change::{FileMap, end_of};

/// Clusters of superblocks, descriptors, bitmaps and tables.
fn fixed(state: &State) -> Bits {
    let mut bits = Bits::new(state.sb.group_count, state.sb.clusters_per_group);
    let mut add = |block: u64, len: u64| {
        if len == 0 || block.saturating_add(len) > state.sb.blocks_count {
            return;
        }
        for cluster in state.cluster(block)..=state.cluster(block + len - 1) {
            bits.set(cluster);
        }
    };
    for group in state.heads.groups() {
        let blocks = state.heads.head(group).blocks();
        add(blocks.start, blocks.end.saturating_sub(blocks.start));
    }
    let table = u64::from(state.sb.inode_table_blocks());
    for number in 0..state.sb.group_count {
        let Some(descriptor) = state.groups.get(GroupIndex(number).0 as usize) else { break };
        add(descriptor.block_bitmap.0, 1);
        add(descriptor.inode_bitmap.0, 1);
        add(descriptor.inode_table.0, table);
    }
    if state.sb.features.has_incompat(Incompat::MMP) && state.sb.mmp_block.0 != 0 {
        add(state.sb.mmp_block.0, 1);
    }
    bits
}

/// Gives each of `inodes` copies of the blocks that something before it has: fixed metadata, an inode of
/// a lower number, or the file itself.
pub(crate) fn fix(state: &mut State, inodes: &BTreeSet<Ino>) -> Fixed {
    let mut claimed = fixed(state);
    // Blocks of attributes, and where their copies are: those who share a block share its copy.
    let mut attribute_blocks = BTreeMap::<u64, Option<u64>>::new();
    let all: Vec<Ino> = state.exam.inodes().map(|view| view.ino).collect();
    // Its lists are in the reserve, which is fixed; the block that lists them is its own, and cannot be copied: whoever
    // comes before it gets the copy.
    let for_resize = inodes.contains(&Ino::RESIZE);
    if all.contains(&Ino::RESIZE) {
        let record = state.load(Ino::RESIZE)?;
        let double = u64::from(extant_format::record::u32_at(&record.block_area(), 13 * 4));
        if state.in_range(double, 1) {
            claimed.set(state.cluster(double));
        }
    }
    for ino in all {
        if ino == Ino::RESIZE {
            continue;
        }
        let mut record = state.load(ino)?;
        let acl = record.file_acl(state.is_wide()).0;
        let mut changed = false;
        if acl != 0 && state.in_range(acl, 1) {
            let cluster = state.cluster(acl);
            let may_copy = for_resize || inodes.contains(&ino);
            let to = match attribute_blocks.get(&acl) {
                Some(copied) => *copied,
                None if claimed.get(cluster) && may_copy => Some(copy_attributes(state, acl)?),
                None => None,
            };
            attribute_blocks.insert(acl, to);
            claimed.set(cluster);
            if let Some(to) = to.filter(|_| may_copy) {
                record.set_file_acl(to, state.is_wide());
                changed = true;
            }
        }
        let map = state.read_map(&record)?;
        let (extents, has_copies) =
            part(state, &map, &mut claimed, for_resize || inodes.contains(&ino))?;
        // A block that is no node of the map, because it is something else, is none either when it is copied.
        let loses_nodes = inodes.contains(&ino) && map.lost_nodes != 0;
        if has_copies || loses_nodes {
            state.write_map(&mut record, &extents)?;
            changed = true;
        }
        let translator = state.translator(&record);
        if translator != 0 && state.has_map(&record) && state.in_range(translator, 1) {
            let cluster = state.cluster(translator);
            // Nobody knows whether it is one: of a Linux that lost its name, the field is a count of changes.
            if claimed.get(cluster) && inodes.contains(&ino) {
                record.put32(TRANSLATOR, 0);
                changed = true;
            } else {
                claimed.set(cluster);
            }
        }
        if changed {
            state.store(&record)?;
        }
    }
    Ok(())
}

/// Clusters that an inode has, in order and each once: as many ranges as its map has extents, however long they are.
fn clusters(state: &State, ino: Ino) -> Fixed<Vec<Range<u64>>> {
    let record = state.load(ino)?;
    let map = state.read_map(&record)?;
    let range = |first: u64, len: u64| {
        state.cluster(first)..state.cluster(first + len.max(1) - 1).saturating_add(1)
    };
    let nodes = map.nodes.iter().map(|node| range(*node, 1));
    let extents = map.extents.iter();
    let extents = extents.map(|extent| range(extent.device_start.0, u64::from(extent.len.0)));
    let mut own: Vec<_> = nodes.chain(extents).collect();
    own.sort_unstable_by_key(|range| range.start);
    own.dedup_by(|next, last| {
        let goes_on = next.start <= last.end;
        if goes_on {
            last.end = last.end.max(next.end);
        }
        goes_on
    });
    Ok(own)
}

/// Clusters that the file system itself and a file have, or two files.
pub(crate) fn shared(state: &State) -> Fixed<Bits> {
    let mut claimed = fixed(state);
    let mut shared = Bits::new(state.sb.group_count, state.sb.clusters_per_group);
    for view in state.exam.inodes() {
        for cluster in clusters(state, view.ino)?.into_iter().flatten() {
            if claimed.get(cluster) && view.ino != Ino::RESIZE {
                shared.set(cluster);
            }
            claimed.set(cluster);
        }
    }
    Ok(shared)
}

/// Returns whether the map of an inode leads to one of these clusters.
pub(crate) fn lies_in(state: &State, shared: &Bits, ino: Ino) -> Fixed<bool> {
    Ok(clusters(state, ino)?.into_iter().flatten().any(|cluster| shared.get(cluster)))
}

/// The extents of a map with copies in place of clusters that are claimed, if `may_copy`; what is not is
/// claimed now.
fn part(
    state: &mut State,
    map: &FileMap,
    claimed: &mut Bits,
    may_copy: bool,
) -> Fixed<(Vec<Extent>, bool)> {
    let bits = state.sb.cluster_bits();
    let mut has_copies = false;
    for node in &map.nodes {
        let cluster = state.cluster(*node);
        has_copies |= claimed.get(cluster);
        claimed.set(cluster);
    }
    let mask = (1u64 << bits) - 1;
    let first = u64::from(state.sb.first_data_block);
    // Clusters of this file: the logical one, the physical one, the copy's first block.
    let mut copies = BTreeMap::<(u64, u64), u64>::new();
    let mut own = BTreeSet::<(u64, u64)>::new();
    // Places of the file's clusters on the device.
    let mut homes = BTreeMap::<u64, u64>::new();
    let mut extents = Vec::with_capacity(map.extents.len());
    for extent in &map.extents {
        let mut at = 0u64;
        while at < u64::from(extent.len.0) {
            let device = extent.device_start.0 + at;
            let logical = (u64::from(extent.file_start.0) + at) >> bits;
            let cluster = state.cluster(device);
            let take = (mask + 1 - (device.saturating_sub(first) & mask))
                .min(u64::from(extent.len.0) - at);
            let mut place = device;
            let key = (logical, cluster);
            let home = homes.get(&logical).copied();
            if let Some(start) = home.filter(|start| bits != 0 && state.cluster(*start) != cluster)
                && may_copy
            {
                // The other blocks of this cluster of the file are there.
                place = start + (device.saturating_sub(first) & mask);
                copy(state, extent.state, device, place, take)?;
                has_copies = true;
            } else if let Some(start) = copies.get(&key) {
                place = start + (device.saturating_sub(first) & mask);
                copy(state, extent.state, device, place, take)?;
            } else if claimed.get(cluster) && !own.contains(&key) {
                if may_copy {
                    let start = state.take_block()?;
                    copies.insert(key, start);
                    place = start + (device.saturating_sub(first) & mask);
                    copy(state, extent.state, device, place, take)?;
                    has_copies = true;
                }
            } else {
                if bits != 0 {
                    own.insert(key);
                }
                claimed.set(cluster);
            }
            if bits != 0 {
                homes.entry(logical).or_insert(place - (place.saturating_sub(first) & mask));
            }
            let piece = Extent {
                file_start: extant_base::FileBlock(extent.file_start.0 + at as u32),
                device_start: FsBlock(place),
                len: BlockCount(take as u32),
                state: extent.state,
            };
            append(&mut extents, piece);
            at += take;
        }
    }
    Ok((extents, has_copies && may_copy))
}

/// Adds blocks to those before them: a file has as many extents then as it needs, and not one for each block.
fn append(extents: &mut Vec<Extent>, piece: Extent) {
    if let Some(last) = extents.last_mut()
        && last.state == piece.state
        && end_of(last) == u64::from(piece.file_start.0)
        && last.device_start.0 + u64::from(last.len.0) == piece.device_start.0
        && last.len.0 + piece.len.0 <= UNWRITTEN_LEN_MAX
    {
        last.len.0 += piece.len.0;
        return;
    }
    extents.push(piece);
}

fn copy(state: &State, kind: ExtentState, from: u64, to: u64, len: u64) -> Fixed {
    if kind == ExtentState::Unwritten {
        return Ok(());
    }
    for block in 0..len {
        let bytes = state.read_block(from + block)?;
        state.write_block(to + block, &bytes)?;
    }
    Ok(())
}

fn copy_attributes(state: &mut State, from: u64) -> Fixed<u64> {
    let mut bytes = state.read_block(from)?;
    let to = state.take_block()?;
    if state.sb.features.metadata_csum() {
        xattr::seal(state.seed, FsBlock(to), &mut bytes);
    }
    state.write_block(to, &bytes)?;
    Ok(to)
}
