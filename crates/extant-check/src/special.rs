//! Files whose contents are metadata: journal, orphan file, quota files, resize inode.

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::features::{Compat, Incompat, RoCompat, State};
use extant_format::inode::{FileKind, Inode};
use extant_format::jbd2::JournalSuperblock;
use extant_format::mmp::Mmp;
use extant_format::orphan::OrphanBlock;
use extant_format::quota::{QuotaFile, QuotaKind};

use crate::checker::Checker;
use crate::heads::superblock_groups;
use crate::inodes::field32;
use crate::map::Map;
use crate::scan::Scan;
use crate::tables::Run;
use crate::{CheckError, Problem};

/// Fewest blocks of a journal.
const JOURNAL_BLOCKS_MIN: u32 = 1024;

/// Returns whether runs in order of the file map its first `blocks` blocks without a hole.
fn is_whole(runs: &[Run], blocks: u64) -> bool {
    let mut next = 0;
    for run in runs {
        if u64::from(run.file_start) != next {
            return false;
        }
        next += u64::from(run.len);
    }
    next >= blocks
}

/// Largest quota file that is read: 3 million ids.
const QUOTA_MAX_BYTES: u64 = 256 << 20;

/// A file that a field of the superblock names.
struct Special {
    ino: Ino,
    /// crc32c seed of its blocks.
    seed: u32,
    size: u64,
    /// Blocks up to the last mapped one.
    blocks: u64,
    runs: Vec<Run>,
}

