//! The places of extended attributes.
//!
//! Files with equal attributes share one plan, and those attributes that do not fit the inode go to
//! a block shared by up to 1024 files, as the kernel shares them. With `ea_inode`, a value too
//! large for a block gets an inode, one for each distinct value.

use extant_base::Ino;
use extant_format::acl::{Acl, AclFault};
use extant_format::dir::{DirLayout, NewEntry};
use extant_format::inline;
use extant_format::inode::EXTRA_BYTES;
use extant_format::superblock::OLD_INODE_SIZE;
use extant_format::xattr::{self, Home, NameIndex, NewXattr, Placement, Space, XattrFault};
use rustc_hash::FxHashMap;

use crate::encrypt::CONTEXT;
use crate::options::{Feature, Features, MkfsOptions};
use crate::plan::PlanError;
use crate::plan::demand::{Demand, SizeFacts, refuse};
use crate::plan::dirs::file_type;
use crate::tree::{Kind, NodeId, Tree, XattrSetId};

/// Most files that share one block of attributes; the kernel stops at the same number.
const BLOCK_REFERENCES_MAX: u32 = 1024;
const NONE: u32 = u32::MAX;

/// One attribute as it will be stored.
#[derive(Clone, Debug)]
struct Stored {
    index: NameIndex,
    name: Box<[u8]>,
    value: Box<[u8]>,
}

/// A set of attributes, and for a file inside its inode the room its data takes.
#[derive(Debug)]
struct Shared {
    set: XattrSetId,
    /// Bytes of the value of `system.data`; `None` for a file that is not inline.
    inline_len: Option<usize>,
    placement: Placement,
}

/// An attribute block.
#[derive(Clone, Copy, Debug)]
struct Block {
    shared: u32,
    references: u32,
}

/// A value in an inode of its own.
#[derive(Clone, Copy, Debug)]
struct LargeValue {
    set: XattrSetId,
    position: usize,
    references: u32,
}

/// The attributes of all files.
#[derive(Debug, Default)]
pub(crate) struct AttrPlan {
    space: Option<Space>,
    sets: Vec<Vec<Stored>>,
    shared: Vec<Shared>,
    /// Index into `shared` by node; empty when no file has any.
    of_node: Vec<u32>,
    /// Index into `blocks` by node; empty when there are none.
    block_of_node: Vec<u32>,
    blocks: Vec<Block>,
    values: Vec<LargeValue>,
    value_of: FxHashMap<(XattrSetId, usize), u32>,
}

impl AttrPlan {
    /// Plans the attributes of every node.
    pub(crate) fn of(
        tree: &Tree,
        mkfs: &MkfsOptions,
        features: &Features,
        facts: &SizeFacts,
    ) -> Result<AttrPlan, PlanError> {
        let inline = features.has(Feature::INLINE_DATA) && facts.inode_size > OLD_INODE_SIZE;
        let has_sets = (mkfs.copy_xattrs || tree.is_encrypted()) && tree.xattr_sets().len() > 1;
        if !inline && !has_sets {
            return Ok(AttrPlan::default());
        }
        let inode = usize::from(facts.inode_size.saturating_sub(OLD_INODE_SIZE + EXTRA_BYTES));
        let may_have = features.has(Feature::EXT_ATTR);
        let space = Space {
            inode,
            block: if may_have { facts.block_size.len() } else { 0 },
            ea_inode: features.has(Feature::EA_INODE),
        };
        let mut plan = AttrPlan {
            space: Some(space),
            of_node: vec![NONE; tree.nodes().len()],
            ..AttrPlan::default()
        };
        plan.sets.push(Vec::new());
        if has_sets {
            plan.convert_sets(tree, may_have)?;
        }
        let layout = DirLayout {
            block_size: facts.block_size,
            filetype: features.has(Feature::FILETYPE),
            checksum: features.has(Feature::METADATA_CSUM),
            stored_hash: false,
            encrypted: false,
        };
        let mut index = FxHashMap::default();
        for (at, node) in tree.nodes().iter().enumerate() {
            let id = NodeId(at as u32);
            let set = if has_sets { node.xattrs } else { XattrSetId(0) };
            if inline {
                let len = plan.inline_len(tree, id, layout, set);
                if let Some(len) = len
                    && let Ok(shared) = plan.share(&mut index, set, Some(len))
                    && (!plan.shared[shared as usize].placement.needs_block() || set.0 != 0)
                {
                    plan.of_node[at] = shared;
                    continue;
                }
            }
            if set.0 != 0 {
                let shared = plan
                    .share(&mut index, set, None)
                    .map_err(|e| refuse(tree, id, explain(&e, space)))?;
                plan.of_node[at] = shared;
            }
        }
        plan.count_blocks_and_values();
        Ok(plan)
    }

