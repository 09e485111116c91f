//! Contents of directories: how many blocks, and the blocks themselves.

use extant_base::{FileBlock, Ino, sabotage};
use extant_crypt::Place;
use extant_format::dir::{BlockWriter, DirFault, DirLayout, FileType, NewEntry};
use extant_format::fold::fold_name;
use extant_format::hash::{HashSeed, HashVersion, NameHash, name_hash};
use extant_format::htree::{HtreeFault, HtreePlan, IndexLayout, IndexOptions, PlannedEntry};

use extant_format::inode::InodeFlags;
use rustc_hash::FxHashMap;

use crate::encrypt::{names_cipher, stored_name};
use crate::plan::InoMap;
use crate::tree::{Entry, Kind, NodeId, Tree};

/// How full the leaves of an indexed directory get, in percent. Full leaves would make every name
/// that is added later split one; e2fsck's own rebuild leaves a fifth free as well.
const LEAF_FILL_PERCENT: u8 = 80;

/// Turns the entries of a directory into blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirCoder {
    /// Layout of the blocks.
    pub(crate) layout: DirLayout,
    /// Hash of an indexed directory and its seed; `None` without `dir_index`.
    pub(crate) hash: Option<(HashVersion, HashSeed)>,
    /// Feature `large_dir`.
    pub(crate) large_dir: bool,
    /// Blocks that an empty lost+found has, so that e2fsck can use it without allocating.
    pub(crate) lost_found_blocks: u32,
}

/// A directory of known shape.
pub(crate) struct DirShape<'t> {
    tree: &'t Tree,
    plan: HtreePlan,
    entries: &'t [Entry],
    /// Names of an encrypted directory as they are stored; empty for others.
    stored: Vec<Box<[u8]>>,
    /// Entries in order of hash, as indices of `entries`; empty when the order is by name.
    order: Vec<(NameHash, u32)>,
    /// Hashes that are stored with the names, in order of `entries`: where these are encrypted and fold case.
    hashes: Vec<NameHash>,
    /// Blocks with nothing in them after the last.
    empty_blocks: u32,
}

impl DirShape<'_> {
    /// Blocks of the directory, at least 1.
    pub(crate) fn block_count(&self) -> u32 {
        self.plan.block_count().saturating_add(self.empty_blocks)
    }

    /// Returns whether the inode needs the index flag.
    pub(crate) fn is_indexed(&self) -> bool {
        self.plan.is_indexed()
    }
}

