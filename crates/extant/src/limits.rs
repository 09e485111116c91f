//! Limits that callers may need.

/// Longest name, in bytes.
pub const NAME_MAX: usize = extant_format::dir::NAME_MAX;

/// Largest number of symbolic links in the resolution of one path, as on Linux.
pub const SYMLINKS_MAX: usize = 40;
