//! Changing the attributes of one inode: all of them as a list, and the areas made anew.
//!
//! # Invariants
//!
//! - V4. An attribute stays in the area it is in while there is room; others move only when the new
//!   one fits in no other way. `system.data` is always in the inode.
//! - V5. What is not changed keeps its bytes: values, and the hashes of values in inodes.

use super::area::{BLOCK_HEADER_BYTES, BlockHeader, INODE_HEADER_BYTES, Value, XattrArea};
use super::area::{decode_block, decode_inode};
use super::hash::{block_hash, entry_hash};
use super::place::{Home, room};
use super::{MAGIC, NAME_MAX, NameIndex, VALUE_MAX, XattrFault, entry_bytes, value_bytes};
use crate::le;
use alloc::vec::Vec;
use core::cmp::Reverse;
use extant_base::Ino;

/// Bytes of the end mark.
const END_BYTES: usize = 4;

/// A value, or where it is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Stored {
    /// The value itself.
    Here(Vec<u8>),
    /// In an inode of its own.
    InInode {
        /// The inode that has the value.
        ino: Ino,
        /// Bytes of the value.
        len: u32,
        /// `e_hash`, see [`entry_hash_for_inode`](super::entry_hash_for_inode).
        hash: u32,
    },
}

impl Stored {
    /// Bytes in the area.
    fn area_bytes(&self) -> usize {
        match self {
            Stored::Here(value) => value_bytes(value.len()),
            Stored::InInode { .. } => 0,
        }
    }
}

/// One attribute.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attribute {
    /// Which prefix.
    pub index: NameIndex,
    /// The name behind the prefix.
    pub name: Vec<u8>,
    /// The value.
    pub value: Stored,
    /// The area it is in.
    pub home: Home,
}

impl Attribute {
    fn bytes(&self) -> usize {
        entry_bytes(self.name.len()).saturating_add(self.value.area_bytes())
    }

    fn is_inline_data(&self) -> bool {
        self.index == NameIndex::SYSTEM && self.name == b"data"
    }

    /// The order of entries in a block.
    fn key(&self) -> (NameIndex, usize, &[u8]) {
        (self.index, self.name.len(), &self.name)
    }
}

/// All attributes of an inode.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AttributeSet {
    attributes: Vec<Attribute>,
}

impl AttributeSet {
    /// Reads the attribute space of an inode, and its block if it has one.
    ///
    /// # Errors
    ///
    /// Those of [`decode_inode`] and [`decode_block`]; `Duplicate` when both have one name.
    pub fn read(space: &[u8], block: Option<&[u8]>) -> Result<AttributeSet, XattrFault> {
        let mut set = AttributeSet::default();
        if let Some(area) = decode_inode(space)? {
            set.extend(&area, Home::Inode)?;
        }
        if let Some(block) = block {
            let (_, area) = decode_block(block)?;
            set.extend(&area, Home::Block)?;
        }
        Ok(set)
    }

    fn extend(&mut self, area: &XattrArea<'_>, home: Home) -> Result<(), XattrFault> {
        for entry in area.entries() {
            if self.find(entry.index, entry.name).is_some() {
                return Err(XattrFault::Duplicate);
            }
            let value = match entry.value {
                Value::Here(value) => Stored::Here(value.to_vec()),
                Value::InInode { ino, len } => Stored::InInode { ino, len, hash: entry.hash },
            };
            let (index, name) = (entry.index, entry.name.to_vec());
            self.attributes.push(Attribute { index, name, value, home });
        }
        Ok(())
    }

    /// All attributes.
    #[must_use]
    pub fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    /// Returns the attributes of one area.
    pub fn of(&self, home: Home) -> impl Iterator<Item = &Attribute> {
        self.attributes.iter().filter(move |attribute| attribute.home == home)
    }

    /// The attribute with this name.
    #[must_use]
    pub fn find(&self, index: NameIndex, name: &[u8]) -> Option<&Attribute> {
        self.attributes.iter().find(|one| one.index == index && one.name == name)
    }

