//! Finding, taking and freeing blocks.

use std::ops::Range;
use std::sync::atomic::Ordering;

use extant_base::{FsBlock, GroupIndex, Ino, sabotage};
use extant_format::group::GroupFlags;

use super::criteria::{Class, Criterion, Stripes, Terms, Wish, first_on_stripe};
use super::entry::{Locked, Needs};
use super::group::{Blocks, Found, GroupState, NotFreed, damaged};
use super::index::Visits;
use super::promise::Claimant;
use super::window::{Growth, Look};
use super::{Allocator, BLOCKS, BlockAsk, Counter, Half, Purpose, Right, Run};
use crate::editor::Editor;
use crate::error::{Family, Fault, FsError, Result};
use crate::fast::Refusal;
use crate::run::Window;
use crate::volume::Volume;

/// Number of times a search is repeated because clusters were returned while it ran.
const RETRIES_MAX: u32 = 64;

/// The request of one search, and what the search has met so far.
struct Search {
    wish: Wish,
    /// Number of groups whose bitmaps were searched by the present criterion.
    looks: u32,
    /// Length and group of the best run that was too short.
    best: Option<(u32, GroupIndex)>,
    /// The first error that made a group unusable.
    obstacle: Option<FsError>,
    /// A claim failed because other threads had taken the clusters first.
    is_out: bool,
}

impl Search {
    /// Returns the run to take from a group whose first block is `first`.
    fn find(
        &self,
        blocks: &Blocks,
        criterion: Criterion,
        terms: &Terms,
        start: u32,
        stripes: Option<Stripes>,
    ) -> Found {
        let wish = &self.wish;
        let ahead = match criterion {
            Criterion::Ahead => wish.ahead,
            _ => 0,
        };
        let whole = wish.len.saturating_add(ahead);
        if terms.is_home {
            let here = blocks.open_run(wish.goal_bit, wish.len);
            if here.end - here.start >= wish.len {
                return Found { run: Some(here), is_complete: true };
            }
        }
        if let Some(stripes) = stripes {
            // Behind the file's last block, one piece is better than two on stripes.
            let stays = wish.follows && start == wish.goal_bit && {
                let here = blocks.open_run(start, whole);
                here.end - here.start >= whole
            };
            if !stays && let Some(run) = blocks.find_on_stripe(terms.look, start, whole, stripes) {
                return Found { run: Some(run.start..run.start + wish.len), is_complete: true };
            }
        }
        if criterion != Criterion::Ahead {
            return blocks.find(terms.look, start, wish.len, wish.min);
        }
        let found = blocks.find(Look::Open, start, whole, whole);
        let run = found.run.map(|run| run.start..run.start + wish.len);
        Found { run, ..found }
    }

    /// Remembers the group as the next goal if its run is good enough: groups nearer to the goal
    /// come first, and a group farther away must have a run twice as long.
    fn consider(&mut self, group: GroupIndex, longest: u32) {
        let best = self.best.map_or(0, |(longest, _)| longest.saturating_mul(2));
        if longest >= self.wish.min && longest > best {
            self.best = Some((longest, group));
        }
    }
}

/// The owner of the run that a search finds.
pub(super) enum Taker<'t, 'v> {
    /// A transaction.
    Handle(&'t mut Editor<'v>, Claimant),
    /// Writeback of a file, in memory.
    Pin(Pinning),
}

/// The state of writeback that looks for a place.
pub(super) struct Pinning {
    pub(super) ino: Ino,
    pub(super) growth: Growth,
    /// The file's earlier window, closed once the search locks its group.
    pub(super) own: Option<Window>,
    /// The window that the search opened.
    pub(super) window: Option<Window>,
}

impl Allocator {
    /// Takes contiguous blocks of one group near the goal: `ask.len`, or fewer but at least
    /// `ask.min`, all before block `end`. With `bigalloc`, whole clusters are taken. Promised
    /// clusters are left alone (S3); `right` says how much of the reserved space may be used.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`]: nothing has changed. Damage and device errors of groups do not count
    /// while other groups have room.
    pub(crate) fn allocate(
        &self,
        txn: &mut Editor<'_>,
        ask: &BlockAsk,
        right: Right,
        end: u64,
    ) -> Result<Run> {
        let volume = txn.volume();
        let claimant = match ask.purpose {
            Purpose::Metadata if txn.is_publishing() => Claimant::Publisher,
            purpose => Claimant::Purpose(purpose, right),
        };
        self.hunt(volume, ask, end, &mut Taker::Handle(txn, claimant))
    }

