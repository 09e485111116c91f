//! A file system becomes smaller: what lies behind the new end moves in front of it, and then the end moves.
//!
//! # Invariants
//!
//! - K1. Contents are copied and durable before a map refers to the copy; the map of a file changes in one
//!   step.
//! - K2. Copies lie on clusters that nothing used, in front of the new end.
//! - K3. What does not move (inode tables and bitmaps of groups that stay, the journal; inodes without a
//!   journal) is an obstacle, named with the smallest size that it allows.

use std::collections::BTreeMap;

use extant_base::{BlockCount, FileBlock, FsBlock, GroupIndex, Ino};
use extant_change::{
    ChangeError, Committer, FileMap, Image, Marks, cluster_of, first_of, joined, write_resize_inode,
};
use extant_check::{CheckOptions, Examination, InodeView, ReportAll, examine};
use extant_format::extent::{self, Extent, ExtentState};
use extant_format::features::Feature;
use extant_format::superblock::Superblock;
use extant_format::{orphan, xattr};
use extant_layout::Shape;

use crate::error::{Obstacle, ResizeError, Result};
use crate::inodes::{self, Numbers};
use extant_format::record::{Record, u32_at};

/// Bytes copied at once.
const COPY_BYTES: usize = 1 << 20;

/// A file of which something may lie behind the new end.
struct File {
    ino: Ino,
    map: FileMap,
    /// The block of its attributes; 0: none.
    acl: u64,
    /// One past the last block of any of these.
    end: u64,
}

/// What is known of a file system that is to become smaller.
pub(crate) struct Survey {
    exam: Examination,
    files: Vec<File>,
    /// The highest inode in use.
    last_inode: u32,
    /// How many blocks one transaction takes; `None`: there is no journal.
    limit: Option<u32>,
}

/// What has to be moved for a size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moves {
    /// New places of clusters, by their old ones.
    clusters: BTreeMap<u64, u64>,
    /// Clusters for nodes of maps that are built anew, by inode.
    nodes: BTreeMap<u32, Vec<u64>>,
    /// New numbers of inodes, by their old ones.
    numbers: Numbers,
    pub(crate) files: u64,
}

impl Moves {
    /// Blocks whose contents are copied.
    pub(crate) fn blocks(&self, sb: &Superblock) -> u64 {
        (self.clusters.len() as u64) << sb.cluster_bits()
    }

    /// Inodes that get other numbers.
    pub(crate) fn inodes(&self) -> u64 {
        self.numbers.len() as u64
    }
}

/// Free clusters in front of the new end.
struct Free<'a> {
    exam: &'a Examination,
    per_group: u64,
    end: u64,
    next: u64,
}

impl Free<'_> {
    fn is_free(&self, cluster: u64) -> bool {
        let (group, bit) = (cluster / self.per_group, cluster % self.per_group);
        let words = self.exam.clusters_in_use(group as u32);
        let word = words.and_then(|words| words.get(bit as usize / 64)).copied().unwrap_or(0);
        word >> (bit % 64) & 1 == 0
    }

    /// The next free clusters in a row, at most `len` of them. Each is given once.
    fn take(&mut self, len: u64) -> Option<(u64, u64)> {
        while self.next < self.end && !self.is_free(self.next) {
            self.next += 1;
        }
        let start = self.next;
        while self.next < self.end && self.next - start < len && self.is_free(self.next) {
            self.next += 1;
        }
        (self.next > start).then_some((start, self.next - start))
    }
}

