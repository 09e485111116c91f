//! Every inode in use: its fields, its map, its attributes.

use std::sync::atomic::AtomicU32;

use extant_base::{FsBlock, Ino};
use extant_format::checksum::inode_seed;
use extant_format::dir;
use extant_format::extent;
use extant_format::features::{Compat, Incompat, RoCompat};
use extant_format::inode::{FileKind, Inode, InodeFlags};
use extant_format::record::TRANSLATOR;
use extant_format::superblock::{OLD_FIRST_INO, OS_HURD};

use crate::map::Map;
use crate::part::ValueState;
use crate::scan::Scan;
use crate::states::State;
use crate::tables::{Detail, Whole};
use crate::{CheckError, FIRST_INODE, Problem};

/// Flags with rules that few inodes have.
const SELDOM: InodeFlags = InodeFlags::INLINE_DATA
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::EA_INODE)
    .union(InodeFlags::IMAGIC)
    .union(InodeFlags::INDEX)
    .union(InodeFlags::HUGE_FILE)
    .union(InodeFlags::VERITY)
    .union(InodeFlags::CASEFOLD)
    .union(InodeFlags::ENCRYPT);

/// The inode that holds bad blocks.
const BAD_BLOCKS: Ino = Ino(1);
/// Reserved inode of what the boot loader begins with.
const BOOT_LOADER: Ino = Ino(5);

/// Stands for every policy of a version that is not known: equal to itself, and to no other.
const LATER_POLICY: &[u8] = b"later";

/// A little-endian field of a record.
pub(crate) fn field32(record: &[u8], at: usize) -> u32 {
    record.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u32::from_le_bytes(*raw))
}

pub(crate) fn field16(record: &[u8], at: usize) -> u16 {
    record.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u16::from_le_bytes(*raw))
}

/// What is known of an inode before it is looked at.
#[derive(Clone, Copy)]
pub(crate) struct Outside {
    /// It is in use in the bitmap.
    pub(crate) is_marked: bool,
    /// Its checksum was verified, if it was ever used.
    pub(crate) is_sound: bool,
}

impl Scan<'_, '_> {
    pub(crate) fn check_record(
        &mut self,
        ino: Ino,
        record: &[u8],
        outside: Outside,
    ) -> Result<(), CheckError> {
        let Outside { is_marked, is_sound } = outside;
        let (mode, links) = (field16(record, 0), field16(record, 0x1a));
        self.note_low_dtime(ino, record, links);
        self.check_reserved_inode(ino, record);
        if links == 0 && (!is_marked || self.is_reserved(ino)) {
            let dtime = field32(record, 0x14);
            if mode != 0 && dtime == 0 && !self.is_reserved(ino) {
                self.problem(Problem::Dtime { ino, dtime, links });
            }
            if self.is_reserved(ino) && record.iter().any(|byte| *byte != 0) {
                self.check_raw(ino, record, is_sound);
            }
            // One that was deleted still has its checksum.
            if !self.is_reserved(ino) && record.iter().any(|byte| *byte != 0) {
                self.check_raw(ino, record, is_sound);
            }
            // Reserved inodes may have blocks without a link: resize, bad blocks.
            let has_blocks = field32(record, 0x1c) != 0
                || ino == BAD_BLOCKS && record.get(0x28..0x64).is_some_and(|area| area != [0; 60]);
            if !self.is_reserved(ino) || !has_blocks && mode == 0 {
                return Ok(());
            }
        } else if links == 0 && mode == 0 {
            // Marked, but there is nothing: the bitmap is wrong.
            return Ok(());
        }
        if links != 0 || !self.is_reserved(ino) {
            self.check_raw(ino, record, is_sound);
        }
        self.states.set(ino, State::UNKNOWN);
        // Looked at where it is: it is too large to be moved for each inode.
        match &Inode::decode(&self.inode_layout, record) {
            Ok(inode) => self.check_inode(ino, inode, record),
            Err(source) => {
                self.problem(Problem::Inode { ino, source: *source });
                Ok(())
            }
        }
    }

