//! Inodes that leave memory while somebody else loads them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_sync::threads;
use extant_testkit::{Ends, require};

use super::Node;
use crate::error::FsError;
use crate::namei::{NewInode, SetAttributes};
use crate::test_images::Image;

#[test]
fn what_was_read_before_the_inode_changed_and_left_memory_makes_no_node() {
    let image = require!(Image::make("8M", &["-t", "ext4"], ""));
    let fs = image.open();
    fs.write("/file", "contents").unwrap();
    fs.sync().unwrap();
    let ino = fs.resolve("/file").unwrap().ino();
    fs.volume().nodes().remove(&ino);
    let mut rounds = 0;
    let node = fs.node_by(ino, || {
        let data = fs.load_inode_or_orphan(ino);
        rounds += 1;
        if rounds == 1 {
            // Others are faster: it is found, changed, stored and gone.
            let file = fs.inode(ino).unwrap();
            file.set_attributes(&SetAttributes::new().permissions(0o600)).unwrap();
            drop(file);
            fs.sync().unwrap();
            fs.volume().nodes().remove(&ino);
        }
        data
    });
    let node = node.unwrap();
    assert_eq!(node.with(|data| data.record.permissions()), 0o600);
    assert_eq!(rounds, 2);
    drop(node);
    fs.unmount().unwrap();
}

#[test]
fn inodes_that_leave_memory_as_they_came_keep_nobody_from_loading() {
    let image = require!(Image::make("8M", &["-t", "ext4"], ""));
    let fs = image.open();
    fs.write("/file", "contents").unwrap();
    fs.write("/other", "contents").unwrap();
    fs.sync().unwrap();
    let ino = fs.resolve("/file").unwrap().ino();
    fs.volume().nodes().remove(&ino);
    drop(fs.inode(ino).unwrap());
    let mut rounds = 0;
    fs.volume().nodes().remove(&ino);
    let loaded = fs.node_by(ino, || {
        rounds += 1;
        drop(fs.inode(ino).unwrap());
        fs.volume().nodes().remove(&ino);
        fs.load_inode_or_orphan(ino)
    });
    loaded.unwrap();
    assert_eq!(rounds, 1);
    fs.unmount().unwrap();
}

#[test]
fn a_name_finds_the_same_node_as_a_number_while_an_earlier_one_leaves() {
    let image = require!(Image::make("8M", &["-t", "ext4"], ""));
    let fs = image.open();
    fs.write("/file", "contents").unwrap();
    fs.sync().unwrap();
    let root = fs.root().unwrap();
    let ino = root.lookup_ino("file").unwrap();
    // Whoever evicts it has it, for a moment, outside of the cache and its lock.
    let leaving = fs.volume().nodes().get(&ino).unwrap();
    fs.volume().nodes().remove(&ino);
    let by_name = root.lookup("file").unwrap();
    let by_number = fs.inode(ino).unwrap();
    assert!(Arc::ptr_eq(by_name.node(), by_number.node()), "two nodes of one inode");
    drop((leaving, by_name, by_number, root));
    fs.unmount().unwrap();
}

#[test]
fn a_node_that_stays_is_found_by_its_name_again() {
    let image = require!(Image::make("8M", &["-t", "ext4"], ""));
    let fs = image.open();
    fs.write("/file", "contents").unwrap();
    let root = fs.root().unwrap();
    let file = root.lookup("file").unwrap();
    assert!(!Node::try_leave(file.node(), 1), "it is held");
    let again = Node::upgrade(&Arc::downgrade(file.node())).expect("it has not left");
    assert!(Arc::ptr_eq(&again, file.node()));
    drop((again, file, root));
    fs.unmount().unwrap();
}

const NEW: NewInode = NewInode { permissions: 0o644, uid: 0, gid: 0 };

#[test]
fn who_has_found_a_name_that_goes_gets_neither_the_dead_inode_nor_its_successor() {
    let image = require!(Image::make("8M", &["-t", "ext4"], ""));
    let fs = image.open();
    let root = fs.root().unwrap();
    let first = root.create("file", &NEW).unwrap();
    let ino = first.ino();
    drop(first);
    // The first half of a lookup.
    let found = root.lookup_node(b"file").unwrap();
    root.unlink("file").unwrap();
    assert!(matches!(fs.handle(&found), Err(FsError::NoSuchInode { .. })));
    assert!(matches!(root.lookup("file"), Err(FsError::NotFound { .. })));
    let next = root.create("file", &NEW).unwrap();
    assert_eq!(next.ino(), ino, "the number is given out again");
    assert!(matches!(fs.handle(&found), Err(FsError::NoSuchInode { .. })));
    let again = root.lookup("file").unwrap();
    assert!(Arc::ptr_eq(again.node(), next.node()) && !Arc::ptr_eq(again.node(), &found));
    drop((found, next, again, root));
    fs.unmount().unwrap();
}

#[test]
fn a_lookup_beside_the_end_of_its_name_finds_the_file_or_nothing() {
    const FILES: u32 = 400;
    let image = require!(Image::make("8M", &["-t", "ext4"], ""));
    let fs = image.open();
    let root = fs.root().unwrap();
    let is_over = AtomicBool::new(false);
    threads::scope(|scope| {
        let looks = || {
            let mut found = 0;
            while !is_over.load(Ordering::Acquire) {
                match root.lookup("file") {
                    Ok(file) => {
                        // What is held has what was written to it, or nothing yet, whatever became of its name.
                        let mut bytes = [0; 8];
                        let len = file.read_at(&mut bytes, 0).unwrap();
                        let generation = u64::from(file.record().generation);
                        assert!(len == 0 || bytes == generation.to_le_bytes(), "another file's");
                        found += 1;
                    }
                    Err(FsError::NotFound { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                if found % 8 == 0 {
                    fs.drop_cached_metadata();
                }
            }
        };
        let ends = Ends(&is_over);
        let lookers: Vec<_> = (0..2).map(|_| scope.spawn("looks", looks).unwrap()).collect();
        for _ in 0..FILES {
            let file = root.create("file", &NEW).unwrap();
            let generation = u64::from(file.record().generation);
            file.write_at(&generation.to_le_bytes(), 0).unwrap();
            drop(file);
            root.unlink("file").unwrap();
        }
        drop(ends);
        for looker in lookers {
            looker.join().unwrap();
        }
    })
    .unwrap();
    drop(root);
    fs.unmount().unwrap();
    let report = image.check();
    assert!(report.is_clean(), "{}", report.text);
}
