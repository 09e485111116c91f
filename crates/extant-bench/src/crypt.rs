//! What encryption costs where contents pass through it: into the cache, out of it, and beside it.
//!
//! One image with a plain directory and one for each mode, each with a file for each thread; the cipher alone, on
//! memory; the same calls on all of them.
//!
//! - *cached*: read again what is in the cache, where it is plaintext.
//! - *cold*: read after the cache was emptied; the image is in memory, so the device is a copy.
//! - *writeback*: from a cache that has all of it to a sync that has it on the device.
//! - *written*: that, and the copy into the cache before.
//!
//! Threads work side by side, each on its own file; the rate is that of all together.
//!
//! What is compared: one stream, for which both processors may work, with one thread of the cipher on memory. Two streams
//! keep both processors busy already, so they are compared with what is left when the bytes go through the plain way and
//! the cipher one after the other, by as many threads: 1 / (1 / plain + 1 / cipher).

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use extant::{ContentsMode, EncryptionPolicy, Inode, MasterKey, MountOptions, NamesMode, NewInode};
use extant_crypt::{ContentsCipher, Context as PolicyContext, Place};
use extant_sync::{Clock, SystemClock, threads};

use crate::io::kernel;
use crate::io::library::Library;
use crate::io::side::Volume as _;
use crate::report::{self, Series, add};
use crate::stop;

/// Bytes of one call.
const CHUNK: usize = 1 << 20;
/// Bytes of a small call, for what is cached.
const SMALL: usize = 4096;
/// What one stream must reach of the rate of one thread of the cipher, both ways.
const SHARE_LEAST: f64 = 0.7;
/// What as many streams as processors must reach of what both ways one after the other leave.
const BOTH_LEAST: f64 = 0.85;
/// What cached reads of encrypted files must reach of those of plain ones: as fast, but for the noise.
const CACHED_LEAST: f64 = 0.97;
/// Threads of the columns.
const THREADS: [usize; 2] = [1, 2];

/// What is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Rounds of the table.
    pub rounds: u32,
    /// Bytes of a file: a multiple of 1 MiB.
    pub file_bytes: u64,
    /// Only rows whose name has one of these in it; all when empty.
    pub rows: Vec<String>,
}

/// A directory, and how it is encrypted.
struct Mode {
    name: &'static str,
    policy: Option<EncryptionPolicy>,
}

fn key() -> Result<MasterKey> {
    let bytes: [u8; 64] = std::array::from_fn(|at| at as u8);
    MasterKey::new(&bytes).context("a key of 64 bytes")
}

fn modes() -> Result<[Mode; 3]> {
    let usual = EncryptionPolicy::new(key()?.identifier());
    let adiantum =
        EncryptionPolicy { contents: ContentsMode::Adiantum, names: NamesMode::Adiantum, ..usual };
    Ok([
        Mode { name: "plain", policy: None },
        Mode { name: "aes256", policy: Some(usual) },
        Mode { name: "adiantum", policy: Some(adiantum) },
    ])
}

/// A rate of threads that move `each` bytes from the first one's begin to the last one's end, in MiB/s.
fn rate(count: usize, each: u64, work: impl Fn(usize) -> Result<()> + Sync) -> Result<f64> {
    stop::check()?;
    let clock = SystemClock;
    let spans = threads::workers("crypt", count, |index| -> Result<(Duration, Duration)> {
        let began = clock.monotonic();
        work(index)?;
        Ok((began, clock.monotonic()))
    })?;
    let spans = spans.into_iter().collect::<Result<Vec<_>>>()?;
    let began = spans.iter().map(|(began, _)| *began).min().unwrap_or_default();
    let ended = spans.iter().map(|(_, ended)| *ended).max().unwrap_or_default();
    let seconds = ended.saturating_sub(began).as_secs_f64();
    Ok((each * count as u64) as f64 / f64::from(1 << 20) / seconds)
}

