//! Contents of a file beside its seal (fs-verity).
//!
//! What the seal does not vouch for is handed on all the same, and named: whoever salvages wants what can be read.
//! The bytes of the last block behind the file's end are no contents, and count as the zeros that they should be.

use std::collections::BTreeSet;
use std::ops::Range;

use extant_format::extent::ExtentState;
use extant_format::inode::InodeFlags;
use extant_format::record::{Record, put, u32_at};
use extant_verity::{
    Descriptor, DescriptorPlace, Hash, Hasher, SIZE_FIELD_BYTES, Shape, metadata_start,
};

use crate::content::Sink;
use crate::image::Image;
use crate::limits::Budget;
use crate::map::Piece;
use crate::report::{Reasons, Unverified, Why};

/// Runs of blocks behind a file's end, and holes in it, that are kept in mind.
const RUNS_MAX: usize = 1 << 16;
/// Blocks that are named.
const NAMED_MAX: usize = 16;

/// Blocks behind the end of a file: the first in the file, the first on the device, and how many.
type Run = (u64, u64, u64);

/// The seal of a file, and what was compared with it.
pub(crate) struct Seal<'a> {
    image: &'a Image,
    /// What reading the tree may still cost.
    budget: Budget,
    runs: Vec<Run>,
    shape: Shape,
    hasher: Hasher,
    root: Hash,
    /// The byte of the file where the tree begins.
    start: u64,
    /// Of each level the block that was used last, with its number; `None`: it is damaged, or one above it is.
    last: Vec<Option<(u64, Option<Vec<u8>>)>>,
    /// Blocks of the tree that are not what they should be.
    damaged: BTreeSet<u64>,
    wrong: u64,
    named: Vec<u64>,
    /// Behind the last block that was compared.
    next: u64,
    /// Blocks of the file between those that came, in order.
    holes: Vec<Range<u64>>,
}

