//! The plan of an image: everything about it but the bytes of its files.
//!
//! # Place
//!
//! Above: [`crate::write`] turns a plan into an image. Below: [`crate::geometry`] computes the
//! places of fixed metadata, [`crate::tree`] holds the files to be stored. Planning does no I/O, so
//! it takes time proportional to the list of files, for an image of any size.
//!
//! # Shape
//!
//! ```text
//! demand    what each file needs, for any size of the image: blocks of each directory, where
//!           each set of attributes goes, which files lie inside their inode
//! layout    the demand placed into a file system of a given size: pieces, map blocks
//! sizing    the smallest size whose layout leaves the headroom that was asked for
//! ```
//!
//! # Order in the image
//!
//! Directories first, then the file system's own files, attribute blocks, slow symlinks, and at the
//! end the contents of files in walk order. A reader that lists the tree touches one short run;
//! free space is one run behind everything; the blocks that snapshots of the fresh image share are
//! dense.

mod attrs;
mod demand;
mod dirs;
mod error;
mod holes;
mod inos;
mod layout;
mod onto;
mod pieces;
mod quota;
pub(crate) mod seal;
mod sizing;
mod space;
mod summary;

pub use error::PlanError;
pub use summary::PlanSummary;

pub(crate) use demand::Form;
pub(crate) use dirs::new_dir_entry;
pub(crate) use inos::InoMap;
pub(crate) use layout::{Layout, NodePlace};
pub(crate) use pieces::{Object, Own, Piece, PieceRange};
pub(crate) use quota::{KINDS as QUOTA_KINDS, quota_file};
pub(crate) use seal::SealPlan;

use std::sync::Arc;

use extant_base::BlockSize;
use extant_format::acl::Acl;
use extant_sync::{Clock, SystemClock, os_random};

use crate::base::Base;
use crate::encrypt::add_contexts;
use crate::geometry::{Geometry, SizeRequest};
use crate::options::MkfsOptions;
use crate::tree::{Kind, Node, NodeId, Time, Tree};
use demand::Demand;

/// How large the image is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeSpec {
    /// As small as the contents allow, plus headroom.
    Auto(Headroom),
    /// A size in bytes, rounded down to whole blocks.
    Bytes(u64),
}

/// Space that files can have in an image of automatic size beside its contents. More blocks are
/// free where Linux keeps some from all data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Headroom {
    /// None: every block is used.
    None,
    /// Hundredths of a percent of the space that the contents take.
    Percent(u32),
    /// A size in bytes, rounded up to whole blocks.
    Bytes(u64),
    /// Room to work in: a tenth of the space that the contents take, and at least 32 MiB.
    Room,
}

/// Options of a build.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The file system.
    pub mkfs: MkfsOptions,
    /// Size of the image.
    pub size: SizeSpec,
    /// Same input, same bytes: the UUID and the hash seed, when not given, are derived from the
    /// file list instead of being drawn at random. Set together with [`MkfsOptions::created`].
    pub reproducible: bool,
}

/// Identities of one image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ids {
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Seed of directory hashes.
    pub hash_seed: [u8; 16],
    /// Creation time.
    pub created: Time,
}

/// A planned image.
#[derive(Debug)]
pub struct Plan {
    pub(crate) options: MkfsOptions,
    pub(crate) ids: Ids,
    /// See [`BuildOptions::reproducible`].
    pub(crate) reproducible: bool,
    pub(crate) demand: Demand,
    pub(crate) layout: Layout,
}

impl Plan {
    /// Sizes and counts, for people and for programs.
    pub fn summary(&self) -> PlanSummary {
        PlanSummary::of(self)
    }

    /// Size of the image in bytes.
    pub fn image_bytes(&self) -> u64 {
        self.geometry().blocks_count * u64::from(self.geometry().block_size.bytes())
    }

    /// The fixed part of the file system.
    pub fn geometry(&self) -> &Geometry {
        &self.layout.geometry
    }

