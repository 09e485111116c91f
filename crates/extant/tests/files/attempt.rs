//! Reads and writes that do not wait: what is done at once, what is refused and why, and that nobody can tell the
//! difference afterwards. In debug builds every attempt here also proves that it waited for nothing.

use std::sync::Arc;

use extant::{
    Attempt, Fallocate, Fs, FsError, Inode, MountOptions, NewInode, SetAttributes, WaitReason,
};
use extant_base::Prng;
use extant_block::{MemoryDevice, SharedDevice};
use extant_sync::{FixedClock, threads};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

const NEW: NewInode = NewInode { permissions: 0o644, uid: 0, gid: 0 };
const BLOCK: usize = 4096;

fn made(size: &str, options: &[&str]) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, size, &[&["-t", "ext4"], options].concat())?;
    Ok(Arc::new(image::load(&path)))
}

fn options() -> MountOptions {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    MountOptions::new().read_only(false).background(false).seed(1).clock(clock)
}

fn mount(device: &Arc<MemoryDevice>) -> Fs {
    options().open_shared(Arc::clone(device) as SharedDevice).unwrap()
}

/// A file in use, with a block of contents.
fn file(fs: &Fs, name: &str) -> Inode {
    let file = fs.root().unwrap().create(name, &NEW).unwrap();
    file.write_at(&[1; BLOCK], 0).unwrap();
    file
}

fn refused<T>(attempt: Attempt<T>) -> Option<WaitReason> {
    attempt.err().map(|would_wait| would_wait.reason)
}

fn finish(fs: Fs, device: &MemoryDevice) {
    fs.unmount().unwrap();
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    e2fsck(&path).unwrap().assert_clean();
}

#[test]
fn of_a_thousand_writes_in_sequence_or_at_random_all_but_one_are_done_at_once() {
    let device = require!(made("256M", &[]));
    let fs = mount(&device);
    const COUNT: u64 = 4000;
    let share = |name: &str, write: &mut dyn FnMut(u64) -> Attempt<usize>| {
        let before = fs.attempt_stats();
        for step in 0..COUNT {
            if let Ok(written) = write(step) {
                assert_eq!(written.unwrap(), BLOCK, "{name} {step}");
            }
        }
        let (now, in_all) = (fs.attempt_stats(), COUNT);
        let refused = now.refused_in_all() - before.refused_in_all();
        assert_eq!(now.answered - before.answered + refused, in_all);
        assert!(refused * 1000 <= in_all, "{name}: {refused} of {in_all} refused: {now:?}");
    };
    let mut random = Prng::new(7);
    // Delayed, at the end of a file that grows.
    let new = file(&fs, "new");
    share("append", &mut |_| Ok(new.try_append(&[2; BLOCK])?.map(|(_, written)| written)));
    share("sequence", &mut |step| new.try_write_at(&[3; BLOCK], step * BLOCK as u64));
    share("random", &mut |_| new.try_write_at(&[4; BLOCK], random.below(COUNT) * BLOCK as u64));
    // Space that is there already, nothing of it cached.
    let old = file(&fs, "old");
    let range = 0..COUNT * BLOCK as u64;
    old.fallocate(Fallocate::Allocate { keep_size: false }, range).unwrap();
    fs.sync().unwrap();
    share("unwritten", &mut |_| old.try_write_at(&[5; BLOCK], random.below(COUNT) * BLOCK as u64));
    fs.sync().unwrap();
    // Stored, and written over in whole blocks that are in memory or not.
    share("stored", &mut |_| old.try_write_at(&[6; BLOCK], random.below(COUNT) * BLOCK as u64));
    // What is in memory is read at once.
    let mut out = [0; BLOCK];
    share("read", &mut |step| new.try_read_at(&mut out, step * BLOCK as u64));
    drop((new, old));
    finish(fs, &device);
}

