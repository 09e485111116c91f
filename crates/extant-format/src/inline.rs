//! Inline data: small files and directories that live inside their inode.
//!
//! # Shape
//!
//! ```text
//! i_block, 60 bytes                    value of system.data
//! +--------------------------------+   +---------------------+
//! | bytes 0..60 of the file        | + | bytes 60..i_size    |      file
//! +----------+---------------------+   +---------------------+
//! | parent   | entries, 56 bytes   |   | entries             |      directory
//! +----------+---------------------+   +---------------------+
//! ```
//!
//! The inode has the flag `EXT4_INLINE_DATA_FL`, and an attribute `system.data` in its own space,
//! even when its value is empty: without one, the kernel does not take the inode for inline.
//!
//! A directory stores the number of its parent instead of `..`, and nothing for `.`. Each of its
//! two areas is filled with entries ([`crate::dir`]) from its first to its last byte; no entry
//! crosses from one into the other, and there is no checksum tail. Its size is 60 plus the length
//! of the value.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/inlinedata.rst`, "Inline Data" and "Inline Directories".

use crate::dir::{self, DirEntry, DirFault, DirLayout, NewEntry, Records};
use crate::le;
use alloc::vec;
use alloc::vec::Vec;
use extant_base::Ino;

/// Bytes of `i_block`, the first part of the data.
pub const BLOCK_BYTES: usize = 60;
/// Bytes of the parent's number at the start of an inline directory.
pub const PARENT_BYTES: usize = 4;
/// Bytes of an inode's attribute space that an empty `system.data` takes: header of the space,
/// entry with its name, end mark.
pub const EMPTY_VALUE_COST: usize = 4 + 16 + 4 + 4;

/// A fault in inline data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InlineFault {
    /// `i_size` goes past what is stored.
    #[error("inline data: size {size}, but only {stored} bytes are stored")]
    Size {
        /// `i_size`.
        size: u64,
        /// Bytes in `i_block` and in the value.
        stored: u64,
    },
    /// There is more data than the inode has room for. Only when encoding.
    #[error("inline data: {size} bytes do not fit; the inode has room for {room}")]
    NoRoom {
        /// Bytes wanted.
        size: usize,
        /// Bytes that would fit.
        room: usize,
    },
    /// An area of a directory.
    #[error("inline directory: {0}")]
    Dir(#[from] DirFault),
}

/// Most bytes that can be inline, when `free` bytes of the inode's attribute space are not taken by
/// other attributes (the space's 4-byte header and end mark counted as free).
///
/// `None` when not even an empty value fits; then nothing can be inline.
///
/// ```
/// // 256-byte inode, i_extra_isize 32: 96 bytes of attribute space.
/// assert_eq!(extant_format::inline::capacity(96), Some(60 + 68));
/// assert_eq!(extant_format::inline::capacity(27), None);
/// ```
#[must_use]
pub fn capacity(free: usize) -> Option<usize> {
    let value = free.checked_sub(EMPTY_VALUE_COST)? & !3;
    BLOCK_BYTES.checked_add(value)
}

/// The parts of an inline file of `size` bytes: the first up to 60, and the rest.
pub fn parts<'a>(
    i_block: &'a [u8; BLOCK_BYTES],
    value: &'a [u8],
    size: u64,
) -> Result<(&'a [u8], &'a [u8]), InlineFault> {
    let stored = u64::from(le::narrow(value.len())).saturating_add(60);
    let fault = InlineFault::Size { size, stored };
    let size = usize::try_from(size).map_err(|_| fault)?;
    let head = i_block.get(..size.min(BLOCK_BYTES)).ok_or(fault)?;
    let tail = value.get(..size.saturating_sub(BLOCK_BYTES)).ok_or(fault)?;
    Ok((head, tail))
}

/// Splits the contents of a file into `i_block` and the value of `system.data`.
///
/// `room` is from [`capacity`].
pub fn split(data: &[u8], room: usize) -> Result<([u8; BLOCK_BYTES], &[u8]), InlineFault> {
    if data.len() > room {
        return Err(InlineFault::NoRoom { size: data.len(), room });
    }
    let (head, tail) = data.split_at(data.len().min(BLOCK_BYTES));
    let mut i_block = [0; BLOCK_BYTES];
    for (to, from) in i_block.iter_mut().zip(head) {
        *to = *from;
    }
    Ok((i_block, tail))
}

