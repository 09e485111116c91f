//! Changes of directories: entries inserted, removed and replaced.
//!
//! The caller holds the directory's content lock exclusively and an open transaction. Times, link
//! counts and the version of the directory are the caller's.
//!
//! Names are given as programs know them; an encrypted directory stores its ciphertexts of them,
//! which needs the key.

use std::sync::Arc;

use extant_base::{FileBlock, FsBlock, Ino};
use extant_format::dir::{
    self, BlockWriter, DirFault, DirLayout, FileType, Hit, NewEntry, Room, Scan,
};
use extant_format::features::EncodingFlags;
use extant_format::hash::{HashVersion, NameHash, name_hash};
use extant_format::htree::{self, HtreeFault, NodePlace};

use super::index::IndexWalk;
use super::nokey::Shown;
use super::{damage, grow, inline_edit};
use crate::casefold::Wanted;
use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::map::{self, Cursor, FILE_BLOCKS_END, MappingKind};
use crate::node::Node;
use crate::slot::BlockKind;
use crate::txn::Txn;
use crate::view::View;

/// Credits for an insertion: four new blocks (a leaf, two inner nodes, a level) with their bitmaps
/// and descriptors, the four blocks that were split, the path of the directory's map and its new
/// nodes, the inode's table block, quotas and the superblock.
pub(crate) const INSERT_CREDITS: u32 = 32;

/// Credits for a removal: the leaf, or the inode.
pub(crate) const REMOVE_CREDITS: u32 = 4;

/// A place with room for a name, valid until the directory is changed in another way.
#[derive(Debug)]
pub(crate) struct Place(Spot);

#[derive(Debug)]
enum Spot {
    Block {
        block: FsBlock,
        room: Room,
    },
    /// An area of an inline directory: 0 is in `i_block`, 1 in the attribute.
    Inline {
        area: usize,
        room: Room,
    },
}

/// An existing entry and its place.
#[derive(Debug)]
enum Found {
    Block { block: FsBlock, hit: Hit },
    Inline { area: usize, hit: Hit },
}

impl Found {
    fn hit(&self) -> &Hit {
        match self {
            Found::Block { hit, .. } | Found::Inline { hit, .. } => hit,
        }
    }
}

/// Properties of a directory that its changes depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) layout: DirLayout,
    pub(super) seed: u32,
}

impl Shape {
    pub(super) fn of(view: &View<'_>) -> Shape {
        Shape { layout: view.dir_layout(), seed: view.checksum_seed() }
    }

    /// Returns how a linear block or a leaf is sealed.
    pub(super) fn leaf(&self) -> BlockKind {
        match self.layout.checksum {
            true => BlockKind::DirLeaf { seed: self.seed },
            false => BlockKind::Plain,
        }
    }

    /// Returns how a block of the index is sealed.
    pub(super) fn index(&self, place: NodePlace) -> BlockKind {
        match self.layout.checksum {
            true => BlockKind::DirIndex { seed: self.seed, place },
            false => BlockKind::Plain,
        }
    }

    /// Returns the bytes of a block that hold entries.
    fn entries<'b>(&self, block: &'b mut [u8]) -> &'b mut [u8] {
        let end = self.layout.entry_bytes().min(block.len());
        &mut block[..end]
    }
}

/// Converts the fault of a directory block into an error.
pub(super) fn dir_damage(
    view: &View<'_>,
    block: impl Into<Option<FsBlock>>,
    fault: DirFault,
) -> FsError {
    damage(view, block, Fault::Decode(Box::new(fault)))
}

fn change_fault(dir: &Arc<Node>, block: impl Into<Option<FsBlock>>, fault: DirFault) -> FsError {
    FsError::corrupt("directory", dir.ino(), block, Fault::Decode(Box::new(fault)))
}

/// Returns the hash of a name as in this directory's index.
pub(super) fn hash_of(
    view: &View<'_>,
    version: HashVersion,
    wanted: &Wanted<'_>,
) -> Result<NameHash> {
    let hash = match version {
        HashVersion::SipHash => wanted.keyed_hash(),
        _ => name_hash(version, &view.volume().hash_seed(), wanted.hashed()),
    };
    hash.ok_or(FsError::Encrypted { ino: view.ino(), what: "directory entry names", key: None })
}