    /// Stored form of every set that a file has: ACLs are stored shorter than they are handed out.
    fn convert_sets(&mut self, tree: &Tree, may_have: bool) -> Result<(), PlanError> {
        // For messages: the first file that has the set.
        let mut owner = vec![None; tree.xattr_sets().len()];
        for (at, node) in tree.nodes().iter().enumerate() {
            owner[node.xattrs.0 as usize].get_or_insert(NodeId(at as u32));
        }
        for (set, owner) in tree.xattr_sets().iter().zip(&owner).skip(1) {
            let Some(owner) = *owner else {
                self.sets.push(Vec::new());
                continue;
            };
            let fail = |why: String| refuse(tree, owner, why);
            if !may_have {
                return Err(fail(
                    "it has extended attributes, and the ext_attr feature is off".into(),
                ));
            }
            let mut stored = Vec::with_capacity(set.len());
            for (name, value) in set {
                let shown = name.escape_ascii();
                let known = match &**name {
                    CONTEXT => Some((NameIndex::ENCRYPTION, &b"c"[..])),
                    name => xattr::split(name),
                };
                let (index, rest) = known.ok_or_else(|| {
                    fail(format!("ext4 has no place for the extended attribute \"{shown}\""))
                })?;
                let value = match index {
                    NameIndex::ACL_ACCESS | NameIndex::ACL_DEFAULT => {
                        let acl = Acl::decode_xattr(value).map_err(|fault| {
                            // What Linux shows in place of a number that this name space has not.
                            let note = match fault {
                                AclFault::Id { .. } => {
                                    "; in a user namespace, that is anybody whom it has no number for"
                                }
                                _ => "",
                            };
                            fail(format!("its \"{shown}\" is not valid: {fault}{note}"))
                        })?;
                        acl.encode_stored().into()
                    }
                    _ => value.clone(),
                };
                stored.push(Stored { index, name: rest.into(), value });
            }
            self.sets.push(stored);
        }
        Ok(())
    }

    /// Bytes of `system.data` of a node that could be inline; `None` if it cannot.
    fn inline_len(
        &self,
        tree: &Tree,
        id: NodeId,
        layout: DirLayout,
        set: XattrSetId,
    ) -> Option<usize> {
        let node = tree.node(id);
        if node.key != 0 {
            return None;
        }
        let room = inline::capacity(self.space?.inode)?;
        match node.kind {
            Kind::File if node.size > 0 && !node.sealed && tree.runs(node).is_none() => {
                let size = usize::try_from(node.size).ok().filter(|&size| size <= room)?;
                Some(size.saturating_sub(inline::BLOCK_BYTES))
            }
            // lost+found is to have blocks, so that e2fsck need not look for any; and the kernel
            // mounts no root directory without.
            Kind::Dir if id != NodeId::ROOT && tree.path(id) != b"lost+found" => {
                let entries = tree.children(id);
                if entries.len() * layout.needs(1) > room {
                    return None;
                }
                let new = entries.iter().map(|entry| NewEntry {
                    // Any number will do: the length does not depend on it.
                    ino: Ino::FIRST_ORDINARY,
                    name: tree.name(entry),
                    file_type: file_type(tree.node(entry.node).kind),
                    hash: None,
                });
                let (_, value) = inline::build_dir(Ino::ROOT, new, layout, room).ok()?;
                Some(value.len())
            }
            _ => None,
        }
        .filter(|_| (set.0 as usize) < self.sets.len())
    }

