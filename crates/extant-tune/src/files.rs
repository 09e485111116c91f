//! Files that a file system keeps for itself: journal, orphan file, quota, the multi-mount block.

use extant_base::{FsBlock, Ino};
use extant_check::{CheckOptions, ReportAll, examine};
use extant_format::features::Feature;
use extant_format::jbd2::JournalSuperblock;
use extant_format::mmp::{MMP_BYTES, Mmp};
use extant_format::orphan::OrphanBlock;
use extant_format::quota::{QuotaEntry, QuotaFile, QuotaKind};
use extant_format::record::{self, Record, put, u32_at};
use extant_layout::{
    JOURNAL_BLOCKS_MAX, JOURNAL_BLOCKS_MIN, ORPHAN_FILE_BLOCKS_MAX, default_fast_commit_blocks,
    default_journal_blocks, default_orphan_file_blocks,
};

use crate::error::{Result, TuneError, refuse};
use crate::work::Work;

/// Seconds between two updates of a new multi-mount block.
const MMP_INTERVAL: u16 = 5;
/// Most seconds between two updates.
const MMP_INTERVAL_MAX: u16 = 300;
/// Blocks for fast commits that the kernel takes from the end of a journal that names none.
const FAST_COMMIT_BLOCKS: u32 = 256;

/// Blocks of a new journal.
#[derive(Clone, Copy)]
struct JournalBlocks {
    /// All of them.
    total: u32,
    /// Those at its end for fast commits. The kernel mounts no journal whose log is too short without them.
    fast_commit: u32,
}

/// Blocks that the journal is to have. What was asked for is the log, as for mke2fs.
fn journal_blocks(work: &Work<'_>) -> Result<JournalBlocks> {
    let log = log_blocks(work)?;
    let fast_commit = if work.has(Feature::FAST_COMMIT) {
        default_fast_commit_blocks(
            default_journal_blocks(work.image.sb.blocks_count).unwrap_or(log),
        )
    } else {
        0
    };
    Ok(JournalBlocks { total: log.saturating_add(fast_commit), fast_commit })
}

/// Blocks that the log of the journal is to have.
fn log_blocks(work: &Work<'_>) -> Result<u32> {
    let sb = &work.image.sb;
    let Some(bytes) = work.request.journal_bytes else {
        return match default_journal_blocks(sb.blocks_count) {
            Some(blocks) => Ok(blocks),
            None => refuse(
                "has_journal",
                format!("a file system of {} blocks is too small for a journal", sb.blocks_count),
            ),
        };
    };
    let blocks = bytes / u64::from(sb.block_size.bytes());
    let (min, max) = (u64::from(JOURNAL_BLOCKS_MIN), u64::from(JOURNAL_BLOCKS_MAX));
    if !(min..=max).contains(&blocks) {
        return refuse(
            "journal size",
            format!("{blocks} blocks; a journal has {min} to {max} of them"),
        );
    }
    if blocks > sb.free_blocks_count / 2 {
        return refuse(
            "journal size",
            format!("{blocks} blocks are more than half of the {} free ones", sb.free_blocks_count),
        );
    }
    Ok(blocks as u32)
}

/// Makes a journal.
pub(crate) fn journal_on(work: &mut Work<'_>) -> Result {
    if work.image.sb.journal_device != 0 {
        return refuse("has_journal", "the superblock names an external journal");
    }
    new_journal(work)?;
    work.image.sb.features.insert(Feature::HAS_JOURNAL);
    work.image.write_superblock().map_err(TuneError::from)
}

/// The new blocks lie where mke2fs has them: in the middle, in as few pieces as there are.
fn new_journal(work: &mut Work<'_>) -> Result {
    let JournalBlocks { total: blocks, fast_commit } = journal_blocks(work)?;
    let ino = Ino::JOURNAL;
    let flex = work.image.sb.groups_per_flex().max(1);
    work.space.begin_at(work.image.sb.group_count / 2 / flex * flex);
    let extents = work.space.take_file(&work.image, blocks, "has_journal")?;
    let mut bytes = vec![0; work.image.block_bytes()];
    JournalSuperblock {
        fast_commit_blocks: fast_commit,
        ..JournalSuperblock::empty(work.image.sb.block_size, blocks)
    }
    .encode(&mut bytes)
    .map_err(TuneError::damaged)?;
    // What lies in the other blocks is never taken for a transaction: the log is empty.
    if let Some(first) = extents.first() {
        work.image.write_fresh(first.device_start.0, &bytes)?;
    }
    let record = work.new_record(ino)?;
    let size = u64::from(blocks) * work.image.block_bytes() as u64;
    let record = work.store_file(record, &extents, size, true)?;
    work.image.sb.journal_inode = ino;
    keep_backup(work, &record);
    // A journal's own log cannot carry its birth.
    work.may_journal = false;
    Ok(())
}

