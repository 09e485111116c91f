//! Applying fast commits at a writable mount.
//!
//! # Place
//!
//! Below: maps, directories, allocator, orphans, all in one transaction. Above: mounting calls
//! [`apply`] after the full commits were replayed, and before anything else is changed.
//!
//! # One transaction
//!
//! Fast commits are valid while the log has no complete transaction of their number. The changes
//! made here are that transaction: before its commit block is durable, another mount applies the
//! fast commits again, to the result of the replay; afterwards they are void. Nothing is written to
//! its final place before.
//!
//! # Order
//!
//! 1. Blocks and inodes recorded as in use are marked so, before anything is allocated.
//! 2. Inodes: attributes, then maps.
//! 3. Names, counting the names that each inode gains and loses.
//! 4. Link counts; inodes without links become orphans, and recovery deletes them.
//! 5. Blocks that are in no map any more are freed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use extant_base::{BlockCount, FileBlock, FsBlock, Ino};
use extant_format::dir::FileType;
use extant_format::extent::Extent;
use extant_format::inode::{FileKind, Inode as Record, InodeFlags};
use extant_jbd2::{FastCommitOverlay, FcDirectory, FcEntry, FcInode, FcMapping};

use crate::alloc::{Purpose, Run};
use crate::dir::edit as dir_edit;
use crate::error::{Family, Fault, FsError, Result};
use crate::fs::Fs;
use crate::map::{self, Cursor, FILE_BLOCKS_END, MappingKind};
use crate::node::{InodeData, Node, Settled};
use crate::txn::Txn;

/// An extent tree without extents.
const EMPTY_TREE: [u8; 12] = [0x0a, 0xf3, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];

/// Applies `overlay`, and commits. The journal was opened so that its first transaction has the
/// number of the fast commits. With `passes_damage`, an inode or a directory whose records cannot
/// be applied is left out, and the reason is returned: the state that fast commits describe is that
/// of each object for itself, and who asks for this checks links and blocks afterwards.
///
/// # Errors
///
/// Damage, in the file system or in the fast commits; no space, in the file system or in one
/// transaction of the log. The journal is aborted then, and the log is unchanged.
pub(crate) fn apply(
    fs: &Fs,
    overlay: &FastCommitOverlay,
    passes_damage: bool,
) -> Result<Vec<FsError>> {
    let volume = fs.volume();
    let writer = volume.writer()?;
    let journal = writer.journal();
    // All credits: the number needed is known only afterwards.
    let mut txn = Txn::begin(volume, journal.credits_max())?;
    txn.never_restart();
    let tid = txn.tid();
    // The original change had enough space.
    let mut work = Work::new(fs, overlay, passes_damage);
    let done = txn.rescue(|txn| work.run(txn));
    let done = done.map_err(|error| txn.fail(error));
    drop(txn);
    done?;
    journal.commit(tid).map_err(FsError::from_journal)?;
    Ok(work.passed)
}

/// An inode in the fast commits.
struct Touched {
    node: Arc<Node>,
    /// Links in the stored inode; 0 for a new one.
    links_before: u16,
    is_new: bool,
}

struct Work<'a> {
    fs: &'a Fs,
    overlay: &'a FastCommitOverlay,
    touched: BTreeMap<Ino, Touched>,
    /// Names that each inode gained and lost.
    names: BTreeMap<Ino, i64>,
    /// Names that the fast commits give each inode. A new inode has only these: stored names belong
    /// to an earlier inode with its number.
    present: BTreeMap<Ino, i64>,
    /// Subdirectories that each directory gained and lost.
    subdirectories: BTreeMap<Ino, i64>,
    /// Blocks that are no longer in a map.
    unmapped: Vec<Extent>,
    /// Clusters in the maps of touched inodes, by number.
    named: Vec<Range<u64>>,
    /// Damage is passed over, not an error.
    passes_damage: bool,
    /// Damage that was passed over.
    passed: Vec<FsError>,
}

fn damaged(ino: Ino, rule: &'static str) -> FsError {
    FsError::corrupt("fast commit", ino, None, Fault::Rule(rule))
}

