//! Images made to hurt: no panic, no endless loop, whatever the bytes.

use std::fs;

use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice};
use extant_check::{CheckError, CheckOptions, check};
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
}

#[test]
#[ignore = "minutes"]
fn nothing_panics_long() {
    run(&["-text2", "-b1024"], 20_000, 11);
    run(&["-text4", "-b1024", "-O^metadata_csum,quota"], 20_000, 12);
    run(&["-text4", "-b1024", "-Obigalloc,^has_journal,^metadata_csum"], 20_000, 13);
}
