//! Windows: free clusters behind the end of a file that grows, which searches for other files avoid
//! while they find enough elsewhere.
//!
//! Files that grow at the same time by small synced appends would otherwise be interleaved, one
//! piece for each append. A window exists in memory only, and its clusters are *free* in every
//! account: clear in `taken`, counted as spare, charged to no quota, and shown by `df`. It is a
//! preference that searches ignore when they find nothing else.
//!
//! # Rules
//!
//! - W1. The clusters of a window are clear in `taken`. Taking a cluster removes it from its
//!   window.
//! - W2. A search that avoids windows and finds nothing looks again at all clear clusters: a window
//!   never causes [`FsError::NoSpace`](crate::FsError::NoSpace), and none has to be closed first.
//! - W3. A file has one window at most, behind the blocks that it was given last, in their group;
//!   only while the file has a handle. It ends when blocks are placed elsewhere, with the last
//!   handle, when the file is truncated, and when its group leaves memory: windows do not keep
//!   groups in memory.
//! - W4. All windows together hold at most about half of the spare clusters; a new one gets a
//!   quarter of the rest of that half at most.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use extant_base::Ino;
use extant_format::bitmap::{Bitmap, BitmapRef};

use super::Allocator;
use super::group::Blocks;
use crate::node::Node;
use crate::run::Window;

/// Ratio of a window's size to the size of its file.
const FACTOR: u64 = 8;

/// Divisor of the group size that limits a window: 16 MiB with blocks of 4 KiB.
const PART: u32 = 8;

/// The set of clear clusters that a search looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// Clusters outside windows.
    Open,
    /// All clusters (W2).
    All,
}

/// How a file is expected to continue behind the blocks that it is given.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Growth {
    /// The blocks are the end of a file that has more before them: they are kept apart from other
    /// files, however few they are.
    pub(crate) grows: bool,
    /// The goal is the block behind the file's last, where fewer blocks in one run will do.
    pub(crate) continues: bool,
    /// Length of the window behind the blocks, in blocks; 0 for none.
    pub(crate) ahead: u32,
}

impl Growth {
    /// Returns the length of a window for a file of `file_blocks`, in a file system with groups of
    /// `group_blocks`.
    pub(crate) fn ahead_of(file_blocks: u64, group_blocks: u32) -> u32 {
        let wanted = file_blocks.saturating_mul(FACTOR).checked_next_power_of_two();
        let most = group_blocks / PART;
        wanted.and_then(|wanted| u32::try_from(wanted).ok()).unwrap_or(most).min(most)
    }
}

/// The windows of one group.
pub(super) struct Windows {
    /// Union of the clusters taken in memory and the windows.
    avoided: Bitmap,
    /// Windows by their first cluster: end and owner.
    by_start: BTreeMap<u32, (u32, Ino)>,
    /// Number of clusters in all windows.
    clusters: u32,
}

impl Windows {
    /// Makes clusters behind the end of the group open.
    pub(super) fn lengthen(&mut self, new: Range<u32>) {
        self.avoided.clear_range(new);
    }

    fn new(taken: &Bitmap) -> Windows {
        Windows { avoided: taken.clone(), by_start: BTreeMap::new(), clusters: 0 }
    }

    /// Removes these clusters from the windows for which `of` is true; the rests on both sides
    /// stay. The caller changes the bits.
    fn cut(&mut self, range: &Range<u32>, of: impl Fn(Ino) -> bool) -> Vec<Range<u32>> {
        // Windows do not overlap, so their ends are in order as well.
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
    /// Returns the clusters that `look` must not be given, as set bits.
    pub(super) fn view(&self, look: Look) -> BitmapRef<'_> {
        match (&self.windows, look) {
            (Some(windows), Look::Open) => windows.avoided.view(),
            _ => self.taken.view(),
        }
    }

    /// Number of clusters in windows.
    pub(super) fn in_windows(&self) -> u32 {
        self.windows.as_ref().map_or(0, |windows| windows.clusters)
    }

    /// Opens a window of up to `len` open clusters from `start` on for a file. Returns its range.
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

    /// Closes the rest of a file's window. Returns the number of clusters in it.
    pub(super) fn close_window(&mut self, owner: Ino, range: &Range<u32>) -> u32 {
        let Some(windows) = &mut self.windows else { return 0 };
        let cut = windows.cut(range, |whose| whose == owner);
        for range in &cut {
            windows.avoided.clear_range(range.clone()); // W1: clear in `taken`
        }
        self.drop_windows();
        cut.iter().map(|range| range.end - range.start).sum()
    }

    /// Removes clusters that were taken in memory from the windows (W1).
    pub(super) fn hide_from_windows(&mut self, range: Range<u32>) {
        if let Some(windows) = &mut self.windows {
            windows.cut(&range, |_| true);
            windows.avoided.set_range(range);
            self.drop_windows();
        }
    }

    /// Clears clusters that are not taken in memory any more; they are in no window.
    pub(super) fn show_to_windows(&mut self, range: Range<u32>) {
        if let Some(windows) = &mut self.windows {
            windows.avoided.clear_range(range);
        }
    }

    /// Frees the memory of the windows if there are none.
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
    /// Number of free clusters in windows.
    #[cfg(test)]
    pub(crate) fn in_windows(&self) -> u64 {
        self.in_windows.load(Ordering::Relaxed).max(0) as u64
    }

    /// Returns the number of clusters that a new window may have, of `wanted` (W4).
    pub(super) fn window_for(&self, wanted: u32) -> u32 {
        let left = self.space.spare() / 2 - self.in_windows.load(Ordering::Relaxed);
        u32::try_from((left / 4).max(0)).unwrap_or(u32::MAX).min(wanted)
    }

    /// Closes the window of a file, if it has one (W3). Reads nothing from the device.
    pub(crate) fn give_back_window(&self, node: &Node) {
        let Some(file) = node.file_in_use() else { return };
        let window = file.window.lock().take();
        if let Some(window) = window {
            self.close_window(node.ino(), &window);
        }
    }

    pub(super) fn close_window(&self, owner: Ino, window: &Window) {
        let Ok(cell) = self.cell(window.group) else { return };
        let mut guard = cell.lock();
        // The group has left memory, and its windows with it.
        let Some(state) = guard.as_deref_mut() else { return };
        let Some(blocks) = state.blocks.as_mut() else { return };
        let closed = blocks.close_window(owner, &window.clusters);
        cell.note(state);
        cell.longest_open.store(u32::MAX, Ordering::Release);
        self.index.record(window.group.0, cell.longest_known());
        self.in_windows.fetch_sub(i64::from(closed), Ordering::Relaxed);
    }

    /// Keeps the window that was opened behind a file's last blocks, unless the file has no handle
    /// any more.
    pub(super) fn keep_window(&self, node: &Node, window: Option<Window>) {
        let (Some(file), Some(window)) = (node.file_in_use(), window) else { return };
        let old = file.window.lock().replace(window);
        if let Some(old) = old {
            self.close_window(node.ino(), &old);
        }
        // The thread that drops the last handle takes the window under the same lock afterwards, so
        // one of the two sees the other.
        if node.life().is_unheld() {
            self.give_back_window(node);
        }
    }
}
