//! Random histories against lists of bytes.

use std::sync::Arc;

use extant_base::Prng;

use crate::support::{Alloc, Error, Fs, GARBAGE, Options, TestFile};

/// Files do not grow over this.
const LARGEST: u64 = 700 << 10;

/// A file and what it should hold.
struct Pair {
    file: Arc<TestFile>,
    bytes: Vec<u8>,
}

impl Pair {
    fn place(&self, prng: &mut Prng) -> u64 {
        let block = self.file.data.cache().options().block_log2;
        let size = self.bytes.len() as u64;
        let at = match prng.below(6) {
            0 => size,
            1 => size + prng.below(20_000),
            2 => prng.below(LARGEST) >> block << block,
            3 => prng.below(LARGEST) >> 16 << 16,
            _ => prng.below(size + 1),
        };
        at.min(LARGEST)
    }

    fn len(prng: &mut Prng) -> u64 {
        match prng.below(8) {
            0 => 1,
            1 => prng.below(300) + 1,
            2 => 4096,
            3 => prng.below(200_000) + 1,
            _ => prng.below(20_000) + 1,
        }
    }

    fn write(&mut self, prng: &mut Prng) -> Result<(), Error> {
        let (at, len) = (self.place(prng), Self::len(prng) as usize);
        let bytes = content(prng, len);
        let done = match prng.one_in(3) {
            true => self.file.write_direct(at, &bytes)?,
            false => self.file.write(at, &bytes)?,
        };
        assert!(done > 0 && done <= len);
        let end = at as usize + done;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at as usize..end].copy_from_slice(&bytes[..done]);
        Ok(())
    }

    fn step(&mut self, prng: &mut Prng) -> Result<(), Error> {
        let (at, len) = (self.place(prng), Self::len(prng));
        let inside = at.min(self.bytes.len() as u64) as usize
            ..(at + len).min(self.bytes.len() as u64) as usize;
        match prng.below(16) {
            0..=5 => self.write(prng)?,
            6 => {
                self.file.truncate(at)?;
                self.bytes.resize(at as usize, 0);
            }
            7 => {
                self.file.punch(at..at + len)?;
                self.bytes[inside].fill(0);
            }
            8 => {
                let keep_size = prng.one_in(2);
                self.file.zero_range(at..at + len, keep_size)?;
                self.bytes[inside].fill(0);
                if !keep_size && self.bytes.len() < (at + len) as usize {
                    self.bytes.resize((at + len) as usize, 0);
                }
            }
            9 => {
                let keep_size = prng.one_in(2);
                self.file.allocate(at..at + len, keep_size)?;
                if !keep_size && self.bytes.len() < (at + len) as usize {
                    self.bytes.resize((at + len) as usize, 0);
                }
            }
            10 => {
                self.file.write_back(at..at + len)?;
            }
            11 => self.file.sync()?,
            12 => self.file.trim(),
            _ => self.look(at, len as usize)?,
        }
        Ok(())
    }

    fn look(&self, at: u64, len: usize) -> Result<(), Error> {
        let start = (at as usize).min(self.bytes.len());
        let wanted = &self.bytes[start..(start + len).min(self.bytes.len())];
        same(&self.file.read_direct(start as u64, len)?, wanted, start);
        same(&self.file.read(start as u64, len)?, wanted, start);
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        assert_eq!(self.file.size(), self.bytes.len() as u64);
        same(&self.file.read_all()?, &self.bytes, 0);
        Ok(())
    }

    fn check_crash(&self) {
        let after = self.file.after_a_crash();
        assert!(after.len() <= self.bytes.len(), "the stored size is above the one in memory");
        let stale = after.iter().position(|byte| *byte == GARBAGE);
        assert_eq!(stale, None, "a crash now shows what is not the file's");
    }
}

#[track_caller]
fn same(got: &[u8], wanted: &[u8], start: usize) {
    if let Some(at) = got.iter().zip(wanted).position(|(a, b)| a != b) {
        panic!("byte {}: {:#x}, not {:#x}", start + at, got[at], wanted[at]);
    }
    assert_eq!(got.len(), wanted.len());
}

/// Bytes that are neither garbage nor zero.
pub(crate) fn content(prng: &mut Prng, len: usize) -> Vec<u8> {
    let tag = prng.below(100) as u8 + 1;
    (0..len).map(|at| tag.wrapping_add((at % 50) as u8)).collect()
}

fn history(options: Options, seed: u64, steps: u64) {
    let fs = Fs::new(options);
    let mut prng = Prng::new(seed);
    let mut pairs: Vec<_> = (0..3).map(|_| Pair { file: fs.file(), bytes: Vec::new() }).collect();
    for step in 0..steps {
        let which = prng.below(3) as usize;
        let one = &mut pairs[which];
        let done = one.step(&mut prng).and_then(|()| {
            let at = prng.below(LARGEST);
            one.look(at, 5000)?;
            if prng.one_in(8) { one.check() } else { Ok(()) }
        });
        done.unwrap_or_else(|error| panic!("{options:?} seed {seed} step {step}: {error}"));
        one.check_crash();
        if prng.one_in(10) {
            fs.cache.drop_clean();
        }
    }
    for pair in &pairs {
        pair.check().unwrap();
        pair.file.sync().unwrap();
        assert!(!pair.file.data.is_dirty());
        same(&pair.file.after_a_crash(), &pair.bytes, 0);
    }
    assert_eq!(fs.cache.dirty_bytes(), 0);
    fs.cache.drop_clean();
    assert_eq!(fs.cache.stats().used_bytes, 0, "clean and unpinned, so it can go");
    pairs.iter().for_each(|pair| pair.check().unwrap());
    assert_eq!(fs.cache.stats().zero_flushes, 0);
    drop(pairs);
    fs.check_empty();
}

fn histories(seed: u64, steps: u64, change: impl Fn(&mut Options)) {
    for (number, block_log2) in [10, 11, 12, 16].into_iter().enumerate() {
        for (other, alloc) in [Alloc::Pinned, Alloc::Unwritten].into_iter().enumerate() {
            let mut options = Options { block_log2, alloc, ..Options::default() };
            change(&mut options);
            history(options, seed + 10 * number as u64 + other as u64, steps);
        }
    }
}

#[test]
fn any_history_equals_a_list_of_bytes() {
    histories(100, 400, |_| ());
}

#[test]
fn folios_of_one_page_change_nothing() {
    histories(200, 300, |options| options.folio_max_log2 = 12);
}

#[test]
fn folios_of_64_kib_in_the_smallest_cache_change_nothing() {
    histories(300, 300, |options| {
        options.folio_max_log2 = 16;
        options.cache_bytes = 1 << 20;
    });
}

#[test]
fn the_smallest_cache_changes_nothing() {
    histories(400, 300, |options| options.cache_bytes = 1 << 20);
}

#[test]
fn short_runs_and_no_promises_ahead_change_nothing() {
    histories(500, 300, |options| {
        options.run_max = 3;
        options.ahead = false;
    });
}

#[test]
fn a_flush_before_zeroing_changes_only_the_cost() {
    for seed in 600..604 {
        let fs = Fs::new(Options { flush_before_zero: true, ..Options::default() });
        let mut prng = Prng::new(seed);
        let mut pair = Pair { file: fs.file(), bytes: Vec::new() };
        for _ in 0..200 {
            pair.step(&mut prng).unwrap();
            pair.check().unwrap();
        }
        drop(pair);
        fs.check_empty();
    }
}
