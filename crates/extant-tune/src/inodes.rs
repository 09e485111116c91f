//! The inodes in use, group by group; and inodes of another size.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use extant_base::{FsBlock, Ino};
use extant_block::BlockDevice;
use extant_change::{Image, first_of};
use extant_format::features::Feature;
use extant_format::group::GroupFlags;
use extant_format::inode::{Inode, InodeFlags, InodeLayout};
use extant_format::record::{self, Record, put};
use extant_sync::threads::{self, WorkerPanic};

use crate::error::{Result, TuneError, refuse};
use crate::work::Work;

/// How many records of a group may be in use: those behind were never written.
fn records_in(image: &Image, group: u32) -> Result<u32> {
    if image.is_uninit(group, GroupFlags::INODE_UNINIT)? {
        return Ok(0);
    }
    let unused = if image.has_flags() { image.group(group)?.itable_unused } else { 0 };
    Ok(image.sb.inodes_per_group.saturating_sub(unused))
}

/// Bytes of a table that are in memory at a time, or a block: they stay in a processor's cache.
const PIECE_BYTES: usize = 256 << 10;

/// Pieces below which another thread takes longer to start than to work.
const PIECES_EACH: usize = 4;
/// Threads that share a walk at most.
const THREADS_MAX: usize = 8;

/// Blocks of the table of a group that are in memory at a time.
struct Piece {
    group: u32,
    /// Number of records of the group that may be in use.
    records: usize,
    blocks: Range<usize>,
}

/// The parts of all tables that may be in use.
fn pieces(image: &Image) -> Result<Vec<Piece>> {
    let size = usize::from(image.sb.inode_size).max(128);
    let block = image.block_bytes();
    let per_piece = (PIECE_BYTES / block).max(1);
    let mut list = Vec::new();
    for group in 0..image.sb.group_count {
        let records = records_in(image, group)? as usize;
        let blocks = (records * size).div_ceil(block);
        let starts = (0..blocks).step_by(per_piece);
        list.extend(starts.map(|from| {
            let blocks = from..blocks.min(from + per_piece);
            Piece { group, records, blocks }
        }));
    }
    Ok(list)
}

/// Calls `f` for each record that is not empty, with whether its inode is in use: deleted ones have
/// checksums, too. It says whether it changed the record. What changed is written past the draft.
///
/// Several threads share the tables; each has a value of its own that `start` makes. They are returned in no order.
///
/// # Errors
///
/// The first of the errors of `f`, in the order of inodes among those that were met.
pub(crate) fn each_inode<S: Send>(
    image: &Image,
    start: impl Fn() -> S + Sync,
    f: impl Fn(&mut S, &mut Record, bool) -> Result<bool> + Sync,
) -> Result<Vec<S>> {
    let pieces = pieces(image)?;
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let walk = || {
        let mut state = start();
        let mut bytes = Vec::new();
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(number) else { break };
            if let Err(error) = piece.walk(image, &mut bytes, &mut state, &f) {
                failed.store(true, Ordering::Relaxed);
                return Err((number, error));
            }
        }
        Ok(state)
    };
    let helpers = threads::available().min(THREADS_MAX).min(pieces.len() / PIECES_EACH);
    let done = threads::scope(|scope| {
        // The calling thread is one of them. Where fewer can be started than there should be, those do it.
        let begin = |number| scope.spawn_apart(&format!("tune-{number}"), number, walk).ok();
        let started: Vec<_> = (1..helpers).filter_map(begin).collect();
        let mut done = vec![walk()];
        for handle in started {
            done.push(handle.join()?);
        }
        Ok(done)
    });
    // A bug of this program, and nothing that is known of the image.
    let done = done
        .flatten()
        .unwrap_or_else(|panic: WorkerPanic| resume_unwind(Box::new(panic.to_string())));
    let (states, errors): (Vec<_>, Vec<_>) = done.into_iter().partition(std::result::Result::is_ok);
    match errors.into_iter().filter_map(std::result::Result::err).min_by_key(|(at, _)| *at) {
        Some((_, error)) => Err(error),
        None => Ok(states.into_iter().filter_map(std::result::Result::ok).collect()),
    }
}

