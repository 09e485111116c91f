//! Zones: the blocks that are the file system's own, in its groups and in its inodes.

use std::ops::Range;

use extant_base::{FsBlock, Ino};
use extant_format::features::{Compat, Incompat, RoCompat};

use crate::error::{Family, Fault, FsError, Result};
use crate::fs::Fs;
use crate::map::MappingKind;
use crate::zones::{Zone, is_inside};

impl Fs {
    /// Determines the zones, once, before the file system is shared, and after the journal was
    /// read.
    ///
    /// # Errors
    ///
    /// For `writing`: device errors; damage when structures overlap each other or the journal. A
    /// read-only mount uses the zones that it can find.
    pub(crate) fn find_zones(&self, writing: bool) -> Result<()> {
        let volume = self.volume();
        let mut zones = volume.scan_zones(writing)?;
        let owned = self.owned_zones(writing)?;
        let journal = owned.iter().filter(|(_, zone)| matches!(zone, Zone::Journal(_)));
        let lost = |(range, _): &&(Range<u64>, Zone)| zones.hit(range, None).is_some();
        if writing && let Some((range, zone)) = journal.clone().find(lost) {
            let rule = "its blocks lie in other structures of the file system";
            let block = zones.hit(range, None).map(FsBlock);
            return Err(FsError::corrupt("journal", zone.owner(), block, Fault::Rule(rule)));
        }
        zones.own(owned);
        volume.set_zones(zones);
        Ok(())
    }

    /// Returns the blocks of inodes that belong to the file system. Their maps are read without
    /// zones.
    fn owned_zones(&self, writing: bool) -> Result<Vec<(Range<u64>, Zone)>> {
        let (superblock, features) = (self.superblock(), self.features());
        let journal = features.has_compat(Compat::HAS_JOURNAL).then_some(superblock.journal_inode);
        let orphans =
            features.has_compat(Compat::ORPHAN_FILE).then_some(superblock.orphan_file_inode);
        let mut owners = Vec::new();
        owners.extend(journal.map(Zone::Journal));
        owners.extend(orphans.map(Zone::OrphanFile));
        if features.has_ro_compat(RoCompat::QUOTA) {
            owners.push(Zone::Quota(superblock.user_quota_inode));
            owners.push(Zone::Quota(superblock.group_quota_inode));
            owners.push(Zone::Quota(superblock.project_quota_inode));
        }
        let mut owned = Vec::new();
        for zone in owners {
            let Some(ino) = zone.owner().filter(|ino| ino.0 != 0) else { continue };
            match self.blocks_of(ino) {
                Ok(runs) => owned.extend(runs.into_iter().map(|run| (run, zone))),
                // The module that needs that inode reports the error.
                Err(error) if !writing || error.family() != Family::Device => {}
                Err(error) => return Err(error),
            }
        }
        let mut single = |block: u64, zone| {
            if is_inside(superblock, &(block..block.saturating_add(1))) {
                owned.push((block..block + 1, zone));
            }
        };
        if features.has_incompat(Incompat::MMP) {
            single(superblock.mmp_block.0, Zone::MultiMount);
        }
        if features.has_compat(Compat::RESIZE_INODE)
            && let Ok(inode) = self.load_inode_or_orphan(Ino::RESIZE)
            && let Some(pointer) = inode.record.block.get(13 * 4..14 * 4)
            && let Ok(pointer) = <[u8; 4]>::try_from(pointer)
        {
            single(u64::from(u32::from_le_bytes(pointer)), Zone::Resize(Ino::RESIZE));
        }
        Ok(owned)
    }

    fn blocks_of(&self, ino: Ino) -> Result<Vec<Range<u64>>> {
        let inode = self.inode(ino)?;
        let superblock = self.superblock();
        let blocks = superblock.block_size.blocks_for(inode.size()).min(superblock.blocks_count);
        let mut runs = Vec::new();
        for run in inode.map(0..blocks) {
            let run = run?;
            if let MappingKind::Mapped(start) | MappingKind::Unwritten(start) = run.kind {
                runs.push(start.0..start.0.saturating_add(run.len));
            }
        }
        Ok(runs)
    }
}