    /// Reserved inodes that nothing uses are empty.
    fn check_reserved_inode(&mut self, ino: Ino, record: &[u8]) {
        let sb = &self.sb;
        if ino.0 >= sb.first_inode.0 {
            return;
        }
        let is_used = match ino {
            Ino::USER_QUOTA | Ino::GROUP_QUOTA => {
                sb.features.has_ro_compat(RoCompat::QUOTA)
                    && [sb.user_quota_inode, sb.group_quota_inode, sb.project_quota_inode]
                        .contains(&ino)
            }
            Ino::JOURNAL => sb.journal_inode == ino,
            // No feature says whether there is a boot loader.
            BOOT_LOADER => false,
            Ino::RESIZE => sb.features.has_compat(Compat::RESIZE_INODE),
            // Bad blocks and the root have rules of their own.
            BAD_BLOCKS | Ino::ROOT => true,
            _ => !self.is_reserved(ino),
        };
        let mode = field16(record, 0);
        let is_file = mode == 0 || FileKind::from_mode(mode) == Some(FileKind::Regular);
        // Without links, type and sectors, nothing else is looked at.
        let is_bare = mode == 0 && field16(record, 0x1a) == 0;
        let is_large = field32(record, 0x6c) != 0 || field16(record, 0x74) != 0;
        let holds = match ino {
            BOOT_LOADER => {
                FileKind::from_mode(mode) == Some(FileKind::Directory) || is_bare && is_large
            }
            // Where it has links or sectors, its map is looked at with those of others.
            Ino::RESIZE => {
                let has_map = record.get(0x28..0x64).is_some_and(|area| area != [0; 60]);
                !is_file || is_bare && field32(record, 0x1c) == 0 && has_map
            }
            Ino::USER_QUOTA | Ino::GROUP_QUOTA | Ino::JOURNAL => {
                [0x1c, 0x28].iter().any(|at| field32(record, *at) != 0)
                    || field16(record, 0x1a) != 0
            }
            _ => mode != 0 || is_bare && is_large,
        };
        if !is_used && holds {
            // It is the first in every file system: with it in use, the number is wrong, and said first.
            let (field, why) = match ino.0 == OLD_FIRST_INO {
                true => (FIRST_INODE, "and s_first_ino counts it as reserved"),
                false => ("a reserved inode", "which holds something that nothing uses"),
            };
            self.problem(Problem::SpecialInode { field, ino, why });
        }
    }

    /// Inodes without links that seem to be on the list of orphans, which is a chain of such numbers.
    fn note_low_dtime(&mut self, ino: Ino, record: &[u8], links: u16) {
        let dtime = field32(record, 0x14);
        let inodes = self.sb.inodes_count;
        let times = [self.sb.write_time, self.sb.mount_time, self.sb.mkfs_time];
        // A clock that begins at 0 makes such times, too.
        let is_early = times.iter().any(|time| *time != 0 && *time < i64::from(inodes));
        if dtime != 0 && dtime < inodes && !is_early {
            self.part.low_dtimes.push((ino, dtime, links));
        }
    }

    /// The checksum; and the inode of bad blocks has blocks and nothing else.
    fn check_raw(&mut self, ino: Ino, record: &[u8], is_sound: bool) {
        if !is_sound && let Err(source) = Inode::verify_checksum(&self.inode_layout, ino, record) {
            self.problem(Problem::Inode { ino, source });
        }
        // Mode, owner, group, links, attributes.
        let fields = [0, 2, 0x18, 0x1a, 0x68, 0x6a];
        let is_inline = field32(record, 0x20) & InodeFlags::INLINE_DATA.bits() != 0;
        let is_more = is_inline || fields.iter().any(|at| field16(record, *at) != 0);
        if ino == BAD_BLOCKS && is_more {
            let why = "which is more than a list of blocks";
            self.problem(Problem::SpecialInode { field: "the list of bad blocks", ino, why });
        }
    }

