//! The page of `extant frag --html`: one file without scripts, however large the file system is.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{Files, Free, span, worst_first};
use crate::exit::{Exit, Failure, Result};
use crate::text::{counted, escape, human_bytes};

/// Squares of the map at most: the page of 16 TiB is as large as that of 512 GiB.
const CELLS_MOST: u32 = 4096;
/// Squares side by side.
const COLUMNS: usize = 64;
/// Free pieces of so many bytes on average are long.
const LONG: u64 = 4 << 20;
/// Free pieces of fewer bytes on average are short.
const SHORT: u64 = 256 << 10;

/// Some block groups that follow each other, one square of the map. In blocks.
#[derive(Default, Clone)]
struct Cell {
    blocks: u64,
    free: u64,
    runs: u64,
    largest: u64,
    /// Groups whose bitmap could not be read.
    unread: u32,
}

/// The block groups of a file system, as squares.
pub(super) struct Groups {
    count: u32,
    in_cell: u32,
    cells: Vec<Cell>,
}

impl Groups {
    pub(super) fn new(count: u32) -> Groups {
        let in_cell = count.div_ceil(CELLS_MOST).max(1);
        Groups { count, in_cell, cells: vec![Cell::default(); count.div_ceil(in_cell) as usize] }
    }

    /// Counts a group of so many blocks; `None` for one whose bitmap could not be read.
    pub(super) fn add(&mut self, group: u32, blocks: u32, runs: Option<&[Range<u64>]>) {
        let Some(cell) = self.cells.get_mut((group / self.in_cell) as usize) else {
            return;
        };
        cell.blocks += u64::from(blocks);
        let Some(runs) = runs else {
            cell.unread += 1;
            return;
        };
        for run in runs {
            let len = run.end.saturating_sub(run.start);
            cell.free += len;
            cell.runs += 1;
            cell.largest = cell.largest.max(len);
        }
    }
}

/// The file that the page becomes. It goes away when it is not finished.
pub(super) struct Page {
    path: PathBuf,
    file: Option<File>,
    body: String,
}

impl Page {
    /// Makes the file, before the images are looked at.
    ///
    /// # Errors
    ///
    /// There is something of that name: an image, perhaps.
    pub(super) fn create(path: &Path) -> Result<Page> {
        let name = path.display();
        let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| {
            let exit = match error.kind() {
                ErrorKind::StorageFull => Exit::NoSpace,
                ErrorKind::AlreadyExists => Exit::Usage,
                _ => Exit::Io,
            };
            let failure = Failure::caused(exit, &format!("cannot make {name}"), &error);
            match error.kind() {
                ErrorKind::AlreadyExists => {
                    failure.hint("--html replaces no file: give another name, or remove it first")
                }
                _ => failure,
            }
        })?;
        Ok(Page { path: path.to_owned(), file: Some(file), body: String::new() })
    }

    /// Puts what was found in an image, or below a directory of it, on the page.
    pub(super) fn add(
        &mut self,
        label: &[u8],
        files: &Files,
        free: Option<(&Free, &Groups)>,
        block_bytes: u64,
    ) {
        let body = &mut self.body;
        push(body, format_args!("<section>\n<h2><bdi>{}</bdi></h2>\n", name(label)));
        put_files(body, files);
        if let Some((free, groups)) = free {
            put_map(body, groups, block_bytes);
            put_free(body, free, block_bytes);
        }
        body.push_str("</section>\n");
    }

    /// Writes the page.
    ///
    /// # Errors
    ///
    /// Those of the file, which is removed then.
    pub(super) fn finish(mut self) -> Result<()> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let page = format!("{HEAD}{}</main>\n</body>\n</html>\n", self.body);
        file.write_all(page.as_bytes()).map_err(|error| {
            let _ = std::fs::remove_file(&self.path);
            let exit = match error.kind() {
                ErrorKind::StorageFull => Exit::NoSpace,
                _ => Exit::Io,
            };
            Failure::caused(exit, &format!("cannot write {}", self.path.display()), &error)
        })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn push(body: &mut String, text: std::fmt::Arguments<'_>) {
    // Strings take everything.
    let _ = body.write_fmt(text);
}

