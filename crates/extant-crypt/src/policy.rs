//! The context of an encrypted inode: how it is encrypted, and with whose key.

use std::fmt;

use crate::key::KeySpec;

/// Size of the random number of each encrypted inode, in bytes.
pub const NONCE_BYTES: usize = 16;
/// Size of the largest context, in bytes.
pub const CONTEXT_BYTES_MAX: usize = 40;

/// The version that programs give a policy of version 1.
const POLICY_V1: u8 = 0;
const V1_BYTES: usize = 28;
const V2_BYTES: usize = 40;

const FLAG_PADDING: u8 = 0x03;
const FLAG_DIRECT_KEY: u8 = 0x04;
const FLAG_IV_INO_LBLK_64: u8 = 0x08;
const FLAG_IV_INO_LBLK_32: u8 = 0x10;

/// How the contents of regular files are encrypted. The values are those of the format.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ContentsMode {
    /// AES-256-XTS.
    Aes256Xts = 1,
    /// AES-128-CBC with ESSIV.
    Aes128CbcEssiv = 5,
    /// SM4-XTS; not supported.
    Sm4Xts = 7,
    /// Adiantum, with XChaCha12 and AES-256.
    Adiantum = 9,
}

/// How names and link targets are encrypted. The values are those of the format.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum NamesMode {
    /// AES-256-CBC with ciphertext stealing.
    Aes256Cts = 4,
    /// AES-128-CBC with ciphertext stealing.
    Aes128Cts = 6,
    /// SM4-CBC with ciphertext stealing; not supported.
    Sm4Cts = 8,
    /// Adiantum, with XChaCha12 and AES-256.
    Adiantum = 9,
    /// AES-256-HCTR2.
    Aes256Hctr2 = 10,
}

impl ContentsMode {
    fn from_stored(mode: u8) -> Option<ContentsMode> {
        use ContentsMode as M;
        [M::Aes256Xts, M::Aes128CbcEssiv, M::Sm4Xts, M::Adiantum]
            .into_iter()
            .find(|known| *known as u8 == mode)
    }

    /// Returns the name of the mode.
    pub fn name(self) -> &'static str {
        match self {
            ContentsMode::Aes256Xts => "AES-256-XTS",
            ContentsMode::Aes128CbcEssiv => "AES-128-CBC-ESSIV",
            ContentsMode::Sm4Xts => "SM4-XTS",
            ContentsMode::Adiantum => "Adiantum",
        }
    }
}

impl NamesMode {
    fn from_stored(mode: u8) -> Option<NamesMode> {
        use NamesMode as M;
        [M::Aes256Cts, M::Aes128Cts, M::Sm4Cts, M::Adiantum, M::Aes256Hctr2]
            .into_iter()
            .find(|known| *known as u8 == mode)
    }

    /// Returns the name of the mode.
    pub fn name(self) -> &'static str {
        match self {
            NamesMode::Aes256Cts => "AES-256-CBC-CTS",
            NamesMode::Aes128Cts => "AES-128-CBC-CTS",
            NamesMode::Sm4Cts => "SM4-CBC-CTS",
            NamesMode::Adiantum => "Adiantum",
            NamesMode::Aes256Hctr2 => "AES-256-HCTR2",
        }
    }
}

/// What the key and the initialization vectors of an inode depend on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IvKind {
    /// A key for each inode, from its nonce; vectors from the position.
    PerFile,
    /// One key for each mode; vectors from nonce and position, 24 bytes: with Adiantum only.
    DirectKey,
    /// One key for each mode and file system; vectors from inode number and position, 64 bits.
    InoLblk64,
    /// The same with a hash of the inode number added to the position, 32 bits.
    InoLblk32,
}

/// How a directory tree is encrypted, and with which master key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// How contents are encrypted.
    pub contents: ContentsMode,
    /// How names and link targets are encrypted.
    pub names: NamesMode,
    /// Names are padded to a multiple of this: the power of two 4, 8, 16 or 32.
    pub padding: u8,
    /// What keys and vectors depend on.
    pub iv: IvKind,
    /// Power of two of the bytes that are encrypted as one; `None` for the block size.
    pub data_unit_log2: Option<u8>,
    /// The master key: an identifier in a policy of version 2, a descriptor in one of version 1.
    pub key: KeySpec,
}

impl Policy {
    /// Returns the policy that Linux tools use: AES-256, padding to 32 bytes, a key per file.
    pub fn new(key: KeySpec) -> Policy {
        Policy {
            contents: ContentsMode::Aes256Xts,
            names: NamesMode::Aes256Cts,
            padding: 32,
            iv: IvKind::PerFile,
            data_unit_log2: None,
            key,
        }
    }

