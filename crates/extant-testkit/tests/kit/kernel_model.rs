//! The model against Linux: the same operations, the same answers, the same tree.

use std::collections::HashMap;
use std::fs;

use extant_testkit::kernel::{Kernel, snapshot, snapshot_with_times};
use extant_testkit::model::{FileKind, Generator, Model, NodeId, Profile, Rules, Tree};
use extant_testkit::{oracle, require, tempdir};

const RULES: Rules =
    Rules { times: false, crtime: false, project: false, full: false, contents: false };

/// Flags of what `ioctl` does not reach are as the model says.
fn blank_flags(tree: &mut Tree) {
    for (_, id) in tree.paths() {
        let node = tree.node_mut(id);
        if !matches!(node.kind, FileKind::Regular | FileKind::Directory) {
            node.flags = 0;
        }
    }
}

#[test]
fn linux_agrees_with_the_model() {
    let dir = tempdir().unwrap();
    let image = dir.path().join("image");
    require!(oracle::mke2fs(&image, "64M", &["-t", "ext4"]));
    let mount = require!(oracle::LoopMount::read_write(&image));
    for seed in 1..=9u64 {
        let root = mount.path().join(format!("seed{seed}"));
        fs::create_dir(&root).unwrap();
        let mut kernel = Kernel::new(root.clone());
        let mut model = Model::new(snapshot(&root), RULES);
        let profile = match seed % 3 {
            _ if seed > 6 => Profile { sync_one_in: 0, ..Profile::contents() },
            0 => Profile { sync_one_in: 0, ..Profile::big_directory() },
            _ => Profile { sync_one_in: 0, ..Profile::default() },
        };
        let mut generator = Generator::new(seed, profile);
        let mut tail = Vec::new();
        for step in 0..1500 {
            let op = generator.next_op(&model);
            let answer = kernel.apply(&op);
            tail.push(format!("{step} {op} = {answer:?}"));
            let tail = || tail[tail.len().saturating_sub(15)..].join("\n");
            if let Err(wanted) = model.follow(&op, answer) {
                panic!("seed {seed}: the model says {wanted:?}\n{}", tail());
            }
            if step % 100 == 99 {
                let found = snapshot(&root);
                blank_flags(&mut model.tree);
                let lines = found.differences(&model.tree);
                assert!(
                    lines.is_empty() && found.fingerprint() == model.tree.fingerprint(),
                    "seed {seed}, kernel | model:\n{}\n{}",
                    lines.join("\n"),
                    tail()
                );
            }
        }
    }
}

/// Which of the two times of each node changed between two snapshots.
type Times = HashMap<NodeId, [(i64, u32); 2]>;

/// The times in `kernel` of the nodes that have the same paths in `model`.
fn times(model: &Tree, kernel: &Tree) -> Times {
    let of_paths: HashMap<_, _> = kernel.paths().into_iter().collect();
    let each = |(path, id): (Vec<Vec<u8>>, NodeId)| {
        let times = kernel.node(of_paths[&path]).times;
        (id, [times[1], times[2]])
    };
    model.paths().into_iter().map(each).collect()
}

#[test]
fn linux_changes_the_times_that_the_model_changes() {
    let dir = tempdir().unwrap();
    let image = dir.path().join("image");
    require!(oracle::mke2fs(&image, "16M", &["-t", "ext4"]));
    let mount = require!(oracle::LoopMount::read_write(&image));
    for seed in 20..24u64 {
        let root = mount.path().join(format!("seed{seed}"));
        fs::create_dir(&root).unwrap();
        let mut kernel = Kernel::new(root.clone());
        let mut model = Model::new(snapshot(&root), Rules { times: true, ..RULES });
        let profile = if seed < 22 { Profile::default() } else { Profile::contents() };
        let profile = Profile { sync_one_in: 0, entries_max: 25, ..profile };
        let mut generator = Generator::new(seed, profile);
        let mut before = times(&model.tree, &snapshot_with_times(&root));
        for step in 0..400 {
            let op = generator.next_op(&model);
            let old = times(&model.tree, &model.tree);
            model.now = 10_000_000_000 + step;
            let answer = kernel.apply(&op);
            assert_eq!(model.follow(&op, answer), Ok(()), "{op}");
            let new = times(&model.tree, &model.tree);
            let after = times(&model.tree, &snapshot_with_times(&root));
            for (id, after) in &after {
                let (Some(before), Some(old)) = (before.get(id), old.get(id)) else { continue };
                let theirs = [before[0] != after[0], before[1] != after[1]];
                let ours = [old[0] != new[id][0], old[1] != new[id][1]];
                let path = model.tree.paths().into_iter().find(|(_, other)| other == id).unwrap().0;
                let path = extant_testkit::model::Path(path);
                assert_eq!(theirs, ours, "seed {seed}, step {step}: {op} = {answer:?}: {path}");
            }
            before = after;
        }
    }
}