    /// Searches for a run and hands it to the taker.
    pub(super) fn hunt(
        &self,
        volume: &Volume,
        ask: &BlockAsk,
        end: u64,
        taker: &mut Taker<'_, '_>,
    ) -> Result<Run> {
        let superblock = volume.superblock();
        let bits = superblock.cluster_bits();
        let to_clusters = |blocks: u32| blocks.div_ceil(superblock.cluster_ratio().max(1));
        let groups = match superblock.group_of_block(FsBlock(end)) {
            Some((group, _)) => group.0,
            None => superblock.group_count,
        };
        let (goal, goal_block) = superblock.group_of_block(ask.goal).unwrap_or((GroupIndex(0), 0));
        let (goal, goal_block) =
            if goal.0 < groups { (goal, goal_block) } else { (GroupIndex(0), 0) };
        let goal_bit = goal_block >> bits;
        let most = superblock.clusters_per_group.max(1);
        let min = to_clusters(ask.min).max(1);
        let len = to_clusters(ask.len).clamp(min, most.max(min));
        let left = |taker: &Taker<'_, '_>| match taker {
            Taker::Handle(_, claimant) => self.space.left_for(*claimant),
            Taker::Pin(_) => self.space.unpinned(),
        };
        let growth = match taker {
            Taker::Handle(..) => Growth::default(),
            Taker::Pin(pinning) => pinning.growth,
        };
        let class = match ask.purpose {
            Purpose::Data => Class::Data,
            Purpose::Metadata => Class::Metadata,
        };
        let (mut retries, mut hungry) = (0, None);
        loop {
            let returned = self.returns.load(Ordering::Acquire);
            let left = left(taker);
            let no_space = FsError::NoSpace {
                what: BLOCKS,
                wanted: u64::from(ask.min.max(1)),
                free: left << bits,
            };
            if min > most || left < u64::from(min) {
                return Err(no_space);
            }
            let len = u32::try_from(left).unwrap_or(u32::MAX).min(len);
            // The rest of the file's own window counts as well.
            let ahead = match growth.ahead {
                0 => 0,
                ahead => self.window_for(to_clusters(ahead)).min(most - len.min(most)),
            };
            let wish = Wish {
                class,
                len,
                min,
                goal: goal.0,
                goal_bit,
                with_window: growth.ahead > 0,
                ahead,
                continues: growth.continues,
                follows: growth.continues || ask.continues,
                stripe: self.stripe,
            };
            let mut search = Search { wish, looks: 0, best: None, obstacle: None, is_out: false };
            if let Some(run) = self.search(volume, groups, &mut search, taker)? {
                return Ok(run);
            }
            // A search that found nothing while clusters were returned to groups behind it looks
            // again (P54).
            let is_stale = search.is_out || self.returns.load(Ordering::Acquire) != returned;
            let hungry = hungry.get_or_insert_with(|| self.held.hunger());
            if retries >= RETRIES_MAX || !(is_stale || hungry.wait()) {
                return Err(search.obstacle.unwrap_or(no_space));
            }
            retries += 1;
        }
    }