    fn check_inode(&mut self, ino: Ino, inode: &Inode, record: &[u8]) -> Result<(), CheckError> {
        let kind = inode.kind();
        let keep = kind == Some(FileKind::Directory)
            || self.is_special(ino)
            || ino == self.sb.journal_inode;
        if kind.is_none() && !(self.is_reserved(ino) && inode.mode == 0) {
            self.problem(Problem::Mode { ino, mode: inode.mode });
        }
        let has_large_dir = self.sb.features.has_incompat(Incompat::LARGEDIR);
        let is_wide = match kind {
            Some(FileKind::Directory) => has_large_dir,
            kind => kind == Some(FileKind::Regular),
        };
        if !is_wide && field32(record, 0x6c) != 0 {
            let size = (u64::from(field32(record, 0x6c)) << 32) | u64::from(field32(record, 4));
            self.problem(Problem::Size { ino, size, why: "its high half has no meaning here" });
        }
        self.check_flags(ino, inode);
        self.check_reserved(ino, record);
        let is_inline = inode.flags.contains(InodeFlags::INLINE_DATA);
        let space_at = 128usize.saturating_add(usize::from(inode.extra_isize));
        let space = match self.sb.inode_size {
            ..=128 => &[],
            _ => record.get(space_at..).unwrap_or(&[]),
        };
        if inode.file_acl.0 != 0 && !self.sb.features.has_compat(Compat::EXT_ATTR) {
            let (field, found) = ("i_file_acl", inode.file_acl.0);
            self.problem(Problem::Reserved { ino, field, found });
        }
        let attributes = self.check_xattrs(ino, space, inode.file_acl, is_inline)?;
        if inode.flags.contains(InodeFlags::ENCRYPT) {
            self.check_encryption(ino, attributes.context.as_deref());
        }

        // Most files have no block that needs it.
        let is_tree = inode.flags.contains(InodeFlags::EXTENTS) || self.is_lost_tree(inode);
        let has_blocks = is_tree && field16(&inode.block, 6) != 0;
        let seed = match keep || has_blocks {
            true => inode_seed(self.seed, ino, inode.generation),
            false => 0,
        };
        let runs_from = self.part.runs.len() as u32;
        let mut map = Map::new(ino, seed, keep);
        let has_map = match kind {
            _ if is_inline => false,
            Some(FileKind::Symlink) => !inode.is_fast_symlink(),
            Some(FileKind::Directory | FileKind::Regular) | None => true,
            Some(_) => false,
        };
        if ino == Ino::RESIZE {
            if let Err(error) = self.check_resize_inode(inode, &mut map) {
                map.is_damaged = true;
                self.note_unreadable(error, || "the resize inode".to_owned())?;
            }
        } else if has_map && is_tree {
            self.walk_extents(&mut map, &inode.block)?;
        } else if has_map {
            self.walk_indirect(&mut map, &inode.block)?;
        }
        // The block with the path of the program that the Hurd starts for a file, which `i_blocks` does not count. A
        // value has its references there.
        let translator = u64::from(field32(record, TRANSLATOR));
        let may_have_one = has_map && !inode.flags.contains(InodeFlags::EA_INODE);
        if self.sb.creator_os == OS_HURD && translator != 0 && may_have_one {
            self.claim(ino, translator, 1);
        }
        let blocks = match kind {
            Some(FileKind::Directory) => self.check_reach(ino, &mut map, runs_from),
            _ => map.end,
        };
        if kind == Some(FileKind::Regular)
            && inode.size >= 1 << 31
            && !self.sb.features.has_ro_compat(RoCompat::LARGE_FILE)
            && !self.part.lacks_large_file
        {
            self.part.lacks_large_file = true;
            self.problem(Problem::Feature { name: "large_file", why: "a file has 2 GiB or more" });
        }
        let ratio = u64::from(self.sb.cluster_ratio());
        let sectors_per_block = u64::from(self.sb.block_size.bytes() / 512);
        let clusters = map.clusters + map.tree_blocks + u64::from(attributes.has_block);
        // Values in inodes are charged to every file that has them.
        let counted = clusters
            .saturating_mul(ratio)
            .saturating_mul(sectors_per_block)
            .saturating_add(attributes.value_bytes / 512);
        if counted != inode.sectors && !map.is_damaged {
            self.problem(Problem::Sectors { ino, stored: inode.sectors, counted });
        }
        self.check_size(ino, inode, &map, attributes.inline.as_deref());
        if let Err(error) = self.check_kind(ino, inode, &map) {
            self.note_unreadable(error, || format!("inode {ino}"))?;
        }
        // A reserved one is no value, whatever it says of itself.
        let is_value = inode.flags.contains(InodeFlags::EA_INODE) && !self.is_special(ino);
        if is_value {
            let references =
                (u64::from(field32(record, 0xc)) << 32) | u64::from(field32(record, 0x24));
            let state = ValueState { references, hash: field32(record, 0x8), size: inode.size };
            self.part.value_states.insert(ino.0, state);
            self.part.value_inodes += 1;
        }
        if kind == Some(FileKind::Directory) {
            self.part.directories += 1;
        }
        if inode.dtime != 0 {
            self.part.dtimes.insert(ino.0, inode.dtime);
        }
        self.count_usage(ino, inode, attributes.value_inodes);
        let inline = (is_inline && kind == Some(FileKind::Directory))
            .then(|| Box::new((inode.block, attributes.inline.unwrap_or_default())));
        let detail = keep.then(|| Detail {
            ino,
            mode: inode.mode,
            links: inode.links,
            flags: inode.flags,
            seed,
            size: inode.size,
            blocks,
            runs: (runs_from, self.part.runs.len() as u32),
            inline,
            children: AtomicU32::new(0),
            parent: AtomicU32::new(0),
            dotdot: AtomicU32::new(0),
        });
        self.remember(ino, inode, detail);
        Ok(())
    }

