//! Names that are there twice: 8 bytes are kept of each, and the names themselves only where those
//! are equal.

use std::hash::{BuildHasher, RandomState};

/// Numbers made of the names of one directory.
pub(crate) struct Names {
    hashes: Vec<u64>,
    /// Not known to who wrote the image, so that nobody can choose names that collide.
    key: u64,
}

/// Odd, half of the bits set.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes two words: both halves of their product.
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a).wrapping_mul(u128::from(b));
    (product as u64) ^ ((product >> 64) as u64)
}

impl Names {
    pub(crate) fn new() -> Names {
        Names { hashes: Vec::new(), key: RandomState::new().hash_one(0) }
    }

    pub(crate) fn clear(&mut self) {
        self.hashes.clear();
    }

    fn hash(&self, name: &[u8]) -> u64 {
        let (words, rest) = name.as_chunks::<8>();
        let mut hash = self.key ^ (name.len() as u64);
        for word in words {
            hash = mix(hash ^ u64::from_le_bytes(*word), FACTOR ^ self.key.rotate_left(32));
        }
        let mut last = [0; 8];
        if let Some(room) = last.get_mut(..rest.len()) {
            room.copy_from_slice(rest);
        }
        mix(hash ^ u64::from_le_bytes(last), FACTOR ^ self.key.rotate_left(32))
    }

    pub(crate) fn push(&mut self, name: &[u8]) {
        self.hashes.push(self.hash(name));
    }

    /// Numbers that there are more than once, in order.
    pub(crate) fn collisions(&mut self) -> Vec<u64> {
        self.hashes.sort_unstable();
        let pairs = self.hashes.windows(2).filter(|pair| pair.first() == pair.last());
        let mut list: Vec<u64> = pairs.filter_map(|pair| pair.first().copied()).collect();
        list.dedup();
        list
    }

    /// Returns whether a name has one of these numbers.
    pub(crate) fn is_among(&self, collisions: &[u64], name: &[u8]) -> bool {
        collisions.binary_search(&self.hash(name)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_collide_and_others_do_not() {
        let mut names = Names::new();
        for number in 0..100_000u32 {
            names.push(format!("name{number}").as_bytes());
        }
        assert_eq!(names.collisions(), []);
        for name in ["name7", "", "name99999"] {
            names.push(name.as_bytes());
        }
        let found = names.collisions();
        assert_eq!(found.len(), 2);
        assert!(names.is_among(&found, b"name7") && !names.is_among(&found, b"name8"));
        assert!(!names.is_among(&found, b""), "its length is part of the number");
    }
}
