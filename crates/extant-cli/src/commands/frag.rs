//! `extant frag`: in how many pieces files and free space lie.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use extant::{FileKind, GroupIndex};
use rustc_hash::FxHashSet;
use serde_json::{Map, Value, json};

use crate::exit::{Exit, Result};
use crate::image::{Failures, Image, ImagesArgs};
use crate::output::{Out, put_bytes};
use crate::text::{counted, human_bytes};
use page::{Groups, Page};

mod page;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant frag root.img\n  extant frag --worst 50 --json root.img:/var\n  extant frag --html root.html root.img\n";

/// A jump for each of so many bytes is the worst score.
const WORST_PIECE: u64 = 64 << 10;

/// Show in how many pieces files and free space of images lie
///
/// Like filefrag for a whole tree and e2freefrag in one. A piece is a run of blocks that lie together on the
/// device and follow each other in the file; holes do not end one. The score is 0 when every file lies in
/// one piece, and 100 when reading them takes a jump for each 64 KiB. Free space is shown for whole images, not
/// for directories of them.
#[derive(Args, Debug)]
pub(crate) struct FragArgs {
    #[command(flatten)]
    images: ImagesArgs,
    /// Name the N files with the most pieces
    #[arg(long, value_name = "N", default_value_t = 10)]
    worst: u16,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Write a page for browsers, too, with a map of the block groups
    ///
    /// One file that needs no others and no scripts. A file of that name is not replaced.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &FragArgs) -> Result<Exit> {
    let mut page = args.html.as_deref().map(Page::create).transpose()?;
    let exit = args.images.each(|image| frag(args, image, page.as_mut()))?;
    page.map_or(Ok(()), Page::finish)?;
    Ok(exit)
}

/// How many things there are of each size, by powers of two.
#[derive(Default)]
struct Histogram {
    /// At n: of 2^n up to but not 2^(n + 1). Count, and sum.
    buckets: Vec<(u64, u64)>,
}

impl Histogram {
    fn add(&mut self, size: u64) {
        let at = size.max(1).ilog2() as usize;
        if self.buckets.len() <= at {
            self.buckets.resize(at + 1, (0, 0));
        }
        let (count, sum) = &mut self.buckets[at];
        *count += 1;
        *sum += size;
    }

    /// First and last size, how many, and their sum; without those that nothing has.
    fn rows(&self) -> impl Iterator<Item = (u64, u64, u64, u64)> {
        let rows = self.buckets.iter().enumerate().filter(|(_, (count, _))| *count > 0);
        rows.map(|(at, (count, sum))| (1 << at, (1 << at) * 2 - 1, *count, *sum))
    }
}

/// The free space of a file system, in blocks.
#[derive(Default)]
struct Free {
    runs: u64,
    blocks: u64,
    largest: u64,
    sizes: Histogram,
}

/// A file in several pieces: how many, its path, its bytes. Ordered by pieces; of equal ones the first path
/// is the greatest.
type Broken = (u64, Reverse<Vec<u8>>, u64);

/// The files below a directory.
#[derive(Default)]
pub(crate) struct Files {
    pub(crate) count: u64,
    pub(crate) pieces: u64,
    pub(crate) bytes: u64,
    /// Files of more than one piece.
    broken: u64,
    sizes: Histogram,
    /// Those with the most pieces, the one with the fewest on top.
    worst: BinaryHeap<Reverse<Broken>>,
}

impl Files {
    /// Counts a file; without blocks, not at all. At most so many of the `worst` are remembered.
    pub(crate) fn add(&mut self, path: &[u8], pieces: u64, bytes: u64, worst: usize) {
        if pieces == 0 {
            return;
        }
        self.count += 1;
        self.pieces += pieces;
        self.bytes += bytes;
        self.sizes.add(pieces);
        if pieces == 1 {
            return;
        }
        self.broken += 1;
        self.worst.push(Reverse((pieces, Reverse(path.to_vec()), bytes)));
        if self.worst.len() > worst {
            self.worst.pop();
        }
    }

    /// From 0 to 100.
    pub(crate) fn score(&self) -> u64 {
        let jumps = self.pieces - self.count;
        let most = self.bytes.div_ceil(WORST_PIECE).max(1);
        jumps.saturating_mul(100).div_ceil(most).min(100)
    }

    fn per_gib(&self) -> f64 {
        self.pieces as f64 * (1u64 << 30) as f64 / self.bytes.max(1) as f64
    }
}

