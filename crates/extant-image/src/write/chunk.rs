//! A worker: fills its buffer with what a job covers, and writes it.

use extant_base::{FileBlock, FsBlock, sabotage};
use extant_crypt::ContentsCipher;
use extant_format::extent::{self, ExtentFault};
use extant_format::htree::HtreeFault;
use extant_format::indirect::{self, IndirectFault};

use crate::encrypt::{contents_cipher, stored_target};
use crate::plan::{Object, Own, Piece};
use crate::source::ContentReader;
use crate::tree::{Kind, NodeId};
use crate::write::copying::COPIED_BYTES_MIN;
use crate::write::image::Image;
use crate::write::job::{CHUNK_BYTES, Chunk, Job};
use crate::write::{WriteError, Written};

/// One thread's state.
pub(super) struct Worker<'i> {
    pub(super) image: &'i Image<'i>,
    pub(super) reader: Box<dyn ContentReader + 'i>,
    /// The file the reader has open.
    reading: Option<NodeId>,
    buffer: Vec<u8>,
    /// The cipher of the last encrypted file.
    cipher: Option<(NodeId, ContentsCipher)>,
    /// The blocks of the last directory or map that was made, for its next piece.
    made: Option<(Object, Vec<u8>)>,
    pub(super) written: Written,
}

/// The root of a map for `i_block`, and its other blocks.
pub(super) type Map = ([u8; 60], Vec<(FsBlock, Vec<u8>)>);

