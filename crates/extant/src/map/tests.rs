//! Whole files on real file systems: runs put in, converted, moved and taken out at random, against
//! a map of blocks; e2fsck at the end.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use extant_base::{BlockCount, FileBlock, FsBlock, Prng};
use extant_format::extent::{self, Extent, ExtentState};
use extant_format::quota::QuotaKind;
use extant_sync::threads;
use extant_testkit::require;

use super::edit::tests::assert_sound;
use super::*;
use crate::alloc::{BlockAsk, Purpose};
use crate::file::Fallocate;
use crate::fs::Fs;
use crate::namei::NewInode;
use crate::node::Node;
use crate::quota::QuotaLimits;
use crate::test_images::Image;
use crate::txn::Txn;

const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "1024", "-O", "bigalloc,quota", "-C", "8192"],
];

/// File blocks that the random changes are about.
const SPAN: u64 = 6000;

type Model = BTreeMap<u32, MappingKind>;

struct File {
    fs: Fs,
    node: Arc<Node>,
    model: Model,
    ratio: u64,
}

impl File {
    fn begin(&self) -> Txn<'_> {
        Txn::begin(self.fs.volume(), 200).unwrap()
    }

    /// Maps the holes of a range, in runs as the allocator gives them.
    fn fill(&mut self, range: Range<u64>, state: ExtentState) {
        // Whole clusters of which nothing is mapped, so that no run has to share one.
        let mut at = range.start / self.ratio * self.ratio;
        while at < range.end {
            let is_free = |at: u64, model: &Model| {
                let cluster = at as u32..(at + self.ratio) as u32;
                model.range(cluster).next().is_none()
            };
            let mut len = 0;
            while at + len < range.end && is_free(at + len, &self.model) {
                len += self.ratio;
            }
            if len == 0 {
                at += self.ratio;
                continue;
            }
            let mut txn = Txn::begin(self.fs.volume(), 200).unwrap();
            let goal = FsBlock(self.fs.volume().goal_of(self.node.ino()).unwrap().0 + at);
            let ask = BlockAsk {
                goal,
                len: len as u32,
                min: 1,
                purpose: Purpose::Data,
                continues: false,
            };
            let run = txn.allocate(&self.node, &ask).unwrap();
            let len = u64::from(run.len).min(len);
            let (file_start, device_start) = (FileBlock(at as u32), run.start);
            let extent = Extent { file_start, device_start, len: BlockCount(len as u32), state };
            insert_run(&mut txn, &self.node, extent).unwrap();
            for into in 0..len {
                self.model.insert((at + into) as u32, kind(run.start.0 + into, state));
            }
            at += len;
        }
    }

    fn convert(&mut self, range: Range<u64>, to: ExtentState) {
        let mut at = range.start;
        loop {
            let mut txn = self.begin();
            let step = convert_range(&mut txn, &self.node, at..range.end, to).unwrap();
            if step.done {
                break;
            }
            assert!(step.end > at);
            at = step.end;
        }
        for (_, found) in self.model.range_mut(range.start as u32..range.end as u32) {
            if let MappingKind::Mapped(at) | MappingKind::Unwritten(at) = *found {
                *found = kind(at.0, to);
            }
        }
    }

    fn punch(&mut self, range: Range<u64>) {
        let mut txn = self.begin();
        remove(&mut txn, &self.fs, &self.node, range.clone(), Purpose::Data).unwrap();
        drop(txn);
        self.model.retain(|block, _| !range.contains(&u64::from(*block)));
    }

    fn collapse(&mut self, range: Range<u64>) {
        self.punch(range.clone());
        let by = range.end - range.start;
        let mut at = range.end;
        loop {
            let mut txn = self.begin();
            let step = shift_down(&mut txn, &self.node, at, BlockCount(by as u32)).unwrap();
            if step.done {
                break;
            }
            at = step.end;
        }
        let moved = |(block, kind): (&u32, &MappingKind)| match u64::from(*block) {
            block if block < range.start => (block as u32, *kind),
            block => ((block - by) as u32, *kind),
        };
        self.model = self.model.iter().map(moved).collect();
    }

    fn insert(&mut self, range: Range<u64>) {
        let by = range.end - range.start;
        split_at(&mut self.begin(), &self.node, FileBlock(range.start as u32)).unwrap();
        let mut end = FILE_BLOCKS_END;
        loop {
            let mut txn = self.begin();
            let by = BlockCount(by as u32);
            let step = shift_up(&mut txn, &self.node, (range.start, end), by).unwrap();
            if step.done {
                break;
            }
            end = step.end;
        }
        let moved = |(block, kind): (&u32, &MappingKind)| match u64::from(*block) {
            block if block < range.start => (block as u32, *kind),
            block => ((block + by) as u32, *kind),
        };
        self.model = self.model.iter().map(moved).collect();
    }

    /// Compares the map, and what lookups in the middle of it say.
    #[track_caller]
    fn check(&self, random: &mut Prng, what: &str) {
        let mut found = Model::new();
        let mut at = 0;
        while at < FILE_BLOCKS_END {
            let run = lookup(&self.fs, &self.node, at, FILE_BLOCKS_END).unwrap();
            assert_eq!(u64::from(run.file_start.0), at);
            put(&mut found, &run);
            at = run.file_end();
        }
        assert_eq!(found, self.model, "{what}");
        let view = self.fs.view(&self.node);
        for _ in 0..20 {
            let at = random.below(SPAN);
            let end = at + 1 + random.below(300);
            let run = lookup(&self.fs, &self.node, at, end).unwrap();
            let expected = Cursor::new(&view).run(&view, at, end).unwrap();
            assert_eq!(run, expected, "{what}, {at}..{end}");
        }
    }

    fn set_size(&self) {
        let last = self.model.keys().next_back().map_or(0, |last| u64::from(*last) + 1);
        let size = last << self.fs.volume().block_size().log2();
        self.begin().update(&self.node, |data| data.record.size = size).unwrap();
    }
}

