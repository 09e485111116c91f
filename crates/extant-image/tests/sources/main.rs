//! Sources as they are read: directories and tars.
//!
//! One program for all of them: each has to be linked with everything it tests.

mod scan_dir;
mod scan_tar;
mod tar_differential;
