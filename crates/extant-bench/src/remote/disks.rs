//! A qcow2 image against the same bytes in a raw file.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use extant_base::Prng;
use extant_block::{BlockDevice, FileDevice, SharedDevice};
use extant_qcow2::{How, create, open};
use extant_sync::{Clock, SystemClock};

use super::Plan;
use crate::report::{Series, add};
use crate::run::run;

/// Bytes of the disk.
const SIZE: u64 = 512 << 20;
const MIB: u64 = 1 << 20;
/// Bytes at once where the place is random.
const SMALL: u64 = 4096;
/// Random operations of a row.
const TIMES: u64 = 20_000;

pub(super) struct Disks {
    disks: Vec<(&'static str, SharedDevice)>,
    /// The image that is listed.
    tree: String,
}

impl Disks {
    /// Makes the two disks, all of them written, and an image of the plan's tree in a qcow2 file.
    pub(super) fn make(plan: &Plan, dir: &Path) -> Result<Disks> {
        let (raw, qcow2) = (dir.join("raw.img"), dir.join("disk.qcow2"));
        std::fs::File::create(&raw)?.set_len(SIZE)?;
        create(&qcow2, SIZE)?;
        let how = How { write: true, ..How::default() };
        let disks: Vec<(&str, SharedDevice)> = vec![
            ("extant, qcow2", open(&qcow2, &how)?.into_device()),
            ("raw", std::sync::Arc::new(FileDevice::open_read_write(&raw)?)),
        ];
        let piece = vec![0x5a; MIB as usize];
        // By turns: some pages of a machine's memory are twice as fast as others, and who comes first gets other ones.
        for at in (0..SIZE).step_by(MIB as usize) {
            for (_, disk) in &disks {
                disk.write_at(at, &piece)?;
            }
        }
        for (_, disk) in &disks {
            disk.flush()?;
        }
        let (image, tree) = (dir.join("tree.img"), dir.join("tree.qcow2"));
        let name = |path: &Path| path.to_string_lossy().into_owned();
        run(&plan.extant, &["build", &name(&image), "--from", &plan.source, "-q"])?;
        create(&tree, image.metadata()?.len())?;
        copy(&image, &tree)?;
        std::fs::remove_file(&image)?;
        Ok(Disks { disks, tree: name(&tree) })
    }

    pub(super) fn measure(&self, plan: &Plan, all: &mut Vec<Series>) -> Result<()> {
        let mut buffer = vec![0x5a; MIB as usize];
        let whole = SIZE as f64 / MIB as f64;
        self.row(all, "sequential read, 1 MiB", "MiB/s", whole, |disk| {
            let read = |at| disk.read_at(at, &mut buffer);
            Ok((0..SIZE).step_by(MIB as usize).try_for_each(read)?)
        })?;
        let (mut small, times) = (vec![0; SMALL as usize], TIMES as f64);
        self.row(all, "random read, 4 KiB", "/s", times, |disk| {
            let mut random = Prng::new(1);
            let mut places = (0..TIMES).map(|_| random.below(SIZE / SMALL) * SMALL);
            Ok(places.try_for_each(|at| disk.read_at(at, &mut small))?)
        })?;
        self.row(all, "sequential write, 1 MiB", "MiB/s", whole, |disk| {
            let write = |at| disk.write_at(at, &buffer);
            (0..SIZE).step_by(MIB as usize).try_for_each(write)?;
            Ok(disk.flush()?)
        })?;
        self.row(all, "random write, 4 KiB", "/s", times, |disk| {
            let mut random = Prng::new(2);
            let mut places = (0..TIMES).map(|_| random.below(SIZE / SMALL) * SMALL);
            places.try_for_each(|at| disk.write_at(at, &small))?;
            Ok(disk.flush()?)
        })?;
        let took = run(&plan.extant, &["ls", "-l", &self.tree])?.seconds;
        add(all, "ls in a qcow2 image, a cold process", "extant", "ms", took * 1000.0);
        Ok(())
    }

    /// Does `work`, of so many units, on each disk twice: the second time in the opposite order, as who comes first
    /// finds other caches.
    fn row(
        &self,
        all: &mut Vec<Series>,
        row: &str,
        unit: &'static str,
        units: f64,
        mut work: impl FnMut(&SharedDevice) -> Result<()>,
    ) -> Result<()> {
        let mut took = vec![0.0; self.disks.len()];
        let order = 0..self.disks.len();
        for at in order.clone().chain(order.rev()) {
            let (Some((_, disk)), Some(took)) = (self.disks.get(at), took.get_mut(at)) else {
                continue;
            };
            *took += timed(|| work(disk))?;
        }
        for ((name, _), took) in self.disks.iter().zip(took) {
            add(all, row, name, unit, 2.0 * units / took);
        }
        Ok(())
    }
}

/// Seconds that `work` takes.
pub(super) fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = SystemClock.monotonic();
    work()?;
    Ok(SystemClock.monotonic().saturating_sub(start).as_secs_f64())
}

/// Puts the bytes of a raw image into an empty qcow2 image.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let how = How { write: true, ..How::default() };
    let (from, to) = (FileDevice::open_read_only(from)?, open(to, &how)?.into_device());
    ensure!(from.size_bytes() <= to.size_bytes(), "the copy is too small");
    let mut piece = vec![0; MIB as usize];
    let mut at = 0;
    while at < from.size_bytes() {
        let len = MIB.min(from.size_bytes() - at) as usize;
        let piece = piece.get_mut(..len).context("a piece")?;
        from.read_at(at, piece)?;
        if piece.iter().any(|byte| *byte != 0) {
            to.write_at(at, piece)?;
        }
        at += len as u64;
    }
    Ok(to.flush()?)
}
