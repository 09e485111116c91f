//! From a name to its inode, through the cache of names.

use std::sync::Arc;

use extant_base::Ino;

use crate::dentry::Known;
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::image_path::ImagePath;
use crate::inode::Inode;
use crate::node::{Metadata, Node};

impl Inode {
    /// The inode that `name` means in this directory. `.` is the directory itself, `..` what its
    /// entry of that name says.
    ///
    /// In a case-folding directory every spelling of the name is found; in an encrypted one, the
    /// form that [`read_dir`](Self::read_dir) shows.
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
    /// On a writable mount, a look into a table when the name was used lately. Else with an index,
    /// at most four blocks and usually two or three, cached; without, half of the directory on
    /// average.
    pub fn lookup(&self, name: impl ImagePath) -> Result<Inode> {
        let name = name.image_bytes();
        loop {
            let node = self.lookup_node(name)?;
            match self.fs().handle(&node) {
                // It went just now, with that name: somebody else got something done.
                Err(FsError::NoSuchInode { .. }) if node.life().is_gone() => {}
                done => return done,
            }
        }
    }

    /// Like [`lookup`](Self::lookup), without loading the inode.
    pub fn lookup_ino(&self, name: impl ImagePath) -> Result<Ino> {
        let name = name.image_bytes();
        let Ok(writer) = self.volume().writer() else { return self.search(name) };
        match writer.dentries().get(self.ino(), name) {
            Known::Is(node) if !node.life().is_gone() => return Ok(node.ino()),
            Known::Missing => return Err(FsError::NotFound { dir: self.ino(), at: None }),
            Known::Is(_) | Known::Unknown => {}
        }
        let _content = self.node().content.read();
        self.fs().view(self.node()).search(name)
    }

    /// Attributes of what `name` means in this directory, a symbolic link's own. As
    /// [`lookup`](Self::lookup), without a handle.
    pub fn stat(&self, name: impl ImagePath) -> Result<Metadata> {
        Ok(self.lookup_node(name.image_bytes())?.metadata(self.volume().block_size()))
    }

    pub(crate) fn lookup_node(&self, name: &[u8]) -> Result<Arc<Node>> {
        self.fs().lookup_in(self.node(), name)
    }
}

impl Fs {
    /// The node that `name` means in directory `dir`.
    pub(crate) fn lookup_in(&self, dir: &Arc<Node>, name: &[u8]) -> Result<Arc<Node>> {
        if let Ok(writer) = self.volume().writer() {
            match writer.dentries().get(dir.ino(), name) {
                Known::Is(node) if !node.life().is_gone() => return Ok(node),
                Known::Missing => return Err(FsError::NotFound { dir: dir.ino(), at: None }),
                // What is gone had its name taken, and who did that holds the directory until the
                // cache knows.
                Known::Is(_) | Known::Unknown => {}
            }
        }
        let _content = self.volume().is_writable().then(|| dir.content.read());
        self.search_in(dir, name)?.ok_or(FsError::NotFound { dir: dir.ino(), at: None })
    }

    /// The same for a caller that holds the directory's content lock: `None` if there is no such
    /// name. What is found is noted in the cache.
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
