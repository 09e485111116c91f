//! Multi-mount protection for the time of a change: nobody has the file system, and nobody gets it meanwhile.
//!
//! # Shape
//!
//! ```text
//! Seen::look     what the block says; where it says that somebody has it, whether it changes
//! Seen::claim    the block as it was seen becomes ours: a number, a wait, the number of e2fsck
//! Guard          ours; `through` is the device for writes that may go over the block
//! Guard::after   a step that writes the block writes it as ours, with the checksum of then
//! ```
//!
//! # Rules
//!
//! - G1. A block that changes is somebody's: nothing is written then, whatever else is wrong with it.
//! - G2. What was planned from a look is written only if the block is the one of the look, byte by byte:
//!   whoever had the file system in between left another time, number or name in it.
//! - G3. From [`claim`](Seen::claim) to [`end`](Guard::end) the block is ours, whatever is written elsewhere.
//!   The number of e2fsck needs no updates: everybody refuses it, for as long as it is there.
//!   A step that makes the block, takes it away or gives it another checksum keeps to that.
//! - G4. No wait is longer than [`WAIT_MAX`] seconds. A block that asks for a longer one is refused.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/mmp.rst`; the lengths of the waits are those of `extant`'s mounts
//! and the kernel's, because all must agree on them.

use std::sync::Arc;
use std::time::Duration;

use extant_base::sabotage;
use extant_block::{
    BlockDevice, Completion, DeviceError, Operation, Pending, SharedDevice, read_fresh_at,
};
use extant_format::features::Feature;
use extant_format::mmp::{MMP_BYTES, Mmp, MmpState, SEQUENCE_MAX};
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_sync::Clock;

use crate::commit::Step;
use crate::error::{ChangeError, Result};

/// Shortest interval of checks, in seconds.
const INTERVAL_MIN: u16 = 5;
/// Longest interval of checks that any program writes, in seconds.
const INTERVAL_MAX: u16 = 300;
/// Largest excess of a wait over the interval of checks, in seconds.
const WAIT_SLACK: u64 = 60;
/// The longest wait, in seconds.
pub const WAIT_MAX: u64 = INTERVAL_MAX as u64 + WAIT_SLACK;

/// Is told, before a wait, how many seconds it takes.
pub type Tell<'a> = dyn FnMut(u64) + 'a;

/// Where the block is.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// In bytes.
    offset: u64,
    /// Of its checksum.
    seed: Option<u32>,
    /// The interval that the superblock asks for, in seconds.
    interval: u16,
}

/// `None`: no protection, or no place for its block.
fn place(sb: &Superblock) -> Option<Place> {
    let block = sb.mmp_block.0;
    if !sb.features.has(Feature::MMP)
        || block <= u64::from(sb.first_data_block)
        || block >= sb.blocks_count
    {
        return None;
    }
    Some(Place {
        offset: block.saturating_mul(u64::from(sb.block_size.bytes())),
        seed: seed(sb),
        interval: sb.mmp_interval.max(INTERVAL_MIN),
    })
}

fn seed(sb: &Superblock) -> Option<u32> {
    sb.features.metadata_csum().then(|| sb.checksum_seed())
}

type Bytes = [u8; MMP_BYTES];

fn read(device: &dyn BlockDevice, offset: u64) -> Result<Bytes> {
    let mut bytes = [0; MMP_BYTES];
    read_fresh_at(device, offset, &mut bytes)?;
    Ok(bytes)
}

fn write(device: &dyn BlockDevice, offset: u64, bytes: &Bytes) -> Result {
    device.write_at(offset, bytes)?;
    Ok(device.flush()?)
}

fn decode(place: &Place, bytes: &Bytes) -> Result<Mmp> {
    Mmp::decode(place.seed, bytes).map_err(|error| ChangeError::damaged(error.to_string()))
}

/// Who has the file system, for people.
fn holder(mmp: &Mmp) -> Option<String> {
    let what = match mmp.state {
        MmpState::Clean => return None,
        MmpState::Active(_) => "a mount",
        MmpState::Fsck => "a check or a conversion",
        MmpState::Unsafe(_) => "something unknown",
    };
    let node = match String::from_utf8_lossy(mmp.node()).trim() {
        "" => String::new(),
        node => format!(" on {node}"),
    };
    Some(format!("{what}{node}, or one that was cut off"))
}

fn in_use(why: impl Into<String>) -> ChangeError {
    ChangeError::InUse { why: why.into() }
}

