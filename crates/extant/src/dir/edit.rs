//! Changes of directories: entries inserted, removed and replaced, room made for them.
//! (First shape: linear directories.)

use std::sync::Arc;

use extant_base::{FileBlock, FsBlock, Ino};
use extant_format::dir::{self, FileType, NewEntry};

use crate::error::{Fault, FsError, Result};
use crate::inode::Inode;
use crate::map::{self, Cursor, MappingKind};
use crate::mount::Fs;
use crate::node::Node;
use crate::slot::BlockKind;
use crate::txn::Txn;

/// Blocks that an insertion changes at most.
pub(crate) const INSERT_CREDITS: u32 = 32;

/// Blocks that a removal changes at most.
pub(crate) const REMOVE_CREDITS: u32 = 4;

/// Where there is room for a name.
#[derive(Debug)]
pub(crate) struct Place {
    block: FsBlock,
}

fn kind(view: &Inode) -> BlockKind {
    match view.volume().has_metadata_csum() {
        true => BlockKind::DirLeaf { seed: view.checksum_seed() },
        false => BlockKind::Plain,
    }
}

fn broken(dir: &Node, fault: dir::DirFault) -> FsError {
    FsError::corrupt("directory", dir.ino(), None, Fault::Decode(Box::new(fault)))
}

/// Calls `visit` with each block until it gives an answer.
fn each_block<R>(
    view: &Inode,
    mut visit: impl FnMut(FsBlock, &[u8]) -> Result<Option<R>>,
) -> Result<Option<R>> {
    let blocks = view.block_len();
    let mut cursor = Cursor::new(view);
    for at in 0..blocks {
        let piece = cursor.piece(view, at)?;
        let MappingKind::Mapped(block) = piece.kind else { continue };
        let bytes = view.volume().read_block(block)?;
        if let Some(answer) = visit(block, bytes.bytes())? {
            return Ok(Some(answer));
        }
    }
    Ok(None)
}

pub(crate) fn create(txn: &mut Txn<'_>, fs: &Fs, dir: &Arc<Node>, parent: Ino) -> Result<()> {
    let (_, block): (FileBlock, FsBlock) = map::append_block(txn, fs, dir)?;
    let view = fs.view(dir);
    let layout = view.dir_layout();
    let filled = txn.create_block(block, kind(&view), |bytes| {
        dir::first_block(bytes, layout, dir.ino(), parent, None)
    })?;
    filled.map_err(|fault| broken(dir, fault))
}

pub(crate) fn prepare_insert(
    txn: &mut Txn<'_>,
    fs: &Fs,
    dir: &Arc<Node>,
    name: &[u8],
) -> Result<Place> {
    let view = fs.view(dir);
    let layout = view.dir_layout();
    match view.search(name) {
        Ok(ino) => return Err(FsError::Exists { dir: dir.ino(), ino }),
        Err(FsError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let entry = NewEntry { ino: Ino(1), name, file_type: FileType::Regular, hash: None };
    let found = each_block(&view, |block, bytes| {
        let mut copy = bytes.to_vec();
        let room = dir::insert(&mut copy, layout, &entry).map_err(|fault| broken(dir, fault))?;
        Ok(room.map(|_| Place { block }))
    })?;
    if let Some(place) = found {
        return Ok(place);
    }
    drop(view);
    let (_, block) = map::append_block(txn, fs, dir)?;
    let view = fs.view(dir);
    let made = txn.create_block(block, kind(&view), |bytes| {
        dir::BlockWriter::new(bytes, layout).map(|writer| writer.finish(None))
    })?;
    made.map_err(|fault| broken(dir, fault))?;
    Ok(Place { block })
}

pub(crate) fn insert(
    txn: &mut Txn<'_>,
    fs: &Fs,
    dir: &Arc<Node>,
    place: Place,
    name: &[u8],
    ino: Ino,
    file_type: FileType,
) -> Result<()> {
    let view = fs.view(dir);
    let layout = view.dir_layout();
    let entry = NewEntry { ino, name, file_type, hash: None };
    let done = txn.edit_block(place.block, kind(&view), |bytes| dir::insert(bytes, layout, &entry));
    match done?.map_err(|fault| broken(dir, fault))? {
        Some(_) => Ok(()),
        None => {
            let fault = Fault::Rule("the room for an entry is gone");
            Err(FsError::corrupt("directory", dir.ino(), place.block, fault))
        }
    }
}

fn locate(view: &Inode, name: &[u8]) -> Result<(FsBlock, u32, Ino, FileType)> {
    let layout = view.dir_layout();
    let found = each_block(view, |block, bytes| {
        let entry = dir::find(bytes, layout, name).map_err(|fault| broken(view.node(), fault))?;
        Ok(entry.map(|entry| (block, entry.offset, entry.ino, entry.file_type)))
    })?;
    found.ok_or(FsError::NotFound { dir: view.ino() })
}

pub(crate) fn remove(
    txn: &mut Txn<'_>,
    fs: &Fs,
    dir: &Arc<Node>,
    name: &[u8],
) -> Result<(Ino, FileType)> {
    let view = fs.view(dir);
    let layout = view.dir_layout();
    let (block, offset, ino, file_type) = locate(&view, name)?;
    txn.edit_block(block, kind(&view), |bytes| dir::remove(bytes, layout, offset))?
        .map_err(|fault| broken(dir, fault))?;
    Ok((ino, file_type))
}

pub(crate) fn replace(
    txn: &mut Txn<'_>,
    fs: &Fs,
    dir: &Arc<Node>,
    name: &[u8],
    ino: Ino,
    file_type: FileType,
) -> Result<Ino> {
    let view = fs.view(dir);
    let layout = view.dir_layout();
    let (block, offset, old, _) = locate(&view, name)?;
    txn.edit_block(block, kind(&view), |bytes| {
        dir::set_target(bytes, layout, offset, ino, file_type)
    })?
    .map_err(|fault| broken(dir, fault))?;
    Ok(old)
}

pub(crate) fn set_parent(txn: &mut Txn<'_>, fs: &Fs, dir: &Arc<Node>, parent: Ino) -> Result<()> {
    replace(txn, fs, dir, b"..", parent, FileType::Directory).map(|_| ())
}

pub(crate) fn is_empty(fs: &Fs, dir: &Arc<Node>) -> Result<bool> {
    let view = fs.view(dir);
    let layout = view.dir_layout();
    let other = each_block(&view, |_, bytes| {
        for entry in dir::Records::of_area(bytes, layout).used() {
            let entry = entry.map_err(|fault| broken(dir, fault))?;
            if !entry.is_dots() {
                return Ok(Some(()));
            }
        }
        Ok(None)
    })?;
    Ok(other.is_none())
}
