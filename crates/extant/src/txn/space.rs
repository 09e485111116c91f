//! Blocks of inodes: allocated, charged and counted together.

use std::sync::Arc;

use super::Txn;
use crate::alloc::{BlockAsk, Extended, Purpose, Run, blocks_end};
use crate::error::Result;
use crate::node::Node;

impl Txn<'_> {
    /// Allocates blocks for an inode: its quotas are charged and its block count raised. With
    /// clusters, whole ones: the run may be longer than what was asked for.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] and [`FsError::QuotaExceeded`]: nothing has changed that counts. Device
    /// errors, and damage when nothing else is left.
    pub(crate) fn allocate(&mut self, node: &Arc<Node>, ask: &BlockAsk) -> Result<Run> {
        let alloc = self.writer().alloc();
        let right = self.right();
        if ask.purpose == Purpose::Data {
            // It may want just those clusters; and what allocates by itself says how much.
            alloc.give_back_window(node);
        }
        let run = alloc.allocate(self, ask, right, blocks_end(node))?;
        let sectors = self.sectors_of(run);
        let charged = self.charge_blocks(node, sectors).and_then(|()| {
            let counted = self.update(node, |data| data.record.sectors += sectors);
            counted.inspect_err(|_| self.uncharge_blocks(node, sectors))
        });
        if let Err(error) = charged {
            // Nobody has seen the blocks, yet they wait for the commit like others.
            alloc.free(self, run, ask.purpose)?;
            return Err(error);
        }
        Ok(run)
    }

    /// Takes just the blocks of `run` for the data of an inode, and charges them; that they are counted in the
    /// inode is the caller's. Else nothing has changed. Their group is waited for if it `waits`.
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
        // Its own window is where it wants to go.
        alloc.give_back_window(node);
        let extended = alloc.extend(self, run, right, waits);
        if !matches!(extended, Ok(Extended::Yes)) {
            self.uncharge_blocks(node, sectors);
        }
        extended
    }

    /// Gives blocks of an inode back; with clusters, whole ones.
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

    /// What a run counts in an inode.
    pub(crate) fn sectors_of(&self, run: Run) -> u64 {
        u64::from(run.len) * u64::from(self.volume().block_size().bytes() / 512)
    }

    /// Makes pinned blocks blocks of `node`: in the bitmap, the totals, the inode's count and the
    /// quotas, instead of so many promised clusters. Space and limits were seen to when
    /// they were promised.
    ///
    /// From then on blocks for metadata may come out of the pool, in this handle.
    ///
    /// Credits: two blocks for each group that the run lies in, the block of the inode, and one for
    /// each kind of quota.
    ///
    /// # Errors
    ///
    /// Blocks that are not pinned: nothing has changed. Device errors and damage stop the journal.
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
