//! Iterating over all entries of a directory.

use std::fmt;
use std::sync::Arc;

use extant_base::{FileBlock, FsBlock, Ino};
use extant_crypt::NamesCipher;
use extant_format::dir::{self, DirLayout, FileType, Records, decode_entry};
use extant_format::hash::NameHash;
use extant_format::inode::FileKind;

use super::list::{self, Item, OwnedEntry};
use super::{damage, is_plain, nokey};
use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::inode::Inode;
use crate::map::{Cursor, FILE_BLOCKS_END, MappingKind};
use crate::node::InodeData;
use crate::view::View;

/// Limit of the bytes of a directory held at once.
const BATCH_BYTES: usize = 128 << 10;

/// First cookie of entries that only a fast commit has; no directory is this large.
const OVERLAY_COOKIES: u64 = 1 << 62;

/// One entry of a directory.
#[derive(Clone)]
pub struct DirEntry {
    fs: Fs,
    dir: Ino,
    name: Box<[u8]>,
    ino: Ino,
    file_type: FileType,
    cookie: u64,
}

impl DirEntry {
    /// Returns the name, without `/` and NUL. In an encrypted directory without its key, the form
    /// that Linux shows.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the inode number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Returns the file kind in the entry; `None` without the feature `filetype`. It is a hint:
    /// [`Inode::kind`] is authoritative.
    pub fn kind(&self) -> Option<FileKind> {
        Some(match self.file_type {
            FileType::Unknown => return None,
            FileType::Regular => FileKind::Regular,
            FileType::Directory => FileKind::Directory,
            FileType::CharDevice => FileKind::CharDevice,
            FileType::BlockDevice => FileKind::BlockDevice,
            FileType::Fifo => FileKind::Fifo,
            FileType::Socket => FileKind::Socket,
            FileType::Symlink => FileKind::Symlink,
        })
    }

    /// Returns the position behind this entry; see [`ReadDir::seek`].
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Returns a handle of the inode.
    ///
    /// # Errors
    ///
    /// Those of [`Fs::inode`]. An entry that names an inode which is not in use is damage of the
    /// directory.
    pub fn inode(&self) -> Result<Inode> {
        let node = self.fs.entry_node(self.dir, self.ino)?;
        self.fs.handle(&node)
    }
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirEntry")
            .field("name", &String::from_utf8_lossy(&self.name))
            .field("ino", &self.ino.0)
            .field("kind", &self.kind())
            .finish()
    }
}

/// An iterator over the entries of a directory; see [`Inode::read_dir`].
///
/// A damaged block is one `Err` item; the listing continues with the next block.
pub struct ReadDir {
    inode: Inode,
    /// The version of the directory on a read-only mount.
    data: Arc<InodeData>,
    layout: DirLayout,
    with_dots: bool,
    /// Hash function for encrypted names, if their displayed form includes the hash.
    shown_hash: bool,
    /// The cipher of encrypted names, with the key.
    names: Option<Arc<NamesCipher>>,
    source: Source,
    /// Entries that a fast commit added, last to first.
    added: Vec<(Box<[u8]>, Ino, u64)>,
}

