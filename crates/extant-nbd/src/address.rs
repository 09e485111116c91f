//! Names of exports.

use std::fmt;
use std::path::PathBuf;

use crate::error::NbdError;

/// The port of NBD.
const PORT: u16 = 10809;

/// Address of an export: `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    text: String,
    pub(crate) at: At,
    pub(crate) export: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum At {
    Host(String, u16),
    Socket(PathBuf),
}

impl Address {
    /// Reads an address. `%XX` stands for a byte.
    ///
    /// # Errors
    ///
    /// [`NbdError::Address`].
    ///
    /// ```
    /// use extant_nbd::Address;
    /// assert!(Address::parse("nbd://disks.example/root").is_ok());
    /// assert!(Address::parse("nbd+unix:///root?socket=/run/nbd").is_ok());
    /// assert!(Address::parse("nbd+unix:///root").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Address, NbdError> {
        let wrong = |what| NbdError::Address { address: text.to_owned(), what };
        let (export, at) = if let Some(rest) = text.strip_prefix("nbd+unix://") {
            let rest =
                rest.strip_prefix('/').ok_or_else(|| wrong("nbd+unix:///EXPORT?socket=PATH"))?;
            let (export, query) = rest.split_once('?').unwrap_or((rest, ""));
            let socket = query.split('&').find_map(|word| word.strip_prefix("socket="));
            let socket = socket.filter(|path| !path.is_empty());
            let socket = socket.ok_or_else(|| wrong("it names no socket: ?socket=PATH"))?;
            let path = decode(socket).ok_or_else(|| wrong("a % without two digits"))?;
            (export, At::Socket(path.into()))
        } else if let Some(rest) = text.strip_prefix("nbd://") {
            let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
            // Brackets are for IPv6.
            let (name, port) = match host.rsplit_once(':') {
                Some((name, port)) if !port.contains(']') => {
                    (name, port.parse().map_err(|_| wrong("the port is no number up to 65535"))?)
                }
                _ => (host, PORT),
            };
            let name = name.trim_start_matches('[').trim_end_matches(']');
            if name.is_empty() {
                return Err(wrong("it names no host"));
            }
            (export, At::Host(name.to_owned(), port))
        } else {
            return Err(wrong("nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH"));
        };
        let export = decode(export).ok_or_else(|| wrong("a % without two digits"))?;
        if export.len() > crate::wire::STRING_MAX {
            return Err(wrong("the name of the export is longer than 4096 bytes"));
        }
        Ok(Address { text: text.to_owned(), at, export })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(*byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_parts() {
        let host = |text: &str| Address::parse(text).map(|a| (a.at, a.export)).unwrap();
        assert_eq!(host("nbd://a"), (At::Host("a".into(), 10809), String::new()));
        assert_eq!(host("nbd://a:1/x/y"), (At::Host("a".into(), 1), "x/y".into()));
        assert_eq!(host("nbd://[::1]:9/x"), (At::Host("::1".into(), 9), "x".into()));
        assert_eq!(host("nbd://[::1]/x"), (At::Host("::1".into(), 10809), "x".into()));
        let socket = host("nbd+unix:///a%20b?socket=/tmp/s%3f");
        assert_eq!(socket, (At::Socket("/tmp/s?".into()), "a b".into()));
        for wrong in
            ["http://a", "nbd://", "nbd://a:x/", "nbd+unix:///x", "nbd://a/%zz", "nbd://a/%"]
        {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