#[test]
fn what_would_have_to_wait_is_refused_with_the_reason_and_changes_nothing() {
    let device = require!(made("64M", &["-O", "inline_data", "-I", "256"]));
    {
        let fs = mount(&device);
        fs.write("/cold", [9; 3 * BLOCK]).unwrap();
        fs.unmount().unwrap();
    }
    let fs = mount(&device);
    let cold = fs.resolve("/cold").unwrap();
    // Nobody has used the page cache so far.
    assert_eq!(refused(cold.try_write_at(&[1], 0)), Some(WaitReason::Memory));
    assert_eq!(cold.read_at(&mut [0; 10], 2 * BLOCK as u64).unwrap(), 10);
    fs.drop_cached();
    assert_eq!(refused(cold.try_read_at(&mut [0; 10], 0)), Some(WaitReason::Device));
    assert_eq!(refused(cold.try_write_at(&[1], 10)), Some(WaitReason::Device));
    // Small enough for the inode.
    let root = fs.root().unwrap();
    let small = root.create("small", &NEW).unwrap();
    assert_eq!(refused(small.try_write_at(b"small", 0)), Some(WaitReason::InlineData));
    small.write_at(b"small", 0).unwrap();
    assert_eq!(refused(small.try_write_at(b"small", 0)), Some(WaitReason::InlineData));
    assert_eq!(refused(small.try_read_at(&mut [0; 5], 0)), Some(WaitReason::InlineData));
    // The rest of the last block would show.
    let odd = file(&fs, "odd");
    odd.write_at(b"tail", BLOCK as u64).unwrap();
    assert_eq!(refused(odd.try_write_at(&[1], 5 * BLOCK as u64)), Some(WaitReason::Tail));
    assert_eq!(odd.metadata().size, BLOCK as u64 + 4);
    // Bits that a write takes.
    let mut changes = SetAttributes::default();
    changes.permissions = Some(0o4755);
    odd.set_attributes(&changes).unwrap();
    assert_eq!(refused(odd.try_write_at(&[1], 0)), Some(WaitReason::Privileges));
    assert_eq!(odd.metadata().mode() & 0o7777, 0o4755);
    odd.write_at(&[1], 0).unwrap();
    assert_eq!(refused(odd.try_write_at(&[1], 0)), None);
    // Somebody reads.
    let attempt = || refused(odd.try_write_at(&[2], 0));
    let tried = odd.with_cached(0..10, |_| {
        threads::scope(|s| s.spawn("other", attempt).unwrap().join().unwrap()).unwrap()
    });
    assert_eq!(tried.unwrap(), Some(WaitReason::Contents));
    assert_eq!(fs.read("/odd").unwrap(), [vec![1; BLOCK], b"tail".to_vec()].concat());
    assert_eq!(fs.read("/cold").unwrap(), [9; 3 * BLOCK]);
    // All of it was counted.
    let stats = fs.attempt_stats();
    for reason in ["memory", "device", "inline_data", "tail", "privileges", "contents"] {
        let count = stats.named().iter().find(|(name, _)| *name == reason).unwrap().1;
        assert!(count > 0, "{reason} in {stats:?}");
    }
    drop((cold, small, odd, root));
    finish(fs, &device);
}

#[test]
fn an_error_is_an_answer_and_no_reason_to_wait() {
    let device = require!(made("16M", &[]));
    let fs = mount(&device);
    let root = fs.root().unwrap();
    assert!(matches!(root.try_write_at(&[1], 0), Ok(Err(FsError::IsADirectory { .. }))));
    assert!(matches!(root.try_read_at(&mut [1], 0), Ok(Err(FsError::IsADirectory { .. }))));
    let file = file(&fs, "file");
    let far = file.try_write_at(&[1], u64::MAX - 1);
    assert!(matches!(far, Ok(Err(FsError::TooLarge { .. }))), "{far:?}");
    assert!(matches!(file.try_write_at(&[], 0), Ok(Ok(0))));
    assert!(matches!(file.try_read_at(&mut [0; 8], BLOCK as u64), Ok(Ok(0))));
    drop((file, root));
    finish(fs, &device);
    let fs = MountOptions::new().open_shared(device).unwrap();
    let file = fs.resolve("/file").unwrap();
    assert!(matches!(file.try_write_at(&[1], 0), Ok(Err(FsError::ReadOnly))));
    assert_eq!(refused(file.try_read_at(&mut [0; 8], 0)), Some(WaitReason::Device));
}

