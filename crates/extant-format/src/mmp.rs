//! mmp
