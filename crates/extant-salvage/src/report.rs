//! What is missing of a file, and why.

use std::collections::BTreeMap;

use extant_base::Ino;
use extant_format::inode::FileKind;

/// A reason why something is missing, or cannot be believed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Why {
    /// The device did not read blocks of the contents.
    Unreadable,
    /// Blocks of the contents lie outside of the image.
    Outside,
    /// A block of the map is none, or could not be read.
    Map,
    /// A block of the map has a wrong checksum; what it says was taken as it is.
    MapChecksum,
    /// The inode is gone, was deleted, or is none.
    Inode,
    /// The inode has a wrong checksum; what it says was taken as it is.
    InodeChecksum,
    /// The size is one that no file has; the file ends with its last block.
    Size,
    /// The inode counts more blocks than its map has: some that read as holes are lost.
    Blocks,
    /// Its map has a block in two places: one of them is wrong.
    Twice,
    /// Another file, or the file system itself, has blocks of it as well: one of them has contents of the other.
    Shared,
    /// The image, or the file, claims more blocks than the image has.
    TooMuch,
    /// Data in the inode is not all there.
    Inline,
    /// A block of the directory is damaged: entries may be missing.
    Directory,
    /// A name that no file can have.
    Name,
    /// A directory that was entered before, or lies too deep.
    Loop,
    /// The target of a symbolic link cannot be read.
    Link,
    /// Extended attributes cannot be read.
    Attributes,
    /// Extended attributes have a wrong checksum; what they say was taken as it is.
    AttributesChecksum,
    /// The seal (fs-verity) cannot be read: nothing says whether the contents are what was sealed.
    Seal,
    /// Hashes of the seal (fs-verity) are damaged: what they are of was not compared.
    SealTree,
    /// Contents are not what the seal (fs-verity) says.
    Unverified,
    /// Encrypted: neither names nor contents can be read without the key.
    Encrypted,
    /// The target did not take it.
    Host,
}

impl Why {
    /// Every reason.
    pub const ALL: [Why; 23] = [
        Why::Unreadable,
        Why::Outside,
        Why::Map,
        Why::MapChecksum,
        Why::Inode,
        Why::InodeChecksum,
        Why::Size,
        Why::Blocks,
        Why::Twice,
        Why::Shared,
        Why::TooMuch,
        Why::Inline,
        Why::Directory,
        Why::Name,
        Why::Loop,
        Why::Link,
        Why::Attributes,
        Why::AttributesChecksum,
        Why::Seal,
        Why::SealTree,
        Why::Unverified,
        Why::Encrypted,
        Why::Host,
    ];

