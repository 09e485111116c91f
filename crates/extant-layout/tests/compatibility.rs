//! The tables for users and the table in the code say the same.

use std::path::Path;

use extant_format::features::{Feature, Features};
use extant_layout::support::{BUILDABLE, READABLE};

/// Each feature that `docs/compatibility.md` names, with what its row says of reading and building.
fn rows() -> Vec<(Feature, String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    let text = std::fs::read_to_string(path).unwrap();
    let table = text.lines().skip_while(|line| !line.starts_with("| feature | read | build |"));
    let mut found = Vec::new();
    for line in table.skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let names: Vec<_> = cells[1].split('`').skip(1).step_by(2).collect();
        let builds: Vec<_> = cells[3].split(", ").collect();
        for (at, name) in names.iter().enumerate() {
            let feature = Feature::from_name(name).unwrap_or_else(|e| panic!("{}: {line}", e.name));
            let build = if builds.len() == names.len() { builds[at] } else { cells[3] };
            found.push((feature, cells[2].to_owned(), build.to_owned()));
        }
    }
    found
}

#[test]
fn the_document_and_the_table_agree() {
    let rows = rows();
    assert!(rows.len() > 40, "{} features in the document", rows.len());
    for (feature, read, build) in &rows {
        assert_eq!(BUILDABLE.has(*feature), build != "no", "building {feature}: {build}");
        let refused = !Features::of(&[*feature]).unsupported_for_reading(&READABLE).is_empty();
        assert_eq!(refused, read.starts_with("refused"), "reading {feature}: {read}");
    }
    let named = rows.iter().fold(Features::NONE, |set, (feature, ..)| set.with(*feature));
    let silent = Features { ..READABLE.without(&named) };
    assert!(silent.is_empty(), "not in the document: {silent}");
}