fn kind(at: u64, state: ExtentState) -> MappingKind {
    match state {
        ExtentState::Written => MappingKind::Mapped(FsBlock(at)),
        ExtentState::Unwritten => MappingKind::Unwritten(FsBlock(at)),
    }
}

fn put(model: &mut Model, run: &Mapping) {
    for into in 0..run.len {
        let kind = match run.kind {
            MappingKind::Mapped(start) => MappingKind::Mapped(FsBlock(start.0 + into)),
            MappingKind::Unwritten(start) => MappingKind::Unwritten(FsBlock(start.0 + into)),
            _ => return,
        };
        model.insert(run.file_start.0 + into as u32, kind);
    }
}

fn new_file(image: &Image) -> File {
    let fs = image.open();
    let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
    let node = Arc::clone(file.node());
    let ratio = u64::from(fs.volume().superblock().cluster_ratio());
    File { fs, node, model: Model::new(), ratio }
}

#[test]
fn random_ranges_of_a_file_equal_a_map_of_blocks_and_e2fsck_agrees() {
    for (number, layout) in LAYOUTS.iter().enumerate() {
        let image = require!(Image::make("48M", layout, ""));
        let mut random = Prng::new(77 + number as u64);
        let mut file = new_file(&image);
        let node = Arc::clone(&file.node);
        let content = node.content.write();
        for step in 0..600 {
            let start = random.below(SPAN);
            let longest = if random.one_in(5) { 900 } else { 40 };
            let range = start..start + 1 + random.below(longest);
            let state = match random.one_in(2) {
                true => ExtentState::Written,
                false => ExtentState::Unwritten,
            };
            let in_clusters = start / file.ratio * file.ratio
                ..(start + range.end % 90) / file.ratio * file.ratio + file.ratio;
            match random.below(8) {
                0..=2 => file.fill(range, state),
                3..=5 => file.convert(range, state),
                6 if random.one_in(3) => file.punch(range),
                7 if random.one_in(3) => file.collapse(in_clusters),
                _ if random.one_in(3) => file.insert(in_clusters),
                _ => file.convert(start..start + 1, state),
            }
            // Behind the span nothing is looked for, but the space would run out.
            if step % 40 == 0 {
                file.punch(SPAN..FILE_BLOCKS_END);
                file.check(&mut random, &format!("{layout:?}, step {step}"));
            }
        }
        file.set_size();
        file.check(&mut random, &format!("{layout:?}"));
        drop(content);
        drop(node);
        let File { fs, node, .. } = file;
        drop(node);
        fs.unmount().unwrap();
        assert_sound(&image);
    }
}

#[test]
fn holes_punched_into_a_file_of_pointers_leave_the_rest() {
    for layout in [&["-t", "ext3", "-b", "1024"], &["-t", "ext2", "-b", "4096"]] {
        let image = require!(Image::make("48M", layout, ""));
        let mut random = Prng::new(5);
        let mut file = new_file(&image);
        let node = Arc::clone(&file.node);
        let content = node.content.write();
        for _ in 0..150 {
            let start = random.below(SPAN);
            let range = start..start + 1 + random.below(500);
            match random.one_in(2) {
                true => file.fill(range, ExtentState::Written),
                false => file.punch(range),
            }
        }
        file.convert(0..SPAN, ExtentState::Written);
        file.set_size();
        file.check(&mut random, &format!("{layout:?}"));
        drop(content);
        drop(node);
        let File { fs, node, .. } = file;
        drop(node);
        fs.unmount().unwrap();
        assert_sound(&image);
    }
}

