//! One phase's problems, each given to who sets it right.

use std::collections::{BTreeMap, BTreeSet};

use extant_base::{FsBlock, Ino};
use extant_check::Problem;
use extant_format::features::{Encoding, Feature, State as FsState};
use extant_format::group::GroupFlags;
use extant_format::mmp::Mmp;
use extant_format::superblock::OLD_FIRST_INO;

use super::Session;
use super::phase::Phase;
use crate::error::{Fixed, RepairError, Trouble};
use crate::state::State;
use crate::{bitmaps, descriptors, dirs, inodes, journal, lost, special, twice, xattrs};

impl Session<'_> {
    /// Fixes a batch of one phase.
    pub(super) fn fix(
        &mut self,
        state: &mut State,
        phase: Phase,
        batch: &[Problem],
    ) -> Result<(), RepairError> {
        match phase {
            Phase::Super => {
                let result = fix_super(state, batch);
                self.stale_backups = true;
                self.note(batch, result)
            }
            Phase::Groups => self.fix_groups(state, batch),
            Phase::Log => {
                // Nothing waits in the log any more.
                state.sb.features.remove(Feature::RECOVER);
                let result = state.write_superblock();
                self.note(batch, result)
            }
            Phase::Inodes => self.fix_inodes(state, batch),
            Phase::Twice => self.fix_twice(state, batch),
            Phase::Special => self.fix_special(state, batch),
            Phase::Journal => {
                let is_gone = batch.iter().any(|one| matches!(one, Problem::SpecialInode { .. }));
                let result = journal::fix(state, is_gone);
                self.stale_backups = true;
                self.note(batch, result)
            }
            Phase::Orphans => self.fix_orphans(state, batch),
            Phase::Dirs => self.fix_dirs(state, batch),
            Phase::Dots => {
                for problem in batch {
                    let Problem::Dots { dir, name, wanted, .. } = problem else { continue };
                    let result = match *name {
                        ".." => dirs::set_parent(state, *dir, *wanted),
                        _ => dirs::fix(state, *dir, std::slice::from_ref(problem)),
                    };
                    self.note(std::slice::from_ref(problem), result)?;
                }
                Ok(())
            }
            Phase::Loops => {
                for problem in batch {
                    let Problem::Loop { ino } = problem else { continue };
                    let result = lost::break_loop(state, *ino);
                    self.note(std::slice::from_ref(problem), result)?;
                }
                Ok(())
            }
            Phase::Lost => self.fix_lost(state, batch),
            Phase::Links => {
                for problem in batch {
                    let Problem::Links { ino, counted, .. } = problem else { continue };
                    let result = lost::set_links(state, *ino, *counted);
                    self.stale_backups |= *counted > extant_format::inode::LINKS_MAX;
                    self.note(std::slice::from_ref(problem), result)?;
                }
                Ok(())
            }
            Phase::Counts => self.fix_counts(state, batch),
            Phase::Quota => {
                for kind in special::quota_kinds(&state.sb, batch) {
                    let result = special::write_quota(state, kind, false);
                    self.note(batch, result)?;
                }
                Ok(())
            }
            Phase::Bitmaps => {
                for group in bitmaps::groups_of(batch) {
                    let result = bitmaps::fix_group(state, group);
                    self.note(batch, result)?;
                }
                let result = bitmaps::fix_totals(state);
                self.note(batch, result)
            }
            Phase::Totals => {
                let result = bitmaps::fix_totals(state);
                self.note(batch, result)
            }
            Phase::State => {
                if !self.left.is_empty() {
                    for problem in batch {
                        self.leave(problem, "other problems are left");
                    }
                    return Ok(());
                }
                state.sb.state.insert(FsState::VALID);
                state.sb.state.remove(FsState::ERROR | FsState::ORPHAN);
                // Nothing is left, so no orphans are: whoever mounted it set this, whether there were any or not.
                state.sb.features.remove(Feature::ORPHAN_PRESENT);
                state.sb.error_count = 0;
                let result = state.write_superblock();
                self.note(batch, result)
            }
            Phase::Unknown => {
                for problem in batch {
                    self.leave(problem, "this version has no rule for it");
                }
                Ok(())
            }
        }
    }

    fn fix_groups(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        match descriptors::renew(state, batch) {
            Ok(false) => {}
            Ok(true) => {
                self.stale_backups = true;
                return Ok(());
            }
            Err(trouble) => return self.note(batch, Err(trouble)),
        }
        for problem in batch {
            let result = match problem {
                Problem::GroupFlags { group, .. } => state.group(group.0).and_then(|descriptor| {
                    let mut descriptor = descriptor;
                    let uninit = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
                    descriptor.flags.remove(uninit);
                    descriptor.itable_unused = 0;
                    state.set_group(group.0, descriptor)
                }),
                Problem::TableUnused { group, .. } => state.group(group.0).and_then(|descriptor| {
                    let mut descriptor = descriptor;
                    descriptor.itable_unused = 0;
                    state.set_group(group.0, descriptor)
                }),
                _ => {
                    self.stale_backups = true;
                    descriptors::fix(state, problem)
                }
            };
            self.note(std::slice::from_ref(problem), result)?;
        }
        Ok(())
    }

    fn by_inode(batch: &[Problem]) -> BTreeMap<Ino, Vec<Problem>> {
        let mut map = BTreeMap::<Ino, Vec<Problem>>::new();
        for problem in batch {
            map.entry(problem.objects().ino.unwrap_or_default()).or_default().push(problem.clone());
        }
        map
    }

    fn fix_inodes(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        let lasting = |state: &State| (state.sb.features, state.sb.first_inode);
        let before = lasting(state);
        for (ino, problems) in Self::by_inode(batch) {
            let (attributes, others): (Vec<Problem>, Vec<Problem>) =
                problems.into_iter().partition(|problem| problem.code().starts_with("xattr"));
            if !attributes.is_empty() {
                let result = if ino.0 == 0 {
                    fix_block_hashes(state, &attributes)
                } else {
                    xattrs::fix(state, ino, &attributes)
                };
                self.note(&attributes, result)?;
            }
            if others.is_empty() {
                continue;
            }
            let named = others.iter().find_map(|problem| match problem {
                Problem::SpecialInode { field, .. } => Some(*field),
                _ => None,
            });
            let result = match named {
                Some(field) => special::fix_named(state, field, ino),
                None if ino == Ino::RESIZE => special::fix_resize(state),
                None => inodes::fix(state, ino, &others),
            };
            self.note(&others, result)?;
        }
        self.stale_backups |= lasting(state) != before;
        Ok(())
    }

    fn fix_twice(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        let inodes: BTreeSet<Ino> =
            batch.iter().filter_map(|problem| problem.objects().ino).collect();
        // What a directory has behind its size is not copied, but cut off.
        for ino in &inodes {
            match inodes::shorten(state, *ino) {
                Ok(false) => {}
                Ok(true) => return Ok(()),
                Err(trouble) => return self.note(batch, Err(trouble)),
            }
        }
        // Where its own blocks are right, somebody else claims them, and that is what is to be copied.
        if inodes.contains(&Ino::RESIZE) && !self.has_fixed_resize {
            self.has_fixed_resize = true;
            let result = special::fix_resize(state);
            return self.note(batch, result);
        }
        match twice::fix(state, &inodes) {
            // A problem that was not found is reported again, and left then.
            Ok(()) => Ok(()),
            // Contents of files need the room more than a journal does.
            Err(Trouble::Full(_)) if journal::is_part_of(state, batch).unwrap_or(false) => {
                let result = journal::remove(state);
                self.stale_backups = true;
                self.note(batch, result)
            }
            Err(trouble) => self.note(batch, Err(trouble)),
        }
    }

    fn fix_special(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        for problem in batch {
            let result = match problem {
                Problem::ResizeInode { .. } => {
                    // Without the feature, the copies are not to say that blocks are reserved either.
                    self.stale_backups |= !state.sb.features.has(Feature::RESIZE_INODE);
                    special::fix_resize(state)
                }
                Problem::SpecialInode { field, ino, .. } => {
                    self.stale_backups |= *field != "the root";
                    special::fix_named(state, field, *ino)
                }
                _ => Ok(()),
            };
            self.note(std::slice::from_ref(problem), result)?;
        }
        Ok(())
    }

    fn fix_orphans(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        let mut in_general = Vec::new();
        for problem in batch {
            match problem {
                Problem::Dtime { ino, .. } => {
                    let result = inodes::fix(state, *ino, std::slice::from_ref(problem));
                    self.note(std::slice::from_ref(problem), result)?;
                }
                _ => in_general.push(problem.clone()),
            }
        }
        if in_general.is_empty() {
            return Ok(());
        }
        let is_file = in_general
            .iter()
            .any(|problem| matches!(problem, Problem::OrphanFile(..) | Problem::Size { .. }));
        let result = special::finish_orphans(state)
            .and_then(|()| if is_file { special::fix_orphan_file(state) } else { Ok(()) });
        self.note(&in_general, result)
    }

    fn fix_dirs(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        // What could not be told apart is not written over: tables and files are worth more than a directory.
        let shared =
            match self.findings.iter().any(|one| one.code == "claimed-twice" && one.left.is_some())
            {
                true => Some(twice::shared(state)),
                false => None,
            };
        let mut misled: BTreeMap<Ino, (BTreeSet<u32>, Vec<Problem>)> = BTreeMap::new();
        let mut rest = Vec::with_capacity(batch.len());
        for problem in batch {
            match dirs::misled(state, problem).filter(|_| shared.is_none()) {
                Some((first, ino)) => {
                    let (inodes, problems) = misled.entry(first).or_default();
                    inodes.insert(ino.0);
                    problems.push(problem.clone());
                }
                None => rest.push(problem.clone()),
            }
        }
        for (first, (inodes, problems)) in misled {
            let result = dirs::forget(state, first, inodes);
            self.note(&problems, result)?;
        }
        for (dir, problems) in Self::by_inode(&rest) {
            let is_elsewhere = match &shared {
                Some(Ok(shared)) => twice::lies_in(state, shared, dir),
                Some(Err(_)) => Ok(true),
                None => Ok(false),
            };
            let result = match is_elsewhere {
                Ok(true) => Err(Trouble::cannot("something else claims its blocks")),
                Ok(false) => match inodes::restore(state, &problems) {
                    Ok(true) => Ok(()),
                    Ok(false) => dirs::fix(state, dir, &problems),
                    Err(trouble) => Err(trouble),
                },
                Err(trouble) => Err(trouble),
            };
            self.note(&problems, result)?;
        }
        Ok(())
    }

    fn fix_lost(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        for problem in batch {
            let result = match problem {
                Problem::Unreachable { ino } => lost::reconnect(state, *ino),
                Problem::NotOrphan { ino } => match state.load(*ino) {
                    Ok(mut record) => state.delete_inode(&mut record),
                    Err(trouble) => Err(trouble),
                },
                _ => Ok(()),
            };
            self.note(std::slice::from_ref(problem), result)?;
        }
        Ok(())
    }

    fn fix_counts(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        for problem in batch {
            let result = match problem {
                Problem::XattrReferences { block, counted, .. } => {
                    xattrs::set_references(state, block.0, *counted)
                }
                Problem::XattrInode { value, .. } => fix_value(state, *value),
                Problem::Sectors { ino, .. } => {
                    inodes::fix(state, *ino, std::slice::from_ref(problem))
                }
                _ => Ok(()),
            };
            self.note(std::slice::from_ref(problem), result)?;
        }
        Ok(())
    }
}

