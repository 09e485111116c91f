//! Contents of files, and bytes that say where they come from.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a file that one piece of a [`Content`] has.
pub const PIECE_BYTES: u64 = 1024;

/// Returns what byte `offset` of a file holds after a write with this seed: never zero, and with
/// its neighbours unlike those of any other seed or place.
pub fn pattern(seed: u64, offset: u64) -> u8 {
    let mut word = (seed ^ (offset >> 3).rotate_left(32)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^= word >> 31;
    word.to_le_bytes()[(offset & 7) as usize].max(1)
}

/// The bytes that a write puts at `offset`.
pub fn written(seed: u64, offset: u64, len: u64) -> Vec<u8> {
    (offset..offset + len).map(|at| pattern(seed, at)).collect()
}

/// Undoes the mixing of [`pattern`].
fn unmixed(mut word: u64) -> u64 {
    let unshift = |word: u64, by: u32| {
        let mut whole = word;
        for _ in 0..64 / by {
            whole = word ^ (whole >> by);
        }
        whole
    };
    word = unshift(word, 31).wrapping_mul(0x3196_42b2_d24d_8ec3);
    word = unshift(word, 27).wrapping_mul(0x96de_1b17_3f11_9089);
    unshift(word, 30).wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

/// Returns whether these bytes are, by and large, what [`written`] makes from a multiple of 8 on, whatever the
/// seed and the offset. At least 64 bytes.
pub fn is_written(bytes: &[u8]) -> bool {
    let words = bytes
        .chunks_exact(8)
        .map(|word| unmixed(word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))));
    let words: Vec<u64> = words.collect();
    // Neighbours differ as two consecutive numbers do: in all bits from the lowest up to one.
    let is_next = |pair: &[u64]| {
        let change = (pair[0] ^ pair[1]).rotate_right(32);
        change != 0 && change & change.wrapping_add(1) == 0
    };
    // A byte that would be zero is not, and spoils two pairs.
    let pairs = words.len().saturating_sub(1);
    pairs >= 7 && words.windows(2).filter(|pair| is_next(pair)).count() * 2 > pairs
}

/// Some bytes of a file, without the zeros at their end. The digest stands for them.
#[derive(Clone, Debug)]
struct Piece {
    digest: u64,
    bytes: Vec<u8>,
}

impl Piece {
    /// `None` for zeros alone.
    fn new(bytes: &[u8]) -> Option<Piece> {
        let len = bytes.iter().rposition(|byte| *byte != 0)? + 1;
        let bytes = bytes[..len].to_vec();
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Some(Piece { digest: hasher.finish(), bytes })
    }
}

impl PartialEq for Piece {
    fn eq(&self, other: &Piece) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Piece {}

impl Hash for Piece {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

/// Contents of a file: the pieces of 1 KiB that are not all zeros. Shared, because trees are
/// copied more often than contents change.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Content(Arc<BTreeMap<u64, Arc<Piece>>>);

impl Content {
    /// Starts with nothing but zeros.
    pub fn new() -> Content {
        Content::default()
    }

    /// Adds bytes at `offset`, a multiple of 1024, where nothing is yet. What is after the file's end
    /// must be zero.
    pub fn add(&mut self, offset: u64, bytes: &[u8]) {
        let pieces = Arc::make_mut(&mut self.0);
        for (number, bytes) in bytes.chunks(PIECE_BYTES as usize).enumerate() {
            if let Some(piece) = Piece::new(bytes) {
                pieces.insert(offset / PIECE_BYTES + number as u64, Arc::new(piece));
            }
        }
    }

    /// Changes the bytes of `range`, piece by piece: `change` gets the bytes of the range in one piece
    /// and where in the file they are.
    fn change(&mut self, range: Range<u64>, mut change: impl FnMut(u64, &mut [u8])) {
        let pieces = Arc::make_mut(&mut self.0);
        let mut at = range.start;
        while at < range.end {
            let number = at / PIECE_BYTES;
            let start = number * PIECE_BYTES;
            let end = range.end.min(start + PIECE_BYTES);
            let mut whole = [0; PIECE_BYTES as usize];
            if let Some(piece) = pieces.get(&number) {
                whole[..piece.bytes.len()].copy_from_slice(&piece.bytes);
            }
            change(at, &mut whole[(at - start) as usize..(end - start) as usize]);
            match Piece::new(&whole) {
                Some(piece) => pieces.insert(number, Arc::new(piece)),
                None => pieces.remove(&number),
            };
            at = end;
        }
    }

