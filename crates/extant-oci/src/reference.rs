//! Names of images in registries.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;

/// The registry that names without a host belong to, as it is written, and the server that answers for it.
const HUB: &str = "docker.io";
const HUB_SERVER: &str = "registry-1.docker.io";

/// Longest reference that is read, in bytes.
const LENGTH_MAX: usize = 1024;

/// The name of an image in a registry: `[HOST[:PORT]/]NAME[:TAG][@DIGEST]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reference {
    registry: String,
    name: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl FromStr for Reference {
    type Err = String;

    /// Reads a reference as Docker has it: what comes before the first slash is a host if it has a dot or a colon or is
    /// `localhost`; names without one are those of `docker.io`, and among these such without a slash begin with
    /// `library/`.
    ///
    /// ```
    /// use extant_oci::Reference;
    /// let short: Reference = "debian:12".parse()?;
    /// assert_eq!(short.to_string(), "docker.io/library/debian:12");
    /// assert_eq!(short.server(), "registry-1.docker.io");
    /// let own: Reference = "127.0.0.1:5000/base".parse()?;
    /// assert_eq!((own.name(), own.is_loopback()), ("base", true));
    /// assert!("../etc".parse::<Reference>().is_err());
    /// # Ok::<(), String>(())
    /// ```
    fn from_str(text: &str) -> Result<Reference, String> {
        let shown: String = text.chars().take(200).collect();
        let bad = |why: &str| Err(format!("\"{}\" names no image: {why}", shown.escape_debug()));
        if text.len() > LENGTH_MAX {
            return bad("it is too long");
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse::<Digest>()?)),
            None => (text, None),
        };
        let is_host =
            |word: &str| word == "localhost" || word.contains(['.', ':']) || word.starts_with('[');
        let (registry, rest) = match rest.split_once('/') {
            Some((host, rest)) if is_host(host) => (host, rest),
            _ => (HUB, rest),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        if !is_authority(registry) {
            return bad("its host is none");
        }
        if !name.split('/').all(is_component) {
            return bad("a name has parts of a-z and 0-9, with ._- between them");
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return bad("a tag has up to 128 letters, digits and ._-");
        }
        let registry = match registry {
            "index.docker.io" | HUB_SERVER => HUB,
            other => other,
        };
        let name = match registry {
            HUB if !name.contains('/') => format!("library/{name}"),
            _ => name.to_owned(),
        };
        Ok(Reference { registry: registry.to_owned(), name, tag: tag.map(str::to_owned), digest })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.name)?;
        match (&self.tag, &self.digest) {
            (Some(tag), _) => write!(f, ":{tag}")?,
            (None, None) => write!(f, ":latest")?,
            (None, Some(_)) => {}
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

impl Reference {
    /// The registry as users write it: `docker.io`, `registry.example:5000`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The server that answers for the registry, `HOST[:PORT]`.
    pub fn server(&self) -> &str {
        if self.registry == HUB { HUB_SERVER } else { &self.registry }
    }

    /// The name of the repository: `library/debian`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The digest of the manifest or index, where it was given. A tag beside it says nothing more.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The tag; `latest` unless given.
    pub fn tag(&self) -> &str {
        self.tag.as_deref().unwrap_or("latest")
    }

    /// Returns whether the registry is on this host.
    pub fn is_loopback(&self) -> bool {
        is_loopback(self.server())
    }
}

/// Returns whether `authority`, `HOST[:PORT]`, is an address of this host.
pub fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => authority.split(':').next().unwrap_or(authority),
    };
    let address = host.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn is_authority(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) if host.parse::<std::net::Ipv6Addr>().is_ok() => (host, port),
            _ => return false,
        },
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_label = |label: &str| {
        label.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let is_name = text.starts_with('[') || host.split('.').all(is_label);
    let port_is_fine = match port.strip_prefix(':') {
        Some(port) => port.parse::<u16>().is_ok_and(|port| port > 0),
        None => port.is_empty(),
    };
    is_name && host.len() <= 255 && port_is_fine
}

fn is_component(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().copied().is_some_and(inner)
        && bytes.last().copied().is_some_and(inner)
        && bytes.iter().all(|&b| inner(b) || b"._-".contains(&b))
        && !text.contains("..")
}

fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= 128
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|b| word(b) || b"._-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_docker_reads_them() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (text, full, server) in [
            ("debian", "docker.io/library/debian:latest", HUB_SERVER),
            ("me/app:1", "docker.io/me/app:1", HUB_SERVER),
            ("docker.io/debian", "docker.io/library/debian:latest", HUB_SERVER),
            ("index.docker.io/library/debian", "docker.io/library/debian:latest", HUB_SERVER),
            ("localhost/a", "localhost/a:latest", "localhost"),
            ("localhost:5000/a/b:x", "localhost:5000/a/b:x", "localhost:5000"),
            ("[::1]:5000/a", "[::1]:5000/a:latest", "[::1]:5000"),
            ("ghcr.io/x/y_z:V1", "ghcr.io/x/y_z:V1", "ghcr.io"),
        ] {
            let parsed: Reference = text.parse().unwrap();
            assert_eq!((&*parsed.to_string(), parsed.server()), (full, server), "{text}");
        }
        let pinned: Reference = format!("h.example/a:1@{digest}").parse().unwrap();
        assert_eq!(pinned.digest().unwrap().to_string(), digest);
        for bad in [
            "",
            "/",
            "A",
            "../a",
            ".h.example/a",
            "h..example/a",
            "a//b",
            "a/../b",
            "h.example/",
            "h.example:0/a",
            "h.example:99999/a",
            "u:p@h.example/a",
            "h.exa mple/a",
            "a:",
            "a:-x",
            "a@sha256:0",
            "[x]/a",
            "h.example/a?b",
            "h.example/a#b",
            "-a",
            "a..b",
        ] {
            assert!(bad.parse::<Reference>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_addresses_of_this_host_are_loopback() {
        for (text, is) in [
            ("localhost", true),
            ("localhost:5000", true),
            ("127.9.9.9:1", true),
            ("[::1]:5000", true),
            ("localhost.example", false),
            ("127.0.0.1.example", false),
            ("[2001:db8::1]", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(is_loopback(text), is, "{text}");
        }
    }
}
