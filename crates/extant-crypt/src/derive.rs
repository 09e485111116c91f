//! From a master key to the key of one inode or mode.

use aes::Aes128;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use hkdf::Hkdf;
use sha2::Sha512;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use zeroize::Zeroizing;

use crate::CipherFault;
use crate::key::{KEY_BYTES_MAX, KeySpec, MasterKey};
use crate::policy::{Context, IvKind, NONCE_BYTES};

/// What is known of an encrypted inode besides its context, for policies that depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The number of the inode.
    pub ino: u32,
    /// The UUID of the file system.
    pub uuid: [u8; 16],
    /// Whether numbers and UUID never change: the feature `stable_inodes`.
    pub is_stable: bool,
    /// The block size as a power of two.
    pub block_log2: u8,
}

/// What a key is derived for; the numbers are those of the format.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Purpose {
    Identifier = 1,
    PerFile = 2,
    DirectKey = 3,
    InoLblk64 = 4,
    DirHash = 5,
    InoLblk32 = 6,
    InodeHash = 7,
}

impl MasterKey {
    /// Returns the name of the key in policies of version 2.
    pub fn identifier(&self) -> KeySpec {
        let mut identifier = [0; 16];
        expand(self, Purpose::Identifier, &[], &mut identifier);
        KeySpec::Identifier(identifier)
    }
}

/// Fills `out` with a key derived from a master key.
pub(crate) fn expand(master: &MasterKey, purpose: Purpose, info: &[&[u8]], out: &mut [u8]) {
    let hkdf = Hkdf::<Sha512>::new(None, master.bytes());
    let start: [&[u8]; 2] = [b"fscrypt\0", &[purpose as u8]];
    let parts: Vec<&[u8]> = start.into_iter().chain(info.iter().copied()).collect();
    // It fails for more than 255 hashes only, and nobody asks for more than one.
    if hkdf.expand_multi_info(&parts, out).is_err() {
        unreachable!("keys have 64 bytes at most");
    }
}

/// The key of an inode: as many bytes as its mode wants.
pub(crate) type DerivedKey = Zeroizing<[u8; KEY_BYTES_MAX]>;

/// Derives the key of `len` bytes for the mode of number `mode`, whose strength is `need` bytes.
pub(crate) fn inode_key(
    master: &MasterKey,
    context: &Context,
    place: &Place,
    mode: u8,
    (len, need): (usize, usize),
) -> Result<DerivedKey, CipherFault> {
    let raw = master.bytes();
    let mut key = DerivedKey::new([0; KEY_BYTES_MAX]);
    let out = &mut key[..len];
    let is_v1 = matches!(context.policy.key, KeySpec::Descriptor(_));
    let need = if is_v1 { len } else { need };
    if raw.len() < need {
        return Err(CipherFault::ShortKey { have: raw.len(), need });
    }
    let is_direct = context.policy.iv == IvKind::DirectKey;
    if is_v1 && is_direct {
        out.copy_from_slice(&raw[..len]);
        return Ok(key);
    }
    if is_v1 {
        // AES-128 with the nonce as its key, block by block.
        out.copy_from_slice(&raw[..len]);
        let nonce = Aes128::new(&Array(context.nonce));
        for block in out.as_chunks_mut::<16>().0 {
            nonce.encrypt_block(block.into());
        }
        return Ok(key);
    }
    let per_mode = |purpose, out: &mut [u8]| match place.is_stable {
        true => {
            expand(master, purpose, &[&[mode], &place.uuid], out);
            Ok(())
        }
        false => Err(CipherFault::NeedsStableInodes),
    };
    match context.policy.iv {
        IvKind::PerFile => expand(master, Purpose::PerFile, &[&context.nonce], out),
        // On every file system the same: nonces keep its inodes apart.
        IvKind::DirectKey => expand(master, Purpose::DirectKey, &[&[mode]], out),
        IvKind::InoLblk64 => per_mode(Purpose::InoLblk64, out)?,
        IvKind::InoLblk32 => per_mode(Purpose::InoLblk32, out)?,
    }
    Ok(key)
}

/// Size of the longest initialization vector, in bytes. Modes with shorter ones take its beginning.
pub(crate) const VECTOR_BYTES: usize = 32;