    fn search(
        &self,
        volume: &Volume,
        groups: u32,
        search: &mut Search,
        taker: &mut Taker<'_, '_>,
    ) -> Result<Option<Run>> {
        for criterion in search.wish.criteria() {
            if criterion == Criterion::Any && sabotage("extant.alloc.room-of-others-refused") {
                break;
            }
            let first = match search.best {
                Some((_, group)) if criterion.begins_with_best() => group.0,
                _ => search.wish.goal,
            };
            search.looks = 0;
            let by_index = criterion.by_index() && self.optimized.load(Ordering::Relaxed);
            let index = by_index.then_some(&self.index);
            let (mut visited, mut found) = (0, None);
            let needed = search.wish.elsewhere(criterion);
            let mut visits = Visits::new(index, first, groups, needed);
            loop {
                if search.looks >= criterion.looks_max() {
                    break;
                }
                let rest = visits.clone();
                let Some(group) = visits.next() else { break };
                visited += 1;
                // A search that ends in its first group reads nothing else.
                if search.looks > 0 {
                    self.read_ahead(volume, rest, needed, criterion.look());
                }
                let group = GroupIndex(group);
                if let Some(range) = self.try_group(volume, group, search, criterion, taker)? {
                    found = Some((group, range));
                    break;
                }
                if search.is_out {
                    break;
                }
            }
            self.tally.add(Counter::Visited, visited);
            if let Some((group, range)) = found {
                self.count_found(volume, criterion, group, &search.wish, &range);
                return run_of(volume, group, range).map(Some);
            }
            if search.is_out {
                return Ok(None);
            }
            if by_index && criterion == Criterion::Whole {
                self.consider_longest(groups, search)?;
            }
        }
        Ok(None)
    }

    /// Chooses where the next criterion begins from the index: groups that were not visited have less
    /// than the full length.
    fn consider_longest(&self, groups: u32, search: &mut Search) -> Result<()> {
        let Wish { goal, len, min, .. } = search.wish;
        if let Some(group) = self.index.longest_below(goal, groups, len, min).map(GroupIndex) {
            let (free, longest) = self.cell(group)?.hints(Look::Open);
            search.consider(group, free.min(longest));
        }
        Ok(())
    }

    fn count_found(
        &self,
        volume: &Volume,
        criterion: Criterion,
        group: GroupIndex,
        wish: &Wish,
        range: &Range<u32>,
    ) {
        self.tally.add(Counter::of(criterion), 1);
        let count = range.end - range.start;
        self.tally.add(Counter::Clusters, u64::from(count));
        if count < wish.len {
            self.tally.add(Counter::Missed, u64::from(wish.len - count));
        }
        if (group.0, range.start) == (wish.goal, wish.goal_bit) {
            self.tally.add(Counter::GoalHits, 1);
        }
        if wish.stripe(criterion).is_some()
            && let Some(stripes) = stripes_of(volume, group, wish.stripe)
            && stripes.has(range.start)
        {
            self.tally.add(Counter::OnStripe, 1);
        }
    }

    /// Takes a run from this group if the group has one. The errors are those of the journal;
    /// damage and device errors are noted in the search.
    fn try_group(
        &self,
        volume: &Volume,
        group: GroupIndex,
        search: &mut Search,
        criterion: Criterion,
        taker: &mut Taker<'_, '_>,
    ) -> Result<Option<Range<u32>>> {
        let cell = self.cell(group)?;
        let terms = search.wish.terms(criterion, group.0);
        let needed = terms.needed;
        let (free, longest) = cell.hints(terms.look);
        // The group may have more once the file's own window is closed.
        if cell.is_bad(Half::Blocks) || (free < needed && !terms.is_home) {
            return Ok(None);
        }
        if longest < needed && !terms.is_home {
            search.consider(group, longest);
            return Ok(None);
        }
        let mut needs = Needs::BLOCKS.with_room(needed);
        let mut is_first = true;
        loop {
            let mut locked = match self.enter_if(volume, group, needs, terms.waits) {
                Ok(Some(locked)) => locked,
                Ok(None) => return Ok(None),
                Err(error) => {
                    search.obstacle.get_or_insert(error);
                    return Ok(None);
                }
            };
            let found = self.look(volume, &mut locked, search, criterion, taker, is_first)?;
            let Some(range) = found else { return Ok(None) };
            let (place, state) = locked.parts()?;
            let is_ready = match taker {
                Taker::Handle(..) => {
                    state.is_claimed(Half::Blocks) || state.ready.has(Half::Blocks)
                }
                Taker::Pin(_) => place.0.has_room.load(Ordering::Acquire),
            };
            if is_ready {
                return self.take_found(volume, locked, search, taker, range);
            }
            // What taking it changes is brought without the lock; then the group is looked at again.
            is_first = false;
            needs = match taker {
                Taker::Handle(..) => Needs::CHANGED_BLOCKS,
                Taker::Pin(_) => Needs::PINNED_BLOCKS,
            };
            needs = needs.with_room(needed);
        }
    }

