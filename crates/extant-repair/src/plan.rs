//! The writes of a repair, in the order in which they happen.
//!
//! # Invariants
//!
//! - P1. A step is durable before the next begins.
//! - P2. Contents of clusters that were unused before are written before references to them; the
//!   superblock of a stage is written last.

use std::fmt;

use extant_base::sabotage;
use extant_block::{BlockDevice, DeviceError, DeviceFault, OperationKind};
use extant_format::superblock::{SUPERBLOCK_OFFSET, Superblock};

use crate::draft::{Draft, JOURNAL_UNIT, UNIT, Units};
use crate::space::Bits;

/// Bytes of one write at most.
const WRITE_BYTES_MAX: usize = 1 << 16;

/// Where, and the bytes.
type Writes = Vec<(u64, Vec<u8>)>;

/// Writes of one device between two flushes.
#[derive(Clone, PartialEq, Eq)]
struct Step {
    /// To the device of the journal, which is another one.
    is_journal: bool,
    writes: Writes,
}

/// Units by number, in order.
type Changed<'u> = Vec<(u64, &'u [u8; UNIT])>;

/// The writes of a repair.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<Step>,
}

impl Plan {
    /// The changes of `draft`, which are taken out of it, as steps. `pinned`: clusters that the image used before.
    pub(crate) fn of(
        draft: &Draft,
        pinned: Option<(&Bits, &Superblock)>,
    ) -> Result<Plan, DeviceError> {
        let mut plan = Plan::default();
        let stages = draft.take_stages();
        for (number, stage) in stages.iter().enumerate() {
            let mut fresh = Changed::new();
            let mut rest = Changed::new();
            let mut last = Changed::new();
            let mut log = Changed::new();
            for (unit, bytes) in changed(draft, &stages[..number], stage)? {
                let to = if unit >= JOURNAL_UNIT {
                    &mut log
                } else if unit == SUPERBLOCK_OFFSET / UNIT as u64 {
                    &mut last
                } else if pinned.is_some_and(|(bits, sb)| is_fresh(bits, sb, unit)) {
                    &mut fresh
                } else {
                    &mut rest
                };
                to.push((unit, bytes));
            }
            let ordered = match sabotage("repair.plan.new-blocks-last") {
                true => [rest, last, fresh],
                false => [fresh, rest, last],
            };
            for units in ordered {
                if !units.is_empty() {
                    plan.steps.push(Step { is_journal: false, writes: writes(&units, 0) });
                }
            }
            if !log.is_empty() {
                let writes = writes(&log, JOURNAL_UNIT);
                plan.steps.push(Step { is_journal: true, writes });
            }
        }
        Ok(plan)
    }

    /// Returns whether there is nothing to be written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns how many writes there are.
    #[must_use]
    pub fn write_count(&self) -> usize {
        self.steps.iter().map(|step| step.writes.len()).sum()
    }

    /// Returns how many bytes are written.
    #[must_use]
    pub fn byte_count(&self) -> u64 {
        let all = self.steps.iter().flat_map(|step| &step.writes);
        all.map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// All writes to the image in order: where, and the bytes.
    pub fn writes(&self) -> impl Iterator<Item = (u64, &[u8])> + '_ {
        let steps = self.steps.iter().filter(|step| !step.is_journal);
        steps.flat_map(|step| &step.writes).map(|(offset, bytes)| (*offset, bytes.as_slice()))
    }

    /// Returns whether the device of the journal is written, too.
    #[must_use]
    pub fn writes_journal(&self) -> bool {
        self.steps.iter().any(|step| step.is_journal)
    }

    /// Writes everything, of an image whose journal is on no other device. If a write fails, or the machine
    /// stops, earlier writes stay: the image is marked as in need of a check, and another repair gives the
    /// same result.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn apply(&self, device: &dyn BlockDevice) -> Result<(), DeviceError> {
        self.apply_both(device, None)
    }

    /// Writes everything, as [`apply`](Self::apply) does, and what belongs on the device of the journal there.
    ///
    /// # Errors
    ///
    /// Those of the devices. Without the device of the journal, if that is [written](Self::writes_journal),
    /// nothing is written.
    pub fn apply_both(
        &self,
        device: &dyn BlockDevice,
        journal: Option<&dyn BlockDevice>,
    ) -> Result<(), DeviceError> {
        if journal.is_none() && self.writes_journal() {
            let (kind, fault) = (OperationKind::Write, DeviceFault::ReadOnly);
            return Err(DeviceError::new("the journal's device".into(), kind, 0, 0, fault));
        }
        for step in &self.steps {
            let to = if step.is_journal { journal.unwrap_or(device) } else { device };
            for (offset, bytes) in &step.writes {
                to.write_at(*offset, bytes)?;
            }
            to.flush()?;
        }
        Ok(())
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plan({} writes in {} steps)", self.write_count(), self.steps.len())
    }
}

/// The units of a stage that are not what they were.
fn changed<'u>(
    draft: &Draft,
    before: &[Units],
    stage: &'u Units,
) -> Result<Changed<'u>, DeviceError> {
    let mut changed = Changed::new();
    let mut there = [0; UNIT];
    for (unit, bytes) in stage {
        let earlier = before.iter().rev().find_map(|stage| stage.get(unit));
        let old = match earlier {
            Some(old) => old,
            None => {
                draft.read_below(*unit, &mut there)?;
                &there
            }
        };
        if *old != **bytes {
            changed.push((*unit, bytes));
        }
    }
    Ok(changed)
}

/// Returns whether a unit lies on a cluster that nothing used.
fn is_fresh(bits: &Bits, sb: &Superblock, unit: u64) -> bool {
    let block = (unit * UNIT as u64) >> sb.block_size.log2();
    let first = u64::from(sb.first_data_block);
    block >= first && block < sb.blocks_count && !bits.get((block - first) >> sb.cluster_bits())
}

/// Neighbouring units are one write; `first` begins the device.
fn writes(units: &Changed<'_>, first: u64) -> Writes {
    let mut list = Writes::new();
    for (unit, bytes) in units {
        let offset = (unit - first) * UNIT as u64;
        if let Some((from, run)) = list.last_mut()
            && *from + run.len() as u64 == offset
            && run.len() < WRITE_BYTES_MAX
        {
            run.extend_from_slice(&bytes[..]);
            continue;
        }
        list.push((offset, bytes.to_vec()));
    }
    list
}