impl Survey {
    /// Looks through the whole image, which must be in order.
    pub(crate) fn of(image: &Image, limit: Option<u32>) -> Result<Survey> {
        // This may be a view of an image whose journal is still to be replayed.
        let options = CheckOptions {
            require_replayed: false,
            require_no_orphans: false,
            strict_totals: false,
            ..CheckOptions::default()
        };
        let exam = examine(&*image.device, &options, &mut ReportAll)?;
        if let Some(problem) = exam.report.problems.first() {
            return Err(ResizeError::damaged(problem.to_string()));
        }
        let mut survey = Survey { files: Vec::new(), last_inode: 1, limit, exam };
        let mut records = image.records();
        for view in survey.exam.inodes().collect::<Vec<_>>() {
            survey.last_inode = survey.last_inode.max(view.ino.0);
            if view.ino == Ino::RESIZE {
                continue;
            }
            let record = records.load(view.ino)?;
            let map = image.read_map(&record)?;
            let acl = record.file_acl(image.is_wide()).0;
            let data = map.extents.iter().map(|e| e.device_start.0 + u64::from(e.len.0));
            let others =
                map.nodes.iter().map(|node| node + 1).chain([if acl == 0 { 0 } else { acl + 1 }]);
            let end = data.chain(others).max().unwrap_or(0);
            if end > 0 {
                survey.files.push(File { ino: view.ino, map, acl, end });
            }
        }
        Ok(survey)
    }

    /// The first obstacle to a size; what has to be moved when there is none.
    pub(crate) fn moves(
        &self,
        image: &Image,
        shape: &Shape,
    ) -> Result<std::result::Result<Moves, Obstacle>> {
        let (old, new) = (&image.sb, &shape.sb);
        let obstacle = |what: String| Ok(Err(Obstacle(what)));
        let mut moves = Moves::default();
        let end = new.blocks_count;
        let table = u64::from(old.inode_table_blocks());
        for group in 0..new.group_count {
            let descriptor = image.group(group)?;
            let ends = [
                descriptor.block_bitmap.0 + 1,
                descriptor.inode_bitmap.0 + 1,
                descriptor.inode_table.0 + table,
            ];
            if ends.into_iter().any(|one| one > end) {
                return obstacle(format!("the inode table of group {group} lies behind that"));
            }
        }
        if old.features.has(Feature::MMP) && old.mmp_block.0 >= end {
            return obstacle("the block of multi-mount protection lies behind that".to_owned());
        }
        if old.features.has(Feature::RESIZE_INODE)
            && u64::from(u32_at(&image.load(Ino::RESIZE)?.block_area(), 52)) >= end
        {
            return obstacle("the list of the resize inode lies behind that".to_owned());
        }
        let mut free = Free {
            exam: &self.exam,
            per_group: u64::from(old.clusters_per_group),
            end: cluster_of(old, end),
            next: 0,
        };
        let full = || obstacle("what is in use does not fit into that".to_owned());
        for file in self.files.iter().filter(|file| file.end > end) {
            if file.ino == old.journal_inode {
                return obstacle("the journal lies behind that".to_owned());
            }
            if file.ino.0 < old.first_inode.0
                && file.ino != Ino::ROOT
                && ![old.user_quota_inode, old.group_quota_inode].contains(&file.ino)
            {
                return obstacle(format!("the reserved inode {} lies behind that", file.ino));
            }
            moves.files += 1;
            // Clusters in the order of the file, in runs.
            let mut runs: Vec<(u64, u64)> = Vec::new();
            for extent in &file.map.extents {
                let last = extent.device_start.0 + u64::from(extent.len.0) - 1;
                let mut from = cluster_of(old, extent.device_start.0.max(end));
                let to = cluster_of(old, last);
                if last < end {
                    continue;
                }
                if runs.last().is_some_and(|(start, len)| start + len == from + 1) {
                    from += 1;
                }
                match runs.last_mut() {
                    _ if from > to => {}
                    Some((start, len)) if *start + *len == from => *len += to - from + 1,
                    _ => runs.push((from, to - from + 1)),
                }
            }
            if file.acl >= end && !moves.clusters.contains_key(&cluster_of(old, file.acl)) {
                runs.push((cluster_of(old, file.acl), 1));
            }
            for (start, len) in runs {
                let mut done = 0;
                while done < len {
                    let Some((at, got)) = free.take(len - done) else { return full() };
                    for number in 0..got {
                        moves.clusters.insert(start + done + number, at + number);
                    }
                    done += got;
                }
            }
            let record = image.load(file.ino)?;
            let extents = moves.extents(old, end, &file.map.extents);
            let needs = match record.has(extant_format::inode::InodeFlags::EXTENTS) {
                true => extent::tree_blocks(joined(&extents).len() as u64, old.block_size)
                    .ok_or_else(|| ResizeError::damaged("a map has too many extents"))?,
                false => file.map.nodes.len() as u64,
            };
            if old.features.has(Feature::QUOTA) && needs != file.map.nodes.len() as u64 {
                return obstacle(format!(
                    "the map of inode {} would take other space, and quota counts it",
                    file.ino
                ));
            }
            let list = moves.nodes.entry(file.ino.0).or_default();
            for _ in 0..needs {
                let Some((at, _)) = free.take(1) else { return full() };
                list.push(at);
            }
        }
        if self.last_inode > new.inodes_count {
            let own = |view: &InodeView| self.own_blocks(old, &moves, view);
            match inodes::numbers(old, &self.exam, new.inodes_count, self.limit, own) {
                Ok(numbers) => moves.numbers = numbers,
                Err(found) => return Ok(Err(found)),
            }
        }
        Ok(Ok(moves))
    }