    /// Returns whether new inodes may get this policy: everything in it can be encoded and used.
    pub fn is_supported(&self) -> bool {
        let is_v1 = matches!(self.key, KeySpec::Descriptor(_));
        let modes = match (self.contents, self.names) {
            (ContentsMode::Aes256Xts, NamesMode::Aes256Cts)
            | (ContentsMode::Aes128CbcEssiv, NamesMode::Aes128Cts)
            | (ContentsMode::Adiantum, NamesMode::Adiantum) => true,
            (ContentsMode::Aes256Xts, NamesMode::Aes256Hctr2) => !is_v1,
            _ => false,
        };
        let iv = match self.iv {
            IvKind::PerFile => true,
            IvKind::DirectKey => self.contents == ContentsMode::Adiantum,
            // Linux takes them for what processors do beside memory, which is this mode.
            IvKind::InoLblk64 | IvKind::InoLblk32 => {
                !is_v1 && self.contents == ContentsMode::Aes256Xts
            }
        };
        modes
            && iv
            && matches!(self.padding, 4 | 8 | 16 | 32)
            && !(is_v1 && self.data_unit_log2.is_some())
            && self.data_unit_log2.is_none_or(|log2| (9..=16).contains(&log2))
    }

    /// Encodes the policy as Linux passes it to programs: `struct fscrypt_policy_v1` or `_v2`, 12
    /// or 24 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Context { policy: *self, nonce: [0; NONCE_BYTES] }.encode();
        bytes.truncate(bytes.len().saturating_sub(NONCE_BYTES));
        if let (KeySpec::Descriptor(_), Some(version)) = (self.key, bytes.first_mut()) {
            *version = POLICY_V1;
        }
        bytes
    }

    /// Decodes what [`encode`](Self::encode) returns.
    ///
    /// # Errors
    ///
    /// What Linux would refuse, too.
    pub fn decode(bytes: &[u8]) -> Result<Policy, ContextFault> {
        let mut value = [bytes, &[0; NONCE_BYTES]].concat();
        match value.first_mut() {
            Some(version) if *version == POLICY_V1 => *version = 1,
            Some(2) => {}
            other => {
                let version = other.map_or(0, |version| *version);
                return Err(ContextFault::Version { version, len: bytes.len() });
            }
        }
        Context::decode(&value).map(|context| context.policy)
    }

    fn flags(&self) -> u8 {
        let padding = (self.padding.max(4).trailing_zeros() as u8).saturating_sub(2) & FLAG_PADDING;
        padding
            | match self.iv {
                IvKind::PerFile => 0,
                IvKind::DirectKey => FLAG_DIRECT_KEY,
                IvKind::InoLblk64 => FLAG_IV_INO_LBLK_64,
                IvKind::InoLblk32 => FLAG_IV_INO_LBLK_32,
            }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Policy({} {} pad {} {:?}",
            self.contents.name(),
            self.names.name(),
            self.padding,
            self.iv
        )?;
        write!(f, " key {})", self.key)
    }
}

/// The policy of one inode and its nonce, as stored in its attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// How it is encrypted.
    pub policy: Policy,
    /// A random number of its own. It is no secret.
    pub nonce: [u8; NONCE_BYTES],
}

/// What is wrong with a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ContextFault {
    /// The version is neither 1 nor 2, or the length is not that of the version.
    #[error("an encryption context of version {version} with {len} bytes")]
    Version {
        /// The first byte; 0 for none.
        version: u8,
        /// Number of bytes.
        len: usize,
    },
    /// The modes are unknown, or do not go together.
    #[error("encryption modes {contents} and {names} are unknown or do not go together")]
    Modes {
        /// Stored number of the mode of contents.
        contents: u8,
        /// Stored number of the mode of names.
        names: u8,
    },
    /// Flags are unknown, or do not go together.
    #[error("encryption flags {flags:#x} are unknown or do not go together")]
    Flags {
        /// The stored flags.
        flags: u8,
    },
    /// Reserved bytes are not zero.
    #[error("reserved bytes of the encryption context are not zero")]
    Reserved,
    /// The size of a data unit is none that a file system can have.
    #[error("encryption in units of 2^{log2} bytes")]
    DataUnit {
        /// The stored power of two.
        log2: u8,
    },
}

