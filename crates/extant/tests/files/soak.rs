//! Many files through rings and beside them, with far less memory than they have contents.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant::ring::{Completion, Op, Request, Ring};
use extant::{Fallocate, Fs, Inode, MountOptions, NewInode};
use extant_base::Prng;
use extant_block::{MemoryDevice, SharedDevice};
use extant_sync::{Clock, SystemClock, threads};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{Ends, image, require, tempdir};

const FILES: usize = 64;
/// Bytes of each.
const FILE: usize = 512 << 10;
/// Memory for contents, a quarter of what there is.
const CACHE: u64 = 8 << 20;
const THREADS: usize = 4;

fn made() -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "128M", &["-t", "ext4"])?;
    Ok(Arc::new(image::load(&path)))
}

/// A file and what is in it.
struct Known {
    inode: Inode,
    contents: Vec<u8>,
}

impl Known {
    /// Some operation, done to the model.
    fn next(&mut self, random: &mut Prng) -> Op {
        let at = random.below(FILE as u64 - 1) as usize;
        let len = 1 + random.below((FILE - at).min(20_000) as u64) as usize;
        let (offset, end) = (at as u64, at + len);
        match random.below(16) {
            0 => Op::SyncData,
            1 => {
                let len = self.contents.len();
                self.contents[at.min(len)..end.min(len)].fill(0);
                Op::Fallocate { mode: Fallocate::PunchHole, range: offset..end as u64 }
            }
            2 => {
                self.contents.resize(end, 0);
                Op::Truncate { size: end as u64 }
            }
            _ => {
                let mut bytes = vec![0; len];
                bytes.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
                self.contents.resize(self.contents.len().max(end), 0);
                self.contents[at..end].copy_from_slice(&bytes);
                Op::Write { offset, bytes }
            }
        }
    }
}

/// Keeps the ring busy with operations on its own files until it is told to stop, and looks now and then whether each
/// contains what it should.
fn work(fs: &Fs, mut files: Vec<Known>, seed: u64, ends: &AtomicBool) -> Vec<Known> {
    let ring = fs.ring(32).unwrap();
    let mut random = Prng::new(seed);
    let mut reads: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut tag = 0;
    let check = |done: Completion, reads: &mut HashMap<u64, Vec<u8>>| {
        let len = done.result.unwrap() as usize;
        if let Some(wanted) = reads.remove(&done.tag) {
            assert!(
                len == wanted.len() && done.buffer[..len] == wanted,
                "seed {seed}: {}",
                done.tag
            );
        }
    };
    let take = |ring: &Ring, reads: &mut HashMap<u64, Vec<u8>>| match ring.wait() {
        Some(done) => check(done, reads),
        None => panic!("a full ring with nothing to come"),
    };
    while !ends.load(Ordering::Acquire) {
        let at = random.below(files.len() as u64) as usize;
        let known = &mut files[at];
        tag += 1;
        if random.one_in(64) {
            // Beside the ring, after all that is in it.
            while let Some(done) = ring.wait() {
                check(done, &mut reads);
            }
            let mut out = vec![0; FILE + 1];
            let len = known.inode.read_at(&mut out, 0).unwrap();
            assert!(out[..len] == known.contents, "seed {seed}");
            continue;
        }
        let op = if random.one_in(3) {
            // Alone with its file: what comes later must not show.
            let offset = random.below(FILE as u64);
            let start = known.contents.len().min(offset as usize);
            let wanted = known.contents[start..].iter().take(10_000).copied().collect();
            reads.insert(tag, wanted);
            Op::Read { offset, buffer: vec![0; 10_000] }
        } else {
            known.next(&mut random)
        };
        let is_read = matches!(op, Op::Read { .. });
        let mut request = Request::new(tag, &known.inode, op);
        loop {
            match ring.submit_request(request) {
                Ok(None) => break,
                Ok(Some(done)) => {
                    check(done, &mut reads);
                    break;
                }
                Err(mut busy) => {
                    take(&ring, &mut reads);
                    request = busy.requests.remove(0);
                }
            }
        }
        // A read sees what was submitted before, and may see what comes later: nothing comes before it is done.
        while is_read && reads.contains_key(&tag) {
            take(&ring, &mut reads);
        }
    }
    while let Some(done) = ring.wait() {
        check(done, &mut reads);
    }
    assert!(reads.is_empty());
    files
}

fn soak(device: &Arc<MemoryDevice>, time: Duration) {
    let options = MountOptions::new().read_only(false).seed(1).data_cache_bytes(CACHE);
    let fs = options.open_shared(Arc::clone(device) as SharedDevice).unwrap();
    let root = fs.root().unwrap();
    let made = |n: usize| {
        let inode = root.create(format!("file{n}"), &NewInode::root(0o644)).unwrap();
        Known { inode, contents: Vec::new() }
    };
    let mut shares: Vec<Vec<Known>> = (0..THREADS).map(|_| Vec::new()).collect();
    (0..FILES).for_each(|n| shares[n % THREADS].push(made(n)));
    let ends = AtomicBool::new(false);
    threads::scope(|s| {
        let workers: Vec<_> = shares
            .into_iter()
            .zip(1..)
            .map(|(share, seed)| {
                let (fs, ends) = (&fs, &ends);
                s.spawn("worker", move || work(fs, share, seed, ends)).unwrap()
            })
            .collect();
        let has_ended = Ends(&ends);
        let start = SystemClock.monotonic();
        // As much as may be dirty, and what each thread and worker adds before it looks again.
        let limit = CACHE / 5 * 4 + (THREADS as u64 * 10) * 20_000;
        while SystemClock.monotonic() - start < time {
            // None as long as no worker has come to its first contents.
            if let Some(stats) = fs.io_stats() {
                assert!(stats.used_bytes <= CACHE, "{} bytes in use", stats.used_bytes);
                assert!(stats.dirty_bytes <= limit, "{} bytes dirty", stats.dirty_bytes);
            }
            SystemClock.sleep(Duration::from_millis(2));
        }
        drop(has_ended);
        for worker in workers {
            for known in worker.join().unwrap() {
                let mut out = vec![0; FILE + 1];
                let len = known.inode.read_at(&mut out, 0).unwrap();
                assert!(out[..len] == known.contents);
            }
        }
    })
    .unwrap();
    drop(root);
    fs.unmount().unwrap();
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    e2fsck(&path).unwrap().assert_clean();
}

#[test]
fn many_files_keep_their_contents_at_the_memory_limit() {
    soak(&require!(made()), Duration::from_secs(3));
}

#[test]
#[ignore = "takes minutes"]
fn many_files_keep_their_contents_at_the_memory_limit_for_ten_minutes() {
    soak(&require!(made()), Duration::from_secs(600));
}
