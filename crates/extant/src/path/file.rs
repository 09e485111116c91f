//! An open regular file: an inode and a position.

use std::io::{self, Read, Seek, SeekFrom};

use crate::error::{FsError, Result};
use extant_format::inode::FileKind;

use crate::inode::{Inode, Metadata};

/// A regular file opened with [`Fs::open`](crate::Fs::open).
///
/// [`read_at`](Self::read_at) takes `&self` and may be called from many threads; `Read` and `Seek`
/// share one position and take `&mut self`.
#[derive(Clone, Debug)]
pub struct File {
    inode: Inode,
    position: u64,
}

impl File {
    /// Refuses what has no contents.
    pub(super) fn new(inode: Inode) -> Result<File> {
        match inode.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsADirectory { ino: inode.ino() }),
            _ => return Err(FsError::NotARegularFile { ino: inode.ino() }),
        }
        if inode.is_encrypted() {
            return Err(FsError::Encrypted { ino: inode.ino(), what: "contents" });
        }
        Ok(File { inode, position: 0 })
    }

    /// The inode behind the file: its mapping, extended attributes and more.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// Gives up the position.
    pub fn into_inode(self) -> Inode {
        self.inode
    }

    /// The file's attributes.
    pub fn metadata(&self) -> Metadata {
        self.inode.metadata()
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.inode.size()
    }

    /// True for a file of 0 bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` from byte `offset` and returns how many bytes there were: fewer than asked for
    /// only at the end of the file.
    ///
    /// # Errors
    ///
    /// Those of [`Inode::read_at`].
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.inode.read_at(offset, out)
    }
}

impl Read for File {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.inode.read_at(self.position, out)?;
        self.position += read as u64; // At most the file's size.
        Ok(read)
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
        };
        self.position = position.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "seek to a position before byte 0")
        })?;
        Ok(self.position)
    }
}
