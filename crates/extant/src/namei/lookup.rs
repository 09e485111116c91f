//! Looking up names, through the cache of names.

use std::sync::Arc;

use extant_base::Ino;

use crate::dentry::Known;
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::image_path::ImagePath;
use crate::inode::Inode;
use crate::node::{Metadata, Node};

impl Inode {
    /// Returns the inode named `name` in this directory. `.` is the directory itself, `..` the
    /// inode in its entry of that name.
    ///
    /// In a case-folding directory every spelling of the name is found; in an encrypted one without
    /// its key, the form that [`read_dir`](Self::read_dir) shows.
    ///
    /// # Errors
    ///
    /// - [`FsError::NotFound`], [`FsError::NotADirectory`].
    /// - [`FsError::NameTooLong`]: more than 255 bytes.
    /// - Damage: a block of the directory cannot be read *and* the name is in none of the others;
    ///   or the entry names an inode that is damaged or not in use. A damaged index alone is no
    ///   error: the blocks are searched one by one.
    ///
    /// # Cost
    ///
    /// On a writable mount, a lookup in a table when the name was used recently. Otherwise, with an
    /// index, at most four blocks and usually two or three, which are cached; without an index,
    /// half of the directory on average.
    pub fn lookup(&self, name: impl ImagePath) -> Result<Inode> {
        let name = name.image_bytes();
        loop {
            let node = self.lookup_node(name)?;
            match self.fs().handle(&node) {
                // The inode and the name were deleted just now, so the name is looked up again.
                Err(FsError::NoSuchInode { .. }) if node.life().is_gone() => {}
                done => return done,
            }
        }
    }

    /// Returns the inode number of a name like [`lookup`](Self::lookup), without loading the inode.
    pub fn lookup_ino(&self, name: impl ImagePath) -> Result<Ino> {
        let name = name.image_bytes();
        let Ok(writer) = self.volume().writer() else {
            return self.fs().view(self.node()).search(name);
        };
        match writer.dentries().get(self.ino(), name) {
            Known::Is(node) if !node.life().is_gone() => return Ok(node.ino()),
            Known::Missing => return Err(FsError::NotFound { dir: self.ino(), at: None }),
            Known::Is(_) | Known::Unknown => {}
        }
        let _content = self.node().content.read();
        self.fs().view(self.node()).search(name)
    }

    /// Returns the attributes of the inode named `name` in this directory, without following a
    /// symbolic link. As [`lookup`](Self::lookup), but without making a handle.
    pub fn stat(&self, name: impl ImagePath) -> Result<Metadata> {
        Ok(self.lookup_node(name.image_bytes())?.metadata(self.volume().block_size()))
    }

    /// Looks a name up like [`lookup`](Self::lookup), without waiting: `None` when the answer is
    /// not in memory, or another thread is changing it.
    pub(crate) fn try_lookup(&self, name: &[u8]) -> Option<Result<Inode>> {
        let writer = self.volume().writer().ok()?;
        match writer.dentries().get(self.ino(), name) {
            Known::Is(node) => self.fs().try_handle(&node).map(Ok),
            Known::Missing => Some(Err(FsError::NotFound { dir: self.ino(), at: None })),
            Known::Unknown => None,
        }
    }

    pub(crate) fn lookup_node(&self, name: &[u8]) -> Result<Arc<Node>> {
        self.fs().lookup_in(self.node(), name)
    }
}

impl Fs {
    /// Returns the node named `name` in directory `dir`.
    pub(crate) fn lookup_in(&self, dir: &Arc<Node>, name: &[u8]) -> Result<Arc<Node>> {
        if let Ok(writer) = self.volume().writer() {
            match writer.dentries().get(dir.ino(), name) {
                Known::Is(node) if !node.life().is_gone() => return Ok(node),
                Known::Missing => return Err(FsError::NotFound { dir: dir.ino(), at: None }),
                // The inode is gone, so its name was removed; the thread that did so holds the
                // directory until the cache is updated.
                Known::Is(_) | Known::Unknown => {}
            }
        }
        let _content = self.volume().is_writable().then(|| dir.content.read());
        self.search_in(dir, name)?.ok_or(FsError::NotFound { dir: dir.ino(), at: None })
    }

    /// Looks a name up for a caller that holds the directory's content lock: `None` if there is no
    /// such name. The result is added to the cache.
    pub(crate) fn find_in(&self, dir: &Arc<Node>, name: &[u8]) -> Result<Option<Arc<Node>>> {
        if let Ok(writer) = self.volume().writer() {
            match writer.dentries().get(dir.ino(), name) {
                Known::Is(node) if !node.life().is_gone() => return Ok(Some(node)),
                Known::Missing => return Ok(None),
                Known::Is(_) | Known::Unknown => {}
            }
        }
        self.search_in(dir, name)
    }

    fn search_in(&self, dir: &Arc<Node>, name: &[u8]) -> Result<Option<Arc<Node>>> {
        let ino = match self.view(dir).search(name) {
            Ok(ino) => ino,
            Err(error @ FsError::NotFound { dir: missing_in, .. }) => {
                if missing_in != dir.ino() {
                    return Err(error);
                }
                self.note_name(dir, name, None);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let node = self.entry_node(dir.ino(), ino)?;
        if !matches!(name, b"." | b"..") {
            self.note_name(dir, name, Some(&node));
        }
        Ok(Some(node))
    }
}