    fn remember(&mut self, ino: Ino, inode: &Inode, detail: Option<Detail>) {
        let &Inode { mode, links, flags, size, sectors, .. } = inode;
        if self.base.is_full {
            self.part.all.push(Whole { ino, mode, links, flags, size, sectors });
        }
        if links == 0 {
            self.part.unlinked.push(ino.0);
        }
        if links != 1 && detail.is_none() {
            self.part.links.push((ino.0, links));
        }
        if let Some(detail) = detail {
            self.part.details.push(detail);
        }
        let is_value = flags.contains(InodeFlags::EA_INODE) && !self.is_special(ino);
        self.states.set(ino, State::new(inode.kind(), is_value));
    }

    /// Returns whether anybody wants to know what owners use.
    pub(crate) fn counts_usage(&self) -> bool {
        self.base.is_full || self.base.sb.features.has_ro_compat(RoCompat::QUOTA)
    }

    /// Adds an inode to what its owners use.
    fn count_usage(&mut self, ino: Ino, inode: &Inode, value_inodes: u32) {
        if self.counts_usage() && !inode.flags.contains(InodeFlags::EA_INODE) {
            let owners = [inode.uid, inode.gid, inode.project];
            self.count_owners(ino, owners, inode.sectors, value_inodes);
        }
    }

    /// Adds what an inode has to what its user, its group and its project use.
    pub(crate) fn count_owners(
        &mut self,
        ino: Ino,
        owners: [u32; 3],
        sectors: u64,
        value_inodes: u32,
    ) {
        let sb = &self.base.sb;
        let hidden = [sb.project_quota_inode, sb.orphan_file_inode];
        if hidden.contains(&ino) || ino != Ino::ROOT && ino.0 < sb.first_inode.0 {
            return;
        }
        for (usage, id) in self.part.usage.iter_mut().zip(owners) {
            let sum = usage.entry(id).or_default();
            sum.0 = sum.0.saturating_add(sectors.saturating_mul(512));
            sum.1 = sum.1.saturating_add(1).saturating_add(u64::from(value_inodes));
        }
    }

