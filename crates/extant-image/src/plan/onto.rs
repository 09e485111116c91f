//! Placing a tree over an older image: what was there stays where it was.
//!
//! First everything that the base knows gets its old clusters, as far as they are free ([`Claims`]). Then files that
//! grew go on behind their old end, where that is free, and last comes what is new, into the first holes that are
//! long enough. Contents are not compared: a file gets the blocks of the old file with its name, so blocks whose
//! contents did not change are equal in both images.

use std::borrow::Cow;
use std::ops::Range;

use crate::base::{Base, BaseRun};
use crate::geometry::Geometry;
use crate::options::Feature;
use crate::plan::demand::{Demand, Form};
use crate::plan::holes::{Claims, Holes};
use crate::plan::layout::{Layout, NodePlace, OwnPlan, map_blocks_needed};
use crate::plan::pieces::{Object, Own, Piece, PieceRange, Pieces};
use crate::plan::space::FixedRuns;
use crate::tree::{Kind, NodeId, Tree};

/// Something that needs blocks.
struct Wish<'a> {
    object: Object,
    /// The object's map; `None` for objects without one.
    map: Option<Object>,
    /// Runs of its blocks.
    runs: Vec<(u32, u64)>,
    /// Where its blocks were.
    old: Cow<'a, [BaseRun]>,
    /// What it has so far, sorted: block of the object, block of the image, length.
    got: Vec<(u32, u64, u32)>,
}

impl Layout {
    /// As [`Layout::place`], over what `base` says.
    pub(super) fn place_onto(
        tree: &Tree,
        demand: &Demand,
        geometry: Geometry,
        base: &Base,
    ) -> Layout {
        let fixed = FixedRuns::of(&geometry);
        let ratio = u64::from(geometry.cluster_blocks);
        let mut claims = Claims::new(&geometry, &fixed);
        let mut wishes = wishes(tree, demand, &geometry, base);
        for wish in &mut wishes {
            wish.claim(&mut claims, ratio);
        }
        let kept = wishes.iter().flat_map(|wish| &wish.got).map(|(.., len)| u64::from(*len)).sum();
        let mut filler = Filler {
            demand,
            ratio,
            holes: claims.into_holes(),
            pieces: Pieces::default(),
            missing: 0,
        };
        let mut nodes = vec![NodePlace::default(); tree.nodes().len()];
        let mut own = OwnPlan::default();
        let mut values = vec![NodePlace::default(); demand.attrs.value_count()];
        let mut put = |object: Object, place: NodePlace| match object {
            Object::Data(id) => nodes[id.index()] = place,
            Object::XattrInode(value) => values[value as usize] = place,
            Object::Own(what) => own.put(what, place),
            _ => {}
        };
        let is_block = |wish: &Wish<'_>| matches!(wish.object, Object::XattrBlock(_));
        for wish in wishes.iter().filter(|wish| !wish.got.is_empty() && !is_block(wish)) {
            put(wish.object, filler.fill(wish));
        }
        // Blocks of attributes are found by their number, so they follow each other in the list.
        let start = filler.pieces.list().len() as u32;
        for wish in wishes.iter().filter(|wish| is_block(wish)) {
            filler.fill(wish);
        }
        let xattr_blocks = PieceRange { start, count: demand.attrs.block_count() };
        for wish in wishes.iter().filter(|wish| wish.got.is_empty() && !is_block(wish)) {
            put(wish.object, filler.fill(wish));
        }
        let Filler { mut pieces, holes, missing, .. } = filler;
        pieces.sort();
        let used = used_runs(&pieces, ratio);
        Layout {
            geometry,
            fixed,
            pieces,
            nodes,
            own,
            xattr_blocks,
            values,
            used,
            missing_blocks: missing,
            free_blocks: holes.free() * ratio,
            kept_blocks: Some(kept),
        }
    }
}

