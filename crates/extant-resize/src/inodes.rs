//! Inodes get numbers in front of the new end, and everything that knows them by number learns it.
//!
//! # Shape
//!
//! ```text
//! numbers    which inode gets which number, and what stands in the way
//! Names      who refers to the inodes that move: one walk over all directories and attributes
//! renumber   one inode after the other, as many to a transaction as it takes
//! ```
//!
//! # Invariants
//!
//! - I1. An inode, everything that refers to it, and everything whose checksum depends on its number change
//!   in one transaction of the journal: nothing moves without a journal, or when it does not fit.
//! - I2. New numbers are given in ascending order, so that no record of a table that was never written is
//!   counted before it is written.
//! - I3. Memory is the blocks of one transaction, and some bytes for each name of an inode that moves.

use std::collections::BTreeMap;

use extant_base::{FsBlock, Ino, sabotage};
use extant_change::{ChangeError, Committer, Image};
use extant_check::{Examination, InodeView};
use extant_format::checksum::inode_seed;
use extant_format::dir;
use extant_format::extent::{self, ExtentState};
use extant_format::features::Feature;
use extant_format::htree::{self, NodePlace};
use extant_format::inline::PARENT_BYTES;
use extant_format::inode::InodeFlags;
use extant_format::orphan;
use extant_format::record::{self, Record, put, u16_at, u32_at};
use extant_format::superblock::Superblock;
use extant_format::xattr::{self, NameIndex, Value};

use crate::error::{Obstacle, ResizeError, Result};

/// Blocks of a transaction that every move takes: both records, two bitmaps, two blocks of descriptors, the
/// superblock.
const FIXED_BLOCKS: u64 = 8;

/// New numbers, by the old ones.
pub(crate) type Numbers = BTreeMap<u32, u32>;

/// Finds numbers for inodes that lie behind `last`, the last one that is left. `blocks_of`: how many blocks an
/// inode's own map has whose checksums depend on its number. `limit`: how many blocks one transaction takes.
pub(crate) fn numbers(
    sb: &Superblock,
    exam: &Examination,
    last: u32,
    limit: Option<u32>,
    blocks_of: impl Fn(&InodeView) -> u64,
) -> std::result::Result<Numbers, Obstacle> {
    let mut numbers = Numbers::new();
    let mut free = free_numbers(sb, exam, last);
    for view in exam.inodes().filter(|view| view.ino.0 > last) {
        let ino = view.ino;
        if sb.features.has(Feature::STABLE_INODES) {
            return Err(Obstacle(format!(
                "inode {ino} would get another number, and stable_inodes promises that none does"
            )));
        }
        if ino == sb.journal_inode {
            return Err(Obstacle("the inode of the journal lies behind that".to_owned()));
        }
        let Some(limit) = limit else {
            return Err(Obstacle(format!(
                "inode {ino} is in use, and without a journal inodes do not move; extant tune -O has_journal \
                 makes one"
            )));
        };
        let cost = cost(exam, &view, blocks_of(&view));
        if cost > u64::from(limit) {
            return Err(Obstacle(format!(
                "inode {ino} is in use; with it {cost} blocks change together, and the journal takes {limit}; \
                 extant tune -J size= makes it larger"
            )));
        }
        let Some(to) = free.next() else {
            return Err(Obstacle(format!("inode {ino} is in use, and no other is free")));
        };
        numbers.insert(ino.0, to);
    }
    Ok(numbers)
}

/// How many blocks change together with an inode, at most.
fn cost(exam: &Examination, view: &InodeView, own: u64) -> u64 {
    let named = u64::from(view.names) + u64::from(view.children);
    let values = match view.flags.contains(InodeFlags::EA_INODE) {
        true => exam.value_references(view.ino),
        false => 0,
    };
    own + named + values + FIXED_BLOCKS
}

/// Inodes that nothing uses, in ascending order.
fn free_numbers<'a>(
    sb: &Superblock,
    exam: &'a Examination,
    last: u32,
) -> impl Iterator<Item = u32> + use<'a> {
    let (per, first) = (sb.inodes_per_group.max(1), sb.first_inode.0);
    (first..=last).filter(move |ino| {
        let (group, bit) = ((ino - 1) / per, (ino - 1) % per);
        let words = exam.inodes_in_use(group);
        let word = words.and_then(|words| words.get(bit as usize / 64)).copied().unwrap_or(0);
        word >> (bit % 64) & 1 == 0
    })
}

