//! Many small files written with gaps, made durable, read back and removed: what stress-ng's
//! `metamix` does, once for every contender.
//!
//! An instance is a directory with 16 writers; each makes one file after the other, and a file is
//! one operation. A file gets 256 records of 4 to 260 bytes at offsets that begin below 256 KiB and
//! reach about 1 MiB, with random gaps between them; behind every 64th record the next begins at a
//! page boundary. One file in 17 is synced by `fdatasync` before it is
//! closed. Then: stat and compare the size; open for reading and `fdatasync`; `fsync` of the
//! directory; open again, read all records in random order and compare; stat; unlink.
//!
//! It differs from stress-ng in this: writers are threads and not processes, records are compared
//! and not their checksums, records at page boundaries are not looked at through a mapping again,
//! and everything random comes from a seed.

use std::ops::Range;

use anyhow::{Result, ensure};
use extant_base::Prng;
use extant_sync::{Clock, SystemClock, threads};

use super::side::{Dir, Handle, Volume};
use crate::stop;

/// Writers of one instance.
const WRITERS: usize = 16;
/// Records of one file.
const RECORDS: usize = 256;
/// About the size of a file.
const FILE_BYTES: u64 = 1 << 20;
/// The first record begins below this.
const FIRST_BELOW: u64 = FILE_BYTES / 4;
/// A record has at least this, and less than 257 bytes more.
const RECORD_LEAST: u64 = 4;
const PAGE: u64 = 4096;
/// Behind so many records, the next begins at a page boundary.
const ALIGN_EACH: usize = 64;

/// The records of one file.
struct Records {
    /// Where each goes in the file, and which of `bytes` it is.
    at: Vec<(u64, Range<usize>)>,
    bytes: Vec<u8>,
}

impl Records {
    fn new() -> Records {
        Records { at: Vec::with_capacity(RECORDS), bytes: Vec::new() }
    }

    /// Places of the next file, and its bytes.
    fn refill(&mut self, random: &mut Prng) {
        self.at.clear();
        let mut offset = random.below(FIRST_BELOW);
        let mut filled = 0;
        for index in 0..RECORDS {
            let len = RECORD_LEAST + random.below(257);
            let end = filled + len as usize;
            self.at.push((offset, filled..end));
            filled = end;
            // Gaps so that the last record comes near the end, whatever the random numbers.
            let gap = FILE_BYTES.saturating_sub(offset + len) / (RECORDS - index) as u64;
            offset += len + gap / 2 + random.below(gap + 1);
            if index % ALIGN_EACH == 0 {
                offset = offset.next_multiple_of(PAGE);
            }
        }
        self.bytes.resize(filled, 0);
        random.fill(&mut self.bytes);
    }

    fn end(&self) -> u64 {
        self.at.last().map_or(0, |(offset, range)| offset + range.len() as u64)
    }

    /// Puts the records into a random order.
    fn shuffle(&mut self, random: &mut Prng) {
        for index in (1..self.at.len()).rev() {
            self.at.swap(index, random.below(index as u64 + 1) as usize);
        }
    }
}

/// One file from its creation to its end.
fn one_file<D: Dir>(dir: &D, name: &str, records: &mut Records, random: &mut Prng) -> Result<()> {
    records.refill(random);
    let mut file = dir.create(name)?;
    for (offset, range) in &records.at {
        let bytes = &records.bytes[range.clone()];
        let put = file.write(*offset, bytes)?;
        ensure!(put == bytes.len(), "{put} of {} bytes written at {offset}", bytes.len());
    }
    if random.one_in(17) {
        file.sync_data()?;
    }
    drop(file);
    let end = Some(records.end());
    let size = dir.size(name)?;
    ensure!(size == end, "{name} has size {size:?} and not {end:?}");
    let mut file = dir.open_to_read(name)?;
    file.sync_data()?;
    drop(file);
    dir.sync()?;
    records.shuffle(random);
    let mut file = dir.open_to_read(name)?;
    let mut buffer = [0; (RECORD_LEAST + 256) as usize];
    for (offset, range) in &records.at {
        let wanted = &records.bytes[range.clone()];
        let got = &mut buffer[..wanted.len()];
        let count = file.read(*offset, got)?;
        ensure!(count == wanted.len(), "{count} of {} bytes read at {offset}", wanted.len());
        ensure!(got == wanted, "{name} has other bytes at {offset} than were written");
    }
    let size = dir.size(name)?;
    ensure!(size == end, "{name} has size {size:?} and not {end:?}");
    drop(file);
    dir.unlink(name)
}

