//! Bounds of what is read.

/// Longest index, manifest or configuration, in bytes. Registries refuse manifests of more than 4 MiB.
pub const DOCUMENT_MAX: u64 = 16 << 20;

/// Deepest nesting of indexes, the first one included.
pub const NESTING_MAX: usize = 4;

/// Most layers of one image. Docker refuses more than 127.
pub const LAYERS_MAX: usize = 1024;

/// Most entries of all indexes that are looked at for one image.
pub const ENTRIES_MAX: usize = 65_536;
