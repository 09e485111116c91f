//! Multi-mount protection: one writer at a time, by a block that the writer keeps changing.
//!
//! # Place
//!
//! Below: the device, without a cache. Above: a writable mount takes a [`MmpGuard`] before it
//! replays or writes anything, calls [`MmpGuard::tick`] periodically, and releases it last.
//!
//! # Rules
//!
//! - P1. A host writes only after its own sequence number stayed in the block for the whole wait.
//! - P2. A number that changed, the number of e2fsck, or an invalid number prevents the mount.
//! - P3. A host that is late with an update first checks that the block still has its number, and so does one
//!   that ends its mount, before its last writes. One that has lost the file system writes nothing more, not
//!   even the error into the journal, which is the other host's.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/mmp.rst`; the lengths of the waits are e2fsprogs' and the
//! kernel's, because all must agree on them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant_base::{FsBlock, Prng};
use extant_block::{SharedDevice, read_fresh_at};
use extant_format::features::Incompat;
use extant_format::mmp::{Mmp, MmpState, SEQUENCE_MAX};
use extant_format::superblock::Superblock;
use extant_sync::{Clock, Mutex, Rank};

use crate::error::{Fault, FsError, Result};
use crate::progress::{MountStage, Observer};

/// Default time between updates in seconds, and the smallest check interval.
const INTERVAL: u16 = 5;
/// Largest check interval in seconds.
const INTERVAL_MAX: u16 = 300;
/// Ratio of the check interval to the time between two updates.
const CHECK_TIMES: u64 = 2;
/// Largest excess of a wait over the check interval, in seconds.
const WAIT_SLACK: u64 = 60;

/// Identification of this host in the block, for messages only; both names are cut to the size of
/// their fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct MmpNames {
    /// The host, 64 bytes.
    pub(crate) node: Vec<u8>,
    /// The device, 32 bytes.
    pub(crate) device: Vec<u8>,
}

/// The right to write a file system with multi-mount protection, held from mount to unmount.
pub(crate) struct MmpGuard {
    device: SharedDevice,
    /// Offset of the block on the device, in bytes.
    offset: u64,
    block: FsBlock,
    block_bytes: usize,
    seed: Option<u32>,
    clock: Arc<dyn Clock>,
    /// State, with rank `MetadataBuffer`, by block number: the lock is held over I/O of that block.
    held: Mutex<Held>,
    /// Whether the mount succeeded: then unmounting releases the block, and dropping the guard does
    /// not.
    mounted: AtomicBool,
}

struct Held {
    mmp: Mmp,
    /// Time between updates.
    interval: Duration,
    /// Time of the last update, on the monotonic clock.
    updated: Duration,
    /// Whether another host took the block, which is then not written again.
    lost: bool,
}

/// Means of waiting for [`MmpGuard::acquire`]: a clock and an observer.
pub(crate) struct Wait<'a> {
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) observer: &'a Observer,
}

impl Wait<'_> {
    /// Sleeps for `seconds` of `total`, after `done` seconds.
    fn sleep(&self, done: u64, seconds: u64, total: u64) -> Result<()> {
        if !self.observer.is_there() {
            self.clock.sleep(Duration::from_secs(seconds));
            return Ok(());
        }
        for second in 0..seconds {
            self.observer.tell(MountStage::Waiting, done + second, total)?;
            self.clock.sleep(Duration::from_secs(1));
        }
        self.observer.tell(MountStage::Waiting, done + seconds, total)
    }
}

impl MmpGuard {
    /// Takes the right to write; `None` when the file system has no such protection. Waits, by the
    /// clock's [`sleep`](Clock::sleep), at least 11 s, and twice that unless the last writer
    /// unmounted: with the longest interval in a hostile block up to 2 minutes more than that.
    ///
    /// # Errors
    ///
    /// [`FsError::InUse`] with the block's information about the holder; damage of the block;
    /// device errors; [`FsError::OperationCancelled`] by the observer.
    pub(crate) fn acquire(
        device: &SharedDevice,
        superblock: &Superblock,
        wait: &Wait<'_>,
        random: &mut Prng,
        names: &MmpNames,
    ) -> Result<Option<MmpGuard>> {
        if !superblock.features.has_incompat(Incompat::MMP) {
            return Ok(None);
        }
        let block = superblock.mmp_block;
        let first = u64::from(superblock.first_data_block);
        let offset = superblock
            .block_size
            .offset_of(block)
            .filter(|_| block.0 > first && block.0 < superblock.blocks_count);
        let offset = offset.ok_or_else(|| {
            let rule = "block number outside the file system";
            let fault = Fault::Field { rule, value: block.0, limit: superblock.blocks_count };
            FsError::corrupt("multi-mount block", None, block, fault)
        })?;
        let interval = match superblock.mmp_interval {
            0 => INTERVAL,
            some => some.min(INTERVAL_MAX),
        };
        let held = Held {
            mmp: Mmp::clean(INTERVAL),
            interval: Duration::from_secs(u64::from(interval)),
            updated: Duration::ZERO,
            lost: false,
        };
        let guard = MmpGuard {
            device: Arc::clone(device),
            offset,
            block,
            block_bytes: superblock.block_size.len(),
            seed: superblock.features.metadata_csum().then(|| superblock.checksum_seed()),
            clock: Arc::clone(wait.clock),
            held: Mutex::with_order(Rank::MetadataBuffer, block.0, held),
            mounted: AtomicBool::new(false),
        };
        guard.take(interval, wait, random, names)?;
        Ok(Some(guard))
    }

