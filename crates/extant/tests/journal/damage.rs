//! Changes of damaged file systems: they may be refused, and may not panic, loop or hang.

use std::sync::Arc;

use extant::{AclKind, Fs, MountOptions, NewInode, SetAttributes, XattrMode};
use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice};
use extant_format::acl::Acl;
use extant_testkit::oracle::{debugfs, mke2fs};
use extant_testkit::{image, require};

use crate::patch::patch_inode;

/// A file system with something of everything, without checksums: damage is not found by them.
fn make(options: &[&str]) -> Result<MemoryDevice, String> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("image");
    mke2fs(&path, "8M", options)?;
    let data = dir.path().join("data");
    std::fs::write(&data, vec![7; 600_000]).unwrap();
    let mut script =
        format!("write {} dense\nwrite {} other\nmkdir dir\n", data.display(), data.display());
    // Holes, so that maps have several levels.
    for at in (0..500).step_by(2) {
        script += &format!("punch dense {at} {at}\n");
    }
    script += "punch other 3 3\n";
    debugfs(&path, true, &script)?;
    let device = Arc::new(image::load(&path));
    {
        let fs =
            MountOptions::new().read_only(false).open_shared(Arc::clone(&device) as _).unwrap();
        let root = fs.root().unwrap();
        for at in 0..6 {
            let file = root.create(format!("f{at}"), &NewInode::root(0o644)).unwrap();
            file.set_xattr("user.block", [1; 300], XattrMode::Any).unwrap();
            file.set_xattr("user.small", [2; 10], XattrMode::Any).unwrap();
            let _without_ea_inode = file.set_xattr("user.large", [at; 3000], XattrMode::Any);
        }
        drop(root);
        fs.unmount().unwrap();
    }
    Arc::try_unwrap(device).map_err(|_| "still mounted".to_owned())
}

fn change_everything(fs: &Fs, random: &mut Prng) {
    let Ok(root) = fs.root() else { return };
    let names = ["dense", "other", "dir", "f0", "f1", "f2", "f3", "f4", "f5"];
    for _ in 0..30 {
        let name = names[random.below(names.len() as u64) as usize];
        let Ok(inode) = root.lookup(name) else { continue };
        let _any = match random.below(8) {
            0 => inode.truncate(random.below(700_000)),
            1 => inode.set_xattr("user.block", [3; 200], XattrMode::Any),
            2 => inode.set_xattr("user.large", [4; 2500], XattrMode::Any),
            3 => inode.remove_xattr("user.block"),
            4 => inode.set_acl(AclKind::Access, Some(&Acl::from_mode(0o640))),
            5 => inode.set_attributes(&SetAttributes::new().permissions(0o700)),
            6 => root.unlink(name),
            _ => inode.create("new", &NewInode::root(0o600)).map(drop),
        };
        if random.one_in(10) {
            let _any = fs.sync();
        }
    }
}

#[test]
fn changes_of_damaged_file_systems_end_in_errors() {
    for options in [
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,ea_inode", "-N", "64"][..],
        &["-t", "ext2", "-b", "1024", "-N", "64"],
    ] {
        let sound = require!(make(options));
        // Blocks in use, but for contents of files: where damage matters.
        let mut places = Vec::new();
        sound
            .for_each_page(|offset, bytes| {
                for (sector, bytes) in bytes.chunks(512).enumerate() {
                    let at = offset + 512 * sector as u64;
                    let used = bytes.iter().filter(|byte| **byte != 0).count();
                    // Bitmaps are all ones for long: one of them is enough.
                    if at >= 2048 && used > 3 && used < 500 && !bytes.starts_with(&[7; 64]) {
                        places.push(at);
                    }
                }
                Ok::<(), extant_block::DeviceError>(())
            })
            .unwrap();
        let mut mounted = 0;
        for seed in 0..300 {
            let mut random = Prng::new(seed);
            let device = MemoryDevice::new(sound.size_bytes());
            sound.for_each_page(|offset, bytes| device.write_at(offset, bytes)).unwrap();
            for _ in 0..1 + random.below(20) {
                let place = places[random.below(places.len() as u64) as usize];
                let at = place + random.below(512);
                let mut byte = [0];
                device.read_at(at, &mut byte).unwrap();
                let damaged = match random.below(3) {
                    0 => byte[0] ^ (1 << random.below(8)),
                    1 => byte[0].wrapping_add(1),
                    _ => random.below(256) as u8,
                };
                device.write_at(at, &[damaged]).unwrap();
            }
            let options = MountOptions::new().read_only(false).seed(seed);
            let Ok(fs) = options.open(device) else { continue };
            mounted += 1;
            change_everything(&fs, &mut random);
            let _any = fs.unmount();
        }
        assert!(mounted > 100, "{mounted}");
    }
}

