//! What kind of file system to make: the options that `build` and `mkfs` share, by mke2fs's
//! letters.

use clap::Args;
use extant_base::BlockSize;
use extant_image::options::{FastCommitSize, JournalOption, MkfsOptions};
use extant_image::profile::Profile;
use extant_image::readers::{Reader, Trouble};
use uuid::Uuid;

use crate::exit::{Exit, Failure, Result};
use crate::output::complain;
use crate::size::{Amount, parse_amount};

const HEADING: &str = "File system (as mke2fs)";

/// Options of the file system.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = HEADING)]
pub(crate) struct MkfsSet {
    /// Defaults to begin with: default (mke2fs 1.47.4, if not given), debian12, ext3, ext2, microvm
    #[arg(long, short = 't', value_name = "NAME")]
    profile: Option<Profile>,
    /// What is to read the file system: grub, grub-2.12, u-boot, firecracker, linux-4.14 or another
    /// version; several with commas. Features of the profile that it does not know are left out, and those that
    /// are asked for are errors, or named if it can read the rest
    #[arg(long = "for", value_name = "READER", value_delimiter = ',')]
    readers: Vec<Reader>,
    /// Features on, or with ^ off: extent,^has_journal
    #[arg(short = 'O', long, value_name = "LIST", allow_hyphen_values = true)]
    features: Vec<String>,
    /// Block size: 1024 to 65536, also 4K
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = parse_block_size)]
    pub(crate) block_size: Option<BlockSize>,
    /// Cluster size, with bigalloc
    #[arg(short = 'C', long, value_name = "BYTES", value_parser = parse_u32)]
    cluster_size: Option<u32>,
    /// Bytes of an inode: 128, 256 and more
    #[arg(short = 'I', long, value_name = "BYTES")]
    inode_size: Option<u16>,
    /// One inode for each that many bytes of the image
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = parse_u32)]
    bytes_per_inode: Option<u32>,
    /// Number of inodes
    #[arg(short = 'N', long, value_name = "COUNT", conflicts_with = "bytes_per_inode")]
    inodes: Option<u64>,
    /// Percent of blocks that only root may use, 0 to 50
    #[arg(short = 'm', long, value_name = "PERCENT")]
    reserved_percent: Option<f64>,
    /// Name of the file system, at most 16 bytes
    #[arg(short = 'L', long, value_name = "NAME")]
    label: Option<String>,
    /// Where it was last mounted, at most 64 bytes
    #[arg(short = 'M', long, value_name = "PATH")]
    last_mounted: Option<String>,
    /// UUID; random: drawn; time: drawn too; clear: all zero
    #[arg(short = 'U', long, value_name = "UUID", value_parser = parse_uuid)]
    uuid: Option<UuidChoice>,
    /// Seed of directory hashes, a UUID
    #[arg(long, value_name = "UUID")]
    hash_seed: Option<Uuid>,
    /// Journal: none, size=64M (a plain number is MiB), fast_commit_size=…; commas between
    #[arg(short = 'J', long, value_name = "LIST")]
    journal: Vec<String>,
    /// Make a journal, whatever the profile says
    #[arg(short = 'j', long = "with-journal")]
    with_journal: bool,
    /// Groups that keep their bitmaps and tables together, a power of two
    #[arg(short = 'G', long, value_name = "COUNT")]
    flex_groups: Option<u32>,
    /// Blocks in a group
    #[arg(short = 'g', long, value_name = "BLOCKS")]
    blocks_per_group: Option<u32>,
    /// Stride of a RAID in blocks
    #[arg(long, value_name = "BLOCKS")]
    stride: Option<u32>,
    /// Stripe width of a RAID in blocks
    #[arg(long, value_name = "BLOCKS")]
    stripe_width: Option<u32>,
    /// Owner of the root directory
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    root_owner: Option<(u32, u32)>,
    /// What Linux does when it finds damage
    #[arg(short = 'e', long, value_name = "WHAT", value_parser = ["continue", "remount-ro", "panic"])]
    errors: Option<String>,
    /// Extended options by mke2fs's names: stride=16,lazy_itable_init=1,root_perms=0700,…
    #[arg(short = 'E', long, value_name = "LIST")]
    extended: Vec<String>,
}

/// `-U`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UuidChoice {
    Random,
    This([u8; 16]),
}

fn parse_uuid(text: &str) -> Result<UuidChoice, String> {
    match text {
        "random" | "time" => Ok(UuidChoice::Random),
        "clear" | "null" => Ok(UuidChoice::This([0; 16])),
        _ => Uuid::parse_str(text)
            .map(|uuid| UuidChoice::This(uuid.into_bytes()))
            .map_err(|_| "give a UUID, random or clear".into()),
    }
}

fn parse_u32(text: &str) -> Result<u32, String> {
    let bytes = crate::size::parse_bytes(text)?;
    u32::try_from(bytes).map_err(|_| format!("{text} is more than 4 GiB"))
}

fn parse_block_size(text: &str) -> Result<BlockSize, String> {
    let bytes = crate::size::parse_bytes(text)?;
    BlockSize::new(bytes).map_err(|error| error.to_string())
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let owner: extant_image::transform::Owner =
        text.parse().map_err(|error: extant_image::transform::OptionError| error.what)?;
    Ok((owner.uid, owner.gid))
}

