//! Attributes that need a feature of the file system: kept where an image has it, counted as lost where it does not.
//!
//! # Place
//!
//! After `source` and `transform`, before `plan`.

use extant_base::sabotage;
use extant_format::features::{Feature, Features};
use extant_format::inode::InodeFlags;
use extant_format::superblock::OLD_INODE_SIZE;
use extant_format::time::{SECONDS_MAX, SECONDS_MAX_SMALL, SECONDS_MIN};

use crate::source::Lost;
use crate::tree::{Kind, NodeId, Tree};

/// Takes from the nodes of `tree` what an image with `features` cannot have, and counts it in `lost`. A file that was
/// sealed in its source is to be sealed again.
pub fn settle(tree: &mut Tree, features: &Features, lost: &mut Lost) {
    let mut gone: Vec<(NodeId, &'static str)> = Vec::new();
    let mut at = 0u32;
    tree.for_each_node_mut(|node| {
        let id = NodeId(at);
        at += 1;
        let mut flags = InodeFlags::from_bits_retain(node.flags);
        if flags.is_empty() && node.project == 0 {
            return;
        }
        if !features.has(Feature::PROJECT) {
            if node.project != 0 {
                node.project = 0;
                if sabotage("image.attributes.lost-in-silence") {
                    return;
                }
                gone.push((id, "project id (-O project keeps it)"));
            }
            if flags.contains(InodeFlags::PROJINHERIT) {
                flags -= InodeFlags::PROJINHERIT;
                gone.push((id, "flag P (inherits the project; -O project keeps it)"));
            }
        }
        if flags.contains(InodeFlags::VERITY) {
            // Set again when there is a hash tree.
            flags -= InodeFlags::VERITY;
            match features.has(Feature::VERITY) && node.kind == Kind::File {
                true => node.sealed = true,
                false => gone.push((id, "fs-verity seal (-O verity makes it again)")),
            }
        }
        if flags.contains(InodeFlags::CASEFOLD) && !features.has(Feature::CASEFOLD) {
            flags -= InodeFlags::CASEFOLD;
            gone.push((id, "flag F (folds case; -O casefold keeps it)"));
        }
        let excludes_dax = flags.contains(InodeFlags::JOURNAL_DATA) || node.sealed;
        if flags.contains(InodeFlags::DAX) && excludes_dax {
            flags -= InodeFlags::DAX;
            gone.push((id, "flag x (DAX, of files that are journaled or sealed)"));
        }
        node.flags = flags.bits();
    });
    for (id, what) in gone {
        lost.add(what, &tree.path(id));
    }
}

/// Counts in `lost` the times that inodes of `inode_bytes` cannot have: the nearest that can be is stored.
pub fn settle_times(tree: &Tree, inode_bytes: u16, lost: &mut Lost) {
    let is_small = inode_bytes <= OLD_INODE_SIZE;
    let (last, outside) = match is_small {
        true => (SECONDS_MAX_SMALL, "time before 1901 or after 2038 (of inodes of 128 bytes)"),
        false => (SECONDS_MAX, "time before 1901 or after 2446"),
    };
    for (node, at) in tree.nodes().iter().zip(0u32..) {
        let times = [node.mtime, node.atime, node.ctime];
        if times.iter().any(|time| !(SECONDS_MIN..=last).contains(&time.sec)) {
            lost.add(outside, &tree.path(NodeId(at)));
        }
        if is_small && times.iter().any(|time| time.nsec != 0) {
            lost.add("fraction of a second (of inodes of 128 bytes)", &tree.path(NodeId(at)));
        }
    }
}

/// Lets the directory `path` of `tree`, and all directories below it, find names whatever their case. Slashes at the
/// beginning and end of the path do not count. Returns false if there is no such directory.
pub fn fold_case(tree: &mut Tree, path: &[u8]) -> bool {
    let Some(top) = tree.find_dir(path) else { return false };
    let mut dirs = vec![top];
    while let Some(dir) = dirs.pop() {
        tree.node_mut(dir).flags |= InodeFlags::CASEFOLD.bits();
        let below = tree.children(dir).iter().map(|entry| entry.node);
        dirs.extend(below.filter(|id| tree.node(*id).kind == Kind::Dir));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::LostKind;
    use crate::tree::{Node, Time, TreeBuilder};

    #[test]
    fn times_that_inodes_have_no_room_for_are_named() {
        let mut builder = TreeBuilder::new(Node::new(Kind::Dir));
        for (name, sec, nsec) in [
            (&b"ancient"[..], SECONDS_MIN - 1, 0),
            (b"first", SECONDS_MIN, 0),
            (b"small", SECONDS_MAX_SMALL, 0),
            (b"later", SECONDS_MAX_SMALL + 1, 0),
            (b"nanos", 7, 9),
            (b"last", SECONDS_MAX, 0),
            (b"never", SECONDS_MAX + 1, 0),
        ] {
            let mut file = Node::new(Kind::File);
            file.mtime = Time { sec, nsec };
            let file = builder.add(file).unwrap();
            builder.link(NodeId::ROOT, name, file).unwrap();
        }
        let tree = builder.finish().unwrap();
        let said = |inode_bytes| {
            let mut lost = Lost::default();
            settle_times(&tree, inode_bytes, &mut lost);
            let kind = |(what, kind): (&str, &LostKind)| {
                (what.to_owned(), kind.files, kind.example.clone())
            };
            lost.kinds().map(kind).collect::<Vec<_>>()
        };
        let large = ("time before 1901 or after 2446".to_owned(), 2, b"ancient".to_vec());
        assert_eq!(said(256), [large]);
        assert_eq!(
            said(128),
            [
                ("fraction of a second (of inodes of 128 bytes)".to_owned(), 1, b"nanos".to_vec()),
                (
                    "time before 1901 or after 2038 (of inodes of 128 bytes)".to_owned(),
                    4,
                    b"ancient".to_vec()
                ),
            ]
        );
    }

    #[test]
    fn what_needs_a_feature_is_kept_with_it_and_named_without() {
        let tree = || {
            let mut builder = TreeBuilder::new(Node::new(Kind::Dir));
            let mut file = Node::new(Kind::File);
            file.flags = (InodeFlags::VERITY | InodeFlags::NODUMP).bits();
            file.project = 7;
            let file = builder.add(file).unwrap();
            builder.link(NodeId::ROOT, b"file", file).unwrap();
            let mut dir = Node::new(Kind::Dir);
            dir.flags = InodeFlags::PROJINHERIT.bits();
            let dir = builder.add(dir).unwrap();
            builder.link(NodeId::ROOT, b"dir", dir).unwrap();
            builder.finish().unwrap()
        };
        let (mut with, mut lost) = (tree(), Lost::default());
        settle(&mut with, &Features::of(&[Feature::PROJECT, Feature::VERITY]), &mut lost);
        assert!(lost.is_empty(), "{lost:?}");
        let kept: Vec<_> =
            with.nodes()[1..].iter().map(|n| (n.flags, n.project, n.sealed)).collect();
        let wanted =
            [(InodeFlags::NODUMP.bits(), 7, true), (InodeFlags::PROJINHERIT.bits(), 0, false)];
        assert_eq!(kept, wanted);

        let mut without = tree();
        settle(&mut without, &Features::NONE, &mut lost);
        let kept: Vec<_> =
            without.nodes()[1..].iter().map(|n| (n.flags, n.project, n.sealed)).collect();
        assert_eq!(kept, [(InodeFlags::NODUMP.bits(), 0, false), (0, 0, false)]);
        let said: Vec<_> = lost.kinds().map(|(what, kind)| (what, kind.example.clone())).collect();
        assert_eq!(
            said,
            [
                ("flag P (inherits the project; -O project keeps it)", b"dir".to_vec()),
                ("fs-verity seal (-O verity makes it again)", b"file".to_vec()),
                ("project id (-O project keeps it)", b"file".to_vec()),
            ]
        );
    }
}
