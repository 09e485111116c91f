//! Direct writes of several threads to one file that add blocks to it: what each was told is written is there, no
//! block is lost or shared, and nobody waits for whom he does not have to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant::{AlignedBuffer, DirectFile, Fallocate, Fs, FsError, MountOptions, NewInode};
use extant_base::Prng;
use extant_block::{MemoryDevice, Operation, RecordingDevice, SharedDevice};
use extant_check::CheckOptions;
use extant_sync::threads::{scope, workers};
use extant_sync::{Clock, Condvar, FixedClock, Mutex, Rank, SystemClock};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{Hooked, image, require, tempdir};

use crate::direct_io::any_of;

const SECTOR: u64 = 512;
const WRITERS: usize = 4;

const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "1024", "-O", "quota,project"],
    &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"],
    &["-t", "ext4", "-b", "4096", "-O", "inline_data,^has_journal"],
    &["-t", "ext3", "-b", "1024"],
];

pub(crate) fn make(size: &str, arguments: &[&str]) -> Result<MemoryDevice, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, size, arguments)?;
    Ok(image::load(&path))
}

pub(crate) fn mount(device: SharedDevice) -> Fs {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    options.open_shared(device).unwrap()
}

pub(crate) fn create(fs: &Fs) -> DirectFile {
    fs.create("/file", &NewInode::root(0o644)).unwrap().direct().unwrap()
}

