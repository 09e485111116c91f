//! From a demand to a size: the one asked for, or the smallest that will do.
//!
//! # How the smallest size is found
//!
//! A file system one block larger has at most one free block more: the block itself, if it does
//! not become metadata of a new group. So from a size that is certainly too small, adding exactly
//! the shortfall can never step over the answer, and each step is repeated until nothing is
//! missing. What Linux keeps from data grows with the file system, and is part of the shortfall.
//! Rounding of inode tables can break the rule by a few blocks (a new group makes the tables of the
//! others smaller); then the surplus goes to the journal, so that the headroom is exact all the same.

use std::sync::Arc;

use extant_base::BlockSize;

use crate::base::Base;
use crate::geometry::{self, Geometry, GeometryError, SizeRequest};
use crate::options::{Feature, JournalOption, MkfsOptions};
use crate::plan::demand::{Demand, SizeFacts};
use crate::plan::layout::Layout;
use crate::plan::{Headroom, Ids, Plan, PlanError, auto_block_size, exact};
use crate::tree::Tree;

/// Rounds of the search. Each halves what is missing, or crosses one more group limit.
const ROUNDS_MAX: u32 = 10_000;
/// The least that [`Headroom::Room`] leaves free.
const ROOM_LEAST_BYTES: u64 = 32 << 20;
/// Rounds that place every file; the others only ask the geometry.
const PLACE_ROUNDS_MAX: u32 = 200;

/// Plans an image of a fixed size.
pub(super) fn fixed(
    tree: &Tree,
    mkfs: MkfsOptions,
    ids: Ids,
    bytes: u64,
    base: Option<&Arc<Base>>,
) -> Result<Plan, PlanError> {
    let size_bytes = bytes;
    if let Some(base) = base {
        let blocks = bytes / u64::from(base.superblock.block_size.bytes());
        let plan = in_frame(tree, &mkfs, ids, blocks, base)?;
        if let Some(plan) = plan.filter(|plan| plan.layout.missing_blocks == 0) {
            return Ok(plan);
        }
    }
    match at_size(tree, &mkfs, ids, bytes, base) {
        Ok(plan) if plan.layout.missing_blocks == 0 => Ok(plan),
        Ok(plan) => {
            let block_bytes = u64::from(plan.geometry().block_size.bytes());
            let missing_bytes = plan.layout.missing_blocks.saturating_mul(block_bytes);
            let needed_bytes =
                smallest_fixed(tree, &mkfs, ids, bytes.saturating_add(missing_bytes), base);
            Err(PlanError::DoesNotFit { size_bytes, missing_bytes, needed_bytes })
        }
        // Not even the metadata, or the inodes of all these files.
        Err(PlanError::Geometry(e)) if is_too_small(&e) => {
            match smallest_fixed(tree, &mkfs, ids, bytes, base) {
                Some(needed) => Err(PlanError::DoesNotFit {
                    size_bytes,
                    missing_bytes: needed - bytes,
                    needed_bytes: Some(needed),
                }),
                None => Err(e.into()),
            }
        }
        Err(e) => Err(e),
    }
}

/// A size, from one that is too small on, at which [`fixed`] succeeds: the smallest, or near it when
/// there was not even room for the metadata. `None` after too many steps.
fn smallest_fixed(
    tree: &Tree,
    mkfs: &MkfsOptions,
    ids: Ids,
    from: u64,
    base: Option<&Arc<Base>>,
) -> Option<u64> {
    let mut bytes = from;
    for _ in 0..PLACE_ROUNDS_MAX {
        let plan = match at_size(tree, mkfs, ids, bytes, base) {
            Ok(plan) => plan,
            Err(PlanError::Geometry(e)) if is_too_small(&e) => {
                bytes = bytes.checked_add((bytes / 16).max(1 << 16))?;
                continue;
            }
            Err(_) => return None,
        };
        let block_bytes = u64::from(plan.geometry().block_size.bytes());
        if plan.layout.missing_blocks == 0 {
            return Some(bytes.next_multiple_of(4096));
        }
        bytes = bytes.checked_add(plan.layout.missing_blocks.checked_mul(block_bytes)?)?;
    }
    None
}

