//! Images made to hurt: no panic, no endless loop, whatever the bytes.

use std::fs;
use std::num::NonZeroUsize;
use std::sync::Arc;

use extant_base::Prng;
use extant_block::{
    BlockDevice, DeviceError, DeviceFault, MemoryDevice, Operation, OperationKind, Pending,
};
use extant_check::{CheckError, CheckOptions, Problem, check};
use extant_testkit::{image, oracle, require, tempdir};

fn damage(good: &MemoryDevice, used: &[u64], random: &mut Prng, changes: u64) -> MemoryDevice {
    let device = good.snapshot();
    for _ in 0..changes {
        let block = used[random.below(used.len() as u64) as usize];
        let mut value = [0; 8];
        random.fill(&mut value);
        if random.one_in(3) {
            // Small numbers are more often believed.
            value = (random.below(4000)).to_le_bytes();
        }
        let len = 1 << random.below(4);
        let at = block * 1024 + random.below(1024 / len as u64) * len as u64;
        device.write_at(at, &value[..len]).unwrap();
    }
    device
}

/// What is found, and in which order, does not depend on the number of threads.
fn same_with_any_threads(device: &MemoryDevice, what: &str) {
    let found = [1, 2, 8].map(|threads| {
        let threads = NonZeroUsize::new(threads);
        let options = CheckOptions { threads, max_problems: usize::MAX, ..CheckOptions::default() };
        check(device, &options).map_err(|error| error.to_string())
    });
    assert_eq!(found[0], found[1], "{what}: 2 threads");
    assert_eq!(found[0], found[2], "{what}: 8 threads");
}

fn run(features: &[&str], rounds: u64, seed: u64) {
    let dir = tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("d/e")).unwrap();
    for number in 0..60 {
        fs::write(source.join(format!("d/{number:0100}")), []).unwrap();
    }
    fs::write(source.join("big"), vec![3; 300_000]).unwrap();
    let path = dir.path().join("good.img");
    let from = source.display().to_string();
    let arguments: Vec<&str> = features.iter().copied().chain(["-N128", "-d", &from]).collect();
    require!(oracle::mke2fs(&path, "2M", &arguments));
    let good = image::load(&path);
    let mut bytes = vec![0; good.size_bytes() as usize];
    good.read_at(0, &mut bytes).unwrap();
    let is_used = |block: &[u8]| block.iter().any(|byte| *byte != 0) && block[..9] != [3; 9];
    let blocks = bytes.chunks(1024).enumerate().filter(|(_, block)| is_used(block));
    let used: Vec<u64> = blocks.map(|(number, _)| number as u64).collect();
    let mut random = Prng::new(seed);
    let mut unclean = 0;
    for round in 0..rounds {
        let changes = 1 + random.below(60);
        let device = damage(&good, &used, &mut random, changes);
        if round % 3 == 0 {
            same_with_any_threads(&device, &format!("{features:?} {seed} {round}"));
        }
        match check(&device, &CheckOptions::default()) {
            Ok(report) => unclean += u64::from(!report.is_clean()),
            Err(CheckError::Device(e)) => panic!("{features:?} {seed} {round}: {e}"),
            Err(_) => unclean += 1,
        }
    }
    assert!(unclean > rounds / 2, "{unclean} of {rounds} unclean");
}

#[test]
fn nothing_panics() {
    run(&["-text2", "-b1024"], 300, 1);
    run(&["-text4", "-b1024", "-O^metadata_csum"], 300, 2);
    run(&["-text4", "-b1024", "-Oquota,inline_data"], 300, 3);
    // Eight groups, so that threads meet.
    run(&["-text4", "-b1024", "-g256", "-O^metadata_csum,^resize_inode"], 300, 4);
}

/// A device that cannot read some blocks.
struct Failing {
    below: MemoryDevice,
    blocks: Vec<u64>,
}

impl BlockDevice for Failing {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        self.below.submit(batch)
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn describe(&self) -> Arc<str> {
        self.below.describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let end = offset + out.len() as u64;
        if self.blocks.iter().any(|block| offset < (block + 1) * 1024 && block * 1024 < end) {
            let fault = DeviceFault::Io(std::io::Error::from_raw_os_error(5));
            let (kind, len) = (OperationKind::Read, out.len() as u64);
            return Err(DeviceError::new(self.describe(), kind, offset, len, fault));
        }
        self.below.read_at(offset, out)
    }
}

#[test]
fn blocks_that_cannot_be_read_are_named_and_the_rest_is_checked() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("d")).unwrap();
    for number in 0..60 {
        fs::write(source.join(format!("d/{number:0100}")), []).unwrap();
    }
    let from = source.display().to_string();
    let features = ["-text4", "-b1024", "-O^metadata_csum,^has_journal", "-N128", "-d", &from];
    require!(oracle::mke2fs(&path, "2M", &features));
    let blocks_of = |file: &str| -> Vec<u64> {
        let text = oracle::debugfs(&path, false, &format!("blocks {file}")).unwrap();
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let directory = blocks_of("/d")[3];
    let text = oracle::debugfs(&path, false, "imap /d").unwrap();
    let table = text.split("located at block ").nth(1).unwrap();
    let table: u64 = table.split([',', ' ']).next().unwrap().parse().unwrap();
    let good = image::load(&path);
    // Something else that is wrong: the state.
    good.write_at(1024 + 0x3a, &[0]).unwrap();
    for (block, what) in [(directory, "directory 12"), (table, "the inode table of group 0")] {
        let device = Failing { below: good.snapshot(), blocks: vec![block] };
        let strict = check(&device, &CheckOptions::default());
        assert!(matches!(strict, Err(CheckError::Device(_))), "{strict:?}");
        for threads in [1, 2] {
            let options = CheckOptions {
                threads: NonZeroUsize::new(threads),
                skip_unreadable: true,
                ..CheckOptions::default()
            };
            let report = check(&device, &options).unwrap();
            assert!(report.is_partial);
            let unread: Vec<_> = report.problems.iter().filter_map(unread).collect();
            assert_eq!(unread, [(block, what)], "{:?}", report.problems);
            assert!(report.problems.iter().any(|p| matches!(p, Problem::State { .. })));
            let is_count = |p: &Problem| matches!(p, Problem::GroupCount { .. });
            assert!(!report.problems.iter().any(is_count), "{:?}", report.problems);
        }
    }
}

fn unread(problem: &Problem) -> Option<(u64, &str)> {
    match problem {
        Problem::Unreadable { what, block, .. } => Some((block.0, what)),
        _ => None,
    }
}

#[test]
#[ignore = "minutes"]
fn nothing_panics_long() {
    run(&["-text2", "-b1024"], 20_000, 11);
    run(&["-text4", "-b1024", "-O^metadata_csum,quota"], 20_000, 12);
    run(&["-text4", "-b1024", "-Obigalloc,^has_journal,^metadata_csum"], 20_000, 13);
}
