//! Comparison of names in case-folding directories.
//!
//! Two names are equal when their folded forms are (`extant_format::fold`). A name
//! that is not UTF-8 equals only itself, byte for byte (unless the file system is `strict`, where
//! it cannot exist).
//!
//! In a build without the tables of Unicode, images with case folding are not opened, and a stray flag of a directory is
//! damage.

use std::sync::Arc;

use extant_crypt::NamesCipher;
use extant_format::fold::fold_name;
use extant_format::hash::NameHash;

/// A name to be looked up: its bytes and, in a case-folding directory, its folded form.
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a [u8],
    /// The cipher of stored names, in an encrypted directory that ignores case.
    hidden: Option<Arc<NamesCipher>>,
    /// Present in case-folding directories, for names that are UTF-8.
    folded: Option<Vec<u8>>,
    /// Whether the caller knows that the name does not exist.
    pub(crate) is_missing: bool,
}

impl<'a> Wanted<'a> {
    pub(crate) fn new(name: &'a [u8], casefold: bool) -> Wanted<'a> {
        let folded = if casefold { fold_name(name) } else { None };
        Wanted { name, hidden: None, folded, is_missing: false }
    }

    /// A name in an encrypted directory that ignores case: what is stored is compared when it is
    /// decrypted.
    pub(crate) fn hidden(name: &'a [u8], names: Arc<NamesCipher>) -> Wanted<'a> {
        Wanted { hidden: Some(names), ..Wanted::new(name, true) }
    }

    /// Returns the hash with the directory's key, where the directory is encrypted and ignores case;
    /// `None` in others.
    pub(crate) fn keyed_hash(&self) -> Option<NameHash> {
        self.hidden.as_ref()?.hash(self.hashed()).map(NameHash::of_siphash)
    }

    /// Returns whether the name cannot be folded.
    pub(crate) fn is_unfoldable(&self) -> bool {
        self.folded.is_none()
    }

    /// Returns the bytes that the directory index hashes.
    pub(crate) fn hashed(&self) -> &[u8] {
        self.folded.as_deref().unwrap_or(self.name)
    }

    /// Returns whether only the same bytes match.
    pub(crate) fn is_exact(&self) -> bool {
        self.folded.is_none() && self.hidden.is_none()
    }

    /// Returns whether an entry named `stored` matches.
    pub(crate) fn matches(&self, stored: &[u8]) -> bool {
        let decrypted;
        let stored = match &self.hidden {
            None => stored,
            Some(names) => match names.decrypt(stored) {
                None => return false,
                Some(name) => {
                    decrypted = name;
                    &decrypted
                }
            },
        };
        if stored == self.name {
            return true;
        }
        match &self.folded {
            Some(folded) => fold_name(stored).is_some_and(|stored| stored == *folded),
            None => false,
        }
    }
}

#[cfg(all(test, feature = "casefold"))]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_name_are_equal_only_with_casefold() {
        let same: [(&str, &str); 7] = [
            ("Makefile", "MAKEFILE"),
            ("\u{c5}ngstr\u{f6}m", "a\u{30a}ngstro\u{308}m"), // composed and decomposed
            ("\u{3a3}\u{3a3}", "\u{3c3}\u{3c2}"),             // final sigma
            ("stra\u{df}e", "STRASSE"),
            ("a\u{200d}b", "AB"),             // ignorable joiner
            ("\u{ac00}", "\u{1100}\u{1161}"), // Hangul
            ("\u{130}", "i\u{307}"),
        ];
        for (a, b) in same {
            assert!(Wanted::new(a.as_bytes(), true).matches(b.as_bytes()), "{a} {b}");
            assert!(Wanted::new(b.as_bytes(), true).matches(a.as_bytes()), "{b} {a}");
            assert!(!Wanted::new(a.as_bytes(), false).matches(b.as_bytes()), "{a} {b}");
        }
        for (a, b) in [("a", "b"), ("i", "\u{131}"), ("a", "\u{e1}")] {
            assert!(!Wanted::new(a.as_bytes(), true).matches(b.as_bytes()), "{a} {b}");
        }
    }

    #[test]
    fn names_that_are_not_utf8_equal_only_themselves() {
        let wanted = Wanted::new(b"A\xff", true);
        assert!(wanted.matches(b"A\xff"));
        assert!(!wanted.matches(b"a\xff"));
        assert_eq!(wanted.hashed(), b"A\xff");
    }
}