/// The copy of the journal's map in the superblock.
fn keep_backup(work: &mut Work<'_>, record: &Record) {
    let area = record.block_area();
    let mut words = [0; 17];
    for (slot, word) in words.iter_mut().take(15).enumerate() {
        *word = u32_at(&area, slot * 4);
    }
    words[15] = record.u32(record::SIZE_HIGH);
    words[16] = record.u32(record::SIZE_LO);
    work.image.sb.journal_backup = words;
    work.image.sb.raw.s_jnl_backup_type = 1;
}

/// Gives the journal another size, at another place.
pub(crate) fn journal_size(work: &mut Work<'_>) -> Result {
    if work.image.sb.journal_inode == Ino(0) {
        return refuse("journal size", "the journal is on another device");
    }
    let old = work.image.load(work.image.sb.journal_inode)?;
    let blocks = journal_blocks(work)?.total;
    if old.size() / work.image.block_bytes() as u64 == u64::from(blocks) {
        return Ok(());
    }
    let map = work.image.read_map(&old)?;
    for extent in &map.extents {
        work.space.free_blocks(&work.image, extent.device_start.0, u64::from(extent.len.0));
    }
    for node in &map.nodes {
        work.space.free_blocks(&work.image, *node, 1);
    }
    new_journal(work)?;
    work.image.write_superblock().map_err(TuneError::from)
}

/// Takes the journal away.
pub(crate) fn journal_off(work: &mut Work<'_>) -> Result {
    for (feature, name) in
        [(Feature::ORPHAN_FILE, "orphan_file"), (Feature::FAST_COMMIT, "fast_commit")]
    {
        if work.has(feature) {
            return refuse(
                "^has_journal",
                format!("{name} needs the journal; -O ^{name},^has_journal takes both away"),
            );
        }
    }
    let ino = work.image.sb.journal_inode;
    if ino == Ino(0) {
        return refuse("^has_journal", "the journal is on another device");
    }
    work.remove_file(ino)?;
    let sb = &mut work.image.sb;
    sb.journal_inode = Ino(0);
    sb.journal_backup = [0; 17];
    sb.raw.s_jnl_backup_type = 0;
    sb.journal_uuid = [0; 16];
    sb.features.remove(Feature::HAS_JOURNAL);
    sb.features.remove(Feature::RECOVER);
    // The log cannot carry its own end: from the first write on there is no journal.
    (work.may_journal, work.new_first) = (false, true);
    Ok(work.image.write_superblock()?)
}

/// Lets the journal have fast commits.
pub(crate) fn fast_commit_on(work: &mut Work<'_>) -> Result {
    if !work.has(Feature::HAS_JOURNAL) || work.image.sb.journal_inode == Ino(0) {
        return refuse("fast_commit", "there is no journal inside; -O has_journal makes one");
    }
    let record = work.image.load(work.image.sb.journal_inode)?;
    let blocks = record.size() / work.image.block_bytes() as u64;
    let needs = u64::from(JOURNAL_BLOCKS_MIN + FAST_COMMIT_BLOCKS);
    if blocks < needs {
        return refuse(
            "fast_commit",
            format!("the journal has {blocks} blocks and needs {needs}; -J size= makes it larger"),
        );
    }
    work.image.sb.features.insert(Feature::FAST_COMMIT);
    Ok(work.image.write_superblock()?)
}

/// Makes an orphan file.
pub(crate) fn orphan_file_on(work: &mut Work<'_>) -> Result {
    if !work.has(Feature::HAS_JOURNAL) {
        return refuse("orphan_file", "there is no journal; -O has_journal makes one");
    }
    let size = work.image.sb.block_size;
    let blocks = default_orphan_file_blocks(work.image.sb.blocks_count, size) as u32;
    let ratio = work.image.sb.cluster_ratio().max(1);
    // All of the last cluster, but in no file that is larger than Linux opens.
    let blocks = blocks.next_multiple_of(ratio).min((ORPHAN_FILE_BLOCKS_MAX as u32).max(blocks));
    let ino = work.free_inode()?;
    let extents = work.space.take_file(&work.image, blocks, "orphan_file")?;
    let record = work.new_record(ino)?;
    let seed = work.image.seed_of(&record);
    let empty = OrphanBlock::empty(size);
    for extent in &extents {
        for at in 0..u64::from(extent.len.0) {
            let block = extent.device_start.0 + at;
            let mut bytes = vec![0; size.len()];
            empty.encode(size, FsBlock(block), seed, &mut bytes).map_err(TuneError::damaged)?;
            work.image.write_fresh(block, &bytes)?;
        }
    }
    let bytes = u64::from(blocks) * u64::from(size.bytes());
    work.store_file(record, &extents, bytes, false)?;
    work.image.sb.orphan_file_inode = ino;
    work.image.sb.features.insert(Feature::ORPHAN_FILE);
    work.recount = work.has(Feature::QUOTA);
    Ok(work.image.write_superblock()?)
}