    /// Blocks that a node's `i_blocks` counts: contents, map, and attributes outside the inode.
    pub(crate) fn node_blocks(&self, id: NodeId) -> u64 {
        let attrs = &self.demand.attrs;
        let mut blocks = self.layout.blocks_of(&self.layout.nodes[id.index()]);
        if attrs.block_of(id).is_some() {
            blocks += u64::from(self.geometry().cluster_blocks);
        }
        for value in attrs.values_of(id) {
            // The value's own map is charged to its inode only.
            let len = attrs.value_len(value);
            blocks += self.demand.in_clusters(self.demand.block_size.blocks_for(len));
        }
        blocks
    }

    /// UUID, hash seed and creation time.
    pub fn ids(&self) -> &Ids {
        &self.ids
    }
}

/// Plans the image of `tree`.
///
/// Gives the tree's root the owner and permissions that the options ask for, and adds an empty
/// `lost+found` to it when there is none.
///
/// # Errors
///
/// [`PlanError`]: options that contradict each other, a file the format cannot hold (named), or a
/// fixed size that is too small (with the size that would do).
pub fn plan(tree: &mut Tree, options: &BuildOptions) -> Result<Plan, PlanError> {
    plan_with(tree, options, &SystemClock)
}

/// [`plan`] with the clock that stamps the image when [`MkfsOptions::created`] is not set.
pub fn plan_with(
    tree: &mut Tree,
    options: &BuildOptions,
    clock: &dyn Clock,
) -> Result<Plan, PlanError> {
    plan_any(tree, options, clock, None)
}

/// [`plan`] over an older image: what is in both keeps its blocks and inodes, and the file system its UUID, its hash seed
/// and its time of creation, unless the options say otherwise. Files that did not change keep the times that no program
/// sets. With [`SizeSpec::Auto`] the image is as large as the base, while half of the headroom is left.
///
/// # Errors
///
/// Those of [`plan`], and [`PlanError::BaseBlockSize`].
pub fn plan_onto(
    tree: &mut Tree,
    options: &BuildOptions,
    base: &Arc<Base>,
) -> Result<Plan, PlanError> {
    plan_any(tree, options, &SystemClock, Some(base))
}

fn plan_any(
    tree: &mut Tree,
    options: &BuildOptions,
    clock: &dyn Clock,
    base: Option<&Arc<Base>>,
) -> Result<Plan, PlanError> {
    let mut options = options.clone();
    if let Some(base) = base {
        adopt(&mut options, base);
        let bytes = |size: Option<BlockSize>| size.map_or(0, BlockSize::bytes);
        let old = Some(base.superblock.block_size);
        let (base_bytes, image_bytes) = (bytes(old), bytes(options.mkfs.block_size));
        if base_bytes != image_bytes {
            return Err(PlanError::BaseBlockSize { base_bytes, image_bytes });
        }
    }
    let options = &options;
    let mut mkfs = options.mkfs.clone();
    let created = match mkfs.created {
        Some(sec) => Time { sec, nsec: 0 },
        None => Time { sec: clock.now().0, nsec: 0 },
    };
    own_root(tree, &mkfs);
    follow_modes(tree);
    add_lost_found(tree, created)?;
    if let Some(base) = base {
        base.keep_times(tree);
    }
    let ids = choose_ids(tree, options, created)?;
    add_contexts(tree, &ids.uuid, options.reproducible, mkfs.copy_xattrs)
        .map_err(PlanError::Random)?;
    mkfs.uuid = Some(ids.uuid);
    mkfs.hash_seed = Some(ids.hash_seed);
    mkfs.created = Some(created.sec);

    let mut plan = match options.size {
        SizeSpec::Bytes(bytes) => sizing::fixed(tree, mkfs, ids, bytes, base)?,
        SizeSpec::Auto(headroom) => sizing::automatic(tree, mkfs, ids, headroom, base)?,
    };
    plan.reproducible = options.reproducible;
    Ok(plan)
}

