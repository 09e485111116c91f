//! What a mount keeps in memory: inodes that nobody uses, contents that wait to be written.

use std::sync::Arc;

use extant::{Fs, Inode, MountOptions, NewInode, SetAttributes};
use extant_block::{MemoryDevice, SharedDevice};
use extant_sync::FixedClock;
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

const NEW: NewInode = NewInode { permissions: 0o644, uid: 0, gid: 0 };
/// The fewest inodes that a mount keeps.
const MOST: usize = 256;
/// Files beside the one that is looked at.
const OTHERS: usize = 3000;

fn made() -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "32M", &["-t", "ext4", "-b", "1024", "-N", "4096"])?;
    Ok(Arc::new(image::load(&path)))
}

fn mount(device: SharedDevice) -> Fs {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    options.inodes_max(MOST).open_shared(device).unwrap()
}

/// A mount with a file `f`, and others that all have been stored.
fn with_others(device: SharedDevice) -> (Fs, Inode) {
    let fs = mount(device);
    let root = fs.root().unwrap();
    for index in 0..OTHERS {
        root.create(format!("other{index}"), &NEW).unwrap();
    }
    root.create("f", &NEW).unwrap().write_at(&[1; 4096], 0).unwrap();
    fs.sync().unwrap();
    (fs, root)
}

/// Looks at all others, so that nothing else stays in memory that may leave.
fn crowd_out(root: &Inode) {
    for index in 0..OTHERS {
        root.lookup(format!("other{index}")).unwrap();
    }
}

#[test]
fn no_more_inodes_stay_in_memory_than_asked_and_those_in_use() {
    let device = require!(made());
    let (fs, root) = with_others(Arc::clone(&device) as _);
    crowd_out(&root);
    let stats = fs.node_stats();
    assert_eq!(stats.max, MOST);
    assert!(stats.count <= MOST + 8, "{stats:?}");
    let held: Vec<Inode> =
        (0..1000).map(|index| root.lookup(format!("other{index}")).unwrap()).collect();
    assert!((1000..1000 + MOST + 256).contains(&fs.node_stats().count), "{:?}", fs.node_stats());
    drop(held);
    assert!(fs.node_stats().count <= MOST + 8, "they stay: {:?}", fs.node_stats());
    // Changed, and not committed: they stay until they are.
    for index in 0..1000 {
        let other = root.lookup(format!("other{index}")).unwrap();
        other.set_attributes(&SetAttributes::new().permissions(0o600)).unwrap();
    }
    assert!(fs.node_stats().count >= 1000);
    fs.sync().unwrap();
    assert!(fs.node_stats().count <= MOST + 8, "they stay: {:?}", fs.node_stats());
    for index in 0..OTHERS {
        let metadata = root.stat(format!("other{index}")).unwrap();
        assert_eq!(metadata.permissions, if index < 1000 { 0o600 } else { 0o644 });
    }
    drop(root);
    fs.unmount().unwrap();
    let dir = tempdir().unwrap();
    image::save(&device, &dir.path().join("image"));
    require!(e2fsck(&dir.path().join("image"))).assert_clean();
}

#[test]
fn dirty_data_stays_within_the_limits_of_the_mount() {
    const LIMIT: u64 = 4 << 20;
    let device = require!(made());
    let options = MountOptions::new().read_only(false).background(false);
    let options = options.data_cache_bytes(32 << 20).dirty_bytes(LIMIT);
    let fs = options.open_shared(Arc::clone(&device) as _).unwrap();
    let file = fs.root().unwrap().create("f", &NEW).unwrap();
    let mut most = 0;
    for index in 0..16 {
        file.write_at(&vec![7; 1 << 20], index << 20).unwrap();
        most = most.max(fs.io_stats().unwrap().dirty_bytes);
    }
    assert!(most > LIMIT / 2 && most <= LIMIT + (2 << 20), "{most} bytes were dirty");
    drop(file);
    fs.unmount().unwrap();
    // Without the words four fifths of the cache may be.
    let options = MountOptions::new().read_only(false).background(false);
    let fs = options.data_cache_bytes(32 << 20).open_shared(device as _).unwrap();
    let file = fs.root().unwrap().create("g", &NEW).unwrap();
    assert_eq!(file.write_at(&vec![7; 8 << 20], 0).unwrap(), 8 << 20);
    assert!(fs.io_stats().unwrap().dirty_bytes >= 8 << 20);
    drop(file);
    fs.unmount().unwrap();
}
