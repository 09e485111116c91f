//! State shared by all steps: the device, the superblock, the findings so far.

use std::collections::BTreeMap;

use extant_base::{FsBlock, Ino};
use extant_block::BlockDevice;
use extant_format::dir::DirLayout;
use extant_format::error::ChecksumError;
use extant_format::features::{Incompat, State};
use extant_format::group::{GroupChecksum, GroupDescriptor};
use extant_format::inode::{FileKind, InodeFlags, InodeLayout};
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_layout::support::CHECKABLE;

use crate::claims::Claims;
use crate::meet::{Answer, Meet};
use crate::{CheckError, CheckOptions, Counts, ImageState, Problem, Report};

/// Blocks of one file that lie side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) file_start: u32,
    pub(crate) start: u64,
    pub(crate) len: u32,
}

/// The data of an inode in use that later steps need.
#[derive(Clone, Debug)]
pub(crate) struct Info {
    pub(crate) ino: Ino,
    pub(crate) mode: u16,
    pub(crate) links: u16,
    pub(crate) dtime: u32,
    pub(crate) flags: InodeFlags,
    pub(crate) size: u64,
    pub(crate) sectors: u64,
    pub(crate) owners: [u32; 3],
    /// crc32c seed of its blocks.
    pub(crate) seed: u32,
    /// Range of its blocks in `Checker::runs`, for files whose contents are metadata.
    pub(crate) runs: (u32, u32),
    /// Blocks up to the last mapped one.
    pub(crate) blocks: u64,
    /// `i_block`, and `system.data` when it is inline.
    pub(crate) inline: Option<Box<([u8; 60], Vec<u8>)>>,
    /// Attribute values in inodes, which count for quota.
    pub(crate) value_inodes: u32,
    /// Names found, `.` and `..` of others not counted.
    pub(crate) names: u32,
    /// Subdirectories, for directories.
    pub(crate) children: u32,
    /// The directory with its first name; 0: none.
    pub(crate) parent: Ino,
    /// The inode of `..`.
    pub(crate) dotdot: Ino,
    /// Known as an orphan.
    pub(crate) is_orphan: bool,
}

impl Info {
    pub(crate) fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == Some(FileKind::Directory)
    }

    pub(crate) fn is_value(&self) -> bool {
        self.flags.contains(InodeFlags::EA_INODE)
    }
}

/// An attribute block and its users.
#[derive(Default)]
pub(crate) struct SharedBlock {
    /// `encryption.c`.
    pub(crate) context: Option<Vec<u8>>,
    pub(crate) stored: u32,
    pub(crate) counted: u32,
    /// Values in inodes: bytes charged and how many.
    pub(crate) value_bytes: u64,
    pub(crate) value_inodes: u32,
}

/// A reference to a value in an inode.
pub(crate) struct ValueRef {
    pub(crate) owner: Ino,
    pub(crate) value: Ino,
    pub(crate) len: u32,
    pub(crate) offset: u32,
    pub(crate) stored_hash: u32,
    /// The hash of the name; that of the value is still to be mixed in.
    pub(crate) name_hash: u32,
    /// The same, with bytes of the name taken as signed.
    pub(crate) signed_hash: u32,
}

