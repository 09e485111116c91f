//! Files that may not be changed, or only grow: whichever way it is tried.

use std::sync::Arc;

use extant::{
    AclKind, AlignedBuffer, DirectKind, DirectRequest, Fallocate, Fs, Inode, InodeFlags,
    MountOptions, NewInode, QueueOptions, RenameFlags, Result, SetAttributes, XattrMode,
};
use extant_block::{MemoryDevice, SharedDevice};
use extant_format::acl::Acl;
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

const BLOCK: u64 = 4096;

struct Way {
    name: &'static str,
    /// Whether a file that may only grow is changed by it, too.
    grows: bool,
    run: fn(&Fs, &Inode) -> Result<()>,
}

fn way(name: &'static str, grows: bool, run: fn(&Fs, &Inode) -> Result<()>) -> Way {
    Way { name, grows, run }
}

fn source(fs: &Fs) -> Inode {
    fs.resolve("/source").unwrap()
}

fn bytes() -> AlignedBuffer {
    let mut bytes = AlignedBuffer::zeroed(BLOCK as usize);
    bytes.fill(9);
    bytes
}

fn fallocate(file: &Inode, mode: Fallocate) -> Result<()> {
    file.fallocate(mode, 0..BLOCK)
}

fn ways() -> Vec<Way> {
    vec![
        way("write", false, |_, file| file.write_at(&[9], 0).map(drop)),
        way("write behind the end", false, |_, file| file.write_at(&[9], 9 * BLOCK).map(drop)),
        way("write at the end", true, |_, file| file.write_at(&[9], 4 * BLOCK).map(drop)),
        way("append", true, |_, file| file.append(&[9]).map(drop)),
        way("attempt", false, |_, file| match file.try_write_at(&[9], 0) {
            Ok(answer) => answer.map(drop),
            // Whether a capability is to be taken away, is not known yet: whoever may wait looks.
            Err(_) => file.write_at(&[9], 0).map(drop),
        }),
        way("truncate", false, |_, file| file.truncate(BLOCK)),
        way("truncate upwards", false, |_, file| file.truncate(9 * BLOCK)),
        way("punch", false, |_, file| fallocate(file, Fallocate::PunchHole)),
        way("zero", false, |_, file| fallocate(file, Fallocate::ZeroRange { keep_size: true })),
        way("write zeroes", false, |_, file| fallocate(file, Fallocate::WriteZeroes)),
        way("collapse", false, |_, file| fallocate(file, Fallocate::CollapseRange)),
        way("insert", false, |_, file| fallocate(file, Fallocate::InsertRange)),
        way("copy of data", false, |fs, file| source(fs).copy_range(0, file, 0, 100).map(drop)),
        way("copy of a hole", false, |fs, file| {
            source(fs).copy_range(2 * BLOCK, file, 0, BLOCK).map(drop)
        }),
        way("direct write", false, |_, file| file.direct()?.write_at(&bytes(), 0).map(drop)),
        way("atomic write", false, |_, file| file.direct()?.write_atomic_at(&bytes(), 0)),
        way("queued write", false, |_, file| {
            let direct = file.direct()?;
            let mut queue = direct.queue(&QueueOptions::default().depth(4));
            let kind = DirectKind::Write { synced: false };
            let request = DirectRequest { kind, offset: 0, buffer: bytes() };
            let done = queue.run(vec![request]).pop().expect("an answer");
            done.result.map(drop)
        }),
        way("writable map", false, |_, file| file.map_shared(0..BLOCK, true).map(drop)),
        way("mode", false, |_, file| file.set_attributes(&SetAttributes::new().permissions(0o600))),
        way("owner", false, |_, file| {
            file.set_attributes(&SetAttributes::new().owner(Some(7), None))
        }),
        way("attribute", false, |_, file| file.set_xattr("user.a", b"b", XattrMode::Any)),
        way("removal of an attribute", false, |_, file| file.remove_xattr("user.kept")),
        way("list", false, |_, file| file.set_acl(AclKind::Access, Some(&Acl::from_mode(0o600)))),
        way("link", false, |fs, file| fs.root()?.link("again", file)),
        way("unlink", false, |fs, _| fs.root()?.unlink("file")),
        way("rename", false, |fs, _| {
            let root = fs.root()?;
            root.rename("file", &root, "moved", RenameFlags::default())
        }),
        way("rename over it", false, |fs, _| {
            let root = fs.root()?;
            root.rename("other", &root, "file", RenameFlags::default())
        }),
        way("exchange", false, |fs, _| {
            let root = fs.root()?;
            root.rename("other", &root, "file", RenameFlags::EXCHANGE)
        }),
    ]
}

