//! Comparison of names in case-folding directories.
//!
//! Two names are equal when their folded forms are: canonical decomposition, full case folding,
//! decomposition again, and without the code points that Unicode calls default-ignorable. A name
//! that is not UTF-8 equals only itself, byte for byte (unless the file system is `strict`, where
//! it cannot exist).
//!
//! The tables are those of the `unicode-normalization` and `caseless` crates. The kernel's are of
//! Unicode 12.1; both agree on every code point assigned there, because normalisation and folding
//! of assigned code points are stable by Unicode's own policy.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/overview.rst`, "Case-insensitive file name lookups" (in
//! `Documentation/admin-guide/ext4.rst`); Unicode Standard, section 3.13, D145.

use std::sync::Arc;

#[cfg(feature = "casefold")]
use caseless::Caseless;
use extant_crypt::NamesCipher;
use extant_format::hash::NameHash;
#[cfg(feature = "casefold")]
use unicode_normalization::UnicodeNormalization;

/// Returns the folded form of `name`; `None` when it is not UTF-8.
///
/// The hash of an entry in an indexed case-folding directory is that of the folded form, or of the
/// name itself if it has none.
///
/// ```
/// use extant::fold_name;
/// assert_eq!(fold_name(b"README").as_deref(), Some(&b"readme"[..]));
/// assert_eq!(fold_name("Stra\u{df}e".as_bytes()), fold_name(b"STRASSE"));
/// assert_eq!(fold_name(b"\xff"), None);
/// ```
#[cfg(feature = "casefold")]
pub fn fold_name(name: &[u8]) -> Option<Vec<u8>> {
    if name.is_ascii() {
        return Some(name.to_ascii_lowercase());
    }
    let name = std::str::from_utf8(name).ok()?;
    let mut folded = String::with_capacity(name.len());
    folded.extend(name.nfd().default_case_fold().nfd().filter(|c| !is_ignorable(*c)));
    Some(folded.into_bytes())
}

/// Folds ASCII names only, in a build without the tables of Unicode: images with case folding are
/// not opened there, and a stray flag of a directory is damage.
#[cfg(not(feature = "casefold"))]
fn fold_name(name: &[u8]) -> Option<Vec<u8>> {
    name.is_ascii().then(|| name.to_ascii_lowercase())
}

/// Default-ignorable code points (Unicode `DerivedCoreProperties.txt`,
/// `Default_Ignorable_Code_Point`).
#[cfg(feature = "casefold")]
fn is_ignorable(c: char) -> bool {
    matches!(
        u32::from(c),
        0x00ad
            | 0x034f
            | 0x061c
            | 0x115f..=0x1160
            | 0x17b4..=0x17b5
            | 0x180b..=0x180e
            | 0x200b..=0x200f
            | 0x202a..=0x202e
            | 0x2060..=0x206f
            | 0x3164
            | 0xfe00..=0xfe0f
            | 0xfeff
            | 0xffa0
            | 0xfff0..=0xfff8
            | 0x1bca0..=0x1bca3
            | 0x1d173..=0x1d17a
            | 0xe0000..=0xe0fff
    )
}

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
