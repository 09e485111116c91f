//! Names of exports.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::NbdError;

/// The port of NBD.
const PORT: u16 = 10809;

/// Address of an export: `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`; over TLS
/// `nbds://HOST[:PORT]/EXPORT` or `nbds+unix:///EXPORT?socket=PATH`.
///
/// Behind `?`, separated by `&`, addresses over TLS may have:
///
/// - `tls-certificates=DIR`: a directory with `ca-cert.pem`, the signers that are believed, and if the server wants to
///   know its clients, `client-cert.pem` and `client-key.pem`; `ca-crl.pem`, where it exists, has what was revoked.
///   Without it, those are believed that the system trusts, or that the file in `SSL_CERT_FILE` has.
/// - `tls-hostname=NAME`: whom the certificate is for, in place of HOST, or of `localhost` for a socket of this host.
/// - `tls-verify-peer=false`: whoever answers is believed.
///
/// Keys that both sides know (PSK) are refused by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    text: String,
    pub(crate) at: At,
    pub(crate) export: String,
    pub(crate) secret: Option<Secret>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum At {
    Host(String, u16),
    Socket(PathBuf),
}

/// What an address says about TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Secret {
    pub(crate) certificates: Option<PathBuf>,
    pub(crate) hostname: Option<String>,
    pub(crate) verify_peer: bool,
}

const FORMS: &str =
    "nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH, with TLS nbds:// and nbds+unix://";

impl Address {
    /// Reads an address. `%XX` stands for a byte; what is asked for behind `?` and not known is passed over, if it is
    /// not about TLS.
    ///
    /// # Errors
    ///
    /// [`NbdError::Address`].
    ///
    /// ```
    /// use extant_nbd::Address;
    /// assert!(Address::parse("nbd://disks.example/root").is_ok());
    /// assert!(Address::parse("nbd+unix:///root?socket=/run/nbd").is_ok());
    /// assert!(Address::parse("nbds://disks.example/root?tls-certificates=/etc/pki/me").is_ok());
    /// assert!(Address::parse("nbd+unix:///root").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Address, NbdError> {
        let wrong = |what| NbdError::Address { address: text.to_owned(), what };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong(FORMS))?;
        let (is_unix, is_secret) = match scheme {
            "nbd" => (false, false),
            "nbd+unix" => (true, false),
            "nbds" => (false, true),
            "nbds+unix" => (true, true),
            _ => return Err(wrong(FORMS)),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        let query = Query::parse(query, is_secret).map_err(wrong)?;
        if host.contains('@') {
            return Err(wrong(
                "a name of a user is for TLS by keys that both sides know (PSK), which extant has not",
            ));
        }
        // What says how this side knows the other is not part of which disk it is.
        let mut shown = format!("{scheme}://{rest}");
        let at = if is_unix {
            if !host.is_empty() || !rest.starts_with('/') {
                return Err(wrong("nbd+unix:///EXPORT?socket=PATH, with three slashes"));
            }
            let socket = query.socket.filter(|path| !path.is_empty());
            let socket = socket.ok_or_else(|| wrong("it names no socket: ?socket=PATH"))?;
            shown = format!("{shown}?socket={socket}");
            At::Socket(decode(socket).ok_or_else(|| wrong(DIGITS))?.into())
        } else {
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
            At::Host(name.to_owned(), port)
        };
        let export = decode(export).ok_or_else(|| wrong(DIGITS))?;
        if export.len() > crate::wire::STRING_MAX {
            return Err(wrong("the name of the export is longer than 4096 bytes"));
        }
        Ok(Address { text: shown, at, export, secret: query.secret })
    }

    /// Returns the address as it is shown, for readers in any directory: the name of a socket is taken from `directory`
    /// on.
    pub fn shown_from(&self, directory: &Path) -> String {
        match &self.at {
            At::Socket(socket) if socket.is_relative() => {
                let (name, _) = self.text.split_once('?').unwrap_or((&self.text, ""));
                format!("{name}?socket={}", encode(directory.join(socket).as_os_str().as_bytes()))
            }
            _ => self.text.clone(),
        }
    }

    /// How addresses begin that lead to the same place over TLS.
    pub(crate) fn scheme_over_tls(&self) -> &'static str {
        match self.at {
            At::Host(..) => "nbds://",
            At::Socket(_) => "nbds+unix://",
        }
    }
}

const DIGITS: &str = "a % without two digits";

/// What stands behind `?`.
struct Query<'a> {
    socket: Option<&'a str>,
    secret: Option<Secret>,
}

