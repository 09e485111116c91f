//! Hash trees of sealed files, made from the contents that were written before.

use std::sync::atomic::{AtomicUsize, Ordering};

use extant_block::DeviceError;
use extant_sync::threads;
use extant_verity::{Builder, Descriptor, Hasher};

use crate::plan::{Piece, SealPlan, seal};
use crate::tree::NodeId;
use crate::write::image::Image;
use crate::write::{WriteError, Written};

/// Bytes of contents that are read at once.
const STEP: u64 = 1 << 20;
/// Bytes of a tree that are written at once.
const RUN_MAX: usize = 256 << 10;

/// Writes the trees and descriptors of all sealed files. The contents are on the device.
pub(super) fn seal_files(image: &Image<'_>, workers: usize) -> Result<Written, WriteError> {
    let nodes = image.tree.nodes().iter().enumerate();
    let sealed: Vec<NodeId> =
        nodes.filter(|(_, node)| node.sealed).map(|(at, _)| NodeId(at as u32)).collect();
    if sealed.is_empty() {
        return Ok(Written::default());
    }
    let next = AtomicUsize::new(0);
    let work = |_: usize| -> Result<Written, WriteError> {
        let (mut written, mut buffer) = (Written::default(), Vec::new());
        while let Some(&id) = sealed.get(next.fetch_add(1, Ordering::Relaxed)) {
            if image.options.cancel.load(Ordering::Relaxed) {
                return Err(WriteError::Interrupted);
            }
            seal_file(image, id, &mut buffer, &mut written)?;
        }
        Ok(written)
    };
    let count = workers.max(1).min(sealed.len());
    let mut all = Written::default();
    for written in threads::workers("extant-seal", count, work)? {
        let written = written?;
        all.bytes += written.bytes;
        all.calls += written.calls;
    }
    Ok(all)
}

fn seal_file(
    image: &Image<'_>,
    id: NodeId,
    buffer: &mut Vec<u8>,
    written: &mut Written,
) -> Result<(), WriteError> {
    let (plan, node) = (image.plan, image.tree.node(id));
    let block_size = plan.layout.geometry.block_size;
    let name = || format!("the seal of \"/{}\"", image.tree.path(id).escape_ascii());
    let fail = |why: String| WriteError::encode(name(), why);
    let Some(made) = SealPlan::of(node, block_size).map_err(fail)? else { return Ok(()) };
    let pieces = plan.layout.pieces.of(plan.layout.nodes[id.index()].data);
    let start = u32::try_from(made.blocks.0).unwrap_or(u32::MAX);
    let (data, behind) = pieces.split_at(pieces.partition_point(|piece| piece.file_block < start));

    let mut out =
        Out { image, pieces: behind, start: made.place.tree, run: Vec::new(), run_at: 0, written };
    let mut builder = Builder::new(made.shape, Hasher::new(seal::ALGORITHM, &[]));
    let mut at = 0;
    while at < node.size {
        let len = STEP.min(node.size - at);
        buffer.clear();
        buffer.resize(len as usize, 0);
        read(image, data, at, buffer)?;
        builder.push(buffer, &mut |at, block| out.put(at, block))?;
        at += len;
    }
    let root = builder
        .finish(&mut |at, block| out.put(at, block))?
        .map_err(|fault| fail(fault.to_string()))?;
    let descriptor = Descriptor::new(&made.shape, root, &[], &[]);
    let descriptor = descriptor.map_err(|fault| fail(fault.to_string()))?;
    // What is between the tree and the next block.
    let (tree, descriptor_at) = (made.shape.bytes(), made.place.descriptor - made.place.tree);
    out.put(tree, &vec![0; (descriptor_at - tree) as usize])?;
    out.put(descriptor_at, &made.place.tail(&descriptor.encode()))?;
    out.flush()
}

/// Joins blocks of a tree that follow each other, and writes them to their places.
struct Out<'a> {
    image: &'a Image<'a>,
    /// The pieces of the file behind its contents.
    pieces: &'a [Piece],
    /// Byte of the file at which the tree begins.
    start: u64,
    run: Vec<u8>,
    run_at: u64,
    written: &'a mut Written,
}

impl Out<'_> {
    /// Takes bytes at `at` behind the beginning of the tree.
    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let at = self.start + at;
        if self.run_at + self.run.len() as u64 != at || self.run.len() >= RUN_MAX {
            self.flush()?;
            self.run_at = at;
        }
        self.run.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        let image = self.image;
        let end = self.run_at + self.run.len() as u64;
        for piece in self.pieces {
            let start = image.offset(u64::from(piece.file_block));
            let from = start.max(self.run_at);
            let to = (start + image.offset(u64::from(piece.len))).min(end);
            if from < to {
                let part = &self.run[(from - self.run_at) as usize..(to - self.run_at) as usize];
                image.device.write_at(image.offset(piece.block) + (from - start), part)?;
                image.options.progress.add(part.len() as u64);
                self.written.bytes += part.len() as u64;
                self.written.calls += 1;
            }
        }
        self.run.clear();
        Ok(())
    }
}

/// Reads contents at byte `at` back; what lies in no piece is zeros.
fn read(image: &Image<'_>, data: &[Piece], at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
    let end = at + out.len() as u64;
    let first = data.partition_point(|piece| {
        image.offset(u64::from(piece.file_block) + u64::from(piece.len)) <= at
    });
    for piece in data.iter().skip(first) {
        let start = image.offset(u64::from(piece.file_block));
        let (from, to) = (start.max(at), (start + image.offset(u64::from(piece.len))).min(end));
        if from >= to {
            break;
        }
        let address = image.offset(piece.block) + (from - start);
        image.device.read_at(address, &mut out[(from - at) as usize..(to - at) as usize])?;
    }
    Ok(())
}
