//! Listing a directory while it changes.
//!
//! On a writable mount a listing reads its entries batch by batch, each under the content lock.
//! Between batches it continues by the *position* of an entry, which depends only on its name: its
//! hash in the index, and a second hash that distinguishes names of equal hash. Splits move entries
//! between blocks without changing this order, so an entry that exists all the time is listed
//! exactly once.
//!
//! ```text
//! 63          32 31           0
//! +-------------+-------------+    0 and 1 are `.` and `..`
//! | hash / 2    | second hash |    the cookie of an entry is the position after its own
//! +-------------+-------------+
//! ```
//!
//! Directories of one block, and inline directories, are listed in the same way, because they may
//! get an index during the listing. Only a directory of more blocks without an index is listed in
//! stored order, by byte positions: its entries never move.

use extant_base::{FileBlock, FsBlock};
use extant_format::checksum::crc32c;
use extant_format::dir::{self, DirEntry as Stored, DirLayout, Records};
use extant_format::hash::{HashVersion, NameHash, name_hash};
use extant_format::htree::Record;

use super::damage;
use super::index::IndexWalk;
use crate::casefold::Wanted;
use crate::error::{Fault, FsError, Result};
use crate::map::{Cursor, FILE_BLOCKS_END, MappingKind};
use crate::view::View;

/// Positions of `.` and `..`, and the first position of other entries.
const DOT: u64 = 0;
const DOT_DOT: u64 = 1;
const FIRST: u64 = 2;

/// Limit of the entries kept at once; further ones are collected again later.
const BATCH_MAX: usize = 8192;

/// An entry of a batch: its position in the listing, and its record as stored.
pub(super) struct Item {
    pub(super) position: u64,
    /// Position at which the listing continues behind the entry.
    pub(super) cookie: u64,
    pub(super) entry: OwnedEntry,
}

/// An entry, copied out of its block.
pub(super) struct OwnedEntry {
    pub(super) name: Box<[u8]>,
    pub(super) ino: extant_base::Ino,
    pub(super) file_type: dir::FileType,
    pub(super) hash: Option<NameHash>,
    pub(super) block: Option<FsBlock>,
}

/// Entries in order, and the position of the next batch; `None` at the end.
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
    pub(super) next: Option<u64>,
    /// Damage that was met; the readable entries are in the batch.
    pub(super) damage: Option<FsError>,
}

/// Returns whether the directory has an invalid index: it is listed like one without, and damage is
/// reported where it is met.
pub(super) fn has_broken_index(view: &View<'_>) -> bool {
    let mut cursor = Cursor::new(view);
    let check = |walk: IndexWalk<'_>| walk.check_nodes(&mut Cursor::new(view));
    !view.is_inline()
        && view.has_index()
        && IndexWalk::new(view, &mut cursor).and_then(check).is_err()
}

/// Returns the entries from position `from` on that are stored together. The caller holds the
/// content lock.
pub(super) fn batch(view: &View<'_>, from: u64, broken_index: bool) -> Result<Batch> {
    if view.is_inline() {
        return inline_batch(view, from);
    }
    if view.has_index() && !broken_index {
        let mut cursor = Cursor::new(view);
        let walk = IndexWalk::new(view, &mut cursor)?;
        return indexed_batch(view, cursor, &walk, from);
    }
    if view.block_len() <= 1 {
        return one_block_batch(view, from);
    }
    linear_batch(view, from)
}

/// Collects entries and puts them in order.
struct Collector<'a> {
    view: &'a View<'a>,
    layout: DirLayout,
    version: HashVersion,
    from: u64,
    /// Position from which on entries are left for later.
    end: u64,
    /// The hashes of the leaf being read: from its own record to the next one.
    range: Option<(u32, Option<Record>)>,
    items: Vec<Item>,
    damage: Option<FsError>,
}

