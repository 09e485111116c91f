//! Directories: list, look up, change.
//!
//! # Place
//!
//! Below: `extant-format` decodes blocks, indexes and hashes; `map` locates the blocks. Above: the
//! path layer, and front ends that answer `readdir` and `lookup`.
//!
//! # Shape
//!
//! ```text
//! read     ReadDir: every entry once, in stored order, block by block
//! list     the same while the directory changes, in order of hash
//! lookup   one name: through the index when there is one, else (or if it is damaged) every block
//! index    from a hash to its leaf, and on to the next
//! edit     entries inserted, removed, replaced      inline_edit  the same inside the inode
//! grow     blocks added, indexes made, leaves split
//! nokey    display of encrypted names without the key
//! ```
//!
//! Three kinds of directory have one interface: linear blocks, indexed blocks (whose index looks
//! like free space to old kernels), and entries inside the inode.
//!
//! # Invariants
//!
//! - N1. A name returned by this module is not empty, is not `.` or `..` (unless asked for), and
//!   contains neither `/` nor NUL, so that programs may join it to a path. Other entries are
//!   reported as damage.
//! - N2. Work on one directory is bounded by the blocks of the file system, whatever its map says.

pub(crate) mod edit;
mod grow;
mod index;
mod inline_edit;
mod list;
mod lookup;
mod nokey;
mod read;

pub use read::{DirEntry, ReadDir};

use extant_base::{FileBlock, FsBlock};
use extant_format::dir::{self, DirLayout};
use extant_format::hash::NameHash;
use extant_format::htree::{self, NodePlace};

use crate::error::{Fault, FsError, Result};
use crate::limits::NAME_MAX;
use crate::view::View;

// The displayed form of an encrypted name is longer than the stored one, but still a valid name.
const _: () = assert!(nokey::SHOWN_MAX <= NAME_MAX);

/// Returns the displayed form of an encrypted link target: `stored` is its length (2 bytes) and the
/// ciphertext. `None` when the ciphertext is empty or shorter than its length.
pub(crate) fn show_encrypted_target(stored: &[u8]) -> Option<Vec<u8>> {
    encrypted_target(stored).map(|cipher| nokey::show(cipher, NameHash::default()))
}

/// Returns the ciphertext of a stored link target; `None` as in [`show_encrypted_target`].
pub(crate) fn encrypted_target(stored: &[u8]) -> Option<&[u8]> {
    let (len, rest) = stored.split_first_chunk::<2>()?;
    rest.get(..usize::from(u16::from_le_bytes(*len))).filter(|cipher| !cipher.is_empty())
}

/// Returns whether a name may be shown (N1).
fn is_plain(name: &[u8]) -> bool {
    !name.is_empty() && !dir::is_dots(name) && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Returns an error for `fault` in the directory block `block` of `inode`.
fn damage(inode: &View<'_>, block: impl Into<Option<FsBlock>>, fault: Fault) -> FsError {
    FsError::corrupt("directory", inode.ino(), block, fault)
}

impl View<'_> {
    /// Returns the layout of this directory's blocks.
    pub(crate) fn dir_layout(&self) -> DirLayout {
        DirLayout {
            block_size: self.volume().block_size(),
            filetype: self.volume().has_filetype(),
            checksum: self.volume().has_metadata_csum(),
            stored_hash: self.is_encrypted() && self.is_casefold(),
            encrypted: self.is_encrypted(),
        }
    }

    /// Verifies the checksum of directory block `at` of any kind.
    fn verify_dir_block(&self, at: FileBlock, block: &[u8]) -> Result<(), Fault> {
        let volume = self.volume();
        if !volume.verifies_metadata() {
            return Ok(());
        }
        let seed = self.checksum_seed();
        // An index block has no tail where a leaf has one. Inner nodes and leaves are distinguished
        // by their first entry: a free one over the whole block leaves no room for a tail.
        let place = match at.0 {
            0 if self.is_indexed() => Some(NodePlace::Root),
            _ if self.is_indexed() && self.is_inner_node(block) => Some(NodePlace::Inner),
            _ => None,
        };
        match place {
            Some(place) => htree::verify(seed, block, place).map_err(Fault::from),
            None => dir::verify(seed, block).map_err(Fault::from),
        }
    }

    /// Returns whether a directory block begins like an inner node of an index.
    fn is_inner_node(&self, block: &[u8]) -> bool {
        let first = dir::decode_entry(block, 0, self.dir_layout());
        first.is_ok_and(|entry| !entry.is_used() && entry.rec_len as usize == block.len())
    }
}
