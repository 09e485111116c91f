//! Small files inside their inodes, against bytes in memory, e2fsck and the kernel.

use extant_base::Prng;
use extant_block::{FaultDevice, FaultPlan};
use extant_testkit::oracle::LoopMount;
use extant_testkit::{require, tempdir};

use super::*;
use crate::file::resize;
use crate::inode::Inode;
use crate::namei::NewInode;
use crate::test_images::Image;
use crate::xattr::XattrMode;

/// Inodes of 256 bytes hold a little, those of 1024 more; small blocks, pointers, no log.
const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext4", "-O", "inline_data"],
    &["-t", "ext4", "-O", "inline_data", "-I", "1024", "-b", "2048"],
    &["-t", "ext4", "-O", "inline_data,^metadata_csum,^extent,^64bit", "-b", "1024"],
    &["-t", "ext4", "-O", "inline_data,^has_journal"],
    &["-t", "ext4", "-O", "inline_data,bigalloc"],
];

fn write(fs: &Fs, node: &Arc<Node>, offset: u64, bytes: &[u8]) -> bool {
    let _content = node.content.write();
    let mut txn = Txn::begin(fs.volume(), INLINE_CREDITS).unwrap();
    let written = write_inline(&mut txn, node, offset, bytes).unwrap();
    let file = fs.file(node).unwrap();
    file.set_size(node.with(|data| data.record.size));
    file.mapping_changed();
    written
}

/// Returns what is stored, whatever the cache says: these tests change files below it.
fn contents_of(file: &Inode) -> Vec<u8> {
    let view = file.fs().view(file.node());
    let size = view.record().size as usize;
    let mut bytes = vec![0xa5; size + 10];
    let read = view.read_range(0, &mut bytes).unwrap();
    bytes.truncate(read);
    assert_eq!(read, size);
    bytes
}

fn move_out(fs: &Fs, node: &Arc<Node>) -> Result<()> {
    let _content = node.content.write();
    fs.with_mapper(node, |mapper| mapper.move_out())
}

fn resized(fs: &Fs, node: &Arc<Node>, size: u64) {
    {
        let _content = node.content.write();
        resize(fs, node, size).unwrap();
    }
    fs.flush_file(node, u64::MAX, crate::file::Store::Times).unwrap();
}

#[test]
fn small_writes_stay_in_the_inode_until_it_is_full_and_all_agree() {
    for (number, layout) in LAYOUTS.iter().enumerate() {
        let image = require!(Image::make("32M", layout, ""));
        let mut random = Prng::new(number as u64);
        let mut models: Vec<Vec<u8>> = Vec::new();
        let fs = image.open();
        let root = fs.root().unwrap();
        let (mut inlined, mut moved) = (0, 0);
        for name in 0..40 {
            let file = root.create(format!("file{name}"), &NewInode::root(0o644)).unwrap();
            let node = Arc::clone(file.node());
            assert!(!is_inline(&node), "{layout:?}: as Linux, with the first write");
            let mut model = Vec::new();
            let most = [10, 60, 61, 120, 128, 300, 1000][name % 7];
            if name % 5 == 4 {
                file.set_xattr("user.a", [b'x'; 30], XattrMode::Any).unwrap();
            }
            for _ in 0..12 {
                let start = random.below(most) as usize;
                let end = start + 1 + random.below(most - start as u64) as usize;
                let bytes: Vec<u8> = (start..end).map(|_| 1 + random.below(255) as u8).collect();
                let before = node.data();
                if write(&fs, &node, start as u64, &bytes) {
                    model.resize(model.len().max(end), 0);
                    model[start..end].copy_from_slice(&bytes);
                    assert!(is_inline(&node));
                } else {
                    let after = node.data();
                    assert_eq!(before.record, after.record, "nothing has changed");
                    assert_eq!(before.raw, after.raw);
                    move_out(&fs, &node).unwrap();
                    assert!(!is_inline(&node));
                }
                assert_eq!(contents_of(&file), model, "{layout:?}");
                if random.one_in(4) && !model.is_empty() {
                    let size = random.below(model.len() as u64);
                    resized(&fs, &node, size);
                    model.truncate(size as usize);
                }
                if random.one_in(6) {
                    let size = model.len() as u64 + random.below(30);
                    resized(&fs, &node, size);
                    model.resize(size as usize, 0);
                }
                assert_eq!(contents_of(&file), model, "{layout:?}");
            }
            inlined += usize::from(is_inline(&node));
            moved += usize::from(!is_inline(&node));
            models.push(model);
        }
        assert!(inlined > 4 && moved > 4, "{layout:?}: {inlined} inline, {moved} not");
        drop(root);
        fs.unmount().unwrap();
        image.check().assert_clean();
        let fs = image.open();
        for (name, model) in models.iter().enumerate() {
            let file = fs.resolve(format!("/file{name}")).unwrap();
            assert_eq!(&contents_of(&file), model, "{layout:?}");
        }
        fs.unmount().unwrap();
        // What the kernel reads, and makes of it.
        let dir = tempdir().unwrap();
        let path = dir.path().join("image");
        extant_testkit::image::save(&image.device, &path);
        let mounted = require!(LoopMount::read_write(&path));
        for (name, model) in models.iter_mut().enumerate() {
            let at = mounted.path().join(format!("file{name}"));
            assert_eq!(&std::fs::read(&at).unwrap(), model, "{layout:?}, file{name}");
            model.extend(b"and more, by the kernel");
            std::fs::write(&at, &*model).unwrap();
        }
        drop(mounted);
        let after = Image {
            device: Arc::new(extant_testkit::image::load(&path)),
            clock: Arc::clone(&image.clock),
        };
        after.check().assert_clean();
        let fs = after.open();
        for (name, model) in models.iter().enumerate() {
            let file = fs.resolve(format!("/file{name}")).unwrap();
            assert_eq!(&contents_of(&file), model, "{layout:?}");
        }
    }
}

