//! Many mounts at once, each of an overlay of its own over one base.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use extant_sync::threads;

use super::Plan;
use super::disks::timed;
use crate::report::{Series, add};
use crate::run::run;

/// Bytes that each mount writes and syncs.
const WRITTEN: usize = 1 << 20;
/// Mounts that are made at the same time.
const MAKERS: usize = 4;

/// Mounts them all, writes to all at once, and says how much memory their processes have together: of what
/// several share, each has its part.
pub(super) fn measure(plan: &Plan, dir: &Path, all: &mut Vec<Series>) -> Result<()> {
    if plan.mounts == 0 || !Path::new("/dev/fuse").exists() {
        println!("no mounts here: the rows of overlays are left out");
        return Ok(());
    }
    let base = dir.join("base.img").to_string_lossy().into_owned();
    run(&plan.extant, &["build", &base, "--from", &plan.source, "--size", "auto+64M", "-q"])?;
    let points: Vec<_> = (0..plan.mounts).map(|number| dir.join(format!("m{number}"))).collect();
    let made = mount_all(plan, dir, &base, &points).and_then(|seconds| {
        let written = write_all(&points)?;
        Ok((seconds, written, memory(&plan.extant, dir)?))
    });
    for point in &points {
        // Those that were not made have nothing to end.
        let _ = run(&plan.extant, &["umount", "--timeout", "30", &point.to_string_lossy()]);
    }
    let (seconds, written, (processes, mib)) = made?;
    ensure!(processes >= plan.mounts, "{processes} processes for {} mounts", plan.mounts);
    let count = plan.mounts;
    add(all, &format!("{count} overlays: mounted"), "extant", "s", seconds);
    add(
        all,
        &format!("{count} overlays: 1 MiB written and synced in each"),
        "extant",
        "s",
        written,
    );
    add(all, &format!("{count} overlays: memory of all"), "extant", "MiB", mib);
    Ok(())
}

fn mount_all(plan: &Plan, dir: &Path, base: &str, points: &[std::path::PathBuf]) -> Result<f64> {
    timed(|| {
        let done = threads::workers("mount", MAKERS, |maker| -> Result<()> {
            for (number, point) in points.iter().enumerate().skip(maker).step_by(MAKERS) {
                std::fs::create_dir(point)?;
                let overlay = dir.join(format!("o{number}.qcow2"));
                let (overlay, point) = (overlay.to_string_lossy(), point.to_string_lossy());
                run(&plan.extant, &["mount", "--overlay", &overlay, base, &point])?;
            }
            Ok(())
        })?;
        done.into_iter().collect()
    })
}

fn write_all(points: &[std::path::PathBuf]) -> Result<f64> {
    let bytes = vec![0x5a; WRITTEN];
    timed(|| {
        let done = threads::workers("write", points.len(), |number| -> Result<()> {
            let point = points.get(number).context("a mount")?;
            let file = std::fs::File::create(point.join("written"))?;
            std::io::Write::write_all(&mut &file, &bytes)?;
            Ok(file.sync_all()?)
        })?;
        done.into_iter().collect()
    })
}

/// The processes of the mounts below `dir`, and the MiB that they have.
fn memory(extant: &str, dir: &Path) -> Result<(u32, f64)> {
    let extant = std::fs::canonicalize(extant)?;
    let needle = dir.to_string_lossy().into_owned();
    let (mut processes, mut kib) = (0, 0.0);
    for entry in std::fs::read_dir("/proc")?.flatten() {
        // Processes come and go while this looks.
        let path = entry.path();
        if std::fs::read_link(path.join("exe")).ok().as_ref() != Some(&extant) {
            continue;
        }
        let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
        if !String::from_utf8_lossy(&command).contains(&needle) {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(path.join("smaps_rollup")) else { continue };
        let pss = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let pss = pss.and_then(|rest| rest.split_whitespace().next());
        processes += 1;
        kib += pss.context("no Pss")?.parse::<f64>()?;
    }
    Ok((processes, kib / 1024.0))
}
