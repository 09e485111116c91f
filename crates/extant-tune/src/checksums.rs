//! Checksums of metadata: on, off, and with another seed.
//!
//! Without the feature nobody looks where checksums are. So they are written first, and what switches
//! over is the superblock, the descriptors, and the few blocks in which something has to move for them.

use std::collections::BTreeSet;

use extant_base::{FsBlock, Ino};
use extant_block::BlockDevice;
use extant_format::bitmap::{Bitmap, BitmapRef};
use extant_format::dir::{self, DirLayout, decode_entry};
use extant_format::extent::{self, ExtentState};
use extant_format::features::{EncodingFlags, Feature, Incompat, SuperFlags};
use extant_format::group::{GroupChecksum, GroupFlags};
use extant_format::htree::{self, Index, IndexLayout, NodePlace, Root};
use extant_format::inode::{Inode, InodeFlags, InodeLayout};
use extant_format::mmp::{MMP_BYTES, Mmp};
use extant_format::record::{Record, put};
use extant_format::superblock::Superblock;
use extant_format::{orphan, xattr};

use crate::error::{Result, TuneError, refuse};
use crate::inodes::each_inode;
use crate::work::Work;

/// Bytes of a directory that are read at once, or a block.
const PIECE_BYTES: usize = 128 << 10;

/// How a directory's blocks are laid out under a superblock.
fn dir_layout(sb: &Superblock, record: &Record) -> DirLayout {
    DirLayout {
        block_size: sb.block_size,
        filetype: sb.features.has_incompat(Incompat::FILETYPE),
        checksum: sb.features.metadata_csum(),
        stored_hash: record.has(InodeFlags::ENCRYPT) && record.has(InodeFlags::CASEFOLD),
        encrypted: record.has(InodeFlags::ENCRYPT),
    }
}

fn index_layout(sb: &Superblock, dir: DirLayout) -> IndexLayout {
    IndexLayout {
        dir,
        large_dir: sb.features.has(Feature::LARGEDIR),
        unsigned_hash: sb.flags.contains(SuperFlags::UNSIGNED_HASH),
    }
}

/// What a block of a directory becomes.
enum Sealed {
    /// The same for who does not look at checksums.
    Quiet(Vec<u8>),
    /// Something moved.
    Moved(Vec<u8>),
    /// There is no room for a checksum.
    Full,
}

/// Changes of all metadata for `target`, a superblock with other checksums.
struct Sealer<'a> {
    old: &'a Superblock,
    target: &'a Superblock,
    /// Seed of the checksums of `target`.
    seed: u32,
    /// Blocks of attributes that were sealed.
    shared: BTreeSet<u64>,
    full: Vec<Ino>,
}

/// Writes a block past the draft if the file system before sees nothing new in it, else into the draft.
fn put_block(image: &extant_change::Image, block: u64, bytes: &[u8], quiet: bool) -> Result {
    match quiet {
        true => Ok(image.write_fresh(block, bytes)?),
        false => Ok(image.write_block(block, bytes)?),
    }
}

