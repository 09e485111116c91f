//! Goals for files that contend for the lock of a group.
//!
//! Files of one directory begin in one group. While many threads extend them at once, they meet at
//! that group's lock. So a small file that finds its group busy continues at the goal of its
//! stream: one of a few groups far from each other, chosen by inode number.
//!
//! Goals are hints, read and written without a lock. A race between two writers loses a hint at
//! worst.

use std::sync::atomic::{AtomicU32, Ordering};

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_sync::threads;

use super::Allocator;
use crate::volume::Volume;

/// Number of streams for each processor, enough that two running threads seldom share one.
const PER_PROCESSOR: u32 = 4;

/// Smallest number of groups for each goal, so that small file systems are not scattered.
const GROUPS_EACH: u32 = 4;

/// The goal group of each stream.
#[derive(Debug)]
pub(super) struct Streams {
    goals: Vec<AtomicU32>,
    /// Number of goals in use; more when there are more groups.
    used: AtomicU32,
}

impl Streams {
    pub(super) fn new(groups: u32) -> Streams {
        let processors = u32::try_from(threads::available()).unwrap_or(u32::MAX);
        let most = processors.saturating_mul(PER_PROCESSOR).min(1024);
        let goals = (0..most.max(1)).map(|_| AtomicU32::new(0)).collect();
        let streams = Streams { goals, used: AtomicU32::new(0) };
        streams.grow(groups);
        streams
    }

    /// Spreads goals that were not in use over `groups`, which are more than before.
    pub(super) fn grow(&self, groups: u32) {
        let most = u32::try_from(self.goals.len()).unwrap_or(u32::MAX);
        let count = (groups / GROUPS_EACH).clamp(1, most);
        let (before, apart) = (self.used.load(Ordering::Relaxed), groups / count);
        for (at, goal) in self.goals.iter().enumerate().skip(before as usize) {
            goal.store((at as u32).saturating_mul(apart), Ordering::Relaxed);
        }
        self.used.fetch_max(count, Ordering::Release);
    }

    fn of(&self, ino: Ino) -> Option<&AtomicU32> {
        let used = self.used.load(Ordering::Acquire).max(1);
        self.goals.get((ino.0 % used) as usize)
    }
}

impl Allocator {
    /// Returns the goal for a file that found its group busy. Files of one stream begin in
    /// different parts of the group.
    pub(crate) fn stream_goal(&self, volume: &Volume, ino: Ino) -> Option<FsBlock> {
        let group = GroupIndex(self.streams.of(ino)?.load(Ordering::Relaxed));
        let first = volume.superblock().group_first_block(group)?;
        Some(super::pin::coloured(volume, ino, first, group))
    }

    /// Records that blocks of the stream were found here, so that the stream continues in this
    /// group.
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
            let goals = &goals[..streams.used.load(Ordering::Relaxed) as usize];
            assert!(!goals.is_empty() && goals.len() as u32 <= (groups / GROUPS_EACH).max(1));
            assert!(goals.windows(2).all(|pair| pair[1] - pair[0] >= GROUPS_EACH), "{goals:?}");
            assert!(goals.iter().all(|goal| *goal < groups), "{groups}: {goals:?}");
        }
    }
}
