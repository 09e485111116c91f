//! Rules for documents: what drifts where no tool looks.

use crate::files::Text;
use crate::sentences::one_per_line;

/// T10.
pub(crate) fn wrapping(files: &[Text], faults: &mut Vec<String>) {
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        let better = one_per_line(&file.contents);
        let mut lines = file.contents.lines().zip(better.lines());
        if let Some(at) = lines.position(|(line, better)| line != better) {
            let (path, line) = (&file.path, at + 1);
            let help = "one sentence per line: cargo run -p xtask -- sentences";
            faults.push(format!("{path}:{line}: {help}"));
        }
    }
}

/// T11. The picture is the first block of text in `ARCHITECTURE.md`.
pub(crate) fn picture(crates: &[String], files: &[Text], faults: &mut Vec<String>) {
    let text = files.iter().find(|file| file.path == "ARCHITECTURE.md");
    let picture = text.and_then(|file| file.contents.split("```").nth(1)).unwrap_or_default();
    let is_word = |c: char| c.is_alphanumeric() || c == '-';
    for name in crates {
        if !picture.split(|c| !is_word(c)).any(|word| word == name) {
            faults.push(format!("ARCHITECTURE.md: the picture has no {name}"));
        }
    }
}

/// T12.
pub(crate) fn design_notes(files: &[Text], faults: &mut Vec<String>) {
    let index = files.iter().find(|file| file.path == "docs/README.md");
    let index = index.map_or("", |file| file.contents.as_str());
    for note in files.iter().filter_map(|file| file.path.strip_prefix("docs/design/")) {
        if !index.contains(&format!("(design/{note})")) {
            faults.push(format!("docs/README.md does not list design/{note}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str, contents: &str) -> Text {
        Text { path: path.into(), contents: contents.into() }
    }

    #[test]
    fn each_rule_finds_its_fault() {
        let mut faults = Vec::new();
        wrapping(&[text("a.md", "A line\nends.\n"), text("b.md", "A. b\n")], &mut faults);
        let architecture = text("ARCHITECTURE.md", "`b`\n```text\n a-b\n```\n b");
        picture(&["a-b".into(), "b".into()], &[architecture], &mut faults);
        let index = text("docs/README.md", "[0001](design/0001-a.md)");
        let notes = ["docs/design/0001-a.md", "docs/design/0002-b.md"].map(|path| text(path, ""));
        let [first, second] = notes;
        design_notes(&[index, first, second], &mut faults);
        let told = [
            "a.md:1: one sentence per line: cargo run -p xtask -- sentences",
            "ARCHITECTURE.md: the picture has no b",
            "docs/README.md does not list design/0002-b.md",
        ];
        assert_eq!(faults, told);
    }
}