impl Context {
    /// Decodes the value of the attribute.
    ///
    /// # Errors
    ///
    /// What Linux would refuse, too.
    pub fn decode(value: &[u8]) -> Result<Context, ContextFault> {
        let version = value.first().copied().unwrap_or(0);
        let fault = ContextFault::Version { version, len: value.len() };
        let (&[_, contents, names, flags], rest) = value.split_first_chunk().ok_or(fault)?;
        let (key, data_unit_log2, nonce) = match (version, value.len()) {
            (1, V1_BYTES) => {
                let (key, nonce) = rest.split_first_chunk().ok_or(fault)?;
                (KeySpec::Descriptor(*key), None, nonce)
            }
            (2, V2_BYTES) => {
                let (&[unit, a, b, c], rest) = rest.split_first_chunk().ok_or(fault)?;
                if [a, b, c] != [0; 3] {
                    return Err(ContextFault::Reserved);
                }
                if unit != 0 && !(9..=16).contains(&unit) {
                    return Err(ContextFault::DataUnit { log2: unit });
                }
                let (key, nonce) = rest.split_first_chunk().ok_or(fault)?;
                (KeySpec::Identifier(*key), Some(unit).filter(|unit| *unit != 0), nonce)
            }
            _ => return Err(fault),
        };
        let nonce = *nonce.first_chunk().ok_or(fault)?;
        let modes = ContextFault::Modes { contents, names };
        let (contents, names) =
            match (ContentsMode::from_stored(contents), NamesMode::from_stored(names)) {
                (Some(contents), Some(names)) => (contents, names),
                _ => return Err(modes),
            };
        use {ContentsMode as C, NamesMode as N};
        match (contents, names) {
            (C::Aes256Xts, N::Aes256Cts)
            | (C::Aes128CbcEssiv, N::Aes128Cts)
            | (C::Adiantum, N::Adiantum) => {}
            (C::Aes256Xts, N::Aes256Hctr2) | (C::Sm4Xts, N::Sm4Cts) if version == 2 => {}
            _ => return Err(modes),
        }
        let wrong = ContextFault::Flags { flags };
        let iv = match flags & !FLAG_PADDING {
            0 => IvKind::PerFile,
            // Nonce and position need a vector that AES-XTS and AES-CTS do not have.
            FLAG_DIRECT_KEY if contents == C::Adiantum => IvKind::DirectKey,
            FLAG_IV_INO_LBLK_64 if version == 2 => IvKind::InoLblk64,
            FLAG_IV_INO_LBLK_32 if version == 2 => IvKind::InoLblk32,
            _ => return Err(wrong),
        };
        let padding = 4 << (flags & FLAG_PADDING);
        Ok(Context { policy: Policy { contents, names, padding, iv, data_unit_log2, key }, nonce })
    }

