//! The keys that nodes of a tree are encrypted with.

use extant_crypt::MasterKey;

/// Master keys of a tree, and what nonces are made of. A node has the number of its key, from 1 on.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    pub(crate) list: Vec<MasterKey>,
    pub(crate) seed: [u8; 32],
}

impl Keys {
    /// The key with a number; `None` for 0, and for one that there is not.
    pub(crate) fn get(&self, number: u16) -> Option<&MasterKey> {
        self.list.get(usize::from(number).checked_sub(1)?)
    }

    /// The number of a key, which is added if it is not there. `None` when there are as many as there are numbers.
    pub(crate) fn number(&mut self, key: &MasterKey) -> Option<u16> {
        let known = self.list.iter().position(|known| known.identifier() == key.identifier());
        let at = match known {
            Some(at) => at,
            None => {
                u16::try_from(self.list.len() + 1).ok()?;
                self.list.push(key.clone());
                self.list.len() - 1
            }
        };
        u16::try_from(at + 1).ok()
    }
}