pub(crate) struct Checker<'a> {
    pub(crate) device: &'a dyn BlockDevice,
    pub(crate) options: CheckOptions,
    pub(crate) sb: Superblock,
    pub(crate) seed: u32,
    pub(crate) inode_layout: InodeLayout,
    pub(crate) dir_layout: DirLayout,
    pub(crate) group_checksum: GroupChecksum,
    pub(crate) groups: Vec<GroupDescriptor>,
    /// Clusters of fixed metadata in each group that says its block bitmap is uninitialised.
    pub(crate) fixed: Vec<u32>,
    pub(crate) claims: Claims,
    /// In order of inode number.
    pub(crate) infos: Vec<Info>,
    /// For each group where inodes are in use: index into `infos`, plus 1.
    pub(crate) places: Vec<Option<Box<[u32]>>>,
    /// Inodes in use, a bit each, per group.
    pub(crate) used: Vec<Option<Box<[u64]>>>,
    pub(crate) runs: Vec<Run>,
    pub(crate) xattr_blocks: BTreeMap<u64, SharedBlock>,
    pub(crate) values: Vec<ValueRef>,
    /// Reference count and hash stored in inodes of values.
    pub(crate) value_states: BTreeMap<u32, (u64, u32)>,
    /// References to each inode of a value, when they were counted.
    pub(crate) value_counts: BTreeMap<u32, u64>,
    /// Inodes without links whose time of deletion is a possible inode number: they may be orphans.
    pub(crate) low_dtimes: Vec<(Ino, u32, u16)>,
    /// Whether the missing `large_file` was reported.
    pub(crate) lacks_large_file: bool,
    /// How encrypted inodes are encrypted, without what is random.
    pub(crate) policies: BTreeMap<u32, Vec<u8>>,
    pub(crate) report: Report,
    meet: &'a mut dyn Meet,
    /// Problems that are to be fixed.
    pub(crate) wanted: Vec<Problem>,
    /// Nothing more is to be looked at.
    pub(crate) is_stopped: bool,
}

