//! Long arrays of which little is used.

use std::sync::OnceLock;

/// Number of elements of a [`Sparse`] that are created together.
const CHUNK: usize = 512;

/// A long array whose parts are created when first used.
pub(crate) struct Sparse<T> {
    chunks: Vec<OnceLock<Box<[T]>>>,
    len: u32,
    make: fn(u32) -> T,
}

impl<T> Sparse<T> {
    /// Creates an array; `make` gets the index of an element.
    pub(crate) fn new(len: u32, make: fn(u32) -> T) -> Sparse<T> {
        let chunks = (len as usize).div_ceil(CHUNK);
        Sparse { chunks: (0..chunks).map(|_| OnceLock::new()).collect(), len, make }
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        let chunk = self.chunks.get(at as usize / CHUNK).filter(|_| at < self.len)?;
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
}