#[test]
fn without_room_a_write_is_left_to_who_can_commit_or_read_quotas() {
    for mkfs in [&["-O", "quota"][..], &["-O", "bigalloc", "-C", "16384"]] {
        let device = require!(made("32M", mkfs));
        let fs = mount(&device);
        let file = file(&fs, "file");
        assert_eq!(refused(file.try_write_at(&[2], 8 * BLOCK as u64)), Some(WaitReason::Space));
        // What has its space already is written at once.
        assert_eq!(refused(file.try_write_at(&[2; 8], 0)), None);
        assert_eq!(file.metadata().size, BLOCK as u64);
        drop(file);
        finish(fs, &device);
    }
    let device = require!(made("8M", &["-m", "0"]));
    let fs = mount(&device);
    let file = file(&fs, "file");
    let mut at = BLOCK as u64;
    let reason = loop {
        match file.try_write_at(&[2; 16 * BLOCK], at) {
            Ok(written) => at += written.unwrap() as u64,
            Err(would_wait) => break would_wait.reason,
        }
    };
    assert_eq!(reason, WaitReason::Space);
    // As far as the way that may wait comes, give or take one attempt.
    while let Ok(more) = file.write_at(&[3; BLOCK], at) {
        at += more as u64;
    }
    assert_eq!(file.metadata().size, at);
    assert!(matches!(file.write_at(&[3; BLOCK], at), Err(FsError::NoSpace { .. })));
    drop(file);
    finish(fs, &device);
}

#[test]
fn who_dirties_too_much_is_refused_and_not_put_to_sleep() {
    let device = require!(made("64M", &[]));
    let options = options().data_cache_bytes(16 << 20).dirty_bytes(2 << 20);
    let fs = options.open_shared(Arc::clone(&device) as SharedDevice).unwrap();
    let file = file(&fs, "file");
    let mut done = 1;
    let reason = loop {
        match file.try_append(&[done as u8; BLOCK]) {
            Ok(appended) => assert_eq!(appended.unwrap().1, BLOCK),
            Err(would_wait) => break would_wait.reason,
        }
        done += 1;
    };
    assert_eq!(reason, WaitReason::Throttle);
    let dirty = done * BLOCK as u64;
    assert!((2 << 20..(2 << 20) + 2 * BLOCK as u64).contains(&dirty), "{dirty}");
    // Who may wait makes room.
    file.append(&[0; BLOCK]).unwrap();
    assert_eq!(refused(file.try_append(&[0; BLOCK])), None);
    assert_eq!(file.metadata().size, dirty + 2 * BLOCK as u64);
    drop(file);
    finish(fs, &device);
}

/// The same operations with attempts and without, on two images: the same contents and sizes.
#[test]
fn whoever_tries_first_leaves_the_same_files() {
    for (seed, mkfs) in [
        (1, &["-b", "1024"][..]),
        (2, &["-b", "4096"]),
        (3, &["-O", "inline_data", "-I", "256"]),
        (4, &["-O", "bigalloc", "-C", "16384"]),
        (5, &["-O", "^extents,^64bit"]),
    ] {
        let device = require!(made("64M", mkfs));
        let options = options().data_cache_bytes(2 << 20);
        let fs = options.open_shared(Arc::clone(&device) as SharedDevice).unwrap();
        let root = fs.root().unwrap();
        let (tried, waited) =
            (root.create("tried", &NEW).unwrap(), root.create("waited", &NEW).unwrap());
        let mut random = Prng::new(seed);
        for step in 0..400u64 {
            let size = waited.metadata().size;
            let bytes: Vec<u8> =
                (0..1 + random.below(30000)).map(|at| (at + step * 7) as u8).collect();
            match random.below(8) {
                0..3 => {
                    let at = random.below(size + 20000);
                    waited.write_at(&bytes, at).unwrap();
                    let done = tried.try_write_at(&bytes, at).map_or(0, |done| done.unwrap());
                    let rest = &bytes[done..];
                    assert_eq!(tried.write_at(rest, at + done as u64).unwrap(), rest.len());
                }
                3..6 => {
                    waited.append(&bytes).unwrap();
                    match tried.try_append(&bytes) {
                        // Alone, an append is whole.
                        Ok(appended) => assert_eq!(appended.unwrap(), (size, bytes.len())),
                        Err(_) => assert_eq!(tried.append(&bytes).unwrap(), size),
                    }
                }
                6 => {
                    let to = random.below(size + 10000);
                    waited.truncate(to).unwrap();
                    tried.truncate(to).unwrap();
                }
                _ => fs.sync().unwrap(),
            }
            assert_eq!(tried.metadata().size, waited.metadata().size);
            let (at, mut out) = (random.below(size + 1), vec![0xA5; 20000]);
            let mut wanted = vec![0; 20000];
            waited.read_at(&mut wanted, at).unwrap();
            if let Ok(read) = tried.try_read_at(&mut out, at) {
                let read = read.unwrap();
                assert!(out[..read] == wanted[..read], "step {step} at {at}");
            }
        }
        let stats = fs.attempt_stats();
        assert!(stats.answered > 100 && stats.refused_in_all() > 0, "{stats:?}");
        assert!(fs.read("/tried").unwrap() == fs.read("/waited").unwrap(), "{mkfs:?}");
        drop((tried, waited, root));
        finish(fs, &device);
        let fs = mount(&device);
        assert!(fs.read("/tried").unwrap() == fs.read("/waited").unwrap(), "{mkfs:?} stored");
    }
}