fn frag(args: &FragArgs, image: &Image, page: Option<&mut Page>) -> Result<Exit> {
    let mut failures = Failures::default();
    let is_whole = image.path == b"/";
    let mut groups = Groups::new(image.fs.superblock().group_count);
    let free = is_whole.then(|| free_space(image, &mut groups, &mut failures));
    let files = look_at_files(args, image, &mut failures)?;
    let mut out = Out::new();
    let block_bytes = u64::from(image.fs.block_size().bytes());
    if let Some(page) = page {
        let free = free.as_ref().map(|free| (free, &groups));
        page.add(image.label(&image.path).as_bytes(), &files, free, block_bytes);
    }
    if args.json {
        let mut object = files_json(&files);
        if let Some(free) = &free {
            object.insert("free".into(), free_json(free, block_bytes));
        }
        put_bytes(&mut object, "path", &image.path);
        image.put_name(&mut object);
        out.json_pretty(&Value::Object(object))?;
    } else {
        if image.is_one_of_several {
            out.name(image.label(&image.path).as_bytes())?;
            writeln!(out, ":")?;
        }
        print_files(&mut out, &files)?;
        if let Some(free) = &free {
            writeln!(out)?;
            print_free(&mut out, free, block_bytes)?;
        }
    }
    out.flush()?;
    Ok(failures.exit())
}

/// Free space of all groups; runs that go on in the next group are one.
fn free_space(image: &Image, groups: &mut Groups, failures: &mut Failures) -> Free {
    let mut free = Free::default();
    let mut last = 0..0;
    let mut end = |run: std::ops::Range<u64>| {
        let len = run.end - run.start;
        if len > 0 {
            free.runs += 1;
            free.blocks += len;
            free.largest = free.largest.max(len);
            free.sizes.add(len);
        }
    };
    for group in (0..image.fs.superblock().group_count).map(GroupIndex) {
        let blocks = image.fs.superblock().group_blocks(group);
        let runs = match image.fs.free_runs(group) {
            Ok(runs) => runs,
            Err(error) => {
                groups.add(group.0, blocks, None);
                failures.report(&image.failure(b"/", error));
                continue;
            }
        };
        groups.add(group.0, blocks, Some(&runs));
        for run in runs {
            if run.start == last.end {
                last.end = run.end;
            } else {
                end(std::mem::replace(&mut last, run));
            }
        }
    }
    end(last);
    free
}

fn look_at_files(args: &FragArgs, image: &Image, failures: &mut Failures) -> Result<Files> {
    let mut files = Files::default();
    // Only those that have more names.
    let mut met = FxHashSet::default();
    let walk = image.fs.walk(&image.path).map_err(|error| image.failure(&image.path, error))?;
    // In an order that says which of its names a file is shown with.
    let walk = walk.sorted(true);
    for entry in walk {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                failures.report(&image.failure(&error.path, error.error));
                continue;
            }
        };
        let inode = entry.inode();
        let is_file = inode.kind() == FileKind::Regular;
        if !is_file || (inode.metadata().links > 1 && !met.insert(inode.ino().0)) {
            continue;
        }
        match inode.pieces() {
            Ok(found) => {
                let bytes = found.blocks.saturating_mul(u64::from(image.fs.block_size().bytes()));
                files.add(entry.path(), found.count, bytes, usize::from(args.worst));
            }
            Err(error) => failures.report(&image.failure(entry.path(), error)),
        }
    }
    Ok(files)
}

fn print_files(out: &mut Out, files: &Files) -> Result<()> {
    let files_text = counted(files.count, "file");
    let pieces = counted(files.pieces, "piece");
    writeln!(out, "{files_text} with {} in {pieces}", human_bytes(files.bytes))?;
    if files.count == 0 {
        return Ok(());
    }
    writeln!(out, "Score: {} of 100; {:.0} pieces per GiB", files.score(), files.per_gib())?;
    writeln!(out, "\n{:>24} {:>12}", "pieces", "files")?;
    for (first, last, count, _) in files.sizes.rows() {
        writeln!(out, "{:>24} {count:>12}", span(first, last))?;
    }
    if files.worst.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{:>8} {:>12}  file", "pieces", "size")?;
    for (pieces, path, bytes) in worst_first(files) {
        write!(out, "{pieces:>8} {:>12}  ", human_bytes(bytes))?;
        out.name(path)?;
        writeln!(out)?;
    }
    Ok(())
}

