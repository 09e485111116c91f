//! What extant can do with a file system, by its features.
//!
//! # Place
//!
//! One table for the builder, the library and the checker; `docs/compatibility.md` says the same to
//! users, and `tests/compatibility.rs` compares the two.

use extant_format::features::{Feature, Features};

/// Something to be done with a file system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Task {
    /// Make a new one that has the feature.
    Build,
    /// Read one that has it.
    Read,
    /// Change one that has it, and keep what the feature promises.
    Write,
    /// Check everything that the feature brings.
    Check,
}

/// The tasks that a feature does not stand in the way of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Row(Feature, &'static [Task]);

const ALL: &[Task] = &[Task::Build, Task::Read, Task::Write, Task::Check];
/// Features of a file system in use, or of the past: no new file system has them.
const EXISTING: &[Task] = &[Task::Read, Task::Write, Task::Check];
const LOOKED_AT: &[Task] = &[Task::Read, Task::Check];

/// A feature that is not here is refused, unless its word lets programs pass that do not know it.
const TABLE: &[Row] = &[
    Row(Feature::DIR_PREALLOC, EXISTING),
    Row(Feature::IMAGIC_INODES, EXISTING),
    Row(Feature::HAS_JOURNAL, ALL),
    Row(Feature::EXT_ATTR, ALL),
    Row(Feature::RESIZE_INODE, ALL),
    Row(Feature::DIR_INDEX, ALL),
    Row(Feature::SPARSE_SUPER2, ALL),
    Row(Feature::FAST_COMMIT, ALL),
    Row(Feature::STABLE_INODES, ALL),
    Row(Feature::ORPHAN_FILE, ALL),
    Row(Feature::FILETYPE, ALL),
    Row(Feature::RECOVER, EXISTING),
    Row(Feature::META_BG, ALL),
    Row(Feature::EXTENTS, ALL),
    Row(Feature::SIXTY_FOUR_BIT, ALL),
    Row(Feature::MMP, ALL),
    Row(Feature::FLEX_BG, ALL),
    Row(Feature::EA_INODE, ALL),
    Row(Feature::CSUM_SEED, ALL),
    Row(Feature::LARGEDIR, ALL),
    Row(Feature::INLINE_DATA, ALL),
    Row(Feature::ENCRYPT, ALL),
    Row(Feature::CASEFOLD, ALL),
    Row(Feature::SPARSE_SUPER, ALL),
    Row(Feature::LARGE_FILE, ALL),
    Row(Feature::HUGE_FILE, ALL),
    Row(Feature::GDT_CSUM, ALL),
    Row(Feature::DIR_NLINK, ALL),
    Row(Feature::EXTRA_ISIZE, ALL),
    Row(Feature::QUOTA, ALL),
    Row(Feature::BIGALLOC, ALL),
    Row(Feature::METADATA_CSUM, ALL),
    Row(Feature::READONLY, LOOKED_AT),
    Row(Feature::PROJECT, ALL),
    Row(Feature::VERITY, ALL),
    Row(Feature::ORPHAN_PRESENT, EXISTING),
];

/// Features that a new file system may have. The others are states of a file system in use, or
/// nothing that extant builds.
pub const BUILDABLE: Features = known(Task::Build);

/// Features that a reader knows. Only the incompatible ones decide:
/// [`Features::unsupported_for_reading`].
pub const READABLE: Features = known(Task::Read);

/// Features that a writer keeps true. The compatible ones do not decide:
/// [`Features::unsupported_for_writing`].
pub const WRITABLE: Features = known(Task::Write);

/// Features all of whose structures a checker knows; any other one is refused, since what it says of
/// an image would be half the truth.
pub const CHECKABLE: Features = known(Task::Check);

/// The features that are no obstacle to `task`.
pub const fn known(task: Task) -> Features {
    let mut set = Features::NONE;
    let mut rows = TABLE;
    while let [Row(feature, tasks), others @ ..] = rows {
        let mut tasks = *tasks;
        while let [one, more @ ..] = tasks {
            if *one as u8 == task as u8 {
                set = set.with(*feature);
            }
            tasks = more;
        }
        rows = others;
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is built can be read, changed and checked.
    #[test]
    fn tasks_include_each_other() {
        for known in [READABLE, WRITABLE, CHECKABLE] {
            assert_eq!(BUILDABLE.without(&known), Features::NONE);
        }
        assert_eq!(WRITABLE.without(&READABLE), Features::NONE);
        assert_eq!(READABLE.without(&WRITABLE), Features::of(&[Feature::READONLY]));
    }

    #[test]
    fn each_feature_has_one_row() {
        for (at, Row(feature, _)) in TABLE.iter().enumerate() {
            assert!(TABLE[..at].iter().all(|row| row.0 != *feature), "{feature}");
        }
    }
}