    /// Takes an attribute out.
    pub fn remove(&mut self, index: NameIndex, name: &[u8]) -> Option<Attribute> {
        let at = self.attributes.iter().position(|one| one.index == index && one.name == name)?;
        Some(self.attributes.remove(at))
    }

    /// Sets an attribute, in areas of so many bytes: the inode's space behind its fields, and a
    /// block (0 for none).
    ///
    /// # Errors
    ///
    /// `NoRoom`; `NameLength`, `Name`, `ValueLength` for what cannot be stored. The set has not
    /// changed then.
    pub fn set(
        &mut self,
        index: NameIndex,
        name: &[u8],
        value: Stored,
        (inode, block): (usize, usize),
    ) -> Result<(), XattrFault> {
        if name.len() > NAME_MAX {
            return Err(XattrFault::NameLength { found: name.len() });
        }
        if name.contains(&0) || (name.is_empty() && index == NameIndex::NONE) {
            return Err(XattrFault::Name { offset: 0 });
        }
        if let Stored::Here(value) = &value {
            let len = u64::from(le::narrow(value.len()));
            if len > u64::from(VALUE_MAX) {
                return Err(XattrFault::ValueLength { len });
            }
        }
        let mut next = self.clone();
        let old = next.remove(index, name);
        let home = old.map_or(Home::Inode, |old| old.home);
        next.attributes.push(Attribute { index, name: name.to_vec(), value, home });
        let rooms = Rooms {
            inode: room(inode, INODE_HEADER_BYTES),
            block: room(block, BLOCK_HEADER_BYTES),
        };
        if !next.arrange(home, rooms) {
            let wanted =
                next.attributes.iter().fold(0usize, |sum, one| sum.saturating_add(one.bytes()));
            return Err(XattrFault::NoRoom {
                wanted: u64::from(le::narrow(wanted)),
                inode: le::narrow(rooms.inode),
                block: le::narrow(rooms.block),
            });
        }
        *self = next;
        Ok(())
    }

    /// Finds a home for the last attribute, moving others if there is no other way.
    fn arrange(&mut self, home: Home, rooms: Rooms) -> bool {
        // An attribute in the block moves to the inode when it can.
        for home in [Home::Inode, home, Home::Block] {
            if let Some(last) = self.attributes.last_mut() {
                last.home = home;
            }
            if self.fits(rooms) {
                return true;
            }
        }
        // First fit, by name and then by size.
        let mut order: Vec<usize> = (0..self.attributes.len()).collect();
        order.sort_by_key(|at| self.attributes.get(*at).map(Attribute::key));
        if self.place(&order, rooms) {
            return true;
        }
        order.sort_by_key(|at| Reverse(self.attributes.get(*at).map_or(0, Attribute::bytes)));
        self.place(&order, rooms)
    }

    fn fits(&self, rooms: Rooms) -> bool {
        let used =
            |home: Home| self.of(home).fold(0usize, |sum, one| sum.saturating_add(one.bytes()));
        let astray = self.of(Home::Block).any(Attribute::is_inline_data);
        !astray && used(Home::Inode) <= rooms.inode && used(Home::Block) <= rooms.block
    }

    /// First fit in the order given, inline data before all.
    fn place(&mut self, order: &[usize], mut rooms: Rooms) -> bool {
        for inline in [true, false] {
            for at in order {
                let Some(one) = self.attributes.get_mut(*at) else { return false };
                if one.is_inline_data() != inline {
                    continue;
                }
                let bytes = one.bytes();
                if let Some(left) = rooms.inode.checked_sub(bytes) {
                    (one.home, rooms.inode) = (Home::Inode, left);
                } else if let (false, Some(left)) = (inline, rooms.block.checked_sub(bytes)) {
                    (one.home, rooms.block) = (Home::Block, left);
                } else {
                    return false;
                }
            }
        }
        true
    }

