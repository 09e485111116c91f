//! Copying between files through their caches.

use std::ops::Range;

use extant_format::inode::InodeFlags;

use super::io::WriteAsk;
use super::{FileMapper, WriteBy, resize};
use crate::error::{FsError, Result};
use crate::inode::Inode;

/// Bytes copied under the locks of both files.
const STEP: u64 = 1 << 20;
/// Bytes of a hole made at once where the destination has data.
const HOLE_STEP: u64 = 16 << 20;

/// A run of bytes of one kind in the source.
enum Piece {
    /// Bytes up to this length, in the buffer.
    Data(usize),
    /// Zeros up to this length.
    Hole(u64),
}

impl Inode {
    /// Copies up to `len` bytes from byte `offset` to byte `to_offset` of `to`, and returns the
    /// number of bytes copied: fewer than `len` at the end of this file, or before an error, which
    /// the next call returns.
    ///
    /// Holes are kept where the destination has a hole as well, and behind its end. The copy is
    /// atomic for each MiB only; other writes may come between.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`]: overlapping ranges of one file. Otherwise those of [`read_at`](Self::read_at) and
    /// [`write_at`](Self::write_at), if they concern the first bytes.
    ///
    /// # Cost
    ///
    /// Two copies of the data in memory. Holes cost in proportion to the data that they replace.
    pub fn copy_range(&self, offset: u64, to: &Inode, to_offset: u64, len: u64) -> Result<u64> {
        self.copy_range_by(WriteBy::Program, offset, to, to_offset, len)
    }

