//! The way between the cache and the device for contents of files: as they are, or encrypted.
//!
//! # Rules
//!
//! - E1. This crate reads and writes contents through [`Contents`] alone, so a file whose bytes are
//!   encrypted on the device cannot be read or written as if they were not.
//! - E2. The cache holds plaintext. Bytes are decrypted before they become uptodate, and encrypted
//!   in a buffer on their way out: cached bytes are never changed by a write to the device.
//! - E3. Where bytes are staged nobody gets their addresses on the device.
//! - E4. Bytes that are checked ([`Mapper::checked_unit`](crate::Mapper::checked_unit)) are read
//!   into the cache only, holes too, and become uptodate after the check; so nothing else is ever
//!   copied, mapped or shown. They have no addresses for others (E3).

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use extant_base::sabotage;
use extant_block::{BlockDevice, DeviceError, OperationKind, ReadRun, WriteRun};
use extant_sync::{Mutex, Rank, threads};

/// Size of the buffer for bytes on their way to the device.
const BUFFER_BYTES: u64 = 1 << 20;
/// Number of bytes that go through a stage while they are in the processor's cache: a multiple of all units.
const HOT_BYTES: usize = 128 << 10;
/// Size of the buffers where a write to the device is a copy: they stay in the processor's cache until then.
const COPIED_BYTES: usize = 256 << 10;
/// Smallest number of bytes of a batch for which another thread is started: what it takes is less than a tenth of
/// what it does.
const SHARED_BYTES: u64 = 1 << 20;
/// Number of bytes that one request zeroes on the device.
const ZERO_STEP: u64 = 64 << 20;

/// What bytes of one file go through between the device and the cache.
///
/// Offsets are those in the file; offsets and lengths are multiples of the unit.
pub trait Stage: Send + Sync {
    /// Returns the number of bytes that are encrypted as one: a power of two, at most the block
    /// size.
    fn unit_bytes(&self) -> u64;

    /// Changes bytes at `offset` into what the device has.
    fn encrypt(&self, offset: u64, bytes: &mut [u8]);

    /// Changes bytes of the device into those at `offset`.
    fn decrypt(&self, offset: u64, bytes: &mut [u8]);
}

/// Contents that are newer than those on the device, such as contents in a journal.
pub trait Newer: Send + Sync {
    /// Returns the blocks of `len` bytes of the device from `address` on of which there are newer
    /// contents, as their addresses and contents, in order.
    fn newer(&self, address: u64, len: u64) -> Vec<(u64, Arc<Vec<u8>>)>;
}

/// A part of a run that is encrypted and written as one.
struct Piece<'r> {
    /// Index of the run.
    run: usize,
    /// Offset in the file.
    offset: u64,
    address: u64,
    len: usize,
    /// The slices from the one in which it begins on, and where in that.
    parts: &'r [IoSlice<'r>],
    skip: usize,
}

/// Cuts runs of whole blocks into pieces of `most` bytes, in order.
fn pieces<'r>(runs: &[(u64, WriteRun<'r>)], most: usize) -> Vec<Piece<'r>> {
    let mut pieces = Vec::new();
    for (number, (offset, run)) in runs.iter().enumerate() {
        let total: usize = run.parts.iter().map(|part| part.len()).sum();
        let (mut done, mut parts, mut skip) = (0, run.parts, 0);
        while done < total {
            let len = most.min(total - done);
            let (at, address) = (offset + done as u64, run.offset + done as u64);
            let offset =
                if sabotage("iomap.contents.piece-at-start-of-run") { *offset } else { at };
            pieces.push(Piece { run: number, offset, address, len, parts, skip });
            done += len;
            skip += len;
            while let Some((first, rest)) = parts.split_first()
                && skip >= first.len()
            {
                skip -= first.len();
                parts = rest;
            }
        }
    }
    pieces
}

/// Copies a piece into `buffer`, encrypted.
fn encrypt_piece(stage: &dyn Stage, piece: &Piece<'_>, buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.reserve_exact(piece.len);
    let (mut skip, mut sealed) = (piece.skip, 0);
    for part in piece.parts {
        let mut rest = part.get(skip..).unwrap_or(&[]);
        skip = 0;
        while !rest.is_empty() && buffer.len() < piece.len {
            let end = piece.len.min(sealed + HOT_BYTES);
            let (now, later) = rest.split_at(rest.len().min(end - buffer.len()));
            buffer.extend_from_slice(now);
            rest = later;
            if buffer.len() == end {
                stage.encrypt(piece.offset + sealed as u64, &mut buffer[sealed..]);
                sealed = end;
            }
        }
        if buffer.len() == piece.len {
            break;
        }
    }
}

/// How contents of one file are read and written: the device, and the stage in front of it.
pub struct Contents<'a> {
    device: &'a dyn BlockDevice,
    stage: Option<Arc<dyn Stage>>,
    newer: Option<&'a dyn Newer>,
}