enum Source {
    Blocks(Blocks),
    /// The areas of an inline directory, with their offsets in the listing, and the position.
    Inline {
        areas: Vec<(u64, Vec<u8>)>,
        at: u64,
        sought: bool,
        dots: Vec<(&'static [u8], Ino)>,
    },
    /// A directory that may change; see `list`.
    Live(Live),
    /// The listing is complete.
    Done,
}

/// A listing on a writable mount.
struct Live {
    /// Position of the next batch; `None` at the end.
    at: Option<u64>,
    items: std::vec::IntoIter<Item>,
    damage: Option<FsError>,
    /// Whether the index is invalid; determined at the first step.
    broken_index: Option<bool>,
}

impl Live {
    fn from(cookie: u64) -> Live {
        let items = Vec::new().into_iter();
        Live { at: Some(cookie), items, damage: None, broken_index: None }
    }
}

struct Blocks {
    /// Offset of the next record from the start of the directory, in bytes.
    at: u64,
    /// Number of file blocks of the directory.
    end: u64,
    cursor: Cursor,
    /// Blocks that were read and are not finished.
    batch: Vec<u8>,
    batch_start: u64,
    batch_device: FsBlock,
    /// Whether `at` came from a caller, so that it may lie inside a record.
    sought: bool,
    /// The block whose checksum was verified last.
    checked: Option<u64>,
    /// Number of further blocks that may be read (N2).
    budget: u64,
}

impl Inode {
    /// Returns an iterator over the entries of a directory, without `.` and `..`.
    ///
    /// On a read-only mount the order is the stored one. On a writable mount the directory may
    /// change meanwhile: it is listed in order of hash (or, if it has several blocks and no index,
    /// in stored order), so that an entry that exists all the time is listed once, and cookies stay
    /// valid when entries move. Cookies of the two kinds of mount differ.
    ///
    /// Memory is bounded by 128 KiB, and the work by the number of blocks of the file system.
    ///
    /// # Errors
    ///
    /// [`FsError::NotADirectory`]; damage of an inline directory. Damage of blocks is reported by
    /// the iterator.
    pub fn read_dir(&self) -> Result<ReadDir> {
        if !self.is_dir() {
            return Err(FsError::NotADirectory { ino: self.ino(), at: None });
        }
        let volume = self.volume();
        let data = self.node().data();
        let view = View::of(self.fs(), self.node(), Arc::clone(&data));
        let block_size = volume.block_size();
        let dots_only = |parent| {
            let dots = vec![(b"..".as_slice(), parent), (b".".as_slice(), self.ino())];
            Source::Inline { areas: Vec::new(), at: 0, sought: false, dots }
        };
        let source = if volume.is_writable() {
            Source::Live(Live::from(0))
        } else if let Some(parent) = view.made_by_overlay() {
            dots_only(parent)
        } else if self.is_inline() {
            let inline = view.inline_dir()?;
            let dots = vec![(b"..".as_slice(), inline.parent), (b".".as_slice(), self.ino())];
            Source::Inline { areas: inline.areas, at: 0, sought: false, dots }
        } else {
            let end = block_size.blocks_for(self.size()).min(FILE_BLOCKS_END);
            Source::Blocks(Blocks {
                at: 0,
                end,
                cursor: Cursor::new(&view),
                batch: Vec::new(),
                batch_start: 0,
                batch_device: FsBlock(0),
                sought: false,
                checked: None,
                budget: volume.block_count(),
            })
        };
        let one_block = self.size() <= u64::from(block_size.bytes());
        let mut added: Vec<_> = view
            .overlay_added()
            .into_iter()
            .enumerate()
            .map(|(n, (name, ino))| (name, ino, OVERLAY_COOKIES + n as u64 + 1))
            .collect();
        added.reverse();
        Ok(ReadDir {
            inode: self.clone(),
            layout: view.dir_layout(),
            data,
            with_dots: false,
            // Linux lists indexed directories, and those that would be if they had two blocks, by
            // hash, and then includes the hash in the displayed name; for others the hash is 0.
            shown_hash: volume.has_dir_index()
                && (self.is_indexed() || one_block || self.is_inline()),
            source,
            added,
            names: view.names(),
        })
    }
}

impl ReadDir {
    /// Sets whether `.` and `..` are listed, if the directory has them.
    #[must_use]
    pub fn with_dots(mut self, with_dots: bool) -> ReadDir {
        self.with_dots = with_dots;
        self
    }

