//! Where files go that meet others in the group where they began.
//!
//! Files of one directory begin in one group. While many threads make them larger at once, that group's lock is
//! where they meet. So a file that is small still and finds its group busy goes on at the goal of its stream:
//! one of a few groups far from each other, by inode number.
//!
//! Goals are hints, read and written without a lock. Two writers of one lose nothing but a hint.

use std::sync::atomic::{AtomicU32, Ordering};

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_sync::threads;

use super::Allocator;
use crate::volume::Volume;

/// Streams for each processor: two that run at the same time seldom have the same one.
const PER_PROCESSOR: u32 = 4;

/// A goal for so many groups at most, or small file systems would be scattered.
const GROUPS_EACH: u32 = 4;

/// The group where each stream goes on.
#[derive(Debug)]
pub(super) struct Streams {
    goals: Vec<AtomicU32>,
}

impl Streams {
    pub(super) fn new(groups: u32) -> Streams {
        let processors = u32::try_from(threads::available()).unwrap_or(u32::MAX);
        let most = processors.saturating_mul(PER_PROCESSOR).min(1024);
        let count = (groups / GROUPS_EACH).clamp(1, most.max(1));
        let apart = groups / count;
        Streams { goals: (0..count).map(|at| AtomicU32::new(at * apart)).collect() }
    }

    fn of(&self, ino: Ino) -> Option<&AtomicU32> {
        self.goals.get(ino.0 as usize % self.goals.len().max(1))
    }
}

impl Allocator {
    /// Where a file goes on that found its group busy. Files of one stream begin in different parts of its group.
    pub(crate) fn stream_goal(&self, volume: &Volume, ino: Ino) -> Option<FsBlock> {
        let group = GroupIndex(self.streams.of(ino)?.load(Ordering::Relaxed));
        let first = volume.superblock().group_first_block(group)?;
        Some(super::pin::coloured(volume, ino, first, group))
    }

    /// Blocks of the stream were found here: there is more, perhaps.
    pub(crate) fn note_stream(&self, volume: &Volume, ino: Ino, found: FsBlock) {
        let Some((group, _)) = volume.superblock().group_of_block(found) else { return };
        if let Some(goal) = self.streams.of(ino)
            && goal.load(Ordering::Relaxed) != group.0
        {
            goal.store(group.0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_a_few_goals_and_they_are_far_apart() {
        for groups in [1, 3, 4, 9, 2048, 131_072, u32::MAX] {
            let streams = Streams::new(groups);
            let goals: Vec<u32> =
                streams.goals.iter().map(|goal| goal.load(Ordering::Relaxed)).collect();
            assert!(!goals.is_empty() && goals.len() as u32 <= (groups / GROUPS_EACH).max(1));
            assert!(goals.windows(2).all(|pair| pair[1] - pair[0] >= GROUPS_EACH), "{goals:?}");
            assert!(goals.iter().all(|goal| *goal < groups), "{groups}: {goals:?}");
        }
    }
}
