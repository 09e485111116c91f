//! Rules that no compiler checks.
//!
//! - T1. A path that `ARCHITECTURE.md` names in backquotes exists, and every crate is named.
//! - T2. Every file under `docs/` is linked from another document.
//! - T3. `unsafe` is written only where `docs/unsafe.md` says.
//! - T4. A stored structure (`struct Raw…`) says where its layout comes from: `Source`.
//! - T5. No source file has more than [`LINES_MAX`] lines.
//! - T6. No path of one machine is in the tree.
//! - T7. The mistakes in the source (`sabotage("…")`) are those of `docs/mutations.md`, each has the
//!   name of its crate, and the test that must notice it is there.
//! - T8. The top-level modules of a crate lie on floors: none uses, over however many steps, one that
//!   uses it ([`floors`](crate::floors)). A crate's table of its floors says the same.
//! - T9. A crate that is a front door names every type of the project that its interface shows
//!   ([`names`](crate::names)).
//! - T10. Documents have one sentence per line ([`sentences`](crate::sentences)).
//! - T11. Every crate is in the picture of `ARCHITECTURE.md`.
//! - T12. Every design note is listed in `docs/README.md`.
//! - T13. A type that three crates import from others of the project is in the glossary ([`words`]).
//! - T14. The comment of a function begins neither with a clause without a verb ("Whether it is dirty.") nor with a word for
//!   the item above it ("It is not any more."), in every crate but those for development.
//! - T15. The subject of a commit that is not pushed yet is its area and what it does
//!   ([`commits`]).
//! - T16. Lock files outside of the workspace know what the project's crates need ([`locks`]).

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use crate::commits;
use crate::documents;
use crate::files::{Text, all_files};
use crate::floors::{Graph, table};
use crate::locks;
use crate::names::unnamed;
use crate::sentences::one_per_line;
use crate::words;

/// Longest source file, in lines.
const LINES_MAX: usize = 1000;

/// Crates that are enough, each by itself, for who embeds it.
const FRONT_DOORS: [&str; 1] = ["extant"];

/// Heading of the table of floors that a crate may have in its documentation.
const TABLE: &str = "# Floors";

/// Checks everything and prints what is wrong.
pub(crate) fn run() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned);
    let root = root.unwrap_or_default();
    let faults = check(&root);
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    if faults.is_empty() {
        println!("tidy: nothing to complain about");
        return ExitCode::SUCCESS;
    }
    eprintln!("tidy: {} faults", faults.len());
    ExitCode::FAILURE
}

fn check(root: &Path) -> Vec<String> {
    let files = all_files(root);
    let mut faults = Vec::new();
    architecture(root, &files, &mut faults);
    links(&files, &mut faults);
    for file in &files {
        if file.path.ends_with(".rs") {
            rust(file, &files, &mut faults);
        }
        machine_paths(file, &mut faults);
    }
    mutations(&files, &mut faults);
    front_doors(&files, &mut faults);
    floors(&files, &mut faults);
    documents::wrapping(&files, &mut faults);
    documents::picture(&crates(root), &files, &mut faults);
    documents::design_notes(&files, &mut faults);
    words::glossary(&files, &mut faults);
    words::comments(&files, &mut faults);
    locks::lacking(&files, &mut faults);
    commits::subjects(root, &mut faults);
    faults
}

/// Names of the directories of crates.
fn crates(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Rewrites the documents with one sentence per line.
pub(crate) fn give_sentences_lines() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned);
    let root = root.unwrap_or_default();
    for file in all_files(&root).iter().filter(|file| file.path.ends_with(".md")) {
        let better = one_per_line(&file.contents);
        if better != file.contents {
            if let Err(error) = fs::write(root.join(&file.path), better) {
                eprintln!("{}: {error}", file.path);
                return ExitCode::FAILURE;
            }
            println!("{}", file.path);
        }
    }
    ExitCode::SUCCESS
}

/// Prints what the modules of each crate, or those of the crate `only`, look like from above.
pub(crate) fn print_floors(only: Option<&str>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned);
    let files = all_files(&root.unwrap_or_default());
    for source in sources(&files) {
        let name = source.trim_start_matches("crates/").trim_end_matches("/src/");
        let graph = Graph::of(&files, &source);
        let ((modules, edges), circles) = (graph.size(), graph.circles());
        println!("{name}: {modules} modules, {edges} edges, {} circles", circles.len());
        if only == Some(name) {
            for (floor, modules) in graph.floors().iter().enumerate().rev() {
                println!("{floor:>4}  {}", modules.join(" "));
            }
        }
        for circle in circles {
            println!("      round: {}", circle.join(" "));
        }
    }
}

/// Returns where the crates of the workspace have their sources.
fn sources(files: &[Text]) -> Vec<String> {
    let root_of = |file: &Text| {
        let root = ["lib.rs", "main.rs"].iter().find_map(|root| file.path.strip_suffix(root))?;
        let is_crate = root.starts_with("crates/") && root.split('/').count() == 4;
        (root.ends_with("/src/") && (is_crate || root == "xtask/src/")).then(|| root.to_owned())
    };
    let mut sources: Vec<_> = files.iter().filter_map(root_of).collect();
    sources.dedup();
    sources
}

