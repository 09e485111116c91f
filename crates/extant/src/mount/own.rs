//! Files that belong to the file system itself: they are located here, because that needs a map,
//! and passed to the modules that manage their contents.

use extant_base::{FsBlock, Ino};
use extant_format::inode::FileKind;

use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::inode::Inode;
use crate::map::{Mapping, MappingKind};
use crate::orphan::{self, Orphans};
use crate::quota::{self, Quotas};

/// Returns the inode of a hidden file; `what` names it in errors.
fn own_file(fs: &Fs, ino: Ino, what: &'static str) -> Result<Inode> {
    let inode = fs.own_inode(ino, what)?;
    if inode.kind() != FileKind::Regular || inode.is_inline() {
        let rule = "its inode is not a regular file with blocks";
        return Err(FsError::corrupt(what, ino, None, Fault::Rule(rule)));
    }
    Ok(inode)
}

/// Returns the runs of the first `blocks` of a hidden file, which has no holes.
fn runs(
    inode: &Inode,
    what: &'static str,
    blocks: u64,
) -> impl Iterator<Item = Result<(Mapping, FsBlock)>> {
    let ino = inode.ino();
    inode.map(0..blocks).map(move |run| {
        let run = run?;
        match run.kind {
            MappingKind::Mapped(start) => Ok((run, start)),
            _ => Err(FsError::corrupt(what, ino, None, Fault::Rule("it has holes"))),
        }
    })
}

/// Opens the orphan file, if there is one in use.
pub(super) fn orphans(fs: &Fs) -> Result<Orphans> {
    const WHAT: &str = "orphan file";
    let superblock = fs.superblock();
    if !orphan::file_in_use(superblock) {
        return Orphans::open(fs.volume(), None);
    }
    let inode = own_file(fs, superblock.orphan_file_inode, WHAT)?;
    let size = inode.metadata().size;
    orphan::check_file_size(superblock, size)?;
    let blocks = size >> superblock.block_size.log2();
    let runs = runs(&inode, WHAT, blocks).map(|run| run.map(|(run, start)| (start, run.len)));
    let generation = inode.record().generation;
    let file = orphan::StoredFile { generation, runs: runs.collect::<Result<_>>()? };
    Orphans::open(fs.volume(), Some(&file))
}

/// Opens the quota files.
pub(super) fn quotas(fs: &Fs, enforced: bool) -> Result<Quotas> {
    let [user, group, project] = quota::stored_files(fs.superblock());
    let stored = [quota_file(fs, user)?, quota_file(fs, group)?, quota_file(fs, project)?];
    Quotas::open(fs.volume(), stored, enforced)
}

fn quota_file(fs: &Fs, ino: Option<Ino>) -> Result<Option<quota::StoredFile>> {
    const WHAT: &str = "quota file";
    let Some(ino) = ino else { return Ok(None) };
    let inode = own_file(fs, ino, WHAT)?;
    // Each run has at least one block, and runs cannot overlap in a sound map; an unsound map ends
    // at the size of the file system.
    let size = inode.metadata().size;
    let blocks = fs.block_size().blocks_for(size).min(fs.superblock().blocks_count);
    let extents = runs(&inode, WHAT, blocks).map(|run| {
        run.map(|(run, device_start)| {
            let file_start = u64::from(run.file_start.0);
            quota::Extent { file_start, device_start, len: run.len }
        })
    });
    let extents = extents.collect::<Result<_>>()?;
    Ok(Some(quota::StoredFile { node: fs.node(ino)?, size, extents }))
}
