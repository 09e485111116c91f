//! Chores of the project: `cargo run -p xtask -- tidy`.
#![forbid(unsafe_code)]

mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy::run(),
        _ => {
            eprintln!("usage: cargo run -p xtask -- tidy");
            ExitCode::from(2)
        }
    }
}
