//! Long arrays of which little is used, and which may become longer.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of elements of a [`Sparse`] that are created together.
const CHUNK: usize = 512;

type Chunk<T> = OnceLock<Box<[T]>>;

/// A long array whose parts are created when first used.
pub(crate) struct Sparse<T> {
    chunks: Vec<Chunk<T>>,
    /// The chunks behind those, made when the array becomes longer for the first time.
    later: OnceLock<Box<[Chunk<T>]>>,
    len: AtomicU32,
    make: fn(u32) -> T,
}

fn chunks_of<T>(from: usize, len: u32) -> impl Iterator<Item = Chunk<T>> {
    (from..(len as usize).div_ceil(CHUNK)).map(|_| OnceLock::new())
}

impl<T> Sparse<T> {
    /// Creates an array; `make` gets the index of an element.
    pub(crate) fn new(len: u32, make: fn(u32) -> T) -> Sparse<T> {
        let later = OnceLock::new();
        Sparse { chunks: chunks_of(0, len).collect(), later, len: AtomicU32::new(len), make }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len.load(Ordering::Acquire)
    }

    /// Makes the array `len` elements long, if it is shorter; at most `most`, which must be the
    /// same in all calls. The elements that were there stay where they are, and readers go on.
    pub(crate) fn grow(&self, len: u32, most: u32) {
        let there = self.chunks.len();
        self.later.get_or_init(|| chunks_of(there, most).collect());
        self.len.fetch_max(len.min(most), Ordering::AcqRel);
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        if at >= self.len() {
            return None;
        }
        let chunk = match self.chunks.get(at as usize / CHUNK) {
            Some(chunk) => chunk,
            None => self.later.get()?.get(at as usize / CHUNK - self.chunks.len())?,
        };
        let first = at - at % CHUNK as u32;
        let make =
            || (0..CHUNK as u32).map(|step| (self.make)(first.saturating_add(step))).collect();
        chunk.get_or_init(make).get(at as usize % CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_array_ends_where_it_should() {
        let array = Sparse::new(513, |at| at * 2);
        assert_eq!(array.get(512), Some(&1024));
        assert_eq!((array.get(0), array.get(513)), (Some(&0), None));
        assert_eq!(Sparse::new(0, |at| at).get(0), None);
    }

    #[test]
    fn a_sparse_array_becomes_longer_and_its_elements_stay() {
        let array = Sparse::new(513, |at| at * 2);
        let before = array.get(512).map(std::ptr::from_ref);
        array.grow(514, 5000);
        assert_eq!((array.get(513), array.get(514)), (Some(&1026), None));
        array.grow(4000, 5000);
        array.grow(100, 5000);
        assert_eq!((array.get(3999), array.get(4000)), (Some(&7998), None));
        assert_eq!(array.get(512).map(std::ptr::from_ref), before);
        array.grow(u32::MAX, 5000);
        assert_eq!((array.get(4999), array.get(5000)), (Some(&9998), None));
        let empty = Sparse::new(0, |at| at);
        empty.grow(1, 1);
        assert_eq!((empty.get(0), empty.get(1)), (Some(&0), None));
    }
}
