//! The image that a new one is built over.

use std::path::{Path, PathBuf};

use extant::{FileKind, Fs, FsError, Inode, MappingKind};
use extant_base::Ino;
use extant_format::superblock::Superblock;
use extant_format::time::Timestamp;
use extant_image::base::{Base, BaseFault, BaseImage, BaseInode, BaseRun};
use extant_image::tree::{Kind, Time, Tree};

use crate::exit::{Exit, Failure, Result};
use crate::image::ReadArgs;
use crate::in_use::{loop_device_of, mounted_on};
use crate::mount_table;
use crate::text::escape;

/// File blocks have 32 bits.
const FILE_BLOCKS_END: u64 = 1 << 32;

/// What `extant` reads, as the builder asks for it.
struct Reader(Fs);

/// Reads what the image in `file` has of the files of `tree`.
pub(crate) fn read(file: &Path, partition: Option<u32>, tree: &Tree) -> Result<Base> {
    use std::os::unix::ffi::OsStrExt;
    let name = escape(file.as_os_str().as_bytes());
    if let Some(holder) = holder_of(file, partition) {
        // What is read while it changes would be of no one moment.
        return Err(Failure::new(Exit::Refused, format!("--base {name}: it is in use: {holder}"))
            .hint("unmount it first, or give a copy of it"));
    }
    let how = ReadArgs { partition, ..ReadArgs::default() };
    let (fs, _) = how.open(file)?;
    fs.check_root().map_err(|error| unusable(&name, &error))?;
    Base::read(&Reader(fs), tree).map_err(|error| unusable(&name, &error))
}

fn unusable(name: &str, error: &dyn std::error::Error) -> Failure {
    Failure::new(Exit::Image, format!("--base {name}: {error}")).hint(format!(
        "extant check {name} says what is wrong with it; without --base the image is built anew"
    ))
}

/// Who has a file or device mounted.
fn holder_of(file: &Path, partition: Option<u32>) -> Option<String> {
    if let Some(device) = loop_device_of(file) {
        return Some(format!("the kernel has it as {device}"));
    }
    let mounted: Option<PathBuf> = match file.canonicalize() {
        Ok(path) => mount_table::mounts_of(path.as_os_str()).into_iter().next(),
        Err(_) => None,
    };
    let mounted = mounted.or_else(|| mounted_on(file, partition, None))?;
    Some(format!("it is mounted on {}", mounted.display()))
}

impl BaseImage for Reader {
    fn superblock(&self) -> &Superblock {
        self.0.superblock()
    }

    fn list(
        &self,
        dir: Ino,
        each: &mut dyn FnMut(&[u8], Ino) -> bool,
    ) -> std::result::Result<(), BaseFault> {
        for entry in self.0.inode(dir)?.read_dir()? {
            let entry = entry?;
            if !each(entry.name(), entry.ino()) {
                break;
            }
        }
        Ok(())
    }

    fn inode(&self, ino: Ino, runs_max: usize) -> std::result::Result<BaseInode, BaseFault> {
        let inode = self.0.inode(ino)?;
        let record = inode.record();
        let time = |time: Timestamp| Time { sec: time.seconds, nsec: time.nanos_clamped() };
        Ok(BaseInode {
            kind: kind_of(inode.kind()),
            mode: record.permissions(),
            uid: record.uid,
            gid: record.gid,
            size: record.size,
            mtime: time(record.mtime),
            atime: time(record.atime),
            ctime: time(record.ctime),
            crtime: record.crtime.map(time),
            xattr_block: Some(record.file_acl).filter(|block| block.0 != 0),
            block_area: record.block,
            runs: runs_of(&inode, runs_max)?,
        })
    }
}

fn runs_of(inode: &Inode, runs_max: usize) -> std::result::Result<Vec<BaseRun>, FsError> {
    let mut runs = Vec::new();
    if runs_max == 0 {
        return Ok(runs);
    }
    // What lies behind the end of a sealed file is a run as well.
    for run in inode.map(0..FILE_BLOCKS_END) {
        let run = run?;
        let (MappingKind::Mapped(block) | MappingKind::Unwritten(block)) = run.kind else {
            continue;
        };
        // No more than file blocks, of which there are fewer than 2^32.
        let len = u32::try_from(run.len).unwrap_or(u32::MAX);
        runs.push(BaseRun { file_block: run.file_start.0, block: block.0, len });
        if runs.len() == runs_max {
            break;
        }
    }
    Ok(runs)
}

fn kind_of(kind: FileKind) -> Kind {
    match kind {
        FileKind::Regular => Kind::File,
        FileKind::Directory => Kind::Dir,
        FileKind::Symlink => Kind::Symlink,
        FileKind::CharDevice => Kind::Char,
        FileKind::BlockDevice => Kind::Block,
        FileKind::Fifo => Kind::Fifo,
        FileKind::Socket => Kind::Socket,
    }
}