impl Sealer<'_> {
    /// What belongs to one inode, its record not.
    fn blocks_of(&mut self, image: &extant_change::Image, record: &Record) -> Result {
        let has = self.target.features.metadata_csum();
        // Without checksums the tail of a leaf is an entry that is not used: only indexes have another form then.
        let is_dir = record.is_dir()
            && !record.has(InodeFlags::INLINE_DATA)
            && (has || record.has(InodeFlags::INDEX));
        let is_orphans = record.ino == self.target.orphan_file_inode;
        if !has && !is_dir && !is_orphans {
            return Ok(());
        }
        let acl = record.file_acl(image.is_wide()).0;
        if has && acl != 0 && self.shared.insert(acl) {
            if !image.in_range(acl, 1) {
                return Err(TuneError::damaged(format!(
                    "inode {} has attributes nowhere",
                    record.ino
                )));
            }
            let mut bytes = image.read_block(acl)?;
            xattr::seal(self.seed, FsBlock(acl), &mut bytes);
            put_block(image, acl, &bytes, true)?;
        }
        let area = record.block_area();
        let has_tree = record.has(InodeFlags::EXTENTS) && area.get(6..8) != Some(&[0, 0]);
        // Most files end here.
        if !has_tree && !is_dir && !is_orphans {
            return Ok(());
        }
        let seed = extant_format::checksum::inode_seed(self.seed, record.ino, record.generation());
        let map = image.read_map(record)?;
        if has && record.has(InodeFlags::EXTENTS) {
            for node in &map.nodes {
                let mut bytes = image.read_block(*node)?;
                extent::seal(seed, &mut bytes);
                put_block(image, *node, &bytes, true)?;
            }
        }
        if !is_dir && !is_orphans {
            return Ok(());
        }
        let mut blocks = Vec::new();
        for one in map.extents.iter().filter(|one| one.state == ExtentState::Written) {
            for at in 0..one.len.0 {
                blocks.push((one.file_start.0 + at, one.device_start.0 + u64::from(at)));
            }
        }
        if is_orphans {
            for (_, place) in blocks {
                let mut bytes = image.read_block(place)?;
                match has {
                    true => orphan::seal(seed, FsBlock(place), &mut bytes),
                    // Where there are none, e2fsck wants zeros.
                    false => {
                        if let Some(sum) = bytes.last_chunk_mut::<4>() {
                            *sum = [0; 4];
                        }
                    }
                }
                put_block(image, place, &bytes, false)?;
            }
            return Ok(());
        }
        self.directory(image, record, &blocks, seed)
    }

    fn directory(
        &mut self,
        image: &extant_change::Image,
        record: &Record,
        blocks: &[(u32, u64)],
        seed: u32,
    ) -> Result {
        let (old, new) = (dir_layout(self.old, record), dir_layout(self.target, record));
        let mut nodes: BTreeSet<u32> = BTreeSet::new();
        let is_indexed = record.has(InodeFlags::INDEX);
        let broken = || TuneError::damaged(format!("the index of directory {}", record.ino));
        if is_indexed {
            nodes.insert(0);
            let place = blocks.first().filter(|(number, _)| *number == 0).ok_or_else(broken)?.1;
            let bytes = image.read_block(place)?;
            let layout = index_layout(self.old, old);
            let count = blocks.last().map_or(0, |(number, _)| number + 1);
            let root = Root::decode(&bytes, &layout, count).map_err(|_| broken())?;
            let mut level: Vec<u32> = root.index.iter().map(|one| one.block.0).collect();
            for depth in 0..root.levels {
                let mut below = Vec::new();
                for number in level {
                    if !nodes.insert(number) {
                        return Err(broken());
                    }
                    if depth + 1 == root.levels {
                        continue;
                    }
                    let at = blocks.binary_search_by_key(&number, |(one, _)| *one);
                    let at = at.map_err(|_| broken())?;
                    let bytes = image.read_block(blocks[at].1)?;
                    let node = Index::decode_inner(&bytes, &layout, count).map_err(|_| broken())?;
                    below.extend(node.iter().map(|one| one.block.0));
                }
                level = below;
            }
        }
        let mut changes = Vec::new();
        let size = image.block_bytes();
        let mut piece = Vec::new();
        // Neighbours are read at once.
        let per_piece = (PIECE_BYTES / size).max(1);
        let wanted: Vec<_> = blocks
            .iter()
            .copied()
            .filter(|(number, _)| new.checksum || nodes.contains(number))
            .collect();
        let runs = wanted.chunk_by(|(_, one), (_, next)| one + 1 == *next);
        for run in runs.flat_map(|run| run.chunks(per_piece)) {
            let Some((_, start)) = run.first() else { continue };
            piece.resize(run.len() * size, 0);
            image.draft.read_at(start * size as u64, &mut piece)?;
            for ((number, place), bytes) in run.iter().zip(piece.chunks_exact(size)) {
                let bytes = bytes.to_vec();
                let sealed = match nodes.contains(number) {
                    true => node(bytes, *number, index_layout(self.target, new), seed),
                    false => leaf(bytes, old, new, seed)?,
                };
                match sealed {
                    Sealed::Quiet(bytes) => changes.push((*place, bytes, true)),
                    Sealed::Moved(bytes) => changes.push((*place, bytes, false)),
                    Sealed::Full => {
                        self.full.push(record.ino);
                        return Ok(());
                    }
                }
            }
        }
        for (place, bytes, quiet) in changes {
            put_block(image, place, &bytes, quiet)?;
        }
        Ok(())
    }
}

