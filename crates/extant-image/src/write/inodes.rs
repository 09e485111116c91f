//! Encoding of inode tables.

use std::ops::Range;

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::inline;
use extant_format::inode::{
    BASE_BYTES, DeviceNumber, EXTRA_BYTES, FileKind, Inode, InodeFlags, LINKS_MAX,
};
use extant_format::superblock::OLD_INODE_SIZE;
use extant_format::time::{SECONDS_MAX, SECONDS_MAX_SMALL, SECONDS_MIN, Timestamp};

use crate::encrypt::stored_target;
use crate::options::Feature;
use crate::plan::{Form, NodePlace, Own, PieceRange, new_dir_entry};
use crate::tree::{Kind, NodeId, Time};
use crate::write::WriteError;
use crate::write::chunk::Worker;
use crate::write::image::Image;
use crate::write::job::place_of;

impl Worker<'_> {
    /// Writes inodes `range`, which lie in one group, up to the end of their last block.
    pub(super) fn inodes(&mut self, range: Range<u32>) -> Result<(), WriteError> {
        let image = self.image;
        let geometry = &image.plan.layout.geometry;
        let size = usize::from(geometry.inode_size);
        let (group, first) = place_of(Ino(range.start), geometry.inodes_per_group);
        let table = geometry.group(GroupIndex(group)).inode_table;
        let block = table.start + u64::from(first / geometry.inodes_per_block());
        let bytes = (range.len() * size).next_multiple_of(image.block_bytes());

        let mut buffer = self.take_buffer();
        let out = &mut buffer[..bytes];
        out.fill(0);
        let mut result = Ok(());
        for (ino, record) in range.zip(out.chunks_exact_mut(size)) {
            result = self.inode(Ino(ino), record);
            if result.is_err() {
                break;
            }
        }
        let result = result.and_then(|()| image.write(FsBlock(block), out, &mut self.written));
        self.put_buffer(buffer);
        result
    }

    /// Encodes one inode over zeroed `record`.
    fn inode(&mut self, ino: Ino, record: &mut [u8]) -> Result<(), WriteError> {
        let image = self.image;
        let inos = &image.plan.demand.inos;
        if !inos.is_used(ino) {
            return Ok(());
        }
        let inode = if let Some(node) = inos.node(ino) {
            self.node_inode(node, record)?
        } else if let Some(value) = inos.value(ino) {
            image.value_inode(value)?
        } else {
            image.own_inode(ino)?
        };
        inode
            .encode(&image.inode_layout, ino, record)
            .map_err(|e| WriteError::encode(format!("inode {ino}"), e))
    }

    /// The inode of a node; its attributes are put into `record` already.
    fn node_inode(&mut self, id: NodeId, record: &mut [u8]) -> Result<Inode, WriteError> {
        let image = self.image;
        let plan = image.plan;
        let node = image.tree.node(id);
        let name = || format!("\"/{}\"", image.tree.path(id).escape_ascii());
        let mut inode = Inode::empty(&image.inode_layout);
        inode.mode = kind_of(node.kind).mode_bits() | (node.mode & 0o7777);
        (inode.uid, inode.gid) = (node.uid, node.gid);
        (inode.mtime, inode.atime, inode.ctime) =
            (image.time(node.mtime), image.time(node.atime), image.time(node.ctime));
        // A rebuild must not show when it was made.
        let born = if plan.reproducible { node.mtime } else { plan.ids.created };
        let born = plan.demand.born(id).unwrap_or(born);
        inode.crtime = inode.crtime.map(|_| image.time(born));
        inode.flags |= InodeFlags::from_bits_retain(node.flags);
        inode.project = node.project;
        inode.flags.set(InodeFlags::ENCRYPT, node.key != 0);
        inode.size = node.size;
        if node.kind == Kind::Symlink {
            inode.size = plan.demand.target_len(image.tree, id);
        }
        inode.links = node.name_count.min(u32::from(u16::MAX)) as u16;
        if node.kind == Kind::Dir {
            let links = plan.demand.sub_dirs_of(image.tree, id) + 2;
            let many = links >= LINKS_MAX && image.has(Feature::DIR_NLINK);
            inode.links = if many { 1 } else { links.min(u32::from(u16::MAX)) as u16 };
        }

        let place = plan.layout.nodes[id.index()];
        let mut inline_tail = Vec::new();
        match plan.demand.forms[id.index()] {
            Form::Nothing => match node.kind {
                Kind::Char | Kind::Block => {
                    let (major, minor) = node.rdev;
                    inode.block = DeviceNumber::new(major, minor)
                        .map_err(|e| WriteError::encode(name(), e))?
                        .encode();
                }
                Kind::File => image.put_map(&mut inode, &place, None)?,
                _ => {}
            },
            Form::FastSymlink => {
                let target = stored_target(image.tree, id, &plan.demand.place(id));
                inode.block[..target.len()].copy_from_slice(&target);
            }
            Form::Inline => {
                inode.flags |= InodeFlags::INLINE_DATA;
                let space =
                    usize::from(image.inode_layout.inode_size - OLD_INODE_SIZE - EXTRA_BYTES);
                let room = inline::capacity(space).unwrap_or(0);
                let fail = |e: inline::InlineFault| WriteError::encode(name(), e);
                (inode.block, inline_tail) = if node.kind == Kind::Dir {
                    let entries = image.tree.children(id).iter();
                    let entries = entries.map(|e| new_dir_entry(image.tree, &plan.demand.inos, e));
                    let parent = plan.demand.inos.ino(image.parent(id));
                    let layout = plan.demand.dirs.layout;
                    inline::build_dir(parent, entries, layout, room).map_err(fail)?
                } else {
                    let bytes = self.read_whole(id)?;
                    let (head, tail) = inline::split(&bytes, room).map_err(fail)?;
                    (head, tail.to_vec())
                };
                if node.kind == Kind::Dir {
                    inode.size = (inline::BLOCK_BYTES + inline_tail.len()) as u64;
                }
            }
            Form::Blocks => {
                let seed = image.inode_seed(plan.demand.inos.ino(id));
                image.put_map(&mut inode, &place, seed)?;
                inode.flags.set(InodeFlags::VERITY, node.sealed);
                if node.kind == Kind::Dir {
                    let (blocks, indexed) = plan.demand.dir_of(image.tree, id);
                    inode.size = image.offset(u64::from(blocks));
                    inode.flags.set(InodeFlags::INDEX, indexed);
                }
            }
        }
        if let Some(index) = plan.demand.attrs.block_of(id) {
            inode.file_acl = FsBlock(plan.layout.xattr_block(index));
        }
        image.put_sectors(&mut inode, plan.node_blocks(id), name)?;
        if let Some(space) = record.get_mut(BASE_BYTES + usize::from(inode.extra_isize)..)
            && image.inode_layout.inode_size > OLD_INODE_SIZE
        {
            plan.demand
                .attrs
                .encode_inode(id, &inline_tail, space, |value| image.value_ino(value))
                .map_err(|e| WriteError::encode(name(), e))?;
        }
        Ok(inode)
    }
}

