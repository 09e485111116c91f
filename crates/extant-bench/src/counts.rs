//! Instructions of hot paths: one kind of operation, so many times, for a program that counts instructions.
//!
//! Seconds on a machine that others use differ by more than a mistake costs; instructions of one thread over memory do not.
//! `scripts/counts` runs this under valgrind, with few and with many turns, and divides the difference.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use extant::{Fallocate, FixedClock, Fs, MemoryDevice, MountOptions, NewInode, SharedDevice};
use extant_base::Prng;
use extant_format::checksum::crc32c;
use extant_image::Build;

const BLOCK: usize = 4096;
/// Blocks of the file that is read and overwritten.
const BLOCKS: u64 = 1024;
/// Names that are looked up.
const NAMES: u64 = 1024;
const NEW: NewInode = NewInode { permissions: 0o644, uid: 0, gid: 0 };

/// The operations, by their names.
pub const ROWS: [&str; 7] =
    ["read-4k", "write-4k", "ring-write-4k", "fallocate-append", "create", "lookup", "checksum-4k"];

/// A file system in memory that does the same each time: no threads, one clock, one seed.
fn mounted() -> Result<Fs> {
    const BYTES: u64 = 1 << 30;
    let device = Arc::new(MemoryDevice::new(BYTES));
    Build::empty()
        .size(BYTES)
        .reproducible(1_700_000_000)
        .threads(1)
        .write_to_device(&*device, true)?;
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    let device: SharedDevice = device;
    Ok(options.open_shared(device)?)
}

