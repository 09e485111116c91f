//! Checking images: `extant check` against `e2fsck -fn`, and against reading the same bytes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use extant_base::Prng;
use extant_block::{BlockDevice, DeviceError, FileDevice, Operation, Pending};
use extant_sync::{Clock, Mutex, Rank, SystemClock};

use crate::read::header;
use crate::report::{Series, add};
use crate::run::{find, run, run_with_memory};

/// Entries of each directory.
const FILES_PER_DIR: u32 = 500;
/// Bytes read at once by the limit.
const CHUNK: u64 = 1 << 20;
/// Files of the large image, and the space of each in GiB: 4 TiB together.
const LARGE_FILES: u32 = 64;
const LARGE_GIB: u32 = 64;

/// What is measured, and where.
pub struct Plan {
    /// The command.
    pub extant: String,
    /// How many rounds.
    pub rounds: u32,
    /// Files of the two images of small files.
    pub files: [u32; 2],
    /// Size of the image of large files.
    pub size: String,
}

/// An image and its name in the table.
struct Image {
    row: String,
    path: String,
}

/// Makes the images in `dir` and measures all rows, round by round.
///
/// # Errors
///
/// When an image cannot be made or is not clean.
pub fn measure(plan: &Plan, dir: &Path) -> Result<Vec<Series>> {
    let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let mut images = Vec::new();
    for files in plan.files {
        let (tar, path) = (at("tar"), at(&format!("files-{files}")));
        write_tar(Path::new(&tar), files)?;
        run(&plan.extant, &["build", &path, "--from", &tar, "-q"])?;
        std::fs::remove_file(&tar)?;
        images.push(Image { row: format!("{files} files"), path });
    }
    let path = at("large");
    run(&plan.extant, &["mkfs", &path, &plan.size, "-q"])?;
    for number in 0..LARGE_FILES {
        let (length, name) = (format!("{LARGE_GIB}G"), format!("{path}:/large{number}"));
        run(&plan.extant, &["fallocate", "-l", &length, &name])?;
    }
    images.push(Image { row: format!("{}, {LARGE_FILES} large files", plan.size), path });

    let fsck = find("e2fsck");
    if fsck.is_none() {
        println!("e2fsck is not installed: left out");
    }
    let ranges: Vec<Vec<(u64, u64)>> =
        images.iter().map(|image| ranges_of(&image.path)).collect::<Result<_>>()?;
    let mut all = Vec::new();
    for _ in 0..plan.rounds {
        if let Some(smallest) = images.first() {
            crate::change::measure(&plan.extant, &smallest.path, &mut all)?;
        }
        for (image, ranges) in images.iter().zip(&ranges) {
            let mut one = |target: &str, program: &str, args: &[&str]| -> Result<()> {
                let measured = run_with_memory(program, args)?;
                add(&mut all, &image.row, target, "s", measured.seconds);
                if let Some(peak) = measured.peak_mib {
                    add(&mut all, &format!("{}: memory", image.row), target, "MiB", peak);
                }
                Ok(())
            };
            one("extant", &plan.extant, &["check", "-q", &image.path])?;
            one("extant, 1 thread", &plan.extant, &["check", "-q", "--threads=1", &image.path])?;
            if let Some(fsck) = &fsck {
                one("e2fsck -fn", fsck, &["-fn", &image.path])?;
            }
            add(&mut all, &image.row, "pread", "s", read_all(&image.path, ranges)?);
        }
    }
    Ok(all)
}

/// Writes a tar archive of files in directories of some hundred: one of four has contents, of up to
/// 16 KiB.
pub(crate) fn write_tar(path: &Path, files: u32) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut random = Prng::new(1);
    let contents = vec![b'x'; 16 << 10];
    for number in 0..files {
        let dir = number / FILES_PER_DIR;
        if number % FILES_PER_DIR == 0 {
            out.write_all(&header(&format!("d{dir}/"), b'5', 0)?)?;
        }
        let len = if random.one_in(4) { random.below(contents.len() as u64) } else { 0 };
        out.write_all(&header(&format!("d{dir}/file-{number:07}"), b'0', len)?)?;
        let padded = usize::try_from(len.next_multiple_of(512))?;
        out.write_all(contents.get(..padded).context("too long")?)?;
    }
    out.write_all(&[0; 1024])?;
    Ok(out.flush()?)
}

/// A device that notes what is read.
struct Noting {
    below: FileDevice,
    ranges: Mutex<Vec<(u64, u64)>>,
}

impl BlockDevice for Noting {
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
        self.ranges.lock().push((offset, offset + out.len() as u64));
        self.below.read_at(offset, out)
    }
}

/// The bytes that a check reads, in order of address, each once, in pieces of at most 1 MiB.
fn ranges_of(path: &str) -> Result<Vec<(u64, u64)>> {
    let below = FileDevice::open_read_only(path)?;
    let device = Noting { below, ranges: Mutex::new(Rank::Leaf, Vec::new()) };
    let options = extant_check::CheckOptions::default();
    let report = extant_check::check(&device, &options)?;
    ensure!(report.is_clean(), "{path}: {:?}", report.problems);
    let mut ranges = device.ranges.into_inner();
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    let pieces = joined.into_iter().flat_map(|(start, end)| {
        let starts = (start..end).step_by(CHUNK as usize);
        starts.map(move |at| (at, end.min(at + CHUNK)))
    });
    Ok(pieces.collect())
}

/// Seconds that reading takes, on one thread.
fn read_all(path: &str, ranges: &[(u64, u64)]) -> Result<f64> {
    let file = File::open(path)?;
    let mut buffer = vec![0; CHUNK as usize];
    let clock = SystemClock;
    let start = clock.monotonic();
    for (from, to) in ranges {
        let out = buffer.get_mut(..usize::try_from(to - from)?).context("too long")?;
        file.read_exact_at(out, *from)?;
    }
    Ok(clock.monotonic().saturating_sub(start).as_secs_f64())
}