/// Creates the contents of a new directory: in the inode if the file system has inline data and the
/// inode has room, else in one block.
pub(crate) fn create(txn: &mut Txn<'_>, fs: &Fs, dir: &Arc<Node>, parent: Ino) -> Result<()> {
    if inline_edit::create(txn, fs, dir, parent)? {
        return Ok(());
    }
    let shape = Shape::of(&fs.view(dir));
    let (_, device) = map::append_block(txn, fs, dir)?;
    let first = |bytes: &mut [u8]| dir::first_block(bytes, shape.layout, dir.ino(), parent, None);
    let made = txn.create_block(device, shape.leaf(), first);
    let made = made.and_then(|made| made.map_err(|fault| change_fault(dir, device, fault)));
    made.map_err(|error| txn.fail(error))
}

/// Moves a directory that lies in its inode to a block.
///
/// # Errors
///
/// As [`prepare_insert`]; nothing has changed then.
pub(crate) fn leave_inode(txn: &mut Txn<'_>, fs: &Fs, dir: &Arc<Node>) -> Result<()> {
    match fs.view(dir).is_inline() {
        true => inline_edit::convert(txn, fs, dir),
        false => Ok(()),
    }
}

/// Makes room for `name`: may move an inline directory to a block, add a block, make an index,
/// split leaves and nodes, add a level. The directory is valid after every step. `is_missing` says
/// that the caller knows that the name does not exist, so that no search is needed.
///
/// # Errors
///
/// [`FsError::Exists`] with the inode of the name; [`FsError::NoSpace`], also when the index cannot
/// get deeper; damage of the blocks that were read, of the index in particular. The directory is
/// unchanged then.
pub(crate) fn prepare_insert(
    txn: &mut Txn<'_>,
    fs: &Fs,
    dir: &Arc<Node>,
    name: &[u8],
    is_missing: bool,
) -> Result<Place> {
    room_for(txn, (fs, dir), name, is_missing, true)?
        .ok_or_else(|| damage(&fs.view(dir), None, Fault::Rule("growing it makes no room")))
}

/// Returns the place that [`prepare_insert`] would return, if the directory need not grow for it;
/// entries of a block may be moved together. `None` when it would have to grow.
///
/// # Errors
///
/// As [`prepare_insert`], but never [`FsError::NoSpace`].
pub(crate) fn find_room(
    txn: &mut Txn<'_>,
    fs: &Fs,
    dir: &Arc<Node>,
    name: &[u8],
    is_missing: bool,
) -> Result<Option<Place>> {
    room_for(txn, (fs, dir), name, is_missing, false)
}

/// Returns a place for `name`; `None` if there is none and the directory must not grow.
fn room_for(
    txn: &mut Txn<'_>,
    (fs, dir): (&Fs, &Arc<Node>),
    name: &[u8],
    is_missing: bool,
    grow: bool,
) -> Result<Option<Place>> {
    let view = fs.view(dir);
    let stored = &*view.stored_name(name)?;
    let mut wanted = view.wanted(name, stored)?;
    wanted.is_missing = is_missing;
    let strict = || fs.volume().superblock().encoding_flags.contains(EncodingFlags::STRICT);
    if view.is_casefold() && wanted.is_unfoldable() && strict() {
        return Err(FsError::InvalidName { what: "it is not UTF-8, which this directory wants" });
    }
    let needs = view.dir_layout().needs(stored.len());
    if view.is_inline() {
        if let Some((area, room)) = inline_edit::prepare(txn, dir, &view, &wanted, needs, grow)? {
            return Ok(Some(Place(Spot::Inline { area, room })));
        }
        if !grow {
            return Ok(None);
        }
        drop(view);
        inline_edit::convert(txn, fs, dir)?;
        return prepare_linear(txn, (fs, dir), fs.view(dir), &wanted, needs, grow);
    }
    if view.has_index() {
        return prepare_indexed(txn, (fs, dir), view, &wanted, needs, grow);
    }
    if view.is_indexed() {
        // The file system lost the feature: the index root must not be read as a list of entries.
        let rule = "it has an index, and the file system has no directory indexes";
        return Err(damage(&view, None, Fault::Rule(rule)));
    }
    prepare_linear(txn, (fs, dir), view, &wanted, needs, grow)
}

fn exists(view: &View<'_>, hit: &Hit) -> FsError {
    FsError::Exists { dir: view.ino(), ino: hit.ino }
}

