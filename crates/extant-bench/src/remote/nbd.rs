//! A disk behind nbdkit, on a socket of this host.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use extant::{MountOptions, NewInode};
use extant_base::Prng;
use extant_block::{AlignedBuffer, BlockDevice, Operation, QueueOptions, Wait};
use extant_nbd::{Address, NbdDevice, Settings};
use extant_sync::{Clock, SystemClock};

use super::Plan;
use super::disks::timed;
use crate::report::{Series, add};
use crate::run::{find, run};

const SIZE: u64 = 256 << 20;
const BLOCK: u64 = 4096;
const DEPTH: usize = 64;
/// How long each contender reads.
const SPAN: Duration = Duration::from_secs(2);
/// Bytes that are written before each flush, and how often.
const WRITTEN: u64 = 1 << 20;
const FLUSHES: u64 = 64;

pub(super) struct Nbdkit {
    child: Child,
    address: String,
    fio: Option<String>,
    /// A file system as large as the disk.
    image: File,
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Nbdkit {
    /// `None`, with a line about it, where nbdkit is missing.
    pub(super) fn start(plan: &Plan, dir: &Path) -> Result<Option<Nbdkit>> {
        let Some(program) = find("nbdkit") else {
            println!("nbdkit is not installed: the rows of NBD are left out");
            return Ok(None);
        };
        let image = dir.join("nbd.img");
        let name = image.to_string_lossy();
        run(&plan.extant, &["mkfs", &name, &format!("{}M", SIZE >> 20), "-q"])?;
        let image = File::open(&image)?;
        let socket = dir.join("nbd");
        let mut command = Command::new(program);
        command.args(["-f", "-U"]).arg(&socket).args(["memory", &SIZE.to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let address = format!("nbd+unix:///?socket={}", socket.display());
        let fio = find("fio").filter(|fio| run(fio, &["--enghelp=nbd"]).is_ok());
        if fio.is_none() {
            println!("fio has no engine for NBD here: left out");
        }
        let server = Nbdkit { child, address, fio, image };
        for _ in 0..500 {
            if socket.exists() {
                return Ok(Some(server));
            }
            SystemClock.sleep(Duration::from_millis(10));
        }
        bail!("nbdkit does not come up")
    }

    fn open(&self) -> Result<NbdDevice> {
        Ok(NbdDevice::open(&Address::parse(&self.address)?, false, Settings::default())?)
    }

    pub(super) fn measure(&self, all: &mut Vec<Series>) -> Result<()> {
        let row = "NBD: random read, 4 KiB, depth 64";
        let device = self.open()?;
        if all.iter().all(|series| series.row != row) {
            let piece = vec![0x5a; 1 << 20];
            for at in (0..SIZE).step_by(piece.len()) {
                device.write_at(at, &piece)?;
            }
            device.flush()?;
        }
        add(all, row, "extant", "/s", read(&device)?);
        if let Some(fio) = &self.fio {
            add(all, row, "fio, engine nbd", "/s", self.reads_by_fio(fio)?);
        }
        let piece = vec![0x6b; WRITTEN as usize];
        let (row, unit) = ("NBD: 1 MiB written and flushed", "ms");
        let each = |took: f64| took * 1000.0 / FLUSHES as f64;
        let took = timed(|| {
            for number in 0..FLUSHES {
                device.write_at(number * WRITTEN, &piece)?;
                device.flush()?;
            }
            Ok(())
        })?;
        add(all, row, "extant, the device", unit, each(took));
        if let Some(fio) = &self.fio {
            add(all, row, "fio, engine nbd", unit, each(self.writes_by_fio(fio)?));
        }
        drop(device);
        add(all, row, "extant", unit, each(self.writes_to_file(&piece)?));
        Ok(())
    }

    /// Appends to a file and syncs it, through the page cache and the journal: the seconds.
    fn writes_to_file(&self, piece: &[u8]) -> Result<f64> {
        let device = self.open()?;
        let mut part = vec![0; 1 << 20];
        for at in (0..SIZE).step_by(part.len()) {
            self.image.read_exact_at(&mut part, at)?;
            device.write_at(at, &part)?;
        }
        device.flush()?;
        let fs = MountOptions::new().read_only(false).open(device)?;
        let file = fs.create("/written", &NewInode::root(0o644))?;
        let took = timed(|| {
            for number in 0..FLUSHES {
                let mut done = 0;
                while done < piece.len() {
                    let rest = piece.get(done..).context("a rest")?;
                    done += file.write_at(rest, number * WRITTEN + done as u64)?;
                }
                file.sync()?;
            }
            Ok(())
        })?;
        drop(file);
        fs.unmount()?;
        Ok(took)
    }

    /// The same writes to the disk as a whole, each with a flush: the seconds.
    fn writes_by_fio(&self, fio: &str) -> Result<f64> {
        let size = format!("--size={}", FLUSHES * WRITTEN);
        let words = ["--rw=write", "--bs=1M", "--fsync=1", "--iodepth=1", &size];
        let report = self.fio_report(fio, &words)?;
        let found = report.pointer("/jobs/0/job_runtime").and_then(serde_json::Value::as_f64);
        Ok(found.context("fio tells no time")? / 1000.0)
    }

    fn reads_by_fio(&self, fio: &str) -> Result<f64> {
        let span = format!("--runtime={}", SPAN.as_secs());
        let (depth, size) = (format!("--iodepth={DEPTH}"), format!("--size={SIZE}"));
        let words = ["--rw=randread", "--bs=4k", "--time_based", &span, &depth, &size];
        let report = self.fio_report(fio, &words)?;
        let found = report.pointer("/jobs/0/read/iops").and_then(serde_json::Value::as_f64);
        found.context("fio tells no rate")
    }

    fn fio_report(&self, fio: &str, words: &[&str]) -> Result<serde_json::Value> {
        let uri = format!("--uri={}", self.address);
        let output = Command::new(fio)
            .args(["--name=nbd", "--ioengine=nbd", &uri, "--output-format=json"])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {fio}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "fio: {}\n{said}", output.status);
        // Lines of fio itself may come first.
        let start =
            output.stdout.iter().position(|byte| *byte == b'{').context("fio says nothing")?;
        Ok(serde_json::from_slice(output.stdout.get(start..).unwrap_or_default())?)
    }
}

/// Reads for [`SPAN`]: how many a second.
fn read(device: &NbdDevice) -> Result<f64> {
    let mut random = Prng::new(7);
    let mut queue = device.queue(&QueueOptions::default().depth(DEPTH));
    let mut free: Vec<AlignedBuffer> =
        (0..DEPTH).map(|_| AlignedBuffer::zeroed(BLOCK as usize)).collect();
    let (mut done, start) = (0u64, SystemClock.monotonic());
    loop {
        let took = SystemClock.monotonic().saturating_sub(start);
        if took >= SPAN {
            return Ok(done as f64 / took.as_secs_f64());
        }
        for _ in 0..DEPTH {
            while let Some(buffer) = free.pop() {
                let offset = random.below(SIZE / BLOCK) * BLOCK;
                ensure!(queue.push(0, Operation::Read { offset, buffer }).is_ok(), "a full queue");
            }
            queue.submit();
            let mut next = queue.reap(Wait::Block);
            ensure!(next.is_some(), "nothing is under way");
            while let Some(finished) = next {
                finished.completion.result?;
                done += 1;
                if let Operation::Read { buffer, .. } = finished.completion.operation {
                    free.push(buffer);
                }
                next = queue.reap(Wait::Poll);
            }
        }
    }
}
