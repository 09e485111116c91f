//! A device over another, whose changes stay apart: whole blocks, which a transaction takes.

use std::io;
use std::sync::Arc;

use extant_block::{
    BlockDevice, DeviceError, DeviceFault, Operation, OperationKind, Pending, SharedDevice,
    check_range, run_in_place,
};
use extant_sync::{Rank, RwLock};

use crate::blocks::Blocks;
use crate::error::Result as ChangeResult;

/// Bytes of the device below that are compared at once, or one block.
const COMPARED_BYTES: usize = 1 << 18;

/// A device of any size over another. What lies past the end of that one reads as zeros.
pub struct Draft {
    base: SharedDevice,
    size_bytes: u64,
    block_bytes: usize,
    changed: RwLock<Blocks>,
}

impl Draft {
    /// A draft over `base`, in which nothing has changed.
    pub fn over(base: SharedDevice, size_bytes: u64, block_bytes: usize) -> Draft {
        let changed = RwLock::new(Rank::Device, Blocks::new(block_bytes));
        Draft { base, size_bytes, block_bytes, changed }
    }

    /// Reads from the device below.
    pub fn read_base(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let there = self.base.size_bytes().saturating_sub(offset).min(out.len() as u64) as usize;
        let (inside, outside) = out.split_at_mut(there);
        outside.fill(0);
        if inside.is_empty() {
            return Ok(());
        }
        self.base.read_at(offset, inside)
    }

    /// Returns how many blocks were written.
    #[must_use]
    pub fn changed_blocks(&self) -> u64 {
        self.changed.read().len()
    }

    /// Takes all blocks that were written, also those that are as they are on the device below; the draft is empty then.
    #[must_use]
    pub fn take_all(&self) -> Blocks {
        std::mem::replace(&mut *self.changed.write(), Blocks::new(self.block_bytes))
    }

    /// Takes the blocks that are not as they are on the device below; the draft is empty then.
    ///
    /// # Errors
    ///
    /// Those of the device below, and [`Scratch`](crate::ChangeError::Scratch).
    pub fn take(&self) -> ChangeResult<Blocks> {
        let mut changed = self.take_all();
        let mut same = Vec::new();
        let size = self.block_bytes;
        let mut old = Vec::new();
        // Neighbours are read at once.
        changed.each(COMPARED_BYTES, |first, bytes| {
            old.resize(bytes.len(), 0);
            self.read_base(first * size as u64, &mut old)?;
            let pairs = (first..).zip(bytes.chunks_exact(size).zip(old.chunks_exact(size)));
            same.extend(pairs.filter(|(_, (new, old))| new == old).map(|(block, _)| block));
            ChangeResult::Ok(())
        })?;
        for block in same {
            changed.remove(block);
        }
        Ok(changed)
    }

    /// An error of what keeps the changes, as one of the device.
    fn failed(
        &self,
        kind: OperationKind,
        offset: u64,
        len: usize,
        error: io::Error,
    ) -> DeviceError {
        DeviceError::new(self.describe(), kind, offset, len as u64, DeviceFault::Io(error))
    }
}

impl BlockDevice for Draft {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        run_in_place(self, batch)
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        self.base.describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        check_range(self, OperationKind::Read, offset, out.len() as u64)?;
        if out.is_empty() {
            return Ok(());
        }
        let size = self.block_bytes as u64;
        let end = offset + out.len() as u64;
        let blocks = offset / size..end.div_ceil(size);
        let there = self.changed.read().count_in(blocks.clone());
        // Blocks that are written once are never forgotten as long as anybody reads.
        if there < blocks.end - blocks.start {
            self.read_base(offset, out)?;
        }
        let (changed, len) = (self.changed.read(), out.len());
        let read = changed.read_over(blocks.start, (offset % size) as usize, out);
        read.map_err(|error| self.failed(OperationKind::Read, offset, len, error))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_range(self, OperationKind::Write, offset, bytes.len() as u64)?;
        let size = self.block_bytes as u64;
        let (mut at, end) = (offset, offset + bytes.len() as u64);
        while at < end {
            let block = at / size;
            let (start, to) = (block * size, ((block + 1) * size).min(end));
            let failed = |error| self.failed(OperationKind::Write, offset, bytes.len(), error);
            if at == start && end - at >= size {
                // Neighbours stay together, whoever else writes meanwhile.
                let rest = &bytes[(at - offset) as usize..];
                let mut changed = self.changed.write();
                for (block, part) in (block..).zip(rest.chunks_exact(self.block_bytes)) {
                    changed.insert(block, part).map_err(failed)?;
                }
                at = end / size * size;
                continue;
            }
            let part = &bytes[(at - offset) as usize..(to - offset) as usize];
            let mut whole = vec![0; self.block_bytes];
            let there = (self.size_bytes - start).min(size) as usize;
            self.read_at(start, &mut whole[..there])?;
            whole[(at - start) as usize..(to - start) as usize].copy_from_slice(part);
            self.changed.write().insert(block, &whole).map_err(failed)?;
            at = to;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let zeros = vec![0; self.block_bytes];
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let take = (end - at).min(zeros.len() as u64);
            self.write_at(at, &zeros[..take as usize])?;
            at += take;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_as_it_was_is_not_taken() {
        let base = Arc::new(extant_block::MemoryDevice::filled_with(7, 300 * 4096));
        let draft = Draft::over(base, 400 * 4096, 4096);
        // More neighbours than are compared at once, some of them changed, and some past the end.
        for block in (0..200).chain(250..320) {
            let value = if block % 3 == 0 { 8 } else { 7 };
            draft.write_at(block * 4096, &[value; 4096]).unwrap();
        }
        draft.write_at(399 * 4096, &[0; 4096]).unwrap();
        let taken = draft.take().unwrap();
        let wanted = (0..200).chain(250..320).filter(|block| block % 3 == 0 || *block >= 300);
        let mut found = Vec::new();
        taken
            .each(4096, |block, bytes| {
                assert_eq!(bytes[0], if block % 3 == 0 { 8 } else { 7 });
                found.push(block);
                ChangeResult::Ok(())
            })
            .unwrap();
        assert!(found.into_iter().eq(wanted));
        assert_eq!(draft.changed_blocks(), 0);
    }
}
