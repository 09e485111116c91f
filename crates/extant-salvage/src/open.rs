//! An image opened: its superblock found, its journal brought in.

use extant_base::BlockSize;
use extant_block::SharedDevice;
use extant_format::features::{Compat, Incompat};

use crate::error::SalvageError;
use crate::guess::guess;
use crate::image::Image;
use crate::replay::{Replayed, replay};
use crate::supers;

/// What the user knows about an image that says nothing of itself any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The block size.
    pub block_size: Option<BlockSize>,
    /// Leaves the journal alone.
    pub no_replay: bool,
}

impl Image {
    /// Finds the superblock and the inode tables, and brings the journal in, in memory.
    ///
    /// # Errors
    ///
    /// [`SalvageError::NoSuperblock`] when there is nothing from which the numbers of the file system follow;
    /// [`SalvageError::Features`]; the device's error when none of it can be read.
    pub fn open(device: SharedDevice, options: &Options) -> Result<Image, SalvageError> {
        let mut notes = Vec::new();
        let found = supers::find(&*device)?;
        let (sb, must_replay) = match found {
            Some(found) => {
                if let Some(group) = found.backup {
                    notes.push(format!(
                        "the superblock is gone: the backup in group {group} takes its place"
                    ));
                }
                if found.is_doubtful {
                    notes.push("the superblock has a wrong checksum, and no backup".to_owned());
                }
                let is_marked = found.sb.features.has_incompat(Incompat::RECOVER);
                (found.sb, is_marked || found.backup.is_some())
            }
            None => {
                let sb = guess(&*device, options.block_size).ok_or(SalvageError::NoSuperblock {
                    block_size: options.block_size.map(BlockSize::bytes),
                })?;
                notes.push(format!(
                    "the superblock and its backups are gone: {} blocks of {} bytes, {} inodes in {} groups are what \
                     the descriptors say",
                    sb.blocks_count,
                    sb.block_size.bytes(),
                    sb.inodes_count,
                    sb.group_count,
                ));
                (sb, false)
            }
        };
        let mut image = Image::of(device, sb, notes);
        if must_replay && !options.no_replay && image.sb.features.has_compat(Compat::HAS_JOURNAL) {
            image.bring_in();
        }
        Ok(image)
    }

    /// Shows what the log holds in its places, if it can be read.
    fn bring_in(&mut self) {
        match replay(self) {
            Ok(None) => {}
            Ok(Some(Replayed { device, transactions, damaged, broken, fast_commits })) => {
                let mut text = format!("{transactions} transactions of the journal are brought in");
                if damaged > 0 {
                    text += &format!(", {damaged} damaged blocks of it left out");
                }
                if let Some(why) = &broken {
                    text += &format!(", what lies behind them is left out: {why}");
                }
                if fast_commits > 0 {
                    text += &format!(", {fast_commits} fast commits left out");
                }
                let mut notes = std::mem::take(&mut self.notes);
                notes.push(text);
                // The log may hold a later superblock, and later descriptors.
                let sb = match supers::find(&*device) {
                    Ok(Some(found)) if found.backup.is_none() => found.sb,
                    _ => self.sb.clone(),
                };
                *self = Image::of(device, sb, notes);
                self.is_replayed = true;
                self.lacks_log = damaged > 0 || broken.is_some() || fast_commits > 0;
            }
            Err(why) => {
                self.lacks_log = true;
                self.notes
                    .push(format!("the journal cannot be brought in, and is left out: {why}"));
            }
        }
    }
}