    /// Copies like [`copy_range`](Self::copy_range), for front ends that say with `by` on whose
    /// behalf they write.
    ///
    /// # Errors
    ///
    /// As [`copy_range`](Self::copy_range).
    pub fn copy_range_by(
        &self,
        by: WriteBy,
        offset: u64,
        to: &Inode,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.check_contents()?;
        to.check_contents()?;
        to.volume().writer()?;
        let is_same_fs = std::ptr::eq(self.volume(), to.volume());
        let is_same = is_same_fs && self.ino() == to.ino();
        let end = offset.saturating_add(len);
        let to_end = to_offset.saturating_add(len);
        if is_same && offset < to_end && to_offset < end {
            return Err(FsError::InvalidArgument { what: "ranges: they overlap in one file" });
        }
        let mut buffer = Vec::new();
        let mut done = 0;
        while done < len {
            let (at, to_at, left) = (offset + done, to_offset.saturating_add(done), len - done);
            let step = self.copy_some(by, at..at.saturating_add(left), to, to_at, &mut buffer);
            match step {
                Ok(0) => break,
                Ok(copied) => done += copied,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn copy_some(
        &self,
        by: WriteBy,
        range: Range<u64>,
        to: &Inode,
        to_at: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<u64> {
        let fs = to.fs();
        let _turn =
            fs.balance_dirty(to.ino(), (range.end - range.start).min(buffer.len() as u64))?;
        if !std::ptr::eq(self.volume(), to.volume()) {
            // The two files belong to different mounts, whose locks have no common order.
            let piece = {
                let _content = self.volume().is_writable().then(|| self.node().content.read());
                self.next_piece(&range, u64::MAX, buffer)?
            };
            return fs.change(|| {
                let _content = to.node().content.write();
                to.put_piece(by, &piece, to_at, buffer)
            });
        }
        fs.change(|| {
            // Two locks of one rank are taken in order of the inode numbers.
            let (node, to_node) = (self.node(), to.node());
            let (first, last) = if node.ino() < to_node.ino() {
                (Some(node.content.read()), None)
            } else {
                (None, (node.ino() > to_node.ino()).then_some(node))
            };
            let _to = to_node.content.write();
            let _from = (first, last.map(|node| node.content.read()));
            let piece = self.next_piece(&range, to.room_for_holes(to_at), buffer)?;
            to.put_piece(by, &piece, to_at, buffer)
        })
    }

    /// Returns the number of bytes of a hole that may be made at `at` under one lock.
    fn room_for_holes(&self, at: u64) -> u64 {
        if at >= self.node().size() { u64::MAX } else { HOLE_STEP }
    }

    /// Returns the first bytes of a range that are all data or all hole; an empty piece at the end
    /// of the file. The caller holds the content lock.
    fn next_piece(&self, range: &Range<u64>, hole_max: u64, buffer: &mut Vec<u8>) -> Result<Piece> {
        let size = if self.volume().is_writable() { self.node().size() } else { self.size() };
        let end = range.end.min(size);
        let at = range.start;
        if at >= end {
            return Ok(Piece::Data(0));
        }
        let seek = |data: bool| self.seek_locked(at, data);
        let data = seek(true)?.unwrap_or(end).min(end);
        if data > at {
            return Ok(Piece::Hole((data - at).min(hole_max)));
        }
        let hole = seek(false)?.unwrap_or(end).min(end);
        let len = usize::try_from((hole - at).min(STEP)).unwrap_or(0);
        buffer.resize(len, 0);
        let read = match self.volume().is_writable() {
            true => self.read_cached(at, buffer)?,
            false => self.fs().view(self.node()).read_range(at, buffer)?,
        };
        Ok(Piece::Data(read))
    }

    fn seek_locked(&self, at: u64, data: bool) -> Result<Option<u64>> {
        if !self.volume().is_writable() {
            return if data { self.seek_data(at) } else { self.seek_hole(at) };
        }
        self.fs().with_mapper(self.node(), |mapper| match data {
            true => mapper.file.cache.seek_data(mapper, at),
            false => mapper.file.cache.seek_hole(mapper, at).map(Some),
        })
    }

    /// Stores a piece; the caller holds the content lock exclusively. Returns the number of bytes
    /// stored, which may be fewer.
    fn put_piece(&self, by: WriteBy, piece: &Piece, at: u64, buffer: &[u8]) -> Result<u64> {
        let file = self.fs().file(self.node())?;
        match piece {
            Piece::Data(0) => Ok(0),
            Piece::Data(len) => {
                let bytes = buffer.get(..*len).unwrap_or(buffer);
                let ask = WriteAsk::at(at).by(by);
                let (_, written) = self.write_locked(file, ask, std::iter::once(bytes))?;
                Ok(written as u64)
            }
            Piece::Hole(len) => self.put_hole(by, at, *len),
        }
    }

    fn put_hole(&self, by: WriteBy, at: u64, len: u64) -> Result<u64> {
        let (fs, node) = (self.fs(), self.node());
        let file = fs.file(node)?;
        let flags = node.gist().flags;
        let size = file.size();
        let is_whole = at >= size;
        let is_inline = flags.contains(InodeFlags::INLINE_DATA);
        let frozen = InodeFlags::IMMUTABLE | InodeFlags::APPEND | InodeFlags::VERITY;
        if is_inline || flags.intersects(frozen) || len == 0 {
            // The range is short, or the file does not support holes.
            let zeros = vec![0; usize::try_from(len.min(STEP)).unwrap_or(0)];
            let ask = WriteAsk::at(at).by(by);
            let (_, written) = self.write_locked(file, ask, std::iter::once(&zeros[..]))?;
            return Ok(written as u64);
        }
        let end = at.saturating_add(len);
        if end > size {
            node.with(|data| crate::volume::check_size(self.volume(), data, end))?;
        }
        self.take_privileges(by)?;
        if !is_whole {
            let mapper = FileMapper { fs, node, file };
            mapper.absorb()?;
            file.cache.zero(&mapper, at..end.min(size))?;
        }
        if end > size {
            resize(fs, node, end)?;
        }
        file.touch(self.volume().writer()?.now());
        fs.note_dirty(node, file);
        Ok(len)
    }
}