impl Piece {
    fn walk<S>(
        &self,
        image: &Image,
        piece: &mut Vec<u8>,
        state: &mut S,
        f: impl Fn(&mut S, &mut Record, bool) -> Result<bool>,
    ) -> Result {
        let size = usize::from(image.sb.inode_size).max(128);
        let (group, block) = (self.group, image.block_bytes());
        let bitmap = image.inode_bitmap(group)?;
        piece.resize(self.blocks.len() * block, 0);
        let start = image.group(group)?.inode_table.0 + self.blocks.start as u64;
        image.draft.read_at(start * block as u64, piece)?;
        let mut record = Record { ino: Ino(0), bytes: Vec::with_capacity(size) };
        let mut touched = std::collections::BTreeSet::new();
        let bits = self.blocks.start * block / size..self.records;
        for (bit, (at, bytes)) in bits.zip((0..).step_by(size).zip(piece.chunks_exact_mut(size))) {
            if bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            // A group has as many inodes as a block has bits.
            record.ino = Ino(group * image.sb.inodes_per_group + bit as u32 + 1);
            record.bytes.clear();
            record.bytes.extend_from_slice(bytes);
            let is_used = bitmap.view().get(bit as u32);
            if f(state, &mut record, is_used)? && *bytes != *record.bytes {
                bytes.copy_from_slice(&record.bytes);
                touched.insert(at / block);
            }
        }
        let mut touched = touched.into_iter().peekable();
        while let Some(from) = touched.next() {
            let mut end = from + 1;
            while touched.next_if_eq(&end).is_some() {
                end += 1;
            }
            image.write_fresh(start + from as u64, &piece[from * block..end * block])?;
        }
        Ok(())
    }
}

/// What keeps an inode from becoming smaller.
fn needs_room(record: &Record) -> Option<&'static str> {
    if record.has(InodeFlags::INLINE_DATA) {
        return Some("has its contents inside");
    }
    let at = record.xattr_at();
    let has_attributes = record
        .bytes
        .get(at..at + 4)
        .is_some_and(|word| *word == extant_format::xattr::MAGIC.to_le_bytes());
    if has_attributes && record.bytes.get(at + 4..at + 8).is_some_and(|first| *first != [0; 4]) {
        return Some("has attributes inside");
    }
    None
}

/// Gives inodes another size: every table is written at a new place.
pub(crate) fn resize(work: &mut Work<'_>) -> Result {
    let Some(new) = work.request.inode_size else { return Ok(()) };
    let image = &work.image;
    let old = image.sb.inode_size.max(128);
    let block = image.sb.block_size.bytes();
    if !new.is_power_of_two() || new < 128 || u32::from(new) > block {
        return refuse("inode size", format!("{new} is none: a power of two from 128 to {block}"));
    }
    if new < 256 {
        for feature in
            [Feature::PROJECT, Feature::INLINE_DATA, Feature::EA_INODE, Feature::EXTRA_ISIZE]
        {
            if work.has(feature) {
                return refuse("inode size", format!("{feature} needs inodes of 256 bytes"));
            }
        }
    }
    let copies = image.backups()?;
    if copies.is_empty() && image.sb.group_count > 1 {
        return refuse(
            "inode size",
            "no group has a copy of superblock and descriptors, which would undo it after a cut",
        );
    }
    work.hides = Some(copies);
    work.may_journal = false;
    let unwritten = unwritten_tables(image)?;
    work.zeroes.extend(unwritten);
    let image = &work.image;
    let mut tables: Vec<Range<u64>> = Vec::new();
    let mut sb = image.sb.clone();
    sb.inode_size = new;
    sb.revision = sb.revision.max(1);
    if old <= 128 {
        (sb.min_extra_isize, sb.want_extra_isize) = (32, 32);
    }
    if new <= 128 {
        (sb.min_extra_isize, sb.want_extra_isize) = (0, 0);
    }
    let wanted = u64::from(sb.inode_table_blocks());
    let clusters = u32::try_from(wanted.div_ceil(u64::from(image.sb.cluster_ratio().max(1))))
        .unwrap_or(u32::MAX);
    let has_flex = work.has(Feature::FLEX_BG);
    let flex = image.sb.groups_per_flex().max(1);
    for group in 0..image.sb.group_count {
        work.space.begin_at(group / flex * flex);
        let found = match work.space.take_within(&work.image, group, clusters)? {
            None if has_flex => work.space.take(&work.image, clusters)?,
            found => found,
        };
        let Some(cluster) = found else {
            return Err(TuneError::Full {
                what: "inode size".to_owned(),
                wanted: format!("an inode table of {wanted} blocks in a row for group {group}"),
            });
        };
        let start = first_of(&work.image.sb, cluster);
        tables.push(start..start + wanted);
    }
    let layout = InodeLayout::of(&sb);
    for (group, table) in (0u32..).zip(&tables) {
        move_table(work, group, table, &layout, usize::from(old), usize::from(new))?;
    }
    let before = u64::from(work.image.sb.inode_table_blocks());
    for (group, table) in (0usize..).zip(&tables) {
        let start = work.image.group(group as u32)?.inode_table.0;
        work.space.free_blocks(&work.image, start, before);
        work.image.groups[group].inode_table = FsBlock(table.start);
    }
    sb.overhead_clusters = 0;
    // What a group that was never written has in use, follows from the size of its table.
    work.image.sb = sb;
    work.space.keep_fixed(&work.image)?;
    work.settle_space()?;
    let groups = work.image.sb.group_count;
    work.image.write_descriptors(0..groups)?;
    work.image.write_superblock()?;
    (work.to_check_base, work.to_check) = (true, true);
    Ok(())
}

