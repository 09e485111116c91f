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
        for (_, disk) in &disks {
            for at in (0..SIZE).step_by(MIB as usize) {
                disk.write_at(at, &piece)?;
            }
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
        for (name, disk) in &self.disks {
            let took = timed(|| {
                (0..SIZE)
                    .step_by(MIB as usize)
                    .try_for_each(|at| disk.read_at(at, &mut buffer))
                    .map_err(Into::into)
            })?;
            add(all, "sequential read, 1 MiB", name, "MiB/s", whole / took);
        }
        for (name, disk) in &self.disks {
            let mut random = Prng::new(1);
            let small = buffer.get_mut(..SMALL as usize).context("a small buffer")?;
            let took = timed(|| {
                for _ in 0..TIMES {
                    disk.read_at(random.below(SIZE / SMALL) * SMALL, small)?;
                }
                Ok(())
            })?;
            add(all, "random read, 4 KiB", name, "/s", TIMES as f64 / took);
        }
        for (name, disk) in &self.disks {
            let took = timed(|| {
                for at in (0..SIZE).step_by(MIB as usize) {
                    disk.write_at(at, &buffer)?;
                }
                Ok(disk.flush()?)
            })?;
            add(all, "sequential write, 1 MiB", name, "MiB/s", whole / took);
        }
        for (name, disk) in &self.disks {
            let mut random = Prng::new(2);
            let small = buffer.get(..SMALL as usize).context("a small buffer")?;
            let took = timed(|| {
                for _ in 0..TIMES {
                    disk.write_at(random.below(SIZE / SMALL) * SMALL, small)?;
                }
                Ok(disk.flush()?)
            })?;
            add(all, "random write, 4 KiB", name, "/s", TIMES as f64 / took);
        }
        let took = run(&plan.extant, &["ls", "-l", &self.tree])?.seconds;
        add(all, "ls in a qcow2 image, a cold process", "extant", "ms", took * 1000.0);
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
