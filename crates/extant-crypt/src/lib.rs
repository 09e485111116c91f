//! Encryption of files, names and link targets with the caller's key, as Linux does it (fscrypt).
//!
//! # Place
//!
//! Below `extant`, beside `extant-format`: bytes and keys in, bytes out. It knows no devices, no
//! inodes and no directories; what it is told of an inode is its context and a [`Place`].
//!
//! # Shape
//!
//! ```text
//! policy   the context of an inode: modes, flags, whose key, nonce
//! key      master keys, their names, and a ring of them
//! derive   from a master key to the key of one inode
//! cipher   the cipher of one inode: contents or names
//! xts      the mode of contents     names   the mode of names
//! adiantum, hctr2    modes as wide as the data unit or name     nh   a hash of Adiantum
//! ```
//!
//! # Invariants
//!
//! - K1. Contexts, names and targets come from an image and may have any value: none makes a
//!   function panic. A mode or flag that is not known here is refused by its name.
//! - K2. Keys are wiped from memory when they are dropped, and no `Debug` shows one.
//! - K3. Primitives are those of RustCrypto; the modes XTS, Adiantum and HCTR2 are put together here,
//!   and NH, a sum of products, is written here. Published vectors say whether that is right.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/fscrypt.rst`; IEEE 1619-2007 for XTS; RFC 5869 for HKDF;
//! RFC 3962 for ciphertext stealing; the papers of Adiantum and HCTR2 for these. The tests of `extant`
//! compare with the kernel.
#![forbid(unsafe_code)]

mod adiantum;
mod cipher;
mod derive;
mod hctr2;
mod key;
mod names;
mod nh;
mod policy;
#[cfg(test)]
mod vectors;
mod xts;

pub use cipher::{ContentsCipher, NamesCipher};
pub use derive::Place;
pub use key::{KEYS_MAX, KeyFault, KeyRing, KeySpec, MasterKey, RingFull};
pub use names::{NAME_BYTES_MIN, NameTooLong};
pub use policy::{
    CONTEXT_BYTES_MAX, ContentsMode, Context, ContextFault, IvKind, NONCE_BYTES, NamesMode, Policy,
};

/// Why a cipher for an inode cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CipherFault {
    /// The mode is known by name and not implemented.
    #[error("encryption mode {0} is not supported")]
    Mode(&'static str),
    /// The master key is shorter than the mode's strength.
    #[error("a key of {have} bytes is too short for this mode, which needs {need}")]
    ShortKey {
        /// Number of bytes of the master key.
        have: usize,
        /// Number of bytes that the mode needs.
        need: usize,
    },
    /// The policy depends on inode numbers and the UUID, and the file system may change them.
    #[error("its policy needs the feature stable_inodes")]
    NeedsStableInodes,
    /// The policy has data units that are larger than the blocks.
    #[error("its policy has data units that are larger than the blocks")]
    DataUnit,
}
