//! What sources have and images do not: attributes without a place in ext4, or in the features that an image has.
//!
//! # Invariants
//!
//! - LO1. What is counted, and which examples are kept, depends on neither the order of calls nor the number of threads.
//! - LO2. At most [`KINDS_MAX`] kinds are named; names come from strangers.

use std::collections::BTreeMap;

/// Most kinds that are named; files with others are only counted.
pub const KINDS_MAX: usize = 64;

/// Attributes of sources that an image does not have, by kind.
///
/// ```
/// use extant_image::source::Lost;
/// let mut lost = Lost::default();
/// lost.add("flag C (no copy on write)", b"var/lib/db");
/// lost.add("flag C (no copy on write)", b"home");
/// let (what, kind) = lost.kinds().next().unwrap();
/// assert_eq!((what, kind.files, &kind.example[..]), ("flag C (no copy on write)", 2, &b"home"[..]));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    kinds: BTreeMap<Box<str>, LostKind>,
    /// Counts of the kinds that are not named.
    unnamed: u64,
}

/// One kind of attribute that is lost.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LostKind {
    /// How many files and directories had it.
    pub files: u64,
    /// The path of one of them in its source: the first in the order of bytes.
    pub example: Vec<u8>,
}

impl Lost {
    /// Counts one file at `path` that loses `what`.
    pub fn add(&mut self, what: &str, path: &[u8]) {
        self.count(what, LostKind { files: 1, example: path.to_vec() });
    }

    /// Takes back what was counted as `what`.
    pub fn forget(&mut self, what: &str) {
        self.kinds.remove(what);
    }

    /// Adds the counts of another source.
    pub fn merge(&mut self, other: Lost) {
        self.unnamed += other.unnamed;
        for (what, kind) in other.kinds {
            self.count(&what, kind);
        }
    }

    fn count(&mut self, what: &str, more: LostKind) {
        if let Some(kind) = self.kinds.get_mut(what) {
            kind.files += more.files;
            if more.example < kind.example {
                kind.example = more.example;
            }
            return;
        }
        // Those that come first in the alphabet stay: what went once cannot come back (LO1).
        self.kinds.insert(what.into(), more);
        if self.kinds.len() > KINDS_MAX
            && let Some((_, kind)) = self.kinds.pop_last()
        {
            self.unnamed += kind.files;
        }
    }

    /// Returns whether nothing was lost.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The kinds in the order of their names.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, &LostKind)> {
        self.kinds.iter().map(|(what, kind)| (&**what, kind))
    }

    /// How often something was lost whose kind is not among [`kinds`](Self::kinds).
    pub fn unnamed(&self) -> u64 {
        self.unnamed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_does_not_depend_on_the_order() {
        let all: Vec<(String, String)> =
            (0..300u32).map(|n| (format!("kind {:03}", n * 7 % 100), format!("{n:03}"))).collect();
        let collect = |order: &mut dyn Iterator<Item = &(String, String)>| {
            let mut lost = Lost::default();
            order.for_each(|(what, path)| lost.add(what, path.as_bytes()));
            lost
        };
        let up = collect(&mut all.iter());
        assert_eq!(up, collect(&mut all.iter().rev()));
        assert_eq!(up.kinds().count(), KINDS_MAX);
        assert_eq!(up.kinds().map(|(_, kind)| kind.files).sum::<u64>() + up.unnamed(), 300);
        let (first, second) = all.split_at(123);
        let mut merged = collect(&mut second.iter());
        merged.merge(collect(&mut first.iter()));
        assert_eq!(merged, up);
    }
}