    /// The shared plan of a set, made on first use.
    fn share(
        &mut self,
        index: &mut FxHashMap<(XattrSetId, Option<usize>), u32>,
        set: XattrSetId,
        inline_len: Option<usize>,
    ) -> Result<u32, XattrFault> {
        if let Some(&shared) = index.get(&(set, inline_len)) {
            return Ok(shared);
        }
        let data = vec![0; inline_len.unwrap_or(0)];
        let list = self.list(set, inline_len.is_some().then_some(&data[..]));
        let space = self.space.unwrap_or(Space { inode: 0, block: 0, ea_inode: false });
        let placement = xattr::place(&list, space)?;
        let shared = self.shared.len() as u32;
        self.shared.push(Shared { set, inline_len, placement });
        index.insert((set, inline_len), shared);
        Ok(shared)
    }

    /// The attributes in the form that `extant-format` takes; inline data first.
    fn list<'a>(&'a self, set: XattrSetId, inline: Option<&'a [u8]>) -> Vec<NewXattr<'a>> {
        let data = inline.map(|value| NewXattr { index: NameIndex::SYSTEM, name: b"data", value });
        let stored = self.sets[set.0 as usize].iter();
        let rest = stored.map(|x| NewXattr { index: x.index, name: &x.name, value: &x.value });
        data.into_iter().chain(rest).collect()
    }

    /// Numbers the blocks and the large values, and counts their references.
    fn count_blocks_and_values(&mut self) {
        let mut open = vec![NONE; self.shared.len()];
        let mut users = vec![0u32; self.shared.len()];
        if self.shared.iter().any(|s| s.placement.needs_block()) {
            self.block_of_node = vec![NONE; self.of_node.len()];
        }
        for (node, &shared) in self.of_node.iter().enumerate() {
            let Some(plan) = self.shared.get(shared as usize) else { continue };
            users[shared as usize] += 1;
            if !plan.placement.needs_block() {
                continue;
            }
            let full = self
                .blocks
                .get(open[shared as usize] as usize)
                .is_none_or(|block| block.references >= BLOCK_REFERENCES_MAX);
            if full {
                open[shared as usize] = self.blocks.len() as u32;
                self.blocks.push(Block { shared, references: 0 });
            }
            self.blocks[open[shared as usize] as usize].references += 1;
            self.block_of_node[node] = open[shared as usize];
        }
        let mut blocks_of = vec![0u32; self.shared.len()];
        for block in &self.blocks {
            blocks_of[block.shared as usize] += 1;
        }
        for (index, shared) in self.shared.iter().enumerate() {
            let first = usize::from(shared.inline_len.is_some());
            for placed in shared.placement.placed().iter().filter(|p| p.value_in_inode) {
                let references = match placed.home {
                    Home::Inode => users[index],
                    Home::Block => blocks_of[index],
                };
                let key = (shared.set, placed.xattr - first);
                let next = self.values.len() as u32;
                let value = *self.value_of.entry(key).or_insert(next);
                if value == next {
                    let (set, position) = key;
                    self.values.push(LargeValue { set, position, references: 0 });
                }
                self.values[value as usize].references += references;
            }
        }
    }

    fn shared_of(&self, node: NodeId) -> Option<&Shared> {
        self.shared.get(*self.of_node.get(node.index())? as usize)
    }

    /// Returns whether the node's contents lie in its inode.
    pub(crate) fn is_inline(&self, node: NodeId) -> bool {
        self.shared_of(node).is_some_and(|shared| shared.inline_len.is_some())
    }