#[test]
fn a_write_that_ends_past_all_inodes_costs_nothing() {
    let image = require!(Image::make("16M", &["-t", "ext4", "-O", "inline_data"], ""));
    let fs = image.open();
    let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
    assert!(!write(&fs, file.node(), u64::MAX - 1, b"abc"));
    assert!(!write(&fs, file.node(), 1 << 40, b"abc"));
    assert!(!write(&fs, file.node(), 0, &[1; 100_000]));
    assert_eq!(file.metadata().size, 0);
}

#[test]
fn a_file_system_without_inline_data_has_none() {
    let image = require!(Image::make("16M", &["-t", "ext4"], ""));
    let fs = image.open();
    let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
    assert!(!write(&fs, file.node(), 0, b"abc"));
    move_out(&fs, file.node()).unwrap();
    assert!(!is_inline(file.node()));
}

#[test]
fn data_that_cannot_move_out_of_an_inode_stays_there() {
    let image = require!(Image::make("16M", &["-t", "ext4", "-O", "inline_data"], ""));
    let plan = FaultPlan { write_one_in: 1, ..FaultPlan::default() };
    let device = Arc::new(FaultDevice::new(Arc::clone(&image.device), plan));
    device.set_enabled(false);
    let fs = image.options().open_shared(Arc::clone(&device) as _).unwrap();
    let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
    file.write_at(b"what was there", 0).unwrap();
    fs.sync().unwrap();
    let free = fs.statfs().unwrap().blocks_free;
    device.set_enabled(true);
    file.write_at(&[b'x'; 5000], 0).unwrap_err();
    file.truncate(5000).unwrap_err();
    assert!(device.failed() > 0);
    device.set_enabled(false);
    assert!(is_inline(file.node()));
    assert_eq!(fs.statfs().unwrap().blocks_free, free, "what was taken for it is free again");
    // In the inode: what a cache kept of the block must not hide it.
    file.write_at(b"WHAT", 0).unwrap();
    assert_eq!(fs.read("/file").unwrap(), b"WHAT was there");
    file.write_at(&[b'y'; 5000], 5).unwrap();
    let mut model = b"WHAT ".to_vec();
    model.resize(5005, b'y');
    assert_eq!(fs.read("/file").unwrap(), model);
    drop(file);
    fs.unmount().unwrap();
    image.check().assert_clean();
    assert_eq!(image.open().read("/file").unwrap(), model);
}