    /// Records that the mount succeeded. From now on dropping the guard, as in a crash, leaves the
    /// block unchanged: the next mount must wait.
    pub(crate) fn mounted(&self) {
        self.mounted.store(true, Ordering::Release);
    }

    /// Takes the block by the rules P1 and P2.
    fn take(
        &self,
        interval: u16,
        waits: &Wait<'_>,
        random: &mut Prng,
        names: &MmpNames,
    ) -> Result<()> {
        let found = self.read()?;
        let check = found.check_interval.clamp(INTERVAL, u16::MAX).max(interval);
        let wait = u64::from(check);
        let wait = (wait * CHECK_TIMES + 1).min(wait + WAIT_SLACK);
        let before = if found.state == MmpState::Clean { 0 } else { wait };
        match found.state {
            MmpState::Clean => {}
            MmpState::Active(sequence) => {
                waits.sleep(0, wait, before + wait)?;
                let now = self.read()?;
                if now.state != MmpState::Active(sequence) {
                    return Err(in_use(&now));
                }
            }
            MmpState::Fsck | MmpState::Unsafe(_) => return Err(in_use(&found)),
        }
        let mut held = self.held.lock();
        held.mmp = found;
        // At most SEQUENCE_MAX, so it fits.
        let sequence = 1 + random.below(u64::from(SEQUENCE_MAX)) as u32;
        held.mmp.state = MmpState::Active(sequence);
        held.mmp.check_interval = u16::try_from(CHECK_TIMES).unwrap_or(2).saturating_mul(interval);
        held.mmp.check_interval = held.mmp.check_interval.clamp(INTERVAL, INTERVAL_MAX);
        fill(&mut held.mmp.node_name, &names.node);
        fill(&mut held.mmp.device_name, &names.device);
        self.write(&mut held)?;
        waits.sleep(before, wait, before + wait)?;
        let now = self.read()?;
        if now.state != held.mmp.state || now.node_name != held.mmp.node_name {
            return Err(in_use(&now));
        }
        // The wait took longer than an update may.
        self.write(&mut held)
    }

    /// Writes the next number if it is due. Cheap otherwise.
    ///
    /// # Errors
    ///
    /// [`FsError::InUse`] when another host took the file system (P3), from then on: nothing may be
    /// written to it any more. Device errors: the next call tries again.
    pub(crate) fn tick(&self) -> Result<()> {
        let mut held = self.held.lock();
        let since = self.clock.monotonic().saturating_sub(held.updated);
        if since < held.interval && !held.lost {
            return Ok(());
        }
        let late = since.as_secs() > u64::from(held.mmp.check_interval);
        if late || held.lost {
            self.look_at(&mut held)?;
        }
        let sequence = match held.mmp.state {
            MmpState::Active(sequence) if sequence < SEQUENCE_MAX => sequence + 1,
            _ => 1,
        };
        held.mmp.state = MmpState::Active(sequence);
        let check = (since.as_secs() * CHECK_TIMES).min(u64::from(INTERVAL_MAX));
        held.mmp.check_interval = u16::try_from(check).unwrap_or(INTERVAL_MAX).max(INTERVAL);
        self.write(&mut held)
    }

    /// Looks whether this host still has the file system, before the last writes of a mount.
    ///
    /// # Errors
    ///
    /// [`FsError::InUse`] when another host has it, from then on; device errors.
    pub(crate) fn look(&self) -> Result<()> {
        self.look_at(&mut self.held.lock())
    }

    fn look_at(&self, held: &mut Held) -> Result<()> {
        let now = self.read()?;
        held.lost |= now.state != held.mmp.state || now.node_name != held.mmp.node_name;
        if held.lost { Err(in_use(&now)) } else { Ok(()) }
    }

