//! Extended attributes: areas in inodes, shared blocks, values in inodes.

use extant_base::{FsBlock, Ino};
use extant_format::features::Incompat;
use extant_format::xattr::{self, NameIndex, Value, XattrArea, XattrFault};

use crate::checker::Checker;
use crate::inodes::field16;
use crate::part::{SharedBlock, ValueRef};
use crate::scan::Scan;
use crate::{CheckError, Problem};

/// Contributions of an inode's attributes.
#[derive(Default)]
pub(crate) struct Attributes {
    /// `system.data`.
    pub(crate) inline: Option<Vec<u8>>,
    /// Bytes charged for values in inodes, and how many there are.
    pub(crate) value_bytes: u64,
    pub(crate) value_inodes: u32,
    /// A block is used.
    pub(crate) has_block: bool,
    /// `encryption.c`.
    pub(crate) context: Option<Vec<u8>>,
}

/// Returns how an inode is encrypted, if one of its attributes says so.
fn context_of(area: &XattrArea<'_>) -> Option<Vec<u8>> {
    match area.find(NameIndex::ENCRYPTION, b"c")?.value {
        Value::Here(value) => Some(value.to_vec()),
        Value::InInode { .. } => None,
    }
}

impl Scan<'_, '_> {
    /// The attributes of one inode: `space` behind its extra fields, and its block.
    pub(crate) fn check_xattrs(
        &mut self,
        ino: Ino,
        space: &[u8],
        block: FsBlock,
        keep_inline: bool,
    ) -> Result<Attributes, CheckError> {
        let mut found = Attributes::default();
        match xattr::decode_inode(space) {
            Ok(None) => {}
            Ok(Some(area)) => {
                let (bytes, inodes) = self.check_area(ino, &area, true);
                if keep_inline {
                    self.check_empty_values(ino, space, &area);
                }
                found.context = context_of(&area);
                found.value_bytes = bytes;
                found.value_inodes = inodes;
                if keep_inline
                    && let Some(entry) = area.find(NameIndex::SYSTEM, b"data")
                    && let Value::Here(value) = entry.value
                {
                    found.inline = Some(value.to_vec());
                }
            }
            Err(source) => self.problem(Problem::Xattr { ino, source }),
        }
        if block.0 == 0 {
            return Ok(found);
        }
        if !self.in_range(block.0, 1) {
            self.problem(Problem::BlockRange { ino, block, len: 1 });
            return Ok(found);
        }
        found.has_block = true;
        if let Some(shared) = self.part.blocks.get_mut(&block.0) {
            shared.counted = shared.counted.saturating_add(1);
            found.value_bytes = found.value_bytes.saturating_add(shared.value_bytes);
            found.value_inodes = found.value_inodes.saturating_add(shared.value_inodes);
            found.context = found.context.or_else(|| shared.context.clone());
            return Ok(found);
        }
        // Pieces that are done at once claim such blocks when they are joined.
        if self.is_exact() && !self.claim(ino, block.0, 1) {
            return Ok(found);
        }
        let (problems, values) = (self.sink.held(), self.part.values.len());
        let mut shared = match self.read_xattr_block(ino, block) {
            Ok(shared) => shared,
            Err(error) => {
                self.note_unreadable(error, || format!("the attributes of inode {ino}"))?;
                SharedBlock { stored: 1, counted: 1, ..SharedBlock::default() }
            }
        };
        shared.problems = problems..self.sink.held();
        shared.values = values..self.part.values.len();
        found.value_bytes = found.value_bytes.saturating_add(shared.value_bytes);
        found.value_inodes = found.value_inodes.saturating_add(shared.value_inodes);
        found.context = found.context.or_else(|| shared.context.clone());
        self.part.blocks.insert(block.0, shared);
        Ok(found)
    }

    /// Values of no bytes lie in the area, too: where data is in the inode, e2fsprogs reads no attribute of it else.
    fn check_empty_values(&mut self, ino: Ino, space: &[u8], area: &XattrArea<'_>) {
        let base = space.get(xattr::INODE_HEADER_BYTES..).unwrap_or(&[]);
        for entry in area.entries() {
            let offset = entry.offset;
            let at = field16(base, offset as usize + 2);
            if entry.value == Value::Here(&[]) && usize::from(at) > base.len() {
                let source = XattrFault::Value { offset, at: u32::from(at), len: 0 };
                self.problem(Problem::Xattr { ino, source });
            }
        }
    }