    /// Blocks of an inode whose checksums depend on its number.
    fn own_blocks(&self, sb: &Superblock, moves: &Moves, view: &InodeView) -> u64 {
        let found = self.files.binary_search_by_key(&view.ino, |file| file.ino);
        let Some(file) = found.ok().and_then(|at| self.files.get(at)) else { return 0 };
        // The entry `.` of a directory changes without checksums, too.
        if !sb.features.metadata_csum() {
            return u64::from(view.is_dir());
        }
        let blocks: u64 = file.map.extents.iter().map(|extent| u64::from(extent.len.0)).sum();
        let is_sealed = view.is_dir() || view.ino == sb.orphan_file_inode;
        let nodes = moves.nodes.get(&view.ino.0).map_or(0, Vec::len).max(file.map.nodes.len());
        nodes as u64 + if is_sealed { blocks } else { 0 }
    }

    /// The smallest size without an obstacle, and the first obstacle to anything smaller.
    pub(crate) fn smallest(&self, image: &Image) -> Result<(u64, String)> {
        let sb = &image.sb;
        let ratio = sb.cluster_bits();
        let (mut low, mut high) = (0, sb.blocks_count >> ratio);
        let mut why = String::new();
        // `high` can be reached, `low` cannot.
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let shape = Shape::rounded(sb, middle << ratio);
            let found = match shape.sb.group_count {
                0 => Err(Obstacle("there is no group left".to_owned())),
                _ => self.moves(image, &shape)?,
            };
            match found {
                Ok(_) => high = middle,
                Err(Obstacle(what)) => (low, why) = (middle, what),
            }
        }
        let blocks = (high << ratio).min(sb.blocks_count);
        Ok((Shape::rounded(sb, blocks).sb.blocks_count.min(sb.blocks_count), why))
    }
}

impl Moves {
    /// Extents with the new places of their blocks.
    fn extents(&self, sb: &Superblock, end: u64, extents: &[Extent]) -> Vec<Extent> {
        let mut list = Vec::with_capacity(extents.len());
        for extent in extents {
            let (mut at, len) = (0, extent.len.0);
            while at < len {
                let block = extent.device_start.0 + u64::from(at);
                let ratio = u64::from(sb.cluster_ratio());
                let (piece, place) = if block < end {
                    ((end - block).min(u64::from(len - at)) as u32, block)
                } else {
                    let cluster = cluster_of(sb, block);
                    let within = block - first_of(sb, cluster);
                    let to = self.clusters.get(&cluster).copied().unwrap_or(cluster);
                    let left = (ratio - within).min(u64::from(len - at)) as u32;
                    (left, first_of(sb, to) + within)
                };
                list.push(Extent {
                    file_start: FileBlock(extent.file_start.0 + at),
                    device_start: FsBlock(place),
                    len: BlockCount(piece),
                    state: extent.state,
                });
                at += piece;
            }
        }
        joined(&list)
    }
}

