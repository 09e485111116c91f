//! Deciding where each attribute of a file goes, and encoding the areas.

use super::area::{BLOCK_HEADER_BYTES, CHECKSUM_AT, INODE_HEADER_BYTES};
use super::hash::{block_hash, checksum, entry_hash, entry_hash_for_inode};
use super::{MAGIC, NAME_MAX, NameIndex, VALUE_MAX, XattrFault, entry_bytes, value_bytes};
use crate::le;
use alloc::vec::Vec;
use core::cmp::Reverse;
use extant_base::{FsBlock, Ino};

/// Bytes of the end mark.
const END_BYTES: usize = 4;

/// An attribute to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewXattr<'a> {
    /// Which prefix.
    pub index: NameIndex,
    /// The name behind the prefix, at most 255 bytes, no NUL.
    pub name: &'a [u8],
    /// The value as ext4 stores it (ACLs in their stored form).
    pub value: &'a [u8],
}

impl NewXattr<'_> {
    /// Bytes of entry and value in an area.
    fn needs(&self, value_in_inode: bool) -> usize {
        let value = if value_in_inode { 0 } else { value_bytes(self.value.len()) };
        entry_bytes(self.name.len()).saturating_add(value)
    }
}

/// Which area an attribute's entry is in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Home {
    /// The inode.
    Inode,
    /// The block.
    Block,
}

/// The place that one attribute gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// The position of the attribute in the list given to [`place`].
    pub xattr: usize,
    /// Where its entry goes.
    pub home: Home,
    /// Whether its value gets an inode of its own.
    pub value_in_inode: bool,
}

/// The room that there is for attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Bytes of the inode behind its extra fields; 0 for inodes of 128 bytes.
    pub inode: usize,
    /// Bytes of an attribute block; 0 when there may be none.
    pub block: usize,
    /// Values may get inodes of their own.
    pub ea_inode: bool,
}

/// The places of all attributes of a file, in the order the areas hold them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    placed: Vec<Placed>,
}

impl Placement {
    /// Every attribute, those of the inode first.
    #[must_use]
    pub fn placed(&self) -> &[Placed] {
        &self.placed
    }

    /// Returns whether the file needs an attribute block.
    #[must_use]
    pub fn needs_block(&self) -> bool {
        self.placed.iter().any(|placed| placed.home == Home::Block)
    }

    /// The attributes whose values need inodes of their own, by position in the list.
    pub fn values_in_inodes(&self) -> impl Iterator<Item = usize> + '_ {
        self.placed.iter().filter(|placed| placed.value_in_inode).map(|placed| placed.xattr)
    }

    fn of(&self, home: Home) -> impl Iterator<Item = &Placed> {
        self.placed.iter().filter(move |placed| placed.home == home)
    }
}

