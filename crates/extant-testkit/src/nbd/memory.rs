//! What a server has not flushed.

use std::collections::BTreeMap;
use std::ops::Range;

use extant_base::Prng;
use extant_block::{BlockDevice as _, DeviceError, SharedDevice};

/// Bytes that are there or not, as a whole.
pub(super) const SECTOR_BYTES: u64 = 512;

type Sector = [u8; SECTOR_BYTES as usize];

/// A device below, and sectors that are newer and not there yet.
pub(super) struct Memory {
    below: SharedDevice,
    newer: BTreeMap<u64, Sector>,
}

impl Memory {
    pub(super) fn new(below: SharedDevice) -> Memory {
        Memory { below, newer: BTreeMap::new() }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.below.read_at(offset, out)?;
        let end = offset + out.len() as u64;
        for (sector, bytes) in self.newer.range(offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES)) {
            let start = sector * SECTOR_BYTES;
            let (from, to) = (start.max(offset), (start + SECTOR_BYTES).min(end));
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    /// A write of any bytes: sectors of which only a part is written are read first.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let end = offset + bytes.len() as u64;
        for sector in offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            let start = sector * SECTOR_BYTES;
            let mut whole: Sector = [0; SECTOR_BYTES as usize];
            let (from, to) = (start.max(offset), (start + SECTOR_BYTES).min(end));
            if to - from < SECTOR_BYTES {
                let there = SECTOR_BYTES.min(self.below.size_bytes() - start) as usize;
                self.read(start, &mut whole[..there])?;
            }
            whole[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&bytes[(from - offset) as usize..(to - offset) as usize]);
            self.newer.insert(sector, whole);
        }
        Ok(())
    }

    /// A write that is durable when it returns; what else is in memory stays there.
    pub(super) fn write_through(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.write(offset, bytes)?;
        let end = offset + bytes.len() as u64;
        // Whole sectors: what was there of the first and the last one has just been read.
        let start = offset / SECTOR_BYTES * SECTOR_BYTES;
        let mut run = Vec::new();
        for sector in offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            run.extend(self.newer.remove(&sector).unwrap_or([0; SECTOR_BYTES as usize]));
        }
        let there = (run.len() as u64).min(self.below.size_bytes() - start) as usize;
        self.below.write_fua_at(start, &run[..there])
    }

    pub(super) fn flush(&mut self) -> Result<(), DeviceError> {
        let newer = std::mem::take(&mut self.newer);
        self.store(newer.into_iter())?;
        self.below.flush()
    }

    /// Each sector by itself is stored or lost; those of the bytes `whole` together.
    pub(super) fn forget(&mut self, random: &mut Prng, whole: &Range<u64>) {
        let mut newer = std::mem::take(&mut self.newer);
        let together = random.one_in(2);
        newer.retain(|sector, _| match whole.contains(&(sector * SECTOR_BYTES)) {
            true => together,
            false => random.one_in(2),
        });
        self.store(newer.into_iter()).expect("a device that works");
    }

    /// Writes sectors, in runs.
    fn store(&self, sectors: impl Iterator<Item = (u64, Sector)>) -> Result<(), DeviceError> {
        let mut run: Vec<u8> = Vec::new();
        let mut start = 0;
        let put = |start: u64, run: &[u8]| {
            let there = (run.len() as u64).min(self.below.size_bytes() - start) as usize;
            self.below.write_at(start, &run[..there])
        };
        for (sector, bytes) in sectors {
            let at = sector * SECTOR_BYTES;
            if !run.is_empty() && start + run.len() as u64 != at {
                put(start, &run)?;
                run.clear();
            }
            if run.is_empty() {
                start = at;
            }
            run.extend_from_slice(&bytes);
        }
        if run.is_empty() { Ok(()) } else { put(start, &run) }
    }
}
