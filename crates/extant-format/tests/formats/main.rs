//! Structures on disk, and what e2fsprogs makes of them.
//!
//! One program for all of them: each has to be linked with everything it tests.

mod e2fsprogs;
mod structures;
