//! Changes of directories inside their inode, and moving them to a block when they outgrow it.
//!
//! The first area of entries is in `i_block`, the second is the value of `system.data`. The value
//! grows as names need it, while the inode has room; the directory's size includes it.

use std::sync::Arc;

use extant_base::Ino;
use extant_format::dir::{self, BlockWriter, DirFault, FileType, Hit, NewEntry, Room, Scan};
use extant_format::extent;
use extant_format::features::Incompat;
use extant_format::inline::{BLOCK_BYTES, InlineDir, PARENT_BYTES, build_dir};
use extant_format::inode::InodeFlags;
use extant_format::xattr::{AttributeSet, NameIndex, Stored, XattrFault};

use super::damage;
use super::edit::{Shape, dir_damage};
use crate::casefold::Wanted;
use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::inline;
use crate::map;
use crate::node::{InodeData, Node};
use crate::txn::Txn;
use crate::view::View;

const NAME: &[u8] = b"data";

fn xattr_damage(ino: Ino, fault: XattrFault) -> FsError {
    FsError::corrupt("extended attributes", ino, None, Fault::Decode(Box::new(fault)))
}

fn change_fault(dir: &Node, fault: DirFault) -> FsError {
    FsError::corrupt("directory", dir.ino(), None, Fault::Decode(Box::new(fault)))
}

/// Returns the attributes in the inode.
fn attributes(data: &mut InodeData) -> Result<AttributeSet> {
    let ino = data.ino;
    AttributeSet::read(data.xattr_space_mut(), None).map_err(|fault| xattr_damage(ino, fault))
}

/// Sets the value of `system.data`. Returns false, with nothing changed, when the inode has no room
/// for it.
fn store_value(data: &mut InodeData, value: Vec<u8>) -> Result<bool> {
    let size = (BLOCK_BYTES + value.len()) as u64;
    if !inline::store_value(data, value)? {
        return Ok(false);
    }
    data.record.size = size;
    Ok(true)
}

fn value_of(data: &mut InodeData) -> Result<Vec<u8>> {
    let mut set = attributes(data)?;
    match set.remove(NameIndex::SYSTEM, NAME).map(|attribute| attribute.value) {
        Some(Stored::Here(value)) => Ok(value),
        _ => {
            let fault = Fault::Rule("it is inline, and has no inline value");
            Err(FsError::corrupt("directory", data.ino, None, fault))
        }
    }
}

/// Creates the contents of a new directory inside its inode; returns false, with nothing changed,
/// when the file system has no inline data or the inode no room.
pub(super) fn create(txn: &mut Txn<'_>, fs: &Fs, dir: &Arc<Node>, parent: Ino) -> Result<bool> {
    let is_encrypted = dir.gist().flags.contains(InodeFlags::ENCRYPT);
    if is_encrypted || !fs.volume().features().has_incompat(Incompat::INLINE_DATA) {
        return Ok(false);
    }
    let layout = fs.view(dir).dir_layout();
    let Ok((area, _)) = build_dir(parent, [], layout, BLOCK_BYTES) else { return Ok(false) };
    txn.update(dir, |data| {
        if !store_value(data, Vec::new())? {
            return Ok(false);
        }
        data.set_block_area(area);
        data.record.flags = (data.record.flags | InodeFlags::INLINE_DATA) - InodeFlags::EXTENTS;
        Ok(true)
    })?
}

/// Scans both areas for `wanted`.
pub(super) fn find(view: &View<'_>, wanted: &Wanted<'_>) -> Result<Option<(usize, Hit)>> {
    match scan(view, wanted, usize::MAX)? {
        Scanned::Hit(area, hit) => Ok(Some((area, hit))),
        Scanned::Miss(_) => Ok(None),
    }
}

enum Scanned {
    Hit(usize, Hit),
    Miss(Option<(usize, Room)>),
}

fn scan(view: &View<'_>, wanted: &Wanted<'_>, needs: usize) -> Result<Scanned> {
    let layout = view.dir_layout();
    let mut place = None;
    for (number, (_, area)) in view.inline_dir()?.areas.iter().enumerate() {
        let needs = if place.is_some() { usize::MAX } else { needs };
        let matches = |stored: &[u8]| !dir::is_dots(stored) && wanted.matches(stored);
        match dir::scan(area, layout, needs, matches) {
            Ok(Scan::Hit(hit)) => return Ok(Scanned::Hit(number, hit)),
            Ok(Scan::Miss { room, .. }) => place = place.or(room.map(|room| (number, room))),
            Err(fault) => return Err(dir_damage(view, None, fault)),
        }
    }
    Ok(Scanned::Miss(place))
}