/// What is not asked for is as in the base.
fn adopt(options: &mut BuildOptions, base: &Base) {
    let (mkfs, old) = (&mut options.mkfs, &base.superblock);
    mkfs.block_size = mkfs.block_size.or(Some(old.block_size));
    mkfs.inode_size = mkfs.inode_size.or(Some(old.inode_size));
    mkfs.uuid = mkfs.uuid.or(Some(old.uuid));
    let mut seed = [0; 16];
    for (bytes, word) in seed.chunks_exact_mut(4).zip(old.hash_seed) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    mkfs.hash_seed = mkfs.hash_seed.or(Some(seed));
    mkfs.created = mkfs.created.or(Some(old.mkfs_time));
    // Nothing depends on the clock: new files are as old as their contents.
    options.reproducible = true;
}

/// Default block size of an image whose size follows from its contents. mke2fs chooses 1 KiB below
/// 512 MiB; every machine that mounts the image works in pages of at least 4 KiB, so extant does
/// not.
pub(crate) const AUTO_BLOCK_BYTES: u64 = 4096;

fn auto_block_size(mkfs: &MkfsOptions) -> BlockSize {
    mkfs.block_size.or_else(|| BlockSize::new(AUTO_BLOCK_BYTES).ok()).expect("4096 is a block size")
}

/// The root's owner and permissions, whatever the source says.
fn own_root(tree: &mut Tree, mkfs: &MkfsOptions) {
    let root = tree.root_mut();
    (root.uid, root.gid) = mkfs.root_owner.unwrap_or((root.uid, root.gid));
    root.mode = mkfs.root_perms.unwrap_or(root.mode);
}

/// Gives access lists the permissions of their files' modes, as chmod(2) does, where somebody set a
/// mode (`--add`, fakeroot, `root_perms`). Linux asks the list: one that says more than the mode
/// would let in whom the mode keeps out.
fn follow_modes(tree: &mut Tree) {
    let is_list = |(name, _): &(Box<[u8]>, Box<[u8]>)| **name == *b"system.posix_acl_access";
    // What is no list is named later, with its file.
    let lists: Vec<Option<(usize, Acl)>> = tree
        .xattr_sets()
        .iter()
        .map(|set| {
            let at = set.iter().position(is_list)?;
            Some((at, Acl::decode_xattr(&set[at].1).ok()?))
        })
        .collect();
    if lists.iter().all(Option::is_none) {
        return;
    }
    for id in (0..tree.nodes().len() as u32).map(NodeId) {
        let node = tree.node(id);
        let Some(Some((at, list))) = lists.get(node.xattrs.0 as usize) else { continue };
        let changed = list.with_mode(node.mode);
        if node.kind != Kind::Symlink && changed != *list {
            let mut set = tree.xattrs(node).clone();
            set[*at].1 = changed.encode_xattr().into();
            tree.set_xattrs(id, set);
        }
    }
}

fn add_lost_found(tree: &mut Tree, created: Time) -> Result<(), PlanError> {
    match tree.find_in_root(b"lost+found") {
        Some(entry) if tree.node(entry.node).kind == Kind::Dir => Ok(()),
        Some(_) => Err(PlanError::LostFoundTaken),
        None => {
            let mut node = Node::new(Kind::Dir);
            node.mode = 0o700;
            (node.mtime, node.atime, node.ctime) = (created, created, created);
            tree.add_root_dir(b"lost+found", node)?;
            Ok(())
        }
    }
}

/// Given, drawn at random, or derived from the file list.
fn choose_ids(tree: &Tree, options: &BuildOptions, created: Time) -> Result<Ids, PlanError> {
    let mut random = [0u8; 32];
    let needed = options.mkfs.uuid.is_none() || options.mkfs.hash_seed.is_none();
    if needed && options.reproducible {
        random = derive_ids(tree, &options.mkfs.label);
    } else if needed {
        os_random(&mut random).map_err(|e| PlanError::Random(e.to_string()))?;
    }
    let draw = |half: &[u8]| {
        let bytes: [u8; 16] = half.try_into().expect("half of 32 bytes");
        uuid::Builder::from_random_bytes(bytes).into_uuid().into_bytes()
    };
    Ok(Ids {
        uuid: options.mkfs.uuid.unwrap_or_else(|| draw(&random[..16])),
        hash_seed: options.mkfs.hash_seed.unwrap_or_else(|| draw(&random[16..])),
        created,
    })
}

