//! Displayed names of encrypted directories without the key.
//!
//! The stored bytes are ciphertext and may have any value. The displayed form is, in base64url
//! without padding: the two words of the index hash, the first 149 bytes of the ciphertext, and, if
//! there are more, the SHA-256 of the rest. It is unique, a valid name, and the same as in Linux;
//! it can be looked up again.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/fscrypt.rst`, "Without the key"; the sizes are those of `struct
//! fscrypt_nokey_name`.

use data_encoding::BASE64URL_NOPAD;
use extant_format::hash::NameHash;
use sha2::{Digest, Sha256};

/// Number of ciphertext bytes that are displayed in full.
const PLAIN_BYTES: usize = 149;
/// Bytes of the two hash words.
const HASH_BYTES: usize = 8;
/// Bytes of a SHA-256.
const DIGEST_BYTES: usize = 32;
/// Longest shown name: 252 characters.
pub(super) const SHOWN_MAX: usize = (HASH_BYTES + PLAIN_BYTES + DIGEST_BYTES).div_ceil(3) * 4;

/// Returns the displayed form of the ciphertext `name` whose index hash is `hash` (zero without a
/// hash).
pub(super) fn show(name: &[u8], hash: NameHash) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HASH_BYTES + PLAIN_BYTES + DIGEST_BYTES);
    bytes.extend_from_slice(&hash.major.to_le_bytes());
    bytes.extend_from_slice(&hash.minor.to_le_bytes());
    match name.split_at_checked(PLAIN_BYTES) {
        Some((plain, rest)) if !rest.is_empty() => {
            bytes.extend_from_slice(plain);
            bytes.extend_from_slice(&Sha256::digest(rest));
        }
        _ => bytes.extend_from_slice(name),
    }
    BASE64URL_NOPAD.encode(&bytes).into_bytes()
}

/// A displayed name, decoded for a lookup.
pub(super) struct Shown {
    hash: NameHash,
    plain: Vec<u8>,
    digest: Option<[u8; DIGEST_BYTES]>,
}

impl Shown {
    /// Decodes a displayed name; `None` when `name` is not in the form of [`show`], so that no
    /// entry has it.
    pub(super) fn parse(name: &[u8]) -> Option<Shown> {
        let bytes = BASE64URL_NOPAD.decode(name).ok()?;
        let (hash, rest) = bytes.split_first_chunk::<HASH_BYTES>()?;
        let [a, b, c, d, e, f, g, h] = *hash;
        let hash = NameHash {
            major: u32::from_le_bytes([a, b, c, d]),
            minor: u32::from_le_bytes([e, f, g, h]),
        };
        let (plain, digest) = match rest.split_at_checked(PLAIN_BYTES) {
            Some((plain, digest)) if !digest.is_empty() => {
                (plain, Some(<[u8; DIGEST_BYTES]>::try_from(digest).ok()?))
            }
            _ => (rest, None),
        };
        (!plain.is_empty()).then(|| Shown { hash, plain: plain.to_vec(), digest })
    }

    /// Returns the index hash in the displayed name.
    pub(super) fn hash(&self) -> NameHash {
        self.hash
    }

    /// Returns whether this is the displayed form of the ciphertext `stored`.
    pub(super) fn matches(&self, stored: &[u8]) -> bool {
        match (self.digest, stored.split_at_checked(PLAIN_BYTES)) {
            (Some(digest), Some((plain, rest))) => {
                plain == self.plain
                    && !rest.is_empty()
                    && <[u8; DIGEST_BYTES]>::from(Sha256::digest(rest)) == digest
            }
            (None, _) => stored == self.plain,
            (Some(_), None) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_shown_as_a_valid_name_and_found_again() {
        let hash = NameHash { major: 0x1234_5678, minor: 9 };
        let stored: Vec<u8> = (0..255).map(|i| i as u8).collect();
        for len in 1..=255 {
            let shown = show(&stored[..len], hash);
            assert!(shown.len() <= SHOWN_MAX && SHOWN_MAX <= 255, "{len}: {}", shown.len());
            assert!(shown.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')));
            let parsed = Shown::parse(&shown).unwrap();
            assert_eq!(parsed.hash(), hash);
            for other in 1..=255 {
                assert_eq!(parsed.matches(&stored[..other]), other == len, "{len} {other}");
            }
        }
    }

    #[test]
    fn known_form() {
        // Hash 0, ciphertext 16 times 0xff.
        let shown = show(&[0xff; 16], NameHash { major: 0, minor: 0 });
        assert_eq!(shown, b"AAAAAAAAAAD_____________________");
        assert!(Shown::parse(b"not base64!").is_none());
        assert!(Shown::parse(b"AAAAAAAAAAA").is_none(), "no ciphertext at all");
    }
}
