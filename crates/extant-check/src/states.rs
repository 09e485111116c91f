//! What is known of every inode, in a byte each: what it is, and how many names lead to it.
//!
//! Pages of the table that no inode in use touches take no memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};

use extant_base::Ino;
use extant_format::inode::FileKind;
use extant_sync::{Mutex, Rank};
use zerocopy::FromZeros;

/// The type of file, as in the upper bits of `i_mode`, or one of the three below; 0: not in use.
const KIND: u8 = 0x0f;
/// Its block of the inode table cannot be read. No type of file has this number.
const UNREAD: u8 = 13;
/// In use, but nothing else is known. No type of file has this number.
const UNKNOWN: u8 = 14;
/// In use, of no type. No type of file has this number.
const NO_KIND: u8 = 15;
/// Holds an attribute's value.
const VALUE: u8 = 0x10;
/// Names are counted in the upper three bits; 7 says that the count is elsewhere.
const NAMES_SHIFT: u32 = 5;
const NAME: u8 = 1 << NAMES_SHIFT;
const NAMES_MANY: u8 = 7;

/// Locks over the counts of inodes with many names.
const LOCKS: usize = 64;

/// What is known of one inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct State(u8);

impl State {
    /// In use, but nothing else is known.
    pub(crate) const UNKNOWN: State = State(UNKNOWN);

    /// In use or not: its record cannot be read.
    pub(crate) const UNREAD: State = State(UNREAD);

    /// That of an inode that could be decoded.
    pub(crate) fn new(kind: Option<FileKind>, is_value: bool) -> State {
        let kind = kind.map_or(NO_KIND, |kind| (kind.mode_bits() >> 12) as u8 & KIND);
        State(kind | if is_value { VALUE } else { 0 })
    }

    pub(crate) fn is_used(self) -> bool {
        self.0 != 0
    }

    /// Returns whether it is in use and could be decoded.
    pub(crate) fn is_known(self) -> bool {
        !matches!(self.0 & KIND, 0 | UNKNOWN | UNREAD)
    }

    /// Returns whether nothing can be said of it, since its record cannot be read.
    pub(crate) fn is_unread(self) -> bool {
        self.0 & KIND == UNREAD
    }

    /// `i_mode` without permissions.
    pub(crate) fn mode(self) -> u16 {
        u16::from(self.0 & KIND) << 12
    }

    pub(crate) fn is_dir(self) -> bool {
        self.0 & KIND == (FileKind::Directory.mode_bits() >> 12) as u8
    }

    pub(crate) fn is_value(self) -> bool {
        self.0 & VALUE != 0
    }

    /// Returns whether it is not in use, or a file with one name, as most are.
    pub(crate) fn is_plain(self) -> bool {
        !self.is_used() || self.0 & !KIND == NAME && !self.is_dir()
    }
}

/// A byte for each inode, by its number.
#[derive(Default)]
pub(crate) struct States {
    slots: Box<[AtomicU8]>,
    /// Names of those with seven or more.
    many: Vec<Mutex<HashMap<u32, u32>>>,
}

impl std::fmt::Debug for States {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("States").field("inodes", &self.slots.len()).finish_non_exhaustive()
    }
}

impl States {
    /// No inode is in use. `None` when there is no room for so many.
    pub(crate) fn new(inodes: u32) -> Option<States> {
        let slots = <[AtomicU8]>::new_box_zeroed_with_elems(inodes as usize).ok()?;
        let mut many = Vec::new();
        many.resize_with(LOCKS, || Mutex::new(Rank::Leaf, HashMap::new()));
        Some(States { slots, many })
    }

    fn slot(&self, ino: Ino) -> Option<&AtomicU8> {
        self.slots.get((ino.0 as usize).checked_sub(1)?)
    }