/// 32 bytes that depend on every name and attribute of the tree and on nothing else.
///
/// Not a digest of the contents: two trees that differ only inside a file of equal size and time
/// get equal UUIDs, which is what a rebuild of one image wants.
fn derive_ids(tree: &Tree, label: &[u8]) -> [u8; 32] {
    let name_space = uuid::Uuid::from_bytes(*b"extant image ids");
    let mut first = uuid::Uuid::new_v5(&name_space, label);
    let mut buffer = Vec::with_capacity(1 << 16);
    for entry in tree.entries() {
        let node = tree.node(entry.node);
        buffer.extend_from_slice(&entry.parent.0.to_le_bytes());
        buffer.extend_from_slice(&entry.node.0.to_le_bytes());
        buffer.extend_from_slice(&(tree.name(entry).len() as u16).to_le_bytes());
        buffer.extend_from_slice(tree.name(entry));
        buffer.extend_from_slice(&(node.kind as u8).to_le_bytes());
        buffer.extend_from_slice(&node.mode.to_le_bytes());
        buffer.extend_from_slice(&node.uid.to_le_bytes());
        buffer.extend_from_slice(&node.gid.to_le_bytes());
        buffer.extend_from_slice(&node.size.to_le_bytes());
        buffer.extend_from_slice(&node.mtime.sec.to_le_bytes());
        if buffer.len() > (1 << 16) - 512 {
            first = uuid::Uuid::new_v5(&first, &buffer);
            buffer.clear();
        }
    }
    first = uuid::Uuid::new_v5(&first, &buffer);
    let second = uuid::Uuid::new_v5(&first, b"hash seed");
    let mut out = [0; 32];
    out[..16].copy_from_slice(first.as_bytes());
    out[16..].copy_from_slice(second.as_bytes());
    out
}

/// Makes the request to the geometry that both ways of sizing end with.
pub(crate) fn exact(blocks: u64, inodes: Option<u64>) -> SizeRequest {
    SizeRequest::Exact { blocks, inodes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::acl::{AclEntry, Who};

    #[test]
    fn the_root_gets_the_owner_and_permissions_asked_for() {
        let mut root = Node::new(Kind::Dir);
        (root.uid, root.gid, root.mode) = (1, 2, 0o755);
        let plan_root = |mkfs: MkfsOptions| {
            let mut tree = Tree::empty(root);
            let size = SizeSpec::Bytes(8 << 20);
            plan(&mut tree, &BuildOptions { mkfs, size, reproducible: false }).unwrap();
            let root = tree.node(NodeId::ROOT);
            (root.uid, root.gid, root.mode)
        };
        assert_eq!(plan_root(MkfsOptions::default()), (1, 2, 0o755));
        let mut mkfs = MkfsOptions::default();
        (mkfs.root_owner, mkfs.root_perms) = (Some((5, 6)), Some(0o1700));
        assert_eq!(plan_root(mkfs), (5, 6, 0o1700));
    }

    #[test]
    fn a_list_says_what_the_mode_says_that_somebody_set() {
        let entry = |who, perm| AclEntry { who, perm };
        let list = |owner, mask, others| {
            let all = [
                entry(Who::Owner, owner),
                entry(Who::User(5), 7),
                entry(Who::OwningGroup, 5),
                entry(Who::Mask, mask),
                entry(Who::Others, others),
            ];
            Acl::new(all.to_vec()).unwrap()
        };
        let mut tree = Tree::empty(Node { mode: 0o755, ..Node::new(Kind::Dir) });
        let value = list(7, 7, 5).encode_xattr();
        let name = &b"system.posix_acl_access"[..];
        tree.set_xattrs(NodeId::ROOT, vec![(name.into(), value.into())]);
        let mkfs = MkfsOptions { root_perms: Some(0o1640), ..MkfsOptions::default() };
        let size = SizeSpec::Bytes(8 << 20);
        plan(&mut tree, &BuildOptions { mkfs, size, reproducible: false }).unwrap();
        let set = tree.xattrs(tree.node(NodeId::ROOT));
        assert_eq!(Acl::decode_xattr(&set[0].1), Ok(list(6, 4, 0)));
    }
}