/// Does the operation of `row` so many times.
pub fn run(row: &str, turns: u64) -> Result<()> {
    let mut block = vec![0xA5; BLOCK];
    if row == "checksum-4k" {
        let sum = (0..turns).fold(0, |sum, _| crc32c(sum, &block));
        ensure!(turns == 0 || sum != 0, "a checksum of nothing");
        return Ok(());
    }
    let fs = mounted()?;
    let root = fs.root()?;
    let file = root.create("file", &NEW)?;
    for at in 0..BLOCKS {
        file.write_at(&block, at * BLOCK as u64)?;
    }
    for name in 0..NAMES {
        root.create(format!("name-{name}"), &NEW)?;
    }
    fs.sync()?;
    let mut random = Prng::new(7);
    let mut place = || random.below(BLOCKS) * BLOCK as u64;
    match row {
        "read-4k" => {
            for _ in 0..turns {
                ensure!(file.read_at(&mut block, place())? == BLOCK, "a short read");
            }
        }
        "write-4k" => {
            for _ in 0..turns {
                ensure!(file.write_at(&block, place())? == BLOCK, "a short write");
            }
        }
        "ring-write-4k" => {
            let ring = fs.ring(1)?;
            for tag in 0..turns {
                let done =
                    ring.submit_write(tag, &file, &block, place()).context("the ring is full")?;
                ensure!(done.context("a worker has it")?? == BLOCK as u64, "a short write");
            }
        }
        "fallocate-append" => {
            const PIECE: u64 = 64 << 10;
            let file = root.create("grows", &NEW)?;
            for at in 0..turns {
                let range = at * PIECE..(at + 1) * PIECE;
                file.fallocate(Fallocate::Allocate { keep_size: false }, range)?;
            }
        }
        "create" => {
            for name in 0..turns {
                root.create(format!("new-{name}"), &NEW)?;
            }
        }
        "lookup" => {
            for turn in 0..turns {
                root.lookup(format!("name-{}", turn % NAMES))?;
            }
        }
        _ => bail!("no row {row}: there are {}", ROWS.join(" ")),
    }
    drop((file, root));
    // Nothing is ended: what that costs depends on the turns as well.
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::env;
    use std::path::Path;
    use std::process::Command;

    use extant_sync::threads;
    use extant_testkit::skip;

    use super::*;

    /// Turns of a row that is counted. All rows but one begin with the same file system, which is counted alone.
    const TURNS: u64 = 200;
    /// How far a row may be from what is stored, as a share of it, and in instructions. What is built by increments is
    /// cut into smaller units, across which less is inlined: it has up to a tenth more, in other places each time.
    const TOLERANCE: f64 = if IS_INCREMENTAL { 0.15 } else { 0.04 };
    const SLACK: f64 = 20.0;
    const IS_INCREMENTAL: bool = match option_env!("CARGO_INCREMENTAL") {
        Some(value) => !matches!(value.as_bytes(), b"0"),
        None => true,
    };

    #[test]
    fn each_row_runs_and_others_are_refused() {
        for row in ROWS {
            run(row, 50).unwrap();
        }
        assert!(run("nonsense", 1).is_err());
    }

    #[test]
    #[ignore = "what the test below counts"]
    fn one_row() {
        let Some((row, turns)) =
            env::var("EXTANT_COUNTS_ROW").ok().zip(env::var("EXTANT_COUNTS_TURNS").ok())
        else {
            skip!("no row was asked for");
        };
        run(&row, turns.parse().unwrap()).unwrap();
    }

    /// Instructions of this program, with so many turns of a row.
    fn counted(row: &str, turns: u64) -> f64 {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        valgrind.arg(env::current_exe().unwrap());
        valgrind.args(["--exact", "counts::tests::one_row", "--include-ignored", "--nocapture"]);
        valgrind.env("EXTANT_COUNTS_ROW", row).env("EXTANT_COUNTS_TURNS", turns.to_string());
        let done = valgrind.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{row}: {said}");
        let count =
            said.lines().find_map(|line| line.split_once("Collected : ")).map(|(_, count)| count);
        count.unwrap_or_else(|| panic!("{row}: {said}")).trim().parse().unwrap()
    }

    /// In the profile of tests, with all its checks: what `scripts/counts` counts in the one that is installed.
    #[test]
    fn instructions_of_hot_paths_are_as_stored() {
        if Command::new("valgrind").arg("--version").output().is_err() {
            skip!("there is no valgrind");
        }
        let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("counts-dev.json");
        let jobs: Vec<_> = ROWS
            .iter()
            .map(|row| (*row, TURNS))
            .chain([("lookup", 0), ("checksum-4k", 0)])
            .collect();
        let half = |which: usize| {
            let mine = jobs.iter().skip(which).step_by(2);
            mine.map(|(row, turns)| (*row, *turns, counted(row, *turns))).collect::<Vec<_>>()
        };
        let counts = threads::workers("valgrind", 2, half).unwrap().concat();
        let none = |row: &str| {
            let of = if row == "checksum-4k" { row } else { "lookup" };
            counts.iter().find(|(row, turns, _)| (*row, *turns) == (of, 0)).unwrap().2
        };
        let each = |(row, _, count): &(&str, u64, f64)| {
            (row.to_string(), ((count - none(row)) / TURNS as f64).round())
        };
        let now: BTreeMap<String, f64> =
            counts.iter().filter(|count| count.1 > 0).map(each).collect();
        if env::var_os("EXTANT_BLESS").is_some() {
            std::fs::write(&stored, serde_json::to_string_pretty(&now).unwrap() + "\n").unwrap();
        }
        let then: BTreeMap<String, f64> =
            serde_json::from_slice(&std::fs::read(&stored).unwrap()).unwrap();
        let differs = |(row, now): &(&String, &f64)| {
            then.get(*row).is_none_or(|then| (*now - then).abs() > (then * TOLERANCE).max(SLACK))
        };
        let differing: Vec<_> = now.iter().filter(differs).map(|(row, _)| row).collect();
        assert!(
            differing.is_empty(),
            "{differing:?} are not as stored\nstored {then:?}\nnow    {now:?}\n\
             if that is meant: CARGO_INCREMENTAL=0 EXTANT_BLESS=1 cargo test -p extant-bench counts"
        );
    }
}