/// Scans a leaf or linear block for `wanted` and for room.
fn scan_block(
    view: &View<'_>,
    cursor: &mut Cursor,
    at: FileBlock,
    wanted: &Wanted<'_>,
    needs: usize,
) -> Result<(FsBlock, Scan)> {
    let layout = view.dir_layout();
    let block = view.dir_block(cursor, at)?;
    let scanned = dir::entry_area(block.bytes(), layout).and_then(|area| {
        if wanted.is_missing {
            dir::scan_for_room(area, layout, needs)
        } else if wanted.is_exact() && needs == usize::MAX {
            dir::scan_for_name(area, layout, wanted.name)
        } else if wanted.is_exact() {
            dir::scan(area, layout, needs, dir::same_name(wanted.name))
        } else {
            let matches = |stored: &[u8]| !dir::is_dots(stored) && wanted.matches(stored);
            dir::scan(area, layout, needs, matches)
        }
    });
    match scanned {
        Ok(scanned) => Ok((block.number(), scanned)),
        Err(fault) => Err(dir_damage(view, block.number(), fault)),
    }
}

/// Finds room in a directory without an index: the first gap, or a new block, or a new index.
fn prepare_linear(
    txn: &mut Txn<'_>,
    (fs, dir): (&Fs, &Arc<Node>),
    view: View<'_>,
    wanted: &Wanted<'_>,
    needs: usize,
    grow: bool,
) -> Result<Option<Place>> {
    let shape = Shape::of(&view);
    let blocks = view.block_len().min(FILE_BLOCKS_END);
    let mut cursor = Cursor::new(&view);
    let mut place = None;
    let mut used_bytes = 0;
    for at in 0..blocks {
        let at = FileBlock(u32::try_from(at).unwrap_or(u32::MAX));
        let needs = if place.is_some() { usize::MAX } else { needs };
        match scan_block(&view, &mut cursor, at, wanted, needs)? {
            (_, Scan::Hit(hit)) => return Err(exists(&view, &hit)),
            (block, Scan::Miss { room, used }) => {
                place = place.or(room.map(|room| Spot::Block { block, room }));
                used_bytes = used as usize;
            }
        }
        if wanted.is_missing && place.is_some() {
            break;
        }
    }
    if let Some(place) = place {
        return Ok(Some(Place(place)));
    }
    if blocks == 0 {
        return Err(damage(&view, None, Fault::Rule("it has no blocks")));
    }
    // A directory of one block is listed by hash, so its entries may move.
    if blocks == 1 && fs.volume().has_dir_index() {
        if used_bytes + needs <= shape.layout.entry_bytes() {
            let block = grow::compact(txn, &view, &mut cursor, FileBlock(0))?;
            let (_, scanned) =
                scan_block(&view, &mut Cursor::new(&view), FileBlock(0), wanted, needs)?;
            return match scanned {
                Scan::Miss { room: Some(room), .. } => Ok(Some(Place(Spot::Block { block, room }))),
                _ => Err(damage(&view, block, Fault::Rule("compacting it made no room"))),
            };
        }
        if !grow {
            return Ok(None);
        }
        drop(cursor);
        grow::make_index(txn, fs, dir, view)?;
        return prepare_indexed(txn, (fs, dir), fs.view(dir), wanted, needs, grow);
    }
    if !grow {
        return Ok(None);
    }
    drop(view);
    let (_, device) = grow::append(txn, fs, dir)?;
    let empty =
        |bytes: &mut [u8]| BlockWriter::new(bytes, shape.layout).map(|writer| writer.finish(None));
    let made = txn.create_block(device, shape.leaf(), empty);
    let made = made.and_then(|made| made.map_err(|fault| change_fault(dir, device, fault)));
    made.map_err(|error| txn.fail(error))?;
    let rec_len = u32::try_from(shape.layout.entry_bytes()).unwrap_or(u32::MAX);
    Ok(Some(Place(Spot::Block { block: device, room: Room { offset: 0, kept: 0, rec_len } })))
}

/// Limit of the steps until there is room: a level, two nodes, a leaf, and some to spare.
const GROW_STEPS: usize = 12;

