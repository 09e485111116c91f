//! The cipher of one inode: what its contents or its names go through.

use std::fmt;
use std::hash::Hasher;

use aes::cipher::{
    Array, BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt, InnerIvInit, KeyInit,
};
use aes::{Aes128, Aes256, Block};
use sha2::{Digest, Sha256};
use siphasher::sip::SipHasher24;
use zeroize::Zeroizing;

use crate::CipherFault;
use crate::derive::{Place, Vectors, inode_key, name_hasher};
use crate::key::MasterKey;
use crate::names::{NAME_BYTES_MIN, NameTooLong, Names, pad};
use crate::policy::{ContentsMode, Context, NamesMode};
use crate::xts::Xts;

/// The cipher of the contents of one file.
pub struct ContentsCipher {
    mode: Contents,
    vectors: Vectors,
    unit_log2: u8,
}

enum Contents {
    Xts(Box<Xts>),
    /// The cipher of the data, and the one of the vectors.
    CbcEssiv(Box<(Aes128, Aes256)>),
}

impl ContentsCipher {
    /// Makes the cipher of the contents of the inode with this context.
    ///
    /// # Errors
    ///
    /// What keeps this policy from being used with this key and file system.
    pub fn new(
        master: &MasterKey,
        context: &Context,
        place: &Place,
    ) -> Result<ContentsCipher, CipherFault> {
        let unit_log2 = context.policy.data_unit_log2.unwrap_or(place.block_log2);
        if unit_log2 > place.block_log2 {
            return Err(CipherFault::DataUnit);
        }
        let mode = context.policy.contents;
        let derive = |sizes| inode_key(master, context, place, mode as u8, sizes);
        let vectors = Vectors::of(master, context, place);
        let mode = match mode {
            ContentsMode::Aes256Xts => Contents::Xts(Box::new(Xts::new(&*derive((64, 32))?))),
            ContentsMode::Aes128CbcEssiv => {
                let key = derive((16, 16))?;
                let mut data = Zeroizing::new([0; 16]);
                data.copy_from_slice(&key[..16]);
                let hash = Zeroizing::new(<[u8; 32]>::from(Sha256::digest(*data)));
                let ciphers = (Aes128::new(&Array(*data)), Aes256::new(&Array(*hash)));
                Contents::CbcEssiv(Box::new(ciphers))
            }
            ContentsMode::Sm4Xts | ContentsMode::Adiantum => {
                return Err(CipherFault::Mode(mode.name()));
            }
        };
        Ok(ContentsCipher { mode, vectors, unit_log2 })
    }

    /// Returns the number of bytes that are encrypted as one, a power of two. Offsets and lengths
    /// are multiples of it.
    pub fn unit_bytes(&self) -> u64 {
        1 << self.unit_log2
    }

    /// Encrypts `bytes`, which lie at byte `offset` of the file: whole data units.
    pub fn encrypt(&self, offset: u64, bytes: &mut [u8]) {
        self.each(offset, bytes, true);
    }

    /// Decrypts `bytes` like [`encrypt`](Self::encrypt).
    pub fn decrypt(&self, offset: u64, bytes: &mut [u8]) {
        self.each(offset, bytes, false);
    }

    fn each(&self, offset: u64, bytes: &mut [u8], encrypts: bool) {
        let unit = 1usize << self.unit_log2;
        debug_assert!(offset.is_multiple_of(unit as u64) && bytes.len().is_multiple_of(unit));
        for (index, bytes) in (offset >> self.unit_log2..).zip(bytes.chunks_exact_mut(unit)) {
            let vector = self.vectors.at(index);
            match &self.mode {
                Contents::Xts(xts) if encrypts => xts.encrypt(vector, bytes),
                Contents::Xts(xts) => xts.decrypt(vector, bytes),
                Contents::CbcEssiv(ciphers) => cbc_essiv(ciphers, vector, bytes, encrypts),
            }
        }
    }
}

fn cbc_essiv(
    (data, vectors): &(Aes128, Aes256),
    vector: [u8; 16],
    bytes: &mut [u8],
    encrypts: bool,
) {
    let mut vector = Array(vector);
    vectors.encrypt_block(&mut vector);
    let blocks = Block::cast_slice_from_core_mut(bytes.as_chunks_mut().0);
    match encrypts {
        true => cbc::Encryptor::inner_iv_init(data, &vector).encrypt_blocks(blocks),
        false => cbc::Decryptor::inner_iv_init(data, &vector).decrypt_blocks(blocks),
    }
}

impl fmt::Debug for ContentsCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Contents::Xts(_) => ContentsMode::Aes256Xts,
            Contents::CbcEssiv(_) => ContentsMode::Aes128CbcEssiv,
        };
        write!(f, "ContentsCipher({})", mode.name())
    }
}

/// The cipher of the names in one directory, or of the target of one link.
pub struct NamesCipher {
    names: Names,
    vectors: Vectors,
    padding: u8,
    hasher: Option<SipHasher24>,
}

impl NamesCipher {
    /// Makes the cipher of the names of the inode with this context.
    ///
    /// # Errors
    ///
    /// What keeps this policy from being used with this key and file system.
    pub fn new(
        master: &MasterKey,
        context: &Context,
        place: &Place,
    ) -> Result<NamesCipher, CipherFault> {
        let mode = context.policy.names;
        let derive = |len| inode_key(master, context, place, mode as u8, (len, len));
        let names = match mode {
            NamesMode::Aes256Cts => {
                let mut key = Zeroizing::new([0; 32]);
                key.copy_from_slice(&derive(32)?[..32]);
                Names::Aes256(Aes256::new(&Array(*key)))
            }
            NamesMode::Aes128Cts => {
                let mut key = Zeroizing::new([0; 16]);
                key.copy_from_slice(&derive(16)?[..16]);
                Names::Aes128(Aes128::new(&Array(*key)))
            }
            NamesMode::Sm4Cts | NamesMode::Adiantum | NamesMode::Aes256Hctr2 => {
                return Err(CipherFault::Mode(mode.name()));
            }
        };
        let vectors = Vectors::of(master, context, place);
        let hasher = name_hasher(master, context);
        Ok(NamesCipher { names, vectors, padding: context.policy.padding, hasher })
    }

    /// Encrypts a name or target into at most `most` bytes.
    ///
    /// # Errors
    ///
    /// [`NameTooLong`].
    pub fn encrypt(&self, name: &[u8], most: usize) -> Result<Vec<u8>, NameTooLong> {
        let mut stored = pad(name, self.padding, most)?;
        self.names.encrypt(self.vectors.at(0), &mut stored);
        Ok(stored)
    }

    /// Decrypts a stored name or target, without its padding. `None` when it is too short to be
    /// one.
    pub fn decrypt(&self, stored: &[u8]) -> Option<Vec<u8>> {
        if stored.len() < NAME_BYTES_MIN {
            return None;
        }
        let mut name = stored.to_vec();
        self.names.decrypt(self.vectors.at(0), &mut name);
        name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
        Some(name)
    }

    /// Returns the keyed hash of a folded name, for directories that ignore case. `None` for
    /// policies of version 1, which have none.
    pub fn hash(&self, folded: &[u8]) -> Option<u64> {
        let mut hasher = self.hasher?;
        hasher.write(folded);
        Some(hasher.finish())
    }
}

impl fmt::Debug for NamesCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.names {
            Names::Aes256(_) => NamesMode::Aes256Cts,
            Names::Aes128(_) => NamesMode::Aes128Cts,
        };
        write!(f, "NamesCipher({})", mode.name())
    }
}

#[cfg(test)]
mod tests;
