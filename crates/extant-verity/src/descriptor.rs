//! What is sealed: the parameters of a tree, the size of the file, the root hash.

use std::fmt;

use crate::hash::{Algorithm, DIGEST_BYTES_MAX, Hash, Hasher};
use crate::shape::{BLOCK_LOG2_MIN, Shape, TooDeep};

/// Size of a descriptor in bytes, without its signature.
pub const DESCRIPTOR_BYTES: usize = 256;
/// Limit of the size of a descriptor with its signature, in bytes.
pub const DESCRIPTOR_BYTES_MAX: usize = 16384;
/// Limit of the size of a salt in bytes.
pub const SALT_BYTES_MAX: usize = 32;
/// Limit of the size of a signature in bytes.
pub const SIGNATURE_BYTES_MAX: usize = DESCRIPTOR_BYTES_MAX - DESCRIPTOR_BYTES;

const VERSION: u8 = 1;
// Places of the fields.
const SIGNATURE_SIZE: usize = 4;
const DATA_SIZE: usize = 8;
const ROOT: usize = 16;
const SALT: usize = ROOT + DIGEST_BYTES_MAX;
const RESERVED: usize = SALT + SALT_BYTES_MAX;

/// Why a descriptor cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorFault {
    /// It is shorter than 256 bytes or longer than 16384.
    #[error("it has {0} bytes, which are not 256 to 16384")]
    Length(u64),
    /// Its version is not 1.
    #[error("it has version {0}, and only 1 is known")]
    Version(u8),
    /// The number of its hash algorithm is not known.
    #[error("it has hash algorithm {0}, and only 1 (SHA-256) and 2 (SHA-512) are known")]
    Algorithm(u8),
    /// The size of its blocks is not between 1024 bytes and a block of the file system.
    #[error("it has blocks of 2^{log2} bytes, which are not 2^10 to 2^{limit}")]
    BlockSize {
        /// The size as a power of two.
        log2: u8,
        /// The largest size as a power of two.
        limit: u32,
    },
    /// Its salt is longer than 32 bytes.
    #[error("it has a salt of {0} bytes, which are more than 32")]
    Salt(u8),
    /// Its signature is longer than what is stored.
    #[error("it has a signature of {said} bytes, and {stored} are stored")]
    Signature {
        /// The length that it says.
        said: u32,
        /// The length behind the descriptor.
        stored: usize,
    },
    /// A reserved byte is not zero.
    #[error("a reserved byte is not zero")]
    Reserved,
    /// It is about a file of another size.
    #[error("it is about a file of {said} bytes, and the file has {has}")]
    Size {
        /// The size that it says.
        said: u64,
        /// The size of the file.
        has: u64,
    },
    /// The tree would be too deep.
    #[error(transparent)]
    TooDeep(#[from] TooDeep),
}

/// Parameters of a sealed file, and the root of its tree.
#[derive(Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The hash algorithm.
    pub algorithm: Algorithm,
    /// Size of a block of data and of the tree, as a power of two.
    pub block_log2: u32,
    /// Size of the file in bytes.
    pub data_bytes: u64,
    /// The root hash, made by `algorithm`.
    pub root: Hash,
    salt: Vec<u8>,
    signature: Vec<u8>,
}

impl Descriptor {
    /// Creates a descriptor.
    ///
    /// # Errors
    ///
    /// [`DescriptorFault::Salt`], [`DescriptorFault::Signature`] for what is too long;
    /// [`DescriptorFault::BlockSize`], [`DescriptorFault::TooDeep`].
    pub fn new(
        shape: &Shape,
        root: Hash,
        salt: &[u8],
        signature: &[u8],
    ) -> Result<Descriptor, DescriptorFault> {
        if salt.len() > SALT_BYTES_MAX {
            return Err(DescriptorFault::Salt(u8::try_from(salt.len()).unwrap_or(u8::MAX)));
        }
        if signature.len() > SIGNATURE_BYTES_MAX {
            let said = u32::try_from(signature.len()).unwrap_or(u32::MAX);
            return Err(DescriptorFault::Signature { said, stored: SIGNATURE_BYTES_MAX });
        }
        Ok(Descriptor {
            algorithm: root.algorithm(),
            block_log2: shape.block_log2(),
            data_bytes: shape.data_bytes(),
            root,
            salt: salt.to_vec(),
            signature: signature.to_vec(),
        })
    }