/// Everything that needs blocks, in the order of the image.
fn wishes<'a>(tree: &Tree, demand: &Demand, geometry: &Geometry, base: &'a Base) -> Vec<Wish<'a>> {
    let mut list = Vec::new();
    let mut wish = |object, map, runs, old| {
        list.push(Wish { object, map, runs, old, got: Vec::new() });
    };
    let of_node = |id: NodeId| Cow::Borrowed(base.runs(id));
    for ((id, _), &(blocks, _)) in tree.dirs().zip(&demand.dir_blocks) {
        if demand.forms[id.index()] == Form::Blocks {
            let runs = vec![(0, u64::from(blocks))];
            wish(Object::Data(id), Some(Object::Map(id)), runs, of_node(id));
        }
    }
    let one = |block: u64| BaseRun { file_block: 0, block, len: 1 };
    let old = &base.superblock;
    let mut own = |what: Own, blocks: u64, old: Cow<'a, [BaseRun]>| {
        let mapped = !matches!(what, Own::ResizeMap | Own::Mmp);
        if blocks > 0 {
            let map = mapped.then_some(Object::OwnMap(what));
            wish(Object::Own(what), map, vec![(0, blocks)], old);
        }
    };
    if geometry.features.has(Feature::RESIZE_INODE) {
        own(Own::ResizeMap, 1, Cow::Owned(base.resize_map().map(one).into_iter().collect()));
    }
    if geometry.features.has(Feature::MMP) {
        let block = Some(old.mmp_block.0).filter(|block| *block != 0);
        own(Own::Mmp, 1, Cow::Owned(block.map(one).into_iter().collect()));
    }
    let quota = [old.user_quota_inode, old.group_quota_inode, old.project_quota_inode];
    for (kind, ino) in (0..3u8).zip(quota) {
        own(Own::Quota(kind), demand.quota_blocks(kind), Cow::Borrowed(base.own_runs(ino)));
    }
    let orphans = Cow::Borrowed(base.own_runs(old.orphan_file_inode));
    own(Own::OrphanFile, u64::from(geometry.orphan_file_blocks), orphans);
    let journal = geometry.journal.map_or(0, |journal| u64::from(journal.total_blocks()));
    own(Own::Journal, journal, Cow::Borrowed(base.own_runs(old.journal_inode)));

    let mut blocks = vec![None; demand.attrs.block_count() as usize];
    for at in 0..tree.nodes().len() as u32 {
        if let Some(index) = demand.attrs.block_of(NodeId(at)) {
            let known = base.old(NodeId(at)).and_then(|old| old.xattr_block);
            blocks[index as usize] = blocks[index as usize].or(known);
        }
    }
    for (index, block) in blocks.into_iter().enumerate() {
        let old = block.map(one).into_iter().collect();
        wish(Object::XattrBlock(index as u32), None, vec![(0, 1)], Cow::Owned(old));
    }
    for kind in [Kind::Symlink, Kind::File] {
        for (index, node) in tree.nodes().iter().enumerate() {
            if node.kind != kind || demand.forms[index] != Form::Blocks {
                continue;
            }
            let id = NodeId(index as u32);
            let runs = match kind {
                Kind::Symlink => vec![(0, 1)],
                _ => demand.runs_of(tree, node).collect(),
            };
            wish(Object::Data(id), Some(Object::Map(id)), runs, of_node(id));
        }
    }
    for value in 0..demand.attrs.value_count() as u32 {
        let blocks = demand.block_size.blocks_for(demand.attrs.value_len(value));
        let (object, map) = (Object::XattrInode(value), Object::XattrInodeMap(value));
        wish(object, Some(map), vec![(0, blocks)], Cow::Borrowed(&[]));
    }
    list
}

impl Wish<'_> {
    /// Takes the old clusters of its blocks, as far as they are free.
    fn claim(&mut self, claims: &mut Claims, ratio: u64) {
        let old = in_clusters(&self.old, ratio);
        let mut next = 0;
        for &(first, blocks) in &self.runs {
            let (first, end) = (u64::from(first), u64::from(first) + blocks);
            let clusters = first / ratio..end.div_ceil(ratio);
            while old.get(next).is_some_and(|(of, _)| of.end <= clusters.start) {
                next += 1;
            }
            for (of, at) in old[next..].iter().take_while(|(of, _)| of.start < clusters.end) {
                let from = of.start.max(clusters.start);
                let to = of.end.min(clusters.end);
                let Some(wanted) = at.checked_add(from - of.start) else { continue };
                claims.claim(wanted..wanted.saturating_add(to - from), |got| {
                    let of = (from + (got.start - wanted)) * ratio;
                    let len = ((got.end - got.start) * ratio).min(end - of);
                    self.got.push((of as u32, got.start * ratio, len as u32));
                });
            }
        }
    }
}

