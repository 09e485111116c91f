//! One transaction as blocks of the log: revoke blocks, descriptors with copies, the commit block.

use extant_base::{FsBlock, sabotage};
use extant_block::{AlignedBuffer, DeviceError, Operation};
use extant_format::error::LengthError;
use extant_format::jbd2::{
    CommitBlock, DescriptorWriter, HEADER_BYTES, JBD2_MAGIC, JournalChecksum, LogFormat, NewTag,
    RevokeWriter, Tid as RawTid, TransactionChecksum,
};

use crate::client::{Image, Mutations, Tid};
use crate::store::{LogStore, WRITE_BYTES_MAX};

/// Bytes of the UUID after the first tag of a descriptor.
const UUID_BYTES: usize = 16;
/// Bytes before the first number of a revoke block.
const REVOKE_HEADER_BYTES: usize = 16;

/// The reason why a transaction could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("the transaction needs {needed} blocks of the log, {room} are free")]
    NoRoom { needed: u32, room: u32 },
    #[error("journal block {block} is not mapped to any block of the device")]
    Unmapped { block: u32 },
    #[error("the image of block {block} has {found} bytes, not {wanted}")]
    ImageBytes { block: FsBlock, found: usize, wanted: usize },
    #[error("block {block} cannot be named in this journal: its block numbers have 32 bits")]
    BlockNumber { block: FsBlock },
    #[error(transparent)]
    Length(#[from] LengthError),
}

/// Returns how many tags a descriptor block takes.
pub(crate) fn tags_per_block(format: &LogFormat) -> usize {
    let used = HEADER_BYTES.saturating_add(UUID_BYTES).saturating_add(format.tail_bytes());
    let room = format.block_size.len().saturating_sub(used);
    room.checked_div(format.tag_bytes()).unwrap_or(0).max(1)
}

/// Returns how many numbers a revoke block takes.
pub(crate) fn revokes_per_block(format: &LogFormat) -> usize {
    let used = REVOKE_HEADER_BYTES.saturating_add(format.tail_bytes());
    let room = format.block_size.len().saturating_sub(used);
    room.checked_div(format.revoke_bytes()).unwrap_or(0).max(1)
}

/// Blocks of the log that `copies` and `revokes` take, with the commit block.
pub(crate) fn blocks_needed(format: &LogFormat, copies: usize, revokes: usize) -> u32 {
    let mut descriptors = copies.div_ceil(tags_per_block(format));
    if sabotage("jbd2.write.one-descriptor") {
        descriptors = descriptors.min(1);
    }
    let revoke_blocks = revokes.div_ceil(revokes_per_block(format));
    let all = copies.saturating_add(descriptors).saturating_add(revoke_blocks).saturating_add(1);
    u32::try_from(all).unwrap_or(u32::MAX)
}

/// Most copies of a transaction that takes at most `blocks` blocks of the log.
pub(crate) fn copies_in(format: &LogFormat, blocks: u32) -> u32 {
    let per = u32::try_from(tags_per_block(format)).unwrap_or(u32::MAX);
    let groups = u64::from(blocks.saturating_sub(1));
    let tagged = groups.saturating_mul(u64::from(per));
    let copies = tagged.checked_div(u64::from(per).saturating_add(1));
    copies.and_then(|copies| u32::try_from(copies).ok()).unwrap_or(u32::MAX)
}

/// Consecutive log blocks in memory, cut where the device has them apart.
struct Buffers {
    block_bytes: usize,
    /// Offset on the device; bytes.
    runs: Vec<(u64, AlignedBuffer)>,
    /// Index of the first block of each run; ascending, starts with 0.
    firsts: Vec<usize>,
}

impl Buffers {
    fn new(store: &LogStore, place: &Place, blocks: u32) -> Result<Buffers, WriteError> {
        let block_bytes = store.block_size().len();
        let mut cuts: Vec<(u64, usize)> = Vec::new();
        let mut firsts = Vec::new();
        for index in 0..blocks {
            let block = place.at(index);
            let offset = store.offset_of(block).ok_or(WriteError::Unmapped { block })?;
            if let Some((start, bytes)) = cuts.last_mut()
                && u64::try_from(*bytes).ok().and_then(|len| start.checked_add(len)) == Some(offset)
                && bytes.saturating_add(block_bytes) <= WRITE_BYTES_MAX
            {
                *bytes = bytes.saturating_add(block_bytes);
            } else {
                cuts.push((offset, block_bytes));
                firsts.push(usize::try_from(index).unwrap_or(usize::MAX));
            }
        }
        let zeroed = |(offset, bytes)| (offset, AlignedBuffer::zeroed(bytes));
        Ok(Buffers { block_bytes, runs: cuts.into_iter().map(zeroed).collect(), firsts })
    }

    /// Block `index` of the transaction. Every index below the number asked for has one.
    fn block(&mut self, index: usize) -> &mut [u8] {
        let run = self.firsts.partition_point(|first| *first <= index).saturating_sub(1);
        let into = index.saturating_sub(self.firsts.get(run).copied().unwrap_or(0));
        let start = into.saturating_mul(self.block_bytes);
        let end = start.saturating_add(self.block_bytes);
        self.runs.get_mut(run).and_then(|(_, bytes)| bytes.get_mut(start..end)).unwrap_or_default()
    }

