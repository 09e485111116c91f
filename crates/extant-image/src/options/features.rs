//! The `-O` list: names of features to add and to take away, and which of them extant builds.

use std::fmt;

use extant_format::features::{Feature, Features};
use extant_layout::support::BUILDABLE;

/// Returns whether this crate builds file systems with `feature`.
pub fn is_buildable(feature: Feature) -> bool {
    BUILDABLE.has(feature)
}

/// One element of a `-O` list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeatureEdit {
    /// `name` or `+name`.
    Add(Feature),
    /// `^name` or `-name`.
    Remove(Feature),
    /// `none`: forget all features up to here.
    Clear,
}

/// A list of edits to a profile's features, applied in order.
///
/// ```
/// use extant_image::options::{Feature, FeatureEdits, Features};
/// let edits = FeatureEdits::parse("none,extents,^quota").unwrap();
/// let base = Features::of(&[Feature::QUOTA, Feature::DIR_INDEX]);
/// assert_eq!(edits.apply(base), Features::of(&[Feature::EXTENTS]));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FeatureEdits(pub Vec<FeatureEdit>);

/// A `-O` list that names no feature, or one that cannot be built.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FeatureNameError {
    /// Not the name of a feature.
    Unknown {
        /// As given.
        name: String,
    },
    /// A feature of ext4 that [`crate`] does not build.
    NotBuildable {
        /// Which.
        feature: Feature,
    },
}

impl fmt::Display for FeatureNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name } => {
                write!(f, "no feature is called {name:?}; known:")?;
                write!(f, " {BUILDABLE} (^name takes one away, none takes all)")
            }
            Self::NotBuildable { feature } => {
                write!(f, "feature {feature} cannot be given to a new file system by extant")
            }
        }
    }
}

impl std::error::Error for FeatureNameError {}

impl FeatureEdits {
    /// Parses a list as `-O` takes it: names with commas or spaces between them.
    pub fn parse(list: &str) -> Result<FeatureEdits, FeatureNameError> {
        let words = list.split(|c: char| c == ',' || c.is_ascii_whitespace());
        let mut edits = Vec::new();
        for word in words.filter(|word| !word.is_empty()) {
            let known = |name: &str| {
                Feature::from_name(name).map_err(|e| FeatureNameError::Unknown { name: e.name })
            };
            edits.push(if word == "none" || word == "clear" {
                FeatureEdit::Clear
            } else if let Some(name) = word.strip_prefix(['^', '-']) {
                FeatureEdit::Remove(known(name)?)
            } else {
                let feature = known(word.strip_prefix('+').unwrap_or(word))?;
                if !is_buildable(feature) {
                    return Err(FeatureNameError::NotBuildable { feature });
                }
                FeatureEdit::Add(feature)
            });
        }
        Ok(FeatureEdits(edits))
    }

    /// `base` after all edits.
    pub fn apply(&self, base: Features) -> Features {
        self.0.iter().fold(base, |mut set, edit| {
            match *edit {
                FeatureEdit::Add(feature) => set.insert(feature),
                FeatureEdit::Remove(feature) => set.remove(feature),
                FeatureEdit::Clear => set = Features::NONE,
            }
            set
        })
    }

    /// Returns whether the list itself adds `feature` (and does not take it away later).
    pub fn adds(&self, feature: Feature) -> bool {
        self.apply(Features::NONE).has(feature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_apply_in_order() {
        let base = Features::of(&[Feature::QUOTA]);
        let edit = |list: &str| FeatureEdits::parse(list).unwrap().apply(base);
        assert_eq!(edit("quota,^quota"), Features::NONE);
        assert_eq!(edit("^quota,quota"), base);
        assert_eq!(edit("mmp none uninit_groups"), Features::of(&[Feature::GDT_CSUM]));
        assert_eq!(edit("-quota,+mmp"), Features::of(&[Feature::MMP]));
        assert_eq!(edit(""), base);
    }

    #[test]
    fn unknown_and_unbuildable_names_are_refused_by_name() {
        let error = FeatureEdits::parse("extents,speed").unwrap_err().to_string();
        assert!(error.contains("\"speed\"") && error.contains("metadata_csum"), "{error}");
        assert!(!error.contains("journal_dev"), "{error}");
        let every_bit = Features::from_words(!0, !0, !0);
        let unbuildable = every_bit.without(&BUILDABLE);
        assert_eq!(unbuildable.iter().count(), 96 - BUILDABLE.iter().count());
        for feature in unbuildable.iter() {
            assert_eq!(
                FeatureEdits::parse(&feature.to_string()),
                Err(FeatureNameError::NotBuildable { feature })
            );
            assert!(FeatureEdits::parse(&format!("^{feature}")).is_ok());
        }
    }
}
