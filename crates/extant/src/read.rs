//! Uncached contents of inodes, and targets of symbolic links.
//!
//! Large reads go from the device straight into the caller's buffer, one device read for each run
//! of contiguous blocks. Nothing is allocated per block and nothing is cached: the page cache of
//! the host, under the device, does that better.

use std::ops::Range;
use std::sync::Arc;

use extant_base::FsBlock;
use extant_block::BlockDevice;
use extant_format::inode::FileKind;
use extant_iomap::{Contents, Stage};

use crate::error::{Fault, FsError, Result};
use crate::inode::Inode;
use crate::map::{Cursor, FILE_BLOCKS_END, MappingKind};
use crate::view::View;

impl View<'_> {
    /// Fills `out` from byte `offset` of any inode with contents, bypassing the page cache: of
    /// files that do not change, values of extended attributes, link targets and the journal.
    /// Returns the number of bytes read.
    pub(crate) fn read_range(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let left = self.size().saturating_sub(offset);
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
        let out = &mut out[..wanted];
        if wanted == 0 {
            return Ok(0);
        }
        if let Some(seal) = self.seal()? {
            return self.read_sealed(&seal, offset, out).map(|()| wanted);
        }
        if self.is_inline() {
            let data = self.inline_data()?;
            // The size may exceed the stored data; the rest reads as zeros.
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
            let stored = &data[from..data.len().min(from.saturating_add(wanted))];
            let (head, tail) = out.split_at_mut(stored.len());
            head.copy_from_slice(stored);
            tail.fill(0);
            return Ok(wanted);
        }
        // `offset + wanted` is at most the size, so nothing overflows.
        self.read_blocks(offset, out).map(|()| wanted)
    }

    /// Fills `out` from byte `offset` of the blocks of a file, also behind its end, which are zeros
    /// where there are none. For data that is not in the page cache; the map may change meanwhile.
    ///
    /// # Errors
    ///
    /// As [`read_range`](Self::read_range); a range that ends behind the last block that any file
    /// has.
    pub(crate) fn read_stored(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let what = "range: it ends behind the last block that a file can have";
        let end = offset.checked_add(out.len() as u64);
        let limit = FILE_BLOCKS_END << self.volume().block_size().log2();
        if end.is_none_or(|end| end > limit) {
            return Err(FsError::InvalidArgument { what });
        }
        self.with_map(|view| view.read_blocks(offset, out))
    }

    /// Calls `run` with the current version of the inode while its map does not change.
    pub(crate) fn with_map<R>(&self, run: impl FnOnce(&View<'_>) -> Result<R>) -> Result<R> {
        if !self.volume().is_writable() {
            return run(self);
        }
        let file = self.fs().file_of(self.node())?;
        let _map = file.map(|file| file.map.read());
        run(&self.fs().view(self.node()))
    }

    fn read_blocks(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let wanted = out.len();
        let volume = self.volume();
        let block_size = volume.block_size();
        let stage = self.stage()?;
        let end_block = block_size.blocks_for(offset + wanted as u64);
        let mut cursor = Cursor::new(self);
        let mut done = 0;
        while done < wanted {
            let at = offset + done as u64;
            let run = cursor.run(self, at >> block_size.log2(), end_block)?;
            let into_run = at - (u64::from(run.file_start.0) << block_size.log2());
            let run_left = (run.len << block_size.log2()) - into_run;
            let now = usize::try_from(run_left).unwrap_or(usize::MAX).min(wanted - done);
            let part = &mut out[done..done + now];
            match run.kind {
                MappingKind::Mapped(start) if volume.is_writable() && self.is_journaled() => {
                    self.read_journaled(start, into_run, part)?;
                }
                MappingKind::Mapped(start) if stage.is_some() => {
                    self.read_staged(stage.as_ref(), at, (start, into_run), part)?;
                }
                MappingKind::Mapped(start) => volume.read_bytes(start, into_run, part)?,
                MappingKind::Hole | MappingKind::Unwritten(_) | MappingKind::Inline => {
                    part.fill(0);
                }
            }
            done += now;
        }
        Ok(())
    }

    /// Returns the device address of `range` of a file that does not change, if it is one run of
    /// data before the end of the file.
    pub(crate) fn stored_range(&self, range: Range<u64>) -> Result<Option<u64>> {
        if self.is_inline() || self.is_encrypted() || self.is_sealed() || range.end > self.size() {
            return Ok(None);
        }
        let block_size = self.volume().block_size();
        let (at, end) = (range.start >> block_size.log2(), block_size.blocks_for(range.end));
        let run = Cursor::new(self).run(self, at, end)?;
        let MappingKind::Mapped(start) = run.kind else { return Ok(None) };
        let into_run = range.start - (u64::from(run.file_start.0) << block_size.log2());
        let address = block_size.offset_of(start).and_then(|address| address.checked_add(into_run));
        Ok(address.filter(|_| run.file_end() >= end))
    }

    /// Returns whether changes of the contents go through the journal, so that the newest version
    /// may not be on the device yet.
    fn is_journaled(&self) -> bool {
        self.kind() != FileKind::Regular
            || self.is_ea_inode()
            || self.ino().0 < self.volume().superblock().first_inode.0
    }

    /// Reads bytes at `at` of the file, `into` bytes behind block `start`, through a stage.
    fn read_staged(
        &self,
        stage: Option<&Arc<dyn Stage>>,
        at: u64,
        (start, into): (FsBlock, u64),
        out: &mut [u8],
    ) -> Result<()> {
        let volume = self.volume();
        let address = volume.block_size().offset_of(start).and_then(|from| from.checked_add(into));
        let what = "block past the largest device";
        let address = address.ok_or(FsError::InvalidArgument { what })?;
        let device: &dyn BlockDevice = &**volume.device();
        let contents = match stage {
            Some(stage) => Contents::staged(device, Arc::clone(stage)),
            None => Contents::plain(device),
        };
        contents.read_at(at, address, out).map_err(|error| volume.read_error(error))
    }

    fn read_journaled(&self, start: FsBlock, offset: u64, out: &mut [u8]) -> Result<()> {
        let block_size = self.volume().block_size();
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let number = start.checked_add(at >> block_size.log2()).unwrap_or(start);
            let from = (at & u64::from(block_size.bytes() - 1)) as usize;
            let now = (block_size.len() - from).min(rest.len());
            let (part, later) = rest.split_at_mut(now);
            let block = self.volume().read_block(number)?;
            part.copy_from_slice(&block.bytes()[from..from + now]);
            at += now as u64;
            rest = later;
        }
        Ok(())
    }
}

