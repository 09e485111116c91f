//! The header is what cbindgen makes of the source, and the library has what the header says.
#![forbid(unsafe_code)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

fn generated() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::generate_with_config(root, config).unwrap();
    let mut header = Vec::new();
    bindings.write(&mut header);
    String::from_utf8(header).unwrap()
}

#[test]
fn the_header_in_the_tree_is_the_one_that_the_source_makes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/extant.h");
    let header = generated();
    if std::env::var_os("EXTANT_BLESS").is_some() {
        std::fs::write(&path, &header).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == header,
        "include/extant.h is old: EXTANT_BLESS=1 cargo test -p extant-capi --test header"
    );
}

/// Names of functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = generated();
    // What the comment at the top names is no function of its own.
    let lines = header.lines().map(|line| line.split("//").next().unwrap_or(""));
    let code: String = lines.skip_while(|line| !line.starts_with("#ifndef")).collect();
    let words = code.split(|c: char| !(c.is_ascii_alphanumeric() || "_(".contains(c)));
    let functions = words.filter_map(|word| word.split_once('(').map(|(name, _)| name.to_owned()));
    functions.filter(|name| name.starts_with("extant_")).collect()
}

#[test]
fn the_library_has_the_functions_of_the_header_and_no_others() {
    let library = common::library("libextant_capi.so");
    let listed = match Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output() {
        Ok(listed) if listed.status.success() => listed,
        _ => {
            eprintln!("skipped: there is no nm");
            return;
        }
    };
    let listed = String::from_utf8(listed.stdout).unwrap();
    let exported: BTreeSet<String> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(str::to_owned)
        .collect();
    let declared = declared();
    assert!(declared.len() > 50, "{declared:?}");
    assert_eq!(exported, declared);
}
