//! What a cut of power may leave of direct operations of a ring.

use std::sync::Arc;

use extant::ring::{Op, Ring};
use extant::{AlignedBuffer, Fallocate, Inode};
use extant_base::Prng;
use extant_block::{MemoryDevice, RecordingDevice, SharedDevice, Survival};
use extant_testkit::lasting::Lasting;
use extant_testkit::require;

use crate::support::{BLOCK, cold, file, finish, made, mount, submit, write};

const BLOCKS: usize = 24;
const UNIT: usize = 512;
/// What blocks hold that nobody has.
const OLD: u8 = 0xA5;

/// What each block of a file has held, one byte everywhere, and when how much of that was durable.
struct History {
    had: Vec<Vec<u8>>,
    /// The device's clock, and for each block the first of what a cut may leave from then on.
    synced: Vec<(usize, Vec<usize>)>,
}

impl History {
    fn new() -> History {
        History { had: vec![vec![0]; BLOCKS], synced: vec![(0, vec![0; BLOCKS])] }
    }

    fn put(&mut self, blocks: std::ops::Range<usize>, byte: u8) {
        self.had[blocks].iter_mut().for_each(|had| had.push(byte));
    }

    /// Waits for all operations, and syncs through the ring now and then.
    fn settle(&mut self, ring: &Ring, file: &Inode, device: &RecordingDevice, random: &mut Prng) {
        while let Some(done) = ring.wait() {
            done.result.unwrap();
        }
        if random.one_in(2) {
            let before = self.had.iter().map(|had| had.len() - 1).collect();
            let op = if random.one_in(2) { Op::Sync } else { Op::SyncData };
            let done = submit(ring, 0, file, op).or_else(|| ring.wait()).unwrap();
            done.result.unwrap();
            self.synced.push((device.len(), before));
        }
    }

    /// Cuts the power at some moments, and looks at what is left.
    fn cut(&self, device: &RecordingDevice, random: &mut Prng, times: usize) {
        for _ in 0..times {
            let at = random.below(device.len() as u64 + 1) as usize;
            let mut dice = Prng::new(random.next_u64());
            let left: Arc<MemoryDevice> =
                Arc::new(device.image_at(at, |_, _| match dice.below(3) {
                    0 => Survival::Lost,
                    _ => Survival::Kept,
                }));
            let fs = mount(Arc::clone(&left) as SharedDevice);
            let mut found = fs.read("/stored").unwrap();
            assert!(found.len() <= BLOCKS * BLOCK && found.len().is_multiple_of(BLOCK));
            found.resize(BLOCKS * BLOCK, 0);
            let (_, least) = self.synced.iter().rfind(|(when, _)| *when <= at).unwrap();
            for (block, had) in self.had.iter().enumerate() {
                let may_be = &had[least[block]..];
                for unit in found[block * BLOCK..(block + 1) * BLOCK].chunks(UNIT) {
                    let is_one = unit.iter().all(|byte| *byte == unit[0]);
                    assert!(
                        is_one && may_be.contains(&unit[0]),
                        "cut at {at} of {}, block {block}: {} of {may_be:?}",
                        device.len(),
                        unit[0]
                    );
                }
            }
            match dice.one_in(4) {
                true => finish(fs, &left),
                false => fs.unmount().unwrap(),
            }
        }
    }
}

fn store(blocks: &std::ops::Range<usize>, byte: u8) -> Op {
    let mut buffer = AlignedBuffer::zeroed(blocks.len() * BLOCK);
    buffer.fill(byte);
    Op::WriteDirect { offset: (blocks.start * BLOCK) as u64, buffer, synced: false }
}

/// An image whose free blocks hold something, with an empty file or one of zeros.
fn image(len: usize) -> Result<Arc<MemoryDevice>, String> {
    let image = made("16M")?;
    let fs = mount(Arc::clone(&image) as SharedDevice);
    let filler = file(&fs, "filler");
    filler.write_at(&vec![OLD; 10 << 20], 0).unwrap();
    fs.sync().unwrap();
    drop(filler);
    fs.root().unwrap().unlink("filler").unwrap();
    fs.tick().unwrap();
    fs.sync().unwrap();
    drop(cold(&fs, "stored", &vec![0; len]));
    fs.unmount().unwrap();
    Ok(image)
}