/// Where a number is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    /// In a block of a directory.
    DirBlock(u64),
    /// In a directory inside its inode.
    Inline,
    /// In the attributes inside an inode.
    Attributes,
    /// In a block of attributes.
    AttributeBlock(u64),
}

/// Who refers to the inodes that move: their numbers before, who refers, and where.
struct Names(Vec<(u32, u32, Place)>);

impl Names {
    /// Reads every directory, and with `ea_inode` every list of attributes.
    fn of(image: &Image, exam: &Examination, numbers: &Numbers) -> Result<Names> {
        let mut names = Names(Vec::new());
        let has_values = image.has(Feature::EA_INODE);
        let mut records = image.records();
        for view in exam.inodes() {
            let may_have_values = has_values && view.links != 0;
            if !view.is_dir() && !may_have_values {
                continue;
            }
            let record = records.load(view.ino)?;
            let mut found = |target: u32, place: Place| {
                if numbers.contains_key(&target) {
                    names.0.push((target, view.ino.0, place));
                }
            };
            if view.is_dir() && record.has(InodeFlags::INLINE_DATA) {
                for (_, target) in inline_entries(image, &record) {
                    found(target, Place::Inline);
                }
            } else if view.is_dir() {
                for (_, block) in blocks_of(image, &record)? {
                    let bytes = image.read_block(block)?;
                    for (_, target) in entries(image, &bytes) {
                        found(target, Place::DirBlock(block));
                    }
                }
            }
            if may_have_values {
                for (_, target) in values_inside(&record) {
                    found(target, Place::Attributes);
                }
                let acl = record.file_acl(image.is_wide()).0;
                if acl != 0 {
                    for (_, target) in values_in_block(&image.read_block(acl)?) {
                        found(target, Place::AttributeBlock(acl));
                    }
                }
            }
        }
        names.0.sort_unstable();
        // A block of attributes that is shared is changed once.
        names.0.dedup_by(|a, b| {
            a.0 == b.0 && a.2 == b.2 && (a.1 == b.1 || matches!(a.2, Place::AttributeBlock(_)))
        });
        Ok(names)
    }

    fn to(&self, target: u32) -> impl Iterator<Item = (Ino, Place)> + '_ {
        let from = self.0.partition_point(|(one, _, _)| *one < target);
        let found = self.0.get(from..).unwrap_or(&[]).iter();
        found.take_while(move |(one, _, _)| *one == target).map(|(_, by, at)| (Ino(*by), *at))
    }
}

/// Entries in an area: where the number of the inode is, and the number.
fn entries(image: &Image, area: &[u8]) -> Vec<(usize, u32)> {
    let mut list = Vec::new();
    let mut at = 0;
    while at + dir::HEADER_BYTES <= area.len() {
        let ino = u32_at(area, at);
        if ino != 0 {
            list.push((at, ino));
        }
        let len = dir::decode_rec_len(u16_at(area, at + 4), image.sb.block_size) as usize;
        at += len.max(dir::HEADER_BYTES);
    }
    list
}

/// Entries of a directory inside its inode, and its parent: where in the record, and the number.
fn inline_entries(image: &Image, record: &Record) -> Vec<(usize, u32)> {
    let mut list = vec![(record::BLOCK, record.u32(record::BLOCK))];
    let mut area = |range: std::ops::Range<usize>| {
        let bytes = record.bytes.get(range.clone()).unwrap_or(&[]);
        list.extend(entries(image, bytes).into_iter().map(|(at, ino)| (range.start + at, ino)));
    };
    area(record::BLOCK + PARENT_BYTES..record::BLOCK + 60);
    let base = record.xattr_at() + xattr::INODE_HEADER_BYTES;
    let space = record.bytes.get(record.xattr_at()..).unwrap_or(&[]);
    if let Ok(Some(attributes)) = xattr::decode_inode(space)
        && let Some(entry) = attributes.find(NameIndex::SYSTEM, b"data")
        && let Value::Here(value) = entry.value
    {
        let start = base + usize::from(record.u16(base + entry.offset as usize + 2));
        area(start..start + value.len());
    }
    list
}