fn fix_super(state: &mut State, batch: &[Problem]) -> Fixed {
    for problem in batch {
        match problem {
            Problem::ExtraSize { field, max, .. } => {
                let right = 32.min(*max) / 4 * 4;
                match *field {
                    "s_min_extra_isize" => state.sb.min_extra_isize = right,
                    _ => state.sb.want_extra_isize = right,
                }
            }
            Problem::SuperblockChecksum(_) => {}
            Problem::Feature { name, .. } => {
                let feature = Feature::from_name(name)
                    .map_err(|_| Trouble::cannot(format!("feature {name} is not known")))?;
                state.add_feature(feature);
            }
            // Names fold in one way only, so far.
            Problem::FeatureAlone { name: "casefold", .. } => {
                state.sb.encoding = Encoding::Utf8V12_1;
            }
            Problem::FeatureAlone { name, .. } => {
                let feature = Feature::from_name(name)
                    .map_err(|_| Trouble::cannot(format!("feature {name} is not known")))?;
                state.sb.features.remove(feature);
                if feature == Feature::MMP {
                    state.sb.mmp_block = FsBlock(0);
                }
            }
            Problem::FieldAlone { field: "s_desc_size", .. } => {
                state.sb.raw.s_desc_size = Default::default();
            }
            Problem::FieldAlone { .. } => state.sb.log_groups_per_flex = 0,
            // None of these was ever reserved.
            Problem::SpecialInode { field: extant_check::FIRST_INODE, .. } => {
                state.sb.first_inode = Ino(OLD_FIRST_INO);
            }
            // What mke2fs keeps.
            Problem::ReservedBlocks { .. } => {
                state.sb.reserved_blocks_count = state.sb.blocks_count / 20;
            }
            Problem::Mmp(_) => {
                let block = state.sb.mmp_block.0;
                let mut bytes = vec![0; state.block_bytes()];
                let seed = state.dir_layout.checksum.then_some(state.seed);
                let clean = Mmp::clean(state.sb.mmp_interval).encode(seed);
                extant_format::record::put(&mut bytes, 0, &clean);
                state.write_block(block, &bytes)?;
            }
            Problem::DeviceTooSmall { .. } => {
                return Err(Trouble::cannot(
                    "the device is too small: make it larger, and repair it then",
                ));
            }
            _ => {}
        }
    }
    state.write_superblock()
}

