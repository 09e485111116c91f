//! State shared by all steps: the device, the superblock, the findings so far.

use std::sync::atomic::AtomicBool;

use extant_base::Ino;
use extant_block::BlockDevice;
use extant_format::dir::DirLayout;
use extant_format::features::{self, Incompat};
use extant_format::group::GroupChecksum;
use extant_format::inode::{InodeLayout, InodesVerifier};
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_layout::support::CHECKABLE;

use crate::base::Base;
use crate::claims::Claims;
use crate::findings::Findings;
use crate::found::Found;
use crate::meet::Meet;
use crate::plain::Plain;
use crate::states::{State, States};
use crate::{CheckError, CheckOptions, Counts, ImageState, Problem, Report};

pub(crate) struct Checker<'a> {
    pub(crate) base: Base<'a>,
    pub(crate) findings: Findings<'a>,
    pub(crate) found: Found,
}

impl<'a> Checker<'a> {
    /// Reads the superblock. The inner error is the report on an image where nothing else can be
    /// looked at.
    pub(crate) fn open(
        device: &'a dyn BlockDevice,
        options: CheckOptions,
        meet: &'a mut dyn Meet,
        is_full: bool,
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
        let inodes = sb.inodes_count;
        let states = States::new(inodes).ok_or(CheckError::Memory { inodes })?;
        let base = Base {
            device,
            options,
            seed: sb.checksum_seed(),
            verifier: InodesVerifier::new(&InodeLayout::of(&sb)).map(Box::new),
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
            states,
            plain: Plain::of(&sb),
            is_full,
            is_partial: AtomicBool::new(false),
            sb,
        };
        let findings = Findings {
            report: Report::default(),
            meet,
            wanted: Vec::new(),
            is_stopped: false,
            max_problems: options.max_problems,
        };
        let mut checker = Checker { base, findings, found: Found::default() };
        checker.check_superblock();
        Ok(Ok(checker))
    }

    fn check_superblock(&mut self) {
        if let Err(wrong) = self.base.sb.verify_checksum() {
            self.problem(Problem::SuperblockChecksum(wrong));
        }
        let state = self.base.sb.state;
        self.findings.report.state = ImageState {
            needs_recovery: self.base.sb.features.has_incompat(Incompat::RECOVER),
            is_clean: state.contains(features::State::VALID),
            has_errors: state.contains(features::State::ERROR),
            orphans: 0,
        };
        let extra_max = self.base.inode_layout.extra_max();
        for (field, found) in [
            ("s_min_extra_isize", self.base.sb.min_extra_isize),
            ("s_want_extra_isize", self.base.sb.want_extra_isize),
        ] {
            if found > extra_max || found % 4 != 0 {
                self.problem(Problem::ExtraSize { field, found, max: extra_max });
            }
        }
        if self.findings.report.state.needs_recovery && self.base.options.require_replayed {
            self.problem(Problem::NeedsRecovery);
        }
        let is_clean =
            state.contains(features::State::VALID) && !state.contains(features::State::ERROR);
        if !is_clean && self.base.options.require_clean_state {
            self.problem(Problem::State { state: state.bits() });
        }
    }

    /// Notes a broken rule, and asks what is to be done about it.
    pub(crate) fn problem(&mut self, problem: Problem) {
        self.findings.problem(problem);
    }

    pub(crate) fn counts_mut(&mut self) -> &mut Counts {
        &mut self.findings.report.counts
    }

    pub(crate) fn state_mut(&mut self) -> &mut ImageState {
        &mut self.findings.report.state
    }

    /// What an inode is, if it is in use and could be decoded.
    pub(crate) fn known(&self, ino: Ino) -> Option<State> {
        Some(self.base.states.get(ino)).filter(|state| state.is_known())
    }

    /// Goes on after a step that met something that cannot be read, if that is wanted.
    pub(crate) fn pass(
        &mut self,
        result: Result<(), CheckError>,
        what: &str,
    ) -> Result<(), CheckError> {
        let Err(error) = result else { return Ok(()) };
        let problem = self.base.unreadable(error, || what.to_owned())?;
        self.problem(problem);
        Ok(())
    }
}