/// A block of an index: its room for records is another one.
fn node(mut bytes: Vec<u8>, number: u32, layout: IndexLayout, seed: u32) -> Sealed {
    let place = if number == 0 { NodePlace::Root } else { NodePlace::Inner };
    let at = if number == 0 { htree::ROOT_RECORDS_AT } else { htree::NODE_RECORDS_AT };
    let limit = layout.limit(place);
    if extant_format::record::u16_at(&bytes, at + 2) > limit {
        return Sealed::Full;
    }
    put(&mut bytes, at, &limit.to_le_bytes());
    let end = at + usize::from(limit) * htree::RECORD_BYTES;
    if let Some(rest) = bytes.get_mut(end..) {
        rest.fill(0);
    }
    if layout.dir.checksum {
        htree::seal(seed, &mut bytes, place);
    }
    Sealed::Moved(bytes)
}

/// Returns whether the last record of a block with names is a tail. Its bytes alone do not tell: tune2fs takes
/// checksums away by a longer record before the tail, and what was the tail is left in that.
fn has_tail(bytes: &[u8], layout: DirLayout) -> bool {
    let end = bytes.len().saturating_sub(dir::TAIL_BYTES);
    let mut at = 0;
    while at < end {
        let raw = extant_format::record::u16_at(bytes, at + 4);
        at += (dir::decode_rec_len(raw, layout.block_size) as usize).max(4);
    }
    at == end && dir::tail_checksum(bytes).is_some()
}

/// A block with names.
fn leaf(mut bytes: Vec<u8>, old: DirLayout, new: DirLayout, seed: u32) -> Result<Sealed> {
    if has_tail(&bytes, old) {
        dir::seal(seed, &mut bytes);
        return Ok(Sealed::Quiet(bytes));
    }
    let plain = DirLayout { checksum: false, ..old };
    let mut entries = Vec::new();
    let mut at = 0usize;
    while at < bytes.len() {
        let entry = decode_entry(&bytes, at, plain).map_err(TuneError::damaged)?;
        let needs = match entry.is_used() {
            true if entry.is_dots() => DirLayout::dots_need(entry.name.len()),
            true => plain.needs(entry.name.len()),
            false => 0,
        };
        entries.push((at, needs));
        at += (entry.rec_len as usize).max(4);
    }
    let end = bytes.len() - dir::TAIL_BYTES;
    let Some((last, needs)) = entries.last().copied() else { return Ok(Sealed::Full) };
    let stub = needs.max(dir::RECORD_MIN);
    if last + stub <= end {
        let short = u32::try_from(end - last).unwrap_or(0);
        let raw = dir::encode_rec_len(short, new.block_size).unwrap_or(0);
        put(&mut bytes, last + 4, &raw.to_le_bytes());
        dir::seal(seed, &mut bytes);
        return Ok(Sealed::Quiet(bytes));
    }
    let used: usize = entries.iter().map(|(_, needs)| needs).sum();
    if used > end || used == 0 {
        return Ok(Sealed::Full);
    }
    // Together at the beginning, as bytes: names may be such that no one may make.
    let mut packed = vec![0; bytes.len()];
    let (mut to, mut before) = (0, 0);
    for (at, needs) in entries.iter().filter(|(_, needs)| *needs > 0) {
        let raw = bytes.get(*at..at + needs).unwrap_or(&[]);
        put(&mut packed, to, raw);
        let len = dir::encode_rec_len(*needs as u32, new.block_size).unwrap_or(0);
        put(&mut packed, to + 4, &len.to_le_bytes());
        before = to;
        to += needs;
    }
    let len = dir::encode_rec_len((end - before) as u32, new.block_size).unwrap_or(0);
    put(&mut packed, before + 4, &len.to_le_bytes());
    dir::seal(seed, &mut packed);
    Ok(Sealed::Moved(packed))
}

