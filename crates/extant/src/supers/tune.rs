//! Settings of a file system that can be changed while it is open.

use extant_format::features::{Compat, DefaultMountOpts, ErrorsPolicy, Incompat};
use extant_format::superblock::Superblock;

use crate::error::{FsError, Result};

/// Blocks that only the owner of the reserve may take.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reserve {
    /// So many blocks, at most half of all.
    Blocks(u64),
    /// A share of all blocks, `0.0..=50.0` percent, rounded down.
    Percent(f64),
}

/// Changes of a file system's settings, made together by [`Fs::tune`](crate::Fs::tune). What is not set stays.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tune {
    label: Option<Vec<u8>>,
    uuid: Option<[u8; 16]>,
    reserve: Option<Reserve>,
    reserve_owner: Option<(u32, u32)>,
    max_mount_count: Option<Option<u16>>,
    mount_count: Option<u16>,
    check_interval: Option<u32>,
    errors: Option<ErrorsPolicy>,
    default_options: Option<DefaultMountOpts>,
}

impl Tune {
    /// Nothing yet.
    pub fn new() -> Tune {
        Tune::default()
    }

    /// The volume label: at most 16 bytes, none of them zero.
    #[must_use]
    pub fn label(mut self, label: impl Into<Vec<u8>>) -> Tune {
        self.label = Some(label.into());
        self
    }

    /// The UUID. With checksums of metadata this needs the feature `metadata_csum_seed`: else every
    /// checksum on the device depends on it.
    #[must_use]
    pub fn uuid(mut self, uuid: [u8; 16]) -> Tune {
        self.uuid = Some(uuid);
        self
    }

    /// How much is kept for the owner of the reserve.
    #[must_use]
    pub fn reserve(mut self, reserve: Reserve) -> Tune {
        self.reserve = Some(reserve);
        self
    }

    /// The user and the group who may take reserved blocks, besides root.
    #[must_use]
    pub fn reserve_owner(mut self, uid: u32, gid: u32) -> Tune {
        self.reserve_owner = Some((uid, gid));
        self
    }

    /// Mounts after which the file system wants to be checked; `None`: it never does.
    #[must_use]
    pub fn max_mount_count(mut self, count: Option<u16>) -> Tune {
        self.max_mount_count = Some(count);
        self
    }

    /// Mounts since the last check.
    #[must_use]
    pub fn mount_count(mut self, count: u16) -> Tune {
        self.mount_count = Some(count);
        self
    }

    /// Seconds after which the file system wants to be checked; 0: it never does.
    #[must_use]
    pub fn check_interval(mut self, seconds: u32) -> Tune {
        self.check_interval = Some(seconds);
        self
    }

    /// What to do on damage.
    #[must_use]
    pub fn errors(mut self, policy: ErrorsPolicy) -> Tune {
        self.errors = Some(policy);
        self
    }

    /// The default mount options, all of them.
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
            if features.has_compat(Compat::HAS_JOURNAL) && new.journal_inode.0 == 0 {
                return refuse("uuid: the external journal knows the file system by it");
            }
            new.uuid = uuid;
        }
        if let Some(reserve) = self.reserve {
            let half = new.blocks_count / 2;
            new.reserved_blocks_count = match reserve {
                Reserve::Blocks(blocks) if blocks <= half => blocks,
                Reserve::Percent(percent) if (0.0..=50.0).contains(&percent) => {
                    // At most half of 2^48, which a float holds exactly enough; cut all the same.
                    ((new.blocks_count as f64 * percent / 100.0) as u64).min(half)
                }
                _ => return refuse("reserve: at most half of the blocks can be reserved"),
            };
        }
        if let Some((uid, gid)) = self.reserve_owner {
            (new.reserved_uid, new.reserved_gid) = (uid, gid);
        }
        if let Some(count) = self.max_mount_count {
            // Stored: 65535 is -1, "never", as 0 is.
            new.max_mount_count = match count {
                None => u16::MAX,
                Some(count) if (1..=i16::MAX as u16).contains(&count) => count,
                Some(_) => return refuse("max mount count: 1 to 32767, or none"),
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
