//! Settings of a file system that can be changed while it is mounted.

use extant_format::features::{Compat, DefaultMountOpts, ErrorsPolicy, Incompat};
use extant_format::superblock::Superblock;

use crate::error::{FsError, Result};

/// Amount of blocks reserved for root and the reserve's owner.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reserve {
    /// A number of blocks, at most half of all.
    Blocks(u64),
    /// A share of all blocks, `0.0..=50.0` percent, rounded down.
    Percent(f64),
}

/// Changes of a file system's settings, made together by [`Fs::tune`](crate::Fs::tune). Other
/// settings stay.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tune {
    label: Option<Vec<u8>>,
    uuid: Option<[u8; 16]>,
    password_salt: Option<[u8; 16]>,
    reserve: Option<Reserve>,
    reserve_owner: Option<(u32, u32)>,
    max_mount_count: Option<MountLimit>,
    mount_count: Option<u16>,
    check_interval: Option<u32>,
    errors: Option<ErrorsPolicy>,
    default_options: Option<DefaultMountOpts>,
}

/// The number of mounts after which a check is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MountLimit {
    Never,
    After(u16),
}

impl Tune {
    /// Returns an empty set of changes.
    pub fn new() -> Tune {
        Tune::default()
    }

    /// Sets the volume label: at most 16 bytes, none of them zero.
    #[must_use]
    pub fn label(mut self, label: impl Into<Vec<u8>>) -> Tune {
        self.label = Some(label.into());
        self
    }

    /// Sets the UUID. With checksums of metadata this needs the feature `metadata_csum_seed`:
    /// without it every checksum on the device depends on the UUID.
    #[must_use]
    pub fn uuid(mut self, uuid: [u8; 16]) -> Tune {
        self.uuid = Some(uuid);
        self
    }

    /// Sets the salt for keys of encrypted files that are made of passphrases: keys that were made
    /// with another one are not made again.
    #[must_use]
    pub fn password_salt(mut self, salt: [u8; 16]) -> Tune {
        self.password_salt = Some(salt);
        self
    }

    /// Sets the number of reserved blocks.
    #[must_use]
    pub fn reserve(mut self, reserve: Reserve) -> Tune {
        self.reserve = Some(reserve);
        self
    }

    /// Sets the user and the group who may take reserved blocks, besides root.
    #[must_use]
    pub fn reserve_owner(mut self, uid: u32, gid: u32) -> Tune {
        self.reserve_owner = Some((uid, gid));
        self
    }

    /// Sets the number of mounts after which a check is due; `None` for never.
    #[must_use]
    pub fn max_mount_count(mut self, count: Option<u16>) -> Tune {
        self.max_mount_count = Some(count.map_or(MountLimit::Never, MountLimit::After));
        self
    }

    /// Sets the number of mounts since the last check.
    #[must_use]
    pub fn mount_count(mut self, count: u16) -> Tune {
        self.mount_count = Some(count);
        self
    }

    /// Sets the time in seconds after which a check is due; 0 for never.
    #[must_use]
    pub fn check_interval(mut self, seconds: u32) -> Tune {
        self.check_interval = Some(seconds);
        self
    }

    /// Sets the reaction to damage.
    #[must_use]
    pub fn errors(mut self, policy: ErrorsPolicy) -> Tune {
        self.errors = Some(policy);
        self
    }

    /// Sets the default mount options, replacing all of them.
    #[must_use]
    pub fn default_options(mut self, options: DefaultMountOpts) -> Tune {
        self.default_options = Some(options);
        self
    }

    /// Makes the changes in `superblock`, all or none.
    pub(crate) fn apply(&self, superblock: &mut Superblock) -> Result<()> {
        let refuse = |what| Err(FsError::InvalidArgument { what });
        let mut new = superblock.clone();
        if let Some(label) = &self.label {
            if label.len() > new.volume_name.len() || label.contains(&0) {
                return refuse("label: at most 16 bytes, none of them zero");
            }
            new.volume_name = [0; 16];
            for (to, from) in new.volume_name.iter_mut().zip(label) {
                *to = *from;
            }
        }
        if let Some(uuid) = self.uuid {
            let features = &new.features;
            if uuid == [0; 16] {
                return refuse("uuid: all zeroes mean that there is none");
            }
            let seeded = features.has_incompat(Incompat::CSUM_SEED);
            if features.group_checksums() && !seeded {
                return refuse(
                    "uuid: the checksums of this file system depend on it; \
                     the feature metadata_csum_seed would free them",
                );
            }
            if features.has_compat(Compat::STABLE_INODES) {
                return refuse(
                    "uuid: the feature stable_inodes says that it stays: keys of encrypted files \
                     may depend on it",
                );
            }
            if features.has_compat(Compat::HAS_JOURNAL) && new.journal_inode.0 == 0 {
                return refuse("uuid: the external journal knows the file system by it");
            }
            new.uuid = uuid;
        }
        if let Some(salt) = self.password_salt {
            new.encrypt_pw_salt = salt;
        }
        if let Some(reserve) = self.reserve {
            let half = new.blocks_count / 2;
            new.reserved_blocks_count = match reserve {
                Reserve::Blocks(blocks) if blocks <= half => blocks,
                Reserve::Percent(percent) if (0.0..=50.0).contains(&percent) => {
                    // At most half of 2^48, which a float represents closely enough; limited all
                    // the same.
                    ((new.blocks_count as f64 * percent / 100.0) as u64).min(half)
                }
                _ => return refuse("reserve: at most half of the blocks can be reserved"),
            };
        }
        if let Some((uid, gid)) = self.reserve_owner {
            (new.reserved_uid, new.reserved_gid) = (uid, gid);
        }
        if let Some(limit) = self.max_mount_count {
            // The stored value 65535 is -1, "never", as is 0.
            new.max_mount_count = match limit {
                MountLimit::Never => u16::MAX,
                MountLimit::After(count) if (1..=i16::MAX as u16).contains(&count) => count,
                MountLimit::After(_) => return refuse("max mount count: 1 to 32767, or none"),
            };
        }
        if let Some(count) = self.mount_count {
            new.mount_count = count;
        }
        if let Some(seconds) = self.check_interval {
            new.check_interval = seconds;
        }
        match self.errors {
            Some(ErrorsPolicy::Unknown(_)) => {
                return refuse("errors: not one of the three policies");
            }
            Some(policy) => new.errors = policy,
            None => {}
        }
        if let Some(options) = self.default_options {
            new.default_mount_opts = options;
        }
        *superblock = new;
        Ok(())
    }
}