    /// Continues after the entry with this cookie; 0 is the start. With a cookie that no entry had,
    /// the listing continues at a nearby entry. Cookies are below 2^63.
    #[must_use]
    pub fn seek(mut self, cookie: u64) -> ReadDir {
        match &mut self.source {
            Source::Blocks(blocks) => (blocks.at, blocks.sought) = (cookie, true),
            Source::Inline { at, sought, dots, .. } => {
                (*at, *sought) = (cookie, true);
                dots.truncate(2usize.saturating_sub(usize::try_from(cookie).unwrap_or(2)));
            }
            Source::Live(live) => {
                *live = Live::from(cookie);
                return self;
            }
            Source::Done => {}
        }
        if cookie > OVERLAY_COOKIES {
            self.source = Source::Done;
            self.added.retain(|(_, _, own)| *own > cookie);
        }
        self
    }

    /// Frees the buffer; the next step reads its blocks again.
    pub(crate) fn release_buffer(&mut self) {
        if let Source::Blocks(blocks) = &mut self.source {
            blocks.batch = Vec::new();
        }
    }

    fn view(&self) -> View<'_> {
        View::of(self.inode.fs(), self.inode.node(), Arc::clone(&self.data))
    }

    fn damage(&self, block: Option<FsBlock>, fault: Fault) -> FsError {
        damage(&self.view(), block, fault)
    }

    /// Returns the listing's entry for a stored one; `None` when it is not listed.
    fn accept(&self, entry: &dir::DirEntry<'_>, block: Option<FsBlock>, cookie: u64) -> Step {
        if !entry.is_used() {
            return Step::Skip;
        }
        let inode = &self.inode;
        let fail = |fault| Step::Item(Err(self.damage(block, fault)));
        if entry.is_dots() {
            if !self.with_dots {
                // Who walks a tree would take names of another directory for those of this one. Who lists it gets to
                // see the entry, as in Linux.
                if entry.name == b"." && entry.ino != inode.ino() {
                    let rule = "its entry '.' names another inode";
                    let (value, limit) = (u64::from(entry.ino.0), u64::from(inode.ino().0));
                    return fail(Fault::Field { rule, value, limit });
                }
                return Step::Skip;
            }
        } else if inode.is_encrypted() {
            if entry.name.is_empty() {
                return fail(Fault::Rule("an entry has an empty name"));
            }
        } else if !is_plain(entry.name) {
            return fail(Fault::Rule("an entry has an empty name, or one with '/' or NUL in it"));
        }
        if self.view().overlay_hides(entry.name, entry.ino) {
            return Step::Skip; // Removed, or listed at the end with what it means now.
        }
        if entry.ino.0 > inode.volume().inode_count() {
            let rule = "an entry names an inode that the image does not have";
            let limit = u64::from(inode.volume().inode_count());
            return fail(Fault::Field { rule, value: u64::from(entry.ino.0), limit });
        }
        let name = match &self.names {
            _ if entry.is_dots() || !inode.is_encrypted() => entry.name.into(),
            None => nokey::show(entry.name, self.hash_shown_with(entry)).into(),
            Some(names) => match names.decrypt(entry.name).filter(|name| is_plain(name)) {
                Some(name) => name.into(),
                None => return fail(Fault::Rule("an encrypted name is not one with this key")),
            },
        };
        Step::Item(Ok(self.entry(name, entry.ino, entry.file_type, cookie)))
    }

    fn entry(&self, name: Box<[u8]>, ino: Ino, file_type: FileType, cookie: u64) -> DirEntry {
        let (fs, dir) = (self.inode.fs().clone(), self.inode.ino());
        DirEntry { fs, dir, name, ino, file_type, cookie }
    }

    fn hash_shown_with(&self, entry: &dir::DirEntry<'_>) -> NameHash {
        match entry.hash {
            Some(hash) => hash,
            None if self.shown_hash => self.inode.volume().default_hash(entry.name),
            None => NameHash::default(),
        }
    }

    fn step_inline(&mut self) -> Option<Step> {
        // The source is taken out while entries borrow from it, and put back at the end.
        let mut source = std::mem::replace(&mut self.source, Source::Done);
        let step = self.step_areas(&mut source);
        self.source = source;
        step
    }

