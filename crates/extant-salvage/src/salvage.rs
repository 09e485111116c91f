//! The walk: every name from the root on, and then every inode that nothing leads to.

use std::convert::Infallible;

use extant_base::Ino;
use extant_format::indirect;
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::record::Record;

use crate::attrs::{Found, Xattr};
use crate::content::{Sink, Source};
use crate::dirs::is_name;
use crate::image::Image;
use crate::limits::{Budget, LEVELS_MAX};
use crate::report::{Damage, Reasons, Summary, Unverified, Why};
use crate::seal::{Compared, Seal};
use crate::shared::SharedBlocks;

/// Longest target of a symbolic link, in bytes.
const LINK_MAX: u64 = 4095;
/// Names that are tried for a file in `lost+found`: `#N`, `#N-2` and so on.
const NAMES_TRIED: u32 = 9;

/// What a target says when it does not take something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Not this one, and why. The others go on.
    Skip(String),
    /// Nothing more is to come.
    Stop,
}

/// Who takes what is found. Directories are entered and left like brackets; the first that is open is the target's own.
pub trait Target {
    /// Makes a directory in the one that is open, and opens it.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: it is not open then.
    fn enter(&mut self, name: &[u8], found: &Found) -> Result<(), Refusal>;

    /// Opens `lost+found` in the target's own directory, which is open; makes it if it is missing.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: it is not open then.
    fn enter_lost_found(&mut self) -> Result<(), Refusal>;

    /// Leaves the open directory, and gives it its attributes if there are any.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; it is left all the same.
    fn leave(&mut self, from: Option<(&Found, &[Xattr])>) -> Result<(), Refusal>;

    /// Makes a regular file, empty, and opens it for [`data`](Self::data).
    ///
    /// # Errors
    ///
    /// [`Refusal`]: there is none then.
    fn create(&mut self, name: &[u8], found: &Found) -> Result<(), Refusal>;

    /// Takes bytes of the file that is open. What is never handed on is a hole.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: [`abandon`](Self::abandon) follows.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Refusal>;

    /// Gives the open file its size and attributes, and closes it.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; it is closed all the same.
    fn close(&mut self, found: &Found, size: u64, xattrs: &[Xattr]) -> Result<(), Refusal>;

    /// Removes the open file: it would look whole.
    fn abandon(&mut self);

    /// Makes a symbolic link.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: there is none then.
    fn symlink(
        &mut self,
        name: &[u8],
        found: &Found,
        to: &[u8],
        xattrs: &[Xattr],
    ) -> Result<(), Refusal>;

    /// Makes a device, a pipe or a socket.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: there is none then.
    fn special(&mut self, name: &[u8], found: &Found, xattrs: &[Xattr]) -> Result<(), Refusal>;

    /// Makes another name for a file that was made. False: it is not known any more, and is made again.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: the name is not there then.
    fn link(&mut self, name: &[u8], ino: Ino) -> Result<bool, Refusal>;

    /// Returns what could not be done to the file or directory that was made, closed or left last, and forgets it.
    fn complaint(&mut self) -> Option<String> {
        None
    }

    /// Hears of what is missing of a file.
    ///
    /// # Errors
    ///
    /// [`Refusal::Stop`]; any other is taken for it.
    fn damaged(&mut self, damage: Damage) -> Result<(), Refusal>;
}

/// Nothing more is to come: the target knows why.
struct Stop;

type Walked<T = ()> = Result<T, Stop>;

/// Hands on everything that can be found. Returns what it came to, and whether it came to its end; it did not if the
/// target said [`Refusal::Stop`].
pub fn salvage(image: &Image, target: &mut dyn Target) -> (Summary, bool) {
    let shared = SharedBlocks::of(image);
    let summary = Summary { is_uncompared: !shared.is_whole, ..Summary::default() };
    let mut walk = Walk {
        image,
        target,
        visited: Bits::new(image),
        shared,
        summary,
        unverified: None,
        path: Vec::new(),
        lost_found: None,
    };
    let mut budget = Budget::of(image.blocks);
    let is_whole = walk.run(&mut budget).is_ok();
    (walk.summary, is_whole)
}