/// What `/file` holds for who mounts what is on the device now; both checkers find nothing there.
pub(crate) fn after_a_cut(device: &MemoryDevice) -> Result<Vec<u8>, String> {
    let device = Arc::new(device.snapshot());
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let contents = fs.read("/file").unwrap();
    fs.unmount().unwrap();
    let report = extant_check::check(&*device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    image::save(&device, &path);
    e2fsck(&path)?.assert_clean();
    Ok(contents)
}

/// Whether the image has to be ended before anybody calls it clean.
fn is_without_journal(arguments: &[&str]) -> bool {
    arguments.iter().any(|argument| argument.contains("^has_journal"))
}

/// Who writes this piece.
fn owner(piece: u64) -> usize {
    // No two neighbours have one owner, and no step of a power of two shows a pattern.
    ((piece ^ piece >> 2) % WRITERS as u64) as usize
}

#[test]
fn pieces_of_blocks_by_four_threads_are_all_there_in_every_layout() {
    let run = |arguments: &[&str]| {
        let device = Arc::new(make("48M", arguments)?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = create(&fs);
        // Half of them lies in a hole, half behind the end, preallocated where that can be.
        const PIECES: u64 = 3000;
        file.inode().truncate(PIECES / 2 * SECTOR).unwrap();
        if file.inode().uses_extents() {
            let how = Fallocate::Allocate { keep_size: true };
            file.inode().fallocate(how, PIECES / 2 * SECTOR..PIECES * SECTOR).unwrap();
        }
        workers("writer", WRITERS, |own| {
            let mut random = Prng::new(own as u64);
            let mut left: Vec<u64> = (0..PIECES).filter(|piece| owner(*piece) == own).collect();
            let mut bytes = AlignedBuffer::zeroed(SECTOR as usize);
            while !left.is_empty() {
                let piece = left.swap_remove(random.below(left.len() as u64) as usize);
                bytes.fill(piece as u8 | 1);
                // Some go through the cache, so that the others meet what is dirty, or being written back.
                let written = match random.below(8) {
                    0 => file.inode().write_at(&bytes, piece * SECTOR),
                    _ => file.write_at(&bytes, piece * SECTOR),
                };
                assert_eq!(written.unwrap(), bytes.len());
                if random.one_in(40) {
                    fs.sync().unwrap();
                }
                // What is written stays, whatever the others do to its block.
                if random.one_in(4) {
                    let mut seen = AlignedBuffer::zeroed(SECTOR as usize);
                    file.read_at(&mut seen, piece * SECTOR).unwrap();
                    assert!(seen[..] == bytes[..], "piece {piece}");
                }
            }
        })
        .unwrap();
        let wanted: Vec<u8> = (0..PIECES * SECTOR).map(|at| (at / SECTOR) as u8 | 1).collect();
        assert!(file.inode().read_all().unwrap() == wanted, "{arguments:?}");
        file.inode().sync().unwrap();
        if !is_without_journal(arguments) {
            assert!(after_a_cut(&device)? == wanted, "{arguments:?}");
        }
        // All blocks go back.
        let inode = file.inode().clone();
        inode.truncate(0).unwrap();
        assert_eq!(inode.metadata().blocks, 0, "{arguments:?}");
        drop((file, inode));
        fs.unmount().unwrap();
        after_a_cut(&device).map(drop)
    };
    for arguments in LAYOUTS {
        require!(run(arguments));
    }
}

#[test]
fn blocks_that_are_there_without_data_get_it_beside_others_with_clusters_too() {
    let run = |arguments: &[&str]| {
        let device = Arc::new(make("32M", arguments)?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = create(&fs);
        let how = Fallocate::Allocate { keep_size: false };
        file.inode().fallocate(how, 0..64 * 4096).unwrap();
        file.inode().sync().unwrap();
        let mut bytes = AlignedBuffer::zeroed(4096);
        bytes.fill(5);
        file.write_at(&bytes, 7 * 4096).unwrap();
        file.write_at(&bytes[..512], 9 * 4096 + 512).unwrap();
        let stats = fs.io_stats().unwrap();
        assert_eq!((stats.direct_conversions, stats.direct_alone_hole), (2, 0), "{arguments:?}");
        file.inode().sync().unwrap();
        let contents = after_a_cut(&device)?;
        let written: usize = contents.iter().filter(|byte| **byte == 5).count();
        assert_eq!((contents.len(), written), (64 * 4096, 4096 + 512));
        drop(file);
        fs.unmount().unwrap();
        after_a_cut(&device).map(drop)
    };
    for arguments in [LAYOUTS[0], LAYOUTS[2]] {
        require!(run(arguments));
    }
}

#[test]
fn a_file_that_is_removed_meanwhile_takes_writes_and_leaves_nothing() {
    let run = || {
        let device = Arc::new(make("32M", LAYOUTS[0])?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        fs.write("/file", [7; 10]).unwrap();
        fs.sync().unwrap();
        let free = fs.statfs().unwrap().blocks_free;
        let file = fs.create("/gone", &NewInode::root(0o644)).unwrap().direct().unwrap();
        workers("writer", WRITERS, |own| {
            let mut bytes = AlignedBuffer::zeroed(4096);
            bytes.fill(own as u8 + 1);
            for round in 0..200 {
                let block = round * WRITERS as u64 + own as u64;
                assert_eq!(file.write_at(&bytes, block * 4096).unwrap(), 4096);
                if (own, round) == (0, 100) {
                    fs.remove_file("/gone").unwrap();
                    fs.sync().unwrap();
                }
            }
        })
        .unwrap();
        assert_eq!(file.inode().size(), 200 * WRITERS as u64 * 4096);
        // A mount after a cut finishes what the last handle has not.
        assert!(after_a_cut(&device)? == [7; 10]);
        drop(file);
        fs.sync().unwrap();
        assert_eq!(fs.statfs().unwrap().blocks_free, free);
        fs.unmount().unwrap();
        after_a_cut(&device).map(drop)
    };
    require!(run());
}

#[test]
fn four_threads_that_append_take_no_exclusive_lock() {
    let run = || {
        let device = Arc::new(make("64M", LAYOUTS[0])?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = create(&fs);
        const BLOCK: u64 = 4096;
        const BLOCKS: u64 = 2000;
        let next = AtomicU64::new(0);
        workers("writer", WRITERS, |_| {
            let mut bytes = AlignedBuffer::zeroed(BLOCK as usize);
            loop {
                let block = next.fetch_add(1, Ordering::Relaxed);
                if block >= BLOCKS {
                    break;
                }
                bytes.fill(block as u8 | 1);
                assert_eq!(file.write_at(&bytes, block * BLOCK).unwrap(), bytes.len());
            }
        })
        .unwrap();
        let stats = fs.io_stats().unwrap();
        let alone: u64 = stats
            .named()
            .iter()
            .filter(|(name, _)| name.starts_with("direct_alone"))
            .map(|(_, count)| count)
            .sum();
        assert_eq!((stats.direct_fills, alone, stats.folios_made), (BLOCKS, 0, 0));
        // Though they took turns, the file lies together.
        let pieces = file.inode().fiemap(0..BLOCKS * BLOCK, 1000, true).unwrap();
        // One for each time that a thread overtook others by more than a block, and not for each block.
        assert!(pieces.len() <= 40, "{} pieces", pieces.len());
        file.inode().sync().unwrap();
        let wanted: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / BLOCK) as u8 | 1).collect();
        assert!(after_a_cut(&device)? == wanted);
        drop(file);
        fs.unmount().unwrap();
        after_a_cut(&device).map(drop)
    };
    require!(run());
}

/// Writes of nothing but this value wait until they are let go.
const STALLS: u8 = 0xEE;

/// Holds operations of a device up until they are let go.
pub(crate) struct Stalls {
    /// Whether an operation waits, or has.
    waits: AtomicBool,
    goes: Mutex<bool>,
    changed: Condvar,
}

impl Stalls {
    pub(crate) fn new() -> Stalls {
        let goes = Mutex::new(Rank::Leaf, false);
        Stalls { waits: AtomicBool::new(false), goes, changed: Condvar::new() }
    }

    /// Holds the next ones up again.
    pub(crate) fn renew(&self) {
        *self.goes.lock() = false;
        self.waits.store(false, Ordering::SeqCst);
    }

    /// What an operation does that is held up.
    pub(crate) fn hold_up(&self) {
        self.waits.store(true, Ordering::SeqCst);
        let mut goes = self.goes.lock();
        while !*goes {
            self.changed.wait(&mut goes);
        }
    }

    /// Whether an operation waits before long.
    pub(crate) fn waits_soon(&self) -> bool {
        for _ in 0..20_000 {
            if self.waits.load(Ordering::SeqCst) {
                return true;
            }
            SystemClock.sleep(Duration::from_millis(1));
        }
        false
    }

    pub(crate) fn let_go(&self) {
        *self.goes.lock() = true;
        self.changed.notify_all();
    }
}

fn stall(stalls: &Stalls, batch: &[Operation]) {
    let is_slow = |operation: &Operation| match operation {
        Operation::Write { buffer, .. } => buffer.iter().all(|byte| *byte == STALLS),
        _ => false,
    };
    if batch.iter().any(is_slow) {
        stalls.hold_up();
    }
}

#[test]
fn a_write_into_a_hole_that_the_device_takes_long_over_holds_up_nobody_but_its_blocks() {
    let run = || {
        const BLOCK: u64 = 4096;
        let device = Hooked::over(make("32M", LAYOUTS[0])?, Stalls::new(), stall);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = create(&fs);
        file.inode().truncate(64 * BLOCK).unwrap();
        let filled = |value: u8, len: u64| {
            let mut bytes = AlignedBuffer::zeroed(len as usize);
            bytes.fill(value);
            bytes
        };
        let cut = AtomicBool::new(false);
        scope(|threads| {
            let slow = threads.spawn("slow", || file.write_at(&filled(STALLS, BLOCK), 8 * BLOCK));
            let slow = slow.unwrap();
            assert!(device.state.waits_soon());
            // All of these would wait for it if it had the file alone.
            file.write_at(&filled(2, BLOCK), 9 * BLOCK).unwrap();
            file.write_at(&filled(3, SECTOR), 20 * BLOCK + SECTOR).unwrap();
            file.write_at(&filled(4, 2 * BLOCK), 64 * BLOCK).unwrap();
            assert_eq!(file.inode().size(), 66 * BLOCK);
            let mut seen = AlignedBuffer::zeroed(BLOCK as usize);
            file.read_at(&mut seen, 9 * BLOCK).unwrap();
            assert!(seen.iter().all(|byte| *byte == 2));
            // What it writes is not there yet, and neither is anything else.
            file.read_at(&mut seen, 8 * BLOCK).unwrap();
            assert!(seen.iter().all(|byte| *byte == 0));
            file.inode().sync().unwrap();
            // Its own block is its own until then.
            let same = threads.spawn("same", || file.write_at(&filled(5, SECTOR), 8 * BLOCK));
            let same = same.unwrap();
            SystemClock.sleep(Duration::from_millis(30));
            // Nor does whoever waits for the block hold up those who want another part of the file alone.
            let cuts = threads.spawn("cuts", || {
                file.inode().truncate(65 * BLOCK).unwrap();
                file.inode()
                    .fallocate(Fallocate::Allocate { keep_size: true }, 30 * BLOCK..31 * BLOCK)
                    .unwrap();
                cut.store(true, Ordering::SeqCst);
            });
            let cuts = cuts.unwrap();
            for _ in 0..10_000 {
                if cut.load(Ordering::SeqCst) {
                    break;
                }
                SystemClock.sleep(Duration::from_millis(1));
            }
            let was_cut = cut.load(Ordering::SeqCst);
            device.state.let_go();
            assert_eq!(slow.join().unwrap().unwrap() as u64, BLOCK);
            assert_eq!(same.join().unwrap().unwrap() as u64, SECTOR);
            cuts.join().unwrap();
            assert!(was_cut, "it has waited for a writer of another part that waits for a third");
        })
        .unwrap();
        let mut wanted = vec![0; 65 * BLOCK as usize];
        let mut put = |value: u8, at: u64, len: u64| {
            wanted[at as usize..(at + len) as usize].fill(value);
        };
        put(STALLS, 8 * BLOCK, BLOCK);
        put(5, 8 * BLOCK, SECTOR);
        put(2, 9 * BLOCK, BLOCK);
        put(3, 20 * BLOCK + SECTOR, SECTOR);
        put(4, 64 * BLOCK, BLOCK);
        assert!(file.inode().read_all().unwrap() == wanted);
        file.inode().sync().unwrap();
        assert!(after_a_cut(&device.below)? == wanted);
        drop(file);
        fs.unmount().unwrap();
        after_a_cut(&device.below).map(drop)
    };
    require!(run());
}

/// A write or a sync: the number of records of the device before it began, and when it was done.
#[derive(Clone, Copy, Debug)]
struct Span {
    begin: usize,
    end: usize,
    /// Its place among all beginnings and ends: a write makes no record when it changes the map, so records do not tell
    /// whether it was done before a sync began.
    began: u64,
    ended: u64,
}

/// What a thread did: to which piece it wrote which value when, and when it synced.
#[derive(Default)]
struct History {
    writes: Vec<(u64, u8, Span)>,
    syncs: Vec<Span>,
}

/// Four threads write pieces of their own at random, past the cache, and sync now and then. Whatever the device kept
/// of what no sync made durable: each piece is as it was at the last sync that was done, or has a later value of its
/// owner; nothing else is ever there, such as what the blocks were before.
fn cut_so_often(arguments: &[&str], points: u64, seed: u64) -> Result<(), String> {
    const PIECES: u64 = 1200;
    const BEFORE: u8 = 0x3F;
    let recording = Arc::new(RecordingDevice::over(make("16M", arguments)?));
    let fs = mount(Arc::clone(&recording) as SharedDevice);
    // What free blocks hold.
    fs.write("/before", vec![BEFORE; 6 << 20]).unwrap();
    fs.sync().unwrap();
    fs.remove_file("/before").unwrap();
    let file = create(&fs);
    file.inode().truncate(PIECES / 3 * SECTOR).unwrap();
    if file.inode().uses_extents() {
        let how = Fallocate::Allocate { keep_size: true };
        file.inode().fallocate(how, PIECES / 6 * SECTOR..PIECES / 2 * SECTOR).unwrap();
    }
    fs.sync().unwrap();
    let begin = recording.len();
    let clock = AtomicU64::new(0);
    let tick = || clock.fetch_add(1, Ordering::SeqCst);
    let span = |work: &dyn Fn()| {
        let (begin, began) = (recording.len(), tick());
        work();
        let ended = tick();
        Span { begin, end: recording.len(), began, ended }
    };
    let histories = workers("writer", WRITERS, |own| {
        let mut random = Prng::new(seed * 4 + own as u64);
        let mut history = History::default();
        for round in 1..40u8 {
            // Neighbouring pieces of one block belong to different threads.
            let piece = random.below(PIECES / 4) * 4 + own as u64;
            let value = (own as u8) << 6 | round;
            let mut bytes = AlignedBuffer::zeroed(SECTOR as usize);
            bytes.fill(value);
            let write = || {
                assert_eq!(file.write_at(&bytes, piece * SECTOR).unwrap(), bytes.len());
            };
            history.writes.push((piece, value, span(&write)));
            if random.one_in(8) {
                history.syncs.push(span(&|| file.inode().sync_data().unwrap()));
            }
        }
        history
    })
    .unwrap();
    let syncs: Vec<Span> = histories.iter().flat_map(|history| history.syncs.clone()).collect();
    let mut of_piece: Vec<Vec<(u8, Span)>> = vec![Vec::new(); PIECES as usize];
    for (piece, value, span) in histories.iter().flat_map(|history| &history.writes) {
        of_piece[*piece as usize].push((*value, *span));
    }
    let mut random = Prng::new(seed);
    for _ in 0..points {
        let cut = begin + random.below((recording.len() - begin) as u64 + 1) as usize;
        let found = after_a_cut(&any_of(&recording, cut, &mut random))?;
        for (piece, writes) in of_piece.iter().enumerate() {
            // The last one that is durable, and all that may have reached the device.
            let is_durable =
                |span: &Span| syncs.iter().any(|sync| span.ended < sync.began && sync.end <= cut);
            let durable = writes.iter().rposition(|(_, span)| is_durable(span));
            let begun = writes.iter().skip(durable.unwrap_or(0));
            let mut allowed: Vec<u8> =
                begun.filter(|(_, span)| span.begin <= cut).map(|(value, _)| *value).collect();
            if durable.is_none() {
                allowed.push(0);
            }
            let at = piece * SECTOR as usize;
            let bytes = found.get(at..found.len().min(at + SECTOR as usize)).unwrap_or(&[]);
            assert!(
                bytes.iter().all(|byte| allowed.contains(byte)),
                "{arguments:?}, seed {seed}, cut {cut}: piece {piece} has {bytes:?} of {allowed:?}"
            );
            assert!(durable.is_none() || bytes.len() == SECTOR as usize, "{seed}, {cut}: {piece}");
        }
    }
    drop(file);
    fs.unmount().map_err(|error| error.to_string())
}

#[test]
fn what_a_sync_of_four_writers_has_said_is_there_after_any_cut() {
    for (seed, arguments) in (1..).zip([LAYOUTS[0], LAYOUTS[1], LAYOUTS[4]]) {
        require!(cut_so_often(arguments, 12, seed));
    }
}

#[test]
#[ignore = "half an hour: make test-long"]
fn what_a_sync_of_four_writers_has_said_is_there_after_many_cuts() {
    for seed in 1..=100 {
        for arguments in [LAYOUTS[0], LAYOUTS[1], LAYOUTS[2], LAYOUTS[4]] {
            require!(cut_so_often(arguments, 130, seed));
        }
    }
}

#[test]
fn writers_that_fill_the_file_system_lose_nothing_that_was_taken() {
    let run = |arguments: &[&str]| {
        let device = Arc::new(make("8M", arguments)?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = create(&fs);
        const PIECE: u64 = 16 << 10;
        let next = AtomicU64::new(0);
        let taken = workers("writer", WRITERS, |_| {
            let mut bytes = AlignedBuffer::zeroed(PIECE as usize);
            let mut taken = Vec::new();
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                bytes.fill(piece as u8 | 1);
                match file.write_at(&bytes, piece * PIECE) {
                    Ok(written) => taken.push((piece, written)),
                    Err(FsError::NoSpace { .. }) => return taken,
                    Err(error) => panic!("{error}"),
                }
            }
        })
        .unwrap();
        file.inode().sync().unwrap();
        let contents = match is_without_journal(arguments) {
            true => file.inode().read_all().unwrap(),
            false => after_a_cut(&device)?,
        };
        let mut bytes = 0;
        for (piece, written) in taken.into_iter().flatten() {
            let at = (piece * PIECE) as usize;
            let part = &contents[at..at + written];
            assert!(part.iter().all(|byte| *byte == piece as u8 | 1), "piece {piece}");
            bytes += written;
        }
        assert!(bytes > 3 << 20, "{bytes} bytes fit");
        drop(file);
        fs.remove_file("/file").unwrap();
        fs.write("/file", [7; 100]).unwrap();
        fs.unmount().unwrap();
        after_a_cut(&device).map(drop)
    };
    for arguments in LAYOUTS {
        require!(run(arguments));
    }
}
