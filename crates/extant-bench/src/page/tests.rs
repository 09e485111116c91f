use super::figures::{Outcome, Role};
use super::*;

fn line(row: &str, target: &str, unit: &str, median: f64) -> String {
    format!(
        r#"{{"row":"{row}","target":"{target}","unit":"{unit}","median":{median},"min":{median},"max":{median},"runs":3}}"#
    )
}

fn results(dir: &Path, name: &str, lines: &[String]) {
    std::fs::write(dir.join(format!("{name}.json")), format!("[{}]", lines.join(","))).unwrap();
}

#[test]
fn who_is_better_is_told_by_the_unit() {
    let dir = tempfile::tempdir().unwrap();
    let rate = |row, target, value| line(row, target, "MiB/s", value);
    results(
        dir.path(),
        "io",
        &[
            rate("read disk 4K", "extant", 90.0),
            rate("read disk 4K", "ext4", 100.0),
            rate("read disk 4K", "xfs", 60.0),
            rate("read disk 4K", "memcpy", 300.0),
            rate("even", "extant", 98.0),
            rate("even", "ext4", 100.0),
            rate("below the limit alone", "extant", 1.0),
            rate("below the limit alone", "memcpy", 2.0),
            rate("not measured", "ext4", 2.0),
        ],
    );
    let time = |row, target, value| line(row, target, "s", value);
    results(dir.path(), "build", &[time("build", "tar -x", 3.0), time("build", "extant", 1.0)]);
    let (tables, missing) = figures::read(dir.path()).unwrap();
    assert!(missing.contains(&"alloc") && !missing.contains(&"io") && !missing.contains(&"build"));
    let rows: Vec<_> = tables.iter().flat_map(|table| &table.rows).collect();
    let outcomes: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.outcome)).collect();
    assert_eq!(
        outcomes,
        [
            ("read disk 4K", Outcome::Loses),
            ("even", Outcome::Wins),
            ("below the limit alone", Outcome::Alone),
            ("not measured", Outcome::Alone),
            ("build", Outcome::Wins),
        ]
    );
    assert!(rows[0].why.is_some_and(|why| why.contains("fresh")), "{:?}", rows[0].why);
    assert_eq!(rows[1].why, None);
    let roles: Vec<_> = rows[0].entries.iter().map(|entry| entry.role).collect();
    assert_eq!(roles, [Role::Limit, Role::Own, Role::Peer, Role::Peer]);
    let ratio = |row: usize, target: &str| {
        let found = rows[row].entries.iter().find(|entry| entry.figure.target == target);
        found.unwrap().ratio.unwrap()
    };
    assert!((ratio(0, "ext4") - 0.9).abs() < 1e-9);
    assert!((ratio(0, "xfs") - 1.5).abs() < 1e-9);
    assert!((ratio(4, "tar -x") - 3.0).abs() < 1e-9, "less time is better");
}

#[test]
fn the_page_is_one_file_that_loads_nothing_and_names_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let one = line("a <b> & c", "extant", "us/op", 2.0);
    results(dir.path(), "namespace", &[one, line("a <b> & c", "ext4", "us/op", 1.0)]);
    let to = dir.path().join("to");
    write(dir.path(), &to).unwrap();
    let page = std::fs::read_to_string(to.join("index.html")).unwrap();
    for foreign in ["<script", "src=", "href=\"http", "url(", "@import", "a <b>"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.contains("a &lt;b&gt; &amp; c"));
    assert!(page.contains("The reason is not known."));
    assert!(page.contains("make bench-alloc"), "a table that was not run is named");
    for open in ["<tr", "<td", "<table", "<tbody", "<svg", "<section", "<p", "<ul", "<li"] {
        let close = open.replace('<', "</");
        let count = |tag: &str| {
            page.match_indices(tag)
                .filter(|(at, _)| {
                    !page[at + tag.len()..].starts_with(|next: char| next.is_alphabetic())
                })
                .count()
        };
        assert_eq!(count(open), count(&close), "{open}");
    }
    let summary = std::fs::read_to_string(to.join("summary.md")).unwrap();
    assert!(summary.contains("| a <b> & c | 2.00 us/op | 0.50 ext4 |  | loses |"), "{summary}");
    assert!(summary.contains("Not run:"));
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(to.join("report.json")).unwrap()).unwrap();
    assert_eq!(json["tables"][0]["rows"][0]["outcome"], "loses");
    assert_eq!(json["tables"][0]["rows"][0]["entries"][0]["role"], "own");
}

#[test]
fn results_that_are_none_are_an_error_that_names_them() {
    let dir = tempfile::tempdir().unwrap();
    let error = write(dir.path(), &dir.path().join("to")).unwrap_err();
    assert!(format!("{error:#}").contains("make bench-quick"), "{error:#}");
    std::fs::write(dir.path().join("io.json"), "{").unwrap();
    let error = write(dir.path(), &dir.path().join("to")).unwrap_err();
    assert!(format!("{error:#}").contains("io.json"), "{error:#}");
}

#[test]
fn every_reason_belongs_to_a_table() {
    for about in tables::ALL {
        assert!(!about.own.is_empty(), "{about:?}");
    }
    assert_eq!(tables::why("alloc", "fallocate2, 1"), "The reason is not known.");
    assert!(tables::why("mount", "untar").contains("turns"));
}