/// Moves everything that lies behind the new end, some files with each step.
pub(crate) fn evacuate(
    image: &mut Image,
    committer: &mut Committer,
    survey: &Survey,
    moves: &Moves,
    end: u64,
) -> Result {
    let limit = committer.limit()?.map_or(u64::MAX, |limit| u64::from(limit) / 4);
    let mut acls: BTreeMap<u64, Vec<Ino>> = BTreeMap::new();
    let mut marks = Marks::default();
    for file in survey.files.iter().filter(|file| file.end > end) {
        if file.acl >= end {
            acls.entry(file.acl).or_default().push(file.ino);
        }
        let is_inside =
            file.map.extents.iter().all(|e| e.device_start.0 + u64::from(e.len.0) <= end)
                && file.map.nodes.iter().all(|node| *node < end);
        // Only its attributes lie behind the end.
        if is_inside {
            continue;
        }
        let record = image.load(file.ino)?;
        copy(image, &record, file, moves, end)?;
        remap(image, record, file, moves, end, &mut marks)?;
        if image.draft.changed_blocks() + marks.groups() as u64 * 2 > limit {
            std::mem::take(&mut marks).apply(image)?;
            image.device.flush()?;
            committer.commit(image)?;
        }
    }
    for (acl, owners) in acls {
        let from = cluster_of(&image.sb, acl);
        let to = moves.clusters.get(&from).copied();
        let to = to.ok_or_else(|| ResizeError::damaged("a block of attributes has no place"))?;
        let place = first_of(&image.sb, to) + (acl - first_of(&image.sb, from));
        let mut bytes = image.read_block(acl)?;
        if image.sb.features.metadata_csum() {
            xattr::seal(image.sb.checksum_seed(), FsBlock(place), &mut bytes);
        }
        image.write_fresh(place, &bytes)?;
        let wide = image.is_wide();
        for ino in owners {
            let mut record = image.load(ino)?;
            record.set_file_acl(place, wide);
            image.store(&record)?;
        }
        marks.put(&image.sb, to, true);
        marks.put(&image.sb, from, false);
    }
    marks.apply(image)?;
    image.device.flush()?;
    Ok(committer.commit(image)?)
}

/// Copies the contents of a file.
fn copy(image: &Image, record: &Record, file: &File, moves: &Moves, end: u64) -> Result {
    let sb = &image.sb;
    let size = u64::from(sb.block_size.bytes());
    let piece = (COPY_BYTES as u64 / size).max(1);
    let mut buffer = vec![0; (piece * size) as usize];
    let is_orphan_file = record.ino == sb.orphan_file_inode && sb.features.metadata_csum();
    for extent in file.map.extents.iter().filter(|one| one.state == ExtentState::Written) {
        let source = extent.device_start.0;
        let target = moves.extents(sb, end, std::slice::from_ref(extent));
        for part in target {
            let offset = u64::from(part.file_start.0 - extent.file_start.0);
            let from = source + offset;
            if from < end {
                continue;
            }
            let mut done = 0;
            while done < u64::from(part.len.0) {
                let take = piece.min(u64::from(part.len.0) - done);
                let bytes = &mut buffer[..(take * size) as usize];
                image.device.read_at((from + done) * size, bytes)?;
                if is_orphan_file && let Some(seed) = image.seed_of(record) {
                    for (number, block) in bytes.chunks_exact_mut(size as usize).enumerate() {
                        let place = part.device_start.0 + done + number as u64;
                        orphan::seal(seed, FsBlock(place), block);
                    }
                }
                image.device.write_at((part.device_start.0 + done) * size, bytes)?;
                done += take;
            }
        }
    }
    Ok(())
}

/// Builds the map of a file anew, with the new places of its blocks.
fn remap(
    image: &mut Image,
    mut record: Record,
    file: &File,
    moves: &Moves,
    end: u64,
    marks: &mut Marks,
) -> Result {
    let sb = image.sb.clone();
    let extents = moves.extents(&sb, end, &file.map.extents);
    let mut list = moves.nodes.get(&file.ino.0).into_iter().flatten();
    let mut taken = Vec::new();
    image.build_map(&mut record, &extents, || {
        let cluster = list.next().copied();
        let cluster = cluster.ok_or_else(|| ChangeError::damaged("a map has no room"))?;
        taken.push(cluster);
        Ok(first_of(&sb, cluster))
    })?;
    image.add_clusters(&mut record, taken.len() as i64 - file.map.nodes.len() as i64);
    image.store(&record)?;
    for cluster in taken {
        marks.put(&sb, cluster, true);
    }
    for node in &file.map.nodes {
        marks.put(&sb, cluster_of(&sb, *node), false);
    }
    let mut before = None;
    for extent in &file.map.extents {
        let last = extent.device_start.0 + u64::from(extent.len.0) - 1;
        for cluster in cluster_of(&sb, extent.device_start.0)..=cluster_of(&sb, last) {
            if let Some(to) = moves.clusters.get(&cluster)
                && before != Some(cluster)
            {
                marks.put(&sb, *to, true);
                marks.put(&sb, cluster, false);
            }
            before = Some(cluster);
        }
    }
    Ok(())
}