/// T8.
fn floors(files: &[Text], faults: &mut Vec<String>) {
    for source in sources(files) {
        let name = source.trim_start_matches("crates/").trim_end_matches("/src/");
        let graph = Graph::of(files, &source);
        let lib = find(files, &format!("{source}lib.rs")).unwrap_or_default();
        let table = table(lib, TABLE);
        if !table.is_empty() {
            let told = graph.contradictions(&table).into_iter();
            faults.extend(told.map(|fault| format!("{source}lib.rs: its table {fault}")));
        }
        for circle in graph.circles() {
            faults.push(format!("{name}: modules use each other: {}", circle.join(" ")));
            for way in graph.ways_round(&circle) {
                faults.push(format!("{name}: round and round: {way}"));
            }
        }
    }
}

/// T9.
fn front_doors(files: &[Text], faults: &mut Vec<String>) {
    for name in FRONT_DOORS {
        for (word, of, file) in unnamed(files, &format!("crates/{name}/src/")) {
            faults.push(format!("{file} shows {word}, {of}, which {name}'s root does not name"));
        }
    }
}

fn find<'a>(files: &'a [Text], path: &str) -> Option<&'a str> {
    files.iter().find(|file| file.path == path).map(|file| file.contents.as_str())
}

/// T1.
fn architecture(root: &Path, files: &[Text], faults: &mut Vec<String>) {
    let Some(text) = find(files, "ARCHITECTURE.md") else {
        faults.push("ARCHITECTURE.md is missing".into());
        return;
    };
    for quoted in text.split('`').skip(1).step_by(2) {
        let is_path = quoted.contains('/')
            && !quoted.contains([' ', '*', '(', '<', '{'])
            && ["crates/", "docs/", "fuzz/", "xtask/", "scripts/"]
                .iter()
                .any(|top| quoted.starts_with(top));
        if is_path && !root.join(quoted).exists() {
            faults.push(format!("ARCHITECTURE.md names {quoted}, which does not exist"));
        }
    }
    for name in crates(root) {
        if !text.contains(&format!("`{name}`")) {
            faults.push(format!("ARCHITECTURE.md does not name `{name}`"));
        }
    }
}

/// T2.
fn links(files: &[Text], faults: &mut Vec<String>) {
    for file in files.iter().filter(|file| file.path.starts_with("docs/")) {
        let name = file.path.rsplit('/').next().unwrap_or(&file.path);
        let linked = files.iter().any(|other| {
            other.path != file.path && other.path.ends_with(".md") && other.contents.contains(name)
        });
        if !linked {
            faults.push(format!("{} is linked from nowhere", file.path));
        }
    }
}

/// T3, T4, T5.
fn rust(file: &Text, files: &[Text], faults: &mut Vec<String>) {
    let lines = file.contents.lines().count();
    if lines > LINES_MAX {
        faults.push(format!("{} has {lines} lines, more than {LINES_MAX}", file.path));
    }
    let register = find(files, "docs/unsafe.md").unwrap_or("");
    let code = |line: &&str| !line.trim_start().starts_with("//");
    let word = ["un", "safe"].concat();
    let opens = |line: &str| {
        [" {", " fn ", " impl "].iter().any(|after| line.contains(&format!("{word}{after}")))
    };
    if file.contents.lines().filter(code).any(opens) && !register.contains(&file.path) {
        faults.push(format!("{} is unsafe and not in docs/unsafe.md", file.path));
    }
    let crate_root = file.path.ends_with("/src/lib.rs") || file.path.ends_with("/src/main.rs");
    // A crate with a registered module can only deny, or the module could not be let off.
    let source = file.path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let denies =
        file.contents.contains("deny(unsafe_code)") && register.contains(&format!("{source}/"));
    if crate_root && !denies && !file.contents.contains("forbid(unsafe_code)") {
        faults.push(format!("{} does not forbid unsafe code", file.path));
    }
    if file.path.contains("extant-format/src")
        && file.contents.contains("struct Raw")
        && !file.contents.contains("Source")
    {
        faults.push(format!("{} has a stored structure without its source", file.path));
    }
}

/// T6.
fn machine_paths(file: &Text, faults: &mut Vec<String>) {
    // In pieces, so that this file does not hold what it looks for.
    let forbidden = [["/wo", "rk/"], ["/tmp/br", "ief"], ["/ro", "ot/"], ["/var/tmp/", "t-"]];
    for pieces in forbidden {
        let path = pieces.concat();
        if file.contents.contains(&path) {
            faults.push(format!("{} names {path}, a path of one machine", file.path));
        }
    }
}

