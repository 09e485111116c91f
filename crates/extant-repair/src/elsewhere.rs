//! A journal on a device of its own, where the caller has it.

use std::sync::Arc;

use extant::FsError;
use extant_block::{BlockDevice, SharedDevice};
use extant_format::features::{Compat, Feature};
use extant_format::superblock::Superblock;
use extant_jbd2::{ExternalJournal, ExternalJournalError, JournalDevice, LogStore};

use crate::draft::Draft;
use crate::empty_log::new_superblock;
use crate::error::{Fixed, RepairError, Trouble};
use crate::state::State;

/// Returns whether the journal of a file system is on a device of its own.
pub(crate) fn is_elsewhere(sb: &Superblock) -> bool {
    sb.features.has_compat(Compat::HAS_JOURNAL)
        && sb.journal_inode.0 == 0
        && sb.journal_uuid != [0; 16]
}

/// Compares the device that was given for the journal, if one was, with what the superblock says. What a journal
/// holds that was not given cannot be brought in, and a repair that went on would lose it.
pub(crate) fn compare(sb: &Superblock, given: Option<&SharedDevice>) -> Result<(), RepairError> {
    let wanted = sb.journal_uuid;
    let Some(given) = given else {
        if is_elsewhere(sb) && sb.features.has(Feature::RECOVER) {
            let missing = FsError::JournalDeviceMissing { uuid: wanted };
            return Err(RepairError::JournalDevice { why: missing.to_string() });
        }
        return Ok(());
    };
    let other = |why: String| RepairError::OtherJournal { why };
    if !is_elsewhere(sb) {
        let has = match sb.journal_inode.0 {
            0 => "no journal".to_owned(),
            ino => format!("its journal in inode {ino}"),
        };
        let text = format!("the file system has {has}, and none on another device");
        return Err(other(text));
    }
    let found = match JournalDevice::recognize(&**given) {
        Ok(found) => found,
        Err(ExternalJournalError::Device(error)) => return Err(RepairError::Device(error)),
        Err(error) => {
            let error = FsError::JournalDevice(Box::new(error));
            return Err(other(error.to_string()));
        }
    };
    if found.uuid != wanted {
        return Err(other(FsError::WrongJournalDevice { wanted, found: found.uuid }.to_string()));
    }
    if found.block_size != sb.block_size {
        let (journal, fs) = (found.block_size.bytes(), sb.block_size.bytes());
        let text = format!("the journal has blocks of {journal} bytes, its file system of {fs}");
        return Err(other(text));
    }
    Ok(())
}

/// Opens the log on the device of the journal; `None`: none was given.
pub(crate) fn log(draft: &Arc<Draft>) -> Fixed<Option<LogStore>> {
    let Some(device) = draft.journal() else { return Ok(None) };
    match ExternalJournal::open(Arc::new(device)) {
        Ok(journal) => Ok(Some(LogStore::external(journal))),
        Err(ExternalJournalError::Device(error)) => Err(Trouble::Device(error)),
        Err(ExternalJournalError::Journal(error)) => Err(Trouble::cannot(error.to_string())),
        Err(error) => Err(Trouble::cannot(error.to_string())),
    }
}

/// Makes the superblock of the journal on its device anew, with an empty log.
pub(crate) fn empty_log(state: &State) -> Fixed {
    let Some(device) = state.draft.journal() else { return Ok(()) };
    let found = match JournalDevice::recognize(&device) {
        Ok(found) => found,
        Err(ExternalJournalError::Device(error)) => return Err(Trouble::Device(error)),
        Err(error) => return Err(Trouble::cannot(error.to_string())),
    };
    let block = u64::from(found.superblock_block);
    let at = block.saturating_mul(state.block_bytes() as u64);
    let mut old = vec![0; state.block_bytes()];
    device.read_at(at, &mut old)?;
    let mut new = new_superblock(state, found.blocks, &old);
    new.first = found.superblock_block.saturating_add(1);
    if new.uuid == [0; 16] {
        new.uuid = found.uuid;
    }
    new.user_count = 1;
    if let Some(user) = new.users.first_mut() {
        *user = state.sb.uuid;
    }
    // The block may hold more than the superblock.
    new.encode(&mut old).map_err(|error| Trouble::cannot(error.to_string()))?;
    device.write_at(at, &old)?;
    state.draft.seal();
    Ok(())
}
