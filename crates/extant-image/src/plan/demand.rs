//! The space that the files of a tree need, independent of the size of the image.

use std::sync::Arc;

use extant_base::{BlockSize, FileBlock, Ino, sabotage};
use extant_crypt::Place;
use extant_format::dir::DirLayout;
use extant_format::hash::HashSeed;
use extant_format::indirect;
use extant_format::inode::{BLOCK_AREA_BYTES, LINKS_MAX};

use crate::base::Base;
use crate::encrypt::{check_node, hashes_names, target_len};
use crate::options::{Feature, Features, MkfsOptions};
use crate::plan::attrs::AttrPlan;
use crate::plan::dirs::{DirCoder, check_folded, folds_case};
use crate::plan::quota::{KINDS, quota_file};
use crate::plan::{Ids, InoMap, PlanError, SealPlan};
use crate::tree::{DataRun, Kind, Node, NodeId, Time, Tree};

/// Longest symlink target that lies in the inode: 60 bytes with its end mark.
const FAST_SYMLINK_MAX: u64 = BLOCK_AREA_BYTES as u64 - 1;

/// Form of a node's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// Nowhere: an empty file, a device, a pipe, a socket.
    Nothing,
    /// In the 60 bytes of the inode: a short symlink.
    FastSymlink,
    /// In the inode, by the `inline_data` feature.
    Inline,
    /// In blocks.
    Blocks,
}

/// The needs that depend on the tree and the features but not on the size.
#[derive(Debug)]
pub(crate) struct Demand {
    pub(crate) block_size: BlockSize,
    pub(crate) cluster_blocks: u32,
    /// Files are mapped by extents; else by indirect blocks.
    pub(crate) extents: bool,
    /// Names are UTF-8 in directories that fold case.
    strict: bool,
    /// Files may be encrypted.
    encrypt: bool,
    /// What ciphers depend on besides their inode.
    place: Place,
    /// Files may be sealed.
    verity: bool,
    /// Files may have 2 GiB and more.
    large_file: bool,
    /// Space of files may be counted in blocks: 2 TiB and more.
    huge_file: bool,
    pub(crate) inos: InoMap,
    /// What the image is laid out over.
    pub(crate) base: Option<Arc<Base>>,
    pub(crate) own: OwnInos,
    pub(crate) dirs: DirCoder,
    pub(crate) attrs: AttrPlan,
    /// Form of each node.
    pub(crate) forms: Vec<Form>,
    /// Blocks of each directory and whether it is indexed, in the order of [`Tree::dirs`].
    pub(crate) dir_blocks: Vec<(u32, bool)>,
    /// Sub-directories of each directory, in the same order.
    pub(crate) sub_dirs: Vec<u32>,
    /// Blocks of the quota files: user, group, project; 0 for those there are not.
    quota_blocks: [u64; 3],
    /// Blocks that contents, directories and attributes take, map blocks not counted.
    pub(crate) content_blocks: u64,
    /// Bytes of regular files that are stored.
    pub(crate) data_bytes: u64,
}

/// Inodes that the file system keeps for itself and that have no fixed number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OwnInos {
    pub(crate) project_quota: Option<Ino>,
    pub(crate) orphan_file: Option<Ino>,
}

