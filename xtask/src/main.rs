//! Chores of the project: `cargo run -p xtask -- tidy` checks rules; `floors [CRATE]` shows which
//! modules of a crate lie on which of its floors; `sentences` gives each sentence of a document its line.
#![forbid(unsafe_code)]

mod commits;
mod documents;
mod files;
mod floors;
mod locks;
mod names;
mod sentences;
mod tidy;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy::run(),
        Some("floors") => {
            tidy::print_floors(std::env::args().nth(2).as_deref());
            ExitCode::SUCCESS
        }
        Some("sentences") => tidy::give_sentences_lines(),
        _ => {
            eprintln!("usage: cargo run -p xtask -- tidy | floors [CRATE] | sentences");
            ExitCode::from(2)
        }
    }
}
