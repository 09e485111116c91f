//! Directories: every block, every name, and what each name leads to.

use extant_base::{FileBlock, Ino};
use extant_format::dir::{self, DirEntry, DirLayout, FileType, Records};
use extant_format::features::{Compat, EncodingFlags};
use extant_format::hash::{HashSeed, HashVersion, name_hash};
use extant_format::inline::InlineDir;
use extant_format::inode::InodeFlags;

use crate::checker::Checker;
use crate::htree::{HashIndex, Slot};
use crate::{CheckError, Problem};

/// Directory blocks read at once, in bytes.
const CHUNK_BYTES: usize = 1 << 17;
/// Shortest name that encryption makes.
const ENCRYPTED_NAME_MIN: usize = 16;

/// Names of one directory, to find those that are there twice.
#[derive(Default)]
struct Names {
    bytes: Vec<u8>,
    /// Start and length in `bytes`.
    list: Vec<(u32, u8)>,
}

impl Names {
    fn clear(&mut self) {
        self.bytes.clear();
        self.list.clear();
    }

    fn push(&mut self, name: &[u8]) {
        let (Ok(at), Ok(len)) = (u32::try_from(self.bytes.len()), u8::try_from(name.len())) else {
            return;
        };
        self.bytes.extend_from_slice(name);
        self.list.push((at, len));
    }

    fn get(bytes: &[u8], (at, len): (u32, u8)) -> &[u8] {
        let at = at as usize;
        bytes.get(at..at + usize::from(len)).unwrap_or(&[])
    }

