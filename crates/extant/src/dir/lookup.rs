//! Looking up one name in one directory.

use std::sync::Arc;

use extant_base::{FileBlock, Ino};
use extant_format::dir::{self, DirLayout};
use extant_format::hash::{HashVersion, name_hash};

use super::damage;
use super::index::IndexWalk;
use super::nokey::Shown;
use crate::casefold::Wanted;
use crate::error::{Fault, FsError, Result};
use crate::limits::NAME_MAX;
use crate::map::{Cursor, FILE_BLOCKS_END, MappingKind};
use crate::slot::MetaBlock;
use crate::view::View;
use crate::xattr::InlineDir;

/// A name to be looked up, as its directory stores names.
enum Target<'a> {
    Plain(Wanted<'a>),
    /// The form that is shown without the key.
    Encrypted(Shown),
    /// A name in an encrypted directory that ignores case, with the key.
    Hidden(Wanted<'a>),
    /// The name `..`, which every kind of directory stores as it is.
    Parent,
}

impl Target<'_> {
    fn matches(&self, stored: &[u8]) -> bool {
        match self {
            Target::Plain(wanted) => !dir::is_dots(stored) && wanted.matches(stored),
            Target::Encrypted(shown) => !dir::is_dots(stored) && shown.matches(stored),
            Target::Hidden(wanted) => !dir::is_dots(stored) && wanted.matches(stored),
            Target::Parent => stored == b"..",
        }
    }
}

/// Damage of an index; the directory can still be searched block by block.
struct IndexDamage;