/// Writes all checksums for `target`, and the superblock and descriptors of it.
fn convert(work: &mut Work<'_>, target: Superblock) -> Result {
    let old = work.image.sb.clone();
    let layout = InodeLayout::of(&target);
    let seed = target.checksum_seed();
    // Whoever shares attributes with a file that another thread has seals them as that does.
    let start =
        || Sealer { old: &old, target: &target, seed, shared: BTreeSet::new(), full: Vec::new() };
    let has = target.features.metadata_csum();
    let sealers = each_inode(&work.image, start, |sealer, record, is_used| {
        if is_used && (record.links() != 0 || record.ino.0 < old.first_inode.0) {
            sealer.blocks_of(&work.image, record)?;
        }
        if !has {
            return Ok(false);
        }
        Inode::seal(&layout, record.ino, &mut record.bytes).map_err(TuneError::damaged)?;
        Ok(true)
    })?;
    let mut full = sealers.into_iter().flat_map(|sealer| sealer.full).collect::<Vec<_>>();
    full.sort_unstable();
    work.image.sb = target;
    work.full_dirs.extend(full);
    if has && work.has(Feature::MMP) {
        let block = work.image.sb.mmp_block.0;
        let before = old.features.metadata_csum().then(|| old.checksum_seed());
        let mut bytes = work.image.read_block(block)?;
        let mmp = Mmp::decode(before, &bytes).map_err(TuneError::damaged)?;
        let seed = Some(work.image.sb.checksum_seed());
        put(&mut bytes, 0, &mmp.encode(seed)[..MMP_BYTES]);
        work.image.write_block(block, &bytes)?;
    }
    groups(work, &old)
}

/// Bitmaps and descriptors, with checksums of the superblock as it is now; `old` had others.
fn groups(work: &mut Work<'_>, old: &Superblock) -> Result {
    let had_flags = GroupChecksum::of(old) != GroupChecksum::None;
    let has_flags = work.image.has_flags();
    let has = work.image.sb.features.metadata_csum();
    let seed = work.image.sb.checksum_seed();
    let (clusters, per) = (work.image.sb.clusters_per_group, work.image.sb.inodes_per_group);
    for group in 0..work.image.sb.group_count {
        let mut descriptor = work.image.group(group)?;
        let before = descriptor.flags;
        if had_flags && !has_flags {
            explicit(work, group, old)?;
            descriptor = work.image.group(group)?;
        }
        if !had_flags {
            // What is in there are the remains of an earlier time.
            descriptor.flags = GroupFlags::empty();
            descriptor.itable_unused = 0;
            if has_flags {
                descriptor.flags.insert(GroupFlags::INODE_ZEROED);
            }
        }
        (descriptor.block_bitmap_checksum, descriptor.inode_bitmap_checksum) = (0, 0);
        if has {
            if !(had_flags && before.contains(GroupFlags::BLOCK_UNINIT)) {
                let bytes = work.image.read_block(descriptor.block_bitmap.0)?;
                descriptor.block_bitmap_checksum = BitmapRef::new(&bytes).checksum(seed, clusters);
            }
            if !(had_flags && before.contains(GroupFlags::INODE_UNINIT)) {
                let bytes = work.image.read_block(descriptor.inode_bitmap.0)?;
                descriptor.inode_bitmap_checksum = BitmapRef::new(&bytes).checksum(seed, per);
            }
        }
        work.image.groups[group as usize] = descriptor;
    }
    let count = work.image.sb.group_count;
    work.image.write_descriptors(0..count)?;
    Ok(work.image.write_superblock()?)
}