/// A name as text of a page.
fn name(bytes: &[u8]) -> String {
    let text = escape(bytes);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn put_files(body: &mut String, files: &Files) {
    let (count, pieces) = (counted(files.count, "file"), counted(files.pieces, "piece"));
    let bytes = human_bytes(files.bytes);
    push(body, format_args!("<p>{count} with {bytes} in {pieces}</p>\n"));
    if files.count == 0 {
        return;
    }
    let (score, per_gib) = (files.score(), files.per_gib());
    push(body, format_args!("<p>Score: <b>{score}</b> of 100; {per_gib:.0} pieces per GiB</p>\n"));
    body.push_str("<table>\n<caption>Files by their pieces</caption>\n");
    body.push_str("<tr><th>pieces</th><th>files</th></tr>\n");
    for (first, last, count, _) in files.sizes.rows() {
        push(body, format_args!("<tr><td>{}</td><td>{count}</td></tr>\n", span(first, last)));
    }
    body.push_str("</table>\n");
    if files.worst.is_empty() {
        return;
    }
    body.push_str("<table>\n<caption>Files with the most pieces</caption>\n");
    body.push_str("<tr><th>pieces</th><th>size</th><th>file</th></tr>\n");
    for (pieces, path, bytes) in worst_first(files) {
        let (bytes, path) = (human_bytes(bytes), name(path));
        let row = format_args!(
            "<tr><td>{pieces}</td><td>{bytes}</td><td class=\"name\"><bdi>{path}</bdi></td></tr>\n"
        );
        push(body, row);
    }
    body.push_str("</table>\n");
}

/// The class of a square by how its free space lies.
fn kind(cell: &Cell, block_bytes: u64) -> &'static str {
    match cell.free.saturating_mul(block_bytes).checked_div(cell.runs) {
        _ if cell.unread > 0 => "bad",
        None => "none",
        Some(average) if average >= LONG => "long",
        Some(average) if average >= SHORT => "middle",
        Some(_) => "short",
    }
}

fn put_map(body: &mut String, groups: &Groups, block_bytes: u64) {
    let (rows, each) =
        (groups.cells.len().div_ceil(COLUMNS), counted(groups.in_cell.into(), "group"));
    let (width, height) = (COLUMNS.min(groups.cells.len()) * 12, rows * 12);
    body.push_str("<h3>Map of the block groups</h3>\n");
    push(body, format_args!("<p>Each square is {each} of {}.</p>\n", groups.count));
    body.push_str(LEGEND);
    push(
        body,
        format_args!(
            "<svg role=\"img\" aria-label=\"map of the block groups\" viewBox=\"0 0 {width} {height}\" \
             style=\"max-width:{width}px\">\n"
        ),
    );
    for (at, cell) in groups.cells.iter().enumerate() {
        let (x, y) = (at % COLUMNS * 12, at / COLUMNS * 12);
        let first = at as u32 * groups.in_cell;
        let last = (first + (groups.in_cell - 1)).min(groups.count - 1);
        let used = cell.blocks.saturating_sub(cell.free);
        let percent = (used * 100).checked_div(cell.blocks).unwrap_or(0);
        let kind = kind(cell, block_bytes);
        // Fifths, and the fifth of all is with the last.
        let fifth = (percent / 20).min(4);
        let free = human_bytes(cell.free.saturating_mul(block_bytes));
        let largest = human_bytes(cell.largest.saturating_mul(block_bytes));
        let runs = counted(cell.runs, "piece");
        push(
            body,
            format_args!(
                "<rect class=\"{kind} u{fifth}\" x=\"{x}\" y=\"{y}\" width=\"11\" height=\"11\"><title>\
                 {}: {percent}% used, {free} free in {runs}, the largest of {largest}",
                span(first.into(), last.into())
            ),
        );
        if cell.unread > 0 {
            push(
                body,
                format_args!("; {} could not be read", counted(cell.unread.into(), "bitmap")),
            );
        }
        body.push_str("</title></rect>\n");
    }
    body.push_str("</svg>\n");
}

fn put_free(body: &mut String, free: &Free, block_bytes: u64) {
    let bytes = |blocks: u64| human_bytes(blocks.saturating_mul(block_bytes));
    let runs = counted(free.runs, "piece");
    let (all, largest) = (bytes(free.blocks), bytes(free.largest));
    push(body, format_args!("<p>{all} free in {runs}, the largest of {largest}</p>\n"));
    if free.runs == 0 {
        return;
    }
    body.push_str("<table>\n<caption>Free space by the size of its pieces</caption>\n");
    body.push_str("<tr><th>size</th><th>pieces</th><th>in all</th><th>share</th></tr>\n");
    for (first, last, count, sum) in free.sizes.rows() {
        let share = sum as f64 * 100.0 / free.blocks.max(1) as f64;
        let (first, last, sum) = (bytes(first), bytes(last), bytes(sum));
        let row = format_args!(
            "<tr><td>{first} to {last}</td><td>{count}</td><td>{sum}</td><td>{share:.1}%</td></tr>\n"
        );
        push(body, row);
    }
    body.push_str("</table>\n");
}