/// Seconds of a wait for an interval of checks; `None`: longer than any program asks for (G4).
fn wait_of(interval: u16) -> Option<u64> {
    let seconds = u64::from(interval.max(INTERVAL_MIN));
    (interval <= INTERVAL_MAX).then(|| (2 * seconds + 1).min(seconds + WAIT_SLACK))
}

/// Seconds that a mount waits before it has the file system of `sb`, by what the block says; 0: it has no
/// protection, or none that is given out.
pub(crate) fn waits_of_mount(device: &dyn BlockDevice, sb: &Superblock) -> Result<u64> {
    let Some(place) = place(sb) else { return Ok(0) };
    let Ok(mmp) = decode(&place, &read(device, place.offset)?) else { return Ok(0) };
    let seconds = wait_of(mmp.check_interval.max(place.interval)).unwrap_or(WAIT_MAX);
    Ok(match mmp.state {
        MmpState::Clean => seconds,
        MmpState::Active(_) => 2 * seconds,
        MmpState::Fsck | MmpState::Unsafe(_) => 0,
    })
}

fn wait(interval: u16, clock: &dyn Clock, tell: &mut Tell<'_>) -> Result {
    let seconds = wait_of(interval).ok_or_else(|| {
        in_use(format!(
            "its block asks for an interval of {interval} s, longer than {INTERVAL_MAX} s, which nobody writes"
        ))
    })?;
    tell(seconds);
    clock.sleep(Duration::from_secs(seconds));
    Ok(())
}

/// The block as it is while `mmp` is this host's, in `state`.
fn ours(mut mmp: Mmp, state: MmpState, clock: &dyn Clock) -> Mmp {
    mmp.state = state;
    mmp.time = u64::try_from(clock.now().0).unwrap_or(0);
    mmp.node_name = [0; 64];
    let name = extant_sync::host_name();
    // The last byte stays zero, for readers that look for it.
    let room = mmp.node_name.len() - 1;
    mmp.node_name.iter_mut().take(room).zip(name).for_each(|(to, from)| *to = from);
    mmp
}

/// A file system that nobody had when it was looked at.
#[derive(Debug)]
pub struct Seen {
    /// `None`: it has no protection.
    place: Option<Place>,
    bytes: Box<Bytes>,
}

impl Seen {
    /// Finds out that nobody has the file system of `sb`. Where the block says that somebody has, or is
    /// damaged, waits for as long as an owner may take to change it: at least 11 s, at most [`WAIT_MAX`].
    /// Nothing is written.
    ///
    /// # Errors
    ///
    /// [`ChangeError::InUse`]; the device's.
    pub fn look(
        device: &dyn BlockDevice,
        sb: &Superblock,
        clock: &dyn Clock,
        tell: &mut Tell<'_>,
    ) -> Result<Seen> {
        let Some(place) = place(sb) else {
            return Ok(Seen { place: None, bytes: Box::new([0; MMP_BYTES]) });
        };
        let bytes = read(device, place.offset)?;
        let (interval, who) = match decode(&place, &bytes) {
            Ok(mmp) => match mmp.state {
                MmpState::Clean => {
                    return Ok(Seen { place: Some(place), bytes: Box::new(bytes) });
                }
                MmpState::Fsck | MmpState::Unsafe(_) => {
                    return Err(in_use(holder(&mmp).unwrap_or_default()));
                }
                MmpState::Active(_) => (mmp.check_interval.max(place.interval), "a mount"),
            },
            Err(_) => (place.interval, "somebody, and its block is damaged"),
        };
        wait(interval, clock, tell)?;
        let now = read(device, place.offset)?;
        if now != bytes && !sabotage("change.guard.change-not-seen") {
            let node = Mmp::decode(None, &now).ok();
            let node = node.map(|mmp| String::from_utf8_lossy(mmp.node()).trim().to_owned());
            let node = node.filter(|node| !node.is_empty());
            let node = node.map_or_else(String::new, |node| format!(" on {node}"));
            return Err(in_use(format!("{who}{node}: its block changes")));
        }
        Ok(Seen { place: Some(place), bytes: Box::new(now) })
    }

