//! Windows: free clusters behind the end of a file that grows, which others leave to it while they find
//! enough elsewhere.
//!
//! Files that grow at the same time, a little and an fsync in turns, would otherwise lie in as many pieces as
//! there were turns. A window is in memory only, and is *free* in every account: its clusters are clear in
//! `taken`, count as spare, are charged to no quota, and `df` shows them. It is a wish that searches heed
//! until they find nothing else.
//!
//! # Rules
//!
//! - W1. The clusters of a window are clear in `taken`. Whatever takes one takes it out of the window.
//! - W2. A search that leaves windows alone and finds nothing looks once more, at everything that is clear:
//!   nobody gets [`FsError::NoSpace`](crate::FsError::NoSpace) for the sake of a window, and no window has to
//!   be closed first.
//! - W3. A file has one window at most, behind the blocks that it was given last, in their group; only while
//!   somebody has a handle of it. It ends when blocks are placed elsewhere, with the last handle, when the
//!   file is cut off, and when its group leaves memory: a window keeps no group there.
//! - W4. All windows together are about half of what is spare, at most; each may have a quarter of what is left
//!   of that.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use extant_base::Ino;
use extant_format::bitmap::{Bitmap, BitmapRef};

use super::Allocator;
use super::group::Blocks;
use crate::node::Node;
use crate::run::Window;

/// A window gets so many times the size of its file.
const FACTOR: u64 = 8;

/// A window is this part of a group at most: 16 MiB where blocks have 4 KiB.
const PART: u32 = 8;

/// Which clear clusters a search looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// Those in nobody's window.
    Open,
    /// All of them (W2).
    All,
}

/// How a file is expected to go on behind the blocks that it is given.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Growth {
    /// The blocks are the end of a file that has more before them: they stay apart from others, however
    /// few they are.
    pub(crate) grows: bool,
    /// The goal is the block behind the one before: there, fewer blocks in one piece will do.
    pub(crate) continues: bool,
    /// Blocks to be left alone behind those that are given, for the file.
    pub(crate) ahead: u32,
}

impl Growth {
    /// Blocks to leave alone behind a file of so many, in a file system with groups of so many blocks.
    pub(crate) fn ahead_of(file_blocks: u64, group_blocks: u32) -> u32 {
        let wanted = file_blocks.saturating_mul(FACTOR).checked_next_power_of_two();
        let most = group_blocks / PART;
        wanted.and_then(|wanted| u32::try_from(wanted).ok()).unwrap_or(most).min(most)
    }
}

/// The windows of one group.
pub(super) struct Windows {
    /// What is taken in memory, and the windows.
    avoided: Bitmap,
    /// First cluster, end, and whose.
    by_start: BTreeMap<u32, (u32, Ino)>,
    /// Clusters in all of them.
    clusters: u32,
}

impl Windows {
    fn new(taken: &Bitmap) -> Windows {
        Windows { avoided: taken.clone(), by_start: BTreeMap::new(), clusters: 0 }
    }

    /// Takes these clusters out of the windows that `of` says; what is left on either side stays. The bits
    /// are the caller's business.
    fn cut(&mut self, range: &Range<u32>, of: impl Fn(Ino) -> bool) -> Vec<Range<u32>> {
        // They do not overlap, so their ends are in order as well.
        let behind = self.by_start.range(..range.end).rev();
        let met = behind.take_while(|(_, (end, _))| *end > range.start);
        let met = met.filter(|(_, (_, owner))| of(*owner));
        let met: Vec<_> = met.map(|(start, (end, owner))| (*start..*end, *owner)).collect();
        let mut cut = Vec::with_capacity(met.len());
        for (window, owner) in met {
            self.by_start.remove(&window.start);
            let here = window.start.max(range.start)..window.end.min(range.end);
            if window.start < here.start {
                self.by_start.insert(window.start, (here.start, owner));
            }
            if here.end < window.end {
                self.by_start.insert(here.end, (window.end, owner));
            }
            self.clusters -= here.end - here.start;
            cut.push(here);
        }
        cut
    }
}