impl Demand {
    /// Looks at every node once; hashes the names of directories of more than one block.
    pub(crate) fn of(
        tree: &Tree,
        mkfs: &MkfsOptions,
        features: &Features,
        facts: &SizeFacts,
        ids: &Ids,
        base: Option<&Arc<Base>>,
    ) -> Result<Demand, PlanError> {
        let lost_found = tree
            .find_in_root(b"lost+found")
            .map(|entry| entry.node)
            .ok_or(PlanError::LostFoundTaken)?;
        let (own, first) = own_inos(features);
        let attrs = AttrPlan::of(tree, mkfs, features, facts)?;
        let value_count = attrs.value_count();
        let inos =
            InoMap::new(lost_found, first, tree.nodes().len(), value_count).ok_or_else(|| {
                PlanError::TooFewInodes {
                    available: u64::from(u32::MAX),
                    needed: (tree.nodes().len() as u64).saturating_add(value_count as u64),
                }
            })?;
        let inos = match base {
            Some(base) => inos.onto(|node| base.old(node).map(|old| old.ino), facts.inode_limit),
            None => inos,
        };
        let dirs = DirCoder {
            layout: DirLayout {
                block_size: facts.block_size,
                filetype: features.has(Feature::FILETYPE),
                checksum: features.has(Feature::METADATA_CSUM),
                stored_hash: false,
                encrypted: false,
            },
            hash: features
                .has(Feature::DIR_INDEX)
                .then(|| (mkfs.hash, HashSeed::from_bytes(&ids.hash_seed))),
            large_dir: features.has(Feature::LARGEDIR),
            lost_found_blocks: facts.lost_found_blocks,
        };
        let mut demand = Demand {
            block_size: facts.block_size,
            cluster_blocks: facts.cluster_blocks,
            extents: features.has(Feature::EXTENTS),
            strict: mkfs.encoding_strict,
            encrypt: features.has(Feature::ENCRYPT),
            place: Place {
                ino: 0,
                uuid: ids.uuid,
                is_stable: features.has(Feature::STABLE_INODES),
                block_log2: facts.block_size.log2() as u8,
            },
            verity: features.has(Feature::VERITY),
            large_file: features.has(Feature::LARGE_FILE),
            huge_file: features.has(Feature::HUGE_FILE),
            inos,
            base: base.cloned(),
            own,
            dirs,
            attrs,
            forms: Vec::with_capacity(tree.nodes().len()),
            dir_blocks: Vec::new(),
            sub_dirs: Vec::new(),
            quota_blocks: [0; 3],
            content_blocks: 0,
            data_bytes: 0,
        };
        demand.look_at_nodes(tree)?;
        demand.look_at_dirs(tree, features, lost_found)?;
        demand.look_at_quota(tree, mkfs)?;
        demand.content_blocks += demand.attrs.total_blocks(&demand);
        Ok(demand)
    }

    /// Blocks that `blocks` blocks of one object take, in whole clusters.
    pub(crate) fn in_clusters(&self, blocks: u64) -> u64 {
        blocks.next_multiple_of(u64::from(self.cluster_blocks))
    }

    /// When a file of the base was made.
    pub(crate) fn born(&self, node: NodeId) -> Option<Time> {
        self.base.as_ref()?.old(node)?.crtime
    }

    /// The last inode in use; the image needs at least that many.
    pub(crate) fn inodes_needed(&self) -> u64 {
        u64::from(self.inos.last().0)
    }

    fn look_at_nodes(&mut self, tree: &Tree) -> Result<(), PlanError> {
        let max_blocks = self.max_file_blocks();
        for (index, node) in tree.nodes().iter().enumerate() {
            let id = NodeId(index as u32);
            let fail = |why| Err(refuse(tree, id, why));
            let most = LINKS_MAX + u32::from(sabotage("image.plan.one-link-too-many"));
            if node.kind != Kind::Dir && node.name_count > most {
                return fail(format!(
                    "it has {} hard links; ext4 allows {LINKS_MAX}",
                    node.name_count
                ));
            }
            if node.key != 0 && !self.encrypt {
                return fail("encrypted files need the encrypt feature (-O encrypt)".into());
            }
            if node.key != 0
                && let Err(why) = check_node(tree, node.key, &self.place)
            {
                return fail(why);
            }
            if node.key != 0 && node.sealed {
                return fail(
                    "it is to be encrypted and sealed, and extant builds no such files".into(),
                );
            }
            let form = match node.kind {
                _ if self.attrs.is_inline(id) => Form::Inline,
                Kind::Symlink if self.target_len(tree, id) <= FAST_SYMLINK_MAX => Form::FastSymlink,
                Kind::Symlink => {
                    let block_bytes = self.block_size.bytes();
                    if self.target_len(tree, id) >= u64::from(block_bytes) {
                        // The length of an encrypted one is stored with it.
                        let taken = if node.key == 0 { 1 } else { 3 };
                        return Err(PlanError::TargetTooLong {
                            path: path_of(tree, id),
                            len: node.size,
                            most: self.block_size.len() - taken,
                            block_bytes,
                        });
                    }
                    self.content_blocks += self.in_clusters(1);
                    Form::Blocks
                }
                Kind::File if node.size > 0 || node.sealed => {
                    let seal =
                        SealPlan::of(node, self.block_size).map_err(|why| refuse(tree, id, why))?;
                    if seal.is_some() {
                        self.check_seals().map_err(|why| refuse(tree, id, why))?;
                    }
                    let blocks = match &seal {
                        Some(seal) => seal.blocks.0 + seal.blocks.1,
                        None => self.block_size.blocks_for(node.size),
                    };
                    if blocks > max_blocks {
                        let hint = if self.huge_file {
                            ""
                        } else {
                            " (without the huge_file feature no more than 2 TiB)"
                        };
                        return fail(format!(
                            "a file of {} bytes; with this block size and mapping at most {} \
                             blocks of {} bytes fit{hint}",
                            node.size,
                            max_blocks,
                            self.block_size.bytes()
                        ));
                    }
                    if node.size > u64::from(u32::MAX >> 1) && !self.large_file {
                        return fail(format!(
                            "a file of {} bytes; files of 2 GiB and more need the large_file feature",
                            node.size
                        ));
                    }
                    for (_, len) in self.runs_of(tree, node) {
                        self.content_blocks += self.in_clusters(len);
                    }
                    self.data_bytes += match tree.runs(node) {
                        Some(runs) => runs.iter().map(|r| r.len).sum(),
                        None => node.size,
                    };
                    Form::Blocks
                }
                Kind::Dir => Form::Blocks,
                Kind::File | Kind::Char | Kind::Block | Kind::Fifo | Kind::Socket => Form::Nothing,
            };
            self.forms.push(form);
        }
        Ok(())
    }

