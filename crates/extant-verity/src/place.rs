//! Where ext4 keeps tree and descriptor: behind the end of the file.
//!
//! ```text
//! contents | hole | tree | descriptor, signature | zeros | size of these (4 bytes)
//!          ^      ^      ^ next block            end of the last block
//!          size   next multiple of 65536
//! ```

use crate::descriptor::DESCRIPTOR_BYTES_MAX;
use crate::shape::Shape;

/// Boundary of the tree, in bytes.
const BOUNDARY: u64 = 1 << 16;
/// Size of the last field, which has the length of the descriptor.
pub const SIZE_FIELD_BYTES: u64 = 4;

/// Returns the byte of the file at which the tree of a file of `file_bytes` bytes begins; `None` if
/// there can be none behind it.
pub fn metadata_start(file_bytes: u64) -> Option<u64> {
    file_bytes.checked_next_multiple_of(BOUNDARY)
}

/// Places of tree and descriptor in a file, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// First byte of the tree.
    pub tree: u64,
    /// First byte of the descriptor: that of a block of the file system.
    pub descriptor: u64,
    /// First byte of the field with the descriptor's length.
    pub size_field: u64,
    /// End of the last block.
    pub end: u64,
}

impl Place {
    /// Returns where a tree and a descriptor of `descriptor_bytes` bytes go, in a file system with
    /// blocks of `1 << fs_block_log2` bytes; `None` behind byte 2^64.
    pub fn new(shape: &Shape, descriptor_bytes: usize, fs_block_log2: u32) -> Option<Place> {
        let block = 1u64.checked_shl(fs_block_log2)?;
        let tree = metadata_start(shape.data_bytes())?;
        let descriptor = tree.checked_add(shape.bytes())?.checked_next_multiple_of(block)?;
        let end = descriptor
            .checked_add(descriptor_bytes as u64)?
            .checked_add(SIZE_FIELD_BYTES)?
            .checked_next_multiple_of(block)?;
        Some(Place { tree, descriptor, size_field: end - SIZE_FIELD_BYTES, end })
    }

    /// Returns the bytes from the descriptor to the end of the last block.
    pub fn tail(&self, descriptor: &[u8]) -> Vec<u8> {
        let len = usize::try_from(self.end - self.descriptor).unwrap_or(0);
        let mut bytes = descriptor.to_vec();
        let size = u32::try_from(descriptor.len()).unwrap_or(u32::MAX);
        bytes.resize(len.saturating_sub(SIZE_FIELD_BYTES as usize), 0);
        bytes.extend_from_slice(&size.to_le_bytes());
        bytes
    }
}

/// Where the descriptor of a file is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptorPlace {
    /// First byte of the descriptor.
    pub at: u64,
    /// Its length in bytes, at most 16384.
    pub len: usize,
}

impl DescriptorPlace {
    /// Returns where the descriptor is in a file of `file_bytes` bytes whose last block ends at byte
    /// `end`, and has `len` in its last four bytes; `None` if it cannot be there.
    pub fn find(
        file_bytes: u64,
        end: u64,
        len: u32,
        fs_block_log2: u32,
    ) -> Option<DescriptorPlace> {
        let size_field = end.checked_sub(SIZE_FIELD_BYTES)?;
        let at = size_field.checked_sub(len.into())? >> fs_block_log2 << fs_block_log2;
        let len = usize::try_from(len).ok().filter(|len| *len <= DESCRIPTOR_BYTES_MAX)?;
        (at >= metadata_start(file_bytes)?).then_some(DescriptorPlace { at, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Algorithm;

    #[test]
    fn the_place_that_is_made_is_found() {
        for size in [0, 1, 4096, 65535, 65536, 65537, 10 << 20] {
            for fs_log2 in [10, 12, 16] {
                for descriptor in [256, 1020, 1021, 4092, 4093, 4096, 16384] {
                    let shape = Shape::new(size, 10, Algorithm::Sha256).unwrap();
                    let place = Place::new(&shape, descriptor, fs_log2).unwrap();
                    assert_eq!(place.tree % 65536, 0);
                    assert!(place.tree >= size && place.tree < size + 65536);
                    assert_eq!(place.end % (1 << fs_log2), 0);
                    let tail = place.tail(&vec![1; descriptor]);
                    assert_eq!(tail.len() as u64, place.end - place.descriptor);
                    let len = u32::from_le_bytes(tail[tail.len() - 4..].try_into().unwrap());
                    let found = DescriptorPlace::find(size, place.end, len, fs_log2).unwrap();
                    assert_eq!(found, DescriptorPlace { at: place.descriptor, len: descriptor });
                }
            }
        }
    }

    #[test]
    fn places_that_cannot_be_are_refused() {
        assert_eq!(metadata_start(u64::MAX), None);
        assert_eq!(DescriptorPlace::find(100, 3, 256, 12), None);
        assert_eq!(DescriptorPlace::find(100, 65536, 256, 12), None, "before the tree");
        assert!(DescriptorPlace::find(100, 65536 + 4096, 256, 12).is_some());
        assert_eq!(DescriptorPlace::find(100, 1 << 40, 16385, 12), None);
        assert_eq!(DescriptorPlace::find(100, 1 << 40, u32::MAX, 12), None);
        assert_eq!(DescriptorPlace::find(u64::MAX, u64::MAX, 256, 12), None);
        let shape = Shape::new(u64::MAX - 70000, 16, Algorithm::Sha256).unwrap();
        assert_eq!(Place::new(&shape, 256, 12), None);
    }
}