/// Everything that may not be is refused with EPERM, changes nothing, and is done again without the flag.
#[test]
fn what_may_not_be_changed_is_changed_in_no_way() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    require!(mke2fs(&path, "16M", &["-t", "ext4"]));
    let fresh = Arc::new(image::load(&path));
    let mount = |device: &Arc<MemoryDevice>| {
        let device: SharedDevice = Arc::clone(device) as SharedDevice;
        MountOptions::new().read_only(false).seed(1).open_shared(device).unwrap()
    };
    {
        let fs = mount(&fresh);
        let root = fs.root().unwrap();
        for name in ["file", "other", "source"] {
            let file = root.create(name, &NewInode::root(0o644)).unwrap();
            file.write_at(&[1; 4 * BLOCK as usize], 0).unwrap();
            file.set_xattr("user.kept", b"it is", XattrMode::Any).unwrap();
        }
        root.lookup("source")
            .unwrap()
            .fallocate(Fallocate::PunchHole, 2 * BLOCK..3 * BLOCK)
            .unwrap();
        drop(root);
        fs.unmount().unwrap();
    }
    for flag in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
        for way in ways() {
            let device = Arc::new(fresh.snapshot());
            let fs = mount(&device);
            let file = fs.resolve("/file").unwrap();
            // Its contents are known, so that an attempt need not wait.
            assert!(file.read_all().unwrap() == [1; 4 * BLOCK as usize]);
            let plain = file.metadata().flags;
            let set = |flags| file.set_attributes(&SetAttributes::new().flags(flags)).unwrap();
            set(plain | flag);
            let before = (file.metadata(), fs.resolve("/other").unwrap().ino());
            let answer = (way.run)(&fs, &file);
            if flag == InodeFlags::APPEND && way.grows {
                answer.unwrap_or_else(|error| panic!("{}: {error}", way.name));
                assert_eq!(file.size(), 4 * BLOCK + 1, "{}", way.name);
            } else {
                let error = answer.expect_err(way.name);
                assert_eq!(error.errno(), 1, "{flag:?}, {}: {error}", way.name);
                let after = (file.metadata(), fs.resolve("/other").unwrap().ino());
                assert_eq!(after, before, "{flag:?}, {}", way.name);
                assert!(file.read_all().unwrap() == [1; 4 * BLOCK as usize], "{}", way.name);
                assert_eq!(file.xattr("user.kept").unwrap(), b"it is", "{}", way.name);
                assert_eq!(fs.resolve("/file").unwrap().ino(), file.ino(), "{}", way.name);
                set(plain);
                (way.run)(&fs, &file).unwrap_or_else(|error| panic!("{}: {error}", way.name));
            }
            drop(file);
            fs.unmount().unwrap();
            let path = dir.path().join("after");
            image::save(&device, &path);
            e2fsck(&path).unwrap().assert_clean();
            std::fs::remove_file(&path).unwrap();
        }
    }
}

/// What is only read, is.
#[test]
fn what_may_not_be_changed_is_read_in_every_way() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    require!(mke2fs(&path, "16M", &["-t", "ext4"]));
    let device: SharedDevice = Arc::new(image::load(&path));
    let fs = MountOptions::new().read_only(false).open_shared(device).unwrap();
    for (name, flag) in [("fixed", InodeFlags::IMMUTABLE), ("log", InodeFlags::APPEND)] {
        let file = fs.root().unwrap().create(name, &NewInode::root(0o644)).unwrap();
        file.write_at(&[7; BLOCK as usize], 0).unwrap();
        let flags = file.metadata().flags | flag;
        file.set_attributes(&SetAttributes::new().flags(flags)).unwrap();
        let map = file.map_shared(0..BLOCK, false).unwrap();
        let mut buffer = AlignedBuffer::zeroed(BLOCK as usize);
        assert_eq!(file.direct().unwrap().read_at(&mut buffer, 0).unwrap(), BLOCK as usize);
        assert!(buffer.iter().all(|byte| *byte == 7), "{name}");
        let target = fs.root().unwrap().create(format!("copy of {name}"), &NewInode::root(0o644));
        assert_eq!(file.copy_range(0, &target.unwrap(), 0, BLOCK).unwrap(), BLOCK);
        file.sync().unwrap();
        drop(map);
    }
    fs.unmount().unwrap();
}