#[test]
fn publishing_a_batch_stays_within_its_credits() {
    for layout in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext3", "-b", "1024"]] {
        let image = require!(Image::make("64M", layout, ""));
        let file = new_file(&image);
        let _content = file.node.content.write();
        let volume = file.fs.volume();
        for batch in 0..40u32 {
            let mut runs = Vec::new();
            let mut txn = file.begin();
            for number in 0..50 {
                let goal = FsBlock(2000 + u64::from(batch * 50 + number) * 8);
                let ask =
                    BlockAsk { goal, len: 2, min: 1, purpose: Purpose::Data, continues: false };
                runs.push(txn.allocate(&file.node, &ask).unwrap());
            }
            drop(txn);
            let credits = publish_credits(volume, &file.node, runs.len(), 100);
            let mut txn = Txn::begin(volume, credits).unwrap();
            for (number, run) in runs.iter().enumerate() {
                let at = 4 * (batch + 40 * number as u32);
                let (file_start, state) = (FileBlock(at), ExtentState::Written);
                let (device_start, len) = (run.start, BlockCount(run.len));
                let extent = Extent { file_start, device_start, len, state };
                insert_run(&mut txn, &file.node, extent).unwrap();
                // With fewer, a change of the map asks the journal for more.
                assert!(txn.credits_left() >= 24, "{layout:?}: {} left", txn.credits_left());
            }
        }
    }
}

#[test]
fn converting_a_batch_stays_within_its_credits() {
    let image = require!(Image::make("64M", &["-t", "ext4", "-b", "1024"], ""));
    let mut file = new_file(&image);
    let node = Arc::clone(&file.node);
    let content = node.content.write();
    file.fill(0..30_000, ExtentState::Unwritten);
    for batch in 0..40 {
        let credits = publish_credits(file.fs.volume(), &node, 50, 100);
        let mut txn = Txn::begin(file.fs.volume(), credits).unwrap();
        for number in 0..50 {
            let at = 12 * batch + 600 * number;
            let done = convert_range(&mut txn, &node, at..at + 2, ExtentState::Written).unwrap();
            assert!(done.done);
            assert!(txn.credits_left() >= CONVERT_STEP_CREDITS, "{} left", txn.credits_left());
        }
        drop(txn);
        for number in 0..50 {
            let at = 12 * batch as u32 + 600 * number;
            for (_, found) in file.model.range_mut(at..at + 2) {
                if let MappingKind::Unwritten(block) = *found {
                    *found = MappingKind::Mapped(block);
                }
            }
        }
    }
    let root = node.with(|data| data.record.block);
    assert!(extent::Node::decode_root(&root).unwrap().depth() >= 2);
    file.check(&mut Prng::new(3), "batches");
    drop(content);
}

#[test]
fn without_room_for_a_node_a_conversion_changes_nothing() {
    let image = require!(Image::make("4M", &["-t", "ext4", "-b", "1024", "-m", "0"], ""));
    let mut file = new_file(&image);
    let node = Arc::clone(&file.node);
    let content = node.content.write();
    // A root that is full: the next cut needs a node.
    file.fill(0..40, ExtentState::Unwritten);
    file.convert(10..11, ExtentState::Written);
    file.convert(39..40, ExtentState::Written);
    let root = node.with(|data| data.record.block);
    assert_eq!(extent::Node::decode_root(&root).unwrap().header().entries, 4);
    let mut txn = file.begin();
    loop {
        let ask = BlockAsk {
            goal: FsBlock(1),
            len: 64,
            min: 1,
            purpose: Purpose::Data,
            continues: false,
        };
        // What is kept for this very case, too.
        if txn.rescue(|txn| txn.allocate(&node, &ask)).is_err() {
            break;
        }
    }
    let converted = convert_range(&mut txn, &node, 20..21, ExtentState::Written);
    assert!(matches!(converted, Err(FsError::NoSpace { .. })), "{converted:?}");
    drop(txn);
    assert_eq!(node.with(|data| data.record.block), root);
    file.check(&mut Prng::new(1), "P7");
    drop(content);
}