/// Takes the orphan file away, which is empty.
pub(crate) fn orphan_file_off(work: &mut Work<'_>) -> Result {
    work.remove_file(work.image.sb.orphan_file_inode)?;
    work.image.sb.orphan_file_inode = Ino(0);
    work.image.sb.features.remove(Feature::ORPHAN_FILE);
    work.image.sb.features.remove(Feature::ORPHAN_PRESENT);
    work.recount = work.has(Feature::QUOTA);
    Ok(work.image.write_superblock()?)
}

/// Reserves a block that says who has the file system mounted.
pub(crate) fn mmp_on(work: &mut Work<'_>) -> Result {
    let block = work.space.take_block(&work.image, "mmp")?;
    let interval = work.request.mmp_interval.unwrap_or(MMP_INTERVAL);
    let sb = &mut work.image.sb;
    sb.mmp_block = FsBlock(block);
    sb.mmp_interval = interval.clamp(1, MMP_INTERVAL_MAX);
    sb.features.insert(Feature::MMP);
    let seed = sb.features.metadata_csum().then(|| sb.checksum_seed());
    let mut bytes = vec![0; sb.block_size.len()];
    put(&mut bytes, 0, &Mmp::clean(sb.mmp_interval).encode(seed)[..MMP_BYTES]);
    work.image.write_fresh(block, &bytes)?;
    Ok(work.image.write_superblock()?)
}

/// Gives the block back.
pub(crate) fn mmp_off(work: &mut Work<'_>) -> Result {
    let block = work.image.sb.mmp_block.0;
    if work.image.in_range(block, 1) {
        work.space.free_blocks(&work.image, block, 1);
    }
    let sb = &mut work.image.sb;
    (sb.mmp_block, sb.mmp_interval) = (FsBlock(0), 0);
    sb.features.remove(Feature::MMP);
    Ok(work.image.write_superblock()?)
}

const KINDS: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

fn quota_inode(work: &Work<'_>, kind: usize) -> Ino {
    let sb = &work.image.sb;
    [sb.user_quota_inode, sb.group_quota_inode, sb.project_quota_inode][kind]
}

fn set_quota_inode(work: &mut Work<'_>, kind: usize, ino: Ino) {
    let sb = &mut work.image.sb;
    match kind {
        0 => sb.user_quota_inode = ino,
        1 => sb.group_quota_inode = ino,
        _ => sb.project_quota_inode = ino,
    }
}

/// Which kinds of usage are to be counted.
fn wanted_kinds(work: &Work<'_>) -> [bool; 3] {
    let request = work.request;
    let has = work.has(Feature::QUOTA);
    let now = [0, 1, 2].map(|kind| has && quota_inode(work, kind).0 != 0);
    let mut wanted = now;
    match request.wants(Feature::QUOTA) {
        Some(false) => wanted = [false; 3],
        // As tune2fs: users and groups.
        Some(true) if !has => wanted = [true, true, work.has(Feature::PROJECT)],
        _ => {}
    }
    match request.wants(Feature::PROJECT) {
        Some(true) => wanted[2] = true,
        Some(false) => wanted[2] = false,
        None => {}
    }
    for (wanted, asked) in wanted.iter_mut().zip(request.quota) {
        *wanted = asked.unwrap_or(*wanted);
    }
    wanted
}

/// Takes away the files of the kinds that are not wanted.
pub(crate) fn quota_off(work: &mut Work<'_>) -> Result {
    let wanted = wanted_kinds(work);
    for (kind, is_wanted) in wanted.into_iter().enumerate() {
        let ino = quota_inode(work, kind);
        if !is_wanted && work.has(Feature::QUOTA) && ino.0 != 0 {
            work.remove_file(ino)?;
            set_quota_inode(work, kind, Ino(0));
        }
    }
    if work.request.wants(Feature::PROJECT) == Some(false) {
        work.image.sb.features.remove(Feature::PROJECT);
    }
    if [0, 1, 2].iter().all(|kind| quota_inode(work, *kind).0 == 0) {
        work.image.sb.features.remove(Feature::QUOTA);
    } else {
        work.recount = true;
    }
    Ok(work.image.write_superblock()?)
}

