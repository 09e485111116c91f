//! Problems of an image: one variant per broken rule, with the numbers.

use extant_base::{FileBlock, FsBlock, GroupIndex, Ino};
use extant_format::dir::{DirFault, FileType};
use extant_format::error::ChecksumError;
use extant_format::extent::ExtentFault;
use extant_format::group::GroupError;
use extant_format::htree::HtreeFault;
use extant_format::inline::InlineFault;
use extant_format::inode::InodeError;
use extant_format::jbd2::JournalFault;
use extant_format::mmp::MmpError;
use extant_format::orphan::OrphanError;
use extant_format::quota::{QuotaError, QuotaKind};
use extant_format::xattr::XattrFault;

/// Why an entry is wrong whose inode is marked as the value of an attribute.
pub const HOLDS_VALUE: &str = "which holds an attribute's value";
/// Why an entry is wrong whose inode has a type, and no links.
pub const NO_LINKS: &str = "which has no links";
/// What the checker says of an inode with a value that counts other references than there are.
pub const VALUE_COUNT: &str = "its reference count is wrong";
/// What is the first inode that is no reserved one, where the superblock says another.
pub const FIRST_INODE: &str = "the first inode of a file";

/// One broken rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    // The file system as a whole.
    /// The superblock's checksum.
    #[error("{0}")]
    SuperblockChecksum(ChecksumError),
    /// The file system says that it is larger than its device.
    #[error("the file system has {wanted} bytes, its device {found}")]
    DeviceTooSmall {
        /// Bytes of the file system.
        wanted: u64,
        /// Bytes of the device.
        found: u64,
    },
    /// The device could not read a block.
    #[error("block {block} cannot be read, of {what}: {why}")]
    Unreadable {
        /// What was being checked.
        what: String,
        /// The first block of those that were to be read.
        block: FsBlock,
        /// The device's error.
        why: String,
    },
    /// The journal has not been replayed and the options ask for one that has.
    #[error("the journal needs to be replayed")]
    NeedsRecovery,
    /// `s_state` says that it was not unmounted cleanly, or that errors were seen.
    #[error("the state of the file system is {state:#x}, not clean")]
    State {
        /// `s_state`.
        state: u16,
    },
    /// More extra fields are asked for than an inode has room for.
    #[error("{field} is {found}, must be a multiple of 4 up to {max}")]
    ExtraSize {
        /// The field of the superblock.
        field: &'static str,
        /// Value found.
        found: u16,
        /// Largest value for which an inode has room.
        max: u16,
    },
    /// Something needs a feature that the superblock does not have.
    #[error("feature {name} is off, but {why}")]
    Feature {
        /// Name of the feature.
        name: &'static str,
        /// Reason why it is needed.
        why: &'static str,
    },
    /// The superblock has a feature that lacks what it needs.
    #[error("feature {name} is on, but {why}")]
    FeatureAlone {
        /// Name of the feature.
        name: &'static str,
        /// What is missing.
        why: &'static str,
    },
    /// A field that means nothing without a feature has a value with which e2fsck opens nothing.
    #[error("{field} is {found}, though the feature {feature} is off")]
    FieldAlone {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        found: u32,
        /// Name of the feature.
        feature: &'static str,
    },
    /// More blocks than e2fsck lets be kept for root: it opens nothing then.
    #[error("s_r_blocks_count is {found}, more than {limit}, which is half of the blocks")]
    ReservedBlocks {
        /// The field.
        found: u64,
        /// The most that it may be.
        limit: u64,
    },
    /// The block for multiple-mount protection.
    #[error("{0}")]
    Mmp(MmpError),
    /// A total of the superblock.
    #[error("the superblock counts {stored} {what}, there are {counted}")]
    SuperblockCount {
        /// The quantity counted.
        what: &'static str,
        /// The field.
        stored: u64,
        /// The truth.
        counted: u64,
    },
    /// The resize inode does not list the reserved descriptor blocks.
    #[error("the resize inode: {what}")]
    ResizeInode {
        /// The rule that it breaks.
        what: &'static str,
    },

    // Groups.
    /// A descriptor: its checksum, or an address or a count that cannot be.
    #[error("{0}")]
    Group(GroupError),
    /// Metadata outside of its group, without `flex_bg`.
    #[error("group {group}: {what} at block {block} is outside of the group")]
    OutsideGroup {
        /// The group.
        group: GroupIndex,
        /// Name of the structure.
        what: &'static str,
        /// Block of the structure.
        block: FsBlock,
    },
    /// Two pieces of fixed metadata lie on one block.
    #[error("group {group}: {what} at block {block} overlaps other metadata")]
    MetadataOverlap {
        /// The group.
        group: GroupIndex,
        /// Name of the structure.
        what: &'static str,
        /// First block that both have.
        block: FsBlock,
    },
    /// A bitmap's checksum.
    #[error("group {group}: {source}")]
    BitmapChecksum {
        /// The group.
        group: GroupIndex,
        /// Both values, and which bitmap.
        source: ChecksumError,
    },
    /// A bitmap has clear bits behind its last block or inode.
    #[error("group {group}: {what} bitmap is not padded with ones")]
    Padding {
        /// The group.
        group: GroupIndex,
        /// "block" or "inode".
        what: &'static str,
    },
    /// The block bitmap differs from what is in use.
    #[error(
        "group {group}: block bitmap wrong in {differences} bits, first for block {block}, which \
         is {}", used(*.marked)
    )]
    BlockBitmap {
        /// The group.
        group: GroupIndex,
        /// First block whose bit is wrong.
        block: FsBlock,
        /// Value of its bit.
        marked: bool,
        /// How many bits are wrong.
        differences: u32,
    },
    /// The inode bitmap differs from what is in use.
    #[error(
        "group {group}: inode bitmap wrong in {differences} bits, first for inode {ino}, which \
         is {}", used(*.marked)
    )]
    InodeBitmap {
        /// The group.
        group: GroupIndex,
        /// First inode whose bit is wrong.
        ino: Ino,
        /// Value of its bit.
        marked: bool,
        /// How many bits are wrong.
        differences: u32,
    },
    /// A group whose bitmap or table is marked as uninitialised has something in use.
    #[error("group {group} is marked {flag}, but {found} of it are in use")]
    UninitUsed {
        /// The group.
        group: GroupIndex,
        /// Which flag.
        flag: &'static str,
        /// Clusters, or inodes.
        found: u32,
    },
    /// The last group, which may be shorter than others, is marked as having no block bitmap.
    #[error("group {group} is marked BLOCK_UNINIT, and it is the last")]
    UninitLast {
        /// The group.
        group: GroupIndex,
    },
    /// An inode in use lies in the part of the table that is marked as unused.
    #[error("inode {ino} is in use, but the last {unused} of group {group} are marked unused")]
    TableUnused {
        /// The group.
        group: GroupIndex,
        /// The inode.
        ino: Ino,
        /// `bg_itable_unused`.
        unused: u32,
    },
    /// A count of a group descriptor.
    #[error("group {group} counts {stored} {what}, there are {counted}")]
    GroupCount {
        /// The group.
        group: GroupIndex,
        /// The quantity counted.
        what: &'static str,
        /// The field.
        stored: u32,
        /// The truth.
        counted: u32,
    },

    /// A group is marked as having no bitmap, or no table, on a file system without such marks.
    #[error("group {group} has flags {flags:#x}, but no checksum")]
    GroupFlags {
        /// The group.
        group: GroupIndex,
        /// `bg_flags`.
        flags: u16,
    },

    // Inodes.
    /// The bytes of an inode in use: checksum, length of the extra fields, size.
    #[error("inode {ino}: {source}")]
    Inode {
        /// The inode.
        ino: Ino,
        /// Error of the decoder.
        source: InodeError,
    },
    /// A type of file that does not exist, or not allowed for this inode.
    #[error("inode {ino}: mode {mode:#o} is not valid here")]
    Mode {
        /// The inode.
        ino: Ino,
        /// `i_mode`.
        mode: u16,
    },
    /// Flags that contradict each other, the features or the type of file.
    #[error("inode {ino}: flags {flags:#x} contradict {with}")]
    Flags {
        /// The inode.
        ino: Ino,
        /// `i_flags`.
        flags: u32,
        /// The contradicting field.
        with: &'static str,
    },
    /// A deletion time in an inode in use, or none in a deleted one.
    #[error("inode {ino}: dtime is {dtime}, with {links} links")]
    Dtime {
        /// The inode.
        ino: Ino,
        /// `i_dtime`.
        dtime: u32,
        /// `i_links_count`.
        links: u16,
    },
    /// A field that must be zero here.
    #[error("inode {ino}: {field} is {found}, must be 0")]
    Reserved {
        /// The inode.
        ino: Ino,
        /// The field.
        field: &'static str,
        /// Value found.
        found: u64,
    },
    /// Blocks of a directory are unwritten.
    #[error("directory {ino}: some of its blocks are marked unwritten")]
    Unwritten {
        /// The directory.
        ino: Ino,
    },
    /// An inode lacks data that encryption needs.
    #[error("inode {ino} is marked encrypted, {why}")]
    Encryption {
        /// The inode.
        ino: Ino,
        /// Why that cannot be.
        why: &'static str,
    },
    /// The size does not fit what is mapped, or the type of file.
    #[error("inode {ino}: size {size}, but {why}")]
    Size {
        /// The inode.
        ino: Ino,
        /// `i_size`.
        size: u64,
        /// Why not.
        why: &'static str,
    },
    /// `i_blocks`.
    #[error("inode {ino}: i_blocks says {stored} sectors, {counted} are in use")]
    Sectors {
        /// The inode.
        ino: Ino,
        /// Stored, in units of 512 bytes.
        stored: u64,
        /// Counted, in the same.
        counted: u64,
    },
    /// A node of an extent tree.
    #[error("inode {ino}: {source}")]
    Extent {
        /// The inode.
        ino: Ino,
        /// Fault found by the decoder.
        source: ExtentFault,
    },
    /// A node of an extent tree below another has nothing: e2fsck clears such an inode.
    #[error("inode {ino}: a node of its tree is empty")]
    ExtentEmpty {
        /// The inode.
        ino: Ino,
    },
    /// `eh_max` is not what a node has room for.
    #[error("inode {ino}: an extent node says room for {found} records, it has {wanted}")]
    ExtentRoom {
        /// The inode.
        ino: Ino,
        /// `eh_max`.
        found: u16,
        /// The right value.
        wanted: u16,
    },
    /// The checksum of an extent, directory or index block.
    #[error("inode {ino}, block {block}: {source}")]
    BlockChecksum {
        /// The inode.
        ino: Ino,
        /// The block.
        block: FsBlock,
        /// Both values.
        source: ChecksumError,
    },
    /// Logical and physical clusters do not fit each other.
    #[error("inode {ino}: file block {file_block} is at block {block}, across clusters")]
    Cluster {
        /// The inode.
        ino: Ino,
        /// The file block.
        file_block: FileBlock,
        /// Block of the structure.
        block: FsBlock,
    },
    /// The blocks of one cluster of a file lie in two clusters of the device.
    #[error(
        "inode {ino}: the cluster of file block {file_block} lies in two clusters, one at {block}"
    )]
    ClusterSplit {
        /// The inode.
        ino: Ino,
        /// The file block.
        file_block: FileBlock,
        /// Block of the structure.
        block: FsBlock,
    },
    /// A block number outside of the file system.
    #[error("inode {ino} uses block {block} (+{len}), which does not exist")]
    BlockRange {
        /// The inode.
        ino: Ino,
        /// First block.
        block: FsBlock,
        /// How many.
        len: u64,
    },
    /// A block in use that is in use already, by metadata or an inode (maybe the same).
    #[error("inode {ino} uses block {block}, which is in use already")]
    ClaimedTwice {
        /// The second user.
        ino: Ino,
        /// The block.
        block: FsBlock,
    },
    /// Blocks mapped behind the limit of the file system, or of the kind of file.
    #[error("inode {ino}: block {block} of the file is past what a file can have")]
    FileBlock {
        /// The inode.
        ino: Ino,
        /// The file block.
        block: u64,
    },
    /// Inline data.
    #[error("inode {ino}: {source}")]
    Inline {
        /// The inode.
        ino: Ino,
        /// Fault found by the decoder.
        source: InlineFault,
    },
    /// A symbolic link has a target of another length than its size, or in the wrong place.
    #[error("inode {ino}: symbolic link, {why}")]
    Symlink {
        /// The inode.
        ino: Ino,
        /// Why not.
        why: &'static str,
    },
    /// A device, pipe or socket with something in its map.
    #[error("inode {ino}: special file, {why}")]
    Special {
        /// The inode.
        ino: Ino,
        /// Why not.
        why: &'static str,
    },
    /// A number of a field that names a special inode (journal, quota…) leads to none.
    #[error("{field} is inode {ino}, {why}")]
    SpecialInode {
        /// The superblock's field.
        field: &'static str,
        /// The inode.
        ino: Ino,
        /// Why not.
        why: &'static str,
    },

    // Extended attributes.
    /// A list of attributes.
    #[error("inode {ino}: {source}")]
    Xattr {
        /// The inode.
        ino: Ino,
        /// Fault found by the decoder.
        source: XattrFault,
    },
    /// The checksum of an attribute block.
    #[error("inode {ino}, attribute block {block}: {source}")]
    XattrChecksum {
        /// First inode that uses it.
        ino: Ino,
        /// The block.
        block: FsBlock,
        /// Both values.
        source: ChecksumError,
    },
    /// An entry without a name that is no access control list, or, in a block, without a prefix.
    #[error("inode {ino}: attribute at byte {offset} has prefix {index} and {len} bytes of name")]
    XattrName {
        /// The inode.
        ino: Ino,
        /// Offset in the area.
        offset: u32,
        /// Index of its name's prefix.
        index: u8,
        /// Length of the name behind the prefix.
        len: usize,
    },
    /// The hash of an entry.
    #[error(
        "inode {ino}: attribute at byte {offset} has hash {stored:#010x}, not that of its value"
    )]
    XattrEntryHash {
        /// The inode.
        ino: Ino,
        /// Offset in the area.
        offset: u32,
        /// `e_hash`.
        stored: u32,
    },
    /// The hash of a block.
    #[error("attribute block {block}: hash {stored:#010x}, should be {computed:#010x}")]
    XattrBlockHash {
        /// The block.
        block: FsBlock,
        /// `h_hash`.
        stored: u32,
        /// The right value.
        computed: u32,
    },
    /// The reference count of a block.
    #[error("attribute block {block}: {stored} references, {counted} inodes use it")]
    XattrReferences {
        /// The block.
        block: FsBlock,
        /// `h_refcount`.
        stored: u32,
        /// The truth.
        counted: u32,
    },
    /// An inode that holds a value: missing, of the wrong kind or size, or wrongly counted.
    #[error("inode {ino}: the attribute value in inode {value}: {why}")]
    XattrInode {
        /// The inode that refers to it, or the inode itself.
        ino: Ino,
        /// The inode of the value.
        value: Ino,
        /// Why not.
        why: &'static str,
    },

    // Directories.
    /// A record of a directory block.
    #[error("directory {dir}, block {block}: {source}")]
    Dir {
        /// The directory.
        dir: Ino,
        /// Which of its blocks.
        block: FileBlock,
        /// Fault found by the decoder.
        source: DirFault,
    },
    /// A directory without blocks, or with holes or unwritten blocks.
    #[error("directory {dir}: block {block} is not there")]
    DirHole {
        /// The directory.
        dir: Ino,
        /// The first block that is missing.
        block: FileBlock,
    },
    /// `.` or `..` missing, not in their places or leading elsewhere.
    #[error("directory {dir}: {name:?} leads to inode {found}, should be {wanted}")]
    Dots {
        /// The directory.
        dir: Ino,
        /// "." or "..".
        name: &'static str,
        /// Inode found; 0 when the entry is missing.
        found: Ino,
        /// Correct inode.
        wanted: Ino,
    },
    /// No zero byte behind `.` or `..`.
    #[error("directory {dir}: {name:?} is not followed by a zero")]
    DotsEnd {
        /// The directory.
        dir: Ino,
        /// "." or "..".
        name: &'static str,
    },
    /// A name that cannot be.
    #[error("directory {dir}: entry {name:?} is not a name")]
    Name {
        /// The directory.
        dir: Ino,
        /// The name.
        name: String,
    },
    /// A name that is there twice.
    #[error("directory {dir}: entry {name:?} is there twice")]
    DuplicateName {
        /// The directory.
        dir: Ino,
        /// The name.
        name: String,
    },
    /// An entry for an inode that is not in use, or cannot be named.
    #[error("directory {dir}: entry {name:?} leads to inode {ino}, {why}")]
    EntryInode {
        /// The directory.
        dir: Ino,
        /// The name.
        name: String,
        /// The inode.
        ino: Ino,
        /// Why not.
        why: &'static str,
    },
    /// The type in an entry is not the inode's, or there is one without the feature `filetype`.
    #[error("directory {dir}: entry {name:?} says {found:?}, {}", type_of(.ino, .wanted))]
    EntryType {
        /// The directory.
        dir: Ino,
        /// The name.
        name: String,
        /// The inode.
        ino: Ino,
        /// In the entry.
        found: FileType,
        /// Of the inode; `Unknown` where entries have no types.
        wanted: FileType,
    },
    /// A second name of a directory.
    #[error("directory {dir}: entry {name:?} is a second name of directory {ino}")]
    SecondParent {
        /// The directory.
        dir: Ino,
        /// The name.
        name: String,
        /// The directory with two names.
        ino: Ino,
    },
    /// A block of an index.
    #[error("directory {dir}, index block {block}: {source}")]
    Htree {
        /// The directory.
        dir: Ino,
        /// Which of its blocks.
        block: FileBlock,
        /// Fault found by the decoder.
        source: HtreeFault,
    },
    /// A block of an indexed directory that the index has not, or twice.
    #[error("directory {dir}: block {block} is in the index {times} times")]
    HtreeReference {
        /// The directory.
        dir: Ino,
        /// Which of its blocks.
        block: FileBlock,
        /// How often.
        times: u8,
    },
    /// A name has a hash that does not belong to its leaf.
    #[error(
        "directory {dir}, block {block}: a name with hash {hash:#x} outside {from:#x}..={to:#x}"
    )]
    HtreeHash {
        /// The directory.
        dir: Ino,
        /// The leaf.
        block: FileBlock,
        /// The hash.
        hash: u32,
        /// Smallest that belongs here.
        from: u32,
        /// Largest that belongs here.
        to: u32,
    },
    /// An inner node does not start or end where its parent says.
    #[error(
        "directory {dir}, index block {block}: hash {hash:#x} is outside of its parent's range"
    )]
    HtreeRange {
        /// The directory.
        dir: Ino,
        /// The node.
        block: FileBlock,
        /// The hash.
        hash: u32,
    },

    // Links.
    /// An inode in use that nothing leads to.
    #[error("inode {ino} is in use, but nothing leads to it")]
    Unreachable {
        /// The inode.
        ino: Ino,
    },
    /// A directory that is its own ancestor.
    #[error("directory {ino} is not under the root: its ancestors are a loop")]
    Loop {
        /// The directory.
        ino: Ino,
    },
    /// `i_links_count`.
    #[error("inode {ino}: {stored} links, {counted} counted")]
    Links {
        /// The inode.
        ino: Ino,
        /// Stored.
        stored: u32,
        /// Counted.
        counted: u32,
    },

    // Orphans, journal, quota.
    /// Orphans are there and the options ask for none.
    #[error("{count} orphans are left to be deleted or truncated")]
    Orphans {
        /// How many.
        count: u32,
    },
    /// The list or file of orphans leads to an inode that cannot be one.
    #[error("orphan {ino}: {why}")]
    Orphan {
        /// The inode.
        ino: Ino,
        /// Why not.
        why: &'static str,
    },
    /// An inode without links that is in use and no orphan.
    #[error("inode {ino} is in use without links, and not an orphan")]
    NotOrphan {
        /// The inode.
        ino: Ino,
    },
    /// A block of the orphan file.
    #[error("{0}")]
    OrphanFile(OrphanError),
    /// The journal's superblock.
    #[error("journal: {0}")]
    Journal(JournalFault),
    /// The checksum of the journal's superblock.
    #[error("journal: {0}")]
    JournalChecksum(ChecksumError),
    /// The journal contradicts the file system.
    #[error("journal: {why}")]
    JournalState {
        /// Why.
        why: &'static str,
    },
    /// A quota file.
    #[error("{kind:?} quota file: {source}")]
    Quota {
        /// Which.
        kind: QuotaKind,
        /// Error of the decoder.
        source: QuotaError,
    },
    /// A quota file is not what its number says.
    #[error("{kind:?} quota file is for {found:?}")]
    QuotaKind {
        /// Which it should be.
        kind: QuotaKind,
        /// Which it is.
        found: QuotaKind,
    },
    /// Usage in a quota file.
    #[error(
        "{kind:?} quota of {id}: {stored_bytes} bytes and {stored_inodes} inodes stored, {bytes} \
         and {inodes} in use"
    )]
    QuotaUsage {
        /// Which.
        kind: QuotaKind,
        /// User, group or project.
        id: u32,
        /// Stored.
        stored_bytes: u64,
        /// Stored.
        stored_inodes: u64,
        /// In use.
        bytes: u64,
        /// In use.
        inodes: u64,
    },
}

fn used(marked: bool) -> &'static str {
    if marked { "marked but not in use" } else { "in use but not marked" }
}

/// What an entry should say about inode `ino`.
fn type_of(ino: &Ino, wanted: &FileType) -> String {
    match wanted {
        FileType::Unknown => "and entries have no types without the feature filetype".to_owned(),
        wanted => format!("inode {ino} is {wanted:?}"),
    }
}
