//! Owners that the user namespace of this process has no numbers for.
//!
//! In a container, and under `unshare -r`, the kernel shows one number, 65534 unless somebody
//! changed it, in place of all owners outside of the namespace. Nothing tells which it was.
//!
//! # Source
//!
//! user_namespaces(7), "Unmapped user and group IDs".

use std::fs;

use crate::tree::Node;

/// What is lost of a file whose owner or group is none of this user namespace.
pub const UNMAPPED: &str = "owner or group without a number in this user namespace";

/// The numbers that stand for unknown ones here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Unmapped {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Unmapped {
    /// Asks the kernel. Without `/proc` nothing is unknown.
    pub(super) fn here() -> Unmapped {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let find = |map: &str, number: &str| stand_in(&read(map), &read(number));
        Unmapped {
            uid: find("/proc/self/uid_map", "/proc/sys/kernel/overflowuid"),
            gid: find("/proc/self/gid_map", "/proc/sys/kernel/overflowgid"),
        }
    }

    /// Returns whether the owner or the group of `node` stands for an unknown one.
    pub(super) fn has(self, node: &Node) -> bool {
        self.uid == Some(node.uid) || self.gid == Some(node.gid)
    }
}

/// The number that stands for unknown ones, from the two files of `/proc`; `None` if somebody of
/// the namespace has it, because then it tells nothing.
fn stand_in(map: &str, number: &str) -> Option<u32> {
    let number: u32 = number.trim().parse().ok()?;
    let mut ranges = map.lines().map(|line| {
        let mut fields = line.split_whitespace().map(|field| field.parse::<u64>().ok());
        let (first, _, count) = (fields.next()??, fields.next()??, fields.next()??);
        Some(first..first.saturating_add(count))
    });
    let known =
        |range: Option<std::ops::Range<u64>>| range.is_none_or(|r| r.contains(&number.into()));
    (!map.trim().is_empty() && !ranges.any(known)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_somebody_has_stands_for_nobody() {
        let whole = "         0          0 4294967295\n";
        let one = "         0       1000          1\n";
        let two = "0 1000 1\n1 100000 65536\n";
        for (map, number, found) in [
            (whole, "65534\n", None),
            (one, "65534\n", Some(65534)),
            (two, "65534\n", None),
            (two, "70000\n", Some(70000)),
            ("", "65534\n", None),
            ("what is this\n", "65534\n", None),
            (one, "", None),
        ] {
            assert_eq!(stand_in(map, number), found, "{map:?} {number:?}");
        }
    }
}
