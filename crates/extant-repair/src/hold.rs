//! Nobody else has the file system while it is written.
//!
//! A look before anything is read, a claim before anything is written: what is asked in between may take
//! hours, and whoever stops there leaves nothing behind.

use std::sync::Arc;

use extant_block::{BlockDevice, SharedDevice};
use extant_change::{Guard, Seen, Tell, Through};
use extant_format::superblock::Superblock;
use extant_sync::Clock;

use crate::draft::Draft;
use crate::error::RepairError;
use crate::session::Outcome;
use crate::supers;

/// A file system that nobody had when it was looked at.
#[derive(Debug)]
pub struct Look(Option<Seen>);

/// Finds out that nobody has the file system on `device`, by the superblock that [`repair`](crate::repair)
/// would use. Nothing is written. To be called before it, by who means to write.
///
/// Where its block says that a mount has it, or is damaged, this waits for as long as an owner may take to
/// change it, by the clock's [`sleep`](Clock::sleep): 11 s as a rule, 6 minutes at most. `tell` is told
/// before, with the number of seconds.
///
/// # Errors
///
/// [`RepairError::InUse`]; the device's. No superblock is no error here: there is nothing to be repaired.
pub fn look(
    device: &SharedDevice,
    clock: &dyn Clock,
    tell: &mut Tell<'_>,
) -> Result<Look, RepairError> {
    let sb = match found(device) {
        Ok(sb) => sb,
        Err(RepairError::Device(error)) => return Err(RepairError::Device(error)),
        Err(_) => return Ok(Look(None)),
    };
    Ok(Look(Some(Seen::look(&**device, &sb, clock, tell)?)))
}

/// Who has the file system on `device`, by what its block says, for people; `None`: nobody. Whoever was cut
/// off is in it still.
///
/// # Errors
///
/// As of [`repair`](crate::repair) for a superblock; [`RepairError::Check`] for a damaged block; the device's.
pub fn holder(device: &SharedDevice) -> Result<Option<String>, RepairError> {
    Ok(Guard::left(&**device, &found(device)?)?)
}

/// Takes the file system away from whoever has it by what its block says, whatever else is wrong with it.
/// Only the caller knows that nobody does, on any host.
///
/// # Errors
///
/// As of [`holder`].
pub fn clear(device: &SharedDevice) -> Result<(), RepairError> {
    Ok(Guard::clear(&**device, &found(device)?)?)
}

/// The superblock that a repair would use.
fn found(device: &SharedDevice) -> Result<Superblock, RepairError> {
    Ok(supers::find(&Arc::new(Draft::over(Arc::clone(device))))?.sb)
}

impl Look {
    /// Takes the file system, for the writes of `outcome`; `None`: for those of an undo file. Waits as
    /// [`look`] does, if it has multi-mount protection.
    ///
    /// # Errors
    ///
    /// [`RepairError::InUse`] also when somebody had it since it was looked at; [`RepairError::Check`] for
    /// a damaged block that is to stay as it is; the device's.
    pub fn claim(
        self,
        device: &SharedDevice,
        outcome: Option<&Outcome>,
        clock: &dyn Clock,
        tell: &mut Tell<'_>,
    ) -> Result<Held, RepairError> {
        let Some(seen) = self.0 else {
            return Ok(Held { device: Arc::clone(device), guard: None });
        };
        let replaces = outcome.is_none_or(|outcome| {
            outcome.findings.iter().any(|one| one.code == "mmp" && one.left.is_none())
        });
        let guard = seen.claim(device, replaces, clock, tell)?;
        Ok(Held { device: Arc::clone(device), guard: Some(guard) })
    }
}

/// A file system that nobody else gets until the [`end`](Self::end). Dropped without it, as by SIGKILL, it
/// stays taken.
pub struct Held {
    device: SharedDevice,
    guard: Option<Guard>,
}

impl Held {
    /// Does something with the device, whose block of the protection stays as it is meanwhile.
    pub fn with<T>(&self, work: impl FnOnce(&dyn BlockDevice) -> T) -> T {
        match &self.guard {
            Some(guard) => {
                let through: Through<'_> = guard.through();
                work(&through)
            }
            None => work(&*self.device),
        }
    }

    /// Gives it back, after everything else and also after an error.
    ///
    /// # Errors
    ///
    /// [`RepairError::InUse`] when somebody took it all the same; the device's.
    pub fn end(self) -> Result<(), RepairError> {
        match self.guard {
            Some(guard) => Ok(guard.end()?),
            None => Ok(()),
        }
    }
}
