//! One page of all tables: what wins, what loses, and why.
//!
//! # Shape
//!
//! ```text
//! tables    what is measured, beside whom, and why a row loses
//! figures   the results of earlier runs, read back
//! machine   where they were measured
//! chart     a row as a picture
//! html      the page, readable without scripts
//! markdown  the same, short
//! ```
//!
//! The benchmarks leave their medians in `target/bench/NAME.json`; this module reads them and measures
//! nothing. A table that was not run is named on the page.

mod chart;
mod figures;
mod html;
mod machine;
mod markdown;
mod tables;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use figures::Table;
use machine::Machine;

/// All that the page says.
#[derive(Serialize)]
struct Page {
    machine: Machine,
    tables: Vec<Table>,
    /// Names of the tables that were not run.
    missing: Vec<&'static str>,
}

/// Writes `index.html`, `report.json` and `summary.md` into `to` from the results in `from`.
///
/// # Errors
///
/// When no table was run, a result cannot be understood, or a file cannot be written.
pub fn write(from: &Path, to: &Path) -> Result<()> {
    let (tables, missing) = figures::read(from)?;
    ensure!(
        !tables.is_empty(),
        "{} has no result: run make bench-quick, or make bench, before",
        from.display()
    );
    let page = Page { machine: Machine::here(), tables, missing };
    std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let mut json = serde_json::to_vec_pretty(&page)?;
    json.push(b'\n');
    let files = [
        ("index.html", html::page(&page).into_bytes()),
        ("report.json", json),
        ("summary.md", markdown::summary(&page).into_bytes()),
    ];
    for (name, contents) in files {
        let path = to.join(name);
        std::fs::write(&path, contents)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    for name in &page.missing {
        println!("not run, and named on the page: {name}");
    }
    println!("written to {}", to.join("index.html").display());
    Ok(())
}

#[cfg(test)]
mod tests;