    /// Returns the name for programs, which stays.
    pub fn code(self) -> &'static str {
        match self {
            Why::Unreadable => "unreadable",
            Why::Outside => "outside",
            Why::Map => "map",
            Why::MapChecksum => "map-checksum",
            Why::Inode => "inode",
            Why::InodeChecksum => "inode-checksum",
            Why::Size => "size",
            Why::Blocks => "blocks",
            Why::Twice => "twice",
            Why::Shared => "shared",
            Why::TooMuch => "too-much",
            Why::Inline => "inline",
            Why::Directory => "directory",
            Why::Name => "name",
            Why::Loop => "loop",
            Why::Link => "link",
            Why::Attributes => "attributes",
            Why::AttributesChecksum => "attributes-checksum",
            Why::Seal => "seal",
            Why::SealTree => "seal-tree",
            Why::Unverified => "unverified",
            Why::Encrypted => "encrypted",
            Why::Host => "host",
        }
    }

    /// Returns it in words, for something that was met `count` times.
    pub fn text(self, count: u64) -> String {
        let (blocks, are, have) = match count {
            1 => ("1 block".to_owned(), "is", "has"),
            count => (format!("{count} blocks"), "are", "have"),
        };
        match self {
            Why::Unreadable => format!("{blocks} cannot be read from the device"),
            Why::Outside => format!("{blocks} {are} outside of the image"),
            Why::Map => format!("{blocks} of its map {are} lost"),
            Why::MapChecksum => format!("{blocks} of its map {have} a wrong checksum"),
            Why::Inode => "its inode is gone".to_owned(),
            Why::InodeChecksum => "its inode has a wrong checksum".to_owned(),
            Why::Size => "its size is one that no file has".to_owned(),
            Why::Blocks => format!("{blocks} that it counts {are} not in its map"),
            Why::Twice => format!("{blocks} {are} in it twice, and right in one place at most"),
            Why::Shared => format!("it shares {blocks}"),
            Why::TooMuch => "it claims more blocks than there are".to_owned(),
            Why::Inline => "the data in its inode is not all there".to_owned(),
            Why::Directory => format!("{blocks} of the directory {are} damaged"),
            Why::Name => "its name is one that no file has".to_owned(),
            Why::Loop => "the directory is there already, or lies too deep".to_owned(),
            Why::Link => "its target cannot be read".to_owned(),
            Why::Attributes => "extended attributes cannot be read".to_owned(),
            Why::AttributesChecksum => "extended attributes have a wrong checksum".to_owned(),
            Why::Seal => "its fs-verity seal cannot be read".to_owned(),
            Why::SealTree => format!("{blocks} of the hashes of its fs-verity seal {are} damaged"),
            Why::Unverified => format!("{blocks} {are} not what its fs-verity seal says"),
            Why::Encrypted => "it is encrypted".to_owned(),
            Why::Host => "it could not be made".to_owned(),
        }
    }
}

/// Reasons, and how often each was met.
pub(crate) type Reasons = BTreeMap<Why, u64>;

/// A file of which something is missing, or not to be believed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Where it is below the target's directory; begins with `/`.
    pub path: Vec<u8>,
    /// Its inode.
    pub ino: Ino,
    /// Its type; `None`: not known.
    pub kind: Option<FileKind>,
    /// Its size in bytes, as far as it is known.
    pub size: u64,
    /// Bytes of it that are missing and read as zeros; at most its size.
    pub missing: u64,
    /// Why, and how often each was met.
    pub why: Vec<(Why, u64)>,
    /// The blocks that are not what the seal says.
    pub unverified: Option<Unverified>,
    /// Who has blocks of it as well, or one of them; inode 0 is the file system itself.
    pub shared_with: Option<Ino>,
    /// What the target said.
    pub host: Option<String>,
}

/// Blocks of a sealed file that are not what its seal says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unverified {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Numbers of the first of them in the file, in order; at most 16.
    pub blocks: Vec<u64>,
}

impl Unverified {
    /// Returns it in words; `count` is how many there are.
    pub fn text(&self, count: u64) -> String {
        let numbers: Vec<String> = self.blocks.iter().map(u64::to_string).collect();
        let (blocks, bytes) = (if count == 1 { "block" } else { "blocks" }, self.block_bytes);
        let more = if count > numbers.len() as u64 { ", ..." } else { "" };
        format!("{blocks} {}{more} of {bytes} bytes", numbers.join(", "))
    }
}

/// What a salvage came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Directories that were made.
    pub directories: u64,
    /// Files of other kinds that were made, further names not counted.
    pub files: u64,
    /// Bytes of contents that were handed on.
    pub bytes: u64,
    /// Files and directories that nothing leads to: they are in `lost+found`.
    pub loose: u64,
    /// Files and directories of which something is missing.
    pub damaged: u64,
    /// Bytes that are missing.
    pub missing: u64,
    /// Groups whose inodes could not be found or read, in part or as a whole.
    pub lost_groups: u64,
    /// Files have more pieces than [`RUNS_MAX`](crate::limits::RUNS_MAX): not all were compared with those of others.
    pub is_uncompared: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_name_of_its_own() {
        let mut codes: Vec<_> = Why::ALL.iter().map(|why| why.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Why::ALL.len());
        assert!(Why::ALL.iter().all(|why| !why.text(2).is_empty()));
    }
}
