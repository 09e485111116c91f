//! Names of objects.

use std::fmt;

use crate::error::HttpError;

/// Bytes of the longest key.
const KEY_MOST: usize = 1024;

/// Address of an object: `s3://BUCKET/KEY`.
///
/// The key is taken as it is: `%`, `?` and `#` stand for themselves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectAddress {
    bucket: String,
    key: String,
}

impl ObjectAddress {
    /// Reads an address.
    ///
    /// # Errors
    ///
    /// [`HttpError::Address`], also for keys that no URL can name: those with `.`, `..` or nothing between slashes.
    ///
    /// ```
    /// use extant_http::ObjectAddress;
    /// let address = ObjectAddress::parse("s3://images/debian/12.qcow2")?;
    /// assert_eq!((address.bucket(), address.key()), ("images", "debian/12.qcow2"));
    /// assert!(ObjectAddress::parse("s3://images").is_err());
    /// # Ok::<(), extant_http::HttpError>(())
    /// ```
    pub fn parse(text: &str) -> Result<ObjectAddress, HttpError> {
        // A key may be anything, and a password before the bucket would be shown.
        let shown = text.rsplit_once('@').map_or(text, |(_, rest)| rest);
        let wrong = |what| HttpError::Address { address: shown.to_owned(), what };
        let rest = text.strip_prefix("s3://").ok_or_else(|| wrong("it begins with s3://"))?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.contains(['@', ':']) {
            return Err(wrong("keys are taken from the environment, and not from the address"));
        }
        let is_in_names = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        let is_dots = bucket.starts_with('.') || bucket.ends_with('.') || bucket.contains("..");
        if !(3..=63).contains(&bucket.len()) || !bucket.chars().all(is_in_names) || is_dots {
            return Err(wrong("a bucket has 3 to 63 letters, digits, hyphens and dots"));
        }
        if key.is_empty() || key.ends_with('/') {
            return Err(wrong("it names no object"));
        }
        if key.len() > KEY_MOST || key.chars().any(char::is_control) {
            return Err(wrong("a key has at most 1024 bytes, and no control characters"));
        }
        if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(wrong("keys with //, /./ or /../ cannot be named in a URL"));
        }
        Ok(ObjectAddress { bucket: bucket.to_owned(), key: key.to_owned() })
    }

    /// Returns the name of the bucket.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Returns the key of the object in it.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Display for ObjectAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_object_is_refused_without_showing_secrets() {
        for (text, what) in [
            ("images/a", "begins with"),
            ("s3://images", "no object"),
            ("s3://images/", "no object"),
            ("s3://images/a/", "no object"),
            ("s3://a/b", "3 to 63"),
            ("s3://im..ages/b", "3 to 63"),
            ("s3://ima ges/b", "3 to 63"),
            ("s3://images.evil.example#/b", "3 to 63"),
            ("s3://key:secret@images/b", "environment"),
            ("s3://images/a//b", "cannot be named"),
            ("s3://images/../other/b", "cannot be named"),
            ("s3://images/./b", "cannot be named"),
            ("s3://images/a\nb", "control"),
        ] {
            let error = ObjectAddress::parse(text).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
            assert!(!error.contains("secret"), "{text}: {error}");
        }
        assert!(ObjectAddress::parse(&format!("s3://images/{}", "k".repeat(1025))).is_err());
        let odd = "s3://images/a b/ü?#%20:x";
        assert_eq!(ObjectAddress::parse(odd).unwrap().to_string(), odd);
    }
}
