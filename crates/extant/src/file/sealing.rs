//! Sealing contents by fs-verity: a hash tree behind the end of the file, and a flag.
//!
//! # Order
//!
//! Content lock, exclusively → the data goes to the device, with zeros behind its end → what the
//! file has behind its end is removed → the file becomes an orphan → unwritten blocks for tree and
//! descriptor → the data is read and hashed, the tree written → flush → the blocks become written →
//! flag set and orphan no more, in one handle.
//!
//! # What a crash leaves
//!
//! - V1. The flag is set in a transaction whose blocks, tree and data were on the device before it
//!   began to commit.
//! - V2. From the first block behind the end up to the flag the file is an orphan: after a crash, or
//!   an error here, the blocks behind its end are removed, and the file is as it was.

use std::collections::BTreeMap;
use std::ops::Range;

use extant_base::sabotage;
use extant_format::extent::ExtentState;
use extant_format::features::RoCompat;
use extant_format::inode::{FileKind, InodeFlags};
use extant_iomap::Mapper;
use extant_verity::{Algorithm, Builder, Descriptor, Hash, Hasher, Place, Shape};

use super::fallocate::{BASE_CREDITS, Change};
use super::{FileMapper, check_changeable};
use crate::alloc::Purpose;
use crate::error::{Fault, FsError, Result};
use crate::inode::Inode;
use crate::map::{self, CONVERT_STEP_CREDITS, FILE_BLOCKS_END, MappingKind, REMOVE_STEP_CREDITS};
use crate::txn::Txn;

/// Bytes of data that are read at once.
const STEP: usize = 1 << 20;
/// Bytes of the tree that are written at once.
const RUN_MAX: usize = 256 << 10;
/// Exclusive limit of byte offsets in a file, 2^63 - 1.
const BYTES_END: u64 = u64::MAX >> 1;

/// How [`Inode::enable_verity`] seals a file. The default is what `fsverity enable` has: SHA-256,
/// blocks of 4096 bytes (or of the file system, if those are smaller), no salt, no signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerityOptions {
    algorithm: Algorithm,
    block_bytes: Option<u32>,
    salt: Vec<u8>,
    signature: Vec<u8>,
}

impl Default for VerityOptions {
    fn default() -> VerityOptions {
        VerityOptions::new()
    }
}

impl VerityOptions {
    /// Returns the default options.
    pub fn new() -> VerityOptions {
        let (salt, signature) = (Vec::new(), Vec::new());
        VerityOptions { algorithm: Algorithm::Sha256, block_bytes: None, salt, signature }
    }

    /// Sets the hash algorithm.
    pub fn algorithm(mut self, algorithm: Algorithm) -> VerityOptions {
        self.algorithm = algorithm;
        self
    }

    /// Sets the size of the blocks that are hashed, in bytes: a power of two from 1024 to the block
    /// size of the file system. Linux reads files with blocks up to its page size.
    pub fn block_bytes(mut self, bytes: u32) -> VerityOptions {
        self.block_bytes = Some(bytes);
        self
    }

    /// Sets the salt: at most 32 bytes.
    pub fn salt(mut self, salt: impl Into<Vec<u8>>) -> VerityOptions {
        self.salt = salt.into();
        self
    }

    /// Sets a signature of the digest, which is stored and not checked: at most 16128 bytes.
    pub fn signature(mut self, signature: impl Into<Vec<u8>>) -> VerityOptions {
        self.signature = signature.into();
        self
    }
}