/// Writes what flags of a group say: its bitmaps, and the part of its inode table that was never used.
fn explicit(work: &mut Work<'_>, group: u32, old: &Superblock) -> Result {
    let new = std::mem::replace(&mut work.image.sb, old.clone());
    let blocks = work.image.block_bitmap(group);
    let inodes = work.image.inode_bitmap(group);
    work.image.sb = new;
    let (mut blocks, mut inodes): (Bitmap, Bitmap) = (blocks?, inodes?);
    let mut descriptor = work.image.group(group)?;
    let per = work.image.sb.inodes_per_group;
    // Nobody looks at them as long as the flags say that they were never written.
    if descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
        blocks.pad(work.image.sb.group_clusters(extant_base::GroupIndex(group)));
        work.image.write_fresh(descriptor.block_bitmap.0, blocks.as_bytes())?;
    }
    if descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
        inodes.pad(per);
        work.image.write_fresh(descriptor.inode_bitmap.0, inodes.as_bytes())?;
    }
    if !descriptor.flags.contains(GroupFlags::INODE_ZEROED) {
        let unused = match descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
            true => per,
            false => descriptor.itable_unused.min(per),
        };
        let block = work.image.block_bytes() as u64;
        let size = u64::from(work.image.sb.inode_size).max(128);
        let table = descriptor.inode_table.0 * block;
        let from = table + u64::from(per - unused) * size;
        let end = table + u64::from(work.image.sb.inode_table_blocks()) * block;
        let whole = from.next_multiple_of(block).min(end);
        if from < whole {
            let number = from / block;
            let mut bytes = work.image.read_block(number)?;
            if let Some(rest) = bytes.get_mut((from % block) as usize..) {
                rest.fill(0);
            }
            work.image.write_fresh(number, &bytes)?;
        }
        if whole < end {
            work.zeroes.push(whole..end);
        }
    }
    descriptor.flags = GroupFlags::empty();
    descriptor.itable_unused = 0;
    work.image.groups[group as usize] = descriptor;
    Ok(())
}

/// Checksums everywhere.
pub(crate) fn on(work: &mut Work<'_>) -> Result {
    let mut target = work.image.sb.clone();
    target.features.insert(Feature::METADATA_CSUM);
    target.features.remove(Feature::GDT_CSUM);
    target.checksum_type = extant_format::superblock::CHECKSUM_TYPE_CRC32C;
    work.to_check = true;
    convert(work, target)
}

/// Checksums nowhere but in descriptors, as tune2fs leaves them.
pub(crate) fn off(work: &mut Work<'_>) -> Result {
    if work.has(Feature::CSUM_SEED) && work.has(Feature::EA_INODE) {
        return refuse("^metadata_csum", "with ea_inode, attributes depend on metadata_csum_seed");
    }
    let mut target = work.image.sb.clone();
    target.features.remove(Feature::METADATA_CSUM);
    target.features.remove(Feature::CSUM_SEED);
    target.stored_checksum_seed = 0;
    target.checksum_type = 0;
    if work.request.wants(Feature::GDT_CSUM) != Some(false) {
        target.features.insert(Feature::GDT_CSUM);
    }
    work.to_check_base = true;
    convert(work, target)
}

/// Checksums of descriptors.
pub(crate) fn groups_on(work: &mut Work<'_>) -> Result {
    if work.has(Feature::METADATA_CSUM) || work.request.wants(Feature::METADATA_CSUM) == Some(true)
    {
        return refuse("uninit_bg", "metadata_csum has checksums of descriptors");
    }
    let old = work.image.sb.clone();
    work.image.sb.features.insert(Feature::GDT_CSUM);
    groups(work, &old)
}

/// No checksums of descriptors: every group is written out.
pub(crate) fn groups_off(work: &mut Work<'_>) -> Result {
    if !work.has(Feature::GDT_CSUM) {
        return Ok(());
    }
    let old = work.image.sb.clone();
    work.image.sb.features.remove(Feature::GDT_CSUM);
    groups(work, &old)
}

/// The seed of checksums is kept beside the UUID.
pub(crate) fn seed_on(work: &mut Work<'_>) -> Result {
    if !work.has(Feature::METADATA_CSUM) {
        return refuse("metadata_csum_seed", "there are no checksums; -O metadata_csum makes them");
    }
    work.image.sb.stored_checksum_seed = work.image.sb.checksum_seed();
    work.image.sb.features.insert(Feature::CSUM_SEED);
    Ok(work.image.write_superblock()?)
}

