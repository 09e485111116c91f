//! Listings of directories.

use extant::{FileKind, FsError, Inode};

use super::{Ext4, node_of};
use crate::operations::{DirAnswer, Errno, Opened, Reply};

/// Damaged blocks of one directory that are passed over in one answer.
const DAMAGE_MAX: u32 = 64;

impl Ext4<'_> {
    /// Listings need nothing that is open: the kernel need not ask, and caches them all the same.
    pub(super) fn open_directory(&self, node: u64) -> Reply<Opened> {
        let inode = self.inode(node)?;
        if !inode.is_dir() {
            return Err(Errno::from(&FsError::NotADirectory { ino: inode.ino() }));
        }
        Err(Errno::ENOSYS)
    }

    pub(super) fn list(&self, node: u64, cookie: u64, answer: &mut dyn DirAnswer) -> Reply<()> {
        let dir = self.inode(node)?;
        let entries = self.said(dir.read_dir())?.with_dots(true).seek(cookie);
        let (mut damaged, mut listed) = (0, 0u64);
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                // What is intact is listed beside it.
                Err(error) => {
                    let errno = self.errno(&error);
                    damaged += 1;
                    if damaged >= DAMAGE_MAX && listed == 0 {
                        return Err(errno);
                    }
                    if damaged >= DAMAGE_MAX {
                        break;
                    }
                    continue;
                }
            };
            let name = entry.name();
            if !answer.has_room_for(name) {
                break;
            }
            let known = match answer.wants_attributes() && !matches!(name, b"." | b"..") {
                true => self.listed_entry(&dir, &entry),
                false => None,
            };
            let kind = entry.kind().map_or(0, type_of);
            answer.add(name, u64::from(entry.ino().0), kind, entry.cookie(), known.as_ref());
            listed += 1;
        }
        if cookie == 0 {
            self.accessed(&dir);
        }
        Ok(())
    }

    /// What goes with the name; nothing where it cannot be had: who looks at it hears why.
    fn listed_entry(
        &self,
        dir: &Inode,
        entry: &extant::DirEntry,
    ) -> Option<crate::operations::Entry> {
        let inode = entry.inode().ok()?;
        debug_assert_eq!(node_of(inode.ino()), node_of(entry.ino()));
        self.entry(dir, inode).ok()
    }
}

/// `d_type`.
fn type_of(kind: FileKind) -> u8 {
    (kind.mode_bits() >> 12) as u8
}