    /// Finds the run to take from a locked group. `is_first` says that this search looks at it for
    /// the first time.
    fn look(
        &self,
        volume: &Volume,
        locked: &mut Locked<'_>,
        search: &mut Search,
        criterion: Criterion,
        taker: &mut Taker<'_, '_>,
        is_first: bool,
    ) -> Result<Option<Range<u32>>> {
        let ((cell, _), state) = locked.parts()?;
        let group = state.index;
        let (wish, terms) = (search.wish, search.wish.terms(criterion, group.0));
        let (look, needed) = (terms.look, terms.needed);
        if state.room() < needed {
            return Ok(None);
        }
        if is_first {
            search.looks += 1;
            self.tally.add(Counter::Searched, 1);
        }
        let is_goal = group.0 == wish.goal;
        let start = if is_goal { wish.goal_bit } else { 0 };
        let blocks = state.blocks_mut()?;
        if let Taker::Pin(pinning) = taker
            && let Some(own) = pinning.own.take_if(|own| own.group == group)
        {
            blocks.close_window(pinning.ino, &own.clusters);
            cell.longest_open.store(u32::MAX, Ordering::Release);
        }
        let has_windows = blocks.in_windows() > 0;
        let bound = blocks.longest_bound(look);
        if bound < needed {
            cell.note_longest(look, has_windows, bound);
            search.consider(group, bound);
            return Ok(None);
        }
        let start = match taker {
            Taker::Pin(Pinning { ino, growth, .. }) if is_goal => {
                blocks.start_of((*ino, growth.grows), start, wish.len)
            }
            _ => start,
        };
        let stripes = wish.stripe(criterion);
        let stripes = stripes.and_then(|stripe| stripes_of(volume, group, stripe));
        let found = search.find(blocks, criterion, &terms, start, stripes);
        let size = found.size();
        if size < wish.len && found.is_complete {
            // Runs shorter than the minimum were not measured.
            let least = match criterion {
                Criterion::Ahead => wish.len + wish.ahead,
                _ => wish.min,
            };
            let longest = size.max(least.saturating_sub(1));
            cell.note_longest(look, has_windows, longest);
        }
        let run = found.run.filter(|_| size >= needed.min(wish.len));
        if run.is_none() {
            search.consider(group, size);
        }
        Ok(run)
    }

    /// Takes as much of a free run as the taker may have. The errors are those of the journal, and
    /// of the device for metadata.
    fn take_found(
        &self,
        volume: &Volume,
        mut locked: Locked<'_>,
        search: &mut Search,
        taker: &mut Taker<'_, '_>,
        range: Range<u32>,
    ) -> Result<Option<Range<u32>>> {
        let (place, state) = locked.parts()?;
        let (group, size) = (state.index, range.end - range.start);
        let count = match taker {
            Taker::Handle(_, claimant) => self.space.claim(*claimant, search.wish.min, size),
            Taker::Pin(_) => self.space.pin(search.wish.min, size),
        };
        let Some(count) = count else {
            search.is_out = !sabotage("extant.alloc.late-not-again");
            return Ok(None);
        };
        let range = range.start..range.start + count;
        let (txn, claimant) = match taker {
            Taker::Pin(pinning) => {
                let blocks = state.blocks_mut()?;
                blocks.pin(range.clone());
                let clusters = blocks.open_window(pinning.ino, range.end, search.wish.ahead);
                pinning.window = clusters.map(|clusters| Window { group, clusters });
                return Ok(Some(range));
            }
            Taker::Handle(txn, claimant) => (txn, claimant),
        };
        if let Err(error) = self.touch(txn, state, Half::Blocks) {
            self.space.unclaim(count);
            return Err(error);
        }
        state.blocks_mut()?.take(range.clone());
        self.space.take(count);
        state.descriptor.free_clusters = state.descriptor.free_clusters.saturating_sub(count);
        if !sabotage("extant.alloc.uninit-flag-kept") {
            state.descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
        }
        place.1.clusters.fetch_sub(i64::from(count), Ordering::Relaxed);
        drop(locked);
        if claimant.is_metadata()
            && let Err(error) = self.keep_on_device(volume, group, range.clone())
        {
            // Nobody has seen the blocks; they are free again after the commit.
            self.with_freed(volume, group, &range, NotFreed::lost, |locked, range| {
                self.free_locked(txn, locked, range)
            })?;
            return Err(error);
        }
        Ok(Some(range))
    }

