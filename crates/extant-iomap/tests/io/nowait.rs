//! What is refused to those who may not wait, and that what is not refused is right.

use std::sync::Arc;

use extant_base::Prng;
use extant_iomap::Obstacle;
use extant_sync::{Mutex, Rank, threads};

use crate::support::{Fs, Options, Point, TestFile};

const BLOCK: u64 = 4096;

fn options() -> Options {
    Options { ahead: false, ..Options::default() }
}

/// Calls `attempt` at a moment of what `run` does, on another thread.
fn beside<T: Send + 'static>(
    fs: &Fs,
    point: Point,
    attempt: impl FnOnce() -> T + Send + 'static,
    run: impl FnOnce(),
) -> T {
    let answer = Arc::new(Mutex::new(Rank::Leaf, None));
    let inside = Arc::clone(&answer);
    fs.hooks.once(point, move || {
        let tried = threads::scope(|s| s.spawn("other", attempt).unwrap().join().unwrap());
        *inside.lock() = Some(tried.unwrap());
    });
    run();
    answer.lock().take().expect("the moment came")
}

fn finish(fs: &Arc<Fs>, file: Arc<TestFile>, wanted: &[u8]) {
    assert!(file.read_all().unwrap() == wanted);
    file.sync().unwrap();
    assert_eq!(file.after_a_crash(), wanted);
    fs.cache.drop_clean();
    assert!(file.read_all().unwrap() == wanted, "as it is stored");
    drop(file);
    fs.check_empty();
}

#[test]
fn what_is_not_in_memory_is_refused_and_what_is_new_or_whole_is_not() {
    let fs = Fs::new(options());
    let file = fs.file();
    let mut wanted = vec![7; 8 * BLOCK as usize];
    file.write(0, &wanted).unwrap();
    file.sync().unwrap();
    fs.cache.drop_clean();
    let reads = fs.cache.stats().device_reads;
    assert_eq!(file.try_read(0, 10), Err(Obstacle::Device));
    assert_eq!(file.try_write(10, b"part of a block"), Err(Obstacle::Device));
    // A whole block needs nothing that is there; the part behind it does: what was done stays.
    let (block, tail) = (vec![8; BLOCK as usize], vec![8; 10]);
    assert_eq!(file.try_write(BLOCK, &[block, tail].concat()), Ok(BLOCK as usize));
    wanted[BLOCK as usize..2 * BLOCK as usize].fill(8);
    // As far as it is in memory.
    assert_eq!(file.try_read(BLOCK, 2 * BLOCK as usize), Ok(vec![8; BLOCK as usize]));
    assert_eq!(file.try_write(8 * BLOCK, &[9; 100]), Ok(100));
    wanted.extend([9; 100]);
    assert_eq!(file.try_read(8 * BLOCK, 200), Ok(vec![9; 100]));
    assert_eq!(fs.cache.stats().device_reads, reads);
    finish(&fs, file, &wanted);
}

#[test]
fn the_part_of_a_last_block_that_is_not_in_memory_is_refused() {
    let fs = Fs::new(options());
    let file = fs.file();
    let wanted = vec![7; 2 * BLOCK as usize];
    file.write(0, &wanted).unwrap();
    file.sync().unwrap();
    fs.cache.drop_clean();
    let reads = fs.cache.stats().device_reads;
    // A folio for both, whose first block is whole.
    let bytes = vec![8; BLOCK as usize + 10];
    assert_eq!(file.try_write(0, &bytes), Err(Obstacle::Device));
    assert_eq!(fs.cache.stats().device_reads, reads);
    finish(&fs, file, &wanted);
}

#[test]
fn what_is_dirty_between_blocks_without_data_is_not_read_as_zeros() {
    let fs = Fs::new(options());
    let file = fs.file();
    file.allocate(0..4 * BLOCK, true).unwrap();
    file.truncate(4 * BLOCK).unwrap();
    file.write(2 * BLOCK, &[5; BLOCK as usize]).unwrap();
    let mut wanted = vec![0; 4 * BLOCK as usize];
    wanted[2 * BLOCK as usize..3 * BLOCK as usize].fill(5);
    let read = file.try_read(0, wanted.len()).unwrap();
    assert!(read.len() as u64 >= 3 * BLOCK && read == wanted[..read.len()], "{}", read.len());
    finish(&fs, file, &wanted);
}

#[test]
fn a_write_that_must_be_whole_is_prepared_or_refused_before_its_first_byte() {
    let fs = Fs::new(Options { cache_bytes: 1 << 20, folio_max_log2: 14, ..options() });
    let file = fs.file();
    let wanted = vec![7; 20 * BLOCK as usize];
    file.write(0, &wanted).unwrap();
    file.sync().unwrap();
    file.held(|data| {
        let kept = data.prepare_whole(&*file, 100, 18 * BLOCK).unwrap();
        fs.cache.drop_clean();
        assert!(fs.cache.stats().used_bytes >= 19 * BLOCK, "what was prepared stays");
        drop(kept);
        fs.cache.drop_clean();
        assert_eq!(fs.cache.stats().used_bytes, 0);
        let all = fs.cache.options().bytes;
        let too_much = data.prepare_whole(&*file, 20 * BLOCK, all + BLOCK).map(drop);
        assert_eq!(too_much, Err(Obstacle::Memory), "more than the cache");
    });
    file.write(0, &wanted).unwrap();
    let other = Arc::clone(&file);
    let attempt = move || {
        let whole = |at, len| other.data.prepare_whole(&*other, at, len).map(drop).err();
        (whole(0, 10), whole(19 * BLOCK, 10), whole(20 * BLOCK, 10))
    };
    let tried = beside(&fs, Point::Published, attempt, || file.sync().unwrap());
    let writeback = Some(Obstacle::Writeback);
    assert_eq!(tried, (writeback, writeback, None), "first block, last block, behind");
    finish(&fs, file, &wanted);
}