    fn into_writes(self) -> Vec<Operation> {
        let write = |(offset, buffer)| Operation::Write { offset, buffer, fua: false };
        self.runs.into_iter().map(write).collect()
    }
}

/// The place in the ring at which a transaction starts.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) log: std::ops::Range<u32>,
    pub(crate) head: u32,
}

impl Place {
    /// The block `count` blocks after the head, going round. `count` is at most the ring's length.
    pub(crate) fn at(&self, count: u32) -> u32 {
        let len = self.log.end.saturating_sub(self.log.start);
        let into = self.head.saturating_sub(self.log.start);
        let sum = u64::from(into).saturating_add(u64::from(count));
        let round = sum.checked_rem(u64::from(len)).unwrap_or(0);
        self.log.start.saturating_add(u32::try_from(round).unwrap_or(0))
    }
}

/// A transaction in the form of the log, not yet written.
pub(crate) struct Encoded {
    /// Everything but the commit block.
    pub(crate) body: Vec<Operation>,
    /// The commit block, with FUA.
    pub(crate) commit: Operation,
    /// Blocks in all.
    pub(crate) blocks: u32,
}

/// The contents of a transaction.
pub(crate) struct Contents<'a> {
    pub(crate) tid: Tid,
    pub(crate) images: &'a [(FsBlock, Image)],
    pub(crate) revoked: &'a [FsBlock],
    /// Seconds since 1970 and nanoseconds.
    pub(crate) time: (u64, u32),
}

/// Encodes a transaction for the place where it goes; `room` blocks are free there.
pub(crate) fn encode(
    store: &LogStore,
    place: &Place,
    room: u32,
    contents: &Contents<'_>,
    mutations: &Mutations,
) -> Result<Encoded, WriteError> {
    let format = store.superblock.log_format();
    let tid = RawTid(contents.tid);
    let Contents { images, revoked, .. } = *contents;
    let needed = blocks_needed(&format, images.len(), revoked.len());
    if needed > room {
        return Err(WriteError::NoRoom { needed, room });
    }
    let body_blocks = needed.saturating_sub(1);
    let mut buffers = Buffers::new(store, place, body_blocks)?;
    let mut next = 0usize;
    for chunk in revoked.chunks(revokes_per_block(&format)) {
        let mut writer = RevokeWriter::new(&format, tid, buffers.block(next))?;
        for block in chunk {
            if !writer.push(*block) {
                return Err(WriteError::BlockNumber { block: *block });
            }
        }
        writer.finish();
        next = next.saturating_add(1);
    }
    let mut sum = TransactionChecksum::new();
    let mut spoil = mutations.bad_checksum;
    let mut descriptor = vec![0; format.block_size.len()];
    for chunk in images.chunks(tags_per_block(&format)) {
        let mut writer = DescriptorWriter::new(&format, tid, &mut descriptor)?;
        let first = next;
        for (fs_block, image) in chunk {
            next = next.saturating_add(1);
            let (bytes, copy) = ((**image).as_ref(), buffers.block(next));
            let (found, wanted) = (bytes.len(), copy.len());
            if found != wanted {
                return Err(WriteError::ImageBytes { block: *fs_block, found, wanted });
            }
            copy.copy_from_slice(bytes);
            let escaped = escape(copy);
            let mut checksum = 0;
            if format.checksum.covers_blocks() {
                checksum = format.data_checksum(tid, copy) ^ u32::from(std::mem::take(&mut spoil));
            }
            if !writer.push(NewTag { fs_block: *fs_block, escaped, checksum }) {
                return Err(WriteError::BlockNumber { block: *fs_block });
            }
        }
        writer.finish();
        buffers.block(first).copy_from_slice(&descriptor);
        next = next.saturating_add(1);
        if format.checksum == JournalChecksum::V1 {
            for index in first..next {
                sum.update(buffers.block(index));
            }
        }
    }
    let (commit_sec, commit_nsec) = contents.time;
    let commit = CommitBlock { tid, commit_sec, commit_nsec, checksum_v1: (0, 0, 0) };
    let mut buffer = AlignedBuffer::zeroed(format.block_size.len());
    commit.encode(&format, &sum, &mut buffer)?;
    let block = place.at(body_blocks);
    let offset = store.offset_of(block).ok_or(WriteError::Unmapped { block })?;
    let commit = Operation::Write { offset, buffer, fua: true };
    Ok(Encoded { body: buffers.into_writes(), commit, blocks: needed })
}

/// Hides the magic number at the start of a copy; true if it was there.
fn escape(copy: &mut [u8]) -> bool {
    match copy.first_chunk_mut::<4>() {
        Some(start)
            if *start == JBD2_MAGIC.to_be_bytes() && !sabotage("jbd2.write.magic-not-escaped") =>
        {
            *start = [0; 4];
            true
        }
        _ => false,
    }
}
