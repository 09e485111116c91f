//! Maps on real file systems: random changes against a map of blocks, e2fsck after each round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use extant_base::{BlockCount, FileBlock, FsBlock, Prng};
use extant_format::extent::{Extent, ExtentState};
use extant_testkit::require;

use super::*;
use crate::file::resize;
use crate::map::Mapping;
use crate::namei::NewInode;
use crate::test_images::Image;

/// Tree and pointers, small blocks and large, with and without checksums and clusters.
const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext3", "-b", "1024"],
    &["-t", "ext2", "-b", "4096"],
    &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096"],
    &["-t", "ext4", "-b", "1024", "-O", "bigalloc,quota", "-C", "16384"],
];

type Model = BTreeMap<u32, FsBlock>;

/// Clean, but for the advice to pack a tree tighter that holes were cut into.
#[track_caller]
pub(in crate::map) fn assert_sound(image: &Image) {
    let mut report = image.check();
    let kept = |line: &&str| !line.contains("could be narrower.  Optimize? no");
    report.text = report.text.lines().filter(kept).collect::<Vec<_>>().join("\n");
    report.assert_clean();
}

/// Returns what the map says, block by block.
fn blocks_of(fs: &Fs, node: &Arc<Node>) -> Model {
    let mut blocks = Model::new();
    for run in fs.handle(node).unwrap().map(0..FILE_BLOCKS_END) {
        let Mapping { file_start, len, kind } = run.unwrap();
        if let MappingKind::Mapped(start) = kind {
            for into in 0..len {
                blocks.insert(file_start.0 + into as u32, FsBlock(start.0 + into));
            }
        }
    }
    blocks
}

/// Allocates and maps one file block; with clusters, into a cluster that the file has.
fn map_block(txn: &mut Txn<'_>, fs: &Fs, node: &Arc<Node>, at: u32) -> Result<FsBlock> {
    let file_start = FileBlock(at);
    let ratio = fs.volume().superblock().cluster_ratio();
    let block = match implied_block(fs, node, file_start)? {
        Some(block) => block,
        None => {
            let goal = FsBlock(fs.volume().goal_of(node.ino())?.0 + u64::from(at) % 700);
            let ask = BlockAsk { goal, len: 1, min: 1, purpose: Purpose::Data, continues: false };
            FsBlock(txn.allocate(node, &ask)?.start.0 + u64::from(at % ratio))
        }
    };
    let (len, state) = (BlockCount(1), ExtentState::Written);
    insert(txn, node, Extent { file_start, device_start: block, len, state })?;
    txn.update(node, |data| {
        let end = (u64::from(at) + 1) << fs.volume().block_size().log2();
        data.record.size = data.record.size.max(end);
    })?;
    Ok(block)
}