impl View<'_> {
    /// Searches this version of the directory for `name`. On a writable mount the caller holds the
    /// content lock; the public method is [`Inode::lookup`](crate::Inode::lookup).
    pub(crate) fn search(&self, name: &[u8]) -> Result<Ino> {
        if !self.is_dir() {
            return Err(FsError::NotADirectory { ino: self.ino(), at: None });
        }
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong { len: name.len() });
        }
        if name == b"." {
            return Ok(self.ino());
        }
        let not_found = FsError::NotFound { dir: self.ino(), at: None };
        let stored;
        let target = if name == b".." {
            Target::Parent
        } else if let Some(names) = self.names() {
            if self.is_casefold() {
                Target::Hidden(Wanted::hidden(name, names))
            } else {
                let encrypted = names.encrypt(name, NAME_MAX);
                stored = encrypted.map_err(|_| FsError::NameTooLong { len: name.len() })?;
                Target::Plain(Wanted::new(&stored, false))
            }
        } else if self.is_encrypted() {
            match Shown::parse(name) {
                Some(shown) => Target::Encrypted(shown),
                None => return Err(not_found),
            }
        } else {
            Target::Plain(Wanted::new(name, self.is_casefold()))
        };
        if let Target::Plain(wanted) = &target
            && let Some(ino) = self.overlay_lookup(wanted)
        {
            return Ok(ino);
        }
        let found = if let Some(parent) = self.made_by_overlay() {
            matches!(target, Target::Parent).then_some(parent)
        } else if self.is_inline() {
            self.find_inline(&target)?
        } else {
            match self.find_indexed(&target) {
                Ok(found) => found,
                Err(IndexDamage) => self.find_linear(&target)?,
            }
        };
        let found = found.filter(|ino| match &target {
            Target::Plain(wanted) => !self.overlay_hides(wanted.name, *ino),
            Target::Encrypted(_) | Target::Hidden(..) | Target::Parent => true,
        });
        let ino = found.ok_or(not_found)?;
        if ino.0 > self.volume().inode_count() {
            let rule = "an entry names an inode that the image does not have";
            let limit = u64::from(self.volume().inode_count());
            return Err(damage(self, None, Fault::Field { rule, value: u64::from(ino.0), limit }));
        }
        Ok(ino)
    }

    fn find_inline(&self, target: &Target<'_>) -> Result<Option<Ino>> {
        let InlineDir { parent, areas } = self.inline_dir()?;
        if matches!(target, Target::Parent) {
            return Ok(Some(parent));
        }
        for (_, area) in &areas {
            let found = find_in_area(area, self.dir_layout(), target);
            if let Some(ino) = found.map_err(|fault| damage(self, None, fault))? {
                return Ok(Some(ino));
            }
        }
        Ok(None)
    }

    /// Searches every block. Damage is returned only when the name is in no readable block.
    fn find_linear(&self, target: &Target<'_>) -> Result<Option<Ino>> {
        let volume = self.volume();
        let end = volume.block_size().blocks_for(self.size()).min(FILE_BLOCKS_END);
        let mut cursor = Cursor::new(self);
        let mut first_damage = None;
        let mut at = 0;
        // Rule N2: a directory has at most as many blocks as the file system.
        let mut budget = volume.block_count();
        while at < end && budget > 0 {
            budget -= 1;
            let piece = match cursor.piece(self, at) {
                Ok(piece) => piece,
                Err(error) => {
                    first_damage.get_or_insert(error);
                    break;
                }
            };
            if !matches!(piece.kind, MappingKind::Mapped(_)) {
                at = piece.file_end();
                continue;
            }
            match self.find_in_block(&mut cursor, piece.file_start, target) {
                Ok(Some(ino)) => return Ok(Some(ino)),
                Ok(None) => {}
                Err(error) => {
                    first_damage.get_or_insert(error);
                }
            }
            if matches!(target, Target::Parent) {
                break; // `..` is in the first block.
            }
            at += 1;
        }
        first_damage.map_or(Ok(None), Err)
    }

    fn find_in_block(
        &self,
        cursor: &mut Cursor,
        at: FileBlock,
        target: &Target<'_>,
    ) -> Result<Option<Ino>> {
        let block = self.dir_block(cursor, at)?;
        let found = find_in_area(block.bytes(), self.dir_layout(), target);
        found.map_err(|fault| damage(self, block.number(), fault))
    }

    /// Returns directory block `at`, with its checksum verified.
    pub(super) fn dir_block(&self, cursor: &mut Cursor, at: FileBlock) -> Result<Arc<MetaBlock>> {
        let piece = cursor.piece(self, u64::from(at.0))?;
        let MappingKind::Mapped(device) = piece.kind else {
            let rule = "the directory has a hole";
            let fault = Fault::Field { rule, value: u64::from(at.0), limit: piece.file_end() };
            return Err(damage(self, None, fault));
        };
        let block = self.volume().read_block(device)?;
        block
            .verify_once(self.ino(), |bytes| self.verify_dir_block(at, bytes))
            .map_err(|fault| damage(self, device, fault))?;
        Ok(block)
    }

    /// Searches by hash. The caller works around damage of the index.
    fn find_indexed(&self, target: &Target<'_>) -> Result<Option<Ino>, IndexDamage> {
        let volume = self.volume();
        if !self.has_index() {
            return Err(IndexDamage);
        }
        let mut cursor = Cursor::new(self);
        let walk = IndexWalk::new(self, &mut cursor).map_err(|_| IndexDamage)?;
        let hash = match target {
            Target::Parent => return Ok(Some(walk.parent)),
            Target::Encrypted(shown) if shown.hash().major == 0 => return Err(IndexDamage),
            Target::Encrypted(shown) => shown.hash().major,
            Target::Hidden(wanted) if walk.hash == HashVersion::SipHash => {
                wanted.keyed_hash().ok_or(IndexDamage)?.major
            }
            Target::Hidden(_) => return Err(IndexDamage),
            // Computing this hash needs the key, and only encrypted directories use it.
            Target::Plain(_) if walk.hash == HashVersion::SipHash => return Err(IndexDamage),
            Target::Plain(wanted) => {
                let seed = volume.hash_seed();
                name_hash(walk.hash, &seed, wanted.hashed()).ok_or(IndexDamage)?.major
            }
        };
        let mut descent = walk.descend(&mut cursor, hash).map_err(|_| IndexDamage)?;
        // Bounded by rule N2.
        for _ in 0..volume.block_count() {
            match self.find_in_block(&mut cursor, descent.leaf, target) {
                Ok(None) => {}
                found => return found.map_err(|_| IndexDamage),
            }
            // Names of the same hash may continue in the next leaf, perhaps under the next node.
            if !descent.goes_on(hash) {
                return Ok(None);
            }
            walk.advance(&mut cursor, &mut descent).map_err(|_| IndexDamage)?;
        }
        Err(IndexDamage)
    }
}

/// Returns the inode of the target in a block or inline area.
fn find_in_area(area: &[u8], layout: DirLayout, target: &Target<'_>) -> Result<Option<Ino>, Fault> {
    const NO_ROOM: usize = usize::MAX;
    let scanned = match target {
        // A name to be looked up is neither `.` nor `..`, but might fold to one of them.
        Target::Plain(wanted) if wanted.is_exact() => dir::scan_for_name(area, layout, wanted.name),
        _ => dir::scan(area, layout, NO_ROOM, |stored| target.matches(stored)),
    };
    match scanned.map_err(|fault| Fault::Decode(Box::new(fault)))? {
        dir::Scan::Hit(hit) => Ok(Some(hit.ino)),
        dir::Scan::Miss { .. } => Ok(None),
    }
}