    /// Decodes a descriptor with its signature, for a file of `file_bytes` bytes in a file system
    /// with blocks of `1 << block_log2_max` bytes.
    ///
    /// # Errors
    ///
    /// The first rule that it breaks.
    pub fn decode(
        bytes: &[u8],
        file_bytes: u64,
        block_log2_max: u32,
    ) -> Result<Descriptor, DescriptorFault> {
        if bytes.len() > DESCRIPTOR_BYTES_MAX {
            return Err(DescriptorFault::Length(bytes.len() as u64));
        }
        let Some((fixed, signature)) = bytes.split_first_chunk::<DESCRIPTOR_BYTES>() else {
            return Err(DescriptorFault::Length(bytes.len() as u64));
        };
        let [version, algorithm, log2, salt_len, ..] = *fixed;
        if version != VERSION {
            return Err(DescriptorFault::Version(version));
        }
        if fixed[RESERVED..].iter().any(|byte| *byte != 0) {
            return Err(DescriptorFault::Reserved);
        }
        let known = Algorithm::from_number(algorithm);
        let algorithm = known.ok_or(DescriptorFault::Algorithm(algorithm))?;
        let block_log2 = u32::from(log2);
        if !(BLOCK_LOG2_MIN..=block_log2_max).contains(&block_log2) {
            return Err(DescriptorFault::BlockSize { log2, limit: block_log2_max });
        }
        let salt = fixed[SALT..RESERVED].get(..usize::from(salt_len));
        let salt = salt.ok_or(DescriptorFault::Salt(salt_len))?;
        let data_bytes = u64::from_le_bytes(field(fixed, DATA_SIZE));
        if data_bytes != file_bytes {
            return Err(DescriptorFault::Size { said: data_bytes, has: file_bytes });
        }
        let said = u32::from_le_bytes(field(fixed, SIGNATURE_SIZE));
        let stored = signature.len();
        let signature = usize::try_from(said).ok().and_then(|len| signature.get(..len));
        let signature = signature.ok_or(DescriptorFault::Signature { said, stored })?;
        Shape::new(data_bytes, block_log2, algorithm)?;
        Ok(Descriptor {
            algorithm,
            block_log2,
            data_bytes,
            root: Hash::new(algorithm, &fixed[ROOT..SALT]),
            salt: salt.to_vec(),
            signature: signature.to_vec(),
        })
    }

    /// Returns the descriptor as it is stored: 256 bytes, and the signature.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.measured().to_vec();
        let len = u32::try_from(self.signature.len()).unwrap_or(u32::MAX);
        bytes[SIGNATURE_SIZE..SIGNATURE_SIZE + 4].copy_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&self.signature);
        bytes
    }

    /// Returns the 256 bytes that the digest is made of: the descriptor without its signature.
    pub fn measured(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[0] = VERSION;
        bytes[1] = self.algorithm.number();
        bytes[2] = self.block_log2 as u8;
        bytes[3] = self.salt.len() as u8;
        bytes[DATA_SIZE..ROOT].copy_from_slice(&self.data_bytes.to_le_bytes());
        bytes[ROOT..SALT].copy_from_slice(&self.root.padded());
        bytes[SALT..SALT + self.salt.len()].copy_from_slice(&self.salt);
        bytes
    }

    /// Returns the digest of the file: what `fsverity digest` and `fsverity measure` print.
    pub fn digest(&self) -> Hash {
        Hasher::new(self.algorithm, &[]).hash(&self.measured())
    }

    /// Returns the shape of the tree.
    ///
    /// # Errors
    ///
    /// [`TooDeep`], never for a descriptor that was decoded.
    pub fn shape(&self) -> Result<Shape, TooDeep> {
        Shape::new(self.data_bytes, self.block_log2, self.algorithm)
    }

    /// Returns the hasher of data and of the tree.
    pub fn hasher(&self) -> Hasher {
        Hasher::new(self.algorithm, &self.salt)
    }

    /// Returns the salt: at most 32 bytes.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// Returns the signature that came with the seal; usually empty. Nobody here checks it.
    pub fn signature(&self) -> &[u8] {
        &self.signature
    }
}

