//! Memory of the system, and what of it is on its way to devices.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// Returns what the kernel says of its memory, opened once: a sandbox may begin later.
fn counters() -> Option<&'static File> {
    static COUNTERS: OnceLock<Option<File>> = OnceLock::new();
    COUNTERS.get_or_init(|| File::open("/proc/meminfo").ok()).as_ref()
}

/// To be called while files can still be opened.
pub(crate) fn prepare() {
    let _ = counters();
}

/// Bytes of memory, and of those that are dirty or being written.
pub(crate) fn read_counters() -> Option<(u64, u64)> {
    let mut text = [0; 4096];
    let len = counters()?.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(text.get(..len)?).ok()?;
    let of = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        kib.checked_mul(1024)
    };
    let held = ["Dirty:", "Writeback:", "WritebackTmp:"].into_iter().filter_map(of);
    Some((of("MemTotal:")?, held.fold(0, u64::saturating_add)))
}
