//! The writes of a repair, in the order in which they happen.
//!
//! # Invariants
//!
//! - P1. A step is durable before the next begins.
//! - P2. Contents of clusters that were unused before are written before references to them; the
//!   superblock of a stage is written last.

use std::fmt;

use extant_base::sabotage;
use extant_block::{BlockDevice, DeviceError};
use extant_format::superblock::{SUPERBLOCK_OFFSET, Superblock};

use crate::draft::{Draft, UNIT, Units};
use crate::space::Bits;

/// Bytes of one write at most.
const WRITE_BYTES_MAX: usize = 1 << 16;

/// Writes between two flushes.
pub(crate) type Step = Vec<(u64, Vec<u8>)>;

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
            for (unit, bytes) in changed(draft, &stages[..number], stage)? {
                let to = if unit == SUPERBLOCK_OFFSET / UNIT as u64 {
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
                    plan.steps.push(writes(&units));
                }
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
        self.steps.iter().map(Vec::len).sum()
    }

    /// Returns how many bytes are written.
    #[must_use]
    pub fn byte_count(&self) -> u64 {
        self.writes().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// All writes in order: where, and the bytes.
    pub fn writes(&self) -> impl Iterator<Item = (u64, &[u8])> + '_ {
        self.steps.iter().flatten().map(|(offset, bytes)| (*offset, bytes.as_slice()))
    }

    /// Writes everything. If a write fails, or the machine stops, earlier writes stay: the image is
    /// marked as in need of a check, and another repair gives the same result.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn apply(&self, device: &dyn BlockDevice) -> Result<(), DeviceError> {
        for step in &self.steps {
            for (offset, bytes) in step {
                device.write_at(*offset, bytes)?;
            }
            device.flush()?;
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
    let size = draft.size_bytes();
    let mut there = [0; UNIT];
    for (unit, bytes) in stage {
        let earlier = before.iter().rev().find_map(|stage| stage.get(unit));
        let old = match earlier {
            Some(old) => old,
            None => {
                let offset = unit * UNIT as u64;
                there.fill(0);
                let inside = size.saturating_sub(offset).min(UNIT as u64) as usize;
                draft.base().read_at(offset, &mut there[..inside])?;
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

/// Neighbouring units are one write.
fn writes(units: &Changed<'_>) -> Step {
    let mut list: Step = Vec::new();
    for (unit, bytes) in units {
        let offset = unit * UNIT as u64;
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