/// Values in inodes of the attributes inside an inode: where in the record the number is, and the number.
fn values_inside(record: &Record) -> Vec<(usize, u32)> {
    let at = record.xattr_at();
    let Ok(Some(attributes)) = xattr::decode_inode(record.bytes.get(at..).unwrap_or(&[])) else {
        return Vec::new();
    };
    let base = at + xattr::INODE_HEADER_BYTES;
    attributes.entries().filter_map(|entry| value_of(&entry, base)).collect()
}

/// Values in inodes of a block of attributes: where in the block the number is, and the number.
fn values_in_block(block: &[u8]) -> Vec<(usize, u32)> {
    let Ok((_, attributes)) = xattr::decode_block(block) else { return Vec::new() };
    attributes.entries().filter_map(|entry| value_of(&entry, 0)).collect()
}

fn value_of(entry: &xattr::XattrEntry<'_>, base: usize) -> Option<(usize, u32)> {
    match entry.value {
        Value::InInode { ino, .. } => Some((base + entry.offset as usize + 4, ino.0)),
        Value::Here(_) => None,
    }
}

/// Blocks of a file that were written: the number in the file, and where.
fn blocks_of(image: &Image, record: &Record) -> Result<Vec<(u32, u64)>> {
    let map = image.read_map(record)?;
    let written = map.extents.iter().filter(|one| one.state == ExtentState::Written);
    Ok(written
        .flat_map(|one| {
            (0..one.len.0).map(|at| (one.file_start.0 + at, one.device_start.0 + u64::from(at)))
        })
        .collect())
}

/// A block of a directory whose checksum was right with the seed before, with another.
fn reseal(before: u32, after: u32, changed: &mut [u8], is: &[u8], number: Option<u32>) -> Result {
    // What kind of block it is, the checksum says for certain.
    if dir::verify(before, is).is_ok() {
        dir::seal(after, changed);
        return Ok(());
    }
    for place in [NodePlace::Root, NodePlace::Inner] {
        let may_be = number.is_none_or(|number| (number == 0) == (place == NodePlace::Root));
        if may_be && htree::verify(before, is, place).is_ok() {
            htree::seal(after, changed, place);
            return Ok(());
        }
    }
    Err(ResizeError::damaged("a block of a directory has a wrong checksum"))
}

/// The work on one image.
struct Renumber<'a> {
    image: &'a mut Image,
    numbers: &'a Numbers,
    names: Names,
    /// Inodes behind this one have their old numbers.
    done: u32,
}

/// Moves inodes, as many with each step as a transaction takes. `blocks_of`: as for [`numbers`].
pub(crate) fn renumber(
    image: &mut Image,
    committer: &mut Committer,
    exam: &Examination,
    numbers: &Numbers,
    limit: u32,
    blocks_of: impl Fn(&InodeView) -> u64,
) -> Result {
    let names = Names::of(image, exam, numbers)?;
    let mut work = Renumber { image, numbers, names, done: 0 };
    for (from, to) in numbers {
        let view = exam.inode(Ino(*from));
        let cost = view.map_or(0, |view| cost(exam, &view, blocks_of(&view)));
        if work.image.draft.changed_blocks() + cost > u64::from(limit) {
            committer.commit(work.image)?;
        }
        work.one(Ino(*from), Ino(*to))?;
        work.done = *from;
    }
    Ok(committer.commit(image)?)
}

