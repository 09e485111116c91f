//! File systems that dm-verity seals: not changed by whoever did not say that the seal may break.

use std::sync::Arc;

use clap::Args;
use extant_block::{BlockDevice, SharedDevice};
use extant_image::verity::seal::{self, Seal};

use crate::exit::{Exit, Failure, Result};
use crate::image::window;

/// Whether a seal may be broken.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SealArgs {
    /// Change a file system that dm-verity seals, which breaks the seal
    #[arg(long, help_heading = "Image")]
    pub(crate) break_seal: bool,
}

/// Part of a disk, and the seal on it.
pub(crate) struct Part {
    pub(crate) device: SharedDevice,
    seal: Option<Seal>,
}

impl Part {
    /// Finds the part of `disk` where the file system is, and its seal. `looks`: a seal makes a difference, unless
    /// changes go into an overlay.
    pub(crate) fn of(
        disk: SharedDevice,
        offset: Option<u64>,
        partition: Option<u32>,
        looks: bool,
    ) -> Result<Part> {
        let looks = looks && !disk.is_overlay();
        let is_part = offset.is_some() || partition.is_some();
        let device = window(Arc::clone(&disk), offset, partition)?;
        let around = is_part.then_some(&*disk as &dyn BlockDevice);
        let seal = looks.then(|| seal::find(&*device, around)).flatten();
        Ok(Part { device, seal })
    }

    /// Refuses to change what is sealed. `name` is the image's.
    pub(crate) fn unsealed(self, name: &str) -> Result<SharedDevice> {
        self.check(name)?;
        Ok(self.device)
    }

    /// Refuses it as [`unsealed`](Self::unsealed) does, of a part that is used later.
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        let place = match self.seal {
            None => return Ok(()),
            Some(Seal::Behind(at)) => format!("the hashes at byte {at} of it"),
            Some(Seal::Partition(number)) => format!("the hashes in partition {number}"),
        };
        let message = format!("{name} is sealed by dm-verity: with any change, {place} are wrong");
        Err(Failure::new(Exit::Refused, message).on(name).hint(
            "build it anew with the change; --overlay FILE keeps changes elsewhere; --break-seal changes it all the same",
        ))
    }
}