/// Inodes, a bit each; groups of which none is set take no memory.
struct Bits {
    per_group: u32,
    groups: Vec<Option<Box<[u64]>>>,
}

impl Bits {
    fn new(image: &Image) -> Bits {
        let groups = (0..image.tables.len()).map(|_| None).collect();
        Bits { per_group: image.sb.inodes_per_group.max(1), groups }
    }

    fn place(&self, ino: Ino) -> Option<(usize, usize, u64)> {
        let number = ino.0.checked_sub(1)?;
        let (group, at) = ((number / self.per_group) as usize, number % self.per_group);
        (group < self.groups.len()).then_some((group, (at / 64) as usize, 1 << (at % 64)))
    }

    fn has(&self, ino: Ino) -> bool {
        let Some((group, word, bit)) = self.place(ino) else { return false };
        let words = self.groups.get(group).and_then(Option::as_deref);
        words.and_then(|words| words.get(word)).is_some_and(|word| word & bit != 0)
    }

    fn set(&mut self, ino: Ino, on: bool) {
        let Some((group, word, bit)) = self.place(ino) else { return };
        let len = self.per_group.div_ceil(64) as usize;
        let Some(slot) = self.groups.get_mut(group) else { return };
        if slot.is_none() && !on {
            return;
        }
        let words = slot.get_or_insert_with(|| vec![0; len].into_boxed_slice());
        if let Some(word) = words.get_mut(word) {
            *word = if on { *word | bit } else { *word & !bit };
        }
    }

    fn iter(&self) -> impl Iterator<Item = Ino> + '_ {
        let per_group = self.per_group;
        self.groups.iter().enumerate().flat_map(move |(group, words)| {
            let words = words.as_deref().unwrap_or(&[]);
            words.iter().enumerate().flat_map(move |(number, word)| {
                let word = *word;
                (0..64u32)
                    .filter(move |bit| word >> bit & 1 != 0)
                    .map(move |bit| Ino((group as u32) * per_group + number as u32 * 64 + bit + 1))
            })
        })
    }
}

/// A directory that is open.
struct Level {
    record: Record,
    found: Found,
    /// Directories in it that are still to be entered.
    below: Vec<(Ino, Vec<u8>)>,
    /// Bytes of the path up to it.
    path_len: usize,
}

struct Walk<'a> {
    image: &'a Image,
    target: &'a mut dyn Target,
    /// Inodes that were handed on, or of which it was said that they are lost.
    visited: Bits,
    /// Files that have blocks of others.
    shared: SharedBlocks,
    summary: Summary,
    /// Blocks of the file that is read which are not what its seal says.
    unverified: Option<Unverified>,
    /// Path of the open directory, without a slash at its end.
    path: Vec<u8>,
    /// Attributes of the image's own `lost+found`.
    lost_found: Option<(Found, Vec<Xattr>)>,
}

