//! Sealed files (fs-verity): their seal, and checking what is read of them.
//!
//! # Rules
//!
//! - H3. Contents of a sealed file are shown after a check, or not at all: the page cache checks by
//!   [`View::check_sealed`], reads without a cache go through [`View::read_sealed`], and nobody gets
//!   their addresses.
//! - H4. What is checked is what the device has of a block, or zeros where it has none: bytes behind
//!   the end in the last block are zeros, as Linux wants them.

use std::sync::Arc;

use extant_base::sabotage;
use extant_format::inode::{FileKind, InodeFlags};
use extant_verity::{Descriptor, DescriptorPlace, Hash, SIZE_FIELD_BYTES, metadata_start};

use crate::error::{Fault, FsError, Result};
use crate::inode::Inode;
use crate::map::{Cursor, FILE_BLOCKS_END, MappingKind};
use crate::seal::{Seal, TreeBlock};
use crate::view::View;

/// The structure that errors name.
const DESCRIPTOR: &str = "fs-verity descriptor";
/// Bytes that are checked at once without a cache.
const STEP: usize = 1 << 20;
/// Limit of the runs behind the end of a file among which the last one is looked for.
const RUNS_MAX: usize = 1 << 20;

/// # Seals
impl Inode {
    /// Returns the digest of a file that is sealed by fs-verity, which stands for its whole
    /// contents: what `fsverity digest` and `fsverity measure` print. `None` for other inodes.
    ///
    /// # Errors
    ///
    /// Damage of the seal; device errors.
    ///
    /// # Cost
    ///
    /// The first call on a handle's inode reads the descriptor; the contents are not read.
    pub fn verity_digest(&self) -> Result<Option<Hash>> {
        self.seal().map(|seal| seal.map(|seal| seal.digest))
    }

    /// Returns what a file is sealed with: algorithm, size of blocks, salt, root hash and signature.
    /// `None` for inodes without a seal.
    ///
    /// # Errors
    ///
    /// As [`verity_digest`](Self::verity_digest).
    pub fn verity_descriptor(&self) -> Result<Option<Descriptor>> {
        self.seal().map(|seal| seal.map(|seal| seal.descriptor.clone()))
    }

    /// Reads from byte `offset` of the stored hash tree of a sealed file, without a check. Returns
    /// the number of bytes: 0 at its end, and for an inode without a seal.
    ///
    /// # Errors
    ///
    /// As [`verity_digest`](Self::verity_digest).
    pub fn read_verity_tree(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let Some(seal) = self.seal()? else { return Ok(0) };
        let left = seal.shape.bytes().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
        let out = &mut out[..len];
        if len > 0 {
            // The tree lies below 2^64, and the offset is inside.
            self.fs().view(self.node()).read_stored(seal.start + offset, out)?;
        }
        Ok(len)
    }

    fn seal(&self) -> Result<Option<Arc<Seal>>> {
        if !self.is_verity() {
            return Ok(None);
        }
        // The map is kept from changing while it is read; the size and the seal never change.
        self.fs().view(self.node()).seal()
    }

    /// Returns whether the seal of a sealed file is in memory, so that nothing has to be read to
    /// find it.
    pub(crate) fn has_seal(&self) -> bool {
        self.node().seal().get().is_some()
    }

    /// Checks that contents of a sealed file can be checked: it has a valid seal. For front ends
    /// that open files; reads say the same.
    ///
    /// # Errors
    ///
    /// As [`verity_digest`](Self::verity_digest).
    pub fn check_seal(&self) -> Result<()> {
        if !self.is_verity() || self.has_seal() {
            return Ok(());
        }
        self.seal().map(drop)
    }
}