/// The layout at a fixed size, whether everything fits or not.
fn at_size(
    tree: &Tree,
    mkfs: &MkfsOptions,
    ids: Ids,
    bytes: u64,
    base: Option<&Arc<Base>>,
) -> Result<Plan, PlanError> {
    let mut mkfs = mkfs.clone();
    let mut geometry = geometry::compute(&mkfs, SizeRequest::Device { bytes })?;
    let limit = geometry.inodes_count;
    let demand = demand_of(tree, &mkfs, &geometry, &ids, base, limit)?;
    let needed = demand.inodes_needed();
    if needed > u64::from(geometry.inodes_count) {
        let available = u64::from(geometry.inodes_count);
        if mkfs.inodes.is_some() || mkfs.bytes_per_inode.is_some() {
            return Err(PlanError::TooFewInodes { available, needed });
        }
        // mke2fs would fail half-way; here the number of files is known. Its rounding may take up
        // to a block of inodes from each group.
        let step = u64::from(geometry.inodes_per_block()) * u64::from(geometry.group_count);
        for extra in 0..4 {
            mkfs.inodes = Some(needed.saturating_add(extra * step));
            geometry = geometry::compute(&mkfs, SizeRequest::Device { bytes })?;
            if u64::from(geometry.inodes_count) >= needed {
                break;
            }
        }
        let available = u64::from(geometry.inodes_count);
        if available < needed {
            return Err(PlanError::TooFewInodes { available, needed });
        }
    }
    let layout = Layout::place(tree, &demand, geometry);
    Ok(Plan { options: mkfs, ids, reproducible: false, demand, layout })
}