impl Checker<'_> {
    /// The journal and the orphans.
    pub(crate) fn check_special(&mut self) -> Result<(), CheckError> {
        let has_journal = self.base.sb.features.has_compat(Compat::HAS_JOURNAL);
        if has_journal && self.base.sb.journal_inode.0 != 0 {
            let result = self.check_journal();
            self.pass(result, "the journal")?;
        }
        if !has_journal && self.base.sb.journal_inode.0 != 0 {
            self.problem(Problem::JournalState { why: "there is one, but the feature is off" });
        }
        let sb = &self.base.sb;
        let is_nowhere = sb.journal_inode.0 == 0 && sb.journal_uuid == [0; 16];
        // Linux mounts neither of the two, and e2fsck stops at them.
        if has_journal && is_nowhere && sb.journal_device == 0 {
            self.problem(Problem::JournalState { why: "the feature is on, but there is none" });
        } else if !has_journal && sb.features.has_incompat(Incompat::RECOVER) {
            self.problem(Problem::JournalState { why: "it is to be replayed, but there is none" });
        }
        self.check_features_alone();
        let has_feature = self.base.sb.features.has_compat(Compat::RESIZE_INODE);
        let has_reserve = self.base.sb.reserved_gdt_blocks != 0;
        if has_reserve && !has_feature {
            self.problem(Problem::ResizeInode {
                what: "blocks are reserved, but the feature is off",
            });
        }
        let is_unread = self.base.states.get(Ino::RESIZE).is_unread();
        if has_reserve && has_feature && !is_unread && self.known(Ino::RESIZE).is_none() {
            self.problem(Problem::ResizeInode { what: "it is empty" });
        }
        let result = self.check_mmp();
        self.pass(result, "the block for multiple-mount protection")?;
        self.follow_orphan_list();
        if self.base.sb.features.has_compat(Compat::ORPHAN_FILE) {
            let result = self.check_orphan_file();
            self.pass(result, "the orphan file")?;
            if !has_journal {
                // tune2fs 1.47.0 takes the journal away and leaves it, and e2fsck then wants it gone.
                let (field, ino) = ("s_orphan_file_inum", self.base.sb.orphan_file_inode);
                let why = "which needs a journal, and there is none";
                self.problem(Problem::SpecialInode { field, ino, why });
            }
        }
        for (ino, dtime, links) in std::mem::take(&mut self.found.low_dtimes) {
            if !self.found.orphans.contains(&ino.0) {
                self.problem(Problem::Dtime { ino, dtime, links });
            }
        }
        // The next mount ends a truncation that a crash has cut short.
        for (ino, size) in std::mem::take(&mut self.found.short_sizes) {
            if !self.found.orphans.contains(&ino.0) {
                self.problem(Problem::Size { ino, size, why: "blocks behind it hold data" });
            }
        }
        // There are fewer than inodes.
        let count = self.found.orphans.len() as u32;
        self.state_mut().orphans = count;
        if count != 0 && self.base.options.require_no_orphans {
            self.problem(Problem::Orphans { count });
        }
        // A mount sets it, whether there are any or not, and takes it away at its end.
        let sb = &self.base.sb;
        let is_stale = sb.features.has_ro_compat(RoCompat::ORPHAN_PRESENT)
            && sb.features.has_compat(Compat::ORPHAN_FILE)
            && !sb.features.has_incompat(Incompat::RECOVER)
            && sb.state.contains(State::VALID);
        if is_stale && count == 0 && self.base.options.require_no_orphans {
            let (name, why) = ("orphan_present", "the file of orphans has none");
            self.problem(Problem::FeatureAlone { name, why });
        }
        Ok(())
    }

    /// Features that need something else in the superblock. With the last two, Linux refuses to mount.
    fn check_features_alone(&mut self) {
        let sb = &self.base.sb;
        let has_orphan_file = sb.features.has_compat(Compat::ORPHAN_FILE);
        let alone = [
            (
                sb.features.has_ro_compat(RoCompat::ORPHAN_PRESENT) && !has_orphan_file,
                ("orphan_present", "there is no file of orphans"),
            ),
            (
                sb.features.has_incompat(Incompat::MMP) && !self.base.in_range(sb.mmp_block.0, 1),
                ("mmp", "its block does not exist"),
            ),
            (
                sb.features.has_incompat(Incompat::CASEFOLD) && sb.encoding.to_raw() == 0,
                ("casefold", "the encoding of names is not said"),
            ),
        ];
        // One without its feature may be a file like others, but nobody else takes it for one.
        let named = [
            ("s_orphan_file_inum", sb.orphan_file_inode, has_orphan_file),
            (
                "s_prj_quota_inum",
                sb.project_quota_inode,
                sb.features.has_ro_compat(RoCompat::QUOTA),
            ),
        ];
        let desc_size = sb.raw.s_desc_size.get();
        let is_no_size = desc_size > 1024 || !(desc_size == 0 || desc_size.is_power_of_two());
        let per_flex = sb.log_groups_per_flex;
        let unread = [
            (
                is_no_size && !sb.features.has_incompat(Incompat::SIXTY_FOUR_BIT),
                ("s_desc_size", u32::from(desc_size), "64bit"),
            ),
            (
                per_flex > 31 && !sb.features.has_incompat(Incompat::FLEX_BG),
                ("s_log_groups_per_flex", u32::from(per_flex), "flex_bg"),
            ),
        ];
        // Without the feature nobody uses these two, but whatever they name would be taken for a file without a name.
        let has_quota = sb.features.has_ro_compat(RoCompat::QUOTA);
        let (found, limit) = (sb.reserved_blocks_count, sb.blocks_count / 2);
        let unused =
            [("s_usr_quota_inum", sb.user_quota_inode), ("s_grp_quota_inum", sb.group_quota_inode)];
        for (_, (field, found, feature)) in unread.into_iter().filter(|(is_bad, _)| *is_bad) {
            self.problem(Problem::FieldAlone { field, found, feature });
        }
        if found > limit {
            self.problem(Problem::ReservedBlocks { found, limit });
        }
        for (field, ino) in unused.into_iter().filter(|(_, ino)| !has_quota && ino.0 != 0) {
            let why = "though the feature is off";
            self.problem(Problem::SpecialInode { field, ino, why });
        }
        for (_, (name, why)) in alone.into_iter().filter(|(is_alone, _)| *is_alone) {
            self.problem(Problem::FeatureAlone { name, why });
        }
        for (field, ino, has_feature) in named {
            if !has_feature && self.known(ino).is_some() {
                let why = "which is in use, but the feature is off";
                self.problem(Problem::SpecialInode { field, ino, why });
            }
        }
    }

    /// The block by which hosts tell each other that they have the file system.
    fn check_mmp(&mut self) -> Result<(), CheckError> {
        let block = self.base.sb.mmp_block.0;
        if !self.base.sb.features.has_incompat(Incompat::MMP) || !self.base.in_range(block, 1) {
            return Ok(());
        }
        let mut bytes = Vec::new();
        self.base.read_block(block, &mut bytes)?;
        let seed = self.base.dir_layout.checksum.then_some(self.base.seed);
        if let Err(wrong) = Mmp::decode(seed, &bytes) {
            self.problem(Problem::Mmp(wrong));
        }
        Ok(())
    }

    /// A regular file in use that a field of the superblock names.
    fn special_file(&mut self, field: &'static str, ino: Ino) -> Option<Special> {
        if self.base.states.get(ino).is_unread() {
            return None;
        }
        let tables = &self.found.tables;
        // Whatever a field names has details.
        let why = match self.known(ino).and_then(|_| tables.detail(ino)) {
            None => "which is not in use",
            Some(detail) if detail.kind() != Some(FileKind::Regular) => "which is no regular file",
            Some(detail) if detail.links == 0 => "which has no links",
            Some(detail) => {
                return Some(Special {
                    ino,
                    seed: detail.seed,
                    size: detail.size,
                    blocks: detail.blocks,
                    runs: tables.runs_of(detail).to_vec(),
                });
            }
        };
        self.problem(Problem::SpecialInode { field, ino, why });
        None
    }

    fn check_journal(&mut self) -> Result<(), CheckError> {
        let sb = &self.base.sb;
        // Linux mounts nothing that names both, and e2fsck looks for the device.
        if sb.journal_uuid != [0; 16] || sb.journal_device != 0 {
            self.problem(Problem::JournalState { why: "a device with another is named as well" });
        }
        let Some(info) = self.special_file("s_journal_inum", self.base.sb.journal_inode) else {
            return Ok(());
        };
        let runs = &info.runs;
        let Some(first) = crate::htree::find(runs, 0) else {
            self.problem(Problem::JournalState { why: "it has no first block" });
            return Ok(());
        };
        let mut bytes = Vec::new();
        self.base.read_block(first, &mut bytes)?;
        let journal = match JournalSuperblock::decode(&bytes) {
            Ok(journal) => journal,
            Err(fault) => {
                self.problem(Problem::Journal(fault));
                return Ok(());
            }
        };
        if let Err(wrong) = journal.verify_checksum(&bytes) {
            self.problem(Problem::JournalChecksum(wrong));
        }
        let mapped: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
        let recover = self.state_mut().needs_recovery;
        for (broken, why) in [
            (journal.block_size != self.base.sb.block_size, "its block size is another"),
            (u64::from(journal.len) > mapped, "it is longer than its file"),
            (journal.is_dirty() && !recover, "it has transactions, but needs no recovery"),
            (journal.errno != 0, "it was aborted by an error"),
            // Linux does not look at it; e2fsck takes the journal for one on a device of its own, and stops.
            (journal.user_count > 1, "it names several file systems that use it"),
            (journal.len < JOURNAL_BLOCKS_MIN, "it is shorter than a journal may be"),
            (!journal.fast_commits_fit(), "its blocks for fast commits leave no room for a log"),
            (
                // Also of a last block in part, which nobody reads but e2fsck asks for.
                !is_whole(runs, info.size.div_ceil(u64::from(self.base.sb.block_size.bytes()))),
                "it has holes",
            ),
        ] {
            if broken {
                self.problem(Problem::JournalState { why });
            }
        }
        if journal.is_dirty() {
            self.state_mut().needs_recovery = true;
        }
        Ok(())
    }

    fn follow_orphan_list(&mut self) {
        let mut ino = Ino(self.base.sb.last_orphan);
        // Each inode is marked when it is met, so the walk ends.
        while ino.0 != 0 && self.note_orphan(ino) {
            ino = Ino(self.found.dtimes.get(&ino.0).copied().unwrap_or(0));
        }
    }

    fn note_orphan(&mut self, ino: Ino) -> bool {
        if self.base.states.get(ino).is_unread() {
            return false;
        }
        let is_special = self.base.is_special(ino) || ino == Ino::ROOT;
        let why = match self.known(ino).is_some() {
            false => "it is not in use",
            true if is_special => "it may not be deleted",
            true if !self.found.orphans.insert(ino.0) => "it is listed twice",
            true => return true,
        };
        self.problem(Problem::Orphan { ino, why });
        false
    }

    fn check_orphan_file(&mut self) -> Result<(), CheckError> {
        let Some(info) = self.special_file("s_orphan_file_inum", self.base.sb.orphan_file_inode)
        else {
            return Ok(());
        };
        let size = self.base.sb.block_size;
        let seed = self.base.dir_layout.checksum.then_some(info.seed);
        let may_hold = self.base.sb.features.has_ro_compat(RoCompat::ORPHAN_PRESENT);
        let mut bytes = Vec::new();
        let mut blocks = 0u64;
        let runs = &info.runs;
        for run in runs {
            for at in 0..u64::from(run.len) {
                blocks += 1;
                self.base.read_block(run.start + at, &mut bytes)?;
                match OrphanBlock::decode(size, FsBlock(run.start + at), seed, &bytes) {
                    Ok(block) => {
                        for ino in block.orphans().filter(|ino| ino.0 != 0) {
                            self.note_orphan(ino);
                            if !may_hold {
                                let why = "it is in the file, but none may be";
                                self.problem(Problem::Orphan { ino, why });
                            }
                        }
                    }
                    Err(wrong) => {
                        self.problem(Problem::OrphanFile(wrong));
                        continue;
                    }
                }
                // tune2fs 1.47.0 leaves what was one when checksums are switched off, and e2fsck wants it gone.
                if seed.is_none()
                    && let Err(wrong) =
                        OrphanBlock::check_unsummed(size, FsBlock(run.start + at), &bytes)
                {
                    self.problem(Problem::OrphanFile(wrong));
                }
            }
        }
        let is_whole = blocks != 0 && is_whole(runs, blocks);
        if blocks.checked_mul(u64::from(size.bytes())) != Some(info.size) || !is_whole {
            let (ino, size) = (info.ino, info.size);
            self.problem(Problem::Size { ino, size, why: "the orphan file has other blocks" });
        }
        Ok(())
    }

    /// Usage in quota files against what is in use.
    pub(crate) fn check_quota(&mut self) -> Result<(), CheckError> {
        if !self.base.sb.features.has_ro_compat(RoCompat::QUOTA) {
            return Ok(());
        }
        let files = [
            (QuotaKind::User, "s_usr_quota_inum", self.base.sb.user_quota_inode),
            (QuotaKind::Group, "s_grp_quota_inum", self.base.sb.group_quota_inode),
            (QuotaKind::Project, "s_prj_quota_inum", self.base.sb.project_quota_inode),
        ];
        for (owner, (kind, field, ino)) in files.into_iter().enumerate() {
            if ino.0 == 0 {
                continue;
            }
            let Some(info) = self.special_file(field, ino) else { continue };
            match self.read_quota(kind, &info) {
                Ok(Some(file)) => self.compare_quota(kind, owner, &file),
                Ok(None) => {}
                Err(error) => self.pass(Err(error), "a quota file")?,
            }
        }
        Ok(())
    }

    fn read_quota(
        &mut self,
        kind: QuotaKind,
        info: &Special,
    ) -> Result<Option<QuotaFile>, CheckError> {
        let block = self.base.sb.block_size.len();
        let (ino, size) = (info.ino, info.size);
        let mapped = info.blocks.saturating_mul(block as u64);
        if size > QUOTA_MAX_BYTES || size > mapped {
            self.problem(Problem::Size { ino, size, why: "it is no quota file of this size" });
            return Ok(None);
        }
        // Below 2^28.
        let mut bytes = vec![0; (size as usize).next_multiple_of(block)];
        for run in &info.runs {
            for at in 0..run.len {
                let to = (run.file_start as usize + at as usize).saturating_mul(block);
                let Some(out) = bytes.get_mut(to..to.saturating_add(block)) else { break };
                let from = (run.start + u64::from(at)).saturating_mul(block as u64);
                self.base.device.read_at(from, out)?;
            }
        }
        bytes.truncate(size as usize);
        let decoded = QuotaFile::check_free_lists(&bytes)
            .and_then(|()| QuotaFile::check_records(&bytes))
            .and_then(|()| QuotaFile::decode(&bytes));
        match decoded {
            Ok(file) if file.kind == kind => Ok(Some(file)),
            Ok(file) => {
                self.problem(Problem::QuotaKind { kind, found: file.kind });
                Ok(None)
            }
            Err(source) => {
                self.problem(Problem::Quota { kind, source });
                Ok(None)
            }
        }
    }

    fn compare_quota(&mut self, kind: QuotaKind, owner: usize, file: &QuotaFile) {
        let mut usage = self.found.usage.get(owner).cloned().unwrap_or_default();
        for entry in &file.entries {
            let (bytes, inodes) = usage.remove(&entry.id).unwrap_or_default();
            if (entry.space_bytes, entry.inodes) != (bytes, inodes) {
                self.problem(Problem::QuotaUsage {
                    kind,
                    id: entry.id,
                    stored_bytes: entry.space_bytes,
                    stored_inodes: entry.inodes,
                    bytes,
                    inodes,
                });
            }
        }
        for (id, (bytes, inodes)) in usage {
            let (stored_bytes, stored_inodes) = (0, 0);
            self.problem(Problem::QuotaUsage {
                kind,
                id,
                stored_bytes,
                stored_inodes,
                bytes,
                inodes,
            });
        }
    }
}

