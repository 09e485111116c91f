//! One name in one directory.

use std::sync::Arc;

use extant_base::{FileBlock, Ino};
use extant_format::dir::DirEntry;
use extant_format::hash::{HashVersion, name_hash};
use extant_format::htree::{Index, IndexLayout, Root};

use super::nokey::Shown;
use super::read::records;
use super::{NAME_MAX, damage};
use crate::casefold::Wanted;
use crate::error::{Fault, FsError, Result};
use crate::inode::{InlineDir, Inode};
use crate::map::{Cursor, FILE_BLOCKS_END, MappingKind};
use crate::slot::MetaBlock;

/// The name looked for, in the way its directory stores names.
enum Target<'a> {
    Plain(Wanted<'a>),
    Encrypted(Shown),
    /// `..`, which is stored as it is in every kind of directory.
    Parent,
}

impl Target<'_> {
    fn matches(&self, entry: &DirEntry<'_>) -> bool {
        match self {
            Target::Plain(wanted) => !entry.is_dots() && wanted.matches(entry.name),
            Target::Encrypted(shown) => !entry.is_dots() && shown.matches(entry.name),
            Target::Parent => entry.name == b"..",
        }
    }
}

/// What went wrong with an index; the directory may still be searched block by block.
struct IndexDamage;

impl Inode {
    /// Searches this version of the directory for `name`. On a writable mount the caller holds the
    /// content lock; the public way in is [`lookup`](Self::lookup).
    pub(crate) fn search(&self, name: &[u8]) -> Result<Ino> {
        if !self.is_dir() {
            return Err(FsError::NotADirectory { ino: self.ino() });
        }
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong { len: name.len() });
        }
        if name == b"." {
            return Ok(self.ino());
        }
        let not_found = FsError::NotFound { dir: self.ino() };
        let target = if name == b".." {
            Target::Parent
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
            Target::Encrypted(_) | Target::Parent => true,
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
            for entry in records(area, self.dir_layout()) {
                let entry = entry.map_err(|fault| damage(self, None, fault))?;
                if target.matches(&entry) {
                    return Ok(Some(entry.ino));
                }
            }
        }
        Ok(None)
    }

    /// Searches every block. Damage is the answer only when the name is in no readable block.
    fn find_linear(&self, target: &Target<'_>) -> Result<Option<Ino>> {
        let volume = self.volume();
        let end = volume.block_size().blocks_for(self.size()).min(FILE_BLOCKS_END);
        let mut cursor = Cursor::new(self);
        let mut first_damage = None;
        let mut at = 0;
        // N2: a directory has at most as many blocks as the file system.
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
        for entry in records(block.bytes(), self.dir_layout()) {
            let entry = entry.map_err(|fault| damage(self, block.number(), fault))?;
            if target.matches(&entry) {
                return Ok(Some(entry.ino));
            }
        }
        Ok(None)
    }

    /// Directory block `at`, its checksum checked.
    fn dir_block(&self, cursor: &mut Cursor, at: FileBlock) -> Result<Arc<MetaBlock>> {
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

    /// Searches by hash. Any trouble with the index itself is for the caller to work around.
    fn find_indexed(&self, target: &Target<'_>) -> Result<Option<Ino>, IndexDamage> {
        let volume = self.volume();
        if !self.is_indexed() || !volume.has_dir_index() {
            return Err(IndexDamage);
        }
        let layout = IndexLayout {
            dir: self.dir_layout(),
            large_dir: volume.has_large_dir(),
            unsigned_hash: volume.unsigned_hash(),
        };
        let blocks = volume.block_size().blocks_for(self.size());
        let blocks = u32::try_from(blocks).map_err(|_| IndexDamage)?;
        let mut cursor = Cursor::new(self);
        let root_block = self.dir_block(&mut cursor, FileBlock(0)).map_err(|_| IndexDamage)?;
        let root = Root::decode(root_block.bytes(), &layout, blocks).map_err(|_| IndexDamage)?;
        let hash = match target {
            Target::Parent => return Ok(Some(root.parent)),
            Target::Encrypted(shown) if shown.hash().major == 0 => return Err(IndexDamage),
            Target::Encrypted(shown) => shown.hash().major,
            // Its key would be needed; only encrypted directories have this hash.
            Target::Plain(_) if root.hash == HashVersion::SipHash => return Err(IndexDamage),
            Target::Plain(wanted) => {
                let seed = volume.hash_seed();
                name_hash(root.hash, &seed, wanted.hashed()).ok_or(IndexDamage)?.major
            }
        };
        // The path to the current leaf: each node with the position taken in it. Its length is
        // the index's depth, which the decoder bounds.
        let levels = usize::from(root.levels);
        let position = root.index.find(hash);
        let mut path: Vec<(Arc<MetaBlock>, FileBlock, usize)> = Vec::with_capacity(levels + 1);
        path.push((Arc::clone(&root_block), FileBlock(0), position));
        let mut by_hash = true;
        // N2.
        for _ in 0..volume.block_count() {
            // Down to a leaf: by hash the first time, to the first one when going on.
            let leaf = loop {
                let Some((block, at, position)) = path.last() else { return Err(IndexDamage) };
                let index = decode_index(block, *at, &layout, blocks)?;
                let child = index.get(*position).ok_or(IndexDamage)?.block;
                if path.len() > levels {
                    break child;
                }
                let node = self.dir_block(&mut cursor, child).map_err(|_| IndexDamage)?;
                let index = decode_index(&node, child, &layout, blocks)?;
                let position = if by_hash { index.find(hash) } else { 0 };
                path.push((node, child, position));
            };
            by_hash = false;
            match self.find_in_block(&mut cursor, leaf, target) {
                Ok(None) => {}
                found => return found.map_err(|_| IndexDamage),
            }
            // Names of the same hash may go on in the next leaf, perhaps under the next node.
            loop {
                let Some((block, at, position)) = path.last_mut() else { return Ok(None) };
                let index = decode_index(block, *at, &layout, blocks)?;
                match index.goes_on(*position, hash) {
                    Some(true) => {
                        *position += 1;
                        break;
                    }
                    Some(false) => return Ok(None),
                    None => {
                        path.pop();
                    }
                }
            }
        }
        Err(IndexDamage)
    }
}

/// The records of an index block: the root for block 0, an inner node else.
fn decode_index<'a>(
    block: &'a MetaBlock,
    at: FileBlock,
    layout: &IndexLayout,
    blocks: u32,
) -> Result<Index<'a>, IndexDamage> {
    let index = if at.0 == 0 {
        Root::decode(block.bytes(), layout, blocks).map(|root| root.index)
    } else {
        Index::decode_inner(block.bytes(), layout, blocks)
    };
    index.map_err(|_| IndexDamage)
}
