//! Master keys, their names, and the ring that holds them.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha512};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Smallest size of a master key in bytes.
const KEY_BYTES_MIN: usize = 16;
/// Size of the largest master key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 64;
/// Limit of the keys of a ring.
pub const KEYS_MAX: usize = 256;

/// The name of a master key in policies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeySpec {
    /// Of policies of version 2: derived from the key, so that a wrong key has another.
    Identifier([u8; 16]),
    /// Of policies of version 1: chosen freely.
    Descriptor([u8; 8]),
}

impl KeySpec {
    fn bytes(&self) -> &[u8] {
        match self {
            KeySpec::Identifier(bytes) => bytes,
            KeySpec::Descriptor(bytes) => bytes,
        }
    }
}

impl fmt::Display for KeySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for KeySpec {
    type Err = KeyFault;

    /// Reads 32 hex digits as an identifier, 16 as a descriptor.
    fn from_str(text: &str) -> Result<KeySpec, KeyFault> {
        let bytes = from_hex(text.as_bytes()).ok_or(KeyFault::Name)?;
        if let Ok(identifier) = bytes.as_slice().try_into() {
            return Ok(KeySpec::Identifier(identifier));
        }
        bytes.as_slice().try_into().map(KeySpec::Descriptor).map_err(|_| KeyFault::Name)
    }
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_chunks::<2>();
    rest.is_empty().then_some(())?;
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// What is wrong with a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyFault {
    /// A key has 16 to 64 bytes.
    #[error("a key of {0} bytes; keys have 16 to 64")]
    Length(usize),
    /// The name of a key has 16 or 32 hex digits.
    #[error("the name of a key is 16 or 32 hex digits")]
    Name,
}

/// A master key, from which the keys of files are derived. It is wiped when it is dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct MasterKey {
    bytes: [u8; KEY_BYTES_MAX],
    len: usize,
}

impl MasterKey {
    /// Makes a master key of 16 to 64 bytes.
    ///
    /// # Errors
    ///
    /// [`KeyFault::Length`].
    pub fn new(raw: &[u8]) -> Result<MasterKey, KeyFault> {
        let mut key = MasterKey { bytes: [0; KEY_BYTES_MAX], len: raw.len() };
        match key.bytes.get_mut(..raw.len()).filter(|_| raw.len() >= KEY_BYTES_MIN) {
            None => Err(KeyFault::Length(raw.len())),
            Some(bytes) => {
                bytes.copy_from_slice(raw);
                Ok(key)
            }
        }
    }

    /// Reads a master key from the contents of a file: 128 hex digits, perhaps with a line end, or
    /// the key itself.
    ///
    /// # Errors
    ///
    /// [`KeyFault::Length`].
    pub fn from_file(contents: &[u8]) -> Result<MasterKey, KeyFault> {
        let text = contents.trim_ascii_end();
        if text.len() == 2 * KEY_BYTES_MAX
            && let Some(mut bytes) = from_hex(text)
        {
            let key = MasterKey::new(&bytes);
            bytes.zeroize();
            return key;
        }
        MasterKey::new(contents)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }

    /// Returns the name that the tools of e2fsprogs and fscrypt give the key in policies of
    /// version 1: the first bytes of the hash of its hash.
    pub fn usual_descriptor(&self) -> KeySpec {
        let twice = Sha512::digest(Sha512::digest(self.bytes()));
        KeySpec::Descriptor(twice.first_chunk().copied().unwrap_or_default())
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({} bytes)", self.len)
    }
}

/// A ring has [`KEYS_MAX`] keys already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there are {KEYS_MAX} keys already")]
pub struct RingFull;

/// Master keys by their names.
#[derive(Debug, Default)]
pub struct KeyRing {
    keys: Vec<(KeySpec, MasterKey)>,
}

impl KeyRing {
    /// Adds a key under a name, in place of another one of that name.
    ///
    /// # Errors
    ///
    /// [`RingFull`].
    pub fn add(&mut self, name: KeySpec, key: MasterKey) -> Result<(), RingFull> {
        let is_full = self.keys.len() >= KEYS_MAX;
        match self.keys.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = key,
            None if is_full => return Err(RingFull),
            None => self.keys.push((name, key)),
        }
        Ok(())
    }

    /// Removes a key; returns whether there was one.
    pub fn remove(&mut self, name: &KeySpec) -> bool {
        let before = self.keys.len();
        self.keys.retain(|(known, _)| known != name);
        self.keys.len() < before
    }

    /// Returns the key of a name.
    pub fn get(&self, name: &KeySpec) -> Option<&MasterKey> {
        self.keys.iter().find(|(known, _)| known == name).map(|(_, key)| key)
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_key_or_its_hex_digits() {
        let raw: Vec<u8> = (0..64).collect();
        let hex: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
        for file in [raw.clone(), hex.clone().into_bytes(), format!("{hex}\n").into_bytes()] {
            assert_eq!(MasterKey::from_file(&file).unwrap().bytes(), raw);
        }
        for len in [0, 15, 65, 127, 200] {
            assert_eq!(MasterKey::from_file(&vec![b'x'; len]).unwrap_err(), KeyFault::Length(len));
        }
    }

    #[test]
    fn debug_shows_no_key() {
        let key = MasterKey::new(&[0xab; 32]).unwrap();
        assert_eq!(format!("{key:?}"), "MasterKey(32 bytes)");
        let mut ring = KeyRing::default();
        ring.add(key.usual_descriptor(), key).unwrap();
        let shown = format!("{ring:?}");
        assert!(!shown.contains("ab, ab") && !shown.contains("171"), "{shown}");
    }

    #[test]
    fn a_ring_is_bounded_and_finds_by_name() {
        let key = MasterKey::new(&[1; 16]).unwrap();
        let mut ring = KeyRing::default();
        let name = |n: usize| KeySpec::Descriptor((n as u64).to_le_bytes());
        for n in 0..KEYS_MAX {
            ring.add(name(n), key.clone()).unwrap();
        }
        assert_eq!(ring.add(name(KEYS_MAX), key.clone()), Err(RingFull));
        ring.add(name(3), key).unwrap();
        assert!(ring.remove(&name(3)) && !ring.remove(&name(3)));
        assert!(ring.get(&name(3)).is_none() && ring.get(&name(4)).is_some());
    }

    #[test]
    fn names_are_read_as_they_are_shown() {
        let key = MasterKey::new(&[9; 64]).unwrap();
        for name in [KeySpec::Identifier([0xa0; 16]), key.usual_descriptor()] {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert_eq!("xy".parse::<KeySpec>(), Err(KeyFault::Name));
        assert_eq!("0123".parse::<KeySpec>(), Err(KeyFault::Name));
    }
}
