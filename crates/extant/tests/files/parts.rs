//! Changes of a part of a file beside direct I/O in others: they wait for what is under way in their part, and for
//! nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant::{
    AlignedBuffer, DirectFile, DirectKind, DirectRequest, Fallocate, Fs, Inode, NewInode,
    QueueOptions, SetAttributes,
};
use extant_base::Prng;
use extant_block::{Operation, SharedDevice};
use extant_sync::threads::{scope, workers};
use extant_sync::{Clock, Mutex, Rank, SystemClock};
use extant_testkit::{Hooked, require};

use crate::beside::{Stalls, after_a_cut, create, make, mount};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;
/// The block with slow operations.
const SLOW: u64 = 8;
/// What is written slowly, wherever that is.
const SLOW_DATA: u8 = 0x55;

/// A place of the device where operations wait until they are let go.
struct Gate {
    /// Address of the place, in bytes; 0 for none.
    place: AtomicU64,
    stalls: Stalls,
}

impl Gate {
    fn new() -> Gate {
        Gate { place: AtomicU64::new(0), stalls: Stalls::new() }
    }

    fn stall_at(&self, place: u64) {
        self.stalls.renew();
        self.place.store(place, Ordering::SeqCst);
    }

    fn let_go(&self) {
        self.place.store(0, Ordering::SeqCst);
        self.stalls.let_go();
    }
}

fn stall(gate: &Gate, batch: &[Operation]) {
    let place = gate.place.load(Ordering::SeqCst);
    let is_slow = |operation: &Operation| match operation {
        Operation::Write { buffer, .. } if buffer.iter().all(|byte| *byte == SLOW_DATA) => true,
        Operation::Write { offset, buffer, .. } | Operation::Read { offset, buffer } => {
            (*offset..*offset + buffer.len() as u64).contains(&place)
        }
        _ => false,
    };
    if place != 0 && batch.iter().any(is_slow) {
        gate.stalls.hold_up();
    }
}

fn filled(value: u8, len: u64) -> AlignedBuffer {
    let mut bytes = AlignedBuffer::zeroed(len as usize);
    bytes.fill(value);
    bytes
}

/// A file with data everywhere, of which nothing is cached.
fn stored(fs: &Fs, file: &DirectFile) {
    for block in 0..BLOCKS {
        file.write_at(&filled(block as u8 | 1, BLOCK), block * BLOCK).unwrap();
    }
    file.inode().sync().unwrap();
    fs.drop_cached();
}

fn address(inode: &Inode, block: u64) -> u64 {
    inode.fiemap(block * BLOCK..(block + 1) * BLOCK, 1, false).unwrap()[0].physical
}