    /// Notes what an inode is. Its names are forgotten.
    pub(crate) fn set(&self, ino: Ino, state: State) {
        if let Some(slot) = self.slot(ino) {
            slot.store(state.0, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self, ino: Ino) -> State {
        State(self.slot(ino).map_or(0, |slot| slot.load(Ordering::Relaxed)))
    }

    /// The first inode from `from` on that is not plain; one past the last if there is none.
    pub(crate) fn next_odd(&self, from: Ino) -> Ino {
        let start = (from.0.saturating_sub(1) as usize).min(self.slots.len());
        let rest = self.slots.get(start..).unwrap_or(&[]);
        let is_odd = |slot: &AtomicU8| !State(slot.load(Ordering::Relaxed)).is_plain();
        // There are at most 2^32 - 1 slots.
        Ino(((start + rest.iter().position(is_odd).unwrap_or(rest.len())) as u32).saturating_add(1))
    }

    /// Notes one more name of an inode in use.
    pub(crate) fn add_name(&self, ino: Ino) {
        let Some(slot) = self.slot(ino) else { return };
        let order = Ordering::Relaxed;
        let more =
            |state: u8| (state >> NAMES_SHIFT != NAMES_MANY).then(|| state.wrapping_add(NAME));
        let before = slot.fetch_update(order, order, more);
        let is_many = match before {
            Ok(state) => (state >> NAMES_SHIFT) + 1 == NAMES_MANY,
            Err(_) => true,
        };
        if is_many && let Some(many) = self.many.get(ino.0 as usize % LOCKS) {
            let mut many = many.lock();
            let names = many.entry(ino.0).or_insert(u32::from(NAMES_MANY) - 1);
            *names = names.saturating_add(1);
        }
    }

    /// Names found, `.` and `..` of others not counted.
    pub(crate) fn names(&self, ino: Ino) -> u32 {
        let names = self.get(ino).0 >> NAMES_SHIFT;
        if names < NAMES_MANY {
            return u32::from(names);
        }
        let many = self.many.get(ino.0 as usize % LOCKS);
        many.and_then(|many| many.lock().get(&ino.0).copied()).unwrap_or(u32::from(names))
    }

    /// A bit for each of some inodes that is in use, and how many of them are. `words` is emptied first.
    pub(crate) fn used(&self, first: Ino, len: u32, words: &mut Vec<u64>) -> u32 {
        let from = (first.0.saturating_sub(1) as usize).min(self.slots.len());
        let to = from.saturating_add(len as usize).min(self.slots.len());
        words.clear();
        let mut count = 0u32;
        for some in self.slots.get(from..to).unwrap_or(&[]).chunks(64) {
            let bit =
                |(at, slot): (usize, &AtomicU8)| u64::from(slot.load(Ordering::Relaxed) != 0) << at;
            let word = some.iter().enumerate().map(bit).fold(0, |word, bit| word | bit);
            count += word.count_ones();
            words.push(word);
        }
        count
    }

    fn change(&mut self, change: impl Fn(u8) -> u8) {
        for slot in &mut self.slots {
            let slot = slot.get_mut();
            let changed = change(*slot);
            // A page that is only read takes no memory.
            if changed != *slot {
                *slot = changed;
            }
        }
        for many in &mut self.many {
            many.get_mut().clear();
        }
    }

    /// Forgets what directories said.
    pub(crate) fn forget_names(&mut self) {
        self.change(|state| state & (KIND | VALUE));
    }

    /// Forgets everything.
    pub(crate) fn forget(&mut self) {
        self.change(|_| 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted_however_many_there_are() {
        let mut states = States::new(100).unwrap();
        let file = State::new(Some(FileKind::Regular), false);
        for ino in 1..=50 {
            states.set(Ino(ino), file);
            (0..ino).for_each(|_| states.add_name(Ino(ino)));
        }
        assert!((1..=50).all(|ino| states.names(Ino(ino)) == ino));
        assert!((1..=50).all(|ino| states.get(Ino(ino)).mode() == 0o100_000));
        assert!(states.get(Ino(1)).is_plain() && !states.get(Ino(2)).is_plain());
        let mut words = Vec::new();
        assert_eq!(states.used(Ino(1), 100, &mut words), 50);
        assert_eq!(words, [(1 << 50) - 1, 0]);
        states.forget_names();
        assert!((1..=50).all(|ino| states.names(Ino(ino)) == 0 && states.get(Ino(ino)) == file));
        states.forget();
        assert_eq!(states.used(Ino(1), 100, &mut words), 0);
    }

    #[test]
    fn a_state_says_what_was_put_in() {
        for mode in 0..=u16::MAX {
            let kind = FileKind::from_mode(mode);
            for is_value in [false, true] {
                let state = State::new(kind, is_value);
                assert_eq!((FileKind::from_mode(state.mode()), state.is_value()), (kind, is_value));
                assert_eq!(state.is_dir(), kind == Some(FileKind::Directory));
                assert!(state.is_known() && state.is_used() && !state.is_plain());
            }
        }
        assert!(State::UNKNOWN.is_used() && !State::UNKNOWN.is_known());
        assert!(State::UNREAD.is_unread() && !State::UNREAD.is_known());
        assert!(
            !State::UNKNOWN.is_unread() && FileKind::from_mode(u16::from(UNREAD) << 12).is_none()
        );
    }

    #[test]
    fn numbers_that_do_not_exist_are_not_in_use() {
        let states = States::new(3).unwrap();
        for ino in [0, 4, u32::MAX] {
            states.set(Ino(ino), State::UNKNOWN);
            states.add_name(Ino(ino));
            assert!(!states.get(Ino(ino)).is_used());
            assert_eq!(states.names(Ino(ino)), 0);
        }
        states.set(Ino(2), State::UNKNOWN);
        assert_eq!([1, 2, 3, 9].map(|ino| states.next_odd(Ino(ino)).0), [2, 2, 4, 4]);
    }
}
