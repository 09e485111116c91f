//! Names of files behind servers.

use std::fmt;

use crate::error::HttpError;

/// Address of a file: `http://[USER:PASSWORD@]HOST[:PORT]/PATH[?QUERY]`, or the same with `https`.
///
/// It is shown without user, password and query, which may give access to the file.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    url: String,
    shown: String,
}

impl Address {
    /// Reads an address. What follows a `#` is left out.
    ///
    /// # Errors
    ///
    /// [`HttpError::Address`].
    ///
    /// ```
    /// use extant_http::Address;
    /// let address = Address::parse("http://me:secret@images.example/root.img?token=1")?;
    /// assert_eq!(address.to_string(), "http://images.example/root.img");
    /// assert!(Address::parse("ftp://images.example/root.img").is_err());
    /// # Ok::<(), extant_http::HttpError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Address, HttpError> {
        let wrong = |what| HttpError::Address { address: shown(text), what };
        let url = text.split('#').next().unwrap_or(text);
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let rest = rest.ok_or_else(|| wrong("it begins with http:// or https://"))?;
        if url.chars().any(|letter| letter.is_whitespace() || letter.is_control()) {
            return Err(wrong("spaces are written %20"));
        }
        let (authority, path) = split_authority(rest);
        let host = authority.rsplit('@').next().unwrap_or(authority);
        if host.is_empty() || host.starts_with(':') {
            return Err(wrong("it names no host"));
        }
        if matches!(path, "" | "/") {
            return Err(wrong("it names no file"));
        }
        if url.starts_with("https") && !cfg!(feature = "tls") {
            return Err(wrong("this program was built without https (the feature \"tls\")"));
        }
        Ok(Address { url: url.to_owned(), shown: shown(url) })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

/// Splits what follows the scheme at the end of the host.
fn split_authority(rest: &str) -> (&str, &str) {
    rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()))
}

/// Returns an address without secrets.
fn shown(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let (authority, path) = split_authority(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let path = path.split(['?', '#']).next().unwrap_or(path);
    match scheme {
        "" => format!("{host}{path}"),
        _ => format!("{scheme}://{host}{path}"),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({})", self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_without_showing_secrets() {
        for (text, what) in [
            ("images.example/a", "begins with"),
            ("ftp://h/a", "begins with"),
            ("http://", "no host"),
            ("http:///a", "no host"),
            ("http://u:pw@/a", "no host"),
            ("http://:80/a", "no host"),
            ("http://host", "no file"),
            ("http://host/", "no file"),
            ("http://u:pw@host/a b", "%20"),
            ("http://u:pw@host/a\nb", "%20"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
            assert!(!error.contains("pw"), "{text}: {error}");
        }
    }

    #[test]
    fn a_query_and_a_password_go_to_the_server_and_not_into_messages() {
        let address = Address::parse("http://u:pw@host:81/a%20b?sig=x/y@z#part").unwrap();
        assert_eq!(address.url(), "http://u:pw@host:81/a%20b?sig=x/y@z");
        assert_eq!(address.to_string(), "http://host:81/a%20b");
        assert_eq!(format!("{address:?}"), "Address(http://host:81/a%20b)");
    }

    #[test]
    fn https_needs_its_feature() {
        assert_eq!(Address::parse("https://host/a").is_ok(), cfg!(feature = "tls"));
    }
}
