//! The master keys of a mount, and the ciphers of inodes that were made from them.
//!
//! # Invariants
//!
//! - Y1. A cipher that an inode has stays with it: what was written into the cache by one cipher
//!   goes to the device by the same one, also after the key was removed.
//! - Y2. A cipher whose key may have been removed since it was made answers no new request, unless
//!   its inode is in use (Y3).
//! - Y3. A file that was in use when its key was removed goes on, as an open file in Linux does,
//!   until whoever uses it ends that.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_crypt::{ContentsCipher, KeyRing, KeySpec, MasterKey, NamesCipher, Policy, RingFull};
use extant_iomap::Stage;
use extant_sync::{Rank, RwLock};

/// The master keys of a mount.
pub(crate) struct Keys {
    table: RwLock<Table>,
    /// Number of removals of keys.
    removals: AtomicU64,
}

struct Table {
    ring: KeyRing,
    /// Of keys that are or were in the ring: how many files keep each in use. Those that are in the
    /// ring, or in use; so there are few more than keys.
    uses: Vec<(KeySpec, Uses)>,
}

/// Number of files that keep a key in use (Y3).
type Uses = Arc<AtomicU64>;

/// What a mount knows of a master key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyStatus {
    /// It is not there, and no file is in use with it.
    Absent,
    /// It was added.
    Present,
    /// It was removed, and files that were in use then still are: see [`KeyUse`](crate::KeyUse).
    InUse,
}

impl Table {
    fn uses_of(&mut self, name: &KeySpec) -> Uses {
        if let Some((_, uses)) = self.uses.iter().find(|(known, _)| known == name) {
            return Arc::clone(uses);
        }
        let ring = &self.ring;
        let is_needed = |(known, uses): &(KeySpec, Uses)| {
            ring.get(known).is_some() || uses.load(Ordering::Acquire) > 0
        };
        self.uses.retain(is_needed);
        let uses = Uses::default();
        self.uses.push((*name, Arc::clone(&uses)));
        uses
    }
}

impl Keys {
    pub(crate) fn new(ring: KeyRing) -> Keys {
        let table = Table { ring, uses: Vec::new() };
        Keys { table: RwLock::new(Rank::Leaf, table), removals: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, name: KeySpec, key: MasterKey) -> Result<(), RingFull> {
        self.table.write().ring.add(name, key)
    }

    /// Removes a key; returns whether there was one.
    pub(crate) fn remove(&self, name: &KeySpec) -> bool {
        let removed = self.table.write().ring.remove(name);
        if removed {
            self.removals.fetch_add(1, Ordering::AcqRel);
        }
        removed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.read().ring.is_empty()
    }

    pub(crate) fn status(&self, name: &KeySpec) -> KeyStatus {
        let table = self.table.read();
        let is_this =
            |(known, uses): &(KeySpec, Uses)| known == name && uses.load(Ordering::Acquire) > 0;
        match table.ring.get(name) {
            Some(_) => KeyStatus::Present,
            None if table.uses.iter().any(is_this) => KeyStatus::InUse,
            None => KeyStatus::Absent,
        }
    }

    /// Calls `make` with the key of that name and the number of removals so far, if there is one.
    pub(crate) fn with<R>(
        &self,
        name: &KeySpec,
        make: impl FnOnce(&MasterKey, u64) -> R,
    ) -> Option<R> {
        let table = self.table.read();
        table.ring.get(name).map(|key| make(key, self.removals.load(Ordering::Acquire)))
    }

    /// Keeps the cipher of an inode in use (Y3), if its key is there or the inode is in use already.
    /// Ended by [`end_use`](Self::end_use).
    pub(crate) fn begin_use(&self, name: &KeySpec, slot: &CipherSlot) -> bool {
        // No key is removed meanwhile.
        let may =
            |table: &Table| table.ring.get(name).is_some() || slot.uses.load(Ordering::Acquire) > 0;
        let begin = |uses: &Uses| {
            uses.fetch_add(1, Ordering::AcqRel);
            slot.uses.fetch_add(1, Ordering::AcqRel);
        };
        {
            let table = self.table.read();
            if !may(&table) {
                return false;
            }
            if let Some((_, uses)) = table.uses.iter().find(|(known, _)| known == name) {
                begin(uses);
                return true;
            }
        }
        let mut table = self.table.write();
        if !may(&table) {
            return false;
        }
        begin(&table.uses_of(name));
        true
    }

    pub(crate) fn end_use(&self, name: &KeySpec, slot: &CipherSlot) {
        slot.uses.fetch_sub(1, Ordering::AcqRel);
        let table = self.table.read();
        if let Some((_, uses)) = table.uses.iter().find(|(known, _)| known == name) {
            uses.fetch_sub(1, Ordering::AcqRel);
        }
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
pub(crate) struct CipherSlot {
    ciphers: RwLock<Option<Box<Ciphers>>>,
    /// How often the inode is in use (Y3).
    uses: AtomicU64,
}

impl CipherSlot {
    pub(crate) fn new() -> CipherSlot {
        CipherSlot { ciphers: RwLock::new(Rank::Leaf, None), uses: AtomicU64::new(0) }
    }

    /// Returns the cipher, if it was made before.
    pub(crate) fn get(&self) -> Option<Ciphers> {
        self.ciphers.read().as_deref().cloned()
    }

    /// Returns the cipher if no key was removed since it was made, or the inode is in use (Y2).
    pub(crate) fn current(&self, keys: &Keys) -> Option<Ciphers> {
        self.get().filter(|ciphers| self.may_go_on(ciphers, keys))
    }

    fn may_go_on(&self, ciphers: &Ciphers, keys: &Keys) -> bool {
        ciphers.removals == keys.removals.load(Ordering::Acquire)
            || self.uses.load(Ordering::Acquire) > 0
    }

    /// Returns whether there is a cipher that [`current`](Self::current) returns.
    pub(crate) fn is_current(&self, keys: &Keys) -> bool {
        self.ciphers.read().as_ref().is_some_and(|ciphers| self.may_go_on(ciphers, keys))
    }

    /// Keeps a cipher, but not in place of another one (Y1): returns the one that is kept.
    pub(crate) fn keep(&self, made: Ciphers) -> Ciphers {
        let mut slot = self.ciphers.write();
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