    fn read_xattr_block(&mut self, ino: Ino, block: FsBlock) -> Result<SharedBlock, CheckError> {
        let mut bytes = Vec::new();
        self.read_block(block.0, &mut bytes)?;
        let mut shared = SharedBlock { stored: 1, counted: 1, ..SharedBlock::default() };
        let (header, area) = match xattr::decode_block(&bytes) {
            Ok(decoded) => decoded,
            Err(source) => {
                self.problem(Problem::Xattr { ino, source });
                return Ok(shared);
            }
        };
        if self.sb.features.metadata_csum()
            && let Err(source) = xattr::verify_block(self.seed, block, &bytes)
        {
            self.problem(Problem::XattrChecksum { ino, block, source });
        }
        let computed = xattr::block_hash(area.entries().map(|entry| entry.hash));
        // 0 says "not to be shared", which is never wrong.
        if header.hash != computed && header.hash != 0 {
            self.problem(Problem::XattrBlockHash { block, stored: header.hash, computed });
        }
        (shared.value_bytes, shared.value_inodes) = self.check_area(ino, &area, false);
        shared.context = context_of(&area);
        shared.stored = header.references;
        Ok(shared)
    }

    /// The entries of one area; what values in inodes are charged.
    fn check_area(&mut self, ino: Ino, area: &XattrArea<'_>, in_inode: bool) -> (u64, u32) {
        let (mut bytes, mut inodes) = (0u64, 0u32);
        for entry in area.entries() {
            let is_acl = matches!(entry.index, NameIndex::ACL_ACCESS | NameIndex::ACL_DEFAULT);
            // e2fsck takes a block with an entry of prefix 0, which Linux shows to nobody, for damaged as a whole.
            let is_outside = entry.index.0 == 0 && !in_inode;
            if (entry.name.is_empty() && !is_acl) || is_outside {
                let (offset, index, len) = (entry.offset, entry.index.0, entry.name.len());
                self.problem(Problem::XattrName { ino, offset, index, len });
            }
            match entry.value {
                Value::Here(value) => {
                    let matters = !in_inode || entry.hash != 0;
                    if matters && !xattr::entry_hash_matches(entry.hash, entry.name, value) {
                        let (offset, stored) = (entry.offset, entry.hash);
                        self.problem(Problem::XattrEntryHash { ino, offset, stored });
                    }
                }
                Value::InInode { ino: value, len } => {
                    if !self.sb.features.has_incompat(Incompat::EA_INODE) {
                        let why = "the file system has no ea_inode";
                        self.problem(Problem::XattrInode { ino, value, why });
                    }
                    let cluster = self.sb.cluster_bytes().max(1);
                    bytes = bytes.saturating_add(u64::from(len).next_multiple_of(cluster));
                    inodes = inodes.saturating_add(1);
                    self.part.values.push(ValueRef {
                        owner: ino,
                        value,
                        len,
                        offset: entry.offset,
                        stored_hash: entry.hash,
                        name_hash: xattr::entry_hash_for_inode(entry.name, 0),
                        signed_hash: xattr::entry_hash_for_inode_signed(entry.name, 0),
                    });
                }
            }
        }
        (bytes, inodes)
    }
}

impl Checker<'_> {
    /// Reference counts of blocks and of inodes with values.
    pub(crate) fn check_values(&mut self) {
        for (block, shared) in std::mem::take(&mut self.found.blocks) {
            if shared.stored != shared.counted {
                let (stored, counted) = (shared.stored, shared.counted);
                let block = FsBlock(block);
                self.problem(Problem::XattrReferences { block, stored, counted });
            }
        }
        let mut counted = std::collections::BTreeMap::<u32, u64>::new();
        for reference in std::mem::take(&mut self.found.values) {
            let ValueRef { owner: ino, value, .. } = reference;
            let size = self.found.value_states.get(&value.0).map_or(0, |state| state.size);
            let target = self.known(value).map(|state| (state.is_value(), size));
            let why = match target {
                None => Some("is not in use"),
                Some((false, _)) => Some("is a file of its own"),
                Some((true, size)) if size != u64::from(reference.len) => Some("has another size"),
                Some(_) => None,
            };
            if let Some(why) = why {
                self.problem(Problem::XattrInode { ino, value, why });
                continue;
            }
            *counted.entry(value.0).or_default() += 1;
            let hash = self.found.value_states.get(&value.0).map_or(0, |state| state.hash);
            let hashes = [reference.name_hash ^ hash, reference.signed_hash ^ hash];
            if !hashes.contains(&reference.stored_hash) {
                let (offset, stored) = (reference.offset, reference.stored_hash);
                self.problem(Problem::XattrEntryHash { ino, offset, stored });
            }
        }
        self.found.value_counts.clone_from(&counted);
        for (value, state) in std::mem::take(&mut self.found.value_states) {
            let stored = state.references;
            let counted = counted.get(&value).copied().unwrap_or(0);
            let value = Ino(value);
            if counted == 0 {
                self.problem(Problem::Unreachable { ino: value });
            } else if counted != stored {
                let why = crate::VALUE_COUNT;
                self.problem(Problem::XattrInode { ino: value, value, why });
            }
        }
    }
}
