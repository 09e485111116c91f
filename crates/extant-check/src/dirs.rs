//! Directories: every block, every name, and what each name leads to.

use std::array;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::{FileBlock, Ino};
use extant_format::dir::{self, DirEntry, DirFault, DirLayout, FileType, Records};
use extant_format::features::{Compat, EncodingFlags};
use extant_format::fold::fold_name;
use extant_format::hash::{HashSeed, HashVersion, NAMES_AT_ONCE, name_hashes};
use extant_format::inline::InlineDir;
use extant_format::inode::InodeFlags;

use crate::checker::Checker;
use crate::dir_scan::DirScan;
use crate::findings::{HELD_MAX, Sink};
use crate::htree::{HashIndex, Slot};
use crate::names::Names;
use crate::states::State;
use crate::tables::{Detail, Inline, Run};
use crate::{CheckError, Problem, crew};

/// Directory blocks read at once, in bytes.
const CHUNK_BYTES: usize = 1 << 17;
/// Blocks of directories in one piece.
const PIECE_BLOCKS: u64 = 128;
/// Shortest name that encryption makes.
const ENCRYPTED_NAME_MIN: usize = 16;

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
    /// Names are hashed in their folded form.
    is_folded: bool,
    hash: Option<HashVersion>,
    dotdot: Ino,
    children: u32,
}

impl Checker<'_> {
    /// Walks every directory that has links. As with inodes: on several threads first, and if a
    /// directory turns out to have two names, again in order, because the first of them counts.
    pub(crate) fn check_directories(&mut self) -> Result<(), CheckError> {
        let tables = &self.found.tables;
        // Of the others, which are looked at by name, not a block is read here: a journal is larger than all directories.
        let blocks_of = |detail: &Detail| if detail.is_dir() { detail.blocks.max(1) } else { 0 };
        let weight = |at: usize| tables.details.get(at).map_or(0, blocks_of);
        let details = tables.details.len();
        let blocks = (0..details).map(weight).fold(0, u64::saturating_add);
        let bytes = blocks.saturating_mul(u64::from(self.base.sb.block_size.bytes()));
        let threads = self.base.threads(bytes);
        let pieces = crew::share(threads, details, PIECE_BLOCKS, weight);
        if threads > 1 {
            if self.check_directories_at_once(threads, &pieces)? {
                return Ok(());
            }
            self.found.tables.forget_names();
            self.base.states.forget_names();
        }
        let findings = &mut self.findings;
        let mut scan = DirScan::new(&self.base, &self.found.tables, Sink::Tell(findings), None);
        for piece in pieces {
            scan.check_all(piece)?;
            if let Sink::Tell(findings) = &mut scan.sink {
                findings.did(0);
            }
            if scan.sink.is_stopped() {
                break;
            }
        }
        Ok(())
    }

    fn check_directories_at_once(
        &mut self,
        threads: usize,
        pieces: &[Range<usize>],
    ) -> Result<bool, CheckError> {
        let is_conflict = AtomicBool::new(false);
        let (base, tables) = (&self.base, &self.found.tables);
        let work = |number: usize| -> Result<Vec<Problem>, CheckError> {
            let sink = Sink::Hold(Vec::new());
            let mut scan = DirScan::new(base, tables, sink, Some(&is_conflict));
            scan.check_all(pieces.get(number).cloned().unwrap_or_default())?;
            Ok(scan.sink.into_held())
        };
        let (mut held, mut failed) = (Vec::new(), None);
        let findings = &mut self.findings;
        let take = |result| {
            match result {
                Ok(mut problems) => held.append(&mut problems),
                Err(error) => failed = Some(error),
            }
            if held.len() > HELD_MAX {
                is_conflict.store(true, Ordering::Relaxed);
            }
            findings.did(0);
            let is_over =
                failed.is_some() || findings.is_stopped || is_conflict.load(Ordering::Relaxed);
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        crew::in_order((threads, crew::PIECES_AHEAD), pieces.len(), work, take)?;
        if let Some(error) = failed {
            return Err(error);
        }
        if is_conflict.load(Ordering::Relaxed) {
            return Ok(false);
        }
        for problem in held {
            self.findings.problem(problem);
        }
        Ok(true)
    }
}