/// Lines from several threads, by attempts where they succeed: each once, whole, in its thread's order.
#[test]
fn appends_of_many_that_try_first_are_whole_and_there_once() {
    let device = require!(made("64M", &[]));
    let fs = mount(&device);
    let log = file(&fs, "log");
    log.truncate(0).unwrap();
    const LINES: usize = 400;
    threads::workers("writer", 4, |thread| {
        for line in 0..LINES {
            let text = format!("{thread} {line} {}\n", "x".repeat(line % 97));
            let (at, done) = match log.try_append(text.as_bytes()) {
                Ok(appended) => appended.unwrap(),
                Err(_) => (log.append(text.as_bytes()).unwrap(), text.len()),
            };
            assert_eq!(done, text.len(), "cut at {at}");
        }
    })
    .unwrap();
    let text = fs.read_to_string("/log").unwrap();
    let mut next = [0; 4];
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (thread, number): (usize, usize) =
            (words[0].parse().unwrap(), words[1].parse().unwrap());
        assert_eq!((number, words[2].len()), (next[thread], number % 97));
        next[thread] += 1;
    }
    assert_eq!(next, [LINES; 4]);
    let stats = fs.attempt_stats();
    assert!(stats.answered > 0, "{stats:?}");
    drop(log);
    finish(fs, &device);
}

#[test]
fn a_read_of_a_hole_that_does_not_wait_promises_no_space_for_it() {
    let device = require!(made("16M", &[]));
    let fs = mount(&device);
    let file = file(&fs, "file");
    file.truncate(64 * BLOCK as u64).unwrap();
    file.sync().unwrap();
    let free = fs.statfs().unwrap().blocks_free;
    let mut bytes = [1; BLOCK];
    for block in 1..64 {
        let read = file.try_read_at(&mut bytes, block * BLOCK as u64).unwrap().unwrap();
        assert_eq!((read, bytes), (BLOCK, [0; BLOCK]), "block {block}");
    }
    assert_eq!(fs.statfs().unwrap().blocks_free, free);
    file.sync().unwrap();
    assert_eq!(file.metadata().blocks, 8, "it has the block that was written");
    drop(file);
    finish(fs, &device);
}

/// `APPEND` holds for writes that do not wait as well.
#[test]
fn a_file_that_only_grows_is_written_at_its_end_at_once_and_nowhere_else() {
    let device = require!(made("16M", &[]));
    let fs = mount(&device);
    let file = file(&fs, "file");
    let flags = file.metadata().flags | extant::InodeFlags::APPEND;
    file.set_attributes(&SetAttributes::new().flags(flags)).unwrap();
    for offset in [0, BLOCK as u64 - 1, BLOCK as u64 + 1] {
        let error = file.try_write_at(&[2], offset).unwrap().unwrap_err();
        assert_eq!(error.errno(), 1, "at {offset}: {error}");
    }
    assert_eq!(file.try_write_at(&[3], BLOCK as u64).unwrap().unwrap(), 1);
    assert_eq!(file.try_append(&[4]).unwrap().unwrap(), (BLOCK as u64 + 1, 1));
    let bytes = file.read_all().unwrap();
    assert_eq!((bytes[0], &bytes[BLOCK - 1..]), (1, &[1, 3, 4][..]));
    drop(file);
    finish(fs, &device);
}
