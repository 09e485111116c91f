//! Changed blocks by number: the first of them in memory, the rest in a file without a name.
//!
//! A conversion may change as many blocks as a file system has inode tables: 256 bytes for each inode.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use memmap2::{Advice, MmapMut};

/// Bytes of blocks that are in memory, besides 32 for each run of neighbours.
const MEMORY_BYTES: u64 = 32 << 20;
/// Bytes of memory that are asked for at once: whole blocks of any size, and a large page of most processors.
const CHUNK_BYTES: u64 = 2 << 20;

/// Bytes in a row that are handed out as they are; fewer of them are put together with their neighbours.
const ALONE_BYTES: u64 = 64 << 10;

/// Neighbouring blocks in neighbouring slots.
#[derive(Clone, Copy)]
struct Run {
    len: u64,
    slot: u64,
}

/// Blocks of one size by number.
pub struct Blocks {
    block_bytes: u64,
    runs: BTreeMap<u64, Run>,
    len: u64,
    /// Slots that were given out; a block that is taken out leaves its slot behind.
    slots: u64,
    /// Slots in memory; those from there on are in the file.
    slots_in_memory: u64,
    chunks: Vec<MmapMut>,
    file: Option<File>,
    /// Where the file is made.
    dir: PathBuf,
}

/// Where large temporary files belong: `/tmp` may be in memory.
fn scratch_dir() -> PathBuf {
    match std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => dir.into(),
        None if Path::new("/var/tmp").is_dir() => "/var/tmp".into(),
        None => std::env::temp_dir(),
    }
}

/// Memory for blocks, the `number`-th. A change of many blocks meets each page for the first time: one by one,
/// the system needs as long for them as the rest of the change takes.
fn chunk(number: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(CHUNK_BYTES as usize)?;
    // Few changes need a few pages. Where there are no large ones, it is as before.
    if number > 0 {
        let _ = map.advise(Advice::HugePage);
    }
    Ok(map)
}

impl Blocks {
    /// No blocks, of `block_bytes` each: a power of two, at most 2 MiB.
    #[must_use]
    pub fn new(block_bytes: usize) -> Blocks {
        Blocks::with_memory(block_bytes, MEMORY_BYTES, scratch_dir())
    }

    fn with_memory(block_bytes: usize, memory_bytes: u64, dir: PathBuf) -> Blocks {
        let block_bytes = (block_bytes as u64).clamp(1, CHUNK_BYTES);
        Blocks {
            block_bytes,
            runs: BTreeMap::new(),
            len: 0,
            slots: 0,
            slots_in_memory: memory_bytes / block_bytes,
            chunks: Vec::new(),
            file: None,
            dir,
        }
    }

    /// Returns how many blocks there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether there is that one.
    #[must_use]
    pub fn contains(&self, block: u64) -> bool {
        self.slot_of(block).is_some()
    }