type Named<F> = (&'static str, F);

/// What may be under way: a direct read or write of the slow block, by a call or among others of a batch.
const UNDER_WAY: [Named<fn(&DirectFile)>; 9] = [
    ("read", |file| {
        let mut seen = AlignedBuffer::zeroed(BLOCK as usize);
        assert_eq!(file.read_at(&mut seen, SLOW * BLOCK).unwrap() as u64, BLOCK);
    }),
    ("overwrite", |file| {
        assert_eq!(file.write_at(&filled(0x77, BLOCK), SLOW * BLOCK).unwrap() as u64, BLOCK);
    }),
    ("batch of reads", |file| batch(file, DirectKind::Read)),
    ("batch of overwrites", |file| batch(file, DirectKind::Write { synced: false })),
    ("write into a hole", |file| {
        file.inode().fallocate(Fallocate::PunchHole, around()).unwrap();
        write_slowly(file);
    }),
    ("first data", |file| {
        file.inode().fallocate(Fallocate::ZeroRange { keep_size: true }, around()).unwrap();
        write_slowly(file);
    }),
    ("write over all kinds", |file| {
        file.inode().fallocate(Fallocate::PunchHole, SLOW * BLOCK..(SLOW + 1) * BLOCK).unwrap();
        let zeroed = (SLOW + 1) * BLOCK..(SLOW + 2) * BLOCK;
        file.inode().fallocate(Fallocate::ZeroRange { keep_size: true }, zeroed).unwrap();
        let bytes = filled(SLOW_DATA, 4 * BLOCK);
        assert_eq!(file.write_at(&bytes, (SLOW - 1) * BLOCK).unwrap() as u64, 4 * BLOCK);
    }),
    ("batch into a hole", |file| {
        file.inode().fallocate(Fallocate::PunchHole, around()).unwrap();
        batch(file, DirectKind::Write { synced: false });
    }),
    ("batch of first data", |file| {
        file.inode().fallocate(Fallocate::ZeroRange { keep_size: true }, around()).unwrap();
        batch(file, DirectKind::Write { synced: true });
    }),
];

/// The slow block and a few others.
fn around() -> std::ops::Range<u64> {
    (SLOW - 4) * BLOCK..(SLOW + 4) * BLOCK
}

fn write_slowly(file: &DirectFile) {
    let bytes = filled(SLOW_DATA, BLOCK);
    assert_eq!(file.write_at(&bytes, SLOW * BLOCK).unwrap() as u64, BLOCK);
}

fn batch(file: &DirectFile, kind: DirectKind) {
    let mut queue = file.queue(&QueueOptions::default().depth(2));
    let request = |block| {
        let value = if block == SLOW { SLOW_DATA } else { 0x77 };
        DirectRequest { kind, offset: block * BLOCK, buffer: filled(value, BLOCK) }
    };
    for done in queue.run((SLOW - 4..SLOW + 4).map(request).collect()) {
        // What was not under way yet may meet the new end of the file.
        let len = done.result.unwrap() as u64;
        assert!(len == BLOCK || (len < BLOCK && kind == DirectKind::Read), "{len}");
    }
}

/// Changes that concern other blocks than those of [`UNDER_WAY`].
const ELSEWHERE: [Named<fn(&Inode)>; 8] = [
    ("punch behind", |inode| {
        inode.fallocate(Fallocate::PunchHole, 20 * BLOCK + 100..24 * BLOCK + 7).unwrap();
    }),
    ("punch before", |inode| inode.fallocate(Fallocate::PunchHole, 100..BLOCK).unwrap()),
    ("zero range", |inode| {
        inode.fallocate(Fallocate::ZeroRange { keep_size: true }, 30 * BLOCK..32 * BLOCK).unwrap();
    }),
    ("write zeroes", |inode| {
        inode.fallocate(Fallocate::WriteZeroes, 34 * BLOCK..36 * BLOCK).unwrap();
    }),
    ("allocate", |inode| {
        inode.fallocate(Fallocate::Allocate { keep_size: false }, 60 * BLOCK..70 * BLOCK).unwrap();
    }),
    ("cut off", |inode| inode.truncate(50 * BLOCK + 1).unwrap()),
    ("grow", |inode| inode.truncate(BLOCKS * BLOCK).unwrap()),
    ("permissions", |inode| {
        inode.set_attributes(&SetAttributes::new().permissions(0o600)).unwrap();
    }),
];

/// Changes that concern the slow block, some of them a byte of it, or all of the file.
const THERE: [Named<fn(&Inode)>; 7] = [
    ("punch", |inode| {
        inode.fallocate(Fallocate::PunchHole, SLOW * BLOCK..(SLOW + 1) * BLOCK).unwrap();
    }),
    ("punch its last byte", |inode| {
        inode.fallocate(Fallocate::PunchHole, (SLOW + 1) * BLOCK - 1..(SLOW + 9) * BLOCK).unwrap();
    }),
    ("zero its first byte", |inode| {
        let how = Fallocate::ZeroRange { keep_size: true };
        inode.fallocate(how, SLOW * BLOCK - 5..SLOW * BLOCK + 1).unwrap();
    }),
    ("cut off", |inode| inode.truncate(SLOW * BLOCK).unwrap()),
    ("cut through it", |inode| inode.truncate(SLOW * BLOCK + 1000).unwrap()),
    // Its blocks are charged to another one then.
    ("owner", |inode| inode.set_attributes(&SetAttributes::new().owner(Some(7), None)).unwrap()),
    ("move", |inode| inode.fallocate(Fallocate::CollapseRange, 0..BLOCK).unwrap()),
];

#[test]
fn a_change_waits_for_direct_io_in_its_part_of_the_file_and_for_no_other() {
    let run = || {
        let device = Hooked::over(make("32M", &["-t", "ext4", "-b", "4096"])?, Gate::new(), stall);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        for (name, operation) in UNDER_WAY {
            for (there, change) in THERE {
                let file = create(&fs);
                stored(&fs, &file);
                device.state.stall_at(address(file.inode(), SLOW));
                let has_ended = AtomicBool::new(false);
                scope(|threads| {
                    let slow = threads.spawn("slow", || operation(&file)).unwrap();
                    if !device.state.stalls.waits_soon() {
                        device.state.let_go();
                        panic!("{name}, {there}: {:?}", slow.join());
                    }
                    // Each of these would wait for ever.
                    for (elsewhere, change) in ELSEWHERE {
                        if there == THERE[0].0 || elsewhere == ELSEWHERE[0].0 {
                            change(file.inode());
                        }
                    }
                    let changes = threads.spawn("changes", || {
                        change(file.inode());
                        has_ended.store(true, Ordering::SeqCst);
                    });
                    let changes = changes.unwrap();
                    SystemClock.sleep(Duration::from_millis(10));
                    let has_waited = !has_ended.load(Ordering::SeqCst);
                    device.state.let_go();
                    slow.join().unwrap();
                    changes.join().unwrap();
                    assert!(has_waited, "{name}: {there}");
                })
                .unwrap();
                let found = file.inode().read_all().unwrap();
                file.inode().sync().unwrap();
                assert!(after_a_cut(&device.below)? == found, "{name}, {there}");
                drop(file);
                fs.remove_file("/file").unwrap();
            }
        }
        fs.write("/file", [1]).unwrap();
        fs.unmount().unwrap();
        after_a_cut(&device.below).map(drop)
    };
    require!(run());
}

/// Contents of the file under test, and a bit of all contents of the other.
const OURS: u8 = 0x40;
const THEIRS: u8 = 0x80;
const LONG: Duration = Duration::from_millis(10);

/// Some writes of the file take so long that blocks can come free and be used again meanwhile.
fn dawdle(random: &Mutex<Prng>, batch: &[Operation]) {
    let is_ours = |operation: &Operation| match operation {
        Operation::Write { buffer, .. } => buffer.iter().all(|byte| *byte == OURS),
        _ => false,
    };
    let is_slow = batch.iter().any(is_ours) && random.lock().one_in(4);
    if is_slow {
        SystemClock.sleep(LONG);
    }
}

/// Ends the others with the first that ends, also with one that fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads read and overwrite a file past the cache where others punch it and cut it off, and another file takes the
/// blocks that come free: nothing is written there that does not belong to it, and no reader sees what does.
#[test]
fn blocks_that_come_free_under_direct_io_are_nobody_elses_before_it_has_ended() {
    let run = || {
        let random = Mutex::new(Rank::Leaf, Prng::new(3));
        // So full that blocks are used again at once.
        let device = Hooked::over(make("4M", &["-t", "ext4", "-b", "1024"])?, random, dawdle);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = create(&fs);
        let size = 256 * BLOCK;
        file.write_at(&filled(OURS, size), 0).unwrap();
        let room = fs.statfs().unwrap().blocks_free * 1024 - 60 * BLOCK;
        fs.write("/filler", vec![1; room as usize]).unwrap();
        fs.sync().unwrap();
        let other = fs.create("/other", &NewInode::root(0o644)).unwrap();
        let is_over = AtomicBool::new(false);
        workers("worker", 4, |own| {
            let _ends = Ends(&is_over);
            let mut random = Prng::new(own as u64);
            let mut queue = file.queue(&QueueOptions::default().depth(4));
            for round in 0..u64::MAX {
                if is_over.load(Ordering::Relaxed) || (own == 0 && round == 150) {
                    break;
                }
                let block = random.below(200);
                let (at, len) = (block * BLOCK, (1 + random.below(6)) * BLOCK);
                match own {
                    // Takes blocks and gives them back.
                    0 => {
                        let value = THEIRS | random.below(64) as u8;
                        let bytes = vec![value; BLOCK as usize];
                        // All that is free.
                        let mut end = 0;
                        while end < size
                            && let Ok(len) = other.write_at(&bytes, end)
                        {
                            end += len as u64;
                        }
                        if other.sync_data().is_ok() {
                            // What is under way somewhere has arrived.
                            SystemClock.sleep(LONG);
                            fs.drop_cached();
                            let found = other.read_all().unwrap();
                            assert!(found.iter().all(|byte| byte & THEIRS != 0), "round {round}");
                        }
                        other.truncate(0).unwrap();
                    }
                    1 => match random.below(4) {
                        0 => {
                            file.inode().truncate(at).unwrap();
                            file.inode().truncate(size).unwrap();
                        }
                        // Where there is no room, nothing is put there.
                        1 => drop(file.write_at(&filled(OURS, 8 * len), at)),
                        _ => {
                            let how = Fallocate::PunchHole;
                            file.inode().fallocate(how, at..at + 8 * len).unwrap();
                        }
                    },
                    _ => {
                        let is_read = random.one_in(2);
                        let kind = match is_read {
                            true => DirectKind::Read,
                            false => DirectKind::Write { synced: false },
                        };
                        let request = |step| DirectRequest {
                            kind,
                            offset: at + step * BLOCK,
                            buffer: filled(OURS, BLOCK),
                        };
                        for done in queue.run((0..4).map(request).collect()) {
                            let seen = &done.request.buffer;
                            if let (true, Ok(len)) = (is_read, done.result) {
                                let is_ours = |byte: &u8| *byte == 0 || *byte == OURS;
                                assert!(seen[..len].iter().all(is_ours), "round {round}");
                            }
                        }
                    }
                }
            }
        })
        .unwrap();
        fs.sync().unwrap();
        let found = file.inode().read_all().unwrap();
        assert!(found.iter().all(|byte| *byte == 0 || *byte == OURS));
        drop((file, other));
        fs.unmount().unwrap();
        let after = after_a_cut(&device.below)?;
        assert!(after == found);
        Ok::<_, String>(())
    };
    require!(run());
}
