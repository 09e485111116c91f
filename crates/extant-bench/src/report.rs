//! Collects measurements, prints them, writes them down.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

/// All measurements of one contender in one row of a table.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// What was measured.
    pub row: String,
    /// Who was measured.
    pub target: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// One value per run.
    pub values: Vec<f64>,
}

#[derive(Serialize)]
struct Line<'a> {
    row: &'a str,
    target: &'a str,
    unit: &'a str,
    median: f64,
    min: f64,
    max: f64,
    runs: usize,
}

impl Series {
    /// The middle value; the mean of the two in the middle when their number is even. 0 for none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match (sorted.get(middle), sorted.len() % 2) {
            (None, _) => 0.0,
            (Some(value), 1) => *value,
            (Some(value), _) => (value + sorted[middle - 1]) / 2.0,
        }
    }

    /// The smallest and the largest value; infinite, the wrong way round, for none.
    pub fn spread(&self) -> (f64, f64) {
        let values = || self.values.iter().copied();
        (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max))
    }

    fn line(&self) -> Line<'_> {
        let (min, max) = self.spread();
        Line {
            row: &self.row,
            target: &self.target,
            unit: self.unit,
            median: self.median(),
            min,
            max,
            runs: self.values.len(),
        }
    }
}

/// Adds a value to the series of a row and a target, which begins with the first one.
pub fn add(all: &mut Vec<Series>, row: &str, target: &str, unit: &'static str, value: f64) {
    let same = |series: &&mut Series| series.row == row && series.target == target;
    match all.iter_mut().find(same) {
        Some(series) => series.values.push(value),
        None => all.push(Series {
            row: row.to_owned(),
            target: target.to_owned(),
            unit,
            values: vec![value],
        }),
    }
}

/// Prints a table with ratios to `base` and writes `target/bench/NAME.json`.
///
/// # Errors
///
/// When the file cannot be written.
pub fn report(name: &str, base: &str, all: &[Series]) -> Result<()> {
    let width = all.iter().map(|series| series.row.len()).max().unwrap_or(0).max(12);
    println!(
        "\n{:<width$} {:<12} {:>11} {:>11} {:>11} {:<7} {:>5} {:>10}",
        "row",
        "target",
        "median",
        "min",
        "max",
        "unit",
        "runs",
        format!("x {base}")
    );
    for series in all {
        let line = series.line();
        let of_base = all.iter().find(|other| other.row == series.row && other.target == base);
        let ratio = of_base.map_or(f64::NAN, |other| line.median / other.median());
        println!(
            "{:<width$} {:<12} {:>11.3} {:>11.3} {:>11.3} {:<7} {:>5} {:>10.2}",
            line.row, line.target, line.median, line.min, line.max, line.unit, line.runs, ratio
        );
    }
    write(name, all)
}

/// Returns where results are written: `target/bench`.
#[must_use]
pub fn directory() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    target.join("bench")
}

/// Writes `target/bench/NAME.json`.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write(name: &str, all: &[Series]) -> Result<()> {
    let dir = directory();
    let path = dir.join(format!("{name}.json"));
    let lines: Vec<Line<'_>> = all.iter().map(Series::line).collect();
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    std::fs::write(&path, serde_json::to_vec_pretty(&lines)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("\nwritten to {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let median =
            |values: &[f64]| Series { values: values.to_vec(), ..Series::default() }.median();
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