    /// Names that are there more than once.
    fn duplicates(&mut self) -> Vec<String> {
        let bytes = &self.bytes;
        self.list.sort_unstable_by(|a, b| Self::get(bytes, *a).cmp(Self::get(bytes, *b)));
        let pairs = self.list.iter().zip(self.list.iter().skip(1));
        pairs
            .filter(|(a, b)| Self::get(bytes, **a) == Self::get(bytes, **b))
            .map(|(a, _)| text(Self::get(bytes, *a)))
            .collect()
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// One directory while it is walked.
struct Walk {
    dir: Ino,
    seed: u32,
    layout: DirLayout,
    is_encrypted: bool,
    /// Names must be UTF-8.
    is_strict: bool,
    hash: Option<HashVersion>,
    dotdot: Ino,
    children: u32,
}

impl Checker<'_> {
    /// Walks every directory that has links.
    pub(crate) fn check_directories(&mut self) -> Result<(), CheckError> {
        let mut names = Names::default();
        for number in 0..self.infos.len() {
            let Some(info) = self.infos.get(number) else { break };
            if !info.is_dir() || info.links == 0 {
                continue;
            }
            names.clear();
            let layout = DirLayout {
                stored_hash: info.flags.contains(InodeFlags::ENCRYPT | InodeFlags::CASEFOLD),
                encrypted: info.flags.contains(InodeFlags::ENCRYPT),
                ..self.dir_layout
            };
            let mut walk = Walk {
                dir: info.ino,
                seed: info.seed,
                layout,
                is_encrypted: info.flags.contains(InodeFlags::ENCRYPT),
                is_strict: info.flags.contains(InodeFlags::CASEFOLD)
                    && !info.flags.contains(InodeFlags::ENCRYPT)
                    && self.sb.encoding_flags.contains(EncodingFlags::STRICT),
                hash: None,
                dotdot: Ino(0),
                children: 0,
            };
            if info.flags.contains(InodeFlags::INLINE_DATA) {
                self.check_inline(number, &mut walk, &mut names);
            } else {
                self.check_blocks(number, &mut walk, &mut names)?;
            }
            for name in names.duplicates() {
                self.problem(Problem::DuplicateName { dir: walk.dir, name });
            }
            if let Some(info) = self.infos.get_mut(number) {
                info.dotdot = walk.dotdot;
                info.children = walk.children;
            }
        }
        Ok(())
    }

    fn check_inline(&mut self, number: usize, walk: &mut Walk, names: &mut Names) {
        let Some(inline) = self.infos.get_mut(number).and_then(|info| info.inline.take()) else {
            return;
        };
        let layout = walk.layout;
        let dir = InlineDir::new(&inline.0, &inline.1, layout);
        walk.dotdot = dir.parent();
        for entry in dir.records() {
            match entry {
                Ok(entry) if entry.is_used() => self.check_entry(walk, &entry, names),
                Ok(_) => {}
                Err(source) => {
                    let block = FileBlock(0);
                    self.problem(Problem::Dir { dir: walk.dir, block, source });
                }
            }
        }
    }

    fn check_blocks(
        &mut self,
        number: usize,
        walk: &mut Walk,
        names: &mut Names,
    ) -> Result<(), CheckError> {
        let Some(info) = self.infos.get(number) else { return Ok(()) };
        let (flags, blocks) = (info.flags, info.blocks);
        let mut runs = self.runs_of(info);
        runs.sort_unstable_by_key(|run| run.file_start);
        let mut next = 0u32;
        for run in &runs {
            if run.file_start != next {
                break;
            }
            next = next.saturating_add(run.len);
        }
        if u64::from(next) != blocks || next == 0 {
            self.problem(Problem::DirHole { dir: walk.dir, block: FileBlock(next) });
        }
        let mut index = None;
        if flags.contains(InodeFlags::INDEX) {
            if self.sb.features.has_compat(Compat::DIR_INDEX) {
                index = self.read_index(walk.dir, &runs, next, walk.layout)?;
                // How names fold is not known here.
                let is_folded = flags.contains(InodeFlags::CASEFOLD);
                walk.hash = index.as_ref().map(|index| index.hash).filter(|_| !is_folded);
            } else {
                let (ino, flags) = (walk.dir, flags.bits());
                self.problem(Problem::Flags {
                    ino,
                    flags,
                    with: "a file system without dir_index",
                });
            }
        }
        let size = self.sb.block_size.len();
        let step = u32::try_from(CHUNK_BYTES / size).unwrap_or(1).max(1);
        let mut bytes = Vec::new();
        for run in &runs {
            let mut at = 0;
            while at < run.len {
                let take = step.min(run.len - at);
                self.read_blocks(run.start + u64::from(at), take, &mut bytes)?;
                for (within, block) in bytes.chunks_exact(size).enumerate() {
                    let place = at + within as u32;
                    let file_block = run.file_start.saturating_add(place);
                    let device_block = run.start + u64::from(place);
                    self.check_block(walk, (file_block, device_block), block, &index, names);
                }
                at += take;
            }
        }
        Ok(())
    }

    fn check_block(
        &mut self,
        walk: &mut Walk,
        (file_block, device_block): (u32, u64),
        bytes: &[u8],
        index: &Option<HashIndex>,
        names: &mut Names,
    ) {
        let block = FileBlock(file_block);
        let slot = index
            .as_ref()
            .map(|index| index.slots.get(file_block as usize).copied().unwrap_or_default());
        if let Some(Slot { times, .. }) = slot
            && times != 1
        {
            self.problem(Problem::HtreeReference { dir: walk.dir, block, times });
        }
        let is_node = slot.is_some_and(|slot| slot.is_node);
        if walk.layout.checksum {
            if is_node {
                let place = (file_block, device_block);
                self.check_node_checksum(walk.dir, walk.seed, place, bytes);
            } else {
                let result = dir::verify(walk.seed, bytes);
                self.block_checksum(walk.dir, device_block, result);
            }
        }
        let records = match Records::of_block(bytes, walk.layout) {
            Ok(records) => records,
            Err(source) => {
                self.problem(Problem::Dir { dir: walk.dir, block, source });
                return;
            }
        };
        let seed = HashSeed::from_words(self.sb.hash_seed);
        let range = slot.filter(|slot| !slot.is_node && slot.times == 1);
        let mut position = 0;
        for entry in records {
            let entry = match entry {
                Ok(entry) => entry,
                Err(source) => {
                    self.problem(Problem::Dir { dir: walk.dir, block, source });
                    break;
                }
            };
            if file_block == 0 && position < 2 {
                self.check_dots(walk, position, &entry);
                let behind = entry.offset as usize + dir::HEADER_BYTES + entry.name.len();
                if bytes.get(behind) != Some(&0) {
                    let (dir, name) = (walk.dir, if position == 0 { "." } else { ".." });
                    self.problem(Problem::DotsEnd { dir, name });
                }
                position += 1;
                continue;
            }
            if !entry.is_used() {
                continue;
            }
            if let (Some(slot), Some(version)) = (range, walk.hash)
                && let Some(hash) = name_hash(version, &seed, entry.name)
                && (hash.major < slot.from || hash.major > slot.to)
            {
                let (from, to, hash) = (slot.from, slot.to, hash.major);
                self.problem(Problem::HtreeHash { dir: walk.dir, block, hash, from, to });
            }
            self.check_entry(walk, &entry, names);
        }
        if file_block == 0 && position < 2 {
            let (dir, name) = (walk.dir, if position == 0 { "." } else { ".." });
            self.problem(Problem::Dots { dir, name, found: Ino(0), wanted: dir });
        }
    }

    /// The first two entries.
    fn check_dots(&mut self, walk: &mut Walk, position: u32, entry: &DirEntry<'_>) {
        let dir = walk.dir;
        let name = if position == 0 { "." } else { ".." };
        let is_named = entry.is_used() && entry.name == name.as_bytes();
        let found = if is_named { entry.ino } else { Ino(0) };
        if position == 0 {
            if found != dir || entry.rec_len != 12 {
                self.problem(Problem::Dots { dir, name, found, wanted: dir });
            }
        } else {
            walk.dotdot = found;
        }
        if is_named && walk.layout.filetype && entry.file_type != FileType::Directory {
            self.problem(Problem::EntryType {
                dir,
                name: name.to_owned(),
                ino: entry.ino,
                found: entry.file_type,
                wanted: FileType::Directory,
            });
        }
    }

    /// Checks that the entries of an encrypted directory are encrypted with the directory's policy.
    fn check_policy(&mut self, walk: &Walk, entry: &DirEntry<'_>, mode: u16) {
        let kind = FileType::from_mode(mode);
        if !matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink) {
            return;
        }
        let Some(ours) = self.policies.get(&walk.dir.0) else { return };
        let why = match self.policies.get(&entry.ino.0) {
            Some(theirs) if theirs == ours => return,
            Some(_) => "which is encrypted in another way",
            None if self.info(entry.ino).is_some_and(|i| i.flags.contains(InodeFlags::ENCRYPT)) => {
                return;
            }
            None => "which is not encrypted",
        };
        let (dir, ino, name) = (walk.dir, entry.ino, text(entry.name));
        self.problem(Problem::EntryInode { dir, name, ino, why });
    }