    fn look_at_dirs(
        &mut self,
        tree: &Tree,
        features: &Features,
        lost_found: NodeId,
    ) -> Result<(), PlanError> {
        for (id, entries) in tree.dirs() {
            let sub_dirs =
                entries.iter().filter(|e| tree.node(e.node).kind == Kind::Dir).count() as u32;
            let own = if sabotage("image.plan.own-links-forgotten") { 0 } else { 2 };
            if sub_dirs + own > LINKS_MAX && !features.has(Feature::DIR_NLINK) {
                let why = format!(
                    "it has {sub_dirs} sub-directories; without the dir_nlink feature ext4 allows {}",
                    LINKS_MAX - 2
                );
                return Err(refuse(tree, id, why));
            }
            if folds_case(tree, id) {
                if !hashes_names(tree, id) {
                    let why = "it is to fold case and to be encrypted by a policy of version 1, which Linux refuses";
                    return Err(refuse(tree, id, why.into()));
                }
                check_folded(tree, id, self.strict).map_err(|why| refuse(tree, id, why))?;
            }
            self.sub_dirs.push(sub_dirs);
            if self.forms[id.index()] == Form::Inline {
                self.dir_blocks.push((0, false));
                continue;
            }
            let shape =
                self.dirs.shape(tree, id, id == lost_found, &self.place(id)).map_err(|e| {
                    let hint = if features.has(Feature::LARGEDIR) {
                        ""
                    } else {
                        " (the large_dir feature allows more)"
                    };
                    refuse(tree, id, format!("its {} entries: {e}{hint}", entries.len()))
                })?;
            self.content_blocks += self.in_clusters(u64::from(shape.block_count()));
            self.dir_blocks.push((shape.block_count(), shape.is_indexed()));
        }
        Ok(())
    }

    fn look_at_quota(&mut self, tree: &Tree, mkfs: &MkfsOptions) -> Result<(), PlanError> {
        let wanted = mkfs.quota_types();
        for (at, on) in [wanted.user, wanted.group, wanted.project].into_iter().enumerate() {
            if on {
                // The length depends on the set of owners, not on their usage.
                let file = quota_file(KINDS[at], tree, |_| (0, 0))
                    .map_err(|e| refuse(tree, NodeId::ROOT, format!("a quota file: {e}")))?;
                self.quota_blocks[at] = self.block_size.blocks_for(file.len() as u64);
            }
        }
        Ok(())
    }

    /// Blocks of a quota file: 0 user, 1 group, 2 project.
    pub(crate) fn quota_blocks(&self, kind: u8) -> u64 {
        self.quota_blocks[usize::from(kind)]
    }

    /// Blocks of a directory, and whether it has an index.
    pub(crate) fn dir_of(&self, tree: &Tree, dir: NodeId) -> (u32, bool) {
        tree.dir_index(dir).map_or((0, false), |at| self.dir_blocks[at])
    }

    /// Sub-directories of a directory.
    pub(crate) fn sub_dirs_of(&self, tree: &Tree, dir: NodeId) -> u32 {
        tree.dir_index(dir).map_or(0, |at| self.sub_dirs[at])
    }

