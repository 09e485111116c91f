//! fio, one job of direct I/O at random.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::busy::Busy;
use super::{Cell, Measured};
use crate::run::find;

/// Until it has begun, and from the last look until it ends.
const AROUND: Duration = Duration::from_millis(400);

/// Returns whether there is one.
pub(super) fn is_here() -> bool {
    find("fio").is_some()
}

/// What fio reaches on `target`, a disk or a file of `bytes` bytes. Its own beginning is not counted.
pub(super) fn run(
    target: &Path,
    engine: &str,
    cell: &Cell,
    bytes: u64,
    time: Duration,
) -> Result<Measured> {
    let (kind, side) = if cell.writes { ("randwrite", "write") } else { ("randread", "read") };
    let whole = time + 2 * AROUND;
    let mut child = Command::new(find("fio").context("fio is not installed")?)
        .args(["--name=direct", "--direct=1", "--thread", "--output-format=json"])
        .args(["--norandommap", "--randrepeat=0", "--fallocate=none", "--invalidate=0"])
        .args(["--time_based", "--allow_file_create=0"])
        .arg(format!("--ioengine={engine}"))
        .arg(format!("--iodepth={}", cell.depth))
        .arg(format!("--rw={kind}"))
        .arg(format!("--bs={}", cell.bytes))
        .arg(format!("--size={bytes}"))
        .arg(format!("--runtime={}ms", whole.as_millis()))
        .arg(format!("--filename={}", target.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run fio")?;
    let looked = AROUND.as_secs_f64();
    sleep(&mut child, AROUND)?;
    let before = Busy::look()?;
    sleep(&mut child, time)?;
    let busy = before.since()?;
    let output = child.wait_with_output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "fio: {error}");
    let text = String::from_utf8_lossy(&output.stdout);
    let from = text.find('{').with_context(|| format!("fio says {text:?}, {error:?}"))?;
    let said: serde_json::Value = serde_json::from_str(&text[from..])?;
    let rate = said.pointer(&format!("/jobs/0/{side}/iops")).and_then(serde_json::Value::as_f64);
    let rate = rate.context("fio says no iops")?;
    ensure!(rate > 0.0, "fio did nothing in {} s", whole.as_secs_f64() - looked);
    Ok(Measured { rate, cpu_micros: busy.as_secs_f64() / time.as_secs_f64() / rate * 1e6 })
}

/// Waits, while fio works.
fn sleep(child: &mut std::process::Child, time: Duration) -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "a measurement takes its time")]
    std::thread::sleep(time);
    ensure!(child.try_wait()?.is_none(), "fio has ended early");
    Ok(())
}