impl<'a> Checker<'a> {
    /// Reads the superblock. The inner error is the report on an image where nothing else can be
    /// looked at.
    pub(crate) fn open(
        device: &'a dyn BlockDevice,
        options: CheckOptions,
        meet: &'a mut dyn Meet,
    ) -> Result<Result<Checker<'a>, Report>, CheckError> {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
        let sb = Superblock::decode_unverified(&bytes)?;
        let unknown = sb.features.without(&CHECKABLE);
        if !unknown.is_empty() {
            return Err(CheckError::Features { names: unknown.names().join(", ") });
        }
        let wanted = sb.blocks_count.saturating_mul(u64::from(sb.block_size.bytes()));
        let found = device.size_bytes();
        if wanted > found {
            let problems = vec![Problem::DeviceTooSmall { wanted, found }];
            for problem in &problems {
                meet.meet(problem);
            }
            return Ok(Err(Report { problems, ..Report::default() }));
        }
        let groups = sb.group_count as usize;
        let mut checker = Checker {
            device,
            options,
            seed: sb.checksum_seed(),
            inode_layout: InodeLayout::of(&sb),
            dir_layout: DirLayout {
                block_size: sb.block_size,
                filetype: sb.features.has_incompat(Incompat::FILETYPE),
                checksum: sb.features.metadata_csum(),
                stored_hash: false,
                encrypted: false,
            },
            group_checksum: GroupChecksum::of(&sb),
            groups: Vec::new(),
            fixed: Vec::new(),
            claims: Claims::new(sb.group_count, sb.clusters_per_group),
            infos: Vec::new(),
            places: vec![None; groups],
            used: vec![None; groups],
            runs: Vec::new(),
            xattr_blocks: BTreeMap::new(),
            values: Vec::new(),
            value_states: BTreeMap::new(),
            value_counts: BTreeMap::new(),
            low_dtimes: Vec::new(),
            lacks_large_file: false,
            policies: BTreeMap::new(),
            report: Report::default(),
            meet,
            wanted: Vec::new(),
            is_stopped: false,
            sb,
        };
        checker.check_superblock();
        Ok(Ok(checker))
    }

    fn check_superblock(&mut self) {
        if let Err(wrong) = self.sb.verify_checksum() {
            self.problem(Problem::SuperblockChecksum(wrong));
        }
        let state = self.sb.state;
        self.report.state = ImageState {
            needs_recovery: self.sb.features.has_incompat(Incompat::RECOVER),
            is_clean: state.contains(State::VALID),
            has_errors: state.contains(State::ERROR),
            orphans: 0,
        };
        let extra_max = self.inode_layout.extra_max();
        for (field, found) in [
            ("s_min_extra_isize", self.sb.min_extra_isize),
            ("s_want_extra_isize", self.sb.want_extra_isize),
        ] {
            if found > extra_max || found % 4 != 0 {
                self.problem(Problem::ExtraSize { field, found, max: extra_max });
            }
        }
        if self.report.state.needs_recovery && self.options.require_replayed {
            self.problem(Problem::NeedsRecovery);
        }
        let is_clean = state.contains(State::VALID) && !state.contains(State::ERROR);
        if !is_clean && self.options.require_clean_state {
            self.problem(Problem::State { state: state.bits() });
        }
    }

    /// Notes a broken rule, and asks what is to be done about it.
    pub(crate) fn problem(&mut self, problem: Problem) {
        if self.is_stopped {
            return;
        }
        match self.meet.meet(&problem) {
            Answer::Report => {}
            Answer::Fix => self.wanted.push(problem.clone()),
            Answer::Stop => self.is_stopped = true,
        }
        if self.report.problems.len() < self.options.max_problems {
            self.report.problems.push(problem);
        } else {
            self.report.dropped = self.report.dropped.saturating_add(1);
        }
    }

    pub(crate) fn counts_mut(&mut self) -> &mut Counts {
        &mut self.report.counts
    }

    pub(crate) fn state_mut(&mut self) -> &mut ImageState {
        &mut self.report.state
    }

    /// Returns whether `len` blocks from `block` on belong to groups.
    pub(crate) fn in_range(&self, block: u64, len: u64) -> bool {
        block >= u64::from(self.sb.first_data_block)
            && block.checked_add(len).is_some_and(|end| end <= self.sb.blocks_count)
            && block != 0
    }

    /// The cluster of a block in range.
    pub(crate) fn cluster(&self, block: u64) -> u64 {
        block.saturating_sub(u64::from(self.sb.first_data_block)) >> self.sb.cluster_bits()
    }

    /// Claims whole clusters for an inode. False, and a problem, when a block does not exist or was
    /// claimed before.
    pub(crate) fn claim(&mut self, ino: Ino, block: u64, len: u64) -> bool {
        if !self.in_range(block, len) {
            self.problem(Problem::BlockRange { ino, block: FsBlock(block), len });
            return false;
        }
        let first = self.cluster(block);
        let last = self.cluster(block.saturating_add(len.saturating_sub(1)));
        let Some(twice) = self.claims.claim(first, last - first + 1) else { return true };
        let block = (twice << self.sb.cluster_bits()) + u64::from(self.sb.first_data_block);
        self.problem(Problem::ClaimedTwice { ino, block: FsBlock(block) });
        false
    }

    /// Reads one block, which must be in range.
    pub(crate) fn read_block(&self, block: u64, out: &mut Vec<u8>) -> Result<(), CheckError> {
        self.read_blocks(block, 1, out)
    }

    /// Reads blocks that must be in range.
    pub(crate) fn read_blocks(
        &self,
        block: u64,
        len: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), CheckError> {
        let size = self.sb.block_size.len();
        out.resize(size.saturating_mul(len as usize), 0);
        self.device.read_at(block.saturating_mul(size as u64), out)?;
        Ok(())
    }

    /// Index into `infos`.
    pub(crate) fn place(&self, ino: Ino) -> Option<usize> {
        let (group, at) = self.sb.group_of_inode(ino)?;
        let places = self.places.get(group.0 as usize)?.as_deref()?;
        (*places.get(at as usize)? as usize).checked_sub(1)
    }

    pub(crate) fn info(&self, ino: Ino) -> Option<&Info> {
        self.infos.get(self.place(ino)?)
    }

    /// The saved runs of an inode.
    pub(crate) fn runs_of(&self, info: &Info) -> Vec<Run> {
        let (from, to) = info.runs;
        self.runs.get(from as usize..to as usize).unwrap_or(&[]).to_vec()
    }

    /// Notes a wrong checksum of a block of an inode.
    pub(crate) fn block_checksum(
        &mut self,
        ino: Ino,
        block: u64,
        result: Result<(), ChecksumError>,
    ) {
        if let Err(source) = result {
            self.problem(Problem::BlockChecksum { ino, block: FsBlock(block), source });
        }
    }
}
