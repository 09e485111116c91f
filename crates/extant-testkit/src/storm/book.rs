//! Who wrote what where.
//!
//! Every unit of [`UNIT`] bytes that is written says which file it is for, where, and by which write;
//! the rest of it follows from that. Everything that changes contents is in whole units.
//!
//! # Rules
//!
//! - K1. A unit is zero, or whole and of this file; of another only if that was copied here.
//! - K2. A write that had ended before another one of the same unit began is not what is left there.
//!   Both moments are of one clock; writes are entered when they end, so what is entered for a unit
//!   always has the one that was last.
//! - K3. Where parts of a file were moved, or copied from another, only K1 holds.
//! - K4. Stores through memory and writes past the cache are not whole to others: a unit that another
//!   write goes to at the same time may be left with bytes of both, each one by K2.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_base::Prng;
use extant_sync::{Mutex, Rank};

use super::FILE_BYTES;

pub(crate) const ENOENT: i32 = 2;
pub(crate) const EISDIR: i32 = 21;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ELOOP: i32 = 40;

/// Bytes that one write leaves whole.
pub const UNIT: u64 = 512;
const UNIT_LEN: usize = UNIT as usize;
const MAGIC: u64 = 0x6d72_6f74_7374_7845;
/// Stands for the place of what was appended: not known before.
pub const ANYWHERE: u64 = u64::MAX;
/// Units of a file that are kept book of.
const UNITS: usize = (FILE_BYTES / UNIT) as usize;

/// One write, as its units say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The file's identity.
    pub file: u64,
    /// Byte of the file, or [`ANYWHERE`].
    pub at: u64,
    /// Number of the write, never 0.
    pub write: u64,
    /// Seed of the round.
    pub round: u64,
}

/// What may be in a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    Zero,
    Write(u64),
    /// Copied from a file.
    Copy,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    left: Left,
    ended: u64,
}

/// How closely contents are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Care {
    /// While others write, and may be seen at it: whose the bytes are.
    Owner,
    /// While others write whole units: K1.
    Whole,
    /// Nobody writes any more: K1 and K2.
    Last,
}

/// One file's writes.
struct FileBook {
    /// Files that were copied here, and those that were copied there.
    sources: Mutex<Vec<u64>>,
    /// K3.
    has_moved: AtomicBool,
    /// Writes show in parts to those who read meanwhile.
    tears: AtomicBool,
    /// By unit; short where nothing was written.
    units: Mutex<Vec<Vec<Entry>>>,
}

/// All files of a round.
pub struct Book {
    round: u64,
    clock: AtomicU64,
    files: Mutex<HashMap<u64, Arc<FileBook>>>,
}

impl Stamp {
    fn fill(&self, at: u64, unit: &mut [u8]) {
        let mut random = Prng::new(self.file ^ (self.write << 20) ^ at ^ (self.round << 40));
        random.fill(unit);
        let words = [MAGIC, self.file, at, self.write, self.round];
        for (to, word) in unit.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn read(unit: &[u8]) -> Option<Stamp> {
        let mut words = unit.chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        });
        let mut next = || words.next().unwrap_or(0);
        (next() == MAGIC).then(|| Stamp { file: next(), at: next(), write: next(), round: next() })
    }

    fn is_whole(&self, unit: &[u8]) -> bool {
        let mut expected = [0; UNIT_LEN];
        self.fill(self.at, &mut expected);
        unit == expected
    }
}

impl Book {
    /// Nothing was written.
    pub fn new(round: u64) -> Book {
        let files = Mutex::new(Rank::Leaf, HashMap::new());
        Book { round, clock: AtomicU64::new(1), files }
    }