/// Finds room in a directory with an index: in the leaf of the name's hash.
fn prepare_indexed(
    txn: &mut Txn<'_>,
    (fs, dir): (&Fs, &Arc<Node>),
    view: View<'_>,
    wanted: &Wanted<'_>,
    needs: usize,
    grow: bool,
) -> Result<Option<Place>> {
    let mut pool = grow::Pool::default();
    let pool_if = grow.then_some(&mut pool);
    let place = prepare_leaf(txn, (fs, dir), view, wanted, needs, pool_if);
    match place {
        Ok(place) if pool.is_empty() => Ok(place),
        Ok(_) => {
            let rule = "splitting it took fewer blocks than it has levels";
            let fault = Fault::Rule(rule);
            Err(txn.fail(FsError::corrupt("directory", dir.ino(), None, fault)))
        }
        // The change is half done, with blocks that are not in the index yet.
        Err(error) if !pool.is_empty() => Err(txn.fail(error)),
        Err(error) => Err(error),
    }
}

fn prepare_leaf<'g>(
    txn: &mut Txn<'_>,
    (fs, dir): (&'g Fs, &'g Arc<Node>),
    mut view: View<'g>,
    wanted: &Wanted<'_>,
    needs: usize,
    mut pool: Option<&mut grow::Pool>,
) -> Result<Option<Place>> {
    for step in 0..GROW_STEPS {
        let mut cursor = Cursor::new(&view);
        let walk = IndexWalk::new(&view, &mut cursor)?;
        let hash = hash_of(&view, walk.hash, wanted)?.major;
        let descent = walk.descend(&mut cursor, hash)?;
        let (block, scanned) = scan_block(&view, &mut cursor, descent.leaf, wanted, needs)?;
        let (room, used) = match scanned {
            Scan::Hit(hit) => return Err(exists(&view, &hit)),
            Scan::Miss { room, used } => (room, used as usize),
        };
        if step == 0 && !wanted.is_missing && descent.goes_on(hash) {
            let mut further = descent;
            // Bounded by rule N2.
            for _ in 0..fs.volume().block_count() {
                if !further.goes_on(hash) || !walk.advance(&mut cursor, &mut further)? {
                    break;
                }
                let found = scan_block(&view, &mut cursor, further.leaf, wanted, usize::MAX)?;
                if let (_, Scan::Hit(hit)) = found {
                    return Err(exists(&view, &hit));
                }
            }
        }
        if let Some(room) = room {
            return Ok(Some(Place(Spot::Block { block, room })));
        }
        if used + needs <= view.dir_layout().entry_bytes() {
            grow::compact(txn, &view, &mut cursor, descent.leaf)?;
            continue;
        }
        let Some(pool) = pool.as_deref_mut() else { return Ok(None) };
        let version = walk.hash;
        drop((walk, cursor));
        view = grow::grow(txn, fs, dir, view, version, &descent, pool)?;
    }
    Err(damage(&view, None, Fault::Rule("splitting its leaves makes no room")))
}

/// Stores an entry in its prepared place.
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
    let (shape, stored) = (Shape::of(&view), view.stored_name(name)?);
    let hash = match shape.layout.stored_hash {
        true => Some(hash_of(&view, HashVersion::SipHash, &view.wanted(name, &stored)?)?),
        false => None,
    };
    drop(view);
    let entry = NewEntry { ino, name: &stored, file_type, hash };
    match place.0 {
        Spot::Block { block, room } => {
            let put =
                |bytes: &mut [u8]| dir::insert_at(shape.entries(bytes), shape.layout, room, &entry);
            let done = txn.edit_block(block, shape.leaf(), put)?;
            done.map_err(|fault| change_fault(dir, block, fault))
        }
        Spot::Inline { area, room } => inline_edit::change(txn, dir, area, |bytes| {
            dir::insert_at(bytes, shape.layout, room, &entry)
        }),
    }
}

/// Removes the entry of `name`. An emptied block stays, for later names.
pub(crate) fn remove(
    txn: &mut Txn<'_>,
    fs: &Fs,
    dir: &Arc<Node>,
    name: &[u8],
) -> Result<(Ino, FileType)> {
    let (shape, found) = find(fs, dir, name)?;
    match &found {
        Found::Block { block, hit } => {
            let cut = |bytes: &mut [u8]| dir::remove_at(shape.entries(bytes), shape.layout, hit);
            let done = txn.edit_block(*block, shape.leaf(), cut)?;
            done.map_err(|fault| change_fault(dir, *block, fault))?;
        }
        Found::Inline { area, hit } => {
            inline_edit::change(txn, dir, *area, |bytes| dir::remove_at(bytes, shape.layout, hit))?
        }
    }
    Ok((found.hit().ino, found.hit().file_type))
}