    /// Marks the block as unused, after everything else is on the device.
    ///
    /// # Errors
    ///
    /// [`FsError::InUse`] when another host has the block, which is left alone then; device errors.
    pub(crate) fn release(&self) -> Result<()> {
        let mut held = self.held.lock();
        self.look_at(&mut held)?;
        held.mmp.state = MmpState::Clean;
        self.write(&mut held)
    }

    fn read_block(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.block_bytes];
        // What this host keeps of a disk says nothing of what another one has written.
        read_fresh_at(&*self.device, self.offset, &mut bytes)?;
        Ok(bytes)
    }

    fn read(&self) -> Result<Mmp> {
        Mmp::decode(self.seed, &self.read_block()?).map_err(|error| {
            FsError::corrupt("multi-mount block", None, self.block, Fault::Decode(Box::new(error)))
        })
    }

    fn write(&self, held: &mut Held) -> Result<()> {
        let (seconds, _) = self.clock.now();
        held.mmp.time = u64::try_from(seconds).unwrap_or(0);
        let mut bytes = self.read_block()?;
        for (to, from) in bytes.iter_mut().zip(held.mmp.encode(self.seed)) {
            *to = from;
        }
        self.device.write_at(self.offset, &bytes)?;
        self.device.flush()?;
        held.updated = self.clock.monotonic();
        Ok(())
    }
}

/// Copies as much of `name` as fits, and zeros.
fn fill(field: &mut [u8], name: &[u8]) {
    field.fill(0);
    // The last byte stays zero, for readers that look for it.
    let room = field.len().saturating_sub(1);
    for (to, from) in field.iter_mut().take(room).zip(name) {
        *to = *from;
    }
}

/// Returns an error with the block's information about its holder.
fn in_use(mmp: &Mmp) -> FsError {
    let text = |bytes: &[u8]| match String::from_utf8_lossy(bytes).trim() {
        "" => "unknown".to_owned(),
        some => some.to_owned(),
    };
    let (node, device, time) = (text(mmp.node()), text(mmp.device()), mmp.time);
    let who = match mmp.state {
        // Both say nothing more, and leave it there when they are cut off.
        MmpState::Fsck => "e2fsck or a conversion, or one that was cut off (if no host uses it: \
                           extant tune -E clear_mmp)"
            .to_owned(),
        MmpState::Unsafe(sequence) => format!("something unknown (sequence {sequence:#010x})"),
        MmpState::Clean => "somebody who has just let it go".to_owned(),
        MmpState::Active(_) => "another mount".to_owned(),
    };
    let by = format!("{who}: host {node}, device {device}, last seen {time} s after 1970");
    FsError::InUse { by: by.into() }
}

impl Drop for MmpGuard {
    fn drop(&mut self) {
        // A failed mount has no caller to report to; if this fails, the next mount waits.
        if !self.mounted.load(Ordering::Acquire) && self.held.lock().updated != Duration::ZERO {
            let _ = self.release();
        }
    }
}