fn fix_block_hashes(state: &mut State, problems: &[Problem]) -> Fixed {
    for problem in problems {
        if let Problem::XattrBlockHash { block, .. } = problem {
            let bytes = state.read_block(block.0)?;
            let references = extant_format::record::u32_at(&bytes, 4);
            xattrs::set_references(state, block.0, references)?;
        }
    }
    Ok(())
}

/// Sets the number of references of an inode that holds a value.
fn fix_value(state: &mut State, value: Ino) -> Fixed {
    let counted = state.exam.value_references(value);
    let mut record = state.load(value)?;
    record.put32(extant_format::record::CTIME, (counted >> 32) as u32);
    record.put32(0x24, counted as u32);
    state.store(&record)
}

/// Writes all backups of the superblock and of the descriptors that belong to it.
pub(super) fn write_backups(state: &State) -> Fixed {
    use extant_base::GroupIndex;
    use extant_block::BlockDevice;
    let mut sb = state.sb.clone();
    sb.features.remove(Feature::RECOVER);
    for group in state.heads.superblock_groups().skip(1) {
        let head = state.heads.head(group);
        let Some(block) = head.super_block else { continue };
        let at = block.saturating_mul(state.block_bytes() as u64);
        state.draft.write_at(at, &sb.encode_backup(group))?;
        for index in 0..state.sb.descriptor_blocks() {
            let copy = state.heads.descriptor_block_copy(index, group);
            let own = state.heads.descriptor_block_copy(index, GroupIndex(0));
            if let (Some(copy), Some(own)) = (copy, own)
                && copy != own
                && state.in_range(copy.0, 1)
            {
                let bytes = state.read_block(own.0)?;
                state.write_block(copy.0, &bytes)?;
            }
        }
    }
    Ok(())
}