    /// Encodes the attribute space of the inode; all zero when nothing is there.
    ///
    /// # Errors
    ///
    /// `PastArea`: the space is smaller than the one the attributes were set in.
    pub fn encode_inode(&self, space: &mut [u8]) -> Result<(), XattrFault> {
        space.fill(0);
        if self.of(Home::Inode).next().is_none() {
            return Ok(());
        }
        let found = space.len();
        let (magic, base) = space
            .split_first_chunk_mut::<INODE_HEADER_BYTES>()
            .ok_or(XattrFault::Length { found, wanted: INODE_HEADER_BYTES })?;
        *magic = MAGIC.to_le_bytes();
        self.put(base, 0, Home::Inode)?;
        Ok(())
    }

    /// Encodes the attribute block, without its checksum. `references` is the number of inodes that
    /// use it.
    ///
    /// # Errors
    ///
    /// As [`encode_inode`](Self::encode_inode).
    pub fn encode_block(&self, block: &mut [u8], references: u32) -> Result<(), XattrFault> {
        block.fill(0);
        let hash = block_hash(self.put(block, BLOCK_HEADER_BYTES, Home::Block)?);
        let fault = XattrFault::Length { found: block.len(), wanted: BLOCK_HEADER_BYTES };
        for (at, field) in [(0, MAGIC), (4, references), (8, 1), (12, hash)] {
            le::put(block, at, &field.to_le_bytes()).ok_or(fault)?;
        }
        Ok(())
    }

    /// Entries from the front, values from the back; the hashes of the entries.
    fn put(&self, base: &mut [u8], start: usize, home: Home) -> Result<Vec<u32>, XattrFault> {
        let mut list: Vec<&Attribute> = self.of(home).collect();
        list.sort_by_key(|one| (!one.is_inline_data(), one.key()));
        let area = le::narrow(base.len());
        let (mut at, mut value_end) = (start, base.len() & !3);
        let mut hashes = Vec::with_capacity(list.len());
        for one in list {
            let past = XattrFault::PastArea { offset: le::narrow(at), area };
            let (value_at, ino, len, hash) = match &one.value {
                Stored::InInode { ino, len, hash } => (0, ino.0, *len, *hash),
                Stored::Here(value) => {
                    let hash = match home {
                        Home::Inode => 0,
                        Home::Block => entry_hash(&one.name, value),
                    };
                    let mut value_at = 0;
                    // An empty value has no place.
                    if !value.is_empty() {
                        value_end = value_end.checked_sub(value_bytes(value.len())).ok_or(past)?;
                        value_at = value_end;
                        le::put(base, value_at, value).ok_or(past)?;
                    }
                    (u16::try_from(value_at).map_err(|_| past)?, 0, le::narrow(value.len()), hash)
                }
            };
            let next = at.saturating_add(entry_bytes(one.name.len()));
            if next.saturating_add(END_BYTES) > value_end {
                return Err(past);
            }
            let name_len = u8::try_from(one.name.len())
                .map_err(|_| XattrFault::NameLength { found: one.name.len() })?;
            let name_at = at.saturating_add(super::ENTRY_BYTES);
            le::put(base, at, &[name_len, one.index.0]).ok_or(past)?;
            le::put(base, at.saturating_add(2), &value_at.to_le_bytes()).ok_or(past)?;
            for (offset, field) in [(4, ino), (8, len), (12, hash)] {
                le::put(base, at.saturating_add(offset), &field.to_le_bytes()).ok_or(past)?;
            }
            le::put(base, name_at, &one.name).ok_or(past)?;
            hashes.push(hash);
            at = next;
        }
        Ok(hashes)
    }
}

/// Bytes for entries and values.
#[derive(Clone, Copy)]
struct Rooms {
    inode: usize,
    block: usize,
}

impl BlockHeader {
    /// Changes the reference count of a block. Nothing happens when it is too short for a header.
    pub fn set_references(block: &mut [u8], references: u32) {
        let _too_short = le::put(block, 4, &references.to_le_bytes());
    }
}

#[cfg(test)]
mod tests;
