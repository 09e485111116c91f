//! Blocks of inodes: allocated, charged and counted together.

use std::sync::Arc;

use super::Txn;
use crate::alloc::{BlockAsk, Extended, Purpose, Run, blocks_end};
use crate::error::Result;
use crate::node::Node;

impl Txn<'_> {
    /// Allocates blocks for an inode: its quotas are charged and its block count is raised. With
    /// `bigalloc`, whole clusters: the run may be longer than asked for.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] and [`FsError::QuotaExceeded`], with no effect. Device errors, and
    /// damage when no other group is left.
    pub(crate) fn allocate(&mut self, node: &Arc<Node>, ask: &BlockAsk) -> Result<Run> {
        let alloc = self.writer().alloc();
        let right = self.right();
        if ask.purpose == Purpose::Data {
            // It may need the clusters of its own window, and this allocation does not use windows.
            alloc.give_back_window(node);
        }
        let run = alloc.allocate(self, ask, right, blocks_end(node))?;
        let sectors = self.sectors_of(run);
        let charged = self.charge_blocks(node, sectors).and_then(|()| {
            let counted = self.update(node, |data| data.record.sectors += sectors);
            counted.inspect_err(|_| self.uncharge_blocks(node, sectors))
        });
        if let Err(error) = charged {
            // The blocks were never visible, but wait for the commit like others.
            alloc.free(self, run, ask.purpose)?;
            return Err(error);
        }
        Ok(run)
    }

    /// Takes exactly the blocks of `run` for the data of an inode, and charges them; the caller
    /// counts them in the inode. Otherwise nothing has changed. `waits` says whether to wait for
    /// their group.
    ///
    /// # Errors
    ///
    /// Those of the journal.
    pub(crate) fn extend_here(
        &mut self,
        node: &Arc<Node>,
        run: Run,
        waits: bool,
    ) -> Result<Extended> {
        let alloc = self.writer().alloc();
        let right = self.right();
        let sectors = self.sectors_of(run);
        if self.charge_blocks(node, sectors).is_err() {
            return Ok(Extended::No);
        }
        // The inode's own window is the place of these blocks.
        alloc.give_back_window(node);
        let extended = alloc.extend(self, run, right, waits);
        if !matches!(extended, Ok(Extended::Yes)) {
            self.uncharge_blocks(node, sectors);
        }
        extended
    }

    /// Frees blocks of an inode; with `bigalloc`, whole clusters.
    ///
    /// # Errors
    ///
    /// As [`Allocator::free`].
    pub(crate) fn release(&mut self, node: &Arc<Node>, run: Run, was: Purpose) -> Result<()> {
        self.writer().alloc().free(self, run, was)?;
        let sectors = self.sectors_of(run);
        self.uncharge_blocks(node, sectors);
        self.update(node, |data| {
            data.record.sectors = data.record.sectors.saturating_sub(sectors);
        })
    }

    /// Returns the contribution of a run to an inode's block count.
    pub(crate) fn sectors_of(&self, run: Run) -> u64 {
        u64::from(run.len) * u64::from(self.volume().block_size().bytes() / 512)
    }

    /// Makes pinned blocks blocks of `node`: in the bitmap, the totals, the inode's count and the
    /// quotas, in exchange for `promised_clusters`. Space and limits were checked when they were
    /// promised.
    ///
    /// From then on this handle may take blocks for metadata out of the pool.
    ///
    /// Credits: two blocks for each group of the run, the block of the inode, and one for each kind
    /// of quota.
    ///
    /// # Errors
    ///
    /// Blocks that are not pinned: nothing has changed. Device errors and damage abort the journal.
    pub(crate) fn take_pinned(
        &mut self,
        node: &Arc<Node>,
        run: Run,
        promised_clusters: u64,
    ) -> Result<()> {
        let (volume, alloc) = (self.volume(), self.writer().alloc());
        alloc.check_pinned(volume, run)?;
        let taken = alloc.take_pinned(self, run, promised_clusters);
        taken
            .and_then(|()| self.count_taken(node, run, promised_clusters))
            .map_err(|error| self.fail(error))
    }

    fn count_taken(&mut self, node: &Arc<Node>, run: Run, promised_clusters: u64) -> Result<()> {
        let volume = self.volume();
        let sectors = self.sectors_of(run);
        let cluster = u64::from(volume.superblock().cluster_ratio().max(1));
        let block = u64::from(volume.block_size().bytes() / 512);
        let promised = promised_clusters.saturating_mul(cluster * block);
        self.writer().quotas().charge_promised(self, node, sectors, promised)?;
        self.update(node, |data| data.record.sectors += sectors)
    }
}