    /// Allocates space on the device for clusters that were taken for metadata: on a sparse device,
    /// another owner's discard may have released it.
    fn keep_on_device(&self, volume: &Volume, group: GroupIndex, range: Range<u32>) -> Result<()> {
        let run = run_of(volume, group, range)?;
        volume.allocate_on_device(run.start, u64::from(run.len))?;
        for block in run.start.0..run.start.0 + u64::from(run.len) {
            volume.slot(FsBlock(block)).note_room();
        }
        Ok(())
    }

    /// Frees blocks. Metadata blocks, and contents in the journal, also leave the transaction and
    /// the log.
    ///
    /// With `bigalloc`, only whole clusters may be freed: the map knows when the last block of a
    /// cluster goes.
    ///
    /// # Errors
    ///
    /// Damage, with nothing changed: blocks outside the file system, in its own structures, or
    /// parts of clusters. Blocks that are free already are damage of the bitmap: it is reported,
    /// the call succeeds, and the group is not used any more (B5).
    pub(crate) fn free(&self, txn: &mut Editor<'_>, run: Run, was: Purpose) -> Result<()> {
        txn.refuse(Refusal::Blocks);
        self.free_or(txn, run, was, NotFreed::lost)
    }

    /// Frees blocks like [`free`](Self::free); `judge` decides what becomes of blocks that cannot
    /// be freed.
    pub(super) fn free_or(
        &self,
        txn: &mut Editor<'_>,
        run: Run,
        was: Purpose,
        judge: fn(NotFreed) -> Result<&'static str, &'static str>,
    ) -> Result<()> {
        let volume = txn.volume();
        volume.check_blocks("freed blocks", None, run.start, u64::from(run.len))?;
        check_clusters(volume, run)?;
        // A run over several groups is checked in all of them before the first is changed.
        let superblock = volume.superblock();
        let end = run.start.0.saturating_add(u64::from(run.len));
        let several = superblock.group_of_block(FsBlock(end.saturating_sub(1))).map(|at| at.0)
            != superblock.group_of_block(run.start).map(|at| at.0);
        if several {
            each_group(volume, run, |group, range| {
                self.with_freed(volume, group, &range, judge, |_, _| Ok(()))
            })?;
        }
        each_group(volume, run, |group, range| {
            self.with_freed(volume, group, &range, judge, |locked, range| {
                self.free_locked(txn, locked, range)
            })
        })?;
        // Contents of files may be in the log as well.
        let may_be_logged =
            txn.log().logged().has_any() && !sabotage("extant.alloc.contents-not-revoked");
        if was == Purpose::Metadata || may_be_logged {
            for block in run.start.0..end {
                txn.forget(FsBlock(block))?;
            }
        }
        Ok(())
    }