impl Scan<'_, '_> {
    /// The resize inode: its doubly indirect block lists the descriptor blocks kept for growth, and
    /// each of those the same block of every backup.
    pub(crate) fn check_resize_inode(
        &mut self,
        inode: &Inode,
        map: &mut Map,
    ) -> Result<(), CheckError> {
        let has_feature = self.sb.features.has_compat(Compat::RESIZE_INODE);
        let double = u64::from(field32(&inode.block, 13 * 4));
        if has_feature && inode.links == 0 {
            // Linux does not grow the file system then, and e2fsck makes it anew.
            self.problem(Problem::ResizeInode { what: "it has no links" });
        }
        if !has_feature {
            if inode.block.iter().any(|byte| *byte != 0) {
                self.problem(Problem::ResizeInode { what: "the feature is off" });
            }
            return Ok(());
        }
        let others = (0..15).filter(|slot| *slot != 13);
        if double == 0 || others.into_iter().any(|slot| field32(&inode.block, slot * 4) != 0) {
            self.problem(Problem::ResizeInode { what: "it has other blocks" });
            map.is_damaged = true;
            return Ok(());
        }
        if !self.claim(Ino::RESIZE, double, 1) {
            map.is_damaged = true;
            return Ok(());
        }
        let reserved = u32::from(self.sb.reserved_gdt_blocks);
        let used = self.sb.descriptor_blocks();
        // With blocks of 1 KiB in clusters, group 0 starts with the boot block.
        let is_small = self.sb.first_data_block == 0 && self.sb.block_size.bytes() == 1024;
        let first = u64::from(self.sb.first_data_block) + u64::from(is_small) + 1 + u64::from(used);
        let backups: Vec<GroupIndex> =
            superblock_groups(&self.sb).filter(|group| group.0 != 0).collect();
        map.tree_blocks = 1 + u64::from(reserved) * (1 + backups.len() as u64);

        let per_block = self.sb.block_size.bytes() / 4;
        let (mut list, mut copy) = (Vec::new(), Vec::new());
        self.read_block(double, &mut list)?;
        if !self.in_range(first, u64::from(reserved)) {
            return Ok(());
        }
        let mut right = true;
        let mut listed = vec![0u32; per_block as usize];
        for number in 0..reserved {
            if let Some(slot) = listed.get_mut(((used + number) % per_block) as usize) {
                *slot = u32::try_from(first).unwrap_or(0).saturating_add(number);
            }
        }
        for (slot, wanted) in listed.iter().enumerate() {
            right &= field32(&list, slot * 4) == *wanted;
        }
        for number in 0..u64::from(reserved) {
            let home = first + number;
            self.read_block(home, &mut copy)?;
            // Behind them is nothing: whatever it is, e2fsck takes it for a block of this inode.
            for slot in 0..per_block as usize {
                let wanted = backups.get(slot).map_or(0, |backup| {
                    home + u64::from(backup.0) * u64::from(self.sb.blocks_per_group)
                });
                right &= u64::from(field32(&copy, slot * 4)) == wanted;
            }
        }
        if !right {
            self.problem(Problem::ResizeInode { what: "its lists are not those of the reserve" });
        }
        Ok(())
    }
}