impl<'s> DirScan<'s, '_> {
    fn check_all(&mut self, details: Range<usize>) -> Result<(), CheckError> {
        let tables = self.tables;
        for detail in tables.details.get(details).unwrap_or(&[]) {
            if self.is_over() {
                break;
            }
            if detail.is_dir() && detail.links != 0 {
                self.check_directory(detail)?;
            }
        }
        Ok(())
    }

    fn walk_of(&self, detail: &Detail) -> Walk {
        let layout = DirLayout {
            stored_hash: detail.flags.contains(InodeFlags::ENCRYPT | InodeFlags::CASEFOLD),
            encrypted: detail.flags.contains(InodeFlags::ENCRYPT),
            ..self.dir_layout
        };
        Walk {
            dir: detail.ino,
            seed: detail.seed,
            layout,
            is_encrypted: detail.flags.contains(InodeFlags::ENCRYPT),
            is_strict: detail.flags.contains(InodeFlags::CASEFOLD)
                && !detail.flags.contains(InodeFlags::ENCRYPT)
                && self.sb.encoding_flags.contains(EncodingFlags::STRICT),
            is_folded: detail.flags.contains(InodeFlags::CASEFOLD),
            hash: None,
            dotdot: Ino(0),
            children: 0,
        }
    }

    fn check_directory(&mut self, detail: &Detail) -> Result<(), CheckError> {
        self.names.clear();
        let mut walk = self.walk_of(detail);
        match &detail.inline {
            Some(inline) => self.check_inline(inline, &mut walk),
            None if detail.flags.contains(InodeFlags::INLINE_DATA) => {}
            None => self.check_blocks(detail, &mut walk)?,
        }
        let collisions = self.names.collisions();
        if !collisions.is_empty() {
            self.check_duplicates(detail, &walk, &collisions)?;
        }
        detail.dotdot.store(walk.dotdot.0, Ordering::Relaxed);
        detail.children.store(walk.children, Ordering::Relaxed);
        Ok(())
    }

    /// Tells of names that are there more than once: of all but one of each, in order.
    fn check_duplicates(
        &mut self,
        detail: &Detail,
        walk: &Walk,
        collisions: &[u64],
    ) -> Result<(), CheckError> {
        let mut list: Vec<Box<[u8]>> = Vec::new();
        let mut note = |names: &Names, entry: &DirEntry<'_>| {
            let counts = entry.is_used()
                && (!walk.is_encrypted || entry.name.len() >= ENCRYPTED_NAME_MIN)
                && names.is_among(collisions, entry.name);
            if counts {
                list.push(entry.name.into());
            }
        };
        if let Some(inline) = &detail.inline {
            let dir = InlineDir::new(&inline.0, &inline.1, walk.layout);
            dir.records().flatten().for_each(|entry| note(&self.names, &entry));
        }
        let mut bytes = Vec::new();
        for run in self.tables.runs_of(detail) {
            for at in 0..run.len {
                // What cannot be read was told before.
                if self.read_block(run.start + u64::from(at), &mut bytes).is_err() {
                    continue;
                }
                let Ok(records) = Records::of_block(&bytes, walk.layout) else { continue };
                let is_first = run.file_start.saturating_add(at) == 0;
                let entries = records.map_while(Result::ok);
                let skipped = if is_first { 2 } else { 0 };
                entries.skip(skipped).for_each(|entry| note(&self.names, &entry));
            }
        }
        list.sort_unstable();
        for pair in list.windows(2) {
            if let [name, next] = pair
                && name == next
            {
                self.problem(Problem::DuplicateName { dir: walk.dir, name: text(name) });
            }
        }
        Ok(())
    }

    fn check_inline(&mut self, inline: &Inline, walk: &mut Walk) {
        let layout = walk.layout;
        let dir = InlineDir::new(&inline.0, &inline.1, layout);
        walk.dotdot = dir.parent();
        for entry in dir.records() {
            match entry {
                Ok(entry) if entry.is_used() => self.check_entry(walk, &entry),
                Ok(_) => {}
                Err(source) => {
                    let block = FileBlock(0);
                    self.problem(Problem::Dir { dir: walk.dir, block, source });
                }
            }
        }
    }

    fn check_blocks(&mut self, detail: &Detail, walk: &mut Walk) -> Result<(), CheckError> {
        let (flags, blocks) = (detail.flags, detail.blocks);
        let mut sorted;
        let mut runs = self.tables.runs_of(detail);
        if !runs.is_sorted_by_key(|run| run.file_start) {
            sorted = runs.to_vec();
            sorted.sort_unstable_by_key(|run| run.file_start);
            runs = &sorted;
        }
        let mut next = 0u32;
        for run in runs {
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
                index = self.index_of(walk, runs, next)?;
                walk.hash = index.as_ref().map(|index| index.hash);
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
        let mut bytes = std::mem::take(&mut self.bytes);
        for run in runs {
            let mut at = 0;
            let mut step = step;
            while at < run.len && !self.is_over() {
                let take = step.min(run.len - at);
                if let Err(error) = self.read_blocks(run.start + u64::from(at), take, &mut bytes) {
                    if take > 1 && self.options.skip_unreadable {
                        // Those that can be read, one by one.
                        step = 1;
                        continue;
                    }
                    let dir = walk.dir;
                    let problem = self.base.unreadable(error, || format!("directory {dir}"))?;
                    self.problem(problem);
                    at += take;
                    continue;
                }
                for (within, block) in bytes.chunks_exact(size).enumerate() {
                    let place = at + within as u32;
                    let file_block = run.file_start.saturating_add(place);
                    let device_block = run.start + u64::from(place);
                    self.check_block(walk, (file_block, device_block), block, &index);
                }
                at += take;
            }
        }
        self.bytes = bytes;
        Ok(())
    }

    /// The index, as far as it can be read.
    fn index_of(
        &mut self,
        walk: &Walk,
        runs: &[Run],
        blocks: u32,
    ) -> Result<Option<HashIndex>, CheckError> {
        match self.read_index(walk.dir, runs, blocks, walk.layout) {
            Ok(index) => Ok(index),
            Err(error) => {
                let dir = walk.dir;
                let what = || format!("the index of directory {dir}");
                let problem = self.base.unreadable(error, what)?;
                self.problem(problem);
                Ok(None)
            }
        }
    }

    fn check_block(
        &mut self,
        walk: &mut Walk,
        (file_block, device_block): (u32, u64),
        bytes: &[u8],
        index: &Option<HashIndex>,
    ) {
        let block = FileBlock(file_block);
        let slot = index.as_ref().map(|index| index.slot(file_block));
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
        let range = slot.filter(|slot| !slot.is_node && slot.times == 1);
        let mut hashes = std::mem::take(&mut self.hashes);
        hashes.clear();
        if let (Some(_), Some(version)) = (range, walk.hash) {
            self.hash_names((version, walk.is_folded), records.clone(), &mut hashes);
        }
        let mut next_hash = hashes.iter().copied();
        let mut position = 0;
        // The tail, which is a record as well, is not to be covered.
        let tail = match walk.layout.checksum && !is_node {
            true => walk.layout.entry_bytes(),
            false => usize::MAX,
        };
        for entry in records {
            let entry = match entry {
                Ok(entry) => entry,
                Err(source) => {
                    self.problem(Problem::Dir { dir: walk.dir, block, source });
                    break;
                }
            };
            let from = entry.offset as usize;
            if from < tail && from.saturating_add(entry.rec_len as usize) > tail {
                let (offset, rec_len) = (entry.offset, entry.rec_len);
                let source = DirFault::PastBlock { offset, rec_len, block: tail as u32 };
                self.problem(Problem::Dir { dir: walk.dir, block, source });
            }
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
            if let Some(slot) = range
                && let Some(hash) = next_hash.next()
                && (hash < slot.from || hash > slot.to)
            {
                let (from, to) = (slot.from, slot.to);
                self.problem(Problem::HtreeHash { dir: walk.dir, block, hash, from, to });
            }
            self.check_entry(walk, &entry);
        }
        self.hashes = hashes;
        if file_block == 0 && position < 2 {
            let (dir, name) = (walk.dir, if position == 0 { "." } else { ".." });
            self.problem(Problem::Dots { dir, name, found: Ino(0), wanted: dir });
        }
    }

    /// The hashes of the names of a block, several at once. None where the function needs a key.
    fn hash_names(
        &self,
        (version, is_folded): (HashVersion, bool),
        records: Records<'_>,
        out: &mut Vec<u32>,
    ) {
        let seed = HashSeed::from_words(self.sb.hash_seed);
        // What has no folded form is hashed as it is.
        let folded = |name| if is_folded { fold_name(name) } else { None };
        let mut entries = records
            .map_while(Result::ok)
            .filter(DirEntry::is_used)
            .map(|entry| (entry.name, folded(entry.name)));
        loop {
            let taken: [_; NAMES_AT_ONCE] = array::from_fn(|_| entries.next());
            let names = taken.each_ref().map(|taken| match taken {
                Some((_, Some(folded))) => folded.as_slice(),
                Some((name, None)) => name,
                None => &[],
            });
            let count = taken.iter().flatten().count();
            let Some(hashes) = name_hashes(version, &seed, &names).filter(|_| count > 0) else {
                return;
            };
            out.extend(hashes.iter().take(count).map(|hash| hash.major));
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
        if is_named {
            self.check_type(walk, entry, FileType::Directory);
        }
    }

    /// Checks that the entries of an encrypted directory are encrypted with the directory's policy.
    fn check_policy(&mut self, walk: &Walk, entry: &DirEntry<'_>, mode: u16) {
        let kind = FileType::from_mode(mode);
        if !matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink) {
            return;
        }
        let ours = self.tables.policies.get(&walk.dir.0);
        let Some(ours) = ours.filter(|ours| !ours.is_empty()) else { return };
        let why = match self.tables.policies.get(&entry.ino.0) {
            // Where one of them is not known, that was told.
            Some(theirs) if theirs == ours || theirs.is_empty() => return,
            Some(_) => "which is encrypted in another way",
            None => "which is not encrypted",
        };
        let (dir, ino, name) = (walk.dir, entry.ino, text(entry.name));
        self.problem(Problem::EntryInode { dir, name, ino, why });
    }

    fn check_entry(&mut self, walk: &mut Walk, entry: &DirEntry<'_>) {
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
        self.names.push(entry.name);
        if ino == Ino::ROOT || ino.0 < self.sb.first_inode.0 || self.is_special(ino) {
            let why = "which has no name";
            self.problem(Problem::EntryInode { dir, name: name(), ino, why });
            return;
        }
        if self.states.get(ino).is_unread() {
            return;
        }
        let Some(target) = self.target(ino) else {
            let why = "which is not in use";
            self.problem(Problem::EntryInode { dir, name: name(), ino, why });
            return;
        };
        self.states.add_name(ino);
        let mode = target.mode();
        let mut is_second = false;
        if target.is_dir()
            && let Some(detail) = self.tables.detail(ino)
        {
            let order = Ordering::Relaxed;
            is_second = detail.parent.compare_exchange(0, dir.0, order, order).is_err();
            if !is_second {
                walk.children = walk.children.saturating_add(1);
            }
        }
        if is_second && let Some(conflict) = self.is_conflict {
            conflict.store(true, Ordering::Relaxed);
        }
        if is_second {
            self.problem(Problem::SecondParent { dir, name: name(), ino });
        }
        if self.tables.is_unlinked(ino) {
            let why = crate::NO_LINKS;
            self.problem(Problem::EntryInode { dir, name: name(), ino, why });
        }
        if walk.is_encrypted {
            self.check_policy(walk, entry, mode);
        }
        if target.is_value() {
            let why = crate::HOLDS_VALUE;
            self.problem(Problem::EntryInode { dir, name: name(), ino, why });
        }
        self.check_type(walk, entry, FileType::from_mode(mode));
    }

    /// Checks that an entry says what its inode is, where entries say that; elsewhere, that it says nothing.
    fn check_type(&mut self, walk: &Walk, entry: &DirEntry<'_>, wanted: FileType) {
        let is_right = match walk.layout.filetype {
            true => entry.file_type == wanted,
            false => entry.stored_type == 0,
        };
        if is_right {
            return;
        }
        let (dir, ino, name) = (walk.dir, entry.ino, text(entry.name));
        let (found, wanted) = match walk.layout.filetype {
            true => (entry.file_type, wanted),
            false => (FileType::from_raw(entry.stored_type), FileType::Unknown),
        };
        self.problem(Problem::EntryType { dir, name, ino, found, wanted });
    }

    /// The inode in use that an entry leads to.
    fn target(&self, ino: Ino) -> Option<State> {
        Some(self.states.get(ino)).filter(|state| state.is_known())
    }
}