impl Inode {
    /// Seals the contents of a regular file: they can never change again, and each read is checked
    /// against a hash tree that is stored behind their end. Returns the digest, which stands for the
    /// contents. Times of the file do not change. The caller makes sure that no program has the file
    /// open for writing; what is written while this runs waits for it, and is refused.
    ///
    /// A crash leaves the file as it was, or sealed; [`sync`](Self::sync) makes the seal durable.
    ///
    /// # Errors
    ///
    /// - [`FsError::Sealed`]: it is sealed already. [`FsError::OpenForWriting`]: a map of the file
    ///   can be stored to. [`FsError::NotPermitted`]: it is immutable or append-only.
    /// - [`FsError::NotSupported`]: the file system has not the feature `verity`, or the file is
    ///   mapped by pointers.
    /// - [`FsError::InvalidArgument`] for options outside of their ranges; [`FsError::TooLarge`] when
    ///   the tree would lie behind the last block that a file can have, or be too deep.
    /// - [`FsError::NoSpace`], [`FsError::QuotaExceeded`] for the tree, which needs 1/127 of the
    ///   contents with the default options.
    /// - [`FsError::IsADirectory`], [`FsError::NotARegularFile`], [`FsError::Encrypted`];
    ///   [`FsError::ReadOnly`], [`FsError::Aborted`]; damage, device errors.
    ///
    /// The file is as it was after an error.
    ///
    /// # Cost
    ///
    /// Reads the whole file, through the page cache, and hashes it. Nobody else reads or changes the
    /// file meanwhile, and a freeze of the mount waits. Memory: about 2 MiB.
    ///
    /// # Example
    ///
    /// ```
    /// use extant::{MountOptions, NewInode, VerityOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("image");
    /// # let made = std::process::Command::new("mke2fs")
    /// #     .args(["-q", "-t", "ext4", "-O", "verity"]).arg(&path).arg("16M").status();
    /// # if !made.is_ok_and(|status| status.success()) { return Ok(()); }
    /// let fs = MountOptions::new().read_only(false).open_path(&path)?;
    /// let file = fs.root()?.create("app", &NewInode::root(0o755))?;
    /// file.write_at(b"contents", 0)?;
    /// let digest = file.enable_verity(&VerityOptions::new())?;
    /// assert_eq!(file.verity_digest()?, Some(digest));
    /// assert!(file.write_at(b"others", 0).is_err());
    /// # drop(file);
    /// fs.unmount()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn enable_verity(&self, options: &VerityOptions) -> Result<Hash> {
        self.check_contents()?;
        let fs = self.fs();
        if !self.volume().features().has_ro_compat(RoCompat::VERITY) {
            let what = "fs-verity, because the file system has not the feature verity (tune2fs -O \
                        verity sets it)";
            return Err(FsError::NotSupported { ino: self.ino(), what });
        }
        let _turn = fs.balance_dirty(self.ino(), 0)?;
        fs.change(|| {
            let _content = self.node().content.write();
            fs.with_mapper(self.node(), |mapper| {
                let change = Change { inode: self, mapper, is_crowded: false.into() };
                Sealing { change }.run(options)
            })
        })
    }
}

/// The sealing of one file; its content lock is held exclusively and no handle is open.
struct Sealing<'a> {
    change: Change<'a>,
}

