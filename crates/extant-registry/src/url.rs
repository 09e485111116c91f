//! Addresses, as far as redirects and tokens need them.

use std::fmt;

use extant_oci::is_loopback;

/// Longest address that a server may name, in bytes.
const LENGTH_MAX: usize = 16 << 10;

/// `http[s]://HOST[:PORT]/PATH`. Shown without its query, which may give access.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) https: bool,
    pub(crate) authority: String,
    path: String,
}

impl Url {
    pub(crate) fn new(https: bool, authority: &str, path: String) -> Url {
        Url { https, authority: authority.to_owned(), path }
    }

    /// Reads an address that a server names, which may lie relative to `base`.
    pub(crate) fn parse(text: &str, base: &Url) -> Result<Url, &'static str> {
        if text.len() > LENGTH_MAX {
            return Err("an address that is too long");
        }
        if !text.bytes().all(|b| (0x21..0x7f).contains(&b)) {
            return Err("an address with spaces or letters that have no place in one");
        }
        let text = text.split('#').next().unwrap_or(text);
        let (https, rest) = if let Some(rest) = text.strip_prefix("//") {
            (base.https, rest)
        } else if text.starts_with('/') {
            return Ok(Url { path: text.to_owned(), ..base.clone() });
        } else {
            let (scheme, rest) = text.split_once("://").ok_or("an address that is none")?;
            match &*scheme.to_ascii_lowercase() {
                "https" => (true, rest),
                "http" => (false, rest),
                _ => return Err("an address that is none of HTTP"),
            }
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.is_empty() || authority.starts_with(':') || authority.contains(['@', '\\']) {
            return Err("an address without a plain host");
        }
        let slash = if path.starts_with('/') { "" } else { "/" };
        let authority = authority.to_ascii_lowercase();
        Ok(Url { https, authority, path: format!("{slash}{path}") })
    }

    /// Returns whether both are of one server, which sees the same secrets.
    pub(crate) fn same_server(&self, other: &Url) -> bool {
        let port = |url: &Url| match url.authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host.to_owned(), port.to_owned()),
            _ => (url.authority.clone(), if url.https { "443" } else { "80" }.to_owned()),
        };
        self.https == other.https && port(self) == port(other)
    }

    /// Returns whether what goes there is seen by the server alone.
    pub(crate) fn is_private(&self) -> bool {
        self.https || is_loopback(&self.authority)
    }

    /// Adds `key=value` to the query.
    pub(crate) fn query(&mut self, key: &str, value: &str) {
        self.path.push(if self.path.contains('?') { '&' } else { '?' });
        self.path.push_str(key);
        self.path.push('=');
        self.path.push_str(&percent(value));
    }

    pub(crate) fn text(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.path)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        let path = self.path.split('?').next().unwrap_or_default();
        let path: String = path.chars().take(300).collect();
        write!(f, "{scheme}://{}{path}", self.authority)
    }
}

/// Writes what is not a letter, digit or `-._~` as `%XX` (RFC 3986, section 2).
pub(crate) fn percent(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_servers_name() {
        let base = Url::new(true, "h.example", "/v2/a/blobs/x".into());
        let parse = |text: &str| Url::parse(text, &base);
        assert_eq!(parse("/x?y").unwrap().text(), "https://h.example/x?y");
        assert_eq!(parse("//o.example/x").unwrap().text(), "https://o.example/x");
        assert_eq!(parse("http://O.example?x=1#y").unwrap().text(), "http://o.example/?x=1");
        assert_eq!(parse("https://o.example/a?sig=1").unwrap().to_string(), "https://o.example/a");
        for bad in
            ["", "x", "ftp://h/", "https://", "https://:1/", "https://u:p@h/", "https://h/ x"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for (text, same) in [
            ("https://h.example:443/", true),
            ("https://h.example:444/", false),
            ("http://h.example/", false),
            ("https://h.example.evil/", false),
        ] {
            assert_eq!(parse(text).unwrap().same_server(&base), same, "{text}");
        }
        let mut url = parse("https://t.example/token?a=b").unwrap();
        url.query("scope", "repository:x/y:pull");
        assert_eq!(url.text(), "https://t.example/token?a=b&scope=repository%3Ax%2Fy%3Apull");
    }
}
