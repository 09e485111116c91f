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

use extant_base::sabotage;
use extant_block::{BlockDevice, DeviceError, OperationKind, ReadRun, WriteRun};

/// Size of the buffer for bytes on their way to the device.
const BUFFER_BYTES: u64 = 1 << 20;
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
                self.device.read_at(address + done as u64, whole)?;
                stage.decrypt(at, whole);
                done += whole.len();
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
        let len: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        let mut buffer = Vec::with_capacity(len.min(BUFFER_BYTES) as usize);
        let mut done = 0;
        let mut rest = slices.iter().map(|slice| &**slice);
        let mut slice: &[u8] = &[];
        while done < len {
            buffer.clear();
            let wanted = (len - done).min(BUFFER_BYTES) as usize;
            while buffer.len() < wanted {
                if slice.is_empty() {
                    slice = rest.next().unwrap_or(&[]);
                    continue;
                }
                let (now, later) = slice.split_at(slice.len().min(wanted - buffer.len()));
                buffer.extend_from_slice(now);
                slice = later;
            }
            stage.encrypt(offset + done, &mut buffer);
            self.device.write_at(address + done, &buffer)?;
            done += buffer.len() as u64;
        }
        Ok(())
    }

    /// Writes several runs of whole blocks, each with its offset in the file, and returns the result of
    /// each. Those that go through a stage are written one after the other.
    pub(crate) fn write_runs(&self, runs: &[(u64, WriteRun<'_>)]) -> Vec<Result<(), DeviceError>> {
        match &self.stage {
            None => {
                let runs: Vec<_> = runs.iter().map(|(_, run)| *run).collect();
                self.device.write_runs(&runs)
            }
            Some(_) => {
                let write = |(offset, run): &(u64, WriteRun<'_>)| {
                    self.write_vectored_at(*offset, run.offset, run.parts)
                };
                runs.iter().map(write).collect()
            }
        }
    }

    /// Returns whether several reads are better under way at once than one after the other.
    pub(crate) fn reads_at_once(&self) -> bool {
        self.stage.is_none()
            && self.newer.is_none()
            && self.device.runs_at_once(OperationKind::Read) > 1
    }

    /// Reads several runs, for contents without a stage ([`reads_at_once`](Self::reads_at_once)).
    pub(crate) fn read_runs(&self, runs: &mut [ReadRun<'_>]) -> Result<(), DeviceError> {
        self.device.read_runs(runs).into_iter().collect()
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
