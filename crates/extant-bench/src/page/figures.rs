//! The results of benchmarks, read back from `target/bench`.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::tables::{self, About};

/// Share of a peer's speed below which a row counts as lost: less is within the noise of a run.
const EVEN: f64 = 0.97;

/// The result of one contender in one row, as a benchmark wrote it.
#[derive(Clone, Deserialize, Serialize)]
pub(super) struct Figure {
    pub(super) row: String,
    pub(super) target: String,
    pub(super) unit: String,
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) runs: usize,
}

/// The place of a contender in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    /// What nobody can do better: a copy, the raw device, reading the files.
    Limit,
    /// Another program or file system.
    Peer,
    /// extant.
    Own,
}

/// A contender in a row.
#[derive(Serialize)]
pub(super) struct Entry {
    #[serde(flatten)]
    pub(super) figure: Figure,
    pub(super) role: Role,
    /// How many times as good extant is; `None` for extant itself, and where it was not measured.
    pub(super) ratio: Option<f64>,
}

/// What became of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    /// extant is as good as every peer, or better.
    Wins,
    /// A peer is better.
    Loses,
    /// There is nobody to compare with.
    Alone,
}

/// A row with all contenders.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) unit: String,
    pub(super) is_more_better: bool,
    pub(super) outcome: Outcome,
    /// Why a row loses, in a sentence.
    pub(super) why: Option<&'static str>,
    pub(super) entries: Vec<Entry>,
}

/// A table that was run.
#[derive(Serialize)]
pub(super) struct Table {
    #[serde(flatten)]
    pub(super) about: &'static About,
    pub(super) rows: Vec<Row>,
}

/// Returns whether larger values of a unit are better.
pub(super) fn is_more_better(unit: &str) -> bool {
    unit.ends_with("/s") || unit == "KiB" || unit == "%"
}

/// Reads the results of all tables, and returns the names of those that were not run.
pub(super) fn read(dir: &Path) -> Result<(Vec<Table>, Vec<&'static str>)> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for about in tables::ALL {
        let path = dir.join(format!("{}.json", about.name));
        match std::fs::read(&path) {
            Ok(text) => {
                let figures: Vec<Figure> = serde_json::from_slice(&text)
                    .with_context(|| format!("{} is no result of a benchmark", path.display()))?;
                found.push(table(about, figures));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => missing.push(about.name),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        }
    }
    Ok((found, missing))
}

/// Sorts figures into the rows of a table, in the order in which they were measured.
fn table(about: &'static About, figures: Vec<Figure>) -> Table {
    let mut groups: Vec<Vec<Figure>> = Vec::new();
    for figure in figures {
        let same = |group: &&mut Vec<Figure>| {
            group.first().is_some_and(|first| first.row == figure.row && first.unit == figure.unit)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(figure),
            None => groups.push(vec![figure]),
        }
    }
    Table { about, rows: groups.into_iter().map(|group| row(about, group)).collect() }
}

/// Compares the contenders of a row; all have the same unit.
fn row(about: &About, figures: Vec<Figure>) -> Row {
    let first = figures.first().map(|first| (first.row.clone(), first.unit.clone()));
    let (name, unit) = first.unwrap_or_default();
    let is_more_better = is_more_better(&unit);
    let own = about.own.iter().find_map(|target| {
        figures.iter().find(|figure| figure.target == *target).map(|figure| figure.median)
    });
    let mut entries: Vec<Entry> = figures
        .into_iter()
        .map(|figure| {
            let role = about.role(&figure.target);
            let ratio = own.filter(|_| role != Role::Own).and_then(|own| {
                let (over, under) =
                    if is_more_better { (own, figure.median) } else { (figure.median, own) };
                (under > 0.0).then_some(over / under)
            });
            Entry { figure, role, ratio }
        })
        .collect();
    let place = |entry: &Entry| match entry.role {
        Role::Limit => 0,
        Role::Own => 1,
        Role::Peer => 2,
    };
    entries.sort_by_key(place);
    let peers = || entries.iter().filter(|entry| entry.role == Role::Peer);
    let lost_to = peers().filter(|peer| peer.ratio.is_some_and(|ratio| ratio < EVEN));
    let worst = lost_to.min_by(|a, b| a.ratio.unwrap_or(0.0).total_cmp(&b.ratio.unwrap_or(0.0)));
    let outcome = match (own, peers().any(|peer| peer.ratio.is_some()), &worst) {
        (None, ..) | (_, false, _) => Outcome::Alone,
        (_, _, Some(_)) => Outcome::Loses,
        (_, _, None) => Outcome::Wins,
    };
    let why = worst.map(|_| tables::why(about.name, &name));
    Row { name, unit, is_more_better, outcome, why, entries }
}