/// The cipher alone, on memory that stays in the processor's cache as little as a file would.
fn cipher(mode: &Mode, encrypts: bool, count: usize, bytes: u64) -> Result<Option<f64>> {
    let Some(policy) = mode.policy else { return Ok(None) };
    let place = Place { ino: 12, uuid: [3; 16], is_stable: false, block_log2: 12 };
    let context = PolicyContext { policy, nonce: [7; 16] };
    let cipher = ContentsCipher::new(&key()?, &context, &place)?;
    let rate = rate(count, bytes, |_| {
        let mut buffer = vec![1; CHUNK];
        for at in (0..bytes).step_by(CHUNK) {
            match encrypts {
                true => cipher.encrypt(at, black_box(&mut buffer)),
                false => cipher.decrypt(at, black_box(&mut buffer)),
            }
        }
        Ok(())
    });
    rate.map(Some)
}

fn pattern(index: usize) -> Vec<u8> {
    (0..CHUNK).map(|at| (at * 7 + at / 4096 + index) as u8).collect()
}

fn read(file: &Inode, bytes: u64, chunk: usize) -> Result<()> {
    let mut buffer = vec![0; chunk];
    for at in (0..bytes).step_by(chunk) {
        let got = file.read_at(&mut buffer, at)?;
        ensure!(got == chunk, "{got} of {chunk} bytes read at {at}");
        black_box(&mut buffer);
    }
    Ok(())
}

fn write(file: &Inode, bytes: u64, index: usize) -> Result<()> {
    let buffer = pattern(index);
    for at in (0..bytes).step_by(CHUNK) {
        let put = file.write_at(black_box(&buffer), at)?;
        ensure!(put == CHUNK, "{put} of {CHUNK} bytes written at {at}");
    }
    Ok(())
}

/// The contents are what was written: the first, the last and a middle chunk.
fn verify(file: &Inode, bytes: u64, index: usize) -> Result<()> {
    let (mut buffer, wanted) = (vec![0; CHUNK], pattern(index));
    for at in [0, bytes / 2 / CHUNK as u64 * CHUNK as u64, bytes - CHUNK as u64] {
        file.read_at(&mut buffer, at)?;
        ensure!(buffer == wanted, "what is read at {at} is not what was written");
    }
    Ok(())
}

/// Rows of one mode and number of threads.
fn rows(
    library: &Library,
    mode: &Mode,
    count: usize,
    settings: &Settings,
    mut found: impl FnMut(&str, f64),
) -> Result<()> {
    let has = |name: &str| {
        settings.rows.is_empty()
            || settings.rows.iter().any(|wanted| name.contains(wanted.as_str()))
    };
    let bytes = settings.file_bytes;
    for (name, encrypts) in [("cipher, encrypt", true), ("cipher, decrypt", false)] {
        if let (true, Some(rate)) = (has(name), cipher(mode, encrypts, count, bytes)?) {
            found(name, rate);
        }
    }
    let fs = library.fs();
    let dir = fs.root()?.lookup(mode.name)?;
    let new = NewInode::root(0o644);
    let files = (0..count)
        .map(|index| Ok(dir.create(format!("file{index}"), &new)?))
        .collect::<Result<Vec<Inode>>>()?;
    let copied = rate(count, bytes, |index| write(&files[index], bytes, index))?;
    let stored = rate(count, bytes, |index| Ok(files[index].sync_data()?))?;
    if has("written") {
        found("written", 1.0 / (1.0 / copied + 1.0 / stored));
        found("writeback", stored);
    }
    if has("cold") {
        fs.drop_cached();
        found("cold", rate(count, bytes, |index| read(&files[index], bytes, CHUNK))?);
    }
    for (index, file) in files.iter().enumerate() {
        verify(file, bytes, index)?;
        read(file, bytes, CHUNK)?;
    }
    for (name, chunk) in [("cached, 1M", CHUNK), ("cached, 4K", SMALL)] {
        if has(name) {
            found(name, rate(count, bytes, |index| read(&files[index], bytes, chunk))?);
        }
    }
    drop(files);
    for index in 0..count {
        dir.unlink(format!("file{index}"))?;
    }
    fs.sync()?;
    Ok(())
}