impl<'a> Work<'a> {
    fn new(fs: &'a Fs, overlay: &'a FastCommitOverlay, passes_damage: bool) -> Work<'a> {
        Work {
            fs,
            overlay,
            touched: BTreeMap::new(),
            names: BTreeMap::new(),
            present: BTreeMap::new(),
            subdirectories: BTreeMap::new(),
            unmapped: Vec::new(),
            named: Vec::new(),
            passes_damage,
            passed: Vec::new(),
        }
    }

    /// Passes over damage where that is wanted; `None` then.
    fn pass<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if self.passes_damage && error.family() == Family::Damage => {
                self.passed.push(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<()> {
        let mut left_out = BTreeSet::new();
        for (ino, inode) in self.overlay.inodes() {
            let claimed = self.claim(txn, ino, inode);
            if self.pass(claimed)?.is_none() {
                left_out.insert(ino);
            }
        }
        for (ino, inode) in self.overlay.inodes() {
            if left_out.contains(&ino) {
                continue;
            }
            let touched = self.attributes(txn, ino, inode);
            if let Some(touched) = self.pass(touched)?.flatten() {
                self.touched.insert(ino, touched);
            }
        }
        for (ino, inode) in self.overlay.inodes() {
            let Some(touched) = self.touched.get(&ino) else { continue };
            let node = Arc::clone(&touched.node);
            if inode.has_ranges() && node.with(|data| data.kind != FileKind::Directory) {
                let mapped = self.map(txn, &node, inode);
                self.pass(mapped)?;
            }
        }
        for (ino, directory) in self.overlay.directories() {
            let named = self.directory(txn, ino, directory);
            self.pass(named)?;
        }
        self.links(txn)?;
        let freed = self.free(txn);
        self.pass(freed)?;
        Ok(())
    }

    /// Returns the stored inode of that number, with or without links; `None` when it is not in
    /// use.
    fn at_home(&self, txn: &Txn<'_>, ino: Ino) -> Result<Option<InodeData>> {
        if !txn.writer().alloc().has_inode(txn, ino)? {
            return Ok(None);
        }
        match self.fs.load_inode_or_orphan(ino) {
            Ok(data) => Ok(Some(data)),
            Err(FsError::NoSuchInode { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the recorded ranges of a file: the mapped ones, and the removed ones.
    fn pieces(inode: &FcInode) -> impl Iterator<Item = (Range<u64>, Option<Extent>)> + '_ {
        let mut at = 0u64;
        std::iter::from_fn(move || {
            // Each round advances by at least one block, over ranges that were records.
            loop {
                let block = u32::try_from(at).ok().map(FileBlock)?;
                let (len, piece) = match inode.map(block) {
                    FcMapping::Unchanged { len } => (len, None),
                    FcMapping::Hole { len } => (len, Some(None)),
                    FcMapping::Mapped(extent) => (extent.len, Some(Some(extent))),
                };
                let range = at..at + u64::from(len.0.max(1));
                // A length of 2^32 - 1 means "to the end".
                at = if len.0 == u32::MAX { FILE_BLOCKS_END } else { range.end };
                if let Some(piece) = piece {
                    return Some((range, piece));
                }
            }
        })
    }

    fn claim(&self, txn: &mut Txn<'_>, ino: Ino, inode: &FcInode) -> Result<()> {
        let alloc = txn.writer().alloc();
        let Some((merged, _)) = self.merged(txn, ino, inode)? else { return Ok(()) };
        if merged.links == 0 && !alloc.has_inode(txn, ino)? {
            // The inode was created and removed again.
            return Ok(());
        }
        if merged.kind() == Some(FileKind::Directory) {
            return Ok(());
        }
        for (_, extent) in Self::pieces(inode) {
            if let Some(extent) = extent {
                alloc.claim_blocks(txn, Run { start: extent.device_start, len: extent.len.0 })?;
            }
        }
        Ok(())
    }

    /// Returns the record after the fast commits, decoded and with all its bytes; `None` when only
    /// ranges are recorded, of an inode that is not in use.
    fn merged(
        &self,
        txn: &Txn<'_>,
        ino: Ino,
        inode: &FcInode,
    ) -> Result<Option<(Record, Box<[u8]>)>> {
        let volume = self.fs.volume();
        if ino.0 == 0 || ino.0 > volume.inode_count() {
            return Err(damaged(ino, "there is no inode of that number"));
        }
        // The old bytes of an inode that is not in use are ignored.
        let raw = match txn.writer().alloc().has_inode(txn, ino)? {
            true => volume.raw_inode(ino)?.map(|(raw, _)| raw),
            false => None,
        };
        let raw = raw.unwrap_or_else(|| vec![0; usize::from(volume.superblock().inode_size)]);
        let merged = inode.merge(&raw);
        if merged.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let record = Record::decode(self.fs.volume().inode_layout(), &merged).map_err(|error| {
            FsError::corrupt("fast commit", ino, None, Fault::Decode(Box::new(error)))
        })?;
        Ok(Some((record, merged.into_boxed_slice())))
    }

    /// Creates or changes an inode. Its map stays as stored, or is empty.
    fn attributes(&self, txn: &mut Txn<'_>, ino: Ino, inode: &FcInode) -> Result<Option<Touched>> {
        let home = self.at_home(txn, ino)?;
        let Some((mut record, raw)) = self.merged(txn, ino, inode)? else { return Ok(None) };
        if inode.image().is_none() {
            // Only ranges are recorded: the inode must exist.
            let Some(home) = home else { return Ok(None) };
            let links_before = home.record.links;
            let node = self.node(ino, home);
            return Ok(Some(Touched { node, links_before, is_new: false }));
        }
        let kind = record.kind().ok_or_else(|| damaged(ino, "the mode has no file type"))?;
        let same =
            |home: &InodeData| home.kind == kind && home.record.generation == record.generation;
        let quotas = txn.writer().quotas();
        match home {
            Some(home) if same(&home) => {
                let links_before = home.record.links;
                let before = home.record.clone();
                let node = self.node(ino, home);
                quotas.transfer_unchecked(txn, &before, &record)?;
                record.sectors = before.sectors;
                record.file_acl = before.file_acl;
                record.dtime = before.dtime;
                if keeps_map(&record) {
                    record.block = before.block;
                }
                txn.update(&node, |data| set(data, record, raw))?;
                Ok(Some(Touched { node, links_before, is_new: false }))
            }
            home => {
                if record.links == 0 && home.is_none() {
                    return Ok(None);
                }
                let is_dir = kind == FileKind::Directory;
                if let Some(old) = home {
                    self.bury(txn, ino, old)?;
                }
                txn.writer().alloc().claim_inode(txn, ino, is_dir)?;
                record.sectors = 0;
                record.file_acl = FsBlock(0);
                record.dtime = 0;
                if keeps_map(&record) || is_dir {
                    empty_map(&mut record, is_dir);
                }
                let mut data = InodeData::fresh(ino, kind, record.clone(), raw.len());
                data.raw = raw;
                let node = txn.create_node(ino, data)?;
                quotas.charge_unchecked(txn, &node)?;
                Ok(Some(Touched { node, links_before: 0, is_new: true }))
            }
        }
    }

    fn node(&self, ino: Ino, home: InodeData) -> Arc<Node> {
        let nodes = self.fs.volume().nodes();
        nodes.get_or_insert_with(ino, || Arc::new(Node::new(home)))
    }

    /// Removes the contents of an inode whose number was freed and given to another one; its names
    /// are removed with the other names.
    fn bury(&self, txn: &mut Txn<'_>, ino: Ino, old: InodeData) -> Result<()> {
        let node = self.node(ino, old);
        node.life().lose_names();
        let settled = Settled::without_contents(&node);
        let dying = settled.die().ok_or_else(|| damaged(ino, "it is given out while in use"))?;
        self.fs.delete_now(txn, dying)
    }

    /// Returns the number of clusters in the map of a file, and their ranges.
    fn clusters(&self, node: &Arc<Node>) -> Result<(u64, Vec<Range<u64>>)> {
        let bits = self.fs.superblock().cluster_bits();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut count = 0;
        // The file system is not shared yet, and a handle is open, so the locks of `Inode::map`
        // must not be taken.
        let view = self.fs.view(node);
        let mut cursor = Cursor::new(&view);
        let mut at = 0;
        while at < FILE_BLOCKS_END {
            let run = cursor.run(&view, at, FILE_BLOCKS_END)?;
            at = run.file_end();
            let (MappingKind::Mapped(start) | MappingKind::Unwritten(start)) = run.kind else {
                continue;
            };
            let first = start.0 >> bits;
            let end = ((start.0 + run.len - 1) >> bits) + 1;
            // The cluster in which the previous run ended counts once.
            let shared = ranges.last().is_some_and(|last| last.end == first + 1);
            count += end - first - u64::from(shared);
            ranges.push(first..end);
        }
        Ok((count, ranges))
    }

    fn map(&mut self, txn: &mut Txn<'_>, node: &Arc<Node>, inode: &FcInode) -> Result<()> {
        if node.with(|data| data.record.flags.contains(InodeFlags::INLINE_DATA)) {
            return Err(damaged(node.ino(), "blocks for a file with its data in the inode"));
        }
        let (before, _) = self.clusters(node)?;
        for (range, extent) in Self::pieces(inode) {
            self.unmapped.extend(map::unmap(txn, node, range)?);
            if let Some(extent) = extent {
                map::insert_run(txn, node, extent)?;
            }
        }
        let (after, named) = self.clusters(node)?;
        self.named.extend(named);
        let superblock = self.fs.superblock();
        let per_cluster = superblock.cluster_bytes() / 512;
        if after > before {
            let sectors = (after - before) * per_cluster;
            txn.writer().quotas().charge_blocks_unchecked(txn, node, sectors)?;
            txn.update(node, |data| data.record.sectors += sectors)?;
        } else if after < before {
            let sectors = (before - after) * per_cluster;
            txn.uncharge_blocks(node, sectors);
            txn.update(node, |data| {
                data.record.sectors = data.record.sectors.saturating_sub(sectors);
            })?;
        }
        Ok(())
    }

    /// Returns the node of an inode that is in use once this is applied.
    fn target(&mut self, txn: &Txn<'_>, ino: Ino) -> Result<Option<Arc<Node>>> {
        if let Some(touched) = self.touched.get(&ino) {
            return Ok(Some(Arc::clone(&touched.node)));
        }
        let Some(home) = self.at_home(txn, ino)? else { return Ok(None) };
        let links_before = home.record.links;
        let node = self.node(ino, home);
        let touched = Touched { node: Arc::clone(&node), links_before, is_new: false };
        self.touched.insert(ino, touched);
        Ok(Some(node))
    }

    fn directory(&mut self, txn: &mut Txn<'_>, ino: Ino, says: &FcDirectory) -> Result<()> {
        let fs = self.fs;
        let Some(dir) = self.target(txn, ino)? else {
            // The inode was created and removed again.
            return Ok(());
        };
        if dir.with(|data| data.kind != FileKind::Directory) {
            return Err(damaged(ino, "names in something that is no directory"));
        }
        if let Some(parent) = says.made_in()
            && self.touched.get(&ino).is_some_and(|touched| touched.is_new)
        {
            txn.update(&dir, |data| data.record.size = 0)?;
            dir_edit::create(txn, fs, &dir, parent)?;
        }
        for (name, entry) in says.entries() {
            let named = self.name(txn, &dir, name, entry);
            self.pass(named)?;
        }
        Ok(())
    }

    fn name(
        &mut self,
        txn: &mut Txn<'_>,
        dir: &Arc<Node>,
        name: &[u8],
        entry: FcEntry,
    ) -> Result<()> {
        let (fs, ino) = (self.fs, dir.ino());
        if let FcEntry::Present(now) = entry {
            *self.present.entry(now).or_default() += 1;
        }
        let found = match fs.view(dir).search(name) {
            Ok(found) => Some(found),
            Err(FsError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        match (entry, found) {
            (FcEntry::Removed(gone), Some(found)) if gone == found => {
                dir_edit::remove(txn, fs, dir, name)?;
                self.count(txn, ino, found, -1)
            }
            (FcEntry::Removed(_), _) => Ok(()),
            (FcEntry::Present(now), Some(found)) if now == found => Ok(()),
            (FcEntry::Present(now), found) => {
                let Some(target) = self.target(txn, now)? else { return Ok(()) };
                let kind = target.with(|data| data.kind);
                let file_type = FileType::from_mode(kind.mode_bits());
                if let Some(found) = found {
                    dir_edit::replace(txn, fs, dir, name, now, file_type)?;
                    self.count(txn, ino, found, -1)?;
                } else {
                    let place = dir_edit::prepare_insert(txn, fs, dir, name, false)?;
                    dir_edit::insert(txn, fs, dir, place, name, now, file_type)?;
                }
                self.count(txn, ino, now, 1)
            }
        }
    }

    /// Counts a name of `ino` that `dir` gained or lost.
    fn count(&mut self, txn: &Txn<'_>, dir: Ino, ino: Ino, by: i64) -> Result<()> {
        *self.names.entry(ino).or_default() += by;
        let target = match self.target(txn, ino) {
            Ok(target) => target,
            // The name is gone, and its inode is left to e2fsck.
            Err(error) if by < 0 && error.family() == Family::Damage => None,
            Err(error) => return Err(error),
        };
        if target.is_some_and(|node| node.with(|data| data.kind == FileKind::Directory)) {
            *self.subdirectories.entry(dir).or_default() += by;
        }
        Ok(())
    }

    fn links(&mut self, txn: &mut Txn<'_>) -> Result<()> {
        let all: BTreeSet<Ino> = self
            .touched
            .keys()
            .chain(self.names.keys())
            .chain(self.subdirectories.keys())
            .copied()
            .collect();
        for ino in all {
            let Some(touched) = self.touched.get(&ino) else { continue };
            let node = Arc::clone(&touched.node);
            let gained = match touched.is_new {
                true => self.present.get(&ino).copied(),
                false => self.names.get(&ino).copied(),
            };
            let below = self.subdirectories.get(&ino).copied().unwrap_or(0);
            let (is_dir, recorded) =
                node.with(|data| (data.kind == FileKind::Directory, i64::from(data.record.links)));
            let before = i64::from(touched.links_before);
            let links = if is_dir {
                match (touched.is_new, gained) {
                    // The directory was removed, or never had a name.
                    (true, None | Some(..=0)) | (false, Some(..=-1)) => 0,
                    (true, _) => 2 + below,
                    // 1 means "many".
                    (false, _) if before == 1 => 1,
                    (false, _) => (before + below).max(2),
                }
            } else {
                match gained {
                    Some(gained) => before + gained,
                    None if touched.is_new => recorded.min(0),
                    None => recorded,
                }
            };
            let limit = i64::from(u16::MAX);
            let links = u16::try_from(links.clamp(0, limit)).unwrap_or(u16::MAX);
            txn.update(&node, |data| data.record.links = links)?;
            if links == 0 {
                node.life().lose_names();
                self.fs.add_orphan(txn, &node)?;
            } else {
                node.life().name();
            }
        }
        Ok(())
    }

    /// Frees the unmapped blocks that are in no map of a touched inode.
    fn free(&mut self, txn: &mut Txn<'_>) -> Result<()> {
        let bits = self.fs.superblock().cluster_bits();
        let mut named = std::mem::take(&mut self.named);
        named.sort_unstable_by_key(|range| range.start);
        let mut gone: BTreeSet<u64> = BTreeSet::new();
        for extent in std::mem::take(&mut self.unmapped) {
            let first = extent.device_start.0 >> bits;
            let last = (extent.device_start.0 + u64::from(extent.len.0).max(1) - 1) >> bits;
            gone.extend(first..=last);
        }
        // Ranges of different files do not overlap in a sound file system; in another one the
        // checks of the bitmap fail.
        let is_named = |cluster: u64| {
            named
                .partition_point(|range| range.start <= cluster)
                .checked_sub(1)
                .and_then(|at| named.get(at))
                .is_some_and(|range| range.contains(&cluster))
        };
        let len = BlockCount(1 << bits).0;
        let alloc = txn.writer().alloc();
        for cluster in gone {
            if !is_named(cluster) {
                let run = Run { start: FsBlock(cluster << bits), len };
                alloc.free(txn, run, Purpose::Data)?;
            }
        }
        Ok(())
    }
}

/// Returns whether the 60 bytes hold a map, not a target, data or a device number.
fn keeps_map(record: &Record) -> bool {
    let flags = record.flags;
    !flags.contains(InodeFlags::INLINE_DATA)
        && (flags.contains(InodeFlags::EXTENTS) || record.kind() == Some(FileKind::Regular))
}

/// Sets an empty map.
fn empty_map(record: &mut Record, is_dir: bool) {
    if is_dir {
        // The directory gets a block of its own.
        record.flags -= InodeFlags::INLINE_DATA | InodeFlags::INDEX;
    }
    record.block = [0; 60];
    if record.flags.contains(InodeFlags::EXTENTS) {
        for (to, from) in record.block.iter_mut().zip(EMPTY_TREE) {
            *to = from;
        }
    }
}

/// Sets the fields and the attribute space of an inode.
fn set(data: &mut InodeData, record: Record, raw: Box<[u8]>) {
    data.set_block_area(record.block);
    data.record = record;
    data.raw = raw;
}