/// T7.
fn mutations(files: &[Text], faults: &mut Vec<String>) {
    const TABLES: &str = "docs/mutations.md";
    let Some(tables) = find(files, TABLES) else {
        faults.push(format!("{TABLES} is missing"));
        return;
    };
    let mut made = Vec::new();
    for file in files {
        let Some((package, _)) =
            file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        let place = package.strip_prefix("extant-").unwrap_or(package);
        for switch in switches(&file.contents) {
            if switch.split('.').next() != Some(place) || switch.split('.').count() != 3 {
                faults.push(format!("{}: {switch} is not {place}.PLACE.MISTAKE", file.path));
            }
            made.push(switch);
        }
    }
    let mut listed = Vec::new();
    for line in tables.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [switch, _, test, runs_in] = cells[..] else {
            faults.push(format!("{TABLES}: not four cells: {line}"));
            continue;
        };
        let (switch, test) = (switch.trim_matches('`'), test.trim_matches('`'));
        if listed.contains(&switch) {
            faults.push(format!("{TABLES} has {switch} twice"));
        }
        listed.push(switch);
        if !made.contains(&switch) {
            faults.push(format!("{TABLES} has {switch}, which no source makes"));
        }
        if !["make test", "make test-long"].contains(&runs_in.trim_end_matches(", may hang")) {
            faults.push(format!("{TABLES}: {switch} runs in {runs_in:?}"));
        }
        let parts: Vec<_> = test.split('/').collect();
        let is_there = matches!(parts[..], [package, _, test]
            if has_test(files, package, test.rsplit("::").next().unwrap_or(test)));
        if !is_there {
            faults.push(format!("{TABLES}: no test {test} for {switch}"));
        }
    }
    for switch in made.iter().filter(|switch| !listed.contains(switch)) {
        faults.push(format!("{TABLES} does not have {switch}"));
    }
}

/// The names in `sabotage("…")`, as far as it is not a comment's.
fn switches(contents: &str) -> Vec<&str> {
    let code = |start: usize| {
        let line = contents[..start].rsplit('\n').next().unwrap_or("");
        !line.trim_start().starts_with("//")
    };
    let calls = contents.match_indices("sabotage(").filter(|(at, _)| code(*at));
    let named = calls.filter_map(|(at, call)| {
        contents[at + call.len()..].trim_start().strip_prefix('"')?.split('"').next()
    });
    // What shows how the call is used is no mistake.
    named.filter(|name| !name.starts_with("base.")).collect()
}

/// Returns whether a crate has a function or a case of a macro of that name.
fn has_test(files: &[Text], package: &str, test: &str) -> bool {
    let below = format!("crates/{package}/");
    let mut sources = files.iter().filter(|file| file.path.starts_with(&below));
    sources.any(|file| {
        file.contents.match_indices(test).any(|(at, _)| {
            let word = |byte: Option<u8>| {
                byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            };
            let bytes = file.contents.as_bytes();
            !word(at.checked_sub(1).and_then(|before| bytes.get(before).copied()))
                && !word(bytes.get(at + test.len()).copied())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str, contents: &str) -> Text {
        Text { path: path.into(), contents: contents.into() }
    }

    fn faults_of(file: Text) -> Vec<String> {
        let mut faults = Vec::new();
        let files = [file];
        rust(&files[0], &files, &mut faults);
        machine_paths(&files[0], &mut faults);
        faults
    }

    #[test]
    fn each_rule_finds_its_fault() {
        let block = format!("fn f() {{ {} {{ g() }} }}", ["un", "safe"].concat());
        assert_eq!(faults_of(text("a/src/b.rs", &block)).len(), 1);
        assert_eq!(faults_of(text("a/src/lib.rs", "fn f() {}")).len(), 1);
        let raw = text("crates/extant-format/src/a.rs", "pub struct RawThing {}");
        assert_eq!(faults_of(raw).len(), 1);
        assert_eq!(faults_of(text("a/src/b.rs", &"\n".repeat(LINES_MAX + 1))).len(), 1);
        assert_eq!(faults_of(text("a.md", &["see /wo", "rk/x"].concat())).len(), 1);
        assert!(faults_of(text("a/src/b.rs", "fn f() {}")).is_empty());
        let mut faults = Vec::new();
        let source = format!("if {}(\n\"a.b.c\") {{}} fn t() {{}}", "sabotage");
        let row = |switch, test| {
            text("docs/mutations.md", &format!("| `{switch}` | x | `a/lib/{test}` | make test |"))
        };
        mutations(&[text("crates/a/src/b.rs", &source), row("a.b.c", "t")], &mut faults);
        assert_eq!(faults, [""; 0]);
        mutations(&[text("crates/a/src/b.rs", &source), row("a.b.d", "u")], &mut faults);
        mutations(&[text("crates/b/src/b.rs", &source), row("a.b.c", "t")], &mut faults);
        let told = [
            "docs/mutations.md has a.b.d, which no source makes",
            "docs/mutations.md: no test a/lib/u for a.b.d",
            "docs/mutations.md does not have a.b.c",
            "crates/b/src/b.rs: a.b.c is not b.PLACE.MISTAKE",
            "docs/mutations.md: no test a/lib/t for a.b.c",
        ];
        assert_eq!(faults, told);
        let mut faults = Vec::new();
        links(&[text("docs/a.md", ""), text("README.md", "docs/b.md")], &mut faults);
        assert_eq!(faults, ["docs/a.md is linked from nowhere"]);
    }
}