/// Runs of blocks as runs of clusters of the object, and where each begins. What does not lie in clusters as the format
/// has it, or goes back in the file, is left out.
fn in_clusters(runs: &[BaseRun], ratio: u64) -> Vec<(Range<u64>, u64)> {
    let mut clusters: Vec<(Range<u64>, u64)> = Vec::with_capacity(runs.len());
    for run in runs {
        let (of, at) = (u64::from(run.file_block), run.block);
        if of % ratio != at % ratio {
            continue;
        }
        let end = (of + u64::from(run.len)).div_ceil(ratio);
        let (mut of, mut at) = (of / ratio, at / ratio);
        let known = clusters.last().map_or(0, |(range, _)| range.end);
        if of < known {
            (of, at) = (known, at.saturating_add(known - of));
        }
        if of < end {
            clusters.push((of..end, at));
        }
    }
    clusters
}

/// Gives everything the blocks it does not have yet.
struct Filler<'a> {
    demand: &'a Demand,
    ratio: u64,
    holes: Holes,
    pieces: Pieces,
    missing: u64,
}

impl Filler<'_> {
    fn fill(&mut self, wish: &Wish<'_>) -> NodePlace {
        let start = self.pieces.list().len();
        let mut got = wish.got.iter().copied().peekable();
        // The cluster behind the last piece.
        let mut behind = None;
        for &(first, blocks) in &wish.runs {
            let (mut at, end) = (u64::from(first), u64::from(first) + blocks);
            let run_start = self.pieces.list().len();
            while at < end {
                let next = got.peek().copied().filter(|(of, ..)| u64::from(*of) < end);
                if let Some((of, block, len)) = next.filter(|(of, ..)| u64::from(*of) == at) {
                    got.next();
                    self.push(run_start, Piece { block, file_block: of, len, object: wish.object });
                    at += u64::from(len);
                    behind = Some((block + u64::from(len)).div_ceil(self.ratio));
                    continue;
                }
                let want = next.map_or(end, |(of, ..)| u64::from(of)) - at;
                let Some(taken) = self.holes.take(want.div_ceil(self.ratio), behind) else {
                    self.missing += want.next_multiple_of(self.ratio);
                    at += want;
                    continue;
                };
                // At most as many as a file has.
                let len = ((taken.end - taken.start) * self.ratio).min(want) as u32;
                let (block, file_block) = (taken.start * self.ratio, at as u32);
                self.push(run_start, Piece { block, file_block, len, object: wish.object });
                at += u64::from(len);
                behind = Some(taken.end);
            }
        }
        let count = self.pieces.list().len() - start;
        let data = PieceRange { start: start as u32, count: count as u32 };
        let mut place = NodePlace { data, map: PieceRange::default() };
        let Some(map) = wish.map else { return place };
        let start = self.pieces.list().len();
        for index in 0..map_blocks_needed(self.demand, &self.pieces, data) {
            match self.holes.take(1, behind) {
                Some(taken) => {
                    let (block, file_block) = (taken.start * self.ratio, index as u32);
                    self.pieces.push(Piece { block, file_block, len: 1, object: map });
                    behind = Some(taken.end);
                }
                None => self.missing += self.ratio,
            }
        }
        let count = self.pieces.list().len() - start;
        place.map = PieceRange { start: start as u32, count: count as u32 };
        place
    }

    /// Adds a piece of a run that begins with the one at `run_start`; two that meet become one.
    fn push(&mut self, run_start: usize, piece: Piece) {
        match self.pieces.last_from(run_start) {
            Some(last)
                if last.blocks().end == piece.block
                    && last.file_block + last.len == piece.file_block
                    && last.len.checked_add(piece.len).is_some() =>
            {
                last.len += piece.len;
            }
            _ => self.pieces.push(piece),
        }
    }
}

/// Blocks that pieces take, in whole clusters, merged.
fn used_runs(pieces: &Pieces, ratio: u64) -> Vec<Range<u64>> {
    let mut used: Vec<Range<u64>> = Vec::new();
    for piece in pieces.in_order() {
        let end = piece.blocks().end.next_multiple_of(ratio);
        match used.last_mut() {
            Some(last) if last.end >= piece.block => last.end = last.end.max(end),
            _ => used.push(piece.block..end),
        }
    }
    used
}