impl Blocks {
    /// Clusters that somebody with this look could be given.
    pub(super) fn view(&self, look: Look) -> BitmapRef<'_> {
        match (&self.windows, look) {
            (Some(windows), Look::Open) => windows.avoided.view(),
            _ => self.taken.view(),
        }
    }

    /// Clusters in windows.
    pub(super) fn in_windows(&self) -> u32 {
        self.windows.as_ref().map_or(0, |windows| windows.clusters)
    }

    /// Leaves the open clusters from `start` on to a file, up to `len` of them in one piece. Which ones.
    pub(super) fn open_window(&mut self, owner: Ino, start: u32, len: u32) -> Option<Range<u32>> {
        let end = start.saturating_add(len).min(self.len());
        let end = self.view(Look::Open).first_set(start..end).unwrap_or(end);
        if start >= end {
            return None;
        }
        let windows = self.windows.get_or_insert_with(|| Box::new(Windows::new(&self.taken)));
        windows.avoided.set_range(start..end);
        windows.by_start.insert(start, (end, owner));
        windows.clusters += end - start;
        Some(start..end)
    }

    /// What is left of a file's window is open again. How many clusters that are.
    pub(super) fn close_window(&mut self, owner: Ino, range: &Range<u32>) -> u32 {
        let Some(windows) = &mut self.windows else { return 0 };
        let cut = windows.cut(range, |whose| whose == owner);
        for range in &cut {
            windows.avoided.clear_range(range.clone()); // W1: clear in `taken`
        }
        self.drop_windows();
        cut.iter().map(|range| range.end - range.start).sum()
    }

    /// Clusters were taken in memory (W1).
    pub(super) fn hide_from_windows(&mut self, range: Range<u32>) {
        if let Some(windows) = &mut self.windows {
            windows.cut(&range, |_| true);
            windows.avoided.set_range(range);
            self.drop_windows();
        }
    }

    /// Clusters that were taken in memory are not any more: so they are in no window.
    pub(super) fn show_to_windows(&mut self, range: Range<u32>) {
        if let Some(windows) = &mut self.windows {
            windows.avoided.clear_range(range);
        }
    }

    /// Without windows, no memory for them.
    fn drop_windows(&mut self) {
        if self.windows.as_ref().is_some_and(|windows| windows.by_start.is_empty()) {
            self.windows = None;
        }
    }

    /// Panics if the windows contradict themselves or W1.
    #[cfg(test)]
    pub(super) fn check_windows(&self) {
        let Some(windows) = &self.windows else { return };
        let mut avoided = self.taken.clone();
        let (mut last, mut clusters) = (0, 0);
        for (start, (end, owner)) in &windows.by_start {
            assert!(last <= *start && start < end, "{owner}: {start}..{end} behind {last}");
            assert_eq!(self.taken.view().count_set(*start..*end), 0, "taken in {start}..{end}");
            avoided.set_range(*start..*end);
            (last, clusters) = (*end, clusters + end - start);
        }
        assert_eq!(windows.clusters, clusters);
        assert!(avoided.as_bytes() == windows.avoided.as_bytes(), "what is avoided");
    }
}

impl Allocator {
    /// Clusters of free space that are left to files that grow.
    #[cfg(test)]
    pub(crate) fn in_windows(&self) -> u64 {
        self.in_windows.load(Ordering::Relaxed).max(0) as u64
    }

    /// How many clusters a new window may have, of so many that are wanted (W4).
    pub(super) fn window_for(&self, wanted: u32) -> u32 {
        let left = self.space.spare() / 2 - self.in_windows.load(Ordering::Relaxed);
        u32::try_from((left / 4).max(0)).unwrap_or(u32::MAX).min(wanted)
    }

    /// Ends the window of a file, if it has one (W3). Reads nothing from the device.
    pub(crate) fn give_back_window(&self, node: &Node) {
        let Some(file) = node.file_in_use() else { return };
        let window = file.window.lock().take();
        if let Some(window) = window {
            self.close_window(node.ino(), &window);
        }
    }

    pub(super) fn close_window(&self, owner: Ino, window: &Window) {
        let Ok(cell) = self.cell(window.group) else { return };
        let mut guard = cell.state.lock();
        // A group that left memory took its windows with it.
        let Some(state) = guard.as_deref_mut() else { return };
        let Some(blocks) = state.blocks.as_mut() else { return };
        let closed = blocks.close_window(owner, &window.clusters);
        cell.note(state);
        cell.longest_open.store(u32::MAX, Ordering::Release);
        self.index.record(window.group.0, cell.longest_known());
        self.in_windows.fetch_sub(i64::from(closed), Ordering::Relaxed);
    }

    /// Keeps the window that was opened behind a file's last blocks, unless nobody has a handle any more.
    pub(super) fn keep_window(&self, node: &Node, window: Option<Window>) {
        let (Some(file), Some(window)) = (node.file_in_use(), window) else { return };
        let old = file.window.lock().replace(window);
        if let Some(old) = old {
            self.close_window(node.ino(), &old);
        }
        // Whoever lets the last handle go takes the window under the same lock afterwards: one of the two
        // sees the other.
        if node.life().is_unheld() {
            self.give_back_window(node);
        }
    }
}