impl<'a> Contents<'a> {
    /// Returns the way to bytes that are stored as they are.
    pub fn plain(device: &'a dyn BlockDevice) -> Contents<'a> {
        Contents { device, stage: None, newer: None }
    }

    /// Returns the way to bytes that go through `stage`.
    pub fn staged(device: &'a dyn BlockDevice, stage: Arc<dyn Stage>) -> Contents<'a> {
        Contents { device, stage: Some(stage), newer: None }
    }

    /// Returns the way to bytes that are stored as they are, but for those that are in `newer`.
    pub fn logged(device: &'a dyn BlockDevice, newer: &'a dyn Newer) -> Contents<'a> {
        Contents { device, stage: None, newer: Some(newer) }
    }

    /// Returns the number of bytes to read where `len` bytes from the start of a block are wanted:
    /// more if that saves a second read.
    pub(crate) fn to_read(&self, len: u64) -> u64 {
        self.stage.as_ref().map_or(len, |stage| len.next_multiple_of(stage.unit_bytes()))
    }

    /// Reads bytes at `offset` of the file, which lie at `address` of the device in one run with the
    /// rest of their blocks.
    pub fn read_at(&self, offset: u64, address: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let Some(stage) = &self.stage else { return self.read_newest(address, out) };
        let unit = stage.unit_bytes();
        let mut done = 0;
        let mut buffer = Vec::new();
        while done < out.len() {
            let at = offset + done as u64;
            let (into, left) = (at % unit, (out.len() - done) as u64);
            if into == 0 && left >= unit {
                let whole = &mut out[done..][..(left - left % unit) as usize];
                // A copy is cheap in pieces, and a request is not.
                let step = if self.is_copied() { HOT_BYTES } else { whole.len() };
                for whole in whole.chunks_mut(step) {
                    self.device.read_at(address + done as u64, whole)?;
                    for hot in whole.chunks_mut(HOT_BYTES) {
                        stage.decrypt(offset + done as u64, hot);
                        done += hot.len();
                    }
                }
                continue;
            }
            buffer.resize(unit as usize, 0);
            self.device.read_at((address + done as u64).saturating_sub(into), &mut buffer)?;
            stage.decrypt(at - into, &mut buffer);
            let take = (unit - into).min(left) as usize;
            out[done..done + take].copy_from_slice(&buffer[into as usize..][..take]);
            done += take;
        }
        Ok(())
    }

    /// Returns whether the device is a file that the system has in memory, so that a request is a copy.
    fn is_copied(&self) -> bool {
        self.device.as_file().is_some() && self.device.runs_at_once(OperationKind::Read) == 1
    }

    /// Returns the size of the pieces in which bytes are written through a stage.
    fn piece_bytes(&self) -> usize {
        if self.is_copied() { COPIED_BYTES } else { BUFFER_BYTES as usize }
    }

    /// Reads bytes that are stored as they are.
    fn read_newest(&self, address: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let len = out.len() as u64;
        // First this question, then the device: what goes there in between is newer on neither way.
        let newer = self.newer.map_or(Vec::new(), |newer| newer.newer(address, len));
        self.device.read_at(address, out)?;
        if sabotage("iomap.contents.older-shown") {
            return Ok(());
        }
        for (at, bytes) in newer {
            let skip = address.saturating_sub(at) as usize;
            let into = at.saturating_sub(address) as usize;
            let (to, from) = (out.get_mut(into..), bytes.get(skip..));
            if let (Some(to), Some(from)) = (to, from) {
                let count = to.len().min(from.len());
                to[..count].copy_from_slice(&from[..count]);
            }
        }
        Ok(())
    }

    /// Writes whole blocks at `offset` of the file to `address` of the device, past the cache.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn write_at(&self, offset: u64, address: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        match &self.stage {
            None => self.device.write_at(address, bytes),
            Some(_) => self.write_vectored_at(offset, address, &[IoSlice::new(bytes)]),
        }
    }

    /// Writes whole blocks like [`write_at`](Self::write_at), durable when it returns.
    pub(crate) fn write_fua_at(
        &self,
        offset: u64,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        match &self.stage {
            None => self.device.write_fua_at(address, bytes),
            Some(_) => {
                self.write_at(offset, address, bytes)?;
                self.device.flush()
            }
        }
    }

    /// Writes whole blocks, which lie in several slices.
    pub(crate) fn write_vectored_at(
        &self,
        offset: u64,
        address: u64,
        slices: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        let Some(stage) = &self.stage else {
            return self.device.write_vectored_at(address, slices);
        };
        let run = (offset, WriteRun { offset: address, parts: slices });
        let mut buffer = Vec::new();
        for piece in pieces(&[run], self.piece_bytes()) {
            encrypt_piece(&**stage, &piece, &mut buffer);
            self.device.write_at(piece.address, &buffer)?;
        }
        Ok(())
    }

    /// Writes several runs of whole blocks, each with its offset in the file, and returns the result of
    /// each. Those that go through a stage are cut into pieces, which up to `threads` threads take in order, the caller
    /// among them; with one, they are written one after the other.
    pub(crate) fn write_runs(
        &self,
        runs: &[(u64, WriteRun<'_>)],
        threads: usize,
    ) -> Vec<Result<(), DeviceError>> {
        let Some(stage) = &self.stage else {
            let runs: Vec<_> = runs.iter().map(|(_, run)| *run).collect();
            return self.device.write_runs(&runs);
        };
        let pieces = pieces(runs, self.piece_bytes());
        let bytes: u64 = pieces.iter().map(|piece| piece.len as u64).sum();
        let helpers = threads.min(pieces.len()).saturating_sub(1);
        let helpers = if bytes < SHARED_BYTES { 0 } else { helpers };
        let results = Mutex::new(Rank::Leaf, runs.iter().map(|_| Ok(())).collect::<Vec<_>>());
        let next = AtomicUsize::new(0);
        let work = || {
            let mut buffer = Vec::new();
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                encrypt_piece(&**stage, piece, &mut buffer);
                let written = self.device.write_at(piece.address, &buffer);
                if let Err(error) = written
                    && let Some(result @ Ok(())) = results.lock().get_mut(piece.run)
                {
                    *result = Err(error);
                }
            }
        };
        let shared = threads::scope(|scope| {
            for number in 0..helpers {
                // Without another thread this one does it all.
                let _ =
                    scope.spawn_apart(&format!("stage-{number}"), number.saturating_add(1), work);
            }
            work();
        });
        // What the thread that panicked had taken is not written: there is no result to be told.
        shared.expect("a thread that encrypts panicked");
        results.into_inner()
    }

    /// Returns whether several reads are better under way at once than one after the other.
    pub(crate) fn reads_at_once(&self) -> bool {
        self.stage.is_none()
            && self.newer.is_none()
            && self.device.runs_at_once(OperationKind::Read) > 1
    }

    /// Reads several runs, for contents without a stage ([`reads_at_once`](Self::reads_at_once)).
    /// Returns the result of each.
    pub(crate) fn read_runs(&self, runs: &mut [ReadRun<'_>]) -> Vec<Result<(), DeviceError>> {
        self.device.read_runs(runs)
    }

    /// Makes whole blocks at `offset` of the file, at `address` of the device, contain zeros.
    pub(crate) fn write_zeroes(
        &self,
        offset: u64,
        address: u64,
        len: u64,
    ) -> Result<(), DeviceError> {
        let mut done = 0;
        let mut writes = self.stage.is_some();
        while done < len {
            if !writes {
                let step = (len - done).min(ZERO_STEP);
                match self.device.write_zeroes(address + done, step) {
                    Err(error) if error.is_unsupported() => writes = true,
                    other => {
                        other?;
                        done += step;
                    }
                }
                continue;
            }
            let zeros = vec![0; (len - done).min(BUFFER_BYTES) as usize];
            self.write_at(offset + done, address + done, &zeros)?;
            done += zeros.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use extant_base::Prng;
    use extant_block::{FileDevice, MemoryDevice, WindowDevice};

    use super::*;

    /// Each byte by its place in the file, so that a unit at another place is another one.
    struct ByPlace;

    const UNIT: u64 = 4096;

    fn mask(at: u64) -> u8 {
        (at.wrapping_mul(0x9e37_79b9) >> 11) as u8
    }

    impl Stage for ByPlace {
        fn unit_bytes(&self) -> u64 {
            UNIT
        }

        fn encrypt(&self, offset: u64, bytes: &mut [u8]) {
            assert!(offset.is_multiple_of(UNIT) && bytes.len().is_multiple_of(UNIT as usize));
            (offset..).zip(bytes).for_each(|(at, byte)| *byte ^= mask(at));
        }

        fn decrypt(&self, offset: u64, bytes: &mut [u8]) {
            self.encrypt(offset, bytes);
        }
    }

    const DEVICE: u64 = 16 << 20;

    /// Runs one after the other on the device, each at another offset in the file, in parts of any length.
    fn runs(random: &mut Prng) -> Vec<(u64, u64, Vec<Vec<u8>>)> {
        let mut address = 0;
        let mut runs = Vec::new();
        while address < DEVICE {
            let len = (UNIT * (1 + random.below(900))).min(DEVICE - address);
            let (mut left, mut parts) = (len as usize, Vec::new());
            while left > 0 {
                let part = left.min(1 + random.below(700_000) as usize);
                let mut bytes = vec![0; part];
                random.fill(&mut bytes);
                parts.push(bytes);
                left -= part;
            }
            runs.push((random.below(1 << 20) * UNIT, address, parts));
            address += len;
        }
        runs
    }

    fn write(
        contents: &Contents<'_>,
        runs: &[(u64, u64, Vec<Vec<u8>>)],
        threads: usize,
    ) -> Vec<bool> {
        let parts: Vec<Vec<IoSlice<'_>>> =
            runs.iter().map(|run| run.2.iter().map(|part| IoSlice::new(part)).collect()).collect();
        let runs: Vec<(u64, WriteRun<'_>)> = runs
            .iter()
            .zip(&parts)
            .map(|((at, offset, _), parts)| (*at, WriteRun { offset: *offset, parts }))
            .collect();
        contents.write_runs(&runs, threads).iter().map(Result::is_ok).collect()
    }

    #[test]
    fn pieces_on_any_number_of_threads_are_the_runs() {
        for seed in 0..6 {
            let runs = runs(&mut Prng::new(seed));
            for threads in [1, 2, 4] {
                let device = MemoryDevice::new(DEVICE);
                let contents = Contents::staged(&device, Arc::new(ByPlace));
                assert!(write(&contents, &runs, threads).into_iter().all(|is_good| is_good));
                for (at, address, parts) in &runs {
                    let plain = parts.concat();
                    let mut bytes = vec![0; plain.len()];
                    device.read_at(*address, &mut bytes).unwrap();
                    assert!(bytes != plain, "it is not encrypted");
                    contents.read_at(*at, *address, &mut bytes).unwrap();
                    assert!(bytes == plain, "seed {seed}, {threads} threads, {at} at {address}");
                }
            }
        }
    }

    #[test]
    fn a_file_gets_the_bytes_that_memory_gets() {
        let dir = std::env::temp_dir().join(format!("extant-contents-{}", std::process::id()));
        let _left = std::fs::remove_file(&dir);
        let file = FileDevice::create_new(&dir, DEVICE).unwrap();
        std::fs::remove_file(&dir).unwrap();
        let memory = MemoryDevice::new(DEVICE);
        let runs = runs(&mut Prng::new(3));
        for device in [&file as &dyn BlockDevice, &memory] {
            let contents = Contents::staged(device, Arc::new(ByPlace));
            assert!(write(&contents, &runs, 3).into_iter().all(|is_good| is_good));
        }
        let (mut one, mut other) = (vec![0; DEVICE as usize], vec![0; DEVICE as usize]);
        file.read_at(0, &mut one).unwrap();
        memory.read_at(0, &mut other).unwrap();
        assert!(one == other);
        let (at, address, parts) = &runs[1];
        let plain = parts.concat();
        let mut bytes = vec![0; plain.len()];
        Contents::staged(&file, Arc::new(ByPlace)).read_at(*at, *address, &mut bytes).unwrap();
        assert!(bytes == plain);
    }

    #[test]
    fn each_run_has_its_own_result_on_any_number_of_threads() {
        let runs = runs(&mut Prng::new(77));
        for threads in [1, 4] {
            let device = WindowDevice::new(MemoryDevice::new(DEVICE), 0, DEVICE / 2).unwrap();
            let contents = Contents::staged(&device, Arc::new(ByPlace));
            let is_inside = |(_, address, parts): &(u64, u64, Vec<Vec<u8>>)| {
                address + parts.iter().map(Vec::len).sum::<usize>() as u64 <= DEVICE / 2
            };
            let wanted: Vec<bool> = runs.iter().map(is_inside).collect();
            assert!(wanted.contains(&true) && wanted.contains(&false));
            assert_eq!(write(&contents, &runs, threads), wanted, "{threads} threads");
        }
    }

    /// Panics in the first thread that helps; the one that asked goes on when that has begun.
    struct Panics(AtomicBool);

    impl Stage for Panics {
        fn unit_bytes(&self) -> u64 {
            UNIT
        }

        fn encrypt(&self, _: u64, _: &mut [u8]) {
            if std::thread::current().name().is_some_and(|name| name.starts_with("stage-")) {
                self.0.store(true, Ordering::Relaxed);
                panic!("no cipher");
            }
            while !self.0.load(Ordering::Relaxed) {
                threads::give_way();
            }
        }

        fn decrypt(&self, _: u64, _: &mut [u8]) {}
    }

    /// A piece of such a thread is not on the device, and no result says so.
    #[test]
    #[should_panic(expected = "a thread that encrypts panicked")]
    fn what_a_thread_that_panicked_had_taken_is_not_called_written() {
        let device = MemoryDevice::new(DEVICE);
        let contents = Contents::staged(&device, Arc::new(Panics(AtomicBool::new(false))));
        write(&contents, &runs(&mut Prng::new(1)), 2);
    }
}
