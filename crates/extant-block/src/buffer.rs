//! Owned, page-aligned bytes for device I/O.

use std::fmt;
use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Alignment of every [`AlignedBuffer`], in bytes: enough for direct I/O on any device whose
/// logical sector is at most a page.
pub const BUFFER_ALIGN: usize = 4096;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; BUFFER_ALIGN]);

const _: () = assert!(align_of::<Page>() == BUFFER_ALIGN);
const _: () = assert!(size_of::<Page>() == BUFFER_ALIGN);

/// Bytes whose address is a multiple of [`BUFFER_ALIGN`].
///
/// An operation owns its buffer from submission until its completion hands it back, so the bytes
/// cannot be read, moved or freed while a device may access them.
///
/// ```
/// use extant_block::AlignedBuffer;
/// let mut buffer = AlignedBuffer::zeroed(1000);
/// buffer[999] = 7;
/// assert_eq!(buffer.len(), 1000);
/// assert_eq!(buffer.as_ptr() as usize % 4096, 0);
/// ```
#[derive(Clone, Default)]
pub struct AlignedBuffer {
    pages: Vec<Page>,
    /// Length in bytes; at most `pages.len() * BUFFER_ALIGN`.
    len: usize,
}

impl AlignedBuffer {
    /// Returns a buffer of `len` zeros. The caller bounds `len`: a length from an image is checked
    /// first.
    pub fn zeroed(len: usize) -> AlignedBuffer {
        // Allocates zeroed memory, which costs nothing until it is touched. It fails only for
        // more than half the address space, where `vec!` would panic too.
        let pages = Page::new_vec_zeroed(len.div_ceil(BUFFER_ALIGN))
            .expect("a buffer length is bounded by its caller");
        AlignedBuffer { pages, len }
    }

    /// Returns a buffer with a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true for a buffer of 0 bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Drops the bytes from `len` on; does nothing when the buffer is no longer than that.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.pages.truncate(len.div_ceil(BUFFER_ALIGN));
            self.len = len;
        }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pages.as_bytes()[..self.len]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_bytes()[..self.len]
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for AlignedBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl From<&[u8]> for AlignedBuffer {
    fn from(bytes: &[u8]) -> AlignedBuffer {
        AlignedBuffer::copy_of(bytes)
    }
}

impl PartialEq for AlignedBuffer {
    fn eq(&self, other: &AlignedBuffer) -> bool {
        **self == **other
    }
}

impl Eq for AlignedBuffer {}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_aligned_and_exact() {
        for len in [0, 1, 511, 4095, 4096, 4097, 12288, 1 << 20] {
            let mut buffer = AlignedBuffer::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.iter().filter(|b| **b != 0).count(), 0);
            assert_eq!(buffer.as_ptr() as usize % BUFFER_ALIGN, 0, "{len}");
            buffer.fill(0xff);
            assert_eq!(AlignedBuffer::copy_of(&buffer), buffer);
        }
    }

    #[test]
    fn truncate_shortens_and_never_lengthens() {
        let mut buffer = AlignedBuffer::copy_of(&[1, 2, 3, 4, 5]);
        buffer.truncate(9);
        assert_eq!(&*buffer, [1, 2, 3, 4, 5]);
        buffer.truncate(2);
        assert_eq!(&*buffer, [1, 2]);
        buffer.truncate(0);
        assert!(buffer.is_empty());
    }
}
