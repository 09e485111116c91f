//! Dropping the contents that a file has in memory, with its delayed blocks and their promises.

use std::ops::Range;

use crate::fs::Mount;
use crate::node::{Dying, FileState, Node};

impl Dying<'_> {
    /// Drops the contents and returns their promises.
    pub(crate) fn drop_contents(&self, volume: &Mount) {
        let node = self.node();
        let (Some(file), Some(kept_out)) = (node.file_state().get(), self.kept_out()) else {
            return;
        };
        file.cache.end(kept_out);
        file.drop_delayed(volume, node, 0..u64::MAX);
        file.drop_stamp();
        file.set_size(0);
        if let Ok(writer) = volume.writer() {
            writer.dirty_files().remove(node, file);
        }
    }
}

impl FileState {
    /// Drops the delayed blocks of a range and returns their promises.
    pub(crate) fn drop_delayed(&self, volume: &Mount, node: &Node, blocks: Range<u64>) {
        let mut delayed = self.map.write();
        if delayed.is_empty() {
            return;
        }
        let clusters = delayed.remove(blocks);
        self.mapping_changed();
        self.unpromise(volume, node, clusters);
    }

    /// Returns promises of delayed blocks of this file.
    pub(crate) fn unpromise(&self, volume: &Mount, node: &Node, clusters: u64) {
        if clusters > 0
            && let Ok(writer) = volume.writer()
        {
            let bits = volume.superblock().cluster_bits() + volume.block_size().log2() - 9;
            writer.quotas().unpromise(node, clusters << bits);
            writer.alloc().unpromise(clusters);
        }
    }
}