    fn step_areas(&self, source: &mut Source) -> Option<Step> {
        let Source::Inline { areas, at, sought, dots } = source else { return None };
        if let Some((name, ino)) = dots.pop() {
            let cookie = 2 - dots.len() as u64;
            *at = cookie;
            let skip = !self.with_dots;
            let entry = self.entry(name.into(), ino, FileType::Directory, cookie);
            return Some(if skip { Step::Skip } else { Step::Item(Ok(entry)) });
        }
        let position = *at;
        let (start, area) =
            areas.iter().find(|(start, area)| position < start + area.len() as u64)?;
        // Positions before an area lead to its first record.
        let mut offset = usize::try_from(position.saturating_sub(*start)).ok()?;
        if std::mem::take(sought) {
            offset = first_record_from(area, offset, self.layout);
        }
        if offset >= area.len() {
            *at = start + area.len() as u64;
            return Some(Step::Skip);
        }
        match decode_entry(area, offset, self.layout) {
            Ok(record) => {
                let next = start + u64::from(record.offset) + u64::from(record.rec_len);
                *at = next;
                Some(self.accept(&record, None, next))
            }
            Err(fault) => {
                let next = start + area.len() as u64;
                *at = next;
                let fault = Fault::Decode(Box::new(fault));
                Some(Step::Item(Err(self.damage(None, fault))))
            }
        }
    }

    fn step_live(&mut self) -> Option<Step> {
        let Source::Live(live) = &mut self.source else { return None };
        if let Some(item) = live.items.next() {
            let Item { cookie, entry, .. } = item;
            let OwnedEntry { name, ino, file_type, hash, block } = entry;
            let name = &*name;
            let (rec_len, offset, stored_type) = (0, 0, file_type.raw());
            let entry = dir::DirEntry { ino, name, file_type, stored_type, rec_len, offset, hash };
            return Some(self.accept(&entry, block, cookie));
        }
        if let Some(damage) = live.damage.take() {
            return Some(Step::Item(Err(damage)));
        }
        let at = live.at?;
        let broken_index = &mut live.broken_index;
        let batch = self.inode.locked(|view| {
            let broken = *broken_index.get_or_insert_with(|| list::has_broken_index(view));
            list::batch(view, at, broken)
        });
        match batch {
            Ok(batch) => {
                (live.at, live.damage) = (batch.next, batch.damage);
                live.items = batch.items.into_iter();
                Some(Step::Skip)
            }
            Err(error) => {
                live.at = None; // Where the damage ends is not known.
                Some(Step::Item(Err(error)))
            }
        }
    }

    fn step_blocks(&mut self) -> Option<Step> {
        let mut source = std::mem::replace(&mut self.source, Source::Done);
        let step = match &mut source {
            Source::Blocks(blocks) => self.step_in_blocks(blocks),
            _ => None,
        };
        self.source = source;
        step
    }

    fn step_in_blocks(&self, blocks: &mut Blocks) -> Option<Step> {
        let block_size = self.layout.block_size;
        let block = blocks.at >> block_size.log2();
        if block >= blocks.end {
            return None;
        }
        match blocks.load(&self.view(), block) {
            Ok(true) => {}
            Ok(false) => return Some(Step::Skip),
            Err(error) => {
                return Some(Step::Item(Err(error)));
            }
        }
        let into_batch = usize::try_from(block - blocks.batch_start).ok()? << block_size.log2();
        let bytes = blocks.batch.get(into_batch..into_batch + block_size.len())?;
        let device = blocks.batch_device.checked_add(block - blocks.batch_start);
        let block_start = block << block_size.log2();
        let next_block = block_start + u64::from(block_size.bytes());
        let mut offset = usize::try_from(blocks.at - block_start).ok()?;
        if std::mem::take(&mut blocks.sought) {
            offset = first_record_from(bytes, offset, self.layout);
        }
        if blocks.checked != Some(block) {
            blocks.checked = Some(block);
            let file_block = FileBlock(u32::try_from(block).ok()?);
            if let Err(fault) = self.view().verify_dir_block(file_block, bytes) {
                blocks.at = next_block;
                return Some(Step::Item(Err(self.damage(device, fault))));
            }
        }
        if offset >= bytes.len() {
            blocks.at = next_block;
            return Some(Step::Skip);
        }
        match decode_entry(bytes, offset, self.layout) {
            Ok(record) => {
                let next = block_start + u64::from(record.offset) + u64::from(record.rec_len);
                blocks.at = next;
                // Only the first block begins with the directory and its parent: this one is another's, or twice there.
                if block > 0 && record.is_used() && record.is_dots() {
                    let rule = "an entry is a second '.' or '..'";
                    return Some(Step::Item(Err(self.damage(device, Fault::Rule(rule)))));
                }
                Some(self.accept(&record, device, next))
            }
            Err(fault) => {
                blocks.at = next_block;
                let fault = Fault::Decode(Box::new(fault));
                Some(Step::Item(Err(self.damage(device, fault))))
            }
        }
    }
}