#[test]
fn publishing_goes_over_a_quota_and_nothing_else_does() {
    let options = ["-t", "ext4", "-b", "1024", "-O", "quota", "-E", "quotatype=usrquota"];
    let image = require!(Image::make("16M", &options, ""));
    let mut file = new_file(&image);
    let owner = NewInode { permissions: 0o644, uid: 5, gid: 0 };
    file.node = Arc::clone(file.fs.root().unwrap().create("owned", &owner).unwrap().node());
    let node = Arc::clone(&file.node);
    let content = node.content.write();
    file.fill(0..40, ExtentState::Unwritten);
    file.convert(10..11, ExtentState::Written);
    file.convert(39..40, ExtentState::Written);
    let kib = node.with(|data| data.record.sectors) / 2;
    let limits = QuotaLimits { space_hard_kib: kib, ..QuotaLimits::default() };
    file.fs.set_quota_limits(QuotaKind::User, 5, &limits).unwrap();
    // The root is full: both need a node.
    let zeroed = convert_range(&mut file.begin(), &node, 39..40, ExtentState::Unwritten);
    assert!(zeroed.unwrap().done, "joining needs none");
    file.convert(39..40, ExtentState::Written);
    let split = split_at(&mut file.begin(), &node, FileBlock(5));
    assert!(matches!(split, Err(FsError::QuotaExceeded { .. })), "{split:?}");
    file.convert(39..40, ExtentState::Written);
    file.convert(20..21, ExtentState::Written);
    assert_eq!(node.with(|data| data.record.sectors) / 2, kib + 1);
    file.check(&mut Prng::new(1), "quota");
    file.set_size();
    drop(content);
    drop(node);
    let File { fs, node, .. } = file;
    drop(node);
    fs.unmount().unwrap();
    assert_sound(&image);
}

#[test]
fn a_step_through_a_map_waits_for_a_publication() {
    let image = require!(Image::make("8M", &["-t", "ext4", "-b", "1024"], ""));
    let fs = image.open();
    fs.write("/file", vec![1; 9 << 10]).unwrap();
    let file = fs.resolve("/file").unwrap();
    let state = file.node().file_in_use().expect("it was written to");
    let (tells, told) = threads::channel(1);
    // As whoever changes the tree has it.
    let publishing = state.map.write();
    threads::scope(|scope| {
        let steps = || {
            let runs: Vec<_> = file.map(0..9).collect::<Result<_>>().unwrap();
            tells.send(runs).unwrap();
        };
        scope.spawn("steps", steps).unwrap();
        // Time enough to look at a tree that is being changed.
        assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "it did not wait");
        drop(publishing);
        let runs = told.recv().unwrap();
        assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), 9);
    })
    .unwrap();
    drop(file);
    fs.unmount().unwrap();
}

#[test]
fn who_looks_at_the_map_of_a_file_that_nobody_used_has_its_lock() {
    let image = require!(Image::make("8M", &["-t", "ext4", "-b", "1024"], ""));
    let fs = image.open();
    fs.write("/file", vec![1; 9 << 10]).unwrap();
    fs.sync().unwrap();
    let looks: [fn(&Inode); 2] = [
        |file| assert!(file.map(0..9).next().unwrap().is_ok()),
        |file| assert_eq!(file.fiemap(0..9 << 10, 1, false).unwrap().len(), 1),
    ];
    for look in looks {
        fs.drop_cached_metadata();
        let file = fs.resolve("/file").unwrap();
        assert!(file.node().file_in_use().is_none(), "it has left memory");
        look(&file);
        assert!(file.node().file_in_use().is_some(), "its map was looked at without its lock");
    }
    fs.unmount().unwrap();
}

#[test]
fn changes_of_a_map_wait_for_whoever_looks_at_it() {
    let image = require!(Image::make("8M", &["-t", "ext4", "-b", "1024"], ""));
    let fs = image.open();
    fs.write("/file", vec![1; 40 << 10]).unwrap();
    let file = fs.resolve("/file").unwrap();
    file.sync().unwrap();
    let node = file.node();
    let state = node.file_in_use().expect("it was written to");
    let begin = || Txn::begin(fs.volume(), 100).unwrap();
    let (end, by) = (FILE_BLOCKS_END, BlockCount(4));
    let keep_size = true;
    let changes: [(&str, &(dyn Fn() + Sync)); 5] = [
        ("split", &|| split_at(&mut begin(), node, FileBlock(10)).unwrap()),
        ("shift up", &|| assert!(shift_up(&mut begin(), node, (10, end), by).unwrap().done)),
        ("shift down", &|| assert!(shift_down(&mut begin(), node, 14, by).unwrap().done)),
        ("remove", &|| remove(&mut begin(), &fs, node, 20..24, Purpose::Data).unwrap()),
        ("allocate", &|| {
            file.fallocate(Fallocate::Allocate { keep_size }, 20 << 10..24 << 10).unwrap();
        }),
    ];
    for (name, change) in changes {
        let (tells, told) = threads::channel(1);
        // As whoever is about to decode a part of the tree, for itself and for others.
        let looking = state.map.read();
        threads::scope(|scope| {
            let changes = || {
                change();
                tells.send(()).unwrap();
            };
            scope.spawn(name, changes).unwrap();
            assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "{name} did not wait");
            drop(looking);
            told.recv().unwrap();
        })
        .unwrap();
    }
    drop(file);
    fs.unmount().unwrap();
    assert_sound(&image);
}
