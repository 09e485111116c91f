//! Folded forms of names, by which directories that ignore case compare them.
//!
//! The folded form is canonical decomposition, full case folding and decomposition again, without the code points that
//! Unicode calls default-ignorable.
//!
//! The tables are those of the `unicode-normalization` and `caseless` crates. The kernel's are of
//! Unicode 12.1; both agree on every code point assigned there, because normalisation and folding
//! of assigned code points are stable by Unicode's own policy.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/overview.rst`, "Case-insensitive file name lookups" (in
//! `Documentation/admin-guide/ext4.rst`); Unicode Standard, section 3.13, D145.

use alloc::vec::Vec;

#[cfg(feature = "fold")]
use alloc::string::String;
#[cfg(feature = "fold")]
use caseless::Caseless;
#[cfg(feature = "fold")]
use unicode_normalization::UnicodeNormalization;

/// Returns the folded form of `name`; `None` when it is not UTF-8, or not ASCII in a build without the feature `fold`.
///
/// The hash of an entry in an indexed case-folding directory is that of the folded form, or of the
/// name itself if it has none.
///
/// ```
/// use extant_format::fold::fold_name;
/// assert_eq!(fold_name(b"README").as_deref(), Some(&b"readme"[..]));
/// assert_eq!(fold_name(b"\xff"), None);
/// # #[cfg(feature = "fold")]
/// assert_eq!(fold_name("Stra\u{df}e".as_bytes()), fold_name(b"STRASSE"));
/// ```
pub fn fold_name(name: &[u8]) -> Option<Vec<u8>> {
    if name.is_ascii() {
        return Some(name.to_ascii_lowercase());
    }
    fold_others(name)
}

#[cfg(feature = "fold")]
fn fold_others(name: &[u8]) -> Option<Vec<u8>> {
    let name = core::str::from_utf8(name).ok()?;
    let mut folded = String::with_capacity(name.len());
    folded.extend(name.nfd().default_case_fold().nfd().filter(|c| !is_ignorable(*c)));
    Some(folded.into_bytes())
}

#[cfg(not(feature = "fold"))]
fn fold_others(_name: &[u8]) -> Option<Vec<u8>> {
    None
}

/// Default-ignorable code points (Unicode `DerivedCoreProperties.txt`,
/// `Default_Ignorable_Code_Point`).
#[cfg(feature = "fold")]
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