    /// Puts bytes there, over what was there.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let range = offset..offset + bytes.len() as u64;
        self.change(range, |at, out| {
            let from = (at - offset) as usize;
            out.copy_from_slice(&bytes[from..from + out.len()]);
        });
    }

    /// Makes a range zeros.
    pub fn zero(&mut self, range: Range<u64>) {
        // Pieces that are not there are zeros already.
        let numbers = range.start / PIECE_BYTES..range.end.div_ceil(PIECE_BYTES);
        let there: Vec<u64> = self.0.range(numbers).map(|(number, _)| *number).collect();
        for number in there {
            let start = (number * PIECE_BYTES).max(range.start);
            let end = ((number + 1) * PIECE_BYTES).min(range.end);
            self.change(start..end, |_, out| out.fill(0));
        }
    }

    /// Forgets everything from byte `size` on.
    pub fn cut(&mut self, size: u64) {
        self.zero(size..u64::MAX / 2);
    }

    /// Takes a range out, or puts a hole there: what is at or behind `from` moves to `to` and behind.
    /// Both are multiples of 1024.
    pub fn shift(&mut self, from: u64, to: u64) {
        let (from, to) = (from / PIECE_BYTES, to / PIECE_BYTES);
        let pieces = Arc::make_mut(&mut self.0);
        let behind = pieces.split_off(&from);
        pieces.retain(|number, _| *number < to);
        pieces.extend(behind.into_iter().map(|(number, piece)| (number - from + to, piece)));
    }

    /// The bytes of a piece, without the zeros at its end.
    pub fn piece(&self, number: u64) -> &[u8] {
        self.0.get(&number).map_or(&[], |piece| &piece.bytes)
    }

    /// Returns whether a piece is the same in both.
    pub fn same_piece(&self, other: &Content, number: u64) -> bool {
        self.0.get(&number) == other.0.get(&number)
    }

    /// One byte.
    pub fn byte(&self, at: u64) -> u8 {
        self.piece(at / PIECE_BYTES).get((at % PIECE_BYTES) as usize).copied().unwrap_or(0)
    }

    /// The first byte of the first piece that is not the same in both.
    pub(super) fn first_difference(&self, other: &Content) -> Option<u64> {
        let numbers = self.0.keys().chain(other.0.keys());
        let number = numbers.filter(|number| !self.same_piece(other, **number)).min()?;
        let start = number * PIECE_BYTES;
        (start..start + PIECE_BYTES).find(|at| self.byte(*at) != other.byte(*at))
    }
}

#[cfg(test)]
mod tests {
    use extant_base::Prng;

    use super::*;

    #[test]
    fn what_was_written_is_told_from_anything_else() {
        let mut random = Prng::new(7);
        for seed in 0..2000 {
            let offset = random.below(1 << 40) / 8 * 8;
            assert!(is_written(&written(seed * seed * seed, offset, 512)), "seed {seed}");
            let mut other = vec![0; 512];
            random.fill(&mut other);
            assert!(!is_written(&other));
        }
        for byte in 0..=255 {
            assert!(!is_written(&[byte; 512]), "{byte}");
        }
        assert!(!is_written(&(0..512).map(|at| at as u8).collect::<Vec<_>>()));
    }

    #[test]
    fn changes_of_contents_match_those_of_a_vector() {
        let mut random = Prng::new(1);
        let mut content = Content::new();
        let mut bytes = vec![0; 40 << 10];
        for seed in 0..2000 {
            let start = random.below(36 << 10);
            let len = 1 + random.below(4 << 10);
            let range = start as usize..(start + len) as usize;
            match random.below(8) {
                0 => {
                    content.cut(start);
                    bytes[start as usize..].fill(0);
                }
                1 | 2 => {
                    content.zero(start..start + len);
                    bytes[range].fill(0);
                }
                3 => {
                    let (from, to) = (start >> 10 << 10, random.below(30) << 10);
                    content.shift(from, to);
                    let behind = bytes[from as usize..].to_vec();
                    bytes.truncate(to as usize);
                    bytes.resize(to as usize, 0);
                    if from < to {
                        bytes[from as usize..].fill(0);
                    }
                    bytes.extend(behind);
                    bytes.resize(40 << 10, 0);
                    content.cut(40 << 10);
                }
                _ => {
                    let new = written(seed, start, len);
                    assert!(!new.contains(&0));
                    content.write(start, &new);
                    bytes[range].copy_from_slice(&new);
                }
            }
            let mut other = Content::new();
            other.add(0, &bytes);
            assert_eq!(content, other, "after {seed}: {:?}", content.first_difference(&other));
            assert_eq!(content.byte(start), bytes[start as usize]);
        }
    }
}
