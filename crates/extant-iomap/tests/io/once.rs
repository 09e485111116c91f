//! Reads and writes of what is not needed again: it leaves the cache, and nothing else does.

use extant_base::Prng;

use crate::model::content;
use crate::support::{Fs, Options};

const BLOCK: usize = 4096;

#[test]
fn what_was_read_once_is_gone_and_what_was_there_before_stays() {
    let fs = Fs::new(Options::default());
    let file = fs.file();
    let bytes = content(&mut Prng::new(21), 64 * BLOCK);
    file.write_direct(0, &bytes).unwrap();
    // One block in the middle belongs to an ordinary reader.
    assert_eq!(file.read(20 * BLOCK as u64, BLOCK).unwrap(), bytes[20 * BLOCK..21 * BLOCK]);
    let cached = fs.cache.stats().used_bytes;
    for at in (0..bytes.len()).step_by(5000) {
        let len = 5000.min(bytes.len() - at);
        assert_eq!(file.read_once(at as u64, len).unwrap(), bytes[at..at + len], "{at}");
    }
    let after = fs.cache.stats();
    assert!(after.dropped_behind > 0);
    assert!(after.used_bytes <= cached, "{} of {cached}", after.used_bytes);
    let filled = after.bytes_filled;
    file.read(20 * BLOCK as u64, BLOCK).unwrap();
    assert_eq!(fs.cache.stats().bytes_filled, filled, "still there");
    assert_eq!(file.read_once(bytes.len() as u64 - 10, 100).unwrap().len(), 10, "to the end");
    assert_eq!(file.read_once(bytes.len() as u64, 100).unwrap(), []);
}

#[test]
fn what_was_written_once_is_stored_and_then_gone() {
    let fs = Fs::new(Options { folio_max_log2: 14, ..Options::default() });
    let file = fs.file();
    let before = content(&mut Prng::new(22), 40 * BLOCK);
    file.write_direct(0, &before).unwrap();
    let mut wanted = before;
    // Over an ordinary reader's block, over nothing, and behind the end; none begins at 0.
    file.read(10 * BLOCK as u64, BLOCK).unwrap();
    for (at, len) in [(5 * BLOCK + 10, 9 * BLOCK), (17 * BLOCK, 2 * BLOCK), (39 * BLOCK, 9 * BLOCK)]
    {
        let bytes = content(&mut Prng::new(at as u64), len);
        assert_eq!(file.write_once(at as u64, &bytes).unwrap(), len);
        wanted.resize(wanted.len().max(at + len), 0);
        wanted[at..at + len].copy_from_slice(&bytes);
    }
    assert!(file.held(|data| !data.take_once(20 * BLOCK as u64 + 1)));
    assert!(file.held(|data| data.take_once(20 * BLOCK as u64)), "as many bytes as were written");
    assert!(file.held(|data| !data.take_once(1)), "counted anew");
    assert_eq!(file.read_all().unwrap(), wanted);
    file.sync().unwrap();
    assert_eq!(file.after_a_crash(), wanted);
    drop(file);
    fs.check_empty();
}

#[test]
fn folios_written_once_leave_when_they_are_on_the_device() {
    let fs = Fs::new(Options::default());
    let file = fs.file();
    let bytes = content(&mut Prng::new(23), 32 * BLOCK);
    file.write_once(3 * BLOCK as u64, &bytes).unwrap();
    let held = fs.cache.stats().used_bytes;
    assert!(held >= bytes.len() as u64, "{held}");
    file.sync().unwrap();
    let left = fs.cache.stats().used_bytes;
    assert!(left < held, "{left} of {held}");
    assert!(fs.cache.stats().dropped_behind > 0);
    assert_eq!(file.read_direct(3 * BLOCK as u64, bytes.len()).unwrap(), bytes);
}
