//! Counts and durations of requests.
//!
//! Each thread counts on cache lines of its own; a query adds them up.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::abi::op;

/// Classes of latency: class `n` is below `2^(n + 10)` ns, from 1 us to about 18 minutes; the last is
/// everything above.
pub(crate) const CLASSES: usize = 31;
const FIRST_LOG2: u32 = 10;
const OPS: usize = op::COUNT as usize;

struct Counts {
    calls: AtomicU64,
    errors: AtomicU64,
    nanos: AtomicU64,
    classes: [AtomicU64; CLASSES],
}

/// The counters of one thread.
pub(crate) struct Lane {
    ops: Box<[Counts]>,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

impl Lane {
    fn new() -> Lane {
        let zeros = || Counts {
            calls: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            classes: [const { AtomicU64::new(0) }; CLASSES],
        };
        Lane {
            ops: (0..OPS).map(|_| zeros()).collect(),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
        }
    }

    /// Counts an answered request of this kind. Called by the thread that the lane belongs to.
    pub(crate) fn count(&self, opcode: u32, took: Duration, failed: bool) {
        let Some(counts) = self.ops.get(opcode as usize) else { return };
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        add(&counts.calls, 1);
        add(&counts.errors, u64::from(failed));
        add(&counts.nanos, nanos);
        add(&counts.classes[class_of(nanos)], 1);
    }

    pub(crate) fn count_read(&self, bytes: u64) {
        add(&self.bytes_read, bytes);
    }

    pub(crate) fn count_written(&self, bytes: u64) {
        add(&self.bytes_written, bytes);
    }
}

/// Only one thread adds: no locked instruction is needed.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

fn class_of(nanos: u64) -> usize {
    let log2 = u64::BITS - nanos.leading_zeros();
    (log2.saturating_sub(FIRST_LOG2) as usize).min(CLASSES - 1)
}

/// The counters of all threads.
pub(crate) struct RequestStats {
    /// Number of the threads that are always there; the others come when they are needed.
    threads: usize,
    lanes: Vec<OnceLock<Lane>>,
}

/// Names of operations, by number; empty for those that are not counted.
const NAMES: [&str; OPS] = [
    "",
    "lookup",
    "forget",
    "getattr",
    "setattr",
    "readlink",
    "symlink",
    "",
    "mknod",
    "mkdir",
    "unlink",
    "rmdir",
    "rename",
    "link",
    "open",
    "read",
    "write",
    "statfs",
    "release",
    "",
    "fsync",
    "setxattr",
    "getxattr",
    "listxattr",
    "removexattr",
    "flush",
    "init",
    "opendir",
    "readdir",
    "releasedir",
    "fsyncdir",
    "",
    "",
    "",
    "access",
    "create",
    "interrupt",
    "",
    "destroy",
    "ioctl",
    "",
    "",
    "batch_forget",
    "fallocate",
    "readdirplus",
    "rename2",
    "lseek",
    "copy_file_range",
    "",
    "",
    "syncfs",
    "tmpfile",
    "statx",
    "copy_file_range_64",
];

impl RequestStats {
    pub(crate) fn new(threads: usize, spares: usize) -> RequestStats {
        let threads = threads.max(1);
        RequestStats { threads, lanes: (0..threads + spares).map(|_| OnceLock::new()).collect() }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    pub(crate) fn lane(&self, thread: usize) -> &Lane {
        self.lanes[thread % self.lanes.len()].get_or_init(Lane::new)
    }

    /// Everything since the start: `{"threads", "read_bytes", "written_bytes", "ops": {name: {"count",
    /// "errors", "total_ns", "latency_ns": [[below, count], …]}}}`. Operations that never came are not
    /// in it.
    pub(crate) fn to_json(&self) -> Value {
        let sum = |pick: &dyn Fn(&Lane) -> &AtomicU64| -> u64 {
            self.lanes
                .iter()
                .filter_map(OnceLock::get)
                .map(|lane| pick(lane).load(Ordering::Relaxed))
                .sum()
        };
        let mut ops = Map::new();
        for (number, name) in NAMES.iter().enumerate() {
            let calls = sum(&|lane| &lane.ops[number].calls);
            if name.is_empty() || calls == 0 {
                continue;
            }
            let latency: Vec<Value> = (0..CLASSES)
                .map(|class| (class, sum(&|lane| &lane.ops[number].classes[class])))
                .filter(|(_, count)| *count > 0)
                .map(|(class, count)| json!([1u64 << (class as u32 + FIRST_LOG2), count]))
                .collect();
            let one = json!({
                "count": calls,
                "errors": sum(&|lane| &lane.ops[number].errors),
                "total_ns": sum(&|lane| &lane.ops[number].nanos),
                "latency_ns": latency,
            });
            ops.insert((*name).to_owned(), one);
        }
        json!({
            "threads": self.threads,
            "read_bytes": sum(&|lane| &lane.bytes_read),
            "written_bytes": sum(&|lane| &lane.bytes_written),
            "ops": ops,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_below_the_bound_of_its_class_and_not_below_the_one_before() {
        for nanos in [0, 1, 1023, 1024, 1025, 2047, 2048, 1 << 20, u64::MAX] {
            let class = class_of(nanos);
            if class < CLASSES - 1 {
                assert!(nanos < 1 << (class as u32 + FIRST_LOG2), "{nanos}");
            }
            assert!(class == 0 || nanos >= 1 << (class as u32 + FIRST_LOG2 - 1), "{nanos}");
        }
    }

    #[test]
    fn lanes_add_up() {
        let stats = RequestStats::new(2, 0);
        stats.lane(0).count(op::LOOKUP, Duration::from_nanos(1500), false);
        stats.lane(1).count(op::LOOKUP, Duration::from_nanos(1600), true);
        stats.lane(1).count(9999, Duration::ZERO, true);
        stats.lane(1).count_read(7);
        let all = stats.to_json();
        assert_eq!(all["read_bytes"], 7);
        let lookup = &all["ops"]["lookup"];
        assert_eq!((&lookup["count"], &lookup["errors"]), (&json!(2), &json!(1)));
        assert_eq!(lookup["latency_ns"], json!([[2048, 2]]));
        assert_eq!(all["ops"].as_object().unwrap().len(), 1);
    }
}