/// Runs the table on an image in `dir`, prints it, and writes `target/bench/crypt.json`.
///
/// # Errors
///
/// Errors of the library; contents that are not what was written; a signal.
pub fn run(dir: &Path, settings: &Settings) -> Result<()> {
    ensure!(
        settings.file_bytes > 0 && settings.file_bytes.is_multiple_of(CHUNK as u64),
        "the size of a file is a multiple of 1 MiB, not {}",
        settings.file_bytes
    );
    let modes = modes()?;
    let most = THREADS.into_iter().max().unwrap_or(1) as u64;
    let image = dir.join("crypt.img");
    kernel::zeros(&image, (most + 1) * settings.file_bytes + (256 << 20))?;
    kernel::make_ext4_with(&image, "encrypt")?;
    let mut all = Vec::new();
    for round in 0..settings.rounds {
        let options = MountOptions::new().key(key()?);
        // Nothing is written back before the sync.
        let cache_bytes = (most + 2) * settings.file_bytes;
        let library = Library::mount_with(&image, options, cache_bytes)?;
        for mode in &modes {
            if round == 0 {
                let made = library.fs().root()?.mkdir(mode.name, &NewInode::root(0o755))?;
                if let Some(policy) = &mode.policy {
                    made.set_encryption_policy(policy)?;
                }
            }
        }
        // The cache has its memory from the first round on, as a program that runs for a while.
        for count in THREADS {
            for at in 0..modes.len() {
                let mode = &modes[(at + round as usize) % modes.len()];
                rows(&library, mode, count, settings, |name, rate| {
                    add(&mut all, &format!("{name}, {count}"), mode.name, "MiB/s", rate);
                })?;
            }
        }
        library.close()?;
        println!("round {} of {}", round + 1, settings.rounds);
    }
    kernel::check_ext4(&image)?;
    report::report("crypt", "plain", &all)?;
    print_shares(&all);
    Ok(())
}

/// What is left of the cipher's rate on the way to the device and back.
fn print_shares(all: &[Series]) {
    let median = |row: &str, target: &str| {
        let found = all.iter().find(|series| series.row == row && series.target == target);
        found.map(Series::median).filter(|median| *median > 0.0)
    };
    for mode in ["aes256", "adiantum"] {
        for count in THREADS {
            for (row, cipher) in [("writeback", "cipher, encrypt"), ("cold", "cipher, decrypt")] {
                let row = format!("{row}, {count}");
                let cipher = median(&format!("{cipher}, {count}"), mode);
                let (Some(rate), Some(plain), Some(cipher)) =
                    (median(&row, mode), median(&row, "plain"), cipher)
                else {
                    continue;
                };
                let both = 1.0 / (1.0 / plain + 1.0 / cipher);
                let (share, least, what) = match count {
                    1 => (rate / cipher, SHARE_LEAST, "of one thread of the cipher"),
                    _ => (rate / both, BOTH_LEAST, "of the plain way and the cipher in turn"),
                };
                let word = if share >= least { "reached" } else { "missed" };
                println!("{mode}, {row}: {share:.2} {what} ({least}: {word})");
            }
            for row in ["cached, 1M", "cached, 4K"] {
                let row = format!("{row}, {count}");
                let (Some(rate), Some(plain)) = (median(&row, mode), median(&row, "plain")) else {
                    continue;
                };
                let word = if rate / plain >= CACHED_LEAST { "reached" } else { "missed" };
                println!("{mode}, {row}: {:.2} of plain ({CACHED_LEAST}: {word})", rate / plain);
            }
        }
    }
}
