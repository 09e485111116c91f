//! What a mount counts, for people and for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use crate::text::human_bytes;

/// One kind of request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Op {
    count: u64,
    errors: u64,
    nanos: u64,
    /// Requests by the power of two, in ns, that they took less than.
    latency: BTreeMap<u64, u64>,
}

impl Op {
    fn read(value: &Value) -> Op {
        let pairs = value.get("latency_ns").and_then(Value::as_array);
        let pair = |pair: &Value| Some((pair.get(0)?.as_u64()?, pair.get(1)?.as_u64()?));
        Op {
            count: number(value, "count"),
            errors: number(value, "errors"),
            nanos: number(value, "total_ns"),
            latency: pairs.into_iter().flatten().filter_map(pair).collect(),
        }
    }

    /// Returns what was counted after `before`.
    fn since(&self, before: Option<&Op>) -> Op {
        let Some(before) = before else { return self.clone() };
        let old = |bound: &u64| before.latency.get(bound).copied().unwrap_or(0);
        Op {
            count: self.count.saturating_sub(before.count),
            errors: self.errors.saturating_sub(before.errors),
            nanos: self.nanos.saturating_sub(before.nanos),
            latency: self
                .latency
                .iter()
                .map(|(bound, count)| (*bound, count.saturating_sub(old(bound))))
                .collect(),
        }
    }

    /// The bound that `percent` of 100 requests stay below.
    fn below(&self, percent: u64) -> Option<u64> {
        let all: u64 = self.latency.values().sum();
        let wanted = all.saturating_mul(percent).div_ceil(100).max(1);
        let mut seen = 0;
        self.latency.iter().find_map(|(bound, count)| {
            seen += count;
            (seen >= wanted).then_some(*bound)
        })
    }
}

fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or(0)
}

fn ops(stats: &Value) -> BTreeMap<String, Op> {
    let ops = stats.pointer("/requests/ops").and_then(Value::as_object);
    ops.into_iter().flatten().map(|(name, op)| (name.clone(), Op::read(op))).collect()
}

/// A time as people read it.
fn time(nanos: u64) -> String {
    match nanos {
        0..10_000 => format!("{:.1} µs", nanos as f64 / 1e3),
        10_000..10_000_000 => format!("{} µs", nanos / 1000),
        10_000_000..10_000_000_000 => format!("{} ms", nanos / 1_000_000),
        _ => format!("{} s", nanos / 1_000_000_000),
    }
}