/// An inline directory, borrowed from its inode.
#[derive(Clone, Copy, Debug)]
pub struct InlineDir<'a> {
    parent: Ino,
    areas: [&'a [u8]; 2],
    layout: DirLayout,
}

impl<'a> InlineDir<'a> {
    /// The directory in `i_block` and in the value of `system.data`. Entries are checked as they
    /// are read. `layout` is that of the file system's directories.
    #[must_use]
    pub fn new(
        i_block: &'a [u8; BLOCK_BYTES],
        value: &'a [u8],
        layout: DirLayout,
    ) -> InlineDir<'a> {
        let (parent, first) = i_block.split_at(PARENT_BYTES);
        let parent = Ino(le::u32_at(parent, 0).unwrap_or(0));
        InlineDir { parent, areas: [first, value], layout }
    }

    /// The parent; not checked.
    #[must_use]
    pub fn parent(&self) -> Ino {
        self.parent
    }

    /// The records of both areas, used and free; offsets count from the start of their area.
    pub fn records(&self) -> impl Iterator<Item = Result<DirEntry<'a>, DirFault>> + use<'a> {
        let [first, second] = self.areas;
        let layout = self.layout;
        let mut broken = false;
        let second = Records::of_area(second, layout);
        // A fault ends the whole directory, not only its area.
        Records::of_area(first, layout).chain(second).take_while(move |entry| {
            let go_on = !broken;
            broken = entry.is_err();
            go_on
        })
    }

    /// The records that name something. `.` and `..` are not among them.
    pub fn used(&self) -> impl Iterator<Item = Result<DirEntry<'a>, DirFault>> + use<'a> {
        self.records().filter(|entry| entry.as_ref().map_or(true, DirEntry::is_used))
    }

    /// The entry of `name`; not for `.` and `..`.
    pub fn find(&self, name: &[u8]) -> Result<Option<DirEntry<'a>>, DirFault> {
        for entry in self.used() {
            let entry = entry?;
            if entry.name == name {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

/// Packs a directory: `i_block`, and the value of `system.data`.
///
/// Entries go into the first area while they fit, then into the second, in the order given and
/// without `.` and `..`. The value is as long as its entries need. `room` is from [`capacity`].
pub fn build_dir<'n>(
    parent: Ino,
    entries: impl IntoIterator<Item = NewEntry<'n>>,
    layout: DirLayout,
    room: usize,
) -> Result<([u8; BLOCK_BYTES], Vec<u8>), InlineFault> {
    let mut i_block = [0; BLOCK_BYTES];
    let (number, first) = i_block.split_at_mut(PARENT_BYTES);
    number.copy_from_slice(&parent.0.to_le_bytes());
    empty_area(first, layout);
    let mut rest = Vec::new();
    let mut rest_bytes = 0usize;
    for entry in entries {
        if rest.is_empty() && dir::insert(first, layout, &entry)?.is_some() {
            continue;
        }
        rest_bytes = rest_bytes.saturating_add(entry.needs(layout));
        let size = BLOCK_BYTES.saturating_add(rest_bytes);
        if size > room {
            return Err(InlineFault::NoRoom { size, room });
        }
        rest.push(entry);
    }
    let mut second = vec![0; rest_bytes];
    empty_area(&mut second, layout);
    for entry in &rest {
        if dir::insert(&mut second, layout, entry)?.is_none() {
            // The area was made exactly as long as its entries.
            return Err(InlineFault::NoRoom { size: second.len(), room });
        }
    }
    Ok((i_block, second))
}

/// One free entry over the whole area.
fn empty_area(area: &mut [u8], layout: DirLayout) {
    let len = le::narrow(area.len());
    if let Some(raw) = dir::encode_rec_len(len, layout.block_size) {
        // An area of no bytes has no entry either.
        let _written = le::put(area, 4, &raw.to_le_bytes());
    }
}

#[cfg(test)]
mod tests;
