//! The only door to locks, threads, time and randomness.
#![forbid(unsafe_code)]
