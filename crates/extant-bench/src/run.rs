//! Runs a program to its end and measures it.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use extant_sync::{Clock, SystemClock};

/// What one run took.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Seconds from start to end.
    pub seconds: f64,
    /// Most memory it had at one time, in MiB; `None` where nothing tells.
    pub peak_mib: Option<f64>,
}

/// Runs `program` with `args`, its output thrown away.
///
/// # Errors
///
/// When it cannot be started or fails; with what it said.
pub fn run(program: &str, args: &[&str]) -> Result<Measured> {
    let clock = SystemClock;
    let start = clock.monotonic();
    let output = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    let seconds = clock.monotonic().saturating_sub(start).as_secs_f64();
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}\n{said}", args.join(" "), output.status);
    Ok(Measured { seconds, peak_mib: None })
}

/// As [`run`], and once more for the memory.
///
/// # Errors
///
/// Those of [`run`].
pub fn run_with_memory(program: &str, args: &[&str]) -> Result<Measured> {
    let measured = run(program, args)?;
    Ok(Measured { peak_mib: peak_mib(program, args)?, ..measured })
}

/// Runs `program` with `args`, and returns the most memory that it had, in MiB, as GNU time tells;
/// `None` without GNU time. That is another process that starts, so it is not timed.
///
/// # Errors
///
/// Those of [`run`].
pub fn peak_mib(program: &str, args: &[&str]) -> Result<Option<f64>> {
    if !has("/usr/bin/time") {
        return Ok(None);
    }
    let file = tempfile::NamedTempFile::new()?;
    let name = file.path().to_string_lossy().into_owned();
    let mut timed = vec!["-f", "%M", "-o", &name, program];
    timed.extend_from_slice(args);
    run("/usr/bin/time", &timed)?;
    let kib: f64 = std::fs::read_to_string(file.path())?.trim().parse().unwrap_or(f64::NAN);
    Ok(Some(kib / 1024.0))
}

/// Returns whether a program is there: by path, or in `PATH` and where tools of root live.
pub fn has(program: &str) -> bool {
    find(program).is_some()
}

/// The path of a program.
pub fn find(program: &str) -> Option<String> {
    if program.contains('/') {
        return std::path::Path::new(program).exists().then(|| program.to_owned());
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain(["/usr/sbin", "/sbin"]);
    dirs.map(|dir| format!("{dir}/{program}")).find(|path| std::path::Path::new(path).exists())
}