impl View<'_> {
    /// Returns whether the contents are checked by a seal.
    pub(crate) fn is_sealed(&self) -> bool {
        self.flags().contains(InodeFlags::VERITY) && self.kind() == FileKind::Regular
    }

    /// Returns the seal of a sealed file; `None` for other inodes.
    ///
    /// # Errors
    ///
    /// Damage of the seal; device errors.
    pub(crate) fn seal(&self) -> Result<Option<Arc<Seal>>> {
        if !self.is_sealed() {
            return Ok(None);
        }
        if let Some(known) = self.node().seal().get() {
            return Ok(Some(Arc::clone(known)));
        }
        let made = Arc::new(self.read_seal()?);
        Ok(Some(Arc::clone(self.node().seal().get_or_init(|| made))))
    }

    fn broken_seal(&self, fault: Fault) -> FsError {
        FsError::corrupt(DESCRIPTOR, self.ino(), None, fault)
    }

    fn read_seal(&self) -> Result<Seal> {
        let volume = self.volume();
        let log2 = volume.block_size().log2();
        if !self.uses_extents() || self.is_inline() {
            return Err(self.broken_seal(Fault::Rule("the file is not mapped by extents")));
        }
        let size = self.size();
        let nowhere = || self.broken_seal(Fault::Rule("it is not behind the end of the file"));
        let start = metadata_start(size).ok_or_else(nowhere)?;
        let end = self.last_block_end(start >> log2)? << log2;
        let at = end.checked_sub(SIZE_FIELD_BYTES).filter(|at| *at >= start).ok_or_else(nowhere)?;
        let mut field = [0; SIZE_FIELD_BYTES as usize];
        self.read_stored(at, &mut field)?;
        let place = DescriptorPlace::find(size, end, u32::from_le_bytes(field), log2);
        let place = place.ok_or_else(nowhere)?;
        let mut bytes = vec![0; place.len]; // At most 16384.
        self.read_stored(place.at, &mut bytes)?;
        let decoded = Descriptor::decode(&bytes, size, log2);
        let descriptor =
            decoded.map_err(|fault| self.broken_seal(Fault::Decode(Box::new(fault))))?;
        let shape = descriptor.shape();
        let shape = shape.map_err(|fault| self.broken_seal(Fault::Decode(Box::new(fault))))?;
        start.checked_add(shape.bytes()).ok_or_else(nowhere)?;
        Ok(volume.tree_blocks().seal(descriptor, shape, start))
    }

    /// Returns the file block behind the last one that the file has, `from` if there is none from
    /// there on.
    fn last_block_end(&self, from: u64) -> Result<u64> {
        self.with_map(|view| {
            let mut cursor = Cursor::new(view);
            let (mut at, mut last) = (from, from);
            for _ in 0..RUNS_MAX {
                if at >= FILE_BLOCKS_END {
                    return Ok(last);
                }
                let run = cursor.run(view, at, FILE_BLOCKS_END)?;
                at = run.file_end();
                if matches!(run.kind, MappingKind::Mapped(_) | MappingKind::Unwritten(_)) {
                    last = at;
                }
            }
            Err(view.broken_seal(Fault::Rule("it lies behind too many runs of blocks")))
        })
    }

    /// Checks contents at `offset`, as [`Mapper::check`](extant_iomap::Mapper::check) has them.
    ///
    /// # Errors
    ///
    /// [`FsError::Unverified`]; damage of the seal; device errors.
    pub(crate) fn check_sealed(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self.seal()? {
            Some(seal) => self.check_with(&seal, offset, bytes),
            None => Ok(()),
        }
    }

    fn check_with(&self, seal: &Seal, offset: u64, bytes: &[u8]) -> Result<()> {
        let shape = &seal.shape;
        // The lowest block of the tree that was used last, and its number in its level.
        let mut last: Option<(u64, TreeBlock)> = None;
        let first = offset >> shape.block_log2();
        for (index, block) in (first..).zip(bytes.chunks(shape.block_bytes())) {
            let hash = seal.hasher.hash(block);
            let (above, at) = shape.place(index);
            let is_right = match shape.levels().is_empty() {
                true => hash == seal.descriptor.root,
                false => {
                    let known = last.take().filter(|(number, _)| *number == above);
                    let (_, tree_block) = last.insert(match known {
                        Some(known) => known,
                        None => (above, self.tree_block(seal, 0, above)?),
                    });
                    tree_block.has(at, &hash)
                }
            };
            if !is_right {
                return Err(self.unverified(seal, "contents", index));
            }
        }
        Ok(())
    }

    fn unverified(&self, seal: &Seal, what: &'static str, index: u64) -> FsError {
        let block_bytes = u32::try_from(seal.shape.block_bytes()).unwrap_or(u32::MAX);
        FsError::Unverified { ino: self.ino(), what, index, block_bytes }
    }

    /// Returns block `number` of a level of the tree, checked up to the root. Calls itself for the
    /// levels above, which are at most seven.
    fn tree_block(&self, seal: &Seal, level: usize, number: u64) -> Result<TreeBlock> {
        let (volume, shape) = (self.volume(), &seal.shape);
        let outside = || self.unverified(seal, "hash tree", number);
        let place = shape.levels().get(level).filter(|level| number < level.blocks);
        let index = place.map(|level| level.start + number).ok_or_else(outside)?;
        if let Some(known) = volume.tree_blocks().get(seal, index) {
            return Ok(known);
        }
        let mut bytes = vec![0; shape.block_bytes()];
        // The whole tree lies below 2^64.
        self.read_stored(seal.start + (index << shape.block_log2()), &mut bytes)?;
        let hash = seal.hasher.hash(&bytes);
        let is_right = match level + 1 == shape.levels().len() {
            true => hash == seal.descriptor.root,
            false => {
                let (above, at) = shape.place(number);
                self.tree_block(seal, level + 1, above)?.has(at, &hash)
            }
        };
        if !is_right && !sabotage("extant.verify.tree-not-checked") {
            return Err(self.unverified(seal, "hash tree", index));
        }
        Ok(volume.tree_blocks().keep(seal, index, bytes))
    }

    /// Fills `out` from byte `offset` of a sealed file, checked; the range ends before the file
    /// does.
    pub(crate) fn read_sealed(&self, seal: &Seal, offset: u64, out: &mut [u8]) -> Result<()> {
        let unit = seal.shape.block_bytes();
        let mut buffer = Vec::new();
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let into = (at & (unit as u64 - 1)) as usize;
            let left = out.len() - done;
            if into == 0 && left >= unit {
                let whole = (left - left % unit).min(STEP.max(unit));
                let part = &mut out[done..done + whole];
                let read = self.read_stored(at, part);
                if let Err(error) = read.and_then(|()| self.check_with(seal, at, part)) {
                    part.fill(0); // Nobody sees what was not checked.
                    return Err(error);
                }
                done += whole;
                continue;
            }
            buffer.resize(unit, 0);
            let start = at - into as u64;
            self.read_stored(start, &mut buffer)?;
            self.check_with(seal, start, &buffer)?;
            let take = (unit - into).min(left);
            out[done..done + take].copy_from_slice(&buffer[into..into + take]);
            done += take;
        }
        Ok(())
    }
}