#[test]
fn a_block_on_its_way_to_the_device_is_not_waited_for() {
    let fs = Fs::new(options());
    let file = fs.file();
    let mut wanted = vec![7; 4 * BLOCK as usize];
    file.write(0, &wanted).unwrap();
    let other = Arc::clone(&file);
    let before = fs.cache.stats().writeback_waits;
    let attempt = move || (other.try_write(100, &[8; 10]), other.try_write(4 * BLOCK, &[9; 10]));
    let tried = beside(&fs, Point::Published, attempt, || file.sync().unwrap());
    assert_eq!(tried, (Err(Obstacle::Writeback), Ok(10)));
    assert_eq!(fs.cache.stats().writeback_waits, before);
    wanted.extend([9; 10]);
    assert_eq!(file.try_write(100, &[8; 10]), Ok(10));
    wanted[100..110].fill(8);
    finish(&fs, file, &wanted);
}

#[test]
fn a_folio_that_is_being_filled_is_not_waited_for() {
    let fs = Fs::new(options());
    let file = fs.file();
    let wanted = vec![7; 4 * BLOCK as usize];
    file.write(0, &wanted).unwrap();
    file.sync().unwrap();
    fs.cache.drop_clean();
    let other = Arc::clone(&file);
    // Without the content lock, which would refuse it before.
    let attempt = move || other.data.try_write(&*other, 0, &[8; BLOCK as usize]);
    let tried = beside(&fs, Point::Read, attempt, || drop(file.read(0, 10).unwrap()));
    assert_eq!(tried, Err(Obstacle::Folio));
    finish(&fs, file, &wanted);
}

#[test]
fn memory_is_taken_from_what_is_clean_and_never_waited_for() {
    let fs = Fs::new(Options { cache_bytes: 1 << 20, ..options() });
    let file = fs.file();
    let clean = vec![7; 1 << 20];
    file.write(0, &clean).unwrap();
    file.sync().unwrap();
    let mut written = 0;
    let obstacle = loop {
        match file.try_write((1 << 20) + written, &[8; BLOCK as usize]) {
            Ok(more) => written += more as u64,
            Err(obstacle) => break obstacle,
        }
    };
    assert_eq!(obstacle, Obstacle::Memory);
    // All of the cache, or nearly: what was clean was given up for it.
    assert!(written >= 15 << 16, "{written}");
    file.sync().unwrap();
    assert_eq!(file.try_write((1 << 20) + written, b"again"), Ok(5));
    let wanted = [clean, vec![8; written as usize], b"again".to_vec()].concat();
    finish(&fs, file, &wanted);
}

#[test]
fn a_mapper_that_cannot_say_refuses_and_nothing_is_promised() {
    let fs = Fs::new(Options { ahead: true, ..options() });
    let file = fs.file();
    assert_eq!(file.try_write(0, b"new"), Err(Obstacle::Space));
    assert_eq!((file.size(), file.delayed()), (0, 0));
    finish(&fs, file, &[]);
}

#[test]
fn attempts_and_waiting_writes_make_the_same_contents() {
    for (block_log2, folio_max_log2) in [(10, 12), (10, 18), (12, 12), (12, 21)] {
        let options = Options { block_log2, folio_max_log2, cache_bytes: 1 << 20, ..options() };
        let fs = Fs::new(options);
        let file = fs.file();
        let mut wanted: Vec<u8> = Vec::new();
        let mut random = Prng::new(block_log2.into());
        let (mut whole, mut refused) = (0, 0);
        for step in 0..600 {
            let at = random.below(wanted.len() as u64 + 1);
            let bytes = vec![step as u8; 1 + random.below(20000) as usize];
            let end = at as usize + bytes.len();
            if end > 3 << 20 {
                continue;
            }
            wanted.resize(wanted.len().max(end), 0);
            wanted[at as usize..end].copy_from_slice(&bytes);
            let done = file.try_write(at, &bytes).unwrap_or(0);
            whole += u32::from(done == bytes.len());
            refused += u32::from(done < bytes.len());
            if done < bytes.len() {
                let rest = file.write(at + done as u64, &bytes[done..]).unwrap();
                assert_eq!(rest, bytes.len() - done);
            }
            let (from, len) = (random.below(wanted.len() as u64) as usize, 30000);
            if let Ok(read) = file.try_read(from as u64, len) {
                assert!(read == wanted[from..from + read.len()], "{from} in step {step}");
            }
            if random.one_in(10) {
                file.sync().unwrap();
                fs.cache.drop_clean();
            }
        }
        assert!(whole > 100 && refused > 10, "{whole} {refused}");
        finish(&fs, file, &wanted);
    }
}