    /// All runs of neighbours in order: the first block of each, and how many they are.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.runs.iter().map(|(start, run)| (*start, run.len))
    }

    /// Returns how many of these blocks there are.
    #[must_use]
    pub fn count_in(&self, blocks: Range<u64>) -> u64 {
        self.within(blocks).map(|(_, run)| run.len).sum()
    }

    /// The parts of runs that are in a range, in order.
    fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = (u64, Run)> + '_ {
        let before = self.runs.range(..blocks.start).next_back();
        let after = self.runs.range(blocks.clone());
        before.into_iter().chain(after).filter_map(move |(start, run)| {
            let from = blocks.start.max(*start);
            let to = blocks.end.min(start + run.len);
            (from < to).then(|| (from, Run { len: to - from, slot: run.slot + (from - start) }))
        })
    }

    fn slot_of(&self, block: u64) -> Option<u64> {
        self.within(block..block.saturating_add(1)).next().map(|(_, run)| run.slot)
    }

    /// Stores a block, which may be there already.
    ///
    /// # Errors
    ///
    /// Those of the file, with its directory.
    pub fn insert(&mut self, block: u64, bytes: &[u8]) -> io::Result<()> {
        debug_assert_eq!(bytes.len() as u64, self.block_bytes);
        if let Some(slot) = self.slot_of(block) {
            return self.write_slot(slot, bytes);
        }
        let slot = self.slots;
        self.write_slot(slot, bytes)?;
        self.slots += 1;
        self.len += 1;
        if let Some((start, run)) = self.runs.range_mut(..block).next_back()
            && start + run.len == block
            && run.slot + run.len == slot
        {
            run.len += 1;
            return Ok(());
        }
        self.runs.insert(block, Run { len: 1, slot });
        Ok(())
    }

    /// Takes a block out. Returns whether it was there.
    pub fn remove(&mut self, block: u64) -> bool {
        let Some((&start, &run)) = self.runs.range(..=block).next_back() else { return false };
        if block >= start + run.len {
            return false;
        }
        self.runs.remove(&start);
        let before = block - start;
        if before > 0 {
            self.runs.insert(start, Run { len: before, slot: run.slot });
        }
        if before + 1 < run.len {
            let rest = Run { len: run.len - before - 1, slot: run.slot + before + 1 };
            self.runs.insert(block + 1, rest);
        }
        self.len -= 1;
        true
    }

    /// Takes out the blocks from `from` on.
    ///
    /// # Errors
    ///
    /// As of [`insert`](Self::insert).
    pub fn split_off(&mut self, from: u64) -> io::Result<Blocks> {
        let (size, memory) = (self.block_bytes, self.slots_in_memory * self.block_bytes);
        let mut taken = Blocks::with_memory(size as usize, memory, self.dir.clone());
        let runs: Vec<_> = self.within(from..u64::MAX).collect();
        for (start, run) in runs {
            for block in start..start + run.len {
                if let Some(bytes) = self.get(block)? {
                    taken.insert(block, &bytes)?;
                    self.remove(block);
                }
            }
        }
        Ok(taken)
    }

    /// Returns a block, if it is there.
    ///
    /// # Errors
    ///
    /// As of [`insert`](Self::insert).
    pub fn get(&self, block: u64) -> io::Result<Option<Box<[u8]>>> {
        let Some(slot) = self.slot_of(block) else { return Ok(None) };
        let mut bytes = vec![0; self.block_bytes as usize].into_boxed_slice();
        self.read_at(slot * self.block_bytes, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// Reads those of the blocks from `first` on that are there, each to its place in `out`; the rest of `out` stays.
    /// `skip` bytes of the first block are left out.
    ///
    /// # Errors
    ///
    /// As of [`insert`](Self::insert).
    pub fn read_over(&self, first: u64, skip: usize, out: &mut [u8]) -> io::Result<()> {
        let size = self.block_bytes;
        let end = first + (skip as u64 + out.len() as u64).div_ceil(size);
        for (start, run) in self.within(first..end) {
            // Bytes from the beginning of the first block on.
            let from = ((start - first) * size).max(skip as u64);
            let to = ((start - first + run.len) * size).min(skip as u64 + out.len() as u64);
            let within = from - (start - first) * size;
            let place = (from - skip as u64) as usize..(to - skip as u64) as usize;
            if let Some(out) = out.get_mut(place) {
                self.read_at(run.slot * size + within, out)?;
            }
        }
        Ok(())
    }

    /// Calls `f` for neighbours, in order: the first block, and the bytes of it and those behind it, at most `max_bytes` or
    /// one block.
    ///
    /// # Errors
    ///
    /// As of [`insert`](Self::insert), and those of `f`.
    pub fn each<E: From<io::Error>>(
        &self,
        max_bytes: usize,
        mut f: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let at_once = (max_bytes as u64 / self.block_bytes).max(1);
        let mut bytes = Vec::new();
        // Neighbours that came at different times are in several runs.
        let mut runs = self.runs.iter().peekable();
        while let Some((&start, run)) = runs.next() {
            let mut end = start + run.len;
            while let Some((_, next)) = runs.next_if(|(next, _)| **next == end) {
                end += next.len;
            }
            let mut at = start;
            while at < end {
                let take = at_once.min(end - at);
                let there = self.in_memory(at, take);
                if there.len() as u64 >= ALONE_BYTES.min(take * self.block_bytes) {
                    f(at, there)?;
                    at += there.len() as u64 / self.block_bytes;
                    continue;
                }
                bytes.resize((take * self.block_bytes) as usize, 0);
                self.read_over(at, 0, &mut bytes)?;
                f(at, &bytes)?;
                at += take;
            }
        }
        Ok(())
    }

    /// Returns those of `len` blocks from `first` on that lie in a row in memory.
    fn in_memory(&self, first: u64, len: u64) -> &[u8] {
        let Some((start, run)) = self.within(first..first + len).next() else { return &[] };
        if start != first {
            return &[];
        }
        let slots = run.slot..(run.slot + run.len).min(self.slots_in_memory.max(run.slot));
        let at = slots.start * self.block_bytes;
        let within = at % CHUNK_BYTES;
        let take = ((slots.end - slots.start) * self.block_bytes).min(CHUNK_BYTES - within);
        let chunk = self.chunks.get((at / CHUNK_BYTES) as usize);
        chunk.and_then(|chunk| chunk.get(within as usize..(within + take) as usize)).unwrap_or(&[])
    }

    /// Reads from the bytes of all slots.
    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let memory = self.slots_in_memory * self.block_bytes;
        let (mut at, mut rest) = (at, out);
        while !rest.is_empty() && at < memory {
            let within = (at % CHUNK_BYTES) as usize;
            let take =
                (CHUNK_BYTES.min(memory - at + within as u64) as usize - within).min(rest.len());
            let (piece, tail) = rest.split_at_mut(take);
            let chunk = self.chunks.get((at / CHUNK_BYTES) as usize);
            let found = chunk.and_then(|chunk| chunk.get(within..within + take));
            piece.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            (at, rest) = (at + take as u64, tail);
        }
        if rest.is_empty() {
            return Ok(());
        }
        let file = self.file.as_ref().ok_or(io::ErrorKind::UnexpectedEof)?;
        file.read_exact_at(rest, at - memory).map_err(|error| self.failed(&error))
    }

    fn write_slot(&mut self, slot: u64, bytes: &[u8]) -> io::Result<()> {
        let at = slot * self.block_bytes;
        if slot >= self.slots_in_memory {
            let memory = self.slots_in_memory * self.block_bytes;
            if self.file.is_none() {
                let made = tempfile::tempfile_in(&self.dir);
                self.file = Some(made.map_err(|error| self.failed(&error))?);
            }
            let file = self.file.as_ref().ok_or(io::ErrorKind::UnexpectedEof)?;
            return file.write_all_at(bytes, at - memory).map_err(|error| self.failed(&error));
        }
        let (number, within) = ((at / CHUNK_BYTES) as usize, (at % CHUNK_BYTES) as usize);
        while self.chunks.len() <= number {
            self.chunks.push(chunk(self.chunks.len())?);
        }
        if let Some(place) = self
            .chunks
            .get_mut(number)
            .and_then(|chunk| chunk.get_mut(within..within + bytes.len()))
        {
            place.copy_from_slice(bytes);
        }
        Ok(())
    }

    /// What a user can do something about: the image is not what is full.
    fn failed(&self, error: &io::Error) -> io::Error {
        let dir = self.dir.display();
        io::Error::other(format!(
            "planned changes cannot be kept in a file in {dir}: {error}; TMPDIR names another directory for it"
        ))
    }
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Blocks({} of {} bytes)", self.len, self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::Prng;

    #[test]
    fn blocks_are_what_was_stored_last_wherever_they_are() {
        let mut prng = Prng::new(5);
        // Two blocks in memory, or all of them.
        for memory in [2048, 1 << 20] {
            let mut blocks = Blocks::with_memory(1024, memory, std::env::temp_dir());
            let mut model: BTreeMap<u64, u8> = BTreeMap::new();
            for _ in 0..2000 {
                let (first, value) = (prng.below(40), prng.next_u64() as u8);
                match prng.below(4) {
                    0 => assert_eq!(blocks.remove(first), model.remove(&first).is_some()),
                    _ => {
                        for block in first..first + 1 + prng.below(4) {
                            blocks.insert(block, &[value; 1024]).unwrap();
                            model.insert(block, value);
                        }
                    }
                }
                assert_eq!(blocks.len(), model.len() as u64);
                let (start, len) = (prng.below(40_000), prng.below(9000) as usize);
                let mut out = vec![0; len];
                blocks.read_over(start / 1024, (start % 1024) as usize, &mut out).unwrap();
                let wanted = (start..start + len as u64)
                    .map(|at| model.get(&(at / 1024)).copied().unwrap_or(0));
                assert!(out.iter().copied().eq(wanted));
                let one = prng.below(44);
                assert_eq!(
                    blocks.get(one).unwrap().map(|bytes| bytes[7]),
                    model.get(&one).copied()
                );
                assert_eq!(blocks.contains(one), model.contains_key(&one));
                let range = one..one + 9;
                assert_eq!(blocks.count_in(range.clone()), model.range(range).count() as u64);
            }
            let mut seen = Vec::new();
            blocks
                .each(3000, |start, bytes| {
                    assert!(bytes.len() <= 3000);
                    seen.extend((start..).zip(bytes.chunks(1024).map(|bytes| bytes[1023])));
                    io::Result::Ok(())
                })
                .unwrap();
            assert!(seen.iter().copied().eq(model.clone()));
            let high = blocks.split_off(20).unwrap();
            assert_eq!(
                (blocks.count_in(0..20), blocks.len()),
                (blocks.len(), model.range(..20).count() as u64)
            );
            for (block, value) in model {
                let found = if block < 20 { &blocks } else { &high }.get(block).unwrap();
                assert_eq!(found.map(|bytes| bytes[0]), Some(value));
            }
        }
    }

    #[test]
    fn a_directory_that_takes_no_file_is_named() {
        let dir = PathBuf::from("/nowhere/at all");
        let mut blocks = Blocks::with_memory(1024, 1024, dir);
        blocks.insert(7, &[1; 1024]).unwrap();
        let error = blocks.insert(8, &[2; 1024]).unwrap_err().to_string();
        assert!(error.contains("/nowhere/at all") && error.contains("TMPDIR"), "{error}");
        assert_eq!((blocks.len(), blocks.get(8).unwrap()), (1, None));
    }
}