/// Parts of inode tables that were never written. After a cut e2fsck goes back to copies of descriptors, and
/// believes their marks of unused parts no more: what it would read there must be zeros.
fn unwritten_tables(image: &Image) -> Result<Vec<Range<u64>>> {
    let mut list = Vec::new();
    if !image.has_flags() {
        return Ok(list);
    }
    let size = u64::from(image.sb.inode_size.max(128));
    let per = u64::from(image.sb.inodes_per_group);
    for group in 0..image.sb.group_count {
        let used = u64::from(records_in(image, group)?);
        if used < per && !image.is_uninit(group, GroupFlags::INODE_ZEROED)? {
            let start = image.group(group)?.inode_table.0 * image.block_bytes() as u64;
            list.push(start + used * size..start + per * size);
        }
    }
    Ok(list)
}

fn move_table(
    work: &mut Work<'_>,
    group: u32,
    table: &Range<u64>,
    layout: &InodeLayout,
    old: usize,
    new: usize,
) -> Result {
    let image = &work.image;
    let block = image.block_bytes();
    let per = image.sb.inodes_per_group;
    let start = image.group(group)?.inode_table.0 * block as u64;
    let count = records_in(image, group)? as usize;
    let bitmap = image.inode_bitmap(group)?;
    let mut from = vec![0; (count * old).next_multiple_of(block)];
    image.draft.read_at(start, &mut from)?;
    let mut to = vec![0; (count * new).next_multiple_of(block)];
    let room = new.saturating_sub(128).min(32) as u16;
    for bit in 0..count {
        let source = &from[bit * old..bit * old + old];
        if source.iter().all(|byte| *byte == 0) {
            continue;
        }
        let ino = Ino(group * per + bit as u32 + 1);
        let is_used = bitmap.view().get(bit as u32);
        let mut record = Record { ino, bytes: source.to_vec() };
        if let Some(why) = needs_room(&record).filter(|_| is_used && new < old) {
            return refuse("inode size", format!("inode {ino} {why}"));
        }
        record.bytes.resize(new, 0);
        if old <= 128 && is_used && new > 128 {
            record.put16(record::EXTRA, room);
        }
        // Deleted ones have checksums, too.
        Inode::seal(layout, ino, &mut record.bytes).map_err(TuneError::damaged)?;
        put(&mut to, bit * new, &record.bytes);
    }
    let written = to.len() / block;
    for (number, bytes) in to.chunks_exact(block).enumerate() {
        image.write_fresh(table.start + number as u64, bytes)?;
    }
    let rest = (table.start + written as u64) * block as u64..table.end * block as u64;
    if !rest.is_empty() {
        work.zeroes.push(rest);
    }
    if let Some(slot) = work.image.groups.get_mut(group as usize)
        && work.image.sb.features.group_checksums()
    {
        slot.flags.insert(GroupFlags::INODE_ZEROED);
    }
    Ok(())
}