impl Walk<'_> {
    fn run(&mut self, budget: &mut Budget) -> Walked {
        let root = self.image.load(Ino::ROOT);
        let mut reasons = Reasons::new();
        let root = root.filter(|record| {
            record.is_dir() && (self.image.is_sealed(record) || self.image.is_likely(record))
        });
        self.visited.set(Ino::ROOT, true);
        match root.and_then(|mut record| {
            let found = self.image.found(&mut record, &mut reasons)?;
            Some((record, found))
        }) {
            Some((record, found)) => self.tree(record, found, reasons, budget)?,
            None => {
                reasons.insert(Why::Inode, 1);
                let kind = Some(FileKind::Directory);
                self.damage(b"", Ino::ROOT, kind, (0, 0), reasons, None)?;
            }
        }
        self.loose(budget)
    }

    /// A directory that is open, and all below it.
    fn tree(
        &mut self,
        record: Record,
        found: Found,
        reasons: Reasons,
        budget: &mut Budget,
    ) -> Walked {
        let mut levels = Vec::new();
        let first = self.list(record, found, reasons, budget)?;
        levels.push(first);
        while let Some(level) = levels.last_mut() {
            let Some((ino, name)) = level.below.pop() else {
                if let Some(level) = levels.pop() {
                    self.leave(level, budget)?;
                }
                continue;
            };
            let depth = levels.len();
            let Some(mut record) = self.image.load(ino) else { continue };
            let mut reasons = Reasons::new();
            let Some(found) = self.image.found(&mut record, &mut reasons) else { continue };
            if depth >= LEVELS_MAX {
                // It finds a place with a shorter path, in lost+found.
                self.visited.set(ino, false);
                continue;
            }
            match self.target.enter(&name, &found) {
                Ok(()) => {}
                Err(Refusal::Stop) => return Err(Stop),
                Err(Refusal::Skip(_)) => {
                    self.visited.set(ino, false);
                    continue;
                }
            }
            self.push(&name);
            levels.push(self.list(record, found, reasons, budget)?);
        }
        Ok(())
    }

    fn push(&mut self, name: &[u8]) {
        self.path.push(b'/');
        self.path.extend_from_slice(name);
    }

    /// Hands on the files of the open directory, and collects the directories in it.
    fn list(
        &mut self,
        record: Record,
        found: Found,
        mut reasons: Reasons,
        budget: &mut Budget,
    ) -> Walked<Level> {
        self.summary.directories += 1;
        self.shared.note(found.ino, &mut reasons);
        let mut below = Vec::new();
        let image = self.image;
        if record.has(InodeFlags::ENCRYPT) {
            reasons.insert(Why::Encrypted, 1);
        } else {
            image.each_entry(&record, budget, &mut reasons, &mut |ino, name, budget| {
                self.entry(ino, name, &mut below, budget)
            })?;
        }
        if !reasons.is_empty() {
            self.damage(b"", found.ino, Some(found.kind), (found.size, 0), reasons, None)?;
        }
        // The last is entered first.
        below.reverse();
        let path_len = self.path.len();
        Ok(Level { record, found, below, path_len })
    }

    fn leave(&mut self, level: Level, budget: &mut Budget) -> Walked {
        let Level { record, found, path_len, .. } = level;
        let mut reasons = Reasons::new();
        let xattrs = self.image.xattrs(&record, budget, &mut reasons);
        let left = self.target.leave(Some((&found, &xattrs)));
        self.path.truncate(path_len);
        let host = self.host(left)?.or_else(|| self.target.complaint());
        if !reasons.is_empty() || host.is_some() {
            self.damage(b"", found.ino, Some(found.kind), (found.size, 0), reasons, host)?;
        }
        if self.path == b"/lost+found" {
            self.lost_found = Some((found, xattrs));
        }
        let parent = self.path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        self.path.truncate(parent);
        Ok(())
    }

    /// An entry of the open directory.
    fn entry(
        &mut self,
        ino: Ino,
        name: &[u8],
        below: &mut Vec<(Ino, Vec<u8>)>,
        budget: &mut Budget,
    ) -> Walked {
        let lost = |why| Reasons::from([(why, 1)]);
        if !is_name(name) {
            // Whatever it leads to has no other name, and finds one in lost+found.
            return self.damage(name, ino, None, (0, 0), lost(Why::Name), None);
        }
        let record = self.image.load(ino);
        let record = record.filter(|record| {
            let is_used = record.kind().is_some() && record.links() != 0;
            is_used && !self.image.is_system(ino) && !self.image.holds_value(record, budget)
        });
        let Some(record) = record else {
            return self.damage(name, ino, None, (0, 0), lost(Why::Inode), None);
        };
        if !record.is_dir() {
            return self.file(record, name, budget).map(drop);
        }
        if self.visited.has(ino) {
            let kind = Some(FileKind::Directory);
            return self.damage(name, ino, kind, (0, 0), lost(Why::Loop), None);
        }
        self.visited.set(ino, true);
        below.push((ino, name.to_vec()));
        Ok(())
    }

    /// A file that is no directory. False: it could not be made under this name.
    fn file(&mut self, mut record: Record, name: &[u8], budget: &mut Budget) -> Walked<bool> {
        let ino = record.ino;
        if self.visited.has(ino) {
            match self.target.link(name, ino) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(Refusal::Stop) => return Err(Stop),
                Err(Refusal::Skip(why)) => {
                    let reasons = Reasons::from([(Why::Host, 1)]);
                    self.damage(name, ino, record.kind(), (0, 0), reasons, Some(why))?;
                    return Ok(true);
                }
            }
        }
        let mut reasons = Reasons::new();
        let Some(found) = self.image.found(&mut record, &mut reasons) else {
            reasons.insert(Why::Inode, 1);
            self.visited.set(ino, true);
            self.damage(name, ino, record.kind(), (0, 0), reasons, None)?;
            return Ok(true);
        };
        let (size, missing) = (found.size, 0);
        let made = match found.kind {
            FileKind::Regular | FileKind::Symlink if record.has(InodeFlags::ENCRYPT) => {
                reasons.insert(Why::Encrypted, 1);
                Ok((size, size))
            }
            FileKind::Regular => self.regular(&record, &found, name, &mut reasons, budget),
            FileKind::Symlink => match self.link_target(&record, &found, &mut reasons, budget) {
                Some(to) => {
                    let xattrs = self.image.xattrs(&record, budget, &mut reasons);
                    self.target.symlink(name, &found, &to, &xattrs).map(|()| (size, missing))
                }
                None => {
                    reasons.insert(Why::Link, 1);
                    Ok((size, size))
                }
            },
            _ => {
                let xattrs = self.image.xattrs(&record, budget, &mut reasons);
                self.target.special(name, &found, &xattrs).map(|()| (size, missing))
            }
        };
        match made {
            Ok((size, missing)) => {
                self.visited.set(ino, true);
                self.summary.files += 1;
                self.shared.note(ino, &mut reasons);
                let host = self.target.complaint();
                if !reasons.is_empty() || missing > 0 || host.is_some() {
                    self.damage(name, ino, Some(found.kind), (size, missing), reasons, host)?;
                }
                Ok(true)
            }
            Err(Refusal::Stop) => Err(Stop),
            Err(Refusal::Skip(why)) => {
                if self.is_in_lost_found() {
                    reasons.insert(Why::Host, 1);
                    let sizes = (size, size);
                    self.damage(name, ino, Some(found.kind), sizes, reasons, Some(why))?;
                }
                Ok(false)
            }
        }
    }

    /// Returns whether the open directory is where files go that have no other place.
    fn is_in_lost_found(&self) -> bool {
        self.path == b"/lost+found"
    }

    /// The size that a file has, or may be believed to have.
    fn size_of(
        &self,
        record: &Record,
        found: &Found,
        reasons: &mut Reasons,
        budget: &mut Budget,
    ) -> u64 {
        let block = self.image.sb.block_size;
        let most = match self.image.has_tree(record) {
            true => 1 << 32,
            false => indirect::max_file_blocks(block),
        };
        let most = most.saturating_mul(u64::from(block.bytes()));
        let image = self.image.blocks.saturating_mul(u64::from(block.bytes()));
        if found.size <= image && !reasons.contains_key(&Why::Size) {
            return found.size;
        }
        let is_sealed = self.image.has_checksums() && self.image.is_sealed(record);
        if is_sealed && found.size <= most && !reasons.contains_key(&Why::Size) {
            // A file of holes, by a record that nobody has damaged.
            return found.size;
        }
        let end = self.image.mapped_end(record, budget);
        if found.size <= most && found.size <= end.saturating_add(image) && found.size > 0 {
            return found.size;
        }
        *reasons.entry(Why::Size).or_default() += 1;
        end
    }

    /// Returns the size and the bytes of it that are missing.
    fn regular(
        &mut self,
        record: &Record,
        found: &Found,
        name: &[u8],
        reasons: &mut Reasons,
        budget: &mut Budget,
    ) -> Result<(u64, u64), Refusal> {
        let size = self.size_of(record, found, reasons, budget);
        self.target.create(name, found)?;
        // Values of attributes that have inodes of their own are counted, too.
        let sectors = Some(found.sectors).filter(|_| !self.image.has_values_elsewhere(record));
        let source = Source { record, size, sectors };
        let is_sealed = record.has(InodeFlags::VERITY);
        let mut seal = if is_sealed { Seal::of(self.image, record, size, *budget) } else { None };
        if is_sealed && seal.is_none() {
            reasons.insert(Why::Seal, 1);
        }
        let to = Handed { target: &mut *self.target };
        let mut sink = Compared { seal: seal.as_mut(), to };
        let missing = match self.image.read_content(&source, budget, reasons, &mut sink) {
            Ok(missing) => missing,
            Err(refusal) => {
                self.target.abandon();
                return Err(refusal);
            }
        };
        self.unverified = seal.and_then(|seal| seal.end(missing.bytes == 0, reasons));
        let xattrs = self.image.xattrs(record, budget, reasons);
        self.target.close(found, size, &xattrs)?;
        self.summary.bytes = self.summary.bytes.saturating_add(missing.read);
        Ok((size, missing.bytes))
    }

    fn link_target(
        &self,
        record: &Record,
        found: &Found,
        reasons: &mut Reasons,
        budget: &mut Budget,
    ) -> Option<Vec<u8>> {
        if found.size == 0 || found.size > LINK_MAX {
            return None;
        }
        let len = found.size as usize;
        // What is in the inode ends with a zero byte, whatever its size says.
        let area = record.block_area();
        let end = area.iter().position(|byte| *byte == 0).unwrap_or(area.len());
        // Old kernels had short targets in blocks, too.
        let has_blocks = found.sectors > 0 && record.file_acl(self.image.is_wide()).0 == 0;
        let is_fast = len < 60
            && !record.flags().intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA)
            && (end == len || !has_blocks);
        let mut to = Collected(vec![0; len]);
        if is_fast {
            if end != len {
                *reasons.entry(Why::Size).or_default() += 1;
            }
            to.0 = area.get(..end).filter(|to| !to.is_empty())?.to_vec();
        } else {
            let source = Source { record, size: found.size, sectors: None };
            let Ok(missing) = self.image.read_content(&source, budget, reasons, &mut to);
            if missing.bytes > 0 || missing.read < found.size {
                return None;
            }
        }
        (!to.0.contains(&0)).then_some(to.0)
    }

    /// What nothing leads to goes to lost+found: directories as trees.
    fn loose(&mut self, budget: &mut Budget) -> Walked {
        let (mut dirs, mut files) = (Bits::new(self.image), Bits::new(self.image));
        let mut is_any = false;
        let image = self.image;
        for group in 0..image.tables.len() as u32 {
            let is_whole = image.each_record(group, &mut |record| {
                let ino = record.ino;
                if !self.visited.has(ino) && !image.is_system(ino) && image.is_file(&record) {
                    is_any = true;
                    if record.is_dir() { &mut dirs } else { &mut files }.set(ino, true);
                }
            });
            self.summary.lost_groups += u64::from(!is_whole);
        }
        self.summary.lost_groups += u64::from(image.sb.group_count) - image.tables.len() as u64;
        if !is_any {
            return Ok(());
        }
        match self.target.enter_lost_found() {
            Ok(()) => {}
            Err(Refusal::Stop) => return Err(Stop),
            Err(Refusal::Skip(why)) => {
                let reasons = Reasons::from([(Why::Host, 1)]);
                let kind = Some(FileKind::Directory);
                self.damage(b"lost+found", Ino(0), kind, (0, 0), reasons, Some(why))?;
                for ino in dirs.iter().chain(files.iter()) {
                    let name = format!("lost+found/#{ino}");
                    let reasons = Reasons::from([(Why::Host, 1)]);
                    self.damage(name.as_bytes(), ino, None, (0, 0), reasons, None)?;
                }
                return Ok(());
            }
        }
        self.path = b"/lost+found".to_vec();
        // Those below other loose ones come with them.
        let mut below = Bits::new(image);
        for ino in dirs.iter() {
            let Some(record) = image.load(ino).filter(|record| !record.has(InodeFlags::ENCRYPT))
            else {
                continue;
            };
            let mut reasons = Reasons::new();
            let Ok(()) = image.each_entry::<Infallible>(
                &record,
                budget,
                &mut reasons,
                &mut |child, name, _| {
                    if child != ino && dirs.has(child) && is_name(name) {
                        below.set(child, true);
                    }
                    Ok(())
                },
            );
        }
        let tops: Vec<Ino> = dirs.iter().filter(|ino| !below.has(*ino)).collect();
        for ino in tops {
            self.loose_dir(ino, budget)?;
        }
        // Those that are below each other, round and round, and those that had no place in their own directory.
        for ino in dirs.iter().chain(files.iter()) {
            if self.visited.has(ino) {
                continue;
            }
            if dirs.has(ino) {
                self.loose_dir(ino, budget)?;
            } else if let Some(record) = image.load(ino) {
                self.summary.loose += 1;
                for name in loose_names(ino) {
                    if self.file(record.clone(), &name, budget)? {
                        break;
                    }
                }
            }
        }
        let kept = self.lost_found.take();
        let from = kept.as_ref().map(|(found, xattrs)| (found, xattrs.as_slice()));
        let left = self.target.leave(from);
        self.path.clear();
        self.host(left).map(drop)
    }

    fn loose_dir(&mut self, ino: Ino, budget: &mut Budget) -> Walked {
        let mut reasons = Reasons::new();
        let Some(mut record) = self.image.load(ino) else { return Ok(()) };
        let Some(found) = self.image.found(&mut record, &mut reasons) else { return Ok(()) };
        self.visited.set(ino, true);
        let mut last = None;
        for name in loose_names(ino) {
            match self.target.enter(&name, &found) {
                Ok(()) => {
                    self.summary.loose += 1;
                    self.push(&name);
                    return self.tree(record, found, reasons, budget);
                }
                Err(Refusal::Stop) => return Err(Stop),
                Err(Refusal::Skip(why)) => last = Some((name, why)),
            }
        }
        if let Some((name, why)) = last {
            reasons.insert(Why::Host, 1);
            self.damage(&name, ino, Some(found.kind), (found.size, 0), reasons, Some(why))?;
        }
        Ok(())
    }

    /// What the target said of something that is made all the same.
    fn host(&self, said: Result<(), Refusal>) -> Walked<Option<String>> {
        match said {
            Ok(()) => Ok(None),
            Err(Refusal::Skip(why)) => Ok(Some(why)),
            Err(Refusal::Stop) => Err(Stop),
        }
    }

    /// Says what is missing of the file `name` in the open directory; of that directory itself, without a name.
    fn damage(
        &mut self,
        name: &[u8],
        ino: Ino,
        kind: Option<FileKind>,
        (size, missing): (u64, u64),
        reasons: Reasons,
        host: Option<String>,
    ) -> Walked {
        self.summary.damaged += 1;
        self.summary.missing = self.summary.missing.saturating_add(missing);
        let mut path = self.path.clone();
        if !name.is_empty() || path.is_empty() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        let mut why: Vec<(Why, u64)> = reasons.into_iter().collect();
        if host.is_some() && !why.iter().any(|(why, _)| *why == Why::Host) {
            why.push((Why::Host, 1));
        }
        let unverified = self.unverified.take();
        let is_shared = why.iter().any(|(why, _)| *why == Why::Shared);
        let shared_with = if is_shared { self.shared.with(ino) } else { None };
        let damage = Damage { path, ino, kind, size, missing, why, unverified, shared_with, host };
        self.target.damaged(damage).map_err(|_| Stop)
    }
}

/// Names for a file without one.
fn loose_names(ino: Ino) -> impl Iterator<Item = Vec<u8>> {
    (1..=NAMES_TRIED).map(move |number| match number {
        1 => format!("#{ino}").into_bytes(),
        number => format!("#{ino}-{number}").into_bytes(),
    })
}

/// Bytes for the target.
struct Handed<'a> {
    target: &'a mut dyn Target,
}

impl Sink for Handed<'_> {
    type Stop = Refusal;

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.target.data(offset, bytes)
    }
}

/// Bytes of a link.
struct Collected(Vec<u8>);

impl Sink for Collected {
    type Stop = Infallible;

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Infallible> {
        extant_format::record::put(&mut self.0, offset as usize, bytes);
        Ok(())
    }
}