    /// Most blocks a file may have, holes counted; see [`max_file_blocks`].
    fn max_file_blocks(&self) -> u64 {
        max_file_blocks(self.block_size, self.extents, self.huge_file)
    }

    /// Runs of blocks of a regular file that are stored: those of its contents, see [`file_runs`],
    /// and the one of its seal.
    pub(crate) fn runs_of<'t>(
        &self,
        tree: &'t Tree,
        node: &Node,
    ) -> impl Iterator<Item = (u32, u64)> + use<'t> {
        self.data_runs(tree, node).chain(self.seal_run(node))
    }

    /// Runs of blocks that contents of a regular file take.
    pub(crate) fn data_runs<'t>(
        &self,
        tree: &'t Tree,
        node: &Node,
    ) -> impl Iterator<Item = (u32, u64)> + use<'t> {
        file_runs(tree.runs(node), node.size, self.block_size, self.cluster_blocks)
    }

    /// The run of blocks behind the end of a sealed file.
    pub(crate) fn seal_run(&self, node: &Node) -> Option<(u32, u64)> {
        let seal = SealPlan::of(node, self.block_size).ok()??;
        Some((u32::try_from(seal.blocks.0).ok()?, seal.blocks.1))
    }

    /// What the ciphers of a node depend on besides its context.
    pub(crate) fn place(&self, id: NodeId) -> Place {
        match sabotage("image.encrypt.no-place") {
            true => self.place,
            false => Place { ino: self.inos.ino(id).0, ..self.place },
        }
    }

    /// Bytes of a link's target as it is stored.
    pub(crate) fn target_len(&self, tree: &Tree, id: NodeId) -> u64 {
        target_len(tree, id, self.block_size.len())
    }

    /// Fails in words if no file can be sealed.
    fn check_seals(&self) -> Result<(), String> {
        if !self.verity {
            return Err("sealed files need the verity feature (-O verity)".into());
        }
        // A cluster has one place, so contents and tree cannot share one with a hole between.
        if u64::from(self.cluster_blocks) * u64::from(self.block_size.bytes()) > 65536 {
            return Err("sealed files need clusters of at most 64 KiB (-C)".into());
        }
        Ok(())
    }
}

/// Numbers that the geometry of every size agrees on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeFacts {
    pub(crate) block_size: BlockSize,
    pub(crate) cluster_blocks: u32,
    pub(crate) inode_size: u16,
    pub(crate) lost_found_blocks: u32,
    /// The last inode that a file of a base can keep.
    pub(crate) inode_limit: u32,
}

fn own_inos(features: &Features) -> (OwnInos, Ino) {
    let mut next = Ino::FIRST_ORDINARY.0 + 1;
    let mut own = OwnInos::default();
    let mut take = || {
        next += 1;
        Some(Ino(next - 1))
    };
    if features.has(Feature::PROJECT) && features.has(Feature::QUOTA) {
        own.project_quota = take();
    }
    if features.has(Feature::ORPHAN_FILE) {
        own.orphan_file = take();
    }
    (own, Ino(next))
}

/// The path of the node in the image, for messages.
fn path_of(tree: &Tree, node: NodeId) -> String {
    format!("/{}", tree.path(node).escape_ascii())
}

/// Names the node in a refusal.
pub(crate) fn refuse(tree: &Tree, node: NodeId, why: String) -> PlanError {
    PlanError::File { path: path_of(tree, node), why }
}

/// Returns the largest number of blocks of a file, including holes: 32-bit file blocks with
/// extents; the reach of triple indirection without. Without `huge_file`, a file's space is a
/// 32-bit number of sectors of 512 bytes, and the kernel opens no file whose size it could not
/// count: with a block map, the map's blocks counted as well.
fn max_file_blocks(block_size: BlockSize, extents: bool, huge_file: bool) -> u64 {
    let reach = match extents {
        true => u64::from(u32::MAX),
        false => indirect::max_file_blocks(block_size),
    };
    if huge_file {
        return reach;
    }
    let counted = u64::from(u32::MAX) >> (block_size.log2() - 9);
    let reach = reach.min(counted);
    let map = match extents {
        true => 0,
        // One run within reach is always a good one.
        false => indirect::map_blocks([(FileBlock(0), reach)], block_size).unwrap_or(0),
    };
    reach.min(counted.saturating_sub(map))
}

