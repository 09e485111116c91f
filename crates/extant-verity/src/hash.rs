//! Hash algorithms, salted, and their results.

use std::fmt;

use sha2::{Digest as _, Sha256, Sha512};

/// Size of the largest hash in bytes.
pub const DIGEST_BYTES_MAX: usize = 64;

/// A hash algorithm of fs-verity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Algorithm {
    /// SHA-256, the usual one.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Algorithm {
    /// Returns the algorithm with a number of the format, if it is known.
    pub fn from_number(number: u8) -> Option<Algorithm> {
        match number {
            1 => Some(Algorithm::Sha256),
            2 => Some(Algorithm::Sha512),
            _ => None,
        }
    }

    /// Returns the algorithm's number in the format and in the ioctls of Linux.
    pub fn number(self) -> u8 {
        match self {
            Algorithm::Sha256 => 1,
            Algorithm::Sha512 => 2,
        }
    }

    /// Returns the name that Linux and its tools use.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }

    /// Returns the size of a hash in bytes, as a power of two.
    pub fn digest_log2(self) -> u32 {
        match self {
            Algorithm::Sha256 => 5,
            Algorithm::Sha512 => 6,
        }
    }

    /// Returns the size of a hash in bytes.
    pub fn digest_bytes(self) -> usize {
        1 << self.digest_log2()
    }

    /// Returns the number of bytes that the algorithm takes in at once; a salt is filled up to it.
    fn input_bytes(self) -> usize {
        match self {
            Algorithm::Sha256 => 64,
            Algorithm::Sha512 => 128,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A hash: 32 or 64 bytes. Displayed as lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash {
    algorithm: Algorithm,
    bytes: [u8; DIGEST_BYTES_MAX],
}

impl Hash {
    /// Creates a hash from the first bytes of `from`; missing bytes are zeros.
    pub(crate) fn new(algorithm: Algorithm, from: &[u8]) -> Hash {
        let mut bytes = [0; DIGEST_BYTES_MAX];
        let len = algorithm.digest_bytes().min(from.len());
        bytes[..len].copy_from_slice(&from[..len]);
        Hash { algorithm, bytes }
    }

    /// Returns the root hash of an empty file, which is all zeros.
    pub(crate) fn zero(algorithm: Algorithm) -> Hash {
        Hash { algorithm, bytes: [0; DIGEST_BYTES_MAX] }
    }

    /// Returns the algorithm that made the hash.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the bytes of the hash: 32 or 64.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.algorithm.digest_bytes()]
    }

    /// Returns the bytes of the hash with zeros behind them, as a descriptor stores a root hash.
    pub(crate) fn padded(&self) -> [u8; DIGEST_BYTES_MAX] {
        self.bytes
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{self}", self.algorithm)
    }
}

/// Hashes blocks with one algorithm and one salt.
#[derive(Clone)]
pub struct Hasher(State);

/// The state after the salt, from which each block's hash begins.
#[derive(Clone)]
enum State {
    Sha256(Sha256),
    Sha512(Sha512),
}

/// Zeros to fill blocks up with.
const ZEROS: [u8; 4096] = [0; 4096];

impl Hasher {
    /// Creates a hasher. A salt that is not empty goes before each block, filled up with zeros to
    /// what the algorithm takes in at once.
    pub fn new(algorithm: Algorithm, salt: &[u8]) -> Hasher {
        let mut salt = salt.to_vec();
        salt.resize(salt.len().next_multiple_of(algorithm.input_bytes()), 0);
        Hasher(match algorithm {
            Algorithm::Sha256 => State::Sha256(Sha256::new_with_prefix(salt)),
            Algorithm::Sha512 => State::Sha512(Sha512::new_with_prefix(salt)),
        })
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        match self.0 {
            State::Sha256(_) => Algorithm::Sha256,
            State::Sha512(_) => Algorithm::Sha512,
        }
    }

    /// Returns the hash of `bytes`.
    pub fn hash(&self, bytes: &[u8]) -> Hash {
        self.hash_padded(bytes, bytes.len())
    }

    /// Returns the hash of `bytes` filled up with zeros to `len` bytes.
    pub fn hash_padded(&self, bytes: &[u8], len: usize) -> Hash {
        let mut rest = len.saturating_sub(bytes.len());
        let fill = std::iter::from_fn(move || {
            let now = rest.min(ZEROS.len());
            rest -= now;
            (now > 0).then(|| &ZEROS[..now])
        });
        let parts = std::iter::once(bytes).chain(fill);
        match &self.0 {
            State::Sha256(salted) => {
                let mut state = salted.clone();
                parts.for_each(|part| state.update(part));
                Hash::new(Algorithm::Sha256, &state.finalize())
            }
            State::Sha512(salted) => {
                let mut state = salted.clone();
                parts.for_each(|part| state.update(part));
                Hash::new(Algorithm::Sha512, &state.finalize())
            }
        }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hasher({})", self.algorithm())
    }
}