/// For people: everything since the mount, or since `before`, which was so long ago.
pub(crate) fn text(stats: &Value, before: Option<(&Value, Duration)>, info: &Value) -> String {
    let mut out = String::new();
    let earlier = before.map(|(value, _)| value);
    let seconds = before.map(|(_, took)| took.as_secs_f64().max(0.001));
    let since = |group: &str, key: &str| {
        let of = |stats: &Value| stats.get(group).map_or(0, |group| number(group, key));
        of(stats).saturating_sub(earlier.map_or(0, of))
    };
    let bytes = |group: &str, key: &str| human_bytes(since(group, key));
    // Writing to a string does not fail.
    if seconds.is_none() {
        let device = info.get("device").and_then(Value::as_str).unwrap_or("?");
        let state = ["read_only", "frozen", "shut_down", "image_removed"]
            .iter()
            .filter(|key| info.get(**key).and_then(Value::as_bool).unwrap_or(false))
            .map(|key| format!(", {}", key.replace('_', " ")))
            .collect::<String>();
        let (pid, threads) = (number(info, "pid"), number(info, "threads"));
        let over = info.get("transport").and_then(Value::as_str);
        let over = over.map_or(String::new(), |transport| format!(" over {transport}"));
        let _ = writeln!(out, "    Image: {device}, process {pid}, {threads} threads{over}{state}");
        let word = |key| info.get(key).and_then(Value::as_str);
        if let Some(engine) = word("device_engine") {
            let why = word("device_engine_refused").map(|why| format!(" ({why})"));
            let _ = writeln!(out, "   Engine: {engine}{}", why.unwrap_or_default());
        }
    }
    let _ = writeln!(
        out,
        " Requests: {} read, {} written",
        bytes("requests", "read_bytes"),
        bytes("requests", "written_bytes"),
    );
    let old = earlier.map(ops).unwrap_or_default();
    let mut rows: Vec<(String, Op)> = ops(stats)
        .into_iter()
        .map(|(name, op)| {
            let op = op.since(old.get(&name));
            (name, op)
        })
        .filter(|(_, op)| op.count > 0)
        .collect();
    rows.sort_by_key(|(_, op)| std::cmp::Reverse(op.nanos));
    let per = if seconds.is_some() { "per second" } else { "count" };
    if !rows.is_empty() {
        let _ = writeln!(
            out,
            "           {:<16} {per:>10} {:>8} {:>9} {:>9} {:>9}",
            "", "errors", "mean", "p50 <", "p99 <"
        );
    }
    for (name, op) in rows {
        let count = match seconds {
            Some(seconds) => format!("{:.1}", op.count as f64 / seconds),
            None => op.count.to_string(),
        };
        let bound = |percent| op.below(percent).map_or_else(String::new, time);
        let mean = time(op.nanos / op.count.max(1));
        let (p50, p99) = (bound(50), bound(99));
        let errors = op.errors;
        let _ = writeln!(
            out,
            "           {name:<16} {count:>10} {errors:>8} {mean:>9} {p50:>9} {p99:>9}"
        );
    }
    if let Some(cache) = stats.get("cache") {
        let (used, dirty) = (number(cache, "used_bytes"), number(cache, "dirty_bytes"));
        let _ = writeln!(
            out,
            "    Cache: {} used, {} dirty; {} read and {} written in {} and {} requests to the \
             device; {} folios given up, {} waits for writeback",
            human_bytes(used),
            human_bytes(dirty),
            bytes("cache", "bytes_filled"),
            bytes("cache", "bytes_written"),
            since("cache", "device_reads"),
            since("cache", "device_writes"),
            since("cache", "folios_evicted"),
            since("cache", "writeback_waits"),
        );
        let _ = writeln!(
            out,
            "           {} read and {} written past it in {} and {} requests",
            bytes("cache", "bytes_read_direct"),
            bytes("cache", "bytes_written_direct"),
            since("cache", "direct_reads"),
            since("cache", "direct_writes"),
        );
        let asked = since("requests", "read_bytes");
        if asked > 0 {
            let missed = since("cache", "bytes_filled") + since("cache", "bytes_read_direct");
            let missed = missed.min(asked);
            let hits = 100.0 * (asked - missed) as f64 / asked as f64;
            let _ = writeln!(out, "           {hits:.1} % of what was read was in the cache");
        }
    }
    if stats.get("writer").is_some() {
        let _ = writeln!(
            out,
            "  Journal: {} commits, {} blocks logged, {} checkpoints, {} flushes, {} changes, {} waits",
            since("writer", "commits"),
            since("writer", "blocks_logged"),
            since("writer", "checkpoints"),
            since("writer", "flushes"),
            since("writer", "handles"),
            since("writer", "waits"),
        );
    }
    if stats.get("writer").is_some() {
        let of = |key: &str| since("writer", key);
        let criteria = ["extended", "ahead", "whole", "least", "any"];
        let counts = criteria.map(|name| of(&format!("space_criterion_{name}")));
        let found: u64 = counts.iter().sum();
        if found > 0 {
            let each: Vec<String> = criteria
                .iter()
                .zip(counts)
                .map(|(name, count)| format!("{count} {name}"))
                .collect();
            let _ = writeln!(
                out,
                "   Blocks: {found} times: {}; {:.1} clusters each of {:.1}, {} at their goal",
                each.join(", "),
                of("space_clusters") as f64 / found as f64,
                of("space_clusters_asked") as f64 / found as f64,
                of("space_goal_hits"),
            );
            let _ = writeln!(
                out,
                "           groups: {} visited, {} searched, {} busy",
                of("space_groups_visited"),
                of("space_groups_searched"),
                of("space_groups_busy"),
            );
        }
    }
    if let Some(space) = stats.get("space") {
        let block = number(space, "block_bytes");
        let of = |key| human_bytes(number(space, key).saturating_mul(block));
        let _ = writeln!(
            out,
            "    Space: {} of {} free; {} of {} inodes free",
            of("blocks_free"),
            of("blocks"),
            number(space, "inodes_free"),
            number(space, "inodes"),
        );
    }
    out.push_str(&waits_text(stats, earlier));
    let damage = number(stats, "damage_reports");
    let _ = writeln!(
        out,
        "    Nodes: {} known to the kernel, {} open for writing; {damage} reports of damage",
        number(stats, "nodes"),
        number(stats, "open_for_writing"),
    );
    if let Some(inodes) = stats.get("inodes") {
        let _ = writeln!(
            out,
            "           {} for those that are known; {} inodes in memory, about {}, and at most {} \
             that nobody uses",
            human_bytes(number(inodes, "known_bytes")),
            number(inodes, "in_memory"),
            human_bytes(number(inodes, "in_memory_bytes")),
            number(inodes, "in_memory_max"),
        );
    }
    out
}