impl Renumber<'_> {
    /// The number that an inode has now.
    fn now(&self, ino: Ino) -> Ino {
        match self.numbers.get(&ino.0) {
            Some(to) if ino.0 <= self.done => Ino(*to),
            _ => ino,
        }
    }

    fn one(&mut self, from: Ino, to: Ino) -> Result {
        let places: Vec<(Ino, Place)> = self.names.to(from.0).collect();
        for (by, place) in places {
            if sabotage("resize.inodes.parent-stays") && by.0 > from.0 {
                continue;
            }
            self.refer(by, place, from, to)?;
        }
        let image = &mut *self.image;
        let record = image.load(from)?;
        let seed = image.sb.checksum_seed();
        if image.sb.features.metadata_csum() && !sabotage("resize.inodes.blocks-keep-seed") {
            let (before, after) = (
                inode_seed(seed, from, record.generation()),
                inode_seed(seed, to, record.generation()),
            );
            own_blocks(image, &record, before, after)?;
        }
        // Values that say whose they are, as Lustre made them.
        let inside = values_inside(&record);
        let acl = record.file_acl(image.is_wide()).0;
        let outside = match acl != 0 && image.has(Feature::EA_INODE) {
            true => values_in_block(&image.read_block(acl)?),
            false => Vec::new(),
        };
        let is_dir = record.is_dir();
        let moved = Record { ino: to, bytes: record.bytes.clone() };
        image.store(&moved)?;
        let mut empty = record.clone();
        empty.clear();
        image.store(&empty)?;
        image.mark_inode(to, true, is_dir)?;
        image.mark_inode(from, false, is_dir)?;
        for (_, value) in inside.into_iter().chain(outside) {
            self.back_reference(Ino(value), &record, to)?;
        }
        let sb = &mut self.image.sb;
        for slot in [
            &mut sb.user_quota_inode,
            &mut sb.group_quota_inode,
            &mut sb.project_quota_inode,
            &mut sb.orphan_file_inode,
            &mut sb.lost_found_inode,
        ] {
            if *slot == from {
                *slot = to;
            }
        }
        Ok(self.image.write_superblock()?)
    }

    /// A value that has the number and the generation of its owner gets the new number.
    fn back_reference(&mut self, value: Ino, owner: &Record, to: Ino) -> Result {
        // `i_mtime`.
        const OWNER: usize = 0x10;
        let mut record = self.image.load(self.now(value))?;
        if record.u32(OWNER) == owner.ino.0 && record.generation() == owner.generation() {
            record.put32(OWNER, to.0);
            self.image.store(&record)?;
        }
        Ok(())
    }

    /// Changes the number in one place.
    fn refer(&mut self, by: Ino, place: Place, from: Ino, to: Ino) -> Result {
        let by = self.now(by);
        let image = &*self.image;
        let target = to.0.to_le_bytes();
        match place {
            Place::DirBlock(block) => {
                let is = image.read_block(block)?;
                let mut bytes = is.clone();
                for (at, ino) in entries(image, &is) {
                    if ino == from.0 {
                        put(&mut bytes, at, &target);
                    }
                }
                if image.sb.features.metadata_csum() {
                    let generation = image.load(by)?.generation();
                    let seed = inode_seed(image.sb.checksum_seed(), by, generation);
                    reseal(seed, seed, &mut bytes, &is, None)?;
                }
                image.write_block(block, &bytes)?;
            }
            Place::Inline | Place::Attributes => {
                let mut record = image.load(by)?;
                let list = match place {
                    Place::Inline => inline_entries(image, &record),
                    _ => values_inside(&record),
                };
                for (at, ino) in list {
                    if ino == from.0 {
                        put(&mut record.bytes, at, &target);
                    }
                }
                image.store(&record)?;
            }
            Place::AttributeBlock(block) => {
                let mut bytes = image.read_block(block)?;
                for (at, ino) in values_in_block(&bytes) {
                    if ino == from.0 {
                        put(&mut bytes, at, &target);
                    }
                }
                if image.sb.features.metadata_csum() {
                    xattr::seal(image.sb.checksum_seed(), FsBlock(block), &mut bytes);
                }
                image.write_block(block, &bytes)?;
            }
        }
        Ok(())
    }
}

/// Blocks of an inode whose checksums depend on its number.
fn own_blocks(image: &Image, record: &Record, before: u32, after: u32) -> Result {
    if !image.has_map(record) {
        return Ok(());
    }
    if record.has(InodeFlags::EXTENTS) {
        for node in image.read_map(record)?.nodes {
            let mut bytes = image.read_block(node)?;
            extent::seal(after, &mut bytes);
            image.write_block(node, &bytes)?;
        }
    }
    let is_orphan_file = record.ino == image.sb.orphan_file_inode;
    if !record.is_dir() && !is_orphan_file {
        return Ok(());
    }
    for (number, block) in blocks_of(image, record)? {
        let is = image.read_block(block)?;
        let mut bytes = is.clone();
        match is_orphan_file {
            true => orphan::seal(after, FsBlock(block), &mut bytes),
            false => reseal(before, after, &mut bytes, &is, Some(number)).map_err(|_| {
                ChangeError::damaged(format!(
                    "block {number} of directory {} has a wrong checksum",
                    record.ino
                ))
            })?,
        }
        image.write_block(block, &bytes)?;
    }
    Ok(())
}