/// # Symbolic links
impl Inode {
    /// Returns the target of a symbolic link; for an encrypted one without its key, the form that
    /// Linux shows.
    ///
    /// # Errors
    ///
    /// [`FsError::NotASymlink`]; damage when the target is longer than a block, its blocks cannot be read, or a zero
    /// byte says that it is not as long as its inode has it.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        self.locked(|view| view.link_target())
    }
}

impl View<'_> {
    fn link_target(&self) -> Result<Vec<u8>> {
        if !self.is_symlink() {
            return Err(FsError::NotASymlink { ino: self.ino() });
        }
        let size = self.size();
        let limit = u64::from(self.volume().block_size().bytes());
        if size > limit {
            let rule = "the target is longer than a block";
            let fault = Fault::Field { rule, value: size, limit };
            return Err(FsError::corrupt("symlink", self.ino(), None, fault));
        }
        let other_length = |value, limit| {
            let rule = "the target is not as long as the inode says";
            FsError::corrupt("symlink", self.ino(), None, Fault::Field { rule, value, limit })
        };
        let end_of = |bytes: &[u8]| bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let mut target = vec![0; size as usize]; // At most 65536.
        if self.is_fast_symlink() {
            let end = end_of(self.i_block()) as u64;
            if !self.is_encrypted() && end != size {
                return Err(other_length(end, size));
            }
            // The target is shorter than 60 bytes, because the link is a fast one.
            let stored = self.i_block().get(..target.len()).unwrap_or(&[]);
            target.truncate(stored.len());
            target.copy_from_slice(stored);
        } else {
            self.read_range(0, &mut target)?;
        }
        if self.is_encrypted() {
            let shown = match self.names() {
                Some(names) => crate::dir::encrypted_target(&target)
                    .and_then(|cipher| names.decrypt(cipher))
                    .filter(|target| !target.is_empty()),
                None => crate::dir::show_encrypted_target(&target),
            };
            return shown.ok_or_else(|| {
                let fault = Fault::Rule("the encrypted target is shorter than it says");
                FsError::corrupt("symlink", self.ino(), None, fault)
            });
        }
        // Linux shows a target that has blocks up to its first zero byte; whoever copies it would have another link.
        let end = end_of(&target);
        if end != target.len() || end == 0 {
            return Err(other_length(end as u64, size));
        }
        Ok(target)
    }
}
