//! The tables in short, for a reader of the repository.

use std::fmt::Write;

use super::Page;
use super::figures::{Outcome, Role, Row};
use super::html::number;

/// Returns one line for each row: what extant reached, and how that compares.
pub(super) fn summary(page: &Page) -> String {
    let machine = &page.machine;
    let mut out = format!(
        "# Figures\n\nMade by `make bench-page` on {}, commit {}; {}, {}, {}.\n\
         Ratios say how many times as good extant is; [the page](index.html) has the spread, charts and reasons.\n",
        machine.date, machine.commit, machine.processors, machine.memory, machine.system
    );
    for table in &page.tables {
        let _ = write!(
            out,
            "\n## {}\n\n{}\n`make bench-{}`\n\n| row | extant | × others | × limit | |\n| --- | ---: | --- | --- | --- |\n",
            table.about.title, table.about.question, table.about.name
        );
        for row in &table.rows {
            line(&mut out, row);
        }
    }
    if !page.missing.is_empty() {
        let _ = write!(out, "\nNot run: {}.\n", page.missing.join(", "));
    }
    out
}

fn line(out: &mut String, row: &Row) {
    let own = row.entries.iter().find(|entry| entry.role == Role::Own);
    let own = own.map_or("–".to_owned(), |entry| {
        format!("{} {}", number(entry.figure.median), row.unit).trim_end().to_owned()
    });
    let of = |role: Role| {
        let entries = row.entries.iter().filter(|entry| entry.role == role);
        let ratios = entries.filter_map(|entry| {
            entry.ratio.map(|ratio| format!("{} {}", number(ratio), entry.figure.target))
        });
        ratios.collect::<Vec<_>>().join(", ")
    };
    let mark = if row.outcome == Outcome::Loses { "loses" } else { "" };
    let name = row.name.replace('|', "\\|");
    let _ = writeln!(out, "| {name} | {own} | {} | {} | {mark} |", of(Role::Peer), of(Role::Limit));
}