/// Finds room for `wanted` in one of the areas; the second one may grow for it if `grow`. `None`
/// when the directory has to move to a block, or must not grow.
pub(super) fn prepare(
    txn: &mut Txn<'_>,
    dir: &Arc<Node>,
    view: &View<'_>,
    wanted: &Wanted<'_>,
    needs: usize,
    grow: bool,
) -> Result<Option<(usize, Room)>> {
    match scan(view, wanted, needs)? {
        Scanned::Hit(_, hit) => return Err(FsError::Exists { dir: dir.ino(), ino: hit.ino }),
        Scanned::Miss(Some(place)) => return Ok(Some(place)),
        Scanned::Miss(None) if !grow => return Ok(None),
        Scanned::Miss(None) => {}
    }
    let Ok(rec_len) = u16::try_from(needs) else { return Ok(None) };
    txn.update(dir, |data| -> Result<_> {
        let mut value = value_of(data)?;
        let offset = u32::try_from(value.len()).unwrap_or(u32::MAX);
        // Add one free record.
        value.extend([0; 4]);
        value.extend(rec_len.to_le_bytes());
        value.resize(offset as usize + needs, 0);
        let room = Room { offset, kept: 0, rec_len: u32::from(rec_len) };
        Ok(store_value(data, value)?.then_some((1, room)))
    })?
}

/// Changes one of the areas in place.
pub(super) fn change(
    txn: &mut Txn<'_>,
    dir: &Arc<Node>,
    area: usize,
    change: impl FnOnce(&mut [u8]) -> Result<(), DirFault>,
) -> Result<()> {
    txn.update(dir, |data| {
        if area == 0 {
            let mut block = data.record.block;
            change(&mut block[PARENT_BYTES..]).map_err(|fault| change_fault(dir, fault))?;
            data.set_block_area(block);
            return Ok(());
        }
        let mut value = value_of(data)?;
        change(&mut value).map_err(|fault| change_fault(dir, fault))?;
        match store_value(data, value)? {
            true => Ok(()),
            false => {
                let fault = Fault::Rule("its inline value does not fit where it was");
                Err(FsError::corrupt("directory", dir.ino(), None, fault))
            }
        }
    })?
}

/// Sets the parent of the directory.
pub(super) fn set_parent(txn: &mut Txn<'_>, dir: &Arc<Node>, parent: Ino) -> Result<()> {
    txn.update(dir, |data| {
        let mut block = data.record.block;
        block[..PARENT_BYTES].copy_from_slice(&parent.0.to_le_bytes());
        data.set_block_area(block);
    })
}

/// Moves the directory to a block.
pub(super) fn convert(txn: &mut Txn<'_>, fs: &Fs, dir: &Arc<Node>) -> Result<()> {
    let view = fs.view(dir);
    let shape = Shape::of(&view);
    let old = dir.data();
    let value = value_of(&mut InodeData::clone(&old))?;
    let inline = InlineDir::new(view.i_block(), &value, shape.layout);
    let mut block = vec![0; shape.layout.block_size.len()];
    let mut writer = BlockWriter::new(&mut block, shape.layout)
        .map_err(|fault| dir_damage(&view, None, fault))?;
    let dots = [(dir.ino(), b".".as_slice()), (inline.parent(), b"..".as_slice())];
    let dots = dots
        .map(|(ino, name)| Ok(NewEntry { ino, name, file_type: FileType::Directory, hash: None }));
    let others = inline.used().map(|entry| {
        let entry = entry?;
        let (ino, name, file_type) = (entry.ino, entry.name, entry.file_type);
        Ok(NewEntry { ino, name, file_type, hash: None })
    });
    for entry in dots.into_iter().chain(others) {
        match entry.and_then(|entry: NewEntry<'_>| writer.push(&entry)) {
            Ok(true) => {}
            Ok(false) => return Err(damage(&view, None, Fault::Rule("it does not fit a block"))),
            Err(fault) => return Err(dir_damage(&view, None, fault)),
        }
    }
    writer.finish(None);
    drop(view);
    let extents = fs.volume().features().has_incompat(Incompat::EXTENTS);
    let mapped = txn.update(dir, |data| -> Result<()> {
        let mut set = attributes(data)?;
        set.remove(NameIndex::SYSTEM, NAME);
        let ino = data.ino;
        let space = data.xattr_space_mut();
        set.encode_inode(space).map_err(|fault| xattr_damage(ino, fault))?;
        data.record.flags -= InodeFlags::INLINE_DATA;
        data.record.size = 0;
        if extents {
            data.record.flags |= InodeFlags::EXTENTS;
            data.set_block_area(extent::empty_root());
        } else {
            data.set_block_area([0; BLOCK_BYTES]);
        }
        Ok(())
    })?;
    mapped?;
    let device = match map::append_block(txn, fs, dir) {
        Ok((_, device)) => device,
        Err(error) => {
            let restored = txn.update(dir, |data| *data = InodeData::clone(&old));
            restored.map_err(|broken| txn.fail(broken))?;
            return Err(error);
        }
    };
    let made = txn.create_block(device, shape.leaf(), |bytes| bytes.copy_from_slice(&block));
    made.map_err(|error| txn.fail(error))
}