impl DirCoder {
    /// Decides the shape of a directory. Cost: one hash and one sort step per name when the
    /// directory needs more than one block, else a sum over its names.
    pub(crate) fn shape<'t>(
        &self,
        tree: &'t Tree,
        dir: NodeId,
        is_lost_found: bool,
        place: &Place,
    ) -> Result<DirShape<'t>, HtreeFault> {
        let entries = tree.children(dir);
        let cipher = names_cipher(tree, dir, place);
        let stored: Vec<Box<[u8]>> = match &cipher {
            Some(cipher) => entries.iter().map(|e| stored_name(cipher, tree.name(e))).collect(),
            None => Vec::new(),
        };
        let folds = folds_case(tree, dir);
        let is_keyed = folds && cipher.is_some();
        let layout =
            DirLayout { encrypted: cipher.is_some(), stored_hash: is_keyed, ..self.layout };
        let name = |at: usize| match stored.get(at) {
            Some(name) => &**name,
            None => tree.name(&entries[at]),
        };
        let dots = DirLayout::dots_need(1) + DirLayout::dots_need(2);
        let bytes: usize = (0..entries.len()).map(|at| layout.needs(name(at).len())).sum();
        let one_block = dots + bytes <= self.layout.entry_bytes();
        let mut hashes = Vec::new();
        if is_keyed {
            // Of the names as they are given, by the key of the directory.
            let keyed = |entry: &Entry| {
                let name = tree.name(entry);
                let folded = fold_name(name);
                cipher.as_ref()?.hash(folded.as_deref().unwrap_or(name)).map(NameHash::of_siphash)
            };
            // `check_folded` has refused policies that hash no names.
            hashes.extend(entries.iter().map(|entry| keyed(entry).unwrap_or_default()));
        }
        let version_of =
            |(version, seed)| (if is_keyed { HashVersion::SipHash } else { version }, seed);
        let hash = self.hash.filter(|_| !one_block).map(version_of);
        let mut order = Vec::new();
        if hash.is_some() && is_keyed {
            order.extend(hashes.iter().copied().zip(0..));
            order.sort_unstable();
        } else if let Some((version, seed)) = hash {
            order.reserve_exact(entries.len());
            for at in 0..entries.len() {
                // Only the hash with a key is missing, which is made above.
                let folded = if folds { fold_name(name(at)) } else { None };
                let hashed = folded.as_deref().unwrap_or(name(at));
                let hash = name_hash(version, &seed, hashed).unwrap_or_default();
                order.push((hash, at as u32));
            }
            // Equal hashes stay in order of name, which is the order of the indices.
            order.sort_unstable();
        }
        let options = IndexOptions {
            layout: IndexLayout {
                dir: layout,
                large_dir: self.large_dir,
                unsigned_hash: hash.is_some_and(|(version, _)| version.is_unsigned()),
            },
            hash: hash.map(|(version, _)| version),
            fill_percent: LEAF_FILL_PERCENT,
        };
        let planned = |at: usize, hash| PlannedEntry {
            // Names have 1 to 255 bytes (`TreeBuilder::link`).
            name_len: name(at).len() as u8,
            hash,
        };
        let plan = if order.is_empty() {
            HtreePlan::new(options, (0..entries.len()).map(|at| planned(at, NameHash::default())))?
        } else {
            let sorted = order.iter().map(|&(hash, at)| planned(at as usize, hash));
            HtreePlan::new(options, sorted)?
        };
        let mut empty_blocks = 0;
        if is_lost_found && !plan.is_indexed() {
            empty_blocks = self.lost_found_blocks.saturating_sub(plan.block_count());
        }
        Ok(DirShape { tree, plan, entries, stored, order, hashes, empty_blocks })
    }

    /// Writes the blocks of a directory in order, each once, through `write`.
    pub(crate) fn emit<E: From<HtreeFault>>(
        &self,
        shape: &DirShape<'_>,
        inos: &InoMap,
        (dir, parent): (Ino, Ino),
        seed: Option<u32>,
        mut write: impl FnMut(FileBlock, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let new_entry = |at: usize| {
            let mut entry = new_dir_entry(shape.tree, inos, &shape.entries[at]);
            entry.hash = shape.hashes.get(at).copied();
            match shape.stored.get(at) {
                Some(name) => NewEntry { name, ..entry },
                None => entry,
            }
        };
        if shape.order.is_empty() {
            let entries = (0..shape.entries.len()).map(new_entry);
            shape.plan.emit((dir, parent), seed, entries, &mut write)?;
        } else {
            let entries = shape.order.iter().map(|&(_, at)| new_entry(at as usize));
            shape.plan.emit((dir, parent), seed, entries, &mut write)?;
        }
        if shape.empty_blocks > 0 {
            let mut block = vec![0; self.layout.block_size.len()];
            let empty = |e: DirFault| E::from(HtreeFault::Entry(e));
            BlockWriter::new(&mut block, self.layout).map_err(empty)?.finish(seed);
            for at in shape.plan.block_count()..shape.block_count() {
                write(FileBlock(at), &block)?;
            }
        }
        Ok(())
    }
}

/// Returns whether a directory finds names whatever their case.
pub(crate) fn folds_case(tree: &Tree, dir: NodeId) -> bool {
    let flags = InodeFlags::from_bits_retain(tree.node(dir).flags);
    flags.contains(InodeFlags::CASEFOLD) && !sabotage("image.plan.hash-of-given-name")
}

/// Checks that the names of a directory that folds case are as many when they are folded, and are UTF-8 where the file
/// system is strict.
///
/// # Errors
///
/// In words.
pub(crate) fn check_folded(tree: &Tree, dir: NodeId, is_strict: bool) -> Result<(), String> {
    let mut seen: FxHashMap<Vec<u8>, &[u8]> = FxHashMap::default();
    for entry in tree.children(dir) {
        let name = tree.name(entry);
        let Some(folded) = fold_name(name) else {
            if is_strict {
                let name = name.escape_ascii();
                return Err(format!(
                    "its name \"{name}\" is not UTF-8, and the encoding is strict"
                ));
            }
            continue;
        };
        if let Some(other) = seen.insert(folded, name) {
            let (other, name) = (String::from_utf8_lossy(other), String::from_utf8_lossy(name));
            return Err(format!(
                "it folds case, and its names \"{}\" and \"{}\" are one then",
                other.escape_debug(),
                name.escape_debug()
            ));
        }
    }
    Ok(())
}

/// An entry as it is stored, without the hash that directories with keyed hashes store.
pub(crate) fn new_dir_entry<'t>(tree: &'t Tree, inos: &InoMap, entry: &Entry) -> NewEntry<'t> {
    NewEntry {
        ino: inos.ino(entry.node),
        name: tree.name(entry),
        file_type: file_type(tree.node(entry.node).kind),
        hash: None,
    }
}

/// The type byte of a directory entry.
pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::Regular,
        Kind::Dir => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Char => FileType::CharDevice,
        Kind::Block => FileType::BlockDevice,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
    }
}
