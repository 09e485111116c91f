//! Where large writes start on a file system made for a RAID.

use super::*;

/// Stripes of 64 blocks.
const STRIPED: &[&str] =
    &["-t", "ext4", "-b", "4096", "-g", "2048", "-m", "0", "-E", "stride=16,stripe_width=64"];
const STRIPED_1K: &[&str] =
    &["-t", "ext4", "-b", "1024", "-m", "0", "-E", "stride=16,stripe_width=64"];
const CLUSTERS: &[&str] =
    &["-t", "ext4", "-O", "bigalloc", "-C", "16384", "-m", "0", "-E", "stride=16,stripe_width=64"];

impl Mount {
    fn ask(&self, ask: BlockAsk) -> Run {
        self.alloc().allocate(&mut self.txn(), &ask, Right::Rescue, u64::MAX).unwrap()
    }
}

#[test]
fn data_of_a_stripe_starts_on_one_and_less_does_not_look_for_one() {
    for (size, layout) in [("256M", STRIPED), ("64M", STRIPED_1K), ("512M", CLUSTERS)] {
        let image = require!(Image::make(size, layout, ""));
        let mount = Mount::of(&image);
        let ratio = mount.volume().superblock().cluster_ratio();
        let base = BlockAsk {
            goal: FsBlock(3 * 8192 + u64::from(3 * ratio)),
            len: 64,
            min: 64,
            purpose: Purpose::Data,
            continues: false,
        };
        let found = || mount.alloc().stats().found_on_stripe;
        let is_on = |run: Run| run.start.0.is_multiple_of(64);
        let mut runs = Vec::new();
        for len in [64, 64 + 4 * ratio, 200, 640] {
            let (before, ask) = (found(), BlockAsk { len, ..base });
            let run = mount.ask(ask);
            assert!(is_on(run) && run.len >= len, "{layout:?}: {run:?}");
            assert_eq!(found(), before + 1, "{layout:?}");
            runs.push(run);
        }
        // Less than a stripe, metadata, and what goes on behind a file's last block.
        let behind = |run: Run| FsBlock(run.start.0 + u64::from(run.len));
        let small = mount.ask(BlockAsk { goal: behind(runs[1]), len: 32, min: 32, ..base });
        assert_eq!(small.start, behind(runs[1]), "{layout:?}");
        let tree = BlockAsk { purpose: Purpose::Metadata, goal: behind(small), ..base };
        let tree = mount.ask(BlockAsk { len: 16, min: 16, ..tree });
        let last = mount.ask(BlockAsk { goal: FsBlock(1 << 14), len: 64 + ratio, ..base });
        assert!(is_on(last), "{last:?}");
        let before = found();
        let next = mount.ask(BlockAsk { goal: behind(last), continues: true, ..base });
        assert_eq!((next.start, found()), (behind(last), before), "{layout:?}: one piece");
        runs.extend([small, tree, last, next]);
        runs.into_iter().for_each(|run| mount.free(run.start.0, run.len).unwrap());
        mount.commit();
        mount.verify();
        mount.end(&image);
    }
}

#[test]
fn without_a_run_on_a_stripe_another_will_do() {
    let image = require!(Image::make("256M", STRIPED, ""));
    let mount = Mount::of(&image);
    let mut runs = Vec::new();
    while let Ok(run) = mount.take(0, 64, 1) {
        runs.push(run);
    }
    // 96 blocks between two beginnings of stripes: in the middle, one that is taken.
    let is_one = |start: u64| runs.iter().any(|run| (run.start.0, run.len) == (start, 64));
    let starts = runs.iter().map(|run| run.start.0).filter(|start| start.is_multiple_of(64));
    let start = starts.filter(|start| is_one(*start) && is_one(start + 64)).min().unwrap();
    mount.free(start + 1, 126).unwrap();
    mount.commit();
    let ask =
        BlockAsk { goal: FsBlock(0), len: 64, min: 1, purpose: Purpose::Data, continues: false };
    // A beginning is in it, but not with a stripe behind it.
    let before = mount.alloc().stats();
    let run = mount.ask(ask);
    assert_eq!((run.start.0, run.len), (start + 1, 64));
    let now = mount.alloc().stats();
    assert_eq!(now.found_on_stripe, before.found_on_stripe);
    assert_eq!(now.found_whole, before.found_whole + 1);
    assert_eq!(now.clusters_asked - before.clusters_asked, 64);
    assert_eq!(now.clusters - before.clusters, 64);
    mount.verify();
}

/// What is asked and what is got, by criterion.
#[test]
fn requests_are_counted_by_the_criterion_that_served_them() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let since = |before: AllocatorStats| {
        let now = mount.alloc().stats();
        let of = |now: u64, before: u64| now - before;
        [
            of(now.found_ahead, before.found_ahead),
            of(now.found_whole, before.found_whole),
            of(now.found_least, before.found_least),
            of(now.clusters_asked, before.clusters_asked),
            of(now.clusters, before.clusters),
        ]
    };
    let before = mount.alloc().stats();
    mount.take(3000, 100, 1).unwrap();
    assert_eq!(since(before), [0, 1, 0, 100, 100]);
    // With a window behind it, and without.
    let root = mount.fs.root().unwrap();
    mount.alloc().promise(mount.volume(), 200).unwrap();
    let before = mount.alloc().stats();
    for (ahead, expected) in [(50, [1, 0, 0, 100, 100]), (0, [1, 1, 0, 200, 200])] {
        let growth = Growth { grows: true, continues: false, ahead };
        let (goal, purpose) = (FsBlock(9000), Purpose::Data);
        let ask = BlockAsk { goal, len: 100, min: 1, purpose, continues: false };
        mount.alloc().pin(mount.volume(), root.node(), &ask, growth).unwrap();
        assert_eq!(since(before), expected, "{ahead}");
    }
    // More than is left in one piece.
    let mut taken = 0;
    while mount.take(0, 2048, 1).is_ok_and(|run| run.len == 2048) {
        taken += 1;
    }
    let before = mount.alloc().stats();
    let run = mount.take(0, 2048, 1).unwrap();
    assert!(run.len < 2048, "after {taken} whole groups");
    assert_eq!(since(before), [0, 0, 1, 2048, u64::from(run.len)]);
    let named = mount.alloc().stats().named();
    for name in ["ahead", "whole", "least", "any", "extended", "on_stripe"] {
        assert!(named.iter().any(|(of, _)| *of == format!("space_criterion_{name}")), "{name}");
    }
    mount.verify();
}