const LEGEND: &str = "<ul class=\"legend\">\n\
    <li><i class=\"long\"></i>free pieces of 4 MiB or more on average</li>\n\
    <li><i class=\"middle\"></i>of 256 KiB to 4 MiB</li>\n\
    <li><i class=\"short\"></i>shorter</li>\n\
    <li><i class=\"none\"></i>nothing free</li>\n\
    <li><i class=\"bad\"></i>a bitmap could not be read</li>\n\
    <li>the stronger the colour, the more is used</li>\n\
    </ul>\n";

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Pieces of files and of free space</title>
<style>
:root { color-scheme: light dark; --back: #fff; --text: #222; --line: #bbb;
  --long: #0063b2; --middle: #c77700; --short: #b3003b; --none: #666; --bad: #000; }
@media (prefers-color-scheme: dark) { :root { --back: #16181c; --text: #ddd; --line: #555;
  --long: #5ab0ff; --middle: #ffb84d; --short: #ff6f91; --none: #999; --bad: #fff; } }
body { background: var(--back); color: var(--text); font: 15px/1.5 sans-serif; margin: 2em auto;
  max-width: 60em; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
caption { font-weight: bold; text-align: left; }
th, td { border-bottom: 1px solid var(--line); padding: .1em .8em; text-align: right; }
th:last-child, td.name { overflow-wrap: anywhere; text-align: left; }
svg { display: block; width: 100%; }
.legend { list-style: none; padding: 0; }
.legend i { display: inline-block; height: .8em; margin-right: .5em; width: .8em; }
.long { background: var(--long); fill: var(--long); }
.middle { background: var(--middle); fill: var(--middle); }
.short { background: var(--short); fill: var(--short); }
.none { background: var(--none); fill: var(--none); }
.bad { background: var(--bad); fill: var(--bad); }
.u0 { fill-opacity: .25; } .u1 { fill-opacity: .45; } .u2 { fill-opacity: .6; }
.u3 { fill-opacity: .8; } .u4, .bad { fill-opacity: 1; }
</style>
</head>
<body>
<main>
<h1>Pieces of files and of free space</h1>
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(groups: &Groups) -> String {
        let mut body = String::new();
        put_map(&mut body, groups, 4096);
        body
    }

    #[test]
    fn the_map_of_16_tib_has_no_more_squares_than_that_of_512_gib() {
        let mut groups = Groups::new(131_072);
        for group in 0..131_072 {
            groups.add(group, 32_768, Some(&[0..100, 200..300]));
        }
        let page = page_of(&groups);
        assert_eq!(page.matches("<rect ").count(), 4096);
        assert!(page.contains("131040 to 131071: 99% used, 25 MiB free in 64 pieces"), "{page}");
        assert!(page.len() < 1 << 20, "{}", page.len());
    }

    #[test]
    fn squares_say_how_free_space_lies_and_which_could_not_be_read() {
        let mut groups = Groups::new(5);
        groups.add(0, 32_768, Some(std::slice::from_ref(&(0..32_768))));
        groups.add(1, 32_768, Some(std::slice::from_ref(&(0..64))));
        groups.add(2, 32_768, Some(&[0..1, 2..3]));
        groups.add(3, 32_768, Some(&[]));
        groups.add(4, 100, None);
        // What is not there is not counted.
        groups.add(5, 100, None);
        let page = page_of(&groups);
        for square in ["long u0", "middle u4", "short u4", "none u4", "bad u4"] {
            assert_eq!(page.matches(&format!("<rect class=\"{square}\"")).count(), 1, "{page}");
        }
        assert!(page.contains("; 1 bitmap could not be read"), "{page}");
    }

    #[test]
    fn names_are_text() {
        let text = name(b"/<script>\"&\x1b[2J\xff");
        assert_eq!(text, "/&lt;script&gt;&quot;&amp;\\u{1b}[2J\\xff");
    }
}