/// Gives other numbers to inodes in groups that go.
pub(crate) fn renumber(
    image: &mut Image,
    committer: &mut Committer,
    survey: &Survey,
    moves: &Moves,
) -> Result {
    let Some(limit) = survey.limit.filter(|_| !moves.numbers.is_empty()) else { return Ok(()) };
    let sb = image.sb.clone();
    let own = |view: &InodeView| survey.own_blocks(&sb, moves, view);
    inodes::renumber(image, committer, &survey.exam, &moves.numbers, limit, own)
}

/// Moves the end: nothing but fixed metadata of groups that go lies behind it.
pub(crate) fn cut(image: &mut Image, shape: &Shape) -> Result {
    let old = image.sb.clone();
    let heads = image.heads();
    let new = &shape.sb;
    let end = new.blocks_count;
    let table = u64::from(old.inode_table_blocks());
    // Clusters of fixed metadata in front of the new end and behind it.
    let mut kept = std::collections::BTreeSet::new();
    let mut gone = std::collections::BTreeSet::new();
    let new_heads = extant_layout::Heads::of(new);
    for group in 0..old.group_count {
        let descriptor = image.group(group)?;
        let fixed = [
            descriptor.block_bitmap.0..descriptor.block_bitmap.0 + 1,
            descriptor.inode_bitmap.0..descriptor.inode_bitmap.0 + 1,
            descriptor.inode_table.0..descriptor.inode_table.0 + table,
        ];
        let stays = group < new.group_count;
        for block in fixed.into_iter().flatten() {
            match stays {
                true => kept.insert(cluster_of(&old, block)),
                false => gone.insert(cluster_of(&old, block)),
            };
        }
        let head = heads.head(GroupIndex(group)).blocks();
        let left = match stays {
            true => new_heads.head(GroupIndex(group)).blocks(),
            false => head.start..head.start,
        };
        for block in head {
            match left.contains(&block) {
                true => kept.insert(cluster_of(&old, block)),
                false => gone.insert(cluster_of(&old, block)),
            };
        }
    }
    let gone: Vec<u64> = gone.difference(&kept).copied().collect();
    let mut marks = Marks::default();
    let end_cluster = cluster_of(&old, end);
    for cluster in gone.iter().filter(|cluster| **cluster < end_cluster) {
        marks.put(&old, *cluster, false);
    }
    marks.apply(image)?;
    image.sb = new.clone();
    // Inodes have moved since the shape was known.
    image.sb.user_quota_inode = old.user_quota_inode;
    image.sb.group_quota_inode = old.group_quota_inode;
    image.sb.project_quota_inode = old.project_quota_inode;
    image.sb.orphan_file_inode = old.orphan_file_inode;
    image.sb.lost_found_inode = old.lost_found_inode;
    image.sb.overhead_clusters = match old.overhead_clusters {
        0 => 0,
        overhead => overhead.saturating_sub(u32::try_from(gone.len()).unwrap_or(u32::MAX)),
    };
    image.groups.truncate(new.group_count as usize);
    let last = new.group_count.saturating_sub(1);
    let bitmap = image.block_bitmap(last)?;
    image.set_block_bitmap(last, bitmap)?;
    if image.has(Feature::RESIZE_INODE) {
        write_resize_inode(image)?;
    }
    image.count();
    image.write_descriptors(last..last + 1)?;
    Ok(image.write_superblock()?)
}