    /// Encodes the value of the attribute.
    pub fn encode(&self) -> Vec<u8> {
        let Policy { contents, names, data_unit_log2, key, .. } = self.policy;
        let start = [contents as u8, names as u8, self.policy.flags()];
        let mut value = Vec::with_capacity(CONTEXT_BYTES_MAX);
        match key {
            KeySpec::Descriptor(key) => {
                value.push(1);
                value.extend(start);
                value.extend(key);
            }
            KeySpec::Identifier(key) => {
                value.push(2);
                value.extend(start);
                value.extend([data_unit_log2.unwrap_or(0), 0, 0, 0]);
                value.extend(key);
            }
        }
        value.extend(self.nonce);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(key: KeySpec) -> Context {
        Context { policy: Policy::new(key), nonce: [7; NONCE_BYTES] }
    }

    #[test]
    fn both_versions_are_decoded_as_they_were_encoded() {
        for key in [KeySpec::Identifier([3; 16]), KeySpec::Descriptor([5; 8])] {
            let stored = context(key).encode();
            assert!(stored.len() <= CONTEXT_BYTES_MAX);
            assert_eq!(Context::decode(&stored), Ok(context(key)));
            for len in 0..stored.len() {
                let fault = Context::decode(&stored[..len]).unwrap_err();
                assert!(matches!(fault, ContextFault::Version { .. }), "{len}: {fault}");
            }
        }
    }

    #[test]
    fn programs_pass_policies_without_a_nonce() {
        for (key, len, version) in
            [(KeySpec::Identifier([3; 16]), 24, 2), (KeySpec::Descriptor([5; 8]), 12, 0)]
        {
            let policy = Policy::new(key);
            let bytes = policy.encode();
            assert_eq!((bytes.len(), bytes[0]), (len, version));
            assert_eq!(bytes[1..4], [1, 4, 3]);
            assert_eq!(Policy::decode(&bytes), Ok(policy));
            assert!(Policy::decode(&bytes[..len - 1]).is_err());
            assert!(Policy::decode(&[&[1], &bytes[1..]].concat()).is_err());
        }
        assert!(Policy::decode(&[]).is_err());
    }

    #[test]
    fn every_changed_byte_is_decoded_to_itself_or_refused() {
        for key in [KeySpec::Identifier([3; 16]), KeySpec::Descriptor([5; 8])] {
            let stored = context(key).encode();
            for at in 0..stored.len() {
                for byte in 0..=255 {
                    let mut changed = stored.clone();
                    changed[at] = byte;
                    if let Ok(context) = Context::decode(&changed) {
                        assert_eq!(context.encode(), changed, "byte {at} = {byte}");
                    }
                }
            }
        }
    }

    #[test]
    fn modes_and_flags_are_refused_by_their_kind() {
        let mut stored = context(KeySpec::Identifier([3; 16])).encode();
        stored[1..3].copy_from_slice(&[7, 8]);
        let sm4 = Context::decode(&stored).unwrap();
        assert_eq!((sm4.policy.contents.name(), sm4.policy.is_supported()), ("SM4-XTS", false));
        stored[1..3].copy_from_slice(&[1, 6]);
        assert_eq!(Context::decode(&stored), Err(ContextFault::Modes { contents: 1, names: 6 }));
        stored[2] = 4;
        for flags in [0x04, 0x18, 0x20, 0x80] {
            stored[3] = flags;
            assert_eq!(Context::decode(&stored), Err(ContextFault::Flags { flags }));
        }
        stored[3] = 0;
        stored[4] = 8;
        assert_eq!(Context::decode(&stored), Err(ContextFault::DataUnit { log2: 8 }));
        stored[4] = 0;
        stored[6] = 1;
        assert_eq!(Context::decode(&stored), Err(ContextFault::Reserved));
    }

    /// What Linux 6.1 takes for new directories, by the table of its documentation.
    fn linux_takes(version: u8, contents: u8, names: u8, flags: u8) -> bool {
        let modes: &[(u8, u8)] = match version {
            1 => &[(1, 4), (5, 6), (9, 9)],
            _ => &[(1, 4), (5, 6), (9, 9), (1, 10)],
        };
        let iv = match flags & !FLAG_PADDING {
            0 => true,
            FLAG_DIRECT_KEY => (contents, names) == (9, 9),
            FLAG_IV_INO_LBLK_64 | FLAG_IV_INO_LBLK_32 => version == 2 && contents == 1,
            _ => false,
        };
        modes.contains(&(contents, names)) && iv
    }

    #[test]
    fn every_policy_is_taken_or_refused_as_linux_does() {
        let mut taken = 0;
        for (version, key) in [(1, KeySpec::Descriptor([5; 8])), (2, KeySpec::Identifier([3; 16]))]
        {
            for (contents, names) in (0..12).flat_map(|one| (0..12).map(move |other| (one, other)))
            {
                for flags in 0..=255 {
                    let mut stored = context(key).encode();
                    stored[1..4].copy_from_slice(&[contents, names, flags]);
                    let is_taken =
                        Context::decode(&stored).is_ok_and(|context| context.policy.is_supported());
                    let what = (version, contents, names, flags);
                    assert_eq!(is_taken, linux_takes(version, contents, names, flags), "{what:?}");
                    taken += u32::from(is_taken);
                }
            }
        }
        // Four paddings of: 3 and 1 of version 1; 4, 1, and two by two of version 2.
        assert_eq!(taken, 4 * (3 + 1 + 4 + 1 + 2 * 2));
    }

    #[test]
    fn policies_that_no_context_has_are_not_new_either() {
        let policy = Policy::new(KeySpec::Identifier([3; 16]));
        let adiantum =
            Policy { contents: ContentsMode::Adiantum, names: NamesMode::Adiantum, ..policy };
        assert!(adiantum.is_supported());
        for wrong in [
            Policy { iv: IvKind::DirectKey, ..policy },
            Policy { iv: IvKind::InoLblk64, ..adiantum },
            Policy { names: NamesMode::Aes256Hctr2, ..adiantum },
            Policy { names: NamesMode::Aes256Hctr2, key: KeySpec::Descriptor([5; 8]), ..policy },
            Policy { contents: ContentsMode::Adiantum, ..policy },
            Policy { padding: 5, ..adiantum },
            Policy { data_unit_log2: Some(8), ..adiantum },
        ] {
            assert!(!wrong.is_supported(), "{wrong:?}");
        }
    }
}