/// Returns whether another UUID would be another seed of checksums that are there.
pub(crate) fn depend_on_uuid(sb: &Superblock) -> bool {
    sb.features.metadata_csum() && !sb.features.has(Feature::CSUM_SEED)
}

/// Returns whether checksums have another seed than the one that follows from the UUID.
pub(crate) fn have_other_seed(sb: &Superblock) -> bool {
    let mut plain = sb.clone();
    plain.features.remove(Feature::CSUM_SEED);
    plain.checksum_seed() != sb.checksum_seed()
}

/// The seed of checksums follows from the UUID, as it does already.
pub(crate) fn seed_off(work: &mut Work<'_>) -> Result {
    work.image.sb.features.remove(Feature::CSUM_SEED);
    work.image.sb.stored_checksum_seed = 0;
    Ok(work.image.write_superblock()?)
}

/// Another UUID.
pub(crate) fn uuid(work: &mut Work<'_>) -> Result {
    let Some(uuid) = work.request.uuid else { return Ok(()) };
    if uuid == [0; 16] {
        return refuse("uuid", "all zeros mean that there is none");
    }
    if work.has(Feature::HAS_JOURNAL) && work.image.sb.journal_inode == Ino(0) {
        return refuse("uuid", "the external journal knows the file system by it");
    }
    if work.has(Feature::STABLE_INODES) {
        return refuse("uuid", "with stable_inodes, keys of encrypted files depend on it");
    }
    if work.request.keep_checksums
        && work.has(Feature::METADATA_CSUM)
        && !work.has(Feature::CSUM_SEED)
    {
        seed_on(work)?;
    }
    let mut target = work.image.sb.clone();
    target.uuid = uuid;
    if work.has(Feature::EA_INODE) && !work.has(Feature::CSUM_SEED) {
        return refuse(
            "uuid",
            "with ea_inode, attributes depend on it; -O metadata_csum,metadata_csum_seed frees them",
        );
    }
    let old = std::mem::replace(&mut work.image.sb, target);
    if work.has(Feature::GDT_CSUM) {
        return groups(work, &old);
    }
    Ok(work.image.write_superblock()?)
}

/// Settings that are fields of the superblock.
pub(crate) fn settings(work: &mut Work<'_>) -> Result {
    let request = work.request;
    let has_mmp = work.has(Feature::MMP);
    let has_casefold = work.has(Feature::CASEFOLD);
    let sb = &mut work.image.sb;
    if let Some(hash) = request.default_hash {
        sb.default_hash = hash;
    }
    if let Some(text) = &request.mount_options {
        if text.len() > 63 || text.contains(&0) {
            return refuse("mount_opts", "at most 63 bytes, none of them zero");
        }
        sb.raw.s_mount_opts = [0; 64];
        put(&mut sb.raw.s_mount_opts, 0, text);
    }
    if let Some(stride) = request.stride {
        sb.raid_stride = stride;
    }
    if let Some(width) = request.stripe_width {
        sb.raid_stripe_width = width;
    }
    if let Some(interval) = request.mmp_interval {
        if !has_mmp {
            return refuse("mmp_update_interval", "there is no mmp; -O mmp makes it");
        }
        if !(1..=300).contains(&interval) {
            return refuse("mmp_update_interval", format!("{interval} seconds; 1 to 300"));
        }
        sb.mmp_interval = interval;
    }
    if let Some(flags) = request.encoding_flags {
        if !has_casefold {
            return refuse("encoding_flags", "there is no casefold; -O casefold makes it");
        }
        let known = EncodingFlags::STRICT | EncodingFlags::NO_COMPAT_FALLBACK;
        if !known.contains(flags) {
            return refuse("encoding_flags", "an unknown flag");
        }
        sb.encoding_flags = flags;
    }
    Ok(work.image.write_superblock()?)
}