impl Sealing<'_> {
    fn mapper(&self) -> &FileMapper<'_> {
        self.change.mapper
    }

    fn run(&self, options: &VerityOptions) -> Result<Hash> {
        let (node, file) = (self.change.node(), self.change.file());
        let ino = node.ino();
        let flags = node.gist().flags;
        if flags.contains(InodeFlags::VERITY) {
            return Err(FsError::Sealed { ino });
        }
        check_changeable(ino, flags)?;
        if flags.contains(InodeFlags::APPEND) {
            return Err(FsError::NotPermitted { ino, what: "it can only be appended to" });
        }
        if file.is_mapped_writable() {
            return Err(FsError::OpenForWriting { ino });
        }
        debug_assert_eq!(node.kind(), FileKind::Regular);
        let (shape, place) = self.shape(options)?;
        self.mapper().move_out()?;
        if !node.with(|data| data.record.flags.contains(InodeFlags::EXTENTS)) {
            let what = "fs-verity of a file without an extent tree";
            return Err(FsError::NotSupported { ino, what });
        }
        self.settle()?;
        let bits = self.change.bits();
        let sealed = self
            .begin()
            .and_then(|()| self.allocate(place.tree >> bits..place.end >> bits))
            .and_then(|()| self.write(&shape, &place, options))
            .and_then(|descriptor| self.finish(&place).map(|()| descriptor.digest()));
        self.mapper().file.mapping_changed();
        sealed.inspect_err(|_| self.undo())
    }

    /// Returns the shape of the tree and where everything goes.
    fn shape(&self, options: &VerityOptions) -> Result<(Shape, Place)> {
        let bits = self.change.bits();
        let (size, ino) = (self.change.file().size(), self.change.node().ino());
        let invalid = |what| Err(FsError::InvalidArgument { what });
        let log2 = match options.block_bytes {
            None => bits.min(12),
            Some(bytes) if bytes.is_power_of_two() && (10..=bits).contains(&bytes.ilog2()) => {
                bytes.ilog2()
            }
            Some(_) => return invalid("fs-verity blocks: a power of two, 1024 to a block's size"),
        };
        if options.salt.len() > extant_verity::SALT_BYTES_MAX {
            return invalid("fs-verity salt: at most 32 bytes");
        }
        if options.signature.len() > extant_verity::SIGNATURE_BYTES_MAX {
            return invalid("fs-verity signature: at most 16128 bytes");
        }
        let limit = u64::from(u32::MAX) << bits;
        let too_large = |bytes| FsError::TooLarge { ino, bytes, limit };
        let shape = Shape::new(size, log2, options.algorithm).map_err(|_| too_large(size))?;
        let descriptor = extant_verity::DESCRIPTOR_BYTES + options.signature.len();
        let place = Place::new(&shape, descriptor, bits).ok_or_else(|| too_large(u64::MAX))?;
        if place.end > limit {
            return Err(too_large(place.end));
        }
        self.change
            .node()
            .with(|data| crate::volume::check_size(self.change.volume(), data, place.end))?;
        Ok((shape, place))
    }

    /// Brings the data to the device, and zeros behind its end: those are hashed with it.
    fn settle(&self) -> Result<()> {
        let (mapper, cache) = (self.mapper(), &self.change.file().cache);
        mapper.absorb()?;
        cache.zero_tail(mapper, mapper.size())?;
        cache.write_back(mapper, 0..BYTES_END)?;
        // From the seal on contents are read from the device alone.
        mapper.bring_home()
    }

    /// Removes blocks behind the end, and makes the file an orphan (V2).
    fn begin(&self) -> Result<()> {
        let volume = self.change.volume();
        volume.writer()?.alloc().give_back_window(self.change.node());
        self.remove_behind()?;
        let mut txn = Txn::begin(volume, BASE_CREDITS)?;
        self.mapper().fs.begin_shortening(&mut txn, self.change.node())
    }

    /// Removes all blocks behind the end of the file.
    fn remove_behind(&self) -> Result<()> {
        let (fs, node) = (self.mapper().fs, self.change.node());
        let file = self.change.file();
        let end = self.change.volume().block_size().blocks_for(file.size());
        let _kept_out = file.cache.keep_writeback_out();
        file.drop_delayed(self.change.volume(), node, end..u64::MAX);
        let mut txn = Txn::begin(self.change.volume(), REMOVE_STEP_CREDITS)?;
        let removed = map::remove(&mut txn, fs, node, end..FILE_BLOCKS_END, Purpose::Data);
        file.mapping_changed();
        removed
    }

    fn allocate(&self, blocks: Range<u64>) -> Result<()> {
        let _kept_out = self.change.file().cache.keep_writeback_out();
        let mut txn = Txn::begin(self.change.volume(), BASE_CREDITS)?;
        let mut at = blocks.start;
        while at < blocks.end {
            at = self.change.fill_step(&mut txn, at..blocks.end)?;
        }
        Ok(())
    }

    /// Writes tree and descriptor into the blocks that were allocated for them.
    fn write(&self, shape: &Shape, place: &Place, options: &VerityOptions) -> Result<Descriptor> {
        let (mapper, file) = (self.mapper(), self.change.file());
        let mut out = Out::new(self, place.tree);
        let hasher = Hasher::new(options.algorithm, &options.salt);
        let mut builder = Builder::new(*shape, hasher);
        let mut buffer = vec![0; STEP.max(shape.block_bytes())];
        let mut at = 0;
        while at < shape.data_bytes() {
            let read = file.cache.read(mapper, at, &mut buffer)?;
            let data = buffer.get(..read).filter(|data| !data.is_empty());
            let what = "fs-verity: the file got shorter";
            let data = data.ok_or(FsError::InvalidArgument { what })?;
            builder.push(data, &mut |at, block| out.put(at, block))?;
            at += read as u64;
        }
        let root = builder.finish(&mut |at, block| out.put(at, block))?;
        let broken = |fault: Box<dyn std::error::Error + Send + Sync>| {
            let ino = self.change.node().ino();
            FsError::corrupt("hash tree", ino, None, Fault::Decode(fault))
        };
        let root = root.map_err(|fault| broken(Box::new(fault)))?;
        let made = Descriptor::new(shape, root, &options.salt, &options.signature);
        let descriptor = made.map_err(|fault| broken(Box::new(fault)))?;
        out.put(place.descriptor - place.tree, &place.tail(&descriptor.encode()))?;
        out.end()?;
        Ok(descriptor)
    }

    /// Writes whole blocks at `offset`, which are allocated, to the device.
    fn write_blocks(&self, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
        let mapper = self.mapper();
        let bits = self.change.bits();
        while !bytes.is_empty() {
            let (at, len) = (offset >> bits, bytes.len() as u64 >> bits);
            let piece = map::lookup(mapper.fs, mapper.node, at, at + len)?;
            let what = "fs-verity: a block for the tree is missing";
            let MappingKind::Unwritten(start) = piece.kind else {
                return Err(FsError::InvalidArgument { what });
            };
            let now = ((piece.file_end().min(at + len) - at) << bits) as usize;
            let (part, rest) = bytes.split_at(now.min(bytes.len()));
            mapper.contents()?.write_at(offset, mapper.address(start)?, part)?;
            (offset, bytes) = (offset + part.len() as u64, rest);
        }
        Ok(())
    }

    /// Makes everything durable, and sets the flag (V1).
    fn finish(&self, place: &Place) -> Result<()> {
        let volume = self.change.volume();
        let (node, bits) = (self.change.node(), self.change.bits());
        // The commit flushes as well; without a journal nobody else does.
        volume.device().flush()?;
        let _kept_out = self.change.file().cache.keep_writeback_out();
        let mut txn = Txn::begin(volume, BASE_CREDITS + CONVERT_STEP_CREDITS)?;
        let (mut at, end) = (place.tree >> bits, place.end >> bits);
        loop {
            let written = ExtentState::Written;
            let convert = || map::convert_range(&mut txn, node, at..end, written);
            let progress = node.change_map(convert)?;
            if progress.done || progress.end >= end {
                break;
            }
            at = progress.end.max(at);
            txn.ensure(BASE_CREDITS + CONVERT_STEP_CREDITS)?;
        }
        // From here on one handle does all.
        txn.ensure(BASE_CREDITS)?;
        txn.update(node, |data| data.record.flags |= InodeFlags::VERITY)?;
        if sabotage("extant.seal.orphan-kept") {
            return Ok(());
        }
        let ended = self.mapper().fs.end_shortening(&mut txn, node);
        ended.map_err(|error| txn.fail(error))
    }

    /// Makes the file what it was. When that fails it stays an orphan, and the next mount does it.
    fn undo(&self) {
        let undone = self.remove_behind().and_then(|()| {
            let mut txn = Txn::begin(self.change.volume(), BASE_CREDITS)?;
            self.mapper().fs.end_failed_shortening(&mut txn, self.change.node())
        });
        // The first error is the one that is reported.
        drop(undone);
    }
}