impl<'a> Query<'a> {
    fn parse(text: &'a str, is_secret: bool) -> Result<Query<'a>, &'static str> {
        let mut socket = None;
        let mut secret = Secret { certificates: None, hostname: None, verify_peer: true };
        for word in text.split('&') {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            if name.starts_with("tls-") && !is_secret {
                return Err("it speaks of TLS, which only nbds:// and nbds+unix:// have");
            }
            match name {
                // The first one counts.
                "socket" => socket = socket.or(Some(value)),
                "tls-certificates" => {
                    let dir = decode(value).ok_or(DIGITS)?;
                    if dir.is_empty() {
                        return Err("tls-certificates names no directory");
                    }
                    secret.certificates = Some(dir.into());
                }
                "tls-hostname" => secret.hostname = Some(decode(value).ok_or(DIGITS)?),
                "tls-verify-peer" => {
                    secret.verify_peer = match value {
                        "true" | "1" | "yes" | "on" => true,
                        "false" | "0" | "no" | "off" => false,
                        _ => return Err("tls-verify-peer is true or false"),
                    }
                }
                "tls-psk-file" | "tls-username" => {
                    return Err(
                        "keys that both sides know (PSK) are not supported: have the server use certificates (tls-certificates=DIR)",
                    );
                }
                name if name.starts_with("tls-") => {
                    return Err(
                        "of TLS, tls-certificates, tls-hostname and tls-verify-peer are known",
                    );
                }
                _ => {}
            }
        }
        Ok(Query { socket, secret: is_secret.then_some(secret) })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Letters, digits, and what has no meaning in an address, are themselves; other bytes are `%XX`.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => text.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => text.push(char::from(*byte)),
            byte => text += &format!("%{byte:02X}"),
        }
    }
    text
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
        for wrong in [
            "http://a",
            "nbd://",
            "nbd://a:x/",
            "nbd+unix:///x",
            "nbd://a/%zz",
            "nbd://a/%",
            "nbd+unix://h/x?socket=/s",
        ] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_socket_is_named_for_readers_in_any_directory() {
        let shown = |text: &str| {
            let from = Path::new("/a b/c&d");
            let shown = Address::parse(text).unwrap().shown_from(from);
            assert_eq!(Address::parse(&shown).unwrap().shown_from(Path::new("/")), shown);
            (shown.clone(), Address::parse(&shown).unwrap())
        };
        let (text, address) = shown("nbds+unix:///x%20y?tls-certificates=/c&socket=e/%C3%A4?");
        assert_eq!(text, "nbds+unix:///x%20y?socket=/a%20b/c%26d/e/%C3%A4%3F");
        assert_eq!(address.at, At::Socket("/a b/c&d/e/ä?".into()));
        for same in ["nbd://a/x", "nbd+unix:///x?socket=/s"] {
            assert_eq!(shown(same).0, same);
        }
    }

    #[test]
    fn what_is_said_of_tls_is_no_part_of_the_name() {
        let address = Address::parse(
            "nbds://a/x?tls-certificates=/c%20d&tls-hostname=b&tls-verify-peer=0&later=1",
        );
        let address = address.unwrap();
        assert_eq!(address.to_string(), "nbds://a/x");
        assert_eq!(address.export, "x");
        let secret = Secret {
            certificates: Some("/c d".into()),
            hostname: Some("b".into()),
            verify_peer: false,
        };
        assert_eq!(address.secret, Some(secret));
        let address = Address::parse("nbds+unix:///x?tls-certificates=/c&socket=/s").unwrap();
        assert_eq!(address.to_string(), "nbds+unix:///x?socket=/s");
        assert!(address.secret.unwrap().verify_peer);
        assert!(Address::parse("nbd+unix:///x?socket=/s").unwrap().secret.is_none());
        for (wrong, what) in [
            ("nbd://a/x?tls-certificates=/c", "only nbds://"),
            ("nbd+unix:///x?socket=/s&tls-verify-peer=true", "only nbds://"),
            ("nbds://a/x?tls-verify-peer=maybe", "true or false"),
            ("nbds://a/x?tls-certificates=", "no directory"),
            ("nbds://a/x?tls-psk-file=/k", "PSK"),
            ("nbds://a/x?tls-username=u", "PSK"),
            ("nbds://u@a/x", "PSK"),
            ("nbds://a/x?tls-certificate=/c", "are known"),
        ] {
            let said = Address::parse(wrong).unwrap_err().to_string();
            assert!(said.contains(what), "{said}");
        }
    }
}