    fn check_flags(&mut self, ino: Ino, inode: &Inode) {
        let flags = inode.flags;
        let features = self.sb.features;
        let kind = inode.kind();
        let is_file = matches!(
            kind,
            Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink) | None
        );
        // Most have no flag with a rule, or that of extents alone.
        let is_odd = flags.intersects(SELDOM) || self.sb.bigalloc();
        let has_extents = flags.contains(InodeFlags::EXTENTS);
        let may_have_extents = is_file && features.has_incompat(Incompat::EXTENTS);
        let is_lost_tree = self.is_lost_tree(inode);
        if !is_odd && !is_lost_tree && (!has_extents || may_have_extents) {
            return;
        }
        let is_bigalloc = self.sb.bigalloc() && !self.is_special(ino) && !inode.is_fast_symlink();
        let is_mapped = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA;
        let rules = [
            (is_lost_tree, "the extent tree that it has"),
            (
                is_bigalloc
                    && !is_lost_tree
                    && is_file
                    && kind.is_some()
                    && !flags.intersects(is_mapped),
                "a file system with bigalloc",
            ),
            (
                flags.contains(InodeFlags::EXTENTS) && !features.has_incompat(Incompat::EXTENTS),
                "a file system without extents",
            ),
            (
                flags.contains(InodeFlags::INLINE_DATA)
                    && !features.has_incompat(Incompat::INLINE_DATA),
                "a file system without inline_data",
            ),
            (
                flags.contains(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA),
                "each other: both extents and inline data",
            ),
            (
                !is_file && flags.intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA),
                "a special file",
            ),
            (
                (!is_file || kind == Some(FileKind::Symlink))
                    && flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND),
                "a special file or symbolic link",
            ),
            (
                flags.contains(InodeFlags::EA_INODE)
                    && (kind != Some(FileKind::Regular)
                        || self.is_special(ino)
                        || !features.has_incompat(Incompat::EA_INODE)),
                "what an inode of a value may be",
            ),
            (
                flags.contains(InodeFlags::IMAGIC) && !features.has_compat(Compat::IMAGIC_INODES),
                "a file system without imagic_inodes",
            ),
            (
                flags.intersects(InodeFlags::INDEX | InodeFlags::CASEFOLD)
                    && kind != Some(FileKind::Directory),
                "a file that is no directory",
            ),
            (
                flags.contains(InodeFlags::INDEX | InodeFlags::INLINE_DATA)
                    && kind == Some(FileKind::Directory),
                "a directory in its inode",
            ),
            (
                flags.contains(InodeFlags::HUGE_FILE)
                    && !features.has_ro_compat(RoCompat::HUGE_FILE),
                "a file system without huge_file",
            ),
            (
                flags.contains(InodeFlags::VERITY) && !features.has_ro_compat(RoCompat::VERITY),
                "a file system without verity",
            ),
            (
                flags.contains(InodeFlags::CASEFOLD) && !features.has_incompat(Incompat::CASEFOLD),
                "a file system without casefold",
            ),
            (
                flags.contains(InodeFlags::ENCRYPT) && !features.has_incompat(Incompat::ENCRYPT),
                "a file system without encrypt",
            ),
        ];
        for (broken, with) in rules {
            if broken {
                self.problem(Problem::Flags { ino, flags: flags.bits(), with });
            }
        }
    }

    /// Fields of records that mean nothing here.
    fn check_reserved(&mut self, ino: Ino, record: &[u8]) {
        if self.is_reserved(ino) || self.sb.creator_os != 0 {
            return;
        }
        let has_huge = self.sb.features.has_ro_compat(RoCompat::HUGE_FILE);
        let is_wide = self.sb.features.has_incompat(Incompat::SIXTY_FOUR_BIT);
        for (field, found, may_be) in [
            ("i_faddr", u64::from(field32(record, 0x70)), false),
            ("i_blocks_hi", u64::from(field16(record, 0x74)), has_huge),
            ("i_file_acl_hi", u64::from(field16(record, 0x76)), is_wide),
        ] {
            if found != 0 && !may_be {
                self.problem(Problem::Reserved { ino, field, found });
            }
        }
    }

    /// How far a directory may reach, and that all of it is written. What is behind that, of its
    /// runs from `runs_from` on, is forgotten. Returns how many blocks are left.
    fn check_reach(&mut self, ino: Ino, map: &mut Map, runs_from: u32) -> u64 {
        if map.has_unwritten {
            self.problem(Problem::Unwritten { ino });
        }
        let blocks = (2u64 << 30) >> self.sb.block_size.log2();
        if map.end <= blocks || self.sb.features.has_incompat(Incompat::LARGEDIR) {
            return map.end;
        }
        let block = map.end - 1;
        self.problem(Problem::FileBlock { ino, block });
        map.is_damaged = true;
        let mut runs = self.part.runs.split_off(runs_from as usize);
        for run in &mut runs {
            let within = blocks.saturating_sub(u64::from(run.file_start));
            run.len = run.len.min(u32::try_from(within).unwrap_or(u32::MAX));
        }
        self.part.runs.extend(runs.into_iter().filter(|run| run.len != 0));
        blocks
    }

    /// The context that an encrypted inode needs: version 1 of 28 bytes, or version 2 of 40.
    fn check_encryption(&mut self, ino: Ino, context: Option<&[u8]>) {
        self.part.policies.insert(ino.0, Vec::new());
        let Some(context) = context else {
            self.problem(Problem::Encryption { ino, why: "but has no context" });
            return;
        };
        let policy = match (context.first(), context.len()) {
            (Some(1), 28) => context.get(..12),
            (Some(2), 40) => context.get(..24),
            // A later version: nothing is known of it, but that it is none of the others.
            (Some(version), _) if *version > 2 => Some(LATER_POLICY),
            _ => None,
        };
        match policy {
            Some(policy) => drop(self.part.policies.insert(ino.0, policy.to_vec())),
            None => self.problem(Problem::Encryption { ino, why: "and its context is damaged" }),
        }
    }

    /// The size of the longest file, with extents or without.
    fn size_max(&self, has_extents: bool) -> u64 {
        let blocks = match has_extents {
            true => 1 << 32,
            false => extant_format::indirect::max_file_blocks(self.sb.block_size),
        };
        u64::from(self.sb.block_size.bytes()).saturating_mul(blocks).saturating_sub(1)
    }

    fn check_size(&mut self, ino: Ino, inode: &Inode, map: &Map, inline: Option<&[u8]>) {
        let size = inode.size;
        let block = u64::from(self.sb.block_size.bytes());
        let kind = inode.kind();
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            let Some(value) = inline else {
                self.problem(Problem::Size { ino, size, why: "the inline data has no value" });
                return;
            };
            let stored = 60 + value.len() as u64;
            // A file may have been made longer since: the rest reads as zeros, as in Linux.
            let wrong = match kind {
                Some(FileKind::Regular) => !value.is_empty() && size < stored,
                Some(FileKind::Directory) => size != stored,
                // A link is as long as what is stored of it, and e2fsck clears another one.
                _ => size != stored,
            };
            if wrong {
                self.problem(Problem::Size { ino, size, why: "another amount of it is inline" });
            } else if size > self.size_max(false) {
                // Longer than zeros could ever make it; Linux reads nothing of it.
                self.problem(Problem::Size { ino, size, why: "no map reaches so far" });
            }
            return;
        }
        if map.is_damaged {
            return;
        }
        match kind {
            Some(FileKind::Directory) if size != map.end.saturating_mul(block) => {
                self.problem(Problem::Size { ino, size, why: "other blocks are mapped" });
            }
            Some(FileKind::Regular) => {
                if size > self.size_max(inode.flags.contains(InodeFlags::EXTENTS)) {
                    self.problem(Problem::Size { ino, size, why: "no map reaches so far" });
                }
                // A block that starts where the file ends may have been left there.
                let last = map.written_end.saturating_sub(1).saturating_mul(block);
                let is_verity = inode.flags.contains(InodeFlags::VERITY);
                if map.written_end != 0 && size < last && !is_verity {
                    // Whether a truncation is under way is not known before the orphans are.
                    self.part.short_sizes.push((ino, size));
                }
            }
            _ => {}
        }
    }

    fn check_kind(&mut self, ino: Ino, inode: &Inode, map: &Map) -> Result<(), CheckError> {
        match inode.kind() {
            Some(FileKind::Symlink) => self.check_symlink(ino, inode, map),
            Some(
                FileKind::BlockDevice | FileKind::CharDevice | FileKind::Fifo | FileKind::Socket,
            ) => {
                let is_device =
                    matches!(inode.kind(), Some(FileKind::BlockDevice | FileKind::CharDevice));
                let from = if is_device { 12 } else { 0 };
                let rest = inode.block.get(from..).unwrap_or(&[]);
                if is_device && rest.iter().any(|byte| *byte != 0) {
                    let why = "its number is followed by something";
                    self.problem(Problem::Special { ino, why });
                }
                if inode.size != 0 {
                    self.problem(Problem::Special { ino, why: "it has a size" });
                }
                if self.looks_like_directory(ino, inode)? {
                    self.problem(Problem::Special { ino, why: "it is a directory" });
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the first block in the map begins with a `.` that refers to the inode
    /// itself.
    fn looks_like_directory(&self, ino: Ino, inode: &Inode) -> Result<bool, CheckError> {
        let block = u64::from(field32(&inode.block, 0));
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            // The parent, then entries.
            let inodes = self.sb.inodes_count;
            let entry = dir::decode_entry(inode.block.get(4..).unwrap_or(&[]), 0, self.dir_layout);
            let is_parent = (1..=u64::from(inodes)).contains(&block);
            return Ok(is_parent
                && entry.is_ok_and(|entry| {
                    let is_name = entry.ino.0 <= inodes && !entry.name.is_empty();
                    // An empty directory is one free entry.
                    if entry.is_used() { is_name } else { entry.rec_len == 56 }
                }));
        }
        let mut bytes = Vec::new();
        let mut block = block;
        if field16(&inode.block, 0) == extent::MAGIC {
            bytes.extend_from_slice(&inode.block);
            // The first record of each node leads to the first block, or to the node below.
            for _level in 0..=extent::DEPTH_MAX {
                let (is_leaf, count) = (field16(&bytes, 6) == 0, field16(&bytes, 2));
                let at = if is_leaf { [18, 20] } else { [20, 16] };
                block =
                    (u64::from(field16(&bytes, at[0])) << 32) | u64::from(field32(&bytes, at[1]));
                if count == 0 || field32(&bytes, 12) != 0 || !self.in_range(block, 1) {
                    return Ok(false);
                }
                self.read_block(block, &mut bytes)?;
                if is_leaf || field16(&bytes, 0) != extent::MAGIC {
                    break;
                }
            }
        } else {
            if !self.in_range(block, 1) || inode.size == 0 && field32(&inode.block, 4) != 0 {
                return Ok(false);
            }
            self.read_block(block, &mut bytes)?;
        }
        let is_dot = bytes.get(6) == Some(&1) && bytes.get(8) == Some(&b'.');
        Ok(is_dot && field32(&bytes, 0) == ino.0 && field16(&bytes, 4) == 12)
    }

    fn check_symlink(&mut self, ino: Ino, inode: &Inode, map: &Map) -> Result<(), CheckError> {
        let encrypted = inode.flags.contains(InodeFlags::ENCRYPT);
        let block = u64::from(self.sb.block_size.bytes());
        let mut wrong = |why| self.problem(Problem::Symlink { ino, why });
        if inode.size == 0 || inode.size >= block {
            wrong("its length cannot be");
            return Ok(());
        }
        if inode.flags.contains(InodeFlags::INLINE_DATA) || map.is_damaged {
            return Ok(());
        }
        // An encrypted target begins with its own length.
        let stored = |bytes: &[u8]| match encrypted {
            true => Some(usize::from(field16(bytes, 0)) + 2).filter(|len| *len < bytes.len()),
            false => bytes.iter().position(|byte| *byte == 0),
        };
        if inode.size < 60 && inode.flags.contains(InodeFlags::EXTENTS) && !encrypted {
            // Linux reads it there where values of attributes may be in inodes, and e2fsck everywhere.
            wrong("its target belongs into the inode");
            return Ok(());
        }
        if inode.is_fast_symlink() {
            if stored(&inode.block) != usize::try_from(inode.size).ok() {
                wrong("its target is not as long as it says");
            }
            return Ok(());
        }
        if map.end != 1 || map.clusters != 1 {
            wrong("its target is not in one block");
            return Ok(());
        }
        let Some(start) = self.symlink_block(inode) else { return Ok(()) };
        let mut bytes = Vec::new();
        self.read_block(start.0, &mut bytes)?;
        if stored(&bytes) != usize::try_from(inode.size).ok() {
            let why = "its target is not as long as it says";
            self.problem(Problem::Symlink { ino, why });
        }
        Ok(())
    }

    /// The block of a target, of a map that was walked without a fault.
    fn symlink_block(&self, inode: &Inode) -> Option<FsBlock> {
        if inode.flags.contains(InodeFlags::EXTENTS) {
            let node = extant_format::extent::Node::decode_root(&inode.block).ok()?;
            let first = node.extents().next()?.device_start;
            return self.in_range(first.0, 1).then_some(first);
        }
        extant_format::indirect::block_at(&inode.block, 0)
            .block()
            .filter(|block| self.in_range(block.0, 1))
    }
}
