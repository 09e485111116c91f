//! A copy of an image without the contents of its files.
//!
//! What is copied is what is known to be metadata; all else is a hole. So nothing depends on knowing every way in which
//! contents can lie somewhere: what nobody leads to is not copied.

use std::collections::BTreeSet;

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_block::{BlockDevice, DeviceError};
use extant_format::extent::ExtentState;
use extant_format::features::{Compat, Feature, Incompat};
use extant_format::group::GroupFlags;
use extant_format::indirect;
use extant_format::inline::PARENT_BYTES;
use extant_format::inode::{FileKind, Inode, InodeFlags};
use extant_format::jbd2::{JournalSuperblock, Tid};
use extant_format::mmp::{MMP_BYTES, Mmp};
use extant_format::record::{self, Record};
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_format::xattr::{self, NameIndex, Value};
use extant_format::{dir, inode};
use extant_layout::Heads;

use crate::image::Image;
use crate::limits::{Budget, XATTR_BYTES_MAX};
use crate::map::{Piece, is_node};
use crate::scramble::{
    Names, filler, is_index_node, is_private, rename_all, revalue, without_index,
};
use crate::tables::each_descriptor;

/// Things that are named because they could not be followed; the others are counted.
const NAMED_MAX: usize = 1000;
/// Where the time of the last read is in an inode: that of a value has its hash there.
const ATIME: usize = 8;
/// Bytes of a block of the journal that are its superblock.
const JOURNAL_BYTES: usize = JournalSuperblock::BYTES;

/// How a copy is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopyOptions {
    /// Other names, targets of links, values of attributes and labels in the place of those that are there.
    pub scramble: bool,
}

/// What a copy came to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Copied {
    /// Blocks that were copied, those of zeros left out.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names that were replaced.
    pub names: u64,
    /// What could not be followed, in sentences.
    pub left: Vec<String>,
    /// How many more there are.
    pub more_left: u64,
}

/// Copies the metadata of an image to a device of zeros, at least as long as the image.
///
/// `stop` is asked now and then: when it says yes, the copy is none, and `None` is returned.
///
/// A journal that was brought in when the image was opened is empty in the copy; nothing else of a log is copied.
///
/// # Errors
///
/// Those of writing to `out`. What cannot be read of the image is no error: it is named.
pub fn copy_metadata(
    image: &Image,
    out: &dyn BlockDevice,
    options: &CopyOptions,
    stop: &dyn Fn() -> bool,
) -> Result<Option<Copied>, DeviceError> {
    let mut copier = Copier {
        image,
        out,
        scramble: options.scramble,
        budget: Budget::of(image.blocks),
        shared: BTreeSet::new(),
        copied: Copied::default(),
    };
    copier.heads()?;
    copier.bitmaps()?;
    for group in 0..image.tables.len() as u32 {
        if !copier.table(group, stop)? {
            return Ok(None);
        }
    }
    Ok(Some(copier.copied))
}

type Done<T = ()> = Result<T, DeviceError>;

/// What the blocks of a file are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holds {
    /// Contents: nothing of them is copied.
    Contents,
    /// Metadata as a whole.
    All,
    Journal,
    Entries,
    Target,
    Value,
}

struct Copier<'a> {
    image: &'a Image,
    out: &'a dyn BlockDevice,
    scramble: bool,
    budget: Budget,
    /// Blocks of attributes that were copied: several inodes have the same.
    shared: BTreeSet<u64>,
    copied: Copied,
}