impl<'a> Collector<'a> {
    fn new(view: &'a View<'a>, version: HashVersion, from: u64) -> Collector<'a> {
        let layout = view.dir_layout();
        let (end, items) = (u64::MAX, Vec::new());
        Collector { view, layout, version, from, end, range: None, items, damage: None }
    }

    /// Returns whether the index leads to another leaf for this position.
    fn is_astray(&self, position: u64) -> bool {
        let Some((start, next)) = self.range else { return false };
        position < position_of(start)
            || next.is_some_and(|next| {
                let last = position_of(next.hash) + if next.continued { 1 << 32 } else { 0 };
                position >= last
            })
    }

    fn position(&self, entry: &Stored<'_>) -> u64 {
        let major = match entry.name {
            b"." => return DOT,
            b".." => return DOT_DOT,
            // The hash is stored with the name if computing it needs a key.
            _ if entry.hash.is_some() => entry.hash.map(|hash| hash.major),
            name if self.view.is_encrypted() => self.hash(name),
            name => self.hash(Wanted::new(name, self.view.is_casefold()).hashed()),
        };
        let second = u64::from(crc32c(!0, entry.name));
        (u64::from(major.unwrap_or(0) >> 1) << 32 | second).max(FIRST)
    }

    fn hash(&self, name: &[u8]) -> Option<u32> {
        name_hash(self.version, &self.view.volume().hash_seed(), name).map(|hash| hash.major)
    }

    /// Collects the wanted entries of an area.
    fn area(&mut self, area: &[u8], block: Option<FsBlock>) {
        for entry in Records::of_area(area, self.layout).used() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(fault) => {
                    let fault = Fault::Decode(Box::new(fault));
                    self.damage.get_or_insert(damage(self.view, block, fault));
                    return;
                }
            };
            let position = self.position(&entry);
            if self.is_astray(position) {
                let fault = Fault::Rule("an entry is in a leaf for other hashes");
                self.damage.get_or_insert(damage(self.view, block, fault));
            }
            if (self.from..self.end).contains(&position) {
                let (ino, file_type, hash) = (entry.ino, entry.file_type, entry.hash);
                let entry = OwnedEntry { name: entry.name.into(), ino, file_type, hash, block };
                self.items.push(Item { position, cookie: position, entry });
            }
        }
        if self.items.len() > 2 * BATCH_MAX {
            self.cut();
        }
    }

    fn block(&mut self, cursor: &mut Cursor, at: FileBlock) {
        match self.view.dir_block(cursor, at) {
            Ok(block) => self.area(block.bytes(), Some(block.number())),
            Err(error) => {
                self.damage.get_or_insert(error);
            }
        }
    }

    fn sort(&mut self) {
        let key = |item: &Item| (item.position, item.entry.name.clone());
        self.items.sort_by_cached_key(key);
    }

    /// Leaves the entries behind the first [`BATCH_MAX`] for later, without separating those of one
    /// position.
    fn cut(&mut self) {
        self.sort();
        let Some(end) = self.items.get(BATCH_MAX).map(|item| item.position) else { return };
        let kept = self.items.partition_point(|item| item.position < end);
        if kept > 0 {
            self.items.truncate(kept);
            self.end = end;
        }
    }

    fn finish(mut self) -> Batch {
        let end = self.end;
        self.items.retain(|item| item.position < end);
        self.sort();
        let mut after = None;
        for item in self.items.iter_mut().rev() {
            // Of several entries with one position, only the last one's cookie leads past all of
            // them.
            item.cookie = match after {
                Some(after) if after == item.position => item.position,
                _ => item.position + 1,
            };
            after = Some(item.position);
        }
        let next = (end < u64::MAX).then_some(end);
        Batch { items: self.items, next, damage: self.damage }
    }

    fn dots(&mut self, own: extant_base::Ino, parent: extant_base::Ino) {
        for (position, name, ino) in [(DOT, b".".as_slice(), own), (DOT_DOT, b"..", parent)] {
            if (self.from..self.end).contains(&position) {
                let file_type = dir::FileType::Directory;
                let entry =
                    OwnedEntry { name: name.into(), ino, file_type, hash: None, block: None };
                self.items.push(Item { position, cookie: position, entry });
            }
        }
    }
}