impl fmt::Debug for MmpGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MmpGuard").field("block", &self.block).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use extant_base::BlockSize;
    use extant_block::MemoryDevice;
    use extant_sync::FixedClock;

    use super::*;
    use crate::test_images::superblock;

    const AT: u64 = 9;

    fn device(state: MmpState) -> (SharedDevice, Superblock, Arc<FixedClock>) {
        let mut superblock = superblock(BlockSize::new(4096).unwrap(), 64);
        superblock.features.incompat |= Incompat::MMP;
        superblock.mmp_block = FsBlock(AT);
        let device: SharedDevice = Arc::new(MemoryDevice::new(64 * 4096));
        let mut mmp = Mmp::clean(5);
        mmp.state = state;
        mmp.node_name[..4].copy_from_slice(b"host");
        put(&device, &mmp);
        (device, superblock, Arc::new(FixedClock::at(1_000, 0)))
    }

    fn put(device: &SharedDevice, mmp: &Mmp) {
        device.write_at(AT * 4096, &mmp.encode(None)).unwrap();
    }

    fn get(device: &SharedDevice) -> Mmp {
        let mut bytes = [0; 1024];
        device.read_at(AT * 4096, &mut bytes).unwrap();
        Mmp::decode(None, &bytes).unwrap()
    }

    fn acquire(
        device: &SharedDevice,
        superblock: &Superblock,
        clock: &Arc<dyn Clock>,
    ) -> Result<Option<MmpGuard>> {
        let names = MmpNames { node: b"here".to_vec(), device: vec![b'x'; 100] };
        let wait = Wait { clock, observer: &Observer::default() };
        MmpGuard::acquire(device, superblock, &wait, &mut Prng::new(1), &names)
    }

    /// A clock on which somebody else updates the block at the first sleep.
    struct Rival {
        device: SharedDevice,
        inner: FixedClock,
        at_sleep: Mutex<Option<MmpState>>,
    }

    impl Clock for Rival {
        fn now(&self) -> (i64, u32) {
            self.inner.now()
        }
        fn monotonic(&self) -> Duration {
            self.inner.monotonic()
        }
        fn sleep(&self, time: Duration) {
            self.inner.advance(time);
            let next = self.at_sleep.lock().take();
            if let Some(state) = next {
                let mut mmp = get(&self.device);
                mmp.state = state;
                put(&self.device, &mmp);
            }
        }
    }

    #[test]
    fn a_clean_block_is_taken_kept_and_let_go() {
        let (device, superblock, clock) = device(MmpState::Clean);
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let guard = acquire(&device, &superblock, &shared).unwrap().unwrap();
        assert_eq!(clock.monotonic(), Duration::from_secs(11), "one wait");
        let taken = get(&device);
        let MmpState::Active(first) = taken.state else { panic!("{:?}", taken.state) };
        assert_eq!(
            (taken.node(), taken.device(), taken.time),
            (&b"here"[..], &[b'x'; 31][..], 1_011)
        );
        guard.tick().unwrap();
        assert_eq!(get(&device).state, MmpState::Active(first), "not due yet");
        clock.advance(Duration::from_secs(5));
        guard.tick().unwrap();
        assert_eq!(get(&device).state, MmpState::Active(first + 1));
        guard.release().unwrap();
        assert_eq!(get(&device).state, MmpState::Clean);
    }

    #[test]
    fn a_dead_holder_is_waited_for_and_a_living_one_refuses() {
        let (device, superblock, clock) = device(MmpState::Active(7));
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
        drop(acquire(&device, &superblock, &shared).unwrap().unwrap());
        assert_eq!(clock.monotonic(), Duration::from_secs(22), "two waits");
        for (before, during) in
            [(MmpState::Active(7), MmpState::Active(8)), (MmpState::Clean, MmpState::Active(3))]
        {
            let (device, superblock, _) = self::device(before);
            let rival = Rival {
                device: Arc::clone(&device),
                inner: FixedClock::at(0, 0),
                at_sleep: Mutex::new(Rank::Leaf, Some(during)),
            };
            let shared: Arc<dyn Clock> = Arc::new(rival);
            let error = acquire(&device, &superblock, &shared).unwrap_err();
            assert!(error.to_string().contains("another mount: host h"), "{error}");
            assert_eq!(error.errno(), 16);
            assert_eq!(get(&device).state, during, "left alone");
        }
    }

    #[test]
    fn fsck_and_unknown_numbers_refuse_at_once() {
        for (state, word) in
            [(MmpState::Fsck, "e2fsck"), (MmpState::Unsafe(0xf000_0000), "0xf0000000")]
        {
            let (device, superblock, clock) = device(state);
            let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
            let error = acquire(&device, &superblock, &shared).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
            assert_eq!(clock.monotonic(), Duration::ZERO);
        }
    }

    #[test]
    fn a_late_update_notices_that_the_block_was_taken() {
        let (device, superblock, clock) = device(MmpState::Clean);
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let guard = acquire(&device, &superblock, &shared).unwrap().unwrap();
        let mut other = get(&device);
        other.state = MmpState::Active(1);
        other.node_name[..5].copy_from_slice(b"thief");
        put(&device, &other);
        clock.advance(Duration::from_secs(100));
        for _ in 0..2 {
            assert!(matches!(guard.tick(), Err(FsError::InUse { .. })));
        }
        assert!(guard.release().is_err());
        assert!(get(&device).encode(None) == other.encode(None), "left alone");
    }

    #[test]
    fn a_block_outside_or_damaged_is_named() {
        let (device, mut superblock, clock) = device(MmpState::Clean);
        let shared: Arc<dyn Clock> = clock as _;
        for wild in [0, 64, u64::MAX] {
            superblock.mmp_block = FsBlock(wild);
            assert!(matches!(
                acquire(&device, &superblock, &shared),
                Err(FsError::Corrupt { structure: "multi-mount block", .. })
            ));
        }
        superblock.mmp_block = FsBlock(AT + 1);
        let error = acquire(&device, &superblock, &shared).unwrap_err();
        assert!(error.to_string().contains("multi-mount block"), "{error}");
        superblock.features.incompat -= Incompat::MMP;
        assert!(acquire(&device, &superblock, &shared).unwrap().is_none());
    }
}