/// Overwrites whose results were taken, and a sync through the ring that came after: whenever the
/// power goes, each block holds what it held at the last such sync, or something later.
#[test]
fn what_was_synced_through_a_ring_survives_a_cut_at_any_moment() {
    let image = require!(image(BLOCKS * BLOCK));
    let mut lane = 0;
    for seed in 0..4 {
        let mut random = Prng::new(seed);
        let device = Arc::new(RecordingDevice::over(image.snapshot()));
        let fs = mount(Arc::new(Lasting::over(Arc::clone(&device), seed)) as SharedDevice);
        let stored = fs.resolve("/stored").unwrap();
        stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
        let ring = fs.ring(16).unwrap();
        let mut history = History::new();
        for turn in 1..=40u8 {
            let first = random.below(BLOCKS as u64) as usize;
            let count = 1 + random.below(12) as usize;
            for block in (0..count).map(|at| (first + at * 5) % BLOCKS) {
                history.put(block..block + 1, turn);
                let op = match random.below(8) {
                    0 => write((block * BLOCK) as u64, [turn; BLOCK]),
                    _ => store(&(block..block + 1), turn),
                };
                if let Some(done) = submit(&ring, 1, &stored, op) {
                    done.result.unwrap();
                }
            }
            history.settle(&ring, &stored, &device, &mut random);
            if random.one_in(6) {
                fs.sync().unwrap();
                fs.drop_cached();
            }
        }
        lane += ring.stats().lane;
        drop((ring, stored, fs));
        history.cut(&device, &mut random, 20);
    }
    assert!(lane > 300, "{lane}");
}

/// Appends, writes into holes and space without data, truncation, punching: after a cut, no block shows what
/// it held before it was the file's.
#[test]
fn direct_writes_of_every_kind_show_nothing_old_after_a_cut() {
    let image = require!(image(0));
    let mut lane = 0;
    for seed in 0..6 {
        let mut random = Prng::new(seed);
        let device = Arc::new(RecordingDevice::over(image.snapshot()));
        let fs = mount(Arc::new(Lasting::over(Arc::clone(&device), seed)) as SharedDevice);
        let stored = fs.resolve("/stored").unwrap();
        let ring = fs.ring(16).unwrap();
        let mut history = History::new();
        for turn in 1..=60u8 {
            let first = random.below(BLOCKS as u64) as usize;
            let blocks = first..BLOCKS.min(first + 1 + random.below(4) as usize);
            let bytes = (blocks.start * BLOCK) as u64..(blocks.end * BLOCK) as u64;
            let op = match random.below(10) {
                0 => {
                    history.put(blocks.start..BLOCKS, 0);
                    Op::Truncate { size: bytes.start }
                }
                1 => {
                    history.put(blocks, 0);
                    Op::Fallocate { mode: Fallocate::PunchHole, range: bytes }
                }
                2 => Op::Fallocate { mode: Fallocate::Allocate { keep_size: true }, range: bytes },
                3 => {
                    history.put(blocks.clone(), turn);
                    write(bytes.start, vec![turn; blocks.len() * BLOCK])
                }
                _ => {
                    history.put(blocks.clone(), turn);
                    store(&blocks, turn)
                }
            };
            if let Some(done) = submit(&ring, 1, &stored, op) {
                done.result.unwrap();
            }
            history.settle(&ring, &stored, &device, &mut random);
            if random.one_in(4) {
                fs.sync().unwrap();
                fs.drop_cached();
            }
        }
        lane += ring.stats().lane;
        drop((ring, stored, fs));
        history.cut(&device, &mut random, 30);
    }
    assert!(lane > 30, "{lane}");
}