#[test]
fn random_changes_equal_a_map_of_blocks_and_e2fsck_agrees() {
    for (number, layout) in LAYOUTS.iter().enumerate() {
        let image = require!(Image::make("48M", layout, ""));
        let mut random = Prng::new(number as u64);
        let mut model = Model::new();
        let ratio = {
            let fs = image.open();
            let root = fs.root().unwrap();
            let file = root.create("file", &NewInode::root(0o644)).unwrap();
            let node = Arc::clone(file.node());
            let _content = node.content.write();
            for step in 0..1500 {
                let limit = if random.one_in(9) { 70_000 } else { 3000 };
                let at = random.below(limit) as u32;
                let mut txn = Txn::begin(fs.volume(), 128).unwrap();
                if random.one_in(5) {
                    let end = at + 1 + random.below(120) as u32;
                    let range = u64::from(at)..u64::from(end);
                    remove(&mut txn, &fs, &node, range, Purpose::Data).unwrap();
                    model.retain(|block, _| !(at..end).contains(block));
                } else {
                    let map = || map_block(&mut txn, &fs, &node, at).unwrap();
                    model.entry(at).or_insert_with(map);
                }
                drop(txn);
                if random.one_in(100) {
                    fs.sync().unwrap();
                }
                if step % 50 == 0 {
                    let view = fs.view(&node);
                    let mut cursor = Cursor::new(&view);
                    for (at, block) in &model {
                        let piece = cursor.piece(&view, u64::from(*at)).unwrap();
                        assert_eq!(piece.kind, MappingKind::Mapped(*block), "{layout:?}");
                    }
                }
            }
            drop(_content);
            assert_eq!(blocks_of(&fs, &node), model, "{layout:?}");
            drop((file, root, node));
            let ratio = fs.volume().superblock().cluster_ratio();
            fs.unmount().unwrap();
            ratio
        };
        assert_sound(&image);
        // No two file blocks share a device block, and blocks of a cluster are together (M5).
        let used: BTreeSet<FsBlock> = model.values().copied().collect();
        assert_eq!(used.len(), model.len());
        for (at, block) in &model {
            assert_eq!(u64::from(*at) % u64::from(ratio), block.0 % u64::from(ratio));
        }
        // Shorter and shorter, and then nothing.
        let block_bytes = u64::from(image.superblock().block_size.bytes());
        for size in [60_000 * block_bytes + 1, 2500 * block_bytes, 900 * block_bytes + 700, 5] {
            let fs = image.open();
            let node = Arc::clone(fs.resolve("/file").unwrap().node());
            assert_eq!(blocks_of(&fs, &node), model, "{layout:?}");
            {
                let _content = node.content.write();
                resize(&fs, &node, size).unwrap();
            }
            let blocks = size.div_ceil(block_bytes) as u32;
            model.retain(|block, _| *block < blocks);
            assert_eq!(blocks_of(&fs, &node), model, "{layout:?}, size {size}");
            drop(node);
            fs.unmount().unwrap();
            assert_sound(&image);
        }
        let fs = image.open();
        fs.root().unwrap().unlink("file").unwrap();
        fs.unmount().unwrap();
        assert_sound(&image);
    }
}

#[test]
fn without_space_a_map_stays_as_it_was() {
    for layout in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext3", "-b", "1024"]] {
        let image = require!(Image::make("2M", layout, ""));
        let fs = image.open();
        let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
        let node = Arc::clone(file.node());
        let mut model = Model::new();
        {
            let _content = node.content.write();
            // Every other block, so that the map grows as well.
            for at in (0..4000).step_by(2) {
                let mut txn = Txn::begin(fs.volume(), 64).unwrap();
                let goal = FsBlock(0);
                let ask =
                    BlockAsk { goal, len: 1, min: 1, purpose: Purpose::Data, continues: false };
                let Ok(run) = txn.allocate(&node, &ask) else { break };
                let (len, state) = (BlockCount(1), ExtentState::Written);
                let (file_start, device_start) = (FileBlock(at), run.start);
                let extent = Extent { file_start, device_start, len, state };
                let before = node.with(|data| (data.record.block, data.record.sectors));
                match insert(&mut txn, &node, extent) {
                    Ok(()) => {
                        model.insert(at, run.start);
                    }
                    Err(FsError::NoSpace { .. }) => {
                        assert_eq!(
                            before,
                            node.with(|data| (data.record.block, data.record.sectors))
                        );
                        txn.release(&node, run, Purpose::Data).unwrap();
                    }
                    Err(other) => panic!("{other}"),
                }
                txn.update(&node, |data| data.record.size = 4000 * 1024).unwrap();
            }
        }
        assert!(model.len() > 300);
        assert_eq!(blocks_of(&fs, &node), model);
        drop((file, node));
        fs.unmount().unwrap();
        assert_sound(&image);
    }
}

