//! A row as bars.

use std::fmt::Write;

use super::figures::{Role, Row};

/// Height of a bar with the space below it, in units of the picture.
const STEP: usize = 18;
/// Width of the picture, and of the longest bar.
const WIDTH: f64 = 420.0;
const LONGEST: f64 = 300.0;

/// Draws the contenders of a row: the longer, the better.
pub(super) fn bars(row: &Row) -> String {
    let goodness = |median: f64| match (row.is_more_better, median > 0.0) {
        (true, _) => median,
        (false, true) => 1.0 / median,
        (false, false) => 0.0,
    };
    let best = row.entries.iter().map(|entry| goodness(entry.figure.median)).fold(0.0, f64::max);
    let height = row.entries.len() * STEP;
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        super::html::escape(&row.name)
    );
    for (index, entry) in row.entries.iter().enumerate() {
        let share = if best > 0.0 { goodness(entry.figure.median) / best } else { 0.0 };
        let class = match entry.role {
            Role::Limit => "limit",
            Role::Peer => "peer",
            Role::Own => "own",
        };
        let (y, width) = (index * STEP, (share * LONGEST).max(1.0));
        let _ = write!(
            out,
            "<rect class=\"{class}\" x=\"0\" y=\"{}\" width=\"{width:.1}\" height=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{}</text>",
            y + 2,
            STEP - 4,
            width + 5.0,
            y + STEP - 5,
            super::html::escape(&entry.figure.target)
        );
    }
    out.push_str("</svg>");
    out
}