/// Locks that were waited for.
fn waits_text(stats: &Value, earlier: Option<&Value>) -> String {
    let of = |stats: &Value, rank: &str, key: &str| {
        stats.pointer(&format!("/lock_waits/{rank}")).map_or(0, |rank| number(rank, key))
    };
    let since = |rank: &str, key: &str| {
        of(stats, rank, key).saturating_sub(earlier.map_or(0, |earlier| of(earlier, rank, key)))
    };
    let ranks = stats.get("lock_waits").and_then(Value::as_object);
    let shown: Vec<String> = ranks
        .into_iter()
        .flatten()
        .filter(|(rank, _)| since(rank, "waits") > 0)
        .map(|(rank, _)| {
            format!("{rank} {} times, {}", since(rank, "waits"), time(since(rank, "total_ns")))
        })
        .collect();
    match shown.is_empty() {
        true => "    Locks: no waits\n".to_owned(),
        false => format!("    Locks: waits for {}\n", shown.join("; ")),
    }
}

/// Figures that go down as well as up.
const GAUGES: &[&str] = &["dirty_bytes", "used_bytes", "chunks_huge", "chunks_plain"];

/// For Prometheus: everything since the mount, each with the label `mount`.
pub(crate) fn prometheus(stats: &Value, info: &Value, mount: &str) -> String {
    let mut out = String::new();
    let mount = format!("mount=\"{}\"", label(mount));
    let mut family = |name: &str, kind: &str, help: &str, rows: Vec<(String, String)>| {
        if rows.is_empty() {
            return;
        }
        let _ = writeln!(out, "# HELP extant_{name} {help}\n# TYPE extant_{name} {kind}");
        for (rest, value) in rows {
            let _ = writeln!(out, "extant_{name}{rest} {value}");
        }
    };
    let plain = |value: u64| vec![(format!("{{{mount}}}"), value.to_string())];
    let device = label(info.get("device").and_then(Value::as_str).unwrap_or(""));
    let version = label(info.get("version").and_then(Value::as_str).unwrap_or(""));
    let labels = format!("{{{mount},device=\"{device}\",version=\"{version}\"}}");
    family("mount_info", "gauge", "What is mounted.", vec![(labels, "1".into())]);
    for key in ["read_only", "frozen", "shut_down", "image_removed"] {
        let on = info.get(key).and_then(Value::as_bool).unwrap_or(false);
        family(key, "gauge", "Whether the mount is so.", plain(u64::from(on)));
    }
    let ops = ops(stats);
    let per_op = |pick: fn(&Op) -> u64| {
        ops.iter()
            .map(|(name, op)| (format!("{{{mount},op=\"{name}\"}}"), pick(op).to_string()))
            .collect::<Vec<_>>()
    };
    family(
        "request_errors_total",
        "counter",
        "Requests answered with an error.",
        per_op(|op| op.errors),
    );
    let mut rows = Vec::new();
    for (name, op) in &ops {
        let mut seen = 0;
        for (bound, count) in &op.latency {
            seen += count;
            let le = *bound as f64 / 1e9;
            rows.push((format!("_bucket{{{mount},op=\"{name}\",le=\"{le}\"}}"), seen.to_string()));
        }
        rows.push((format!("_bucket{{{mount},op=\"{name}\",le=\"+Inf\"}}"), op.count.to_string()));
        let sum = op.nanos as f64 / 1e9;
        rows.push((format!("_sum{{{mount},op=\"{name}\"}}"), sum.to_string()));
        rows.push((format!("_count{{{mount},op=\"{name}\"}}"), op.count.to_string()));
    }
    family("request_duration_seconds", "histogram", "Time from request to answer.", rows);
    for (key, help) in [
        ("read_bytes", "Bytes given to the kernel."),
        ("written_bytes", "Bytes taken from the kernel."),
    ] {
        let value = stats.get("requests").map_or(0, |requests| number(requests, key));
        family(&format!("{key}_total"), "counter", help, plain(value));
    }
    for (group, help) in [("cache", "Cache of contents."), ("writer", "Journal and metadata.")] {
        for (key, value) in stats.get(group).and_then(Value::as_object).into_iter().flatten() {
            let value = value.as_u64().unwrap_or(0);
            match GAUGES.contains(&key.as_str()) {
                true => family(&format!("{group}_{key}"), "gauge", help, plain(value)),
                false => family(&format!("{group}_{key}_total"), "counter", help, plain(value)),
            }
        }
    }
    for (key, value) in stats.get("space").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_u64().unwrap_or(0);
        family(&format!("space_{key}"), "gauge", "Room in the image.", plain(value));
    }
    for key in ["nodes", "open_for_writing"] {
        family(key, "gauge", "Inodes that the kernel holds.", plain(number(stats, key)));
    }
    for (key, value) in stats.get("inodes").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_u64().unwrap_or(0);
        family(
            &format!("inodes_{key}"),
            "gauge",
            "Inodes of which the server knows.",
            plain(value),
        );
    }
    let damage = number(stats, "damage_reports");
    family("damage_reports_total", "counter", "Times that damage was met.", plain(damage));
    let ranks = stats.get("lock_waits").and_then(Value::as_object);
    let waits = |value: fn(&Value) -> String| {
        ranks
            .into_iter()
            .flatten()
            .map(|(rank, of)| (format!("{{{mount},rank=\"{rank}\"}}"), value(of)))
            .collect::<Vec<_>>()
    };
    let count = waits(|of| number(of, "waits").to_string());
    family("lock_waits_total", "counter", "Waits for a lock.", count);
    let seconds = waits(|of| (number(of, "total_ns") as f64 / 1e9).to_string());
    family("lock_wait_seconds_total", "counter", "Time waited for locks.", seconds);
    out
}

