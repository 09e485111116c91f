//! The master keys of a mount, and the ciphers of inodes that were made from them.
//!
//! # Invariants
//!
//! - Y1. A cipher that an inode has stays with it: what was written into the cache by one cipher
//!   goes to the device by the same one, also after the key was removed.
//! - Y2. A cipher whose key may have been removed since it was made answers no new request.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_crypt::{ContentsCipher, KeyRing, KeySpec, MasterKey, NamesCipher, Policy, RingFull};
use extant_iomap::Stage;
use extant_sync::{Rank, RwLock};

/// The master keys of a mount.
pub(crate) struct Keys {
    ring: RwLock<KeyRing>,
    /// Number of removals of keys.
    removals: AtomicU64,
}

impl Keys {
    pub(crate) fn new(ring: KeyRing) -> Keys {
        Keys { ring: RwLock::new(Rank::Leaf, ring), removals: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, name: KeySpec, key: MasterKey) -> Result<(), RingFull> {
        self.ring.write().add(name, key)
    }

    /// Removes a key; returns whether there was one.
    pub(crate) fn remove(&self, name: &KeySpec) -> bool {
        let removed = self.ring.write().remove(name);
        if removed {
            self.removals.fetch_add(1, Ordering::AcqRel);
        }
        removed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ring.read().is_empty()
    }

    /// Calls `make` with the key of that name and the number of removals so far, if there is one.
    pub(crate) fn with<R>(
        &self,
        name: &KeySpec,
        make: impl FnOnce(&MasterKey, u64) -> R,
    ) -> Option<R> {
        let ring = self.ring.read();
        ring.get(name).map(|key| make(key, self.removals.load(Ordering::Acquire)))
    }
}

/// What an inode's cipher is for.
#[derive(Clone)]
pub(crate) enum Cipher {
    Contents(Arc<ContentsStage>),
    Names(Arc<NamesCipher>),
}

/// The cipher of an inode, and how it was made.
#[derive(Clone)]
pub(crate) struct Ciphers {
    pub(crate) policy: Policy,
    pub(crate) cipher: Cipher,
    /// The number of removals of keys when it was made.
    pub(crate) removals: u64,
}

/// The place in an inode for its cipher.
pub(crate) struct CipherSlot(RwLock<Option<Box<Ciphers>>>);

impl CipherSlot {
    pub(crate) fn new() -> CipherSlot {
        CipherSlot(RwLock::new(Rank::Leaf, None))
    }

    /// Returns the cipher, if it was made before.
    pub(crate) fn get(&self) -> Option<Ciphers> {
        self.0.read().as_deref().cloned()
    }

    /// Returns the cipher if no key was removed since it was made (Y2).
    pub(crate) fn current(&self, keys: &Keys) -> Option<Ciphers> {
        let removals = keys.removals.load(Ordering::Acquire);
        self.get().filter(|ciphers| ciphers.removals == removals)
    }

    /// Returns whether there is a cipher that [`current`](Self::current) returns.
    pub(crate) fn is_current(&self, keys: &Keys) -> bool {
        let removals = keys.removals.load(Ordering::Acquire);
        self.0.read().as_ref().is_some_and(|ciphers| ciphers.removals == removals)
    }

    /// Keeps a cipher, but not in place of another one (Y1): returns the one that is kept.
    pub(crate) fn keep(&self, made: Ciphers) -> Ciphers {
        let mut slot = self.0.write();
        match &mut *slot {
            Some(known) => {
                known.removals = made.removals;
                Ciphers::clone(known)
            }
            None => {
                *slot = Some(Box::new(made.clone()));
                made
            }
        }
    }
}

/// Contents on their way between the cache and the device.
pub(crate) struct ContentsStage(pub(crate) ContentsCipher);

impl Stage for ContentsStage {
    fn unit_bytes(&self) -> u64 {
        self.0.unit_bytes()
    }

    fn encrypt(&self, offset: u64, bytes: &mut [u8]) {
        self.0.encrypt(offset, bytes);
    }

    fn decrypt(&self, offset: u64, bytes: &mut [u8]) {
        self.0.decrypt(offset, bytes);
    }
}

impl fmt::Debug for Ciphers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ciphers({:?})", self.policy)
    }
}