/// The vector of a mode that has 16 bytes of it.
pub(crate) fn short(vector: &[u8; VECTOR_BYTES]) -> [u8; 16] {
    vector.first_chunk().copied().unwrap_or_default()
}

/// How positions in an inode become initialization vectors.
#[derive(Clone, Copy)]
pub(crate) enum Vectors {
    Position,
    PositionAndNonce { nonce: [u8; NONCE_BYTES] },
    InoAbove { ino: u32 },
    InoAdded { hash: u32 },
}

impl Vectors {
    pub(crate) fn of(master: &MasterKey, context: &Context, place: &Place) -> Vectors {
        match context.policy.iv {
            IvKind::PerFile => Vectors::Position,
            IvKind::DirectKey => Vectors::PositionAndNonce { nonce: context.nonce },
            IvKind::InoLblk64 => Vectors::InoAbove { ino: place.ino },
            IvKind::InoLblk32 => {
                let mut key = Zeroizing::new([0; 16]);
                expand(master, Purpose::InodeHash, &[], &mut *key);
                let mut hasher = SipHasher24::new_with_key(&key);
                hasher.write(&u64::from(place.ino).to_le_bytes());
                Vectors::InoAdded { hash: hasher.finish() as u32 }
            }
        }
    }

    /// Returns the vector of data unit `index`; 0 is also that of a name.
    pub(crate) fn at(&self, index: u64) -> [u8; VECTOR_BYTES] {
        let word = match *self {
            Vectors::Position | Vectors::PositionAndNonce { .. } => index,
            Vectors::InoAbove { ino } => u64::from(ino) << 32 | index & u64::from(u32::MAX),
            Vectors::InoAdded { hash } => u64::from(hash.wrapping_add(index as u32)),
        };
        let mut vector = [0; VECTOR_BYTES];
        vector[..8].copy_from_slice(&word.to_le_bytes());
        if let Vectors::PositionAndNonce { nonce } = self {
            vector[8..8 + NONCE_BYTES].copy_from_slice(nonce);
        }
        vector
    }
}

/// The keyed hash of names in a directory that is encrypted and ignores case.
pub(crate) fn name_hasher(master: &MasterKey, context: &Context) -> Option<SipHasher24> {
    if matches!(context.policy.key, KeySpec::Descriptor(_)) {
        return None;
    }
    let mut key = Zeroizing::new([0; 16]);
    expand(master, Purpose::DirHash, &[&context.nonce], &mut *key);
    Some(SipHasher24::new_with_key(&key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_derivation_is_hkdf_sha512_of_rfc_5869() {
        // Inputs of test case 1 of RFC 5869, with SHA-512.
        let salt: Vec<u8> = (0..=12).collect();
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        let mut out = [0; 42];
        let hkdf = Hkdf::<Sha512>::new(Some(&salt), &[0x0b; 22]);
        hkdf.expand_multi_info(&[&info[..3], &info[3..]], &mut out).unwrap();
        let shown: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
        let known =
            "832390086cda71fb47625bb5ceb168e4c8e26a1a16ed34d9fc7fe92c1481579338da362cb8d9f925d7cb";
        assert_eq!(shown, known);
    }

    #[test]
    fn the_keyed_hash_is_that_of_the_reference() {
        // The key and the 15 bytes of the paper that defines SipHash-2-4.
        let key: [u8; 16] = std::array::from_fn(|n| n as u8);
        let mut hasher = SipHasher24::new_with_key(&key);
        hasher.write(&(0..15).collect::<Vec<u8>>());
        assert_eq!(hasher.finish(), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn vectors_have_the_position_and_the_inode() {
        let word =
            |vectors: Vectors, index| u64::from_le_bytes(*vectors.at(index).first_chunk().unwrap());
        assert_eq!(word(Vectors::Position, 1 << 40), 1 << 40);
        assert_eq!(word(Vectors::InoAbove { ino: 12 }, 7), 12 << 32 | 7);
        assert_eq!(word(Vectors::InoAdded { hash: u32::MAX }, 7), 6);
        let vector = Vectors::PositionAndNonce { nonce: [9; 16] }.at(0x0102);
        assert_eq!(vector[..8], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(vector[8..], [[9; 16].as_slice(), &[0; 8]].concat());
    }
}