/// Plans an image as small as the contents and the headroom allow.
pub(super) fn automatic(
    tree: &Tree,
    mkfs: MkfsOptions,
    ids: Ids,
    headroom: Headroom,
    base: Option<&Arc<Base>>,
) -> Result<Plan, PlanError> {
    let mut mkfs = mkfs;
    let block_size = auto_block_size(&mkfs);
    mkfs.block_size = Some(block_size);
    // Headroom that only root may use would not be the headroom that was asked for.
    mkfs.reserved_percent = mkfs.reserved_percent.or(Some(0.0));
    let block_bytes = u64::from(block_size.bytes());

    // A first geometry, far too small or large, for the facts that no size changes.
    let guess_blocks = guess_blocks(tree, block_size);
    let facts = geometry::compute(&mkfs, exact(guess_blocks, None))?;
    let has_journal = facts.journal.is_some();
    let limit = base.map_or(u32::MAX, |base| base.superblock.inodes_count);
    let demand = demand_of(tree, &mkfs, &facts, &ids, base, limit)?;
    let headroom_blocks = match headroom {
        Headroom::None => 0,
        Headroom::Percent(hundredths) => {
            let share = u128::from(demand.content_blocks) * u128::from(hundredths);
            u64::try_from(share.div_ceil(10_000)).unwrap_or(u64::MAX)
        }
        Headroom::Bytes(bytes) => block_size.blocks_for(bytes),
        Headroom::Room => {
            demand.content_blocks.div_ceil(10).max(block_size.blocks_for(ROOM_LEAST_BYTES))
        }
    };
    let cluster = u64::from(demand.cluster_blocks);
    let headroom_blocks = headroom_blocks.next_multiple_of(cluster);
    if let Some(base) = base
        && let Some(plan) = grown_from(tree, &mkfs, ids, headroom_blocks, base)?
    {
        return Ok(plan);
    }
    let inodes = inodes_wanted(&mkfs, &demand, headroom_blocks.saturating_mul(block_bytes))?;

    let mut blocks = demand
        .content_blocks
        .saturating_add(headroom_blocks)
        .max(smallest_blocks(block_size, has_journal))
        .next_multiple_of(cluster);
    let mut placed = 0;
    // The last size that was too small for its own metadata, after a step that may have gone far.
    let mut refused = None;
    for _ in 0..ROUNDS_MAX {
        let geometry = match geometry::compute(&mkfs, exact(blocks, Some(inodes))) {
            Ok(geometry) => geometry,
            // Too small for its own metadata: not an answer yet.
            Err(e) if is_too_small(&e) => {
                refused = Some(blocks);
                blocks = blocks.saturating_add((blocks / 8).max(8)).next_multiple_of(cluster);
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        if let Some(low) = refused.take() {
            let smallest = smallest_accepted(&mkfs, inodes, low, blocks, cluster);
            if smallest < blocks {
                blocks = smallest;
                continue;
            }
        }
        if geometry.blocks_count < blocks {
            // The last group cannot hold its own metadata yet.
            blocks = blocks.saturating_add(cluster);
            continue;
        }
        placed += 1;
        if placed > PLACE_ROUNDS_MAX {
            break;
        }
        let layout = Layout::place(tree, &demand, geometry);
        let short = short_by(&layout, headroom_blocks);
        if short == 0 {
            let free_wanted = free_wanted(&layout.geometry, blocks, headroom_blocks);
            let layout = give_surplus_to_journal(tree, &demand, layout, free_wanted);
            return Ok(Plan { options: mkfs, ids, reproducible: false, demand, layout });
        }
        blocks = blocks.saturating_add(short).next_multiple_of(cluster);
    }
    Err(PlanError::NoSize { tried_bytes: blocks.saturating_mul(block_bytes) })
}

/// Most clusters that Linux keeps from data: one of 50, and at most so many.
const POOL_MAX_CLUSTERS: u64 = 4096;

/// Free blocks of a file system of `blocks`, in which files can have `headroom_blocks`. Linux keeps
/// some clusters of every file system with extents for the blocks of their trees, from root's data
/// too; headroom that nobody can write to would not be the headroom that was asked for.
fn free_wanted(geometry: &Geometry, blocks: u64, headroom_blocks: u64) -> u64 {
    if headroom_blocks == 0 || !geometry.has(Feature::EXTENTS) {
        return headroom_blocks;
    }
    let cluster = u64::from(geometry.cluster_blocks).max(1);
    let pool = (blocks / cluster / 50).min(POOL_MAX_CLUSTERS);
    headroom_blocks.saturating_add(pool.saturating_mul(cluster))
}

/// Blocks without which `layout` does not have all that it needs and `headroom_blocks`; 0 if it has.
/// More are needed where these are not enough, never fewer.
fn short_by(layout: &Layout, headroom_blocks: u64) -> u64 {
    let geometry = &layout.geometry;
    let wanted = |blocks| free_wanted(geometry, blocks, headroom_blocks);
    let has = layout.free_blocks.saturating_sub(layout.missing_blocks);
    let now = wanted(geometry.blocks_count);
    let short = now.saturating_add(layout.missing_blocks) - has.min(now);
    // A larger file system has more that nobody can write to.
    short + (wanted(geometry.blocks_count.saturating_add(short)) - now)
}

/// Rounds that make a base larger.
const GROW_ROUNDS_MAX: u32 = 64;

/// A plan as large as the base while half of the headroom is left, or larger by whole headroom; `None` when the geometry
/// of the base cannot be kept.
fn grown_from(
    tree: &Tree,
    mkfs: &MkfsOptions,
    ids: Ids,
    headroom_blocks: u64,
    base: &Arc<Base>,
) -> Result<Option<Plan>, PlanError> {
    let mut blocks = base.superblock.blocks_count;
    let mut headroom = headroom_blocks / 2;
    for _ in 0..GROW_ROUNDS_MAX {
        let Some(plan) = in_frame(tree, mkfs, ids, blocks, base)? else { return Ok(None) };
        if short_by(&plan.layout, headroom) == 0 {
            return Ok(Some(plan));
        }
        headroom = headroom_blocks;
        let short = short_by(&plan.layout, headroom);
        let cluster = u64::from(plan.demand.cluster_blocks);
        let more = blocks.saturating_add(short.max(1)).checked_next_multiple_of(cluster);
        let Some(more) = more else { return Ok(None) };
        blocks = more;
    }
    Ok(None)
}

/// The layout in so many blocks, with groups, inode tables and a journal as those of the base; `None` when that cannot
/// be. Something may be missing.
fn in_frame(
    tree: &Tree,
    mkfs: &MkfsOptions,
    ids: Ids,
    blocks: u64,
    base: &Arc<Base>,
) -> Result<Option<Plan>, PlanError> {
    let old = &base.superblock;
    let given = mkfs.inodes.is_some() || mkfs.bytes_per_inode.is_some();
    let first = u64::from(old.first_data_block);
    let groups = blocks.saturating_sub(first).div_ceil(u64::from(old.blocks_per_group).max(1));
    let inodes = groups.saturating_mul(u64::from(old.inodes_per_group));
    let mut geometry = match geometry::compute(mkfs, exact(blocks, Some(inodes).filter(|_| !given)))
    {
        Ok(geometry) => geometry,
        Err(e) if is_too_small(&e) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    if geometry.block_size != old.block_size
        || geometry.inodes_per_group != old.inodes_per_group
        || geometry.blocks_count < blocks
    {
        return Ok(None);
    }
    if let Some(journal) = &mut geometry.journal
        && mkfs.journal == JournalOption::Auto
        && let Some(total) = base.own_blocks(old.journal_inode)
        && let Some(log) = total.checked_sub(journal.fast_commit_blocks).filter(|log| *log >= 1024)
    {
        journal.log_blocks = log;
    }
    // Descriptors that were reserved serve the groups that are new.
    let behind_super =
        (old.group_count.div_ceil(geometry.desc_per_block())) + u32::from(old.reserved_gdt_blocks);
    if old.reserved_gdt_blocks > 0
        && geometry.reserved_gdt_blocks > 0
        && let Some(left) = behind_super.checked_sub(geometry.gdt_blocks)
        && let Ok(left) = u16::try_from(left)
        && left > 0
    {
        let computed = std::mem::replace(&mut geometry.reserved_gdt_blocks, left);
        if geometry.check_placement().is_err() {
            geometry.reserved_gdt_blocks = computed;
        }
    }
    let limit = geometry.inodes_count;
    let demand = demand_of(tree, mkfs, &geometry, &ids, Some(base), limit)?;
    if demand.inodes_needed() > u64::from(limit) {
        return Ok(None);
    }
    let layout = Layout::place(tree, &demand, geometry);
    Ok(Some(Plan { options: mkfs.clone(), ids, reproducible: false, demand, layout }))
}

/// The smallest size above `low`, which is too small, and up to `high`, which is not, that has room
/// for its own metadata.
fn smallest_accepted(mkfs: &MkfsOptions, inodes: u64, low: u64, high: u64, cluster: u64) -> u64 {
    let (mut low, mut high) = (low, high);
    while high.saturating_sub(low) > cluster {
        let middle = (low + (high - low) / 2).next_multiple_of(cluster).min(high - cluster);
        if middle <= low {
            break;
        }
        match geometry::compute(mkfs, exact(middle, Some(inodes))) {
            Ok(_) => high = middle,
            Err(_) => low = middle,
        }
    }
    high
}

/// Lengthens the journal by the blocks that are free beyond `free_wanted`, if that comes out exact.
fn give_surplus_to_journal(
    tree: &Tree,
    demand: &Demand,
    layout: Layout,
    free_wanted: u64,
) -> Layout {
    let surplus = layout.free_blocks - free_wanted;
    let cluster = u64::from(demand.cluster_blocks);
    let mut geometry = layout.geometry.clone();
    match (&mut geometry.journal, u32::try_from(surplus)) {
        (Some(journal), Ok(surplus)) if surplus > 0 && u64::from(surplus) % cluster == 0 => {
            journal.log_blocks = journal.log_blocks.saturating_add(surplus);
        }
        _ => return layout,
    }
    let longer = Layout::place(tree, demand, geometry);
    let exact = longer.missing_blocks == 0 && longer.free_blocks == free_wanted;
    if exact { longer } else { layout }
}

/// Inodes of an automatic image: one for each file, and for the headroom as many as its bytes
/// would get; never fewer than asked for.
fn inodes_wanted(
    mkfs: &MkfsOptions,
    demand: &Demand,
    headroom_bytes: u64,
) -> Result<u64, PlanError> {
    let needed = demand.inodes_needed();
    if let Some(asked) = mkfs.inodes {
        if asked < needed {
            return Err(PlanError::TooFewInodes { available: asked, needed });
        }
        return Ok(asked);
    }
    let ratio = u64::from(mkfs.bytes_per_inode.unwrap_or(16_384)).max(1);
    let by_content = match mkfs.bytes_per_inode {
        // An explicit ratio is about the whole image.
        Some(_) => demand.content_blocks * u64::from(demand.block_size.bytes()) / ratio,
        None => 0,
    };
    Ok(needed.max(by_content).saturating_add(headroom_bytes.div_ceil(ratio)))
}

fn demand_of(
    tree: &Tree,
    mkfs: &MkfsOptions,
    geometry: &Geometry,
    ids: &Ids,
    base: Option<&Arc<Base>>,
    inode_limit: u32,
) -> Result<Demand, PlanError> {
    let facts = SizeFacts {
        block_size: geometry.block_size,
        cluster_blocks: geometry.cluster_blocks,
        inode_size: geometry.inode_size,
        lost_found_blocks: geometry.lost_found_blocks,
        inode_limit,
    };
    Demand::of(tree, mkfs, &geometry.features, &facts, ids, base)
}

/// Returns whether a larger file system may do.
fn is_too_small(error: &GeometryError) -> bool {
    matches!(
        error,
        GeometryError::TooSmall { .. }
            | GeometryError::TooManyInodes { .. }
            | GeometryError::JournalTooBig { .. }
            | GeometryError::NoRoomForTables { .. }
    )
}

/// Any size at which the features come out as they will: large enough to keep the journal.
fn guess_blocks(tree: &Tree, block_size: BlockSize) -> u64 {
    let bytes: u64 = tree.nodes().iter().fold(0u64, |sum, n| sum.saturating_add(n.size));
    block_size
        .blocks_for(bytes)
        .saturating_mul(2)
        .saturating_add(tree.nodes().len() as u64 * 2)
        .clamp(65_536, 1 << 40)
}

/// No file system is smaller: superblock, descriptors, bitmaps, a table, the root, lost+found. Below
/// 2048 blocks mke2fs leaves the journal out; an image that is to have one is not made that small.
fn smallest_blocks(block_size: BlockSize, has_journal: bool) -> u64 {
    let least = (64 * 1024 / u64::from(block_size.bytes())).max(16);
    if has_journal { least.max(2048) } else { least }
}
