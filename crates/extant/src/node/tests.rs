//! Inodes that leave memory while somebody else loads them.

use std::sync::Arc;

use extant_testkit::require;

use super::Node;
use crate::namei::SetAttributes;
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