/// A bitmap that has an inode in use as free, with the right count: the number is not given out a second time, which
/// would be the end of what it stands for.
#[test]
fn an_inode_in_use_is_not_given_out_again_whatever_the_bitmap_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    require!(mke2fs(&path, "8M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]));
    let device = Arc::new(image::load(&path));
    let open = || MountOptions::new().read_only(false).open_shared(Arc::clone(&device) as _);
    let (ino, bitmap) = {
        let fs = open().unwrap();
        let root = fs.root().unwrap();
        let file = root.create("file", &NewInode::root(0o644)).unwrap();
        file.set_xattr("user.small", [2; 10], XattrMode::Any).unwrap();
        let ino = file.ino();
        drop((file, root));
        let bitmap = fs.group(extant::GroupIndex(0)).unwrap().inode_bitmap;
        fs.unmount().unwrap();
        (ino, bitmap)
    };
    let flip = |ino: u32| {
        let (at, mut byte) = (bitmap.0 * 1024 + u64::from((ino - 1) / 8), [0]);
        device.read_at(at, &mut byte).unwrap();
        device.write_at(at, &[byte[0] ^ 1 << ((ino - 1) % 8)]).unwrap();
    };
    // This one is free now, and one that nobody uses is not.
    flip(ino.0);
    flip(ino.0 + 100);
    let fs = open().unwrap();
    let root = fs.root().unwrap();
    let file = root.lookup("file").unwrap();
    assert_eq!(file.ino(), ino);
    let refused = root.create("new", &NewInode::root(0o644)).unwrap_err();
    assert_eq!(refused.errno(), 117, "{refused}");
    assert!(refused.to_string().contains("inode bitmap"), "{refused}");
    assert_eq!(file.xattr("user.small").unwrap(), [2; 10]);
    assert_eq!(root.lookup("file").unwrap().metadata(), file.metadata());
    drop((file, root));
    fs.unmount().unwrap();
}

/// Pointers of a file that lead to a block of the inode table, or nowhere: neither is taken for pointers, and what is
/// there stays as it is.
#[test]
fn metadata_is_no_block_of_pointers_and_is_not_written_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    require!(mke2fs(&path, "4M", &["-t", "ext2", "-b", "1024", "-N", "256"]));
    let sound = image::load(&path);
    let table = {
        let fs = MountOptions::new().read_only(false).open(sound.snapshot()).unwrap();
        let group = fs.group(extant::GroupIndex(0)).unwrap();
        fs.unmount().unwrap();
        group.inode_table.0
    };
    // 256 records of 256 bytes: the last block has none in use.
    let last = table + 63;
    type Change = fn(&extant::Inode, &extant::Inode) -> extant::Result<()>;
    let changes: [(&str, Change); 4] = [
        ("write", |_, file| file.write_at(&[9; 1024], 20 << 10).map(drop)),
        ("punch", |_, file| file.fallocate(extant::Fallocate::PunchHole, 20 << 10..22 << 10)),
        ("truncate", |_, file| file.truncate(13 << 10)),
        ("unlink", |root, _| root.unlink("file")),
    ];
    // Through one block of pointers, and through two.
    for (slot, pointer) in [(12, last), (13, last), (12, 1 << 20), (13, 1 << 20)] {
        for (name, change) in &changes {
            let device = Arc::new(sound.snapshot());
            let open =
                || MountOptions::new().read_only(false).open_shared(Arc::clone(&device) as _);
            {
                let fs = open().unwrap();
                let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
                file.write_at(&[7; 1024], 0).unwrap();
                file.truncate(400 << 10).unwrap();
                drop(file);
                fs.unmount().unwrap();
            }
            patch_inode(&device, "/file", |record| {
                let pointer = u32::try_from(pointer).unwrap().to_le_bytes();
                record.block[slot * 4..slot * 4 + 4].copy_from_slice(&pointer);
            });
            let block = |number: u64| {
                let mut bytes = [0; 1024];
                device.read_at(number * 1024, &mut bytes).unwrap();
                bytes
            };
            let before = block(last);
            let fs = open().unwrap();
            let root = fs.root().unwrap();
            let file = root.lookup("file").unwrap();
            let mut bytes = [0; 1024];
            // Of two blocks of pointers, the first is met at the 268th block of the file.
            let at = if slot == 12 { 20 << 10 } else { 300 << 10 };
            let read = file.read_at(&mut bytes, at).unwrap_err();
            assert_eq!(read.errno(), 117, "{slot} {pointer}: {read}");
            let changed = match slot {
                12 => change(&root, &file),
                _ if *name == "write" => file.write_at(&[9; 1024], 300 << 10).map(drop),
                _ => change(&root, &file),
            };
            drop(file);
            let synced = changed.and_then(|()| fs.sync());
            let unmounted = fs.unmount();
            assert_eq!(block(last), before, "{slot} {pointer} {name}");
            let is_met = slot == 12 || matches!(*name, "write" | "truncate");
            if is_met && *name != "unlink" {
                let error = synced.unwrap_err();
                assert_eq!(error.errno(), 117, "{slot} {pointer} {name}: {error}");
            }
            drop(unmounted);
        }
    }
}
