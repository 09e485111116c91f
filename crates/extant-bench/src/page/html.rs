//! The page: one file, without scripts, light and dark.

use std::fmt::Write;

use super::figures::{Entry, Outcome, Role, Row, Table};
use super::{Page, chart};

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1c1d20; --paper: #fcfcfb; --line: #d6d6d2; --own: #1f6f54;
  --peer: #9aa3ad; --limit: #d8c9a3; --bad: #a3301f; --soft: #5d6168; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e3; --paper: #17181a; --line: #383a3e;
  --own: #57b894; --peer: #666e78; --limit: #6d6345; --bad: #ef8a78; --soft: #a2a6ad; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 68rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.6rem 0 .3rem; }
p { max-width: 46rem; } .soft { color: var(--soft); } a { color: inherit; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; padding: .25rem .6rem; border-top: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th[scope=rowgroup] { min-width: 11rem; } td.picture { width: 20rem; } svg { width: 20rem; display: block; }
svg text { font-size: 11px; fill: var(--ink); } .own { fill: var(--own); } .peer { fill: var(--peer); }
.limit { fill: var(--limit); } .loses { color: var(--bad); font-weight: 600; } tr.ours td { font-weight: 600; }
";

/// Returns `text` with the characters that HTML gives a meaning written as entities.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

/// Writes a value with as many digits as say something.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Returns the whole page.
pub(super) fn page(page: &Page) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>extant beside the kernel</title>\
         <style>{STYLE}</style></head>\n<body><main>\n<h1>extant beside the kernel</h1>\n"
    );
    head(&mut out, page);
    for table in &page.tables {
        section(&mut out, table);
    }
    if !page.missing.is_empty() {
        out.push_str(
            "<h2 id=\"missing\">Not run</h2>\n<p>These tables have no figures here:</p><ul>\n",
        );
        for name in &page.missing {
            let _ = writeln!(out, "<li>{} (<code>make bench-{0}</code>)</li>", escape(name));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</main></body></html>\n");
    out
}

fn head(out: &mut String, page: &Page) {
    let machine = &page.machine;
    let _ = writeln!(
        out,
        "<p class=\"soft\">{}, commit {}. {}; {}; {}. {}</p>",
        escape(&machine.date),
        escape(&machine.commit),
        escape(&machine.processors),
        escape(&machine.memory),
        escape(&machine.system),
        escape(&machine.programs.join("; "))
    );
    let all = || page.tables.iter().flat_map(|table| &table.rows);
    let count = |outcome| all().filter(|row| row.outcome == outcome).count();
    let _ = writeln!(
        out,
        "<p>Contenders take turns within each round. Figures are medians, with the smallest and the largest \
         beside them; <em>×</em> says how many times as good extant is. The longer a bar, the better. \
         Limits are what nobody can beat: a copy, the raw device, reading the files.</p>\n\
         <p><strong>{} rows are won or even, {} are lost</strong>, {} have nobody to compare with.</p>\n<nav><ul>",
        count(Outcome::Wins),
        count(Outcome::Loses),
        count(Outcome::Alone)
    );
    for table in &page.tables {
        let lost = table.rows.iter().filter(|row| row.outcome == Outcome::Loses).count();
        let _ = writeln!(
            out,
            "<li><a href=\"#{}\">{}</a> <span class=\"soft\">{} rows, {lost} lost</span></li>",
            table.about.name,
            escape(table.about.title),
            table.rows.len()
        );
    }
    out.push_str("</ul></nav>\n");
}

fn section(out: &mut String, table: &Table) {
    let about = table.about;
    let _ = writeln!(
        out,
        "<section><h2 id=\"{}\">{}</h2>\n<p>{} <span class=\"soft\">{}; <code>make bench-{0}</code></span></p>\n\
         <div class=\"wide\"><table><thead><tr><th>row</th><th>contender</th><th class=\"number\">median</th>\
         <th class=\"number\">min–max</th><th>unit</th><th class=\"number\">×</th><th></th></tr></thead>",
        about.name,
        escape(about.title),
        escape(about.question),
        escape(about.thread)
    );
    for row in &table.rows {
        group(out, row);
    }
    out.push_str("</table></div></section>\n");
}

fn group(out: &mut String, row: &Row) {
    out.push_str("<tbody>\n");
    let lines = row.entries.len();
    for (index, entry) in row.entries.iter().enumerate() {
        let class = if entry.role == Role::Own { " class=\"ours\"" } else { "" };
        let _ = write!(out, "<tr{class}>");
        if index == 0 {
            let _ = write!(
                out,
                "<th scope=\"rowgroup\" rowspan=\"{lines}\">{}{}</th>",
                escape(&row.name),
                verdict(row)
            );
        }
        cells(out, entry, &row.unit);
        if index == 0 {
            let _ =
                write!(out, "<td class=\"picture\" rowspan=\"{lines}\">{}</td>", chart::bars(row));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>");
}

fn verdict(row: &Row) -> String {
    match row.why {
        Some(why) => format!(
            "<br><span class=\"loses\">loses</span> <span class=\"soft\">{}</span>",
            escape(why)
        ),
        None => String::new(),
    }
}

fn cells(out: &mut String, entry: &Entry, unit: &str) {
    let figure = &entry.figure;
    let ratio = entry.ratio.map(number).unwrap_or_default();
    let _ = write!(
        out,
        "<td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}–{}</td><td>{}</td>\
         <td class=\"number\">{ratio}</td>",
        escape(&figure.target),
        number(figure.median),
        number(figure.min),
        number(figure.max),
        escape(unit)
    );
}