/// The value of a label.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stats(reads: u64, slow: u64) -> Value {
        json!({
            "requests": {
                "threads": 2, "read_bytes": reads * 4096, "written_bytes": 0,
                "ops": {"read": {"count": reads + slow, "errors": 1, "total_ns": reads * 1000,
                    "latency_ns": [[2048, reads], [1_048_576, slow]]}},
            },
            "cache": {"used_bytes": 1 << 20, "dirty_bytes": 4096, "bytes_filled": 4096},
            "inodes": {"known": 7, "known_bytes": 2048, "in_memory": 3, "in_memory_max": 5},
            "lock_waits": {"Folio": {"waits": reads / 50, "total_ns": 5000}, "Leaf": {"waits": 0}},
        })
    }

    #[test]
    fn percentiles_are_bounds() {
        let op = |reads, slow| ops(&stats(reads, slow))["read"].clone();
        assert_eq!(op(99, 1).below(50), Some(2048));
        assert_eq!(op(99, 1).below(99), Some(2048));
        assert_eq!(op(98, 2).below(99), Some(1_048_576));
        assert_eq!(Op::default().below(50), None);
    }

    #[test]
    fn a_round_is_about_what_came_in_it() {
        let (before, now) = (stats(100, 0), stats(300, 0));
        let all = text(&now, None, &json!({"device": "a.img", "pid": 7, "threads": 2}));
        assert!(all.contains("a.img, process 7, 2 threads"), "{all}");
        let info = json!({"device": "a.img", "pid": 7, "threads": 2, "transport": "io_uring"});
        assert!(text(&now, None, &info).contains("2 threads over io_uring\n"));
        let info = json!({"device_engine": "portable", "device_engine_refused": "too old"});
        assert!(text(&now, None, &info).contains("Engine: portable (too old)\n"));
        assert!(all.contains("1.2 MiB read"), "{all}");
        assert!(all.contains("3 inodes in memory") && all.contains("at most 5 "), "{all}");
        let round = text(&now, Some((&before, Duration::from_secs(2))), &json!({}));
        let row = round.lines().find(|line| line.trim_start().starts_with("read ")).unwrap();
        assert_eq!(row.split_whitespace().nth(1), Some("100.0"), "{round}");
        assert!(round.contains("Folio 4 times"), "{round}");
        let none = text(&now, Some((&now, Duration::from_secs(1))), &json!({}));
        assert!(none.contains("no waits"), "{none}");
    }

    #[test]
    fn prometheus_reads_cumulative_histograms() {
        let text = prometheus(&stats(98, 2), &json!({"device": "a\"b"}), "/m");
        for line in [
            "extant_mount_info{mount=\"/m\",device=\"a\\\"b\",version=\"\"} 1",
            "# TYPE extant_request_duration_seconds histogram",
            "extant_request_duration_seconds_bucket{mount=\"/m\",op=\"read\",le=\"0.000002048\"} 98",
            "extant_request_duration_seconds_bucket{mount=\"/m\",op=\"read\",le=\"0.001048576\"} 100",
            "extant_request_duration_seconds_bucket{mount=\"/m\",op=\"read\",le=\"+Inf\"} 100",
            "extant_request_duration_seconds_count{mount=\"/m\",op=\"read\"} 100",
            "extant_cache_dirty_bytes{mount=\"/m\"} 4096",
            "extant_inodes_known_bytes{mount=\"/m\"} 2048",
            "extant_cache_bytes_filled_total{mount=\"/m\"} 4096",
            "extant_lock_waits_total{mount=\"/m\",rank=\"Folio\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let families: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let mut once = families.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), families.len(), "each family once");
    }

    #[test]
    fn how_blocks_were_found_is_said_by_criterion() {
        let writer = |extended: u64| {
            json!({"writer": {
                "space_criterion_extended": extended, "space_criterion_ahead": 3,
                "space_criterion_whole": 2, "space_criterion_least": 1, "space_criterion_any": 0,
                "space_clusters": 4 * (extended + 6), "space_clusters_asked": 5 * (extended + 6),
                "space_goal_hits": 5, "space_groups_visited": 9, "space_groups_searched": 8,
                "space_groups_busy": 7,
            }})
        };
        let all = text(&writer(4), None, &json!({}));
        let said = "10 times: 4 extended, 3 ahead, 2 whole, 1 least, 0 any; 4.0 clusters each of 5.0, 5 at";
        assert!(all.contains(said), "{all}");
        assert!(all.contains("groups: 9 visited, 8 searched, 7 busy"), "{all}");
        let none = text(&json!({"writer": {}}), None, &json!({}));
        assert!(!none.contains("Blocks"), "{none}");
    }

    #[test]
    fn strange_answers_are_no_trouble() {
        for value in [json!(null), json!([]), json!({"requests": 7, "cache": [], "space": null})] {
            text(&value, Some((&value, Duration::ZERO)), &value);
            prometheus(&value, &value, "m");
        }
    }
}