/// Runs of blocks `(first file block, blocks)` of a file of `size` bytes with data runs `runs`.
///
/// Runs of bytes become runs of whole clusters, so that a file block is where its cluster says;
/// the last one ends with the file.
pub(crate) fn file_runs(
    runs: Option<&[DataRun]>,
    size: u64,
    block_size: BlockSize,
    cluster_blocks: u32,
) -> impl Iterator<Item = (u32, u64)> + use<'_> {
    let unit = u64::from(block_size.bytes()) * u64::from(cluster_blocks);
    let end_block = block_size.blocks_for(size);
    let whole = runs.is_none().then_some((0u64, size));
    let pieces = runs.unwrap_or(&[]).iter().map(|run| (run.offset, run.offset + run.len));
    let mut bytes = whole.into_iter().chain(pieces).filter(|(start, end)| start < end).peekable();
    std::iter::from_fn(move || {
        let (start, mut end) = bytes.next()?;
        // Join runs that meet in one cluster or in neighbouring ones.
        while let Some(&(next_start, next_end)) = bytes.peek() {
            let gap = 1 + u64::from(sabotage("image.plan.hole-of-one-filled"));
            if next_start / unit > (end - 1) / unit + gap {
                break;
            }
            end = next_end;
            bytes.next();
        }
        let first = start / unit * u64::from(cluster_blocks);
        let last = ((end - 1) / unit + 1) * u64::from(cluster_blocks);
        Some((first as u32, last.min(end_block) - first))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(list: &[(u64, u64)], size: u64, cluster: u32) -> Vec<(u32, u64)> {
        let runs: Vec<_> =
            list.iter().map(|&(offset, len)| DataRun { offset, len, locator: 0 }).collect();
        file_runs(Some(&runs), size, BlockSize::new(4096).unwrap(), cluster).collect()
    }

    #[test]
    fn no_file_is_longer_than_the_kernel_opens() {
        let limit =
            |bytes, extents, huge| max_file_blocks(BlockSize::new(bytes).unwrap(), extents, huge);
        for bytes in [1024, 2048, 4096, 65_536] {
            assert_eq!(limit(bytes, true, true), (1 << 32) - 1);
            // 2^32 - 1 sectors, in whole blocks.
            assert_eq!(limit(bytes, true, false), (1 << 41) / bytes - 1);
        }
        // Block maps of small blocks end before the sectors do.
        for huge in [true, false] {
            assert_eq!(limit(1024, false, huge), 12 + 256 + (1 << 16) + (1 << 24));
            assert_eq!(limit(2048, false, huge), 12 + 512 + (1 << 18) + (1 << 27));
        }
        assert_eq!(limit(4096, false, true), 12 + 1024 + (1 << 20) + (1 << 30));
        // 536,870,911 blocks, of which 524,801 hold block numbers.
        assert_eq!(limit(4096, false, false), 536_346_110);
    }

    #[test]
    fn byte_runs_become_block_runs() {
        let size = BlockSize::new(4096).unwrap();
        assert_eq!(file_runs(None, 10_000, size, 1).collect::<Vec<_>>(), [(0, 3)]);
        assert_eq!(file_runs(None, 0, size, 1).count(), 0);
        assert_eq!(runs(&[], 1 << 20, 1), []);
        assert_eq!(runs(&[(4096, 4096), (16384, 1)], 20_000, 1), [(1, 1), (4, 1)]);
        // Two pieces of one block are one run; so are pieces in neighbouring blocks.
        assert_eq!(runs(&[(0, 100), (512, 100), (4096, 1)], 8192, 1), [(0, 2)]);
        assert_eq!(runs(&[(8191, 2)], 1 << 20, 1), [(1, 2)]);
        // A hole of a single block is kept.
        assert_eq!(runs(&[(0, 4096), (8192, 4096)], 1 << 20, 1), [(0, 1), (2, 1)]);
        assert_eq!(runs(&[(0, 1), (8192, 1)], 1 << 20, 1), [(0, 1), (2, 1)]);
    }

    #[test]
    fn runs_cover_whole_clusters_but_end_with_the_file() {
        assert_eq!(runs(&[(4096, 1)], 1 << 20, 16), [(0, 16)]);
        assert_eq!(runs(&[(4096, 1)], 20_000, 16), [(0, 5)]);
        // The hole between is one cluster.
        assert_eq!(runs(&[(0, 1), (65_536 * 2, 1)], 1 << 20, 16), [(0, 16), (32, 16)]);
        assert_eq!(runs(&[(0, 1), (65_536, 1)], 1 << 20, 16), [(0, 32)]);
    }
}