    /// Runs `then` on the group of clusters that may be freed. Clusters freed in a group whose
    /// bitmap is distrusted are lost (B5).
    fn with_freed(
        &self,
        volume: &Volume,
        group: GroupIndex,
        range: &Range<u32>,
        judge: fn(NotFreed) -> Result<&'static str, &'static str>,
        then: impl FnOnce(&mut Locked<'_>, &Range<u32>) -> Result<()>,
    ) -> Result<()> {
        let lost = |error: FsError| match error.family() {
            Family::Damage => Ok(()),
            _ => Err(error),
        };
        if self.cell(group)?.is_bad(Half::Blocks) {
            return Ok(());
        }
        let mut locked = match self.enter(volume, group, Needs::CHANGED_BLOCKS) {
            Ok(locked) => locked,
            Err(error) => return lost(error),
        };
        if locked.cell.is_bad(Half::Blocks) {
            return Ok(());
        }
        let (place, state) = locked.parts()?;
        let at = state.descriptor.block_bitmap;
        let checked = state.blocks_mut()?.check_free(range.clone());
        let broken = |rule| {
            let (value, limit) = (u64::from(range.start), u64::from(range.end));
            FsError::corrupt("block bitmap", None, at, Fault::Field { rule, value, limit })
        };
        match checked.map_err(judge) {
            Ok(()) => {}
            Err(Err(rule)) => return Err(broken(rule)),
            Err(Ok(rule)) => {
                self.report(place.0, Half::Blocks as u8, broken(rule));
                return Ok(());
            }
        }
        then(&mut locked, range)
    }

    fn free_locked(
        &self,
        txn: &mut Editor<'_>,
        locked: &mut Locked<'_>,
        range: &Range<u32>,
    ) -> Result<()> {
        let tid = txn.tid();
        let (place, state) = locked.parts()?;
        self.touch(txn, state, Half::Blocks)?;
        state.blocks_mut()?.free(range.clone(), tid);
        let count = range.end - range.start;
        let GroupState { descriptor, waits_for, index, .. } = state;
        descriptor.free_clusters += count;
        if waits_for.replace(tid) != Some(tid) {
            self.waiting.lock().push((tid, *index));
        }
        self.space.free_later(count);
        place.1.clusters.fetch_add(i64::from(count), Ordering::Relaxed);
        Ok(())
    }
}

/// Returns where stripes of so many clusters begin in a group.
fn stripes_of(volume: &Volume, group: GroupIndex, stripe: u32) -> Option<Stripes> {
    let superblock = volume.superblock();
    let first = superblock.group_first_block(group)?.0;
    let first = first_on_stripe(first, stripe, superblock.cluster_ratio())?;
    Some(Stripes { first, stripe })
}

/// Checks that a run consists of whole clusters; the last cluster of the file system may be short.
pub(super) fn check_clusters(volume: &Volume, run: Run) -> Result<()> {
    let superblock = volume.superblock();
    let (start, end) = (run.start.0, run.start.0.saturating_add(u64::from(run.len)));
    let first = u64::from(superblock.first_data_block);
    let into_cluster =
        |block: u64| block.saturating_sub(first) & u64::from(superblock.cluster_ratio().max(1) - 1);
    if into_cluster(start) != 0 || (into_cluster(end) != 0 && end != superblock.blocks_count) {
        let rule = "parts of clusters are freed (first block and end follow)";
        let fault = Fault::Field { rule, value: start, limit: end };
        return Err(FsError::corrupt("freed blocks", None, run.start, fault));
    }
    Ok(())
}

/// Calls `each` with every group that a run touches, and the clusters there.
pub(super) fn each_group(
    volume: &Volume,
    run: Run,
    mut each: impl FnMut(GroupIndex, Range<u32>) -> Result<()>,
) -> Result<()> {
    let superblock = volume.superblock();
    let bits = superblock.cluster_bits();
    let (mut at, end) = (run.start.0, run.start.0.saturating_add(u64::from(run.len)));
    while at < end {
        let outside = || damaged(GroupIndex(0), "blocks of a run lie in no group");
        let (group, offset) = superblock.group_of_block(FsBlock(at)).ok_or_else(outside)?;
        let left = superblock.group_blocks(group).saturating_sub(offset);
        // The value is below the size of a group and fits.
        let here = u64::from(left).min(end - at) as u32;
        if here == 0 {
            return Err(outside());
        }
        each(group, offset >> bits..((offset + here - 1) >> bits) + 1)?;
        at += u64::from(here);
    }
    Ok(())
}

/// Returns the blocks of a range of clusters; the last cluster of the file system may be short.
pub(super) fn run_of(volume: &Volume, group: GroupIndex, range: Range<u32>) -> Result<Run> {
    let superblock = volume.superblock();
    let bits = superblock.cluster_bits();
    let outside = || damaged(group, "the group lies outside the file system");
    let first = superblock.group_first_block(group).ok_or_else(outside)?;
    let from = u64::from(range.start) << bits;
    let to = (u64::from(range.end) << bits).min(u64::from(superblock.group_blocks(group)));
    let start = first.checked_add(from).ok_or_else(outside)?;
    // The value is below the size of a group and fits.
    Ok(Run { start, len: to.saturating_sub(from) as u32 })
}