fn field<const N: usize>(bytes: &[u8; DESCRIPTOR_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptor")
            .field("algorithm", &self.algorithm)
            .field("block_log2", &self.block_log2)
            .field("data_bytes", &self.data_bytes)
            .field("root", &self.root)
            .field("salt_bytes", &self.salt.len())
            .field("signature_bytes", &self.signature.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sealed(size: u64, salt: &[u8], signature: &[u8]) -> Descriptor {
        let shape = Shape::new(size, 12, Algorithm::Sha512).unwrap();
        let root = Hasher::new(Algorithm::Sha512, salt).hash(b"root");
        Descriptor::new(&shape, root, salt, signature).unwrap()
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for (salt, signature) in [(0, 0), (1, 1), (32, 5000), (7, SIGNATURE_BYTES_MAX)] {
            let made = sealed(12345, &vec![7; salt], &vec![9; signature]);
            assert_eq!(Descriptor::decode(&made.encode(), 12345, 12), Ok(made));
        }
    }

    #[test]
    fn each_broken_rule_has_its_name() {
        let made = sealed(12345, &[1; 32], &[2; 3]).encode();
        let broken = |at: usize, byte: u8| {
            let mut bytes = made.clone();
            bytes[at] = byte;
            Descriptor::decode(&bytes, 12345, 12).unwrap_err()
        };
        use DescriptorFault as F;
        assert_eq!(broken(0, 2), F::Version(2));
        assert_eq!(broken(1, 3), F::Algorithm(3));
        assert_eq!(broken(1, 0), F::Algorithm(0));
        assert_eq!(broken(2, 9), F::BlockSize { log2: 9, limit: 12 });
        assert_eq!(broken(2, 13), F::BlockSize { log2: 13, limit: 12 });
        assert_eq!(broken(2, 255), F::BlockSize { log2: 255, limit: 12 });
        assert_eq!(broken(3, 33), F::Salt(33));
        assert_eq!(broken(4, 4), F::Signature { said: 4, stored: 3 });
        assert_eq!(broken(7, 255), F::Signature { said: 0xff00_0003, stored: 3 });
        assert_eq!(broken(15, 128), F::Size { said: (1 << 63) + 12345, has: 12345 });
        assert_eq!(broken(112, 1), F::Reserved);
        assert_eq!(broken(255, 1), F::Reserved);
        assert_eq!(Descriptor::decode(&made[..255], 12345, 12), Err(F::Length(255)));
        assert_eq!(Descriptor::decode(&vec![0; 16385], 12345, 12), Err(F::Length(16385)));
        let huge = Descriptor { data_bytes: u64::MAX, block_log2: 10, ..sealed(1, &[], &[]) };
        let error = Descriptor::decode(&huge.encode(), u64::MAX, 12).unwrap_err();
        assert_eq!(error, F::TooDeep(TooDeep { bytes: u64::MAX }));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..400),
            plausible: bool,
            size: u64,
        ) {
            if plausible && bytes.len() > 256 {
                bytes[0] = 1;
                bytes[1] = 1 + bytes[1] % 2;
                bytes[2] = 10 + bytes[2] % 7;
                bytes[8..16].copy_from_slice(&size.to_le_bytes());
                bytes[112..256].fill(0);
            }
            if let Ok(found) = Descriptor::decode(&bytes, size, 16) {
                prop_assert!(found.shape().is_ok());
                prop_assert_eq!(Descriptor::decode(&found.encode(), size, 16), Ok(found));
            }
        }
    }
}