    /// Returns whether the file system has the protection.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.place.is_some()
    }

    /// Takes the file system, if nobody had it since it was looked at. Writes a number of its own, waits
    /// as [`look`](Self::look) does to see that nobody else does, and then writes the number of e2fsck: 11 s
    /// as a rule, at most [`WAIT_MAX`]; none without the protection. `replaces`: a damaged block may be
    /// replaced.
    ///
    /// # Errors
    ///
    /// [`ChangeError::InUse`]; a damaged block that is to stay; the device's.
    pub fn claim(
        self,
        device: &SharedDevice,
        replaces: bool,
        clock: &dyn Clock,
        tell: &mut Tell<'_>,
    ) -> Result<Guard> {
        let mut guard = Guard { device: Arc::clone(device), held: None };
        let Some(place) = self.place else { return Ok(guard) };
        if read(&**device, place.offset)? != *self.bytes && !sabotage("change.guard.used-meanwhile")
        {
            return Err(in_use("somebody had it since it was looked at: do it again"));
        }
        let found = match decode(&place, &self.bytes) {
            Ok(mmp) => mmp,
            Err(_) if replaces => Mmp::clean(place.interval),
            Err(error) => return Err(error),
        };
        let interval = found.check_interval.max(place.interval);
        let mut random = [0; 4];
        extant_sync::os_random(&mut random)
            .map_err(|error| in_use(format!("no number can be drawn for its block: {error}")))?;
        let sequence = 1 + u32::from_le_bytes(random) % SEQUENCE_MAX;
        let mut mmp = ours(found, MmpState::Active(sequence), clock);
        mmp.check_interval = interval;
        let drawn = mmp.encode(place.seed);
        write(&**device, place.offset, &drawn)?;
        if !sabotage("change.guard.taken-without-wait") {
            wait(interval, clock, tell)?;
        }
        if read(&**device, place.offset)? != drawn {
            return Err(in_use("somebody else took it at the same time"));
        }
        let held = ours(mmp, MmpState::Fsck, clock).encode(place.seed);
        write(&**device, place.offset, &held)?;
        guard.held = Some((place.offset, Box::new(held)));
        Ok(guard)
    }
}

/// Multi-mount protection for the time of a change.
pub struct Guard {
    device: SharedDevice,
    /// Where the block is, in bytes, and what is in it.
    held: Option<(u64, Box<Bytes>)>,
}

impl Guard {
    /// What the guard is after `step`, whose block of the protection becomes the one that is held. A step
    /// that takes the protection away leaves nothing to be held, one that brings it leaves what it made:
    /// released if it `is_last`, otherwise held for the steps that follow.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Damaged`]: what the step writes there is no such block.
    pub fn after(&self, step: &mut Step, is_last: bool) -> Result<Guard> {
        let mut after = Guard { device: Arc::clone(&self.device), held: None };
        let Some(place) = place(&step.sb) else { return Ok(after) };
        let number = step.sb.mmp_block.0;
        let written = match step.switch.contains(number) {
            true => &mut step.switch,
            false => &mut step.quiet,
        };
        let mut block = written.get(number)?;
        let room = block.as_mut().and_then(|block| block.get_mut(..MMP_BYTES));
        let (Some(room), false) = (room, self.held.is_none() && is_last) else {
            after.held.clone_from(&self.held);
            return Ok(after);
        };
        let decode = |bytes: &[u8]| {
            Mmp::decode(None, bytes).map_err(|error| ChangeError::damaged(error.to_string()))
        };
        let mut mmp = decode(room)?;
        mmp.state = MmpState::Fsck;
        if let Some((_, held)) = &self.held {
            let held = decode(&held[..])?;
            (mmp.time, mmp.node_name) = (held.time, held.node_name);
        }
        if sabotage("change.guard.released-by-step") {
            mmp.state = MmpState::Clean;
        }
        let marked = mmp.encode(place.seed);
        room.copy_from_slice(&marked);
        if let Some(block) = block {
            written.insert(number, &block)?;
        }
        after.held = Some((place.offset, Box::new(marked)));
        Ok(after)
    }

    /// Returns who has the file system of `sb`, by what the block says; `None`: nobody. Whoever was cut off is
    /// in it still.
    ///
    /// # Errors
    ///
    /// A damaged block, the device's.
    pub fn left(device: &dyn BlockDevice, sb: &Superblock) -> Result<Option<String>> {
        let Some(place) = place(sb) else { return Ok(None) };
        Ok(holder(&decode(&place, &read(device, place.offset)?)?))
    }