/// Makes `name` refer to another inode; returns the earlier one.
pub(crate) fn replace(
    txn: &mut Txn<'_>,
    fs: &Fs,
    dir: &Arc<Node>,
    name: &[u8],
    ino: Ino,
    file_type: FileType,
) -> Result<Ino> {
    let (shape, found) = find(fs, dir, name)?;
    match &found {
        Found::Block { block, hit } => {
            let set = |bytes: &mut [u8]| {
                dir::set_target_at(shape.entries(bytes), shape.layout, hit, ino, file_type)
            };
            let done = txn.edit_block(*block, shape.leaf(), set)?;
            done.map_err(|fault| change_fault(dir, *block, fault))?;
        }
        Found::Inline { area, hit } => inline_edit::change(txn, dir, *area, |bytes| {
            dir::set_target_at(bytes, shape.layout, hit, ino, file_type)
        })?,
    }
    Ok(found.hit().ino)
}

/// Finds the entry of `name`: through a valid index, else block by block.
fn find(fs: &Fs, dir: &Arc<Node>, name: &[u8]) -> Result<(Shape, Found)> {
    let view = fs.view(dir);
    let shape = Shape::of(&view);
    // Without the key a name is removed by the form in which it is shown. A cipher may be left of a
    // key that was removed.
    let is_locked = view.is_encrypted() && view.names().is_none();
    let stored = match view.stored_name(name) {
        Err(FsError::Encrypted { .. }) => return Ok((shape, find_shown(&view, name)?)),
        other => other?,
    };
    let wanted = view.wanted(name, &stored)?;
    let found = if view.is_inline() {
        let found = inline_edit::find(&view, &wanted)?;
        found.map(|(area, hit)| Found::Inline { area, hit })
    } else if view.has_index() {
        match find_indexed(&view, &wanted) {
            Ok(found) => found,
            Err(_) => find_linear(&view, &wanted)?,
        }
    } else {
        find_linear(&view, &wanted)?
    };
    match found {
        Some(found) => Ok((shape, found)),
        None if is_locked => Ok((shape, find_shown(&view, name)?)),
        None => Err(FsError::NotFound { dir: dir.ino(), at: None }),
    }
}

fn find_indexed(view: &View<'_>, wanted: &Wanted<'_>) -> Result<Option<Found>> {
    let mut cursor = Cursor::new(view);
    let walk = IndexWalk::new(view, &mut cursor)?;
    let hash = hash_of(view, walk.hash, wanted)?.major;
    let mut descent = walk.descend(&mut cursor, hash)?;
    // Bounded by rule N2.
    for _ in 0..view.volume().block_count() {
        let leaf = descent.leaf;
        if let (block, Scan::Hit(hit)) = scan_block(view, &mut cursor, leaf, wanted, usize::MAX)? {
            return Ok(Some(Found::Block { block, hit }));
        }
        if !descent.goes_on(hash) || !walk.advance(&mut cursor, &mut descent)? {
            break;
        }
    }
    Ok(None)
}

/// Finds the entry of a name in an encrypted directory whose key is not there.
fn find_shown(view: &View<'_>, name: &[u8]) -> Result<Found> {
    let missing = FsError::NotFound { dir: view.ino(), at: None };
    let Some(shown) = Shown::parse(name) else { return Err(missing) };
    let layout = view.dir_layout();
    let mut cursor = Cursor::new(view);
    let mut first_damage = None;
    for at in 0..view.block_len().min(FILE_BLOCKS_END).min(view.volume().block_count()) {
        let at = FileBlock(u32::try_from(at).unwrap_or(u32::MAX));
        let scanned = view.dir_block(&mut cursor, at).and_then(|block| {
            let matches = |stored: &[u8]| !dir::is_dots(stored) && shown.matches(stored);
            let scanned = dir::entry_area(block.bytes(), layout)
                .and_then(|area| dir::scan(area, layout, usize::MAX, matches));
            let number = block.number();
            scanned.map(|scan| (number, scan)).map_err(|fault| dir_damage(view, number, fault))
        });
        match scanned {
            Ok((block, Scan::Hit(hit))) => return Ok(Found::Block { block, hit }),
            Ok(_) => {}
            Err(error) => {
                first_damage.get_or_insert(error);
            }
        }
    }
    Err(first_damage.unwrap_or(missing))
}

