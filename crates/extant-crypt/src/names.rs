//! Names and link targets: padding, CBC with ciphertext stealing, and the ciphers that are as wide as the name.

use aes::cipher::consts::U16;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser, InnerIvInit};
use aes::{Aes128, Aes256};
use cts::{CbcCs3, Decrypt, Encrypt};

use crate::adiantum::Adiantum;
use crate::derive::{VECTOR_BYTES, short};
use crate::hctr2::Hctr2;

/// Size of the shortest encrypted name, in bytes.
pub const NAME_BYTES_MIN: usize = 16;

/// A name or target does not fit, padded, into what may be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len} bytes do not fit into {most} once encrypted")]
pub struct NameTooLong {
    /// Number of bytes of the name.
    pub len: usize,
    /// Number of bytes that may be stored.
    pub most: usize,
}

/// A key for names.
pub(crate) enum Names {
    Aes256(Box<Aes256>),
    Aes128(Box<Aes128>),
    Adiantum(Box<Adiantum>),
    Hctr2(Box<Hctr2>),
}

impl Names {
    /// Encrypts a name of at least [`NAME_BYTES_MIN`] bytes.
    pub(crate) fn encrypt(&self, vector: &[u8; VECTOR_BYTES], name: &mut [u8]) {
        match self {
            Names::Aes256(cipher) => encrypt(&**cipher, short(vector), name),
            Names::Aes128(cipher) => encrypt(&**cipher, short(vector), name),
            Names::Adiantum(cipher) => cipher.encrypt(vector, name),
            Names::Hctr2(cipher) => cipher.encrypt(vector, name),
        }
    }

    /// Decrypts a name of at least [`NAME_BYTES_MIN`] bytes.
    pub(crate) fn decrypt(&self, vector: &[u8; VECTOR_BYTES], name: &mut [u8]) {
        match self {
            Names::Aes256(cipher) => decrypt(&**cipher, short(vector), name),
            Names::Aes128(cipher) => decrypt(&**cipher, short(vector), name),
            Names::Adiantum(cipher) => cipher.decrypt(vector, name),
            Names::Hctr2(cipher) => cipher.decrypt(vector, name),
        }
    }
}

/// Pads a name with zeros to a multiple of `padding`, but not beyond `most` bytes.
pub(crate) fn pad(name: &[u8], padding: u8, most: usize) -> Result<Vec<u8>, NameTooLong> {
    if name.len() > most || most < NAME_BYTES_MIN {
        return Err(NameTooLong { len: name.len(), most });
    }
    let len = name.len().max(NAME_BYTES_MIN).next_multiple_of(padding.max(1).into()).min(most);
    let mut padded = name.to_vec();
    padded.resize(len, 0);
    Ok(padded)
}

// A single block has nothing to steal from: it is CBC, which the crate `cts` makes something else
// of when it encrypts.
fn encrypt<C>(cipher: &C, vector: [u8; 16], name: &mut [u8])
where
    C: BlockCipherEncrypt + BlockSizeUser<BlockSize = U16>,
{
    if let Ok(block) = <&mut [u8; 16]>::try_from(&mut *name) {
        *block = (u128::from_le_bytes(*block) ^ u128::from_le_bytes(vector)).to_le_bytes();
        cipher.encrypt_block(block.into());
        return;
    }
    let done = CbcCs3::inner_iv_init(cipher, &vector.into()).encrypt(name);
    debug_assert!(done.is_ok(), "names are padded to a block at least");
}

fn decrypt<C>(cipher: &C, vector: [u8; 16], name: &mut [u8])
where
    C: BlockCipherDecrypt + BlockSizeUser<BlockSize = U16>,
{
    if let Ok(block) = <&mut [u8; 16]>::try_from(&mut *name) {
        cipher.decrypt_block((&mut *block).into());
        *block = (u128::from_le_bytes(*block) ^ u128::from_le_bytes(vector)).to_le_bytes();
        return;
    }
    let done = CbcCs3::inner_iv_init(cipher, &vector.into()).decrypt(name);
    debug_assert!(done.is_ok(), "the caller has checked the length");
}

#[cfg(test)]
mod tests {
    use aes::cipher::{Array, KeyInit};

    use super::*;

    #[test]
    fn vectors_of_rfc_3962() {
        let names = Names::Aes128(Box::new(Aes128::new(&Array(*b"chicken teriyaki"))));
        let text = b"I would like the General Gau's Chicken, please, and wonton soup.";
        let known = [
            (17, "c6353568f2bf8cb4d8a580362da7ff7f97"),
            (31, "fc00783e0efdb2c1d445d4c8eff7ed2297687268d6ecccc0c07b25e25ecfe5"),
            (32, "39312523a78662d5be7fcbcc98ebf5a897687268d6ecccc0c07b25e25ecfe584"),
        ];
        for (len, cipher) in known {
            let mut name = text[..len].to_vec();
            names.encrypt(&[0; 32], &mut name);
            let shown: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(shown, cipher, "{len}");
            names.decrypt(&[0; 32], &mut name);
            assert_eq!(name, text[..len], "{len}");
        }
    }

    #[test]
    fn one_block_is_cbc() {
        // The first block of F.2.1 of NIST SP 800-38A.
        let key = [
            0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6, 0xab, 0xf7, 0x15, 0x88, 0x09, 0xcf,
            0x4f, 0x3c,
        ];
        let names = Names::Aes128(Box::new(Aes128::new(&Array(key))));
        let plain = 0x6bc1_bee2_2e40_9f96_e93d_7e11_7393_172a_u128.to_be_bytes();
        // What is behind the first 16 bytes is of no account.
        let vector = std::array::from_fn(|n| n as u8);
        let mut block = plain;
        names.encrypt(&vector, &mut block);
        assert_eq!(u128::from_be_bytes(block), 0x7649_abac_8119_b246_cee9_8e9b_12e9_197d);
        names.decrypt(&vector, &mut block);
        assert_eq!(block, plain);
    }

    #[test]
    fn names_are_padded_to_what_the_policy_says() {
        let len = |len, padding, most| pad(&vec![1; len], padding, most).map(|name| name.len());
        assert_eq!(len(1, 4, 255), Ok(16));
        assert_eq!(len(17, 4, 255), Ok(20));
        assert_eq!(len(17, 32, 255), Ok(32));
        assert_eq!(len(250, 32, 255), Ok(255));
        assert_eq!(len(256, 32, 255), Err(NameTooLong { len: 256, most: 255 }));
    }
}