    /// Index of the attribute block of a node.
    pub(crate) fn block_of(&self, node: NodeId) -> Option<u32> {
        self.block_of_node.get(node.index()).copied().filter(|&block| block != NONE)
    }

    /// Returns how many attribute blocks there are.
    pub(crate) fn block_count(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Returns how many values have an inode of their own.
    pub(crate) fn value_count(&self) -> usize {
        self.values.len()
    }

    /// Length of a large value in bytes.
    pub(crate) fn value_len(&self, value: u32) -> u64 {
        self.value(value).len() as u64
    }

    /// A large value.
    pub(crate) fn value(&self, value: u32) -> &[u8] {
        let LargeValue { set, position, .. } = self.values[value as usize];
        &self.sets[set.0 as usize][position].value
    }

    /// Returns how many files and blocks refer to a large value.
    pub(crate) fn value_references(&self, value: u32) -> u32 {
        self.values[value as usize].references
    }

    /// Large values that a node's attributes refer to, whether from the inode or from its block.
    pub(crate) fn values_of(&self, node: NodeId) -> impl Iterator<Item = u32> + '_ {
        self.shared_of(node).into_iter().flat_map(move |shared| {
            let first = usize::from(shared.inline_len.is_some());
            shared.placement.values_in_inodes().filter_map(move |position| {
                self.value_of.get(&(shared.set, position - first)).copied()
            })
        })
    }

    /// Blocks that all attribute blocks and large values take.
    pub(crate) fn total_blocks(&self, demand: &Demand) -> u64 {
        let blocks = u64::from(self.block_count()) * demand.in_clusters(1);
        let values = (0..self.value_count() as u32)
            .map(|value| demand.in_clusters(demand.block_size.blocks_for(self.value_len(value))));
        blocks + values.sum::<u64>()
    }

    /// Encodes the attribute space of a node's inode. `inline` is the value of `system.data` of
    /// an inline file.
    pub(crate) fn encode_inode(
        &self,
        node: NodeId,
        inline: &[u8],
        space: &mut [u8],
        value_ino: impl Fn(u32) -> (Ino, u32),
    ) -> Result<(), XattrFault> {
        let Some(shared) = self.shared_of(node) else { return Ok(()) };
        let list = self.list(shared.set, shared.inline_len.map(|_| inline));
        let lookup = self.value_lookup(shared, value_ino);
        xattr::encode_inode(space, &list, &shared.placement, lookup)
    }

    /// Encodes attribute block `index`, which lies at `at`.
    pub(crate) fn encode_block(
        &self,
        index: u32,
        at: u64,
        fs_seed: Option<u32>,
        block: &mut [u8],
        value_ino: impl Fn(u32) -> (Ino, u32),
    ) -> Result<(), XattrFault> {
        let Block { shared, references } = self.blocks[index as usize];
        let shared = &self.shared[shared as usize];
        let list = self.list(shared.set, shared.inline_len.map(|_| &[][..]));
        let lookup = self.value_lookup(shared, value_ino);
        let place = (extant_base::FsBlock(at), references);
        xattr::encode_block(block, place, fs_seed, &list, &shared.placement, lookup).map(drop)
    }

    fn value_lookup<'a>(
        &'a self,
        shared: &'a Shared,
        value_ino: impl Fn(u32) -> (Ino, u32) + 'a,
    ) -> impl Fn(usize) -> Option<(Ino, u32)> + 'a {
        let first = usize::from(shared.inline_len.is_some());
        move |position| {
            let key = (shared.set, position.checked_sub(first)?);
            self.value_of.get(&key).map(|&value| value_ino(value))
        }
    }
}

/// Returns what to do about attributes that do not fit.
fn explain(fault: &XattrFault, space: Space) -> String {
    match fault {
        XattrFault::NoRoom { .. } if !space.ea_inode => {
            format!("{fault} (the ea_inode feature or a larger inode size makes room)")
        }
        _ => fault.to_string(),
    }
}
