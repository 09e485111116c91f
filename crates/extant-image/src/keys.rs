//! The keys that nodes of a tree are encrypted with, and how.

use extant_crypt::{MasterKey, Policy};

/// A master key, and what is encrypted with it how.
#[derive(Debug)]
pub(crate) struct Keyed {
    pub(crate) key: MasterKey,
    pub(crate) policy: Policy,
}

/// Policies of a tree with their master keys, and what nonces are made of. A node has the number of its policy, from 1
/// on.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    pub(crate) list: Vec<Keyed>,
    pub(crate) seed: [u8; 32],
}

impl Keys {
    /// The policy with a number; `None` for 0, and for one that there is not.
    pub(crate) fn get(&self, number: u16) -> Option<&Keyed> {
        self.list.get(usize::from(number).checked_sub(1)?)
    }

    /// The number of a policy, which is added if it is not there. `None` when there are as many as there are numbers.
    pub(crate) fn number(&mut self, key: &MasterKey, policy: &Policy) -> Option<u16> {
        let at = match self.list.iter().position(|known| known.policy == *policy) {
            Some(at) => at,
            None => {
                u16::try_from(self.list.len() + 1).ok()?;
                self.list.push(Keyed { key: key.clone(), policy: *policy });
                self.list.len() - 1
            }
        };
        u16::try_from(at + 1).ok()
    }

    /// Returns whether another key has the name that a policy gives this one. Names of version 2 follow from the key.
    pub(crate) fn has_other(&self, key: &MasterKey, policy: &Policy) -> bool {
        self.list.iter().any(|known| {
            known.policy.key == policy.key && known.key.identifier() != key.identifier()
        })
    }
}