impl Copier<'_> {
    fn left(&mut self, what: impl Into<String>) {
        if self.copied.left.len() < NAMED_MAX {
            self.copied.left.push(what.into());
        } else {
            self.copied.more_left += 1;
        }
    }

    fn read(&mut self, block: u64, what: &str) -> Option<Vec<u8>> {
        if !self.budget.node() {
            self.left(format!("{what}: more blocks than the image has"));
            return None;
        }
        let read = self.image.read_block(block).ok();
        if read.is_none() {
            self.left(format!("{what}: block {block} cannot be read"));
        }
        read
    }

    /// Writes a block, unless it is one of zeros: that is a hole already.
    fn put(&mut self, block: u64, bytes: &[u8]) -> Done {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        self.copied.blocks += 1;
        self.copied.bytes += bytes.len() as u64;
        self.out.write_at(block.saturating_mul(self.image.block_bytes() as u64), bytes)
    }

    fn copy(&mut self, block: u64, what: &str) -> Done {
        match self.read(block, what) {
            Some(bytes) => self.put(block, &bytes),
            None => Ok(()),
        }
    }

    /// Superblocks and descriptors, and the block of multi-mount protection.
    fn heads(&mut self) -> Done {
        let heads = Heads::of(&self.image.sb);
        for group in heads.groups() {
            if group.0 as usize >= self.image.tables.len() {
                break;
            }
            let head = heads.head(group);
            if let Some(block) = head.super_block {
                let home = block.saturating_mul(self.image.block_bytes() as u64);
                let at = if group.0 == 0 { SUPERBLOCK_OFFSET } else { home };
                self.superblock(group, at)?;
            }
            for block in head.gdt {
                self.copy(block, "group descriptors")?;
            }
        }
        let sb = &self.image.sb;
        if !sb.features.has_incompat(Incompat::MMP) || sb.mmp_block.0 == 0 {
            return Ok(());
        }
        let block = sb.mmp_block.0;
        let Some(mut bytes) = self.read(block, "multi-mount protection") else { return Ok(()) };
        bytes.iter_mut().skip(MMP_BYTES).for_each(|byte| *byte = 0);
        if self.scramble {
            let seed = self.image.layout.checksum_seed;
            let Ok(mut mmp) = Mmp::decode(seed, &bytes) else {
                self.left("multi-mount protection: it is damaged");
                return Ok(());
            };
            (mmp.node_name, mmp.device_name) = ([0; 64], [0; 32]);
            record::put(&mut bytes, 0, &mmp.encode(seed));
        }
        self.put(block, &bytes)
    }

    fn superblock(&mut self, group: GroupIndex, at: u64) -> Done {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        if self.image.device.read_at(at, &mut bytes).is_err() {
            self.left(format!("the superblock of group {group} cannot be read"));
            return Ok(());
        }
        match Superblock::decode_unverified(&bytes) {
            Ok(mut sb) => {
                let before = sb.clone();
                if self.image.is_replayed && group.0 == 0 {
                    sb.features.remove(Feature::RECOVER);
                    // A mount counts them anew, too: the log has them only now and then.
                    (sb.free_blocks_count, sb.free_inodes_count) = self.free();
                }
                if self.scramble {
                    for text in [&mut sb.volume_name[..], &mut sb.last_mounted[..]] {
                        let len = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
                        text.fill(0);
                        record::put(text, 0, &filler(len));
                    }
                    sb.raw.s_mount_opts = [0; 64];
                }
                if sb != before {
                    bytes = sb.encode();
                }
            }
            Err(_) if self.scramble => {
                self.left(format!("the superblock of group {group} is none"));
                return Ok(());
            }
            Err(_) => {}
        }
        self.copied.blocks += 1;
        self.copied.bytes += bytes.len() as u64;
        self.out.write_at(at, &bytes)
    }

    /// What the descriptors say is free: blocks and inodes.
    fn free(&self) -> (u64, u32) {
        let image = self.image;
        let (mut clusters, mut inodes) = (0u64, 0u32);
        let shape = (image.blocks, image.tables.len() as u32);
        each_descriptor(&*image.device, &image.sb, shape, &mut |_, descriptor| {
            if let Some((descriptor, _)) = descriptor {
                clusters = clusters.saturating_add(u64::from(descriptor.free_clusters));
                inodes = inodes.saturating_add(descriptor.free_inodes);
            }
        });
        let blocks = clusters.saturating_mul(u64::from(image.sb.cluster_ratio().max(1)));
        (blocks.min(image.sb.blocks_count), inodes.min(image.sb.inodes_count))
    }

    fn bitmaps(&mut self) -> Done {
        let image = self.image;
        let mut places = Vec::new();
        let mut result = Ok(());
        let shape = (image.blocks, image.tables.len() as u32);
        each_descriptor(&*image.device, &image.sb, shape, &mut |group, descriptor| {
            let Some((descriptor, is_right)) = descriptor.filter(|(_, is_right)| *is_right) else {
                self.left(format!("the bitmaps of group {group}: its descriptor is damaged"));
                return;
            };
            let has_flags = is_right && image.sb.features.group_checksums();
            places.clear();
            if !(has_flags && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT)) {
                places.push(descriptor.block_bitmap.0);
            }
            if !(has_flags && descriptor.flags.contains(GroupFlags::INODE_UNINIT)) {
                places.push(descriptor.inode_bitmap.0);
            }
            for block in &places {
                if result.is_ok() {
                    result = self.copy(*block, "a bitmap");
                }
            }
        });
        result
    }

    /// The inode table of a group, and all that its inodes lead to. False: it was stopped.
    fn table(&mut self, group: u32, stop: &dyn Fn() -> bool) -> Done<bool> {
        let image = self.image;
        let Some(table) = image.tables.get(group as usize).copied() else { return Ok(true) };
        if table.start == 0 {
            if table.inodes > 0 {
                self.left(format!("the inodes of group {group}: nobody knows where they are"));
            }
            return Ok(true);
        }
        let size = usize::from(image.sb.inode_size).max(inode::BASE_BYTES);
        let per_block = (image.block_bytes() / size).max(1) as u32;
        let first = group.wrapping_mul(image.sb.inodes_per_group).wrapping_add(1);
        let mut at = 0;
        while at < table.inodes {
            if stop() {
                return Ok(false);
            }
            let block = table.start.saturating_add(u64::from(at / per_block));
            if let Some(mut bytes) = self.read(block, "an inode table") {
                for (slot, raw) in bytes.chunks_exact_mut(size).enumerate() {
                    let number = at.saturating_add(slot as u32);
                    if number >= table.inodes {
                        // Never written by this file system.
                        raw.fill(0);
                        continue;
                    }
                    if raw.iter().all(|byte| *byte == 0) {
                        continue;
                    }
                    let ino = Ino(first.wrapping_add(number));
                    let mut record = Record { ino, bytes: raw.to_vec() };
                    self.inode(&mut record)?;
                    raw.copy_from_slice(&record.bytes);
                }
                self.put(block, &bytes)?;
            }
            at = at.saturating_add(per_block);
        }
        Ok(true)
    }

    /// An inode that is not empty: what it leads to is copied, and what it holds of contents becomes zeros.
    fn inode(&mut self, record: &mut Record) -> Done {
        let image = self.image;
        let before = record.bytes.clone();
        let is_reserved = record.ino.0 < image.sb.first_inode.0 && record.ino != Ino::ROOT;
        // Orphans have no links, and the next one in the place of a time.
        let is_deleted = record.links() == 0 && record.u32(record::DTIME) > image.sb.inodes_count;
        let was_sealed = image.is_sealed(record);
        if is_reserved || (record.kind().is_some() && !is_deleted) {
            self.copied.inodes += 1;
            self.copied.directories += u64::from(record.is_dir());
            self.in_use(record)?;
        } else {
            record.set_block_area(&[0; 60]);
            let at = record.xattr_at();
            if let Some(rest) = record.bytes.get_mut(at..) {
                rest.fill(0);
            }
        }
        if record.bytes != before && was_sealed {
            // It is as long as a record.
            let _ = Inode::seal(&image.layout, record.ino, &mut record.bytes);
        }
        Ok(())
    }

    fn in_use(&mut self, record: &mut Record) -> Done {
        let image = self.image;
        let is_encrypted = record.has(InodeFlags::ENCRYPT);
        let is_casefold = record.has(InodeFlags::CASEFOLD);
        let mut names = Names::of(record.ino, is_casefold);
        let kind = record.kind();
        let is_fast = kind == Some(FileKind::Symlink)
            && record.size() < 60
            && !record.flags().intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA);
        if record.has(InodeFlags::INLINE_DATA) {
            self.inline_head(record, &mut names, is_encrypted);
        } else if is_fast {
            if self.scramble && !is_encrypted {
                let mut area = [0; 60];
                record::put(&mut area, 0, &filler(record.size() as usize));
                record.set_block_area(&area);
            }
        } else if matches!(kind, Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink))
            || record.ino.0 < image.sb.first_inode.0
        {
            self.map(record, &mut names)?;
        }
        self.attributes(record, &mut names)?;
        if self.scramble && kind == Some(FileKind::Directory) && !is_encrypted {
            record.set_flag(InodeFlags::INDEX, false);
        }
        if self.scramble && record.has(InodeFlags::EA_INODE) {
            let len = record.size().min(u64::from(XATTR_BYTES_MAX)) as usize;
            record.put32(ATIME, xattr::value_hash(image.seed, &filler(len)));
        }
        Ok(())
    }

    /// The data in `i_block`.
    fn inline_head(&mut self, record: &mut Record, names: &mut Names, is_encrypted: bool) {
        let mut area = record.block_area();
        match record.kind() {
            Some(FileKind::Directory) if self.scramble && !is_encrypted => {
                let entries = area.get_mut(PARENT_BYTES..).unwrap_or(&mut []);
                let renamed = rename_all(entries, self.image.dirs, names);
                self.note_names(record.ino, renamed);
            }
            Some(FileKind::Symlink) if self.scramble && !is_encrypted => {
                area = [0; 60];
                record::put(&mut area, 0, &filler(record.size().min(60) as usize));
            }
            Some(FileKind::Directory | FileKind::Symlink) => {}
            _ => area = [0; 60],
        }
        record.set_block_area(&area);
    }

    fn note_names(&mut self, ino: Ino, renamed: crate::scramble::Renamed) {
        self.copied.names += renamed.names;
        if renamed.is_cut {
            self.left(format!("directory {ino}: entries behind damage, or of too short a name"));
        }
    }

    fn holds(&self, record: &Record) -> Holds {
        let sb = &self.image.sb;
        match record.kind() {
            _ if record.ino == sb.journal_inode && sb.features.has_compat(Compat::HAS_JOURNAL) => {
                Holds::Journal
            }
            _ if self.image.is_system(record.ino) => match record.ino {
                // The list of bad blocks, the boot loader, the reserve of descriptors and their kind.
                ino if ino.0 < sb.first_inode.0 && !self.is_quota(ino) => Holds::Contents,
                _ => Holds::All,
            },
            Some(FileKind::Directory) => Holds::Entries,
            Some(FileKind::Symlink) => Holds::Target,
            Some(FileKind::Regular) if record.has(InodeFlags::EA_INODE) => Holds::Value,
            _ => Holds::Contents,
        }
    }

    fn is_quota(&self, ino: Ino) -> bool {
        let sb = &self.image.sb;
        let quota = [sb.user_quota_inode, sb.group_quota_inode, sb.project_quota_inode];
        sb.features.has(Feature::QUOTA) && quota.contains(&ino)
    }

    /// The map of a file, and its blocks where they are metadata.
    fn map(&mut self, record: &mut Record, names: &mut Names) -> Done {
        let image = self.image;
        let holds = self.holds(record);
        let mut budget = self.budget;
        let mut result = Ok(());
        let mut pieces = Vec::new();
        // The walk reads, and what it finds is written afterwards, a few pieces at a time.
        image.walk_map(record, &mut budget, &mut |piece| {
            match piece {
                Piece::Data { .. } if holds == Holds::Contents => return true,
                // The holes of a file that is as sparse as it likes.
                Piece::Doubt { .. } | Piece::Unwritten { .. } => return true,
                _ => pieces.push(piece),
            }
            if pieces.len() >= 256 {
                result = self.pieces(record, names, holds, &mut pieces);
            }
            result.is_ok()
        });
        result?;
        self.pieces(record, names, holds, &mut pieces)?;
        self.budget.take_nodes_of(&budget);
        Ok(())
    }

    fn pieces(
        &mut self,
        record: &Record,
        names: &mut Names,
        holds: Holds,
        pieces: &mut Vec<Piece>,
    ) -> Done {
        let ino = record.ino;
        for piece in pieces.drain(..) {
            match piece {
                Piece::Doubt { .. } | Piece::Unwritten { .. } => {}
                Piece::Lost { from, why, .. } => {
                    self.left(format!("inode {ino}, from block {from} on: {}", why.text(1)));
                }
                Piece::Node { block } => self.node(record, block)?,
                Piece::Data { extent } if extent.state == ExtentState::Written => {
                    for number in 0..extent.len.0 {
                        let block = extent.device_start.0 + u64::from(number);
                        let at = u64::from(extent.file_start.0) + u64::from(number);
                        self.data(record, names, holds, block, at)?;
                        if holds == Holds::Journal {
                            break;
                        }
                    }
                }
                Piece::Data { .. } => {}
            }
        }
        Ok(())
    }

    /// A block of a map. One of numbers has nothing by which it can be told: it is copied if its numbers can be.
    fn node(&mut self, record: &Record, block: u64) -> Done {
        let Some(bytes) = self.read(block, "a map") else { return Ok(()) };
        let is_one = match record.has(InodeFlags::EXTENTS) {
            true => is_node(&bytes),
            false => {
                let (mut inside, mut outside) = (0u32, 0u32);
                for number in indirect::blocks(&bytes).flatten() {
                    match self.image.in_range(number.0, 1) {
                        true => inside += 1,
                        false => outside += 1,
                    }
                }
                outside <= inside / 8
            }
        };
        if !is_one {
            self.left(format!("inode {}: block {block} of its map is none", record.ino));
            return Ok(());
        }
        self.put(block, &bytes)
    }

    /// A block of a file whose blocks are metadata.
    fn data(
        &mut self,
        record: &Record,
        names: &mut Names,
        holds: Holds,
        block: u64,
        at: u64,
    ) -> Done {
        if holds == Holds::Journal && at != 0 {
            return Ok(());
        }
        let Some(mut bytes) = self.read(block, "a file of the file system") else { return Ok(()) };
        let is_open = self.scramble && !record.has(InodeFlags::ENCRYPT);
        match holds {
            Holds::Contents => return Ok(()),
            Holds::All => {}
            Holds::Journal => self.journal(&mut bytes),
            Holds::Entries if is_open => self.entries(record, names, &mut bytes, at),
            Holds::Entries => {}
            Holds::Target | Holds::Value if is_open => {
                let len = bytes.len() as u64;
                let (from, size) = (at.saturating_mul(len), record.size());
                let all = filler(size.min(u64::from(XATTR_BYTES_MAX)) as usize);
                bytes.fill(0);
                let from = usize::try_from(from).unwrap_or(usize::MAX);
                let part = all.get(from..).unwrap_or(&[]);
                record::put(&mut bytes, 0, part.get(..part.len().min(len as usize)).unwrap_or(&[]));
            }
            Holds::Target | Holds::Value => {
                // What lies behind the end is nobody's.
                let from = at.saturating_mul(bytes.len() as u64);
                let there = usize::try_from(record.size().saturating_sub(from));
                bytes.iter_mut().skip(there.unwrap_or(usize::MAX)).for_each(|byte| *byte = 0);
            }
        }
        self.put(block, &bytes)
    }

    /// The journal's own superblock; of a log that was brought in, an empty one.
    fn journal(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().skip(JOURNAL_BYTES).for_each(|byte| *byte = 0);
        let Ok(mut sb) = JournalSuperblock::decode(bytes) else {
            self.left("the journal: its superblock is none");
            bytes.fill(0);
            return;
        };
        if self.image.is_replayed && sb.start != 0 {
            // Behind all numbers that the log had.
            sb.sequence = Tid(sb.sequence.0.wrapping_add(1 << 16));
            (sb.start, sb.head) = (0, 0);
            // It has the length that encoding needs.
            let _ = sb.encode(bytes);
        }
    }

    fn entries(&mut self, record: &Record, names: &mut Names, bytes: &mut [u8], at: u64) {
        let layout = self.image.dirs;
        let seed = self.image.seed_of(record);
        if record.has(InodeFlags::INDEX) && (at == 0 || is_index_node(bytes, layout)) {
            without_index(bytes, layout, at == 0);
            dir::seal(seed, bytes);
            return;
        }
        let was_sealed = layout.checksum && dir::verify(seed, bytes).is_ok();
        let renamed = rename_all(bytes, layout, names);
        self.note_names(record.ino, renamed);
        if was_sealed && !renamed.is_cut {
            dir::seal(seed, bytes);
        }
    }

    /// Attributes in the inode and in its block. Data in the inode is one of them.
    fn attributes(&mut self, record: &mut Record, names: &mut Names) -> Done {
        let image = self.image;
        let at = record.xattr_at();
        let space = record.bytes.get(at..).unwrap_or(&[]).to_vec();
        let is_encrypted = record.has(InodeFlags::ENCRYPT);
        let is_inline = record.has(InodeFlags::INLINE_DATA);
        let (kind, size, ino) = (record.kind(), record.size(), record.ino);
        let scramble = self.scramble;
        let mut renamed = None;
        let mut value = |entry: &xattr::XattrEntry<'_>| {
            let len = match entry.value {
                Value::Here(value) => value.len(),
                Value::InInode { len, .. } => len.min(XATTR_BYTES_MAX) as usize,
            };
            if entry.index == NameIndex::SYSTEM && entry.name == b"data" && is_inline {
                let Value::Here(old) = entry.value else { return None };
                return match kind {
                    Some(FileKind::Directory) if scramble && !is_encrypted => {
                        let mut new = old.to_vec();
                        renamed = Some(rename_all(&mut new, image.dirs, names));
                        Some(new)
                    }
                    Some(FileKind::Symlink) if scramble && !is_encrypted => {
                        let all = filler(size.min(60 + len as u64) as usize);
                        let mut new = all.get(60..).unwrap_or(&[]).to_vec();
                        new.resize(len, 0);
                        Some(new)
                    }
                    Some(FileKind::Directory | FileKind::Symlink) => None,
                    _ => Some(vec![0; len]),
                };
            }
            let is_inside = matches!(entry.value, Value::InInode { .. });
            (scramble && (is_inside || is_private(entry))).then(|| filler(len))
        };
        let new = match xattr::decode_inode(&space) {
            Ok(Some(area)) if scramble || is_inline => {
                let base = space.get(xattr::INODE_HEADER_BYTES..).unwrap_or(&[]);
                let base = revalue(base, 0, &area, image.seed, &mut value);
                let mut new = space.get(..xattr::INODE_HEADER_BYTES).unwrap_or(&[]).to_vec();
                new.extend(base);
                Some(new)
            }
            Ok(Some(_)) => None,
            Ok(None) if scramble => Some(vec![0; space.len()]),
            Ok(None) => None,
            Err(_) if scramble || is_inline => {
                self.left(format!("inode {ino}: its attributes are damaged"));
                Some(vec![0; space.len()])
            }
            Err(_) => None,
        };
        if let Some(new) = new {
            record::put(&mut record.bytes, at, &new);
        }
        if let Some(renamed) = renamed {
            self.note_names(ino, renamed);
        }
        let block = record.file_acl(image.is_wide()).0;
        if block == 0 || !self.shared.insert(block) {
            return Ok(());
        }
        self.attribute_block(ino, block)
    }

    fn attribute_block(&mut self, ino: Ino, block: u64) -> Done {
        let image = self.image;
        let Some(mut bytes) = self.read(block, "attributes") else { return Ok(()) };
        let new = match xattr::decode_block(&bytes) {
            Err(_) => {
                self.left(format!("inode {ino}: block {block} of its attributes is damaged"));
                return Ok(());
            }
            Ok(_) if !self.scramble => None,
            Ok((header, area)) => {
                let mut value = |entry: &xattr::XattrEntry<'_>| {
                    let len = match entry.value {
                        Value::Here(value) => value.len(),
                        Value::InInode { len, .. } => len.min(XATTR_BYTES_MAX) as usize,
                    };
                    let is_inside = matches!(entry.value, Value::InInode { .. });
                    (is_inside || is_private(entry)).then(|| filler(len))
                };
                let start = xattr::BLOCK_HEADER_BYTES;
                Some((header.hash, revalue(&bytes, start, &area, image.seed, &mut value)))
            }
        };
        if let Some((hash, new)) = new {
            let was_sealed = image.has_checksums()
                && xattr::verify_block(image.seed, FsBlock(block), &bytes).is_ok();
            bytes = new;
            if hash != 0
                && let Ok((_, area)) = xattr::decode_block(&bytes)
            {
                let hash = xattr::block_hash(area.entries().map(|entry| entry.hash));
                record::put(&mut bytes, 12, &hash.to_le_bytes());
            }
            if was_sealed {
                xattr::seal(image.seed, FsBlock(block), &mut bytes);
            }
        }
        self.put(block, &bytes)
    }
}
