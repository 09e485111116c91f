//! The work of writing an image, cut into jobs that any thread can do in any order.
//!
//! A job touches blocks that no other job touches, and writes each of them once. The list follows
//! from the plan alone, so the image does not depend on how many threads work it off.

use std::ops::Range;

use extant_base::Ino;

use crate::options::Feature;
use crate::plan::{Object, Own, Plan};
use crate::tree::{Kind, NodeId, Tree};

/// Most bytes of one write, and the size of each worker's buffer. Large enough that calls do not
/// count, small enough that a buffer filled by a read is still in the core's cache when it is
/// written.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// One piece of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// A contiguous run of blocks, filled from several pieces.
    Chunk(Chunk),
    /// A directory with too many blocks for one buffer.
    Directory(NodeId),
    /// The journal: its superblock; the log itself is zeros.
    Journal,
    /// Inodes `range`, all in the table of one group.
    Inodes(Range<u32>),
    /// Descriptors, bitmaps and unused table space of a range of groups, and the descriptor blocks that
    /// hold exactly these groups.
    Groups(Range<u32>),
    /// Blocks `range` of the reserved descriptor blocks of the resize inode.
    ReservedDescriptors(Range<u32>),
}

/// Blocks that are next to each other, from the middle of one piece to the middle of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// First block.
    pub(super) block: u64,
    /// Blocks in all, gaps inside clusters included.
    pub(super) blocks: u32,
    /// Pieces that reach into it, as numbers in the order of blocks.
    pub(super) pieces: Range<u32>,
}

/// Cuts the plan into jobs: first the long ones, so that no thread is left with one at the end.
pub(super) fn jobs(plan: &Plan, tree: &Tree) -> Vec<Job> {
    let mut jobs = Vec::new();
    contents(plan, tree, &mut jobs);
    inodes(plan, &mut jobs);
    reserved_descriptors(plan, &mut jobs);
    groups(plan, &mut jobs);
    jobs
}

fn contents(plan: &Plan, tree: &Tree, jobs: &mut Vec<Job>) {
    let geometry = &plan.layout.geometry;
    let chunk_blocks = (CHUNK_BYTES / geometry.block_size.len()) as u64;
    let gap_max = u64::from(geometry.cluster_blocks);
    let mut open: Option<Chunk> = None;
    let flush = |open: &mut Option<Chunk>, jobs: &mut Vec<Job>| {
        if let Some(chunk) = open.take() {
            jobs.push(Job::Chunk(chunk));
        }
    };
    for (index, piece) in plan.layout.pieces.in_order().enumerate() {
        let index = index as u32;
        match piece.object {
            Object::Data(id) if tree.node(id).kind == Kind::Dir => {
                let blocks: u64 = plan
                    .layout
                    .pieces
                    .of(plan.layout.nodes[id.index()].data)
                    .iter()
                    .map(|p| u64::from(p.len))
                    .sum();
                if blocks > chunk_blocks {
                    flush(&mut open, jobs);
                    // Once, at its first piece.
                    if piece.file_block == 0 {
                        jobs.push(Job::Directory(id));
                    }
                    continue;
                }
            }
            // The seal is made from the contents, when those are written.
            Object::Data(id) if is_seal(plan, tree, id, piece.file_block) => {
                flush(&mut open, jobs);
                continue;
            }
            Object::Own(Own::Journal) => {
                flush(&mut open, jobs);
                if piece.file_block == 0 {
                    jobs.push(Job::Journal);
                }
                continue;
            }
            _ => {}
        }
        let mut at = piece.block;
        while at < piece.blocks().end {
            let joins = open.as_ref().is_some_and(|chunk| {
                let end = chunk.block + u64::from(chunk.blocks);
                at - end < gap_max && at - chunk.block < chunk_blocks
            });
            if !joins {
                flush(&mut open, jobs);
                open = Some(Chunk { block: at, blocks: 0, pieces: index..index });
            }
            if let Some(chunk) = &mut open {
                let room = chunk_blocks - (at - chunk.block);
                let take = room.min(piece.blocks().end - at);
                at += take;
                chunk.blocks = (at - chunk.block) as u32;
                chunk.pieces.end = index + 1;
            }
        }
    }
    flush(&mut open, jobs);
}

/// Returns whether a block of a file is behind its contents, for its seal.
fn is_seal(plan: &Plan, tree: &Tree, id: NodeId, file_block: u32) -> bool {
    let block_size = plan.layout.geometry.block_size;
    let node = tree.node(id);
    node.sealed && u64::from(file_block) >= block_size.blocks_for(node.size)
}

fn inodes(plan: &Plan, jobs: &mut Vec<Job>) {
    let geometry = &plan.layout.geometry;
    let per_group = geometry.inodes_per_group;
    let per_job = (CHUNK_BYTES / usize::from(geometry.inode_size)) as u32;
    let last = plan.demand.inos.last().0;
    let mut at = 1u32;
    // Group by group, up to the last inode that is used there.
    while at <= last {
        let group_end = at.saturating_add(per_group);
        let end = plan.demand.inos.last_in(at..group_end).map_or(at, |last| last.0 + 1);
        while at < end {
            let next = end.min(at.saturating_add(per_job));
            jobs.push(Job::Inodes(at..next));
            at = next;
        }
        at = group_end;
    }
}

fn reserved_descriptors(plan: &Plan, jobs: &mut Vec<Job>) {
    if plan.layout.own.resize_map.count == 0 {
        return;
    }
    let geometry = &plan.layout.geometry;
    let per_job = (CHUNK_BYTES / geometry.block_size.len()) as u32;
    let count = u32::from(geometry.reserved_gdt_blocks);
    jobs.extend(
        (0..count)
            .step_by(per_job as usize)
            .map(|start| Job::ReservedDescriptors(start..count.min(start + per_job))),
    );
}

/// A job covers whole descriptor blocks: 64 of them, 4096 groups of 64 bytes at 4 KiB.
fn groups(plan: &Plan, jobs: &mut Vec<Job>) {
    let geometry = &plan.layout.geometry;
    let per_block = geometry.block_size.bytes() / u32::from(geometry.desc_size);
    let step = per_block.saturating_mul(if geometry.has(Feature::META_BG) { 1 } else { 64 });
    let mut at = 0;
    while at < geometry.group_count {
        let end = geometry.group_count.min(at.saturating_add(step));
        jobs.push(Job::Groups(at..end));
        at = end;
    }
}

/// The group that an inode lies in, and its index there.
pub(super) fn place_of(ino: Ino, inodes_per_group: u32) -> (u32, u32) {
    ((ino.0 - 1) / inodes_per_group, (ino.0 - 1) % inodes_per_group)
}
