//! `diff-walk A B`: prints every difference between two directory trees.
//!
//! Exit status: 0 when they are equal, 1 when they differ, 2 when it was called wrongly.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use extant_testkit::{CompareOptions, compare_trees};

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [first, second] = arguments.as_slice() else {
        eprintln!("usage: diff-walk A B");
        return ExitCode::from(2);
    };
    let differences = compare_trees(first, second, &CompareOptions::default());
    let mut out = std::io::stdout().lock();
    for difference in &differences {
        if writeln!(out, "{difference}").is_err() {
            break; // The reader, such as `head`, had enough.
        }
    }
    if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