#[test]
fn directories_grow_block_by_block() {
    for layout in LAYOUTS {
        let image = require!(Image::make("48M", layout, ""));
        let fs = image.open();
        let dir = fs.root().unwrap().mkdir("dir", &NewInode::root(0o755)).unwrap();
        let node = Arc::clone(dir.node());
        let _content = node.content.write();
        let sectors = node.with(|data| data.record.sectors);
        let before = node.with(|data| data.record.size) >> fs.block_size().log2();
        for number in before..before + 600 {
            let mut txn = Txn::begin(fs.volume(), 64).unwrap();
            let (at, block) = append_block(&mut txn, &fs, &node).unwrap();
            assert_eq!(u64::from(at.0), number);
            let size = node.with(|data| data.record.size);
            assert_eq!(size, (number + 1) << fs.block_size().log2());
            let view = fs.view(&node);
            let piece = Cursor::new(&view).piece(&view, number).unwrap();
            assert_eq!(piece.kind, MappingKind::Mapped(block));
        }
        let mut txn = Txn::begin(fs.volume(), 128).unwrap();
        remove(&mut txn, &fs, &node, before..FILE_BLOCKS_END, Purpose::Metadata).unwrap();
        txn.update(&node, |data| data.record.size = before << fs.block_size().log2()).unwrap();
        drop(txn);
        assert_eq!(node.with(|data| data.record.sectors), sectors, "{layout:?}");
        drop(_content);
        drop((dir, node));
        fs.unmount().unwrap();
        assert_sound(&image);
    }
}

#[test]
fn a_deep_tree_is_removed_through_a_small_journal() {
    let options = &["-t", "ext4", "-b", "1024", "-J", "size=1"];
    let image = require!(Image::make("64M", options, ""));
    let fs = image.open();
    let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
    let node = Arc::clone(file.node());
    {
        let _content = node.content.write();
        // Every other file block: as many extents as blocks, in nodes of 84.
        for part in 0..120 {
            let mut txn = Txn::begin(fs.volume(), 64).unwrap();
            for at in 0..250 {
                txn.ensure(40).unwrap();
                map_block(&mut txn, &fs, &node, 2 * (250 * part + at)).unwrap();
            }
        }
        let area = node.with(|data| data.record.block);
        assert_eq!(extent::Node::decode_root(&area).unwrap().depth(), 3);
    }
    drop(file);
    fs.root().unwrap().unlink("file").unwrap();
    fs.reclaim();
    assert_eq!(node.with(|data| data.record.sectors), 0);
    drop(node);
    fs.unmount().unwrap();
    image.check().assert_clean();
}

#[test]
fn block_maps_of_large_blocks_hold_what_their_count_of_sectors_allows() {
    let options = &["-t", "ext4", "-b", "65536", "-O", "^extents,^huge_file,^64bit"];
    let image = require!(Image::make("64M", options, ""));
    let fs = image.open();
    let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
    file.write_at(b"text", 0).unwrap();
    // 2^25 - 1 blocks, less the 2049 pointer blocks of so many.
    let most = (33_554_431 - 2049) << 16;
    file.truncate(most).unwrap();
    assert!(
        matches!(file.truncate(most + 1), Err(FsError::TooLarge { limit, .. }) if limit == most)
    );
    fs.root().unwrap().mkdir("dir", &NewInode::root(0o755)).unwrap();
    fs.unmount().unwrap();
    image.check().assert_clean();
}

#[test]
fn changes_are_not_counted_where_the_hurd_keeps_a_block_number() {
    let image = require!(Image::make("16M", &["-o", "hurd", "-t", "ext2"], ""));
    let fs = image.open();
    for name in ["one", "two"] {
        let dir = fs.root().unwrap().mkdir(name, &NewInode::root(0o755)).unwrap();
        let file = dir.create("file", &NewInode::root(0o644)).unwrap();
        file.write_at(b"text", 0).unwrap();
        file.truncate(9).unwrap();
    }
    fs.unmount().unwrap();
    image.check().assert_clean();
}
