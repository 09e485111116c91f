//! When reading updates the access time, and when times that are only in memory are stored.

use std::time::Duration;

use extant_format::time::Timestamp;

/// Age from which times that are kept in memory are stored (`lazytime`): a day.
pub(crate) const LAZY_EXPIRE: Duration = Duration::from_secs(24 * 60 * 60);
/// Limit of the files whose times alone are in memory; beyond it, the oldest are stored.
pub(crate) const LAZY_MAX: usize = if cfg!(test) { 64 } else { 1 << 14 };
/// Age in seconds from which an access time is updated: a day.
const OLD: i64 = 24 * 60 * 60;

/// Rule by which reading updates the access time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AccessRule {
    /// Every read updates it.
    Strict,
    /// A read updates it if it is not after the last change of contents or attributes, or a day
    /// old: `relatime`.
    #[default]
    Relative,
    /// No read updates it: `noatime`.
    Never,
}

impl AccessRule {
    /// Returns whether a read at `now` updates an access time.
    pub(crate) fn is_due(
        self,
        atime: Timestamp,
        (mtime, ctime): (Timestamp, Timestamp),
        now: Timestamp,
    ) -> bool {
        match self {
            AccessRule::Never => false,
            AccessRule::Strict => atime != now,
            AccessRule::Relative => {
                atime <= mtime || atime <= ctime || now.seconds.saturating_sub(atime.seconds) >= OLD
            }
        }
    }
}

/// The rules of a mount.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeRules {
    /// The rule for reads through the library.
    pub(crate) access: AccessRule,
    /// Whether times alone are no reason to store an inode: `lazytime`.
    pub(crate) lazy: bool,
}
