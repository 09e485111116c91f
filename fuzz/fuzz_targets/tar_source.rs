//! An archive of any bytes, packed or not: never a panic, and what is accepted can be read.
#![no_main]

use std::io::Cursor;

use extant_image::source::tar::{TarOptions, scan_tar_stream};
use extant_image::tree::{Kind, NodeId};
use libfuzzer_sys::fuzz_target;

/// Sets every checksum right, or nearly all inputs would end at the first header.
fn repaired(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    for block in bytes.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    let options = TarOptions { spool_dir: std::env::temp_dir(), cancel: None };
    let Ok(scanned) = scan_tar_stream("fuzz", Cursor::new(repaired(data)), &options) else {
        return;
    };
    let tree = &scanned.tree;
    let mut reader = scanned.contents.reader();
    let mut buf = vec![0; 4096];
    for (at, node) in tree.nodes().iter().enumerate().filter(|(_, n)| n.kind == Kind::File) {
        let first = match tree.runs(node) {
            Some(runs) => runs.first().map_or((0, 0), |run| (run.offset, run.len)),
            None => (0, node.size),
        };
        let count = first.1.min(buf.len() as u64) as usize;
        if count > 0 {
            reader.read(tree, NodeId(at as u32), first.0, &mut buf[..count]).unwrap();
        }
        reader.finish(tree).unwrap();
    }
});
