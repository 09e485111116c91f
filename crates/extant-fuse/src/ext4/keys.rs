//! The control operations of fscrypt: master keys, and the policies of directories.
//!
//! A key belongs to the file system, and users who added it each have a claim to it; it goes with
//! the last claim. Files that are open when it goes stay open (`FILES_BUSY`), as in Linux; open
//! directories do not.
//!
//! A key of the kernel's keyring (`key_id`) cannot be had: only the kernel can read it.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/fscrypt.rst`, "User API".

use std::time::Duration;

use extant::{EncryptionPolicy, FileKind, FsError, Inode, KeySpec, KeyStatus, MasterKey, Tune};
use extant_format::features::Incompat;
use extant_sync::{Mutex, Rank};
use rustc_hash::FxHashMap;

use super::Ext4;
use super::control::u32_at;
use crate::events::Level;
use crate::operations::{Caller, Errno, Ioctl, NodeId, Reply};

const ENOKEY: Errno = Errno(126);

/// Bytes of `struct fscrypt_add_key_arg` before the key, of its `key_spec`, and of a key.
const ADD_KEY: u32 = 80;
const KEY_SPEC: usize = 40;
const RAW_MAX: u32 = 64;
const REMOVE_KEY: usize = 64;
const KEY_STATUS: usize = 128;
/// Bytes of `struct fscrypt_policy_v1`, and of the one of version 2.
const POLICY_V1: u32 = 12;
const POLICY_V2: u32 = 24;
const KEY_TYPE_DESCRIPTOR: u32 = 1;
const KEY_TYPE_IDENTIFIER: u32 = 2;
/// `FSCRYPT_KEY_REMOVAL_STATUS_FLAG_*`.
const FILES_BUSY: u32 = 1;
const OTHER_USERS: u32 = 2;
/// Number of times that files are looked at which are said to be open, and the time between.
const LOOKS: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(2);
/// Most claims to one key.
const CLAIMS_MAX: usize = 256;
/// Most keys of one user: half of those that a file system has, so that nobody takes all.
const KEYS_OF_ONE_MAX: usize = 128;

/// Who added which key of version 2.
pub(super) struct Claims(Mutex<FxHashMap<KeySpec, Vec<u32>>>);

impl Claims {
    pub(super) fn new() -> Claims {
        Claims(Mutex::new(Rank::Leaf, FxHashMap::default()))
    }

    fn of(&self, key: &KeySpec) -> Vec<u32> {
        self.0.lock().get(key).cloned().unwrap_or_default()
    }

    fn add(&self, key: KeySpec, user: u32) -> Reply<()> {
        let mut claims = self.0.lock();
        let own = claims.values().filter(|users| users.contains(&user)).count();
        let users = claims.get(&key).map_or(&[][..], |users| users);
        if users.contains(&user) {
            return Ok(());
        }
        if users.len() >= CLAIMS_MAX || own >= KEYS_OF_ONE_MAX {
            return Err(Errno::EDQUOT);
        }
        claims.entry(key).or_default().push(user);
        Ok(())
    }

    /// Takes a claim back; returns whether there was one.
    fn remove(&self, key: &KeySpec, user: u32) -> bool {
        let mut claims = self.0.lock();
        let Some(users) = claims.get_mut(key) else { return false };
        let before = users.len();
        users.retain(|one| *one != user);
        let had = users.len() < before;
        if users.is_empty() {
            claims.remove(key);
        }
        had
    }

    fn remove_all(&self, key: &KeySpec) {
        self.0.lock().remove(key);
    }
}

