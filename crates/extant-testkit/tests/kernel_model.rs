//! The model against Linux: the same operations, the same answers, the same tree.

use std::fs;

use extant_testkit::kernel::{Kernel, snapshot};
use extant_testkit::model::{FileKind, Generator, Model, Profile, Rules, Tree};
use extant_testkit::{oracle, require, tempdir};

const RULES: Rules = Rules { times: false, crtime: false, project: false };

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
    for seed in 1..=6u64 {
        let root = mount.path().join(format!("seed{seed}"));
        fs::create_dir(&root).unwrap();
        let mut kernel = Kernel::new(root.clone());
        let mut model = Model::new(snapshot(&root), RULES);
        let profile = match seed % 3 {
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