/// Returns the start of the first record at or after `offset`; the end of the area when there is
/// none.
fn first_record_from(area: &[u8], offset: usize, layout: DirLayout) -> usize {
    Records::of_area(area, layout)
        .map_while(Result::ok)
        .map(|record| record.offset as usize)
        .find(|start| *start >= offset)
        .unwrap_or(area.len())
}

enum Step {
    Skip,
    Item(Result<DirEntry>),
}

impl Blocks {
    /// Loads `block` into the batch. Returns false, with the position moved on, when it is a hole.
    fn load(&mut self, inode: &View<'_>, block: u64) -> Result<bool> {
        let block_size = inode.volume().block_size();
        let held = (self.batch.len() >> block_size.log2()) as u64;
        if block.wrapping_sub(self.batch_start) < held {
            return Ok(true);
        }
        let run = match self.cursor.run(inode, block, self.end) {
            Ok(run) => run,
            Err(error) => {
                self.at = self.end << block_size.log2(); // Where the damage ends is not known.
                return Err(error);
            }
        };
        let start = match run.kind {
            MappingKind::Mapped(start) => start,
            MappingKind::Hole | MappingKind::Unwritten(_) | MappingKind::Inline => {
                self.at = run.file_end() << block_size.log2();
                let rule = "the directory has a hole";
                let fault = Fault::Field { rule, value: block, limit: run.file_end() };
                return Err(damage(inode, None, fault));
            }
        };
        if self.budget == 0 {
            self.at = self.end << block_size.log2();
            let rule = "it maps more blocks than the file system has";
            let limit = inode.volume().block_count();
            return Err(damage(inode, None, Fault::Field { rule, value: self.end, limit }));
        }
        let blocks = run.len.min((BATCH_BYTES >> block_size.log2()) as u64).min(self.budget);
        self.budget -= blocks;
        let bytes = (blocks as usize) << block_size.log2(); // At most BATCH_BYTES.
        self.batch.resize(bytes, 0);
        if let Err(error) = inode.volume().read_bytes(start, 0, &mut self.batch) {
            self.batch.clear();
            self.at = (block + blocks) << block_size.log2();
            return Err(error);
        }
        self.batch_start = block;
        self.batch_device = start;
        Ok(true)
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let step = match self.source {
                Source::Blocks(_) => self.step_blocks(),
                Source::Inline { .. } => self.step_inline(),
                Source::Live(_) => self.step_live(),
                Source::Done => None,
            };
            match step {
                Some(Step::Item(item)) => return Some(item),
                Some(Step::Skip) => {}
                None => {
                    self.source = Source::Done;
                    let (name, ino, cookie) = self.added.pop()?;
                    if !is_plain(&name) {
                        let fault = Fault::Rule("a fast commit adds a name that is none");
                        return Some(Err(self.damage(None, fault)));
                    }
                    return Some(Ok(self.entry(name, ino, FileType::Unknown, cookie)));
                }
            }
        }
    }
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadDir").field("ino", &self.inode.ino().0).finish_non_exhaustive()
    }
}