/// Names what readers make of features that were asked for, where they read the file system all the same.
pub(crate) fn warn_of_readers(options: &MkfsOptions) {
    for conflict in options.conflicts() {
        if conflict.trouble != Trouble::NotRead {
            complain(&format!("note: {conflict}"));
        }
    }
}

impl MkfsSet {
    /// The options as the builder takes them.
    ///
    /// Named options win over their spelling in `-E`.
    pub(crate) fn options(&self) -> Result<MkfsOptions> {
        let usage = |error: &dyn std::fmt::Display| Failure::usage(error.to_string());
        // Its guests are as small as it makes them.
        let is_small = self.readers.contains(&Reader::Firecracker);
        let usual = if is_small { Profile::Microvm } else { Profile::Default };
        let mut options = MkfsOptions::new(self.profile.unwrap_or(usual));
        options.readers.clone_from(&self.readers);
        for list in &self.extended {
            options.apply_extended(list).map_err(|error| usage(&error))?;
        }
        for list in &self.features {
            options = options.with_features(list).map_err(|error| {
                let mut failure = usage(&error);
                failure.exit = Exit::Usage;
                failure
            })?;
        }
        options.block_size = self.block_size;
        options.cluster_bytes = self.cluster_size;
        options.inode_size = self.inode_size;
        options.bytes_per_inode = self.bytes_per_inode;
        options.inodes = self.inodes;
        options.reserved_percent = self.reserved_percent;
        options.flex_groups = self.flex_groups;
        options.blocks_per_group = self.blocks_per_group;
        options.stride = self.stride.unwrap_or(options.stride);
        options.stripe_width = self.stripe_width.unwrap_or(options.stripe_width);
        options.root_owner = self.root_owner.or(options.root_owner);
        options.label = self.label.clone().unwrap_or_default().into_bytes();
        options.last_mounted = self.last_mounted.clone().unwrap_or_default().into_bytes();
        options.hash_seed = self.hash_seed.map(Uuid::into_bytes).or(options.hash_seed);
        if let Some(UuidChoice::This(uuid)) = self.uuid {
            options.uuid = Some(uuid);
        }
        if let Some(errors) = &self.errors {
            options.errors = match errors.as_str() {
                "continue" => extant_image::options::ErrorsPolicy::Continue,
                "panic" => extant_image::options::ErrorsPolicy::Panic,
                _ => extant_image::options::ErrorsPolicy::RemountReadOnly,
            };
        }
        if self.with_journal {
            options = options.with_features("has_journal").map_err(|error| usage(&error))?;
        }
        for list in &self.journal {
            apply_journal(&mut options, list)?;
        }
        Ok(options)
    }

    /// Returns whether the UUID is to be drawn even in a reproducible build.
    pub(crate) fn wants_random_uuid(&self) -> bool {
        self.uuid == Some(UuidChoice::Random)
    }
}

/// `-J`.
fn apply_journal(options: &mut MkfsOptions, list: &str) -> Result<()> {
    // As mke2fs: a plain number is MiB.
    let bytes = |name: &str, text: &str| match parse_amount(text) {
        Ok(Amount::Bytes(bytes)) => Ok(bytes),
        Ok(Amount::Plain(mib)) if mib < 1 << 20 => Ok(mib << 20),
        Ok(Amount::Plain(_)) => Err(Failure::usage(format!("-J {name}={text}: too large"))),
        Err(error) => Err(Failure::usage(format!("-J {name}={text}: {error}"))),
    };
    for element in list.split(',').map(str::trim).filter(|element| !element.is_empty()) {
        match element.split_once('=') {
            None if element == "none" => options.journal = JournalOption::None,
            Some(("size", "none")) => options.journal = JournalOption::None,
            Some(("size", text)) => options.journal = JournalOption::Bytes(bytes("size", text)?),
            Some(("fast_commit_size", text)) => {
                options.fast_commit = FastCommitSize::Bytes(bytes("fast_commit_size", text)?);
            }
            Some(("device" | "location", _)) => {
                return Err(Failure::new(
                    Exit::Unsupported,
                    format!("-J {element}: only a journal inside the image, placed by extant"),
                ));
            }
            _ => {
                return Err(Failure::usage(format!(
                    "-J {element}: give none, size=SIZE or fast_commit_size=SIZE"
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals() {
        let journal = |list| {
            let mut options = MkfsOptions::default();
            apply_journal(&mut options, list).map(|()| options.journal)
        };
        assert_eq!(journal("none").unwrap(), JournalOption::None);
        assert_eq!(journal("size=none").unwrap(), JournalOption::None);
        assert_eq!(journal("size=64").unwrap(), JournalOption::Bytes(64 << 20));
        assert_eq!(journal("size=4096K").unwrap(), JournalOption::Bytes(4 << 20));
        assert_eq!(journal("device=/dev/sdb").unwrap_err().exit, Exit::Unsupported);
        assert_eq!(journal("size").unwrap_err().exit, Exit::Usage);
        assert_eq!(journal("size=99999999").unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn uuids() {
        assert_eq!(parse_uuid("clear"), Ok(UuidChoice::This([0; 16])));
        assert_eq!(parse_uuid("random"), Ok(UuidChoice::Random));
        assert!(parse_uuid("1234").is_err());
    }
}
