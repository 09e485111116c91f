//! What one small operation touches.

use extant_iomap::{Cache, CacheOptions, Mapper};

use crate::support::{Alloc, Fs, Options};

#[test]
fn a_small_write_into_a_large_folio_touches_its_own_blocks_only() {
    for block_log2 in [10, 12] {
        for alloc in [Alloc::Pinned, Alloc::Unwritten] {
            let fs = Fs::new(Options { block_log2, alloc, ..Options::default() });
            let file = fs.file();
            file.write(0, &vec![7; 2 << 20]).unwrap();
            assert_eq!((file.data.folio_count(), fs.cache.stats().folios_made), (1, 1));
            for clean in [false, true] {
                if clean {
                    file.sync().unwrap();
                }
                let before = fs.cache.stats();
                for at in (0..2 << 20).step_by(64 << 10) {
                    file.write(at, &[9; 1024]).unwrap();
                }
                let after = fs.cache.stats();
                // 32 writes of 1 KiB, each in one block.
                assert_eq!(after.units_touched - before.units_touched, 32, "2^{block_log2}");
                assert_eq!(after.bytes_copied - before.bytes_copied, 32 << 10);
                assert_eq!(after.folios_made, 1);
                assert_eq!(after.device_reads, 0);
                assert_eq!(after.stale_mappings, 0);
                // What is dirty is known to have its space.
                let asked = after.mappings - before.mappings;
                assert!(asked <= if clean { 32 } else { 0 }, "{asked} questions, clean: {clean}");
            }
            // And writes of it are as small.
            let before = fs.cache.stats();
            file.sync().unwrap();
            let after = fs.cache.stats();
            assert_eq!(after.device_writes - before.device_writes, 32);
            assert_eq!(after.bytes_written - before.bytes_written, 32 << block_log2);
            drop(file);
            fs.check_empty();
        }
    }
}

#[test]
fn large_writes_make_large_folios_and_few_device_writes() {
    for (folio_max_log2, folios) in [(12, 2048), (16, 128), (21, 4)] {
        let fs = Fs::new(Options { folio_max_log2, cache_bytes: 32 << 20, ..Options::default() });
        let file = fs.file();
        file.write(0, &vec![7; 8 << 20]).unwrap();
        assert_eq!(file.data.folio_count(), folios);
        file.sync().unwrap();
        let stats = fs.cache.stats();
        assert_eq!(stats.bytes_written, 8 << 20);
        assert!(stats.device_writes <= 8, "{} writes", stats.device_writes);
        drop(file);
        fs.check_empty();
    }
}

#[test]
fn a_read_larger_than_the_cache_ends() {
    let fs = Fs::new(Options { cache_bytes: 1 << 20, ..Options::default() });
    let file = fs.file();
    let bytes: Vec<u8> = (0..9 << 20).map(|at| (at >> 9) as u8 | 1).collect();
    file.write(0, &bytes).unwrap();
    assert!(file.read_all().unwrap() == bytes);
    let answer = file.data.with_cached(&*file, 0..9 << 20, |parts| {
        parts.iter().flat_map(|part| part.to_vec()).collect::<Vec<u8>>()
    });
    let answer = answer.unwrap();
    assert!(!answer.is_empty() && answer[..] == bytes[..answer.len()]);
    file.sync().unwrap();
    drop(file);
    fs.check_empty();
}

/// A program may store behind the end of a file, in the rest of a page that it has mapped.
#[test]
fn what_lies_in_memory_behind_the_end_is_never_stored() {
    for alloc in [Alloc::Pinned, Alloc::Unwritten] {
        for (size, block_log2) in [(1000, 12), (4096, 12), (5000, 10), (4097, 12), (2048, 10)] {
            let fs = Fs::new(Options { alloc, block_log2, ..Options::default() });
            let file = fs.file();
            file.write(0, &[7; 3 * 4096]).unwrap();
            file.set_size(size);
            file.sync().unwrap();
            assert!(!file.data.is_dirty(), "nothing is left to write");
            assert_eq!(fs.cache.stats().dirty_bytes, 0);
            fs.cache.drop_clean();
            file.set_size(3 * 4096);
            let mut wanted = vec![0; 3 * 4096];
            wanted[..size as usize].fill(7);
            assert!(file.read_all().unwrap() == wanted, "{size} of blocks of 1 << {block_log2}");
            file.truncate(0).unwrap();
            drop(file);
            fs.check_empty();
        }
    }
}

#[test]
fn what_may_be_dirty_is_a_part_of_the_cache_unless_it_is_said() {
    let with = |dirty_max, dirty_background| {
        let options =
            CacheOptions { dirty_max, dirty_background, ..CacheOptions::new(20 << 20, 12) };
        let cache = Cache::new(options).unwrap();
        let options = cache.options();
        assert_eq!(options.bytes, 20 << 20);
        (options.dirty_max, options.dirty_background)
    };
    assert_eq!(with(0, 0), (16 << 20, 100 << 17), "four fifths, five eighths of all");
    assert_eq!(with(8 << 20, 0), (8 << 20, 5 << 20), "five eighths of what may be");
    assert_eq!(with(0, 3 << 20), (16 << 20, 3 << 20));
    assert_eq!(with(2 << 20, 3 << 20), (2 << 20, 2 << 20), "never more than may be");
    assert_eq!(with(20 << 20, 1 << 20), (16 << 20, 1 << 20), "never all of it");
}

#[test]
fn the_background_writer_begins_above_its_threshold_and_ends_at_half_of_it() {
    let fs = Fs::new(Options { cache_bytes: 1 << 20, ..Options::default() });
    let file = fs.file();
    let background = fs.cache.options().dirty_background;
    let wants = || (fs.cache.wants_writeback(), fs.cache.wants_more_writeback());
    let dirty_to = |bytes: u64| {
        while fs.cache.dirty_bytes() < bytes {
            file.write(fs.cache.dirty_bytes(), &[1; 4096]).unwrap();
        }
        assert_eq!(fs.cache.dirty_bytes(), bytes);
    };
    dirty_to(background / 2);
    assert_eq!(wants(), (false, false));
    dirty_to(background / 2 + 4096);
    assert_eq!(wants(), (false, true));
    dirty_to(background);
    assert_eq!(wants(), (false, true));
    dirty_to(background + 4096);
    assert_eq!((wants(), fs.cache.is_over_limit()), ((true, true), false));
    dirty_to(fs.cache.options().dirty_max.next_multiple_of(4096));
    assert!(fs.cache.is_over_limit());
}