    /// Takes the file system of `sb` away from whoever has it by what the block says. Only the caller knows
    /// that nobody does, on any host.
    ///
    /// # Errors
    ///
    /// A damaged block, the device's.
    pub fn clear(device: &dyn BlockDevice, sb: &Superblock) -> Result {
        let Some(place) = place(sb) else { return Ok(()) };
        let mut mmp = decode(&place, &read(device, place.offset)?)?;
        mmp.state = MmpState::Clean;
        write(device, place.offset, &mmp.encode(place.seed))
    }

    /// The device, with the block as it is held whatever is written over it (G3).
    #[must_use]
    pub fn through(&self) -> Through<'_> {
        Through { guard: self }
    }

    /// Gives it back.
    ///
    /// # Errors
    ///
    /// [`ChangeError::InUse`] when the block is not ours any more, which is left alone then; the device's.
    pub fn end(self) -> Result {
        let Some((offset, held)) = &self.held else { return Ok(()) };
        let decode = |bytes: &Bytes| {
            Mmp::decode(None, bytes).map_err(|error| ChangeError::damaged(error.to_string()))
        };
        let (mut now, was) = (decode(&read(&*self.device, *offset)?)?, decode(held)?);
        if (now.state, now.node_name) != (was.state, was.node_name) {
            return Err(in_use("somebody took it while it was changed"));
        }
        now.state = MmpState::Clean;
        // The change may have been one of checksums.
        let mut bytes = [0; SUPERBLOCK_BYTES];
        self.device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
        // In whichever state it is now.
        let seed = seed(&Superblock::decode_unverified(&bytes)?);
        write(&*self.device, *offset, &now.encode(seed))
    }
}

/// The device of a [`Guard`]: writes go through, but for those over the block of the protection.
pub struct Through<'a> {
    guard: &'a Guard,
}

impl Through<'_> {
    fn below(&self) -> &dyn BlockDevice {
        &*self.guard.device
    }

    /// Puts what is held over what is to be written at `offset`.
    fn keep(&self, offset: u64, bytes: &mut [u8]) {
        let Some((at, held)) = &self.guard.held else { return };
        for (place, byte) in (*at..).zip(held.iter()) {
            let within = place.checked_sub(offset).and_then(|within| usize::try_from(within).ok());
            if let Some(to) = within.and_then(|within| bytes.get_mut(within)) {
                *to = *byte;
            }
        }
    }

    fn is_over(&self, offset: u64, len: u64) -> bool {
        self.guard.held.as_ref().is_some_and(|(at, _)| {
            *at < offset.saturating_add(len) && offset < at.saturating_add(MMP_BYTES as u64)
        })
    }
}

impl BlockDevice for Through<'_> {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let run = |mut operation: Operation| {
            let result = match &mut operation {
                Operation::Read { offset, buffer } => self.read_at(*offset, buffer),
                Operation::Write { offset, buffer, fua } => {
                    let result = self.write_at(*offset, buffer);
                    if *fua { result.and_then(|()| self.flush()) } else { result }
                }
                Operation::Flush => self.flush(),
                Operation::Discard { offset, len } => self.discard(*offset, *len),
                Operation::WriteZeroes { offset, len } => self.write_zeroes(*offset, *len),
            };
            Completion { operation, result }
        };
        Pending::done(batch.into_iter().map(run).collect())
    }

    fn size_bytes(&self) -> u64 {
        self.below().size_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.below().is_read_only()
    }

    fn describe(&self) -> Arc<str> {
        self.below().describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::result::Result<(), DeviceError> {
        self.below().read_at(offset, out)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> std::result::Result<(), DeviceError> {
        if !self.is_over(offset, bytes.len() as u64) || sabotage("change.guard.block-overwritten") {
            return self.below().write_at(offset, bytes);
        }
        let mut bytes = bytes.to_vec();
        self.keep(offset, &mut bytes);
        self.below().write_at(offset, &bytes)
    }

    fn flush(&self) -> std::result::Result<(), DeviceError> {
        self.below().flush()
    }

    fn discard(&self, offset: u64, len: u64) -> std::result::Result<(), DeviceError> {
        if self.is_over(offset, len) {
            // A discard may be left undone.
            return Ok(());
        }
        self.below().discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> std::result::Result<(), DeviceError> {
        self.below().write_zeroes(offset, len)?;
        match &self.guard.held {
            Some((at, held)) if self.is_over(offset, len) => self.below().write_at(*at, &held[..]),
            _ => Ok(()),
        }
    }
}
