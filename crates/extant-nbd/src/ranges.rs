//! Sets of bytes.

use std::collections::BTreeMap;

/// A set of bytes: start and end of ranges that neither overlap nor touch.
#[derive(Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Adds a range, and returns the parts of it that were not in the set: offset and length.
    pub(crate) fn add(&mut self, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let (mut start, mut end) = (offset, offset + len);
        let mut found = Vec::new();
        let mut at = end;
        // From the last range that begins before the end backwards.
        while let Some((from, to)) = self.0.range(..=end).next_back().map(|(a, b)| (*a, *b)) {
            if to < start {
                break;
            }
            if to < at {
                found.push((to, at - to));
            }
            at = at.min(from);
            start = start.min(from);
            end = end.max(to);
            self.0.remove(&from);
        }
        if offset < at {
            found.push((offset, at - offset));
        }
        if start < end {
            self.0.insert(start, end);
        }
        found
    }
}