fn inline_batch(view: &View<'_>, from: u64) -> Result<Batch> {
    let mut collector = Collector::new(view, view.volume().new_index_hash(), from);
    let inline = view.inline_dir()?;
    collector.dots(view.ino(), inline.parent);
    for (_, area) in &inline.areas {
        collector.area(area, None);
    }
    Ok(collector.finish())
}

fn one_block_batch(view: &View<'_>, from: u64) -> Result<Batch> {
    let mut collector = Collector::new(view, view.volume().new_index_hash(), from);
    if view.block_len() == 1 {
        collector.block(&mut Cursor::new(view), FileBlock(0));
    }
    Ok(collector.finish())
}

/// Returns the position where names of this hash begin.
fn position_of(hash: u32) -> u64 {
    (u64::from(hash >> 1) << 32).max(FIRST)
}

fn indexed_batch(
    view: &View<'_>,
    mut cursor: Cursor,
    walk: &IndexWalk<'_>,
    from: u64,
) -> Result<Batch> {
    let mut collector = Collector::new(view, walk.hash, from);
    collector.dots(view.ino(), walk.parent);
    let half = u32::try_from(from >> 32).ok().filter(|half| *half <= u32::MAX >> 1);
    let Some(half) = half else { return Ok(collector.finish()) };
    let mut descent = walk.descend(&mut cursor, half << 1)?;
    // Bounded by rule N2.
    for _ in 0..view.volume().block_count() {
        collector.range = Some((descent.start, descent.next));
        match descent.next.map(|next| position_of(next.hash)) {
            None => {
                collector.block(&mut cursor, descent.leaf);
                return Ok(collector.finish());
            }
            // Names of the hash with which the next leaf begins may be in both: they are listed
            // with that leaf.
            Some(next) if next > from => {
                collector.end = collector.end.min(next);
                collector.block(&mut cursor, descent.leaf);
                return Ok(collector.finish());
            }
            // The last hash of this leaf continues in the next one.
            Some(_) => collector.block(&mut cursor, descent.leaf),
        }
        if !walk.advance(&mut cursor, &mut descent)? {
            return Ok(collector.finish());
        }
    }
    let rule = "its index has more leaves than the file system has blocks";
    Err(damage(view, None, Fault::Rule(rule)))
}

/// Lists one block of a directory without an index; positions are byte offsets.
fn linear_batch(view: &View<'_>, from: u64) -> Result<Batch> {
    let block_size = view.volume().block_size();
    let end = view.block_len().min(FILE_BLOCKS_END);
    let mut cursor = Cursor::new(view);
    let at = from >> block_size.log2();
    let start = at << block_size.log2();
    let mut batch = Batch { items: Vec::new(), next: None, damage: None };
    if at >= end {
        return Ok(batch);
    }
    let piece = cursor.piece(view, at)?;
    if !matches!(piece.kind, MappingKind::Mapped(_)) {
        let rule = "the directory has a hole";
        let fault = Fault::Field { rule, value: at, limit: piece.file_end() };
        batch.damage = Some(damage(view, None, fault));
        batch.next = Some(piece.file_end() << block_size.log2());
        return Ok(batch);
    }
    batch.next = Some((at + 1) << block_size.log2());
    let block = match view.dir_block(&mut cursor, piece.file_start) {
        Ok(block) => block,
        Err(error) => {
            batch.damage = Some(error);
            return Ok(batch);
        }
    };
    for entry in Records::of_area(block.bytes(), view.dir_layout()).used() {
        match entry {
            Ok(entry) => {
                let position = start + u64::from(entry.offset);
                if position < from {
                    continue;
                }
                let (ino, file_type, hash) = (entry.ino, entry.file_type, entry.hash);
                let name = entry.name.into();
                let entry = OwnedEntry { name, ino, file_type, hash, block: Some(block.number()) };
                // Records start at multiples of 4: this cookie is behind the record, and before all
                // others.
                batch.items.push(Item { position, cookie: position + 1, entry });
            }
            Err(fault) => {
                let fault = Fault::Decode(Box::new(fault));
                batch.damage = Some(damage(view, block.number(), fault));
                break;
            }
        }
    }
    Ok(batch)
}
