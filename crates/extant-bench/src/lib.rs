//! Benchmarks that run the finished command against other programs.
//!
//! Each interleaves its contenders, so that a machine that slows down slows all of them, prints a
//! table, and writes `target/bench/NAME.json`: a list of
//! `{"row", "target", "unit", "median", "min", "max", "runs"}`.
#![forbid(unsafe_code)]

pub mod age;
pub mod alloc;
pub mod build;
pub mod change;
pub mod check;
pub mod counts;
pub mod crypt;
pub mod direct;
pub mod io;
pub mod mount;
pub mod namespace;
pub mod page;
pub mod pieces;
pub mod python;
pub mod read;
pub mod remote;
pub mod report;
pub mod ring;
pub mod run;
pub mod stop;