fn find_linear(view: &View<'_>, wanted: &Wanted<'_>) -> Result<Option<Found>> {
    let mut cursor = Cursor::new(view);
    let mut first_damage = None;
    for at in 0..view.block_len().min(FILE_BLOCKS_END).min(view.volume().block_count()) {
        let at = FileBlock(u32::try_from(at).unwrap_or(u32::MAX));
        match scan_block(view, &mut cursor, at, wanted, usize::MAX) {
            Ok((block, Scan::Hit(hit))) => return Ok(Some(Found::Block { block, hit })),
            Ok(_) => {}
            Err(error) => {
                first_damage.get_or_insert(error);
            }
        }
    }
    first_damage.map_or(Ok(None), Err)
}

/// Makes `..` refer to `parent`.
pub(crate) fn set_parent(txn: &mut Txn<'_>, fs: &Fs, dir: &Arc<Node>, parent: Ino) -> Result<()> {
    let view = fs.view(dir);
    if view.is_inline() {
        drop(view);
        return inline_edit::set_parent(txn, dir, parent);
    }
    let shape = Shape::of(&view);
    let mut cursor = Cursor::new(&view);
    let first = view.dir_block(&mut cursor, FileBlock(0))?;
    let block = first.number();
    let is_root = view.has_index() && IndexWalk::new(&view, &mut cursor).is_ok();
    if is_root {
        let layout = view.index_layout();
        drop((first, cursor, view));
        let set = |bytes: &mut [u8]| htree::set_root_parent(bytes, &layout, parent);
        let done = txn.edit_block(block, shape.index(NodePlace::Root), set)?;
        let fail = |fault: HtreeFault| {
            FsError::corrupt("directory", dir.ino(), block, Fault::Decode(Box::new(fault)))
        };
        return done.map_err(fail);
    }
    let scanned = dir::entry_area(first.bytes(), shape.layout)
        .and_then(|area| dir::scan(area, shape.layout, usize::MAX, |stored| stored == b".."));
    let hit = match scanned.map_err(|fault| dir_damage(&view, block, fault))? {
        Scan::Hit(hit) => hit,
        Scan::Miss { .. } => {
            return Err(damage(&view, block, Fault::Rule("its first block has no `..`")));
        }
    };
    drop((first, cursor, view));
    let set = |bytes: &mut [u8]| {
        let area = shape.entries(bytes);
        dir::set_target_at(area, shape.layout, &hit, parent, FileType::Directory)
    };
    let done = txn.edit_block(block, shape.leaf(), set)?;
    done.map_err(|fault| change_fault(dir, block, fault))
}

/// Returns whether the directory has no entries besides `.` and `..`.
///
/// # Errors
///
/// Damage, when the readable part has no entry.
pub(crate) fn is_empty(fs: &Fs, dir: &Arc<Node>) -> Result<bool> {
    let view = fs.view(dir);
    let layout = view.dir_layout();
    let any = |stored: &[u8]| !dir::is_dots(stored);
    if view.is_inline() {
        for (_, area) in view.inline_dir()?.areas {
            let scanned = dir::scan(&area, layout, usize::MAX, any);
            if let Scan::Hit(_) = scanned.map_err(|fault| dir_damage(&view, None, fault))? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    let mut cursor = Cursor::new(&view);
    let mut first_damage = None;
    let mut at = 0;
    let end = view.block_len().min(FILE_BLOCKS_END);
    // Bounded by rule N2.
    for _ in 0..fs.volume().block_count() {
        if at >= end {
            break;
        }
        let piece = cursor.piece(&view, at)?;
        if !matches!(piece.kind, MappingKind::Mapped(_)) {
            at = piece.file_end();
            continue;
        }
        let scanned = view.dir_block(&mut cursor, piece.file_start).and_then(|block| {
            let scanned = dir::scan(block.bytes(), layout, usize::MAX, any);
            scanned.map_err(|fault| dir_damage(&view, block.number(), fault))
        });
        match scanned {
            Ok(Scan::Hit(_)) => return Ok(false),
            Ok(Scan::Miss { .. }) => {}
            Err(error) => {
                first_damage.get_or_insert(error);
            }
        }
        at += 1;
    }
    first_damage.map_or(Ok(true), Err)
}