    fn check_entry(&mut self, walk: &mut Walk, entry: &DirEntry<'_>, names: &mut Names) {
        let (dir, ino) = (walk.dir, entry.ino);
        let name = || text(entry.name);
        let is_bad = entry.name.is_empty()
            || (!walk.is_encrypted && entry.name.iter().any(|byte| matches!(byte, 0 | b'/')))
            || dir::is_dots(entry.name);
        if is_bad {
            self.problem(Problem::Name { dir, name: name() });
        }
        if walk.is_encrypted && entry.name.len() < ENCRYPTED_NAME_MIN {
            self.problem(Problem::Name { dir, name: name() });
            return;
        }
        if walk.is_strict && std::str::from_utf8(entry.name).is_err() {
            self.problem(Problem::Name { dir, name: name() });
        }
        names.push(entry.name);
        if ino == Ino::ROOT || ino.0 < self.sb.first_inode.0 || self.is_special(ino) {
            let why = "which has no name";
            self.problem(Problem::EntryInode { dir, name: name(), ino, why });
            return;
        }
        let Some(place) = self.place(ino) else {
            let why = "which is not in use";
            self.problem(Problem::EntryInode { dir, name: name(), ino, why });
            return;
        };
        let Some(target) = self.infos.get_mut(place) else { return };
        target.names = target.names.saturating_add(1);
        let (mode, links) = (target.mode, target.links);
        let is_value = target.is_value();
        let mut is_second = false;
        if target.is_dir() {
            is_second = target.parent.0 != 0;
            if !is_second {
                target.parent = dir;
                walk.children = walk.children.saturating_add(1);
            }
        }
        if is_second {
            self.problem(Problem::SecondParent { dir, name: name(), ino });
        }
        if links == 0 {
            let why = "which has no links";
            self.problem(Problem::EntryInode { dir, name: name(), ino, why });
        }
        if walk.is_encrypted {
            self.check_policy(walk, entry, mode);
        }
        if is_value {
            let why = "which holds an attribute's value";
            self.problem(Problem::EntryInode { dir, name: name(), ino, why });
        }
        let (found, wanted) = (entry.file_type, FileType::from_mode(mode));
        if walk.layout.filetype && found != wanted {
            self.problem(Problem::EntryType { dir, name: name(), ino, found, wanted });
        }
    }
}
