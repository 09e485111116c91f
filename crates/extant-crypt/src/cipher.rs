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
use crate::adiantum::Adiantum;
use crate::derive::{DerivedKey, Place, Vectors, inode_key, name_hasher, short};
use crate::hctr2::Hctr2;
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
    Adiantum(Box<Adiantum>),
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
                let data = first(&derive((16, 16))?);
                let hash = Zeroizing::new(<[u8; 32]>::from(Sha256::digest(*data)));
                let ciphers = (Aes128::new(&Array(*data)), Aes256::new(&Array(*hash)));
                Contents::CbcEssiv(Box::new(ciphers))
            }
            ContentsMode::Adiantum => {
                Contents::Adiantum(Box::new(Adiantum::new(&first(&derive((32, 32))?))))
            }
            ContentsMode::Sm4Xts => return Err(CipherFault::Mode(mode.name())),
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
                Contents::Xts(xts) if encrypts => xts.encrypt(short(&vector), bytes),
                Contents::Xts(xts) => xts.decrypt(short(&vector), bytes),
                Contents::CbcEssiv(ciphers) => cbc_essiv(ciphers, short(&vector), bytes, encrypts),
                Contents::Adiantum(cipher) if encrypts => cipher.encrypt(&vector, bytes),
                Contents::Adiantum(cipher) => cipher.decrypt(&vector, bytes),
            }
        }
    }
}

/// The first bytes of a key, which has as many.
fn first<const LEN: usize>(key: &DerivedKey) -> Zeroizing<[u8; LEN]> {
    let mut first = Zeroizing::new([0; LEN]);
    first.copy_from_slice(&key[..LEN]);
    first
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
            Contents::Adiantum(_) => ContentsMode::Adiantum,
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
                Names::Aes256(Box::new(Aes256::new((&*first(&derive(32)?)).into())))
            }
            NamesMode::Aes128Cts => {
                Names::Aes128(Box::new(Aes128::new((&*first(&derive(16)?)).into())))
            }
            NamesMode::Adiantum => Names::Adiantum(Box::new(Adiantum::new(&first(&derive(32)?)))),
            NamesMode::Aes256Hctr2 => Names::Hctr2(Box::new(Hctr2::new(&first(&derive(32)?)))),
            NamesMode::Sm4Cts => return Err(CipherFault::Mode(mode.name())),
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
        self.names.encrypt(&self.vectors.at(0), &mut stored);
        Ok(stored)
    }

    /// Decrypts a stored name or target, without its padding. `None` when it is too short to be
    /// one.
    pub fn decrypt(&self, stored: &[u8]) -> Option<Vec<u8>> {
        if stored.len() < NAME_BYTES_MIN {
            return None;
        }
        let mut name = stored.to_vec();
        self.names.decrypt(&self.vectors.at(0), &mut name);
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
            Names::Adiantum(_) => NamesMode::Adiantum,
            Names::Hctr2(_) => NamesMode::Aes256Hctr2,
        };
        write!(f, "NamesCipher({})", mode.name())
    }
}

#[cfg(test)]
mod tests;
