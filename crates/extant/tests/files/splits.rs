//! Ranges that begin and end within extents: of many extents, and where there is no room to split any.

use std::sync::Arc;

use extant::Fallocate;
use extant_testkit::require;

use crate::fallocate::{LAYOUTS, check, create, make, mount, pattern};

/// Files with as many extents as their records hold, on a file system without a free block: extents are split with what
/// is kept back for that, until nothing is left of it either. What is to be zeroed or punched reads as zeros all the
/// same, also after a crash, and nothing else does.
#[test]
fn on_a_full_file_system_a_range_that_splits_an_extent_reads_as_zeros() {
    const BLOCK: usize = 1024;
    const FILES: usize = 110;
    let modes =
        [Fallocate::ZeroRange { keep_size: false }, Fallocate::PunchHole, Fallocate::WriteZeroes];
    for mode in modes {
        let device = require!(make(&LAYOUTS[0], 4));
        let fs = mount(&device);
        let (mut files, mut contents) = (Vec::new(), Vec::new());
        for number in 0..FILES {
            let file = create(&fs, &format!("file{number}"));
            let mut wanted = vec![0; 18 * BLOCK];
            for part in 0..4 {
                let at = part * 5 * BLOCK;
                let bytes = pattern(3 * BLOCK, (number * 4 + part) as u64);
                file.write_at(&bytes, at as u64).unwrap();
                wanted[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            file.sync().unwrap();
            assert!(file.fiemap(0..u64::MAX, 20, false).unwrap().len() >= 4);
            files.push(file);
            contents.push(wanted);
        }
        let filler = create(&fs, "filler");
        let (mut at, mut left) = (0, 1 << 20);
        while left >= BLOCK {
            match filler.write_at(&vec![1; left], at).and_then(|_| filler.sync()) {
                Ok(()) => at += left as u64,
                Err(error) => {
                    assert_eq!(error.errno(), 28, "{error}");
                    left /= 2;
                }
            }
        }
        assert_eq!(fs.room(true), 0, "{mode:?}");
        // From within one extent, over a hole and a whole one, into a third.
        let range = BLOCK as u64 + 100..12 * BLOCK as u64 + 7;
        let mut refused = 0;
        for (number, (file, wanted)) in files.iter().zip(&mut contents).enumerate() {
            let answer = file.fallocate(mode, range.clone());
            if let Err(error) = &answer {
                assert_eq!(error.errno(), 28, "{mode:?}: {error}");
                refused += 1;
            }
            wanted[range.start as usize..range.end as usize].fill(0);
            assert!(file.read_all().unwrap() == *wanted, "{mode:?} {number}: {answer:?}");
            file.sync().unwrap();
        }
        println!("{mode:?}: {refused} times no space");
        let crashed = Arc::new(device.snapshot());
        drop((files, filler));
        fs.unmount().unwrap();
        check(&device, &format!("{mode:?}"));
        for device in [device, crashed] {
            let fs = mount(&device);
            for (number, wanted) in contents.iter().enumerate() {
                let found = fs.read(format!("/file{number}")).unwrap();
                assert!(found == *wanted, "{mode:?} {number}, later");
            }
            fs.unmount().unwrap();
            check(&device, &format!("{mode:?}, later"));
        }
    }
}

/// A range of more extents than one step changes, and more than a transaction has room for at its beginning.
#[test]
fn a_range_of_a_thousand_extents_is_zeroed_and_moved_whole() {
    const BLOCK: u64 = 1024;
    let device = require!(make(&LAYOUTS[0], 16));
    let fs = mount(&device);
    let file = create(&fs, "file");
    for number in 0..1000 {
        file.write_at(&[number as u8 | 1; BLOCK as usize], number * 2 * BLOCK).unwrap();
    }
    file.sync().unwrap();
    file.fallocate(Fallocate::InsertRange, 2 * BLOCK..5 * BLOCK).unwrap();
    file.fallocate(Fallocate::CollapseRange, 0..BLOCK).unwrap();
    let bytes = file.read_all().unwrap();
    for (number, block) in bytes.chunks(BLOCK as usize).enumerate() {
        // The first block is gone, and three were put behind the hole that followed it.
        let before = number.checked_sub(4).map(|at| at + 2).filter(|at| at % 2 == 0);
        let value = before.map_or(0, |at| (at / 2) as u8 | 1);
        assert!(block.iter().all(|byte| *byte == value), "block {number}: {} {value}", block[0]);
    }
    let size = file.size();
    file.fallocate(Fallocate::ZeroRange { keep_size: true }, 0..size).unwrap();
    assert!(file.read_all().unwrap().iter().all(|byte| *byte == 0));
    file.sync().unwrap();
    let crashed = Arc::new(device.snapshot());
    drop(file);
    fs.unmount().unwrap();
    check(&device, "the end");
    let fs = mount(&crashed);
    assert!(fs.read("/file").unwrap().iter().all(|byte| *byte == 0));
    fs.unmount().unwrap();
    check(&crashed, "after a crash");
}