impl<'i> Worker<'i> {
    pub(super) fn new(image: &'i Image<'i>, reader: Box<dyn ContentReader + 'i>) -> Worker<'i> {
        Worker {
            image,
            reader,
            reading: None,
            buffer: vec![0; CHUNK_BYTES.max(image.block_bytes())],
            cipher: None,
            made: None,
            written: Written::default(),
        }
    }

    /// Does one job.
    pub(super) fn run(&mut self, job: &Job) -> Result<(), WriteError> {
        match job {
            Job::Chunk(chunk) => self.chunk(chunk),
            Job::Directory(id) => self.large_directory(*id),
            Job::Journal => self.journal(),
            Job::Inodes(range) => self.inodes(range.clone()),
            Job::Groups(range) => self.groups(range.clone()),
            Job::ReservedDescriptors(range) => self.reserved_descriptors(range.clone()),
        }
    }

    /// Ends the file that is being read.
    pub(super) fn finish(&mut self) -> Result<(), WriteError> {
        if self.reading.take().is_some() {
            self.reader.finish(self.image.tree)?;
        }
        Ok(())
    }

    /// Takes the buffer, so that it can be filled while the rest of the worker is used.
    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    /// Gives the buffer back.
    pub(super) fn put_buffer(&mut self, buffer: Vec<u8>) {
        self.buffer = buffer;
    }

    fn chunk(&mut self, chunk: &Chunk) -> Result<(), WriteError> {
        let mut buffer = self.take_buffer();
        let result = self.fill_and_write(chunk, &mut buffer);
        self.put_buffer(buffer);
        result
    }

    fn fill_and_write(&mut self, chunk: &Chunk, buffer: &mut [u8]) -> Result<(), WriteError> {
        let image = self.image;
        let shift = image.plan.layout.geometry.block_size.log2();
        let bytes = (chunk.blocks as usize) << shift;
        let out = &mut buffer[..bytes];
        let end = chunk.block + u64::from(chunk.blocks);
        // What is before `flushed` is in the image, what is before `filled` at least in the buffer.
        let (mut flushed, mut filled) = (0, 0);
        for piece in chunk.pieces.clone().map(|at| image.plan.layout.pieces.nth(at)) {
            let from = piece.block.max(chunk.block);
            let to = piece.blocks().end.min(end);
            let start = ((from - chunk.block) as usize) << shift;
            let stop = ((to - chunk.block) as usize) << shift;
            // Gaps exist only inside clusters.
            out[filled..start].fill(0);
            let first = piece.file_block + (from - piece.block) as u32;
            filled = start;
            let copied = self.copy_file(piece, first, FsBlock(from), stop - start)?;
            if copied > 0 {
                self.write_part(chunk, flushed, &out[flushed..start])?;
                (flushed, filled) = (start + copied, start + copied);
            }
            if filled < stop {
                let first = first + (copied >> shift) as u32;
                self.fill(piece, first, &mut out[filled..stop])?;
                filled = stop;
            }
        }
        out[filled..].fill(0);
        self.write_part(chunk, flushed, &out[flushed..])?;
        self.image.options.progress.add(bytes as u64);
        Ok(())
    }

    /// Writes a part of a chunk, which begins at byte `at` of it.
    fn write_part(&mut self, chunk: &Chunk, at: usize, part: &[u8]) -> Result<(), WriteError> {
        if part.is_empty() {
            return Ok(());
        }
        let block = chunk.block + (at / self.image.block_bytes()) as u64;
        self.image.write(FsBlock(block), part, &mut self.written)
    }

    /// Has the system copy whole blocks of a file, of a range of `len` bytes from block `first` of the file on, to
    /// block `to`; returns how many bytes it copied.
    fn copy_file(
        &mut self,
        piece: &Piece,
        first: u32,
        to: FsBlock,
        len: usize,
    ) -> Result<usize, WriteError> {
        let image = self.image;
        let (Some(copies), Object::Data(id)) = (&image.copies, piece.object) else { return Ok(0) };
        let node = image.tree.node(id);
        let shift = image.plan.layout.geometry.block_size.log2();
        let start = u64::from(first) << shift;
        // What is behind the end of the file is zeros, of the source's last block it is anything.
        let len = (node.size.saturating_sub(start).min(len as u64) as usize) >> shift << shift;
        let is_plain = node.kind == Kind::File && node.key == 0 && image.tree.runs(node).is_none();
        if !is_plain || len < COPIED_BYTES_MIN {
            return Ok(0);
        }
        self.begin(id)?;
        let Some(file) = self.reader.file(image.tree, id)? else { return Ok(0) };
        let copied = copies.copy(file, start, image.offset(to.0), len) >> shift << shift;
        if copied > 0 {
            self.written.bytes += copied as u64;
            self.written.calls += 1;
        }
        if copied > 0 && start + copied as u64 == node.size {
            self.finish()?;
        }
        Ok(copied)
    }

    /// Reads `id` from now on.
    fn begin(&mut self, id: NodeId) -> Result<(), WriteError> {
        if self.reading != Some(id) {
            self.finish()?;
            self.reading = Some(id);
        }
        Ok(())
    }

    /// Fills `out` with the blocks of `piece`'s object from `first` on.
    fn fill(&mut self, piece: &Piece, first: u32, out: &mut [u8]) -> Result<(), WriteError> {
        let image = self.image;
        match piece.object {
            Object::Data(id) => match image.tree.node(id).kind {
                Kind::File => self.read_file(id, first, out),
                Kind::Symlink => {
                    let target = stored_target(image.tree, id, &image.plan.demand.place(id));
                    out.fill(0);
                    out[..target.len()].copy_from_slice(&target);
                    Ok(())
                }
                _ => self.fill_made(piece.object, first, out),
            },
            Object::Map(_) | Object::OwnMap(_) | Object::XattrInodeMap(_) => {
                self.fill_made(piece.object, first, out)
            }
            Object::XattrBlock(_) => {
                // Every attribute block was placed by itself; neighbours may share a piece.
                let size = image.block_bytes();
                for (at, block) in out.chunks_exact_mut(size).enumerate() {
                    let index = image.xattr_index(piece, first) + at as u32;
                    let device = image.plan.layout.xattr_block(index);
                    image
                        .plan
                        .demand
                        .attrs
                        .encode_block(index, device, image.seed, block, |v| image.value_ino(v))
                        .map_err(|e| WriteError::encode("a block of attributes", e))?;
                }
                Ok(())
            }
            Object::XattrInode(value) => {
                let value = image.plan.demand.attrs.value(value);
                let start = (first as usize).saturating_mul(image.block_bytes()).min(value.len());
                let part = &value[start..value.len().min(start + out.len())];
                out[..part.len()].copy_from_slice(part);
                out[part.len()..].fill(0);
                Ok(())
            }
            Object::Own(own) => self.fill_own(own, piece, first, out),
        }
    }

    /// Reads blocks of a regular file; what is a hole inside a block or cluster becomes zeros.
    fn read_file(&mut self, id: NodeId, first: u32, out: &mut [u8]) -> Result<(), WriteError> {
        let image = self.image;
        let node = image.tree.node(id);
        self.begin(id)?;
        let start = u64::from(first) << image.plan.layout.geometry.block_size.log2();
        let end = node.size.min(start + out.len() as u64);
        match image.tree.runs(node) {
            None => {
                let len = end.saturating_sub(start) as usize;
                self.reader.read(image.tree, id, start, &mut out[..len])?;
                out[len..].fill(0);
            }
            Some(runs) => {
                out.fill(0);
                let next = runs.partition_point(|run| run.offset + run.len <= start);
                for run in runs[next..].iter().take_while(|run| run.offset < end) {
                    let from = run.offset.max(start);
                    let to = (run.offset + run.len).min(end);
                    let part = &mut out[(from - start) as usize..(to - start) as usize];
                    self.reader.read(image.tree, id, from, part)?;
                }
            }
        }
        if end == node.size {
            self.finish()?;
        }
        if node.key != 0 {
            self.encrypt(id, start, out)?;
        }
        Ok(())
    }

    /// Encrypts whole blocks of a file, which begin at byte `start`. What is behind its end is zeros of plaintext.
    fn encrypt(&mut self, id: NodeId, start: u64, out: &mut [u8]) -> Result<(), WriteError> {
        let image = self.image;
        if self.cipher.as_ref().is_none_or(|(of, _)| *of != id) {
            let cipher = contents_cipher(image.tree, id, &image.plan.demand.place(id));
            let cipher = cipher.ok_or_else(|| WriteError::encode("contents", "there is no key"))?;
            self.cipher = Some((id, cipher));
        }
        if let Some((_, cipher)) = &self.cipher
            && !sabotage("image.encrypt.contents-plain")
        {
            cipher.encrypt(start, out);
        }
        Ok(())
    }

    /// Reads a whole small file, for inline data.
    pub(super) fn read_whole(&mut self, id: NodeId) -> Result<Vec<u8>, WriteError> {
        let node = self.image.tree.node(id);
        let mut bytes = vec![0; node.size as usize];
        self.finish()?;
        self.reading = Some(id);
        self.reader.read(self.image.tree, id, 0, &mut bytes)?;
        self.finish()?;
        Ok(bytes)
    }

    /// Fills from an object that is made as a whole: a directory or a map.
    fn fill_made(&mut self, object: Object, first: u32, out: &mut [u8]) -> Result<(), WriteError> {
        if self.made.as_ref().is_none_or(|(made, _)| *made != object) {
            let bytes = match object {
                Object::Data(id) => self.directory(id)?,
                Object::Map(id) => {
                    let place = &self.image.plan.layout.nodes[id.index()];
                    let (_, blocks) =
                        self.image.map_of(place.data, place.map, id_seed(self, id))?;
                    blocks.into_iter().flat_map(|(_, block)| block).collect()
                }
                Object::OwnMap(own) => {
                    let place = self.image.own_place(own);
                    let seed = self.image.inode_seed(self.image.own_ino(own));
                    let (_, blocks) = self.image.map_of(place.data, place.map, seed)?;
                    blocks.into_iter().flat_map(|(_, block)| block).collect()
                }
                Object::XattrInodeMap(value) => {
                    let place = &self.image.plan.layout.values[value as usize];
                    let seed = self.image.inode_seed(self.image.value_ino(value).0);
                    let (_, blocks) = self.image.map_of(place.data, place.map, seed)?;
                    blocks.into_iter().flat_map(|(_, block)| block).collect()
                }
                _ => Vec::new(),
            };
            self.made = Some((object, bytes));
        }
        let start = first as usize * self.image.block_bytes();
        let made = self.made.as_ref().map_or(&[][..], |(_, bytes)| bytes);
        let part = made.get(start..start + out.len()).ok_or_else(|| {
            WriteError::encode("metadata", format!("{object:?} is shorter than planned"))
        })?;
        out.copy_from_slice(part);
        Ok(())
    }

    /// All blocks of a directory.
    fn directory(&self, id: NodeId) -> Result<Vec<u8>, WriteError> {
        let mut bytes = Vec::new();
        self.image.emit_directory(id, |_, block| {
            bytes.extend_from_slice(block);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// A directory of many blocks goes out in large writes as it is made.
    fn large_directory(&mut self, id: NodeId) -> Result<(), WriteError> {
        let image = self.image;
        let mut buffer = self.take_buffer();
        let size = image.block_bytes();
        let pieces = image.plan.layout.pieces.of(image.plan.layout.nodes[id.index()].data);
        let mut written = Written::default();
        // Place of the buffer's first block, and number of bytes waiting in the buffer.
        let mut open: Option<(u64, usize)> = None;
        let result = image.emit_directory(id, |at, block| {
            let next = pieces.partition_point(|p| p.file_block + p.len <= at.0);
            let device = pieces.get(next).map(|p| p.block + u64::from(at.0 - p.file_block));
            let device = device.ok_or_else(|| {
                WriteError::encode("a directory", format!("block {} was not planned", at.0))
            })?;
            match open {
                Some((start, len))
                    if image.offset(device) == image.offset(start) + len as u64
                        && len + size <= CHUNK_BYTES =>
                {
                    buffer[len..len + size].copy_from_slice(block);
                    open = Some((start, len + size));
                }
                full => {
                    if let Some((start, len)) = full {
                        image.write(FsBlock(start), &buffer[..len], &mut written)?;
                        image.options.progress.add(len as u64);
                    }
                    buffer[..size].copy_from_slice(block);
                    open = Some((device, size));
                }
            }
            Ok(())
        });
        let result = result.and_then(|()| match open {
            Some((start, len)) => image.write(FsBlock(start), &buffer[..len], &mut written),
            None => Ok(()),
        });
        self.written.bytes += written.bytes;
        self.written.calls += written.calls;
        self.put_buffer(buffer);
        result
    }
}

fn id_seed(worker: &Worker<'_>, id: NodeId) -> Option<u32> {
    worker.image.inode_seed(worker.image.plan.demand.inos.ino(id))
}

impl Image<'_> {
    /// Index of the attribute block that block `first` of `piece` is.
    fn xattr_index(&self, piece: &Piece, first: u32) -> u32 {
        match piece.object {
            Object::XattrBlock(index) => index + first - piece.file_block,
            _ => 0,
        }
    }

    /// Emits the blocks of directory `id` in order.
    pub(super) fn emit_directory(
        &self,
        id: NodeId,
        mut write: impl FnMut(FileBlock, &[u8]) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        enum Stop {
            Htree(HtreeFault),
            Write(WriteError),
        }
        impl From<HtreeFault> for Stop {
            fn from(e: HtreeFault) -> Stop {
                Stop::Htree(e)
            }
        }
        let demand = &self.plan.demand;
        let ino = demand.inos.ino(id);
        let parent = demand.inos.ino(self.parent(id));
        let what = || format!("directory \"/{}\"", self.tree.path(id).escape_ascii());
        let is_lost_found = ino == extant_base::Ino::FIRST_ORDINARY;
        let shape = demand
            .dirs
            .shape(self.tree, id, is_lost_found, &demand.place(id))
            .map_err(|e| WriteError::encode(what(), e))?;
        let seed = self.inode_seed(ino);
        let emitted = demand.dirs.emit(&shape, &demand.inos, (ino, parent), seed, |at, block| {
            write(at, block).map_err(Stop::Write)
        });
        emitted.map_err(|stop| match stop {
            Stop::Htree(e) => WriteError::encode(what(), e),
            Stop::Write(e) => e,
        })
    }

    /// The directory that holds `id`; the root is its own.
    pub(super) fn parent(&self, id: NodeId) -> NodeId {
        let entry = self.tree.node(id).first_entry as usize;
        self.tree.entries().get(entry).map_or(NodeId::ROOT, |entry| entry.parent)
    }

    /// The map of an object: extent tree or indirect blocks.
    pub(super) fn map_of(
        &self,
        data: crate::plan::PieceRange,
        map: crate::plan::PieceRange,
        seed: Option<u32>,
    ) -> Result<Map, WriteError> {
        enum Stop {
            Extent(ExtentFault),
            Indirect(IndirectFault),
            Blocks,
        }
        impl From<ExtentFault> for Stop {
            fn from(e: ExtentFault) -> Stop {
                Stop::Extent(e)
            }
        }
        impl From<IndirectFault> for Stop {
            fn from(e: IndirectFault) -> Stop {
                Stop::Indirect(e)
            }
        }
        let layout = &self.plan.layout;
        let size = layout.geometry.block_size;
        let mut blocks = layout.map_blocks(map);
        let next = || blocks.next().ok_or(Stop::Blocks);
        let extents = layout.extents(data);
        let built = if self.plan.demand.extents {
            extent::build(&extents, size, seed, next).map(|tree| (tree.root, tree.blocks))
        } else {
            indirect::build(&extents, size, next).map(|map| (map.root, map.blocks))
        };
        built.map_err(|stop| match stop {
            Stop::Extent(e) => WriteError::encode("an extent tree", e),
            Stop::Indirect(e) => WriteError::encode("a block map", e),
            Stop::Blocks => WriteError::encode("a map", "it needs more blocks than planned"),
        })
    }

    /// Which own objects are made by `own.rs` and where they lie.
    pub(super) fn own_place(&self, own: Own) -> crate::plan::NodePlace {
        let plan = &self.plan.layout.own;
        match own {
            Own::Journal => plan.journal,
            Own::OrphanFile => plan.orphan_file,
            Own::Quota(kind) => plan.quota[usize::from(kind)],
            Own::ResizeMap | Own::Mmp => crate::plan::NodePlace::default(),
        }
    }
}