    /// A moment, later than all before; also the number of a write.
    pub fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel)
    }

    fn file(&self, id: u64) -> Arc<FileBook> {
        let mut files = self.files.lock();
        let new = || {
            Arc::new(FileBook {
                sources: Mutex::new(Rank::Leaf, Vec::new()),
                has_moved: AtomicBool::new(false),
                tears: AtomicBool::new(false),
                units: Mutex::new(Rank::Leaf, Vec::new()),
            })
        };
        Arc::clone(files.entry(id).or_insert_with(new))
    }

    /// Bytes of a write to file `id` at `at`, or [`ANYWHERE`].
    pub fn bytes(&self, id: u64, at: u64, write: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; (len - len % UNIT) as usize];
        let stamp = Stamp { file: id, at, write, round: self.round };
        for (number, unit) in bytes.chunks_exact_mut(UNIT_LEN).enumerate() {
            let at = if at == ANYWHERE { at } else { at + number as u64 * UNIT };
            stamp.fill(at, unit);
        }
        bytes
    }

    /// Parts of the file will be moved.
    pub fn will_move(&self, id: u64) {
        self.file(id).has_moved.store(true, Ordering::Release);
    }

    /// A write that comes may be seen half done.
    pub fn will_tear(&self, id: u64) {
        self.file(id).tears.store(true, Ordering::Release);
    }

    /// Something of `from` will be copied to `to`.
    pub fn will_copy(&self, from: u64, to: u64) {
        let file = self.file(to);
        let mut sources = file.sources.lock();
        if from != to && !sources.contains(&from) {
            sources.push(from);
        }
    }

    /// A write that began at `began` has ended. One that failed may have left something or nothing.
    pub fn wrote(&self, id: u64, (at, len): (u64, u64), began: u64, worked: bool) {
        self.enter(id, (at, len), Left::Write(began), began, worked);
    }

    /// Bytes were made zero, or taken from the end.
    pub fn zeroed(&self, id: u64, (at, len): (u64, u64), began: u64, worked: bool) {
        self.enter(id, (at, len), Left::Zero, began, worked);
    }

    /// Bytes were copied from another file.
    pub fn copied(&self, id: u64, (at, len): (u64, u64), began: u64) {
        self.enter(id, (at, len), Left::Copy, began, false);
    }

    fn enter(&self, id: u64, (at, len): (u64, u64), left: Left, began: u64, worked: bool) {
        let file = self.file(id);
        let mut units = file.units.lock();
        let ended = self.now();
        let first = ((at / UNIT) as usize).min(UNITS);
        let end = ((at.saturating_add(len) / UNIT) as usize).min(UNITS);
        if units.len() < end {
            units.resize(end, Vec::new());
        }
        for unit in &mut units[first..end] {
            if unit.is_empty() {
                unit.push(Entry { left: Left::Zero, ended: 0 });
            }
            if worked {
                unit.retain(|entry| entry.ended >= began);
            }
            unit.push(Entry { left, ended });
        }
    }

    /// Whether bytes of file `id` from `at` on, in whole units, may be what they are.
    ///
    /// # Errors
    ///
    /// What may not.
    pub fn check(&self, id: u64, at: u64, bytes: &[u8], care: Care) -> Result<(), String> {
        let file = self.file(id);
        let tears = file.tears.load(Ordering::Acquire);
        // Nobody knows which writes met where parts were moved.
        let is_vague = care == Care::Whole || file.has_moved.load(Ordering::Acquire);
        let care = if tears && is_vague { Care::Owner } else { care };
        for (number, unit) in bytes.chunks(UNIT_LEN).enumerate() {
            let at = at + number as u64 * UNIT;
            let found = self.check_unit(&file, id, at, unit, care);
            if found.is_err() && tears && care == Care::Last && self.is_mixed(&file, id, at, unit) {
                continue; // K4
            }
            found.map_err(|what| format!("byte {at}: {what}"))?;
        }
        Ok(())
    }

    fn check_unit(
        &self,
        file: &FileBook,
        id: u64,
        at: u64,
        unit: &[u8],
        care: Care,
    ) -> Result<(), String> {
        if unit.len() < UNIT_LEN {
            return Err(format!("a unit of {} bytes", unit.len()));
        }
        let is_zero = unit.iter().all(|byte| *byte == 0);
        let stamp = if is_zero { None } else { Stamp::read(unit) };
        if let Some(mut stamp) = stamp {
            // Somebody may be seen writing over zeros, word by word.
            if care == Care::Owner {
                let words = [(&mut stamp.file, id), (&mut stamp.at, at)];
                for (word, whole) in words.into_iter().chain([(&mut stamp.round, self.round)]) {
                    if *word == 0 {
                        *word = whole;
                    }
                }
            }
            let here = stamp.at == at || stamp.at == ANYWHERE;
            let is_own = stamp.file == id && (here || file.has_moved.load(Ordering::Acquire));
            let is_foreign = !is_own && file.sources.lock().is_empty();
            if stamp.round != self.round || is_foreign {
                return Err(format!("it is not of file {id:x}: {stamp:x?}"));
            }
            if care != Care::Owner && !stamp.is_whole(unit) {
                return Err(format!("it is torn: {stamp:x?}"));
            }
        } else if !is_zero && care != Care::Owner {
            return Err(format!("it was never written: {:x?}", &unit[..16]));
        }
        if care != Care::Last || file.has_moved.load(Ordering::Acquire) || at >= FILE_BYTES {
            return Ok(());
        }
        let units = file.units.lock();
        let entries = units.get((at / UNIT) as usize).map_or(&[][..], |unit| &unit[..]);
        let may_be = |entry: &Entry| match (entry.left, stamp) {
            (Left::Copy, _) | (Left::Zero, None) => true,
            (Left::Write(write), Some(stamp)) => stamp.write == write,
            _ => false,
        };
        if entries.iter().any(may_be) || (entries.is_empty() && stamp.is_none()) {
            return Ok(());
        }
        let found = stamp.map(|stamp| stamp.write);
        Err(format!("write {found:?} is not the last one: {entries:?}"))
    }

    /// Returns whether each byte of a unit is of one of the writes that may have been the last one there (K4).
    fn is_mixed(&self, file: &FileBook, id: u64, at: u64, unit: &[u8]) -> bool {
        let units = file.units.lock();
        let entries = units.get((at / UNIT) as usize).map_or(&[][..], |unit| &unit[..]);
        let of = |write, at_word| {
            let mut whole = vec![0; UNIT_LEN];
            let stamp = Stamp { file: id, at: at_word, write, round: self.round };
            stamp.fill(at_word, &mut whole);
            whole
        };
        let left: Vec<Vec<u8>> = entries
            .iter()
            .flat_map(|entry| match entry.left {
                Left::Zero => vec![vec![0; UNIT_LEN]],
                // A write, or what was appended.
                Left::Write(write) => vec![of(write, at), of(write, ANYWHERE)],
                Left::Copy => Vec::new(),
            })
            .collect();
        let is_of_one = |(place, byte): (usize, &u8)| left.iter().any(|unit| unit[place] == *byte);
        unit.len() == UNIT_LEN && unit.iter().enumerate().all(is_of_one)
    }

    /// Returns what thread `number` appends to its log, from byte `at` on.
    pub fn log_bytes(&self, number: u8, at: u64, len: u64) -> Vec<u8> {
        self.bytes(u64::MAX - u64::from(number), at, 1, len)
    }

    /// Whether a log is what its thread wrote.
    ///
    /// # Errors
    ///
    /// The first unit that is not.
    pub fn check_log(&self, number: u8, bytes: &[u8]) -> Result<(), String> {
        let expected = self.log_bytes(number, 0, bytes.len() as u64);
        let same = |(found, wanted): &(&[u8], &[u8])| found == wanted;
        let pairs = bytes.chunks(UNIT_LEN).zip(expected.chunks(UNIT_LEN));
        match pairs.clone().position(|pair| !same(&pair)) {
            None => Ok(()),
            Some(unit) => {
                let found = &bytes[unit * UNIT_LEN..];
                Err(format!("byte {}: {:x?}", unit * UNIT_LEN, Stamp::read(found)))
            }
        }
    }
}