/// Collects blocks of the tree to whole blocks of the file system, and those to runs. Blocks of two
/// levels may share one of the file system: at most two of each level are waited for.
struct Out<'a> {
    sealing: &'a Sealing<'a>,
    start: u64,
    /// Parts of blocks of the file system, by offset, and how much of each is there.
    open: BTreeMap<u64, (Vec<u8>, usize)>,
    run: Vec<u8>,
    run_at: u64,
}

impl<'a> Out<'a> {
    fn new(sealing: &'a Sealing<'a>, start: u64) -> Out<'a> {
        Out { sealing, start, open: BTreeMap::new(), run: Vec::new(), run_at: 0 }
    }

    /// Takes bytes at `at` behind the beginning of the tree, all of them once.
    fn put(&mut self, at: u64, mut bytes: &[u8]) -> Result<()> {
        let block = 1u64 << self.sealing.change.bits();
        let mut at = self.start + at;
        while !bytes.is_empty() {
            let into = at % block;
            let len = ((block - into) as usize).min(bytes.len());
            let (part, rest) = bytes.split_at(len);
            if part.len() as u64 == block {
                self.whole(at, part)?;
            } else {
                let zeros = || (vec![0; block as usize], 0);
                let (open, filled) = self.open.entry(at - into).or_insert_with(zeros);
                open[into as usize..into as usize + len].copy_from_slice(part);
                *filled += len;
                if *filled as u64 == block {
                    let (open, _) = self.open.remove(&(at - into)).unwrap_or_default();
                    self.whole(at - into, &open)?;
                }
            }
            (at, bytes) = (at + len as u64, rest);
        }
        Ok(())
    }

    fn whole(&mut self, at: u64, block: &[u8]) -> Result<()> {
        let continues = self.run_at + self.run.len() as u64 == at;
        if !continues || self.run.len() >= RUN_MAX {
            self.flush()?;
            self.run_at = at;
        }
        self.run.extend_from_slice(block);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.sealing.write_blocks(self.run_at, &self.run)?;
        self.run.clear();
        Ok(())
    }

    /// Writes what is left.
    fn end(mut self) -> Result<()> {
        for (at, (block, _)) in std::mem::take(&mut self.open) {
            self.whole(at, &block)?;
        }
        self.flush()
    }
}
