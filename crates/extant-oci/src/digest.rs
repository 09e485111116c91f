//! Digests, and streams that are checked against one.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use sha2::Digest as _;

use crate::source::Source;

/// The digest of some bytes: `sha256:` or `sha512:`, and hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Algorithm {
    Sha256,
    Sha512,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }
}

impl FromStr for Digest {
    type Err = String;

    /// `ALGORITHM:HEX`, in lower case as the specification asks for.
    fn from_str(text: &str) -> Result<Digest, String> {
        let shown: String = text.chars().take(160).collect();
        let bad = |why: &str| format!("\"{}\" is no digest: {why}", shown.escape_debug());
        let (algorithm, hex) = text.split_once(':').ok_or_else(|| bad("it has no colon"))?;
        let (algorithm, digits) = match algorithm {
            "sha256" => (Algorithm::Sha256, 64),
            "sha512" => (Algorithm::Sha512, 128),
            _ => return Err(bad("only sha256 and sha512 are known")),
        };
        let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        if hex.len() != digits || !hex.bytes().all(is_hex) {
            return Err(bad(&format!("{digits} digits 0-9a-f follow the colon")));
        }
        Ok(Digest { algorithm, hex: hex.into() })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

impl Digest {
    /// The digits.
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// Returns where a layout has the blob with this digest.
    pub fn path(&self) -> String {
        format!("blobs/{}/{}", self.algorithm.name(), self.hex)
    }

    fn of(algorithm: Algorithm, bytes: &[u8]) -> Digest {
        use fmt::Write;
        let mut hex = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
        }
        Digest { algorithm, hex }
    }

    /// The SHA-256 digest of `bytes`.
    pub fn sha256(bytes: &[u8]) -> Digest {
        let mut hashing = Hashing::new(Algorithm::Sha256);
        hashing.update(bytes);
        hashing.finish()
    }

    /// Checks that `bytes` have this digest; the error is their actual digest.
    ///
    /// # Errors
    ///
    /// The digest that they have.
    pub fn check(&self, bytes: &[u8]) -> Result<(), Digest> {
        let mut hashing = Hashing::like(self);
        hashing.update(bytes);
        let found = hashing.finish();
        if found == *self { Ok(()) } else { Err(found) }
    }
}

/// A digest being computed.
pub struct Hashing(State);

enum State {
    Sha256(sha2::Sha256),
    Sha512(Box<sha2::Sha512>),
}

impl Hashing {
    fn new(algorithm: Algorithm) -> Hashing {
        Hashing(match algorithm {
            Algorithm::Sha256 => State::Sha256(sha2::Sha256::default()),
            Algorithm::Sha512 => State::Sha512(Box::default()),
        })
    }

    /// Starts one that can be compared with `wanted`.
    pub fn like(wanted: &Digest) -> Hashing {
        Hashing::new(wanted.algorithm)
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Sha256(state) => state.update(bytes),
            State::Sha512(state) => state.update(bytes),
        }
    }

    /// The digest of all bytes added.
    pub fn finish(self) -> Digest {
        match self.0 {
            State::Sha256(state) => Digest::of(Algorithm::Sha256, &state.finalize()),
            State::Sha512(state) => Digest::of(Algorithm::Sha512, &state.finalize()),
        }
    }
}

/// A stream that ends with an error of kind [`InvalidData`](io::ErrorKind::InvalidData) unless it has the size and
/// digest that it should have. Whoever did not read it to its end knows nothing.
pub struct Verified<'s> {
    inner: Box<dyn Source + 's>,
    wanted: Option<Digest>,
    hashing: Option<Hashing>,
    size: u64,
    seen: u64,
}

impl<'s> Verified<'s> {
    pub(crate) fn new(
        inner: Box<dyn Source + 's>,
        size: u64,
        wanted: Option<Digest>,
    ) -> Verified<'s> {
        let hashing = wanted.as_ref().map(Hashing::like);
        Verified { inner, wanted, hashing, size, seen: 0 }
    }
}

impl Read for Verified<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let bad = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let count = self.inner.read(buf)?;
        self.seen += count as u64;
        if self.seen > self.size {
            return bad(format!("it has more than the {} bytes that the image says", self.size));
        }
        if count > 0 {
            if let Some(hashing) = &mut self.hashing {
                hashing.update(buf.get(..count).unwrap_or_default());
            }
            return Ok(count);
        }
        if self.seen < self.size {
            return bad(format!("it has {} bytes, and the image says {}", self.seen, self.size));
        }
        if let (Some(hashing), Some(wanted)) = (self.hashing.take(), &self.wanted) {
            let found = hashing.finish();
            if found != *wanted {
                return bad(format!("its digest is {found}, and the image says {wanted}"));
            }
            self.inner.proven();
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn digests_are_read_and_made() {
        assert_eq!(Digest::sha256(b"").to_string(), EMPTY);
        let digest: Digest = EMPTY.parse().unwrap();
        assert_eq!(digest.check(b""), Ok(()));
        assert_eq!(digest.check(b"x").unwrap_err(), Digest::sha256(b"x"));
        let upper = EMPTY.replace('e', "E");
        // Of the right length, and it would lead out of the directory of blobs.
        let outside = format!("sha256:{}passwd0", "../".repeat(19));
        assert_eq!(outside.len(), EMPTY.len());
        let bad = ["", "sha256:", "sha256", "md5:00", "sha256:../../etc/passwd"];
        for bad in bad.into_iter().chain([&*upper, &EMPTY[..70], &outside]) {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
        assert!(format!("sha512:{}", "0".repeat(128)).parse::<Digest>().is_ok());
    }

    #[test]
    fn a_stream_of_another_size_or_digest_ends_with_an_error() {
        let read = |bytes: &'static [u8], size: u64, wanted: &Digest| {
            let mut stream = Verified::new(Box::new(bytes), size, Some(wanted.clone()));
            let mut out = Vec::new();
            stream.read_to_end(&mut out).map(|_| out).map_err(|e| e.to_string())
        };
        let digest = Digest::sha256(b"hello");
        assert_eq!(read(b"hello", 5, &digest).unwrap(), b"hello");
        assert!(read(b"hallo", 5, &digest).unwrap_err().contains(digest.hex()));
        assert!(read(b"hello", 6, &digest).unwrap_err().contains("5 bytes"));
        assert!(read(b"hello", 4, &digest).unwrap_err().contains("more than the 4 bytes"));
    }
}