fn print_free(out: &mut Out, free: &Free, block_bytes: u64) -> Result<()> {
    let bytes = |blocks: u64| human_bytes(blocks.saturating_mul(block_bytes));
    let runs = counted(free.runs, "piece");
    writeln!(out, "{} free in {runs}, the largest of {}", bytes(free.blocks), bytes(free.largest))?;
    if free.runs == 0 {
        return Ok(());
    }
    writeln!(out, "\n{:>24} {:>12} {:>12} {:>7}", "size", "pieces", "in all", "share")?;
    for (first, last, count, sum) in free.sizes.rows() {
        let size = format!("{} to {}", bytes(first), bytes(last));
        let share = sum as f64 * 100.0 / free.blocks.max(1) as f64;
        writeln!(out, "{size:>24} {count:>12} {:>12} {share:>6.1}%", bytes(sum))?;
    }
    Ok(())
}

fn span(first: u64, last: u64) -> String {
    if first == last { first.to_string() } else { format!("{first} to {last}") }
}

fn worst_first(files: &Files) -> Vec<(u64, &[u8], u64)> {
    let mut worst: Vec<_> = files.worst.iter().map(|Reverse(file)| file).collect();
    worst.sort_by(|a, b| b.cmp(a));
    worst.into_iter().map(|(pieces, Reverse(path), bytes)| (*pieces, &path[..], *bytes)).collect()
}

fn files_json(files: &Files) -> Map<String, Value> {
    let mut object = Map::new();
    let sizes = files.sizes.rows();
    let sizes: Vec<Value> = sizes
        .map(|(first, last, count, _)| {
            json!({ "pieces_from": first, "pieces_to": last, "files": count })
        })
        .collect();
    let worst: Vec<Value> = worst_first(files)
        .into_iter()
        .map(|(pieces, path, bytes)| {
            let mut object = Map::new();
            put_bytes(&mut object, "path", path);
            object.insert("pieces".into(), pieces.into());
            object.insert("bytes".into(), bytes.into());
            Value::Object(object)
        })
        .collect();
    object.insert("files".into(), files.count.into());
    object.insert("broken_files".into(), files.broken.into());
    object.insert("pieces".into(), files.pieces.into());
    object.insert("bytes".into(), files.bytes.into());
    object.insert("score".into(), files.score().into());
    object.insert("histogram".into(), sizes.into());
    object.insert("worst".into(), worst.into());
    object
}

fn free_json(free: &Free, block_bytes: u64) -> Value {
    let bytes = |blocks: u64| blocks.saturating_mul(block_bytes);
    let sizes: Vec<Value> = free
        .sizes
        .rows()
        .map(|(first, last, count, sum)| {
            json!({
                "bytes_from": bytes(first),
                "bytes_to": bytes(last),
                "pieces": count,
                "bytes": bytes(sum),
            })
        })
        .collect();
    json!({
        "bytes": bytes(free.blocks),
        "pieces": free.runs,
        "largest_bytes": bytes(free.largest),
        "histogram": sizes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_counts_jumps_for_each_64_kib() {
        let mut files = Files::default();
        assert_eq!(files.score(), 0);
        files.add(b"/whole", 1, 100 << 20, 10);
        files.add(b"/empty", 0, 0, 10);
        assert_eq!((files.score(), files.count, files.broken), (0, 1, 0));
        files.add(b"/broken", 801, 0, 10);
        assert_eq!(files.score(), 50);
        files.add(b"/dust", 100_000, 0, 10);
        assert_eq!(files.score(), 100);
    }

    #[test]
    fn only_the_worst_files_are_kept_and_the_first_of_equal_ones() {
        let mut files = Files::default();
        for (path, pieces) in [(b"/b", 5), (b"/c", 9), (b"/a", 5), (b"/d", 2)] {
            files.add(path, pieces, 4096, 2);
        }
        assert_eq!(worst_first(&files), [(9, &b"/c"[..], 4096), (5, b"/a", 4096)]);
        files.add(b"/e", 7, 1, 0);
        assert!(files.worst.len() <= 2);
    }

    #[test]
    fn sizes_are_counted_by_powers_of_two() {
        let mut sizes = Histogram::default();
        [1, 2, 3, 4, 1000, 1023, 1024].into_iter().for_each(|size| sizes.add(size));
        let rows: Vec<_> = sizes.rows().collect();
        assert_eq!(
            rows,
            [(1, 1, 1, 1), (2, 3, 2, 5), (4, 7, 1, 4), (512, 1023, 2, 2023), (1024, 2047, 1, 1024)]
        );
    }
}