impl Image<'_> {
    /// Seconds that the format cannot hold become the nearest it can.
    pub(super) fn time(&self, time: Time) -> Timestamp {
        let small = self.inode_layout.inode_size <= OLD_INODE_SIZE;
        let max = if small { SECONDS_MAX_SMALL } else { SECONDS_MAX };
        Timestamp::new(time.sec.clamp(SECONDS_MIN, max), if small { 0 } else { time.nsec })
    }

    /// Maps contents by extents or by indirect blocks, as the file system does.
    pub(super) fn put_map(
        &self,
        inode: &mut Inode,
        place: &NodePlace,
        seed: Option<u32>,
    ) -> Result<(), WriteError> {
        (inode.block, _) = self.map_of(place.data, place.map, seed)?;
        inode.flags.set(InodeFlags::EXTENTS, self.plan.demand.extents);
        Ok(())
    }

    pub(super) fn put_sectors(
        &self,
        inode: &mut Inode,
        blocks: u64,
        what: impl Fn() -> String,
    ) -> Result<(), WriteError> {
        inode
            .set_sectors(&self.inode_layout, self.offset(blocks) / 512)
            .map_err(|e| WriteError::encode(what(), e))
    }

    /// The inode of a large attribute value: its times hold a hash and a reference count.
    fn value_inode(&self, value: u32) -> Result<Inode, WriteError> {
        let attrs = &self.plan.demand.attrs;
        let place = self.plan.layout.values[value as usize];
        let mut inode = Inode::empty(&self.inode_layout);
        inode.mode = FileKind::Regular.mode_bits() | 0o600;
        inode.links = 1;
        inode.size = attrs.value_len(value);
        let references = attrs.value_references(value);
        // The fields are plain 32-bit words here; the epoch bits must stay out.
        let word = |word: u32| Timestamp::new(i64::from(word.cast_signed()), 0);
        inode.atime = word(self.value_hashes[value as usize]);
        inode.ctime = word(0);
        inode.version = u64::from(references);
        inode.mtime = self.time(self.plan.ids.created);
        inode.flags |= InodeFlags::EA_INODE;
        let ino = self.plan.demand.inos.value_ino(value);
        self.put_map(&mut inode, &place, self.inode_seed(ino))?;
        let blocks = self.plan.layout.blocks_of(&place);
        self.put_sectors(&mut inode, blocks, || "an attribute value".into())?;
        Ok(inode)
    }

    /// An inode that the file system keeps for itself, or one that is reserved and empty.
    fn own_inode(&self, ino: Ino) -> Result<Inode, WriteError> {
        let created = self.time(self.plan.ids.created);
        let mut inode = Inode::empty(&self.inode_layout);
        let Some((own, size)) = self.own_at(ino) else {
            // mke2fs leaves reserved inodes without extra fields, and dates the list of bad blocks.
            inode.extra_isize = 0;
            inode.crtime = None;
            if ino == Ino(1) {
                (inode.atime, inode.ctime, inode.mtime) = (created, created, created);
            }
            return Ok(inode);
        };
        inode.mode = FileKind::Regular.mode_bits() | 0o600;
        inode.links = 1;
        inode.size = size;
        (inode.atime, inode.ctime, inode.mtime) = (created, created, created);
        inode.crtime = inode.crtime.map(|_| created);
        if own == Own::ResizeMap {
            self.put_resize_map(&mut inode)?;
            return Ok(inode);
        }
        let place = self.own_place(own);
        self.put_map(&mut inode, &place, self.inode_seed(ino))?;
        if matches!(own, Own::Quota(_)) {
            inode.flags |= InodeFlags::IMMUTABLE;
        }
        self.put_sectors(&mut inode, self.plan.layout.blocks_of(&place), || {
            format!("inode {ino}")
        })?;
        Ok(inode)
    }

    /// Which own file an inode is, and its size in bytes.
    fn own_at(&self, ino: Ino) -> Option<(Own, u64)> {
        let layout = &self.plan.layout;
        let blocks = |range: PieceRange| -> u64 {
            self.offset(layout.pieces.of(range).iter().map(|p| u64::from(p.len)).sum())
        };
        let found = if ino == Ino::JOURNAL && layout.own.journal.data.count > 0 {
            (Own::Journal, blocks(layout.own.journal.data))
        } else if ino == Ino::RESIZE && layout.own.resize_map.count > 0 {
            (Own::ResizeMap, self.resize_size())
        } else if Some(ino) == self.plan.demand.own.orphan_file
            && layout.own.orphan_file.data.count > 0
        {
            (Own::OrphanFile, blocks(layout.own.orphan_file.data))
        } else {
            let kind = (0..3u8).find(|&kind| {
                let exists = layout.own.quota[usize::from(kind)].data.count > 0;
                exists && self.own_ino(Own::Quota(kind)) == ino
            })?;
            (Own::Quota(kind), self.quota[usize::from(kind)].len() as u64)
        };
        Some(found)
    }

    /// Inode of an own file.
    pub(super) fn own_ino(&self, own: Own) -> Ino {
        let demand = &self.plan.demand;
        match own {
            Own::Journal => Ino::JOURNAL,
            Own::ResizeMap => Ino::RESIZE,
            Own::OrphanFile => demand.own.orphan_file.unwrap_or(Ino(0)),
            Own::Quota(0) => Ino::USER_QUOTA,
            Own::Quota(1) => Ino::GROUP_QUOTA,
            Own::Quota(_) => demand.own.project_quota.unwrap_or(Ino(0)),
            Own::Mmp => Ino(0),
        }
    }
}

fn kind_of(kind: Kind) -> FileKind {
    match kind {
        Kind::File => FileKind::Regular,
        Kind::Dir => FileKind::Directory,
        Kind::Symlink => FileKind::Symlink,
        Kind::Char => FileKind::CharDevice,
        Kind::Block => FileKind::BlockDevice,
        Kind::Fifo => FileKind::Fifo,
        Kind::Socket => FileKind::Socket,
    }
}