/// Reads a `struct fscrypt_key_specifier`.
fn key_spec(bytes: &[u8]) -> Reply<KeySpec> {
    let name = bytes.get(8..KEY_SPEC).ok_or(Errno::EINVAL)?;
    if u32_at(bytes, 4)? != 0 {
        return Err(Errno::EINVAL);
    }
    match u32_at(bytes, 0)? {
        KEY_TYPE_DESCRIPTOR => {
            name.first_chunk().copied().map(KeySpec::Descriptor).ok_or(Errno::EINVAL)
        }
        KEY_TYPE_IDENTIFIER => {
            name.first_chunk().copied().map(KeySpec::Identifier).ok_or(Errno::EINVAL)
        }
        _ => Err(Errno::EINVAL),
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn is_of_version_1(key: &KeySpec) -> bool {
    matches!(key, KeySpec::Descriptor(_))
}

/// The head of `struct fscrypt_add_key_arg`: whose name, and how many bytes the key has.
fn parse_add(input: &[u8]) -> Reply<(KeySpec, u32)> {
    if input.len() < ADD_KEY as usize {
        return Err(Errno::EINVAL);
    }
    let key = key_spec(input)?;
    let (raw_bytes, key_id) = (u32_at(input, 40)?, u32_at(input, 44)?);
    // Behind them flags of newer kernels, for keys wrapped by hardware.
    if !is_zero(&input[48..]) {
        return Err(Errno::EINVAL);
    }
    if key_id != 0 {
        return Err(if raw_bytes == 0 { Errno::EOPNOTSUPP } else { Errno::EINVAL });
    }
    match (16..=RAW_MAX).contains(&raw_bytes) {
        true => Ok((key, raw_bytes)),
        false => Err(Errno::EINVAL),
    }
}

impl Ext4<'_> {
    fn check_encrypt(&self) -> Reply<()> {
        match self.fs().features().has_incompat(Incompat::ENCRYPT) {
            true => Ok(()),
            false => Err(Errno::EOPNOTSUPP),
        }
    }

    fn claimant(&self, caller: Caller) -> Reply<u32> {
        self.user_of(caller).ok_or(Errno::EACCES)
    }

    pub(super) fn add_key(&self, caller: Caller, asked: &Ioctl<'_>) -> Reply<Vec<u8>> {
        self.check()?;
        self.check_encrypt()?;
        let (name, raw_bytes) = parse_add(asked.input)?;
        if is_of_version_1(&name) {
            self.check_operator(caller).map_err(|_| Errno::EACCES)?;
        }
        let user = self.claimant(caller)?;
        let mut raw = self.argument(caller, asked, ADD_KEY..ADD_KEY + raw_bytes)?;
        let key = MasterKey::new(&raw).map_err(|_| Errno::EINVAL);
        raw.fill(0);
        let key = key?;
        let mut answer = asked.input[..ADD_KEY as usize].to_vec();
        let name = match name {
            KeySpec::Descriptor(_) => name,
            KeySpec::Identifier(_) => {
                let name = key.identifier();
                if let KeySpec::Identifier(bytes) = &name {
                    answer[8..24].copy_from_slice(bytes);
                }
                name
            }
        };
        // A claim before the key, so that nobody who removes his takes this one away.
        if !is_of_version_1(&name) {
            self.claims.add(name, user)?;
        }
        match self.fs().add_key_named(name, key) {
            Ok(()) => {
                self.forget_locked();
                Ok(answer)
            }
            Err(FsError::InvalidArgument { .. }) => {
                self.claims.remove(&name, user);
                Err(Errno::EDQUOT)
            }
            Err(error) => Err(self.errno(&error)),
        }
    }

    pub(super) fn remove_key(
        &self,
        caller: Caller,
        asked: &Ioctl<'_>,
        of_all_users: bool,
    ) -> Reply<Vec<u8>> {
        self.check_encrypt()?;
        let input = asked.input.get(..REMOVE_KEY).ok_or(Errno::EINVAL)?;
        let name = key_spec(input)?;
        if !is_zero(&input[44..]) {
            return Err(Errno::EINVAL);
        }
        if of_all_users || is_of_version_1(&name) {
            self.check_operator(caller).map_err(|_| Errno::EACCES)?;
        }
        if self.fs().key_status(&name) == KeyStatus::Absent {
            return Err(ENOKEY);
        }
        let user = self.claimant(caller)?;
        let mut flags = 0;
        if of_all_users {
            self.claims.remove_all(&name);
        } else if !is_of_version_1(&name) {
            let had = self.claims.remove(&name, user);
            let others = !self.claims.of(&name).is_empty();
            // A key that came with the mount belongs to whoever operates it.
            if !had && (others || self.check_operator(caller).is_err()) {
                return Err(ENOKEY);
            }
            if others {
                flags |= OTHER_USERS;
            }
        }
        if flags & OTHER_USERS == 0
            && let Err(error) = self.lock_files(&name)
        {
            if !is_of_version_1(&name) {
                let _ = self.claims.add(name, user);
            }
            return Err(error);
        }
        if self.fs().key_status(&name) == KeyStatus::InUse {
            flags |= FILES_BUSY;
        }
        let mut answer = input.to_vec();
        answer[40..44].copy_from_slice(&flags.to_ne_bytes());
        Ok(answer)
    }

    /// Takes a key away: what programs wrote is written first, then the kernel forgets contents of
    /// files that are not open.
    fn lock_files(&self, name: &KeySpec) -> Reply<()> {
        // After a shutdown nothing is written any more, and keys go all the same.
        if !self.fs().is_shut_down() {
            self.hand_over()?;
        }
        self.reply(self.fs().remove_key(name))?;
        // The kernel tells of a file that was closed just before this in its own time.
        for _ in 0..LOOKS {
            if self.fs().key_status(name) != KeyStatus::InUse {
                break;
            }
            self.clock.sleep(BETWEEN);
        }
        self.forget_locked();
        // Of inodes that were in use until now contents are still in memory.
        self.reply(self.fs().remove_key(name))?;
        self.events.log(Level::Info, &format!("key {name} was removed"));
        Ok(())
    }

    /// Makes the kernel forget what it keeps of encrypted nodes that are not open: contents, names
    /// and targets of links, as they are shown with a key or without.
    fn forget_locked(&self) {
        // Of files that are not open it has nothing to write, so this waits for no other thread.
        for node in self.nodes.encrypted() {
            let _ = self.kernel.drop_cached(node, 0);
        }
    }

    pub(super) fn key_status(&self, caller: Caller, asked: &Ioctl<'_>) -> Reply<Vec<u8>> {
        const ADDED_BY_SELF: u32 = 1;
        self.check_encrypt()?;
        let input = asked.input.get(..KEY_STATUS).ok_or(Errno::EINVAL)?;
        let name = key_spec(input)?;
        if !is_zero(&input[KEY_SPEC..64]) {
            return Err(Errno::EINVAL);
        }
        let status = match self.fs().key_status(&name) {
            KeyStatus::Absent => 1u32,
            KeyStatus::Present => 2,
            KeyStatus::InUse => 3,
        };
        let users = if status == 2 { self.claims.of(&name) } else { Vec::new() };
        let is_own = self.user_of(caller).is_some_and(|user| users.contains(&user));
        let mut answer = input[..64].to_vec();
        for word in [status, if is_own { ADDED_BY_SELF } else { 0 }, users.len() as u32] {
            answer.extend(word.to_ne_bytes());
        }
        answer.resize(KEY_STATUS, 0);
        Ok(answer)
    }

    pub(super) fn set_policy(
        &self,
        caller: Caller,
        node: NodeId,
        inode: &Inode,
        asked: &Ioctl<'_>,
    ) -> Reply<Vec<u8>> {
        let first = self.argument(caller, asked, 0..1)?;
        let bytes = match first[..] {
            [0] => self.argument(caller, asked, 0..POLICY_V1)?,
            [2] => self.argument(caller, asked, 0..POLICY_V2)?,
            _ => return Err(Errno::EINVAL),
        };
        let policy = EncryptionPolicy::decode(&bytes).map_err(|_| Errno::EINVAL)?;
        let user = self.claimant(caller)?;
        let owner = self.settings.ids.user_outside(inode.metadata().uid);
        if user != owner {
            self.check_operator(caller).map_err(|_| Errno::EACCES)?;
        }
        self.check_change()?;
        if inode.kind() != FileKind::Directory {
            return Err(Errno(20)); // ENOTDIR
        }
        // Nobody makes files by another user's key.
        let is_own = is_of_version_1(&policy.key)
            || self.claims.of(&policy.key).contains(&user)
            || self.check_operator(caller).is_ok();
        if !is_own {
            return Err(ENOKEY);
        }
        self.reply(inode.set_encryption_policy(&policy))?;
        self.nodes.becomes_encrypted(node);
        self.has_new_times(node);
        self.changed(node)?;
        Ok(Vec::new())
    }

    fn policy_of(&self, inode: &Inode) -> Reply<EncryptionPolicy> {
        self.check_encrypt()?;
        self.reply(inode.encryption_policy())?.ok_or(Errno::ENODATA)
    }

    pub(super) fn get_policy(
        &self,
        caller: Caller,
        inode: &Inode,
        asked: &Ioctl<'_>,
    ) -> Reply<Vec<u8>> {
        let policy = self.policy_of(inode)?;
        if !is_of_version_1(&policy.key) {
            return Err(Errno::EINVAL); // As Linux has it: this call is for version 1.
        }
        self.answer_argument(caller, asked, &policy.encode())?;
        Ok(Vec::new())
    }

    pub(super) fn get_policy_ex(
        &self,
        caller: Caller,
        inode: &Inode,
        asked: &Ioctl<'_>,
    ) -> Reply<Vec<u8>> {
        let room = asked.input.get(..8).and_then(|bytes| bytes.try_into().ok());
        let room = u64::from_ne_bytes(room.ok_or(Errno::EINVAL)?);
        let policy = self.policy_of(inode)?.encode();
        if room < policy.len() as u64 {
            return Err(Errno::EOVERFLOW);
        }
        let answer = [&(policy.len() as u64).to_ne_bytes()[..], &policy].concat();
        self.answer_argument(caller, asked, &answer)?;
        // What the number of the operation says it has.
        Ok(answer[..9].to_vec())
    }

    pub(super) fn encryption_nonce(&self, inode: &Inode) -> Reply<Vec<u8>> {
        self.check_encrypt()?;
        let nonce = self.reply(inode.encryption_nonce())?.ok_or(Errno::ENODATA)?;
        Ok(nonce.to_vec())
    }

    /// The salt of the file system for keys that are made of passphrases, drawn when it is first
    /// asked for.
    pub(super) fn password_salt(&self, caller: Caller, asked: &Ioctl<'_>) -> Reply<Vec<u8>> {
        self.check_encrypt()?;
        let mut salt = self.salt.lock().0;
        if is_zero(&salt) {
            extant_sync::os_random(&mut salt).map_err(|_| Errno::EIO)?;
        }
        let (salt, is_stored) = {
            // Of two who ask at once the first one draws it.
            let mut known = self.salt.lock();
            if is_zero(&known.0) {
                known.0 = salt;
            }
            *known
        };
        if !is_stored {
            self.check_change()?;
            self.reply(self.fs().tune(&Tune::new().password_salt(salt)))?;
            self.salt.lock().1 = true;
        }
        self.answer_argument(caller, asked, &salt)?;
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = vec![0; ADD_KEY as usize];
        (bytes[0], bytes[8], bytes[40]) = (2, 9, 64);
        edit(&mut bytes);
        bytes
    }

    #[test]
    fn heads_are_taken_apart_or_refused() {
        let mut name = [0; 16];
        name[0] = 9;
        assert_eq!(parse_add(&head(|_| {})), Ok((KeySpec::Identifier(name), 64)));
        let version_1 = parse_add(&head(|bytes| bytes[0] = 1)).map(|(name, _)| name);
        assert_eq!(version_1, Ok(KeySpec::Descriptor([9, 0, 0, 0, 0, 0, 0, 0])));
        type Edit = fn(&mut Vec<u8>);
        let refused: [(Edit, Errno); 9] = [
            (|bytes| bytes[0] = 0, Errno::EINVAL),
            (|bytes| bytes[0] = 3, Errno::EINVAL),
            (|bytes| bytes[4] = 1, Errno::EINVAL),
            (|bytes| bytes[40] = 15, Errno::EINVAL),
            (|bytes| bytes[40] = 65, Errno::EINVAL),
            (|bytes| bytes[44] = 7, Errno::EINVAL),
            (|bytes| (bytes[40], bytes[44]) = (0, 7), Errno::EOPNOTSUPP),
            (|bytes| bytes[79] = 1, Errno::EINVAL),
            (|bytes| bytes.truncate(79), Errno::EINVAL),
        ];
        for (index, (edit, errno)) in refused.into_iter().enumerate() {
            assert_eq!(parse_add(&head(edit)), Err(errno), "{index}");
        }
    }

    #[test]
    fn a_key_is_claimed_once_by_each_and_by_a_bounded_number() {
        let (claims, key) = (Claims::new(), KeySpec::Identifier([1; 16]));
        assert_eq!((claims.add(key, 5), claims.add(key, 5)), (Ok(()), Ok(())));
        assert_eq!(claims.of(&key), [5]);
        assert!(!claims.remove(&key, 6) && claims.remove(&key, 5) && !claims.remove(&key, 5));
        for user in 0..CLAIMS_MAX as u32 {
            claims.add(key, user).unwrap();
        }
        assert_eq!(claims.add(key, u32::MAX), Err(Errno::EDQUOT));
        claims.remove_all(&key);
        assert!(claims.of(&key).is_empty());
        for n in 0..KEYS_OF_ONE_MAX {
            claims.add(KeySpec::Identifier((n as u128).to_le_bytes()), 5).unwrap();
        }
        assert_eq!(claims.add(key, 5), Err(Errno::EDQUOT), "one user has no more");
        assert_eq!(claims.add(key, 6), Ok(()));
        assert!(claims.remove(&key, 6) && !claims.0.lock().contains_key(&key));
    }
}