/// Runs `instances` for `seconds`, to the end of the files that are begun by then. The result is
/// files per second, all together.
///
/// # Errors
///
/// Errors of the contender; contents that are not what was written.
pub fn run<V: Volume>(volume: &V, instances: usize, seconds: f64, seed: u64) -> Result<f64> {
    let dirs: Vec<V::Dir> =
        (0..instances).map(|index| volume.dir(&format!("m{index}"))).collect::<Result<_>>()?;
    let clock = SystemClock;
    let start = clock.monotonic();
    let elapsed = || clock.monotonic().saturating_sub(start).as_secs_f64();
    let writer = |number: usize| -> Result<u64> {
        let dir = &dirs[number / WRITERS];
        let mut random = Prng::new(seed.wrapping_mul(1 << 20) + number as u64);
        let mut records = Records::new();
        let mut done = 0;
        while elapsed() < seconds {
            stop::check()?;
            let name = format!("w{}-{done}", number % WRITERS);
            one_file(dir, &name, &mut records, &mut random)?;
            done += 1;
        }
        Ok(done)
    };
    let counts = threads::workers("metamix", instances * WRITERS, writer)?;
    let elapsed = elapsed();
    let mut files = 0;
    for count in counts {
        files += count?;
    }
    Ok(files as f64 / elapsed)
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Plain;
    use super::*;

    /// A directory whose files forget one write.
    struct Forgetful<D>(D);

    struct ForgetfulFile<F>(F, u32);

    impl<D: Dir> Dir for Forgetful<D> {
        type File = ForgetfulFile<D::File>;
        fn create(&self, name: &str) -> Result<Self::File> {
            Ok(ForgetfulFile(self.0.create(name)?, 0))
        }
        fn open(&self, name: &str) -> Result<Self::File> {
            Ok(ForgetfulFile(self.0.open(name)?, 0))
        }
        fn open_direct(&self, name: &str) -> Result<Self::File> {
            Ok(ForgetfulFile(self.0.open_direct(name)?, 0))
        }
        fn open_to_read(&self, name: &str) -> Result<Self::File> {
            Ok(ForgetfulFile(self.0.open_to_read(name)?, 0))
        }
        fn size(&self, name: &str) -> Result<Option<u64>> {
            self.0.size(name)
        }
        fn unlink(&self, name: &str) -> Result<()> {
            self.0.unlink(name)
        }
        fn sync(&self) -> Result<()> {
            self.0.sync()
        }
    }

    impl<F: Handle> Handle for ForgetfulFile<F> {
        fn read(&mut self, at: u64, out: &mut [u8]) -> Result<usize> {
            self.0.read(at, out)
        }
        fn write(&mut self, at: u64, bytes: &[u8]) -> Result<usize> {
            self.1 += 1;
            if self.1 == 100 { Ok(bytes.len()) } else { self.0.write(at, bytes) }
        }
        fn write_direct(&mut self, at: u64, bytes: &[u8]) -> Result<usize> {
            self.0.write_direct(at, bytes)
        }
        fn set_len(&mut self, len: u64) -> Result<()> {
            self.0.set_len(len)
        }
        fn allocate(&mut self, at: u64, len: u64) -> Result<()> {
            self.0.allocate(at, len)
        }
        fn forget(&mut self) -> Result<()> {
            self.0.forget()
        }
        fn sync(&mut self) -> Result<()> {
            self.0.sync()
        }
        fn sync_data(&mut self) -> Result<()> {
            self.0.sync_data()
        }
    }

    #[test]
    fn a_record_that_was_lost_is_found() {
        let volume = Plain(tempfile::tempdir().unwrap());
        let dir = volume.dir("d").unwrap();
        let (mut records, mut random) = (Records::new(), Prng::new(1));
        one_file(&dir, "kept", &mut records, &mut random).unwrap();
        let error = one_file(&Forgetful(dir), "lost", &mut records, &mut random).unwrap_err();
        assert!(error.to_string().contains("other bytes"), "{error}");
    }

    #[test]
    fn instances_leave_nothing() {
        let volume = Plain(tempfile::tempdir().unwrap());
        assert!(run(&volume, 2, 0.05, 1).unwrap() > 0.0);
        for name in ["m0", "m1"] {
            assert_eq!(std::fs::read_dir(volume.0.path().join(name)).unwrap().count(), 0);
        }
    }

    #[test]
    fn records_grow_and_do_not_overlap() {
        let (mut records, mut random) = (Records::new(), Prng::new(1));
        for _ in 0..100 {
            records.refill(&mut random);
            assert_eq!(records.at.len(), RECORDS);
            let mut end = 0;
            for (offset, range) in &records.at {
                assert!(*offset >= end && (4..=260).contains(&range.len()));
                end = offset + range.len() as u64;
            }
            assert!(records.at[0].0 < FIRST_BELOW && records.end() == end);
            assert!((FILE_BYTES * 3 / 4..FILE_BYTES + 2 * PAGE).contains(&end));
            let aligned = records.at.iter().filter(|(offset, _)| offset % PAGE == 0);
            assert!(aligned.count() >= 4);
            let mut seen: Vec<_> = records.at.iter().map(|(offset, _)| *offset).collect();
            records.shuffle(&mut random);
            let mut shuffled: Vec<_> = records.at.iter().map(|(offset, _)| *offset).collect();
            assert_ne!(seen, shuffled);
            seen.sort_unstable();
            shuffled.sort_unstable();
            assert_eq!(seen, shuffled);
        }
    }
}
