//! Packing entries into fresh blocks.

use super::{DirFault, DirLayout, FileType, HEADER_BYTES, NAME_MAX, encode_rec_len, is_dots, seal};
use crate::hash::NameHash;
use crate::le;
use extant_base::Ino;

/// An entry to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewEntry<'a> {
    /// The inode, not 0.
    pub ino: Ino,
    /// The name: 1 to 255 bytes, none of them `/` or NUL unless the directory is encrypted.
    pub name: &'a [u8],
    /// What the entry says about the inode; not stored without the `filetype` feature.
    pub file_type: FileType,
    /// The hash to be stored behind the name. Needed when the directory stores hashes, except for
    /// `.` and `..`; else not looked at.
    pub hash: Option<NameHash>,
}

impl NewEntry<'_> {
    /// Bytes the entry needs.
    #[must_use]
    pub fn needs(&self, layout: DirLayout) -> usize {
        if is_dots(self.name) {
            DirLayout::dots_need(self.name.len())
        } else {
            layout.needs(self.name.len())
        }
    }

    /// What may not be stored.
    pub(super) fn check(&self, layout: DirLayout) -> Result<(), DirFault> {
        if self.name.len() > NAME_MAX {
            let name_len = le::narrow(self.name.len());
            return Err(DirFault::NameLength { offset: 0, name_len });
        }
        let is_bad = |byte: &u8| matches!(byte, 0 | b'/') && !layout.encrypted;
        if self.name.is_empty() || self.name.iter().any(is_bad) {
            return Err(DirFault::Name);
        }
        if self.ino.0 == 0 {
            return Err(DirFault::NoInode);
        }
        if layout.stored_hash && self.hash.is_none() && !is_dots(self.name) {
            return Err(DirFault::NoHash);
        }
        Ok(())
    }
}

/// Writes an entry of `rec_len` bytes at `at`. `None` when it does not fit the area.
pub(super) fn put_entry(
    area: &mut [u8],
    at: usize,
    rec_len: usize,
    entry: &NewEntry<'_>,
    layout: DirLayout,
) -> Option<()> {
    let place = area.get_mut(at..at.checked_add(rec_len)?)?;
    let (header, rest) = place.split_first_chunk_mut::<HEADER_BYTES>()?;
    let raw_len = encode_rec_len(le::narrow(rec_len), layout.block_size)?;
    let kind = if layout.filetype { entry.file_type.raw() } else { 0 };
    let [i0, i1, i2, i3] = entry.ino.0.to_le_bytes();
    let [r0, r1] = raw_len.to_le_bytes();
    *header = [i0, i1, i2, i3, r0, r1, u8::try_from(entry.name.len()).ok()?, kind];
    let (name, rest) = rest.split_at_mut_checked(entry.name.len())?;
    name.copy_from_slice(entry.name);
    let hash = if layout.stored_hash && !is_dots(entry.name) { entry.hash } else { None };
    if let Some(hash) = hash {
        let pad = DirLayout::dots_need(entry.name.len())
            .saturating_sub(HEADER_BYTES)
            .saturating_sub(entry.name.len());
        le::put(rest, pad, &hash.major.to_le_bytes())?;
        le::put(rest, pad.saturating_add(4), &hash.minor.to_le_bytes())?;
    }
    Some(())
}

/// Fills one block with entries, in the order given.
///
/// ```
/// # use extant_base::{BlockSize, Ino};
/// # use extant_format::dir::{BlockWriter, DirLayout, FileType, NewEntry, Records};
/// let block_size = BlockSize::new(1024).unwrap();
/// let layout = DirLayout { block_size, filetype: true, checksum: true, stored_hash: false, encrypted: false };
/// let mut block = [0; 1024];
/// let mut writer = BlockWriter::new(&mut block, layout).unwrap();
/// let name = b"hello".as_slice();
/// let file = NewEntry { ino: Ino(12), name, file_type: FileType::Regular, hash: None };
/// assert!(writer.push(&file).unwrap());
/// writer.finish(Some(7));
/// let first = Records::of_block(&block, layout).unwrap().next().unwrap().unwrap();
/// assert_eq!((first.name, first.rec_len), (name, 1024 - 12));
/// ```
#[derive(Debug)]
pub struct BlockWriter<'a> {
    block: &'a mut [u8],
    layout: DirLayout,
    /// Where the next entry goes.
    at: usize,
    /// Where the last entry is; `None` for an empty block.
    last: Option<usize>,
}

impl<'a> BlockWriter<'a> {
    /// Starts an empty block; what was in it is overwritten.
    pub fn new(block: &'a mut [u8], layout: DirLayout) -> Result<BlockWriter<'a>, DirFault> {
        block.fill(0);
        BlockWriter::of_zeros(block, layout)
    }

    /// Starts an empty block in bytes that are zeros.
    fn of_zeros(block: &'a mut [u8], layout: DirLayout) -> Result<BlockWriter<'a>, DirFault> {
        super::check_block(block, layout)?;
        Ok(BlockWriter { block, layout, at: 0, last: None })
    }

    /// Bytes not used yet.
    #[must_use]
    pub fn room(&self) -> usize {
        self.layout.entry_bytes().saturating_sub(self.at)
    }

    /// Adds an entry; `false`, and nothing changed, when it does not fit.
    ///
    /// # Errors
    ///
    /// `NameLength`, `Name`, `NoInode`, `NoHash`: the entry may not be stored at all. Whether the
    /// name is there already is for the caller.
    pub fn push(&mut self, entry: &NewEntry<'_>) -> Result<bool, DirFault> {
        entry.check(self.layout)?;
        let needs = entry.needs(self.layout);
        if needs > self.room() {
            return Ok(false);
        }
        if put_entry(self.block, self.at, needs, entry, self.layout).is_none() {
            return Ok(false);
        }
        self.last = Some(self.at);
        self.at = self.at.saturating_add(needs);
        Ok(true)
    }

    /// Lets the last entry reach the end, and writes the tail.
    ///
    /// `seed` is the directory inode's seed; not looked at when the layout has no checksums. A
    /// layout with checksums and no seed gets a tail of checksum 0, for [`seal`] later.
    pub fn finish(self, seed: Option<u32>) {
        let end = self.layout.entry_bytes();
        // An empty block is one free entry.
        let last = self.last.unwrap_or(0);
        let rec_len = le::narrow(end.saturating_sub(last));
        if let Some(raw) = encode_rec_len(rec_len, self.layout.block_size) {
            let _last_entry_lies_in_block =
                le::put(self.block, last.saturating_add(4), &raw.to_le_bytes());
        }
        if self.layout.checksum {
            match seed {
                Some(seed) => seal(seed, self.block),
                None => {
                    if let Some(tail) = self.block.last_chunk_mut::<{ super::TAIL_BYTES }>() {
                        tail.fill(0);
                        let (head, _) = tail.split_at_mut(8);
                        head.copy_from_slice(&super::TAIL_HEAD);
                    }
                }
            }
        }
    }
}

/// Makes a block of zeros the first one of an empty linear directory: `.` and `..`.
pub fn first_block(
    block: &mut [u8],
    layout: DirLayout,
    dir: Ino,
    parent: Ino,
    seed: Option<u32>,
) -> Result<(), DirFault> {
    debug_assert!(block.iter().all(|byte| *byte == 0), "the block is new");
    let mut writer = BlockWriter::of_zeros(block, layout)?;
    for (ino, name) in [(dir, b".".as_slice()), (parent, b"..".as_slice())] {
        writer.push(&NewEntry { ino, name, file_type: FileType::Directory, hash: None })?;
    }
    writer.finish(seed);
    Ok(())
}
