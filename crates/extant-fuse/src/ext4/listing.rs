//! Listings of directories.
//!
//! All intact entries are listed, wherever the damage is; the error comes at the end. The kernel
//! asks for pieces without an open handle, so damage may be met for one caller and the end
//! requested by another: the damaged directories are remembered for all.
//!
//! A device that fails may work a moment later, and then nothing tells at the end that something is
//! missing. So its failures are not passed over: an answer ends before one, and the next begins there
//! and asks the device again; if that fails too, it is the answer.

use std::sync::atomic::{AtomicBool, Ordering};

use extant::{FileKind, FsError, Inode};
use extant_sync::{Mutex, Rank};
use rustc_hash::FxHashSet;

use super::{Ext4, node_of};
use crate::operations::{DirAnswer, Errno, NodeId, Opened, Reply};

/// Damaged blocks and entries of one directory that are passed over in one answer.
const DAMAGE_MAX: u32 = 4096;
/// Limit of the damaged directories that are remembered. Beyond it, the end of every directory is
/// treated as if the directory were damaged.
const DIRECTORIES_MAX: usize = 16 << 10;

/// Directories with damage that some listing has met.
pub(super) struct Damaged {
    /// Whether any damaged directory was met, which is usually all that is read.
    any: AtomicBool,
    nodes: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    nodes: FxHashSet<NodeId>,
    overflows: bool,
}

impl Damaged {
    pub(super) fn new() -> Damaged {
        Damaged { any: AtomicBool::new(false), nodes: Mutex::new(Rank::Leaf, Noted::default()) }
    }

    fn note(&self, node: NodeId) {
        let mut noted = self.nodes.lock();
        match noted.nodes.len() < DIRECTORIES_MAX {
            true => _ = noted.nodes.insert(node),
            false => noted.overflows |= !noted.nodes.contains(&node),
        }
        self.any.store(true, Ordering::Release);
    }

    fn may_have(&self, node: NodeId) -> bool {
        self.any.load(Ordering::Acquire) && {
            let noted = self.nodes.lock();
            noted.overflows || noted.nodes.contains(&node)
        }
    }

    /// Forgets a directory that was found whole: removed and made anew, under the same number.
    fn forget(&self, node: NodeId) {
        self.nodes.lock().nodes.remove(&node);
    }
}

impl Ext4<'_> {
    /// Listings need nothing that is open: the kernel need not ask, and caches them all the same.
    pub(super) fn open_dir_of(&self, node: NodeId) -> Reply<Opened> {
        let inode = self.inode(node)?;
        if !inode.is_dir() {
            return Err(Errno::from(&FsError::NotADirectory { ino: inode.ino(), at: None }));
        }
        Err(Errno::ENOSYS)
    }

    pub(super) fn read_dir_of(
        &self,
        node: NodeId,
        cookie: u64,
        answer: &mut dyn DirAnswer,
    ) -> Reply<()> {
        let dir = self.inode(node)?;
        let entries = self.reply(dir.read_dir())?.with_dots(true).seek(cookie);
        let (mut damaged, mut listed) = (0, 0u64);
        let mut is_end = true;
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error @ FsError::Device(_)) => {
                    if listed == 0 {
                        return Err(self.errno(&error));
                    }
                    is_end = false;
                    break;
                }
                // The intact entries are listed too.
                Err(error) => {
                    let errno = self.errno(&error);
                    self.damaged.note(node);
                    damaged += 1;
                    if damaged < DAMAGE_MAX {
                        continue;
                    }
                    if listed == 0 {
                        return Err(errno);
                    }
                    is_end = false;
                    break;
                }
            };
            let name = entry.name();
            if !answer.has_room_for(name) {
                is_end = false;
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
        // Only an answer without any name says that this is the end; the error takes its place.
        match is_end && listed == 0 && self.damaged.may_have(node) {
            true => self.tell_damage(node, &dir),
            false => Ok(()),
        }
    }

    /// The first damage of a directory in which some was met; it is logged already.
    fn tell_damage(&self, node: NodeId, dir: &Inode) -> Reply<()> {
        let first = self.reply(dir.read_dir())?.find_map(Result::err);
        match first {
            Some(error) => Err(Errno::from(&error)),
            None => {
                self.damaged.forget(node);
                Ok(())
            }
        }
    }

    /// Returns the attributes for the name; `None` where they cannot be read: the program's own
    /// lookup gets the error.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_directories_are_told_from_others_until_there_are_too_many() {
        let damaged = Damaged::new();
        assert!(!damaged.may_have(NodeId(5)));
        damaged.note(NodeId(5));
        assert!(damaged.may_have(NodeId(5)) && !damaged.may_have(NodeId(6)));
        damaged.forget(NodeId(5));
        assert!(!damaged.may_have(NodeId(5)));
        (0..DIRECTORIES_MAX as u64).for_each(|node| damaged.note(NodeId(node + 100)));
        assert!(!damaged.may_have(NodeId(5)));
        damaged.note(NodeId(100));
        assert!(!damaged.may_have(NodeId(5)), "known already");
        damaged.note(NodeId(6));
        assert!(damaged.may_have(NodeId(6)) && damaged.may_have(NodeId(5)));
        assert_eq!(damaged.nodes.lock().nodes.len(), DIRECTORIES_MAX);
    }
}