/// Makes the files of the kinds that are wanted, with what is in use.
pub(crate) fn quota_on(work: &mut Work<'_>) -> Result {
    let wanted = wanted_kinds(work);
    if wanted[2] && !work.has(Feature::PROJECT) {
        if work.image.sb.inode_size <= 128 {
            return refuse(
                "project",
                "inodes of 128 bytes have no room for a project; -I 256 makes them larger",
            );
        }
        work.image.sb.features.insert(Feature::PROJECT);
    }
    let kinds: Vec<usize> =
        (0..3).filter(|kind| wanted[*kind] && quota_inode(work, *kind).0 == 0).collect();
    if kinds.is_empty() {
        return Ok(work.image.write_superblock()?);
    }
    let usage = usage(work)?;
    for kind in kinds {
        let ino = match kind {
            0 => Ino::USER_QUOTA,
            1 => Ino::GROUP_QUOTA,
            _ => work.free_inode()?,
        };
        let bytes = quota_bytes(QuotaFile::empty(KINDS[kind]), &usage[kind])?;
        let blocks = bytes.len().div_ceil(work.image.block_bytes()) as u32;
        let extents = work.space.take_file(&work.image, blocks, "quota")?;
        work.write_contents(&extents, &bytes)?;
        let record = work.new_record(ino)?;
        work.store_file(record, &extents, bytes.len() as u64, kind < 2)?;
        set_quota_inode(work, kind, ino);
    }
    work.image.sb.features.insert(Feature::QUOTA);
    Ok(work.image.write_superblock()?)
}

type Usage = Vec<QuotaEntry>;

/// What is in use by each user, group and project, in the image as it will be.
fn usage(work: &Work<'_>) -> Result<[Usage; 3]> {
    let options = CheckOptions {
        require_replayed: false,
        require_no_orphans: false,
        strict_totals: false,
        ..CheckOptions::default()
    };
    let view = work.view();
    let exam = examine(&*view, &options, &mut ReportAll)?;
    Ok([0, 1, 2].map(|owner| {
        let used = exam.usage(owner).into_iter().flatten();
        used.map(|(id, (space_bytes, inodes))| QuotaEntry {
            id: *id,
            space_bytes: *space_bytes,
            inodes: *inodes,
            ..QuotaEntry::default()
        })
        .collect()
    }))
}

fn quota_bytes(old: QuotaFile, usage: &[QuotaEntry]) -> Result<Vec<u8>> {
    let mut entries: std::collections::BTreeMap<u32, QuotaEntry> = old
        .entries
        .iter()
        .map(|entry| (entry.id, QuotaEntry { space_bytes: 0, inodes: 0, ..*entry }))
        .collect();
    for used in usage {
        let entry = entries.entry(used.id).or_insert(QuotaEntry { id: used.id, ..*used });
        (entry.space_bytes, entry.inodes) = (used.space_bytes, used.inodes);
    }
    let file = QuotaFile { entries: entries.into_values().collect(), ..old };
    file.encode().map_err(TuneError::damaged)
}

/// Writes the usage anew where it changed, in the blocks that the file has.
pub(crate) fn recount(work: &mut Work<'_>) -> Result {
    if !work.has(Feature::QUOTA) {
        return Ok(());
    }
    work.settle_space()?;
    let usage = usage(work)?;
    for (kind, usage) in usage.iter().enumerate() {
        let ino = quota_inode(work, kind);
        if ino.0 == 0 {
            continue;
        }
        let record = work.image.load(ino)?;
        let map = work.image.read_map(&record)?;
        let block = work.image.block_bytes();
        let room: u64 = map.extents.iter().map(|extent| u64::from(extent.len.0)).sum();
        let len = usize::try_from(record.size().min(room * block as u64)).unwrap_or(0);
        let mut old = Vec::with_capacity(len);
        for extent in &map.extents {
            for at in 0..u64::from(extent.len.0) {
                old.extend_from_slice(&work.image.read_block(extent.device_start.0 + at)?);
            }
        }
        old.truncate(len);
        let file = QuotaFile::decode(&old).map_err(TuneError::damaged)?;
        let bytes = quota_bytes(file, usage)?;
        if bytes.len() > len {
            return refuse(
                &work.what,
                "the quota file would grow; -O ^quota first, and quota after",
            );
        }
        old[..bytes.len()].copy_from_slice(&bytes);
        old.resize(room as usize * block, 0);
        for extent in &map.extents {
            for at in 0..u64::from(extent.len.0) {
                let from = (u64::from(extent.file_start.0) + at) as usize * block;
                if let Some(piece) = old.get(from..from + block) {
                    work.image.write_block(extent.device_start.0 + at, piece)?;
                }
            }
        }
    }
    Ok(())
}
