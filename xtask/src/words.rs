//! Words of the source: which types the glossary has to have, and how a comment of a function begins.

use std::collections::{BTreeMap, BTreeSet};

use crate::files::Text;
use crate::floors::{tokens, tree};

/// How many crates make a type a word of the project.
const CRATES: usize = 3;
/// Crates for development, whose words are theirs.
const DEVELOPMENT: [&str; 4] = ["extant-bench", "extant-posix", "extant-testkit", "xtask"];
/// What a glossary need not repeat: the name says it.
const PLAIN: [&str; 3] = ["Error", "Fault", "Flags"];
/// What no comment of a function begins with: a clause without a verb, or a word for the item above it.
const BARE: [&str; 11] = [
    "Whether", "If", "It", "Its", "They", "Their", "Those", "These", "The same", "More", "So many",
];

/// The crate of a source that is not a test's.
fn crate_of(file: &Text) -> Option<&str> {
    let (name, rest) = file.path.strip_prefix("crates/")?.split_once("/src/")?;
    let is_test = rest.contains("tests/") || rest.ends_with("tests.rs");
    (rest.ends_with(".rs") && !is_test).then_some(name)
}

/// T13.
pub(crate) fn glossary(files: &[Text], faults: &mut Vec<String>) {
    let glossary = files.iter().find(|file| file.path == "docs/glossary.md");
    let words: BTreeSet<_> =
        glossary.map_or("", |file| &*file.contents).split('`').skip(1).step_by(2).collect();
    for ((_, name), crates) in shared_types(files) {
        if crates.len() >= CRATES && !words.contains(name) {
            let crates: Vec<_> = crates.into_iter().collect();
            faults.push(format!("docs/glossary.md has no `{name}`, of {}", crates.join(", ")));
        }
    }
}

/// Types that sources import from other crates of the project, each with the crate that it is imported from, and the
/// crates that import it.
fn shared_types(files: &[Text]) -> BTreeMap<(&str, &str), BTreeSet<&str>> {
    let mut found: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for file in files {
        let Some(name) = crate_of(file).filter(|name| !DEVELOPMENT.contains(name)) else {
            continue;
        };
        let tokens = tokens(&file.contents);
        for at in (0..tokens.len()).filter(|at| tokens[*at] == "use") {
            let end = tokens[at..].iter().position(|token| *token == ";");
            let mut all = Vec::new();
            tree(
                &tokens[at + 1..end.map_or(tokens.len(), |end| at + end)],
                &mut Vec::new(),
                &mut all,
            );
            for (path, _) in all {
                let is_ours = path
                    .first()
                    .is_some_and(|first| *first == "extant" || first.starts_with("extant_"));
                let Some(word) = path.last().filter(|word| is_ours && is_type(word)) else {
                    continue;
                };
                found.entry((path[0], *word)).or_default().insert(name);
            }
        }
    }
    found
}

/// Returns whether a name is one of a type that a glossary explains.
fn is_type(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.contains(|c: char| c.is_ascii_lowercase())
        && !PLAIN.iter().any(|end| name.ends_with(end))
}

/// T14.
pub(crate) fn comments(files: &[Text], faults: &mut Vec<String>) {
    for file in files {
        if crate_of(file).is_none_or(|name| DEVELOPMENT.contains(&name)) {
            continue;
        }
        for (line, begins) in bare_comments(&file.contents) {
            let path = &file.path;
            faults.push(format!("{path}:{line}: a function's comment begins with {begins:?}"));
        }
    }
}

/// Lines at which comments of functions begin with what none does, and with what.
fn bare_comments(contents: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut first: Option<(usize, &str)> = None;
    for (at, line) in contents.lines().enumerate() {
        let line = line.trim_start();
        if let Some(text) = line.strip_prefix("///") {
            first = first.or(Some((at + 1, text.trim_start())));
            continue;
        }
        // Attributes, which rustfmt may give several lines, and comments stand between.
        if line.starts_with(['#', ')', ']']) || line.starts_with("//") {
            continue;
        }
        if let Some((number, text)) = first.take().filter(|_| is_function(line)) {
            let begins = BARE.iter().find(|bare| {
                text.strip_prefix(**bare).is_some_and(|rest| rest.starts_with([' ', ',', '.', ':']))
            });
            found.extend(begins.map(|begins| (number, *begins)));
        }
    }
    found
}

fn is_function(line: &str) -> bool {
    let mut words = line.split_whitespace().skip_while(|word| {
        word.starts_with("pub")
            || matches!(*word, "const" | "async" | "unsafe" | "extern" | "\"C\"")
            || word.ends_with(')') && !word.contains('(')
    });
    words.next() == Some("fn")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str, contents: &str) -> Text {
        Text { path: path.into(), contents: contents.into() }
    }

    #[test]
    fn what_three_crates_import_is_in_the_glossary() {
        let import = "use extant_format::{acl::Acl, time::Timestamp as Time, HASH_MAX, BadError};";
        let mut files: Vec<_> = ["a", "b"]
            .iter()
            .map(|name| text(&format!("crates/{name}/src/x.rs"), import))
            .collect();
        let mut faults = Vec::new();
        glossary(&files, &mut faults);
        assert_eq!(faults, [""; 0]);
        files
            .push(text("crates/c/src/x.rs", "use extant_format::acl::Acl; use std::x::Timestamp;"));
        files.push(text("crates/d/src/tests.rs", import));
        glossary(&files, &mut faults);
        assert_eq!(faults, ["docs/glossary.md has no `Acl`, of a, b, c"]);
        files.push(text("docs/glossary.md", "**list**, `Acl` Who may what."));
        faults.clear();
        glossary(&files, &mut faults);
        assert_eq!(faults, [""; 0]);
    }

    #[test]
    fn a_comment_of_a_function_stands_alone() {
        let bare = "/// Whether it is.\n#[inline]\npub(crate) fn f() -> bool {}\n\
            impl A {\n    /// The same, once more.\n    pub const fn g() {}\n}";
        assert_eq!(bare_comments(bare), [(1, "Whether"), (5, "The same")]);
        let fine = "/// Returns whether it is. It is.\nfn f() {}\n/// Whether it is.\nis: bool,\n\
            /// Item of a list.\nfn g() {}\n/// Long.\n///\n/// It is.\npub(super) fn h() {}";
        assert_eq!(bare_comments(fine), []);
    }
}
