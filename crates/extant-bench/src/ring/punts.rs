//! What a write costs that a worker does, against one that the submitter's thread does.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use extant::NewInode;
use extant::ring::{Op, Request};
use extant_base::Prng;
use extant_sync::{Clock, SystemClock};
use rustix::time::{ClockId, clock_gettime};

use super::{SEED, WRITE};
use crate::io::library::Library;
use crate::io::side::Volume;

/// Writes under way.
const DEPTH: usize = 64;
/// Files that are written to.
pub(super) const FILES: [u64; 2] = [1, 8];

/// Writes per second, and microseconds of processors for each.
pub(super) struct Rate {
    pub(super) per_second: f64,
    pub(super) cpu_micros: f64,
}

/// The time that all threads of this process have worked, in seconds.
fn worked() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Writes `count` blocks all over `files` files that are cached; each goes to a worker if they are to be
/// `forced`.
///
/// # Errors
///
/// Those of the file system; a write that was done by the wrong thread.
pub(super) fn measure(image: &Path, files: u64, count: u64, forced: bool) -> Result<Rate> {
    let library = Library::mount(image, count * WRITE as u64 * 4, false)?;
    let root = library.fs().root()?;
    let blocks = count.div_ceil(files);
    let mut all = Vec::new();
    for number in 0..files {
        let file = root.create(format!("punted{number}").as_str(), &NewInode::root(0o644))?;
        let piece = vec![0xA5; 64 * WRITE];
        for at in (0..blocks).step_by(64) {
            file.write_at(&piece, at * WRITE as u64)?;
        }
        all.push(file);
    }
    let ring = library.fs().ring(DEPTH)?;
    let mut random = Prng::new(SEED);
    let mut spare = vec![vec![0x5A; WRITE]; DEPTH];
    let (start, before) = (SystemClock.monotonic(), worked());
    let (mut begun, mut ended) = (0u64, 0u64);
    while ended < count {
        while begun < count && begun - ended < DEPTH as u64 {
            let offset = random.below(blocks) * WRITE as u64;
            let op = Op::Write { offset, bytes: spare.pop().context("a buffer was lost")? };
            let file = &all[(begun % files) as usize];
            begun += 1;
            let done = match forced {
                true => ring.submit_request(Request::new(begun, file, op).on_worker())?,
                false => ring.submit(begun, file, op)?,
            };
            if let Some(done) = done {
                ensure!(!forced && done.result? == WRITE as u64, "a worker was asked to");
                spare.push(done.buffer);
                ended += 1;
            }
        }
        let next = if ended == begun { None } else { ring.wait() };
        for done in next.into_iter().chain(std::iter::from_fn(|| ring.poll())) {
            ensure!(done.result? == WRITE as u64, "a short write");
            spare.push(done.buffer);
            ended += 1;
        }
    }
    let (time, work) = (SystemClock.monotonic() - start, worked() - before);
    drop((ring, all));
    for number in 0..files {
        root.unlink(format!("punted{number}").as_str())?;
    }
    drop(root);
    library.close()?;
    Ok(Rate {
        per_second: count as f64 / time.as_secs_f64(),
        cpu_micros: work * 1e6 / count as f64,
    })
}