impl<'a> Seal<'a> {
    /// Reads the seal of a file of `size` bytes; `None`: it is damaged.
    pub(crate) fn of(
        image: &'a Image,
        record: &Record,
        size: u64,
        budget: Budget,
    ) -> Option<Seal<'a>> {
        let log2 = image.block_bytes().trailing_zeros();
        let is_mapped = record.has(InodeFlags::EXTENTS) && !record.has(InodeFlags::INLINE_DATA);
        let start = metadata_start(size).filter(|_| is_mapped)?;
        let (first, mut end, mut runs) = (start >> log2, start >> log2, Vec::new());
        let mut budget = budget;
        image.walk_map(record, &mut budget, &mut |piece| {
            let Piece::Data { extent } = piece else { return true };
            let (from, len) = (u64::from(extent.file_start.0), u64::from(extent.len.0));
            if from.saturating_add(len) > first {
                end = end.max(from.saturating_add(len));
                if extent.state == ExtentState::Written {
                    runs.push((from, extent.device_start.0, len));
                }
            }
            runs.len() < RUNS_MAX
        });
        runs.sort_unstable();
        let end = end.checked_shl(log2)?;
        let mut blocks = Blocks { image, runs: &runs, budget: &mut budget };
        let mut field = [0; SIZE_FIELD_BYTES as usize];
        blocks.read(end.checked_sub(SIZE_FIELD_BYTES).filter(|at| *at >= start)?, &mut field)?;
        let place = DescriptorPlace::find(size, end, u32_at(&field, 0), log2)?;
        let mut bytes = vec![0; place.len]; // At most 16384.
        blocks.read(place.at, &mut bytes)?;
        let descriptor = Descriptor::decode(&bytes, size, log2).ok()?;
        let shape = descriptor.shape().ok()?;
        start.checked_add(shape.bytes())?;
        let (hasher, root) = (descriptor.hasher(), descriptor.root);
        let last = vec![None; shape.levels().len()];
        let (damaged, named, holes) = Default::default();
        let (wrong, next) = (0, 0);
        Some(Seal {
            image,
            budget,
            runs,
            shape,
            hasher,
            root,
            start,
            last,
            damaged,
            wrong,
            named,
            next,
            holes,
        })
    }

    /// Compares contents from a byte on, which begins a block.
    pub(crate) fn compare(&mut self, offset: u64, bytes: &[u8]) {
        let first = offset >> self.shape.block_log2();
        if first > self.next && self.holes.len() < RUNS_MAX {
            self.holes.push(self.next..first);
        }
        let mut index = first;
        for block in bytes.chunks(self.shape.block_bytes()) {
            let hash = self.hasher.hash_padded(block, self.shape.block_bytes());
            self.compare_hash(index, &hash);
            index = index.saturating_add(1);
        }
        self.next = self.next.max(index);
    }

    /// Compares a block's hash. Returns whether the tree says what it should be.
    fn compare_hash(&mut self, index: u64, hash: &Hash) -> bool {
        let is_right = match self.shape.levels().is_empty() {
            true => *hash == self.root,
            false => {
                let (above, at) = self.shape.place(index);
                if !self.load(0, above) {
                    return false;
                }
                self.has(0, at, hash)
            }
        };
        if !is_right {
            self.wrong = self.wrong.saturating_add(1);
            if self.named.len() < NAMED_MAX {
                self.named.push(index);
            }
        }
        true
    }

    /// Reads a block of a level, and those above it, which are at most seven. Returns whether it is right.
    fn load(&mut self, level: usize, number: u64) -> bool {
        if let Some(Some((known, bytes))) = self.last.get(level)
            && *known == number
        {
            return bytes.is_some();
        }
        let place = self.shape.levels().get(level).filter(|level| number < level.blocks);
        let Some(index) = place.map(|level| level.start + number) else { return false };
        let is_top = level + 1 == self.shape.levels().len();
        let (above, at) = self.shape.place(number);
        let is_known = is_top || self.load(level + 1, above);
        let mut kept = None;
        if is_known {
            let mut bytes = vec![0; self.shape.block_bytes()];
            let mut blocks =
                Blocks { image: self.image, runs: &self.runs, budget: &mut self.budget };
            // The whole tree lies below 2^64.
            let read = blocks.read(self.start + (index << self.shape.block_log2()), &mut bytes);
            let hash = read.map(|()| self.hasher.hash(&bytes));
            let is_right = hash.is_some_and(|hash| match is_top {
                true => hash == self.root,
                false => self.has(level + 1, at, &hash),
            });
            match is_right {
                true => kept = Some(bytes),
                false => drop(self.damaged.insert(index)),
            }
        }
        let is_right = kept.is_some();
        if let Some(slot) = self.last.get_mut(level) {
            *slot = Some((number, kept));
        }
        is_right
    }

    /// Returns whether the block of a level that was used last has a hash at a byte.
    fn has(&self, level: usize, at: usize, hash: &Hash) -> bool {
        let Some(Some((_, Some(bytes)))) = self.last.get(level) else { return false };
        bytes.get(at..).is_some_and(|rest| rest.starts_with(hash.as_bytes()))
    }

    /// Compares the holes of a file of which nothing is missing with what should be there: zeros. A tree that lies in
    /// the image has no more hashes than the image has room for.
    fn compare_holes(&mut self) -> bool {
        let end = self.shape.data_blocks();
        if self.next < end {
            self.holes.push(self.next..end);
        }
        let hashes = (self.shape.block_bytes() / self.shape.digest_bytes()) as u64;
        let mut left = self.image.blocks.saturating_mul(hashes).saturating_add(1);
        let zeros = vec![0; self.shape.block_bytes()];
        let hash = self.hasher.hash(&zeros);
        for hole in std::mem::take(&mut self.holes) {
            let mut index = hole.start;
            while index < hole.end.min(end) {
                if left == 0 {
                    return false;
                }
                left -= 1;
                if self.compare_hash(index, &hash) {
                    index += 1;
                } else {
                    // Nothing is known of what this block of the tree is for.
                    index = (index / hashes + 1).saturating_mul(hashes);
                }
            }
        }
        true
    }

    /// Ends the comparison. `is_whole`: nothing is missing of the file, so that what did not come are holes.
    pub(crate) fn end(mut self, is_whole: bool, reasons: &mut Reasons) -> Option<Unverified> {
        if is_whole && !self.compare_holes() {
            *reasons.entry(Why::TooMuch).or_default() += 1;
        }
        if !self.damaged.is_empty() {
            reasons.insert(Why::SealTree, self.damaged.len() as u64);
        }
        if self.wrong == 0 {
            return None;
        }
        reasons.insert(Why::Unverified, self.wrong);
        self.named.sort_unstable();
        let block_bytes = u32::try_from(self.shape.block_bytes()).unwrap_or(u32::MAX);
        Some(Unverified { block_bytes, blocks: self.named })
    }
}

/// The blocks behind a file's end.
struct Blocks<'a> {
    image: &'a Image,
    runs: &'a [Run],
    budget: &'a mut Budget,
}

impl Blocks<'_> {
    /// Reads bytes; zeros where the file has no block. `None`: they cannot be read.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Option<()> {
        let size = self.image.block_bytes();
        let mut buffer = vec![0; size];
        let mut done = 0;
        while done < out.len() {
            let at = offset.checked_add(done as u64)?;
            let (block, into) = (at / size as u64, (at % size as u64) as usize);
            buffer.fill(0);
            let behind = self.runs.partition_point(|(from, ..)| *from <= block);
            let run = behind.checked_sub(1).and_then(|run| self.runs.get(run));
            if let Some((from, device, len)) = run
                && block - from < *len
            {
                if !self.budget.data(1) {
                    return None;
                }
                self.image.read_into(device.checked_add(block - from)?, &mut buffer).ok()?;
            }
            let take = (size - into).min(out.len() - done);
            put(out, done, buffer.get(into..into + take)?);
            done += take;
        }
        Some(())
    }
}

/// Hands contents on, and compares them with the seal of their file, if it has one.
pub(crate) struct Compared<'s, 'a, S> {
    pub(crate) seal: Option<&'s mut Seal<'a>>,
    pub(crate) to: S,
}

impl<S: Sink> Sink for Compared<'_, '_, S> {
    type Stop = S::Stop;

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), S::Stop> {
        if let Some(seal) = &mut self.seal {
            seal.compare(offset, bytes);
        }
        self.to.data(offset, bytes)
    }
}