/// Decides where attributes go: into the inode while they fit, in the order of their names, with
/// `system.data` before all others; the rest into the block. When that is not enough, the largest
/// go into the inode first; then, if allowed, the largest values into inodes of their own.
///
/// # Errors
///
/// `NoRoom`; `NameLength`, `Name`, `ValueLength`, `Duplicate` for attributes that no area can
/// hold.
pub fn place(xattrs: &[NewXattr<'_>], space: Space) -> Result<Placement, XattrFault> {
    for xattr in xattrs {
        if xattr.name.len() > NAME_MAX {
            return Err(XattrFault::NameLength { found: xattr.name.len() });
        }
        if xattr.name.contains(&0) {
            return Err(XattrFault::Name { offset: 0 });
        }
        let len = u64::from(le::narrow(xattr.value.len()));
        if len > u64::from(VALUE_MAX) {
            return Err(XattrFault::ValueLength { len });
        }
        if xattr.name.is_empty() && xattr.index == NameIndex::NONE {
            // Its entry could not be told from the end mark.
            return Err(XattrFault::Name { offset: 0 });
        }
    }
    let key = |position: &usize| {
        xattrs.get(*position).map(|xattr| (xattr.index, xattr.name.len(), xattr.name))
    };
    let mut order: Vec<usize> = (0..xattrs.len()).collect();
    order.sort_by_key(key);
    if order.iter().zip(order.iter().skip(1)).any(|(one, next)| key(one) == key(next)) {
        return Err(XattrFault::Duplicate);
    }
    let rooms = Rooms {
        inode: room(space.inode, INODE_HEADER_BYTES),
        block: room(space.block, BLOCK_HEADER_BYTES),
    };
    // A value that would not even fit a block of its own leaves at once, as in the kernel.
    let mut outside: Vec<bool> = xattrs
        .iter()
        .map(|xattr| space.ea_inode && xattr.needs(false) > rooms.block.max(rooms.inode))
        .collect();
    let mut by_size = order.clone();
    by_size.sort_by_key(|position| Reverse(xattrs.get(*position).map_or(0, |x| x.needs(false))));
    loop {
        for order in [&order, &by_size] {
            if let Some(placed) = try_place(xattrs, order, &outside, rooms) {
                let mut placement = Placement { placed };
                sort(&mut placement, xattrs);
                return Ok(placement);
            }
        }
        let next = by_size.iter().copied().find(|position| {
            let inside = outside.get(*position) == Some(&false);
            inside && xattrs.get(*position).is_some_and(|xattr| may_leave(xattr))
        });
        match next.and_then(|position| outside.get_mut(position)) {
            Some(out) if space.ea_inode => *out = true,
            _ => break,
        }
    }
    let wanted = xattrs
        .iter()
        .fold(0u64, |sum, xattr| sum.saturating_add(u64::from(le::narrow(xattr.needs(false)))));
    let (inode, block) = (le::narrow(rooms.inode), le::narrow(rooms.block));
    Err(XattrFault::NoRoom { wanted, inode, block })
}

/// Inline data must be in the inode, and moving an empty value gains nothing.
fn may_leave(xattr: &NewXattr<'_>) -> bool {
    !is_inline_data(xattr) && !xattr.value.is_empty()
}

fn is_inline_data(xattr: &NewXattr<'_>) -> bool {
    xattr.index == NameIndex::SYSTEM && xattr.name == b"data"
}

/// Bytes for entries and values.
#[derive(Clone, Copy)]
struct Rooms {
    inode: usize,
    block: usize,
}

pub(super) fn room(bytes: usize, header: usize) -> usize {
    // Areas are multiples of 4 in length; less would break the alignment of values.
    (bytes & !3).saturating_sub(header).saturating_sub(END_BYTES)
}

/// First fit in the order given; `None` when something is left over.
fn try_place(
    xattrs: &[NewXattr<'_>],
    order: &[usize],
    outside: &[bool],
    mut rooms: Rooms,
) -> Option<Vec<Placed>> {
    let mut placed = Vec::with_capacity(order.len());
    let inline = |position: &usize| xattrs.get(*position).is_some_and(is_inline_data);
    let first = order.iter().filter(|position| inline(position));
    let others = order.iter().filter(|position| !inline(position));
    for position in first.chain(others) {
        let xattr = xattrs.get(*position)?;
        let value_in_inode = outside.get(*position).copied().unwrap_or(false);
        let needs = xattr.needs(value_in_inode);
        let home = if let Some(left) = rooms.inode.checked_sub(needs) {
            rooms.inode = left;
            Home::Inode
        } else if is_inline_data(xattr) {
            return None;
        } else {
            rooms.block = rooms.block.checked_sub(needs)?;
            Home::Block
        };
        placed.push(Placed { xattr: *position, home, value_in_inode });
    }
    Some(placed)
}

/// The inode first, inline data before all else, then by name: the order a block must have.
fn sort(placement: &mut Placement, xattrs: &[NewXattr<'_>]) {
    placement.placed.sort_by_key(|placed| {
        let key = xattrs
            .get(placed.xattr)
            .map(|xattr| (!is_inline_data(xattr), xattr.index, xattr.name.len(), xattr.name));
        (placed.home == Home::Block, key)
    });
}

/// Encodes the attribute space of an inode over `space`; all zero when nothing goes there.
///
/// `value_inode` gives the inode of the value of the attribute at a position of the list, and the
/// value's hash ([`super::value_hash`]); it is asked only for [`Placement::values_in_inodes`].
pub fn encode_inode(
    space: &mut [u8],
    xattrs: &[NewXattr<'_>],
    placement: &Placement,
    value_inode: impl Fn(usize) -> Option<(Ino, u32)>,
) -> Result<(), XattrFault> {
    space.fill(0);
    if placement.of(Home::Inode).next().is_none() {
        return Ok(());
    }
    let found = space.len();
    let (magic, base) = space
        .split_first_chunk_mut::<INODE_HEADER_BYTES>()
        .ok_or(XattrFault::Length { found, wanted: INODE_HEADER_BYTES })?;
    *magic = MAGIC.to_le_bytes();
    put_entries(base, 0, xattrs, placement, Home::Inode, &value_inode)?;
    Ok(())
}

/// Encodes an attribute block over `block`, which will be at `at` and is used by `references`
/// inodes.
///
/// `fs_seed` when the file system has checksums; `value_inode` as in [`encode_inode`]. Returns the
/// block's hash: blocks of equal hash and equal bytes but for the header may be shared.
pub fn encode_block(
    block: &mut [u8],
    (at, references): (FsBlock, u32),
    fs_seed: Option<u32>,
    xattrs: &[NewXattr<'_>],
    placement: &Placement,
    value_inode: impl Fn(usize) -> Option<(Ino, u32)>,
) -> Result<u32, XattrFault> {
    block.fill(0);
    let hashes =
        put_entries(block, BLOCK_HEADER_BYTES, xattrs, placement, Home::Block, &value_inode)?;
    let hash = block_hash(hashes);
    let found = block.len();
    let fault = XattrFault::Length { found, wanted: BLOCK_HEADER_BYTES };
    for (offset, field) in [(0, MAGIC), (4, references), (8, 1), (12, hash)] {
        le::put(block, offset, &field.to_le_bytes()).ok_or(fault)?;
    }
    if let Some(seed) = fs_seed {
        let sum = checksum(seed, at, block);
        le::put(block, CHECKSUM_AT, &sum.to_le_bytes()).ok_or(fault)?;
    }
    Ok(hash)
}

/// Entries from the front, values from the back; the hashes of the entries.
fn put_entries(
    base: &mut [u8],
    start: usize,
    xattrs: &[NewXattr<'_>],
    placement: &Placement,
    home: Home,
    value_inode: &impl Fn(usize) -> Option<(Ino, u32)>,
) -> Result<Vec<u32>, XattrFault> {
    let area = le::narrow(base.len());
    let mut entry_at = start;
    let mut value_end = base.len() & !3;
    let mut hashes = Vec::new();
    for placed in placement.of(home) {
        let position = placed.xattr;
        let past = XattrFault::PastArea { offset: le::narrow(entry_at), area };
        let xattr = xattrs.get(position).ok_or(past)?;
        let len = xattr.value.len();
        let (value_at, ino, hash) = if placed.value_in_inode {
            let (ino, value_hash) =
                value_inode(position).ok_or(XattrFault::NoValueInode { xattr: position })?;
            (0, ino.0, entry_hash_for_inode(xattr.name, value_hash))
        } else {
            let hash = match home {
                Home::Inode => 0,
                Home::Block => entry_hash(xattr.name, xattr.value),
            };
            // An empty value has no place.
            let mut value_at = 0;
            if len > 0 {
                value_end = value_end.checked_sub(value_bytes(len)).ok_or(past)?;
                value_at = value_end;
                le::put(base, value_at, xattr.value).ok_or(past)?;
            }
            (u16::try_from(value_at).map_err(|_| past)?, 0, hash)
        };
        let next = entry_at.saturating_add(entry_bytes(xattr.name.len()));
        if next.saturating_add(END_BYTES) > value_end {
            return Err(past);
        }
        let name_len = u8::try_from(xattr.name.len())
            .map_err(|_| XattrFault::NameLength { found: xattr.name.len() })?;
        let [v0, v1] = value_at.to_le_bytes();
        let [i0, i1, i2, i3] = ino.to_le_bytes();
        let [s0, s1, s2, s3] = le::narrow(len).to_le_bytes();
        let [h0, h1, h2, h3] = hash.to_le_bytes();
        let entry =
            [name_len, xattr.index.0, v0, v1, i0, i1, i2, i3, s0, s1, s2, s3, h0, h1, h2, h3];
        le::put(base, entry_at, &entry).ok_or(past)?;
        le::put(base, entry_at.saturating_add(entry.len()), xattr.name).ok_or(past)?;
        hashes.push(hash);
        entry_at = next;
    }
    Ok(hashes)
}
